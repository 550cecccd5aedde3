package kvcr

import (
	"context"
	"slices"
	"sync"

	"github.com/kvcr-go/kvcr/internal/blockcopy"
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/ucx/cuda"
)

// DepositRefs deposits blocks of one piece out of regions, as DepositBatch does with
// what the caller has in hand. It returns at once. What the elements hold must not
// change before the answer; their regions stay registered as long. When a device
// fails in the midst of it the key answers ReasonSource, and memory that the device
// may still write to stays reserved.
func (h *Handle) DepositRefs(sources []RegionBlock, opt DepositOptions) *Op {
	op := newOp(len(sources))
	if err := h.enter(); err != nil {
		return op.fail(reasonOf(err))
	}
	defer h.exit()
	if h.ns.cfg.Kind != Chained && (opt.Parent != nil || opt.Position != 0) || opt.Position < 0 {
		return op.fail(ReasonLayout)
	}
	d := &refDeposit{e: h.e, ns: h.ns, op: op, opt: opt}
	frees := make([]func(), len(sources))
	op.hook = func(i int, _ Result) {
		if frees[i] != nil {
			frees[i]()
		}
	}
	for i, s := range sources {
		why := ReasonOK
		it := refSource{key: slices.Clone(s.Key)}
		switch spans, free, err := d.acquire(s.Ref); {
		case !validKey(s.Key):
			why, frees[i] = ReasonKey, free
		case err != nil || spans[0].Host == nil && h.e.devices == nil:
			why, frees[i] = ReasonLayout, free
		default:
			it.span, frees[i] = spans[0], free
			if err := h.checkPut("deposit", s.Key, it.span.Len); err != nil {
				why = ReasonTooLarge
			}
		}
		d.items = append(d.items, it)
		if why == ReasonOK {
			continue
		}
		op.settle(i, Result{Reason: why})
		if h.ns.cfg.Kind == Chained { // it ends before its first bad block
			for j := i + 1; j < len(sources); j++ {
				op.settle(j, Result{Reason: why})
			}
			break
		}
	}
	ctx, cancel := context.WithCancel(h.e.background)
	op.onAbort(cancel)
	h.e.work.Add(1)
	go func() {
		defer h.e.work.Done()
		defer cancel()
		d.run(ctx)
	}()
	return op
}

type refSource struct {
	key  []byte
	span peer.Span
}

type refDeposit struct {
	e     *Engine
	ns    *namespace
	op    *Op
	opt   DepositOptions
	items []refSource
}

func (d *refDeposit) acquire(ref peer.MemoryRef) ([]peer.Span, func(), error) {
	if d.e.cfg.Regions == nil {
		return nil, nil, ErrLayout
	}
	return d.e.cfg.Regions.Acquire([]peer.MemoryRef{ref})
}

// depositGroup is the most blocks that are copied at a time.
const depositGroup = 64

func (d *refDeposit) run(ctx context.Context) {
	var open []int
	for i := range d.items {
		if !d.op.answered(i) {
			open = append(open, i)
		}
	}
	fail := func(at []int, why Reason) {
		for _, i := range at {
			d.op.settle(i, Result{Reason: why})
		}
	}
	h, err := d.e.newHandle(d.ns)
	if err != nil {
		fail(open, reasonOfOpening(err))
		return
	}
	defer h.Close()
	for len(open) > 0 {
		switch {
		case d.e.closed.Load():
			fail(open, ReasonClosed)
			return
		case ctx.Err() != nil:
			fail(open, ReasonAborted)
			return
		}
		n := min(len(open), depositGroup)
		if d.ns.cfg.Kind == Flat && (d.ns.pinned.Load() || d.e.devices == nil) {
			d.direct(h, open[:n])
		} else if n, err = d.staged(ctx, h, open[:n]); err != nil {
			continue // ctx has ended
		}
		// The end of a chain has been answered, too.
		open = slices.DeleteFunc(open[n:], d.op.answered)
	}
}

// refCopies are copies from a device that are waited for together.
type refCopies struct {
	batch   deviceBatches
	results []cuda.Result // zero where nothing is copied
	pending sync.WaitGroup
}

