package shard

import (
	"sync"
	"sync/atomic"

	"github.com/kvcr-go/kvcr/internal/own"
	"github.com/kvcr-go/kvcr/shard/evict"
)

// This file keeps what a transfer between nodes binds a block with. The rules
// that it serves, M1 to M7, are those of package peer.
//
//	mark  the block will be removed here once the other side holds it. It keeps
//	      the block from eviction, and ends by its mover's will, a deposit of
//	      the key, a no_evict hold, a replacement or a removal by hand.
//	hold  the block came here by a move whose source has not answered yet. It
//	      keeps the block from eviction, from marks and from invalidation, and
//	      ends by its mover's will, a replacement or a removal by hand.
//
// Neither refuses a reader. Both belong to the record whose word decides, so to
// a whole group, and to one life of it. A block never has both.
//
// On the ordinary paths all of it costs one look at a count (moves.n), which is 0
// while no move is under way.

// MoveID names a move: the other side's incarnation and its operation. The zero
// MoveID is none.
type MoveID struct{ Peer, Op uint64 }

// MoveResult says what became of a mark, a hold or a removal. The set is closed.
type MoveResult uint8

const (
	MoveOK          MoveResult = iota
	MoveMiss                   // the block is not resident, or not any more
	MoveGeneration             // the key has another block now
	MoveMarked                 // another move has the mark
	MoveCrossing               // the block to be held is marked for a move of its own
	MoveHeld                   // held for a move, by another one where a hold is asked for
	MoveNoEvict                // somebody has a no_evict hold
	MoveRedeposited            // deposited or replaced since the mark was set; not the block to be held
	MoveGroup                  // another part of the group does not come along
	MoveBusy                   // a reader has a claim on the block
	MoveFull                   // as many marks or holds as the budget allows
	MoveClosed
)

// MoveBudget bounds the marks and holds of all shards that share it.
type MoveBudget struct {
	MaxMarks, MaxHolds int64
	marks, holds       atomic.Int64
	passing            atomic.Int64
}

// defaultMoves is the budget of a shard that is given none.
const defaultMoves = 16384

// Marks and Holds count those that are set now.
func (b *MoveBudget) Marks() int { return int(b.marks.Load()) }

// Passing counts the blocks that leave with their readers, at most maxPassing.
func (b *MoveBudget) Passing() int { return int(b.passing.Load()) }

// Holds: see Marks.
func (b *MoveBudget) Holds() int { return int(b.holds.Load()) }

// HoldRoom reports whether n more holds may be taken now.
func (b *MoveBudget) HoldRoom(n int) bool { return b.holds.Load()+int64(n) <= b.MaxHolds }

func take(n *atomic.Int64, max int64) bool {
	if n.Add(1) <= max {
		return true
	}
	n.Add(-1)
	return false
}

// Block names one life of a record, also after its claim has ended.
type Block struct{ id, lead, gen uint32 }

// Group identifies the block's group among the blocks of its shard, for as long
// as a claim on it is held: two parts of one group have the same number.
func (b Block) Group() uint32 { return b.lead }

// moves is the side table. Token holder only.
type moves struct {
	n     int               // marks, holds and what passes together
	marks map[uint32]MoveID // by leading record
	holds map[uint32]MoveID
	// passing are blocks that were adopted for their readers only, and that nobody has
	// wanted since: see ExpelBlock.
	passing map[uint32]struct{}
	// lifted remembers the last marks that ended against their movers' will, and
	// why; order is when, a ring. What has been forgotten reads as redeposited.
	lifted map[liftedMark]MoveResult
	order  []liftedMark
	next   int
	lane   *Lane // for foreign shards, see turn; made at the first use
	laneMu sync.Mutex
}

type liftedMark struct {
	lead, gen uint32
	move      MoveID
}

// maxLifted bounds what a shard remembers of lifted marks. A mover asks within
// its operation's time, in which far fewer marks are lifted.
const maxLifted = 4096

// maxPassing bounds what passes; further blocks stay. Arbitrary: many more than
// requests read at a time.
const maxPassing = 16384

func (m *moves) init() {
	m.marks, m.holds, m.passing = map[uint32]MoveID{}, map[uint32]MoveID{}, map[uint32]struct{}{}
	m.lifted = map[liftedMark]MoveResult{}
	m.order, m.next, m.n = nil, 0, 0
}

