package kvcr

import (
	"slices"
	"sync"
	"sync/atomic"
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
	// Move asks the sources to remove what this engine holds after the fetch. What
	// it held before goes from them only when the checksums say that it is the same
	// block: without checksums it stays on both sides. peer.Outcome says how each
	// ended. Deliver always copies.
	Move bool
	// OwnedOnly: only blocks of the sources themselves, none that a framework
	// lends.
	OwnedOnly bool
	// RequestID names the request that this is for. What Engine.SubmitHint has been
	// told of it is followed: the sources that kv.fetch named are asked for the blocks
	// that it lists, after Sources and before Config.Remote. Needs Config.Hints.
	RequestID string
	// Generations, one for each key, are those of the blocks that are meant, as the
	// first of Sources has told them (peer.Node.Resolve): where it has another block
	// under the key by now, the key is a miss there, and nothing is moved. 0 is any,
	// and so is an empty list; a list of another length fails all keys with
	// ReasonKey. Other sources number their own blocks, so that they, and
	// Config.Remote, are asked for keys whatever their generation; and what is
	// resident here is not compared.
	Generations []uint32
	// Timeout replaces Config.OperationTimeout.
	Timeout time.Duration
}

// fits reports whether the options are for n keys.
func (o *FetchOptions) fits(n int) bool { return len(o.Generations) == 0 || len(o.Generations) == n }

// only is the options for some of the keys.
func (o FetchOptions) only(at []int) FetchOptions {
	if len(o.Generations) > 0 {
		some := make([]uint32, len(at))
		for k, i := range at {
			some[k] = o.Generations[i]
		}
		o.Generations = some
	}
	return o
}

// FetchFrom is Fetch with sources named by the caller. A lost source costs the
// keys that no further source has.
func (h *Handle) FetchFrom(keys [][]byte, opt FetchOptions) *Op {
	op := newOp(len(keys))
	if !opt.fits(len(keys)) {
		return op.fail(ReasonKey)
	}
	if err := h.enter(); err != nil {
		return op.fail(reasonOf(err))
	}
	defer h.exit()
	absent := h.answerLocal(op, opt.elsewhere(h.e), func(i int) []byte { return keys[i] }, func(_ int, v View) Result { return Result{View: v} })
	h.fetchFrom(op, keys, absent, nil, opt)
	return op
}

// DeliverFrom is Deliver with sources named by the caller. A block that came is
// compared with the source's checksum where there is one; Dst of a key that failed
// may have been written to.
//
// One case ends the wait, and not the danger: a source that writes Dst by remote
// access (route ucx) and has proved neither that it has stopped nor its death some
// seconds (Timing.Allowance) after the time was up. Such a key answers ReasonTimeout,
// ReasonAborted or ReasonSource, and Peers.OnTrouble is told: Dst must not be touched
// before it is told that this is over.
func (h *Handle) DeliverFrom(targets []Target, opt FetchOptions) *Op {
	op := newOp(len(targets))
	if !opt.fits(len(targets)) {
		return op.fail(ReasonKey)
	}
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
	absent := h.answerLocal(op, opt.elsewhere(h.e), func(i int) []byte { return targets[i].Key }, func(i int, v View) Result { return h.ns.deliver(&v, targets[i].Dst) })
	keys := make([][]byte, len(targets))
	for i := range targets {
		keys[i] = targets[i].Key
	}
	h.fetchFrom(op, keys, absent, targets, opt)
}

func (o *FetchOptions) elsewhere(e *Engine) bool {
	return e.cfg.Remote != nil || o.asks(e)
}

// asks reports whether there may be sources to ask.
func (o *FetchOptions) asks(e *Engine) bool {
	return e.node != nil && (len(o.Sources) > 0 || o.RequestID != "" && e.hinted != nil)
}

// fetchFrom brings what is absent, and has moves take along what is not.
func (h *Handle) fetchFrom(op *Op, keys [][]byte, absent []int, targets []Target, opt FetchOptions) {
	if h.e.hinted != nil && h.e.node != nil {
		absent = h.e.hinted.join(h.ns, op, keys, absent, targets, opt)
	}
	h.e.fetchAbsent(h.ns, op, keys, absent, targets, opt)
}

// fetchAbsent is fetchFrom, without a look at what others fetch.
func (e *Engine) fetchAbsent(ns *namespace, op *Op, keys [][]byte, absent []int, targets []Target, opt FetchOptions) {
	if opt.asks(e) && (len(absent) > 0 || targets == nil) {
		f := newFetching(e, ns, op, keys, targets, opt)
		if f.plan(absent) {
			f.begin()
			return
		}
		f.aborted.Store(true)
	}
	switch {
	case len(absent) == 0:
	case e.cfg.Remote != nil:
		e.fetchRemote(ns, op, keys, absent, targets, opt.Timeout)
	default:
		for _, i := range absent {
			op.settle(i, Result{Reason: ReasonMiss})
		}
	}
}

