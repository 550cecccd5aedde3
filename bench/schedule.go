package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// schedule is an open loop of jobs: each is handed over at its time, whatever became
// of those before it. Every lane does its jobs in order, one after the other.
//
// A job is scheduled at its time, accepted when its lane's queue has it, started
// when the lane is free, and finished.
type schedule struct {
	due  []time.Duration // of each job, ascending
	lane []int           // of each job
	do   func(ctx context.Context, lane, job int) (lookup, store time.Duration, err error)

	lanes int
	depth int           // jobs that may wait for one lane; one more is lost
	drain time.Duration // that jobs may take after the last was issued
}

// The stages of a job whose times are kept.
const (
	stageLag     = "issue-lag"             // from scheduled to accepted
	stageQueue   = "queue-wait"            // from accepted to started
	stageService = "service"               // from started to finished
	stageLookup  = "lookup"                // the part of service that the job says of itself
	stageStore   = "store"                 // likewise
	stageWhole   = "scheduled-to-finished" // all of it
)

var stages = []string{stageLag, stageQueue, stageService, stageLookup, stageStore, stageWhole}

// played is what came of a schedule.
type played struct {
	times map[string]*hdrhistogram.Histogram // by stage, in ns

	window      time.Duration // in which all jobs were due
	issued      time.Duration // when the last was accepted
	drained     time.Duration // from then to the last end
	queuedAtEnd int           // jobs accepted and not started when the last was issued
	lost        int           // jobs that found their queue full
	failed      int           // jobs that ended with an error
	unfinished  int           // jobs that had not ended when time was up
	disordered  int           // jobs that a lane did before an earlier one
	err         error         // of the first that failed
}

// The rules by which a run counts, those of the router's open-loop benchmark: a run
// that breaks one has measured something else.
const (
	issueLimit  = 1.01 // times the window, in which all jobs must have been issued
	keptUpLimit = 1.10 // times the window, in which all must have ended
)

// broken says which rules of a valid run were not kept; nothing: it is valid.
func (p *played) broken() (why []string) {
	rule := func(ok bool, format string, args ...any) {
		if !ok {
			why = append(why, fmt.Sprintf(format, args...))
		}
	}
	rule(p.issued.Seconds() <= issueLimit*p.window.Seconds(), "the last request was issued at %v of %v", p.issued, p.window)
	rule(p.lost == 0, "%d requests found their queue full", p.lost)
	rule(p.failed == 0, "%d requests failed: %v", p.failed, p.err)
	rule(p.unfinished == 0, "%d requests had not ended when time was up", p.unfinished)
	rule(p.disordered == 0, "%d requests were done before earlier ones of their lane", p.disordered)
	return why
}

// took is the time of the run, drain included, in windows. A run that keeps up takes
// at most keptUpLimit.
func (p *played) took() float64 { return (p.issued + p.drained).Seconds() / p.window.Seconds() }

// accepted is a job in a lane's queue.
type accepted struct {
	job int
	at  time.Duration
}

// laneTimes are one lane's: lanes share nothing while they work.
type laneTimes struct {
	times            map[string]*hdrhistogram.Histogram
	failed, disorder int
	last             time.Duration
	err              error
}

// play runs the schedule. Wrong bytes end it with an error; other failures are
// counted.
func (s *schedule) play(ctx context.Context) (*played, error) {
	window := s.due[len(s.due)-1]
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	queues := make([]chan accepted, s.lanes)
	work := make([]laneTimes, s.lanes)
	var done sync.WaitGroup
	start := time.Now()
	for i := range queues {
		queues[i] = make(chan accepted, s.depth)
		work[i].times = newTimes()
		done.Add(1)
		go func() {
			defer done.Done()
			asClient(ctx)
			s.run(ctx, cancel, start, i, queues[i], &work[i])
		}()
	}
	p := &played{times: newTimes(), window: window}
	for job, due := range s.due {
		if wait := due - time.Since(start); wait > 0 {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			p.unfinished = len(s.due) - job
			break
		}
		p.issued = time.Since(start)
		enter(p.times[stageLag], p.issued-due)
		select {
		case queues[s.lane[job]] <- accepted{job, p.issued}:
		default:
			p.lost++
		}
	}
	for _, q := range queues {
		p.queuedAtEnd += len(q)
		close(q)
	}
	late := time.AfterFunc(s.drain, cancel)
	done.Wait()
	late.Stop()
	last := p.issued
	for i := range work {
		w := &work[i]
		for stage, h := range w.times {
			p.times[stage].Merge(h)
		}
		p.failed += w.failed
		p.disordered += w.disorder
		p.err = errors.Join(p.err, w.err)
		last = max(last, w.last)
		if wrong := new(WrongBytesError); errors.As(w.err, &wrong) {
			return p, w.err
		}
	}
	for _, q := range queues {
		p.unfinished += len(q)
	}
	p.drained = last - p.issued
	return p, nil
}

// run does the jobs of one lane.
func (s *schedule) run(ctx context.Context, stop func(), start time.Time, lane int, queue <-chan accepted, w *laneTimes) {
	before := -1
	for ctx.Err() == nil {
		a, more := <-queue
		if !more {
			return
		}
		if a.job < before {
			w.disorder++
		}
		before = a.job
		started := time.Since(start)
		lookup, store, err := s.do(ctx, lane, a.job)
		w.last = time.Since(start)
		if err != nil {
			w.failed++
			if w.err == nil {
				w.err = err
			}
			if wrong := new(WrongBytesError); errors.As(err, &wrong) {
				w.err = err
				stop()
			}
			continue // a failure's time is no figure
		}
		enter(w.times[stageQueue], started-a.at)
		enter(w.times[stageService], w.last-started)
		enter(w.times[stageLookup], lookup)
		if store > 0 {
			enter(w.times[stageStore], store)
		}
		enter(w.times[stageWhole], w.last-s.due[a.job])
	}
}

func newTimes() map[string]*hdrhistogram.Histogram {
	m := map[string]*hdrhistogram.Histogram{}
	for _, s := range stages {
		m[s] = newHistogram()
	}
	return m
}

// enter records a time; the longest that a histogram takes stands for longer ones.
func enter(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(min(max(1, d.Nanoseconds()), h.HighestTrackableValue())) // within range
}
