package shard

import (
	"github.com/kvcr-go/kvcr/shard/evict"
)

// Lent describes a block that a transfer has claimed. Its slices are the
// caller's.
type Lent struct {
	Block
	Outline
	Sum      uint64
	HasSum   bool
	Offsets  []uint64 // of each piece, from the begin of the payload arena
	Parent   []byte   // key of the resident parent, nil for none or where the policy keeps no chains
	Position uint32   // number of ancestors, counted up to MaxPosition
}

// Outline is what a block is, as far as that stays while it is resident.
type Outline struct {
	Generation uint32
	Size       int64  // bytes, all pieces together
	Pools      []byte // of each piece; nil for size classes. The caller's
	// Parts is how many blocks the group has, 1 for a block without one; Part is
	// this one's place, the leader's being the last.
	Parts, Part int
}

// Look describes the complete block of a key; false: there is none. It is no access as
// far as the policy goes, and waits for nobody, unless the index is so disturbed that
// only the token holder can tell. Any goroutine.
func (s *Shard) Look(hash uint64, key []byte) (o Outline, ok bool) {
	c, ok, sure := s.Peek(hash, key)
	if !sure {
		s.turn(func() {
			id, why := s.claimLocked(hash, key)
			if ok = why == OK; ok {
				c = s.ledger.note(Claim{id: id, lead: s.lead(id)})
			}
		})
	}
	if !ok {
		return Outline{}, false
	}
	o = s.outline(c)
	_ = s.Release(c) // it is ours
	return o, true
}

// outline describes a claimed block: nothing of what it reads changes before the claim
// ends.
func (s *Shard) outline(c Claim) Outline {
	o := Outline{Generation: s.Generation(c), Size: s.bytesOf(c.id), Parts: 1 + s.members(c.lead)}
	if s.store.classes == nil {
		o.Pools = []byte{byte(s.hot[c.id].desc.pool())}
	}
	for _, p := range s.further(c.id) {
		o.Pools = append(o.Pools, byte(p.pool()))
	}
	o.Part = o.Parts - 1
	for i, m := 0, s.cold[c.lead].group; m != 0; i, m = i+1, s.cold[m].group {
		if m == c.id {
			o.Part = i
		}
	}
	return o
}

// MaxPosition is where Lent stops to count ancestors. A policy tells long chains
// from short ones long before, and each ancestor is likely a cache miss under
// the token.
const MaxPosition = 256

// Lend claims the block of a key, of that generation unless it is 0, and
// describes it. Failures: MoveMiss, MoveGeneration, MoveClosed.
func (s *Shard) Lend(hash uint64, key []byte, generation uint32) (Claim, Lent, MoveResult) {
	var out struct { // one, since what a turn captures is on the heap
		c   Claim
		l   Lent
		got MoveResult
	}
	why := s.turn(func() {
		s.tick(1)
		id, ok := s.claimLocked(hash, key)
		if ok != OK {
			out.got = MoveMiss
			return
		}
		c := Claim{id: id, lead: s.lead(id)}
		if gen := s.Generation(c); generation != 0 && gen != generation {
			s.unclaim(c.lead)
			out.got = MoveGeneration
			return
		}
		out.c = s.ledger.note(c)
		s.touch(c.lead)
		out.l = s.describe(out.c)
	})
	return out.c, out.l, max(out.got, moveResult(why))
}

func (s *Shard) describe(c Claim) Lent {
	l := Lent{Outline: s.outline(c)}
	l.Block = Block{id: c.id, lead: c.lead, gen: l.Generation}
	l.Sum, l.HasSum = s.Sum(c)
	l.Offsets = []uint64{s.hot[c.id].desc.off()}
	for _, p := range s.further(c.id) {
		l.Offsets = append(l.Offsets, p.off())
	}
	at := s.ancestor(c.lead)
	if at != 0 {
		l.Parent = append([]byte(nil), s.keyOf(at)...)
	}
	for ; at != 0 && l.Position < MaxPosition; at = s.ancestor(at) {
		l.Position++
	}
	return l
}

// ancestor asks the policy for the parent of a resident block.
func (s *Shard) ancestor(id uint32) (parent uint32) {
	chains, ok := s.policy.(evict.Ancestry)
	if !ok {
		return 0
	}
	defer s.policyFault()
	p := uint32(chains.Parent(evict.ID(id)))
	if p > s.freshRec || stateOf(s.hot[p].word.Load()) != ready {
		return 0
	}
	return p
}

// PiecesOf returns all pieces of a claimed block, or of one being filled.
func (s *Shard) PiecesOf(c Claim) [][]byte {
	out := make([][]byte, s.Pieces(c))
	for i := range out {
		out[i], _ = s.Piece(c, i)
	}
	return out
}
