package virtual

import (
	"encoding/binary"

	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// block is one that a node has.
type block struct {
	hash, parent uint64 // parent 0: it begins a prompt
	gen          uint32
	claims       int
	mark         peer.MoveID
	lifted       peer.MoveID // the last mark that was ended by somebody else
	why          wire.Status // by whom
	hold         peer.HoldID
	gone         bool // from the table; claims keep its memory

	older, newer *block
}

// table is a node's block table, as package peer asks for one: blocks that have keys
// and no bytes, evicted by age, those without children first.
type table struct {
	f        *fleet
	n        *node
	capacity int
	used     int // blocks, reservations, and what is gone and claimed
	held     int
	blocks   map[uint64]*block
	children map[uint64]int // how many blocks here follow a hash, which need not be here
	claims   map[peer.Claim]*block
	slots    map[peer.Slot]reserved
	last     uint64 // number of a claim or slot
	gen      uint32
	// oldest and newest by use; a ring through this one.
	ends block
}

// reserved is what a slot is for.
type reserved struct{ hash, parent uint64 }

// maxHeld is how many blocks a node holds for moves.
const maxHeld = 1024

func newTable(f *fleet, n *node) *table {
	t := &table{f: f, n: n, capacity: f.Blocks, blocks: map[uint64]*block{}, children: map[uint64]int{}, claims: map[peer.Claim]*block{}, slots: map[peer.Slot]reserved{}}
	t.ends.older, t.ends.newer = &t.ends, &t.ends
	return t
}

// enter begins the simulation's part of the time; the caller defers what it returns.
func (t *table) enter() func() {
	was := t.f.cpu.to(Simulation)
	return func() { t.f.cpu.to(was) }
}

// Keys are hashes, as the adapter of an engine makes them where that is possible.

func appendKey(dst []byte, hash uint64) []byte { return binary.BigEndian.AppendUint64(dst, hash) }

func hashOf(key []byte) uint64 { return binary.BigEndian.Uint64(key) }

// The list by age.

func (b *block) unlink() { b.older.newer, b.newer.older = b.newer, b.older }

func (t *table) link(b *block) {
	b.older, b.newer = t.ends.older, &t.ends
	b.older.newer, t.ends.older = b, b
}

func (t *table) touch(b *block) {
	b.unlink()
	t.link(b)
}

// take takes memory for one block, having evicted for it. False: there is none.
func (t *table) take() bool {
	if t.used == t.capacity && !t.evict() {
		return false
	}
	t.used++
	return true
}

// evict removes the oldest block that may go.
func (t *table) evict() bool {
	for b := t.ends.newer; b != &t.ends; b = b.newer {
		if b.claims == 0 && t.children[b.hash] == 0 && b.mark == (peer.MoveID{}) && b.hold == (peer.HoldID{}) {
			t.remove(b)
			return true
		}
	}
	return false
}

// insert makes a block resident whose memory was taken.
func (t *table) insert(hash, parent uint64) *block {
	t.gen++
	b := &block{hash: hash, parent: parent, gen: t.gen}
	t.blocks[hash] = b
	t.children[parent]++
	t.link(b)
	t.n.feed.stored(hash, parent)
	return b
}

// remove takes a block out of the table; its memory follows its claims.
func (t *table) remove(b *block) {
	b.gone = true
	b.unlink()
	delete(t.blocks, b.hash)
	if t.children[b.parent]--; t.children[b.parent] == 0 {
		delete(t.children, b.parent)
	}
	if b.claims == 0 {
		t.used--
	}
	t.n.feed.removed(b.hash)
}

// deposit stores the blocks of a prompt that are not here, as far as there is room. Room
// for all is made first, so that the router hears of what left at once.
func (t *table) deposit(hashes []uint64) {
	missing := 0
	for i := len(hashes) - 1; i >= 0; i-- { // the last ones are the first to go
		if b := t.blocks[hashes[i]]; b != nil {
			b.lift(wire.StatusRedeposited)
			t.touch(b)
		} else {
			missing++
		}
	}
	room := 0
	for room < missing && t.take() {
		room++
	}
	parent := uint64(0)
	for _, h := range hashes {
		if room > 0 && t.blocks[h] == nil {
			room--
			t.insert(h, parent)
		}
		parent = h
	}
	for i := len(hashes) - 1; i >= 0; i-- {
		if b := t.blocks[hashes[i]]; b != nil {
			t.touch(b)
		}
	}
}

// lift ends a mark and remembers why.
func (b *block) lift(why wire.Status) {
	if b.mark != (peer.MoveID{}) {
		b.lifted, b.why, b.mark = b.mark, why, peer.MoveID{}
	}
}

// What sources ask.

func (t *table) Claim(_ string, want *wire.Wanted, o *wire.Offered) (peer.Claim, wire.Status) {
	defer t.enter()()
	b := t.blocks[hashOf(want.Key)]
	switch {
	case b == nil:
		return 0, wire.StatusMiss
	case want.Generation != 0 && want.Generation != b.gen:
		return 0, wire.StatusGeneration
	}
	*o = wire.Offered{Generation: b.gen, Size: t.f.blockBytes(), Flags: wire.OfferSum, Sum: mix(b.hash), Pools: []byte{0}}
	if b.parent != 0 {
		o.Parent = appendKey(nil, b.parent)
	}
	b.claims++
	t.touch(b)
	t.last++
	t.claims[peer.Claim(t.last)] = b
	return peer.Claim(t.last), wire.StatusOK
}

func (t *table) Unclaim(c peer.Claim) {
	defer t.enter()()
	b := t.claims[c]
	if b == nil {
		t.f.fault("%v ends claim %d, which is none", t.n, c)
		return
	}
	if t.f.broken.unclaim {
		return
	}
	delete(t.claims, c)
	if b.claims--; b.claims == 0 && b.gone {
		t.used--
	}
}

func (t *table) Mark(c peer.Claim, m peer.MoveID) wire.Status {
	defer t.enter()()
	switch b := t.claims[c]; {
	case b.gone:
		return wire.StatusMiss
	case b.mark != (peer.MoveID{}) && b.mark != m:
		return wire.StatusMarked
	case b.hold != (peer.HoldID{}):
		return wire.StatusHeld
	default:
		b.mark = m
		return wire.StatusOK
	}
}

func (t *table) Unmark(c peer.Claim, m peer.MoveID) {
	defer t.enter()()
	if b := t.claims[c]; b.mark == m {
		b.lift(wire.StatusAborted)
	}
}

func (t *table) Remove(cs []peer.Claim, m peer.MoveID, what []wire.Status) {
	defer t.enter()()
	for i, c := range cs {
		switch b := t.claims[c]; {
		case b.gone:
			what[i] = wire.StatusMiss
		case b.mark == m:
			b.mark = peer.MoveID{}
			t.remove(b)
			what[i] = wire.StatusOK
		case b.lifted == m:
			what[i] = b.why
		default:
			what[i] = wire.StatusMarked
		}
	}
}

func (t *table) Invalidate(string, *wire.Wanted) wire.Status { return wire.StatusUnsupported }

// Lookup is LookupRecords.
func (t *table) Lookup(_ string, key []byte, r *wire.Resolved) wire.Status {
	defer t.enter()()
	b := t.blocks[hashOf(key)]
	if b == nil {
		return wire.StatusMiss
	}
	r.Generation, r.Size, r.Pools = b.gen, t.f.blockBytes(), []byte{0}
	return wire.StatusOK
}

// What destinations ask.

func (t *table) Reserve(_ peer.OpID, _ int, _ string, key []byte, o *wire.Offered) (peer.Slot, wire.Status) {
	defer t.enter()()
	hash := hashOf(key)
	switch {
	case o.Size != t.f.blockBytes() || o.Sum != mix(hash):
		t.f.fault("%v is offered %d bytes with the sum %x for %x", t.n, o.Size, o.Sum, hash)
		return 0, wire.StatusBadLayout
	case t.blocks[hash] != nil:
		t.touch(t.blocks[hash])
		return 0, wire.StatusExists
	case !t.take():
		return 0, wire.StatusCapacity
	}
	r := reserved{hash: hash}
	if len(o.Parent) > 0 {
		r.parent = hashOf(o.Parent)
	}
	t.last++
	t.slots[peer.Slot(t.last)] = r
	return peer.Slot(t.last), wire.StatusOK
}

// leave takes back a slot.
func (t *table) leave(s peer.Slot) (reserved, bool) {
	r, ok := t.slots[s]
	if !ok {
		t.f.fault("%v lets go of slot %d, which is none", t.n, s)
	}
	delete(t.slots, s)
	return r, ok
}

func (t *table) Commit(slots []peer.Slot, hold peer.HoldID) wire.Status {
	defer t.enter()()
	r, ok := t.leave(slots[0])
	if !ok || len(slots) > 1 {
		t.f.fault("%v commits %d slots; there are no groups here", t.n, len(slots))
		return wire.StatusCapacity
	}
	b := t.blocks[r.hash]
	if b != nil {
		t.used--
	} else {
		b = t.insert(r.hash, r.parent)
	}
	if hold == (peer.HoldID{}) {
		return wire.StatusOK
	}
	return t.keep(b, hold)
}

func (t *table) Free(s peer.Slot) {
	defer t.enter()()
	if _, ok := t.leave(s); ok {
		t.used--
	}
}

// keep holds a block for a move.
func (t *table) keep(b *block, hold peer.HoldID) wire.Status {
	switch {
	case b.mark != (peer.MoveID{}):
		return wire.StatusCrossing
	case b.hold == hold:
		return wire.StatusOK
	case b.hold != (peer.HoldID{}):
		return wire.StatusHeld
	case t.held == maxHeld:
		return wire.StatusCapacity
	}
	t.held++
	b.hold = hold
	return wire.StatusOK
}

func (t *table) TakeHold(_ string, key []byte, hold peer.HoldID) wire.Status {
	defer t.enter()()
	if b := t.blocks[hashOf(key)]; b != nil {
		return t.keep(b, hold)
	}
	return wire.StatusMiss
}

func (t *table) Holds(_ string, key []byte, hold peer.HoldID) bool {
	defer t.enter()()
	b := t.blocks[hashOf(key)]
	return b != nil && b.hold == hold
}

func (t *table) DropHold(_ string, key []byte, hold peer.HoldID) {
	defer t.enter()()
	if b := t.blocks[hashOf(key)]; b != nil && b.hold == hold && !t.f.broken.drop {
		b.hold = peer.HoldID{}
		t.held--
	}
}

func (t *table) HoldRoom(n int) bool {
	defer t.enter()()
	return t.held+n <= maxHeld
}
