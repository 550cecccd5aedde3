package ring

// pause tells the processor that this is a spin loop: some tens of ns in which
// the core neither fetches the polled line again nor starves its other thread.
func pause()
