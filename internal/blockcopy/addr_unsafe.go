package blockcopy

import "unsafe"

// addr returns the address of b's first byte, or of where it would be.
//
// Unsafe: reads an address. Sound: it is used for arithmetic only, and never
// turned back into a pointer.
func addr(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// toAlign returns how many bytes of b precede the next multiple of align, a
// power of two.
func toAlign(b []byte, align uintptr) int { return int(-addr(b) & (align - 1)) }

// overlap reports whether a and b share a byte.
func overlap(a, b []byte) bool {
	return len(a) > 0 && len(b) > 0 &&
		addr(a) < addr(b)+uintptr(len(b)) && addr(b) < addr(a)+uintptr(len(a))
}
