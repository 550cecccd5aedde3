package kvcr

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"
)

// chained is an engine with one chained namespace of n slots of 4 KiB.
func chained(n int, edit func(*Config)) Config {
	cfg := Config{
		Capacity: max(int64(n)*4096, 1<<20), Shards: 1,
		Namespaces: one(Namespace{Kind: Chained, Pools: []Pool{{Name: "kv", SlotBytes: 4096}}, MaxBlocks: n}),
	}
	if edit != nil {
		edit(&cfg)
	}
	return cfg
}

func chainKey(chain, i int) []byte { return fmt.Appendf(nil, "chain-%d/%d", chain, i) }

func chainOf(chain, from, to int) (items []Item) {
	for i := from; i < to; i++ {
		items = append(items, Item{Key: chainKey(chain, i), Value: stamped(uint64(chain)<<32|uint64(i), 4096)})
	}
	return items
}

func keysOf(items []Item) (keys [][]byte) {
	for i := range items {
		keys = append(keys, items[i].Key)
	}
	return keys
}

func allOK(t testing.TB, what string, rs []Result) {
	t.Helper()
	for i := range rs {
		if !rs[i].OK() {
			t.Fatalf("%s: item %d: %v", what, i, rs[i].Err())
		}
	}
}

// prefix counts what Prefix finds and checks that it is whole and in order.
func prefix(t testing.TB, h *Handle, items []Item) int {
	t.Helper()
	views := make([]View, len(items))
	n := h.Prefix(keysOf(items), views)
	for i := range n {
		if !bytes.Equal(views[i].Bytes(), items[i].Value) {
			t.Errorf("block %d of a prefix has other bytes", i)
		}
	}
	for i := n; i < len(views); i++ {
		if views[i].p != nil {
			t.Errorf("Prefix is %d and claims block %d", n, i)
		}
	}
	if got := h.Release(views); got != n {
		t.Errorf("Release of %d views released %d", n, got)
	}
	return n
}

// A chain under pressure loses its tail first, so what is resident is always a
// prefix (126 of 128 blocks without the first two would be worth nothing).
func TestChainLosesItsTailFirst(t *testing.T) {
	for _, policy := range []string{"density", "lru"} {
		for _, v := range helping {
			t.Run(policy+"/"+v.name, func(t *testing.T) {
				e := open(t, chained(160, func(cfg *Config) {
					cfg.Namespaces[0].Policy = policy
					v.config(&cfg.Namespaces[0])
					if cfg.Namespaces[0].NewPolicy != nil {
						cfg.Namespaces[0].NewPolicy = wrapPolicy(policy, nil)
					}
				}))
				h := handle(t, e)
				chain := chainOf(0, 0, 128)
				allOK(t, "the chain", h.DepositBatch(chain, DepositOptions{}))
				if n := prefix(t, h, chain); n != 128 {
					t.Fatalf("Prefix = %d right after the deposit", n)
				}
				last := 128
				for i := 1; i < 40; i++ {
					other := chainOf(i, 0, 10)
					allOK(t, "pressure", h.DepositBatch(other, DepositOptions{}))
					n := 0
					for _, q := range h.Query(keysOf(chain)) {
						if q.Status == StatusHit {
							n++
						}
					}
					views := make([]View, len(chain))
					p := h.GetBatch(keysOf(chain), views)
					h.Release(views)
					if p != n {
						t.Fatalf("Query sees %d, GetBatch %d", n, p)
					}
					lead := 0
					for lead < len(chain) && h.Query(keysOf(chain[lead : lead+1]))[0].Status == StatusHit {
						lead++
					}
					if lead != n {
						t.Fatalf("after %d deposits %d blocks are resident and only %d usable", i, n, lead)
					}
					if n > last {
						t.Fatalf("blocks came back: %d, were %d", n, last)
					}
					last = n
				}
				if last == 128 {
					t.Error("the chain was never under pressure")
				}
				if got := prefix(t, h, chain); got != last {
					t.Errorf("Prefix = %d, %d leading blocks are resident", got, last)
				}
			})
		}
	}
}

