package kvcr

import (
	"context"

	"github.com/kvcr-go/kvcr/peer"
)

// direct brings blocks straight to devices, those that UCX reaches and that are not
// resident. It returns the rest, which has to take the ring; and wait, which returns
// when all others have ended, with those that have to take it after all: their source
// is not fetched from over route ucx, which is known only once there is a connection,
// or only Config.Remote may have them.
func (f *deviceFetch) direct(ctx context.Context, h *Handle, absent []int) (rest []int, wait func() []int) {
	wait = func() []int { return nil }
	e := f.g.e
	if !f.opt.asks(e) {
		return absent, wait
	}
	u := e.node.UCX()
	var at []int // which of the delivery's blocks are asked for here
	for _, i := range absent {
		if u.Reaches(f.d.spans[i]) && !h.Has(f.keys[i]) {
			at = append(at, i)
		} else {
			rest = append(rest, i)
		}
	}
	if len(at) == 0 {
		return rest, wait
	}
	op := newOp(len(at))
	results := make([]Result, len(at)) // of the failed, until op is done
	op.hook = func(k int, r Result) {
		if r.OK() {
			f.d.op.settle(at[k], r)
		}
		results[k] = r
	}
	keys, targets, spans, ask := make([][]byte, len(at)), make([]Target, len(at)), make([]peer.Span, len(at)), make([]int, len(at))
	for k, i := range at {
		keys[k], spans[k], ask[k] = f.keys[i], f.d.spans[i], k
	}
	opt := f.opt.only(at)
	opt.Timeout = f.left()
	t := newFetching(e, h.ns, op, keys, targets, opt)
	t.spans = spans
	if !t.plan(ask) { // no source is to be asked for them
		t.aborted.Store(true)
		return absent, wait
	}
	t.begin()
	return rest, func() (again []int) {
		select {
		case <-op.Done():
		case <-ctx.Done():
			if f.why(ctx) == ReasonAborted {
				op.Abort()
			}
			<-op.Done() // within the time that a delivery has for its end
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, k := range t.refused {
			again, at[k] = append(again, at[k]), -1
		}
		for k, i := range at {
			if i >= 0 && !results[k].OK() {
				f.d.op.settle(i, results[k])
			}
		}
		return again
	}
}
