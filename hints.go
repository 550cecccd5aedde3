package kvcr

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/hints/work"
)

// HintFormat is how a hint is encoded.
type HintFormat uint8

const (
	HintAny     HintFormat = iota // msgpack if the first byte is that of a map, else JSON
	HintJSON                      // one JSON document
	HintMsgpack                   // one msgpack map
)

// SubmitHint takes an envelope of actions from a router, and answers each in order:
// accepted, or rejected with a reason. requestID names the request that carried it,
// empty for none. The only error is that of an input that is no envelope
// (hints.ErrMalformed), or of an engine without Config.Hints (ErrNoHints) or closed.
//
//	kv.fetch       is kept for the request: see FetchOptions.RequestID
//	kv.prefetch    blocks are copied here, in the background
//	kv.move        and removed at their source
//	kv.invalidate  blocks of this engine are removed, before SubmitHint returns
//	kv.evict       those that nobody uses are
//
// What becomes of an accepted action, other than kv.fetch, is told by
// SubscribeOutcomes: of each exactly one hints.StageEnd.
//
// kv.invalidate leaves blocks with a no_evict claim, and those that a move has just
// brought until their source has answered; other readers keep their bytes, as after
// Delete. kv.evict also leaves blocks that somebody has claimed or that are being
// moved. A part of a group takes its group along.
func (e *Engine) SubmitHint(requestID string, body []byte, format HintFormat) ([]hints.Result, error) {
	return e.AppendHint(nil, requestID, body, format)
}

// AppendHint is SubmitHint, appending the answers to dst. It keeps nothing of body.
func (e *Engine) AppendHint(dst []hints.Result, requestID string, body []byte, format HintFormat) ([]hints.Result, error) {
	h, err := e.hintsFor("submit hint")
	if err != nil {
		return dst, err
	}
	switch format {
	case HintJSON:
		return h.dispatcher.AppendJSON(dst, requestID, body)
	case HintMsgpack:
		return h.dispatcher.AppendMsgpack(dst, requestID, body)
	}
	rs, err := h.dispatcher.Submit(requestID, body)
	return append(dst, rs...), err
}

// SubmitHintValue is SubmitHint of a decoded envelope: hints.Envelope, a pointer to
// one, or a tree of maps.
func (e *Engine) SubmitHintValue(requestID string, in any) ([]hints.Result, error) {
	h, err := e.hintsFor("submit hint")
	if err != nil {
		return nil, err
	}
	return h.dispatcher.Submit(requestID, in)
}

// DiscardHint forgets what is kept for a request; call it when the request ends. What
// is under way goes on, and so does what does not depend on the request.
func (e *Engine) DiscardHint(requestID string) {
	if h, err := e.hintsFor("discard hint"); err == nil {
		h.advice.Discard(requestID)
	}
}

// SubscribeOutcomes returns what becomes of accepted actions, beginning with the next
// outcome. To hear all of an action subscribe before it is submitted.
func (e *Engine) SubscribeOutcomes() (*hints.OutcomeReader, error) {
	h, err := e.hintsFor("subscribe")
	if err != nil {
		return nil, err
	}
	return h.outcomes.Subscribe()
}

// SubscribeOutcomesFrom begins with the outcome of that number, 0 or 1 being the
// first; what is not kept any more is a gap.
func (e *Engine) SubscribeOutcomesFrom(seq uint64) (*hints.OutcomeReader, error) {
	h, err := e.hintsFor("subscribe")
	if err != nil {
		return nil, err
	}
	return h.outcomes.SubscribeFrom(seq)
}

// FanOut joins outcomes of the ranks of a worker. Those of this engine are its already;
// hand it those of the others (FanOut.Observe). It ends with the engine.
func (e *Engine) FanOut() (*hints.FanOut, error) {
	h, err := e.hintsFor("fan out")
	if err != nil {
		return nil, err
	}
	return h.fanOut()
}

func (e *Engine) hintsFor(op string) (*hinted, error) {
	switch {
	case e.closed.Load():
		return nil, &OpError{Op: op, Err: ErrClosed}
	case e.hinted == nil:
		return nil, &OpError{Op: op, Err: ErrNoHints, Detail: "set Config.Hints"}
	}
	return e.hinted, nil
}

// HintStats are the counters of an engine with Config.Hints.
type HintStats struct {
	Submitted hints.Counts        // answers to actions, by type and reason
	Advice    hints.AdviceCounts  // what is kept for requests
	Outcomes  hints.OutcomeCounts // by stage
	// Actions is how many kv.prefetch and kv.move have no end now, Blocks of how many
	// blocks, Bytes what of them is on its way.
	Actions, Blocks int
	Bytes           int64
	RequestBlocks   int    // that requests are fetching now
	Joined          uint64 // blocks of requests that somebody was fetching already
	NotRetained     uint64 // blocks that left with their View, as no_retain asks
	AdapterFaults   uint64 // panics of the adapter
	// RefusedDescriptions are those of blocks by peers that the adapter did not take.
	RefusedDescriptions uint64
}