// In any state, of every chain deposited only a prefix is resident: no block
// outlives its parent.
func TestChainsAreNeverCut(t *testing.T) {
	e := open(t, chained(100, nil))
	h := handle(t, e)
	rng := rand.New(rand.NewPCG(1, 1))
	lengths := map[int]int{}
	for step := range pick(300, 1400) {
		c := rng.IntN(20)
		// Continue a chain where it ends now, as a user would.
		full := chainOf(c, 0, lengths[c]+1+rng.IntN(8))
		if len(full) > 60 {
			full = full[:60]
		}
		views := make([]View, len(full))
		n := h.Prefix(keysOf(full), views)
		var opt DepositOptions
		if n > 0 {
			opt.Parent, opt.Position = full[n-1].Key, n
		}
		for _, r := range h.DepositBatch(full[n:], opt) {
			if !r.OK() && r.Reason != ReasonCapacity {
				t.Fatalf("step %d: %v", step, r.Err())
			}
		}
		h.Release(views[:n])
		lengths[c] = max(lengths[c], len(full))
		if step%7 != 0 {
			continue
		}
		for c, l := range lengths {
			gap := false
			for i, q := range h.Query(keysOf(chainOf(c, 0, l))) {
				if q.Status != StatusHit {
					gap = true
				} else if gap {
					t.Fatalf("step %d: block %d of chain %d is resident behind a gap", step, i, c)
				}
			}
		}
	}
	if stats(t, e).Counts.Evicted == 0 {
		t.Error("nothing was evicted")
	}
}

// A claimed block protects those before it.
func TestClaimProtectsAncestors(t *testing.T) {
	e := open(t, chained(64, nil))
	h := handle(t, e)
	chain := chainOf(0, 0, 16)
	allOK(t, "deposit", h.DepositBatch(chain, DepositOptions{}))
	v, ok := h.Get(chain[15].Key)
	if !ok {
		t.Fatal("miss")
	}
	for i := 1; i < 60; i++ {
		h.DepositBatch(chainOf(i, 0, 12), DepositOptions{})
	}
	if n := prefix(t, h, chain); n != 16 {
		t.Errorf("%d of 16 blocks are left under a claim on the last", n)
	}
	v.Release()
	for i := 60; i < 160; i++ {
		h.DepositBatch(chainOf(i, 0, 12), DepositOptions{})
	}
	if n := prefix(t, h, chain); n == 16 {
		t.Error("the chain never leaves after the release")
	}
}

// A deposit larger than memory keeps its beginning and says so of each block.
func TestDepositLargerThanMemory(t *testing.T) {
	for _, v := range helping {
		t.Run(v.name, func(t *testing.T) {
			e := open(t, chained(50, func(cfg *Config) { v.config(&cfg.Namespaces[0]) }))
			h := handle(t, e)
			chain := chainOf(0, 0, 80)
			rs := h.DepositBatch(chain, DepositOptions{})
			n := 0
			for n < len(rs) && rs[n].OK() {
				n++
			}
			if n == 0 || n > 50 {
				t.Fatalf("%d blocks were taken, there is room for 50", n)
			}
			for i := n; i < len(rs); i++ {
				if rs[i].Reason != ReasonCapacity {
					t.Errorf("block %d: %v after the first refusal", i, rs[i].Reason)
				}
			}
			if got := prefix(t, h, chain); got != n {
				t.Errorf("Prefix = %d, %d were taken", got, n)
			}
			if m := reserved(e); m != 0 {
				t.Errorf("%d records stay reserved", m)
			}
			// All claimed: nothing more is taken, and nothing is waited for.
			views := make([]View, n)
			if h.Prefix(keysOf(chain[:n]), views) != n {
				t.Fatal("prefix")
			}
			for i := range 50 - n {
				h.DepositBatch(chainOf(1+i, 0, 1), DepositOptions{NoEvict: true})
			}
			h.Release(views)
		})
	}
}

// When every block is claimed a deposit is refused with "capacity", a Set with
// ErrFull, and both work again after the release.
func TestEverythingClaimed(t *testing.T) {
	for _, v := range helping {
		t.Run(v.name, func(t *testing.T) {
			e := open(t, chained(32, func(cfg *Config) { v.config(&cfg.Namespaces[0]) }))
			h := handle(t, e)
			chain := chainOf(0, 0, 32)
			allOK(t, "deposit", h.DepositBatch(chain, DepositOptions{}))
			views := make([]View, 32)
			if n := h.GetBatch(keysOf(chain), views); n != 32 {
				t.Fatalf("%d hits", n)
			}
			within(closeBound, "refusing", func() {
				for _, r := range h.DepositBatch(chainOf(1, 0, 3), DepositOptions{}) {
					if r.Reason != ReasonCapacity {
						t.Errorf("deposit: %v", r.Reason)
					}
					isErr(t, "Err", r.Err(), ErrFull)
				}
				isErr(t, "Set", h.Set([]byte("k"), stamped(1, 64)), ErrFull)
				isErr(t, "Set of a resident key", h.Set(chain[0].Key, stamped(1, 64)), ErrFull)
				_, err := h.Reserve([]byte("k"), 64)
				isErr(t, "Reserve", err, ErrFull)
			})
			if st := stats(t, e); st.Counts.Refused == 0 || st.Counts.Evicted != 0 {
				t.Errorf("%+v", st.Counts)
			}
			h.Release(views)
			allOK(t, "after the release", h.DepositBatch(chainOf(1, 0, 20), DepositOptions{}))
		})
	}
}

