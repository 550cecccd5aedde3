// Package node is a standalone cache: one engine with everything that serves it,
// the RESP and binary listeners and the HTTP pages.
package node

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints/publish"
	"github.com/kvcr-go/kvcr/node/web"
	"github.com/kvcr-go/kvcr/wire"
	"github.com/kvcr-go/kvcr/wire/server"
)

// Config says what a node is. The zero Config serves nothing.
type Config struct {
	Engine kvcr.Config

	RESP, Binary []string // addresses, see server.Options
	HTTP         string   // address, empty for none
	Public       bool     // allow addresses that are not loopback without a secret, those of events too
	HTTPPublic   bool
	Password     string
	Secret       []byte
	AllowFlush   bool
	// PairSuffixes make two RESP keys of one stem live and die together.
	PairSuffixes [2]string
	Debug        bool // serve /debug/pprof and /debug/claims
	// Router: the node acts on hints, and publishes what it holds. nil: neither.
	Router *Router

	Loops, MaxConns, OutboundCap                int
	StagingCap, StagingTotal                    int
	HandshakeTimeout, IdleTimeout, WriteTimeout time.Duration
	// DrainTimeout bounds Close; default 10 s.
	DrainTimeout time.Duration

	LogLevel slog.Level
	Log      *slog.Logger // default: discards
	Version  string
	// Settings are shown at /config.
	Settings []web.Setting
}

// Node is a running node.
type Node struct {
	cfg     Config
	engine  *kvcr.Engine
	routing *routing // nil: none
	server  *server.Server
	web     *web.Server
	started time.Time
	served  chan error

	closing sync.Once
	closed  error
}

// Start opens the engine and serves it. Unless GOMEMLIMIT is set, it sets Go's
// soft memory limit to what the engine leaves of the machine's or container's
// memory.
func Start(cfg Config) (n *Node, err error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.DrainTimeout == 0 {
		cfg.DrainTimeout = 10 * time.Second
	}
	if p := cfg.Engine.Peers; p != nil && p.Logger == nil {
		with := *p
		with.Logger = cfg.Log
		cfg.Engine.Peers = &with
	}
	var rt *routing
	if cfg.Router != nil {
		if rt, err = prepareRouting(cfg.Router, cfg.Public, &cfg.Engine); err != nil {
			return nil, err
		}
	}
	n = &Node{cfg: cfg, started: time.Now(), served: make(chan error, 1)}
	if n.engine, err = kvcr.Open(cfg.Engine); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
			n = nil
		}
	}()
	if plan := n.engine.MemoryPlan(); os.Getenv("GOMEMLIMIT") == "" && plan.CurrentGoLimit == math.MaxInt64 && plan.SuggestedGoLimit != math.MaxInt64 {
		debug.SetMemoryLimit(plan.SuggestedGoLimit)
	}
	var describe func([]wire.Status, string, *wire.Describe) []wire.Status
	var hinted string
	var router func() *publish.Totals
	if rt != nil {
		if err := rt.begin(cfg.Router, n.engine, cfg.Log); err != nil {
			return n, err
		}
		n.routing, describe, hinted, router = rt, rt.describe, rt.namespace, rt.totals
	}
	var page *web.Server // bound before clients come, so that they can be told where it is
	var pageURL string
	if cfg.HTTP != "" {
		page, err = web.New(web.Options{Addr: cfg.HTTP, Source: source{n}, Debug: cfg.Debug, Public: cfg.HTTPPublic, Log: cfg.Log})
		if err != nil {
			return n, err
		}
		pageURL = "http://" + page.Addr().String() + "/"
	}
	n.server, err = server.Start(server.Options{
		Describe: describe, Hinted: hinted, Router: router, Page: pageURL,
		Engine: n.engine, RESP: cfg.RESP, Binary: cfg.Binary, Public: cfg.Public, Password: cfg.Password, Secret: cfg.Secret,
		AllowFlush: cfg.AllowFlush, PairSuffixes: cfg.PairSuffixes, Layouts: layouts(cfg.Engine), Loops: cfg.Loops, MaxConns: cfg.MaxConns, OutboundCap: cfg.OutboundCap, StagingCap: cfg.StagingCap, StagingTotal: cfg.StagingTotal,
		HandshakeTimeout: cfg.HandshakeTimeout, IdleTimeout: cfg.IdleTimeout, WriteTimeout: cfg.WriteTimeout, Log: cfg.Log,
	})
	if page == nil {
		return n, err
	}
	n.web = page // it asks n.server, and without one is only closed
	if err != nil {
		n.served <- nil
		return n, err
	}
	go roleHTTP.Run(func() { n.served <- n.web.Serve() })
	return n, nil
}

