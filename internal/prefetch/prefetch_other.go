//go:build !amd64

package prefetch

import "sync/atomic"

// Line begins to load the cache line of b's first byte: not on this platform.
func Line(b *byte) {}

// LineToWrite begins to load the cache line of b's first byte for writing: not
// on this platform.
func LineToWrite(b *byte) {}

// Word is Line for a word.
func Word(w *atomic.Uint64) {}
