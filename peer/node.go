package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/panjf2000/gnet/v2"

	"github.com/kvcr-go/kvcr/internal/procs"
	"github.com/kvcr-go/kvcr/wire"
)

// Node fetches blocks from peers and serves them to peers. Its methods may be
// called from any goroutine. Callbacks run on goroutines of the node's, must not
// block, and may call the node.
type Node struct {
	cfg    Config
	log    *slog.Logger
	start  time.Time
	routes []Route
	host   [16]byte
	local  string // unix socket for payload on this host; empty: none
	count  counters
	nextOp atomic.Uint64
	loops  *gnet.Client
	procs  procs.Set

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
	sources  map[Incarnation]*sourceLink
	controls map[*control]struct{}
	tokens   map[uint64]*target
	raw      map[net.Conn]struct{} // in their handshake
	ended    bool                  // no more goroutines
}

// target is what payload connections with a token are for.
type target struct {
	who  Incarnation
	side attacher
}

type listener struct {
	net.Listener
	local bool // for payload of this host only
}

// Open starts a node. The caller must Close it.
func Open(cfg Config) (_ *Node, err error) {
	cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	n := &Node{
		cfg: cfg, log: cfg.Logger, start: time.Now(), closed: make(chan struct{}), shaking: make(chan struct{}, cfg.Handshakes),
		dests: map[string]*destLink{}, sources: map[Incarnation]*sourceLink{}, controls: map[*control]struct{}{},
		tokens: map[uint64]*target{}, raw: map[net.Conn]struct{}{},
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.nextOp.Store(rand.Uint64() >> 2)
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
	n.loops, err = gnet.NewClient(&events{}, gnet.WithNumEventLoop(cfg.Loops), gnet.WithLogger(quiet{n.log}))
	if err == nil {
		err = n.loops.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("peer: event loops: %w", err)
	}
	for _, l := range n.listeners {
		n.accepting.Add(1)
		go n.accept(l)
	}
	return n, nil
}

// listen opens the addresses of the configuration, and one for payload of this
// host.
func (n *Node) listen() error {
	for _, e := range n.cfg.Listen {
		network, addr, _ := splitEndpoint(e) // validate has looked
		if network == "unix" {
			if err := removeStale(addr); err != nil {
				return &ConfigError{"Listen", e, err.Error() + ": choose another path, or stop who uses it"}
			}
		}
		ln, err := net.Listen(network, addr)
		if err != nil {
			return &ConfigError{"Listen", e, err.Error() + ": free the address or choose another"}
		}
		n.listeners = append(n.listeners, listener{ln, false})
		if network == "unix" {
			if err := os.Chmod(addr, 0o600); err != nil {
				return &ConfigError{"Listen", e, err.Error() + ": choose a path whose rights can be set"}
			}
		}
		n.endpoints = append(n.endpoints, network+"://"+ln.Addr().String())
	}
	if n.cfg.Advertise == "" && len(n.endpoints) > 0 {
		n.cfg.Advertise = n.endpoints[0]
	}
	if len(n.endpoints) == 0 || n.routeOf(wire.RouteShm) == nil {
		return nil
	}
	// In the abstract namespace: no file to leave behind. Credentials are asked of
	// the kernel, so that file rights are not missed.
	token, err := newToken()
	if err != nil {
		return err
	}
	name := fmt.Sprintf("@kvcr-peer-%016x", token)
	ln, err := net.Listen("unix", name)
	if err != nil {
		n.log.Warn("route shm is not offered: no unix socket", "err", err)
		return nil
	}
	n.local = name
	n.listeners = append(n.listeners, listener{ln, true})
	return nil
}

// removeStale removes a socket that nobody listens on any more.
func removeStale(path string) error {
	fi, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if fi.Mode()&os.ModeSocket == 0 {
		return errors.New("it exists and is no socket")
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return errors.New("somebody listens on it")
	}
	return os.Remove(path)
}

// accept takes connections of one listener; each has a goroutine until its
// handshake is over.
func (n *Node) accept(l listener) {
	defer n.accepting.Done()
	for {
		nc, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			n.log.Warn("accept", "addr", l.Addr().String(), "err", err)
			select { // out of descriptors, most likely: they come back
			case <-n.ctx.Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		select {
		case n.shaking <- struct{}{}:
		default:
			n.count.refused.Add(1)
			nc.Close()
			continue
		}
		ok := n.watchRaw(nc) && n.spawn(func() {
			n.accepted(nc, l.local)
			n.unwatchRaw(nc)
			<-n.shaking
		})
		if !ok {
			nc.Close()
			<-n.shaking
		}
	}
}

// watchRaw remembers a connection in its handshake, so that Close can end it.
func (n *Node) watchRaw(nc net.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended || n.closing.Load() {
		return false
	}
	n.raw[nc] = struct{}{}
	return true
}

func (n *Node) unwatchRaw(nc net.Conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.raw, nc)
}

// spawn runs f on a goroutine that Close waits for. False: the node is closing.
func (n *Node) spawn(f func()) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended {
		return false
	}
	n.work.Add(1)
	go func() {
		defer n.work.Done()
		f()
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

// enterSource finds or makes the link to a destination, which stays at least
// until leaveSource.
func (n *Node) enterSource(who Incarnation) (*sourceLink, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closing.Load() {
		return nil, refusef(wire.StatusClosed, "the node is closing")
	}
	l := n.sources[who]
	if l == nil {
		if len(n.sources) >= n.cfg.MaxPeers {
			return nil, refusef(wire.StatusBusy, "%d peers fetch from here, and no more may", n.cfg.MaxPeers)
		}
		l = newSourceLink(n, who)
		n.sources[who] = l
	}
	l.users++
	return l, nil
}

func (n *Node) leaveSource(l *sourceLink) {
	n.mu.Lock()
	l.users--
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
	if l.users == 0 && n.sources[l.who] == l {
		delete(n.sources, l.who)
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
	l := newDestLink(n, endpoint, network, addr)
	l.users++
	n.dests[endpoint] = l
	return l, nil
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

// NextOp takes a number for an operation, for callers that must know it before
// Submit.
func (n *Node) NextOp() OpID { return OpID(n.nextOp.Add(1)) }

// Submit begins an operation with a peer and returns its number: s.Op, or a new
// one when that is 0. settle is called exactly once for each item, perhaps before
// Submit returns. There is always an end: no later than s.Deadline, on the clock
// of Now, but for items of the caller's memory (Deliver), which end when nobody
// writes to it any more.
func (n *Node) Submit(endpoint string, s Submit, settle func(Settle)) OpID {
	if s.Op == 0 {
		s.Op = n.NextOp()
	}
	fail := func(why wire.Status) OpID {
		n.count.refusals.Add(1)
		for i := range s.Items {
			settle(Settle{Op: s.Op, Index: i, Status: why})
		}
		return s.Op
	}
	if len(s.Items) == 0 || len(s.Items) > wire.MaxItems || len(s.Namespace) > wire.MaxName {
		return fail(wire.StatusTooLarge)
	}
	for i := range s.Items {
		if k := len(s.Items[i].Key); k == 0 || k > wire.MaxKey {
			return fail(wire.StatusBadKey)
		}
	}
	if repeated(s.Items) {
		return fail(wire.StatusBadKey)
	}
	if n.cfg.Fingerprint != nil && s.Fingerprint == [32]byte{} {
		s.Fingerprint = n.cfg.Fingerprint(s.Namespace)
	}
	l, err := n.dest(endpoint)
	if err != nil {
		var e *Error
		errors.As(err, &e)
		return fail(e.Status)
	}
	defer n.free(l)
	l.submit(s, settle)
	return s.Op
}

// Abort ends items of an operation, all when none is named. What has been
// committed stays.
func (n *Node) Abort(endpoint string, op OpID, items ...int) {
	n.mu.Lock()
	l := n.dests[endpoint]
	n.mu.Unlock()
	if l != nil {
		l.link.post(Abort{op, items})
	}
}

// Query asks what a peer could offer of keys; one result for each. It waits for a
// connection if need be.
func (n *Node) Query(ctx context.Context, endpoint, namespace string, keys [][]byte) ([]wire.Result, error) {
	size := 0
	for _, k := range keys {
		if size += 2 + len(k); len(k) == 0 || len(k) > wire.MaxKey {
			return nil, &Error{Op: "query", Endpoint: endpoint, Status: wire.StatusBadKey, Err: ErrRefused}
		}
	}
	if len(keys) > wire.MaxList || len(namespace) > wire.MaxName || size > wire.MaxPayload-1<<10 {
		return nil, &Error{Op: "query", Endpoint: endpoint, Status: wire.StatusTooLarge, Err: ErrRefused}
	}
	m, err := n.ask(ctx, "query", endpoint, namespace, &wire.PeerQuery{Namespace: namespace, Keys: keys})
	if err != nil {
		return nil, err
	}
	r, ok := m.(*wire.Results)
	if !ok || len(r.Results) != len(keys) {
		return nil, &Error{Op: "query", Endpoint: endpoint, Err: ErrLost, Cause: errors.New("an answer that makes no sense")}
	}
	return r.Results, nil
}

// Invalidate has a peer remove blocks, each of its generation unless that is 0. A
// request whose answer was lost is repeated, so that StatusMiss may mean that the
// first one has removed the block.
func (n *Node) Invalidate(ctx context.Context, endpoint, namespace string, items []wire.Wanted) ([]wire.Status, error) {
	for i := range items {
		if k := len(items[i].Key); k == 0 || k > wire.MaxKey {
			return nil, &Error{Op: "invalidate", Endpoint: endpoint, Status: wire.StatusBadKey, Err: ErrRefused}
		}
	}
	if len(items) > wire.MaxItems || len(namespace) > wire.MaxName {
		return nil, &Error{Op: "invalidate", Endpoint: endpoint, Status: wire.StatusTooLarge, Err: ErrRefused}
	}
	m, err := n.ask(ctx, "invalidate", endpoint, namespace, &wire.Invalidate{Namespace: namespace, Items: items})
	if err != nil {
		return nil, err
	}
	r, ok := m.(*wire.Statuses)
	if !ok || len(r.Statuses) != len(items) {
		return nil, &Error{Op: "invalidate", Endpoint: endpoint, Err: ErrLost, Cause: errors.New("an answer that makes no sense")}
	}
	return r.Statuses, nil
}

// ask sends a request and waits for the answer, over as many connections as it
// takes.
func (n *Node) ask(ctx context.Context, what, endpoint, namespace string, m wire.Message) (wire.Message, error) {
	l, err := n.dest(endpoint)
	if err != nil {
		return nil, err
	}
	defer n.free(l)
	for {
		if n.closing.Load() {
			return nil, &Error{Op: what, Endpoint: endpoint, Err: ErrClosed}
		}
		got := make(chan wire.Message, 1)
		cancel := l.request(uint64(n.NextOp()), namespace, m, func(m wire.Message) { got <- m })
		select {
		case m := <-got:
			switch m := m.(type) {
			case nil:
				continue
			case *wire.StatusReply:
				return nil, &Error{Op: what, Endpoint: endpoint, Status: m.Status, Err: ErrRefused}
			case *wire.ErrorReply:
				return nil, &Error{Op: what, Endpoint: endpoint, Err: ErrRefused, Cause: errors.New(m.Text)}
			}
			return m, nil
		case <-ctx.Done():
			cancel()
			return nil, &Error{Op: what, Endpoint: endpoint, Err: ErrLost, Cause: ctx.Err()}
		}
	}
}