// Blocks under a parent that is not there are stored, and leave first.
func TestUnreachableLeaveFirst(t *testing.T) {
	e := open(t, chained(64, nil))
	h := handle(t, e)
	lost := chainOf(0, 5, 25)
	allOK(t, "deposit under nothing", h.DepositBatch(lost, DepositOptions{Parent: []byte("never stored"), Position: 5}))
	good := chainOf(1, 0, 40)
	allOK(t, "deposit", h.DepositBatch(good, DepositOptions{}))
	hits := func(items []Item) (n int) {
		for _, q := range h.Query(keysOf(items)) {
			if q.Status == StatusHit {
				n++
			}
		}
		return n
	}
	if hits(lost) != 20 || hits(good) != 40 {
		t.Fatalf("%d and %d are resident", hits(lost), hits(good))
	}
	for i := range 15 { // 4 free slots, then 11 must leave
		allOK(t, "pressure", h.DepositBatch(chainOf(2, i, i+1), DepositOptions{Parent: parentOf(2, i), Position: i}))
	}
	if n := hits(good); n != 40 {
		t.Errorf("%d of 40 reachable blocks are left, while unreachable ones were there to leave", n)
	}
	if n := hits(lost); n != 9 {
		t.Errorf("%d unreachable blocks are left, 9 were to be", n)
	}
}

func parentOf(chain, i int) []byte {
	if i == 0 {
		return nil
	}
	return chainKey(chain, i-1)
}

// A block removed by hand makes those behind it unreachable; they leave next,
// and a new deposit of the missing block makes them reachable again.
func TestDeleteInTheMiddle(t *testing.T) {
	e := open(t, chained(64, nil))
	h := handle(t, e)
	chain := chainOf(0, 0, 20)
	allOK(t, "deposit", h.DepositBatch(chain, DepositOptions{}))
	if ok, err := h.Delete(chain[7].Key); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if n := prefix(t, h, chain); n != 7 {
		t.Errorf("Prefix = %d, the eighth block is missing", n)
	}
	rs := h.DepositBatch(chain[7:], DepositOptions{Parent: chain[6].Key, Position: 7})
	allOK(t, "deposit again", rs)
	for i, r := range rs {
		if r.Existing != (i > 0) {
			t.Errorf("block %d: existing %v", 7+i, r.Existing)
		}
	}
	if n := prefix(t, h, chain); n != 20 {
		t.Errorf("Prefix = %d after the repair", n)
	}
}

// Parents that go in circles come from faulty clients: the memory must be
// usable afterwards.
func TestParentsInCircles(t *testing.T) {
	for _, policy := range []string{"density", "lru", "fifo", "s3fifo"} {
		t.Run(policy, func(t *testing.T) {
			e := open(t, chained(16, func(cfg *Config) { cfg.Namespaces[0].Policy = policy }))
			h := handle(t, e)
			a, b, c := chainOf(0, 0, 1), chainOf(0, 1, 2), chainOf(0, 2, 3)
			none := []byte("nothing")
			h.DepositBatch(a, DepositOptions{Parent: a[0].Key}) // itself, not there yet
			h.DepositBatch(a, DepositOptions{Parent: a[0].Key}) // itself
			h.DepositBatch([]Item{b[0], c[0], b[0], c[0]}, DepositOptions{Parent: none})
			h.DepositBatch(b, DepositOptions{Parent: c[0].Key})
			h.DepositBatch(c, DepositOptions{Parent: b[0].Key})
			h.Delete(a[0].Key)
			h.DepositBatch(a, DepositOptions{Parent: c[0].Key})
			h.Delete(b[0].Key)
			h.DepositBatch(b, DepositOptions{Parent: a[0].Key})
			h.DepositBatch(c, DepositOptions{Parent: b[0].Key})
			h.Set(b[0].Key, b[0].Value)
			h.DepositBatch(b, DepositOptions{Parent: c[0].Key})
			within(closeBound, "depositing", func() {
				for i := range 20 {
					allOK(t, "afterwards", h.DepositBatch(chainOf(1+i, 0, 16), DepositOptions{}))
				}
			})
		})
	}
}

// group is the parts of one page.
func group(page int, parts ...string) (items []Item) {
	for i, p := range parts {
		items = append(items, Item{Key: fmt.Appendf(nil, "page-%d/%s", page, p), Value: stamped(uint64(page)<<8|uint64(i), 4096)})
	}
	return items
}

