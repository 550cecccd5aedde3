package soak

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// relay is an address of this process that stands for one of a node. While it is bad
// it does to each connection what a fate drawn for that one says; it can hold what
// passes all of them, and cut them all.
type relay struct {
	to     string
	ln     net.Listener
	seed   uint64
	faults *tally
	bad    *atomic.Bool
	fate   atomic.Pointer[fate] // of all connections, for tests; nil: drawn for each
	// flip, when above 0, is how many bytes shall arrive changed: for tests of the
	// checks.
	flip atomic.Int32

	mu    sync.Mutex
	links map[*link]struct{}
	shut  bool
	count uint64
	gate  chan struct{} // closed when things may pass; nil: they may
	done  sync.WaitGroup
}

// fate is what will happen to one connection. Lengths are in bytes of either
// direction.
type fate struct {
	delay time.Duration // of each piece, at most
	cut   int64         // after so much: reset
	stall int64         // after so much nothing passes for stallFor
	hole  int64         // after so much everything is swallowed, until holeFor has passed; then reset

	stallFor, holeFor time.Duration
}

const never = 1 << 62

// fateOf draws a fate: about half of all connections have none, so that work gets done.
func fateOf(rng *rand.Rand) fate {
	p := fate{cut: never, stall: never, hole: never}
	after := func() int64 { // often in the middle of the first answers
		return int64(1) << rng.IntN(24) * (1 + int64(rng.IntN(8))) / 4
	}
	switch x := rng.IntN(100); {
	case x < 15:
		p.cut = after()
	case x < 30:
		p.stall, p.stallFor = after(), time.Duration(100+rng.IntN(3000))*time.Millisecond
	case x < 34:
		p.hole, p.holeFor = after(), time.Duration(1+rng.IntN(8))*time.Second
	case x < 50:
		p.delay = time.Duration(1+rng.IntN(20)) * time.Millisecond
	}
	return p
}

// link is one connection through a relay.
type link struct {
	r       *relay
	c, s    net.Conn // the client's and the node's
	fate    fate
	over    chan struct{}
	end     sync.Once
	stalled sync.Once
	passed  atomic.Int64
}

func newRelay(to string, seed uint64, faults *tally, bad *atomic.Bool) (*relay, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &relay{to: to, ln: ln, seed: seed, faults: faults, bad: bad, links: map[*link]struct{}{}}
	r.done.Add(1)
	go r.serve()
	return r, nil
}

func (r *relay) addr() string { return r.ln.Addr().String() }

// close ends all; it returns when nothing of the relay runs any more.
func (r *relay) close() {
	r.ln.Close()
	r.mu.Lock()
	r.shut = true
	r.mu.Unlock()
	r.pass()
	r.cut()
	r.done.Wait()
}

// cut resets all connections, and says how many there were.
func (r *relay) cut() int {
	r.mu.Lock()
	var all []*link
	for l := range r.links {
		all = append(all, l)
	}
	r.mu.Unlock()
	for _, l := range all {
		l.reset()
	}
	return len(all)
}

// hold lets nothing pass until pass is called.
func (r *relay) hold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gate == nil {
		r.gate = make(chan struct{})
	}
}

func (r *relay) pass() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gate != nil {
		close(r.gate)
		r.gate = nil
	}
}

func (r *relay) held() chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gate
}

func (r *relay) serve() {
	defer r.done.Done()
	for {
		c, err := r.ln.Accept()
		if err != nil {
			return
		}
		r.done.Add(1)
		go func() {
			defer r.done.Done()
			r.join(c)
		}()
	}
}

// join connects a client with the node.
func (r *relay) join(c net.Conn) {
	l := &link{r: r, c: c, over: make(chan struct{}), fate: fate{cut: never, stall: never, hole: never}}
	r.mu.Lock()
	r.count++
	rng := rand.New(rand.NewPCG(r.seed, r.count))
	r.mu.Unlock()
	if r.bad.Load() {
		l.fate = fateOf(rng)
		if rng.IntN(50) == 0 {
			r.faults.add("refused connection", 1)
			abort(c)
			return
		}
	}
	if f := r.fate.Load(); f != nil {
		l.fate = *f
	}
	if gate := r.held(); gate != nil {
		<-gate
	}
	s, err := net.DialTimeout("tcp", r.to, 5*time.Second)
	if err != nil {
		abort(c)
		return
	}
	l.s = s
	r.mu.Lock()
	r.links[l] = struct{}{}
	shut := r.shut
	r.mu.Unlock()
	if shut {
		l.reset()
	}
	var both sync.WaitGroup
	both.Add(2)
	go func() { defer both.Done(); l.pump(l.s, l.c, false) }()
	go func() { defer both.Done(); l.pump(l.c, l.s, true) }()
	both.Wait()
	l.c.Close()
	l.s.Close()
	r.mu.Lock()
	delete(r.links, l)
	r.mu.Unlock()
}

// abort closes a connection with a reset, so that nothing waits for it.
func abort(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // else it is closed like any other
	}
	c.Close()
}

func (l *link) reset() {
	l.end.Do(func() {
		close(l.over)
		abort(l.c)
		abort(l.s)
	})
}

// wait is a pause that the link's end cuts short.
func (l *link) wait(d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.over:
	}
}

// pump carries one direction. answers: that of the node.
func (l *link) pump(dst, src net.Conn, answers bool) {
	b := make([]byte, 32<<10)
	for {
		n, err := src.Read(b)
		if n > 0 && !l.carry(dst, b[:n], answers) {
			l.reset()
			return
		}
		if err != nil {
			select {
			case <-l.over:
			default:
				if t, ok := dst.(*net.TCPConn); ok && errors.Is(err, io.EOF) {
					_ = t.CloseWrite() // its other direction goes on
					return
				}
			}
			l.reset()
			return
		}
	}
}

// carry writes a piece as the link's fate wants. False: this is the end of the link.
func (l *link) carry(dst net.Conn, b []byte, answers bool) bool {
	p := &l.fate
	if p.delay > 0 {
		l.r.faults.add("delayed piece", 1)
		l.wait(p.delay/2 + time.Duration(len(b))*p.delay/(64<<10))
	}
	if gate := l.r.held(); gate != nil {
		select {
		case <-gate:
		case <-l.over:
			return false
		}
	}
	before := l.passed.Add(int64(len(b))) - int64(len(b))
	after := before + int64(len(b))
	if after > p.stall {
		l.stalled.Do(func() {
			l.r.faults.add("stalled connection", 1)
			l.wait(p.stallFor)
		})
	}
	if after > p.hole {
		l.r.faults.add("swallowed connection", 1)
		l.wait(p.holeFor)
		return false
	}
	if after > p.cut {
		l.r.faults.add("cut connection", 1)
		if keep := p.cut - before; keep > 0 {
			_, _ = dst.Write(b[:keep]) // it ends anyway
		}
		return false
	}
	if answers && len(b) > 8<<10 && l.r.flip.Load() > 0 && l.r.flip.Add(-1) >= 0 {
		b[len(b)/2] ^= 0x10
	}
	_, err := dst.Write(b)
	return err == nil
}
