package bench

import (
	"bytes"
	"encoding/binary"
)

// fillBlock makes the content of a block, a function of its key: words of
// splitmix64 that begins at the key's stamp. len(block) is a multiple of 8.
func fillBlock(block []byte, k Key) {
	seed := k.stamp()
	for i := 0; i < len(block); i += 8 {
		binary.LittleEndian.PutUint64(block[i:], mix64(seed+uint64(i)))
	}
}

// wrongBytes counts the bytes of block that are not what fillBlock makes for
// k; scratch is as long as block. A block of another length is wrong as a
// whole.
func wrongBytes(block, scratch []byte, k Key) int {
	if len(block) != len(scratch) {
		return max(len(block), len(scratch))
	}
	fillBlock(scratch, k)
	if bytes.Equal(block, scratch) {
		return 0
	}
	wrong := 0
	for i := range block {
		if block[i] != scratch[i] {
			wrong++
		}
	}
	return wrong
}

// Fill makes the content of a block, a function of its key: len(block) is a multiple
// of 8.
func (k Key) Fill(block []byte) { fillBlock(block, k) }

// Wrong counts the bytes of block that Fill would not make; scratch is as long as
// the block should be.
func (k Key) Wrong(block, scratch []byte) int { return wrongBytes(block, scratch, k) }
