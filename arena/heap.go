package arena

// heapRegion returns length zero bytes of Go memory at a multiple of align, a
// power of two. There is nothing to unmap: the collector takes it when the last
// slice is gone.
func heapRegion(length, align int) region {
	raw := make([]byte, length+align)
	lead := int(-addressOf(raw) & uintptr(align-1))
	return region{mem: raw[lead : lead+length : lead+length]}
}
