package kvcr

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/ucx"
	"github.com/kvcr-go/kvcr/wire"
)

// Peers makes an engine exchange blocks with the engines of other processes. See
// peer.Config for what a field that is not explained here means.
type Peers struct {
	Name      string   // for people, default "kvcr"
	Listen    []string // tcp://host:port, unix:///path; none: this engine only fetches
	Advertise string
	Public    bool
	Secret    []byte
	// Routes are the ways for payload, in order of preference: "shm", "ucx",
	// "stream". Default all of them that this build and this machine have: shm
	// first, and ucx before stream where UCX.Transports are named or there are GPUs
	// (Config.CUDA). Route shm serves namespaces whose memory is a memfd
	// (Memory.Backing).
	Routes  []string
	Streams int
	// UCX is for route ucx: transports, devices, settings. Default: tcp, on
	// loopback only unless there is a Secret or Public is set, since UCX itself
	// asks nobody for a secret: with either of them its ports must be out of reach
	// of strangers.
	UCX ucx.Options
	// Direct is how memory of GPUs in Regions takes part in route ucx. Default: where
	// the UCX library has CUDA support (its transports for that, such as cuda_copy,
	// must be among UCX.Transports), bytes move between it and the network without a
	// copy in our memory. DirectUnverified leaves out the checksums of blocks that
	// arrive so, which cost a copy from the GPU for each that has one.
	Direct           peer.Direct
	DirectUnverified bool
	Timing           peer.Timing
	// Framework lends blocks of the host program's, which lie in Regions (default
	// Config.Regions), to peers. Those on GPUs go over route ucx. nil: none.
	Framework peer.Framework
	Regions   *peer.Regions
	// Resolver tells the keys of hashes that peers ask for: see Engine.Peers().Resolve.
	// What has no complete block in this engine's own memory is a miss. nil: peers hear
	// that this engine does not resolve hashes. Default that of Config.Hints.Adapter.
	Resolver peer.Resolver

	MaxPeers      int
	MaxOps        int
	MaxQuarantine int64
	// OnOutcome hears how each move ended, on both of its sides; OnTrouble of
	// memory that a peer may still write beyond its time, and of the end of that.
	// They must not block.
	OnOutcome func(peer.Outcome)
	OnTrouble func(peer.Trouble)
	Logger    *slog.Logger
}

// Peers returns the engine's node among peers, nil when Config.Peers is. Its
// Query, Invalidate, Resolve, Stats and Peers are for users; operations begin with
// Handle.FetchFrom and DeliverFrom.
func (e *Engine) Peers() *peer.Node { return e.node }

// config is the node's configuration, but for what the engine adds.
func (p *Peers) config() peer.Config {
	cfg := peer.Config{
		Name: p.Name, Listen: p.Listen, Advertise: p.Advertise, Public: p.Public, Secret: p.Secret,
		Streams: p.Streams, Timing: p.Timing, MaxPeers: p.MaxPeers, MaxOps: p.MaxOps, MaxQuarantine: p.MaxQuarantine,
		Resolver: p.Resolver, OnOutcome: p.OnOutcome, OnTrouble: p.OnTrouble, Logger: p.Logger,
	}
	if cfg.Name == "" {
		cfg.Name = "kvcr"
	}
	return cfg
}

// clone copies what the caller of Engine.Config, or of Open, may change.
func (p *Peers) clone() *Peers {
	if p == nil {
		return nil
	}
	c := *p
	c.Listen, c.Secret, c.Routes = slices.Clone(p.Listen), slices.Clone(p.Secret), slices.Clone(p.Routes)
	return &c
}

// validate reports every problem that can be told before memory is reserved.
func (p *Peers) validate(regions *peer.Regions, bad func(field string, value any, limit, fix string)) error {
	for i, name := range p.Routes {
		switch {
		case name != "shm" && name != "ucx" && name != "stream":
			bad("Peers.Routes", name, "one of shm, ucx, stream", "leave it empty for all there are")
		case slices.Contains(p.Routes[:i], name):
			bad("Peers.Routes", name, "each route once", "remove one of the two")
		}
	}
	if p.Framework != nil && p.Regions == nil && regions == nil {
		bad("Peers.Regions", nil, "set when there is a Framework", "register the framework's memory")
	}
	if err := p.config().Check(); err != nil {
		return fmt.Errorf("%w: Peers: %w", ErrConfig, err)
	}
	return nil
}

