package kvcr

import (
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/shard"
	"github.com/kvcr-go/kvcr/wire"
)

// lentBlock is a block that a source has claimed. It outlives its claim while
// the claim's move has a mark to end.
type lentBlock struct {
	p        *part
	c        shard.Claim
	block    shard.Block
	hash     uint64
	key      []byte
	live     bool // the claim is held
	move     peer.MoveID
	part     int // of parts, in the group
	numParts int
}

// Claim claims the complete block of a key, of that generation unless it is 0,
// and describes it in o. See peer.SourceRecords. It also fails with
// StatusBadKey, with StatusBusy when Config.MaxTransferBlocks are claimed, and
// with StatusClosed.
func (r *Records) Claim(namespace string, w *wire.Wanted, o *wire.Offered) (peer.Claim, wire.Status) {
	closed := r.lock()
	defer r.unlock(false)
	if closed {
		return 0, wire.StatusClosed
	}
	p, hash, st := r.place(namespace, w.Key)
	if st != wire.StatusOK {
		return 0, st
	}
	if len(r.claims) >= r.e.cfg.MaxTransferBlocks {
		return 0, wire.StatusBusy
	}
	c, l, got := p.Lend(hash, w.Key, w.Generation)
	if got != shard.MoveOK {
		return 0, moveStatus(got)
	}
	o.Generation, o.Size, o.Position, o.Parent, o.Pools = l.Generation, uint64(l.Size), l.Position, l.Parent, l.Pools
	o.Flags, o.Sum, o.Offsets = 0, 0, nil
	if l.HasSum {
		o.Flags |= wire.OfferSum
		o.Sum = l.Sum
	}
	o.Parts = 0
	if l.Parts > 1 {
		o.Parts = uint16(l.Parts)
	}
	if l.Part < l.Parts-1 {
		o.Flags |= wire.OfferMember
	}
	if _, shared := p.ns.payload.FD(); shared {
		o.Offsets = l.Offsets
	} else {
		o.Flags |= wire.OfferNoPool
	}
	r.lastClaim++
	r.claims[r.lastClaim] = &lentBlock{
		p: p, c: c, block: l.Block, hash: hash, key: append([]byte(nil), w.Key...), live: true, part: l.Part, numParts: l.Parts,
	}
	return r.lastClaim, wire.StatusOK
}

// ClaimBytes returns the pieces of a claimed block in place, in order. They are
// to be read until Unclaim. It is nil for a claim that is not held.
func (r *Records) ClaimBytes(c peer.Claim) [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.claims[c]; l != nil && l.live {
		return l.p.PiecesOf(l.c)
	}
	return nil
}

// ClaimGroup tells which claimed blocks make a group: those with the same number
// and namespace. parts is how many blocks the group has, part this one's place,
// the leader's being the last; 1 and 0 for a block without a group. It is not ok
// for a claim that is not held.
func (r *Records) ClaimGroup(c peer.Claim) (group uint64, part, parts int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.claims[c]
	if l == nil || !l.live {
		return 0, 0, 0, false
	}
	return uint64(l.p.i)<<32 | uint64(l.block.Group()), l.part, l.numParts, true
}

// Unclaim ends a claim. A mark of the block stays, and c goes on to name the
// block for Unmark and Remove.
func (r *Records) Unclaim(c peer.Claim) {
	closed := r.lock()
	defer r.unlock(closed)
	l := r.claims[c]
	if l == nil || !l.live {
		return
	}
	l.live = false
	l.p.Release(l.c)
	r.forget(c, l)
}

// forget lets go of a claim's entry when nothing can be asked of it any more.
func (r *Records) forget(c peer.Claim, l *lentBlock) {
	if !l.live && (l.move == peer.MoveID{} || r.e.closed.Load()) {
		delete(r.claims, c)
	}
}

// Mark marks the claimed block for removal by the move. See peer.SourceRecords.
// It also fails with StatusCapacity when Config.MaxMarks are set, and with
// StatusClosed.
func (r *Records) Mark(c peer.Claim, m peer.MoveID) wire.Status {
	closed := r.lock()
	defer r.unlock(false)
	if closed {
		return wire.StatusClosed
	}
	l := r.claims[c]
	if l == nil || !l.live {
		return wire.StatusMiss
	}
	got := l.p.Mark(l.block, moveOf(m))
	if got == shard.MoveOK {
		l.move = m
	}
	return moveStatus(got)
}

