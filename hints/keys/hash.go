package keys

import (
	"encoding/binary"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/kvcr-go/kvcr/hints/events"
)

// Seed is the seed of local hashes of a plain model, and of every chain.
const Seed = 1337

// BlockSeed returns the seed of local hashes under a LoRA adapter and in a cache
// namespace (the salt of a tenant). Either may be empty, which is as if absent.
func BlockSeed(lora, cacheNamespace string) uint64 {
	seed := uint64(Seed)
	if lora != "" {
		seed += xxh3.HashStringSeed(lora, 0)
	}
	if cacheNamespace != "" {
		seed += xxh3.HashStringSeed(cacheNamespace, 1)
	}
	return seed
}

// Extend returns the sequence hash of the block that follows the sequence parent.
// That of a chain's first block is its local hash.
func Extend(parent, local uint64) uint64 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], parent)
	binary.LittleEndian.PutUint64(b[8:], local)
	return xxh3.HashSeed(b[:], Seed)
}

// Hasher hashes blocks of tokens. BlockSize must be positive. A Hasher is for one
// goroutine; it keeps a buffer as long as a block.
type Hasher struct {
	BlockSize int
	// Seed of local hashes: BlockSeed. The zero Seed is not that of a plain model.
	Seed uint64
	// Eagle hashes each block with the token that follows it, so that a block is
	// complete one token later.
	Eagle bool

	buf    []byte
	sorted []uint64
}

// Blocks is how many complete blocks n tokens have.
func (h *Hasher) Blocks(n int) int {
	if h.Eagle {
		n--
	}
	if n <= 0 || h.BlockSize <= 0 {
		return 0
	}
	return n / h.BlockSize
}

// window is how many tokens are hashed for one block.
func (h *Hasher) window() int {
	if h.Eagle {
		return h.BlockSize + 1
	}
	return h.BlockSize
}

// Local returns the local hash of one block: of exactly these tokens, with the
// hashes of the images (or other media) that lie in the block, in any order.
func (h *Hasher) Local(tokens []uint32, media []uint64) uint64 {
	b := h.buf[:0]
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	if len(media) > 0 {
		h.sorted = append(h.sorted[:0], media...)
		slices.Sort(h.sorted)
		for _, m := range h.sorted {
			b = binary.LittleEndian.AppendUint64(b, m)
		}
	}
	h.buf = b
	return xxh3.HashSeed(b, h.Seed)
}

// AppendLocals appends the local hashes of the complete blocks of tokens. media[i],
// if there is one, are the hashes of the media in block i.
func (h *Hasher) AppendLocals(dst []uint64, tokens []uint32, media [][]uint64) []uint64 {
	for i := range h.Blocks(len(tokens)) {
		dst = append(dst, h.block(i, tokens, media))
	}
	return dst
}

// AppendBlocks appends both hashes of the complete blocks of tokens, which begin a
// chain: events.Block.Hash is the sequence hash.
func (h *Hasher) AppendBlocks(dst []events.Block, tokens []uint32, media [][]uint64) []events.Block {
	return h.append(dst, 0, false, tokens, media)
}

// AppendBlocksAfter is AppendBlocks for tokens that continue the sequence parent.
func (h *Hasher) AppendBlocksAfter(dst []events.Block, parent uint64, tokens []uint32, media [][]uint64) []events.Block {
	return h.append(dst, parent, true, tokens, media)
}

func (h *Hasher) append(dst []events.Block, seq uint64, follows bool, tokens []uint32, media [][]uint64) []events.Block {
	for i := range h.Blocks(len(tokens)) {
		local := h.block(i, tokens, media)
		if follows {
			seq = Extend(seq, local)
		} else {
			seq, follows = local, true
		}
		dst = append(dst, events.Block{Hash: seq, Local: local})
	}
	return dst
}

func (h *Hasher) block(i int, tokens []uint32, media [][]uint64) uint64 {
	var m []uint64
	if i < len(media) {
		m = media[i]
	}
	at := i * h.BlockSize
	return h.Local(tokens[at:at+h.window()], m)
}
