package shard

import (
	"github.com/kvcr-go/kvcr/internal/own"
	"github.com/kvcr-go/kvcr/shard/evict"
)

// Flags of a commit.
const (
	flagSet         = 1 << iota // replace; otherwise deposit: first commit wins
	flagNoEvict                 // the caller gets a claim and a hold
	flagMore                    // another block of the same deposit follows
	flagFollows                 // the parent is the block before it in this deposit
	flagMember                  // part of the group whose leader follows last
	flagUnreachable             // names a parent that is not resident
	flagRefill                  // a record for the magazine, please
	flagTail                    // last block of a chain of two or more
)

// run gathers the blocks of one deposit until its last one: the policy sees
// them together. It is a lane's. At most one run of a shard is open; a command
// of another lane closes it early, so that the policy knows every resident
// block before anything can happen to it.
type run struct {
	inserts []evict.Insert
	members []uint32 // parts of a group, waiting for their leader
	hashes  []uint64
	last    uint32 // the block for the last key, ours or an older one; claimed
}

// commit links a FILLING record that its writer has filled, or gives it back.
// Token holder only.
func (s *Shard) commit(ru *run, r *request) reply {
	if r.flags&flagMember != 0 {
		if r.op == opExisting {
			return reply{id: r.id, old: true} // its leader follows, and speaks for it
		}
		ru.members = append(ru.members, r.id)
		ru.hashes = append(ru.hashes, r.hash)
		return reply{id: r.id}
	}
	var out reply
	if r.op == opExisting {
		out = s.existing(ru, r)
	} else {
		out = s.link(ru, r)
	}
	if out.reason == OK && r.flags&flagNoEvict != 0 {
		s.hold(s.lead(out.id))
		s.pressure(false)
	}
	s.follow(ru, 0)
	if r.flags&flagMore == 0 {
		s.list(ru)
		return out
	}
	s.open = ru
	if out.reason == OK {
		s.follow(ru, s.lead(out.id))
	}
	return out
}

// follow moves the run's claim to the block that the next one may name as its
// parent, so that it is still there then.
func (s *Shard) follow(ru *run, id uint32) {
	if ru.last != 0 && id == 0 {
		s.unclaim(ru.last)
		ru.last = 0
	}
	if id == 0 {
		return
	}
	if _, ok := s.hot[id].word.claim(); ok {
		ru.last = id
	}
}

// list tells the policy of the blocks gathered so far.
func (s *Shard) list(ru *run) {
	if s.open == ru {
		s.open = nil
	}
	if len(ru.inserts) > 0 {
		s.listed(ru.inserts)
		ru.inserts = ru.inserts[:0]
	}
}

// abandonRun ends a run that the shard's end has cut off.
func (s *Shard) abandonRun(ru *run) {
	for _, m := range ru.members {
		s.abort(m)
	}
	ru.members, ru.hashes = ru.members[:0], ru.hashes[:0]
	s.follow(ru, 0)
}

// closeRun lists the open run of any lane but that of except.
func (s *Shard) closeRun(except *run) {
	if s.open != nil && s.open != except {
		s.list(s.open)
	}
}

