package evict

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestBucket(t *testing.T) {
	for _, tt := range []struct {
		age  uint32
		want int
	}{
		{0, 0}, {1, 0}, {2, 2}, {3, 3}, {4, 4}, {5, 4}, {6, 5}, {7, 5}, {8, 6}, {11, 6}, {12, 7}, {16, 8},
		{1 << 20, 40}, {3 << 19, 41}, {1 << 31, 62}, {math.MaxUint32, 63},
	} {
		if got := bucket(tt.age); got != tt.want {
			t.Errorf("bucket(%d) = %d, want %d", tt.age, got, tt.want)
		}
	}
	// Widths add up to where the next bucket begins.
	start := 0.0
	for b := range ages {
		if b > 1 && bucket(uint32(start)) != b {
			t.Errorf("bucket %d does not begin at %.0f", b, start)
		}
		start += width(b)
	}
	if start != 1<<32 {
		t.Errorf("widths add up to %.0f, want 1<<32", start)
	}
}

// naive computes the index of a class that leans on nothing but the hazards haz.
func naive(haz *[ages]float64) (index [ages]float64) {
	for b := range ages {
		s, h, tm := 1.0, 0.0, 0.0 // of a block that survived to b
		for e := b; e < ages; e++ {
			h += s * haz[e]
			tm += (s + s*(1-haz[e])) / 2 * width(e)
			s *= 1 - haz[e]
			index[b] = max(index[b], h/tm)
		}
	}
	return index
}

// TestValue: the hull gives what trying every horizon gives.
func TestValue(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for range 300 {
		var n node
		for b := range n.haz {
			switch r.IntN(3) {
			case 0:
				n.haz[b] = r.Float64() / 2
			case 1:
				n.haz[b] = math.Exp(-10 * r.Float64())
			}
		}
		var got [ages]float64
		n.value(&got)
		want := naive(&n.haz)
		for b := range want {
			if math.Abs(got[b]-want[b]) > 1e-9*(1e-9+want[b]) {
				t.Fatalf("index[%d] = %g, want %g, hazards %v", b, got[b], want[b], n.haz)
			}
		}
	}
}

// TestEstimate: a hand-made table, reckoned by hand.
func TestEstimate(t *testing.T) {
	var n node
	n.hits[4], n.drops[4], n.drops[6] = 30, 20, 50
	n.estimate(0.10, nil)
	// Risk in 4: 30 + 20 + 50 less half the 20 that left there; ten prior events at the bucket before.
	for b, want := range map[int]float64{
		0: (0 + 10*0.10) / (100 + 10),
		4: (30 + 10*n.haz[3]) / (90 + 10),
		5: (0 + 10*n.haz[4]) / (50 + 10),
		6: (0 + 10*n.haz[5]) / (25 + 10),
		9: n.haz[8], // no events: as before
	} {
		if math.Abs(n.haz[b]-want) > 1e-12 {
			t.Errorf("haz[%d] = %g, want %g", b, n.haz[b], want)
		}
	}
	var under node
	under.hits[4] = 5
	under.estimate(0, &n)
	if want := (5 + 20*n.haz[4]) / (5 + 20); math.Abs(under.haz[4]-want) > 1e-12 {
		t.Errorf("under another node haz[4] = %g, want %g", under.haz[4], want)
	}
	if under.haz[6] != n.haz[6] {
		t.Errorf("without events haz[6] = %g, want that of the node above, %g", under.haz[6], n.haz[6])
	}
}

// TestIndexWithoutEvents: it falls strictly from octave to octave and rises
// nowhere (the halves of an octave are of one width, hence of one value), so the
// policy is LRU; hubs are worth more than others and tails less.
func TestIndexWithoutEvents(t *testing.T) {
	var h hazards
	h.learn(&ageTable{})
	for c := class(1); c <= classTail; c++ {
		i := &h.index[c]
		for b := 2; b < ages; b++ {
			if i[b] <= 0 || i[b] > i[b-1]*(1+1e-9) || b >= 4 && i[b] > i[b-2]*0.9 {
				t.Errorf("class %d: index[%d] = %g after %g and %g", c, b, i[b], i[b-1], i[b-2])
			}
		}
	}
	if i := &h.index; !(i[classTail][10] < i[1][10] && i[1][10] < i[classHub][10]) {
		t.Errorf("tail %g, chain %g, hub %g: want them to rise", i[classTail][10], i[1][10], i[classHub][10])
	}
}

// TestIndexLearns: blocks that return after 4096 accesses are worth more shortly
// before than when fresh, and little after; live records weigh on the hazard.
func TestIndexLearns(t *testing.T) {
	var h hazards
	c := chainClass(1, 1)
	h.hit(c, 4096, 500)
	h.drop(c, 1<<20, 500)
	before := h
	h.learn(&ageTable{})
	fresh, due, late := h.index[c][0], h.index[c][bucket(4000)], h.index[c][bucket(1<<16)]
	if !(fresh < due && late < fresh) {
		t.Errorf("fresh %g, due %g, late %g: want due greatest and late least", fresh, due, late)
	}
	var live ageTable
	live[c][bucket(1<<14)] = 5000
	before.learn(&live)
	if got := before.index[c][bucket(4000)]; got > due/4 {
		t.Errorf("with ten times as many live records %g, want under a quarter of %g", got, due)
	}
	if h.hits[c][bucket(4096)] != 500*forget {
		t.Errorf("hits %g after learn, want %g", h.hits[c][bucket(4096)], 500*forget)
	}
}
