package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/panjf2000/gnet/v2"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints/publish"
	"github.com/kvcr-go/kvcr/internal/gnetlog"
	"github.com/kvcr-go/kvcr/internal/listen"
	"github.com/kvcr-go/kvcr/internal/role"
	"github.com/kvcr-go/kvcr/wire"
)

// Options say what is served, to whom, and how much of it. Zero fields take
// defaults.
type Options struct {
	Engine *kvcr.Engine // not closed by the server

	// RESP and Binary list the addresses to listen on: host:port, or unix:path.
	// Port 0 takes a free one; see Server.Addrs.
	RESP, Binary []string
	// RESPNamespace is the flat namespace that RESP clients see; empty: the
	// engine's first.
	RESPNamespace string
	// Public allows addresses that are not loopback without a secret.
	Public bool
	// Password is asked of RESP clients (AUTH), Secret of binary ones.
	Password string
	Secret   []byte
	// Layouts describes the layout of each namespace (wire.Layout.Describe); a
	// namespace without one is not compared.
	Layouts map[string]string
	// Describe takes what a client says of blocks of a namespace (DESCRIBE), and
	// appends the answers to dst. It must not block. nil: that is not supported.
	Describe func(dst []wire.Status, namespace string, m *wire.Describe) []wire.Status
	// Hinted is the namespace that hints are about: clients of others are answered
	// that hints, their outcomes and DESCRIBE are not supported. Empty: all may.
	Hinted string
	// Router says for STATS what routers are told; nil: nothing.
	Router func() *publish.Totals
	// PairSuffixes make two keys of RESP clients one unit: STEM+[0] and STEM+[1]
	// are seen when both are there, and leave together. RESPNamespace must be
	// chained. Empty: none.
	PairSuffixes [2]string
	// AllowFlush lets RESP clients empty the namespace (FLUSHALL, FLUSHDB).
	AllowFlush bool
	// Page is the address of the pages for people, told by STATS; empty: none.
	Page string

	Loops    int // event loops; default GOMAXPROCS
	MaxConns int // default 10000
	// OutboundCap is how many bytes of answers may wait for one connection before
	// it is not read from any more; default 4 MiB.
	OutboundCap int
	// HandshakeTimeout ends connections that have not authenticated (default
	// 10 s), IdleTimeout those that have said nothing (default 5 min),
	// WriteTimeout those that take nothing (default 1 min).
	HandshakeTimeout, IdleTimeout, WriteTimeout time.Duration

	// StagingCap is how many bytes of memory one client may have to write values
	// to, default 16 MiB, StagingTotal all of them together, default 256 MiB;
	// negative: none.
	StagingCap, StagingTotal int
	// readStaging copies a value out of staging memory; tests replace it.
	readStaging func(st *staging, dst []byte, off int64) error

	Log *slog.Logger // default: discards
}

