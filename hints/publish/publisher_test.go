package publish

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/keys"
)

const bound = 20 * time.Second // of every wait; reached by failures only

var errRefused = errors.New("refused")

// router is a Sink that applies what it hears and checks that it makes sense.
type router struct {
	t  testing.TB
	mu sync.Mutex
	// held is what it knows, by tier and hash.
	held map[events.Tier]map[uint64]bool
	// all events, copied.
	heard   []Event
	batches int
	nextID  uint64
	refuse  int                // batches to refuse
	loose   bool               // a hash may be stored twice: what was refused may have been heard
	block   chan struct{}      // if not nil, Publish waits for it to close
	blocked chan struct{}      // hears that Publish waits
	changed chan struct{}      // hears of batches
	worker  func(*Event) error // checks where an event is from
}

func newRouter(t testing.TB) *router {
	return &router{t: t, held: map[events.Tier]map[uint64]bool{}, nextID: 1, changed: make(chan struct{}, 1), blocked: make(chan struct{}, 1)}
}

func clone(ev *Event) Event {
	c := *ev
	c.Blocks, c.Hashes = slices.Clone(ev.Blocks), slices.Clone(ev.Hashes)
	c.Tokens, c.Media = slices.Clone(ev.Tokens), slices.Clone(ev.Media)
	return c
}

func (r *router) Publish(batch []Event) error {
	r.mu.Lock()
	block := r.block
	r.mu.Unlock()
	if block != nil {
		select {
		case r.blocked <- struct{}{}:
		default:
		}
		<-block
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() {
		select {
		case r.changed <- struct{}{}:
		default:
		}
	}()
	if len(batch) == 0 {
		r.t.Error("an empty batch")
	}
	if r.refuse > 0 {
		r.refuse--
		return errRefused
	}
	r.batches++
	for i := range batch {
		r.apply(&batch[i])
	}
	return nil
}

func (r *router) apply(ev *Event) {
	if ev.ID != r.nextID {
		r.t.Errorf("event %d, want %d", ev.ID, r.nextID)
	}
	r.nextID = ev.ID + 1
	if r.worker != nil {
		if err := r.worker(ev); err != nil {
			r.t.Error(err)
		}
	}
	r.heard = append(r.heard, clone(ev))
	in := r.held[ev.Tier]
	if in == nil {
		in = map[uint64]bool{}
		r.held[ev.Tier] = in
	}
	switch ev.Op {
	case events.Cleared:
		clear(r.held)
	case events.Stored:
		if len(ev.Blocks) == 0 || len(ev.Hashes) > 0 {
			r.t.Errorf("event %d: %d blocks, %d hashes", ev.ID, len(ev.Blocks), len(ev.Hashes))
		}
		seen := map[uint64]bool{}
		if ev.HasParent {
			seen[ev.Parent] = true
		}
		for _, b := range ev.Blocks {
			if seen[b.Hash] {
				r.t.Errorf("event %d has hash %d twice: routers drop it", ev.ID, b.Hash)
			}
			seen[b.Hash] = true
			if in[b.Hash] {
				r.t.Errorf("event %d stores hash %d, which is there", ev.ID, b.Hash)
			}
			in[b.Hash] = true
		}
		if n := len(ev.Tokens); n != 0 && n != len(ev.Blocks)*ev.BlockSize && !(ev.Eagle && n == len(ev.Blocks)*ev.BlockSize+1) {
			r.t.Errorf("event %d: %d tokens for %d blocks of %d", ev.ID, n, len(ev.Blocks), ev.BlockSize)
		}
	case events.Removed:
		if len(ev.Hashes) == 0 || len(ev.Blocks) > 0 {
			r.t.Errorf("event %d: %d blocks, %d hashes", ev.ID, len(ev.Blocks), len(ev.Hashes))
		}
		for _, h := range ev.Hashes {
			if !in[h] {
				r.t.Errorf("event %d removes hash %d, which is not there", ev.ID, h)
			}
			delete(in, h)
		}
	}
}

// wait waits until the router, or the table behind it, is in a state. The table says
// nothing when it changes: hence the ticker.
func (r *router) wait(what string, ok func() bool) {
	r.t.Helper()
	deadline, again := time.NewTimer(bound), time.NewTicker(5*time.Millisecond)
	defer deadline.Stop()
	defer again.Stop()
	for {
		r.mu.Lock()
		done := ok()
		r.mu.Unlock()
		if done {
			return
		}
		select {
		case <-r.changed:
		case <-again.C:
		case <-deadline.C:
			r.t.Fatalf("%s: not within %v", what, bound)
		}
	}
}

func (r *router) waitFor(hashes ...uint64) {
	r.t.Helper()
	r.wait(fmt.Sprint("hashes ", hashes), func() bool { return r.hasOnly(hashes) })
}

func (r *router) hasOnly(hashes []uint64) bool {
	if len(r.held[dram]) != len(hashes) {
		return false
	}
	for _, h := range hashes {
		if !r.held[dram][h] {
			return false
		}
	}
	return true
}

func (r *router) lines() (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.heard {
		out = append(out, line(&r.heard[i]))
	}
	return out
}

// rig is an engine, its table and a publisher to a router.
type rig struct {
	t      testing.TB
	e      *kvcr.Engine
	h      *kvcr.Handle
	table  *keys.Table
	p      *Publisher
	router *router
	stop   func() error // ends Run
}

type rigOptions struct {
	namespaces []kvcr.Namespace
	styles     map[string]keys.Style
	config     func(*Config)
	before     func(*rig) // before Run
}

func chainedNS(blocks int) []kvcr.Namespace {
	return []kvcr.Namespace{{Name: "kv", Kind: kvcr.Chained, Pools: []kvcr.Pool{{Name: "kv", SlotBytes: 64}}, MaxBlocks: blocks}}
}

func open(t testing.TB, opt rigOptions) *rig {
	t.Helper()
	if opt.styles == nil {
		opt.styles = map[string]keys.Style{"kv": keys.Dynamo{WithLocal: true}}
	}
	if opt.namespaces == nil {
		opt.namespaces = chainedNS(1000)
	}
	e, err := kvcr.Open(kvcr.Config{Capacity: 4 << 20, Shards: 1, Namespaces: opt.namespaces})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, e: e, router: newRouter(t)}
	if r.h, err = e.HandleIn(opt.namespaces[0].Name); err != nil {
		t.Fatal(err)
	}
	if r.table, err = keys.NewTable(keys.TableConfig{Styles: opt.styles}); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Table: r.table, FlushAfter: time.Millisecond}
	if opt.config != nil {
		opt.config(&cfg)
	}
	if r.p, err = New(cfg, r.router); err != nil {
		t.Fatal(err)
	}
	if opt.before != nil {
		opt.before(r)
	}
	r.run()
	t.Cleanup(func() {
		if r.stop != nil {
			r.stop()
		}
		if err := e.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return r
}

func (r *rig) run() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.p.Run(ctx, r.e) }()
	r.stop = func() error {
		cancel()
		r.stop = nil
		select {
		case err := <-ended:
			return err
		case <-time.After(bound):
			r.t.Error("Run goes on after its context has ended")
			return nil
		}
	}
}

