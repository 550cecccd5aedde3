package kvcr

import (
	"sync"

	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/shard"
	"github.com/kvcr-go/kvcr/wire"
)

// Records is the engine's block table as transfers between nodes see it: claims
// and marks of a source, reservations and holds of a destination, over all
// namespaces. It implements peer.SourceRecords, peer.DestRecords and
// peer.LookupRecords; any goroutine may call it. One claim or slot belongs to one caller at a time.
//
// After Close every call answers wire.StatusClosed, but for those that give
// something back: the memory of a claim or slot stays mapped until its Unclaim,
// Free or Commit, as a View's does.
//
// Rules:
//
//   - A call is one step: mu is held from the first look at the tables to the
//     last, with the shard's token inside. Only checksums are computed outside.
//   - Close passes through mu, and through looking, once after it has set closed: no
//     step touches a shard that is drained.
type Records struct {
	e       *Engine
	looking sync.RWMutex // held to read while a Lookup runs

	mu        sync.Mutex // guards what follows
	lastClaim peer.Claim
	claims    map[peer.Claim]*lentBlock
	lastSlot  peer.Slot
	slots     map[peer.Slot]*inSlot
	inbound   inbounds
	targets   map[peer.OpID][]peer.Span
	// brought are, of operations that asked for it, the items whose bytes have become
	// a block.
	brought map[peer.OpID]map[int]bool
}

var (
	_ peer.SourceRecords = (*Records)(nil)
	_ peer.DestRecords   = (*Records)(nil)
	_ peer.LookupRecords = (*Records)(nil)
)

// Records returns the engine's records; there is one.
func (e *Engine) Records() *Records { return e.records }

func newRecords(e *Engine) *Records {
	return &Records{
		e: e, claims: map[peer.Claim]*lentBlock{}, slots: map[peer.Slot]*inSlot{},
		inbound: inbounds{ops: map[peer.OpID]*inbound{}, waiting: map[waited][]shard.Child{}}, targets: map[peer.OpID][]peer.Span{}, brought: map[peer.OpID]map[int]bool{},
	}
}

// quiesce waits for the step under way. e.closed is set: later ones see it.
func (r *Records) quiesce() {
	r.looking.Lock()
	r.looking.Unlock() // who comes now sees closed
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.targets)
}

// lock begins a step; closed says that it may only give back. Call unlock.
func (r *Records) lock() (closed bool) {
	r.mu.Lock()
	return r.e.closed.Load()
}

// unlock ends a step that lock began. One that gave memory back may be what a
// closed engine waits for.
func (r *Records) unlock(closed bool) {
	r.mu.Unlock()
	if closed {
		r.e.settle()
	}
}

// place finds a key's shard. Call it in a step of an engine that is not closed.
func (r *Records) place(namespace string, key []byte) (p *part, hash uint64, st wire.Status) {
	if !validKey(key) {
		return nil, 0, wire.StatusBadKey
	}
	for _, ns := range r.e.list {
		if ns.cfg.Name == namespace {
			hash = r.e.hash(key)
			return ns.part(hash), hash, wire.StatusOK
		}
	}
	return nil, 0, wire.StatusMiss
}

var moveStatuses = [...]wire.Status{
	shard.MoveOK: wire.StatusOK, shard.MoveMiss: wire.StatusMiss, shard.MoveGeneration: wire.StatusGeneration,
	shard.MoveMarked: wire.StatusMarked, shard.MoveCrossing: wire.StatusCrossing, shard.MoveHeld: wire.StatusHeld,
	shard.MoveNoEvict: wire.StatusNoEvict, shard.MoveRedeposited: wire.StatusRedeposited, shard.MoveGroup: wire.StatusGroup,
	shard.MoveBusy: wire.StatusBusy, shard.MoveFull: wire.StatusCapacity, shard.MoveClosed: wire.StatusClosed,
}

func moveStatus(m shard.MoveResult) wire.Status { return moveStatuses[m] }

// reasonStatus translates what a reservation or commit may answer.
func reasonStatus(why Reason) wire.Status {
	switch why {
	case ReasonOK:
		return wire.StatusOK
	case ReasonCapacity:
		return wire.StatusCapacity
	case ReasonDropped:
		return wire.StatusDropped
	case ReasonTooLarge:
		return wire.StatusTooLarge
	case ReasonLayout:
		return wire.StatusBadLayout
	case ReasonClosed:
		return wire.StatusClosed
	}
	return wire.StatusAborted
}

func moveOf(m peer.MoveID) shard.MoveID {
	return shard.MoveID{Peer: uint64(m.Dest), Op: uint64(m.Op)}
}

func holdOf(h peer.HoldID) shard.MoveID {
	return shard.MoveID{Peer: uint64(h.Source), Op: uint64(h.Op)}
}
