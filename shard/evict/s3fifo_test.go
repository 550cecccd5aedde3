package evict

import (
	"slices"
	"testing"
)

func TestS3FIFO(t *testing.T) {
	f, p := open(t, "s3fifo", 10) // small queue: 1 block
	for id := ID(1); id <= 4; id++ {
		p.Insert(f.chain(0, id), uint32(id))
	}
	f.last[1] = 9 // used while small: stays
	v := p.Victim(10)
	if v != 2 {
		t.Fatalf("victim %d, want 2, the oldest not used again", v)
	}
	p.Remove(v, Evicted, 10)
	p.Insert(f.chain(0, 2), 11) // a ghost: to main at once
	s := p.(*s3fifo)
	if s.number(1) != queueMain || s.number(2) != queueMain || s.number(3) != queueSmall {
		t.Errorf("queues of 1, 2, 3 are %d %d %d, want main, main, small", s.number(1), s.number(2), s.number(3))
	}
	if got, want := drain(t, p, 20), []ID{3, 1, 2, 4}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}

// TestGhost: a hash is remembered once, until its set has seen eight others.
func TestGhost(t *testing.T) {
	g := newGhost(64)
	g.put(7)
	if !g.take(7) || g.take(7) {
		t.Error("a hash must be found once")
	}
	g.put(7)
	forgotten := 0
	for h := uint64(100); forgotten == 0 && h < 1000; h++ {
		g.put(h)
		ways, print := g.set(7)
		if !slices.Contains(ways, print) {
			forgotten = int(h - 99)
		}
	}
	if forgotten < ghostWays {
		t.Errorf("forgotten after %d others (0: never), want at least %d", forgotten, ghostWays)
	}
}