func newRefCopies(n int) *refCopies {
	return &refCopies{batch: deviceBatches{dir: cuda.ToHost}, results: make([]cuda.Result, n)}
}

func (c *refCopies) add(k int, dst []byte, src peer.Span) {
	c.pending.Add(1)
	c.batch.add([][]byte{dst}, src, func(r cuda.Result) {
		c.results[k] = r
		c.pending.Done()
	})
}

// run returns when all have ended.
func (c *refCopies) run(g *devices) []cuda.Result {
	c.batch.start(g)
	c.pending.Wait()
	return c.results
}

// direct copies blocks into the slots that they will live in.
func (d *refDeposit) direct(h *Handle, at []int) {
	slots := make([]*Reservation, len(at))
	copies := newRefCopies(len(at))
	for k, i := range at {
		it := &d.items[i]
		r, err := h.ReserveDeposit(it.key, it.span.Len)
		if err != nil {
			d.op.settle(i, Result{Reason: reasonOf(err)})
			continue
		}
		slots[k] = r
		if it.span.Host != nil {
			blockcopy.Copy(r.Bytes(), it.span.Host)
			continue
		}
		copies.add(k, r.Bytes(), it.span)
	}
	results := copies.run(d.e.devices)
	for k, i := range at {
		r := slots[k]
		switch {
		case r == nil:
		case results[k].Unsettled: // see V2: the reservation stays
			d.op.settle(i, Result{Reason: ReasonSource})
		case results[k].Err != nil:
			r.Abort()
			d.op.settle(i, Result{Reason: reasonOfCopy(results[k].Err)})
		default:
			d.op.settle(i, d.commit(r))
		}
	}
}

func (d *refDeposit) commit(r *Reservation) (res Result) {
	r.put.NoEvict = d.opt.NoEvict
	p := r.p
	o, err := r.commit()
	if err != nil {
		return Result{Reason: reasonOf(err)}
	}
	r.h.answer(p, &res, &o)
	return res
}

// staged copies blocks to the ring and deposits them from there, as many of at as
// there is room for, which it returns: blocks of a chain, and those whose slots the
// driver does not know. It waits for room for the first one, until ctx ends.
func (d *refDeposit) staged(ctx context.Context, h *Handle, at []int) (n int, err error) {
	g := d.e.devices
	items := make([]Item, 0, len(at))
	var chunks []*deviceChunk
	copies := newRefCopies(len(at))
	for k, i := range at {
		it := &d.items[i]
		if it.span.Host != nil {
			items, chunks = append(items, Item{Key: it.key, Value: it.span.Host}), append(chunks, nil)
			continue
		}
		c, freed := g.tryChunk(it.span.Len)
		for c == nil && k == 0 {
			select {
			case <-freed:
			case <-ctx.Done():
				return 0, ctx.Err()
			}
			c, freed = g.tryChunk(it.span.Len)
		}
		if c == nil {
			break
		}
		items, chunks = append(items, Item{Key: it.key, Value: c.b}), append(chunks, c)
		copies.add(k, c.b, it.span)
	}
	results := copies.run(g)
	good := len(items) // up to the first that was not copied
	for k := range items {
		if results[k].Err != nil {
			good = k
			break
		}
	}
	for k, r := range h.DepositBatch(items[:good], d.opt) {
		d.op.settle(at[k], r)
	}
	for k, c := range chunks {
		if c != nil && !results[k].Unsettled { // see V2
			g.give(c)
		}
	}
	if d.ns.cfg.Kind == Chained && good > 0 {
		d.opt.Parent, d.opt.Position = items[good-1].Key, d.opt.Position+good
	}
	if good == len(items) {
		return good, nil
	}
	why := reasonOfCopy(results[good].Err)
	if d.ns.cfg.Kind != Chained {
		d.op.settle(at[good], Result{Reason: why})
		return good + 1, nil
	}
	for i := at[good]; i < len(d.items); i++ { // the chain ends here
		if !d.op.answered(i) {
			d.op.settle(i, Result{Reason: why})
		}
	}
	return len(at), nil
}