// hinted is what an engine with Config.Hints has.
type hinted struct {
	e          *Engine
	cfg        *Hints
	adapter    hints.KeyAdapter // nil: none
	describer  hints.Describer  // the same; nil: it is none
	dispatcher *hints.Dispatcher
	advice     *hints.Advice
	outcomes   *hints.Outcomes
	tracker    *hints.Tracker
	pacer      *work.Pacer
	work       *work.Executor
	flights    flights

	joined, notRetained, adapterFaults, refusedDescriptions atomic.Uint64

	mu      sync.Mutex // guards what follows
	fan     *hints.FanOut
	fanOver chan struct{} // closed when nothing more is passed on to fan
	closed  bool
}

// openHints makes what Config.Hints asks for. No peers and no callers are there yet.
func (e *Engine) openHints() error {
	cfg := e.cfg.Hints
	if cfg == nil {
		return nil
	}
	h := &hinted{e: e, cfg: cfg, flights: flights{now: map[flightKey]*flight{}}}
	if cfg.Adapter != nil {
		g := guard{&h.adapterFaults}
		h.adapter = &guardedAdapter{cfg.Adapter, g}
		if d, ok := cfg.Adapter.(hints.Describer); ok {
			h.describer = &guardedDescriber{d, g}
		}
	}
	var errs [6]error
	h.dispatcher, errs[0] = hints.NewDispatcher(hints.Config{Limits: cfg.Limits, Log: cfg.Logger})
	h.advice, errs[1] = hints.NewAdvice(cfg.Advice)
	h.outcomes, errs[2] = hints.NewOutcomes(cfg.Outcomes)
	if err := errors.Join(errs[:]...); err != nil {
		return fmt.Errorf("%w: Hints: %w", ErrConfig, err)
	}
	h.tracker, errs[0] = hints.NewTracker(h.outcomes, hints.TrackerConfig{Rank: cfg.Rank, Open: cfg.MaxActions, Hashes: cfg.MaxBlocks})
	h.pacer = work.NewPacer(cfg.MaxInFlight, cfg.YieldAbove, cfg.YieldFor)
	h.work = work.New(work.Config{
		Engine: (*workEngine)(h), Pacer: h.pacer, Sources: cfg.SourcesAtOnce,
		// The tracker is what bounds: it has let go of an action a moment before this.
		MaxActions: 2*cfg.MaxActions + 16, MaxBlocks: 2*cfg.MaxBlocks + 16,
		ResolveTimeout: cfg.ResolveTimeout, JoinTimeout: cfg.TransferTimeout, MoveTimeout: cfg.MoveTimeout,
	})
	errs[1] = hints.Register(h.dispatcher, hints.FetchType(h.advice))
	errs[2] = hints.Register(h.dispatcher, hints.PrefetchType(func(c *hints.Call, t *hints.Transfer) error { return h.transfer(c, t, false) }))
	errs[3] = hints.Register(h.dispatcher, hints.MoveType(func(c *hints.Call, t *hints.Transfer) error { return h.transfer(c, t, true) }))
	errs[4] = hints.Register(h.dispatcher, hints.InvalidateType(func(c *hints.Call, r *hints.Removal) error { return h.remove(c, r, h.invalidate) }))
	errs[5] = hints.Register(h.dispatcher, hints.EvictType(func(c *hints.Call, r *hints.Removal) error { return h.remove(c, r, h.evict) }))
	if err := errors.Join(errs[:]...); err != nil {
		return fmt.Errorf("%w: Hints: %w", ErrConfig, err)
	}
	e.hinted = h
	return nil
}

func (h *hinted) stats() *HintStats {
	if h == nil {
		return nil
	}
	st := &HintStats{
		Submitted: h.dispatcher.Counts(), Advice: h.advice.Counts(), Outcomes: h.outcomes.Counts(),
		Bytes: h.pacer.InFlight(), RequestBlocks: h.pacer.Requests(),
		Joined: h.joined.Load(), NotRetained: h.notRetained.Load(), AdapterFaults: h.adapterFaults.Load(),
		RefusedDescriptions: h.refusedDescriptions.Load(),
	}
	st.Actions, st.Blocks = h.work.Queued()
	return st
}

// transfer takes a kv.prefetch or kv.move.
func (h *hinted) transfer(c *hints.Call, t *hints.Transfer, move bool) error {
	if h.e.node == nil {
		return &hints.Rejection{Reason: hints.HandlerError, Detail: "this engine has no peers: set Config.Peers"}
	}
	a, err := h.tracker.Accept(c, t.Hashes)
	if err != nil {
		return err
	}
	if err := h.work.Submit(work.Action{Source: t.Source, Hashes: a.Hashes(), Move: move, Report: a}); err != nil {
		a.End(work.ReasonClosed)
	}
	return nil
}

// closeWait is for reports of work to be made once all transfers have ended.
const closeWait = time.Second

// stop accepts nothing more.
func (h *hinted) stop() {
	if h != nil {
		h.work.Stop()
	}
}

// close ends every action that is left. The node has closed: no transfer runs.
func (h *hinted) close() {
	if h == nil {
		return
	}
	h.work.Close(closeWait)
	h.tracker.Close(work.ReasonClosed)
	h.outcomes.Close()
	h.mu.Lock()
	h.closed = true
	fan, over := h.fan, h.fanOver
	h.mu.Unlock()
	if fan != nil {
		<-over // it reads to the end of the outcomes
		fan.Close()
	}
}
