package model

import (
	"math"
	"math/rand/v2"
)

// Keys is a stream of accesses to values that form no chains.
type Keys struct {
	Name   string
	IDs    []uint32
	Unique int // all IDs are below
}

// RunKeys plays k against c, each access a request of one block.
func RunKeys(k Keys, capacity int, c Cache) Result {
	capacity = max(1, capacity)
	if f, ok := c.(Foreseeing); ok {
		requests := make([][]uint32, len(k.IDs))
		for i := range k.IDs {
			requests[i] = k.IDs[i : i+1]
		}
		f.Foresee(requests)
	}
	c.Start(capacity, k.Unique)
	res := Result{IDs: len(k.IDs)}
	for i, id := range k.IDs {
		hits := 0
		if c.Resident(id) {
			hits = 1
		}
		res.Hits += hits
		c.Request(k.IDs[i:i+1], hits)
	}
	res.BlockHits = res.Hits
	return res
}

// zipf draws ranks 0..n-1 with probability proportional to 1/(rank+1)^s, after
// Gray et al., "Quickly generating billion-record synthetic databases" (1994).
// math/rand's Zipf needs s > 1.
type zipf struct {
	n                float64
	alpha, zeta, eta float64
	second           float64
	r                *rand.Rand
}

func newZipf(r *rand.Rand, s float64, n int) *zipf {
	z := &zipf{n: float64(n), alpha: 1 / (1 - s), second: 1 + math.Pow(0.5, s), r: r}
	for i := 1; i <= n; i++ {
		z.zeta += 1 / math.Pow(float64(i), s)
	}
	z.eta = (1 - math.Pow(2/z.n, 1-s)) / (1 - z.second/z.zeta)
	return z
}

func (z *zipf) next() uint32 {
	u := z.r.Float64()
	switch uz := u * z.zeta; {
	case uz < 1:
		return 0
	case uz < z.second:
		return 1
	}
	return uint32(min(z.n-1, z.n*math.Pow(z.eta*u-z.eta+1, z.alpha)))
}

const zipfSkew = 0.99

func source(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x6b766372)) }

// Zipf is n accesses to keys keys of Zipf popularity, skew 0.99.
func Zipf(seed uint64, keys, n int) Keys {
	z := newZipf(source(seed), zipfSkew, keys)
	k := Keys{Name: "zipf", Unique: keys, IDs: make([]uint32, n)}
	for i := range k.IDs {
		k.IDs[i] = z.next()
	}
	return k
}

// Uniform is n accesses to keys keys of equal popularity.
func Uniform(seed uint64, keys, n int) Keys {
	r := source(seed)
	k := Keys{Name: "uniform", Unique: keys, IDs: make([]uint32, n)}
	for i := range k.IDs {
		k.IDs[i] = uint32(r.IntN(keys))
	}
	return k
}

// Loop is n accesses to keys keys in turn, again and again.
func Loop(keys, n int) Keys {
	k := Keys{Name: "loop", Unique: keys, IDs: make([]uint32, n)}
	for i := range k.IDs {
		k.IDs[i] = uint32(i % keys)
	}
	return k
}

// Bursts is Zipf whose every second burst accesses are keys used once.
func Bursts(seed uint64, keys, n, burst int) Keys {
	z := newZipf(source(seed), zipfSkew, keys)
	k := Keys{Name: "bursts", Unique: keys, IDs: make([]uint32, n)}
	for i := range k.IDs {
		if i/burst%2 == 0 {
			k.IDs[i] = z.next()
		} else {
			k.IDs[i] = uint32(k.Unique)
			k.Unique++
		}
	}
	return k
}

// Changing is Zipf whose keys all become others after every period accesses.
func Changing(seed uint64, keys, n, period int) Keys {
	z := newZipf(source(seed), zipfSkew, keys)
	k := Keys{Name: "changing", Unique: keys * ((n + period - 1) / period), IDs: make([]uint32, n)}
	for i := range k.IDs {
		k.IDs[i] = z.next() + uint32(i/period*keys)
	}
	return k
}
