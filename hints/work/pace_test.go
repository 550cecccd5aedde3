package work

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// What is in flight stays within the budget, and who comes first goes first.
func TestBudget(t *testing.T) {
	p := NewPacer(100, 1, time.Second)
	var now, most atomic.Int64
	var all sync.WaitGroup
	for i := range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			for range 300 {
				n, err := p.Take(t.Context(), int64(i*25)) // up to more than there is
				if err != nil {
					t.Error(err)
					return
				}
				in := now.Add(n)
				for m := most.Load(); in > m && !most.CompareAndSwap(m, in); m = most.Load() {
				}
				now.Add(-n)
				p.Give(n)
			}
		}()
	}
	all.Wait()
	if m := most.Load(); m > 100 || m < 75 {
		t.Errorf("%d bytes were in flight", m)
	}
	if n := p.InFlight(); n != 0 {
		t.Errorf("%d bytes are left", n)
	}
}

// Small work does not overtake large work for ever; who gives up is in nobody's way.
func TestBudgetInOrder(t *testing.T) {
	p := NewPacer(100, 1, time.Second)
	if _, err := p.Take(t.Context(), 60); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	large, small := make(chan error, 1), make(chan error, 1)
	go func() { _, err := p.Take(ctx, 100); large <- err }()
	waits := func(n int) {
		t.Helper()
		eventually(t, "they wait", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.queue) == n })
	}
	waits(1)
	go func() { _, err := p.Take(t.Context(), 10); small <- err }()
	waits(2) // though there is room
	cancel()
	if err := <-large; err == nil {
		t.Error("a wait that was given up has been granted")
	}
	if err := <-small; err != nil {
		t.Error(err)
	}
	if n := p.InFlight(); n != 70 {
		t.Errorf("%d bytes are in flight", n)
	}
	if _, err := p.Take(ctx, 1); err == nil || p.InFlight() != 70 {
		t.Error("taken with a context that has ended")
	}
}

// Work waits while requests fetch many blocks, no longer than it must, and at most for
// its patience.
func TestYields(t *testing.T) {
	p := NewPacer(100, 4, time.Minute)
	take := func(ctx context.Context) chan error {
		got := make(chan error, 1)
		go func() {
			n, err := p.Take(ctx, 10)
			p.Give(n)
			got <- err
		}()
		return got
	}
	p.Begin(4)
	if err := <-take(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.Begin(2)
	ctx, cancel := context.WithCancel(t.Context())
	got, stopped := take(t.Context()), take(ctx)
	eventually(t, "both wait", func() bool { return p.waiting.Load() == 2 })
	p.End(1)
	select {
	case <-got:
		t.Error("it goes on among 5 blocks")
	case <-time.After(5 * time.Millisecond):
	}
	cancel()
	if err := <-stopped; err == nil {
		t.Error("it goes on though its context has ended")
	}
	p.End(1)
	if err := <-got; err != nil {
		t.Error(err)
	}
	p.End(4)
	if p.Requests() != 0 || p.InFlight() != 0 {
		t.Error("something is left")
	}
	// Under requests without end work goes on.
	p = NewPacer(100, 0, time.Millisecond)
	p.Begin(1)
	if err := <-take(t.Context()); err != nil {
		t.Error(err)
	}
}

// No wait misses its end, however the two meet.
func TestYieldMeetsEnd(t *testing.T) {
	p := NewPacer(100, 0, time.Minute)
	for range 3000 {
		p.Begin(1)
		got := make(chan struct{})
		go func() {
			n, _ := p.Take(t.Context(), 1)
			p.Give(n)
			close(got)
		}()
		p.End(1)
		select {
		case <-got:
		case <-time.After(10 * time.Second):
			t.Fatal("it waits for ever")
		}
	}
}
