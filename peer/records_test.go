package peer

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/internal/blockcopy"
	"github.com/kvcr-go/kvcr/wire"
)

// table is a block table for tests: fixed slots in one memfd (or the Go heap), one
// mutex, all bookkeeping in maps. A violation of the rules panics.
type table struct {
	slotBytes int
	mem       []byte
	file      *os.File // nil: memory of the heap
	noSum     bool
	noPool    bool // offers are not in shared memory, as far as offers say

	mu     sync.Mutex
	free   []int
	blocks map[string]*tblock
	claims map[Claim]*tblock
	slots  map[Slot]*tslot
	caller map[string][]byte // memory of deliveries, by "op/index"
	last   uint64
	gen    uint32
}

type tblock struct {
	key, parent []byte
	at, size    int
	gen         uint32
	claims      int
	gone        bool
	mark        MoveID
	hold        HoldID
	sum         uint64
}

type tslot struct {
	key, parent []byte
	at, size    int
	sum         uint64
	out         []byte // caller's memory
}

func newTable(t testing.TB, slots, slotBytes int, shared bool) *table {
	tb := &table{slotBytes: slotBytes, blocks: map[string]*tblock{}, claims: map[Claim]*tblock{}, slots: map[Slot]*tslot{}, caller: map[string][]byte{}}
	if shared {
		fd, err := unix.MemfdCreate("kvcr-test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		tb.file = os.NewFile(uintptr(fd), "table")
		if err := tb.file.Truncate(int64(slots * slotBytes)); err != nil {
			t.Fatal(err)
		}
		if tb.mem, err = unix.Mmap(fd, 0, slots*slotBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_FUTURE_WRITE); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Munmap(tb.mem); tb.file.Close() })
	} else {
		tb.mem = make([]byte, slots*slotBytes)
	}
	for i := slots - 1; i >= 0; i-- {
		tb.free = append(tb.free, i*slotBytes)
	}
	return tb
}

// payload is what a key's block holds, so that every byte can be checked anywhere.
func payload(key string, size int) []byte {
	var seed [32]byte
	copy(seed[:], key)
	b := make([]byte, size)
	rand.NewChaCha8(seed).Read(b)
	return b
}

func (tb *table) put(t testing.TB, key string, size int) {
	t.Helper()
	tb.mu.Lock()
	defer tb.mu.Unlock()
	if len(tb.free) == 0 {
		t.Fatal("the table is full")
	}
	at := tb.free[len(tb.free)-1]
	tb.free = tb.free[:len(tb.free)-1]
	b := payload(key, size)
	copy(tb.mem[at:], b)
	tb.gen++
	tb.blocks[key] = &tblock{key: []byte(key), at: at, size: size, gen: tb.gen, sum: blockcopy.Sum(b)}
}

// check compares a resident block with what its key says.
func (tb *table) check(key string, size int) error {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	b := tb.blocks[key]
	if b == nil {
		return fmt.Errorf("%s is not resident", key)
	}
	if b.size != size || !bytes.Equal(tb.mem[b.at:b.at+b.size], payload(key, size)) {
		return fmt.Errorf("%s: wrong bytes", key)
	}
	return nil
}

// drop removes all blocks that nobody claims.
func (tb *table) drop() {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	for _, b := range tb.blocks {
		tb.remove(b)
	}
}

// dropAll removes blocks by their keys.
func (tb *table) dropAll(from, n int) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	for i := from; i < from+n; i++ {
		if b := tb.blocks[keyOf(i)]; b != nil {
			tb.remove(b)
		}
	}
}

func (tb *table) remove(b *tblock) {
	if tb.blocks[string(b.key)] == b {
		delete(tb.blocks, string(b.key))
	}
	b.gone, b.mark = true, MoveID{}
	tb.settle(b)
}

func (tb *table) settle(b *tblock) {
	if b.gone && b.claims == 0 && b.at >= 0 {
		tb.free = append(tb.free, b.at)
		b.at = -1
	}
}

