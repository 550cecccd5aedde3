package shard

import (
	"unsafe"

	"github.com/kvcr-go/kvcr/arena"
)

// pieceDescs is the list of further pieces in a record's side entry.
//
// Unsafe: reinterprets bytes as descs. Sound: the entry is at least 16-byte
// aligned and n*8 bytes long, and a desc holds no pointer.
func (s *Shard) pieceDescs(off arena.Off, n int) []desc {
	b := s.meta.Bytes(off, n*pieceBytes)
	return unsafe.Slice((*desc)(unsafe.Pointer(&b[0])), n)
}
