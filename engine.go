package kvcr

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/kvcr-go/kvcr/arena"
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/shard"
	"github.com/kvcr-go/kvcr/shard/evict"
)

// Engine is an open cache. All methods may be called from any goroutine.
type Engine struct {
	cfg  Config
	hash func([]byte) uint64
	meta *arena.Arena
	list []*namespace
	hub  hub

	moves   shard.MoveBudget // marks and holds of all shards
	records *Records
	node    *peer.Node // nil without Config.Peers
	pins    *peer.Pins // nil without a framework
	devices *devices   // nil without Config.CUDA
	hinted  *hinted    // nil without Config.Hints

	moveEnds moveEnds

	closed atomic.Bool
	// background ends at Close; work counts the fetches under way.
	background context.Context
	stop       context.CancelFunc
	work       sync.WaitGroup

	sourceFaults atomic.Uint64

	mu        sync.Mutex // guards what follows
	handles   map[*handleState]struct{}
	retired   handleCounts // counts of handles closed since
	idle      chan *Handle
	state     engineState
	closeErr  error
	peersOpen bool          // the node has not closed in time: memory stays
	busy      *BusyError    // what was in use at the end of Close
	done      chan struct{} // closed when the first Close has its answer
}

type engineState int

const (
	serving engineState = iota
	closing
	lingering // closed, but memory is in use
	gone
)

// namespace is one key space over its own payload memory.
type namespace struct {
	cfg      Namespace
	sums     bool
	payload  *arena.Arena
	parts    []*part
	shift    uint // the hash's top bits choose the part
	unmapped atomic.Bool
	pinned   atomic.Bool // the GPU driver knows payload
	maxBlock int         // bytes of the largest value or piece
	share    sharing
	print    [32]byte // fingerprint of the layout, for peers
}

// part is one shard with its way back to the engine.
type part struct {
	*shard.Shard
	e  *Engine
	ns *namespace
	i  int // in the namespace
}

func (ns *namespace) part(hash uint64) *part { return ns.parts[hash>>ns.shift] }

// maxValue is the largest value of one piece in bytes: it goes to the first pool.
func (ns *namespace) maxValue() int {
	if len(ns.cfg.Pools) > 0 {
		return ns.cfg.Pools[0].SlotBytes
	}
	return ns.cfg.MaxValue
}

// Open reserves all memory and starts the owners. It reports every problem of
// the configuration at once.
func Open(cfg Config) (*Engine, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg, hash: cfg.Hash, handles: map[*handleState]struct{}{}, idle: make(chan *Handle, 64), done: make(chan struct{})}
	if e.hash == nil {
		e.hash = xxhash.Sum64
	}
	e.hub.init()
	e.moves.MaxMarks, e.moves.MaxHolds = int64(cfg.MaxMarks), int64(cfg.MaxHolds)
	e.records = newRecords(e)
	e.background, e.stop = context.WithCancel(context.Background())
	if err := e.build(); err != nil {
		e.unmap()
		return nil, err
	}
	if err := e.openDevices(); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	if err := e.openHints(); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	if err := e.openPeers(); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// build maps the memory and starts the shards.
