//go:build amd64 && !race

package own

import (
	"sync/atomic"
	"unsafe"
)

// Store32 stores v. Only the word's present owner may call it.
//
// Unsafe: writes an atomic's word as a plain one. Sound: typed atomics are
// aligned, and aligned stores of up to 8 bytes are whole on amd64; readers use
// atomic loads and expect no ordering from this store.
func Store32(w *atomic.Uint32, v uint32) { *(*uint32)(unsafe.Pointer(w)) = v }

// Store64 is Store32 for 64 bits.
func Store64(w *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(w)) = v }

// Add64 adds n. Only the word's present owner may call it.
func Add64(w *atomic.Uint64, n uint64) { *(*uint64)(unsafe.Pointer(w)) += n }