// link makes one record, or a group by its leader, resident.
func (s *Shard) link(ru *run, r *request) reply {
	id := r.id
	members, hashes := ru.members, ru.hashes
	ru.members, ru.hashes = ru.members[:0], ru.hashes[:0]
	giveUp := func(why Reason) reply {
		for _, m := range members {
			s.abort(m)
		}
		s.abort(id)
		return reply{reason: why}
	}
	old, entry := s.lookupLike(r.hash, id)
	if whole, same := s.resident(old, id, members, hashes); whole && r.flags&flagSet == 0 {
		if !same {
			return giveUp(Layout)
		}
		giveUp(OK)
		r.id = old
		return s.existing(ru, r)
	}
	parent := s.parentOf(ru, r)
	ins := evict.Insert{
		ID: evict.ID(id), Hash: r.hash, Parent: evict.ID(parent), ChainLen: r.chain,
		Tail:        r.flags&flagTail != 0,
		Unreachable: parent == 0 && (r.parent != 0 || r.flags&(flagUnreachable|flagFollows) != 0),
	}
	s.one[0] = ins
	if !s.admit(s.one[:]) {
		own.Add64(&s.stats.Dropped, 1)
		return giveUp(Dropped)
	}
	if old != 0 || len(members) > 0 {
		s.list(ru) // what is replaced may be of this run, and the policy must know it
	}
	if old != 0 && (s.cold[s.lead(old)].group != 0 || len(members) > 0) {
		// A part of a group is never replaced alone: the group dies with it.
		s.retire(s.lead(old), evict.Replaced, true)
		old = 0
	}
	for i, m := range members {
		// A part that is resident on its own belongs to an older deposit.
		at, _ := s.lookupLike(hashes[i], m)
		if at != 0 {
			s.retire(s.lead(at), evict.Replaced, true)
		}
	}
	if s.parentOf(ru, r) != parent {
		// The parent was part of what this group replaces.
		parent, ins.Parent, ins.Unreachable = 0, 0, true
	}
	if old != 0 {
		s.publish(id, r)
		s.index.replace(r.hash, entry, id)
		s.replaced(old, id)
		own.Add64(&s.stats.Replaced, 1)
		own.Add64(&s.stats.Bytes, uint64(s.bytesOf(id))-uint64(s.bytesOf(old)))
		pins, ok := s.hot[old].word.retire(true)
		if !ok {
			panic("shard: an indexed record is not READY")
		}
		if s.moves.n != 0 {
			s.lift(old, MoveRedeposited)
		}
		s.settle(old, pins)
		return reply{id: id}
	}
	if !s.insertGroup(id, r.hash, members, hashes) {
		own.Add64(&s.stats.IndexFull, 1)
		return giveUp(Capacity)
	}
	s.publish(id, r)
	s.count(id, +1)
	own.Add64(&s.stats.Stored, uint64(1+s.members(id)))
	s.announce(id, true, evict.ID(parent))
	if r.flags&flagMore == 0 && len(ru.inserts) == 0 {
		s.one[0] = ins
		s.listed(s.one[:])
		return reply{id: id}
	}
	ru.inserts = append(ru.inserts, ins)
	return reply{id: id}
}

// existing ends a deposit of a key that is resident under record r.id: it is an
// access, and may name a parent that came back. A block that was removed after
// its caller had claimed it was there when the caller looked, which is when that
// deposit took effect; only a hold needs it now, and gets Miss.
func (s *Shard) existing(ru *run, r *request) reply {
	leader := s.lead(r.id)
	out := reply{id: r.id, old: true}
	if stateOf(s.hot[leader].word.Load()) != ready {
		if r.flags&flagNoEvict != 0 {
			out.reason = Miss
		}
		return out
	}
	own.Store32(&s.hot[leader].last, s.now.Load())
	own.Add64(&s.stats.Existing, 1)
	why := MoveRedeposited
	if r.flags&flagNoEvict != 0 {
		if _, ok := s.hot[leader].word.claim(); !ok {
			return reply{reason: Capacity} // pins exhausted
		}
		why = MoveNoEvict
	}
	if s.moves.n != 0 {
		s.lift(leader, why)
	}
	if parent := s.parentOf(ru, r); parent != 0 && parent != leader {
		s.list(ru) // the parent may be of this run, and the policy must know it
		s.relink(leader, parent)
	}
	return out
}

// insertGroup indexes members and leader. Nothing of them can be claimed until
// the leader's word says READY. All or nothing.
func (s *Shard) insertGroup(id uint32, hash uint64, members []uint32, hashes []uint64) bool {
	for i, m := range members {
		if !s.index.insert(hashes[i], m) {
			s.takeBack(members[:i], hashes)
			return false
		}
		w := &s.hot[m].word
		w.Store(withState(w.Load(), member, id))
	}
	if !s.index.insert(hash, id) {
		s.takeBack(members, hashes)
		return false
	}
	s.grouped = s.grouped || len(members) > 0
	next := uint32(0)
	for i := len(members) - 1; i >= 0; i-- {
		s.cold[members[i]].group = next
		next = members[i]
	}
	s.cold[id].group = next
	return true
}