// Parts of a page live and die together.
func TestGroupsLiveAndDieTogether(t *testing.T) {
	for _, v := range helping {
		t.Run(v.name, func(t *testing.T) {
			e := open(t, chained(60, func(cfg *Config) { v.config(&cfg.Namespaces[0]) }))
			h := handle(t, e)
			count := func(items []Item) (n int) {
				for _, q := range h.Query(keysOf(items)) {
					if q.Status == StatusHit {
						n++
					}
				}
				return n
			}
			parts := []string{"kv", "index", "state"}
			first := group(0, parts...)
			allOK(t, "group", h.DepositGroup(first, DepositOptions{}))
			if n := prefix(t, h, first); n != 3 {
				t.Fatalf("%d of 3 parts are there", n)
			}
			if st := stats(t, e); st.Blocks != 3 || st.PayloadBytes != 3*4096 {
				t.Errorf("%d blocks of %d bytes", st.Blocks, st.PayloadBytes)
			}
			// A claim on any part protects all.
			view, _ := h.Get(first[1].Key)
			for i := 1; i < 60; i++ {
				allOK(t, "pressure", h.DepositGroup(group(i, parts...), DepositOptions{}))
				for j := 0; j <= i; j++ {
					if n := count(group(j, parts...)); n != 0 && n != 3 {
						t.Fatalf("%d of 3 parts of page %d are left", n, j)
					}
				}
			}
			if count(first) != 3 {
				t.Error("a claim on one part did not protect the others")
			}
			if !bytes.Equal(view.Bytes(), first[1].Value) {
				t.Error("bytes changed")
			}
			// Delete takes all; the View keeps its bytes.
			if ok, err := h.Delete(first[0].Key); !ok || err != nil {
				t.Fatal(ok, err)
			}
			if n := count(first); n != 0 {
				t.Errorf("%d parts are left after a Delete of one", n)
			}
			if !bytes.Equal(view.Bytes(), first[1].Value) {
				t.Error("bytes changed by a Delete")
			}
			view.Release()
			// A part replaced by Set takes the others along.
			allOK(t, "group", h.DepositGroup(first, DepositOptions{}))
			if err := h.Set(first[2].Key, stamped(9, 100)); err != nil {
				t.Fatal(err)
			}
			if count(first[:2]) != 0 || count(first[2:]) != 1 {
				t.Errorf("after a Set of one part %d old ones are left", count(first[:2]))
			}
		})
	}
}

// Depositing a group answers success only when all its parts can be read.
func TestGroupOverOldParts(t *testing.T) {
	a, b, c := group(0, "a")[0], group(0, "b")[0], group(0, "c")[0]
	for _, tc := range []struct {
		name string
		// resident before: each a group, or a single block
		old   [][]Item
		group []Item
		gone  []Item
	}{
		{"first part single", [][]Item{{a}}, []Item{a, b}, nil},
		{"last part single", [][]Item{{b}}, []Item{a, b}, nil},
		{"both single", [][]Item{{a}, {b}}, []Item{a, b}, nil},
		{"first part of another group", [][]Item{{a, c}}, []Item{a, b}, []Item{c}},
		{"last part of another group", [][]Item{{b, c}}, []Item{a, b}, []Item{c}},
		{"last of another as last", [][]Item{{c, b}}, []Item{a, b}, []Item{c}},
		{"two groups", [][]Item{{a, c}, {b}}, []Item{a, b}, []Item{c}},
		{"the same group", [][]Item{{a, b}}, []Item{a, b}, nil},
		{"the same in another order", [][]Item{{a, b}}, []Item{b, a}, nil},
		{"a part of it", [][]Item{{a, b, c}}, []Item{a, b}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := open(t, chained(60, nil))
			h := handle(t, e)
			for _, g := range tc.old {
				allOK(t, "old", h.DepositGroup(g, DepositOptions{}))
			}
			allOK(t, "group", h.DepositGroup(tc.group, DepositOptions{}))
			for _, it := range tc.group {
				v, ok := h.Get(it.Key)
				if !ok {
					t.Errorf("%s was answered OK and is not there", it.Key)
					continue
				}
				if !bytes.Equal(v.Bytes(), it.Value) {
					t.Errorf("%s has other bytes", it.Key)
				}
				v.Release()
			}
			for _, it := range tc.gone {
				if h.Has(it.Key) {
					t.Errorf("%s lost a part of its group and is still there", it.Key)
				}
			}
			// And now they live and die together.
			h.Delete(tc.group[0].Key)
			for _, it := range tc.group {
				if h.Has(it.Key) {
					t.Errorf("%s is left after a Delete of %s", it.Key, tc.group[0].Key)
				}
			}
		})
	}
}

// A group that replaces the very block it names as parent.
func TestGroupReplacesItsParent(t *testing.T) {
	for _, policy := range []string{"density", "lru"} {
		t.Run(policy, func(t *testing.T) {
			e := open(t, chained(16, func(cfg *Config) { cfg.Namespaces[0].Policy = policy }))
			h := handle(t, e)
			old := group(0, "a", "b")
			allOK(t, "old", h.DepositGroup(old, DepositOptions{}))
			mix := []Item{old[0], group(0, "c")[0]}
			rs := h.DepositGroup(mix, DepositOptions{Parent: old[1].Key, Position: 1})
			allOK(t, "group under a block it replaces", rs)
			for i := range 20 {
				allOK(t, "afterwards", h.DepositBatch(chainOf(1+i, 0, 16), DepositOptions{}))
			}
			if n := e.Claims(); n != 0 {
				t.Errorf("%d claims are left", n)
			}
		})
	}
}

