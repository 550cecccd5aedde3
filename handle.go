package kvcr

import (
	"fmt"
	"runtime"
	"sync/atomic"

	"github.com/kvcr-go/kvcr/arena"
	"github.com/kvcr-go/kvcr/internal/own"
	"github.com/kvcr-go/kvcr/shard"
)

// Handle is one goroutine's way into one namespace. Take one for each
// long-lived goroutine and Close it at the end; one that becomes unreachable is
// closed by the garbage collector. A Handle must not be used by two goroutines
// at once.
type Handle struct {
	e  *Engine
	ns *namespace
	hs *handleState
	// puts, outs are scratch for batches, reused from call to call.
	puts []shard.Put
	outs []shard.Outcome

	lastLayout layoutNumber
}

// handleState is the part of a Handle that the engine knows, so that it does
// not keep the Handle itself alive.
type handleState struct {
	e      *Engine
	_      [64]byte
	inside atomic.Uint32 // 1 while a call runs; see Engine.quiesce
	counts handleCounts
	_      [64]byte
	lanes  []*shard.Lane // by shard, made at the first write
	reads  []uint32      // lookups by shard since the last command
	closed bool
}

// handleCounts are written by the handle's goroutine only.
type handleCounts struct {
	hits, misses, sets, deposits, deletes atomic.Uint64
}

func (c *handleCounts) add(o *handleCounts) {
	c.hits.Add(o.hits.Load())
	c.misses.Add(o.misses.Load())
	c.sets.Add(o.sets.Load())
	c.deposits.Add(o.deposits.Load())
	c.deletes.Add(o.deletes.Load())
}

// Handle returns a handle on the first namespace.
func (e *Engine) Handle() (*Handle, error) { return e.newHandle(e.list[0]) }

// HandleIn returns a handle on the namespace named.
func (e *Engine) HandleIn(namespace string) (*Handle, error) {
	ns, err := e.namespace(namespace)
	if err != nil {
		return nil, err
	}
	return e.newHandle(ns)
}

func (e *Engine) newHandle(ns *namespace) (*Handle, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed.Load() {
		return nil, &OpError{Op: "handle", Err: ErrClosed}
	}
	if len(e.handles) >= e.cfg.MaxHandles {
		return nil, &OpError{Op: "handle", Err: ErrHandles, Detail: "close some, or raise Config.MaxHandles"}
	}
	hs := &handleState{e: e, lanes: make([]*shard.Lane, len(ns.parts)), reads: make([]uint32, len(ns.parts))}
	e.handles[hs] = struct{}{}
	h := &Handle{e: e, ns: ns, hs: hs}
	runtime.AddCleanup(h, func(hs *handleState) { hs.close() }, hs)
	return h, nil
}

// Close ends the handle. Its Views stay valid.
func (h *Handle) Close() error {
	if h.hs.inside.Load() != 0 {
		return &OpError{Op: "close handle", Err: ErrConcurrent}
	}
	h.hs.close()
	return nil
}

func (hs *handleState) close() {
	hs.e.mu.Lock()
	defer hs.e.mu.Unlock()
	if hs.closed {
		return
	}
	hs.closeLanes()
	delete(hs.e.handles, hs)
	hs.e.retired.add(&hs.counts)
}

// closeLanes gives back what the handle holds of the shards. e.mu held.
func (hs *handleState) closeLanes() {
	if hs.closed {
		return
	}
	hs.closed = true
	for i, l := range hs.lanes {
		if l != nil {
			l.Close()
			hs.lanes[i] = nil
		}
	}
}

// enter begins a call. Every call that touches the engine's memory runs between
// enter and exit, so that Close knows when it may unmap.
func (h *Handle) enter() error {
	hs := h.hs
	if arena.Checking && !hs.inside.CompareAndSwap(0, 1) {
		return ErrConcurrent
	}
	own.Store32(&hs.inside, 1)
	if h.e.closed.Load() || hs.closed {
		own.Store32(&hs.inside, 0)
		return ErrClosed
	}
	return nil
}

