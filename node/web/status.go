package web

import (
	"math"
	"time"

	"github.com/kvcr-go/kvcr"
)

// Status is the document of /api/status. Counters run since the start of the
// process: a reader takes rates from two documents, with UptimeSeconds as the
// clock and Started to notice a restart. Fields may be added, not changed.
type Status struct {
	Version       string    `json:"version"`
	Started       time.Time `json:"started"`
	UptimeSeconds float64   `json:"uptime_seconds"` // when the counters were read
	Ready         bool      `json:"ready"`
	Reason        string    `json:"reason,omitempty"` // why not ready
	Debug         bool      `json:"debug"`            // profiles are served
	// EngineError says why the engine gave no counters. Cache and Namespaces are
	// then zero and empty, and Memory has only what was reserved.
	EngineError string `json:"engine_error,omitempty"`

	Memory      MemoryStatus      `json:"memory"`
	Cache       CacheStatus       `json:"cache"`
	Operations  OperationStatus   `json:"operations"`
	Connections ConnectionStatus  `json:"connections"`
	Shared      SharedStatus      `json:"shared_memory"`
	Namespaces  []NamespaceStatus `json:"namespaces"`
	Peers       *PeersStatus      `json:"peers,omitempty"`  // absent: the node exchanges nothing with others
	Hints       *HintsStatus      `json:"hints,omitempty"`  // absent: the node acts on none
	Router      *RouterStatus     `json:"router,omitempty"` // absent: routers know nothing of it
}

// MemoryStatus is in bytes.
type MemoryStatus struct {
	Reserved int64 `json:"reserved_bytes"` // payload and metadata
	Capacity int64 `json:"capacity_bytes"` // payload memory
	Used     int64 `json:"used_bytes"`     // of the capacity, taken by blocks with what rounding wastes
	Payload  int64 `json:"payload_bytes"`  // bytes of resident blocks
	Metadata int64 `json:"metadata_bytes"`
	// Limit is the container's or host's memory, 0 for none known.
	Limit       int64  `json:"limit_bytes"`
	LimitSource string `json:"limit_source,omitempty"`
	// GoLimit is Go's soft memory limit, 0 for none.
	GoLimit int64 `json:"go_limit_bytes"`
}

// CacheStatus are the engine's totals over namespaces: see kvcr.Counts.
type CacheStatus struct {
	Blocks       uint64 `json:"blocks"`
	Handles      int    `json:"handles"`
	Hits         uint64 `json:"hits_total"`
	Misses       uint64 `json:"misses_total"`
	Sets         uint64 `json:"sets_total"`
	Deposits     uint64 `json:"deposits_total"`
	Deletes      uint64 `json:"deletes_total"`
	Stored       uint64 `json:"stored_total"`
	Replaced     uint64 `json:"replaced_total"`
	Existing     uint64 `json:"existing_total"`
	Evicted      uint64 `json:"evicted_total"`
	Deleted      uint64 `json:"deleted_total"`
	Refused      uint64 `json:"refused_total"`
	Dropped      uint64 `json:"dropped_total"`
	IndexFull    uint64 `json:"index_full_total"`
	PolicyFaults uint64 `json:"policy_faults_total"`
	SourceFaults uint64 `json:"source_faults_total"`
}

// OperationStatus counts commands of clients.
type OperationStatus struct {
	Total    uint64          `json:"total"` // the sum over Commands
	Errors   uint64          `json:"errors_total"`
	Commands []CommandStatus `json:"commands"` // one for each of Protocols and Commands, in order
	// Of all commands: over the life of the process, and in the last 10 seconds.
	Latency LatencyStatus `json:"latency"`
	Recent  LatencyStatus `json:"recent_latency"`
}

// CommandStatus is one kind of command of one protocol.
type CommandStatus struct {
	Proto   string        `json:"proto"`
	Name    string        `json:"name"`
	Calls   uint64        `json:"calls_total"`
	Errors  uint64        `json:"errors_total"`
	Latency LatencyStatus `json:"latency"`
	Recent  LatencyStatus `json:"recent_latency"`
}

// LatencyStatus is in seconds. With Count 0 the rest means nothing.
type LatencyStatus struct {
	Count uint64  `json:"count"`
	P50   float64 `json:"p50_seconds"`
	P99   float64 `json:"p99_seconds"`
	P999  float64 `json:"p999_seconds"`
	Max   float64 `json:"max_seconds"`
}

// ConnectionStatus are the connections of clients.
type ConnectionStatus struct {
	Open     int64  `json:"open"`
	Max      int64  `json:"max"`
	Accepted uint64 `json:"accepted_total"`
	Refused  uint64 `json:"refused_total"`
	Slow     uint64 `json:"slow_total"` // left their event loop, ever
	BytesIn  uint64 `json:"received_bytes_total"`
	BytesOut uint64 `json:"sent_bytes_total"`
	Claims   int64  `json:"claims"` // views that connections hold
}