// bound reports a mark or a hold on a record that is not a member.
func (s *Shard) bound(lead uint32) bool {
	if _, ok := s.moves.marks[lead]; ok {
		return true
	}
	return s.moveHeld(lead)
}

// clearMoves forgets everything; for a shard that is drained.
func (s *Shard) clearMoves() {
	s.budget.marks.Add(-int64(len(s.moves.marks)))
	s.budget.holds.Add(-int64(len(s.moves.holds)))
	s.budget.passing.Add(-int64(len(s.moves.passing)))
	s.moves.init()
}

// turn runs f as a command: with the token, and the policy knowing every
// resident block. An embedder's policy is called on the owner goroutine only, so
// there f runs as a command of the owner's. It reports false, without calling f,
// when the shard is closed or out of lanes. The caller must see to it that the
// owner is not stopped meanwhile.
func (s *Shard) turn(f func()) (why Reason) {
	if !s.cfg.Foreign {
		s.Do(func() {
			if why = Closed; !s.closed {
				why = OK
				s.closeRun(nil)
				f()
			}
		})
		return why
	}
	s.moves.laneMu.Lock()
	defer s.moves.laneMu.Unlock()
	if s.moves.lane == nil {
		l, ok := s.NewLane()
		if !ok {
			return Capacity
		}
		s.moves.lane = l
	}
	l := s.moves.lane
	l.call = f
	var out [1]reply
	l.queue([]request{{op: opCall}}, out[:])
	l.call = nil
	return out[0].reason
}

func moveResult(why Reason) MoveResult {
	switch why {
	case OK:
		return MoveOK
	case Closed:
		return MoveClosed
	}
	return MoveFull
}

// alive reports whether b is resident still.
func (s *Shard) alive(b Block) bool {
	w := s.hot[b.lead].word.Load()
	return stateOf(w) == ready && genOf(w) == b.gen
}

// lift ends a mark that its mover has not ended. Nor does the block pass any more: it
// was deposited anew, or is another one's, or gone.
func (s *Shard) lift(lead uint32, why MoveResult) {
	s.keep(lead)
	m, ok := s.moves.marks[lead]
	if !ok {
		return
	}
	s.dropMark(lead)
	s.moves.note(liftedMark{lead, genOf(s.hot[lead].word.Load()), m}, why)
}

// pass lets a block leave with its readers.
func (s *Shard) pass(lead uint32) {
	if _, ok := s.moves.passing[lead]; !ok && take(&s.budget.passing, maxPassing) {
		s.moves.passing[lead] = struct{}{}
		s.moves.n++
	}
}

// keep has a block stay that was to leave with its readers.
func (s *Shard) keep(lead uint32) {
	if _, ok := s.moves.passing[lead]; ok {
		delete(s.moves.passing, lead)
		s.moves.n--
		s.budget.passing.Add(-1)
	}
}

// Keep has the block of a key stay, if it was to leave with its readers, and reports
// whether there is one. While nothing passes it does not look, and says so there is.
func (s *Shard) Keep(hash uint64, key []byte) (there bool) {
	if s.budget.passing.Load() == 0 {
		return true
	}
	s.turn(func() {
		if lead := s.leadOf(hash, key); lead != 0 {
			s.keep(lead)
			there = true
		}
	})
	return there
}

func (s *Shard) dropMark(lead uint32) {
	delete(s.moves.marks, lead)
	s.moves.n--
	s.budget.marks.Add(-1)
}

func (m *moves) note(l liftedMark, why MoveResult) {
	if len(m.order) < maxLifted {
		m.order = append(m.order, l)
	} else {
		delete(m.lifted, m.order[m.next])
		m.order[m.next] = l
		m.next = (m.next + 1) % maxLifted
	}
	m.lifted[l] = why
}

// noEvict reports a no_evict hold: of held, those that are not a move's.
func (s *Shard) noEvict(lead uint32) bool {
	n := s.held[lead]
	if _, ok := s.moves.holds[lead]; ok {
		n--
	}
	return n > 0
}

// Mark marks a block for a move. Marking it twice for one move is marking it
// once.
func (s *Shard) Mark(b Block, m MoveID) (got MoveResult) {
	why := s.turn(func() { got = s.mark(b, m) })
	return max(got, moveResult(why))
}

