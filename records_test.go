package kvcr

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// pair is two engines of one configuration: blocks go from one to the other as a
// transfer would take them.
type pair struct {
	t        testing.TB
	src, dst *Engine
	ns       string
	op       peer.OpID
}

const (
	srcLife = peer.Incarnation(11)
	dstLife = peer.Incarnation(22)
)

func openPair(t testing.TB, cfg Config) *pair {
	return &pair{t: t, src: open(t, cfg), dst: open(t, cfg), ns: cfg.Namespaces[0].Name}
}

// item is one block of a transfer, on its way.
type item struct {
	key   []byte
	o     wire.Offered
	claim peer.Claim
	slot  peer.Slot
	st    wire.Status
}

// fetch claims, reserves, copies and verifies; the caller commits.
func (p *pair) fetch(keys ...[]byte) []item {
	p.t.Helper()
	p.op++
	items := make([]item, len(keys))
	for i, k := range keys {
		it := &items[i]
		it.key = k
		if it.claim, it.st = p.src.Records().Claim(p.ns, &wire.Wanted{Key: k}, &it.o); it.st != wire.StatusOK {
			p.t.Fatalf("Claim(%q): %v", k, it.st)
		}
		if i > 0 && bytes.Equal(it.o.Parent, keys[i-1]) {
			it.o.Flags |= wire.OfferFollows
			it.o.Parent = nil
		}
		it.slot, it.st = p.dst.Records().Reserve(p.op, i, p.ns, k, &it.o)
	}
	for i := range items {
		if items[i].st == wire.StatusOK {
			p.copy(&items[i])
		}
	}
	return items
}

// verifies compares the bytes of a slot with a checksum, as routes do.
func verifies(r *Records, s peer.Slot, sum uint64) bool {
	return r.SlotBytes(s) != nil && r.SlotSum(s) == sum
}

func (p *pair) copy(it *item) {
	from, to := p.src.Records().ClaimBytes(it.claim), p.dst.Records().SlotBytes(it.slot)
	if len(from) != len(to) {
		p.t.Fatalf("%q: %d pieces for %d", it.key, len(to), len(from))
	}
	for j := range from {
		if len(from[j]) != len(to[j]) {
			p.t.Fatalf("%q: piece %d has %d bytes for %d", it.key, j, len(to[j]), len(from[j]))
		}
		copy(to[j], from[j])
	}
	if it.o.Flags&wire.OfferSum != 0 && !verifies(p.dst.Records(), it.slot, it.o.Sum) {
		p.t.Errorf("%q does not verify", it.key)
	}
	if verifies(p.dst.Records(), it.slot, it.o.Sum+1) {
		p.t.Errorf("%q verifies with another checksum", it.key)
	}
}

func (p *pair) unclaim(items []item) {
	for i := range items {
		p.src.Records().Unclaim(items[i].claim)
	}
}

func claimsOf(items []item) (cs []peer.Claim) {
	for i := range items {
		cs = append(cs, items[i].claim)
	}
	return cs
}

// events takes n events of a subscription, which must be there already.
func events(t testing.TB, s *Subscription, n int) (out []Event) {
	t.Helper()
	for range n {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		ev, err := s.Next(ctx)
		cancel()
		if err != nil {
			t.Fatalf("event: %v", err)
		}
		out = append(out, ev)
	}
	return out
}

// quiet checks that nothing of the records is out. No other goroutine may use
// the engine.
func quiet(t testing.TB, e *Engine) {
	t.Helper()
	for hs := range e.handles {
		for _, l := range hs.lanes {
			if l != nil {
				l.Recall()
			}
		}
	}
	r := e.Records()
	r.mu.Lock()
	claims, slots, targets := len(r.claims), len(r.slots), len(r.targets)
	r.mu.Unlock()
	if claims+slots+targets != 0 {
		t.Errorf("%d claims, %d slots, targets of %d operations are left", claims, slots, targets)
	}
	if st := stats(t, e); st.Marks != 0 || st.Holds != 0 {
		t.Errorf("%d marks and %d holds left", st.Marks, st.Holds)
	}
	if n := e.Claims(); n != 0 {
		t.Errorf("%d claims on blocks left", n)
	}
	if n := reserved(e); n != 0 {
		t.Errorf("%d reservations left", n)
	}
}

// A chain of blocks of two pieces with a group below it goes over whole, under
// checksums: content, order of the chain, group; in a move the source's copy
// leaves, and events tell it on both sides. The same for values of any size.
func TestRecordsMove(t *testing.T) {
	chained := Namespace{Name: "ns", Kind: Chained, Pools: []Pool{{Name: "k", SlotBytes: 4096}, {Name: "v", SlotBytes: 8192}, {Name: "i", SlotBytes: 64}}}
	for _, v := range helping {
		for _, mem := range []string{"anonymous", "memfd"} {
			ns := chained
			v.config(&ns)
			t.Run(v.name+"/"+mem, func(t *testing.T) {
				cfg := Config{Capacity: 4 << 20, Namespaces: one(ns)}
				if mem == "memfd" {
					cfg = memfd(cfg)
				}
				moveChain(t, openPair(t, cfg), v.name == "helped", mem == "memfd")
			})
		}
	}
}