// fetching is one batch on its way from sources. What one source does not have, or
// is not to be asked for, goes to the next.
//
// Invariant: keys are running, or waiting, or in one of the lists, or answered. One
// goroutine at a time drives, and leaves only while operations run: their end
// drives again.
type fetching struct {
	e       *Engine
	ns      *namespace
	op      *Op
	keys    [][]byte
	targets []Target
	opt     FetchOptions
	spans   []peer.Span // not nil: where the targets lie, on devices
	sources []fetchSource
	work    *independent // not nil: no request waits for this
	until   peer.Time
	aborted atomic.Bool // nothing is begun any more; also when all is over

	mu      sync.Mutex
	driving bool
	source  int       // that is being asked, of sources
	share   peer.Time // until when
	cut     bool      // the present round has several operations
	round   int       // how many keys it has
	waiting []*asking
	running []peer.OpID
	again   []undone // keys that the same source may give when they are asked for anew
	missing []int    // keys that are not here, and that no source gives now
	here    []int    // keys that were here from the start; sources of moves are told
	refused []int    // keys with spans that can come by another way only
}

// undone are keys without a block, and why.
type undone struct {
	at  []int
	why wire.Status
}

// maxRunning bounds the operations of one batch that run at a time, so that a large
// one does not take all that the source may lend (its MaxTransferBlocks).
const maxRunning = 16

// endless is a time that nobody waits for and that can be added to.
const endless = 1 << 61

func newFetching(e *Engine, ns *namespace, op *Op, keys [][]byte, targets []Target, opt FetchOptions) *fetching {
	if opt.Timeout <= 0 {
		opt.Timeout = e.cfg.OperationTimeout
	}
	f := &fetching{e: e, ns: ns, op: op, targets: targets, source: -1}
	f.until = e.node.Now() + min(opt.Timeout, endless)
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
	f.opt = opt
	f.opt.Generations = slices.Clone(opt.Generations)
	f.named()
	op.onAbort(f.cancel)
	return f
}

// begin asks the first source. There must be one.
func (f *fetching) begin() {
	f.e.work.Add(1)
	f.drive()
}

// cancel has what is under way aborted, by another goroutine: the caller may have locks.
func (f *fetching) cancel() {
	if !f.aborted.Swap(true) {
		go f.abort()
	}
}

// over reports whether nothing is to be begun any more. The end of the engine needs no
// cancel: the node aborts what is under way.
func (f *fetching) over() bool { return f.aborted.Load() || f.e.closed.Load() }

// planLocked begins a round: it cuts keys into operations for the present source.
func (f *fetching) planLocked(ask []int) {
	// Parts of a group are asked for one after the other, and arrive together only
	// if they are of one operation: a later round does not cut where an earlier
	// one has.
	slices.Sort(ask)
	type form struct {
		key        string
		generation uint32
		size       int
		only       int // 1 + number of a key that shares its block with no other
	}
	if len(ask) == 1 { // most often, and nothing can be twice
		a := &asking{f: f, from: &f.sources[f.source], at: [][]int{ask}, items: []wire.Wanted{f.wantedLocked(ask[0])}, left: 1}
		f.waiting = append(f.waiting, a)
		f.round, f.cut, f.again = 1, len(f.waiting) > 1, nil
		return
	}
	items := make(map[form]int, len(ask)) // places in all
	all := make([][]int, 0, len(ask))
	forms := make(map[string]int, len(ask))
	var passes [][]int // places in all; no key is twice in a pass
	for k, i := range ask {
		id := form{key: string(f.keys[i]), generation: f.generationLocked(i)}
		if f.targets != nil {
			id.size = len(f.targets[i].Dst)
		}
		if f.spans != nil { // nobody here copies from one to the other
			id.only = i + 1
		}
		if at, ok := items[id]; ok {
			all[at] = append(all[at], i)
			continue
		}
		pass := forms[id.key]
		if forms[id.key]++; pass == len(passes) {
			passes = append(passes, nil)
		}
		items[id] = len(all)
		passes[pass] = append(passes[pass], len(all))
		all = append(all, ask[k:k+1:k+1])
	}
	most := min(wire.MaxItems, f.e.cfg.MaxTransferBlocks)
	for _, pass := range passes {
		for len(pass) > 0 {
			n := min(most, len(pass))
			a := &asking{f: f, from: &f.sources[f.source], at: make([][]int, 0, n), items: make([]wire.Wanted, 0, n)}
			for len(pass) > 0 && len(a.at) < most && !(len(a.at) > 0 && len(a.at)+runOf(all, pass, most) > most && f.again != nil) {
				for n := runOf(all, pass, most-len(a.at)); n > 0; n-- {
					at := all[pass[0]]
					a.at, a.items = append(a.at, at), append(a.items, f.wantedLocked(at[0]))
					pass = pass[1:]
				}
			}
			a.left = len(a.at)
			f.waiting = append(f.waiting, a)
		}
	}
	f.round, f.cut, f.again = len(ask), len(f.waiting) > 1, nil
}

