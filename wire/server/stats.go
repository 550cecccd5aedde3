package server

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Stats is a snapshot of the server's counters since its start.
type Stats struct {
	Conns               int64 // open now
	MaxConns            int
	Accepted, Refused   uint64
	SlowConns           uint64 // connections that have left their event loop, ever
	BytesIn, BytesOut   uint64
	Commands            []CommandCount
	Latency             Latency
	Claims              int64 // blocks lent to answers that the kernel has not taken
	ExpiriesOutstanding int   // keys with a time to live
	SharedConns         int   // connections that share memory
	StagingBytes        int64 // memory that they may write values to
	HeldForDead         int64 // claims of such connections that have ended, kept until their process has
}

// CommandCount counts one kind of commands. The kinds are a closed set.
type CommandCount struct {
	Name   string
	Count  uint64
	Errors uint64 // answered with an error; a miss is none
}

// Latency is how long the server takes from reading a batch of pipelined
// commands to handing its answers to the kernel.
type Latency struct {
	P50, P99, P999, Max time.Duration
	Count               uint64 // batches
}

var commandNames = [commandKinds]string{"get", "set", "del", "exists", "other"}

// Stats returns a snapshot.
func (s *Server) Stats() Stats {
	st := Stats{
		Conns: s.conns.Load(), MaxConns: s.opt.MaxConns, Accepted: uint64(s.accepted.Load()), Refused: uint64(s.refused.Load()),
		SlowConns: uint64(s.slowConns.Load()), BytesIn: uint64(s.bytesIn.Load()), BytesOut: uint64(s.bytesOut.Load()),
		ExpiriesOutstanding: s.ttl.len(),
	}
	st.SharedConns, st.StagingBytes, st.HeldForDead = s.sharing.counts()
	all := newHistogram()
	s.mu.Lock()
	for i := range s.commands {
		n, failed := s.commands[i].Load(), s.errors[i].Load()
		for _, l := range s.byLoop {
			n += l.commands[i].Load()
			failed += l.errors[i].Load()
		}
		st.Commands = append(st.Commands, CommandCount{commandNames[i], n, failed})
	}
	for ss := range s.sessions {
		st.Claims += ss.claims()
	}
	for _, l := range s.byLoop {
		l.latency.addTo(all)
	}
	s.mu.Unlock()
	st.Latency = Latency{
		P50: time.Duration(all.ValueAtQuantile(50)), P99: time.Duration(all.ValueAtQuantile(99)), P999: time.Duration(all.ValueAtQuantile(99.9)),
		Max: time.Duration(all.Max()), Count: uint64(all.TotalCount()),
	}
	return st
}

// Draining reports that Shutdown has begun.
func (s *Server) Draining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

// claims counts the blocks that wait in the queue.
func (s *session) claims() (n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.queue {
		if s.queue[i].view.Len() > 0 {
			n++
		}
	}
	return n + int64(len(s.streams))
}

// latency is a histogram with one writer, its loop.
type latency struct {
	mu sync.Mutex
	h  *hdrhistogram.Histogram
}

// newHistogram takes 1 us to a minute at two digits: some 20 KiB.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(int64(time.Microsecond), int64(time.Minute), 2)
}

func (l *latency) record(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.h == nil {
		l.h = newHistogram()
	}
	// It cannot fail: the value is within the histogram's range.
	_ = l.h.RecordValue(min(max(d.Nanoseconds(), int64(time.Microsecond)), int64(time.Minute)))
}

func (l *latency) addTo(all *hdrhistogram.Histogram) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.h != nil {
		all.Merge(l.h)
	}
}

func (e *expiries) len() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.heap)
}