// statsAtEnd ends Run and returns what the publisher has counted by then: a batch is
// counted after the router has heard it.
func (r *rig) statsAtEnd() Stats {
	if r.stop != nil {
		r.stop()
	}
	return r.p.Stats()
}

var dynamo = keys.Dynamo{WithLocal: true}

// chainOf returns the blocks and the items of a chain that begins with a token of
// its own.
func chainOf(chain, blocks int) ([]events.Block, []kvcr.Item) {
	h := keys.Hasher{BlockSize: 2, Seed: keys.Seed}
	tokens := make([]uint32, 2*blocks)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	tokens[0] = uint32(chain)
	bs := h.AppendBlocks(nil, tokens, nil)
	items := make([]kvcr.Item, blocks)
	for i, b := range bs {
		items[i] = kvcr.Item{Key: dynamo.AppendBlockKey(nil, b.Hash, b.Local), Value: make([]byte, 64)}
	}
	return bs, items
}

func hashesOf(bs []events.Block) (out []uint64) {
	for _, b := range bs {
		out = append(out, b.Hash)
	}
	return out
}

func (r *rig) deposit(items []kvcr.Item, opt kvcr.DepositOptions) {
	r.t.Helper()
	for i, res := range r.h.DepositBatch(items, opt) {
		if err := res.Err(); err != nil {
			r.t.Fatalf("block %d: %v", i, err)
		}
		res.View.Release()
	}
}

