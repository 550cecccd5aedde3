package soak

import (
	"fmt"
	"math/rand/v2"

	"github.com/kvcr-go/kvcr/hints/keys"
	"github.com/kvcr-go/kvcr/wire"
)

const (
	blockTokens = 16
	recipe      = "dynamo/xxh3-1337/bs16"
	// Together the blocks are about one and a half times what a node holds.
	chainCount  = 64
	chainBlocks = 16
	cellsOfNode = 100
	// pairCount pairs of RESP keys live and die together, in chained namespaces.
	pairCount = 24
)

// pairSuffixes are those of LMCache's keys.
var pairSuffixes = [2]string{"metadata", "kv_bytes"}

// waiting is what keys of parts begin with whose partner has not come.
const waiting = "\x00pair\x00"

// newPairs makes the pairs: content follows from the key.
func newPairs() (pairs [][2]*block) {
	for i := range pairCount {
		var p [2]*block
		for j, suffix := range pairSuffixes {
			p[j] = &block{key: fmt.Appendf(nil, "pair/%03d/%s", i, suffix)}
			p[j].id = idOf(p[j].key)
		}
		pairs = append(pairs, p)
	}
	return pairs
}

// block is one block of a prompt: its content follows from its key.
type block struct {
	key    []byte
	id     uint64
	hash   uint64
	parent uint64 // of all but the first of a chain
	first  bool
	tokens []uint32
}

// chain is the blocks of a prompt, and their local hashes.
type chain struct {
	blocks []*block
	locals []uint64
}

// newChains makes prompts, every other one with the beginning of the one before.
func newChains(rng *rand.Rand, count int) (chains []*chain) {
	hasher := &keys.Hasher{BlockSize: blockTokens, Seed: keys.Seed}
	for i := range count {
		c := &chain{}
		if i%2 == 1 {
			shared := rng.IntN(chainBlocks)
			c.blocks = append(c.blocks, chains[i-1].blocks[:shared]...)
			c.locals = append(c.locals, chains[i-1].locals[:shared]...)
		}
		for len(c.blocks) < chainBlocks {
			b := &block{first: len(c.blocks) == 0, tokens: make([]uint32, blockTokens)}
			for j := range b.tokens {
				b.tokens[j] = rng.Uint32()
			}
			local := hasher.Local(b.tokens, nil)
			if b.hash = local; !b.first {
				b.parent = c.blocks[len(c.blocks)-1].hash
				b.hash = keys.Extend(b.parent, local)
			}
			b.key = keyOf(b.hash)
			b.id = idOf(b.key)
			c.blocks, c.locals = append(c.blocks, b), append(c.locals, local)
		}
		chains = append(chains, c)
	}
	return chains
}

// describe says what blocks are.
func describe(blocks []*block) *wire.Describe {
	d := &wire.Describe{BlockSize: blockTokens}
	for _, b := range blocks {
		one := wire.Description{Key: b.key, Tokens: b.tokens}
		if !b.first {
			one.Flags, one.Parent = wire.DescribeParent, b.parent
		}
		d.Blocks = append(d.Blocks, one)
	}
	return d
}

func keysOf(blocks []*block) [][]byte {
	out := make([][]byte, len(blocks))
	for i, b := range blocks {
		out[i] = b.key
	}
	return out
}