// layouts describes each namespace: its kind and the sizes of its pools, in order.
func layouts(cfg kvcr.Config) map[string]string {
	out := map[string]string{}
	for _, ns := range cfg.Namespaces {
		out[ns.Name] = ns.Layout().Describe()
	}
	return out
}

// Engine is the node's engine. It closes with the node.
func (n *Node) Engine() *kvcr.Engine { return n.engine }

// Addrs are the addresses served, as bound; http is nil when there is none.
func (n *Node) Addrs() (resp, binary []net.Addr, http net.Addr) {
	resp, binary = n.server.Addrs()
	if n.web != nil {
		http = n.web.Addr()
	}
	return resp, binary, http
}

// Close stops serving: answers under way are delivered for at most DrainTimeout.
// Any goroutine, any number of times; all get the answer of the first.
func (n *Node) Close() error {
	n.closing.Do(func() { n.closed = n.close() })
	return n.closed
}

func (n *Node) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), n.cfg.DrainTimeout)
	defer cancel()
	var errs []error
	if n.server != nil {
		errs = append(errs, n.server.Shutdown(ctx))
	}
	if n.web != nil {
		errs = append(errs, n.web.Close(ctx), <-n.served)
	}
	if n.routing != nil {
		errs = append(errs, n.routing.close())
	}
	err := n.engine.Close()
	if n.server != nil {
		n.server.EndClaims() // now that nothing is written any more
		err = n.engine.Close()
	}
	return errors.Join(append(errs, err)...)
}

// source shows the node to its pages.
type source struct{ n *Node }

func (s source) Stats() (kvcr.Stats, error) { return s.n.engine.Stats() }
func (s source) Plan() kvcr.MemoryPlan      { return s.n.engine.MemoryPlan() }
func (s source) Config() []web.Setting      { return s.n.cfg.Settings }
func (s source) Version() string            { return s.n.cfg.Version }
func (s source) Started() time.Time         { return s.n.started }

func (s source) Claims() (held, writing int) {
	return s.n.engine.Claims(), s.n.engine.Reservations()
}

func (s source) Peers() *web.PeerStats {
	p := s.n.engine.Peers()
	if p == nil {
		return nil
	}
	return &web.PeerStats{Stats: p.Stats(), Peers: p.Peers(), Endpoints: p.Endpoints()}
}

func (s source) Router() *publish.Totals {
	if s.n.routing == nil {
		return nil
	}
	return s.n.routing.totals()
}

func (s source) Ready() (bool, string) {
	if s.n.server.Draining() {
		return false, "shutting down"
	}
	return true, ""
}

func (s source) Server() web.ServerStats {
	st := s.n.server.Stats()
	out := web.ServerStats{
		Conns: st.Conns, MaxConns: int64(st.MaxConns), Accepted: st.Accepted, Refused: st.Refused, SlowConns: st.SlowConns,
		BytesIn: st.BytesIn, BytesOut: st.BytesOut, Claims: st.Claims,
		Shared: web.SharedStats{
			Clients: int64(st.Shared.Clients), Conns: int64(st.Shared.Conns), Gets: st.Shared.Gets, Hits: st.Shared.Hits, LentBytes: st.Shared.LentBytes,
			Claims: st.Shared.Claims, Left: st.Shared.HeldForDead, StagingBytes: st.Shared.StagingBytes,
			Commits: st.Shared.Commits, CommittedBytes: st.Shared.CommittedBytes, Dropped: st.Shared.Dropped,
		},
		Latency: snapshot(st.Latency), Recent: snapshot(st.Recent),
	}
	for _, c := range st.Commands {
		out.Commands = append(out.Commands, web.CommandStats{Proto: c.Proto, Name: c.Name, Calls: c.Count, Errors: c.Errors, Latency: snapshot(c.Latency), Recent: snapshot(c.Recent)})
	}
	return out
}

func snapshot(l server.Latency) web.LatencySnapshot {
	out := web.LatencySnapshot{
		P50: l.P50.Seconds(), P99: l.P99.Seconds(), P999: l.P999.Seconds(), Max: l.Max.Seconds(), Count: l.Count, Sum: l.Sum.Seconds(),
	}
	copy(out.Buckets[:], l.Buckets(web.LatencyBounds()))
	return out
}