// What is deposited as a chain is stored as one, by keys that describe themselves.
// Batches of five blocks, so that each goes when the test has made it full.
func TestChainOfSelfDescribingKeys(t *testing.T) {
	r := open(t, rigOptions{
		config: func(c *Config) {
			c.Worker, c.Domain, c.Owner = events.Worker{ID: 5, Rank: 2}, events.DomainCacheOwner, events.OwnerKey{1}
			c.FlushAfter, c.MaxBlocks, c.FirstID = time.Minute, 5, 100
		},
		before: func(r *rig) {
			r.router.nextID = 100
			r.router.worker = func(ev *Event) error {
				if ev.Worker != (events.Worker{ID: 5, Rank: 2}) || ev.Domain != events.DomainCacheOwner || ev.Owner != (events.OwnerKey{1}) {
					return fmt.Errorf("event %d is of %+v, %d, %v", ev.ID, ev.Worker, ev.Domain, ev.Owner)
				}
				return nil
			}
		},
	})
	a, first := chainOf(7, 5)
	b, second := chainOf(8, 2)
	r.router.wait("Cleared", func() bool { return r.router.batches == 1 })
	r.deposit(first, kvcr.DepositOptions{})
	r.router.waitFor(hashesOf(a)...)
	for i := range 3 {
		r.h.Delete(first[4-i].Key)
	}
	r.deposit(second, kvcr.DepositOptions{})
	r.router.waitFor(append(hashesOf(a[:2]), hashesOf(b)...)...)
	// The first goes on, and names its parent.
	r.deposit(first[2:], kvcr.DepositOptions{Parent: first[1].Key, Position: 2})
	r.h.Delete(second[1].Key)
	r.h.Delete(second[0].Key)
	r.router.waitFor(hashesOf(a)...)
	want := []string{
		"cleared 0",
		fmt.Sprintf("stored 1 %d %d %d %d %d", a[0].Hash, a[1].Hash, a[2].Hash, a[3].Hash, a[4].Hash),
		fmt.Sprintf("removed 1 -%d -%d -%d", a[4].Hash, a[3].Hash, a[2].Hash),
		fmt.Sprintf("stored 1 %d %d", b[0].Hash, b[1].Hash),
		fmt.Sprintf("stored 1 after %d %d %d %d", a[1].Hash, a[2].Hash, a[3].Hash, a[4].Hash),
		fmt.Sprintf("removed 1 -%d -%d", b[1].Hash, b[0].Hash),
	}
	if got := r.router.lines(); !slices.Equal(got, want) {
		t.Errorf("heard %q, want %q", got, want)
	}
	r.router.mu.Lock()
	for _, ev := range r.router.heard {
		for _, x := range ev.Blocks {
			if !ev.Described || !slices.Contains(a, x) && !slices.Contains(b, x) {
				t.Errorf("event %d is described: %v, with block %+v", ev.ID, ev.Described, x)
			}
		}
	}
	r.router.mu.Unlock()
	if s := r.statsAtEnd(); s.Events != 6 || s.Stored != 10 || s.Removed != 5 || s.Undescribed != 0 || s.Batches != 4 || s.Snapshots != 1 {
		t.Errorf("%+v", s)
	}
}

// Case H3: however often a block is deposited, one event says that it came and one
// that it left; by hand or by eviction.
func TestOneStoredOneRemoved(t *testing.T) {
	r := open(t, rigOptions{namespaces: chainedNS(8)})
	bs, items := chainOf(1, 1)
	for range 5 {
		r.deposit(items, kvcr.DepositOptions{})
	}
	r.router.waitFor(bs[0].Hash)
	want := []uint64{bs[0].Hash}
	for i := 2; i < 50; i++ { // in a namespace of 8 blocks: most are evicted
		b, it := chainOf(i, 1)
		r.deposit(it, kvcr.DepositOptions{})
		want = append(want, b[0].Hash)
	}
	last, it := chainOf(100, 1)
	r.deposit(it, kvcr.DepositOptions{})
	r.router.wait("the last block", func() bool { return r.router.held[dram][last[0].Hash] })
	stored, removed := map[uint64]int{}, map[uint64]int{}
	for _, ev := range r.router.heard {
		for _, b := range ev.Blocks {
			stored[b.Hash]++
		}
		for _, h := range ev.Hashes {
			removed[h]++
		}
	}
	for _, h := range want {
		if stored[h] != 1 || removed[h] != 1 && !r.router.held[dram][h] || removed[h] > 1 {
			t.Errorf("hash %d: stored %d times, removed %d times, held %v", h, stored[h], removed[h], r.router.held[dram][h])
		}
	}
}

// Keys that share a hash are one block to routers: it comes with the first and
// leaves with the last.
func TestSharedHash(t *testing.T) {
	r := open(t, rigOptions{
		namespaces: []kvcr.Namespace{{Name: "kv", MaxValue: 4096}, {Name: "b", MaxValue: 4096, Share: 0.5}},
		styles:     map[string]keys.Style{"kv": keys.VLLM{}, "b": keys.VLLM{}},
	})
	hb, err := r.e.HandleIn("b")
	if err != nil {
		t.Fatal(err)
	}
	k1, k2 := digestOf(5, 1), digestOf(5, 2)
	marker := uint64(100)
	settle := func(want ...uint64) { // a block more, so that all before it has been heard
		t.Helper()
		marker++
		r.h.Set(digestOf(marker, 0), nil)
		for m := uint64(101); m <= marker; m++ {
			want = append(want, m)
		}
		r.router.waitFor(want...)
	}
	r.h.Set(k1, nil)
	r.h.Set(k2, nil)
	hb.Set(k1, nil)
	settle(5)
	r.h.Delete(k1)
	settle(5)
	if _, err := r.table.FromRouter(5); !errors.Is(err, hints.ErrAmbiguous) {
		t.Errorf("two keys are left: %v", err)
	}
	r.h.Delete(k2)
	settle(5)
	if k, err := r.table.FromRouter(5); err != nil || k.Namespace != "b" {
		t.Errorf("%+v, %v", k, err)
	}
	hb.Delete(k1)
	settle()
	if s := r.statsAtEnd(); s.Duplicates != 4 {
		t.Errorf("%+v", s)
	}
}

