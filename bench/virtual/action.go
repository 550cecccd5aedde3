package virtual

import (
	"slices"

	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// action is a prefetch or a move that a node has accepted.
type action struct {
	n         *node
	link      *link
	tracked   *hints.Tracked
	move      bool
	resolving *peer.Resolving
	timer     peer.Time
	left      int // blocks that have not ended
}

// order takes an envelope that belongs to no request.
func (n *node) order(envelope []byte) { n.submit("", envelope) }

// accept is the handler of prefetches and moves.
func (n *node) accept(c *hints.Call, t *hints.Transfer, move bool) error {
	tracked, err := n.tracker.Accept(c, t.Hashes)
	if err != nil {
		return err
	}
	defer n.f.cpu.to(n.f.cpu.to(Simulation))
	n.f.counts[Actions]++
	a := &action{n: n, link: n.link(t.Source), tracked: tracked, move: move}
	n.f.after(0, tag{evAction, int32(n.id), uint64(n.f.counts[Actions])}, a.begin)
	return nil
}

// begin asks the source for the keys.
func (a *action) begin() {
	f := a.n.f
	was := f.cpu.to(Machines)
	a.resolving = peer.NewResolving(a.n.inc, slices.Clone(a.tracked.Hashes()), peer.Timing{}, peer.ResolveLimits{}, a.n.nextOp)
	f.cpu.to(was)
	a.link.resolves = append(a.link.resolves, a)
	if a.link.up {
		a.step(a.link.upEvent())
	} else {
		a.link.dial()
	}
}

func (a *action) step(ev peer.Event) {
	f := a.n.f
	f.counts[Steps]++
	was := f.cpu.to(Machines)
	actions := a.resolving.Step(f.now, ev)
	over, next := a.resolving.Ops() == 0, a.resolving.Next()
	f.cpu.to(was)
	for _, x := range actions {
		s := x.(peer.Send)
		a.link.send(toSource, s.ID, s.Msg)
	}
	if over {
		a.link.resolves = slices.DeleteFunc(a.link.resolves, func(b *action) bool { return a == b })
		a.resolved()
		return
	}
	f.arm(a.n, &a.timer, next, a.resolving.Next, func() {
		if slices.Contains(a.link.resolves, a) {
			a.step(peer.Tick{})
		}
	})
}

// resolved has the blocks fetched that the source knows.
func (a *action) resolved() {
	results, err := a.resolving.Results()
	if err != nil {
		a.n.f.fault("%v: hashes were not resolved: %v", a.n, err)
	}
	var items []wire.Wanted
	var hashes []uint64
	for i := range results {
		r := &results[i]
		switch {
		case r.Status != wire.StatusOK:
			a.report(hints.StageFailed, r.Status.String(), r.Hash)
			continue
		case !a.move && a.n.table.blocks[r.Hash] != nil:
			a.report(hints.StagePresent, "", r.Hash)
			continue
		}
		a.report(hints.StageResolved, "", r.Hash)
		items, hashes = append(items, wire.Wanted{Key: r.Key, Generation: r.Generation}), append(hashes, r.Hash)
	}
	if a.left = len(items); a.left == 0 {
		a.end()
		return
	}
	mode := wire.TransferCopy
	if a.move {
		mode = wire.TransferMove
	}
	for at := 0; at < len(items); at += wire.MaxItems {
		part := hashes[at:min(at+wire.MaxItems, len(hashes))]
		a.link.submit(mode, items[at:at+len(part)],
			func(s peer.Settle) { a.settled(part[s.Index], &s) },
			func(i int, s wire.Status) { a.outcome(part[i], s) })
	}
}

func (a *action) report(stage hints.Stage, reason string, hash uint64) {
	defer a.n.f.cpu.to(a.n.f.cpu.to(Hints))
	a.tracked.Report(stage, reason, hash)
}

func (a *action) settled(hash uint64, s *peer.Settle) {
	switch {
	case s.Status != wire.StatusOK:
		a.n.f.counts[Failed]++
		a.report(hints.StageFailed, s.Status.String(), hash)
	case s.Existing && !a.move:
		a.report(hints.StagePresent, "", hash)
	default:
		a.report(hints.StageCopied, "", hash)
	}
	if !a.move {
		a.over()
	}
}

// outcome is how the move of a block has ended.
func (a *action) outcome(hash uint64, s wire.Status) {
	if s == wire.StatusOK {
		a.n.f.counts[Moved]++
		a.report(hints.StageMoved, "", hash)
	} else {
		a.report(hints.StageKept, s.String(), hash)
	}
	a.over()
}

func (a *action) over() {
	if a.left--; a.left == 0 {
		a.end()
	}
}

func (a *action) end() {
	if a.n.f.broken.outcome {
		return
	}
	defer a.n.f.cpu.to(a.n.f.cpu.to(Hints))
	a.tracked.End("")
}