// A no_evict deposit of a resident block gives a View of that block, also when
// it is a part of a group.
func TestNoEvictOfResidentPart(t *testing.T) {
	e := open(t, chained(16, nil))
	h := handle(t, e)
	parts := group(0, "a", "b", "c")
	allOK(t, "group", h.DepositGroup(parts, DepositOptions{}))
	for _, it := range parts {
		r := h.DepositBatch([]Item{it}, DepositOptions{NoEvict: true})[0]
		if !r.OK() || !r.Existing {
			t.Fatalf("%+v", r)
		}
		if !bytes.Equal(r.View.Bytes(), it.Value) {
			t.Errorf("the View of %s has other bytes", it.Key)
		}
		for i := range 10 {
			h.DepositBatch(chainOf(1+i, 0, 12), DepositOptions{})
		}
		if !h.Has(it.Key) {
			t.Errorf("%s was evicted under a hold", it.Key)
		}
		if err := r.View.Release(); err != nil {
			t.Error(err)
		}
	}
	if n := e.Claims(); n != 0 {
		t.Errorf("%d claims are left", n)
	}
}

// A group deposited with no_evict stays whole until the hold ends.
func TestNoEvictGroup(t *testing.T) {
	e := open(t, chained(16, nil))
	h := handle(t, e)
	parts := group(0, "a", "b")
	rs := h.DepositGroup(parts, DepositOptions{NoEvict: true})
	allOK(t, "group", rs)
	for i := range 10 {
		h.DepositBatch(chainOf(1+i, 0, 12), DepositOptions{})
	}
	if n := prefix(t, h, parts); n != 2 {
		t.Errorf("%d of 2 held parts are left", n)
	}
	held := 0
	for i := range rs {
		if rs[i].View.p != nil {
			held++
			if !bytes.Equal(rs[i].View.Bytes(), parts[i].Value) {
				t.Errorf("View %d has other bytes", i)
			}
			rs[i].View.Release()
		}
	}
	if held == 0 {
		t.Error("no result carries the hold")
	}
	for i := range 20 {
		h.DepositBatch(chainOf(100+i, 0, 12), DepositOptions{})
	}
	if n := prefix(t, h, parts); n != 0 {
		t.Errorf("%d parts are left after the hold", n)
	}
}

