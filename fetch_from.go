package kvcr

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// FetchOptions say where Fetch and Deliver look for what is not resident here.
type FetchOptions struct {
	// Sources are endpoints of peers (tcp://host:port, unix:///path), asked one
	// after the other: the next one for what the one before could not give, in
	// its share of the time. Config.Remote comes last. Without Config.Peers they
	// are not asked.
	Sources []string
	// Move asks the sources to remove what this engine holds after the fetch,
	// also what it held before; see peer.Outcome for how that ends. Deliver always
	// copies.
	Move bool
	// OwnedOnly: only blocks of the sources themselves, none that a framework
	// lends.
	OwnedOnly bool
	// Timeout replaces Config.OperationTimeout.
	Timeout time.Duration
}

// FetchFrom is Fetch with sources named by the caller. A lost source costs the
// keys that no further source has.
func (h *Handle) FetchFrom(keys [][]byte, opt FetchOptions) *Op {
	op := newOp(len(keys))
	if err := h.enter(); err != nil {
		return op.fail(reasonOf(err))
	}
	defer h.exit()
	absent := h.answerLocal(op, opt.elsewhere(h.e), func(i int) []byte { return keys[i] }, func(_ int, v View) Result { return Result{View: v} })
	ask := absent
	if opt.Move {
		ask = nil
		for i, k := range keys {
			if validKey(k) {
				ask = append(ask, i)
			}
		}
	}
	h.fetchFrom(op, keys, ask, absent, nil, opt)
	return op
}

// DeliverFrom is Deliver with sources named by the caller.
func (h *Handle) DeliverFrom(targets []Target, opt FetchOptions) *Op {
	op := newOp(len(targets))
	opt.Move = false
	h.deliverFrom(op, targets, opt)
	return op
}

func (h *Handle) deliverFrom(op *Op, targets []Target, opt FetchOptions) {
	if err := h.enter(); err != nil {
		op.fail(reasonOf(err))
		return
	}
	defer h.exit()
	absent := h.answerLocal(op, opt.elsewhere(h.e), func(i int) []byte { return targets[i].Key }, func(i int, v View) Result { return h.deliver(&v, targets[i].Dst) })
	keys := make([][]byte, len(targets))
	for i := range targets {
		keys[i] = targets[i].Key
	}
	h.fetchFrom(op, keys, absent, absent, targets, opt)
}

func (o *FetchOptions) elsewhere(e *Engine) bool {
	return e.cfg.Remote != nil || e.node != nil && len(o.Sources) > 0
}

// fetchFrom asks for the keys numbered in ask; those in absent have no answer yet.
func (h *Handle) fetchFrom(op *Op, keys [][]byte, ask, absent []int, targets []Target, opt FetchOptions) {
	switch {
	case len(ask) > 0 && h.e.node != nil && len(opt.Sources) > 0:
		newFetching(h.e, h.ns, op, keys, targets, opt).begin(ask)
	case len(absent) > 0:
		h.e.fetchRemote(h.ns, op, keys, absent, targets, opt.Timeout)
	}
}

// fetching is one batch on its way from named sources. What one source does not
// have goes to the next.
type fetching struct {
	e       *Engine
	ns      *namespace
	op      *Op
	keys    [][]byte
	targets []Target
	opt     FetchOptions
	until   peer.Time
	stop    func() bool // the engine's end does not abort it any more

	mu      sync.Mutex
	source  int // that is being asked, of opt.Sources
	running []*asking
	missing []int // keys that the present source did not give
	aborted bool
}

func newFetching(e *Engine, ns *namespace, op *Op, keys [][]byte, targets []Target, opt FetchOptions) *fetching {
	if opt.Timeout <= 0 {
		opt.Timeout = e.cfg.OperationTimeout
	}
	f := &fetching{e: e, ns: ns, op: op, targets: targets, opt: opt, until: e.node.Now() + opt.Timeout}
	// The caller may change its own.
	size := 0
	for _, k := range keys {
		size += len(k)
	}
	f.keys = make([][]byte, len(keys))
	all := make([]byte, 0, size)
	for i, k := range keys {
		from := len(all)
		all = append(all, k...)
		f.keys[i] = all[from:len(all):len(all)]
	}
	return f
}

