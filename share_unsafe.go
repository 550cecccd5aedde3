package kvcr

import "unsafe"

// distance is how many bytes b begins after mem does. Both must be parts of one
// arena, and not empty.
//
// Unsafe: reads addresses as numbers. Sound: an arena does not move while it is
// mapped, and the numbers are subtracted and never become pointers again.
func distance(mem, b []byte) int64 {
	return int64(uintptr(unsafe.Pointer(&b[0])) - uintptr(unsafe.Pointer(&mem[0])))
}