func (o *Options) withDefaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.HandshakeTimeout, 10*time.Second)
	def(&o.IdleTimeout, 5*time.Minute)
	def(&o.WriteTimeout, time.Minute)
	o.shmDefaults()
	if o.Loops == 0 {
		o.Loops = runtime.GOMAXPROCS(0)
	}
	if o.MaxConns == 0 {
		o.MaxConns = 10000
	}
	if o.OutboundCap == 0 {
		o.OutboundCap = 4 << 20
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

// ErrPublic: an address that others can reach needs a secret, or Options.Public.
var ErrPublic = errors.New("the address is not loopback and no secret is set")

// AddrError says which address was refused and why.
type AddrError struct {
	Addr string
	Err  error
	Fix  string
}

func (e *AddrError) Error() string {
	return fmt.Sprintf("server: listen on %q: %v; %s", e.Addr, e.Err, e.Fix)
}

func (e *AddrError) Unwrap() error { return e.Err }

// Server serves one engine until Shutdown.
type Server struct {
	opt     Options
	log     *slog.Logger
	started time.Time
	loops   *gnet.Client

	listeners []*listener
	accepting sync.WaitGroup // the goroutines that accept
	work      sync.WaitGroup // the goroutines of sessions

	clock                               atomic.Int64
	conns, accepted, refused, slowConns atomic.Int64
	bytesIn, bytesOut                   atomic.Int64
	commands, errors                    [tallies]atomic.Uint64 // of slow sessions
	slowWatch                           stopwatch
	times                               timeline
	toldMu                              sync.Mutex // guards told and toldAt
	told                                *Stats     // by statsForClient
	toldAt                              int64      // coarse
	ttl                                 expiries
	pairs                               *pairs // nil: none
	sharing                             sharing
	hinting                             chan struct{} // has room for who serves a hint off the loops
	incarnation                         uint64
	maxValue                            map[string]uint64 // by namespace

	mu       sync.Mutex // guards what follows
	sessions map[*session]struct{}
	byLoop   map[gnet.EventLoop]*loop
	lent     map[string][]*kvcr.Handle // idle handles for slow sessions
	draining bool
	stop     chan struct{}
}

// loop is what one event loop owns.
type loop struct {
	handles map[string]*kvcr.Handle // by namespace
	out     outbox                  // of the turn that runs: empty between two
	iov     vectors
	// commands and their errors; the loop's to write, anyone's to read.
	commands, errors [tallies]atomic.Uint64
	settled          [tallies]uint64 // of commands, in watch
	watch            stopwatch
}

// listener is one address.
type listener struct {
	network, addr string
	namespace     string
	resp          bool
	ln            net.Listener
}

// Start listens and serves. The caller must Shutdown the server before it closes
// the engine, and afterwards call EndClaims.
func Start(opt Options) (_ *Server, err error) {
	opt.withDefaults()
	namespaces := opt.Engine.Namespaces()
	if opt.RESPNamespace == "" {
		opt.RESPNamespace = namespaces[0]
	}
	s := &Server{
		opt: opt, log: opt.Log, started: time.Now(),
		sessions: map[*session]struct{}{}, byLoop: map[gnet.EventLoop]*loop{}, lent: map[string][]*kvcr.Handle{},
		stop: make(chan struct{}), ttl: newExpiries(),
		incarnation: newIncarnation(), maxValue: map[string]uint64{}, pairs: newPairs(opt.PairSuffixes),
		hinting: make(chan struct{}, opt.Loops),
	}
	defer func() {
		if err != nil {
			s.closeListeners()
			s.ttl.close()
		}
	}()
	for _, ns := range namespaces {
		s.maxValue[ns] = uint64(opt.Engine.MaxValue(ns))
		h, err := opt.Engine.HandleIn(ns)
		if err != nil {
			return nil, fmt.Errorf("server: a handle for namespace %q: %w", ns, err)
		}
		s.ttl.handles[ns] = h
	}
	if s.pairs != nil {
		if err := s.pairs.check(s.kindOf(opt.RESPNamespace)); err != nil {
			return nil, err
		}
	}
	if err := s.listen(); err != nil {
		return nil, err
	}
	s.loops, err = gnet.NewClient(&handler{srv: s}, gnet.WithNumEventLoop(opt.Loops), gnet.WithLogger(gnetlog.Quiet{Log: opt.Log}), gnet.WithTCPNoDelay(gnet.TCPNoDelay))
	if err == nil {
		err = s.loops.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("server: event loops: %w", err)
	}
	for _, l := range s.listeners {
		s.accepting.Add(1)
		go roleAccept.Run(func() { s.accept(l) })
	}
	s.accepting.Add(1)
	go roleTimeouts.Run(s.watch)
	return s, nil
}

// What goroutines of a server are for, in profiles.
var (
	roleAccept       = role.New("accept")
	roleTimeouts     = role.New("timeouts")
	roleWriter       = role.New("writer")
	roleSubscription = role.New("subscription")
)

func (s *Server) listen() error {
	for i, addr := range append(append([]string(nil), s.opt.RESP...), s.opt.Binary...) {
		l := &listener{network: "tcp", addr: addr, namespace: s.opt.RESPNamespace, resp: i < len(s.opt.RESP)}
		secret := l.resp && s.opt.Password != "" || !l.resp && len(s.opt.Secret) > 0
		if path, ok := strings.CutPrefix(addr, "unix:"); ok {
			l.network, l.addr = "unix", path
			if err := listen.RemoveStale(path); err != nil {
				return &AddrError{addr, err, "choose another path, or stop who uses it"}
			}
		} else if !secret && !s.opt.Public && !listen.Loopback(addr) {
			return &AddrError{addr, ErrPublic, "set a password or secret, listen on loopback, or allow it with --public"}
		}
		ln, err := net.Listen(l.network, l.addr)
		if err != nil {
			return &AddrError{addr, err, "free the address or choose another"}
		}
		if l.network == "unix" {
			if err := os.Chmod(l.addr, 0o600); err != nil {
				ln.Close()
				return &AddrError{addr, err, "choose a path whose rights can be set"}
			}
		}
		l.ln = ln
		l.addr = ln.Addr().String()
		s.listeners = append(s.listeners, l)
	}
	return nil
}

// newIncarnation is a random id of this life of the server, not 0.
func newIncarnation() uint64 {
	for {
		if n := rand.Uint64(); n != 0 {
			return n
		}
	}
}

// namespaceOf resolves the name that a client gave: empty is the engine's first.
func (s *Server) namespaceOf(name string) (string, bool) {
	if name == "" {
		return s.opt.Engine.Namespaces()[0], true
	}
	_, ok := s.maxValue[name]
	return name, ok
}

// kindOf is the kind of a namespace, by its name.
func (s *Server) kindOf(namespace string) string {
	st, err := s.opt.Engine.Stats()
	if err != nil {
		return ""
	}
	for _, n := range st.Namespaces {
		if n.Name == namespace {
			return n.Kind
		}
	}
	return ""
}

// Addrs lists the addresses served, RESP first, in the order of Options.
func (s *Server) Addrs() (resp, binary []net.Addr) {
	for _, l := range s.listeners {
		if l.resp {
			resp = append(resp, l.ln.Addr())
		} else {
			binary = append(binary, l.ln.Addr())
		}
	}
	return resp, binary
}

func (s *Server) closeListeners() {
	for _, l := range s.listeners {
		l.ln.Close()
	}
}

// accept takes connections of one listener and hands them to the event loops.
func (s *Server) accept(l *listener) {
	defer s.accepting.Done()
	for {
		c, err := l.ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			s.log.Warn("accept", "addr", l.addr, "err", err)
			select { // out of descriptors, most likely: they come back
			case <-s.stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		if s.conns.Load() >= int64(s.opt.MaxConns) {
			s.refused.Add(1)
			if l.resp {
				c.SetWriteDeadline(time.Now().Add(time.Second))
				c.Write([]byte("-ERR max number of clients reached\r\n"))
			}
			c.Close()
			continue
		}
		ss := newSession(s, l)
		if l.resp {
			ss.proto = newRESP(s)
		} else {
			ss.proto = newBinary(s)
		}
		ss.ready.Store(l.resp && s.opt.Password == "")
		if !s.remember(ss) {
			c.Close()
			return
		}
		s.accepted.Add(1)
		if _, err := s.loops.EnrollContext(c, ss); err != nil {
			s.log.Warn("connection not served", "addr", l.addr, "err", err)
			s.forget(ss)
		} else if !ss.opened() { // gnet could not watch it, and does not say so
			s.log.Warn("connection not served", "addr", l.addr)
			s.forget(ss)
		}
	}
}

// opened reports whether the session's loop has it.
func (s *session) opened() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loop != nil
}

func (s *Server) remember(ss *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return false
	}
	s.sessions[ss] = struct{}{}
	s.conns.Add(1)
	return true
}

