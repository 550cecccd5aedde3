package kvcr

import (
	"context"
	"sync"

	"github.com/kvcr-go/kvcr/internal/blockcopy"
	"github.com/kvcr-go/kvcr/shard"
)

// Status is what Query knows about a key.
type Status uint8

const (
	StatusMiss      Status = iota
	StatusHit              // resident: Get will find it
	StatusFetching         // on its way
	StatusFetchable        // a remote source has it
)

func (s Status) String() string {
	return [...]string{"miss", "hit", "fetching", "fetchable"}[s]
}

// Tier says where a block lies, in the ecosystem's words.
type Tier uint8

const (
	TierNone   Tier = iota
	TierDRAM        // our memory
	TierRemote      // another node's memory
)

func (t Tier) String() string { return [...]string{"", "DRAM", "REMOTE_G2"}[t] }

// QueryResult is the answer for one key.
type QueryResult struct {
	Status Status
	Tier   Tier
	Bytes  int64 // of a resident block, all pieces together; 0: not known
}

// Query says what is known of each key. It reserves nothing and does not count
// as an access of the block's policy; a hit may be gone the next moment.
func (h *Handle) Query(keys [][]byte) []QueryResult { return h.QueryFor("", keys) }

// QueryFor is Query for a request: a block that is not here, but that a source named
// by the request's hints is said to have, is fetchable. Nobody is asked.
func (h *Handle) QueryFor(requestID string, keys [][]byte) []QueryResult {
	out := make([]QueryResult, len(keys))
	if h.enter() != nil {
		return out
	}
	defer h.exit()
	var absent [][]byte
	var at []int
	for i, key := range keys {
		if n, ok := h.has(key); ok {
			out[i] = QueryResult{StatusHit, TierDRAM, n}
		} else if h.e.hinted != nil && h.e.hinted.flights.under(h.ns, key) {
			out[i] = QueryResult{Status: StatusFetching, Tier: TierDRAM}
		} else {
			absent, at = append(absent, key), append(at, i)
		}
	}
	fetchable := func(j int) { out[at[j]] = QueryResult{Status: StatusFetchable, Tier: TierRemote} }
	if opt := (FetchOptions{RequestID: requestID}); len(absent) > 0 && opt.asks(h.e) {
		for _, p := range h.e.hinted.plan(requestID, h.ns, absent) {
			for _, j := range p.Keys {
				fetchable(j)
			}
		}
	}
	if len(absent) > 0 && h.e.cfg.Remote != nil {
		for j, ok := range h.e.cfg.Remote.Query(h.ns.cfg.Name, absent) {
			if ok && j < len(at) {
				fetchable(j)
			}
		}
	}
	return out
}

// has looks without a trace in counters or recency, and returns the block's
// bytes.
func (h *Handle) has(key []byte) (n int64, ok bool) {
	p := h.ns.part(h.e.hash(key))
	c, ok := h.peek(p, key)
	if ok {
		n = int64(p.Len(c))
		p.Release(c)
	}
	return n, ok
}

// peek claims the block of a key of p without a trace in counters or recency.
func (h *Handle) peek(p *part, key []byte) (shard.Claim, bool) {
	hash := h.e.hash(key)
	c, ok, sure := p.Peek(hash, key)
	if !sure {
		c, ok = h.ask(p, hash, key)
	}
	return c, ok
}

// Op is a batch under way. Its methods may be called from any goroutine.
type Op struct {
	mu      sync.Mutex    // guards what follows
	done    chan struct{} // made for the first who waits; nil: nobody has
	aborts  []context.CancelFunc
	abort   [1]context.CancelFunc // memory of aborts: there is mostly one
	results []Result
	settled []bool
	left    int
	aborted bool // Abort was called while answers were open
	// hook sees each answer before anybody else does; nil: nothing does. It runs
	// under mu: it must not touch the Op, nor block.
	hook func(i int, r Result)
	// landed hears of each answer, after it; nil: nothing does.
	landed func(i int)

	// Memory for the answers of an Op of one key.
	one    [1]Result
	oneSet [1]bool
}

// ended is what Done returns when nobody has waited.
var ended = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func newOp(n int) *Op {
	o := &Op{left: n}
	if n == 1 {
		o.results, o.settled = o.one[:], o.oneSet[:]
	} else {
		o.results, o.settled = make([]Result, n), make([]bool, n)
	}
	return o
}