func (s *Shard) mark(b Block, m MoveID) MoveResult {
	if !s.alive(b) {
		return MoveMiss
	}
	if have, ok := s.moves.marks[b.lead]; ok {
		if have != m {
			return MoveMarked
		}
		return MoveOK
	}
	if _, ok := s.moves.holds[b.lead]; ok {
		return MoveHeld
	}
	if s.noEvict(b.lead) {
		return MoveNoEvict
	}
	if !take(&s.budget.marks, s.budget.MaxMarks) {
		return MoveFull
	}
	s.moves.marks[b.lead] = m
	s.moves.n++
	return MoveOK
}

// Unmark lifts the mark of a block if it is still the move's.
func (s *Shard) Unmark(b Block, m MoveID) {
	s.turn(func() {
		delete(s.moves.lifted, liftedMark{b.lead, b.gen, m})
		if s.alive(b) && s.moves.marks[b.lead] == m {
			s.dropMark(b.lead)
		}
	})
}

// Departing is one block of RemoveMoved, with its key.
type Departing struct {
	Block
	Hash uint64
	Key  []byte
}

// RemoveMoved removes those blocks that the move has still marked, a group only
// when all its parts are among them, and says for each what became of it. Claims
// on them stay; memory goes with the last one.
func (s *Shard) RemoveMoved(blocks []Departing, m MoveID, what []MoveResult) {
	why := s.turn(func() {
		// From the end, where the children are: nothing is unreachable meanwhile.
		done := map[Block]MoveResult{}
		for i := len(blocks) - 1; i >= 0; i-- {
			group := Block{lead: blocks[i].lead, gen: blocks[i].gen}
			got, ok := done[group]
			if !ok {
				got = s.depart(blocks, i, m)
				done[group] = got
			}
			what[i] = got
			if got == MoveRedeposited || got == MoveMiss {
				what[i] = s.whyGone(&blocks[i])
			}
		}
	})
	if why != OK {
		for i := range what {
			what[i] = moveResult(why)
		}
	}
}

// depart removes the group of blocks[at].
func (s *Shard) depart(blocks []Departing, at int, m MoveID) MoveResult {
	b := blocks[at].Block
	if !s.alive(b) {
		return MoveMiss
	}
	if have, ok := s.moves.marks[b.lead]; !ok || have != m {
		if ok {
			return MoveMarked
		}
		if why, ok := s.moves.lifted[liftedMark{b.lead, b.gen, m}]; ok {
			return why
		}
		if s.noEvict(b.lead) {
			return MoveNoEvict
		}
		return MoveRedeposited
	}
	parts := map[uint32]bool{}
	for i := range blocks {
		if blocks[i].lead == b.lead && blocks[i].gen == b.gen {
			parts[blocks[i].id] = true
		}
	}
	if len(parts) != 1+s.members(b.lead) {
		s.lift(b.lead, MoveGroup)
		return MoveGroup
	}
	s.dropMark(b.lead)
	s.retire(b.lead, evict.Moved, true)
	return MoveOK
}

// whyGone tells a removal by hand from a replacement: the key has a block.
func (s *Shard) whyGone(b *Departing) MoveResult {
	if s.lookup(b.Hash, b.Key) != 0 {
		return MoveRedeposited
	}
	return MoveMiss
}

// Invalidate removes a key's block, of that generation unless it is 0, with its
// group; holds are in its way, marks are not.
func (s *Shard) Invalidate(hash uint64, key []byte, generation uint32) (got MoveResult) {
	why := s.turn(func() {
		s.tick(1)
		lead := s.leadOf(hash, key)
		switch {
		case lead == 0:
			got = MoveMiss
		case generation != 0 && genOf(s.hot[lead].word.Load()) != generation:
			got = MoveGeneration
		case s.noEvict(lead):
			got = MoveNoEvict
		case s.moveHeld(lead):
			got = MoveHeld
		default:
			s.retire(lead, evict.Deleted, true)
		}
	})
	return max(got, moveResult(why))
}

// Expel removes a key's block, with its group, if it could be evicted: nobody has a
// claim on it, a hold or a mark. Its descendants stay.
func (s *Shard) Expel(hash uint64, key []byte) (got MoveResult) {
	why := s.turn(func() { got = s.expel(s.leadOf(hash, key)) })
	return max(got, moveResult(why))
}

