package hints

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
)

// OutcomesConfig shapes the stream of outcomes. A zero field means the default.
type OutcomesConfig struct {
	// Kept is how many outcomes can be read, also by those who come later. Default
	// 4096, at most 16 Mi.
	Kept int
	// KeptHashes is how many hashes those may have together; beyond that the oldest go,
	// but the newest always stays. Default 1 Mi.
	KeptHashes int
	// Subscriptions is how many may be open at a time. Default 256.
	Subscriptions int
}

// Outcomes numbers outcomes and keeps the newest ones for its readers. A reader is a
// place in the one stream, so that a slow one costs no memory: it misses what is no
// longer kept, and is told how much. Its methods are for any goroutine.
type Outcomes struct {
	cfg OutcomesConfig

	mu      sync.Mutex
	ring    []Outcome // the outcome numbered n lies at n modulo its length
	oldest  uint64    // number of the oldest one kept; newest+1 when none is
	newest  uint64    // 0 before the first
	hashes  int       // of those kept
	readers int
	closed  bool
	wake    chan struct{} // closed, and made anew, when a waiting reader may go on
	waiting bool
	counts  OutcomeCounts
}

// MaxIDBytes is the length to which outcomes shorten the ids of messages, actions and
// requests: SGLang's limit. Results have them whole.
const MaxIDBytes = 512

// clipID shortens s to MaxIDBytes.
func clipID(s string) string {
	if len(s) <= MaxIDBytes {
		return s
	}
	return strings.Clone(clip(s, MaxIDBytes))
}

// NewOutcomes returns an empty stream. Failure: ErrConfig.
func NewOutcomes(cfg OutcomesConfig) (*Outcomes, error) {
	err := errors.Join(
		orDefault(&cfg.Kept, "OutcomesConfig.Kept", 4096, 1, 1<<24),
		orDefault(&cfg.KeptHashes, "OutcomesConfig.KeptHashes", 1<<20, 1, 1<<30),
		orDefault(&cfg.Subscriptions, "OutcomesConfig.Subscriptions", 256, 1, 1<<20),
	)
	if err != nil {
		return nil, err
	}
	return &Outcomes{cfg: cfg, oldest: 1, wake: make(chan struct{})}, nil
}

// Publish gives o the next number, and the present time if it has none, and lets
// readers have it. It copies Hashes, shortens texts to MaxIDBytes and never waits for a
// reader. It returns the number; after Close it does nothing and returns 0.
func (h *Outcomes) Publish(o Outcome) uint64 {
	o.Hashes = slices.Clone(o.Hashes)
	o.MessageID, o.ActionID, o.RequestID = clipID(o.MessageID), clipID(o.ActionID), clipID(o.RequestID)
	o.Type, o.Reason = clipID(o.Type), clipID(o.Reason)
	if o.Time.IsZero() {
		o.Time = time.Now()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return 0
	}
	for h.oldest <= h.newest && (int(h.newest-h.oldest)+1 == h.cfg.Kept || h.hashes+len(o.Hashes) > h.cfg.KeptHashes) {
		gone := h.at(h.oldest)
		h.hashes -= len(gone.Hashes)
		*gone = Outcome{}
		h.oldest++
	}
	h.newest++
	o.Seq = h.newest
	if len(h.ring) < h.cfg.Kept && int(h.newest-h.oldest) == len(h.ring) {
		h.growLocked()
	}
	*h.at(o.Seq) = o
	h.hashes += len(o.Hashes)
	h.counts.Published++
	if o.Stage < numStages {
		h.counts.Stages[o.Stage]++
	}
	h.wakeLocked()
	return o.Seq
}

func (h *Outcomes) at(seq uint64) *Outcome { return &h.ring[seq%uint64(len(h.ring))] }

// growLocked doubles the ring, up to Kept: a stream that nobody uses stays small.
func (h *Outcomes) growLocked() {
	old := h.ring
	h.ring = make([]Outcome, min(max(16, 2*len(old)), h.cfg.Kept))
	for seq := h.oldest; seq < h.newest; seq++ {
		*h.at(seq) = old[seq%uint64(len(old))]
	}
}

func (h *Outcomes) wakeLocked() {
	if h.waiting {
		close(h.wake)
		h.wake, h.waiting = make(chan struct{}), false
	}
}

// Newest returns the number of the newest outcome, 0 before the first.
func (h *Outcomes) Newest() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.newest
}

// Subscribe begins after the newest outcome. Failures: ErrLimit, ErrClosed.
func (h *Outcomes) Subscribe() (*OutcomeReader, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.subscribeLocked(h.newest + 1)
}

// SubscribeFrom begins with the outcome numbered seq, the first one being 1; 0 is the
// oldest that is kept. If seq is not kept any more the first Next is an ErrGap.
func (h *Outcomes) SubscribeFrom(seq uint64) (*OutcomeReader, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if seq == 0 {
		seq = h.oldest
	}
	return h.subscribeLocked(seq)
}

func (h *Outcomes) subscribeLocked(seq uint64) (*OutcomeReader, error) {
	if h.closed {
		return nil, ErrClosed
	}
	if h.readers == h.cfg.Subscriptions {
		return nil, limitError("outcome subscriptions", h.cfg.Subscriptions, "OutcomesConfig.Subscriptions")
	}
	h.readers++
	return &OutcomeReader{h: h, next: seq}, nil
}

// Close ends the stream: readers get what is kept, then ErrClosed.
func (h *Outcomes) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	h.wakeLocked()
}

// OutcomeCounts are the outcomes published since the stream was made.
type OutcomeCounts struct {
	Published     uint64
	Stages        [numStages]uint64 // by Stage
	Lost          uint64            // outcomes that readers were too slow for, summed over them
	Subscriptions int               // now
}

// Counts returns the counters.
func (h *Outcomes) Counts() OutcomeCounts {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.counts
	c.Subscriptions = h.readers
	return c
}

// OutcomeReader reads a stream of outcomes. Close is for any goroutine, Next for one.
type OutcomeReader struct {
	h      *Outcomes
	next   uint64 // number of the outcome to read next; Next's own
	closed bool   // guarded by h.mu
}

// Next returns the next outcome, waiting for it. The caller must not change its Hashes.
// In place of outcomes that are no longer kept it returns a *GapError (ErrGap) with
// their number, and goes on after them. ErrClosed ends the stream.
func (r *OutcomeReader) Next(ctx context.Context) (Outcome, error) {
	h := r.h
	for {
		h.mu.Lock()
		switch {
		case r.closed:
			h.mu.Unlock()
			return Outcome{}, ErrClosed
		case r.next < h.oldest:
			lost := h.oldest - r.next
			r.next = h.oldest
			h.counts.Lost += lost
			h.mu.Unlock()
			return Outcome{}, &GapError{Lost: lost}
		case r.next <= h.newest:
			o := *h.at(r.next)
			r.next++
			h.mu.Unlock()
			return o, nil
		case h.closed:
			h.mu.Unlock()
			return Outcome{}, ErrClosed
		}
		wake := h.wake
		h.waiting = true
		h.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
			return Outcome{}, ctx.Err()
		}
	}
}

// Close ends the subscription, and a Next that waits.
func (r *OutcomeReader) Close() error {
	r.h.mu.Lock()
	defer r.h.mu.Unlock()
	if !r.closed {
		r.closed = true
		r.h.readers--
		r.h.wakeLocked()
	}
	return nil
}
