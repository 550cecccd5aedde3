package web

import (
	"encoding/json"
	"math"
	"strings"
	"time"

	"github.com/kvcr-go/kvcr"
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
	// Config lists the effective settings in the order they are to be shown.
	Config() []Setting
	// Ready says whether clients are served now, and if not, why.
	Ready() (ok bool, reason string)
	Version() string
	Started() time.Time
}

// ServerStats describe the listeners for clients. Counters run since the start
// of the process.
type ServerStats struct {
	Conns, MaxConns   int64  // open now, and the cap
	Accepted, Refused uint64 // connections; refused: over the cap
	SlowConns         uint64 // connections that left their event loop: they did not read as fast as they asked
	BytesIn, BytesOut uint64
	// Commands has an element for each name of Commands. What has another name
	// counts as CommandOther, names that repeat are added up.
	Commands []CommandStats
	// Latency is that of all commands together.
	Latency LatencySnapshot
	Claims  int64 // views that connections hold now
}

// The names of commands: a closed set, in the order they are shown.
const (
	CommandGet    = "get"
	CommandSet    = "set"
	CommandDel    = "del"
	CommandExists = "exists"
	CommandOther  = "other"
)

// Commands lists the names of commands.
func Commands() []string {
	return []string{CommandGet, CommandSet, CommandDel, CommandExists, CommandOther}
}

// CommandStats count one kind of command.
type CommandStats struct {
	Name   string
	Calls  uint64
	Errors uint64 // calls answered with an error; a miss is none
	// Latency may stay zero where it is not taken for each command.
	Latency LatencySnapshot
}

// LatencySnapshot summarizes all durations since the start of the process, in
// seconds. With Count 0 the rest means nothing.
type LatencySnapshot struct {
	Count               uint64
	Sum                 float64 // of all durations; mean times Count will do
	P50, P99, P999, Max float64
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

// byCommand folds what a source gives into the closed set: one element for each
// name, in order.
func byCommand(given []CommandStats) []CommandStats {
	names := Commands()
	out := make([]CommandStats, len(names))
	for i, name := range names {
		out[i].Name = name
	}
	for _, g := range given {
		c := &out[len(out)-1]
		for i, name := range names {
			if g.Name == name {
				c = &out[i]
			}
		}
		c.Calls += g.Calls
		c.Errors += g.Errors
		c.Latency = c.Latency.join(g.Latency)
	}
	return out
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
	return LatencySnapshot{
		Count: l.Count + o.Count, Sum: l.Sum + o.Sum,
		P50: max(l.P50, o.P50), P99: max(l.P99, o.P99), P999: max(l.P999, o.P999), Max: max(l.Max, o.Max),
	}
}

// finite replaces what JSON cannot hold.
func finite(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	return v
}
