//go:build !amd64 || race

package own

import "sync/atomic"

// Store32 stores v. Only the word's present owner may call it.
func Store32(w *atomic.Uint32, v uint32) { w.Store(v) }

// Store64 is Store32 for 64 bits.
func Store64(w *atomic.Uint64, v uint64) { w.Store(v) }

// Add64 adds n. Only the word's present owner may call it.
func Add64(w *atomic.Uint64, n uint64) { w.Store(w.Load() + n) }
