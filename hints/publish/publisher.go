package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/keys"
)

// Recovery is how routers are brought to what a snapshot says.
type Recovery uint8

const (
	// ByClear publishes Cleared, then all that is resident: right for routers that
	// may know anything. Without a Domain it clears also what the framework itself
	// has published as the same worker.
	ByClear Recovery = iota
	// ByDifference publishes what has changed since the last event, and no Cleared:
	// for a publisher that shares its worker with others. What routers knew before
	// its first snapshot it does not take back.
	ByDifference
)

// Config describes a Publisher. Table is required; every other zero field means the
// default its comment names.
type Config struct {
	// Table translates keys. The publisher feeds it: nobody else may.
	Table *keys.Table
	// Worker and Domain say whose blocks these are; Owner too, of
	// events.DomainCacheOwner.
	Worker events.Worker
	Domain events.Domain
	Owner  events.OwnerKey
	// FirstID is the RouterEvent.ID of the first event. Default 1. A publisher whose
	// worker outlives it (a cache owner that restarts) must go on above its former
	// life: the time in nanoseconds will do.
	FirstID  uint64
	Recovery Recovery
	// Buffer is that of the subscription (kvcr.SubscribeOptions).
	Buffer int
	// MaxBlocks is how many blocks one batch tells of at most; blocks of many tokens
	// make smaller ones. Default 512.
	MaxBlocks int
	// FlushAfter is how long the first event of a batch waits for more. Default 2 ms.
	FlushAfter time.Duration
	// Log hears of gaps and of sinks that refuse. Default: nobody does.
	Log *slog.Logger
}

// Limits of a Config.
const (
	MaxBatchBlocks = 1 << 16
	MaxFlushAfter  = time.Minute
)

// A batch that is refused is offered again after retryFirst, then after twice as
// long each time, up to retryLast. Arbitrary: soon enough not to fill the
// subscription by a hiccup, seldom enough to cost nothing.
const (
	retryFirst = 20 * time.Millisecond
	retryLast  = 2 * time.Second
)

// Publisher publishes one engine's inventory. See the package for what it holds to.
type Publisher struct {
	cfg     Config
	sink    Sink
	running atomic.Bool

	// Run's own.
	batch  batch
	nextID uint64
	synced bool       // the table is what was published
	gone   []departed // but for these, which are to be taken back
	tokens []uint32   // scratch

	counts struct {
		events, batches, stored, removed, undescribed, duplicates, foreign, looped, refused, tiers, gaps, snapshots, failures atomic.Uint64
	}
}

// Stats counts what a Publisher did.
type Stats struct {
	Batches         uint64 // taken by the sink
	Events          uint64 // in them
	Stored, Removed uint64 // blocks in them
	Undescribed     uint64 // stored blocks whose local hash or place is not known
	Duplicates      uint64 // changes that are none to routers: another key has the hash
	Foreign         uint64 // changes of keys that routers do not know
	Looped          uint64 // blocks whose parent has their own hash, not published
	Refused         uint64 // blocks beyond the table's MaxKeys, not published
	UnknownTier     uint64 // changes in tiers that routers have no name for
	Gaps            uint64 // of the subscription
	Snapshots       uint64
	Failures        uint64 // refusals of the sink
}

// Stats may be called by any goroutine.
func (p *Publisher) Stats() Stats {
	c := &p.counts
	return Stats{
		Batches: c.batches.Load(), Events: c.events.Load(), Stored: c.stored.Load(), Removed: c.removed.Load(),
		Undescribed: c.undescribed.Load(), Duplicates: c.duplicates.Load(), Foreign: c.foreign.Load(), Looped: c.looped.Load(),
		Refused: c.refused.Load(), UnknownTier: c.tiers.Load(), Gaps: c.gaps.Load(), Snapshots: c.snapshots.Load(), Failures: c.failures.Load(),
	}
}

