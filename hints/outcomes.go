package hints

import "context"

// OutcomesConfig shapes the stream of outcomes. A zero field means the default.
type OutcomesConfig struct {
	Kept          int // outcomes that can be read again. Default 4096
	KeptHashes    int // hashes of those together; at least the newest is kept. Default 1 Mi
	Subscriptions int // open at a time. Default 256
}

// Outcomes numbers outcomes and keeps the newest ones for its subscriptions. Its
// methods are for any goroutine.
type Outcomes struct{}

// NewOutcomes returns an empty stream. Failure: ErrConfig.
func NewOutcomes(cfg OutcomesConfig) (*Outcomes, error) { panic("not yet") }

// Publish gives o the next number, and the present time if it has none, and lets
// subscriptions read it. It copies Hashes and never waits. After Close it does nothing.
// It returns the number.
func (h *Outcomes) Publish(o Outcome) uint64 { panic("not yet") }

// Subscribe begins after the newest outcome. Failures: ErrLimit, ErrClosed.
func (h *Outcomes) Subscribe() (*OutcomeReader, error) { panic("not yet") }

// SubscribeFrom begins with the outcome numbered seq, 0 or 1 being the very first; if
// it is not kept any more the first Next is an ErrGap.
func (h *Outcomes) SubscribeFrom(seq uint64) (*OutcomeReader, error) { panic("not yet") }

// Close ends the stream: readers get what is kept, then ErrClosed.
func (h *Outcomes) Close() { panic("not yet") }

// OutcomeCounts are the outcomes published since the stream was made, by stage.
type OutcomeCounts struct {
	Published uint64
	Stages    [numStages]uint64
	Lost      uint64 // by readers that were too slow
}

// Counts returns the counters.
func (h *Outcomes) Counts() OutcomeCounts { panic("not yet") }

// OutcomeReader reads a stream of outcomes. Close is for any goroutine, Next for one.
type OutcomeReader struct{}

// Next returns the next outcome, waiting for it. The caller must not change its
// Hashes. A reader that is slower than the stream gets a *GapError (ErrGap) in place
// of what it missed, and goes on after it. ErrClosed ends the stream.
func (r *OutcomeReader) Next(ctx context.Context) (Outcome, error) { panic("not yet") }

// Close ends the subscription.
func (r *OutcomeReader) Close() error { panic("not yet") }
