package virtual

// Count is something that is counted.
type Count uint8

// What is counted.
const (
	Asked      Count = iota // blocks of prompts
	Local                   // of those: were there, at the begin of the prompt
	Fetched                 // came from other nodes
	Computed                // were computed
	Hinted                  // requests that came with a hint
	Named                   // blocks that hints and orders named
	Actions                 // prefetches and moves
	Moved                   // blocks of which the source's copy is gone
	Plans                   // calls of the planner
	Events                  // inventory events that the index has applied
	Changes                 // blocks in those
	Frames                  // messages between nodes
	FrameBytes              // of those
	Steps                   // of machines
	Ticks                   // of those: for a timer
	Failed                  // blocks that were asked for and did not come
	Refused                 // actions that a node has rejected
	counts
)

// Counts by Count.
type Counts [counts]int
