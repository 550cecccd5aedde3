package kvcr

import (
	"math"

	"github.com/kvcr-go/kvcr/internal/blockcopy"
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/shard"
	"github.com/kvcr-go/kvcr/wire"
)

// inSlot is memory for one block on its way in: ours, or with a target the
// caller's.
type inSlot struct {
	p       *part
	a       shard.Adoption
	key     []byte
	parent  []byte // key, nil for none
	chain   *inChain
	item    int
	op      peer.OpID
	isGroup bool
	target  []peer.Span // the caller's, piece by piece
	deliver bool
	sum     uint64 // of the bytes, when verified
	summed  bool
}

func (s *inSlot) bytes() [][]byte {
	if !s.deliver {
		return s.p.PiecesOf(s.a.Claim())
	}
	pieces := make([][]byte, len(s.target))
	for i, t := range s.target {
		pieces[i] = t.Host
	}
	return pieces
}

// BindTargets makes an operation deliver: item i is written to targets[i], which
// must be as long as its block, and nothing becomes resident. Call it before the
// operation's first Reserve and UnbindTargets when it has ended. The caller must
// not touch a target between the Reserve and the Commit or Free of its item.
// StatusCapacity: Config.MaxTransferBlocks operations deliver already.
func (r *Records) BindTargets(op peer.OpID, targets [][]byte) wire.Status {
	spans := make([]peer.Span, len(targets))
	for i, b := range targets {
		spans[i] = hostSpan(b)
	}
	return r.bindSpans(op, spans)
}

func hostSpan(b []byte) peer.Span { return peer.Span{Host: b, Device: -1, Len: len(b)} }

// bindSpans is BindTargets for memory that may lie on devices. The operation must
// be submitted with Devices if one does.
func (r *Records) bindSpans(op peer.OpID, targets []peer.Span) wire.Status {
	closed := r.lock()
	defer r.unlock(false)
	if closed {
		return wire.StatusClosed
	}
	if len(r.targets) >= r.e.cfg.MaxTransferBlocks {
		return wire.StatusCapacity
	}
	r.targets[op] = targets
	return wire.StatusOK
}

// UnbindTargets forgets an operation's targets. Slots that name one of them keep
// it until their end.
func (r *Records) UnbindTargets(op peer.OpID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.targets, op)
}

// Reserve takes memory for item i of the operation. See peer.DestRecords. Items
// are to be reserved in their order, each once: chains and groups are put
// together from what precedes. It also fails with StatusBadKey and StatusClosed,
// with StatusCapacity when Config.MaxTransferBlocks are reserved, and with
// StatusBadLayout for a part of a group whose first part is resident in another
// group.
func (r *Records) Reserve(op peer.OpID, i int, namespace string, key []byte, o *wire.Offered) (peer.Slot, wire.Status) {
	closed := r.lock()
	defer r.unlock(false)
	if closed {
		return 0, wire.StatusClosed
	}
	if targets, ok := r.targets[op]; ok {
		return r.reserveTarget(op, i, namespace, targets, o)
	}
	p, hash, st := r.place(namespace, key)
	switch {
	case st == wire.StatusMiss:
		return 0, wire.StatusBadLayout // of a namespace that is not here
	case st != wire.StatusOK:
		return 0, st
	case o.Size > math.MaxInt64:
		return 0, wire.StatusTooLarge
	case o.Flags&wire.OfferMember != 0 && p.ns.cfg.Kind != Chained:
		return 0, wire.StatusBadLayout
	}
	in := r.inbound.get(op)
	slot := &inSlot{p: p, key: append([]byte(nil), key...), op: op, item: i}
	r.link(in, slot, o)
	if len(r.slots) >= r.e.cfg.MaxTransferBlocks {
		if slot.isGroup {
			in.group = lookFailed
		}
		return 0, wire.StatusCapacity
	}
	if st = r.reserve(in, slot, hash, o); st != wire.StatusOK {
		if st == wire.StatusExists {
			in.exists(hash, o)
		}
		return 0, st
	}
	return r.addSlot(slot), wire.StatusOK
}

