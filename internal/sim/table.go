package sim

import (
	"fmt"

	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// words is the payload of one block: written and read one by one, so that a torn
// block can be told.
type words [4]uint64

// contentOf is the payload of one version of a key.
func contentOf(key int, version uint32) (c words) {
	c[0] = uint64(version)<<32 | uint64(key)
	for i := 1; i < len(c); i++ {
		c[i] = mix(c[0] + uint64(i)*0x9e3779b97f4a7c15)
	}
	return c
}

func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func (c words) sum() (h uint64) {
	for _, w := range c {
		h = mix(h ^ w)
	}
	return h
}

// of reports whether c is one whole version of a key.
func (c words) of(key int) bool {
	return uint32(c[0]) == uint32(key) && c == contentOf(key, uint32(c[0]>>32))
}

type slotState uint8

const (
	slotFree slotState = iota
	slotReserved
	slotLive
	slotRetiring // no record any more, claimed still
)

// slot is memory for one block.
type slot struct {
	id     peer.Slot
	state  slotState
	epoch  uint64 // of its life: changes when it is freed
	data   words
	claims int
	caller bool // not the table's: memory of somebody who asked for a delivery
	lent   bool // the framework's
	// While reserved, for what.
	dest  *destSide
	op    peer.OpID
	index int
	key   int
	offer *wire.Offered
}

// unit is what lives and dies together: a block, or the parts of a group, leader
// last.
type unit struct {
	blocks  []*block
	mark    peer.MoveID
	hold    peer.HoldID
	noEvict int
	// lifted says why a move's mark is gone, for those that lost one.
	lifted map[peer.MoveID]wire.Status
	gone   bool
}

type block struct {
	*unit
	key    int
	gen    uint32
	parent int // key, -1 for none
	slot   *slot
}

type claim struct {
	b     *block // nil: memory that the framework lends
	slot  *slot
	owner peer.MoveID // of a claim by a source: the operation
	src   *srcSide
}

// table is the block table of one process. It implements what package peer asks
// of one.
type table struct {
	w      *world
	n      *node
	inc    peer.Incarnation
	blocks []*block // by key, nil: not resident
	slots  []*slot
	claims map[peer.Claim]*claim
	last   peer.Claim
	gen    uint32
	free   int
	caps   struct{ holds int }
}

func newTable(w *world, n *node, inc peer.Incarnation, slots, holds int) *table {
	t := &table{w: w, n: n, inc: inc, blocks: make([]*block, len(keys)), claims: map[peer.Claim]*claim{}, gen: uint32(inc) << 16}
	for range slots {
		t.addSlot()
	}
	t.free = slots
	t.caps.holds = holds
	return t
}

func (t *table) addSlot() *slot {
	s := &slot{id: peer.Slot(len(t.slots) + 1)}
	t.slots = append(t.slots, s)
	return s
}

// take returns a free slot, having evicted for it, nil when there is none.
func (t *table) take() *slot {
	if t.free == 0 && !t.evict() {
		return nil
	}
	for _, s := range t.slots {
		if s.state == slotFree && !s.caller && !s.lent {
			t.free--
			s.state = slotReserved
			return s
		}
	}
	return nil
}

// release frees a slot's memory.
func (t *table) release(s *slot) {
	if s.state == slotFree {
		t.w.fail("%v slot %d freed twice", t.n, s.id)
	}
	if s.claims > 0 && !t.w.broken.freeClaimed {
		t.w.fail("%v slot %d freed while claimed", t.n, s.id)
	}
	s.state, s.epoch, s.dest, s.offer = slotFree, s.epoch+1, nil, nil
	s.data = words{1<<63 | s.epoch, s.epoch, s.epoch, s.epoch}
	if !s.caller && !s.lent {
		t.free++
	}
}

// retire takes a unit out of the index; memory follows its claims.
func (t *table) retire(u *unit) {
	u.gone = true
	for _, b := range u.blocks {
		t.blocks[b.key] = nil
		b.slot.state = slotRetiring
		if b.slot.claims == 0 || t.w.broken.freeClaimed {
			t.release(b.slot)
		}
	}
}

// lift ends a mark and remembers why.
func (u *unit) lift(why wire.Status) {
	if u.mark != (peer.MoveID{}) {
		if u.lifted == nil {
			u.lifted = map[peer.MoveID]wire.Status{}
		}
		u.lifted[u.mark] = why
		u.mark = peer.MoveID{}
	}
}

func (u *unit) claimed() bool {
	for _, b := range u.blocks {
		if b.slot.claims > 0 {
			return true
		}
	}
	return false
}

// evict removes the block that the seed chooses among those that may go.
func (t *table) evict() bool {
	n := len(t.blocks)
	for i, at := 0, t.w.rng.IntN(n); i < n; i++ {
		b := t.blocks[(at+i)%n]
		if b == nil || b.claimed() || b.noEvict > 0 || t.parentOfSome(b.unit) ||
			b.mark != (peer.MoveID{}) || b.hold != (peer.HoldID{}) && !t.w.broken.evictHeld {
			continue
		}
		t.w.tracef("%v evicts %s", t.n, keys[b.key].name)
		t.retire(b.unit)
		return true
	}
	return false
}

func (t *table) parentOfSome(u *unit) bool {
	for _, c := range t.blocks {
		if c != nil && c.unit != u && c.parent >= 0 && t.blocks[c.parent] != nil && t.blocks[c.parent].unit == u {
			return true
		}
	}
	return false
}

// insert makes slots resident as one unit.
func (t *table) insert(slots []*slot) *unit {
	u := &unit{}
	t.gen++
	for _, s := range slots {
		b := &block{unit: u, key: s.key, gen: t.gen, parent: keys[s.key].parent, slot: s}
		if !s.data.of(s.key) {
			t.w.fail("%v commits %s with bytes that are not its own: %x", t.n, keys[s.key].name, s.data)
		}
		s.state, s.dest, s.offer = slotLive, nil, nil
		u.blocks = append(u.blocks, b)
		t.blocks[s.key] = b
	}
	return u
}

// deposit is an engine's own deposit of a key and the parts of its group; replace
// gives it a new version.
func (t *table) deposit(key int, replace bool) {
	version := uint32(1)
	if b := t.blocks[key]; b != nil && !replace {
		t.w.tracef("%v deposits %s again", t.n, keys[key].name)
		b.lift(wire.StatusRedeposited)
		return
	} else if b != nil {
		if b.hold != (peer.HoldID{}) {
			return // a hold excludes it, as it does removal
		}
		version = uint32(b.slot.data[0]>>32) + 1
		b.lift(wire.StatusRedeposited)
		t.retire(b.unit)
	}
	var slots []*slot
	for _, k := range keys[key].group {
		s := t.take()
		if s == nil {
			for _, s := range slots {
				t.release(s)
			}
			return
		}
		s.key, s.data = k, contentOf(k, version)
		slots = append(slots, s)
	}
	t.w.tracef("%v deposits %s version %d", t.n, keys[key].name, version)
	t.insert(slots)
}

// delete removes a key by hand.
func (t *table) delete(key int) wire.Status {
	b := t.blocks[key]
	switch {
	case b == nil:
		return wire.StatusMiss
	case b.hold != (peer.HoldID{}):
		return wire.StatusHeld
	case b.noEvict > 0:
		return wire.StatusNoEvict
	}
	t.w.tracef("%v deletes %s", t.n, keys[key].name)
	b.lift(wire.StatusMiss)
	t.retire(b.unit)
	return wire.StatusOK
}

// claim claims a slot.
func (t *table) claim(b *block, s *slot) (peer.Claim, *claim) {
	t.last++
	c := &claim{b: b, slot: s}
	t.claims[t.last] = c
	s.claims++
	return t.last, c
}

func (t *table) unclaim(id peer.Claim) {
	c := t.claims[id]
	if c == nil {
		t.w.fail("%v ends claim %d, which is none", t.n, id)
		return
	}
	delete(t.claims, id)
	c.slot.claims--
	if c.slot.claims == 0 && c.slot.state == slotRetiring {
		t.release(c.slot)
	}
}

// keyOf finds a key by its bytes.
func (t *table) keyOf(key []byte) int {
	k, ok := keyIndex[string(key)]
	if !ok {
		t.w.fail("%v is asked for the key %q, which nobody made", t.n, key)
	}
	return k
}

func (s *slot) String() string { return fmt.Sprintf("slot %d.%d", s.id, s.epoch) }
