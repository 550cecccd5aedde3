package shard

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/kvcr-go/kvcr/arena"
	"github.com/kvcr-go/kvcr/shard/evict"
)

// TestMain checks that every shard's goroutine ended.
func TestMain(m *testing.M) {
	code := m.Run()
	buf := make([]byte, 1<<20)
	for i := 0; code == 0; i++ {
		stacks := buf[:runtime.Stack(buf, true)]
		if !bytes.Contains(stacks, []byte("shard.(*Shard).own(")) {
			break
		}
		if i == 200 {
			fmt.Fprintf(os.Stderr, "owners are left:\n%s\n", stacks)
			code = 1
		}
		time.Sleep(10 * time.Millisecond)
	}
	os.Exit(code)
}

// rig says how a test's shard differs from the plain one: 64 slots of 256
// bytes in one pool, density, xxhash.
type rig struct {
	pools    []Pool
	classes  int64 // bytes of size classes, instead of pools
	maxValue int
	records  int
	side     int64
	policy   string
	make     NewPolicy
	foreign  bool
	hash     func([]byte) uint64
	watermark
	loose bool // the test leaves the shard in a state that audit refuses
}

type watermark struct {
	percent int
	heard   func(pool int, free, mark int64)
}

func (r rig) config() Config {
	if r.pools == nil && r.classes == 0 {
		r.pools = []Pool{{256, 64}}
	}
	c := Config{
		Name: "test", Records: r.records, Pools: r.pools, PayloadBytes: r.classes, MaxValue: r.maxValue,
		SideBytes: r.side, NewPolicy: r.make, Foreign: r.foreign, Hash: r.hash, Pin: -1,
		Watermark: r.percent, OnPressure: r.heard, Seed: 1,
	}
	if len(r.pools) > 0 {
		c.PayloadBytes = 0
		for _, p := range r.pools {
			if p.SlotBytes%granule != 0 {
				panic("slots must be multiples of 16 bytes: a desc counts in those")
			}
			c.PayloadBytes += int64(p.SlotBytes) * int64(p.Slots)
			if r.records == 0 {
				c.Records += int(p.Slots)
			}
		}
	}
	if c.Records == 0 {
		c.Records = int(r.classes / 64)
	}
	if c.MaxValue == 0 {
		c.MaxValue = int(c.PayloadBytes)
	}
	if c.NewPolicy == nil {
		name := r.policy
		c.NewPolicy = func(nodes []evict.Node, b evict.Blocks, seed uint64) (evict.Policy, error) {
			return evict.New(name, nodes, b, seed)
		}
	}
	return c
}

