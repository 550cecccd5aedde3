package kvcr

import (
	"context"
	"slices"
	"time"

	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/ucx/cuda"
)

// RegionBlock is a block and its place among Config.Regions: an element as long as
// the whole block, all pieces one after the other, in host memory or, with
// Config.CUDA, on a GPU. A region that is not there, and an element of another
// length, are ReasonLayout.
type RegionBlock struct {
	Key []byte
	Ref peer.MemoryRef
}

// DeliverRefs is DeliverFrom into regions, which stay registered until the keys are
// answered. It returns at once where devices are concerned: resident blocks go from
// their slots to GPUs without the processor. Others come straight to the GPU where
// UCX reaches it (Peers.Direct) and the source is fetched from over route ucx; or are
// brought to pinned memory, as deliveries to the host are, and copied from there one
// by one as they arrive.
//
// What DeliverFrom says of Dst goes for elements of regions: after ReasonTimeout,
// ReasonAborted or ReasonSource one may still be written to. Regions.Deregister
// refuses as long as UCX may do so.
func (h *Handle) DeliverRefs(blocks []RegionBlock, opt FetchOptions) *Op {
	op := newOp(len(blocks))
	if !opt.fits(len(blocks)) {
		return op.fail(ReasonKey)
	}
	if err := h.enter(); err != nil {
		return op.fail(reasonOf(err))
	}
	defer h.exit()
	opt.Move = false
	d := &refDelivery{h: h, op: op, targets: make([]Target, len(blocks)), spans: make([]peer.Span, len(blocks))}
	frees := make([]func(), len(blocks))
	op.hook = func(i int, _ Result) {
		if frees[i] != nil {
			frees[i]()
		}
	}
	keys := make([][]byte, len(blocks))
	var hosts, devices []int // absent
	for i := range d.targets {
		t := &d.targets[i]
		t.Key, keys[i] = blocks[i].Key, blocks[i].Key
		if !validKey(t.Key) {
			op.settle(i, Result{Reason: ReasonKey})
			continue
		}
		var ok bool
		if frees[i], ok = d.resolve(i, blocks[i].Ref); !ok {
			op.settle(i, Result{Reason: ReasonLayout})
			continue
		}
		device := d.spans[i].Len > 0
		var v View
		ok = h.find(&v, t.Key)
		switch {
		case ok && !device:
			op.settle(i, h.ns.deliver(&v, t.Dst))
		case ok && h.ns.pinned.Load():
			d.resident(i, v)
		case device && (ok || opt.elsewhere(h.e)):
			devices = append(devices, i)
			v.Release() // if it is one: found again by who has a place for it
		case opt.elsewhere(h.e):
			hosts = append(hosts, i)
		default:
			op.settle(i, Result{Reason: ReasonMiss})
		}
	}
	if h.e.devices != nil {
		d.batch.start(h.e.devices)
	}
	h.fetchFrom(op, keys, hosts, d.targets, opt)
	if len(devices) > 0 {
		h.e.devices.fetch(h.ns, d, devices, opt)
	}
	return op
}

// refDelivery is a delivery to regions.
type refDelivery struct {
	h       *Handle
	op      *Op
	targets []Target    // those in host memory have their Dst
	spans   []peer.Span // of those on devices; zero for others
	batch   deviceBatches
}

// resolve finds the memory of a block.
func (d *refDelivery) resolve(i int, ref peer.MemoryRef) (free func(), ok bool) {
	e := d.h.e
	if e.cfg.Regions == nil {
		return nil, false
	}
	s, free, err := e.cfg.Regions.Acquire([]peer.MemoryRef{ref})
	if err != nil || s[0].Host == nil && e.devices == nil {
		return free, false
	}
	if s[0].Host != nil {
		d.targets[i].Dst = s[0].Host
	} else {
		d.spans[i] = s[0]
	}
	return free, true
}

// resident adds a claimed block to the batch.
func (d *refDelivery) resident(i int, v View) {
	if v.Len() != d.spans[i].Len {
		v.Release()
		d.op.settle(i, Result{Reason: ReasonLayout})
		return
	}
	if d.h.ns.cfg.VerifyReads && v.Len() > 4<<10 && !v.Verify() {
		v.Release()
		d.op.settle(i, Result{Reason: ReasonChecksum})
		return
	}
	pieces := make([][]byte, v.Pieces())
	for k := range pieces {
		pieces[k], _ = v.Piece(k)
	}
	if len(pieces) == 1 {
		pieces[0] = v.Bytes()
	}
	d.batch.dir = cuda.ToDevice
	d.batch.add(pieces, d.spans[i], func(r cuda.Result) {
		v.Release()
		d.op.settle(i, Result{Reason: reasonOfCopy(r.Err)})
	})
}

