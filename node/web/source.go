package web

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints/publish"
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// Source is the node that the pages show. All methods may be called from any
// goroutine, at any time until Server.Close has returned; results belong to the
// caller. They must not panic: a scrape has no place to recover.
type Source interface {
	// Stats is the engine's snapshot. An error (a closed engine) is shown, and
	// what does not need the engine is shown beside it.
	Stats() (kvcr.Stats, error)
	Plan() kvcr.MemoryPlan
	Server() ServerStats
	// Peers is the exchange of blocks with other nodes; nil when there is none.
	Peers() *PeerStats
	// Router is what routers know and are told; nil when there is nothing of it.
	Router() *publish.Totals
	// Config lists the effective settings in the order they are to be shown.
	Config() []Setting
	// Ready says whether clients are served now, and if not, why.
	Ready() (ok bool, reason string)
	Version() string
	Started() time.Time
	// Claims counts the claims that anybody holds on blocks, and the blocks that are
	// being written. It visits every block.
	Claims() (held, writing int)
}

// ServerStats describe the listeners for clients. Counters run since the start
// of the process.
type ServerStats struct {
	Conns, MaxConns   int64  // open now, and the cap
	Accepted, Refused uint64 // connections; refused: over the cap
	SlowConns         uint64 // connections that left their event loop: they did not read as fast as they asked
	BytesIn, BytesOut uint64
	// Commands has an element for each pair of Protocols and Commands. What has
	// another name counts as CommandOther, and what has another protocol as the
	// last one's; pairs that repeat are added up.
	Commands []CommandStats
	// Latency is that of all commands together, ever, Recent in the last seconds.
	Latency, Recent LatencySnapshot
	Claims          int64 // views that connections hold now
	Shared          SharedStats
}

// The names of commands: a closed set, in the order they are shown.
const (
	CommandGet     = "get"
	CommandMget    = "mget"
	CommandSet     = "set"
	CommandMset    = "mset"
	CommandDel     = "del"
	CommandExists  = "exists"
	CommandFetch   = "fetch"
	CommandDeliver = "deliver"
	CommandRelease = "release"
	CommandCommit  = "commit"
	CommandOther   = "other"
)

// The protocols of commands: a closed set.
const (
	ProtocolRESP   = "resp"
	ProtocolBinary = "binary"
)

// Commands lists the names of commands.
func Commands() []string {
	return []string{CommandGet, CommandMget, CommandSet, CommandMset, CommandDel, CommandExists, CommandFetch, CommandDeliver, CommandRelease, CommandCommit, CommandOther}
}

// Protocols lists the names of protocols.
func Protocols() []string { return []string{ProtocolRESP, ProtocolBinary} }

// CommandStats count one kind of command of one protocol.
type CommandStats struct {
	Proto, Name string
	Calls       uint64
	Errors      uint64 // calls answered with an error; a miss is none
	// Latency is that of all of them, Recent of those in the last seconds.
	Latency, Recent LatencySnapshot
}

// LatencySnapshot summarizes durations in seconds. With Count 0 the rest means
// nothing.
type LatencySnapshot struct {
	Count               uint64
	Sum                 float64 // of all durations; mean times Count will do
	P50, P99, P999, Max float64
	// Buckets counts durations up to each of LatencyBounds; not needed of Recent.
	Buckets [len(latencyBounds)]uint64
}

// latencyBounds are the buckets of histograms, in ns.
var latencyBounds = [...]time.Duration{
	2500, 5e3, 10e3, 25e3, 50e3, 100e3, 250e3, 500e3, 1e6, 2500e3, 5e6, 10e6, 25e6, 50e6, 100e6, 250e6, 1e9, 10e9,
}

// LatencyBounds lists the bounds of LatencySnapshot.Buckets.
func LatencyBounds() []time.Duration { return latencyBounds[:] }

// SharedStats count what clients with shared memory do.
type SharedStats struct {
	Clients, Conns          int64  // processes and their connections, now
	Gets, Hits              uint64 // keys asked for, and those found
	LentBytes               uint64 // of the hits, read in place
	Claims, Left            int64  // held now; those of them whose connection has ended
	StagingBytes            int64  // memory that they may write values to
	Commits, CommittedBytes uint64 // values stored from it
	Dropped                 uint64 // processes that ended with claims
}

// PeerStats describe the exchange of blocks with other nodes.
type PeerStats struct {
	peer.Stats
	Peers     []peer.PeerState
	Endpoints []string // where other nodes reach this one
}

// Routes lists the routes between nodes: a closed set.
func Routes() []wire.Route {
	return []wire.Route{wire.RouteShm, wire.RouteUCX, wire.RouteUCXPut, wire.RouteStream}
}

// Setting is one effective setting.
type Setting struct {
	Name   string
	Value  string
	Source string // default, file PATH, env NAME, flag
	// Secret hides the value. Names that end in secret, password, token or
	// credentials are secrets without it.
	Secret bool
}

// Shown is the value as it may be shown: of a secret only whether it is set.
func (s Setting) Shown() string {
	if !s.secret() {
		return s.Value
	}
	if s.Value == "" {
		return "unset"
	}
	return "set"
}

func (s Setting) secret() bool {
	if s.Secret {
		return true
	}
	name := strings.ToLower(s.Name)
	for _, end := range []string{"secret", "password", "token", "credentials"} {
		if strings.HasSuffix(name, end) {
			return true
		}
	}
	return false
}

// MarshalJSON writes name, value as shown, and source.
func (s Setting) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Name   string `json:"name"`
		Value  string `json:"value"`
		Source string `json:"source"`
	}{s.Name, s.Shown(), s.Source})
}

// byCommand folds what a source gives into the closed sets: one element for each
// pair, protocol by protocol, in order.
func byCommand(given []CommandStats) []CommandStats {
	var out []CommandStats
	for _, proto := range Protocols() {
		for _, name := range Commands() {
			out = append(out, CommandStats{Proto: proto, Name: name})
		}
	}
	for _, g := range given {
		c := &out[orLast(Protocols(), g.Proto)*len(Commands())+orLast(Commands(), g.Name)]
		c.Calls += g.Calls
		c.Errors += g.Errors
		c.Latency = c.Latency.join(g.Latency)
		c.Recent = c.Recent.join(g.Recent)
	}
	return out
}

// orLast is the index of a name, or of the last one.
func orLast(names []string, name string) int {
	if i := slices.Index(names, name); i >= 0 {
		return i
	}
	return len(names) - 1
}

// join is exact for counts, sums and the maximum. Quantiles cannot be added: the
// larger ones stand, an upper bound.
func (l LatencySnapshot) join(o LatencySnapshot) LatencySnapshot {
	if l.Count == 0 {
		return o
	}
	if o.Count == 0 {
		return l
	}
	l.Count += o.Count
	l.Sum += o.Sum
	l.P50, l.P99, l.P999, l.Max = max(l.P50, o.P50), max(l.P99, o.P99), max(l.P999, o.P999), max(l.Max, o.Max)
	for i, n := range o.Buckets {
		l.Buckets[i] += n
	}
	return l
}

// finite replaces what JSON cannot hold.
func finite(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	return v
}
