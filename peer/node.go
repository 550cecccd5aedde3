package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/panjf2000/gnet/v2"

	"github.com/kvcr-go/kvcr/internal/gnetlog"
	"github.com/kvcr-go/kvcr/internal/procs"
	"github.com/kvcr-go/kvcr/internal/role"
	"github.com/kvcr-go/kvcr/wire"
)

// Node fetches blocks from peers and serves them to peers. Its methods may be
// called from any goroutine. Callbacks run on goroutines of the node's or of its
// callers', must not block, since others' events wait meanwhile, and may call what
// does not wait: Submit, Abort, and what tells how things stand. Close returns there
// too, but with ErrClosing.
type Node struct {
	cfg    Config
	log    *slog.Logger
	start  time.Time
	routes []Route
	host   [16]byte
	local  string // unix socket for payload on this host; empty: none
	count  counters
	nextOp atomic.Uint64
	warned atomic.Int64 // when a refused connection was warned of last, as Now
	// complained is the same of a resolver that fails.
	complained atomic.Int64
	resolves   resolves
	loops      *gnet.Client
	procs      procs.Set

	listeners []listener
	endpoints []string
	accepting sync.WaitGroup
	work      sync.WaitGroup // all other goroutines
	ctx       context.Context
	cancel    context.CancelFunc
	closing   atomic.Bool
	closeOnce sync.Once
	closed    chan struct{}
	closeErr  error
	shaking   chan struct{} // one element for each handshake that others began

	mu       sync.Mutex
	dests    map[string]*destLink
	made     uint64 // links to endpoints, ever
	sources  map[sourceID]*sourceLink
	controls map[*control]struct{}
	tokens   map[uint64]*target
	raw      map[net.Conn]struct{} // in their handshake
	ended    bool                  // no more goroutines
}

// target is what payload connections with a token are for.
type target struct {
	who  Incarnation
	side attacher
	link *sourceLink
}

// Open starts a node. The caller must Close it.
func Open(cfg Config) (_ *Node, err error) {
	cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	n := &Node{
		cfg: cfg, log: cfg.Logger, start: time.Now(), closed: make(chan struct{}), shaking: make(chan struct{}, cfg.Handshakes),
		dests: map[string]*destLink{}, sources: map[sourceID]*sourceLink{}, controls: map[*control]struct{}{},
		tokens: map[uint64]*target{}, raw: map[net.Conn]struct{}{},
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.nextOp.Store(rand.Uint64() >> 2)
	n.resolves.crew.spawn = n.spawn
	defer func() {
		if err != nil {
			n.cancel()
			for _, l := range n.listeners {
				l.Close()
			}
			for _, r := range n.routes {
				err = errors.Join(err, r.Close())
			}
		}
	}()
	for _, r := range cfg.Routes {
		switch r {
		case wire.RouteStream:
			n.routes = append(n.routes, &streamRoute{n})
		case wire.RouteShm:
			n.routes = append(n.routes, newShmRoute(n))
		default:
			n.routes = append(n.routes, cfg.UCX)
		}
	}
	if n.routeOf(wire.RouteShm) != nil {
		n.host = hostID()
	}
	if err := n.listen(); err != nil {
		return nil, err
	}
	n.loops, err = gnet.NewClient(&events{}, gnet.WithNumEventLoop(cfg.Loops), gnet.WithLogger(gnetlog.Quiet{Log: n.log}))
	if err == nil {
		err = n.loops.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("peer: event loops: %w", err)
	}
	for _, l := range n.listeners {
		n.accepting.Add(1)
		go roleAccept.Run(func() { n.accept(l) })
	}
	return n, nil
}

// What goroutines of a node are for, in profiles.
var (
	roleAccept = role.New("peer-accept")
	roleLoop   = role.New("peer-loop")
	roleWork   = role.New("peer-work")
	roleStream = role.New("peer-stream")
)

// spawn runs f on a goroutine that Close waits for. False: the node is closing.
func (n *Node) spawn(f func()) bool { return n.spawnAs(roleWork, f) }

// spawnAs is spawn for a goroutine with a role of its own.
func (n *Node) spawnAs(r role.Role, f func()) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended {
		return false
	}
	n.work.Add(1)
	go func() {
		defer n.work.Done()
		r.Run(f)
	}()
	return true
}

func (n *Node) routeOf(k wire.Route) Route {
	for _, r := range n.routes {
		if r.Kind() == k {
			return r
		}
	}
	return nil
}

func (n *Node) addControl(c *control) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended || n.closing.Load() {
		return false
	}
	n.controls[c] = struct{}{}
	return true
}

func (n *Node) dropControl(c *control) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.controls, c)
}