// settle gives key i its answer, once, and reports whether this was it.
func (o *Op) settle(i int, r Result) bool {
	o.mu.Lock()
	if o.settled[i] {
		o.mu.Unlock()
		return false
	}
	o.settled[i], o.results[i] = true, r
	if o.hook != nil {
		o.hook(i, r)
	}
	if o.left--; o.left == 0 && o.done != nil {
		close(o.done)
	}
	landed := o.landed
	o.mu.Unlock()
	if landed != nil {
		landed(i)
	}
	return true
}

// Done is closed when every key has its answer.
func (o *Op) Done() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.done == nil {
		if o.left == 0 {
			return ended
		}
		o.done = make(chan struct{})
	}
	return o.done
}

// Wait returns the answers, in order of the keys asked, once all are in. When
// ctx ends first it returns ctx's error and the operation goes on.
func (o *Op) Wait(ctx context.Context) ([]Result, error) {
	if r := o.Results(); r != nil {
		return r, nil
	}
	select {
	case <-o.Done():
		return o.Results(), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Results returns the answers if all are in, else nil.
func (o *Op) Results() []Result {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.left > 0 {
		return nil
	}
	return o.results
}

// Prefix is the number of leading keys that succeeded: what of a chain is
// usable. 0 while the operation runs.
func (o *Op) Prefix() (n int) {
	for _, r := range o.Results() {
		if !r.OK() {
			break
		}
		n++
	}
	return n
}

// Abort tells the source to stop and reports whether any key was still open.
// Open keys end with ReasonAborted; those whose memory the source may still
// write end when it has let go.
func (o *Op) Abort() bool {
	o.mu.Lock()
	open, aborts := o.left > 0, o.aborts
	o.aborted = o.aborted || open
	o.mu.Unlock()
	for _, f := range aborts {
		f()
	}
	return open
}

// onAbort has Abort call f; when it was called already, that is now.
func (o *Op) onAbort(f context.CancelFunc) {
	o.mu.Lock()
	if o.aborts == nil {
		o.aborts = o.abort[:0]
	}
	o.aborts = append(o.aborts, f)
	late := o.aborted
	o.mu.Unlock()
	if late {
		f()
	}
}

// onLanded has f hear of each answer from here on, after it.
func (o *Op) onLanded(f func(i int)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.landed = f
}

// answered reports whether key i has its answer.
func (o *Op) answered(i int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.settled[i]
}

// Fetch makes keys resident and claims them: each successful Result carries a
// View. Resident keys are answered at once; others are brought by the remote
// source, if there is one, within Config.OperationTimeout, or answer
// ReasonMiss.
func (h *Handle) Fetch(keys [][]byte) *Op { return h.FetchFrom(keys, FetchOptions{}) }

// answerLocal settles every key of op that needs no remote source, resident
// ones with what hit says of their claimed block, and returns the others; there is
// none when there is nowhere else to look.
func (h *Handle) answerLocal(op *Op, elsewhere bool, key func(i int) []byte, hit func(i int, v View) Result) (absent []int) {
	for i := range op.results {
		var v View
		if k := key(i); !validKey(k) {
			op.settle(i, Result{Reason: ReasonKey})
		} else if h.find(&v, k) {
			op.settle(i, hit(i, v))
		} else if !elsewhere {
			op.settle(i, Result{Reason: ReasonMiss})
		} else {
			absent = append(absent, i)
		}
	}
	return absent
}

// Target is where Deliver copies one block.
type Target struct {
	Key []byte
	// Dst takes the whole block, all pieces one after the other. It must be as
	// long as the block: another length is ReasonLayout and nothing is written.
	Dst []byte
}

// Deliver copies blocks into the caller's memory. Resident blocks are copied
// before it returns; others are brought by the remote source straight into Dst.
// Dst of a key without an answer must not be touched: when the operation's time
// is up, keys whose source still holds Dst are answered only after the source
// has let go.
func (h *Handle) Deliver(targets []Target) *Op { return h.DeliverFrom(targets, FetchOptions{}) }

// deliver copies a claimed block and releases it. When checksums are asked for
// on copying reads, it verifies what it copied.
func (ns *namespace) deliver(v *View, dst []byte) Result {
	defer v.p.Release(v.c)
	if v.Len() != len(dst) {
		return Result{Reason: ReasonLayout}
	}
	v.copyTo(dst)
	if sum, ok := v.p.Sum(v.c); ok && ns.cfg.VerifyReads && len(dst) > 4<<10 && blockcopy.Sum(dst) != sum {
		return Result{Reason: ReasonChecksum}
	}
	return Result{}
}

func (o *Op) fail(why Reason) *Op {
	for i := range o.results {
		o.settle(i, Result{Reason: why})
	}
	return o
}
