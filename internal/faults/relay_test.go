package faults

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// relay is an address of its own for a peer: it counts connections, and can hold
// back what the peer sends after so many bytes.
type relay struct {
	addr, to string

	mu    sync.Mutex
	cond  *sync.Cond
	ln    net.Listener // nil: nobody listens
	conns []net.Conn
	count int
	pass  int64 // bytes of the peer that may still pass; negative: all
	done  sync.WaitGroup
}

// newRelay has an address where nobody listens, until open.
func newRelay(t testing.TB, to string) *relay {
	r := &relay{addr: address(t)[len("tcp://"):], to: to, pass: -1}
	r.cond = sync.NewCond(&r.mu)
	t.Cleanup(r.shut)
	return r
}

func (r *relay) endpoint() string { return "tcp://" + r.addr }

func (r *relay) open(t testing.TB) {
	t.Helper()
	ln, err := net.Listen("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	r.ln, r.count = ln, 0
	r.mu.Unlock()
	r.done.Add(1)
	go r.serve(ln)
}

// shut ends all connections; nobody listens afterwards.
func (r *relay) shut() {
	r.mu.Lock()
	if r.ln != nil {
		r.ln.Close()
	}
	for _, c := range r.conns {
		c.Close()
	}
	r.ln, r.conns, r.count, r.pass = nil, nil, 0, -1
	r.cond.Broadcast()
	r.mu.Unlock()
	r.done.Wait()
}

// accepted is how many connections there were since open.
func (r *relay) accepted() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}

// hold lets only so many bytes of the peer pass from now on; negative: all.
func (r *relay) hold(pass int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pass = pass
	r.cond.Broadcast()
}

// held waits until no byte may pass any more.
func (r *relay) held(t testing.TB) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		r.mu.Lock()
		left := r.pass
		r.mu.Unlock()
		if left == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d bytes have not come", left)
		}
	}
}

// grant waits until some of n bytes may pass, and says how many.
func (r *relay) grant(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.pass == 0 {
		r.cond.Wait()
	}
	if r.pass > 0 {
		n = int(min(int64(n), r.pass))
		r.pass -= int64(n)
	}
	return n
}

func (r *relay) serve(ln net.Listener) {
	defer r.done.Done()
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		s, err := net.Dial("tcp", r.to)
		if err != nil {
			c.Close()
			continue
		}
		r.mu.Lock()
		r.count++
		r.conns = append(r.conns, c, s)
		r.mu.Unlock()
		r.done.Add(2)
		go func() {
			defer r.done.Done()
			_, _ = io.Copy(s, c) // its end is the end of both
			s.Close()
		}()
		go func() {
			defer r.done.Done()
			defer c.Close()
			defer s.Close()
			b := make([]byte, 16<<10)
			for {
				n, err := s.Read(b)
				for at := 0; at < n; {
					k := r.grant(n - at)
					if _, err := c.Write(b[at : at+k]); err != nil {
						return
					}
					at += k
				}
				if err != nil {
					return
				}
			}
		}()
	}
}
