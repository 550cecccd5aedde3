package events

import (
	"encoding/binary"
	"slices"

	"github.com/zeebo/xxh3"
)

// hashSeed is the routers' seed of the hash of a block's tokens.
const hashSeed = 1337

// localHasher hashes the tokens of blocks as Dynamo's router does: XXH3 with 64 bits
// of the tokens, little endian, then of the hashes of the multimodal objects in the
// block, ascending; the seed depends on the adapter and the cache namespace.
type localHasher struct {
	imageToken uint32
	hasImage   bool

	lora, salt string // of seed
	seed       uint64
	buf        []byte
	objects    []uint64
}

// reset sets what the blocks that follow have in common.
func (h *localHasher) reset(lora, salt string) {
	if h.seed != 0 && lora == h.lora && salt == h.salt {
		return
	}
	h.lora, h.salt = lora, salt
	h.seed = hashSeed
	if lora != "" {
		h.seed += xxh3.HashString(lora)
	}
	if salt != "" {
		h.seed += xxh3.HashStringSeed(salt, 1)
	}
}

// block hashes one block; mm names the objects in it.
func (h *localHasher) block(tokens []uint32, mm []MM) uint64 {
	if len(mm) > 0 && h.hasImage {
		h.padded(tokens, mm)
		return xxh3.HashSeed(h.buf, h.seed)
	}
	h.buf = slices.Grow(h.buf[:0], 4*len(tokens)+8*len(mm))[:4*len(tokens)]
	b, ts := h.buf, tokens
	for ; len(ts) >= 2 && len(b) >= 8; ts, b = ts[2:], b[8:] {
		binary.LittleEndian.PutUint64(b, uint64(ts[0])|uint64(ts[1])<<32)
	}
	for i, t := range ts {
		binary.LittleEndian.PutUint32(b[4*i:], t)
	}
	if len(mm) > 0 {
		h.objects = h.objects[:0]
		for _, o := range mm {
			h.objects = append(h.objects, o.Hash)
		}
		slices.Sort(h.objects)
		for _, o := range h.objects {
			h.buf = binary.LittleEndian.AppendUint64(h.buf, o)
		}
	}
	return xxh3.HashSeed(h.buf, h.seed)
}

// padded writes the tokens with each run of image tokens in place of its object: the
// first run is of the first object, and so on; further runs are of the last one.
func (h *localHasher) padded(tokens []uint32, mm []MM) {
	h.buf = h.buf[:0]
	run, inside := 0, false
	for _, t := range tokens {
		if t == h.imageToken {
			inside = true
			t = PadToken(mm[min(run, len(mm)-1)].Hash)
		} else if inside {
			inside = false
			run++
		}
		h.buf = binary.LittleEndian.AppendUint32(h.buf, t)
	}
}

// PadToken is the token that stands for a multimodal object where it is part of the
// prompt.
func PadToken(object uint64) uint32 { return uint32(1_000_000 + object&(1<<30-1)) }
