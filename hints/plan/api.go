package plan

import "github.com/kvcr-go/kvcr/hints/events"

// Owner is who holds blocks: a worker, or a cache owner. Owners are ordered:
// workers before cache owners, then by id and rank, or by key.
type Owner struct {
	Cache  bool
	Worker events.Worker   // unless Cache
	Key    events.OwnerKey // if Cache
}

// Member is what the routing snapshot knows of one owner.
type Member struct {
	Owner Owner
	// Endpoint is where peers reach it. Empty: it is no source.
	Endpoint string
	// Type is "aggregated", "prefill" or "decode"; hints stay within one type.
	Type string
	// Capable workers take hints, and are targets.
	Capable bool
	// Attached is the worker to which a cache owner is attached, if HasAttached.
	HasAttached bool
	Attached    events.Worker
}

// Kind is how a source covers what a target lacks.
type Kind uint8

// The kinds.
const (
	None         Kind = iota
	RootPrefix        // it holds the blocks from the root on
	Continuation      // it holds the blocks from a frontier on
)

// Choice is the answer for one target.
type Choice struct {
	Target   events.Worker
	Frontier int // blocks that the target has itself: device prefix, then contiguous host blocks
	Kind     Kind
	Source   Owner
	End      int // blocks of the chain that the hint names: Chain[:End]
}

// Interval is a run of blocks from which a source may serve a continuation: it holds
// the blocks of [Start, End), and Start is a target's frontier.
type Interval struct {
	Source     Owner
	Start, End int
}

// Segment is what one source of several serves: the blocks of [From, To).
type Segment struct {
	Source   Owner
	From, To int
}

// Multi is the answer for one target when several sources may serve it. Segments
// join: the first begins at Frontier, each other where the one before it ends.
type Multi struct {
	Target   events.Worker
	Frontier int
	Segments []Segment
}

// Score says how many blocks of the prompt an owner holds in each tier, walked in the
// order Device, HostPinned, Disk, External: a tier counts the blocks that follow, without
// a gap, those of the tiers before it.
type Score struct {
	Owner Owner
	Hits  [4]int // by events.Tier
}
