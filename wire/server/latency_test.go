package server

import (
	"fmt"
	"testing"
	"time"
)

// What is recent is forgotten after recentLots lots, what is counted for life is
// not, and buckets count what took no longer than their bounds.
func TestTimeline(t *testing.T) {
	var w stopwatch
	var tl timeline
	for i := 1; i <= 1000; i++ {
		w.record(3, time.Duration(i)*time.Microsecond, 2)
	}
	tl.collect(&w)
	w.record(3, 2*time.Hour, 1) // beyond the longest
	w.record(4, 0, 5)           // and the shortest
	tl.next()
	tl.collect(&w)

	l := tl.life[3].latency()
	if l.Count != 2001 || l.Sum != 2*500500*time.Microsecond+2*time.Hour {
		t.Errorf("%d commands of %v in all", l.Count, l.Sum)
	}
	near := func(name string, got, want time.Duration) {
		if got < want*98/100 || got > want*102/100 {
			t.Errorf("%s is %v, want %v to within 2 %%", name, got, want)
		}
	}
	near("p50", l.P50, 500*time.Microsecond)
	near("p99", l.P99, 990*time.Microsecond)
	near("the longest", l.Max, longest)
	bounds := []time.Duration{time.Nanosecond, 10 * time.Microsecond, 100 * time.Microsecond, time.Second, time.Hour}
	for i, n := range l.Buckets(bounds) {
		if want := []uint64{0, 20, 200, 2000, 2001}[i]; n < want || n > want+want/100 {
			t.Errorf("%d took no longer than %v, want %d to within 1 %%", n, bounds[i], want)
		}
	}
	if b := fmt.Sprint(Latency{}.Buckets([]time.Duration{1, 2})); b != "[0 0]" {
		t.Errorf("buckets of nothing are %s", b)
	}

	for i, want := range []int64{2001, 2001, 2001, 2001, 1, 0} {
		sum := tl.recent(3)
		n := int64(0)
		if sum.h != nil {
			n = sum.h.TotalCount()
		}
		if n != want {
			t.Errorf("%d lots later %d are recent, want %d", i, n, want)
		}
		tl.next()
	}
	if got := tl.life[3].latency(); got.Count != 2001 || tl.life[4].latency().Count != 5 {
		t.Errorf("for life %d and %d, want 2001 and 5", got.Count, tl.life[4].latency().Count)
	}
}

// A session outside the loops has its commands' times too, and they do not hold
// what it waited for its client.
func TestTimesOfSlowReader(t *testing.T) {
	s := start(t, func(o *Options) { o.OutboundCap = 64 << 10 })
	c := dial(t, s)
	value := string(make([]byte, 1<<20))
	ask(t, c, cmd("SET", "k", value), "+OK\r\n")
	const gets = 40
	for range gets {
		if _, err := c.Write([]byte(cmd("GET", "k"))); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the session has left its loop", func() bool { return s.Stats().SlowConns == 1 })
	const pause = 300 * time.Millisecond
	time.Sleep(pause) // while it waits for us
	for range gets {
		expect(t, c, "GET", bulk(value))
	}
	get := func() CommandCount {
		for _, c := range s.Stats().Commands {
			if c.Proto == "resp" && c.Name == "get" {
				return c
			}
		}
		return CommandCount{}
	}
	eventually(t, "every GET has its time", func() bool { return get().Latency.Count == gets })
	if l := get().Latency; l.Max >= pause {
		t.Errorf("the longest GET is said to have taken %v: the client's time", l.Max)
	}
}

// A client that asks for STATS again and again gets counts as they are, and times
// that are summed up once in a tick.
func TestStatsForClient(t *testing.T) {
	s := &Server{ttl: newExpiries()}
	defer s.ttl.close()
	for i, want := range []uint64{1, 1, 3} {
		s.commands[0].Add(1)
		s.slowWatch.record(0, time.Millisecond, 1)
		if i == 2 {
			s.clock.Store(int64(tick))
		}
		st := s.statsForClient()
		if got := st.Commands[0]; got.Count != uint64(i+1) || got.Latency.Count != want || got.Recent.Count != want || st.Latency.Count != want {
			t.Errorf("asked %d times: %d commands, %d times of them, %d in all; want %d", i+1, got.Count, got.Latency.Count, st.Latency.Count, want)
		}
	}
}