// Readers never see a part of one deposit beside another of an older one: a
// claim on one part keeps the others of the same deposit readable.
func TestGroupsUnderReaders(t *testing.T) {
	for _, v := range helping {
		t.Run(v.name, func(t *testing.T) {
			e := open(t, chained(24, func(cfg *Config) { v.config(&cfg.Namespaces[0]) }))
			stop := make(chan struct{})
			var wg sync.WaitGroup
			pages := 4
			for g := range 2 {
				h := handle(t, e)
				rng := rand.New(rand.NewPCG(uint64(g), 9))
				wg.Add(1)
				go func() {
					defer wg.Done()
					for {
						select {
						case <-stop:
							return
						default:
						}
						runtime.Gosched() // or the writer waits for a processor
						p := rng.IntN(pages)
						keys := keysOf(group(p, "a", "b", "c"))
						rng.Shuffle(3, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
						first, ok := h.Get(keys[0])
						if !ok {
							continue
						}
						seed, whole := seedOf(first.Bytes())
						if !whole {
							t.Error("broken bytes")
						}
						for _, k := range keys[1:] {
							v, ok := h.Get(k)
							if !ok {
								continue // all were removed by hand meanwhile; evicted they cannot be
							}
							if s, whole := seedOf(v.Bytes()); !whole {
								t.Error("broken bytes")
							} else if s>>8 < seed>>8 {
								t.Errorf("part of deposit %d beside one of the later deposit %d", s>>8, seed>>8)
							}
							v.Release()
						}
						if s, whole := seedOf(first.Bytes()); !whole || s != seed {
							t.Error("bytes changed under a View")
						}
						first.Release()
					}
				}()
			}
			h := handle(t, e)
			rng := rand.New(rand.NewPCG(7, 9))
			within(60*time.Second, "depositing", func() {
				for n := range pick(300, 8000) {
					p := rng.IntN(pages)
					items := group(p, "a", "b", "c")
					for i := range items {
						stamp(items[i].Value, uint64(n+1)<<8|uint64(i))
					}
					if n%2 == 0 {
						h.Delete(items[rng.IntN(3)].Key)
					}
					for _, r := range h.DepositGroup(items, DepositOptions{}) {
						if !r.OK() && r.Reason != ReasonCapacity {
							t.Errorf("deposit %d: %v", n, r.Err())
						}
					}
				}
			})
			close(stop)
			wg.Wait()
			if n, m := e.Claims(), reserved(e); n != 0 || m != 0 {
				t.Errorf("%d claims, %d reserved", n, m)
			}
		})
	}
}

// Blocks of several pieces, each in its pool.
func TestPieces(t *testing.T) {
	pools := []Pool{{Name: "kv", SlotBytes: 8192, Share: 0.5}, {Name: "index", SlotBytes: 256, Share: 0.25}, {Name: "state", SlotBytes: 4096, Share: 0.25}}
	for _, v := range helping {
		t.Run(v.name, func(t *testing.T) {
			ns := Namespace{Kind: Chained, Pools: pools}
			v.config(&ns)
			e := open(t, Config{Capacity: 2 << 20, Namespaces: one(ns)})
			h := handle(t, e)
			item := func(i int) Item {
				return Item{
					Key:    keyOf(i),
					Pieces: [][]byte{stamped(uint64(i), 8192), stamped(uint64(i)+1, 256), stamped(uint64(i)+2, 4096)},
					Pools:  []string{"kv", "index", "state"},
				}
			}
			for i := range 300 { // several times what fits
				allOK(t, "deposit", h.DepositBatch([]Item{item(i)}, DepositOptions{}))
			}
			v, ok := h.Get(keyOf(299))
			if !ok {
				t.Fatal("miss")
			}
			if v.Pieces() != 3 || v.Len() != 8192+256+4096 || !v.Verify() {
				t.Errorf("%d pieces, %d bytes, checksum %v", v.Pieces(), v.Len(), v.Verify())
			}
			for i, want := range item(299).Pieces {
				b, pool := v.Piece(i)
				if !bytes.Equal(b, want) || pool != pools[i].Name {
					t.Errorf("piece %d in pool %q differs", i, pool)
				}
			}
			v.Release()
			all := bytes.Join(item(299).Pieces, nil)
			buf := make([]byte, len(all))
			if n, ok := h.CopyTo(buf, keyOf(299)); !ok || n != len(all) || !bytes.Equal(buf, all) {
				t.Errorf("CopyTo: %d, %v", n, ok)
			}
			if n, ok := h.CopyTo(buf[:100], keyOf(299)); ok || n != len(all) {
				t.Errorf("CopyTo of too little: %d, %v", n, ok)
			}
			if got, ok := h.AppendTo([]byte("x"), keyOf(299)); !ok || !bytes.Equal(got, append([]byte("x"), all...)) {
				t.Error("AppendTo differs")
			}
			if rs := h.Deliver([]Target{{Key: keyOf(299), Dst: buf}}).Results(); !rs[0].OK() || !bytes.Equal(buf, all) {
				t.Error("Deliver differs")
			}
			// The same key in another layout.
			r := h.DepositBatch([]Item{{Key: keyOf(299), Value: stamped(1, 100)}}, DepositOptions{})[0]
			if r.Reason != ReasonLayout {
				t.Errorf("another layout: %v", r.Reason)
			}
			swapped := item(299)
			swapped.Pieces[0], swapped.Pieces[2] = swapped.Pieces[2], swapped.Pieces[0]
			swapped.Pools = []string{"state", "index", "kv"}
			if r := h.DepositBatch([]Item{swapped}, DepositOptions{})[0]; r.Reason != ReasonLayout {
				t.Errorf("swapped pieces: %v", r.Reason)
			}
			// A set of one piece over it replaces it.
			if err := h.Set(keyOf(299), stamped(5, 100)); err != nil {
				t.Fatal(err)
			}
			if n, ok := h.CopyTo(buf, keyOf(299)); !ok || n != 100 {
				t.Errorf("after Set: %d, %v", n, ok)
			}
			if st := stats(t, e); st.PayloadBytes > 2<<20 {
				t.Errorf("%d bytes are resident", st.PayloadBytes)
			}
		})
	}
}

// What is wrong with an item is that item's answer.
func TestBadInput(t *testing.T) {
	e := open(t, Config{Capacity: 8 << 20, Shards: 1, Namespaces: []Namespace{
		{Name: "classes", MaxValue: 10000},
		{Name: "blocks", Kind: Chained, Pools: []Pool{{Name: "a", SlotBytes: 64}, {Name: "b", SlotBytes: 4096}}},
	}})
	h, hb := handleIn(t, e, "classes"), handleIn(t, e, "blocks")
	long, key := make([]byte, 1025), []byte("k")
	for _, k := range [][]byte{nil, {}, long} {
		isErr(t, "Set", h.Set(k, nil), ErrKey)
		isErr(t, "Deposit", h.Deposit(k, nil), ErrKey)
		_, err := h.Delete(k)
		isErr(t, "Delete", err, ErrKey)
		_, err = h.Reserve(k, 1)
		isErr(t, "Reserve", err, ErrKey)
		if _, ok := h.Get(k); ok {
			t.Error("Get hits")
		}
		if q := h.Query([][]byte{k}); q[0].Status != StatusMiss {
			t.Error("Query hits")
		}
		for name, rs := range map[string][]Result{
			"SetBatch": h.SetBatch([]Item{{Key: k}}), "DepositBatch": h.DepositBatch([]Item{{Key: k}}, DepositOptions{}),
			"DeleteBatch": h.DeleteBatch([][]byte{k}), "Fetch": h.Fetch([][]byte{k}).Results(), "Deliver": h.Deliver([]Target{{Key: k}}).Results(),
			"DepositGroup": hb.DepositGroup([]Item{{Key: k}}, DepositOptions{}),
		} {
			if len(rs) != 1 || rs[0].Reason != ReasonKey {
				t.Errorf("%s with a key of %d bytes: %+v", name, len(k), rs)
			}
		}
	}
	if err := h.Set(long[:1024], []byte("v")); err != nil {
		t.Errorf("a key of 1024 bytes: %v", err)
	}

	// One byte over the limit is refused at once and both are named.
	err := h.Set(key, make([]byte, 10001))
	isErr(t, "Set", err, ErrTooLarge)
	var op *OpError
	if !asOp(err, &op) || op.Value != 10001 || op.Limit != 10000 || op.Op != "set" {
		t.Errorf("%v: %+v", err, op)
	}
	if err := h.Set(key, make([]byte, 10000)); err != nil {
		t.Errorf("a value at the limit: %v", err)
	}
	_, err = h.Reserve(key, 10001)
	isErr(t, "Reserve", err, ErrTooLarge)
	_, err = h.Reserve(key, -1)
	if err == nil {
		t.Error("Reserve of -1 bytes")
	}
	isErr(t, "Deposit into a pool", hb.Deposit(key, make([]byte, 65)), ErrTooLarge)
	if r := hb.DepositBatch([]Item{{Key: key, Value: make([]byte, 65)}}, DepositOptions{})[0]; r.Reason != ReasonTooLarge {
		t.Errorf("DepositBatch: %v", r.Reason)
	}

	// Layouts.
	for name, it := range map[string]Item{
		"unknown pool":       {Key: key, Pieces: [][]byte{make([]byte, 64)}, Pools: []string{"z"}},
		"piece too short":    {Key: key, Pieces: [][]byte{make([]byte, 63)}, Pools: []string{"a"}},
		"piece too long":     {Key: key, Pieces: [][]byte{make([]byte, 65)}, Pools: []string{"a"}},
		"fewer pools":        {Key: key, Pieces: [][]byte{make([]byte, 64), make([]byte, 64)}, Pools: []string{"a"}},
		"no pieces":          {Key: key, Pieces: [][]byte{}, Pools: []string{}},
		"pools of one value": {Key: key, Value: make([]byte, 64), Pools: []string{"a"}},
		"too many pieces":    {Key: key, Pieces: make([][]byte, 40), Pools: make([]string, 40)},
	} {
		if r := hb.DepositBatch([]Item{it}, DepositOptions{})[0]; r.Reason != ReasonLayout {
			t.Errorf("%s: %v", name, r.Reason)
		}
		isErr(t, name, (&Result{Reason: ReasonLayout}).Err(), ErrLayout)
	}
	if r := h.DepositBatch([]Item{{Key: key, Pieces: [][]byte{make([]byte, 64)}, Pools: []string{"a"}}}, DepositOptions{})[0]; r.Reason != ReasonLayout {
		t.Errorf("pieces in a namespace without pools: %v", r.Reason)
	}
	if r := h.SetBatch([]Item{{Key: key, Pieces: [][]byte{make([]byte, 64)}}})[0]; r.Reason != ReasonLayout {
		t.Errorf("SetBatch of pieces: %v", r.Reason)
	}

	// Nothing to do is no mistake.
	if n := len(h.SetBatch(nil)) + len(h.DepositBatch(nil, DepositOptions{})) + len(hb.DepositGroup(nil, DepositOptions{})) +
		len(h.DeleteBatch(nil)) + h.GetBatch(nil, nil) + h.Prefix(nil, nil) + len(h.Query(nil)) + h.Release(nil); n != 0 {
		t.Error("empty batches have answers")
	}
	for _, o := range []*Op{h.Fetch(nil), h.Deliver(nil)} {
		select {
		case <-o.Done():
		default:
			t.Error("an empty operation does not end")
		}
		if o.Abort() || o.Prefix() != 0 {
			t.Error("an empty operation has something open")
		}
	}

	// Chains are for chained namespaces.
	for name, opt := range map[string]DepositOptions{"parent": {Parent: key}, "position": {Position: 1}} {
		if r := h.DepositBatch([]Item{{Key: key, Value: key}}, opt)[0]; r.OK() {
			t.Errorf("%s in a flat namespace was taken", name)
		}
	}
	if r := h.DepositGroup([]Item{{Key: key, Value: key}}, DepositOptions{})[0]; r.OK() {
		t.Error("a group in a flat namespace was taken")
	}
	if r := hb.DepositBatch([]Item{{Key: []byte("neg"), Value: key}}, DepositOptions{Position: -5})[0]; r.OK() {
		t.Error("a negative position was taken")
	}

	// In a flat batch one bad item leaves the others alone; a chain ends before
	// its first bad block; a group is taken whole or not at all.
	mixed := []Item{{Key: []byte("m0"), Value: key}, {Key: nil}, {Key: []byte("m2"), Value: make([]byte, 20000)}, {Key: []byte("m3"), Value: key}}
	want := []Reason{ReasonOK, ReasonKey, ReasonTooLarge, ReasonOK}
	for i, r := range h.DepositBatch(mixed, DepositOptions{}) {
		if r.Reason != want[i] {
			t.Errorf("flat item %d: %v, want %v", i, r.Reason, want[i])
		}
	}
	if !h.Has([]byte("m0")) || !h.Has([]byte("m3")) {
		t.Error("good items of a mixed batch are not there")
	}
	want = []Reason{ReasonOK, ReasonKey, ReasonKey, ReasonKey}
	for i, r := range hb.DepositBatch(mixed, DepositOptions{}) {
		if r.Reason != want[i] {
			t.Errorf("chain item %d: %v, want %v", i, r.Reason, want[i])
		}
	}
	if !hb.Has([]byte("m0")) || hb.Has([]byte("m3")) {
		t.Error("a chain goes on behind a bad block")
	}
	for i, r := range hb.DepositGroup([]Item{{Key: []byte("g0"), Value: key}, {Key: []byte("g1"), Value: make([]byte, 9000)}}, DepositOptions{}) {
		if r.Reason != ReasonTooLarge {
			t.Errorf("group part %d: %v", i, r.Reason)
		}
	}
	if hb.Has([]byte("g0")) {
		t.Error("a part of a bad group is there")
	}
	if n := reserved(e); n != 0 {
		t.Errorf("%d records stay reserved", n)
	}
}

// views shorter than keys are the caller's mistake; it must not take the
// handle, or the process's Close, along.
func TestShortViews(t *testing.T) {
	e := open(t, Config{Capacity: 1 << 20, Shards: 1})
	h := handle(t, e)
	h.Set([]byte("a"), nil)
	h.Set([]byte("b"), nil)
	keys := [][]byte{[]byte("a"), []byte("b")}
	for name, f := range map[string]func(v []View){
		"GetBatch": func(v []View) { h.GetBatch(keys, v) },
		"Prefix":   func(v []View) { h.Prefix(keys, v) },
	} {
		views := make([]View, 1)
		func() {
			defer func() {
				if recover() != nil {
					t.Logf("%s panics", name)
				}
			}()
			f(views)
		}()
		h.Release(views)
		if n := e.Claims(); n != 0 {
			t.Errorf("%s leaves %d claims that nobody can release", name, n)
		}
	}
	if err := h.Set([]byte("c"), nil); err != nil {
		t.Errorf("the handle is stuck: %v", err)
	}
}

func asOp(err error, op **OpError) bool { return errors.As(err, op) }

// Deposits look at the shape of what is resident while other handles bring piece
// lists that the shard has not seen yet.
func TestDepositsBesideNewLayouts(t *testing.T) {
	e := open(t, Config{
		Capacity: 8 << 20, Shards: 1,
		Namespaces: one(Namespace{Kind: Chained, Pools: []Pool{{Name: "a", SlotBytes: 4096}, {Name: "b", SlotBytes: 4096}, {Name: "c", SlotBytes: 4096}}}),
	})
	var wg sync.WaitGroup
	for g := range 3 {
		h := handle(t, e)
		wg.Add(1)
		go func() {
			defer wg.Done()
			names := []string{"a", "b", "c"}
			for i := range 200 {
				item := Item{Key: keyOf(i % 7)}
				for n := i*(g+1) + 1; n > 0; n /= 3 { // some list of up to six pools
					item.Pools = append(item.Pools, names[n%3])
					item.Pieces = append(item.Pieces, stamped(uint64(i%7), 4096))
				}
				r := h.DepositBatch([]Item{item}, DepositOptions{})
				if why := r[0].Reason; why != ReasonOK && why != ReasonLayout {
					t.Errorf("deposit %d: %v", i, why)
				}
			}
		}()
	}
	wg.Wait()
}
