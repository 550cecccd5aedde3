package work

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcr-go/kvcr/hints"
)

// job is an item whose block is known.
type job struct {
	it *item
	b  Block
}

// batch brings what it can of a lane's items.
func (x *Executor) batch(l *lane, items []*item) {
	hashes := make([]uint64, len(items))
	for i, it := range items {
		hashes[i] = it.hash
	}
	ctx, cancel := context.WithTimeout(x.ctx, x.cfg.ResolveTimeout)
	blocks, why := x.cfg.Engine.Resolve(ctx, l.source, hashes)
	cancel()
	switch {
	case x.ctx.Err() != nil:
		why = ReasonClosed
	case why == "" && len(blocks) != len(items):
		why = ReasonSource
	}
	if why != "" {
		x.failAll(l, items, why)
		return
	}
	jobs := make([]job, 0, len(items))
	x.mu.Lock()
	for i, b := range blocks {
		switch it := items[i]; {
		case b.Here:
			x.endLocked(it, hints.StagePresent, "", 0)
		case b.Reason != "":
			x.endLocked(it, hints.StageFailed, b.Reason, 0)
		default:
			jobs = append(jobs, job{it, b})
			x.resolvedLocked(it)
		}
	}
	x.mu.Unlock()
	todo, coming := x.look(jobs, false)
	if !x.fetch(l, todo) {
		x.giveBack(l, coming)
		return
	}
	if len(coming) > 0 {
		x.await(coming)
		todo, _ = x.look(coming, true)
		x.fetch(l, todo)
	}
}

// failAll ends the items, and what is queued behind them: the source is of no use.
func (x *Executor) failAll(l *lane, items []*item, why string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, it := range append(items, l.take(len(l.queue))...) {
		x.endLocked(it, hints.StageFailed, why, 0)
	}
}

// look sorts out which blocks are to be fetched. Those that somebody else fetches are
// to be awaited, with the rest of their groups, or (last) fetched all the same.
func (x *Executor) look(jobs []job, last bool) (todo, coming []job) {
	var left []job // of a group
	for len(jobs) > 0 {
		n := 1
		for n < len(jobs) && jobs[n].b.Follows {
			n++
		}
		left = left[:0]
		wait := false
		for _, j := range jobs[:n] {
			s, why := x.cfg.Engine.Look(&j.b)
			switch {
			case s == Refused:
				x.end(j.it, hints.StageFailed, why, 0)
			case s == Present && !j.it.move:
				x.end(j.it, hints.StagePresent, "", 0)
			default:
				wait = wait || s == Coming && !last
				left = append(left, j)
			}
		}
		if jobs = jobs[n:]; wait {
			coming = append(coming, left...)
		} else {
			todo = append(todo, left...)
		}
	}
	return todo, coming
}

// await waits until nobody else fetches the blocks, for a while at most.
func (x *Executor) await(jobs []job) {
	var left atomic.Int64
	left.Store(int64(len(jobs)))
	all := make(chan struct{})
	for i := range jobs {
		x.cfg.Engine.Await(&jobs[i].b, func() {
			if left.Add(-1) == 0 {
				close(all)
			}
		})
	}
	t := time.NewTimer(x.cfg.JoinTimeout)
	defer t.Stop()
	select {
	case <-all:
	case <-t.C:
	case <-x.ctx.Done():
	}
}

// maxLost is how many chunks in a row may be lost before all that is queued for the
// source is given up.
const maxLost = 2

// fetch brings blocks, a chunk after the other. When the source does not answer any
// more what is left goes back to the queue, so that the source is asked for hashes
// first, which costs less time; and fetch is false.
func (x *Executor) fetch(l *lane, jobs []job) bool {
	for len(jobs) > 0 {
		n, bytes := x.cut(jobs)
		taken, err := x.cfg.Pacer.Take(x.ctx, bytes)
		if err != nil {
			for _, j := range jobs {
				x.end(j.it, hints.StageFailed, ReasonClosed, 0)
			}
			return false
		}
		arrived, lost, why := x.chunk(l, jobs[:n])
		x.cfg.Pacer.Give(taken)
		jobs = jobs[n:]
		switch {
		case lost == 0 || arrived > 0:
			l.lost = 0
		default:
			l.lost++
		}
		if lost > 0 {
			x.giveBack(l, jobs)
			if l.lost >= maxLost {
				x.failAll(l, nil, why)
			}
			return false
		}
	}
	return true
}

// cut says how many of the first jobs go together: of one namespace and one kind,
// and no more than a quarter of the budget, so that sources share it. Parts of a group
// stay together where that is possible at all.
func (x *Executor) cut(jobs []job) (n int, bytes int64) {
	first, move := &jobs[0].b, jobs[0].it.move
	room, whole := x.cfg.Pacer.budget/4, 0
	for n < min(len(jobs), x.cfg.ChunkBlocks) {
		b := &jobs[n].b
		if b.Namespace != first.Namespace || jobs[n].it.move != move {
			return n, bytes
		}
		if !b.Follows {
			if whole = n; n > 0 && bytes+b.Bytes > room {
				return n, bytes
			}
		}
		bytes += max(b.Bytes, 0)
		n++
	}
	if n < len(jobs) && jobs[n].b.Follows && whole > 0 {
		for _, j := range jobs[whole:n] {
			bytes -= max(j.b.Bytes, 0)
		}
		n = whole
	}
	return n, bytes
}

// chunk fetches blocks and waits until all have arrived or failed. It returns how many
// have arrived, how many the source has not answered for, and why.
func (x *Executor) chunk(l *lane, jobs []job) (here, lost int, why string) {
	blocks := make([]Block, len(jobs))
	for i, j := range jobs {
		blocks[i] = j.b
	}
	move := jobs[0].it.move
	var mu sync.Mutex // guards left and the results
	left := len(jobs)
	all := make(chan struct{})
	x.cfg.Engine.Fetch(x.ctx, l.source, blocks, move, func(i int, a Arrival) {
		it, bytes := jobs[i].it, jobs[i].b.Bytes
		if a.Existing {
			bytes = 0
		}
		switch {
		case a.Reason != "":
			x.end(it, hints.StageFailed, a.Reason, 0)
		case move:
			x.arrive(it, a.Existing, bytes)
		case a.Existing:
			x.end(it, hints.StagePresent, "", 0)
		default:
			x.end(it, hints.StageCopied, "", bytes)
		}
		mu.Lock()
		defer mu.Unlock()
		switch {
		case a.Reason == "":
			here++
		case a.Lost:
			lost, why = lost+1, a.Reason
		}
		if left--; left == 0 {
			close(all)
		}
	}, func(i int, reason string) { x.leave(jobs[i].it, reason) })
	<-all
	if move {
		x.bound(jobs)
	}
	mu.Lock()
	defer mu.Unlock()
	return here, lost, why
}

// bound gives moves of blocks that have arrived a time to end.
func (x *Executor) bound(jobs []job) {
	x.mu.Lock()
	defer x.mu.Unlock()
	m := &moving{}
	var open []*item
	for _, j := range jobs {
		if j.it.state == arrived {
			j.it.moving = m
			open = append(open, j.it)
		}
	}
	if m.left = len(open); m.left > 0 {
		m.timer = time.AfterFunc(x.cfg.MoveTimeout, func() {
			for _, it := range open {
				x.leave(it, ReasonNoAnswer)
			}
		})
	}
}