// takeBack makes indexed members FILLING records of their writer again.
func (s *Shard) takeBack(members []uint32, hashes []uint64) {
	for i, m := range members {
		s.index.remove(hashes[i], m)
		w := &s.hot[m].word
		w.Store(withState(w.Load(), filling, 0))
	}
}

// publish makes the record READY: its bytes may be read from here on.
func (s *Shard) publish(id uint32, r *request) {
	h := &s.hot[id]
	own.Store32(&h.last, s.now.Load())
	pins := uint32(0)
	if r.flags&flagNoEvict != 0 {
		pins = 1
	}
	h.word.Store(withState(h.word.Load(), ready, pins)) // release
}

// parentOf is the resident parent that a commit names, 0 for none. The run or
// the caller holds a claim on it, but it may have been removed by hand.
func (s *Shard) parentOf(ru *run, r *request) uint32 {
	parent := r.parent
	if r.flags&flagFollows != 0 {
		parent = ru.last
	}
	if parent == 0 {
		return 0
	}
	parent = s.lead(parent)
	if stateOf(s.hot[parent].word.Load()) != ready {
		return 0
	}
	return parent
}

func (s *Shard) relink(id, parent uint32) {
	defer s.policyFault()
	s.policy.Relink(evict.ID(id), evict.ID(parent), s.now.Load())
}

// lead returns the record whose word decides for id.
func (s *Shard) lead(id uint32) uint32 {
	if stateOf(s.hot[id].word.Load()) == member {
		return s.leaderOf(id)
	}
	return id
}

// resident reports whether all that a deposit brings is there already: old, the
// block for the key of id, and each of members in old's own group. same is
// false when a shape differs.
func (s *Shard) resident(old, id uint32, members []uint32, hashes []uint64) (whole, same bool) {
	if old == 0 {
		return false, false
	}
	same = s.sameShape(old, id)
	for i, m := range members {
		at, _ := s.lookupLike(hashes[i], m)
		if at == 0 || s.lead(at) != s.lead(old) {
			return false, false
		}
		same = same && s.sameShape(at, m)
	}
	return true, same
}

// sameShape reports whether two records have the same pieces and length.
func (s *Shard) sameShape(a, b uint32) bool {
	var buf [MaxPieces]uint8
	pools := append(buf[:0], uint8(s.hot[b].desc.pool()))
	for _, f := range s.further(b) {
		pools = append(pools, uint8(f.pool()))
	}
	return s.hasPieces(a, pools, int(s.hot[b].size))
}

// hasShape reports whether a claimed block is what a deposit of this shape would
// have written.
func (s *Shard) hasShape(id uint32, sh Shape) bool {
	pools, ok := s.layouts.get(sh.Layout)
	return ok && s.hasPieces(id, pools, sh.Size)
}

// hasPieces reports whether a record has a piece in each of pools, in order, the
// first of size bytes. Size classes have no pools to tell apart.
func (s *Shard) hasPieces(id uint32, pools []uint8, size int) bool {
	h := &s.hot[id]
	if h.desc.pieces() != len(pools) || int(h.size) != size {
		return false
	}
	if s.store.classes != nil {
		return true
	}
	if h.desc.pool() != int(pools[0]) {
		return false
	}
	for i, f := range s.further(id) {
		if f.pool() != int(pools[i+1]) {
			return false
		}
	}
	return true
}

// bytesOf is the payload of one record.
func (s *Shard) bytesOf(id uint32) int64 {
	n := int64(s.hot[id].size)
	for _, p := range s.further(id) {
		n += int64(s.store.slotBytes(p.pool()))
	}
	return n
}

// count adds a block and its group to the totals, or takes them off.
func (s *Shard) count(id uint32, sign int64) {
	for ; id != 0; id = s.cold[id].group {
		own.Add64(&s.stats.Blocks, uint64(sign))
		own.Add64(&s.stats.Bytes, uint64(sign*s.bytesOf(id)))
	}
}

