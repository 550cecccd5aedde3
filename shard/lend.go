package shard

import (
	"github.com/kvcr-go/kvcr/shard/evict"
)

// Lent describes a block that a transfer has claimed. Its slices are the
// caller's.
type Lent struct {
	Block
	Generation uint32
	Size       int64 // bytes, all pieces together
	Sum        uint64
	HasSum     bool
	Pools      []byte   // of each piece; nil for size classes
	Offsets    []uint64 // of each piece, from the begin of the payload arena
	Parent     []byte   // key of the resident parent, nil for none or where the policy keeps no chains
	Position   uint32   // number of ancestors, counted up to MaxPosition
	// Parts is how many blocks the group has, 1 for a block without one; Part is
	// this one's place, the leader's being the last.
	Parts, Part int
}

// MaxPosition is where Lent stops to count ancestors. A policy tells long chains
// from short ones long before, and each ancestor is likely a cache miss under
// the token.
const MaxPosition = 256

// Lend claims the block of a key, of that generation unless it is 0, and
// describes it. Failures: MoveMiss, MoveGeneration, MoveClosed.
func (s *Shard) Lend(hash uint64, key []byte, generation uint32) (c Claim, l Lent, got MoveResult) {
	why := s.turn(func() {
		s.tick(1)
		id, ok := s.claimLocked(hash, key)
		if ok != OK {
			got = MoveMiss
			return
		}
		c = Claim{id: id, lead: s.lead(id)}
		if gen := s.Generation(c); generation != 0 && gen != generation {
			s.unclaim(c.lead)
			c, got = Claim{}, MoveGeneration
			return
		}
		c = s.ledger.note(c)
		s.touch(c.lead)
		l = s.describe(c)
	})
	return c, l, max(got, moveResult(why))
}

func (s *Shard) describe(c Claim) Lent {
	l := Lent{Generation: s.Generation(c), Size: s.bytesOf(c.id), Parts: 1 + s.members(c.lead)}
	l.Block = Block{id: c.id, lead: c.lead, gen: l.Generation}
	l.Sum, l.HasSum = s.Sum(c)
	d := s.hot[c.id].desc
	l.Offsets = []uint64{d.off()}
	if s.store.classes == nil {
		l.Pools = []byte{byte(d.pool())}
	}
	for _, p := range s.further(c.id) {
		l.Offsets, l.Pools = append(l.Offsets, p.off()), append(l.Pools, byte(p.pool()))
	}
	l.Part = l.Parts - 1
	for i, m := 0, s.cold[c.lead].group; m != 0; i, m = i+1, s.cold[m].group {
		if m == c.id {
			l.Part = i
		}
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
