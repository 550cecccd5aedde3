package kvcr

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/kvcr-go/kvcr/hints"
)

// Hints makes an engine act on what a router says: see Engine.SubmitHint. Every zero
// field means the default its comment names; the zero Hints is valid.
type Hints struct {
	// Adapter knows which keys have which of the routers' hashes. Without one sources
	// named by kv.fetch are asked for all keys if Advice.Opportunistic is set, else
	// for none; kv.invalidate and kv.evict are refused; and peers hear that this
	// engine does not resolve hashes.
	Adapter hints.KeyAdapter
	// Limits bound envelopes and actions.
	Limits hints.Limits
	// Advice shapes what is kept of kv.fetch for requests: bounds and age; whether a
	// second source poisons the request as in the reference (PoisonOnConflict), whether
	// mode move is followed (RequestMoves), and whether sources are asked for keys that
	// the advice does not list (Opportunistic).
	Advice hints.AdviceConfig
	// OwnedOnly: sources that kv.fetch names lend blocks of their own only, none of
	// their frameworks', whatever the hint allows. kv.prefetch and kv.move never take
	// any others.
	OwnedOnly bool
	// Outcomes shapes the stream of outcomes, FanOut what joins those of several ranks.
	Outcomes hints.OutcomesConfig
	FanOut   hints.FanOutConfig
	// Rank is this engine's among those of its worker; outcomes have it.
	Rank int

	// MaxActions bounds the kv.prefetch and kv.move that have not ended, MaxBlocks the
	// hashes of them together, of about 250 bytes each: more is limit_exceeded. Default
	// 256 and 524,288.
	MaxActions, MaxBlocks int
	// MaxInFlight is how many bytes of them may be on their way at a time. Default
	// 64 MiB. One block larger than that goes alone.
	MaxInFlight int64
	// YieldAbove: none of them begins while requests fetch more blocks than that, for
	// YieldFor at most: under requests without end a step is made in each. Default 64
	// blocks, 100 ms.
	YieldAbove int
	YieldFor   time.Duration
	// SourcesAtOnce is how many sources they fetch from at a time. Default 4.
	SourcesAtOnce int
	// ResolveTimeout is how long a source may take to say which keys hashes have.
	// Default OperationTimeout. TransferTimeout is for the transfer of a chunk of
	// blocks, and begins afterwards. Default 5 s, at least OperationTimeout.
	ResolveTimeout, TransferTimeout time.Duration
	// MoveTimeout is how long the source's word is waited for that the copies of moved
	// blocks are gone; then they are said to be kept (no_answer). Default 15 s.
	MoveTimeout time.Duration
	// Logger; default discards.
	Logger *slog.Logger
}

// withDefaults is for an engine with that operation timeout.
func (h *Hints) withDefaults(operation time.Duration) *Hints {
	if h == nil {
		return nil
	}
	c := *h
	def := func(n *int, d int) {
		if *n == 0 {
			*n = d
		}
	}
	wait := func(n *time.Duration, d time.Duration) {
		if *n == 0 {
			*n = d
		}
	}
	def(&c.MaxActions, 256)
	def(&c.MaxBlocks, 1<<19)
	def(&c.YieldAbove, 64)
	def(&c.SourcesAtOnce, 4)
	if c.MaxInFlight == 0 {
		c.MaxInFlight = 64 << 20
	}
	wait(&c.YieldFor, 100*time.Millisecond)
	wait(&c.ResolveTimeout, operation)
	wait(&c.TransferTimeout, max(5*time.Second, operation))
	wait(&c.MoveTimeout, 15*time.Second)
	return &c
}

// maxQueuedBlocks is the most that Hints.MaxBlocks may be: some gigabytes.
const maxQueuedBlocks = 1 << 24

// validate reports every problem. What the parts of package hints check themselves is
// found by making them.
func (h *Hints) validate(bad func(field string, value any, limit, fix string)) error {
	if h.Rank < 0 || h.Rank > math.MaxInt32 {
		bad("Hints.Rank", h.Rank, "0 to 2147483647", "number the ranks of a worker from 0")
	}
	if h.MaxActions < 1 || h.MaxActions > 1<<16 {
		bad("Hints.MaxActions", h.MaxActions, "1 to 65536", "leave it 0 for 256")
	}
	if h.MaxBlocks < 1 || h.MaxBlocks > maxQueuedBlocks {
		bad("Hints.MaxBlocks", h.MaxBlocks, fmt.Sprintf("1 to %d", maxQueuedBlocks), "leave it 0 for 524,288")
	}
	if h.MaxInFlight < 1 {
		bad("Hints.MaxInFlight", h.MaxInFlight, "at least 1 byte", "leave it 0 for 64 MiB")
	}
	if h.YieldAbove < 1 {
		bad("Hints.YieldAbove", h.YieldAbove, "at least 1 block", "leave it 0 for 64")
	}
	if h.SourcesAtOnce < 1 || h.SourcesAtOnce > 256 {
		bad("Hints.SourcesAtOnce", h.SourcesAtOnce, "1 to 256", "leave it 0 for 4")
	}
	for _, d := range []struct {
		name string
		d    time.Duration
	}{{"YieldFor", h.YieldFor}, {"ResolveTimeout", h.ResolveTimeout}, {"TransferTimeout", h.TransferTimeout}, {"MoveTimeout", h.MoveTimeout}} {
		if d.d < 0 {
			bad("Hints."+d.name, d.d, "positive", "leave it 0 for the default")
		}
	}
	var errs []error
	part := func(name string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: Hints.%s: %w", ErrConfig, name, err))
		}
	}
	_, err := hints.NewDispatcher(hints.Config{Limits: h.Limits})
	part("Limits", err)
	_, err = hints.NewAdvice(h.Advice)
	part("Advice", err)
	_, err = hints.NewOutcomes(h.Outcomes)
	part("Outcomes", err)
	_, err = hints.NewFanOut(h.FanOut)
	part("FanOut", err)
	return errors.Join(errs...)
}
