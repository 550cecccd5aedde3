package hints

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// FanOutConfig shapes a FanOut. A zero field means the default.
type FanOutConfig struct {
	Joins int // logical actions expected at a time. Default 1024
	Ranks int // of one logical action. Default 1024
	// Hashes is how many hashes are held for all of them together, those of each rank
	// counted. A join that would go beyond completes with "limit_exceeded". Default
	// 4 Mi, of about 32 bytes each.
	Hashes int
}

// FanOut joins the outcomes of the ranks of a worker to one for each logical action:
// the action of one message and action id that every rank got. Its methods are for any
// goroutine.
type FanOut struct {
	cfg FanOutConfig

	mu     sync.Mutex
	joins  map[joinKey]*Join
	hashes int
	closed bool
}

type joinKey struct{ message, action string }

// NewFanOut returns an empty FanOut. Failure: ErrConfig.
func NewFanOut(cfg FanOutConfig) (*FanOut, error) {
	err := errors.Join(
		orDefault(&cfg.Joins, "FanOutConfig.Joins", 1024, 1, 1<<20),
		orDefault(&cfg.Ranks, "FanOutConfig.Ranks", 1024, 1, 1<<20),
		orDefault(&cfg.Hashes, "FanOutConfig.Hashes", 1<<22, 1, 1<<30),
	)
	if err != nil {
		return nil, err
	}
	return &FanOut{cfg: cfg, joins: map[joinKey]*Join{}}, nil
}

// Expect begins to collect the outcomes of an action. It must come before the action
// is submitted: outcomes that nobody expects are dropped. The join completes when each
// of ranks has ended or is lost, and at latest after timeout.
// Failures: ErrExpected, ErrLimit, ErrClosed, ErrConfig (no ranks, no timeout).
func (f *FanOut) Expect(messageID, actionID string, ranks []int, timeout time.Duration) (*Join, error) {
	if len(ranks) == 0 || timeout <= 0 {
		return nil, fmt.Errorf("%w: Expect of %d ranks for %v; it needs some of both", ErrConfig, len(ranks), timeout)
	}
	if len(ranks) > f.cfg.Ranks {
		return nil, limitError("ranks of one action", f.cfg.Ranks, "FanOutConfig.Ranks")
	}
	key := joinKey{clipID(messageID), clipID(actionID)} // as outcomes have them
	j := &Join{
		f: f, key: key, done: make(chan struct{}), waiting: map[int]map[uint64]Stage{}, reports: map[uint64]int{},
		out: Joined{Blocks: map[uint64]Stage{}, Ranks: map[int]Outcome{}},
	}
	for _, r := range ranks {
		j.waiting[r] = map[uint64]Stage{}
	}
	j.ranks = len(j.waiting)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.closed:
		return nil, ErrClosed
	case f.joins[key] != nil:
		return nil, fmt.Errorf("%w: message %q, action %q", ErrExpected, cut(messageID), cut(actionID))
	case len(f.joins) == f.cfg.Joins:
		return nil, limitError("actions are expected", f.cfg.Joins, "FanOutConfig.Joins")
	}
	f.joins[key] = j
	j.timer = time.AfterFunc(timeout, func() { f.finish(j, "timeout") })
	return j, nil
}

// Observe takes an outcome of a rank.
func (f *FanOut) Observe(o Outcome) {
	f.mu.Lock()
	defer f.mu.Unlock()
	j := f.joins[joinKey{o.MessageID, o.ActionID}]
	if j == nil {
		return
	}
	stages, ok := j.waiting[o.Rank]
	if !ok {
		return // no rank of it, or ended
	}
	if o.Stage == StageEnd {
		j.out.Ranks[o.Rank] = o
		f.endLocked(j, o.Rank)
		return
	}
	for _, h := range o.Hashes {
		if _, known := stages[h]; !known {
			if f.hashes == f.cfg.Hashes {
				f.finishLocked(j, "limit_exceeded")
				return
			}
			f.hashes++
			j.held++
		}
		stages[h] = o.Stage
	}
}

