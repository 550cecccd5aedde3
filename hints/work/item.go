package work

import (
	"slices"
	"time"

	"github.com/kvcr-go/kvcr/hints"
)

// lane is the work for one source. One worker at a time has it, so that a copy has
// ended before a move of the same block begins.
type lane struct {
	source string
	ready  bool    // it is in Executor.ready
	served bool    // a worker has it
	queue  []*item // not begun
	lost   int     // chunks, one after the other, of which nothing came since the source did not answer
	// open are the items that have not ended; of two with one hash the later one.
	open map[uint64]*item
}

// item is one hash of one source, for all actions that name it (W2).
//
//	queued -> working -> arrived (of a move only) -> ended
//
// Whether it is a move is settled once it is working.
type item struct {
	hash    uint64
	lane    *lane
	move    bool
	state   itemState
	older   *item   // a copy of the same that has begun, and was not to be shared
	present bool    // arrived: it was here before
	bytes   int64   // arrived: that were brought for it
	moving  *moving // arrived: with which others
	waiters []waiter
}

type itemState uint8

const (
	queued itemState = iota
	working
	arrived
	ended
)

// waiter is an action that names an item. For one that asks for a copy the item ends
// when the block is here.
type waiter struct {
	act  *action
	move bool
	told bool // that it is here
}

// moving are blocks of one chunk that have arrived and wait for the end of their
// moves.
type moving struct {
	left  int
	timer *time.Timer // until they have had their time
}

// add makes a waiter wait for a hash; false when its action does already.
func (l *lane) add(x *Executor, hash uint64, w waiter) bool {
	it := l.open[hash]
	switch {
	case it != nil && slices.ContainsFunc(it.waiters, func(o waiter) bool { return o.act == w.act }):
		return false
	case it == nil, it.state != queued && w.move && !it.move:
		it = &item{lane: l, hash: hash, move: w.move, older: it}
		l.open[hash] = it
		l.queue = append(l.queue, it)
	case it.state == queued:
		it.move = it.move || w.move
	}
	it.waiters = append(it.waiters, w)
	if it.state == arrived {
		x.tellArrivedLocked(it)
	}
	return true
}

// take takes up to n items from the queue: they are being worked on then.
func (l *lane) take(n int) []*item {
	n = min(n, len(l.queue))
	items := slices.Clone(l.queue[:n])
	if l.queue = l.queue[n:]; len(l.queue) == 0 {
		l.queue = nil
	}
	for _, it := range items {
		it.state = working
	}
	return items
}

// giveBack puts jobs back to the begin of the queue.
func (x *Executor) giveBack(l *lane, jobs []job) {
	x.mu.Lock()
	defer x.mu.Unlock()
	items := make([]*item, 0, len(jobs)+len(l.queue))
	for _, j := range jobs {
		if j.it.state == working {
			if x.closed {
				x.endLocked(j.it, hints.StageFailed, ReasonClosed, 0)
				continue
			}
			j.it.state = queued
			items = append(items, j.it)
		}
	}
	l.queue = append(items, l.queue...)
}

// resolvedLocked tells that a source knows the block of an item.
func (x *Executor) resolvedLocked(it *item) {
	for _, w := range it.waiters {
		x.tellLocked(news{act: w.act, hash: it.hash, stage: hints.StageResolved})
	}
}

// end ends an item, unless it has ended (W1).
func (x *Executor) end(it *item, stage hints.Stage, reason string, bytes int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.endLocked(it, stage, reason, bytes)
}

func (x *Executor) endLocked(it *item, stage hints.Stage, reason string, bytes int64) {
	if it.state == ended {
		return
	}
	it.state = ended
	for _, w := range it.waiters {
		if w.move || !w.told {
			x.tellLocked(news{w.act, it.hash, stage, reason, bytes, true})
		}
	}
	if m := it.moving; m != nil {
		if m.left--; m.left == 0 {
			m.timer.Stop()
		}
	}
	it.waiters = nil
	switch l := it.lane; {
	case l.open[it.hash] == it && it.older != nil:
		l.open[it.hash] = it.older
	case l.open[it.hash] == it:
		delete(l.open, it.hash)
		x.tidyLocked(l)
	case l.open[it.hash] != nil && l.open[it.hash].older == it:
		l.open[it.hash].older = nil
	}
}

// arrive says that the block of a move is here. Its end is still to come.
func (x *Executor) arrive(it *item, present bool, bytes int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if it.state == working {
		it.state, it.present, it.bytes = arrived, present, bytes
		x.tellArrivedLocked(it)
	}
}

// tellArrivedLocked tells those who do not know it that the block is here.
func (x *Executor) tellArrivedLocked(it *item) {
	for i := range it.waiters {
		w := &it.waiters[i]
		switch {
		case w.told:
			continue
		case !it.present:
			x.tellLocked(news{w.act, it.hash, hints.StageCopied, "", it.bytes, !w.move})
		case !w.move:
			x.tellLocked(news{w.act, it.hash, hints.StagePresent, "", 0, true})
		}
		w.told = true
	}
}

// leave ends the move of a block that has arrived.
func (x *Executor) leave(it *item, reason string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case it.state != arrived:
	case reason == "":
		x.endLocked(it, hints.StageMoved, "", 0)
	default:
		x.endLocked(it, hints.StageKept, reason, 0)
	}
}
