package kvcr

import (
	"math"
	"runtime/debug"

	"github.com/kvcr-go/kvcr/arena"
)

// Counts are running totals since Open.
type Counts struct {
	Hits     uint64 // lookups that found their key
	Misses   uint64
	Sets     uint64 // calls, and commits of reservations that store as Set does
	Deposits uint64 // blocks offered otherwise
	Deletes  uint64 // calls

	Stored       uint64 // blocks that became resident
	Replaced     uint64 // values replaced by Set
	Existing     uint64 // deposits of resident keys
	Evicted      uint64 // blocks that the policy removed
	Deleted      uint64 // blocks removed by hand
	Moved        uint64 // blocks removed since another node has taken them over
	Refused      uint64 // writes refused for lack of memory
	Dropped      uint64 // deposits that the policy refused
	IndexFull    uint64 // writes refused since the index's overflow pool was used up
	PolicyFaults uint64 // panics and bad answers of an embedder's policy
}

// NamespaceStats describe one namespace now.
type NamespaceStats struct {
	Name          string
	Kind          string
	Policy        string
	Shards        int
	PinnedOwners  int
	Blocks        uint64
	MaxBlocks     int
	PayloadBytes  uint64 // of resident blocks
	CapacityBytes int64  // payload memory
	FreeBytes     int64  // payload memory not taken by any block
	Counts        Counts
	Placement     arena.Placement
}

// Stats is one snapshot of the engine. Counters are read one by one while the
// engine runs.
type Stats struct {
	Namespaces []NamespaceStats
	// Totals over namespaces; Hits to Deletes count calls through handles.
	Counts        Counts
	Blocks        uint64
	PayloadBytes  uint64
	CapacityBytes int64
	MetadataBytes int64
	Handles       int
	SourceFaults  uint64     // panics of the remote source
	Marks         int        // blocks or groups that wait to be removed by a move
	Holds         int        // blocks or groups that came by a move not ended yet
	Hints         *HintStats `json:",omitempty"` // nil without Config.Hints
}

// Stats returns a snapshot. It waits for the writers of one shard at a time.
func (e *Engine) Stats() (Stats, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed.Load() {
		return Stats{}, &OpError{Op: "stats", Err: ErrClosed}
	}
	st := Stats{MetadataBytes: e.meta.Size(), Handles: len(e.handles), SourceFaults: e.sourceFaults.Load(), Marks: e.moves.Marks(), Holds: e.moves.Holds(), Hints: e.hinted.stats()}
	var calls handleCounts
	calls.add(&e.retired)
	for hs := range e.handles {
		calls.add(&hs.counts)
	}
	for _, ns := range e.list {
		n := NamespaceStats{
			Name: ns.cfg.Name, Kind: ns.cfg.Kind.String(), Shards: len(ns.parts), CapacityBytes: ns.payload.Size(),
			Policy: ns.parts[0].PolicyName(), Placement: ns.payload.Placement(),
		}
		for _, p := range ns.parts {
			c := p.Stats()
			n.Blocks += c.Blocks.Load()
			n.PayloadBytes += c.Bytes.Load()
			n.MaxBlocks += p.Records()
			if p.Pinned() {
				n.PinnedOwners++
			}
			n.Counts.Stored += c.Stored.Load()
			n.Counts.Replaced += c.Replaced.Load()
			n.Counts.Existing += c.Existing.Load()
			n.Counts.Evicted += c.Evicted.Load()
			n.Counts.Deleted += c.Deleted.Load()
			n.Counts.Moved += c.Moved.Load()
			n.Counts.Refused += c.Refused.Load()
			n.Counts.Dropped += c.Dropped.Load()
			n.Counts.IndexFull += c.IndexFull.Load()
			n.Counts.PolicyFaults += c.PolicyFaults.Load()
			p.Do(func() {
				for _, f := range p.Free() {
					n.FreeBytes += f
				}
			})
		}
		st.Namespaces = append(st.Namespaces, n)
		st.Blocks += n.Blocks
		st.PayloadBytes += n.PayloadBytes
		st.CapacityBytes += n.CapacityBytes
		st.Counts.addShard(&n.Counts)
	}
	st.Counts.Hits, st.Counts.Misses = calls.hits.Load(), calls.misses.Load()
	st.Counts.Sets, st.Counts.Deposits, st.Counts.Deletes = calls.sets.Load(), calls.deposits.Load(), calls.deletes.Load()
	return st, nil
}