// ErrRunning, of Run: another Run of the publisher has not returned yet.
var ErrRunning = errors.New("the publisher runs already")

// New returns a Publisher. Failures: keys.ErrInvalid.
func New(cfg Config, sink Sink) (*Publisher, error) {
	if cfg.FirstID == 0 {
		cfg.FirstID = 1
	}
	if cfg.MaxBlocks == 0 {
		cfg.MaxBlocks = 512
	}
	if cfg.FlushAfter == 0 {
		cfg.FlushAfter = 2 * time.Millisecond
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	bad := func(field string, value any, limit, fix string) (*Publisher, error) {
		return nil, &keys.Error{What: "publish.Config." + field, Value: value, Limit: limit, Fix: fix}
	}
	switch {
	case cfg.Table == nil || sink == nil:
		return bad("Table", nil, "set, and a Sink", "make one with keys.NewTable")
	case cfg.MaxBlocks < 0 || cfg.MaxBlocks > MaxBatchBlocks:
		return bad("MaxBlocks", cfg.MaxBlocks, fmt.Sprintf("0 to %d", MaxBatchBlocks), "leave it 0 for 512")
	case cfg.FlushAfter < 0 || cfg.FlushAfter > MaxFlushAfter:
		return bad("FlushAfter", cfg.FlushAfter, fmt.Sprintf("0 to %v", MaxFlushAfter), "leave it 0 for 2 ms")
	case cfg.Recovery > ByDifference:
		return bad("Recovery", cfg.Recovery, "ByClear or ByDifference", "name one of them")
	case cfg.Domain > events.DomainCacheOwner || (cfg.Domain == events.DomainCacheOwner) != (cfg.Owner != events.OwnerKey{}):
		return bad("Domain", cfg.Domain, "legacy, worker, or cache owner with its Owner", "set Owner with DomainCacheOwner, and only then")
	}
	return &Publisher{cfg: cfg, sink: sink, nextID: cfg.FirstID}, nil
}

// Run publishes until ctx ends or the engine closes, and returns why. It offers the
// last batch once on its way out; one that is not taken then is the first of the
// next Run. One Run at a time, and always of the same engine.
func (p *Publisher) Run(ctx context.Context, e *kvcr.Engine) error {
	if !p.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	defer p.running.Store(false)
	sub, err := e.Subscribe(kvcr.SubscribeOptions{Buffer: p.cfg.Buffer})
	if err != nil {
		return err
	}
	defer sub.Close()
	for {
		if err = p.snapshot(ctx, sub); err == nil {
			err = p.follow(ctx, sub)
		}
		if !errors.Is(err, kvcr.ErrGap) {
			break
		}
		p.counts.gaps.Add(1)
		p.cfg.Table.Lost()
		p.cfg.Log.Warn("inventory changes were lost; publishing a snapshot", "buffer", p.cfg.Buffer)
	}
	if !p.batch.empty() {
		p.offer()
	}
	return err
}

// follow publishes changes until there is an error. Idle, it waits for the engine
// and for nothing else.
func (p *Publisher) follow(ctx context.Context, sub *kvcr.Subscription) error {
	for {
		ev, err := sub.Next(ctx)
		if err != nil {
			return err
		}
		p.change(&ev)
		if p.batch.empty() {
			continue
		}
		if err := p.fill(ctx, sub); err != nil {
			return err
		}
		if err := p.flush(ctx); err != nil {
			return err
		}
	}
}

// fill collects changes until the batch is full or has waited long enough.
func (p *Publisher) fill(ctx context.Context, sub *kvcr.Subscription) error {
	wait, cancel := context.WithTimeout(ctx, p.cfg.FlushAfter)
	defer cancel()
	for !p.batch.full(p.cfg.MaxBlocks) && wait.Err() == nil {
		ev, err := sub.Next(wait)
		if err != nil {
			if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
				return nil
			}
			return err
		}
		p.change(&ev)
	}
	return ctx.Err()
}

