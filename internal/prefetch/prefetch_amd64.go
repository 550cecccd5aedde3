package prefetch

// Line begins to load the cache line of b's first byte. b must not be empty.
//
//go:noescape
func Line(b *byte)