func (c *Counts) addShard(o *Counts) {
	c.Stored += o.Stored
	c.Replaced += o.Replaced
	c.Existing += o.Existing
	c.Evicted += o.Evicted
	c.Deleted += o.Deleted
	c.Moved += o.Moved
	c.Refused += o.Refused
	c.Dropped += o.Dropped
	c.IndexFull += o.IndexFull
	c.PolicyFaults += o.PolicyFaults
}

// Namespaces lists the names of the namespaces, in the order of Config.
func (e *Engine) Namespaces() (names []string) {
	for _, ns := range e.list {
		names = append(names, ns.cfg.Name)
	}
	return names
}

// MaxValue is the largest value of one piece that a namespace takes, in bytes; 0
// for a name that the engine does not have.
func (e *Engine) MaxValue(namespace string) int {
	ns, err := e.namespace(namespace)
	if err != nil {
		return 0
	}
	return ns.maxValue()
}

// Claims counts the claims that readers hold now: 0 when every View has been
// released. It visits every block.
func (e *Engine) Claims() int {
	return e.sum(func(p *part) int { return p.Claims() })
}

// Reservations counts the blocks that are being written now: reserved, and neither
// stored nor given back, those that come from other nodes included. It visits every
// block, and is exact while nothing is written.
func (e *Engine) Reservations() int {
	return max(0, e.sum(func(p *part) int { return p.Reserved() - p.InMagazines() }))
}

// sum adds up a count of every shard: 0 once the memory is gone.
func (e *Engine) sum(of func(*part) int) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state == gone {
		return 0
	}
	n := 0
	for _, ns := range e.list {
		for _, p := range ns.parts {
			n += of(p)
		}
	}
	return n
}

// MemoryPlan says what the engine reserved and what Go's soft memory limit
// should be beside it. The engine does not set that limit.
type MemoryPlan struct {
	PayloadBytes  int64
	MetadataBytes int64
	// BlockBytes is the metadata for each block: records and index.
	BlockBytes float64
	// Limit is the container's or host's memory, Source where it was read.
	Limit  int64
	Source string
	// SuggestedGoLimit leaves the rest to Go, less a twentieth; the explicit
	// setting (GOMEMLIMIT), when there is one, is CurrentGoLimit.
	SuggestedGoLimit int64
	CurrentGoLimit   int64 // math.MaxInt64: none
	Placements       map[string]arena.Placement
}

// MemoryPlan returns the plan.
func (e *Engine) MemoryPlan() MemoryPlan {
	p := MemoryPlan{Placements: map[string]arena.Placement{}, CurrentGoLimit: debug.SetMemoryLimit(-1)}
	p.Limit, p.Source = arena.MemoryLimit()
	// Placements stay as they are over Close; Size of an arena does not.
	meta := e.meta.Placement()
	p.MetadataBytes, p.Placements["meta"] = meta.Size, meta
	var per, blocks int64
	for _, ns := range e.list {
		payload := ns.payload.Placement()
		p.PayloadBytes += payload.Size
		p.Placements[ns.cfg.Name] = payload
		for _, s := range ns.parts {
			per += s.Plan().BlockBytes
			blocks += int64(s.Records())
		}
	}
	p.BlockBytes = float64(per) / float64(blocks)
	p.SuggestedGoLimit = max(p.Limit-p.PayloadBytes-p.MetadataBytes-p.Limit/20, 64<<20)
	if p.Limit == math.MaxInt64 {
		p.SuggestedGoLimit = math.MaxInt64
	}
	return p
}
