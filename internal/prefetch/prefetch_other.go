//go:build !amd64

package prefetch

// Line begins to load the cache line of b's first byte: not on this platform.
func Line(b *byte) {}

// LineToWrite begins to load the cache line of b's first byte for writing: not
// on this platform.
func LineToWrite(b *byte) {}