// change takes one event of the engine.
func (p *Publisher) change(ev *kvcr.Event) {
	tier, ok := tierOf(ev.Tier)
	if !ok {
		p.counts.tiers.Add(1)
		return
	}
	if !ev.Stored {
		hash, effect := p.cfg.Table.Removed(ev.Namespace, ev.Key, tier)
		if p.count(effect) {
			p.batch.removed(tier, hash)
		}
		return
	}
	hash, effect := p.cfg.Table.Stored(ev.Namespace, ev.Key, tier)
	if ev.Parent != nil {
		p.cfg.Table.Place(ev.Namespace, ev.Key, ev.Parent)
	}
	if p.count(effect) {
		p.stored(ev.Namespace, ev.Key, ev.Parent, tier, hash)
	}
}

// count reports whether an effect is to be published.
func (p *Publisher) count(effect keys.Effect) bool {
	switch effect {
	case keys.Foreign:
		p.counts.foreign.Add(1)
	case keys.Unchanged:
		p.counts.duplicates.Add(1)
	case keys.Refused:
		p.counts.refused.Add(1)
	}
	return effect == keys.Changed
}

func (p *Publisher) stored(namespace string, key, parent []byte, tier events.Tier, hash uint64) {
	b := p.about(namespace, key, parent, hash)
	if !p.batch.stored(tier, &b) {
		p.counts.looped.Add(1)
	} else if !b.described {
		p.counts.undescribed.Add(1)
	}
}

// about puts together what the host and the engine have told of a block, and what
// its key tells.
func (p *Publisher) about(namespace string, key, parent []byte, hash uint64) block {
	d, told := p.cfg.Table.Description(namespace, key, p.tokens[:0])
	if cap(d.Tokens) > cap(p.tokens) {
		p.tokens = d.Tokens[:0]
	}
	b := block{
		hash: hash, local: d.Local, parent: d.Parent, hasParent: d.HasParent,
		tokens: d.Tokens, media: d.Media, size: d.BlockSize, lora: d.LoRA, salt: d.CacheNamespace,
	}
	if !b.hasParent && parent != nil {
		b.parent, b.hasParent = p.cfg.Table.HashOfPart(namespace, parent)
	}
	// Without a parent it begins a chain if the host says so, or by its hashes, which
	// are the same there. An engine that names no parent says nothing: it names
	// resident ones only.
	root := told && parent == nil || d.HasLocal && d.Local == hash
	b.described = d.HasLocal && (b.hasParent || root)
	if !b.described { // a router that indexed the rest would do so in the wrong place
		b.local, b.tokens, b.size, b.media = 0, nil, 0, nil
	}
	return b
}

// flush hands the batch to the sink, again and again until it is taken.
func (p *Publisher) flush(ctx context.Context) error {
	if p.batch.empty() {
		return nil
	}
	for pause := retryFirst; ; pause = min(2*pause, retryLast) {
		err := p.offer()
		if err == nil {
			return nil
		}
		if pause == retryFirst {
			p.cfg.Log.Warn("events were refused; offering them again", "error", err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// offer hands the batch to the sink once.
func (p *Publisher) offer() error {
	id := p.nextID
	var stored, removed int
	out := p.batch.events(func(ev *Event) {
		ev.Worker, ev.Domain, ev.Owner, ev.ID = p.cfg.Worker, p.cfg.Domain, p.cfg.Owner, id
		id++
		stored += len(ev.Blocks)
		removed += len(ev.Hashes)
	})
	if err := p.sink.Publish(out); err != nil {
		p.counts.failures.Add(1)
		return err
	}
	p.nextID = id
	p.counts.stored.Add(uint64(stored))
	p.counts.removed.Add(uint64(removed))
	p.counts.events.Add(uint64(len(out)))
	p.counts.batches.Add(1)
	p.batch.reset()
	return nil
}