// use is what is out: claims, slots, marks and holds.
func (tb *table) use() (claims, slots, marks, holds int) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	for _, b := range tb.blocks {
		if b.mark != (MoveID{}) {
			marks++
		}
		if b.hold != (HoldID{}) {
			holds++
		}
	}
	return len(tb.claims), len(tb.slots), marks, holds
}

// quiet waits until nothing is out.
func (tb *table) quiet(t testing.TB) {
	t.Helper()
	var c, s, m, h int
	within(t, 15*time.Second, func() bool {
		c, s, m, h = tb.use()
		return c+s+m+h == 0
	}, func() string { return fmt.Sprintf("%d claims, %d slots, %d marks, %d holds are out", c, s, m, h) })
}

func within(t testing.TB, limit time.Duration, ok func() bool, what func() string) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %v: %s", limit, what())
		}
	}
}

func (tb *table) Claim(_ string, w *wire.Wanted, o *wire.Offered) (Claim, wire.Status) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	b := tb.blocks[string(w.Key)]
	switch {
	case b == nil:
		return 0, wire.StatusMiss
	case w.Generation != 0 && w.Generation != b.gen:
		return 0, wire.StatusGeneration
	}
	b.claims++
	tb.last++
	c := Claim(tb.last)
	tb.claims[c] = b
	o.Generation, o.Size, o.Parent = b.gen, uint64(b.size), b.parent
	if !tb.noSum {
		o.Flags |= wire.OfferSum
		o.Sum = b.sum
	}
	if tb.file != nil && !tb.noPool {
		o.Offsets = []uint64{uint64(b.at)}
	} else {
		o.Flags |= wire.OfferNoPool
	}
	return c, wire.StatusOK
}

func (tb *table) Lookup(_ string, key []byte, r *wire.Resolved) wire.Status {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	b := tb.blocks[string(key)]
	if b == nil {
		return wire.StatusMiss
	}
	r.Generation, r.Size = b.gen, uint64(b.size)
	return wire.StatusOK
}

func (tb *table) claim(c Claim) *tblock {
	b := tb.claims[c]
	if b == nil {
		panic(fmt.Sprintf("no claim %d", c))
	}
	return b
}

func (tb *table) Unclaim(c Claim) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	b := tb.claim(c)
	delete(tb.claims, c)
	b.claims--
	tb.settle(b)
}

func (tb *table) Mark(c Claim, m MoveID) wire.Status {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	b := tb.claim(c)
	switch {
	case b.gone:
		return wire.StatusMiss
	case b.mark != MoveID{}:
		return wire.StatusMarked
	case b.hold != HoldID{}:
		return wire.StatusHeld
	}
	b.mark = m
	return wire.StatusOK
}

func (tb *table) Unmark(c Claim, m MoveID) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	if b := tb.claim(c); b.mark == m {
		b.mark = MoveID{}
	}
}

func (tb *table) Remove(cs []Claim, m MoveID, what []wire.Status) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	for i, c := range cs {
		b := tb.claim(c)
		switch {
		case b.gone:
			what[i] = wire.StatusMiss
		case b.mark != m:
			what[i] = wire.StatusRedeposited
		default:
			what[i] = wire.StatusOK
			tb.remove(b)
		}
	}
}

func (tb *table) Invalidate(_ string, w *wire.Wanted) wire.Status {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	b := tb.blocks[string(w.Key)]
	switch {
	case b == nil:
		return wire.StatusMiss
	case w.Generation != 0 && w.Generation != b.gen:
		return wire.StatusGeneration
	case b.hold != HoldID{}:
		return wire.StatusHeld
	}
	tb.remove(b)
	return wire.StatusOK
}