func (h *Handle) exit() { own.Store32(&h.hs.inside, 0) }

// lane returns the way into the i-th shard, made at the first use.
func (h *Handle) lane(p *part) (*shard.Lane, error) {
	i := p.i
	if l := h.hs.lanes[i]; l != nil {
		return l, nil
	}
	l, ok := p.NewLane()
	if !ok {
		return nil, ErrHandles
	}
	h.hs.lanes[i] = l
	return l, nil
}

// takeReads returns the lookups to report to a shard with the next command.
func (h *Handle) takeReads(p *part) uint32 {
	i := p.i
	n := h.hs.reads[i]
	h.hs.reads[i] = 0
	return n
}

// Get claims the block of a key and returns it in place. The View must be
// released.
func (h *Handle) Get(key []byte) (v View, ok bool) {
	if h.enter() != nil {
		return v, false
	}
	ok = h.find(&v, key)
	h.exit()
	return v, ok
}

// find is Get between enter and exit. v, which must be zero, is filled where it is:
// a View that was just written field by field and is then copied, in wider words, costs
// the processor some 3 ns each time.
func (h *Handle) find(v *View, key []byte) (ok bool) {
	hash := h.e.hash(key)
	return h.findIn(v, h.ns.part(hash), hash, key)
}

func (h *Handle) findIn(v *View, p *part, hash uint64, key []byte) (ok bool) {
	h.hs.reads[p.i]++
	c, ok, sure := p.Find(hash, key)
	if !sure {
		c, ok = h.ask(p, hash, key)
	}
	if !ok {
		own.Add64(&h.hs.counts.misses, 1)
		return false
	}
	own.Add64(&h.hs.counts.hits, 1)
	v.p, v.c, v.b = p, c, p.Bytes(c)
	return true
}

// ask is the slow road of find: the probes were disturbed too often.
func (h *Handle) ask(p *part, hash uint64, key []byte) (shard.Claim, bool) {
	l, err := h.lane(p)
	if err != nil {
		return shard.Claim{}, false
	}
	return l.Ask(hash, key, h.takeReads(p))
}

// CopyTo copies the value of key into dst. It returns the value's length; when
// that is more than len(dst) nothing is copied and ok is false. A miss is 0,
// false. When ok is false, dst may have been written to.
func (h *Handle) CopyTo(dst, key []byte) (n int, ok bool) {
	if h.enter() != nil {
		return 0, false
	}
	defer h.exit()
	hash := h.e.hash(key)
	p := h.ns.part(hash)
	if n, ok = p.TryCopy(hash, key, dst); ok {
		h.hs.reads[p.i]++
		own.Add64(&h.hs.counts.hits, 1)
		return n, true
	}
	var v View
	if !h.findIn(&v, p, hash, key) {
		return 0, false
	}
	if n = v.Len(); n <= len(dst) {
		v.copyTo(dst)
	}
	v.p.Release(v.c)
	return n, n <= len(dst)
}

// GetOrCopy is Get for callers who would copy a short value anyway: when the value
// fits dst and can be copied without a claim, it is in dst[:n] and v is zero.
// Otherwise v is the block in place, to be released.
func (h *Handle) GetOrCopy(dst, key []byte) (n int, v View, ok bool) {
	if h.enter() != nil {
		return 0, v, false
	}
	hash := h.e.hash(key)
	p := h.ns.part(hash)
	if n, ok = p.TryCopy(hash, key, dst); ok {
		h.hs.reads[p.i]++
		own.Add64(&h.hs.counts.hits, 1)
	} else {
		ok = h.findIn(&v, p, hash, key)
	}
	h.exit()
	return n, v, ok
}

// AppendTo appends the value of key to dst.
func (h *Handle) AppendTo(dst, key []byte) ([]byte, bool) {
	if h.enter() != nil {
		return dst, false
	}
	defer h.exit()
	var v View
	if !h.find(&v, key) {
		return dst, false
	}
	n := len(dst)
	dst = grow(dst, v.Len())
	v.copyTo(dst[n:])
	v.p.Release(v.c)
	return dst, true
}

