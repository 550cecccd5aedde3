package hints

// TrackerConfig shapes a Tracker. A zero field means the default.
type TrackerConfig struct {
	Rank int // of this engine, put into every outcome
	Open int // actions that may be under way. Default 1024
	// Hashes is how many hashes these may have together. Default 1 Mi.
	Hashes int
}

// Tracker follows accepted actions to their ends: of each exactly one StageEnd is
// published, and before it one final stage for each of its hashes. Its methods are
// for any goroutine.
type Tracker struct{}

// NewTracker returns a Tracker that publishes to out. Failure: ErrConfig.
func NewTracker(out *Outcomes, cfg TrackerConfig) (*Tracker, error) { panic("not yet") }

// Accept begins an action and publishes StageAccepted with its distinct hashes, which
// are copied. Failures are *Rejection (LimitExceeded: too much is under way;
// HandlerError: closed), for the handler to return.
func (t *Tracker) Accept(c *Call, hashes []uint64) (*Tracked, error) { panic("not yet") }

// Open returns how many actions are under way.
func (t *Tracker) Open() int { panic("not yet") }

// Close ends all actions under way with the reason, and refuses new ones.
func (t *Tracker) Close(reason string) { panic("not yet") }

// Tracked is one action under way. Its methods are for any goroutine; after End they
// do nothing.
type Tracked struct{}

// Hashes returns the action's distinct hashes in order of first sight. The caller must
// not change them.
func (a *Tracked) Hashes() []uint64 { panic("not yet") }

// Report publishes that the hashes have reached the stage, for a reason if any. The
// last report of a hash counts: StageCopied may still become StageMoved or StageKept,
// anything else but StageResolved is final. Hashes that are not the action's or have
// a final stage already are left out; nothing is published if none is left. It
// returns how many hashes it published.
func (a *Tracked) Report(stage Stage, reason string, hashes ...uint64) int { panic("not yet") }

// AddBytes adds to the bytes that StageEnd reports.
func (a *Tracked) AddBytes(n int64) { panic("not yet") }

// End publishes StageFailed for the hashes that have reached no end, with the reason
// or "not_finished", and then StageEnd. Only the first call counts; it returns true.
func (a *Tracked) End(reason string) bool { panic("not yet") }
