package soak

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// echoing is a server that sends back what comes, and the relay before it.
func echoing(t *testing.T) (*relay, *tally) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { // its end is that of the relay's link
				io.Copy(c, c)
				c.Close()
			}()
		}
	}()
	faults, bad := &tally{}, &atomic.Bool{}
	r, err := newRelay(ln.Addr().String(), 1, faults, bad)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.close()
		ln.Close()
		<-done
	})
	return r, faults
}

func (r *relay) dialled(t *testing.T) net.Conn {
	c, err := net.Dial("tcp", r.addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

// through sends bytes and reads as many.
func through(c net.Conn, sent []byte) ([]byte, error) {
	go c.Write(sent) // its failure is that of the read
	got := make([]byte, len(sent))
	n, err := io.ReadFull(c, got)
	return got[:n], err
}

func TestRelay(t *testing.T) {
	sent := make([]byte, 1<<20)
	for i := range sent {
		sent[i] = byte(i * 7)
	}
	r, _ := echoing(t)
	c := r.dialled(t)
	if got, err := through(c, sent); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d of %d bytes pass, %v", len(got), len(sent), err)
	}
	// Half an end passes too.
	c.(*net.TCPConn).CloseWrite()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v, want EOF", err)
	}
	// What is held comes later, what is cut does not.
	c = r.dialled(t)
	if _, err := through(c, sent[:10]); err != nil {
		t.Fatal(err)
	}
	r.hold()
	c.Write(sent[:10])
	c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if n, err := c.Read(make([]byte, 10)); err == nil {
		t.Errorf("%d bytes pass while they are held", n)
	}
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	r.pass()
	if n, err := io.ReadFull(c, make([]byte, 10)); err != nil {
		t.Errorf("%d bytes that were held, %v", n, err)
	}
	if n := r.cut(); n == 0 {
		t.Error("nothing is cut")
	}
	if n, err := c.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes after a cut", n)
	}
	r.flip.Store(1)
	got, err := through(r.dialled(t), sent)
	wrong := 0
	for i := range got {
		if got[i] != sent[i] {
			wrong++
		}
	}
	if err != nil || wrong != 1 {
		t.Errorf("%d bytes were changed, want 1; %v", wrong, err)
	}
}

// Each fate comes to be, and does no more than it should: bytes that pass are right.
func TestFates(t *testing.T) {
	sent := bytes.Repeat([]byte("0123456789abcdef"), 4<<10)
	tests := []struct {
		name, counted string
		fate          fate
		whole         bool
		least, most   int // bytes that come
	}{
		{"cut", "cut connection", fate{cut: 60_000, stall: never, hole: never}, false, 0, 60_000},
		{"stalled", "stalled connection", fate{cut: never, stall: 1000, stallFor: 30 * time.Millisecond, hole: never}, true, len(sent), len(sent)},
		{"swallowed", "swallowed connection", fate{cut: never, stall: never, hole: 60_000, holeFor: 20 * time.Millisecond}, false, 0, 60_000},
		{"delayed", "delayed piece", fate{cut: never, stall: never, hole: never, delay: time.Millisecond}, true, len(sent), len(sent)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, faults := echoing(t)
			r.fate.Store(&tt.fate)
			got, err := through(r.dialled(t), sent)
			if (err == nil) != tt.whole || len(got) < tt.least || len(got) > tt.most {
				t.Errorf("%d bytes come, %v; want %d to %d", len(got), err, tt.least, tt.most)
			}
			if !bytes.Equal(got, sent[:len(got)]) {
				t.Error("they are wrong")
			}
			if faults.get(tt.counted) == 0 {
				t.Errorf("no %s is counted", tt.counted)
			}
		})
	}
	kinds := map[string]bool{}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		f := fateOf(rng)
		kinds["cut"] = kinds["cut"] || f.cut < never
		kinds["stall"] = kinds["stall"] || f.stall < never && f.stallFor > 0
		kinds["hole"] = kinds["hole"] || f.hole < never && f.holeFor > 0
		kinds["delay"] = kinds["delay"] || f.delay > 0
		kinds["none"] = kinds["none"] || f == fate{cut: never, stall: never, hole: never}
	}
	if len(kinds) != 5 || !kinds["cut"] || !kinds["stall"] || !kinds["hole"] || !kinds["delay"] || !kinds["none"] {
		t.Errorf("of 200 connections some fate is none's: %v", kinds)
	}
}