// fetch brings blocks to devices by way of the ring.
func (g *devices) fetch(ns *namespace, d *refDelivery, absent []int, opt FetchOptions) {
	timeout := opt.Timeout
	if timeout <= 0 {
		timeout = g.e.cfg.OperationTimeout
	}
	opt.Generations = slices.Clone(opt.Generations)
	f := &deviceFetch{g: g, d: d, opt: opt, until: time.Now().Add(timeout), keys: make([][]byte, len(d.targets))}
	for _, i := range absent { // the caller may change its own
		f.keys[i] = append([]byte(nil), d.targets[i].Key...)
	}
	ctx, cancel := context.WithDeadline(g.e.background, f.until)
	d.op.onAbort(cancel)
	g.e.work.Add(1)
	go func() {
		defer g.e.work.Done()
		defer cancel()
		h, err := g.e.newHandle(ns)
		if err != nil {
			f.fail(absent, reasonOfOpening(err))
			return
		}
		defer h.Close()
		rest, wait := f.direct(ctx, h, absent)
		f.run(ctx, h, rest)
		f.run(ctx, h, wait())
	}()
}

// deviceFetch is what is absent of a delivery to devices.
type deviceFetch struct {
	g     *devices
	d     *refDelivery
	opt   FetchOptions
	until time.Time
	keys  [][]byte
	inner []*Op
}

func (f *deviceFetch) fail(at []int, why Reason) {
	for _, i := range at {
		f.d.op.settle(i, Result{Reason: why})
	}
}

// run asks for as many blocks at a time as the ring has room for, and for more when
// some have been copied.
func (f *deviceFetch) run(ctx context.Context, h *Handle, rest []int) {
	var group []int
	var chunks []*deviceChunk
	flush := func() {
		if len(group) > 0 {
			f.ask(h, group, chunks)
		}
		group, chunks = nil, nil
	}
	for len(rest) > 0 && ctx.Err() == nil {
		n := f.d.spans[rest[0]].Len
		if n > len(f.g.ring) {
			f.fail(rest[:1], ReasonTooLarge)
			rest = rest[1:]
			continue
		}
		c, freed := f.g.tryChunk(n)
		if c == nil {
			flush()
			select {
			case <-freed:
			case <-ctx.Done():
			}
			continue
		}
		group, chunks, rest = append(group, rest[0]), append(chunks, c), rest[1:]
		if len(group) == deviceGroup {
			flush()
		}
	}
	flush()
	if ctx.Err() != nil {
		f.stop(ctx, rest)
	}
	for _, op := range f.inner {
		select {
		case <-op.Done():
		case <-ctx.Done():
			f.stop(ctx, nil)
			<-op.Done() // within the time that a delivery has for its end
		}
	}
}

// deviceGroup is the most blocks asked for at once.
const deviceGroup = 32

// stop ends what has not been asked for, and aborts what has.
func (f *deviceFetch) stop(ctx context.Context, rest []int) {
	why := f.why(ctx)
	f.fail(rest, why)
	if why == ReasonAborted {
		for _, op := range f.inner {
			op.Abort()
		}
	}
}

// why says what ctx has ended for.
func (f *deviceFetch) why(ctx context.Context) Reason {
	switch {
	case f.g.e.closed.Load():
		return ReasonClosed
	case ctx.Err() == context.DeadlineExceeded:
		return ReasonTimeout
	}
	return ReasonAborted
}

func (f *deviceFetch) left() time.Duration { return max(time.Until(f.until), time.Millisecond) }

// ask has a group of blocks delivered to chunks, and copied from there as each
// arrives.
func (f *deviceFetch) ask(h *Handle, group []int, chunks []*deviceChunk) {
	op := newOp(len(group))
	targets := make([]Target, len(group))
	for k, i := range group {
		targets[k] = Target{Key: f.keys[i], Dst: chunks[k].b}
	}
	op.hook = func(k int, r Result) {
		i, c := group[k], chunks[k]
		if !r.OK() {
			if !r.written { // else nobody else may have it, as long as the route lives
				f.g.give(c)
			}
			f.d.op.settle(i, r)
			return
		}
		one := deviceBatches{dir: cuda.ToDevice}
		one.add([][]byte{c.b}, f.d.spans[i], func(r cuda.Result) {
			f.g.give(c)
			f.d.op.settle(i, Result{Reason: reasonOfCopy(r.Err)})
		})
		one.start(f.g)
	}
	opt := f.opt.only(group)
	opt.Timeout = f.left()
	f.inner = append(f.inner, op)
	h.deliverFrom(op, targets, opt)
}

// reasonOfOpening says why there is no handle.
func reasonOfOpening(err error) Reason {
	if why := reasonOf(err); why == ReasonClosed {
		return why
	}
	return ReasonCapacity // of handles
}