func (r *Records) addSlot(s *inSlot) peer.Slot {
	r.lastSlot++
	r.slots[r.lastSlot] = s
	return r.lastSlot
}

func (r *Records) reserveTarget(op peer.OpID, i int, namespace string, targets []peer.Span, o *wire.Offered) (peer.Slot, wire.Status) {
	switch {
	case i < 0 || i >= len(targets) || uint64(targets[i].Len) != o.Size:
		return 0, wire.StatusBadLayout
	case len(r.slots) >= r.e.cfg.MaxTransferBlocks:
		return 0, wire.StatusCapacity
	}
	pieces, ok := r.cutTarget(namespace, targets[i], o.Pools)
	if !ok {
		return 0, wire.StatusBadLayout
	}
	return r.addSlot(&inSlot{op: op, item: i, deliver: true, target: pieces}), wire.StatusOK
}

// cutTarget cuts memory for a block into its pieces, of which all but the first fill
// slots of their pools: a route may bring each from another place.
func (r *Records) cutTarget(namespace string, target peer.Span, pools []byte) (pieces []peer.Span, ok bool) {
	ns, err := r.e.namespace(namespace)
	if err != nil {
		return nil, false
	}
	pieces = make([]peer.Span, max(1, len(pools)))
	for i := len(pools) - 1; i > 0; i-- {
		if int(pools[i]) >= len(ns.cfg.Pools) || ns.cfg.Pools[pools[i]].SlotBytes > target.Len {
			return nil, false
		}
		at := target.Len - ns.cfg.Pools[pools[i]].SlotBytes
		pieces[i], target = target.Slice(at, target.Len-at), target.Slice(0, at)
	}
	pieces[0] = target
	return pieces, true
}

// link finds the slot's place in its chain and group, and makes it the last item.
func (r *Records) link(in *inbound, slot *inSlot, o *wire.Offered) {
	follows := in.last >= 0 && in.last == slot.item-1
	member := o.Flags&wire.OfferMember != 0
	slot.isGroup = member || follows && in.lastPart
	if slot.isGroup && !(follows && in.lastPart) {
		in.group = lookFirst
	}
	if slot.p.ns.cfg.Kind == Chained {
		switch {
		case len(o.Parent) > 0:
			slot.parent = append([]byte(nil), o.Parent...)
		case o.Flags&wire.OfferFollows != 0 && follows:
			slot.parent = in.lastKey
		}
		if in.chain == nil || o.Flags&wire.OfferFollows == 0 || !follows {
			in.chain = &inChain{}
		}
		in.chain.length = max(in.chain.length, o.Position+1)
		in.chain.last = slot.item
		slot.chain = in.chain
	}
	in.last, in.lastKey, in.lastPart = slot.item, slot.key, member
}

// reserve takes the slot's memory.
func (r *Records) reserve(in *inbound, slot *inSlot, hash uint64, o *wire.Offered) wire.Status {
	look := shard.LookAny
	if slot.isGroup {
		switch in.group {
		case lookFailed:
			return wire.StatusBadLayout
		case lookReserve:
			look = shard.LookNot
		default:
			look = shard.LookGroup
		}
	}
	a, found, group, why := slot.p.ReserveAdoption(hash, slot.key, o.Pools, int64(o.Size), look)
	st := reasonStatus(why)
	switch {
	case why != ReasonOK:
	case found == shard.Same:
		st = wire.StatusExists
	case found == shard.Differs:
		st = wire.StatusBadLayout
	}
	slot.a = a
	if !slot.isGroup {
		return st
	}
	switch {
	case in.group == lookFirst && st == wire.StatusExists:
		in.group, in.whole = lookExists, group
	case in.group == lookFirst && st == wire.StatusOK:
		in.group = lookReserve
	case in.group == lookReserve && st == wire.StatusOK:
	case in.group == lookExists && st == wire.StatusExists && group == in.whole:
	default:
		if st == wire.StatusOK {
			slot.p.AbortAdoption(a)
		}
		if st == wire.StatusOK || st == wire.StatusExists {
			st = wire.StatusBadLayout
		}
		in.group = lookFailed
	}
	return st
}

