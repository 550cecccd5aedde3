package ring

// pause tells the processor that this is a spin loop.
func pause()