// retire removes a resident block, with its group, from index and policy, and
// frees it unless readers hold claims: then the last of them does. It fails
// when the block is claimed and force is false.
func (s *Shard) retire(id uint32, why evict.Reason, force bool) bool {
	pins, ok := s.hot[id].word.retire(force)
	if !ok {
		return false
	}
	for m := id; m != 0; m = s.cold[m].group {
		s.index.remove(s.hash(s.keyOf(m)), m)
	}
	s.unlisted(id, why)
	s.count(id, -1)
	s.announce(id, false, 0)
	if s.moves.n != 0 {
		gone := MoveMiss
		if why == evict.Replaced {
			gone = MoveRedeposited
		}
		s.lift(id, gone)
	}
	n := uint64(1 + s.members(id))
	switch why {
	case evict.Evicted:
		own.Add64(&s.stats.Evicted, n)
	case evict.Moved:
		own.Add64(&s.stats.Moved, n)
	default:
		own.Add64(&s.stats.Deleted, n)
	}
	s.settle(id, pins)
	return true
}

// settle frees a record just retired if nobody claims it.
func (s *Shard) settle(id, pins uint32) {
	if s.held[id] != 0 {
		s.addHeld(id, -1)
		delete(s.held, id)
		if s.moveHeld(id) {
			s.loseHold(id)
		}
	}
	if pins == 0 {
		w := &s.hot[id].word
		w.Store(nextFree(w.Load()))
		s.freeRecord(id)
	}
}

// remove deletes a key by hand.
func (s *Shard) remove(hash uint64, key []byte) Reason {
	id := s.lookup(hash, key)
	if id == 0 {
		return Miss
	}
	s.retire(s.lead(id), evict.Deleted, true)
	return OK
}

// claimLocked claims a key's record for a reader whose probes kept failing.
func (s *Shard) claimLocked(hash uint64, key []byte) (uint32, Reason) {
	id := s.lookup(hash, key)
	if id == 0 {
		return 0, Miss
	}
	if _, ok := s.hot[s.lead(id)].word.claim(); !ok {
		return 0, Miss // pins exhausted
	}
	return id, OK
}

// Change says that a block became resident or left.
type Change struct {
	Stored bool
	Key    []byte // the shard's: copy it
	Parent []byte // of a stored block, nil for none; the shard's too
	Bytes  int64
}

// Watch sets the sink of changes, nil for none. Token holder only (under Do).
// The sink is called under the token: it must be short and must not call the
// shard.
func (s *Shard) Watch(sink func(Change)) { s.sink = sink }

// announce reports a block and its group.
func (s *Shard) announce(id uint32, stored bool, parent evict.ID) {
	if s.sink == nil {
		return
	}
	var pk []byte
	if parent != 0 {
		s.parentBuf = append(s.parentBuf[:0], s.keyOf(uint32(parent))...) // two long keys would share one buffer
		pk = s.parentBuf
	}
	for ; id != 0; id = s.cold[id].group {
		s.sink(Change{Stored: stored, Key: s.keyOf(id), Parent: pk, Bytes: s.bytesOf(id)})
	}
}

// Each calls f for every resident block. Token holder only (under Do).
func (s *Shard) Each(f func(key []byte, bytes int64)) {
	s.each(func(id uint32) { f(s.keyOf(id), s.bytesOf(id)) })
}

// EachLinked is Each with the key of the block's resident parent, nil for none or
// where the policy knows no chains. An embedder's policy, which only the owner may
// ask, is not asked. Keys are the shard's: copy them.
func (s *Shard) EachLinked(f func(key, parent []byte, bytes int64)) {
	if !s.cfg.Foreign {
		s.closeRun(nil) // what is resident is listed: the policy may be asked
	}
	var buf []byte // two long keys would share one buffer
	s.each(func(id uint32) {
		var parent []byte
		if !s.cfg.Foreign {
			if at := s.ancestor(s.lead(id)); at != 0 {
				buf = append(buf[:0], s.keyOf(at)...)
				parent = buf
			}
		}
		f(s.keyOf(id), parent, s.bytesOf(id))
	})
}

// each leaves out the parts of groups that were removed and are read still.
func (s *Shard) each(f func(id uint32)) {
	for id := uint32(1); id <= s.freshRec; id++ {
		if st := stateOf(s.hot[id].word.Load()); st != ready && st != member {
			continue
		}
		if stateOf(s.hot[s.lead(id)].word.Load()) == ready {
			f(id)
		}
	}
}