func (s *Server) forget(ss *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.sessions[ss]; ok {
		delete(s.sessions, ss)
		s.conns.Add(-1)
	}
}

// coarse is the time since the start in ns. It stands still between two ticks
// of watch: a turn must not pay for a clock.
func (s *Server) coarse() int64 { return s.clock.Load() }

// watch keeps the coarse clock, ends keys whose time is over, and closes sessions
// that are late or idle.
func (s *Server) watch() {
	defer s.accepting.Done()
	t := time.NewTicker(tick)
	defer t.Stop()
	var lot time.Duration // when the last one began
	for {
		select {
		case <-s.stop:
			return
		case <-t.C:
		}
		now := time.Since(s.started).Nanoseconds()
		if at := time.Duration(now); at-lot >= recentLot {
			lot = at
			s.collect(true)
		}
		s.clock.Store(now)
		s.expire(time.Now())
		s.mu.Lock()
		for ss := range s.sessions {
			if ss.late(now) {
				s.log.Debug("connection timed out", "conn", ss.name(), "ready", ss.ready.Load())
				ss.cutOff()
			}
		}
		s.mu.Unlock()
	}
}

// late reports that a session has had its time. Before its handshake is over that
// runs from its begin: a byte now and then is no handshake. Afterwards it is idle
// when it says nothing, takes nothing, listens to nothing, and shares no memory.
func (s *session) late(now int64) bool {
	if !s.ready.Load() {
		return now-s.begun > s.srv.opt.HandshakeTimeout.Nanoseconds()
	}
	return now-s.lastSeen.Load() > s.srv.opt.IdleTimeout.Nanoseconds() && !s.busy() && s.listens.Load() == 0 && !s.attached.Load()
}