// wantedLocked is what the present source is asked for of key i.
func (f *fetching) wantedLocked(i int) wire.Wanted {
	return wire.Wanted{Key: f.keys[i], Generation: f.generationLocked(i)}
}

// generationLocked is the generation that the present source is asked for.
func (f *fetching) generationLocked(i int) uint32 {
	if f.source > 0 || len(f.opt.Generations) == 0 || len(f.opt.Sources) == 0 {
		return 0
	}
	return f.opt.Generations[i]
}

// runOf is how many of the first items of a pass are for neighbours in the batch, up to
// most.
func runOf(all [][]int, pass []int, most int) int {
	n := 1
	for n < min(len(pass), most) && all[pass[n]][0] == all[pass[n-1]][0]+1 {
		n++
	}
	return n
}

// drive begins what may begin, and goes on to the next source, until operations run
// that have to end first.
func (f *fetching) drive() {
	f.mu.Lock()
	if f.driving {
		f.mu.Unlock()
		return
	}
	f.driving = true
	most := max(1, min(maxRunning, f.e.cfg.MaxTransferBlocks/wire.MaxItems/2))
	for {
		if f.over() {
			for _, a := range f.waiting {
				for _, at := range a.at {
					f.failed(at, wire.StatusAborted)
				}
			}
			f.waiting = nil
		}
		switch {
		case len(f.waiting) > 0 && len(f.running) < most:
			a := f.waiting[0]
			f.waiting = f.waiting[1:]
			a.op = f.e.node.NextOp()
			f.running = append(f.running, a.op)
			until := f.share
			f.mu.Unlock()
			a.begin(until)
			if f.over() {
				f.abort() // it may have been before the operation was known
			}
			f.mu.Lock()
		case len(f.running) > 0:
			f.driving = false
			f.mu.Unlock()
			return
		case len(f.again) > 0:
			f.repeatLocked()
		default:
			f.reportLocked()
			if ask := f.nextLocked(); len(ask) > 0 {
				f.planLocked(ask)
				continue
			}
			missing := f.missing
			f.mu.Unlock()
			f.end(missing)
			return
		}
	}
}

// repeatLocked asks the same source once more, as long as that helps.
func (f *fetching) repeatLocked() {
	n := 0
	for _, u := range f.again {
		n += len(u.at)
	}
	if n < f.round && !f.over() {
		var ask []int
		for _, u := range f.again {
			ask = append(ask, u.at...)
		}
		f.planLocked(ask)
		return
	}
	for _, u := range f.again {
		f.loseLocked(u.at, u.why)
	}
	f.again = nil
}

// loseLocked leaves keys to the next source, or answers them.
func (f *fetching) loseLocked(at []int, why wire.Status) {
	if retried(why) && f.furtherLocked(at[0]) {
		f.missing = append(f.missing, at...)
	} else {
		f.failed(at, why)
	}
}

// asking is one operation of a fetching.
type asking struct {
	f     *fetching
	op    peer.OpID
	from  *fetchSource
	at    [][]int // keys of each item: several when a key was asked for twice
	items []wire.Wanted
	left  int // items without an answer; f.mu
}

// begin submits the operation.
func (a *asking) begin(until peer.Time) {
	f := a.f
	s := peer.Submit{Op: a.op, Namespace: f.ns.cfg.Name, OwnedOnly: a.from.ownedOnly, Deliver: f.targets != nil, Devices: f.spans != nil, Items: a.items, Deadline: until}
	if a.from.move {
		s.Mode = wire.TransferMove
		if f.work != nil {
			f.e.moveEnds.add(a)
		}
	}
	var dst []peer.Span
	for _, at := range a.at {
		if f.spans != nil {
			dst = append(dst, f.spans[at[0]])
		} else if f.targets != nil {
			dst = append(dst, hostSpan(f.targets[at[0]].Dst))
		}
	}
	if f.targets != nil {
		if why := f.e.records.bindSpans(a.op, dst); why != wire.StatusOK {
			for i := range s.Items {
				a.settle(peer.Settle{Op: a.op, Index: i, Status: why})
			}
			return
		}
	}
	if a.from.drop {
		f.e.records.watchBrought(a.op)
	}
	f.e.node.Submit(a.from.endpoint, s, a.settle)
}