// SlotBytes returns the memory of a slot, piece by piece, for the route to fill
// until Commit or Free. It is nil for a slot that is none.
func (r *Records) SlotBytes(s peer.Slot) [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slot := r.slots[s]; slot != nil {
		return slot.bytes()
	}
	return nil
}

// slotSpans is SlotBytes with what lies on devices.
func (r *Records) slotSpans(s peer.Slot) []peer.Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	slot := r.slots[s]
	if slot == nil {
		return nil
	}
	if slot.deliver {
		return slot.target
	}
	pieces := slot.bytes()
	spans := make([]peer.Span, len(pieces))
	for i, b := range pieces {
		spans[i] = hostSpan(b)
	}
	return spans
}

// SlotSum is the checksum of the bytes of a slot, which is kept for Commit. The
// caller must not end the slot meanwhile, and nobody may write to it any more.
func (r *Records) SlotSum(s peer.Slot) uint64 {
	pieces := r.SlotBytes(s)
	if pieces == nil {
		return 0
	}
	sum := sumPieces(pieces)
	r.SlotSummed(s, sum)
	return sum
}

// SlotSummed keeps the checksum of the bytes of a slot for Commit. Conditions are
// those of SlotSum.
func (r *Records) SlotSummed(s peer.Slot, sum uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slot := r.slots[s]; slot != nil {
		slot.sum, slot.summed = sum, true
	}
}

// sumPieces is the checksum of the pieces' bytes, one after the other.
func sumPieces(pieces [][]byte) uint64 {
	if len(pieces) == 1 {
		return blockcopy.Sum(pieces[0])
	}
	var sum blockcopy.Summer
	sum.Reset()
	for _, b := range pieces {
		sum.Update(b)
	}
	return sum.Sum64()
}

// Commit makes slots resident and takes the hold in the same step, or does
// nothing but to free them. See peer.DestRecords. It also fails with
// StatusReleased when one of the slots is none, with StatusUnsupported for a
// hold on the caller's memory or slots that cannot be a group, and with
// StatusHeld also without a hold when a group would replace a block held for a
// move.
func (r *Records) Commit(slots []peer.Slot, hold peer.HoldID) wire.Status {
	taken, st := r.takeSlots(slots, hold)
	if st == wire.StatusOK && !taken[0].deliver {
		for _, s := range taken {
			if s.p.ns.sums && !s.summed {
				s.sum, s.summed = sumPieces(s.bytes()), true
			}
		}
	}
	closed := r.lock()
	defer r.unlock(closed)
	if closed && st == wire.StatusOK {
		st = wire.StatusClosed
	}
	if st != wire.StatusOK {
		for _, s := range taken {
			r.abort(s, closed)
		}
		return st
	}
	if taken[0].deliver {
		return wire.StatusOK
	}
	return r.adopt(taken, hold)
}

// takeSlots takes slots out of the table: they are the caller's from here on.
func (r *Records) takeSlots(slots []peer.Slot, hold peer.HoldID) (taken []*inSlot, st wire.Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range slots {
		s := r.slots[id]
		if s == nil {
			st = wire.StatusReleased
			continue
		}
		delete(r.slots, id)
		taken = append(taken, s)
	}
	if st != wire.StatusOK || len(taken) == 0 {
		return taken, max(st, wire.StatusReleased)
	}
	for _, s := range taken {
		switch {
		case s.deliver != taken[0].deliver, s.deliver && hold != peer.HoldID{}, s.p != taken[0].p,
			len(taken) > 1 && !s.deliver && s.p.ns.cfg.Kind != Chained:
			return taken, wire.StatusUnsupported
		}
	}
	return taken, wire.StatusOK
}

