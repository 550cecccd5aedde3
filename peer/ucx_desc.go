package peer

import (
	"encoding/binary"

	"github.com/kvcr-go/kvcr/wire"
)

// Desc of an item, as PROTOCOL.md has it: the tag of the first message, and the
// bytes of each of the destination's pieces.

func appendDesc(dst []byte, tag uint64, pieces []int) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, tag)
	for _, n := range pieces {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(n))
	}
	return dst
}

// parseDesc takes a description apart. What a peer says is believed only as far as
// it makes size bytes.
func parseDesc(b []byte, size uint64) (tag uint64, pieces []int, ok bool) {
	if len(b) < 8 || len(b)%8 != 0 || len(b) > 8+8*wire.MaxPieces {
		return 0, nil, false
	}
	tag = binary.LittleEndian.Uint64(b)
	for b = b[8:]; len(b) > 0; b = b[8:] {
		n := binary.LittleEndian.Uint64(b)
		if n > size {
			return 0, nil, false
		}
		size -= n
		pieces = append(pieces, int(n))
	}
	return tag, pieces, size == 0 && tag&probeTag == 0
}

// messages is how many messages a piece makes.
func messages(n int) int { return (n + messageMost - 1) / messageMost }