// settle takes the answer for one item. It may run on any goroutine of the node's.
func (a *asking) settle(s peer.Settle) {
	f, at := a.f, a.at[s.Index]
	f.e.moveEnds.answered(a.op, s.Index, s.Status)
	if s.Status == wire.StatusOK {
		f.arrived(at, s.Existing, a.from.drop && f.e.records.hasBrought(a.op, s.Index))
	}
	f.mu.Lock()
	why := s.Status
	switch { // the source has seen first that time is up
	case why == wire.StatusUnknownOp && f.over():
		why = wire.StatusAborted
	case why == wire.StatusAborted && !f.over(), why == wire.StatusUnknownOp && f.e.node.Now() >= f.share:
		why = wire.StatusTimeout
	}
	a.from.note(at, why)
	switch {
	case why == wire.StatusOK:
	case s.Written: // another source's bytes would not be safe there
		f.settle(at, Result{Reason: f.reason(why), why: why, written: true})
	case why == wire.StatusUnsupported && f.spans != nil:
		f.refuseLocked(at, why)
	case why == wire.StatusBusy, why == wire.StatusGroup && f.cut:
		f.again = append(f.again, undone{at, why})
	default:
		f.loseLocked(at, why)
	}
	if a.left--; a.left > 0 {
		f.mu.Unlock()
		return
	}
	f.running = slices.DeleteFunc(f.running, func(op peer.OpID) bool { return op == a.op })
	f.mu.Unlock()
	if a.from.drop {
		f.e.records.unwatchBrought(a.op)
	}
	if f.targets != nil {
		f.e.records.UnbindTargets(a.op)
	}
	f.drive()
}

// refuseLocked answers keys that could come to memory of ours, and are asked for
// again so.
func (f *fetching) refuseLocked(at []int, why wire.Status) {
	f.refused = append(f.refused, at...)
	f.failed(at, why)
}

// retried reports whether another source may do better.
func retried(s wire.Status) bool {
	switch s {
	case wire.StatusOK, wire.StatusAborted, wire.StatusCapacity, wire.StatusClosed, wire.StatusTooLarge, wire.StatusBadKey:
		return false
	}
	return true
}

// end hands what no source had to Config.Remote, within the time that is left.
func (f *fetching) end(missing []int) {
	left := f.until - f.e.node.Now()
	switch {
	case len(missing) == 0:
	case f.spans != nil && f.remote(): // it has to bring them by another way
		f.mu.Lock()
		f.refuseLocked(missing, wire.StatusMiss)
		f.mu.Unlock()
	case f.over():
		f.failed(missing, wire.StatusAborted)
	case left <= 0:
		f.failed(missing, wire.StatusTimeout)
	case !f.remote(): // nobody was to be asked for them
		f.failed(missing, wire.StatusMiss)
	default:
		f.e.fetchRemote(f.ns, f.op, f.keys, missing, f.targets, left)
	}
	f.aborted.Store(true)
	f.e.work.Done()
}

// arrived answers keys whose block is here, or in the first one's target; the others
// are as long. It was here before (existing), or is not to be kept (drop).
func (f *fetching) arrived(at []int, existing, drop bool) {
	if f.targets != nil {
		for _, i := range at[1:] { // while the first one's memory is ours to read
			copy(f.targets[i].Dst, f.targets[at[0]].Dst)
			f.op.settle(i, Result{})
		}
		f.op.settle(at[0], Result{})
		return
	}
	for _, i := range at {
		v, ok := f.ns.claim(f.e, f.keys[i])
		switch {
		case !ok: // it had to leave at once
			f.op.settle(i, Result{Reason: ReasonCapacity, why: wire.StatusCapacity})
		case f.work != nil:
			if existing && f.e.moves.Passing() > 0 { // it came for a request only
				f.e.records.keep(f.ns.cfg.Name, f.keys[i])
			}
			v.Release()
			f.op.settle(i, Result{Existing: existing})
		default:
			v.drop = drop
			if !f.op.settle(i, Result{View: v}) {
				v.Release()
			}
		}
	}
}

func (f *fetching) failed(at []int, why wire.Status) {
	f.settle(at, Result{Reason: f.reason(why), why: why})
}

func (f *fetching) settle(at []int, r Result) {
	for _, i := range at {
		f.op.settle(i, r)
	}
}

func (f *fetching) reason(why wire.Status) Reason {
	if why == wire.StatusAborted && f.e.closed.Load() {
		return ReasonClosed // not the caller has aborted
	}
	return reasonOfStatus(why)
}

// abort ends what runs at the present source.
func (f *fetching) abort() {
	f.mu.Lock()
	ops := slices.Clone(f.running)
	if len(ops) == 0 {
		f.mu.Unlock()
		return
	}
	endpoint := f.sources[f.source].endpoint
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
