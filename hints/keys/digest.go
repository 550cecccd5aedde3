package keys

import (
	"encoding/binary"
	"encoding/hex"

	"github.com/zeebo/xxh3"

	"github.com/kvcr-go/kvcr/hints/events"
)

// Low64 returns what routers know of a vLLM digest: its low 64 bits, the digest
// being one big-endian number. False: it has fewer than 8 bytes.
func Low64(digest []byte) (uint64, bool) {
	if len(digest) < 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(digest[len(digest)-8:]), true
}

// MediaHash returns the hash of an image (or other media) by its identifier: the
// first 8 bytes of a SHA-256 in hex, the XXH3 of anything else.
func MediaHash(identifier string) uint64 {
	if len(identifier) == 64 {
		var sum [32]byte
		if _, err := hex.Decode(sum[:], []byte(identifier)); err == nil {
			return binary.BigEndian.Uint64(sum[:8])
		}
	}
	return xxh3.HashStringSeed(identifier, 0)
}

// PadToken returns the token that stands for each position of an image where runs
// of it are rewritten instead of hashed beside the tokens.
func PadToken(mediaHash uint64) uint32 {
	return events.PadToken(mediaHash)
}
