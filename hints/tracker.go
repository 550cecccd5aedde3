package hints

import (
	"errors"
	"fmt"
	"strings"
	"sync"
)

// TrackerConfig shapes a Tracker. A zero field means the default.
type TrackerConfig struct {
	Rank int // of this engine, put into every outcome
	Open int // actions that may be under way. Default 1024
	// Hashes is how many distinct hashes these may have together. Default 1 Mi, of
	// about 64 bytes each.
	Hashes int
}

// Tracker follows accepted actions to their ends: of each exactly one StageEnd is
// published, as its last outcome, and before it one final stage for each of its hashes.
// Its methods are for any goroutine.
type Tracker struct {
	out *Outcomes
	cfg TrackerConfig

	mu     sync.Mutex
	open   map[*Tracked]struct{}
	hashes int
	closed bool
}

// NewTracker returns a Tracker that publishes to out. Failure: ErrConfig.
func NewTracker(out *Outcomes, cfg TrackerConfig) (*Tracker, error) {
	err := errors.Join(
		orDefault(&cfg.Open, "TrackerConfig.Open", 1024, 1, 1<<20),
		orDefault(&cfg.Hashes, "TrackerConfig.Hashes", 1<<20, 1, 1<<27),
	)
	if err != nil {
		return nil, err
	}
	return &Tracker{out: out, cfg: cfg, open: map[*Tracked]struct{}{}}, nil
}

// Accept begins an action and publishes StageAccepted with its distinct hashes, which
// are copied. Failures are *Rejection (LimitExceeded: too much is under way;
// HandlerError: closed), for the handler to return.
func (t *Tracker) Accept(c *Call, hashes []uint64) (*Tracked, error) {
	a := &Tracked{
		t: t, stages: make(map[uint64]Stage, len(hashes)),
		head: Outcome{
			// Clones: an id may be a part of somebody's large text.
			MessageID: strings.Clone(clipID(c.MessageID)), ActionID: strings.Clone(clipID(c.ActionID)),
			RequestID: strings.Clone(clipID(c.RequestID)), Type: c.Type, Index: c.Index, Rank: t.cfg.Rank,
		},
	}
	for _, h := range hashes {
		if _, again := a.stages[h]; !again {
			a.stages[h] = StageAccepted
			a.hashes = append(a.hashes, h)
		}
	}
	a.mu.Lock() // Close may find it once it is open, but ends it after this
	defer a.mu.Unlock()
	if err := t.enter(a); err != nil {
		return nil, err
	}
	a.publishLocked(StageAccepted, "", a.hashes)
	return a, nil
}

// enter counts a as open.
func (t *Tracker) enter(a *Tracked) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return &Rejection{HandlerError, "the engine is closing"}
	case len(t.open) == t.cfg.Open:
		return &Rejection{LimitExceeded, fmt.Sprintf("%d actions are under way (raise TrackerConfig.Open)", t.cfg.Open)}
	case t.hashes+len(a.hashes) > t.cfg.Hashes:
		return &Rejection{LimitExceeded, fmt.Sprintf("%d hashes are under way and %d come, limit %d (raise TrackerConfig.Hashes)", t.hashes, len(a.hashes), t.cfg.Hashes)}
	}
	t.open[a] = struct{}{}
	t.hashes += len(a.hashes)
	return nil
}

func (t *Tracker) leave(a *Tracked) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, a)
	t.hashes -= len(a.hashes)
}

// Open returns how many actions are under way.
func (t *Tracker) Open() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.open)
}

// Close ends all actions under way with the reason, and refuses new ones.
func (t *Tracker) Close(reason string) {
	t.mu.Lock()
	t.closed = true
	var open []*Tracked
	for a := range t.open {
		open = append(open, a)
	}
	t.mu.Unlock()
	for _, a := range open {
		a.End(reason)
	}
}

// Tracked is one action under way. Its methods are for any goroutine; after End they
// do nothing.
type Tracked struct {
	t      *Tracker
	hashes []uint64 // distinct

	mu     sync.Mutex       // held while publishing: the outcomes of an action are in order
	stages map[uint64]Stage // the last one of each hash
	head   Outcome          // what all outcomes of the action have
	bytes  int64
	ended  bool
}

// Hashes returns the action's distinct hashes in order of first sight. The caller must
// not change them.
func (a *Tracked) Hashes() []uint64 { return a.hashes }

// advances reports whether a hash may go from one stage to another. StageCopied may
// still turn out to be a move: StageMoved or StageKept.
func advances(from, to Stage) bool {
	switch from {
	case StageAccepted:
		return to != StageAccepted && to < StageEnd
	case StageResolved:
		return to != StageAccepted && to != StageResolved && to < StageEnd
	case StageCopied:
		return to == StageMoved || to == StageKept
	}
	return false
}

// Report publishes that the hashes have reached the stage, for a reason if any. The last
// stage of a hash counts; StageCopied may still become StageMoved or StageKept, every
// other but StageResolved is final. Hashes that are not the action's, or that may not
// go to the stage, are left out; if none is left nothing is published. It returns how
// many were published.
func (a *Tracked) Report(stage Stage, reason string, hashes ...uint64) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return 0
	}
	news := make([]uint64, 0, len(hashes))
	for _, h := range hashes {
		from, ok := a.stages[h]
		if !ok || !advances(from, stage) {
			continue
		}
		a.stages[h] = stage
		news = append(news, h)
	}
	if len(news) > 0 {
		a.publishLocked(stage, reason, news)
	}
	return len(news)
}

// AddBytes adds to the bytes that StageEnd reports.
func (a *Tracked) AddBytes(n int64) {
	a.mu.Lock()
	a.bytes += n
	a.mu.Unlock()
}

// End publishes StageFailed for the hashes that have reached no end, with the reason or
// "not_finished", and then StageEnd with the reason and the counts. Only the first call
// does; it returns true.
func (a *Tracked) End(reason string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return false
	}
	a.ended = true
	var open []uint64
	end := a.head
	for _, h := range a.hashes {
		switch a.stages[h] {
		case StageCopied:
			end.Copied++
		case StageMoved:
			end.Moved++
		case StageKept:
			end.Kept++
		case StageRemoved:
			end.Removed++
		case StagePresent:
			end.Present++
		case StageFailed:
			end.Failed++
		default:
			open = append(open, h)
			end.Failed++
		}
	}
	if len(open) > 0 {
		why := reason
		if why == "" {
			why = "not_finished"
		}
		a.publishLocked(StageFailed, why, open)
	}
	end.Stage, end.Reason, end.Bytes = StageEnd, reason, a.bytes
	a.t.out.Publish(end)
	a.stages = nil
	a.t.leave(a)
	return true
}

func (a *Tracked) publishLocked(stage Stage, reason string, hashes []uint64) {
	o := a.head
	o.Stage, o.Reason, o.Hashes = stage, reason, hashes
	a.t.out.Publish(o)
}