// SharedStatus are the clients with shared memory: see SharedStats.
type SharedStatus struct {
	Clients        int64  `json:"clients"`
	Conns          int64  `json:"connections"`
	Gets           uint64 `json:"gets_total"`
	Hits           uint64 `json:"hits_total"`
	LentBytes      uint64 `json:"lent_bytes_total"`
	Claims         int64  `json:"claims"`
	Left           int64  `json:"claims_left"`
	StagingBytes   int64  `json:"staging_bytes"`
	Commits        uint64 `json:"commits_total"`
	CommittedBytes uint64 `json:"committed_bytes_total"`
	Dropped        uint64 `json:"dropped_clients_total"`
}

// NamespaceStatus is one namespace.
type NamespaceStatus struct {
	Name         string `json:"name"`
	Kind         string `json:"kind"`
	Policy       string `json:"policy"`
	Pages        string `json:"pages"` // pages of its payload memory
	Shards       int    `json:"shards"`
	PinnedOwners int    `json:"pinned_owners"`
	Blocks       uint64 `json:"blocks"`
	MaxBlocks    int    `json:"max_blocks"`
	Payload      uint64 `json:"payload_bytes"`
	Capacity     int64  `json:"capacity_bytes"`
	Used         int64  `json:"used_bytes"`
	Stored       uint64 `json:"stored_total"`
	Evicted      uint64 `json:"evicted_total"`
	Refused      uint64 `json:"refused_total"`    // writes, for lack of memory
	IndexFull    uint64 `json:"index_full_total"` // writes, for lack of index
	Dropped      uint64 `json:"dropped_total"`    // deposits, by the policy
}

// readStatus asks src for everything once.
func readStatus(src Source, debug bool) Status {
	started := src.Started()
	st := Status{
		Version: src.Version(), Started: started, UptimeSeconds: time.Since(started).Seconds(), Debug: debug,
		Namespaces: []NamespaceStatus{}, // [] and not null
	}
	st.Ready, st.Reason = src.Ready()
	if st.Ready {
		st.Reason = ""
	}
	plan := src.Plan()
	st.Memory = MemoryStatus{
		Reserved: plan.PayloadBytes + plan.MetadataBytes, Capacity: plan.PayloadBytes, Metadata: plan.MetadataBytes,
		Limit: limit(plan.Limit), LimitSource: plan.Source, GoLimit: limit(plan.CurrentGoLimit),
	}
	engine, err := src.Stats()
	if err != nil {
		st.EngineError = err.Error()
	} else {
		st.fromEngine(&engine)
		st.Hints = hintsStatus(engine.Hints)
	}
	st.fromServer(src.Server())
	st.Peers = peersStatus(src.Peers())
	st.Router = routerStatus(src.Router())
	return st
}

// limit is 0 for "none", which a browser's numbers could not hold exactly.
func limit(v int64) int64 {
	if v == math.MaxInt64 {
		return 0
	}
	return v
}

func (st *Status) fromEngine(s *kvcr.Stats) {
	c := &s.Counts
	st.Cache = CacheStatus{
		Blocks: s.Blocks, Handles: s.Handles,
		Hits: c.Hits, Misses: c.Misses, Sets: c.Sets, Deposits: c.Deposits, Deletes: c.Deletes,
		Stored: c.Stored, Replaced: c.Replaced, Existing: c.Existing, Evicted: c.Evicted, Deleted: c.Deleted,
		Refused: c.Refused, Dropped: c.Dropped, IndexFull: c.IndexFull,
		PolicyFaults: c.PolicyFaults, SourceFaults: s.SourceFaults,
	}
	st.Memory.Payload = int64(s.PayloadBytes)
	for i := range s.Namespaces {
		n := &s.Namespaces[i]
		used := n.CapacityBytes - n.FreeBytes
		st.Memory.Used += used
		st.Namespaces = append(st.Namespaces, NamespaceStatus{
			Name: n.Name, Kind: n.Kind, Policy: n.Policy, Pages: n.Placement.Pages.String(),
			Shards: n.Shards, PinnedOwners: n.PinnedOwners, Blocks: n.Blocks, MaxBlocks: n.MaxBlocks,
			Payload: n.PayloadBytes, Capacity: n.CapacityBytes, Used: used,
			Stored: n.Counts.Stored, Evicted: n.Counts.Evicted,
			Refused: n.Counts.Refused, IndexFull: n.Counts.IndexFull, Dropped: n.Counts.Dropped,
		})
	}
}

func (st *Status) fromServer(s ServerStats) {
	for _, c := range byCommand(s.Commands) {
		st.Operations.Total += c.Calls
		st.Operations.Errors += c.Errors
		st.Operations.Commands = append(st.Operations.Commands, CommandStatus{c.Proto, c.Name, c.Calls, c.Errors, c.Latency.status(), c.Recent.status()})
	}
	st.Operations.Latency, st.Operations.Recent = s.Latency.status(), s.Recent.status()
	st.Connections = ConnectionStatus{
		Open: s.Conns, Max: s.MaxConns, Accepted: s.Accepted, Refused: s.Refused, Slow: s.SlowConns,
		BytesIn: s.BytesIn, BytesOut: s.BytesOut, Claims: s.Claims,
	}
	st.Shared = SharedStatus(s.Shared)
}

func (l LatencySnapshot) status() LatencyStatus {
	return LatencyStatus{l.Count, finite(l.P50), finite(l.P99), finite(l.P999), finite(l.Max)}
}
