package model

import (
	"fmt"

	"github.com/kvcr-go/kvcr/bench/trace"
)

// Cache is a simulated cache of blocks, numbered from 0 in order of appearance.
// A Cache serves one run.
type Cache interface {
	// Start empties the cache and gives its size in blocks, and how many
	// different blocks the run will name.
	Start(capacity, unique int)
	Resident(id uint32) bool
	// Request makes all ids resident. The first hits of them are, and were read.
	Request(ids []uint32, hits int)
}

// Foreseeing is a Cache that is told the future before Start.
type Foreseeing interface {
	Cache
	Foresee(requests [][]uint32)
}

// Result counts blocks of counted requests.
type Result struct {
	IDs       int // blocks asked for
	Hits      int // usable-prefix hits
	BlockHits int // resident, usable or not

	// UnreachableShare is the mean share of resident blocks with an ancestor
	// that is not resident, over some 64 moments of the run.
	UnreachableShare float64
}

// Percent is the usable-prefix hit ratio in percent.
func (r Result) Percent() float64 { return 100 * float64(r.Hits) / float64(max(1, r.IDs)) }

// BlockPercent is the block hit ratio in percent.
func (r Result) BlockPercent() float64 { return 100 * float64(r.BlockHits) / float64(max(1, r.IDs)) }

func (r Result) String() string {
	return fmt.Sprintf("prefix %.1f %%, block %.1f %%, unreachable %.1f %%", r.Percent(), r.BlockPercent(), 100*r.UnreachableShare)
}

// Requests is a trace with its ids numbered from 0: what several runs share.
type Requests struct {
	ids     [][]uint32
	counted []bool
	parents []int32 // by id: the block before it, -1 for a first one
}

// Prepare numbers the ids of t.
func Prepare(t *trace.Trace) *Requests {
	p := &Requests{}
	number := make(map[uint64]uint32)
	for i := range t.Requests {
		r := &t.Requests[i]
		ids := make([]uint32, 0, len(r.IDs))
		parent := int32(-1)
		for _, id := range r.IDs {
			n, ok := number[id]
			if !ok {
				n = uint32(len(number))
				number[id] = n
				p.parents = append(p.parents, parent)
			}
			ids = append(ids, n)
			parent = int32(n)
		}
		p.ids = append(p.ids, ids)
		p.counted = append(p.counted, !r.Uncounted)
	}
	return p
}

// Unique is the number of different blocks.
func (p *Requests) Unique() int { return len(p.parents) }

// Run plays t against c.
func Run(t *trace.Trace, capacity int, c Cache) Result { return Prepare(t).Run(capacity, c) }

// Run plays the requests against c.
func (p *Requests) Run(capacity int, c Cache) Result {
	capacity = max(1, capacity)
	requests := make([][]uint32, len(p.ids))
	for i, ids := range p.ids {
		requests[i] = ids[:min(len(ids), capacity)]
	}
	if f, ok := c.(Foreseeing); ok {
		f.Foresee(requests)
	}
	c.Start(capacity, p.Unique())
	var res Result
	every := max(1, len(requests)/64)
	samples := 0
	for i, ids := range requests {
		hits, blockHits := 0, 0
		for j, id := range ids {
			if c.Resident(id) {
				blockHits++
				if hits == j {
					hits++
				}
			}
		}
		if p.counted[i] {
			res.IDs += len(p.ids[i])
			res.Hits += hits
			res.BlockHits += blockHits
		}
		c.Request(ids, hits)
		if (i+1)%every == 0 {
			res.UnreachableShare += p.unreachable(c)
			samples++
		}
	}
	res.UnreachableShare /= float64(max(1, samples))
	return res
}

// unreachable is the share of resident blocks whose chain above is broken.
func (p *Requests) unreachable(c Cache) float64 {
	resident, lost := 0, 0
	broken := make([]bool, len(p.parents)) // parents are numbered before their children
	for id := range p.parents {
		in := c.Resident(uint32(id))
		above := false
		if up := p.parents[id]; up >= 0 {
			above = broken[up]
		}
		broken[id] = above || !in
		if in {
			resident++
			if above {
				lost++
			}
		}
	}
	return float64(lost) / float64(max(1, resident))
}
