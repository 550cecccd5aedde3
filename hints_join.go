package kvcr

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvcr-go/kvcr/hints"
)

// plan is what the request's advice says of keys.
func (h *hinted) plan(request string, ns *namespace, keys [][]byte) []hints.SourcePlan {
	var a hints.KeyAdapter
	if h.adapter != nil {
		a = h.adapter
	}
	return h.advice.Plan(request, ns.cfg.Name, keys, a)
}

// join takes the absent keys of a request that somebody is fetching already, waits
// for them, and returns the others, which are the request's to fetch: independent work
// yields to those. It must not yield to a request that waits for it.
//
// The wait takes half of the request's time at most: then it fetches by itself. A
// request that moves blocks joins nobody, since it has something to ask of its source.
func (h *hinted) join(ns *namespace, op *Op, keys [][]byte, absent []int, targets []Target, opt FetchOptions) []int {
	if len(absent) == 0 {
		return absent
	}
	r := &requestFlights{h: h, ns: ns, op: op, names: make([]string, len(keys)), mine: make([]atomic.Bool, len(keys)), keeps: targets == nil}
	for _, i := range absent {
		r.names[i] = string(keys[i])
	}
	op.onLanded(r.landed)
	moves := opt.Move || h.cfg.Advice.RequestMoves && opt.RequestID != "" && targets == nil
	mine, others := r.enter(absent, moves)
	if len(others) > 0 {
		h.joined.Add(uint64(len(others)))
		h.await(&joining{r, others, targets, opt})
	}
	return mine
}

// requestFlights are the keys of a request that are on their way.
type requestFlights struct {
	h     *hinted
	ns    *namespace
	op    *Op
	names []string
	mine  []atomic.Bool // those that the request fetches itself
	keeps bool          // the blocks come to lie here
}

// enter makes keys the request's to fetch, those that nobody fetches or all.
func (r *requestFlights) enter(at []int, all bool) (mine, others []int) {
	switch {
	case r.keeps:
		mine, others = r.h.flights.enter(r.ns, r.op, r.names, at, all)
	case all:
		mine = at
	default:
		mine, others = r.h.flights.split(r.ns, r.names, at)
	}
	r.h.pacer.Begin(len(mine))
	for _, i := range mine {
		r.mine[i].Store(true)
	}
	return mine, others
}

// landed hears of each answer.
func (r *requestFlights) landed(i int) {
	if !r.mine[i].Load() {
		return
	}
	r.h.pacer.End(1)
	if r.keeps {
		r.h.flights.leave(r.ns, r.names[i])
	}
}

// joining are keys of a request that somebody else fetches.
type joining struct {
	*requestFlights
	at      []int
	targets []Target
	opt     FetchOptions
}

// await answers the keys from what has come, once it has, and fetches the rest.
func (h *hinted) await(j *joining) {
	e := h.e
	// The caller may change its own.
	j.opt.Sources, j.opt.Generations = slices.Clone(j.opt.Sources), slices.Clone(j.opt.Generations)
	if j.opt.Timeout <= 0 {
		j.opt.Timeout = e.cfg.OperationTimeout
	}
	until := time.Now().Add(j.opt.Timeout)
	ctx, cancel := context.WithCancel(e.background)
	j.op.onAbort(cancel)
	var left atomic.Int64
	left.Store(int64(len(j.at)))
	all := make(chan struct{})
	for _, i := range j.at {
		h.flights.await(j.ns, j.names[i], func() {
			if left.Add(-1) == 0 {
				close(all)
			}
		})
	}
	e.work.Add(1)
	go func() {
		defer e.work.Done()
		defer cancel()
		patience := time.NewTimer(j.opt.Timeout / 2)
		defer patience.Stop()
		select {
		case <-all:
		case <-patience.C:
		case <-ctx.Done():
		}
		keys := make([][]byte, len(j.names))
		var rest []int
		for _, i := range j.at {
			keys[i] = []byte(j.names[i])
			if !j.answer(ctx, i, keys[i]) {
				rest = append(rest, i)
			}
		}
		if len(rest) > 0 {
			j.enter(rest, true)
			j.opt.Timeout = max(time.Until(until), time.Millisecond)
			e.fetchAbsent(j.ns, j.op, keys, rest, j.targets, j.opt)
		}
	}()
}

// answer answers one key if it is here, or if nobody waits for it any more.
func (j *joining) answer(ctx context.Context, i int, key []byte) bool {
	e := j.h.e
	if ctx.Err() != nil {
		why := ReasonAborted
		if e.closed.Load() {
			why = ReasonClosed
		}
		j.op.settle(i, Result{Reason: why})
		return true
	}
	v, ok := j.ns.claim(e, key)
	switch {
	case !ok:
		return false
	case j.targets != nil:
		j.op.settle(i, j.ns.deliver(&v, j.targets[i].Dst))
	case !j.op.settle(i, Result{View: v}):
		v.Release()
	}
	return true
}