func (tb *table) Reserve(op OpID, i int, _ string, key []byte, o *wire.Offered) (Slot, wire.Status) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	sl := &tslot{key: bytes.Clone(key), parent: bytes.Clone(o.Parent), size: int(o.Size), sum: o.Sum, at: -1}
	if out, ok := tb.caller[fmt.Sprintf("%d/%d", op, i)]; ok {
		if len(out) != int(o.Size) {
			return 0, wire.StatusBadLayout
		}
		sl.out = out
	} else {
		switch {
		case tb.blocks[string(key)] != nil:
			return 0, wire.StatusExists
		case o.Size > uint64(tb.slotBytes):
			return 0, wire.StatusTooLarge
		case len(tb.free) == 0:
			return 0, wire.StatusCapacity
		}
		sl.at = tb.free[len(tb.free)-1]
		tb.free = tb.free[:len(tb.free)-1]
	}
	tb.last++
	tb.slots[Slot(tb.last)] = sl
	return Slot(tb.last), wire.StatusOK
}

func (tb *table) slot(s Slot) *tslot {
	sl := tb.slots[s]
	if sl == nil {
		panic(fmt.Sprintf("no slot %d", s))
	}
	return sl
}

func (tb *table) Commit(slots []Slot, hold HoldID) wire.Status {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	for _, s := range slots {
		sl := tb.slot(s)
		delete(tb.slots, s)
		if sl.out != nil {
			continue
		}
		if b := tb.blocks[string(sl.key)]; b != nil {
			tb.free = append(tb.free, sl.at)
			if hold != (HoldID{}) {
				if b.mark != (MoveID{}) {
					return wire.StatusCrossing
				}
				if b.hold != (HoldID{}) {
					return wire.StatusHeld
				}
				b.hold = hold
			}
			continue
		}
		tb.gen++
		tb.blocks[string(sl.key)] = &tblock{key: sl.key, parent: sl.parent, at: sl.at, size: sl.size, gen: tb.gen, sum: sl.sum, hold: hold}
	}
	return wire.StatusOK
}

func (tb *table) Free(s Slot) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	sl := tb.slot(s)
	delete(tb.slots, s)
	if sl.out == nil {
		tb.free = append(tb.free, sl.at)
	}
}

func (tb *table) TakeHold(_ string, key []byte, hold HoldID) wire.Status {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	b := tb.blocks[string(key)]
	switch {
	case b == nil:
		return wire.StatusMiss
	case b.mark != MoveID{}:
		return wire.StatusCrossing
	case b.hold != HoldID{}:
		return wire.StatusHeld
	}
	b.hold = hold
	return wire.StatusOK
}

func (tb *table) Holds(_ string, key []byte, hold HoldID) bool {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	b := tb.blocks[string(key)]
	return b != nil && b.hold == hold
}

func (tb *table) DropHold(_ string, key []byte, hold HoldID) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	if b := tb.blocks[string(key)]; b != nil && b.hold == hold {
		b.hold = HoldID{}
	}
}

func (*table) HoldRoom(int) bool { return true }

func (tb *table) ClaimBytes(c Claim) [][]byte {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	b := tb.claim(c)
	return [][]byte{tb.mem[b.at : b.at+b.size]}
}

func (tb *table) SlotBytes(s Slot) [][]byte {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	sl := tb.slot(s)
	if sl.out != nil {
		return [][]byte{sl.out}
	}
	return [][]byte{tb.mem[sl.at : sl.at+sl.size]}
}

func (tb *table) SlotSum(s Slot) uint64 { return blockcopy.Sum(tb.SlotBytes(s)[0]) }

func (tb *table) SlotSummed(s Slot, sum uint64) {
	if got := tb.SlotSum(s); got != sum {
		panic(fmt.Sprintf("slot %d is said to have the sum %x, and has %x", s, sum, got))
	}
}

func (tb *table) Share(string) (*os.File, int64, error) {
	if tb.file == nil {
		return nil, 0, errors.New("memory of the heap")
	}
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", tb.file.Fd()), os.O_RDONLY|unix.O_CLOEXEC, 0)
	return f, int64(len(tb.mem)), err
}
