package kvcr

import (
	"context"
	"slices"

	"github.com/kvcr-go/kvcr/hints/work"
	"github.com/kvcr-go/kvcr/wire"
)

// independent is who has a fetching done, when no request waits for it.
type independent struct {
	// moved tells how the move of key i has ended, after its answer.
	moved func(i int, s wire.Status)
}

// workEngine is what independent work is done on.
type workEngine hinted

func (w *workEngine) Resolve(ctx context.Context, source string, hashes []uint64) (blocks []work.Block, reason string) {
	h := (*hinted)(w)
	rs, err := h.e.node.Resolve(ctx, source, hashes)
	answered := false
	blocks = make([]work.Block, len(rs))
	for i := range rs {
		r := &rs[i]
		answered = answered || r.Source != 0
		b := &blocks[i]
		*b = work.Block{
			Hash: hashes[i], Reason: outcomeReason(r.Status), Namespace: r.Namespace, Key: r.Key, Generation: r.Generation,
			Bytes: int64(min(r.Size, 1<<62)), Pools: r.Pools, Follows: r.Parts > 1 && r.Part > 0, Description: r.Description,
		}
		if r.Status == wire.StatusMiss {
			b.Here = h.hasHash(b.Hash)
		}
	}
	if err != nil && !answered && len(blocks) > 0 {
		return nil, blocks[0].Reason
	}
	return blocks, ""
}

// hasHash reports whether the block that has a hash is here.
func (h *hinted) hasHash(hash uint64) bool {
	if h.adapter == nil {
		return false
	}
	k, why := h.keyOf(hash)
	if why != "" {
		return false
	}
	var r wire.Resolved
	return h.e.records.Lookup(k.Namespace, k.Key, &r) == wire.StatusOK
}

func (w *workEngine) Look(b *work.Block) (s work.Standing, reason string) {
	ns, err := w.e.namespace(b.Namespace)
	if err != nil {
		return work.Refused, outcomeReason(wire.StatusBadLayout)
	}
	if st := ns.takes(b); st != wire.StatusOK {
		return work.Refused, outcomeReason(st)
	}
	var r wire.Resolved
	switch st := w.e.records.Lookup(b.Namespace, b.Key, &r); {
	case st == wire.StatusOK && (int64(r.Size) != b.Bytes || !slices.Equal(r.Pools, b.Pools)):
		return work.Refused, outcomeReason(wire.StatusBadLayout) // another block has the key here
	case st == wire.StatusOK && (w.e.moves.Passing() == 0 || w.e.records.keep(b.Namespace, b.Key)):
		(*hinted)(w).describe(b)
		return work.Present, ""
	case st == wire.StatusClosed:
		return work.Refused, work.ReasonClosed
	case w.flights.under(ns, b.Key):
		(*hinted)(w).describe(b)
		return work.Coming, ""
	}
	return work.Absent, ""
}

// takes reports whether the namespace could store a block, or why not.
func (ns *namespace) takes(b *work.Block) wire.Status {
	if b.Follows && ns.cfg.Kind != Chained {
		return wire.StatusBadLayout
	}
	if len(ns.cfg.Pools) == 0 {
		switch {
		case len(b.Pools) > 1:
			return wire.StatusBadLayout
		case b.Bytes > int64(ns.cfg.MaxValue):
			return wire.StatusTooLarge
		}
		return wire.StatusOK
	}
	most := int64(0)
	for _, p := range b.Pools {
		if int(p) >= len(ns.cfg.Pools) {
			return wire.StatusBadLayout
		}
		most += int64(ns.cfg.Pools[p].SlotBytes)
	}
	switch {
	case len(b.Pools) == 0:
		return wire.StatusBadLayout
	case b.Bytes > most:
		return wire.StatusTooLarge
	}
	return wire.StatusOK
}

func (w *workEngine) Await(b *work.Block, ended func()) {
	ns, err := w.e.namespace(b.Namespace)
	if err != nil {
		ended()
		return
	}
	w.flights.await(ns, string(b.Key), ended)
}

func (w *workEngine) Fetch(_ context.Context, source string, blocks []work.Block, move bool, arrived func(int, work.Arrival), moved func(int, string)) {
	e := w.e
	ns, err := e.namespace(blocks[0].Namespace)
	if err != nil {
		for i := range blocks {
			arrived(i, work.Arrival{Reason: outcomeReason(wire.StatusBadLayout)})
		}
		return
	}
	op := newOp(len(blocks))
	opt := FetchOptions{Sources: []string{source}, Move: move, OwnedOnly: true, Timeout: w.cfg.TransferTimeout}
	keys, names, all := make([][]byte, len(blocks)), make([]string, len(blocks)), make([]int, len(blocks))
	for i := range blocks {
		(*hinted)(w).describe(&blocks[i]) // before its event
		keys[i], names[i], all[i] = blocks[i].Key, string(blocks[i].Key), i
		opt.Generations = append(opt.Generations, blocks[i].Generation)
	}
	w.flights.enter(ns, op, names, all, true)
	op.onLanded(func(i int) {
		w.flights.leave(ns, names[i])
		r := &op.results[i] // it has its answer
		arrived(i, work.Arrival{Reason: r.outcome(e), Lost: lost(r.why), Existing: r.Existing})
	})
	f := newFetching(e, ns, op, keys, nil, opt)
	f.work = &independent{moved: func(i int, s wire.Status) { moved(i, outcomeReason(s)) }}
	f.plan(all)
	f.begin()
}

// lost reports whether a source has not answered.
func lost(s wire.Status) bool {
	switch s {
	case wire.StatusTimeout, wire.StatusLost, wire.StatusSource, wire.StatusIncarnation, wire.StatusUnknownOp, wire.StatusClosed:
		return true
	}
	return false
}

// outcome says in routers' words why there is no block.
func (r *Result) outcome(e *Engine) string {
	switch {
	case r.OK():
		return ""
	case e.closed.Load():
		return work.ReasonClosed
	case r.why != wire.StatusOK:
		return outcomeReason(r.why)
	}
	return r.Reason.String()
}

var _ work.Engine = (*workEngine)(nil)