// newTest opens a shard that ends with the test, and is audited then.
func newTest(t testing.TB, r rig) *Shard {
	t.Helper()
	c := r.config()
	mapped := func(name string, n int64) *arena.Arena {
		a, err := arena.Map(arena.Options{Name: name, Size: n, Pages: arena.PagesBase})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	c.Payload = mapped("payload", c.PayloadBytes)
	c.Meta = mapped("meta", PlanFor(&c).Bytes)
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for i := 0; !s.token.free(); i++ {
			if i == 2000 {
				return // a panic is on its way: whoever held the token died with it
			}
			time.Sleep(time.Millisecond)
		}
		if !r.loose && !t.Failed() {
			audit(t, s)
		}
		s.Stop()
		if err := c.Payload.Close(); err != nil {
			t.Error(err)
		}
		if err := c.Meta.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func newLane(t testing.TB, s *Shard) *Lane {
	t.Helper()
	l, ok := s.NewLane()
	if !ok {
		t.Fatal("no lane left")
	}
	return l
}

// audit checks the package's invariants with the token held: every record is
// in exactly one place, every payload slot and index entry belongs to exactly
// one record, all counters are exact, the policy is sound.
func audit(t testing.TB, s *Shard) {
	t.Helper()
	s.Do(func() {
		s.takeReturned()
		for _, problem := range s.problems() {
			t.Error("audit: " + problem)
		}
	})
}

func (s *Shard) problems() (out []string) {
	bad := func(format string, args ...any) {
		if len(out) < 10 {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	// I2: the free list, and what is not on it.
	onList := map[uint32]bool{}
	for id := s.freeRec; id != 0; id = uint32(s.cold[id].sum) {
		if onList[id] {
			bad("record %d is on the free list twice", id)
			return out
		}
		onList[id] = true
	}
	if len(onList) != s.freeRecords {
		bad("free list has %d records, counted %d", len(onList), s.freeRecords)
	}
	// The index: entries by record.
	entries := map[uint32]int{}
	overflow := map[uint32]bool{}
	for i := range s.index.dir {
		b := &s.index.buckets[i]
		if v := uint32(b.head.Load()); v&1 != 0 {
			bad("bucket %d has odd version %d at rest", i, v)
		}
		for n := uint32(i) + 1; n != 0; n = nextBucket(b.head.Load()) {
			b = &s.index.buckets[n-1]
			if uint64(n) > s.index.dir {
				if overflow[n] {
					bad("overflow bucket %d is in two chains", n)
					return out
				}
				overflow[n] = true
				if b.empty() {
					bad("empty overflow bucket %d in the chain of %d", n, i)
				}
			}
			for k := range b.entries {
				e := b.entries[k].Load()
				id := uint32(e)
				if id == 0 {
					continue
				}
				entries[id]++
				if hash := s.hash(s.keyOf(id)); fingerprint(hash) != e>>32 || s.index.first(hash) != &s.index.buckets[i] {
					bad("entry %#x in chain %d: record has hash %#x", e, i, hash)
				}
			}
		}
	}
	freeOver := 0
	for n := s.index.freeOver; n != 0; n = nextBucket(s.index.buckets[n-1].head.Load()) {
		if overflow[n] {
			bad("overflow bucket %d is free and in use", n)
			return out
		}
		overflow[n] = true
		freeOver++
	}
	if len(overflow)+int(s.index.fresh) != len(s.index.buckets)-int(s.index.dir) {
		bad("%d overflow buckets used or free, %d fresh, of %d", len(overflow), s.index.fresh, len(s.index.buckets)-int(s.index.dir))
	}
	// Records.
	type place struct {
		pool int
		off  uint64
	}
	slots := map[place]uint32{}
	used := map[int]int64{}
	blocks, size := uint64(0), uint64(0)
	members := map[uint32]int{}
	for id := uint32(1); id <= s.freshRec; id++ {
		w := s.hot[id].word.Load()
		st := stateOf(w)
		if (st == free) != onList[id] {
			bad("record %d in state %d, on the free list %t", id, st, onList[id])
			continue
		}
		want := 0
		if st == ready || st == member {
			want = 1
			blocks++
			size += uint64(s.bytesOf(id))
		}
		if entries[id] != want {
			bad("record %d in state %d has %d index entries", id, st, entries[id])
		}
		if st == free || st == filling {
			if st == filling && pinsOf(w) != 0 {
				bad("record %d is FILLING with %d pins", id, pinsOf(w))
			}
		}
		if st == retiring && pinsOf(w) == 0 {
			bad("record %d stays RETIRING without a claim", id)
		}
		if st == member {
			if l := stateOf(s.hot[pinsOf(w)].word.Load()); l != ready && l != retiring {
				bad("member %d has leader %d in state %d", id, pinsOf(w), l)
			}
		}
		if st == ready || st == retiring {
			for m := s.cold[id].group; m != 0; m = s.cold[m].group {
				mw := s.hot[m].word.Load()
				if stateOf(mw) != member || pinsOf(mw) != id {
					bad("group of %d has record %d with word %#x", id, m, mw)
				}
				members[m]++
			}
		}
		if st == free {
			continue
		}
		// I3
		d := s.hot[id].desc
		for i := 0; i < d.pieces(); i++ {
			p := d
			if i > 0 {
				p = s.further(id)[i-1]
			}
			at := place{p.pool(), p.off()}
			if other := slots[at]; other != 0 {
				bad("records %d and %d share payload %v", other, id, at)
			}
			slots[at] = id
			if s.store.classes != nil {
				used[0] += int64(s.store.classes.Round(max(int(s.hot[id].size), 1)))
			} else {
				used[p.pool()] += int64(s.store.slotBytes(p.pool()))
			}
		}
	}
	for id, n := range entries {
		if id > s.freshRec || n != 1 {
			bad("record %d of %d has %d entries", id, s.freshRec, n)
		}
	}
	for m, n := range members {
		if n != 1 {
			bad("record %d is in %d groups", m, n)
		}
	}
	for i, f := range s.store.free() {
		if s.store.classes != nil {
			if used[0] == 0 && f != s.store.size || f+used[0] > s.store.size {
				bad("size classes: %d bytes free, %d used, of %d", f, used[0], s.store.size)
			}
			continue
		}
		if total := int64(s.store.pools[i].Len()) * int64(s.store.slotBytes(i)); f+used[i] != total {
			bad("pool %d: %d bytes free, %d used, of %d", i, f, used[i], total)
		}
	}
	if s.side != nil && blocks == 0 && len(slots) == 0 && s.side.FreeBytes() != s.side.Size() {
		bad("no record, but the side region has %d of %d bytes free", s.side.FreeBytes(), s.side.Size())
	}
	if got := s.stats.Blocks.Load(); got != blocks {
		bad("Blocks = %d, %d are resident", got, blocks)
	}
	if got := s.stats.Bytes.Load(); got != size {
		bad("Bytes = %d, %d are resident", got, size)
	}
	magazines := 0
	for i := range s.lanes {
		if l := s.lanes[i].Load(); l != nil {
			magazines += l.magN
			if len(l.run.inserts) != 0 || len(l.run.members) != 0 || l.run.last != 0 {
				bad("lane %d is idle with an open run: %+v", i, l.run)
			}
		}
	}
	if got := int(s.inMagazines.Load()); got != magazines {
		bad("inMagazines = %d, lanes hold %d", got, magazines)
	}
	if s.open != nil {
		bad("a run is open while no lane is at work")
	}
	out = append(out, s.moveProblems()...)
	if err := s.policy.Check(); err != nil {
		bad("policy: %v", err)
	}
	return out
}

// moveProblems checks marks and holds; token holder only.
func (s *Shard) moveProblems() (out []string) {
	for id := range s.moves.marks {
		if s.moveHeld(id) {
			out = append(out, fmt.Sprintf("record %d is marked and held", id))
		}
		if st := stateOf(s.hot[id].word.Load()); st != ready {
			out = append(out, fmt.Sprintf("marked record %d is in state %d", id, st))
		}
	}
	for id := range s.moves.holds {
		if st := stateOf(s.hot[id].word.Load()); st != ready || s.held[id] == 0 {
			out = append(out, fmt.Sprintf("held record %d is in state %d, with %d holds", id, st, s.held[id]))
		}
	}
	if m, h := s.budget.Marks(), s.budget.Holds(); m != len(s.moves.marks) || h != len(s.moves.holds) {
		out = append(out, fmt.Sprintf("budget counts %d marks and %d holds, there are %d and %d", m, h, len(s.moves.marks), len(s.moves.holds)))
	}
	if s.moves.n != len(s.moves.marks)+len(s.moves.holds) {
		out = append(out, fmt.Sprintf("%d marks and holds counted, there are %d and %d", s.moves.n, len(s.moves.marks), len(s.moves.holds)))
	}
	if len(s.moves.lifted) > maxLifted || len(s.moves.order) > maxLifted {
		out = append(out, fmt.Sprintf("%d lifted marks are remembered, in %d places", len(s.moves.lifted), len(s.moves.order)))
	}
	return out
}

// leaked checks that nothing is in use: a test that gave everything back.
func leaked(t testing.TB, s *Shard) {
	t.Helper()
	if n := s.Claims(); n != 0 {
		t.Errorf("%d claims left", n)
	}
	if n := s.Reserved(); n != 0 {
		t.Errorf("%d reservations left", n)
	}
}

// evictAll lets the policy evict until it finds no victim, and checks that
// nothing is left: what nobody claims or holds must always be evictable.
func evictAll(t testing.TB, s *Shard) {
	t.Helper()
	s.Do(func() {
		for range s.cfg.Records + 1 {
			v := s.victim()
			if v == 0 {
				break
			}
			if !s.retire(v, evict.Evicted, false) {
				t.Errorf("victim %d cannot be retired: word %#x", v, s.hot[v].word.Load())
				return
			}
		}
	})
	if n := s.stats.Blocks.Load(); n != 0 {
		t.Errorf("%d blocks cannot be evicted", n)
	}
}

// purge deletes every block and checks that all memory comes back.
func purge(t testing.TB, s *Shard, l *Lane) {
	t.Helper()
	l.Recall()
	var keys [][]byte
	s.Do(func() {
		s.Each(func(key []byte, _ int64) { keys = append(keys, bytes.Clone(key)) })
	})
	for _, k := range keys {
		l.Delete(s.hash(k), k, 0) // a part may have left with its group
	}
	leaked(t, s)
	audit(t, s)
	s.Do(func() {
		if got := int(s.freshRec) - s.freeRecords; got != 0 {
			t.Errorf("%d records are not free after everything was deleted", got)
		}
		for i, f := range s.Free() {
			total := s.store.size
			if s.store.classes == nil {
				total = int64(s.store.pools[i].Len()) * int64(s.store.slotBytes(i))
			}
			if f != total {
				t.Errorf("pool %d: %d of %d bytes free after everything was deleted", i, f, total)
			}
		}
	})
}

// key returns the i-th short key, longKey one of n bytes.
func key(i int) []byte { return []byte(fmt.Sprintf("key-%06d", i)) }

func longKey(i, n int) []byte {
	return append(bytes.Repeat([]byte{'k'}, n-6), fmt.Sprintf("%06d", i)...)
}

// pattern fills n bytes that tell key and version: no other gives the same.
func pattern(k []byte, version, n int) []byte {
	b := make([]byte, n)
	stamp(b, k, version)
	return b
}

func stamp(b, k []byte, version int) {
	x := xxhash.Sum64(k) ^ uint64(version)*0x9e3779b97f4a7c15
	i := 0
	for ; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], x+uint64(i))
	}
	for ; i < len(b); i++ {
		b[i] = byte(x) + byte(i)
	}
}

// versionOf returns which of n versions of k's pattern b is, -1 for none: b is
// another key's, or torn.
func versionOf(b, k []byte, n int) int {
	x := binary.LittleEndian.Uint64(b)
	for i := 8; i+8 <= len(b); i += 8 {
		if binary.LittleEndian.Uint64(b[i:]) != x+uint64(i) {
			return -1
		}
	}
	for i := len(b) &^ 7; i < len(b); i++ {
		if b[i] != byte(x)+byte(i) {
			return -1
		}
	}
	for v := range n {
		if x == xxhash.Sum64(k)^uint64(v)*0x9e3779b97f4a7c15 {
			return v
		}
	}
	return -1
}

// put is a set, give a deposit, of one piece.
func put(l *Lane, k, v []byte) Reason {
	return l.Put(&Put{Hash: l.s.hash(k), Key: k, Value: v, Shape: Shape{Size: len(v)}, Set: true}, 0).Reason
}

func give(l *Lane, k, v []byte) Outcome {
	return l.Put(&Put{Hash: l.s.hash(k), Key: k, Value: v, Shape: Shape{Size: len(v)}}, 0)
}

// mustPut is put that has to succeed.
func mustPut(t testing.TB, l *Lane, k, v []byte) {
	t.Helper()
	if why := put(l, k, v); why != OK {
		t.Fatalf("put of %.20q: %v", k, why)
	}
}

// get claims a key's block as the root does: probes, then the token holder.
func get(l *Lane, k []byte) (Claim, bool) {
	c, ok, sure := l.s.Find(l.s.hash(k), k)
	if !sure {
		c, ok = l.Ask(l.s.hash(k), k, 0)
	}
	return c, ok
}

// has reports whether a key is resident, without touching it.
func has(l *Lane, k []byte) bool {
	c, ok, sure := l.s.Peek(l.s.hash(k), k)
	if !sure {
		c, ok = l.Ask(l.s.hash(k), k, 0)
	}
	if ok {
		l.s.Release(c)
	}
	return ok
}

// check fails unless the key's value is v.
func check(t testing.TB, l *Lane, k, v []byte) {
	t.Helper()
	c, ok := get(l, k)
	if !ok {
		t.Fatalf("%.20q is a miss", k)
	}
	if got := l.s.Bytes(c); !bytes.Equal(got, v) {
		t.Fatalf("%.20q has %d bytes %.16x, want %d bytes %.16x", k, len(got), got, len(v), v)
	}
	if !l.s.Verify(c) {
		t.Fatalf("%.20q does not match its checksum", k)
	}
	l.s.Release(c)
}

func del(l *Lane, k []byte) Reason { return l.Delete(l.s.hash(k), k, 0) }
