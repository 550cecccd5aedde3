package ring

import (
	"sync/atomic"
	"unsafe"
)

// A slot is exactly one line, whatever the compiler.
const (
	_ = uint(slotSize - unsafe.Sizeof(slot{}))
	_ = uint(unsafe.Sizeof(slot{}) - slotSize)
)

// makeSlots returns n cleared slots, the first at a multiple of line. The Go
// heap promises 8 bytes only, so it takes two slots more and skips the start.
//
// Unsafe: reinterprets words as slots. Sound: words holds n slots and line
// bytes more and skip < line, so all n lie inside; both types are free of
// pointers; Go heap objects do not move, and the result points into words and
// keeps it alive.
func makeSlots(n int) []slot {
	words := make([]uint64, (n*slotSize+line)/8)
	base := unsafe.Pointer(unsafe.SliceData(words))
	skip := -uintptr(base) & (line - 1)
	return unsafe.Slice((*slot)(unsafe.Add(base, skip)), n)
}

// storePlain sets an atomic word without ordering: for a word that another
// goroutine reads only after a later release by this one. An atomic store
// would be an XCHG on amd64, 16 of them in a batch of 16.
//
// Unsafe: writes an atomic's memory as an integer. Sound: atomic.Uint64 is
// one aligned 64-bit word; the caller orders the accesses.
func storePlain(p *atomic.Uint64, v uint64) {
	*(*uint64)(unsafe.Pointer(p)) = v
}
