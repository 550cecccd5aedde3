package kvcr

import (
	"context"
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
// for them, and returns the others, which are the request's to fetch. Independent work
// hears of all of them: it yields.
//
// The wait takes half of the request's time at most: then it fetches by itself. A
// request that moves blocks joins nobody, since it has something to ask of its source.
func (h *hinted) join(ns *namespace, op *Op, keys [][]byte, absent []int, targets []Target, opt FetchOptions) []int {
	if len(absent) == 0 {
		return absent
	}
	names := make([]string, len(keys))
	counts := make([]bool, len(keys))
	for _, i := range absent {
		names[i], counts[i] = string(keys[i]), true
	}
	h.pacer.Begin(len(absent))
	mine, others := absent, []int(nil)
	flying := make([]atomic.Bool, len(keys))
	moves := opt.Move || h.cfg.Advice.RequestMoves && opt.RequestID != "" && targets == nil
	if targets == nil {
		mine, others = h.flights.enter(ns, op, names, absent, moves)
		for _, i := range mine {
			flying[i].Store(true)
		}
	} else {
		mine, others = h.flights.split(ns, names, absent)
	}
	op.onLanded(func(i int) {
		if counts[i] {
			h.pacer.End(1)
		}
		if flying[i].Load() {
			h.flights.leave(ns, names[i])
		}
	})
	if len(others) > 0 {
		h.joined.Add(uint64(len(others)))
		h.await(&joining{ns, op, names, others, targets, opt, func(i int) { flying[i].Store(true) }})
	}
	return mine
}

// joining are keys of a request that somebody else fetches.
type joining struct {
	ns      *namespace
	op      *Op
	names   []string
	at      []int
	targets []Target
	opt     FetchOptions
	flying  func(i int) // it is the request's from here on
}

// await answers the keys from what has come, once it has, and fetches the rest.
func (h *hinted) await(j *joining) {
	e := h.e
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
			if !j.answer(ctx, e, i, keys[i]) {
				rest = append(rest, i)
			}
		}
		if len(rest) == 0 {
			return
		}
		if j.targets == nil {
			h.flights.enter(j.ns, j.op, j.names, rest, true)
			for _, i := range rest {
				j.flying(i)
			}
		}
		opt := j.opt
		opt.Timeout = max(time.Until(until), time.Millisecond)
		e.fetchAbsent(j.ns, j.op, keys, rest, j.targets, opt)
	}()
}

// answer answers one key if it is here, or if nobody waits for it any more.
func (j *joining) answer(ctx context.Context, e *Engine, i int, key []byte) bool {
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