// openPeers starts the node. The engine serves already.
func (e *Engine) openPeers() error {
	p := e.cfg.Peers
	if p == nil {
		return nil
	}
	for _, ns := range e.list {
		ns.print = wire.Fingerprint(ns.cfg.Layout().Describe())
	}
	cfg := p.config()
	cfg.Fingerprint, cfg.Layout, cfg.Namespace = e.fingerprint, e.describeLayout, e.likelyNamespace()
	rec := &peerRecords{Records: e.records}
	cfg.Records = rec
	if h := e.hinted; h != nil {
		if cfg.Resolver == nil && h.adapter != nil {
			cfg.Resolver = h
		}
		cfg.ResolveTimeout = h.cfg.ResolveTimeout
	}
	cfg.OnOutcome = func(o peer.Outcome) {
		e.moveEnds.ended(o)
		if p.OnOutcome != nil {
			p.OnOutcome(o)
		}
	}
	regions := p.Regions
	if regions == nil {
		regions = e.cfg.Regions
	}
	if p.Framework != nil {
		rec.pins = peer.NewPins(p.Framework, regions)
		cfg.Pinner = rec.pins
	}
	var err error
	if cfg.Routes, cfg.UCX, err = e.routes(p.Routes); err != nil {
		return err
	}
	if e.node, err = peer.Open(cfg); err != nil {
		if cfg.UCX != nil {
			err = errors.Join(err, cfg.UCX.Close()) // the node may not have come to it
		}
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	e.pins = rec.pins
	return nil
}

// routes turns names into routes. None: all that there are.
func (e *Engine) routes(names []string) (routes []wire.Route, viaUCX peer.Route, err error) {
	defer func() {
		if err != nil && viaUCX != nil {
			err = errors.Join(err, viaUCX.Close())
		}
	}()
	all := len(names) == 0
	if all {
		names = e.preferredRoutes()
	}
	for _, name := range names {
		switch name {
		case "shm":
			if e.sharedMemory() {
				routes = append(routes, wire.RouteShm)
			} else if !all {
				return nil, viaUCX, &ConfigError{"Peers.Routes", name, "needs memory that can be shared", "set Memory.Backing to memfd"}
			}
		case "ucx":
			u, err := newUCXRoute(e)
			switch {
			case err == nil:
				routes, viaUCX = append(routes, u.Kind()), u
			case !all:
				return nil, nil, &ConfigError{"Peers.Routes", name, err.Error(), "build with -tags ucx on a machine with libucx, or leave it out"}
			}
		case "stream":
			routes = append(routes, wire.RouteStream)
		}
	}
	return routes, viaUCX, nil
}

// preferredRoutes is the order of routes where none is named. Between host memories
// over TCP our own streams are twice as fast as UCX (PERF.md), so UCX comes before
// them only where it has more to drive: transports that have been chosen, or GPUs.
func (e *Engine) preferredRoutes() []string {
	if e.cfg.CUDA != nil || len(e.cfg.Peers.UCX.Transports) > 0 {
		return []string{"shm", "ucx", "stream"}
	}
	return []string{"shm", "stream", "ucx"}
}

// sharedMemory reports whether some namespace lies in a memfd.
func (e *Engine) sharedMemory() bool {
	for _, ns := range e.list {
		if _, ok := ns.payload.FD(); ok {
			return true
		}
	}
	return false
}

// likelyNamespace is the one that peers fetch from first, as far as anybody can tell:
// what can be shared needs the more preparation.
func (e *Engine) likelyNamespace() string {
	for _, ns := range e.list {
		if _, ok := ns.payload.FD(); ok {
			return ns.cfg.Name
		}
	}
	return e.list[0].cfg.Name
}

// closePeers ends the node: operations are aborted, and claims of peers end.
func (e *Engine) closePeers() error {
	if e.node == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := e.node.Close(ctx)
	if e.pins != nil && !e.pins.Close(time.Second) {
		err = errors.Join(err, fmt.Errorf("%w: the framework has not taken back %d pins", ErrBusy, e.pins.Busy()))
	}
	return err
}

// fingerprint is that of a namespace's layout: its kind and its pools.
func (e *Engine) fingerprint(namespace string) (f [32]byte) {
	for _, ns := range e.list {
		if ns.cfg.Name == namespace {
			return ns.print
		}
	}
	return f
}

// describeLayout says what fingerprint is of.
func (e *Engine) describeLayout(namespace string) string {
	for _, ns := range e.list {
		if ns.cfg.Name == namespace {
			return ns.cfg.Layout().Describe()
		}
	}
	return ""
}

// Layout is what engines that exchange blocks must agree on about a namespace.
func (ns *Namespace) Layout() wire.Layout {
	l := wire.Layout{Kind: ns.Kind.String(), Recipe: ns.HashRecipe}
	for _, p := range ns.Pools {
		l.Pools = append(l.Pools, wire.LayoutPool{Name: p.Name, SlotBytes: uint64(p.SlotBytes)})
	}
	return l
}

// peerRecords is the engine's records with the framework's pins beside them.
type peerRecords struct {
	*Records
	pins *peer.Pins
}

func (r *peerRecords) ClaimBytes(c peer.Claim) [][]byte {
	if !peer.IsPin(c) {
		return r.Records.ClaimBytes(c)
	}
	var pieces [][]byte
	for _, s := range r.pins.Spans(c) {
		pieces = append(pieces, s.Host)
	}
	return pieces
}

// ClaimSpans is ClaimBytes for who can read memory of devices, too.
func (r *peerRecords) ClaimSpans(c peer.Claim) (spans []peer.Span) {
	if peer.IsPin(c) {
		return r.pins.Spans(c)
	}
	for _, b := range r.Records.ClaimBytes(c) {
		spans = append(spans, peer.Span{Host: b, Device: -1, Len: len(b)})
	}
	return spans
}

// SlotSpans is SlotBytes with what lies on devices.
func (r *peerRecords) SlotSpans(s peer.Slot) []peer.Span { return r.Records.slotSpans(s) }

func (r *peerRecords) Unclaim(c peer.Claim) {
	if peer.IsPin(c) {
		r.pins.Unclaim(c)
		return
	}
	r.Records.Unclaim(c)
}

func (r *peerRecords) Share(namespace string) (*os.File, int64, error) { return r.e.Share(namespace) }
