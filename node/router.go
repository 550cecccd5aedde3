package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/keys"
	"github.com/kvcr-go/kvcr/hints/publish"
	"github.com/kvcr-go/kvcr/internal/listen"
	"github.com/kvcr-go/kvcr/internal/role"
	"github.com/kvcr-go/kvcr/wire"
)

// Router says what a node has to do with routers: it acts on their hints, and tells
// them what it holds. It is about the engine's first namespace.
type Router struct {
	// Recipe is how clients make the keys of blocks.
	Recipe keys.Recipe
	// Worker and Rank are by which routers know the node.
	Worker uint64
	Rank   int
	// Events, when not nil, publishes KV events as vLLM does, Plane as Dynamo does.
	// Rank is theirs.
	Events *events.PublisherConfig
	Plane  *events.PlanePublisherConfig
}

// routing is a running Router.
type routing struct {
	namespace string // that routers know
	table     *keys.Table
	feed      *publish.Publisher // nil: nothing is published
	events    *events.Publisher
	plane     *events.PlanePublisher
	log       *slog.Logger

	stop  context.CancelFunc
	going sync.WaitGroup
}

// ErrPublicEvents: subscribers of ZMQ prove nothing, so that events are published where
// only this machine comes, unless Config.Public is set.
var ErrPublicEvents = errors.New("events would be published at an address that is not loopback")

// private refuses endpoints to listen at that others reach.
func (r *Router) private() error {
	check := func(field, endpoint string, listens bool) error {
		addr, tcp := strings.CutPrefix(endpoint, "tcp://")
		if !listens || !tcp && endpoint != "" || listen.Loopback(addr) {
			return nil
		}
		return fmt.Errorf("router: %s %q: %w; name a loopback address, or set Public", field, endpoint, ErrPublicEvents)
	}
	if e := r.Events; e != nil {
		if err := check("Events.Endpoint", e.Endpoint, e.Bind || e.Endpoint == "" || events.Binds(e.Endpoint)); err != nil {
			return err
		}
		if err := check("Events.Replay", e.Replay, e.Replay != ""); err != nil {
			return err
		}
	}
	if p := r.Plane; p != nil {
		return check("Plane.Endpoint", p.Endpoint, len(p.Brokers) == 0)
	}
	return nil
}

// prepareRouting adds to the engine's configuration what acting on hints takes.
func prepareRouting(r *Router, public bool, cfg *kvcr.Config) (*routing, error) {
	if err := r.private(); err != nil && !public {
		return nil, err
	}
	style, err := r.Recipe.Keys()
	if err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	ns := append([]kvcr.Namespace(nil), cfg.Namespaces...)
	if len(ns) == 0 {
		return nil, errors.New("router: the engine has no namespace of its own: name one")
	}
	ns[0].HashRecipe = r.Recipe.String()
	cfg.Namespaces = ns
	out := &routing{namespace: ns[0].Name}
	if out.table, err = keys.NewTable(keys.TableConfig{Styles: map[string]keys.Style{ns[0].Name: style}}); err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	h := kvcr.Hints{}
	if cfg.Hints != nil {
		h = *cfg.Hints
	}
	h.Adapter, h.Rank = out.table, r.Rank
	cfg.Hints = &h
	return out, nil
}

// begin follows the engine. On failure the routing is closed.
func (rt *routing) begin(r *Router, e *kvcr.Engine, log *slog.Logger) (err error) {
	rt.log = log
	var ctx context.Context
	ctx, rt.stop = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			rt.close()
		}
	}()
	var sinks []publish.Sink
	if r.Events != nil {
		cfg := *r.Events
		cfg.Rank = uint32(r.Rank)
		if rt.events, err = events.NewPublisher(cfg); err != nil {
			return fmt.Errorf("events: %w", err)
		}
		sinks = append(sinks, publish.EngineEvents(rt.events))
	}
	if r.Plane != nil {
		if rt.plane, err = events.NewPlanePublisher(*r.Plane); err != nil {
			return fmt.Errorf("event plane: %w", err)
		}
		sinks = append(sinks, publish.PlaneEvents(rt.plane))
	}
	if len(sinks) == 0 {
		sub, err := e.Subscribe(kvcr.SubscribeOptions{})
		if err != nil {
			return err
		}
		rt.run("hashes", func() error {
			defer sub.Close()
			return rt.table.Follow(ctx, publish.Feed(sub))
		})
		return nil
	}
	worker := events.Worker{ID: r.Worker, Rank: uint32(r.Rank)}
	if rt.feed, err = publish.New(publish.Config{Table: rt.table, Worker: worker, Log: log}, publish.Sinks(sinks...)); err != nil {
		return err
	}
	rt.run("events", func() error { return rt.feed.Run(ctx, e) })
	return nil
}

// What goroutines of a node are for, in profiles.
var (
	roleRouter = role.New("router")
	roleHTTP   = role.New("http")
)

func (rt *routing) run(what string, f func() error) {
	rt.going.Add(1)
	go func() {
		defer rt.going.Done()
		roleRouter.Take()
		if err := f(); err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, kvcr.ErrClosed) {
			rt.log.Error("routers hear nothing more from here", "what", what, "err", err)
		}
	}()
}

// close stops following: before the engine closes.
func (rt *routing) close() error {
	if rt.stop != nil {
		rt.stop()
	}
	rt.going.Wait()
	var errs []error
	if rt.events != nil {
		errs = append(errs, rt.events.Close())
	}
	if rt.plane != nil {
		errs = append(errs, rt.plane.Close())
	}
	return errors.Join(errs...)
}

// describe is the server's Options.Describe.
func (rt *routing) describe(dst []wire.Status, namespace string, m *wire.Describe) []wire.Status {
	for i := range m.Blocks {
		b := &m.Blocks[i]
		d := keys.Description{
			Tokens: b.Tokens, BlockSize: int(m.BlockSize), LoRA: m.LoRA,
			HasParent: b.Flags&wire.DescribeParent != 0, Parent: b.Parent,
		}
		st := wire.StatusOK
		if hash, ok := rt.table.ToRouter(namespace, b.Key); !ok {
			st = wire.StatusBadKey // of no block that routers know
		} else if b.Flags&wire.DescribeHash != 0 && b.Hash != hash {
			st = wire.StatusBadKey // by the recipe, the key says something else
		} else if err := rt.table.Describe(namespace, b.Key, d); err != nil {
			st = wire.StatusBadLayout
		}
		dst = append(dst, st)
	}
	return dst
}

// EventEndpoints are where routers subscribe to KV events, ask for those that they
// missed, and subscribe to Dynamo's plane; empty for what there is not.
func (n *Node) EventEndpoints() (kvEvents, replay, plane string) {
	if n.routing == nil {
		return "", "", ""
	}
	if p := n.routing.events; p != nil {
		kvEvents, replay = p.Endpoint(), p.ReplayEndpoint()
	}
	if p := n.routing.plane; p != nil {
		plane = p.Endpoint()
	}
	return kvEvents, replay, plane
}
