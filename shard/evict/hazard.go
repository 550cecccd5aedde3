package evict

import "math/bits"

// Ages are counted in half octaves of accesses.
const ages = 64

// bucket is the half octave of an age: twice the exponent, plus the bit below
// the leading one.
func bucket(age uint32) int {
	if age < 2 {
		return 0
	}
	e := bits.Len32(age) - 1
	return 2*e + int(age>>(e-1)&1)
}

// width is the number of ages in a bucket. Buckets 0 and 1 share the ages 0 and
// 1: bucket 1 is never asked for, but must not have width 0.
func width(b int) float64 {
	if b < 2 {
		return 1
	}
	return float64(uint64(1) << (b/2 - 1))
}

// class says which blocks are expected to share one fate. It fits four bits of
// a node's word.
type class uint8

const (
	classNone class = 0 // not resident
	// 1 to 12: turn*3 + length + 1
	classHub  class = 13 // many continuations were deposited under it
	classTail class = 14 // last, often partial, block of a chain
	classDead class = 15 // unreachable: an ancestor is not resident
	classes         = 16

	turns   = 4 // turns 0, 1, 2, and 3 for any later one
	lengths = 3
	hubAt   = 15 // children ever deposited that make a hub; the field has four bits
)

// chainClass is the class of an ordinary block.
func chainClass(turn, length uint8) class { return class(1 + lengths*turn + length) }

// chained reports a class that names a turn and a length.
func (c class) chained() bool { return c >= 1 && c <= turns*lengths }

func (c class) turn() uint8   { return uint8(c-1) / lengths }
func (c class) length() uint8 { return uint8(c-1) % lengths }

// lengthOf is the length class of a chain of n blocks.
func lengthOf(n uint32) uint8 {
	switch {
	case n < 4:
		return 0
	case n < 64:
		return 1
	}
	return 2
}

// Weights of the prior: how many events it counts for. 4 to 30 and 8 to 50
// measured the same, and so did forgetting 0.3 to 3 % a time.
const (
	priorWeight  = 10 // of a base hazard or of the bucket before
	shrinkWeight = 20 // of the node above
	forget       = 0.99
)

// ageTable counts events by class and age.
type ageTable [classes][ages]float64

// hazards learns when blocks of a class are used again, and turns that into the
// value of keeping one.
//
// A class is a leaf of a small tree: all chained blocks, then turns, then turn
// and length. A node with few events leans on the node above it, hub and tail
// and the root on a hazard that falls with age, which makes the policy LRU until
// it knows better.
type hazards struct {
	hits  ageTable // uses again, at the age they came
	drops ageTable // records given up unused, at that age
	// index is the value of a block: expected hits for each access of residence,
	// up to the horizon at which that is greatest.
	index ageTable
}

func (h *hazards) hit(c class, age uint32, weight float64)  { h.hits[c][bucket(age)] += weight }
func (h *hazards) drop(c class, age uint32, weight float64) { h.drops[c][bucket(age)] += weight }

// node is one node of the class tree while its hazards are computed.
type node struct {
	hits, drops [ages]float64
	haz         [ages]float64
}

func (n *node) add(hits, drops *[ages]float64) {
	for b := range ages {
		n.hits[b] += hits[b]
		n.drops[b] += drops[b]
	}
}

// estimate computes haz. Records that left unused in a bucket were at risk for
// half of it. above is nil for a node without one.
func (n *node) estimate(first float64, above *node) {
	var risk [ages]float64
	sum := 0.0
	for b := ages - 1; b >= 0; b-- {
		sum += n.hits[b] + n.drops[b]
		risk[b] = sum - n.drops[b]/2
	}
	for b := range ages {
		base, w := first, float64(priorWeight)
		switch {
		case above != nil:
			base, w = above.haz[b], shrinkWeight
		case b > 0:
			base = n.haz[b-1]
		}
		n.haz[b] = (n.hits[b] + w*base) / (risk[b] + w)
	}
}

// value fills index[b] with the greatest ratio of expected hits to expected
// residence over all horizons e > b.
//
// From right to left: the best stretch from b begins with bucket b, and goes on
// with the best stretch from where it ends while that is worth more. Sums of
// stretches, not differences of totals: survivors may be few.
func (n *node) value(index *[ages]float64) {
	type stretch struct{ hits, time float64 }
	var alive [ages + 1]float64
	alive[0] = 1
	for b := range ages {
		alive[b+1] = alive[b] * (1 - n.haz[b])
	}
	var stack [ages]stretch
	top := 0
	for b := ages - 1; b >= 0; b-- {
		s := stretch{alive[b] * n.haz[b], (alive[b] + alive[b+1]) / 2 * width(b)}
		// s.hits/s.time <= that of the next, without dividing by what may be 0.
		for top > 0 && s.hits*stack[top-1].time <= stack[top-1].hits*s.time {
			top--
			s.hits += stack[top].hits
			s.time += stack[top].time
		}
		index[b] = 0
		if s.time > 0 {
			index[b] = s.hits / s.time
		}
		stack[top] = s
		top++
	}
}

// learn recomputes index. live counts records at their present age: they are
// censored there, and leaving them out would show returning records only.
func (h *hazards) learn(live *ageTable) {
	var root node
	var turn [turns]node
	var leaf [classes]node
	for c := class(1); c <= classTail; c++ {
		n := &leaf[c]
		n.hits = h.hits[c]
		for b := range ages {
			n.drops[b] = h.drops[c][b] + live[c][b]
		}
		if c.chained() {
			turn[c.turn()].add(&n.hits, &n.drops)
			root.add(&n.hits, &n.drops)
		}
	}
	root.estimate(0.10, nil)
	leaf[classHub].estimate(0.30, nil)
	leaf[classTail].estimate(0.02, nil)
	for i := range turn {
		turn[i].estimate(0, &root)
	}
	for c := class(1); c <= classTail; c++ {
		if c.chained() {
			leaf[c].estimate(0, &turn[c.turn()])
		}
		leaf[c].value(&h.index[c])
	}
	for c := range h.hits {
		for b := range ages {
			h.hits[c][b] *= forget
			h.drops[c][b] *= forget
		}
	}
}