// tick is the grain of timeouts.
const tick = 250 * time.Millisecond

// loopOf returns what an event loop owns, made at its first connection. It is
// called on the loop.
func (s *Server) loopOf(el gnet.EventLoop) *loop {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.byLoop[el]
	if l == nil {
		l = &loop{handles: map[string]*kvcr.Handle{}}
		s.byLoop[el] = l
		// gnet starts its goroutines itself; this one is the loop's.
		pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels(role.Label, "event-loop", "loop", strconv.Itoa(len(s.byLoop)-1))))
	}
	return l
}

// handle returns the loop's handle on a namespace, made at its first use.
func (s *Server) handle(l *loop, namespace string) (*kvcr.Handle, error) {
	if h := l.handles[namespace]; h != nil {
		return h, nil
	}
	h, err := s.opt.Engine.HandleIn(namespace)
	if err == nil {
		l.handles[namespace] = h
	}
	return h, err
}

// lend takes a handle for a session outside the loops.
func (s *Server) lend(namespace string) (*kvcr.Handle, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if idle := s.lent[namespace]; len(idle) > 0 {
		s.lent[namespace] = idle[:len(idle)-1]
		return idle[len(idle)-1], nil
	}
	return s.opt.Engine.HandleIn(namespace)
}

func (s *Server) giveBack(namespace string, h *kvcr.Handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lent[namespace] = append(s.lent[namespace], h)
}

// snapshot lists the keys resident in a namespace.
func (s *Server) snapshot(namespace string) (keys [][]byte, err error) {
	sub, err := s.opt.Engine.Subscribe(kvcr.SubscribeOptions{Buffer: 1})
	if err != nil {
		return nil, err
	}
	defer sub.Close()
	all, err := sub.Snapshot()
	if err != nil {
		return nil, err
	}
	for _, e := range all {
		if e.Namespace == namespace {
			keys = append(keys, e.Key)
		}
	}
	return keys, nil
}

