package hints

import "time"

// AdviceConfig shapes the table of advice. A zero field means the default.
type AdviceConfig struct {
	Requests int // requests that have advice. Default 65,536; the oldest goes first
	// Hashes is how many hashes all advice may hold together, repetitions counted.
	// Default 16 Mi (128 MiB); the oldest request goes first.
	Hashes int
	// Sources is how many sources one request may have; a fetch that names one more is
	// LimitExceeded. Default 8.
	Sources int
	// Misses is how many keys are remembered for each source as not there. Default
	// 65,536; further ones are asked for again.
	Misses int
	// MaxAge is how long advice lasts. Default 10 minutes. A fetch of the same
	// request begins it anew.
	MaxAge time.Duration
	// PoisonOnConflict is the rule of the reference: a second source is
	// SourceConflict, and the first is marked as failed. Default: the second is kept
	// as a fallback.
	PoisonOnConflict bool
	// RequestMoves lets kv.fetch with mode "move" ask the source to free its copies.
	RequestMoves bool
	// Opportunistic asks a source for keys that the advice does not list, too.
	Opportunistic bool
	// Now replaces the clock; for tests.
	Now func() time.Time
}

// Advice is what is known for requests: which sources hold which blocks. It may be
// wrong, never unsafe. Its methods are for any goroutine.
type Advice struct{}

// NewAdvice returns an empty table. Failure: ErrConfig.
func NewAdvice(cfg AdviceConfig) (*Advice, error) { panic("not yet") }

// Submit keeps t for the request. The same source again replaces its hashes and flags
// and clears its misses and failure; another source comes after those there are.
// Failures: *Rejection with NoRequestID, SourceConflict or LimitExceeded.
func (a *Advice) Submit(requestID string, t *Transfer) error { panic("not yet") }

// Discard forgets the request. What is under way with a SourcePlan goes on.
func (a *Advice) Discard(requestID string) { panic("not yet") }

// SourcePlan is what one source may be asked for. It is the caller's own: it stays as
// it is when the advice is replaced or discarded.
type SourcePlan struct {
	Source string
	// Keys are indices of the keys given to Plan, ascending.
	Keys []int
	// Move: the source shall be asked to free the keys that are Listed. The others
	// are copied.
	Move bool
	// Listed are those of Keys that the advice names: all but where
	// AdviceConfig.Opportunistic is set.
	Listed      []int
	NoRetain    bool
	NoFramework bool

	version uint64 // of the advice, so that a late report does not hit a newer one
}

// Plan returns, for each source of the request in order, which of the keys it may be
// asked for. Sources that failed are left out, as are keys that it is known not to
// have, and sources without any key. Without adapter only an opportunistic table
// plans. A source's plan does not depend on those before it: the caller asks the
// first for its keys, the next for those still missing.
func (a *Advice) Plan(requestID, namespace string, keys [][]byte, adapter KeyAdapter) []SourcePlan {
	panic("not yet")
}

// Report says how asking a source of a plan ended: asked and delivered are indices of
// keys as in the plan. failed: the operation as a whole failed (not: some keys were
// not there); the source is left out from now on. Otherwise keys that were asked for
// and not delivered are remembered as misses. A report about advice that was replaced
// or discarded since changes nothing.
func (a *Advice) Report(requestID, namespace string, keys [][]byte, p *SourcePlan, asked, delivered []int, failed bool) {
	panic("not yet")
}

// Knows reports whether a source that has not failed may be asked for the key: what
// Plan answers, for one.
func (a *Advice) Knows(requestID, namespace string, key []byte, adapter KeyAdapter) bool {
	panic("not yet")
}

// Known reports whether a source that has not failed is said to hold the hash. It
// knows nothing of misses, which are kept by key.
func (a *Advice) Known(requestID string, hash uint64) bool { panic("not yet") }

// AdviceCounts are counters since the table was made, and its present size.
type AdviceCounts struct {
	Requests, Hashes           int    // now
	Submitted, Replaced        uint64 // fetches kept; of those, that replaced a source's
	Fallbacks                  uint64 // fetches that added a further source
	Conflicts                  uint64
	Discarded, Expired, Pushed uint64 // requests forgotten: by Discard, by age, by newer ones
	Failures, Misses           uint64 // reports of failure; keys remembered as misses
}

// Counts returns the counters. It forgets what is too old first.
func (a *Advice) Counts() AdviceCounts { panic("not yet") }