// ExpelBlock is Expel of one life of a block that passes (Adopting.Passing): it was
// adopted for its readers, and since then nobody has deposited it, moved it here, or
// called Keep. One that does not, or not any more, is MoveMiss.
func (s *Shard) ExpelBlock(b Block) (got MoveResult) {
	why := s.turn(func() {
		got = MoveMiss
		if _, passes := s.moves.passing[b.lead]; passes && s.alive(b) {
			got = s.expel(b.lead)
		}
	})
	return max(got, moveResult(why))
}

func (s *Shard) expel(lead uint32) MoveResult {
	switch {
	case lead == 0:
		return MoveMiss
	case s.noEvict(lead):
		return MoveNoEvict
	case s.moveHeld(lead):
		return MoveHeld
	case s.bound(lead):
		return MoveMarked
	}
	s.tick(1)
	if !s.retire(lead, evict.Deleted, false) {
		return MoveBusy
	}
	return MoveOK
}

// BlockOf names the block of a claim, also after its end.
func (s *Shard) BlockOf(c Claim) Block { return Block{id: c.id, lead: c.lead, gen: s.Generation(c)} }

func (s *Shard) moveHeld(lead uint32) bool { _, ok := s.moves.holds[lead]; return ok }

// leadOf is the leading record of a resident key, 0 for none.
func (s *Shard) leadOf(hash uint64, key []byte) uint32 {
	if id := s.lookup(hash, key); id != 0 {
		return s.lead(id)
	}
	return 0
}

// TakeHold holds the resident block of a key for a move.
func (s *Shard) TakeHold(hash uint64, key []byte, h MoveID) (got MoveResult) {
	return s.takeHoldOf(hash, key, h, func(uint32) bool { return true })
}

// TakeHoldOf is TakeHold for a block with that checksum: another one answers
// MoveRedeposited, and so does one without.
func (s *Shard) TakeHoldOf(hash uint64, key []byte, h MoveID, sum uint64) (got MoveResult) {
	return s.takeHoldOf(hash, key, h, func(id uint32) bool { return s.hot[id].desc.hasSum() && s.cold[id].sum == sum })
}

func (s *Shard) takeHoldOf(hash uint64, key []byte, h MoveID, is func(id uint32) bool) (got MoveResult) {
	why := s.turn(func() {
		id := s.lookup(hash, key)
		if id == 0 {
			got = MoveMiss
			return
		}
		if !is(id) {
			got = MoveRedeposited
			return
		}
		lead := s.lead(id)
		var room bool
		if got, room = s.mayHold(lead, h); room {
			s.takeHold(lead, h)
		}
	})
	return max(got, moveResult(why))
}

// mayHold reports whether a block may be held for a move. With room, a place in
// the budget has been taken for takeHold; without, the hold is there.
func (s *Shard) mayHold(lead uint32, h MoveID) (got MoveResult, room bool) {
	if _, ok := s.moves.marks[lead]; ok {
		return MoveCrossing, false
	}
	if have, ok := s.moves.holds[lead]; ok {
		if have != h {
			return MoveHeld, false
		}
		return MoveOK, false
	}
	if !take(&s.budget.holds, s.budget.MaxHolds) {
		return MoveFull, false
	}
	return MoveOK, true
}

// takeHold holds a block, in the room that mayHold has taken.
func (s *Shard) takeHold(lead uint32, h MoveID) {
	s.keep(lead) // the source's copy goes
	s.moves.holds[lead] = h
	s.moves.n++
	s.hold(lead)
	own.Store32(&s.hot[lead].last, s.now.Load())
	s.pressure(false)
}

// Holds reports whether a key's block is held for that move.
func (s *Shard) Holds(hash uint64, key []byte, h MoveID) (held bool) {
	s.turn(func() {
		lead := s.leadOf(hash, key)
		held = lead != 0 && s.heldFor(lead, h)
	})
	return held
}

func (s *Shard) heldFor(lead uint32, h MoveID) bool {
	have, ok := s.moves.holds[lead]
	return ok && have == h
}

// DropHold ends the hold of a key's block if it is that move's.
func (s *Shard) DropHold(hash uint64, key []byte, h MoveID) {
	s.turn(func() {
		if lead := s.leadOf(hash, key); lead != 0 && s.heldFor(lead, h) {
			s.loseHold(lead)
			s.unhold(lead)
		}
	})
}

// loseHold forgets a hold; the caller sees to held.
func (s *Shard) loseHold(lead uint32) {
	delete(s.moves.holds, lead)
	s.moves.n--
	s.budget.holds.Add(-1)
}