// adopt commits slots of one shard, in a step of an engine that is not closed.
func (r *Records) adopt(taken []*inSlot, hold peer.HoldID) wire.Status {
	leader := taken[len(taken)-1]
	parts := make([]shard.Adoption, len(taken))
	for i, s := range taken {
		parts[i] = s.a
		if s.p.ns.sums {
			s.p.SetSum(s.a.Reserved, s.sum)
		}
	}
	how := shard.Adopting{Hold: holdOf(hold), Passing: r.brought[leader.op] != nil, Children: r.inbound.waiting[waited{leader.p, string(leader.key)}]}
	if c := leader.chain; c != nil {
		how.ChainLen = c.length
		how.Tail = len(taken) == 1 && c.length > 1 && c.last == leader.item
	}
	if leader.parent != nil {
		how.Parent, how.ParentHash = leader.parent, r.e.hash(leader.parent)
	}
	why, got := leader.p.Adopt(parts, &how)
	if why != ReasonOK {
		return reasonStatus(why)
	}
	for _, s := range taken {
		if b := r.brought[s.op]; b != nil && got == shard.MoveOK && how.Ours {
			b[s.item] = true
		}
	}
	if got == shard.MoveOK {
		var missing []byte
		if how.Missing {
			missing = leader.parent
		}
		r.inbound.arrived(leader, missing)
	}
	return moveStatus(got)
}

// watchBrought has Commit take note of an operation's items whose bytes become a block,
// until unwatchBrought; those of others found one resident. Such a block is for its
// readers only: see expelBlock.
func (r *Records) watchBrought(op peer.OpID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.brought[op] = map[int]bool{}
}

func (r *Records) unwatchBrought(op peer.OpID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.brought, op)
}

func (r *Records) hasBrought(op peer.OpID, item int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.brought[op][item]
}

// abort gives the memory of a slot back that is out of the table. In a step.
func (r *Records) abort(s *inSlot, closed bool) {
	switch {
	case s.deliver:
	case closed:
		s.p.Abandon(s.a.Reserved)
	default:
		s.p.AbortAdoption(s.a)
	}
}

// Free gives a slot back unused: nobody will write it any more.
func (r *Records) Free(s peer.Slot) {
	closed := r.lock()
	defer r.unlock(closed)
	if slot := r.slots[s]; slot != nil {
		delete(r.slots, s)
		r.abort(slot, closed)
	}
}

// TakeHold holds the resident block of a key for a move. See peer.DestRecords. Where
// Reserve has found the block resident, it must be the one that was offered, as
// their checksums tell: else, or where there are none, it is not held, and the
// source keeps its own.
func (r *Records) TakeHold(namespace string, key []byte, hold peer.HoldID) wire.Status {
	closed := r.lock()
	defer r.unlock(false)
	if closed {
		return wire.StatusClosed
	}
	p, hash, st := r.place(namespace, key)
	if st != wire.StatusOK {
		return st
	}
	if in := r.inbound.ops[hold.Op]; in != nil {
		if offered, ok := in.resident[hash]; ok && !offered.has {
			return wire.StatusRedeposited
		} else if ok {
			delete(in.resident, hash)
			return moveStatus(p.TakeHoldOf(hash, key, holdOf(hold), offered.sum))
		}
	}
	return moveStatus(p.TakeHold(hash, key, holdOf(hold)))
}

// Holds reports whether the hold is there.
func (r *Records) Holds(namespace string, key []byte, hold peer.HoldID) bool {
	closed := r.lock()
	defer r.unlock(false)
	if closed {
		return false
	}
	p, hash, st := r.place(namespace, key)
	return st == wire.StatusOK && p.Holds(hash, key, holdOf(hold))
}

// DropHold ends the hold if it is there.
func (r *Records) DropHold(namespace string, key []byte, hold peer.HoldID) {
	closed := r.lock()
	defer r.unlock(false)
	if closed {
		return
	}
	if p, hash, st := r.place(namespace, key); st == wire.StatusOK {
		p.DropHold(hash, key, holdOf(hold))
	}
}

// HoldRoom reports whether n more holds may be taken.
func (r *Records) HoldRoom(n int) bool { return r.e.moves.HoldRoom(n) }