func (n *Node) addToken(token uint64, t *target) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tokens[token] = t
}

func (n *Node) dropToken(token uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.tokens, token)
}

// maxUsers bounds the connections of one link of a destination: one that comes anew
// may be here before the end of the last is noticed.
const maxUsers = 8

// maxNames bounds the endpoints by which this node fetches from one process. Routers
// have few for a node, such as its name, its addresses and what it advertises; 8 is
// arbitrary.
const maxNames = 8

// maxLinks bounds the links of one destination process: twice maxNames, since some come
// back after others have taken their place, or at the same time.
const maxLinks = 2 * maxNames

// enterSource finds or makes a link to a destination, which stays at least until
// leaveSource of users.
func (n *Node) enterSource(id sourceID) (*sourceLink, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closing.Load() {
		return nil, refusef(wire.StatusClosed, "the node is closing")
	}
	l := n.sources[id]
	if l == nil {
		if len(n.sources) >= n.cfg.MaxPeers {
			return nil, refusef(wire.StatusBusy, "%d peers fetch from here, and no more may", n.cfg.MaxPeers)
		}
		links := 0
		for other := range n.sources {
			if other.who == id.who {
				links++
			}
		}
		if links >= maxLinks {
			return nil, refusef(wire.StatusBusy, "%d links are one peer's, and no more may be", links)
		}
		l = newSourceLink(n, id)
		n.sources[id] = l
	}
	if l.users >= maxUsers {
		return nil, refusef(wire.StatusBusy, "%d connections are one link's, and no more may be", l.users)
	}
	l.users++
	return l, nil
}

func (n *Node) leaveSource(l *sourceLink, count *int) {
	n.mu.Lock()
	*count--
	n.mu.Unlock()
	l.link.post(call(func() {})) // it may be over
}

// tidySource forgets a link of which nothing is left. It is called by who runs
// the link.
func (n *Node) tidySource(l *sourceLink) {
	if !l.idle() {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if l.users+l.guests == 0 && n.sources[l.sourceID] == l {
		delete(n.sources, l.sourceID)
		l.dogs.keep(func(Incarnation) bool { return false })
	}
}

// dest finds or makes the link to an endpoint, which stays at least until free.
func (n *Node) dest(endpoint string) (*destLink, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l := n.dests[endpoint]; l != nil {
		l.users++
		return l, nil
	}
	network, addr, err := splitEndpoint(endpoint)
	if err != nil {
		return nil, &Error{Op: "dial", Endpoint: endpoint, Status: wire.StatusUnsupported, Err: ErrRefused, Cause: err}
	}
	if len(n.dests) >= n.cfg.MaxPeers {
		n.forgetOneLocked()
	}
	if len(n.dests) >= n.cfg.MaxPeers {
		return nil, &Error{Op: "dial", Endpoint: endpoint, Status: wire.StatusBusy, Err: ErrBusy}
	}
	l := newDestLink(n, n.made, endpoint, network, addr)
	n.made++
	l.users++
	n.dests[endpoint] = l
	return l, nil
}

// mayBeNamedLocked refuses an endpoint that turns out to be one more of a process to
// which enough are connected. One that was there before may have something to end there,
// and is let in. mu held.
func (n *Node) mayBeNamedLocked(l *destLink, who Incarnation) error {
	if l.who == who {
		return nil
	}
	names := 0
	for _, other := range n.dests {
		if other.who != who {
			continue
		}
		if conn, _ := other.link.state(); conn != nil {
			names++
		}
	}
	if names >= maxNames {
		return refusef(wire.StatusBusy, "%d other endpoints lead to that process, and no more may: fetch by one of them", names)
	}
	return nil
}

// free ends the caller's use of a link.
func (n *Node) free(l *destLink) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l.users--
}

// forgetOneLocked makes room: an endpoint with no connection and no work. mu held.
func (n *Node) forgetOneLocked() {
	for e, l := range n.dests {
		if l.forget() {
			delete(n.dests, e)
			return
		}
	}
}

// Now is the clock that deadlines are on.
func (n *Node) Now() Time { return time.Since(n.start) }

// Self is this life of the node.
func (n *Node) Self() Incarnation { return n.cfg.Self }

// Endpoints are the addresses listened on, in the order of Config.Listen, with
// the ports that were taken.
func (n *Node) Endpoints() []string { return append([]string(nil), n.endpoints...) }

// Routes are the ways for payload that this node has, in order of preference.
func (n *Node) Routes() []wire.Route {
	var kinds []wire.Route
	for _, r := range n.routes {
		kinds = append(kinds, r.Kind())
	}
	return kinds
}