// begin asks the first source.
func (f *fetching) begin(ask []int) {
	f.e.work.Add(1)
	f.stop = context.AfterFunc(f.e.background, f.abort)
	f.op.onAbort(f.abort)
	f.next(ask)
}

// next asks the present source for keys, in operations of as many as fit.
func (f *fetching) next(ask []int) {
	endpoint := f.opt.Sources[f.source]
	now := f.e.node.Now()
	// An equal share of what is left for each source: one that does not answer
	// leaves time for the others.
	until := now + (f.until-now)/peer.Time(len(f.opt.Sources)-f.source)
	ops := f.divide(ask)
	f.mu.Lock()
	f.running = append(f.running, ops...)
	f.mu.Unlock()
	for _, a := range ops {
		s := peer.Submit{Op: a.op, Namespace: f.ns.cfg.Name, OwnedOnly: f.opt.OwnedOnly, Deliver: f.targets != nil, Deadline: until}
		if f.opt.Move {
			s.Mode = wire.TransferMove
		}
		s.Items = make([]wire.Wanted, len(a.at))
		var dst [][]byte
		for i, at := range a.at {
			s.Items[i].Key = f.keys[at[0]]
			if f.targets != nil {
				dst = append(dst, f.targets[at[0]].Dst)
			}
		}
		if f.targets != nil {
			if why := f.e.records.BindTargets(a.op, dst); why != wire.StatusOK {
				for i := range s.Items {
					a.settle(peer.Settle{Op: a.op, Index: i, Status: why})
				}
				continue
			}
		}
		f.e.node.Submit(endpoint, s, a.settle)
	}
	f.mu.Lock()
	aborted := f.aborted
	f.mu.Unlock()
	if aborted {
		f.abort() // it may have been before the operations were known
	}
}

// asking is one operation of a fetching.
type asking struct {
	f    *fetching
	op   peer.OpID
	at   [][]int // keys of each item: several when a key was asked for twice
	left int     // items without an answer; f.mu
}

// divide makes operations of keys, each with different ones.
func (f *fetching) divide(ask []int) (ops []*asking) {
	for len(ask) > 0 {
		a := &asking{f: f, op: f.e.node.NextOp()}
		if len(ask) == 1 {
			a.at = [][]int{ask}
			ask = nil
		} else {
			ask = a.add(ask)
		}
		a.left = len(a.at)
		ops = append(ops, a)
	}
	return ops
}

// add takes as many keys as fit and returns the others.
func (a *asking) add(ask []int) (rest []int) {
	item := make(map[string]int, min(len(ask), wire.MaxItems))
	a.at = make([][]int, 0, min(len(ask), wire.MaxItems))
	for n, i := range ask {
		key := string(a.f.keys[i])
		if j, ok := item[key]; ok {
			a.at[j] = append(a.at[j], i)
			continue
		}
		if len(a.at) == wire.MaxItems {
			return ask[n:]
		}
		item[key] = len(a.at)
		a.at = append(a.at, ask[n:n+1:n+1])
	}
	return nil
}

// settle takes the answer for one item. It may run on any goroutine of the node's.
func (a *asking) settle(s peer.Settle) {
	f, at := a.f, a.at[s.Index]
	f.mu.Lock()
	again := retried(s.Status) && (f.source+1 < len(f.opt.Sources) || f.e.cfg.Remote != nil)
	if again {
		f.missing = append(f.missing, at...)
	}
	f.mu.Unlock()
	if s.Status == wire.StatusOK {
		f.arrived(at)
	} else if !again {
		f.failed(at, s.Status)
	}
	f.mu.Lock()
	if a.left--; a.left > 0 {
		f.mu.Unlock()
		return
	}
	f.running = slices.DeleteFunc(f.running, func(r *asking) bool { return r == a })
	if f.targets != nil {
		f.e.records.UnbindTargets(a.op)
	}
	if len(f.running) > 0 {
		f.mu.Unlock()
		return
	}
	// Of a move, keys may be here that have their answer.
	missing := slices.DeleteFunc(f.missing, f.op.answered)
	f.missing = nil
	f.source++
	last := f.source >= len(f.opt.Sources)
	aborted := f.aborted
	f.mu.Unlock()
	switch {
	case len(missing) == 0:
		f.end()
	case aborted:
		f.failed(missing, wire.StatusAborted)
		f.end()
	case last:
		f.remote(missing)
	default:
		f.next(missing)
	}
}

