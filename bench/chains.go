package bench

import (
	"slices"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/keys"
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

// tokenChain is a chain of blocks with the tokens that they are of, as an engine has it.
type tokenChain struct {
	blocks []events.Block
	tokens []uint32
	size   int // tokens of a block
}

// makeTokenChain makes the same chain for the same number, another for another.
func makeTokenChain(number uint64, blocks, size int) tokenChain {
	c := tokenChain{tokens: make([]uint32, blocks*size), size: size}
	for i := range c.tokens {
		c.tokens[i] = uint32(mix64(number<<32+uint64(i)) % 128_000) // a vocabulary
	}
	h := keys.Hasher{BlockSize: size, Seed: keys.Seed}
	c.blocks = h.AppendBlocks(nil, c.tokens, nil)
	return c
}

// stored is the event of the blocks [from, to) in memory of the host.
func (c *tokenChain) stored(from, to int) *events.Batch {
	ev := events.Event{Kind: events.BlockStored, Hashes: c.hashes(from, to), Tokens: c.tokens[from*c.size : to*c.size], BlockSize: uint32(c.size), Medium: events.HostPinned.Medium()}
	if from > 0 {
		ev.HasParent, ev.Parent = true, c.blocks[from-1].Hash
	}
	return &events.Batch{Events: []events.Event{ev}}
}

// removed is the event of their removal, from the end on.
func (c *tokenChain) removed(from, to int) *events.Batch {
	hashes := c.hashes(from, to)
	slices.Reverse(hashes)
	return &events.Batch{Events: []events.Event{{Kind: events.BlockRemoved, Hashes: hashes, Medium: events.HostPinned.Medium()}}}
}

func (c *tokenChain) hashes(from, to int) (out []uint64) {
	for _, b := range c.blocks[from:to] {
		out = append(out, b.Hash)
	}
	return out
}