func (e *Engine) build() error {
	var cfgs []shard.Config
	var owners []*namespace
	metaBytes := int64(0)
	pin := 0
	for i := range e.cfg.Namespaces {
		ns := &namespace{cfg: e.cfg.Namespaces[i]}
		n := e.cfg.shardsFor(&ns.cfg)
		ns.shift = uint(64 - bits.Len(uint(n-1)))
		ns.sums = ns.cfg.Checksums == ChecksumOn || ns.cfg.Checksums == ChecksumDefault && len(ns.cfg.Pools) > 0
		e.list = append(e.list, ns)
		base := e.shardConfig(ns, n)
		for k := range n {
			c := base
			c.Number = k
			c.PayloadOff = arena.Off(int64(k) * base.PayloadBytes)
			c.MetaOff = arena.Off(metaBytes)
			c.Pin = -1
			if len(e.cfg.Pin) > 0 {
				c.Pin = e.cfg.Pin[pin]
				pin++
			}
			metaBytes += shard.PlanFor(&c).Bytes
			cfgs = append(cfgs, c)
			owners = append(owners, ns)
		}
		m := e.cfg.Memory
		var err error
		ns.payload, err = arena.Map(arena.Options{
			Name: "payload-" + ns.cfg.Name, Size: base.PayloadBytes * int64(n), Backing: m.Backing, Path: m.Path,
			Pages: m.Pages, Strict: m.Strict, NUMA: m.NUMA, Lock: m.Lock, Prefault: m.Prefault, Progress: m.Progress,
		})
		if err != nil {
			return fmt.Errorf("kvcr: open: namespace %q: %w", ns.cfg.Name, err)
		}
	}
	if limit, source := arena.MemoryLimit(); e.cfg.Capacity+metaBytes > limit {
		return &ConfigError{"Capacity", e.cfg.Capacity,
			fmt.Sprintf("with %d bytes of metadata more than the %d bytes of %s", metaBytes, limit, source),
			"lower it, or lower MaxBlocks, or raise MeanValue"}
	}
	var err error
	if e.meta, err = arena.Map(arena.Options{Name: "meta", Size: metaBytes, NUMA: e.cfg.Memory.NUMA, Lock: e.cfg.Memory.Lock}); err != nil {
		return fmt.Errorf("kvcr: open: metadata: %w", err)
	}
	for i, c := range cfgs {
		c.Payload, c.Meta = owners[i].payload, e.meta
		s, err := shard.New(c)
		if err != nil {
			return fmt.Errorf("kvcr: open: namespace %q, shard %d: %w", c.Name, c.Number, err)
		}
		owners[i].parts = append(owners[i].parts, &part{Shard: s, e: e, ns: owners[i], i: c.Number})
	}
	return nil
}

// shardConfig is what all n shards of a namespace share.
func (e *Engine) shardConfig(ns *namespace, n int) shard.Config {
	const slab = 64 << 10
	cfg := &ns.cfg
	c := shard.Config{Name: cfg.Name, Seed: e.cfg.Seed, Hash: e.hash, Watermark: cfg.Watermark, Moves: &e.moves}
	per := int64(float64(e.cfg.Capacity)*cfg.Share+0.5) / int64(n)
	if len(cfg.Pools) == 0 {
		c.PayloadBytes = per / slab * slab
		c.MaxValue = cfg.MaxValue
		c.Records = int(per / int64(cfg.MeanValue))
		ns.maxBlock = cfg.MaxValue
	} else {
		slots := 0
		for _, p := range cfg.Pools {
			k := uint32(float64(per)*p.Share/float64(p.SlotBytes) + 1e-6)
			c.Pools = append(c.Pools, shard.Pool{SlotBytes: p.SlotBytes, Slots: k})
			c.PayloadBytes += int64(k) * int64(p.SlotBytes)
			slots += int(k)
			ns.maxBlock = max(ns.maxBlock, p.SlotBytes)
		}
		c.PayloadBytes = (c.PayloadBytes + 4095) / 4096 * 4096
		c.Records = slots
	}
	if cfg.MaxBlocks > 0 {
		c.Records = (cfg.MaxBlocks + n - 1) / n
	}
	c.Records = min(max(c.Records, 1), shard.MaxRecords)
	c.SideBytes = cfg.LongKeyBytes / int64(n)
	if cfg.LongKeyBytes == 0 {
		c.SideBytes = max(slab*4, int64(c.Records)*64)
	}
	name := cfg.Policy
	c.NewPolicy = func(nodes []evict.Node, b evict.Blocks, seed uint64) (evict.Policy, error) {
		return evict.New(name, nodes, b, seed)
	}
	if cfg.NewPolicy != nil {
		c.NewPolicy, c.Foreign = cfg.NewPolicy, true
	}
	if e.cfg.OnPressure != nil && cfg.Watermark > 0 {
		c.Foreign = true
		report, pools, nsName := e.cfg.OnPressure, cfg.Pools, cfg.Name
		c.OnPressure = func(pool int, free, mark int64) {
			p := Pressure{Namespace: nsName, Free: free, Watermark: mark}
			if pool >= 0 {
				p.Pool = pools[pool].Name
			}
			report(p)
		}
	}
	return c
}

// Config returns the effective configuration, the caller's to change.
func (e *Engine) Config() Config {
	c := e.cfg
	c.Pin = slices.Clone(c.Pin)
	c.Peers = c.Peers.clone()
	if c.Hints != nil {
		h := *c.Hints
		c.Hints = &h
	}
	c.Namespaces = slices.Clone(c.Namespaces)
	for i := range c.Namespaces {
		c.Namespaces[i].Pools = slices.Clone(c.Namespaces[i].Pools)
	}
	return c
}

