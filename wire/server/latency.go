package server

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/kvcr-go/kvcr/internal/own"
)

// Latency is how long commands took: from the moment the node had read the
// command, with all that arrived with it, to the moment it gave the kernel the
// answers to all of that. Waiting for a client that does not read is not part of
// it, nor is what had arrived of a streamed value in earlier turns.
type Latency struct {
	P50, P99, P999, Max time.Duration
	Sum                 time.Duration
	Count               uint64 // commands

	h *hdrhistogram.Histogram // nil without one
}

// Buckets counts the commands that took no longer than each of bounds, which
// ascend, to within 1 %.
func (l Latency) Buckets(bounds []time.Duration) []uint64 {
	out := make([]uint64, len(bounds))
	if l.h == nil {
		return out
	}
	for _, bar := range l.h.Distribution() {
		for i := len(bounds) - 1; i >= 0 && bar.From <= bounds[i].Nanoseconds(); i-- {
			out[i] += uint64(bar.Count)
		}
	}
	return out
}

// times are the durations of one kind of commands.
type times struct {
	h   *hdrhistogram.Histogram // nil: none yet
	sum time.Duration
}

const (
	shortest = 100 * time.Nanosecond
	longest  = time.Minute
)

// newHistogram takes 100 ns to a minute at two digits: some 25 KiB.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(shortest.Nanoseconds(), longest.Nanoseconds(), 2)
}

func (t *times) add(d time.Duration, n uint64) {
	if t.h == nil {
		t.h = newHistogram()
	}
	// It cannot fail: the value is within the histogram's range.
	_ = t.h.RecordValues(min(max(d, shortest), longest).Nanoseconds(), int64(n))
	t.sum += d * time.Duration(n)
}

func (t *times) merge(o times) {
	if o.h == nil {
		return
	}
	if t.h == nil {
		t.h = newHistogram()
	}
	t.h.Merge(o.h)
	t.sum += o.sum
}

func (t *times) latency() Latency {
	if t.h == nil {
		return Latency{}
	}
	q := func(p float64) time.Duration { return time.Duration(t.h.ValueAtQuantile(p)) }
	return Latency{P50: q(50), P99: q(99), P999: q(99.9), Max: time.Duration(t.h.Max()), Sum: t.sum, Count: uint64(t.h.TotalCount()), h: t.h}
}

// stopwatch holds the durations of the commands of one loop, or of all sessions
// outside the loops, since they were last collected.
type stopwatch struct {
	mu sync.Mutex // held for a moment at the end of a turn, and by collect
	by [tallies]times
}

func (w *stopwatch) record(tally int, d time.Duration, n uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.by[tally].add(d, n)
}

// settle records what a turn of a session has run, which took d. All commands of
// a turn share its two looks at the clock: at 50 ns each, one for each command
// would cost a tenth of a short GET.
func (l *loop) settle(s *session, d time.Duration) {
	for i := s.first; i < s.first+commandKinds; i++ {
		n := l.commands[i].Load()
		if n == l.settled[i] {
			continue
		}
		l.watch.record(i, d, n-l.settled[i])
		l.settled[i] = n
	}
}

// settleSlow is settle for a session outside the loops.
func (s *session) settleSlow(d time.Duration) {
	for kind, n := range s.ran {
		if n > 0 {
			s.srv.slowWatch.record(s.first+kind, d, n)
		}
	}
	s.ran = [commandKinds]uint64{}
}

// timeline keeps durations: all, and those of the last seconds.
type timeline struct {
	mu   sync.Mutex // before that of a stopwatch
	life [tallies]times
	lots [recentLots][tallies]times // a ring
	at   int                        // the lot that is being filled
}

const (
	// recentLots parts of recentLot each are what Recent covers: between 8 and 10
	// seconds.
	recentLots = 5
	recentLot  = 2 * time.Second
)

// collect moves what a stopwatch has into the timeline.
func (t *timeline) collect(w *stopwatch) {
	w.mu.Lock()
	got := w.by
	w.by = [tallies]times{} // the loop makes new ones, those it needs
	w.mu.Unlock()
	for i := range got {
		t.life[i].merge(got[i])
		t.lots[t.at][i].merge(got[i])
	}
}

// next begins another lot in place of the oldest.
func (t *timeline) next() {
	t.at = (t.at + 1) % recentLots
	t.lots[t.at] = [tallies]times{}
}

// recent is what the last lots have of one tally.
func (t *timeline) recent(tally int) (sum times) {
	for i := range t.lots {
		sum.merge(t.lots[i][tally])
	}
	return sum
}

// collect gathers the durations of all commands so far. next begins another lot.
func (s *Server) collect(next bool) {
	s.mu.Lock()
	watches := make([]*stopwatch, 0, len(s.byLoop)+1)
	for _, l := range s.byLoop {
		watches = append(watches, &l.watch)
	}
	s.mu.Unlock()
	watches = append(watches, &s.slowWatch)
	s.times.mu.Lock()
	defer s.times.mu.Unlock()
	if next {
		s.times.next()
	}
	for _, w := range watches {
		s.times.collect(w)
	}
}

// count counts a command, and makes it the one whose errors failed counts.
func (s *session) count(kind int) {
	s.command = kind
	if s.slow.Load() {
		s.srv.commands[s.first+kind].Add(1)
		s.ran[kind]++
	} else {
		own.Add64(&s.loop.commands[s.first+kind], 1)
	}
}

// failed counts an error that the command was answered with.
func (s *session) failed() {
	if s.slow.Load() {
		s.srv.errors[s.first+s.command].Add(1)
	} else {
		own.Add64(&s.loop.errors[s.first+s.command], 1)
	}
}
