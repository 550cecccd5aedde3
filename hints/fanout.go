package hints

import "time"

// FanOutConfig shapes a FanOut. A zero field means the default.
type FanOutConfig struct {
	Joins  int // logical actions expected at a time. Default 1024
	Hashes int // hashes held for all of them together. Default 4 Mi
}

// FanOut joins the outcomes of the ranks of a worker to one for each logical action.
// Its methods are for any goroutine.
type FanOut struct{}

// NewFanOut returns an empty FanOut. Failure: ErrConfig.
func NewFanOut(cfg FanOutConfig) (*FanOut, error) { panic("not yet") }

// Expect begins to collect the outcomes of an action, which must not have been
// submitted before: outcomes that nobody expects are dropped. The join completes when
// each of ranks has ended or is lost, and at latest after timeout.
// Failures: ErrExpected, ErrLimit, ErrClosed, ErrConfig (no ranks, no timeout).
func (f *FanOut) Expect(messageID, actionID string, ranks []int, timeout time.Duration) (*Join, error) {
	panic("not yet")
}

// Observe takes an outcome of a rank.
func (f *FanOut) Observe(o Outcome) { panic("not yet") }

// RankLost ends the rank in all joins that wait for it: what it has not reported
// failed. Call it when the rank's process or stream is gone, and after an ErrGap.
func (f *FanOut) RankLost(rank int) { panic("not yet") }

// Close completes all joins as they are.
func (f *FanOut) Close() { panic("not yet") }

// Join is one logical action of several ranks.
type Join struct{}

// Done is closed when the join is complete.
func (j *Join) Done() <-chan struct{} { panic("not yet") }

// Joined is how a logical action ended.
type Joined struct {
	// Complete: every rank has ended by itself. Otherwise Reason says what happened:
	// "rank_lost", "timeout", "limit_exceeded" or "closed".
	Complete bool
	Reason   string
	// Blocks has one stage for each hash: StageMoved only if every rank moved it; else
	// the least that a rank reached, in the order failed, kept, copied, present,
	// removed. What a rank has not reported to the end failed.
	Blocks map[uint64]Stage
	// Ranks has the StageEnd of each rank that ended.
	Ranks map[int]Outcome
}

// Result returns how it ended, once Done is closed; before that it is zero. The caller
// must not change it.
func (j *Join) Result() Joined { panic("not yet") }

// Cancel completes the join as it is and forgets it.
func (j *Join) Cancel() { panic("not yet") }
