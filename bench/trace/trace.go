package trace

// Request is one prompt.
type Request struct {
	Timestamp    int64    // milliseconds since the start of the trace
	InputLength  int      // tokens of the prompt
	OutputLength int      // tokens generated
	IDs          []uint64 // blocks of the prompt, first to last
	Uncounted    bool     // warms the cache up; its blocks do not count in results
}

// Trace is a stream of requests in order of arrival.
type Trace struct {
	Name     string
	Requests []Request
	Broken   int // lines passed over while reading
	// Made says that no file was found and the trace was generated.
	Made bool
}

// Blocks is the number of ids in all requests, repeated ones included.
func (t *Trace) Blocks() int {
	n := 0
	for i := range t.Requests {
		n += len(t.Requests[i].IDs)
	}
	return n
}

// Unique is the number of different ids.
func (t *Trace) Unique() int {
	seen := make(map[uint64]struct{})
	for i := range t.Requests {
		for _, id := range t.Requests[i].IDs {
			seen[id] = struct{}{}
		}
	}
	return len(seen)
}
