package plan

import "github.com/kvcr-go/kvcr/hints/events"

// Config bounds an Index. The zero Config is valid.
type Config struct {
	// MaxBlocks is how many different blocks one tier indexes. Default, and most:
	// 1<<30. Stored blocks above it are refused and counted in Stats.
	MaxBlocks int
	// MaxOwners is how many workers and cache owners are known at a time. Default,
	// and most: 1<<16. Events of owners above it are refused and counted.
	MaxOwners int
}

// Index holds what every owner holds. Call New; its methods may be called from any
// goroutine, with the exceptions that they name.
type Index struct{}

// New returns an empty index. Limits out of range become the default.
func New(c Config) *Index { return &Index{} }

// Apply applies one event. Events of one worker must be applied in their order, one
// at a time; different workers may apply at once. It keeps nothing of ev. The error
// is of events that mean nothing (ErrEvent); whatever an event's content does,
// lookups stay sound.
func (x *Index) Apply(ev *events.RouterEvent) error { return nil }

// SetTopology replaces the routing snapshot: who may serve, and whom. Lookups that
// have begun keep the one they began with. Of several members with one owner the
// last counts.
func (x *Index) SetTopology(members []Member) {}

// RemoveOwner forgets all that an owner holds, in every tier.
func (x *Index) RemoveOwner(o Owner) {}

// Dump calls yield with one Stored event for each block of each owner, each with its
// parent; applied in any order to an empty index they make an equal one. Writers wait
// for parts of a dump; each part is as of one moment. yield must keep nothing of the
// event, and must not call Apply; false ends the dump.
func (x *Index) Dump(yield func(ev *events.RouterEvent) bool) {}

// Stats is a snapshot of an index.
type Stats struct {
	Owners    int    // known owners
	Pairs     [4]int // (owner, block) pairs, by events.Tier
	Blocks    [4]int // different blocks that have an owner, by events.Tier
	Bytes     int64  // memory of the index, without Go's headroom
	Conflicts uint64 // Stored events that stopped at a conflict
	Refused   uint64 // blocks and events refused for a limit of Config
}

// Stats returns the present counts.
func (x *Index) Stats() Stats { return Stats{} }

// Scratch is the memory of lookups of one goroutine. Results in it are valid until the next
// lookup with it.
type Scratch struct{}

// NewScratch returns a Scratch for lookups in x. It may be dropped without a call.
func (x *Index) NewScratch() *Scratch { return &Scratch{} }

// Match is the device side of a lookup.
type Match struct{}

// Match finds the device depth of every worker for a prompt's local hashes. The caller
// must not change locals until the results of the lookup are done with. The routing snapshot of the
// whole lookup is that of this call.
func (x *Index) Match(s *Scratch, locals []uint64) *Match { return nil }

// Depth returns the device depth of a worker.
func (m *Match) Depth(w events.Worker) int { return 0 }

// Plan looks the prompt up in HostPinned and chooses for every target, in the order
// of targets. It appends to dst[:0].
func (x *Index) Plan(s *Scratch, m *Match, dst []Choice) []Choice { return dst[:0] }

// Choose is Match and Plan.
func (x *Index) Choose(s *Scratch, locals []uint64, dst []Choice) []Choice { return dst[:0] }

// PlanMulti is Plan for targets that can fetch from several sources: it covers as
// many blocks from each frontier on as the sources together hold without a gap, with
// the fewest segments. Starts inside of a run are allowed, unlike in Plan. It appends to dst[:0].
// Segments are valid until the next lookup with s.
func (x *Index) PlanMulti(s *Scratch, m *Match, dst []Multi) []Multi { return dst[:0] }

// Scores gives the hits of every owner that has any, in the order of owners. It
// appends to dst[:0].
func (x *Index) Scores(s *Scratch, m *Match, dst []Score) []Score { return dst[:0] }

// Chain returns the external hashes of the last lookup, from the root, as far as
// they are known: at least to the End of each of its choices.
func (s *Scratch) Chain() []uint64 { return nil }

// Intervals appends the intervals of the last Plan to dst[:0], in no order: those that some
// target can use.
func (s *Scratch) Intervals(dst []Interval) []Interval { return dst[:0] }

// Hint returns what a choice of the last Plan says: where the source is reached, and the hashes of
// the blocks from the root through its end. False: no hint.
func (s *Scratch) Hint(c Choice) (endpoint string, hashes []uint64, ok bool) { return "", nil, false }

// AppendEnvelope appends the JSON of the envelope that carries the hint of a choice
// (one kv.fetch). It appends nothing for a choice without a hint.
func (s *Scratch) AppendEnvelope(dst []byte, messageID string, c Choice) []byte { return dst }
