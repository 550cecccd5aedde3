package bench

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// every has n jobs, so far apart, of which lane i%lanes does each.
func every(n int, apart time.Duration, lanes int) *schedule {
	s := &schedule{lanes: lanes, depth: n, drain: 5 * time.Second}
	for i := range n {
		s.due = append(s.due, time.Duration(i+1)*apart)
		s.lane = append(s.lane, i%lanes)
	}
	return s
}

// Each job is done once, in its lane's order, not before it was due; its stages are
// counted and add up.
func TestSchedule(t *testing.T) {
	s := every(60, time.Millisecond, 3)
	start := time.Now()
	done := make([][]int, 3)
	s.do = func(_ context.Context, lane, job int) (time.Duration, time.Duration, error) {
		if early := s.due[job] - time.Since(start); early > 0 {
			t.Errorf("job %d is done %v before its time", job, early)
		}
		done[lane] = append(done[lane], job)
		if job%2 == 0 {
			return 2 * time.Millisecond, 0, nil // nothing to store
		}
		return 2 * time.Millisecond, 3 * time.Millisecond, nil
	}
	p, err := s.play(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for lane, jobs := range done {
		if len(jobs) != 20 || !slices.IsSorted(jobs) {
			t.Errorf("lane %d did %v", lane, jobs)
		}
	}
	for stage, want := range map[string]int64{stageLag: 60, stageQueue: 60, stageService: 60, stageLookup: 60, stageStore: 30, stageWhole: 60} {
		if n := p.times[stage].TotalCount(); n != want {
			t.Errorf("%d times of %s, want %d", n, stage, want)
		}
	}
	if p.window != 60*time.Millisecond || p.issued < p.window || p.lost+p.failed+p.unfinished+p.disordered != 0 {
		t.Errorf("%+v", p)
	}
	// A busy machine may be late, and says so; nothing else is wrong.
	for _, why := range p.broken() {
		if !strings.Contains(why, "the last request was issued") {
			t.Error(why)
		}
	}
}

// A lane that is slow makes its later jobs wait, and the whole takes longer than the
// window: it has not kept up.
func TestScheduleOfASlowLane(t *testing.T) {
	s := every(10, time.Millisecond, 1)
	s.do = func(context.Context, int, int) (time.Duration, time.Duration, error) {
		time.Sleep(5 * time.Millisecond) // the service itself, which has to take some time
		return 5 * time.Millisecond, 0, nil
	}
	p, err := s.play(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if p.queuedAtEnd < 3 || p.took() <= keptUpLimit || p.drained < 20*time.Millisecond {
		t.Errorf("%d queued at the end, %v drained, %.1f windows", p.queuedAtEnd, p.drained, p.took())
	}
	if wait := time.Duration(p.times[stageQueue].Max()); wait < 20*time.Millisecond {
		t.Errorf("the last job waited %v", wait)
	}
	if whole := time.Duration(p.times[stageWhole].Max()); whole < 25*time.Millisecond {
		t.Errorf("from scheduled to finished took %v at most", whole)
	}
}

func TestScheduleBreaksRules(t *testing.T) {
	boom := errors.New("boom")
	hang := func(ctx context.Context, _, _ int) (time.Duration, time.Duration, error) {
		<-ctx.Done()
		return 0, 0, ctx.Err()
	}
	for _, tt := range []struct {
		name, want string
		set        func(s *schedule)
	}{
		{"full queue", "found their queue full", func(s *schedule) { s.depth, s.do = 1, hang }},
		{"failure", "failed: boom", func(s *schedule) {
			s.do = func(context.Context, int, int) (time.Duration, time.Duration, error) { return 0, 0, boom }
		}},
		{"no end", "had not ended when time was up", func(s *schedule) { s.do = hang }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := every(8, time.Millisecond, 1)
			s.drain = 20 * time.Millisecond
			tt.set(s)
			p, err := s.play(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(p.broken(), "; "); !strings.Contains(got, tt.want) {
				t.Errorf("broken rules: %q, want %q", got, tt.want)
			}
		})
	}
	late := &played{window: time.Second, issued: 1011 * time.Millisecond}
	if why := late.broken(); len(why) != 1 || !strings.Contains(why[0], "issued at 1.011s of 1s") {
		t.Errorf("issued late: %v", why)
	}
	late.issued = 1009 * time.Millisecond
	if why := late.broken(); len(why) != 0 {
		t.Errorf("issued within the limit: %v", why)
	}
	if late.disordered = 1; len(late.broken()) != 1 {
		t.Error("a job done before an earlier one is no fault")
	}
}

// Wrong bytes end the run at once.
func TestScheduleEndsOnWrongBytes(t *testing.T) {
	s := every(1000, 10*time.Millisecond, 2)
	var calls atomic.Int64
	s.do = func(context.Context, int, int) (time.Duration, time.Duration, error) {
		calls.Add(1)
		return 0, 0, &WrongBytesError{[]byte("k"), 1}
	}
	_, err := s.play(context.Background())
	var wrong *WrongBytesError
	if !errors.As(err, &wrong) || calls.Load() > 3 {
		t.Errorf("%v after %d jobs", err, calls.Load())
	}
}