func moveChain(t *testing.T, p *pair, density, shared bool) {
	h := handleIn(t, p.src, "ns")
	var items []Item
	var keys [][]byte
	for i := range 5 {
		k := keyOf(i)
		keys = append(keys, k)
		items = append(items, Item{Key: k, Pieces: [][]byte{stamped(uint64(i), 8192), stamped(uint64(100+i), 4096), stamped(uint64(200+i), 8192)}, Pools: []string{"v", "k", "v"}})
	}
	group := items[3:]
	group = append(group, Item{Key: []byte("leader"), Value: stamped(300, 1000)})
	keys = append(keys, []byte("leader"))
	for i, r := range h.DepositBatch(items[:3], DepositOptions{}) {
		if !r.OK() {
			t.Fatalf("block %d: %v", i, r.Reason)
		}
	}
	for i, r := range h.DepositGroup(group, DepositOptions{Parent: keys[2], Position: 3}) {
		if !r.OK() {
			t.Fatalf("part %d: %v", i, r.Reason)
		}
	}
	out, err := p.src.Subscribe(SubscribeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	in, err := p.dst.Subscribe(SubscribeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer out.Close()

	moved := p.fetch(keys...)
	move := peer.MoveID{Dest: dstLife, Op: p.op}
	hold := peer.HoldID{Source: srcLife, Op: p.op}
	for i := range moved {
		it := &moved[i]
		if it.st != wire.StatusOK {
			t.Fatalf("Reserve(%q): %v", it.key, it.st)
		}
		_, part, parts, ok := p.src.Records().ClaimGroup(it.claim)
		if wantParts := map[bool]int{false: 1, true: 3}[i >= 3]; !ok || parts != wantParts || i >= 3 && part != i-3 || (it.o.Flags&wire.OfferMember != 0) != (i == 3 || i == 4) {
			t.Errorf("%q: part %d of %d, flags %b", it.key, part, parts, it.o.Flags)
		}
		if density && it.o.Position != uint32(min(i, 3)) {
			t.Errorf("%q has position %d", it.key, it.o.Position)
		}
		if shared != (it.o.Flags&wire.OfferNoPool == 0) || shared && len(it.o.Offsets) != len(it.o.Pools) {
			t.Errorf("%q: flags %b, %d offsets", it.key, it.o.Flags, len(it.o.Offsets))
		}
		if v, ok := h.Get(it.key); ok {
			if off, one := v.Offset(); shared && one && off != int64(it.o.Offsets[0]) {
				t.Errorf("%q lies at %d, offered at %d", it.key, off, it.o.Offsets[0])
			}
			if v.Generation() != it.o.Generation || uint64(v.Len()) != it.o.Size {
				t.Errorf("%q: offered %+v", it.key, it.o)
			}
			v.Release()
		}
		if st := p.src.Records().Mark(it.claim, move); st != wire.StatusOK {
			t.Fatalf("Mark(%q): %v", it.key, st)
		}
	}
	if chain := p.dst.Records().slots[moved[0].slot].chain; density && (chain.length != 4 || chain.last != 3 || chain != p.dst.Records().slots[moved[3].slot].chain) {
		t.Errorf("the chain is %+v, want 4 long up to the group's first part", chain)
	}
	if st := stats(t, p.src); st.Marks != 4 {
		t.Errorf("%d marks, want 3 blocks and a group", st.Marks)
	}
	d := p.dst.Records()
	for i := range 3 {
		if st := d.Commit([]peer.Slot{moved[i].slot}, hold); st != wire.StatusOK {
			t.Fatalf("Commit: %v", st)
		}
		// M7: the event is there before the answer.
		ev := events(t, in, 1)[0]
		if !ev.Stored || !bytes.Equal(ev.Key, keys[i]) || density && i > 0 && !bytes.Equal(ev.Parent, keys[i-1]) {
			t.Errorf("event of block %d: %+v", i, ev)
		}
	}
	if st := d.Commit([]peer.Slot{moved[3].slot, moved[4].slot, moved[5].slot}, hold); st != wire.StatusOK {
		t.Fatalf("Commit of the group: %v", st)
	}
	events(t, in, 3)
	if st := d.Commit([]peer.Slot{moved[5].slot}, hold); st != wire.StatusReleased {
		t.Errorf("Commit of a slot that is none: %v", st)
	}
	for _, k := range keys {
		if !d.Holds("ns", k, hold) || d.Holds("ns", k, peer.HoldID{Source: srcLife + 1, Op: p.op}) {
			t.Errorf("%q: wrong hold", k)
		}
	}
	what := make([]wire.Status, len(moved))
	p.src.Records().Remove(claimsOf(moved), move, what)
	for i, st := range what {
		if st != wire.StatusOK {
			t.Errorf("Remove of %q: %v", keys[i], st)
		}
	}
	for _, ev := range events(t, out, len(keys)) {
		if ev.Stored {
			t.Errorf("the source tells %+v", ev)
		}
	}
	for i := range moved {
		if h.Has(keys[i]) {
			t.Errorf("%q is at the source still", keys[i])
		}
		for j, b := range p.src.Records().ClaimBytes(moved[i].claim) { // until the claim ends
			if seed, whole := seedOf(b); !whole {
				t.Errorf("%q, piece %d: seed %d", keys[i], j, seed)
			}
		}
	}
	p.unclaim(moved)
	p.unclaim(moved) // a second end is none
	if now := stats(t, p.src); now.Counts.Moved != uint64(len(keys)) || now.Counts.Deleted != 0 || now.Blocks != 0 {
		t.Errorf("%d blocks, counts %+v", now.Blocks, now.Counts)
	}
	// At the destination all is as it was.
	hd := handleIn(t, p.dst, "ns")
	for i, k := range keys {
		v, ok := hd.Get(k)
		if !ok {
			t.Errorf("%q did not arrive", k)
			continue
		}
		if i < 5 {
			for j := range 3 {
				b, pool := v.Piece(j)
				if !bytes.Equal(b, items[i].Pieces[j]) || pool != items[i].Pools[j] {
					t.Errorf("%q, piece %d in pool %q", k, j, pool)
				}
			}
		} else if !bytes.Equal(v.Bytes(), group[2].Value) {
			t.Errorf("%q has other bytes", k)
		}
		if !v.Verify() {
			t.Errorf("%q does not match its checksum", k)
		}
		if sum, ok := v.p.Sum(v.c); !ok || sum != moved[i].o.Sum {
			t.Errorf("%q carries no checksum", k)
		}
		v.Release()
		d.DropHold("ns", k, hold)
	}
	quiet(t, p.src)
	quiet(t, p.dst)
	// Back again, as a copy: chain and group come along.
	back := &pair{t: t, src: p.dst, dst: p.src, ns: "ns", op: 1000}
	again := back.fetch(keys...)
	for i := range again {
		if density && again[i].o.Position != uint32(min(i, 3)) {
			t.Errorf("%q has position %d at the destination", keys[i], again[i].o.Position)
		}
		p.src.Records().Free(again[i].slot)
		p.src.Records().Free(again[i].slot)
	}
	if ok, err := hd.Delete(keys[3]); !ok || err != nil || hd.Has(keys[5]) {
		t.Error("a part was deleted, and its group is there")
	}
	back.unclaim(again)
	quiet(t, p.src)
	quiet(t, p.dst)
}

func put(t testing.TB, h *Handle, k []byte) {
	t.Helper()
	if err := h.Deposit(k, stamped(1, 64)); err != nil {
		t.Fatal(err)
	}
}

// What Reserve answers.
func TestRecordsReserve(t *testing.T) {
	cfg := Config{Capacity: 8 << 20, Shards: 1, MaxTransferBlocks: 4, Namespaces: []Namespace{
		{Name: "flat", MaxValue: 64 << 10},
		{Name: "pools", Kind: Chained, Pools: []Pool{{Name: "a", SlotBytes: 4096}, {Name: "b", SlotBytes: 64}}},
	}}
	e := open(t, cfg)
	r := e.Records()
	hf, hp := handleIn(t, e, "flat"), handleIn(t, e, "pools")
	key := func(s string) []byte { return []byte(s) }
	if err := hf.Deposit(key("f"), stamped(1, 100)); err != nil {
		t.Fatal(err)
	}
	if rs := hp.DepositBatch([]Item{{Key: key("p"), Pieces: [][]byte{stamped(1, 64), stamped(1, 4096)}, Pools: []string{"b", "a"}}}, DepositOptions{}); !rs[0].OK() {
		t.Fatal(rs[0].Reason)
	}
	tests := []struct {
		name, ns, key string
		o             wire.Offered
		want          wire.Status
	}{
		{"value", "flat", "x", wire.Offered{Size: 100}, wire.StatusOK},
		{"empty value", "flat", "x", wire.Offered{}, wire.StatusOK},
		{"largest value", "flat", "x", wire.Offered{Size: 64 << 10}, wire.StatusOK},
		{"too large", "flat", "x", wire.Offered{Size: 64<<10 + 1}, wire.StatusTooLarge},
		{"far too large", "flat", "x", wire.Offered{Size: 1 << 63}, wire.StatusTooLarge},
		{"resident", "flat", "f", wire.Offered{Size: 100}, wire.StatusExists},
		{"resident with another length", "flat", "f", wire.Offered{Size: 101}, wire.StatusBadLayout},
		{"pools for size classes", "flat", "x", wire.Offered{Size: 100, Pools: []byte{0}}, wire.StatusBadLayout},
		{"part in a flat namespace", "flat", "x", wire.Offered{Size: 100, Flags: wire.OfferMember}, wire.StatusBadLayout},
		{"no such namespace", "none", "x", wire.Offered{Size: 100}, wire.StatusBadLayout},
		{"no key", "flat", "", wire.Offered{Size: 100}, wire.StatusBadKey},
		{"piece", "pools", "x", wire.Offered{Size: 100, Pools: []byte{0}}, wire.StatusOK},
		{"pieces", "pools", "x", wire.Offered{Size: 64 + 4096, Pools: []byte{1, 0}}, wire.StatusOK},
		{"pieces too short", "pools", "x", wire.Offered{Size: 64 + 4095, Pools: []byte{0, 1}}, wire.StatusBadLayout},
		{"pieces of nothing", "pools", "x", wire.Offered{Size: 63, Pools: []byte{0, 1}}, wire.StatusBadLayout},
		{"piece too long", "pools", "x", wire.Offered{Size: 65, Pools: []byte{1}}, wire.StatusTooLarge},
		{"no such pool", "pools", "x", wire.Offered{Size: 64, Pools: []byte{2}}, wire.StatusBadLayout},
		{"no pool", "pools", "x", wire.Offered{Size: 64}, wire.StatusBadLayout},
		{"too many pieces", "pools", "x", wire.Offered{Size: 64 * 32, Pools: bytes.Repeat([]byte{1}, 32)}, wire.StatusBadLayout},
		{"resident pieces", "pools", "p", wire.Offered{Size: 64 + 4096, Pools: []byte{1, 0}}, wire.StatusExists},
		{"resident in another order", "pools", "p", wire.Offered{Size: 64 + 4096, Pools: []byte{0, 1}}, wire.StatusBadLayout},
	}
	for i, tt := range tests {
		slot, st := r.Reserve(peer.OpID(i+1), 0, tt.ns, []byte(tt.key), &tt.o)
		if st != tt.want || (slot != 0) != (st == wire.StatusOK) {
			t.Errorf("%s: slot %d, %v, want %v", tt.name, slot, st, tt.want)
		}
		n := 0
		for _, b := range r.SlotBytes(slot) {
			n += len(b)
		}
		if slot != 0 && n != int(tt.o.Size) {
			t.Errorf("%s: %d bytes of memory", tt.name, n)
		}
		r.Free(slot)
	}
	// The cap, and that freed slots make room.
	var slots []peer.Slot
	for i := range 5 {
		slot, st := r.Reserve(1000, i, "flat", keyOf(i), &wire.Offered{Size: 10})
		if want := map[bool]wire.Status{true: wire.StatusCapacity}[i == 4]; st != want {
			t.Errorf("slot %d of 4: %v", i, st)
		}
		slots = append(slots, slot)
	}
	for _, s := range slots {
		r.Free(s)
	}
	var cs []peer.Claim
	for i := range 5 {
		c, st := r.Claim("flat", &wire.Wanted{Key: key("f")}, &wire.Offered{})
		if want := map[bool]wire.Status{true: wire.StatusBusy}[i == 4]; st != want {
			t.Errorf("claim %d of 4: %v", i, st)
		}
		cs = append(cs, c)
	}
	for _, c := range cs {
		r.Unclaim(c)
	}
	if _, st := r.Claim("flat", &wire.Wanted{Key: key("f"), Generation: 77}, &wire.Offered{}); st != wire.StatusGeneration {
		t.Errorf("claim of another generation: %v", st)
	}
	if st := r.Invalidate("flat", &wire.Wanted{Key: key("f"), Generation: 77}); st != wire.StatusGeneration {
		t.Errorf("invalidation of another generation: %v", st)
	}
	if st := r.Invalidate("flat", &wire.Wanted{Key: key("f")}); st != wire.StatusOK || hf.Has(key("f")) {
		t.Errorf("invalidation: %v", st)
	}
	for _, ns := range []string{"flat", "none"} {
		if _, st := r.Claim(ns, &wire.Wanted{Key: key("f")}, &wire.Offered{}); st != wire.StatusMiss {
			t.Errorf("claim of nothing: %v", st)
		}
	}
	quiet(t, e)
}

// Groups at a destination that has a part already, or all.
func TestRecordsReserveGroup(t *testing.T) {
	ns := Namespace{Name: "ns", Kind: Chained, Pools: []Pool{{SlotBytes: 64}}}
	part := wire.Offered{Size: 64, Pools: []byte{0}, Flags: wire.OfferMember}
	leader := wire.Offered{Size: 64, Pools: []byte{0}}
	hold := peer.HoldID{Source: srcLife, Op: 1}
	a, b, c := []byte("a"), []byte("b"), []byte("c")
	tests := []struct {
		name   string
		groups [][][]byte // resident
		want   []wire.Status
	}{
		{"nothing there", nil, []wire.Status{0, 0, 0}},
		{"all there", [][][]byte{{a, b, c}}, []wire.Status{wire.StatusExists, wire.StatusExists, wire.StatusExists}},
		{"a part alone", [][][]byte{{a}}, []wire.Status{0, 0, 0}},
		{"last part alone", [][][]byte{{c}}, []wire.Status{0, 0, 0}},
		{"parts in a smaller group", [][][]byte{{a, b}}, []wire.Status{wire.StatusExists, wire.StatusExists, wire.StatusBadLayout}},
		{"parts in another group", [][][]byte{{a, []byte("z")}}, []wire.Status{wire.StatusExists, wire.StatusBadLayout, wire.StatusBadLayout}},
		{"last part in another group", [][][]byte{{c, []byte("z")}}, []wire.Status{0, 0, 0}},
		{"in two groups", [][][]byte{{a, []byte("z")}, {b, c}}, []wire.Status{wire.StatusExists, wire.StatusBadLayout, wire.StatusBadLayout}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := open(t, Config{Capacity: 1 << 20, Namespaces: one(ns)})
			h, r := handleIn(t, e, "ns"), e.Records()
			for _, g := range tt.groups {
				var items []Item
				for _, k := range g {
					items = append(items, Item{Key: k, Value: stamped(7, 64)})
				}
				if rs := h.DepositGroup(items, DepositOptions{}); !rs[0].OK() {
					t.Fatal(rs[0].Reason)
				}
			}
			var slots []peer.Slot
			for i, k := range [][]byte{a, b, c} {
				o := part
				if i == 2 {
					o = leader
				}
				slot, st := r.Reserve(1, i, "ns", k, &o)
				if st != tt.want[i] {
					t.Errorf("part %d: %v, want %v", i, st, tt.want[i])
				}
				if slot != 0 {
					stamp(r.SlotBytes(slot)[0], uint64(i))
					slots = append(slots, slot)
				}
			}
			if len(slots) == 3 {
				if st := r.Commit(slots, hold); st != wire.StatusOK {
					t.Errorf("Commit: %v", st)
				}
				if ok, _ := h.Delete(b); !ok || h.Has(a) || h.Has(c) {
					t.Error("the parts are no group")
				}
			} else if len(slots) != 0 {
				t.Errorf("%d slots", len(slots))
			}
			quiet(t, e)
		})
	}
}

// Blocks that are committed before their parent find it, and memory that ran out
// in the middle leaves nothing behind.
func TestRecordsOutOfOrder(t *testing.T) {
	p := openPair(t, Config{Capacity: 1 << 20, Namespaces: one(Namespace{Kind: Chained, Pools: []Pool{{SlotBytes: 4096}}})})
	h := handleIn(t, p.src, "ns")
	var items []Item
	var keys [][]byte
	for i := range 8 {
		keys = append(keys, keyOf(i))
		items = append(items, Item{Key: keyOf(i), Value: stamped(uint64(i), 4096)})
	}
	h.DepositBatch(items, DepositOptions{})
	for _, follows := range []bool{true, false} {
		order := rand.New(rand.NewPCG(3, 4)).Perm(8)
		moved := p.fetch(keys...)
		if !follows {
			for i := range moved {
				p.dst.Records().Free(moved[i].slot)
			}
			p.unclaim(moved)
			for i := 7; i >= 0; i-- { // not in order: each names its parent by key
				p.op++
				it := item{key: keys[i]}
				it.claim, _ = p.src.Records().Claim("ns", &wire.Wanted{Key: keys[i]}, &it.o)
				it.slot, it.st = p.dst.Records().Reserve(p.op, 0, "ns", keys[i], &it.o)
				if it.st != wire.StatusOK {
					t.Fatal(it.st)
				}
				p.copy(&it)
				moved[i] = it
			}
			order = []int{0, 1, 2, 3, 4, 5, 6, 7}
		}
		for _, i := range order {
			if st := p.dst.Records().Commit([]peer.Slot{moved[i].slot}, peer.HoldID{}); st != wire.StatusOK {
				t.Fatal(st)
			}
		}
		p.unclaim(moved)
		for i, k := range keys {
			var o wire.Offered
			c, st := p.dst.Records().Claim("ns", &wire.Wanted{Key: k}, &o)
			if st != wire.StatusOK || o.Position != uint32(i) || i > 0 && !bytes.Equal(o.Parent, keys[i-1]) {
				t.Errorf("follows=%t: %q: %v, position %d, parent %q", follows, k, st, o.Position, o.Parent)
			}
			p.dst.Records().Unclaim(c)
		}
		hd := handleIn(t, p.dst, "ns")
		for _, k := range keys {
			hd.Delete(k)
		}
	}
	if n := len(p.dst.Records().inbound.waiting); n != 0 {
		t.Errorf("%d parents are waited for", n)
	}
	quiet(t, p.src)
	quiet(t, p.dst)
}

// A delivering operation writes to the caller's memory and stores nothing.
func TestRecordsDeliver(t *testing.T) {
	p := openPair(t, Config{Capacity: 4 << 20, Shards: 1, Namespaces: one(Namespace{MaxValue: 64 << 10})})
	h := handleIn(t, p.src, "ns")
	for i := range 3 {
		if err := h.Set(keyOf(i), stamped(uint64(i), 1000+i)); err != nil {
			t.Fatal(err)
		}
	}
	d := p.dst.Records()
	targets := [][]byte{make([]byte, 1000), make([]byte, 1001), make([]byte, 77)}
	if st := d.BindTargets(p.op+1, targets); st != wire.StatusOK {
		t.Fatal(st)
	}
	items := p.fetch(keyOf(0), keyOf(1), keyOf(2))
	for i, want := range []wire.Status{wire.StatusOK, wire.StatusOK, wire.StatusBadLayout} {
		if items[i].st != want {
			t.Errorf("item %d: %v, want %v", i, items[i].st, want)
		}
	}
	if st := d.Commit([]peer.Slot{items[0].slot}, peer.HoldID{}); st != wire.StatusOK {
		t.Errorf("Commit: %v", st)
	}
	if st := d.Commit([]peer.Slot{items[1].slot}, peer.HoldID{Source: 1, Op: 1}); st != wire.StatusUnsupported {
		t.Errorf("Commit with a hold: %v", st)
	}
	d.UnbindTargets(p.op)
	for i := range 2 {
		if seed, ok := seedOf(targets[i]); !ok || seed != uint64(i) {
			t.Errorf("target %d has seed %d, whole %t", i, seed, ok)
		}
	}
	if st := stats(t, p.dst); st.Blocks != 0 {
		t.Errorf("%d blocks are resident", st.Blocks)
	}
	if _, st := d.Reserve(p.op, 5, "ns", keyOf(0), &wire.Offered{Size: 1000}); st != wire.StatusOK {
		t.Errorf("the operation delivers after UnbindTargets: %v", st)
	} else {
		d.Free(d.lastSlot)
	}
	p.unclaim(items)
	quiet(t, p.src)
	quiet(t, p.dst)
}

// A wrong checksum is no answer to Verify but a no; blocks whose source keeps
// none get one at Commit where the namespace keeps them.
func TestRecordsChecksum(t *testing.T) {
	p := openPair(t, Config{Capacity: 2 << 20, Namespaces: one(Namespace{Pools: []Pool{{SlotBytes: 4096}}})})
	k := keyOf(1)
	var o = wire.Offered{Size: 4000, Pools: []byte{0}}
	slot, st := p.dst.Records().Reserve(1, 0, "ns", k, &o)
	if st != wire.StatusOK {
		t.Fatal(st)
	}
	stamp(p.dst.Records().SlotBytes(slot)[0], 5)
	if st := p.dst.Records().Commit([]peer.Slot{slot}, peer.HoldID{}); st != wire.StatusOK {
		t.Fatal(st)
	}
	v, ok := handleIn(t, p.dst, "ns").Get(k)
	if !ok {
		t.Fatal("miss")
	}
	if sum, kept := v.p.Sum(v.c); !kept || sum != sumPieces([][]byte{v.Bytes()}) {
		t.Errorf("checksum %#x, kept %t", sum, kept)
	}
	v.Release()
	if verifies(p.dst.Records(), slot, 0) {
		t.Error("a slot that is none verifies")
	}
}

// A mark outlives its claim, and is ended through it.
func TestRecordsMarkOutlivesClaim(t *testing.T) {
	e := open(t, Config{Capacity: 4 << 20, Shards: 1, MaxTransferBlocks: 3, Namespaces: one(Namespace{MaxValue: 64 << 10})})
	h, r := handleIn(t, e, "ns"), e.Records()
	m := peer.MoveID{Dest: dstLife, Op: 1}
	var cs []peer.Claim
	for i := range 3 {
		put(t, h, keyOf(i))
		c, st := r.Claim("ns", &wire.Wanted{Key: keyOf(i)}, &wire.Offered{})
		if st != wire.StatusOK {
			t.Fatal(st)
		}
		if st := r.Mark(c, m); st != wire.StatusOK {
			t.Fatal(st)
		}
		r.Unclaim(c)
		cs = append(cs, c)
	}
	if n := e.Claims(); n != 0 {
		t.Errorf("%d claims", n)
	}
	if r.ClaimBytes(cs[0]) != nil {
		t.Error("an ended claim gives bytes")
	}
	if st := r.Mark(cs[0], m); st != wire.StatusMiss {
		t.Errorf("Mark through an ended claim: %v", st)
	}
	if st := stats(t, e); st.Marks != 3 {
		t.Errorf("%d marks", st.Marks)
	}
	put(t, h, keyOf(2)) // lifts it
	r.Unmark(cs[0], peer.MoveID{Dest: dstLife, Op: 2})
	r.Unmark(cs[0], m)
	what := make([]wire.Status, 2)
	r.Remove(cs[1:], m, what)
	if what[0] != wire.StatusOK || what[1] != wire.StatusRedeposited {
		t.Errorf("Remove: %v", what)
	}
	if !h.Has(keyOf(0)) || h.Has(keyOf(1)) || !h.Has(keyOf(2)) {
		t.Error("the wrong blocks were removed")
	}
	r.Remove(cs[:1], m, what[:1])
	if what[0] != wire.StatusReleased {
		t.Errorf("Remove of a claim that is none: %v", what[0])
	}
	quiet(t, e)
}

// After Close everything answers StatusClosed, what is out is counted, and its
// memory stays mapped until it comes back.
func TestRecordsClose(t *testing.T) {
	for _, v := range helping {
		for _, first := range []string{"claim", "slot", "commit"} {
			t.Run(v.name+"/"+first, func(t *testing.T) {
				ns := Namespace{MaxValue: 64 << 10}
				v.config(&ns)
				before := takeStock()
				e, err := Open(memfd(Config{Capacity: 4 << 20, Shards: 2, Namespaces: one(ns)}))
				if err != nil {
					t.Fatal(err)
				}
				h, err := e.HandleIn("ns")
				if err != nil {
					t.Fatal(err)
				}
				put(t, h, keyOf(1))
				put(t, h, keyOf(2))
				r := e.Records()
				m, hold := peer.MoveID{Dest: 1, Op: 1}, peer.HoldID{Source: 1, Op: 1}
				c, _ := r.Claim("ns", &wire.Wanted{Key: keyOf(1)}, &wire.Offered{})
				slot, _ := r.Reserve(1, 0, "ns", keyOf(3), &wire.Offered{Size: 100})
				if st := r.Mark(c, m); st != wire.StatusOK {
					t.Fatal(st)
				}
				if st := r.TakeHold("ns", keyOf(2), hold); st != wire.StatusOK {
					t.Fatal(st)
				}
				busy, ok := closeWithin(e).(*BusyError)
				if !ok || busy.Views != 1 || busy.Reservations != 1 {
					t.Errorf("Close: %+v, want 1 view and 1 reservation", busy)
				}
				what := []wire.Status{0}
				r.Remove([]peer.Claim{c}, m, what)
				_, claim := r.Claim("ns", &wire.Wanted{Key: keyOf(2)}, &wire.Offered{})
				_, reserve := r.Reserve(1, 1, "ns", keyOf(4), &wire.Offered{Size: 1})
				for i, st := range []wire.Status{
					what[0], claim, reserve, r.Mark(c, m), r.Invalidate("ns", &wire.Wanted{Key: keyOf(2)}), r.TakeHold("ns", keyOf(2), hold), r.BindTargets(9, nil),
				} {
					if st != wire.StatusClosed {
						t.Errorf("call %d after Close: %v", i, st)
					}
				}
				if r.Holds("ns", keyOf(2), hold) {
					t.Error("a block is held after Close")
				}
				r.DropHold("ns", keyOf(2), hold)
				if n := e.moves.Marks() + e.moves.Holds(); n != 0 {
					t.Errorf("%d marks and holds after Close", n)
				}
				stamp(r.SlotBytes(slot)[0], 1) // mapped
				if seed, whole := seedOf(r.ClaimBytes(c)[0]); !whole || seed != 1 {
					t.Errorf("seed %d, whole %t", seed, whole)
				}
				if !verifies(r, slot, sumPieces(r.SlotBytes(slot))) {
					t.Error("the slot does not verify")
				}
				end := map[string]func(){
					"claim": func() { r.Unclaim(c) },
					"slot":  func() { r.Free(slot) },
					"commit": func() {
						if st := r.Commit([]peer.Slot{slot}, hold); st != wire.StatusClosed {
							t.Errorf("Commit after Close: %v", st)
						}
					},
				}
				end[first]()
				if !lives(e) {
					t.Error("unmapped with something out")
				}
				for _, name := range []string{"claim", "slot"} {
					if name != first {
						end[name]()
					}
				}
				if lives(e) {
					t.Error("mapped with nothing out")
				}
				r.Unclaim(c)
				r.Free(slot)
				r.Unmark(c, m)
				if err := closeWithin(e); err != nil {
					t.Errorf("last Close: %v", err)
				}
				if err := before.check(2 * time.Second); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// Close at any moment of transfers that go on in other goroutines.
func TestRecordsCloseWhileInUse(t *testing.T) {
	for round := range pick(6, 20) {
		v := helping[round%2]
		ns := Namespace{MaxValue: 64 << 10}
		v.config(&ns)
		p := openPair(t, Config{Capacity: 4 << 20, Shards: 2, Namespaces: one(ns)})
		h := handleIn(t, p.src, "ns")
		for i := range 16 {
			put(t, h, keyOf(i))
		}
		var wg sync.WaitGroup
		var once sync.WaitGroup
		once.Add(4)
		for g := range 4 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for n := 0; !shuttle(p.src, p.dst, peer.OpID(g+1+4*n), keyOf((n+g)%16), 0, n%3); n++ {
					if n == 0 {
						once.Done()
					}
				}
			}()
		}
		once.Wait()
		time.Sleep(time.Duration(round) * 100 * time.Microsecond)
		for _, e := range []*Engine{p.src, p.dst} {
			closeWithin(e) // what is out at that moment comes back by its goroutine
		}
		wg.Wait()
		for _, e := range []*Engine{p.src, p.dst} {
			if lives(e) {
				t.Fatalf("round %d: memory is mapped with nothing out", round)
			}
		}
	}
}

// shuttle moves one block from src to dst as two honest nodes would, with the
// given life as their incarnations; fate 0 goes through, 1 the source asks for
// nothing and keeps, 2 the destination frees its memory. It reports whether an
// engine was closed.
func shuttle(src, dst *Engine, op peer.OpID, key []byte, life uint64, fate int) (closed bool) {
	s, d := src.Records(), dst.Records()
	m := peer.MoveID{Dest: peer.Incarnation(life*2 + 1), Op: op}
	hold := peer.HoldID{Source: peer.Incarnation(life*2 + 2), Op: op}
	var o wire.Offered
	c, st := s.Claim("ns", &wire.Wanted{Key: key}, &o)
	if st != wire.StatusOK {
		return st == wire.StatusClosed
	}
	defer s.Unclaim(c)
	if st := s.Mark(c, m); st != wire.StatusOK {
		return st == wire.StatusClosed
	}
	slot, st := d.Reserve(op, 0, "ns", key, &o)
	switch st {
	case wire.StatusOK:
		copy(d.SlotBytes(slot)[0], s.ClaimBytes(c)[0])
		if fate == 2 {
			d.Free(slot)
			s.Unmark(c, m)
			return false
		}
		st = d.Commit([]peer.Slot{slot}, hold)
	case wire.StatusExists:
		st = d.TakeHold("ns", key, hold)
	}
	if st != wire.StatusOK || fate == 1 {
		s.Unmark(c, m)
		if st == wire.StatusOK {
			d.DropHold("ns", key, hold)
		}
		return st == wire.StatusClosed
	}
	what := make([]wire.Status, 1)
	if d.Holds("ns", key, hold) {
		s.Remove([]peer.Claim{c}, m, what)
	} else {
		s.Unmark(c, m)
		what[0] = wire.StatusMiss
	}
	d.DropHold("ns", key, hold)
	return what[0] == wire.StatusClosed
}

// Moves of the same keys in both directions at once, beside readers, deposits and
// no_evict: no key is ever lost, since there is room for all. (Rules M1 to M3
// together; without any of them keys get lost here.)
func TestRecordsCrossing(t *testing.T) {
	for _, v := range helping {
		t.Run(v.name, func(t *testing.T) {
			ns := Namespace{MaxValue: 64 << 10, Checksums: ChecksumOn} // without, what is on both sides stays there
			v.config(&ns)
			p := openPair(t, Config{Capacity: 8 << 20, Shards: 2, Namespaces: one(ns)})
			const keys = 32
			h := handleIn(t, p.src, "ns")
			for i := range keys {
				put(t, h, keyOf(i))
			}
			var wg sync.WaitGroup
			n := pick(1500, 6000)
			for g := range 4 {
				wg.Add(1)
				go func() {
					defer wg.Done()
					rnd := rand.New(rand.NewPCG(uint64(g), 9))
					from, to := p.src, p.dst
					if g%2 == 1 {
						from, to = to, from
					}
					for i := range n {
						fate := max(0, rnd.IntN(8)-5)
						shuttle(from, to, peer.OpID(i*4+g+1), keyOf(rnd.IntN(keys)), uint64(g%2), fate)
						runtime.Gosched()
					}
				}()
			}
			wg.Add(1)
			go func() {
				defer wg.Done()
				rnd := rand.New(rand.NewPCG(77, 9))
				var hs []*Handle
				for _, e := range []*Engine{p.src, p.dst} {
					h, err := e.HandleIn("ns")
					if err != nil {
						t.Error(err)
						return
					}
					defer h.Close()
					hs = append(hs, h)
				}
				for range n {
					h, k := hs[rnd.IntN(2)], keyOf(rnd.IntN(keys))
					if v, ok := h.Get(k); ok {
						if seed, whole := seedOf(v.Bytes()); !whole || seed != 1 {
							t.Errorf("%q has seed %d, whole %t", k, seed, whole)
						}
						v.Release()
						if rnd.IntN(20) == 0 {
							rs := h.DepositBatch([]Item{{Key: k, Value: stamped(1, 64)}}, DepositOptions{NoEvict: rnd.IntN(2) == 0})
							rs[0].View.Release()
						}
					}
				}
			}()
			wg.Wait()
			hd := handleIn(t, p.dst, "ns")
			for i := range keys {
				if !h.Has(keyOf(i)) && !hd.Has(keyOf(i)) {
					t.Errorf("%q is lost", keyOf(i))
				}
			}
			moved := stats(t, p.src).Counts.Moved + stats(t, p.dst).Counts.Moved
			if moved < uint64(n)/100 { // how many depends on how the goroutines run
				t.Errorf("only %d moves went through", moved)
			}
			quiet(t, p.src)
			quiet(t, p.dst)
		})
	}
}

// The statuses of the records are all told apart.
func TestMoveStatuses(t *testing.T) {
	seen := map[wire.Status]bool{}
	for m, st := range moveStatuses {
		if seen[st] {
			t.Errorf("result %d has the status of another: %v", m, st)
		}
		seen[st] = true
	}
	want := []wire.Status{wire.StatusCapacity, wire.StatusDropped, wire.StatusTooLarge, wire.StatusBadLayout, wire.StatusClosed, wire.StatusAborted}
	var got []wire.Status
	for _, why := range []Reason{ReasonCapacity, ReasonDropped, ReasonTooLarge, ReasonLayout, ReasonClosed, ReasonAborted} {
		got = append(got, reasonStatus(why))
	}
	if !slices.Equal(got, want) {
		t.Error(fmt.Sprint(got))
	}
}