// RankLost ends the rank in all joins that wait for it: what it has not reported to the
// end failed. Call it when the rank's process or stream is gone, or after an ErrGap.
func (f *FanOut) RankLost(rank int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, j := range f.joins {
		if _, ok := j.waiting[rank]; ok {
			j.out.Reason = "rank_lost"
			f.endLocked(j, rank)
		}
	}
}

// Close completes all joins as they are, and refuses new ones.
func (f *FanOut) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for _, j := range f.joins {
		f.finishLocked(j, "closed")
	}
}

// Open returns how many joins are not complete.
func (f *FanOut) Open() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.joins)
}

// endLocked ends a rank, and the join with the last one.
func (f *FanOut) endLocked(j *Join, rank int) {
	f.foldLocked(j, rank)
	if len(j.waiting) == 0 {
		f.finishLocked(j, j.out.Reason)
	}
}

// foldLocked adds what a rank reported to the join, which needs to know only the least
// stage of each hash and how many ranks reported it.
func (f *FanOut) foldLocked(j *Join, rank int) {
	for h, s := range j.waiting[rank] {
		s = final(s)
		if had, ok := j.out.Blocks[h]; ok {
			s = lesser(had, s)
			f.hashes--
			j.held--
		}
		j.out.Blocks[h] = s
		j.reports[h]++
	}
	delete(j.waiting, rank)
}

func (f *FanOut) finish(j *Join, reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.finishLocked(j, reason)
}

// finishLocked completes the join with what the ranks have reported.
func (f *FanOut) finishLocked(j *Join, reason string) {
	if f.joins[j.key] != j {
		return // complete already
	}
	delete(f.joins, j.key)
	j.timer.Stop()
	for rank := range j.waiting {
		f.foldLocked(j, rank)
	}
	for h := range j.out.Blocks {
		if j.reports[h] < j.ranks {
			j.out.Blocks[h] = StageFailed
		}
	}
	f.hashes -= j.held
	j.out.Complete, j.out.Reason = reason == "", reason
	j.waiting, j.reports = nil, nil
	close(j.done)
}

// final is the stage of a hash after its rank has ended: one that was only on its way
// has failed.
func final(s Stage) Stage {
	if s == StageAccepted || s == StageResolved {
		return StageFailed
	}
	return s
}

// lesser returns the stage of which less may be relied on: a failure; then that
// somebody kept something; that blocks are in two places; that they were here all
// along. Only what all ranks moved or removed is gone from where it was.
func lesser(a, b Stage) Stage {
	if a == b {
		return a
	}
	for _, s := range [...]Stage{StageFailed, StageKept, StageCopied, StagePresent, StageRemoved} {
		if a == s || b == s {
			return s
		}
	}
	return StageFailed
}

// Join is one logical action of several ranks.
type Join struct {
	f     *FanOut
	key   joinKey
	done  chan struct{}
	timer *time.Timer
	ranks int

	// Guarded by f.mu.
	waiting map[int]map[uint64]Stage // by rank that has not ended: its hashes
	reports map[uint64]int           // ranks that ended and reported the hash
	held    int                      // hashes counted in f.hashes
	out     Joined
}

// Joined is how a logical action ended.
type Joined struct {
	// Complete: every rank has ended by itself. Otherwise Reason says what happened:
	// "rank_lost", "timeout", "limit_exceeded", "cancelled" or "closed".
	Complete bool
	Reason   string
	// Blocks has one stage for each hash that any rank reported: StageMoved only if
	// every rank moved it; else the least that a rank reached, in the order failed,
	// kept, copied, present, removed. What a rank has not reported to the end failed.
	Blocks map[uint64]Stage
	// Ranks has the StageEnd of each rank that ended by itself.
	Ranks map[int]Outcome
}

// Done is closed when the join is complete.
func (j *Join) Done() <-chan struct{} { return j.done }

// Result returns how it ended, once Done is closed; before that it is zero. The caller
// must not change it.
func (j *Join) Result() Joined {
	select {
	case <-j.done:
		return j.out
	default:
		return Joined{}
	}
}

// Cancel completes the join as it is and forgets it.
func (j *Join) Cancel() { j.f.finish(j, "cancelled") }
