package work

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Pacer makes independent work yield to requests (W3). Begin and End are for
// requests, Take and Give for work. Its methods may be called from any goroutine.
//
// Two edges keep a wait from missing its end:
//
//	(A) End: requests.Add -> waiting.Load   with  Take: waiting.Add -> requests.Load
//	    Atomics have one order, so that one of the two sees the other.
type Pacer struct {
	budget   int64 // bytes
	above    int64 // blocks
	patience time.Duration

	requests atomic.Int64 // blocks that requests fetch now
	waiting  atomic.Int64 // work that waits for fewer of them

	mu    sync.Mutex // guards what follows
	quiet chan struct{}
	used  int64
	queue []*turn // who waits for bytes, first come first served
}

type turn struct {
	bytes   int64
	granted chan struct{}
}

// NewPacer returns a pacer for budget bytes of work in flight, which begins nothing
// while requests fetch more than above blocks, but waits no longer than patience for
// that: under requests without end work goes on, a step in each patience.
func NewPacer(budget int64, above int, patience time.Duration) *Pacer {
	return &Pacer{budget: budget, above: int64(above), patience: patience, quiet: make(chan struct{})}
}

// Begin says that requests fetch n more blocks.
func (p *Pacer) Begin(n int) { p.requests.Add(int64(n)) }

// End says that n of them are here, or will not come.
func (p *Pacer) End(n int) {
	if p.requests.Add(int64(-n)) > p.above || p.waiting.Load() == 0 { // (A)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.quiet)
	p.quiet = make(chan struct{})
}

// Requests is the number of blocks that requests fetch now.
func (p *Pacer) Requests() int { return int(p.requests.Load()) }

// InFlight is how many bytes work has taken and not given back.
func (p *Pacer) InFlight() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}

// Take waits until work of so many bytes may begin, and returns what is to be given
// back: more than the budget is the whole of it. After an error there is nothing.
func (p *Pacer) Take(ctx context.Context, bytes int64) (taken int64, err error) {
	taken = min(max(bytes, 0), p.budget)
	if err := p.takeBytes(ctx, taken); err != nil {
		return 0, err
	}
	if err := p.yield(ctx); err != nil {
		p.Give(taken)
		return 0, err
	}
	return taken, nil
}

func (p *Pacer) takeBytes(ctx context.Context, n int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p.mu.Lock()
	if len(p.queue) == 0 && p.used+n <= p.budget {
		p.used += n
		p.mu.Unlock()
		return nil
	}
	t := &turn{n, make(chan struct{})}
	p.queue = append(p.queue, t)
	p.mu.Unlock()
	select {
	case <-t.granted:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, o := range p.queue {
		if o == t {
			p.queue = append(p.queue[:i], p.queue[i+1:]...)
			p.grantLocked() // it may have been in the way
			return ctx.Err()
		}
	}
	p.used -= n // granted in the same moment
	p.grantLocked()
	return ctx.Err()
}

// Give gives bytes back.
func (p *Pacer) Give(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used -= n
	p.grantLocked()
}

func (p *Pacer) grantLocked() {
	for len(p.queue) > 0 && p.used+p.queue[0].bytes <= p.budget {
		t := p.queue[0]
		p.queue = p.queue[1:]
		p.used += t.bytes
		close(t.granted)
	}
}

// yield waits until requests fetch few blocks, or patience ends.
func (p *Pacer) yield(ctx context.Context) error {
	if p.requests.Load() <= p.above {
		return nil
	}
	p.waiting.Add(1)
	defer p.waiting.Add(-1)
	end := time.NewTimer(p.patience)
	defer end.Stop()
	for {
		p.mu.Lock()
		quiet := p.quiet
		p.mu.Unlock()
		if p.requests.Load() <= p.above { // (A)
			return nil
		}
		select {
		case <-quiet:
		case <-end.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