func (e *Engine) namespace(name string) (*namespace, error) {
	for _, ns := range e.list {
		if ns.cfg.Name == name {
			return ns, nil
		}
	}
	return nil, &OpError{Op: "handle", Err: ErrNamespace, Detail: fmt.Sprintf("%q; there are %v", name, e.Namespaces())}
}

// Close ends the engine. Calls that run finish, later ones answer ErrClosed.
// While Views or reservations are out it returns a BusyError naming how many:
// their memory stays mapped until the last one ends. Later calls return the first
// one's answer, without the BusyError once that is so.
func (e *Engine) Close() error {
	if !e.closed.CompareAndSwap(false, true) {
		<-e.done
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.answerLocked()
	}
	defer close(e.done)
	e.stop()
	e.hinted.stop()
	peersErr := e.closePeers()
	if errors.Is(peersErr, peer.ErrClosing) {
		e.mu.Lock()
		e.peersOpen = true
		e.mu.Unlock()
		go e.awaitPeers()
	}
	e.quiesce() // from here on no fetch begins
	e.records.quiesce()
	e.hinted.close()
	e.awaitWork()
	if e.devices != nil {
		e.devices.close()
	}
	e.closeIdle()
	e.hub.close()
	e.mu.Lock()
	defer e.mu.Unlock()
	for hs := range e.handles {
		hs.closeLanes()
	}
	busy := &BusyError{}
	for _, ns := range e.list {
		for _, p := range ns.parts {
			busy.Views += p.Claims()
			busy.Reservations += p.Reserved()
			p.Drain()
			p.Stop()
		}
	}
	e.state, e.busy, e.closeErr = lingering, busy, peersErr
	e.settleLocked()
	if e.state == lingering {
		busy.Devices = e.devices.unsettled()
	}
	return e.answerLocked()
}

// answerLocked is what Close returns.
func (e *Engine) answerLocked() error {
	switch {
	case e.state == gone:
		return e.closeErr
	case e.closeErr == nil:
		return e.busy
	}
	return errors.Join(e.busy, e.closeErr)
}

// awaitPeers waits for a node that could not close in time, since a callback of its
// does not return, or is what closes the engine. Its goroutines may touch memory.
func (e *Engine) awaitPeers() {
	for errors.Is(e.node.Close(context.Background()), peer.ErrClosing) {
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.peersOpen = false
	e.settleLocked()
}

// awaitWork gives fetches under way their chance to end. A source that does not
// return in time keeps its reservations, which then count as busy.
func (e *Engine) awaitWork() {
	ended := make(chan struct{})
	go func() {
		e.work.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(e.cfg.OperationTimeout):
	}
}

// quiesce waits until no handle is inside a call. The flag that a handle sets
// on its way in is a plain store on amd64 (package own); stopping the world
// once, after closed is set, is the other half of that fence: a handle either
// sees closed or is seen inside.
func (e *Engine) quiesce() {
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	for {
		e.mu.Lock()
		inside := 0
		for hs := range e.handles {
			if hs.inside.Load() != 0 {
				inside++
			}
		}
		e.mu.Unlock()
		if inside == 0 {
			return
		}
		time.Sleep(50 * time.Microsecond)
	}
}

// settle unmaps the memory of a closed engine when nobody uses it any more.
func (e *Engine) settle() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.settleLocked()
}

func (e *Engine) settleLocked() {
	if e.state != lingering {
		return
	}
	left := 0
	for _, ns := range e.list {
		for _, p := range ns.parts {
			left += p.Lingering()
		}
	}
	if left == 0 && !e.peersOpen && e.devices.release() {
		e.state = gone
		e.unmap()
	}
}

func (e *Engine) unmap() {
	for _, ns := range e.list {
		ns.unmapped.Store(true)
		for _, p := range ns.parts {
			if e.state == serving {
				p.Stop() // Open failed half way
			}
		}
		if ns.payload != nil {
			e.closeErr = errors.Join(e.closeErr, ns.payload.Close())
		}
	}
	if e.meta != nil {
		e.closeErr = errors.Join(e.closeErr, e.meta.Close())
	}
}
