package sim

import (
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// What sources ask of the table. t.src is the machine that is in its step.

func (t *table) Claim(_ string, want *wire.Wanted, o *wire.Offered) (peer.Claim, wire.Status) {
	b := t.blocks[t.keyOf(want.Key)]
	if b == nil {
		return 0, wire.StatusMiss
	}
	if want.Generation != 0 && want.Generation != b.gen && !t.w.broken.generation {
		return 0, wire.StatusGeneration
	}
	id, c := t.claim(b, b.slot)
	c.src, c.owner = t.w.source, peer.MoveID{Dest: t.w.source.dest, Op: t.w.frameOp}
	t.describe(b, o)
	return id, wire.StatusOK
}

func (t *table) describe(b *block, o *wire.Offered) {
	*o = wire.Offered{Generation: b.gen, Size: 8 * uint64(len(words{})), Sum: b.slot.data.sum(), Flags: wire.OfferSum,
		Pools: []byte{0, 0}, Offsets: []uint64{uint64(b.slot.id), b.slot.epoch}}
	if b.parent >= 0 {
		o.Parent = []byte(keys[b.parent].name)
	}
	if n := len(b.blocks); n > 1 {
		o.Parts = uint16(n)
		if b != b.blocks[n-1] {
			o.Flags |= wire.OfferMember
		}
	}
	if b.key%5 == 4 {
		o.Flags |= wire.OfferNoPool // as a value in private memory
	}
}

func (t *table) Unclaim(id peer.Claim) {
	if c := t.claims[id]; c != nil {
		t.w.checkUnread(t, id, c)
	}
	t.unclaim(id)
}

// claimed finds a claim's block.
func (t *table) claimed(id peer.Claim) *block {
	c := t.claims[id]
	if c == nil || c.b == nil {
		t.w.fail("%v is asked about claim %d, which is none of a block", t.n, id)
		return &block{unit: &unit{gone: true}}
	}
	return c.b
}

func (t *table) Mark(id peer.Claim, m peer.MoveID) wire.Status {
	b := t.claimed(id)
	switch {
	case b.gone:
		return wire.StatusMiss
	case b.mark != (peer.MoveID{}) && b.mark != m:
		return wire.StatusMarked
	case b.hold != (peer.HoldID{}):
		return wire.StatusHeld
	case b.noEvict > 0:
		return wire.StatusNoEvict
	}
	b.mark = m
	delete(b.lifted, m) // of an operation that was begun before, and lost its connection
	t.w.admit(t, b.key, m)
	return wire.StatusOK
}

func (t *table) Unmark(id peer.Claim, m peer.MoveID) {
	if b := t.claimed(id); b.mark == m {
		b.lift(wire.StatusAborted)
	}
}

func (t *table) Remove(cs []peer.Claim, m peer.MoveID, what []wire.Status) {
	at := make(map[*block]bool, len(cs))
	for _, id := range cs {
		at[t.claimed(id)] = true
	}
	done := map[*unit]wire.Status{}
	for i, id := range cs {
		b := t.claimed(id)
		s, ok := done[b.unit]
		if !ok {
			s = t.remove(b.unit, m, at)
			done[b.unit] = s
		}
		what[i] = s
	}
}

func (t *table) remove(u *unit, m peer.MoveID, at map[*block]bool) wire.Status {
	if u.gone {
		return wire.StatusMiss
	}
	if u.mark != m && !t.w.broken.takeover {
		if why := u.lifted[m]; why != wire.StatusOK {
			return why
		}
		return wire.StatusMarked
	}
	for _, b := range u.blocks {
		if !at[b] {
			u.lift(wire.StatusGroup)
			return wire.StatusGroup
		}
	}
	t.w.removing(t, u, m)
	u.mark = peer.MoveID{}
	t.retire(u)
	return wire.StatusOK
}

func (t *table) Invalidate(_ string, want *wire.Wanted) wire.Status {
	k := t.keyOf(want.Key)
	if b := t.blocks[k]; b != nil && want.Generation != 0 && want.Generation != b.gen {
		return wire.StatusGeneration
	}
	return t.delete(k)
}

// What destinations ask of the table.

func (t *table) Reserve(op peer.OpID, i int, _ string, key []byte, o *wire.Offered) (peer.Slot, wire.Status) {
	k, d := t.keyOf(key), t.w.destination
	var s *slot
	switch {
	case o.Size != 8*uint64(len(words{})):
		return 0, wire.StatusBadLayout
	case d.ops[op].Deliver:
		s = t.addSlot()
		s.state, s.caller = slotReserved, true
	case t.blocks[k] != nil:
		return 0, wire.StatusExists
	case t.w.chance(50):
		return 0, wire.StatusTooLarge
	default:
		if s = t.take(); s == nil {
			return 0, wire.StatusCapacity
		}
	}
	s.key, s.dest, s.op, s.index, s.offer = k, d, op, i, o
	return s.id, wire.StatusOK
}

// reserved finds a slot that is about to be let go by its operation (D2).
func (t *table) reserved(id peer.Slot) *slot {
	if id == 0 || int(id) > len(t.slots) || t.slots[id-1].state != slotReserved {
		t.w.fail("%v lets go of slot %d, which is not reserved", t.n, id)
		return nil
	}
	s := t.slots[id-1]
	t.w.checkUnwritten(t, s)
	return s
}

func (t *table) Commit(ids []peer.Slot, hold peer.HoldID) wire.Status {
	var slots []*slot
	var resident *block
	for _, id := range ids {
		s := t.reserved(id)
		if s == nil {
			return wire.StatusCapacity
		}
		slots = append(slots, s)
		t.w.checkExpected(t, s)
		if b := t.blocks[s.key]; b != nil && !s.caller {
			resident = b
		}
	}
	if slots[0].caller {
		if !slots[0].data.of(slots[0].key) {
			t.w.fail("%v delivers %s with bytes that are not its own", t.n, keys[slots[0].key].name)
		}
		t.release(slots[0])
		return wire.StatusOK
	}
	free := func() {
		for _, s := range slots {
			t.release(s)
		}
	}
	switch {
	case resident != nil:
		free()
		if hold == (peer.HoldID{}) {
			return wire.StatusOK
		}
		return t.hold(resident, hold)
	case t.w.chance(40):
		free()
		return wire.StatusDropped
	case hold != (peer.HoldID{}) && !t.HoldRoom(len(slots)):
		t.w.fail("%v throws %s away for want of a hold", t.n, keys[slots[0].key].name)
		free()
		return wire.StatusCapacity
	}
	t.w.checkOrder(t, slots)
	u := t.insert(slots)
	if hold != (peer.HoldID{}) && !t.w.broken.hold {
		u.hold = hold
	}
	t.w.tracef("%v commits %s hold %x.%d", t.n, keys[slots[0].key].name, hold.Source, hold.Op)
	return wire.StatusOK
}

func (t *table) Free(id peer.Slot) {
	if s := t.reserved(id); s != nil {
		t.release(s)
	}
}

func (t *table) hold(b *block, hold peer.HoldID) wire.Status {
	switch {
	case b.mark != (peer.MoveID{}) && !t.w.broken.crossing:
		return wire.StatusCrossing
	case b.hold == hold:
		return wire.StatusOK
	case b.hold != (peer.HoldID{}):
		return wire.StatusHeld
	case !t.HoldRoom(1):
		return wire.StatusCapacity
	}
	if !t.w.broken.hold {
		b.hold = hold
	}
	return wire.StatusOK
}

func (t *table) TakeHold(_ string, key []byte, hold peer.HoldID) wire.Status {
	b := t.blocks[t.keyOf(key)]
	if b == nil {
		return wire.StatusMiss
	}
	return t.hold(b, hold)
}

func (t *table) Holds(_ string, key []byte, hold peer.HoldID) bool {
	b := t.blocks[t.keyOf(key)]
	return b != nil && b.hold == hold
}

func (t *table) DropHold(_ string, key []byte, hold peer.HoldID) {
	k := t.keyOf(key)
	b := t.blocks[k]
	if b == nil || b.hold != hold {
		return
	}
	dropped := b.hold
	b.hold = peer.HoldID{}
	t.w.dropped(t, b.unit, dropped)
}

func (t *table) HoldRoom(n int) bool {
	held := 0
	for _, b := range t.blocks {
		if b != nil && b.hold != (peer.HoldID{}) {
			held++
		}
	}
	return held+n <= t.caps.holds
}
