package prefetch

import "sync/atomic"

// Line begins to load the cache line of b's first byte. b must not be empty.
//
//go:noescape
func Line(b *byte)

// LineToWrite begins to load the cache line of b's first byte for writing: it
// takes the line away from other processors at once, where a load followed by
// a compare-and-swap would ask for it twice.
//
//go:noescape
func LineToWrite(b *byte)

// Word is Line for a word.
//
//go:noescape
func Word(w *atomic.Uint64)