// Unmark lifts the mark if it is still the move's.
func (r *Records) Unmark(c peer.Claim, m peer.MoveID) {
	closed := r.lock()
	defer r.unlock(false)
	l := r.claims[c]
	if l == nil {
		return
	}
	if !closed {
		l.p.Unmark(l.block, moveOf(m))
	}
	if l.move == m {
		l.move = peer.MoveID{}
		r.forget(c, l)
	}
}

// Remove removes those of the claimed blocks that the move has still marked. See
// peer.SourceRecords. A claim that is not known answers StatusReleased, all of
// them StatusClosed once the engine is closed.
func (r *Records) Remove(cs []peer.Claim, m peer.MoveID, what []wire.Status) {
	closed := r.lock()
	defer r.unlock(false)
	parts := map[*part][]int{}
	for i, c := range cs {
		l := r.claims[c]
		switch {
		case closed:
			what[i] = wire.StatusClosed
		case l == nil:
			what[i] = wire.StatusReleased
		default:
			parts[l.p] = append(parts[l.p], i)
		}
	}
	for p, at := range parts {
		blocks := make([]shard.Departing, len(at))
		for k, i := range at {
			l := r.claims[cs[i]]
			blocks[k] = shard.Departing{Block: l.block, Hash: l.hash, Key: l.key}
		}
		got := make([]shard.MoveResult, len(at))
		p.RemoveMoved(blocks, moveOf(m), got)
		for k, i := range at {
			what[i] = moveStatus(got[k])
		}
	}
	for _, c := range cs {
		if l := r.claims[c]; l != nil && l.move == m {
			l.move = peer.MoveID{}
			r.forget(c, l)
		}
	}
}

// Invalidate removes a key's block with its group, whatever marks it. See
// peer.SourceRecords.
func (r *Records) Invalidate(namespace string, w *wire.Wanted) wire.Status {
	closed := r.lock()
	defer r.unlock(false)
	if closed {
		return wire.StatusClosed
	}
	p, hash, st := r.place(namespace, w.Key)
	if st != wire.StatusOK {
		return st
	}
	return moveStatus(p.Invalidate(hash, w.Key, w.Generation))
}

// Expel removes a key's block with its group, if nobody has claimed, held or marked
// it. Failures: wire.StatusMiss, StatusBusy for a reader, StatusNoEvict, StatusMarked,
// StatusHeld, StatusClosed.
func (r *Records) Expel(namespace string, key []byte) wire.Status {
	closed := r.lock()
	defer r.unlock(false)
	if closed {
		return wire.StatusClosed
	}
	p, hash, st := r.place(namespace, key)
	if st != wire.StatusOK {
		return st
	}
	return moveStatus(p.Expel(hash, key))
}

// expelBlock is Expel of one life of a block that came for its readers only; one that
// somebody has wanted since is StatusMiss.
func (r *Records) expelBlock(p *part, b shard.Block) wire.Status {
	closed := r.lock()
	defer r.unlock(false)
	if closed {
		return wire.StatusClosed
	}
	return moveStatus(p.ExpelBlock(b))
}

// keep has the block of a key stay, also if it came for its readers only, and reports
// whether it is here.
func (r *Records) keep(namespace string, key []byte) bool {
	closed := r.lock()
	defer r.unlock(false)
	if closed {
		return true
	}
	p, hash, st := r.place(namespace, key)
	return st == wire.StatusOK && p.Keep(hash, key)
}

// releaseDropped ends a View whose block is not to be kept: it leaves with the last
// claim. One that somebody holds, has deposited or moved here since, or that a move has
// marked, stays.
func (e *Engine) releaseDropped(p *part, c shard.Claim) error {
	b := p.BlockOf(c)
	if err := p.Release(c); err != nil {
		return err
	}
	if e.closed.Load() {
		e.settle()
	} else if e.records.expelBlock(p, b) == wire.StatusOK {
		e.hinted.notRetained.Add(1)
	}
	return nil
}
