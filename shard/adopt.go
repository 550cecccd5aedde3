package shard

import "bytes"

// This file takes blocks in that come from another node: memory for them, then
// commit and hold in one step.

// Adoption is memory for one block that comes from elsewhere.
type Adoption struct {
	Reserved
	Hash uint64
	Size int64 // bytes, all pieces together
}

// Resident says what ReserveAdoption found under the key instead of reserving.
type Resident uint8

const (
	Absent  Resident = iota // nothing; memory has been reserved, or why not is told
	Same                    // a block of the same layout
	Differs                 // a block of another layout
)

// Look says what ReserveAdoption looks at before it reserves.
type Look uint8

const (
	LookAny   Look = iota // any block of the key
	LookGroup             // only one that is part of a group: others would be replaced
	LookNot
)

// ReserveAdoption takes memory for a block with a piece in each of pools, in
// order, all but the first filling their slots; pools is nil for size classes.
// The key is written, the payload is the caller's to fill. Unless the resident
// block is Absent, group tells it and the parts of its group from others.
func (s *Shard) ReserveAdoption(hash uint64, key []byte, pools []byte, size int64, look Look) (a Adoption, found Resident, group uint32, why Reason) {
	first, why := s.firstPiece(pools, size)
	if why != OK {
		return a, Absent, 0, why
	}
	if len(pools) == 0 {
		pools = onePool
	}
	var got struct { // one, since what a turn captures is on the heap
		a     Adoption
		found Resident
		group uint32
		why   Reason
	}
	turned := s.turn(func() {
		s.tick(1)
		if id := s.lookup(hash, key); id != 0 && look != LookNot {
			lead := s.lead(id)
			if look == LookAny || s.cold[lead].group != 0 {
				got.found, got.group = Differs, lead
				if s.hasPieces(id, pools, first) {
					got.found = Same
				}
				return
			}
		}
		n, ok := s.layouts.find(pools)
		if !ok && len(s.layouts.lists()) < maxLayouts/2 { // the rest is for callers here
			n, ok = s.layouts.add(pools)
		}
		if !ok {
			got.why = Layout
			return
		}
		got.a.Hash, got.a.Size = hash, size
		if got.a.id, got.why = s.reserve(Shape{Size: first, Layout: n}, len(key)); got.why == OK {
			s.writeKey(got.a.id, key)
		}
	})
	return got.a, got.found, got.group, max(got.why, turned)
}

// onePool are the pools of a block that names none.
var onePool = []byte{0}

// firstPiece is the size of the first of the pieces that make size bytes. Any
// goroutine.
func (s *Shard) firstPiece(pools []byte, size int64) (int, Reason) {
	if s.store.classes != nil {
		switch {
		case len(pools) != 0 || size < 0:
			return 0, Layout
		case size > int64(s.cfg.MaxValue):
			return 0, TooLarge
		}
		return int(size), OK
	}
	if len(pools) == 0 || len(pools) > MaxPieces {
		return 0, Layout
	}
	for i, p := range pools {
		if int(p) >= len(s.store.pools) {
			return 0, Layout
		}
		if i > 0 {
			size -= int64(s.store.slotBytes(int(p)))
		}
	}
	slot := int64(s.store.slotBytes(int(pools[0])))
	switch {
	case size < 0 || len(pools) > 1 && size != slot:
		return 0, Layout
	case size > slot:
		return 0, TooLarge
	}
	return int(size), OK
}

// SetSum says the checksum of a block being filled.
func (s *Shard) SetSum(r Reserved, sum uint64) { s.setSum(r.id, sum) }

// SumOf computes the checksum of a block being filled.
func (s *Shard) SumOf(r Reserved) uint64 { return s.sumOf(r.Claim()) }

// Adopting says how Adopt's blocks hang together with what is resident.
type Adopting struct {
	ParentHash uint64
	Parent     []byte // key, nil for none
	ChainLen   uint32
	Tail       bool // last block of a chain of two or more
	// Missing is set by Adopt: the parent is not resident.
	Missing bool
	// Ours is set by Adopt: the memory given has become the block, and no other was
	// resident.
	Ours bool
	// Children are keys whose blocks name this one as their parent and were
	// adopted before it.
	Children []Child
	Hold     MoveID // zero: none
	// Passing: what becomes Ours is for its readers only. See ExpelBlock.
	Passing bool
}