func digestOf(hash uint64, which byte) []byte {
	return binary.BigEndian.AppendUint64([]byte{which, 0xff}, hash)
}

// What the host has told about blocks is in their events.
func TestDescribedBlocks(t *testing.T) {
	r := open(t, rigOptions{
		namespaces: []kvcr.Namespace{{Name: "kv", MaxValue: 4096}},
		styles:     map[string]keys.Style{"kv": keys.VLLM{WithGroup: true}},
		config:     func(c *Config) { c.FlushAfter, c.MaxBlocks = time.Minute, 4 },
	})
	key := func(h uint64) []byte { return append(digestOf(h, 1), 0, 0, 0, 0) }
	describe := func(h uint64, d keys.Description) {
		t.Helper()
		if err := r.table.Describe("kv", key(h), d); err != nil {
			t.Fatal(err)
		}
	}
	describe(1, keys.Description{Tokens: []uint32{1, 2}, LoRA: "l", CacheNamespace: "s", Media: []uint64{9}})
	describe(2, keys.Description{Tokens: []uint32{3, 4}, LoRA: "l", CacheNamespace: "s", Parent: 1, HasParent: true})
	for h := range uint64(4) {
		r.h.Set(key(h+1), nil) // 3 and 4 are not described
	}
	r.router.waitFor(1, 2, 3, 4)
	r.router.mu.Lock()
	heard := r.router.heard[1:]
	r.router.mu.Unlock()
	if len(heard) != 3 {
		t.Fatalf("heard %q", r.router.lines())
	}
	h := keys.Hasher{Seed: keys.BlockSeed("l", "s")}
	want := []events.Block{{Hash: 1, Local: h.Local([]uint32{1, 2}, []uint64{9})}, {Hash: 2, Local: h.Local([]uint32{3, 4}, nil)}}
	ev := heard[0]
	if !slices.Equal(ev.Blocks, want) || !slices.Equal(ev.Tokens, []uint32{1, 2, 3, 4}) || ev.BlockSize != 2 || ev.LoRA != "l" || ev.CacheNamespace != "s" ||
		!slices.Equal(ev.Media, []Media{{0, 9}}) || !ev.Described || ev.HasParent || ev.Eagle {
		t.Errorf("%+v", ev)
	}
	for _, ev := range heard[1:] {
		if ev.Described || len(ev.Tokens) > 0 || ev.HasParent {
			t.Errorf("not described, and yet %+v", ev)
		}
	}
	if s := r.statsAtEnd(); s.Undescribed != 2 || s.Stored != 4 {
		t.Errorf("%+v", s)
	}
}

// A block whose place nobody knows is not published as the begin of a chain.
func TestPlaceIsNotGuessed(t *testing.T) {
	r := open(t, rigOptions{})
	bs, items := chainOf(1, 3)
	r.deposit(items[2:], kvcr.DepositOptions{Parent: []byte("not resident"), Position: 2})
	r.router.waitFor(bs[2].Hash)
	r.deposit(items[:1], kvcr.DepositOptions{}) // its hashes are the same: a root
	r.router.waitFor(bs[0].Hash, bs[2].Hash)
	r.stop()
	for _, ev := range r.router.heard[1:] {
		if want := ev.Blocks[0] == bs[0]; ev.Described != want || ev.HasParent {
			t.Errorf("%+v", ev)
		}
	}
	// The engine names a parent that routers do not know, whatever the host has told.
	if err := r.table.Describe("kv", items[1].Key, keys.Description{Tokens: []uint32{2, 3}, Media: []uint64{1}}); err != nil {
		t.Fatal(err)
	}
	if b := r.p.about("kv", items[1].Key, []byte("?"), bs[1].Hash); b.described || b.hasParent || b.local != 0 || b.tokens != nil || b.media != nil || b.size != 0 {
		t.Errorf("%+v", b)
	}
	if b := r.p.about("kv", items[1].Key, nil, bs[1].Hash); !b.described || b.hasParent {
		t.Errorf("%+v: the host has told that it begins a chain", b)
	}
}

// What the engine says of a block's place is kept for those who fetch the block, whether
// it was heard in an event or in a snapshot.
func TestPlaceIsKept(t *testing.T) {
	bs, items := chainOf(1, 3)
	more, others := chainOf(2, 2)
	r := open(t, rigOptions{before: func(r *rig) { r.deposit(items, kvcr.DepositOptions{}) }})
	r.router.waitFor(hashesOf(bs)...)
	r.deposit(others, kvcr.DepositOptions{})
	r.router.waitFor(append(hashesOf(bs), hashesOf(more)...)...)
	r.stop()
	for _, c := range []struct {
		key    []byte
		parent uint64
	}{{items[1].Key, bs[0].Hash}, {items[2].Key, bs[1].Hash}, {others[1].Key, more[0].Hash}} {
		d, told := r.table.Description("kv", c.key, nil)
		if told || !d.HasParent || d.Parent != c.parent {
			t.Errorf("%x: %+v, told: %v; want the parent %d", c.key, d, told, c.parent)
		}
	}
}

