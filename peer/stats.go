package peer

import (
	"slices"
	"strings"
	"sync/atomic"

	"github.com/kvcr-go/kvcr/wire"
)

// Stats is a snapshot of a node's counters, all since Open but for what is said
// to be now.
type Stats struct {
	// Fetched and Served are blocks and bytes by route. Served has over route shm what
	// was lent, since the destination reads by itself.
	Fetched, Served map[wire.Route]Traffic
	Operations      uint64 // as destination, ended
	Refusals        uint64 // operations and handshakes that were refused, on either side
	Refused         uint64 // connections of others that did not get through their handshake
	Dials           uint64 // attempts to connect
	Reconnects      uint64 // that followed an earlier connection to the same endpoint
	// Taken are moves of blocks that ended with this node as the destination, Given
	// as the source.
	Taken, Given Moves
	// Hashes are those that peers have asked to resolve and that were answered, whatever
	// the answer; AdapterFailures those among them that the Resolver could not tell,
	// or not describe.
	Hashes, AdapterFailures uint64
	Posted                  int64 // bytes of memory that the routes may write, now
	Quarantined             int64 // bytes of those that are beyond their time, now
	Outbound                int64 // bytes of messages that wait for peers to read them, now
	Dests                   int   // endpoints fetched from, now: a process by two is two
	Sources                 int   // links of peers that fetch from here, now: one for each endpoint that a peer has of this node
	Connections             int   // control connections, now
}

// Moves counts ends of moves: the source's copy is removed, or it is kept (or not
// known to be removed).
type Moves struct{ Moved, Kept uint64 }

// Traffic is what went over a route.
type Traffic struct{ Blocks, Bytes uint64 }

type traffic struct{ blocks, bytes atomic.Uint64 }

func (t *traffic) add(bytes int64) {
	t.blocks.Add(1)
	t.bytes.Add(uint64(bytes))
}

func (t *traffic) load() Traffic { return Traffic{t.blocks.Load(), t.bytes.Load()} }

type moves struct{ moved, kept atomic.Uint64 }

func (m *moves) ended(s wire.Status) {
	if s == wire.StatusOK {
		m.moved.Add(1)
	} else {
		m.kept.Add(1)
	}
}

func (m *moves) load() Moves { return Moves{m.moved.Load(), m.kept.Load()} }

const routeKinds = int(wire.RouteStream) + 1

type counters struct {
	fetched, served              [routeKinds]traffic
	ops, refusals, refused       atomic.Uint64
	dials, reconnects            atomic.Uint64
	taken, given                 moves
	hashes, adapter              atomic.Uint64
	posted, quarantined, writing atomic.Int64
	posts                        atomic.Int64 // whose bytes are posted
	outbound                     atomic.Int64
}

func (c *counters) in(r wire.Route, bytes int64) {
	if int(r) < routeKinds {
		c.fetched[r].add(bytes)
	}
}

func (c *counters) out(r wire.Route, bytes int64) {
	if int(r) < routeKinds {
		c.served[r].add(bytes)
	}
}

// Stats returns the counters.
func (n *Node) Stats() Stats {
	c := &n.count
	s := Stats{
		Fetched: map[wire.Route]Traffic{}, Served: map[wire.Route]Traffic{},
		Operations: c.ops.Load(), Refusals: c.refusals.Load(), Refused: c.refused.Load(),
		Dials: c.dials.Load(), Reconnects: c.reconnects.Load(),
		Taken: c.taken.load(), Given: c.given.load(), Posted: c.posted.Load(), Quarantined: c.quarantined.Load(),
		Outbound: c.outbound.Load(), Hashes: c.hashes.Load(), AdapterFailures: c.adapter.Load(),
	}
	for r := range routeKinds {
		if t := c.fetched[r].load(); t != (Traffic{}) {
			s.Fetched[wire.Route(r)] = t
		}
		if t := c.served[r].load(); t != (Traffic{}) {
			s.Served[wire.Route(r)] = t
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s.Dests, s.Sources, s.Connections = len(n.dests), len(n.sources), len(n.controls)
	return s
}

// PeerState is how things stand with one peer.
type PeerState struct {
	Endpoint    string // as dialled; empty for a peer that only fetches from here
	Fetching    bool   // this node fetches from it; false: it fetches from here
	Name        string // what it calls itself, or where it is
	Connected   bool
	Incarnation Incarnation // of the last connection, 0: there was none
	Link        uint64      // which link of that incarnation, of one that fetches from here: it has one for each endpoint
	Route       wire.Route  // of the last connection
	Operations  int         // not forgotten
	Traffic     Traffic     // fetched from it, or served to it, since it is known
	LastError   error       // of the last attempt to connect, or that layouts differ; nil: neither
}

func (l *destLink) stateLocked() PeerState {
	conn, ops := l.link.state()
	s := PeerState{
		Endpoint: l.endpoint, Fetching: true, Name: l.name, Connected: conn != nil,
		Incarnation: l.who, Route: l.current, Operations: ops, Traffic: l.traffic.load(), LastError: l.lastErr,
	}
	if s.LastError == nil {
		s.LastError = l.unlike
	}
	return s
}

// Known says how things stand with an endpoint; false: it was never used, or is
// forgotten.
func (n *Node) Known(endpoint string) (PeerState, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.dests[endpoint]
	if l == nil {
		return PeerState{}, false
	}
	return l.stateLocked(), true
}

// Peers lists all peers, those fetched from first. A process is listed once for each
// endpoint: those by which it is fetched from, and those by which it fetches from here.
func (n *Node) Peers() []PeerState {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []PeerState
	for _, l := range n.dests {
		all = append(all, l.stateLocked())
	}
	slices.SortFunc(all, func(a, b PeerState) int { return strings.Compare(a.Endpoint, b.Endpoint) })
	for _, l := range n.sources {
		conn, ops := l.link.state()
		all = append(all, PeerState{Name: l.name, Connected: conn != nil, Incarnation: l.who, Link: l.number, Route: l.current, Operations: ops, Traffic: l.traffic.load()})
	}
	return all
}

// forget reports that a link may be forgotten. It is called with node.mu held, so
// that nobody finds it meanwhile.
func (l *destLink) forget() bool {
	l.link.mu.Lock()
	defer l.link.mu.Unlock()
	if l.users > 0 || l.link.running || len(l.link.queue) > 0 || l.link.up != nil || l.link.ops > 0 || l.waiting > 0 || l.dialling {
		return false
	}
	l.dogs.keep(func(Incarnation) bool { return false })
	return true
}