// Shutdown stops accepting, lets sessions deliver what they owe until ctx ends,
// and closes them. It returns ctx's error when some had to be cut off. Blocks that
// processes on this host read in place stay claimed: see EndClaims.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	if s.draining {
		s.mu.Unlock()
		return nil
	}
	s.draining = true
	s.mu.Unlock()
	close(s.stop)
	s.closeListeners()
	s.accepting.Wait()
	err := s.drain(ctx)
	s.cutOffAll()
	if e := s.loops.Stop(); e != nil {
		err = errors.Join(err, fmt.Errorf("server: event loops: %w", e))
	}
	s.cutOffAll() // a last turn may have left something to write
	s.work.Wait()
	s.sharing.shut()
	s.ttl.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.byLoop {
		for _, h := range l.handles {
			h.Close()
		}
	}
	for _, idle := range s.lent {
		for _, h := range idle {
			h.Close()
		}
	}
	return err
}

// EndClaims ends the claims of processes on this host that still read blocks in place
// after Shutdown. Call it when the engine is closed: then nothing writes to their memory
// any more, so that they read what they have claimed for as long as they live. The
// engine's first Close says that these Views are out; one after EndClaims does not, if
// nothing else is.
func (s *Server) EndClaims() { s.sharing.forget() }

func (s *Server) cutOffAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ss := range s.sessions {
		ss.cutOff()
	}
}

// drain waits until no session owes anything.
func (s *Server) drain(ctx context.Context) error {
	t := time.NewTicker(5 * time.Millisecond)
	defer t.Stop()
	for {
		owing := false
		s.mu.Lock()
		for ss := range s.sessions {
			owing = owing || ss.busy()
		}
		s.mu.Unlock()
		if !owing {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
}

// busy reports that answers wait for the client, or that jobs or requests are under way.
func (s *session) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return (s.queued > 0 || len(s.streams) > 0 || len(s.jobs) > 0 || s.working || s.fetching.Load() > 0) && !s.dead
}

// handler is what gnet calls, on its loops.
type handler struct {
	gnet.BuiltinEventEngine
	srv *Server
}

func (h *handler) OnOpen(c gnet.Conn) ([]byte, gnet.Action) {
	s := c.Context().(*session)
	l := h.srv.loopOf(c.EventLoop()) // Server.mu comes before that of a session
	s.mu.Lock()
	s.loop, s.gc, s.fd = l, c, c.Fd()
	s.mu.Unlock()
	return nil, gnet.None
}

func (h *handler) OnTraffic(c gnet.Conn) gnet.Action {
	s := c.Context().(*session)
	b, err := c.Next(-1)
	if err != nil || len(b) == 0 {
		return gnet.None
	}
	if s.slow.Load() {
		return gnet.Close // it has been moved, and this descriptor is about to go
	}
	if s.h, err = h.srv.handle(s.loop, s.namespace); err != nil {
		h.srv.log.Warn("no handle for an event loop: connection closed", "err", err)
		return gnet.Close
	}
	h.srv.bytesIn.Add(int64(len(b)))
	in := s.input(b)
	s.out = &s.loop.out
	start := time.Since(h.srv.started) // one clock, where time.Now reads two
	used, err := s.turn(in)
	if err == nil && used == len(in) {
		err = s.fill()
	}
	s.loop.settle(s, time.Since(h.srv.started)-start)
	if err != nil && !errors.Is(err, errStop) {
		if !errors.Is(err, errQuit) {
			h.srv.log.Debug("connection ended", "conn", s.name(), "err", err)
		}
		return gnet.Close
	}
	// Also when there is room again by now: what was read and not run would wait for
	// the client's next byte.
	if errors.Is(err, errStop) || s.full() {
		s.leave(in[used:])
		return gnet.Close
	}
	s.keep(in[used:])
	return gnet.None
}

func (h *handler) OnClose(c gnet.Conn, _ error) gnet.Action {
	s := c.Context().(*session)
	if !s.slow.Load() && s.finish() {
		h.srv.forget(s)
	}
	return gnet.None
}
