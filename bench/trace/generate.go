package trace

import (
	"math"
	"math/rand/v2"
	"sort"
)

// Params shape a generated trace. The defaults of DefaultParams follow what the
// Mooncake conversation trace shows: conversations that share one first block,
// turns that keep all of the chain but its partial last block, gaps of minutes,
// and documents read once.
type Params struct {
	Seed          uint64
	Conversations int     // begun in the trace
	Rate          float64 // of them begun each second

	// Continue[i] is the probability that turn i has a next one; the last holds
	// for all later turns.
	Continue []float64

	FirstBlocks float64 // median blocks of a first turn, shared block included
	TurnBlocks  float64 // median blocks a later turn adds
	Spread      float64 // sigma of both, log-normal

	GapMillis float64 // median time to the next turn, milliseconds
	GapSpread float64 // its sigma, log-normal

	LongShare  float64 // of conversations that are one document, read once
	LongBlocks float64 // median blocks of such a document

	BlockTokens int // tokens of a block
}

// DefaultParams makes about 10,000 requests and 150,000 different blocks.
func DefaultParams(seed uint64) Params {
	return Params{
		Seed:          seed,
		Conversations: 6500,
		Rate:          2,
		Continue:      []float64{.31, .42, .51, .59, .59, .75},
		FirstBlocks:   13,
		TurnBlocks:    6,
		Spread:        0.9,
		GapMillis:     126e3,
		GapSpread:     0.9,
		LongShare:     0.05,
		LongBlocks:    120,
		BlockTokens:   512,
	}
}

// maxTurns ends a conversation whatever Continue says.
const maxTurns = 100

// Generate makes a trace. Equal Params give equal traces.
func Generate(name string, p Params) *Trace {
	r := rand.New(rand.NewPCG(p.Seed, 0x7472616365))
	logNormal := func(median, sigma float64) float64 { return median * math.Exp(sigma*r.NormFloat64()) }
	next := uint64(1) // 0 is the block all conversations share
	fresh := func(ids []uint64, n int) []uint64 {
		ids = append([]uint64(nil), ids...) // turns keep their own slices
		for range n {
			ids = append(ids, next)
			next++
		}
		return ids
	}
	out := &Trace{Name: name, Made: true}
	add := func(at float64, ids []uint64) {
		// The last block is partly filled.
		tokens := (len(ids)-1)*p.BlockTokens + 1 + r.IntN(p.BlockTokens)
		out.Requests = append(out.Requests, Request{
			Timestamp: int64(at), InputLength: tokens,
			OutputLength: 1 + int(logNormal(250, 1)), IDs: ids,
		})
	}
	start := 0.0
	for range p.Conversations {
		start += r.ExpFloat64() * 1000 / p.Rate
		root := []uint64{0}
		if r.Float64() < p.LongShare {
			add(start, fresh(root, max(1, int(logNormal(p.LongBlocks, 0.5)))))
			continue
		}
		at := start
		ids := fresh(root, max(1, int(logNormal(p.FirstBlocks, p.Spread))-1))
		for turn := 0; ; turn++ {
			add(at, ids)
			last := min(turn, len(p.Continue)-1)
			if turn == maxTurns || last < 0 || r.Float64() >= p.Continue[last] {
				break
			}
			at += logNormal(p.GapMillis, p.GapSpread)
			ids = fresh(ids[:len(ids)-1], 1+max(1, int(logNormal(p.TurnBlocks, p.Spread))))
		}
	}
	sort.SliceStable(out.Requests, func(i, j int) bool {
		return out.Requests[i].Timestamp < out.Requests[j].Timestamp
	})
	return out
}