// Of the parts of a group one stands for the block.
func TestGroups(t *testing.T) {
	r := open(t, rigOptions{styles: map[string]keys.Style{"kv": keys.Dynamo{WithLocal: true, Suffix: "/kv"}}})
	bs, items := chainOf(1, 2)
	for i, it := range items {
		var parts []kvcr.Item
		for _, suffix := range []string{"/kv", "/index", "/state"} {
			parts = append(parts, kvcr.Item{Key: append(bytes.Clone(it.Key), suffix...), Value: it.Value})
		}
		opt := kvcr.DepositOptions{Position: i}
		if i > 0 {
			opt.Parent = append(bytes.Clone(items[i-1].Key), "/kv"...)
		}
		for _, res := range r.h.DepositGroup(parts, opt) {
			if !res.OK() {
				t.Fatal(res.Err())
			}
			res.View.Release()
		}
	}
	r.router.waitFor(hashesOf(bs)...)
	if k, err := r.table.FromRouter(bs[1].Hash); err != nil || string(k.Key) != string(items[1].Key)+"/kv" {
		t.Errorf("%q, %v", k.Key, err)
	}
	r.h.Delete(append(bytes.Clone(items[1].Key), "/state"...)) // any part takes the others along
	r.router.waitFor(bs[0].Hash)
	if s := r.statsAtEnd(); s.Foreign != 6 || s.Undescribed != 0 {
		t.Errorf("%+v", s)
	}
}

// What was resident before is published first, parents before children, in one event
// for each chain.
func TestSnapshotInOrder(t *testing.T) {
	var want []uint64
	var chains [][]events.Block
	r := open(t, rigOptions{before: func(r *rig) {
		var tails [][]kvcr.Item
		for c := range 20 {
			bs, items := chainOf(c, 6)
			chains = append(chains, bs)
			want = append(want, hashesOf(bs)...)
			r.deposit(items[:3], kvcr.DepositOptions{})
			tails = append(tails, items)
		}
		for _, items := range tails { // so that a chain does not lie together
			r.deposit(items[3:], kvcr.DepositOptions{Parent: items[2].Key, Position: 3})
		}
	}})
	r.router.waitFor(want...)
	r.router.mu.Lock()
	heard := r.router.heard
	r.router.mu.Unlock()
	if len(heard) != 21 || heard[0].Op != events.Cleared {
		t.Fatalf("%d events: %.300q", len(heard), r.router.lines())
	}
	for _, ev := range heard[1:] {
		if !ev.Described || ev.HasParent || !slices.ContainsFunc(chains, func(bs []events.Block) bool { return slices.Equal(bs, ev.Blocks) }) {
			t.Errorf("no chain that was deposited: %+v", ev)
		}
	}
	if s := r.statsAtEnd(); s.Undescribed != 0 || s.Batches != 1 {
		t.Errorf("%+v", s)
	}
}