// Set stores value under key in place of what was there. When it returns, every
// Get sees it.
func (h *Handle) Set(key, value []byte) error {
	return h.put("set", key, value, true)
}

// Deposit stores value under key unless the key is resident: content follows
// from the key, so the first commit wins and this one succeeds unchanged. A
// resident block of another length is an ErrLayout.
func (h *Handle) Deposit(key, value []byte) error {
	return h.put("deposit", key, value, false)
}

func (h *Handle) put(op string, key, value []byte, set bool) error {
	if err := h.enter(); err != nil {
		return &OpError{Op: op, Err: err}
	}
	defer h.exit()
	if err := h.checkPut(op, key, len(value)); err != nil {
		return err
	}
	hash := h.e.hash(key)
	p := h.ns.part(hash)
	l, err := h.lane(p)
	if err != nil {
		return &OpError{Op: op, Err: err}
	}
	put := shard.Put{Hash: hash, Key: key, Value: value, Shape: shard.Shape{Size: len(value)}, Set: set, Sum: h.ns.sums}
	h.countPut(set)
	return opError(op, l.Put(&put, h.takeReads(p)).Reason)
}

// countPut counts a block that is offered.
func (h *Handle) countPut(set bool) {
	if set {
		own.Add64(&h.hs.counts.sets, 1)
	} else {
		own.Add64(&h.hs.counts.deposits, 1)
	}
}

func validKey(key []byte) bool { return len(key) > 0 && len(key) <= MaxKeyBytes }

// checkPut checks key and size of a block of one piece in the first pool.
func (h *Handle) checkPut(op string, key []byte, size int) error {
	if !validKey(key) {
		return &OpError{Op: op, Err: ErrKey, Value: len(key), Limit: MaxKeyBytes}
	}
	if size < 0 {
		return &OpError{Op: op, Err: ErrLayout, Detail: fmt.Sprintf("%d bytes", size)}
	}
	if limit := h.ns.maxValue(); size > limit {
		return &OpError{Op: op, Err: ErrTooLarge, Value: size, Limit: limit}
	}
	return nil
}

// Delete removes key and reports whether it was there. Views of it stay valid.
// A part of a group takes its group along.
func (h *Handle) Delete(key []byte) (bool, error) {
	return h.delete(key, func(l *shard.Lane, hash uint64, reads uint32) Reason { return l.Delete(hash, key, reads) })
}

// DeleteGeneration is Delete for the block that a View of that generation
// showed: a key written anew since stays, and the answer is false.
func (h *Handle) DeleteGeneration(key []byte, generation uint32) (bool, error) {
	return h.delete(key, func(l *shard.Lane, hash uint64, reads uint32) Reason {
		return l.DeleteGeneration(hash, key, generation, reads)
	})
}

func (h *Handle) delete(key []byte, remove func(l *shard.Lane, hash uint64, reads uint32) Reason) (bool, error) {
	if err := h.enter(); err != nil {
		return false, &OpError{Op: "delete", Err: err}
	}
	defer h.exit()
	if !validKey(key) {
		return false, &OpError{Op: "delete", Err: ErrKey, Value: len(key), Limit: MaxKeyBytes}
	}
	hash := h.e.hash(key)
	p := h.ns.part(hash)
	l, err := h.lane(p)
	if err != nil {
		return false, &OpError{Op: "delete", Err: err}
	}
	own.Add64(&h.hs.counts.deletes, 1)
	switch why := remove(l, hash, h.takeReads(p)); why {
	case ReasonOK:
		return true, nil
	case ReasonMiss:
		return false, nil
	default:
		return false, opError("delete", why)
	}
}

// Has reports whether key is resident, without a claim that outlives the call.
func (h *Handle) Has(key []byte) bool {
	if h.enter() != nil {
		return false
	}
	defer h.exit()
	var v View
	ok := h.find(&v, key)
	if ok {
		v.p.Release(v.c)
	}
	return ok
}
