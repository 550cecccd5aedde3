package bench

import (
	"slices"

	"github.com/kvcr-go/kvcr/hints/events"
)

// chains deals out blocks that are in no chain before.
type chains struct{ n uint64 }

// next fills blocks with the next chain.
func (c *chains) next(blocks []events.Block) {
	for i := range blocks {
		c.n++
		blocks[i] = events.Block{Hash: mix64(c.n), Local: mix64(c.n ^ 1<<60)}
	}
}

// stores appends a chain as events of up to so many blocks each, which share its
// memory.
func stores(dst []events.RouterEvent, w events.Worker, tier events.Tier, chain []events.Block, size int) []events.RouterEvent {
	for from := 0; from < len(chain); from += size {
		ev := events.RouterEvent{Worker: w, Tier: tier, Op: events.Stored, Blocks: chain[from:min(from+size, len(chain))]}
		if from > 0 {
			ev.HasParent, ev.Parent = true, chain[from-1].Hash
		}
		dst = append(dst, ev)
	}
	return dst
}

// removes appends the removal of a chain, from its end on, as an engine evicts it.
func removes(dst []events.RouterEvent, w events.Worker, tier events.Tier, chain []events.Block, size int) []events.RouterEvent {
	for to := len(chain); to > 0; to -= size {
		ev := events.RouterEvent{Worker: w, Tier: tier, Op: events.Removed}
		for _, b := range chain[max(0, to-size):to] {
			ev.Hashes = append(ev.Hashes, b.Hash)
		}
		slices.Reverse(ev.Hashes)
		dst = append(dst, ev)
	}
	return dst
}