// retried reports whether another source may do better.
func retried(s wire.Status) bool {
	switch s {
	case wire.StatusOK, wire.StatusAborted, wire.StatusCapacity, wire.StatusClosed, wire.StatusTooLarge, wire.StatusBadKey:
		return false
	}
	return true
}

// remote hands what no source had to Config.Remote, within the time that is left.
func (f *fetching) remote(missing []int) {
	left := f.until - f.e.node.Now()
	if left <= 0 {
		f.failed(missing, wire.StatusTimeout)
	} else {
		f.e.fetchRemote(f.ns, f.op, f.keys, missing, f.targets, left)
	}
	f.end()
}

func (f *fetching) end() {
	f.stop()
	f.e.work.Done()
}

// arrived answers keys whose block is here, or in the first one's target.
func (f *fetching) arrived(at []int) {
	if f.targets != nil {
		first := f.targets[at[0]].Dst
		for _, i := range at[1:] { // while the first one's memory is ours to read
			r := Result{}
			if copy(f.targets[i].Dst, first) != len(first) || len(f.targets[i].Dst) != len(first) {
				r.Reason = ReasonLayout
			}
			f.op.settle(i, r)
		}
		f.op.settle(at[0], Result{})
		return
	}
	for _, i := range at {
		v, ok := f.ns.claim(f.e, f.keys[i])
		if !ok {
			f.op.settle(i, Result{Reason: ReasonCapacity}) // it had to leave at once
		} else if !f.op.settle(i, Result{View: v}) {
			v.Release()
		}
	}
}

func (f *fetching) failed(at []int, why wire.Status) {
	for _, i := range at {
		f.op.settle(i, Result{Reason: reasonOfStatus(why)})
	}
}

// abort ends what runs at the present source; there is no further one.
func (f *fetching) abort() {
	f.mu.Lock()
	f.aborted = true
	var ops []peer.OpID
	for _, a := range f.running {
		ops = append(ops, a.op)
	}
	endpoint := f.opt.Sources[min(f.source, len(f.opt.Sources)-1)]
	f.mu.Unlock()
	for _, op := range ops {
		f.e.node.Abort(endpoint, op)
	}
}

// claim claims a key's block for a goroutine without a handle.
func (ns *namespace) claim(e *Engine, key []byte) (View, bool) {
	hash := e.hash(key)
	p := ns.part(hash)
	c, ok, sure := p.Peek(hash, key)
	if !sure {
		h, err := e.newHandle(ns)
		if err != nil {
			return View{}, false
		}
		defer h.Close()
		return h.Get(key)
	}
	if !ok {
		return View{}, false
	}
	return View{p: p, c: c, b: p.Bytes(c)}, true
}

// reasonOfStatus says in an engine's words how a transfer of a block ended.
func reasonOfStatus(s wire.Status) Reason {
	switch s {
	case wire.StatusOK:
		return ReasonOK
	case wire.StatusMiss, wire.StatusGeneration:
		return ReasonMiss
	case wire.StatusCapacity, wire.StatusQuarantine:
		return ReasonCapacity
	case wire.StatusTooLarge:
		return ReasonTooLarge
	case wire.StatusBadKey:
		return ReasonKey
	case wire.StatusBadLayout, wire.StatusGroup:
		return ReasonLayout
	case wire.StatusTimeout:
		return ReasonTimeout
	case wire.StatusAborted:
		return ReasonAborted
	case wire.StatusDropped:
		return ReasonDropped
	case wire.StatusClosed:
		return ReasonClosed
	case wire.StatusChecksum:
		return ReasonChecksum
	}
	return ReasonSource
}