// Child is a key and its hash.
type Child struct {
	Hash uint64
	Key  []byte
}

// Adopt makes a block resident, or a group with its leader last, and holds it, in
// one step or not at all. When it is resident by now the memory is freed and the
// resident block is held, if it has the same bytes. Failures are a Reason of the
// commit, or a MoveResult of the hold. Whatever the answer, the memory is the
// shard's again.
func (s *Shard) Adopt(parts []Adoption, how *Adopting) (Reason, MoveResult) {
	var out struct {
		why Reason
		got MoveResult
	}
	turned := s.turn(func() { out.why, out.got = s.adopt(parts, how) })
	if turned != OK {
		for _, a := range parts {
			s.AbortAdoption(a)
		}
	}
	return max(out.why, turned), out.got
}

func (s *Shard) adopt(parts []Adoption, how *Adopting) (Reason, MoveResult) {
	s.tick(1)
	got, room := s.mayAdopt(parts, how.Hold)
	if got != MoveOK {
		for _, a := range parts {
			s.abort(a.id)
		}
		return OK, got
	}
	var ru run
	var out reply
	for i, a := range parts {
		r := request{op: opCommit, hash: a.Hash, id: a.id, chain: how.ChainLen}
		if i < len(parts)-1 {
			r.flags = flagMember
		} else if how.Parent != nil {
			if r.parent = s.leadOf(how.ParentHash, how.Parent); r.parent == 0 {
				r.flags, how.Missing = flagUnreachable, true
			}
		}
		if how.Tail && i == len(parts)-1 {
			r.flags |= flagTail
		}
		out = s.commit(&ru, &r)
	}
	if out.reason != OK {
		if room {
			s.budget.holds.Add(-1)
		}
		return out.reason, MoveOK
	}
	how.Ours = out.id == parts[len(parts)-1].id
	lead := s.lead(out.id)
	for _, c := range how.Children {
		if child := s.leadOf(c.Hash, c.Key); child != 0 && child != lead {
			s.relink(child, lead)
		}
	}
	if how.Passing && how.Ours {
		s.pass(lead)
	}
	if room {
		s.takeHold(lead, how.Hold)
	}
	return OK, MoveOK
}

// mayAdopt reports whether the blocks may be committed, as mayHold does. Blocks
// that a group would replace must not be held for moves.
func (s *Shard) mayAdopt(parts []Adoption, h MoveID) (got MoveResult, room bool) {
	last := len(parts) - 1
	var members []uint32
	var hashes []uint64
	for _, a := range parts[:last] {
		members, hashes = append(members, a.id), append(hashes, a.Hash)
	}
	old, _ := s.lookupLike(parts[last].Hash, parts[last].id)
	if whole, _ := s.resident(old, parts[last].id, members, hashes); whole {
		if h == (MoveID{}) {
			return MoveOK, false
		}
		for _, a := range parts {
			if at, _ := s.lookupLike(a.Hash, a.id); !s.sameBytes(at, a.id) {
				return MoveRedeposited, false
			}
		}
		return s.mayHold(s.lead(old), h)
	}
	for _, a := range parts {
		if at, _ := s.lookupLike(a.Hash, a.id); at != 0 && s.moveHeld(s.lead(at)) {
			return MoveHeld, false
		}
	}
	if h == (MoveID{}) {
		return MoveOK, false
	}
	if !take(&s.budget.holds, s.budget.MaxHolds) {
		return MoveFull, false
	}
	return MoveOK, true
}

// sameBytes reports whether two records of one shape have the same payload, as far as
// their checksums tell. It is asked only when a block has come by two roads at once:
// without checksums the bytes are compared, under the token. Of other shapes the
// commit will say that they do not fit.
func (s *Shard) sameBytes(a, b uint32) bool {
	if !s.sameShape(a, b) {
		return true
	}
	if s.hot[a].desc.hasSum() && s.hot[b].desc.hasSum() {
		return s.cold[a].sum == s.cold[b].sum
	}
	theirs := s.PiecesOf(Claim{id: b})
	for i, piece := range s.PiecesOf(Claim{id: a}) {
		if !bytes.Equal(piece, theirs[i]) {
			return false
		}
	}
	return true
}

// AbortAdoption gives memory back, also after Drain.
func (s *Shard) AbortAdoption(a Adoption) {
	if s.turn(func() { s.abort(a.id) }) != OK {
		s.Abandon(a.Reserved)
	}
}