// truth is the hashes that are resident, by the engine.
func truth(t testing.TB, e *kvcr.Engine, table *keys.Table) map[uint64][]hints.Key {
	t.Helper()
	sub, err := e.Subscribe(kvcr.SubscribeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	entries, err := sub.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	out := map[uint64][]hints.Key{}
	for _, en := range entries {
		if h, ok := table.ToRouter(en.Namespace, en.Key); ok {
			out[h] = append(out[h], hints.Key{Namespace: en.Namespace, Key: en.Key})
		}
	}
	return out
}

// waitForTruth waits until the router knows what is resident, and then compares the
// table too. The engine must be at rest.
func (r *rig) waitForTruth() {
	r.t.Helper()
	want := truth(r.t, r.e, r.table)
	hashes := slices.Collect(maps.Keys(want))
	r.router.wait("what is resident", func() bool { return r.router.hasOnly(hashes) && differs(r.table, want) == "" })
}

// differs says in what a table differs from what is resident.
func differs(table *keys.Table, want map[uint64][]hints.Key) string {
	n := 0
	for h, with := range want {
		n += len(with)
		held := table.Held(h)
		if len(held) != len(with) {
			return fmt.Sprintf("hash %d: the table has %v, resident are %v", h, held, with)
		}
		for _, k := range with {
			if !slices.ContainsFunc(held, func(o hints.Key) bool { return o.Namespace == k.Namespace && bytes.Equal(o.Key, k.Key) }) {
				return fmt.Sprintf("hash %d: %s/%x is not in the table", h, k.Namespace, k.Key)
			}
		}
	}
	if s := table.Stats(); s.Keys != n {
		return fmt.Sprintf("the table has %d keys, %d are resident", s.Keys, n)
	}
	return ""
}

// The subscription overflows while the sink stands still: afterwards routers and the
// table are as the engine is, by either way of recovery.
func TestGap(t *testing.T) {
	for _, rec := range []Recovery{ByClear, ByDifference} {
		t.Run(fmt.Sprint("recovery=", rec), func(t *testing.T) {
			r := open(t, rigOptions{config: func(c *Config) { c.Recovery, c.Buffer = rec, 10 }})
			bs, items := chainOf(0, 4)
			r.deposit(items, kvcr.DepositOptions{})
			r.router.waitFor(hashesOf(bs)...)
			for round := range 3 {
				block := make(chan struct{})
				r.router.mu.Lock()
				r.router.block = block
				before := r.router.batches
				r.router.mu.Unlock()
				_, one := chainOf(10_000+round, 1)
				r.deposit(one, kvcr.DepositOptions{})
				<-r.router.blocked
				r.h.Delete(items[3-round].Key)
				for c := range 20 {
					_, more := chainOf(1+c+20*round, 3)
					r.deposit(more, kvcr.DepositOptions{})
				}
				r.router.mu.Lock()
				r.router.block = nil
				r.router.mu.Unlock()
				close(block)
				r.waitForTruth()
				r.router.mu.Lock()
				cleared := 0
				for _, ev := range r.router.heard {
					if ev.Op == events.Cleared {
						cleared++
					}
				}
				if want := map[Recovery]int{ByClear: round + 2, ByDifference: 0}[rec]; cleared != want {
					t.Errorf("Cleared %d times, want %d", cleared, want)
				}
				if r.router.batches == before {
					t.Error("nothing was published")
				}
				r.router.mu.Unlock()
			}
			if s := r.statsAtEnd(); s.Gaps != 3 || s.Snapshots != 4 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// Batches that are refused are offered again: nothing is lost, and nothing passes
// another, which the router would see by its number.
func TestSinkRefuses(t *testing.T) {
	r := open(t, rigOptions{before: func(r *rig) { r.router.refuse = 1 }})
	for i := range 3 {
		bs, items := chainOf(i, 2)
		r.router.mu.Lock()
		if i > 0 {
			r.router.refuse = i
		}
		r.router.mu.Unlock()
		r.deposit(items, kvcr.DepositOptions{})
		r.router.waitFor(hashesOf(bs)...)
		r.h.Delete(items[1].Key)
		r.h.Delete(items[0].Key)
		r.router.waitFor()
	}
	if s := r.statsAtEnd(); s.Failures != 4 || s.Gaps != 0 {
		t.Errorf("%+v", s)
	}
}

// Run ends with its context or its engine; what the sink had not taken by then is
// the first that the next Run offers.
func TestRunEnds(t *testing.T) {
	for _, rec := range []Recovery{ByClear, ByDifference} {
		r := open(t, rigOptions{config: func(c *Config) { c.Recovery = rec }})
		a, first := chainOf(1, 2)
		r.deposit(first, kvcr.DepositOptions{})
		r.router.waitFor(hashesOf(a)...)
		if err := r.p.Run(context.Background(), r.e); !errors.Is(err, ErrRunning) {
			t.Errorf("a second Run: %v", err)
		}
		r.router.mu.Lock()
		r.router.refuse = 1 << 30
		r.router.mu.Unlock()
		r.h.Delete(first[1].Key)
		r.router.wait("a refusal", func() bool { return r.router.refuse < 1<<30 })
		if err := r.stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
		b, second := chainOf(2, 2)
		r.deposit(second, kvcr.DepositOptions{})
		r.router.mu.Lock()
		r.router.refuse = 0
		r.router.mu.Unlock()
		r.run()
		r.router.waitFor(a[0].Hash, b[0].Hash, b[1].Hash)
		r.waitForTruth()
		ended := make(chan error)
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		r.stop()
		go func() { ended <- r.p.Run(ctx, r.e) }()
		r.router.wait("a Run", func() bool { return r.p.Stats().Snapshots >= 3 || rec == ByDifference })
		if err := r.e.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, kvcr.ErrClosed) {
			t.Errorf("Run of an engine that closed: %v", err)
		}
		cancel()
	}
}

// Case H4: a tier without a name among routers is refused, not taken for another.
func TestUnknownTier(t *testing.T) {
	r := open(t, rigOptions{})
	r.router.wait("Cleared", func() bool { return r.router.batches == 1 })
	r.stop()
	_, items := chainOf(1, 1)
	for _, tier := range []kvcr.Tier{kvcr.TierNone, kvcr.TierRemote, 77} {
		r.p.change(&kvcr.Event{Namespace: "kv", Key: items[0].Key, Stored: true, Tier: tier})
		r.p.change(&kvcr.Event{Namespace: "kv", Key: items[0].Key, Tier: tier})
	}
	if s := r.statsAtEnd(); s.UnknownTier != 6 || !r.p.batch.empty() {
		t.Errorf("%+v, %q", s, lines(&r.p.batch))
	}
}

func TestConfigRefused(t *testing.T) {
	table, err := keys.NewTable(keys.TableConfig{Styles: map[string]keys.Style{"a": keys.Dynamo{}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		cfg   Config
		names string
	}{
		{Config{}, "Table"},
		{Config{Table: table, MaxBlocks: -1}, "MaxBlocks"},
		{Config{Table: table, MaxBlocks: MaxBatchBlocks + 1}, "MaxBlocks"},
		{Config{Table: table, FlushAfter: -1}, "FlushAfter"},
		{Config{Table: table, FlushAfter: time.Hour}, "FlushAfter"},
		{Config{Table: table, Recovery: 9}, "Recovery"},
		{Config{Table: table, Domain: 9}, "Domain"},
		{Config{Table: table, Domain: events.DomainCacheOwner}, "Owner"},
		{Config{Table: table, Owner: events.OwnerKey{1}}, "Owner"},
	} {
		if _, err := New(tt.cfg, newRouter(t)); !errors.Is(err, keys.ErrInvalid) || !strings.Contains(err.Error(), tt.names) {
			t.Errorf("%+v: %v, want an error that names %s", tt.cfg, err, tt.names)
		}
	}
	if _, err := New(Config{Table: table}, nil); !errors.Is(err, keys.ErrInvalid) {
		t.Errorf("no sink: %v", err)
	}
}

// churn writes to both namespaces from several goroutines: chains that fork, keys
// that share hashes, deletes and evictions.
func (r *rig) churn(steps int) {
	var wg sync.WaitGroup
	for g := range 4 {
		h, err := r.e.HandleIn([]string{"kv", "flat"}[g%2])
		if err != nil {
			r.t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(uint64(g), 5))
		wg.Add(1)
		go func() {
			defer wg.Done()
			defer h.Close()
			for range steps {
				if g%2 == 1 {
					k := digestOf(1<<63+rng.Uint64N(40), byte(rng.IntN(3)))
					switch rng.IntN(3) {
					case 0:
						h.Delete(k)
					case 1:
						r.table.Describe("flat", k, keys.Description{Tokens: []uint32{1, 2, 3, 4}, LoRA: "x"})
						fallthrough
					default:
						h.Set(k, nil)
					}
					continue
				}
				_, items := chainOf(rng.IntN(10), 1+rng.IntN(8))
				if rng.IntN(4) == 0 {
					h.Delete(items[len(items)-1].Key)
					continue
				}
				for _, res := range h.DepositBatch(items, kvcr.DepositOptions{}) {
					res.View.Release()
				}
			}
		}()
	}
	wg.Wait()
}

func twoNamespaces() ([]kvcr.Namespace, map[string]keys.Style) {
	return append(chainedNS(40), kvcr.Namespace{Name: "flat", MaxValue: 4096, MaxBlocks: 60, Share: 0.5}),
		map[string]keys.Style{"kv": dynamo, "flat": keys.VLLM{}}
}

func pick(short, long int) int {
	if testing.Short() {
		return short
	}
	return long
}

// Under traffic, with gaps and refusals: the router finds every event sensible, and
// knows in the end what the engine holds.
func TestTraffic(t *testing.T) {
	for _, tt := range []struct {
		name   string
		config func(*Config)
		refuse int
	}{
		{"plain", func(*Config) {}, 0},
		{"small batches", func(c *Config) { c.MaxBlocks = 1 }, 0},
		{"gaps, cleared", func(c *Config) { c.Buffer = 8 }, 2},
		{"gaps, by difference", func(c *Config) { c.Buffer, c.Recovery = 8, ByDifference }, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ns, styles := twoNamespaces()
			r := open(t, rigOptions{namespaces: ns, styles: styles, config: tt.config})
			for range 3 {
				r.router.mu.Lock()
				r.router.refuse = tt.refuse
				r.router.mu.Unlock()
				r.churn(pick(100, 400))
				r.waitForTruth()
			}
			s := r.statsAtEnd()
			if s.Stored == 0 || s.Removed == 0 || s.Looped != 0 || tt.refuse > 0 && s.Gaps == 0 || tt.refuse == 0 && s.Gaps > 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// A table that follows an engine by itself holds what the engine holds, however
// often the subscription overflows.
func TestTableFollows(t *testing.T) {
	ns, styles := twoNamespaces()
	r := open(t, rigOptions{namespaces: ns, styles: styles})
	r.stop()
	table, err := keys.NewTable(keys.TableConfig{Styles: styles})
	if err != nil {
		t.Fatal(err)
	}
	sub, err := r.e.Subscribe(kvcr.SubscribeOptions{Buffer: 8})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	feed := &telling{Feed: Feed(sub), idle: make(chan struct{}, 1), goOn: make(chan struct{})}
	go func() { ended <- table.Follow(ctx, feed) }()
	<-feed.idle
	r.churn(50) // more than the buffer holds
	close(feed.goOn)
	r.churn(pick(100, 400))
	want := truth(t, r.e, r.table)
	for deadline := time.After(bound); differs(table, want) != ""; {
		select {
		case <-feed.idle:
		case <-deadline:
			t.Fatal(differs(table, want))
		}
	}
	if s := table.Stats(); s.Gaps == 0 {
		t.Errorf("the subscription never overflowed: %+v", s)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Follow: %v", err)
	}
}

// telling is a Feed that says when it is asked for a change, which is after the last was
// applied, and waits before the first.
type telling struct {
	keys.Feed
	idle, goOn chan struct{}
}

func (f *telling) Next(ctx context.Context) (keys.Change, error) {
	select {
	case f.idle <- struct{}{}:
	default:
	}
	<-f.goOn
	return f.Feed.Next(ctx)
}

// BenchmarkChange is the cost of one change of the engine on its way to the sink.
func BenchmarkChange(b *testing.B) {
	r := open(b, rigOptions{})
	r.router.wait("Cleared", func() bool { return r.router.batches == 1 })
	r.stop()
	r.p.sink = discard{}
	_, items := chainOf(1, 64)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		at := i % 64
		ev := kvcr.Event{Namespace: "kv", Key: items[at].Key, Tier: kvcr.TierDRAM, Stored: i/64%2 == 0}
		if at > 0 && ev.Stored {
			ev.Parent = items[at-1].Key
		}
		r.p.change(&ev)
		if r.p.batch.n >= r.p.cfg.MaxBlocks {
			r.p.offer()
		}
	}
}

type discard struct{}

func (discard) Publish([]Event) error { return nil }

// A Run that ends while one of two sinks refuses what a snapshot has taken back: the
// next Run goes on, and neither sink misses anything.
func TestRunEndsInSnapshot(t *testing.T) {
	other := newRouter(t)
	r := open(t, rigOptions{config: func(c *Config) { c.Recovery, c.MaxBlocks = ByDifference, 2 }, before: func(r *rig) { r.p.sink = Sinks(r.router, other) }})
	var all []kvcr.Item
	for c := range 5 {
		_, items := chainOf(c, 2)
		all = append(all, items...)
	}
	r.deposit(all, kvcr.DepositOptions{})
	r.waitForTruth()
	r.stop()
	for i := range all {
		r.h.Delete(all[i].Key)
	}
	for range 3 {
		other.mu.Lock()
		other.refuse = 1 << 30
		other.mu.Unlock()
		r.run()
		other.wait("a refusal", func() bool { return other.refuse < 1<<30 })
		r.stop()
	}
	bs, items := chainOf(9, 1)
	r.deposit(items, kvcr.DepositOptions{})
	other.mu.Lock()
	other.refuse = 0
	other.mu.Unlock()
	r.run()
	r.router.waitFor(hashesOf(bs)...)
	other.waitFor(hashesOf(bs)...)
	r.waitForTruth()
}

// Blocks of very many tokens make smaller batches: one that a sink finds too large
// would be offered for ever.
func TestBatchesFitTheirSink(t *testing.T) {
	pub, err := events.NewPublisher(events.PublisherConfig{Endpoint: "tcp://127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	r := open(t, rigOptions{config: func(c *Config) { c.FlushAfter = time.Minute }, before: func(r *rig) {
		r.p.sink = Sinks(r.router, EngineEvents(pub))
	}})
	r.router.wait("Cleared", func() bool { return r.router.batches == 1 })
	const each = keys.MaxBlockTokens
	tokens := make([]uint32, each)
	for i := range tokens {
		tokens[i] = 1<<20 + uint32(i)
	}
	h := keys.Hasher{BlockSize: each, Seed: keys.Seed}
	var blocks, size int
	for i := range uint32(120) {
		tokens[0] = i
		bs := h.AppendBlocks(nil, tokens, nil)
		key := dynamo.AppendBlockKey(nil, bs[0].Hash, bs[0].Local)
		if err := r.table.Describe("kv", key, keys.Description{Tokens: tokens}); err != nil {
			t.Fatal(err)
		}
		r.deposit([]kvcr.Item{{Key: key, Value: make([]byte, 64)}}, kvcr.DepositOptions{})
	}
	r.router.wait("a batch", func() bool {
		blocks = len(r.router.held[dram])
		return blocks > 0
	})
	if size = 5 * each * blocks; size < maxBatchBytes || size > 2*maxBatchBytes {
		t.Errorf("a batch of %d blocks, %d bytes", blocks, size)
	}
	if s := r.statsAtEnd(); s.Failures != 0 {
		t.Errorf("%+v", s)
	}
}
