package kvcr

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/shard/evict"
)

// wrapPolicy builds a built-in policy as an embedder's own; wrap, if not nil,
// puts something around it.
func wrapPolicy(name string, wrap func(Policy) Policy) NewPolicy {
	return func(nodes []evict.Node, b evict.Blocks, seed uint64) (Policy, error) {
		p, err := evict.New(name, nodes, b, seed)
		if err == nil && wrap != nil {
			p = wrap(p)
		}
		return p, err
	}
}

// hooked is a policy with some answers replaced.
type hooked struct {
	Policy
	admit  func() bool
	victim func(own evict.ID) evict.ID
	decide func(evict.ID) evict.Decision
	remove func()
}

func (p *hooked) Name() string { return "hooked" }

func (p *hooked) Admit(run []evict.Insert) bool {
	if p.admit != nil {
		return p.admit()
	}
	return p.Policy.Admit(run)
}

func (p *hooked) Victim(now uint32) evict.ID {
	v := p.Policy.Victim(now)
	if p.victim != nil {
		return p.victim(v)
	}
	return v
}

func (p *hooked) Decide(id evict.ID) evict.Decision {
	if p.decide != nil {
		return p.decide(id)
	}
	return p.Policy.Decide(id)
}

func (p *hooked) Remove(id evict.ID, why evict.Reason, now uint32) {
	p.Policy.Remove(id, why, now)
	if p.remove != nil {
		p.remove()
	}
}

// small is an engine of n slots of 64 bytes in one shard.
func small(n int, edit func(*Config)) Config {
	ns := Namespace{Name: "ns", Pools: []Pool{{Name: "p", SlotBytes: 4096}}, MaxBlocks: n}
	cfg := Config{Capacity: 1 << 20, Shards: 1, Namespaces: []Namespace{ns}}
	if edit != nil {
		edit(&cfg)
	}
	return cfg
}

// Whatever an embedder's policy does, the shard goes on, no bytes are wrong,
// and each fault is counted.
func TestPolicyFaults(t *testing.T) {
	cases := []struct {
		name string
		wrap func(Policy) Policy
		// faults: the counter must have moved; fails: writes that may be refused
		faults bool
		fails  error
	}{
		{"victim panics", func(p Policy) Policy {
			return &hooked{Policy: p, victim: func(evict.ID) evict.ID { panic("victim") }}
		}, true, nil},
		{"victim out of range", func(p Policy) Policy {
			return &hooked{Policy: p, victim: func(evict.ID) evict.ID { return 1 << 20 }}
		}, true, nil},
		{"victim largest number", func(p Policy) Policy {
			return &hooked{Policy: p, victim: func(evict.ID) evict.ID { return 1<<32 - 1 }}
		}, true, nil},
		{"victim never", func(p Policy) Policy {
			return &hooked{Policy: p, victim: func(evict.ID) evict.ID { return 0 }}
		}, false, ErrFull},
		{"admit panics now and then", func(p Policy) Policy {
			n := 0
			return &hooked{Policy: p, admit: func() bool {
				if n++; n%3 == 0 {
					panic("admit")
				}
				return true
			}}
		}, true, nil},
		{"admit refuses", func(p Policy) Policy {
			n := 0
			return &hooked{Policy: p, admit: func() bool { n++; return n%2 == 0 }}
		}, false, ErrDropped},
		{"decide panics", func(p Policy) Policy {
			return &hooked{Policy: p, decide: func(evict.ID) evict.Decision { panic("decide") }}
		}, true, nil},
		{"decide keeps all", func(p Policy) Policy {
			return &hooked{Policy: p, decide: func(evict.ID) evict.Decision { return evict.Keep }}
		}, false, ErrFull},
		{"remove panics", func(p Policy) Policy {
			return &hooked{Policy: p, remove: func() { panic("remove") }}
		}, true, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			e := open(t, small(8, func(cfg *Config) { cfg.Namespaces[0].NewPolicy = wrapPolicy("lru", c.wrap) }))
			h := handle(t, e)
			within(20*time.Second, "writing", func() {
				refused := 0
				for i := range 200 {
					err := h.Set(keyOf(i%20), stamped(uint64(i), 100))
					if err != nil {
						refused++
						if c.fails == nil {
							t.Fatalf("Set %d: %v", i, err)
						}
						isErr(t, "Set", err, c.fails)
						continue
					}
					v, ok := h.Get(keyOf(i % 20))
					if !ok {
						t.Fatalf("Set %d succeeded and Get misses", i)
					}
					if seed, ok := seedOf(v.Bytes()); !ok || seed != uint64(i) {
						t.Fatalf("Get %d: seed %d, whole %v", i, seed, ok)
					}
					v.Release()
				}
				if c.fails != nil && refused == 0 {
					t.Errorf("no write was refused; %v was to be seen", c.fails)
				}
			})
			st := stats(t, e)
			if got := st.Counts.PolicyFaults > 0; got != c.faults {
				t.Errorf("PolicyFaults = %d, want some: %v", st.Counts.PolicyFaults, c.faults)
			}
			if st.Blocks > 8 {
				t.Errorf("%d blocks, at most 8 were configured", st.Blocks)
			}
			if got := st.Namespaces[0].Policy; got != "hooked" {
				t.Errorf("policy is named %q", got)
			}
		})
	}
}

// A policy that answers at random must not break the shard either.
func TestPolicyNonsense(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	cfg := small(8, func(cfg *Config) {
		cfg.Namespaces[0].NewPolicy = wrapPolicy("density", func(p Policy) Policy {
			return &hooked{Policy: p, victim: func(own evict.ID) evict.ID {
				switch rng.IntN(4) {
				case 0:
					return own
				case 1:
					panic("now and then")
				}
				return evict.ID(rng.IntN(12))
			}}
		})
	})
	e := open(t, cfg)
	h := handle(t, e)
	var held []View
	for i := range 2000 {
		err := h.Set(keyOf(rng.IntN(30)), stamped(uint64(i), 8+rng.IntN(4000)))
		if err != nil {
			isErr(t, "Set", err, ErrFull) // "nothing may leave" is an answer, too
		}
		if v, ok := h.Get(keyOf(rng.IntN(30))); ok {
			held = append(held, v)
		}
		if len(held) > 4 {
			at := rng.IntN(len(held))
			if _, ok := seedOf(held[at].Bytes()); !ok {
				t.Fatalf("step %d: bytes under a View have changed", i)
			}
			held[at].Release()
			held[at] = held[len(held)-1]
			held = held[:len(held)-1]
		}
	}
	for i := range held {
		held[i].Release()
	}
	if n := e.Claims(); n != 0 {
		t.Errorf("%d claims are left", n)
	}
}

// An embedder's policy is called by one goroutine at a time, the owner's.
func TestPolicyRunsOnOwner(t *testing.T) {
	var inside, calls atomic.Int32
	cfg := small(16, func(cfg *Config) {
		cfg.Namespaces[0].NewPolicy = wrapPolicy("lru", func(p Policy) Policy {
			return &hooked{Policy: p, admit: func() bool {
				if inside.Add(1) != 1 {
					t.Error("two goroutines are in the policy")
				}
				calls.Add(1)
				time.Sleep(10 * time.Microsecond)
				inside.Add(-1)
				return true
			}}
		})
	})
	e := open(t, cfg)
	var wg sync.WaitGroup
	for g := range 4 {
		h := handle(t, e)
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 50 {
				if err := h.Set(keyOf(g*100+i), stamped(1, 64)); err != nil {
					t.Errorf("Set: %v", err)
				}
			}
		}()
	}
	wg.Wait()
	if calls.Load() != 200 {
		t.Errorf("policy was asked %d times for 200 writes", calls.Load())
	}
}

// Open fails as a whole when a policy cannot be built.
func TestPolicyThatCannotBeBuilt(t *testing.T) {
	before := takeStock()
	want := fmt.Errorf("no such thing")
	n := 0
	cfg := Config{Capacity: 8 << 20, Shards: 4, Namespaces: one(Namespace{MaxValue: 1 << 10, NewPolicy: func(nodes []evict.Node, b evict.Blocks, seed uint64) (Policy, error) {
		if n++; n == 3 {
			return nil, want
		}
		return evict.New("lru", nodes, b, seed)
	}})}
	_, err := Open(cfg)
	isErr(t, "Open", err, want)
	if err := before.check(2 * time.Second); err != nil {
		t.Errorf("after a failed Open: %v", err)
	}
}

// Pressure is told once for each crossing, for the pool concerned only, and
// again after the pool has recovered.
func TestPressure(t *testing.T) {
	var mu sync.Mutex
	var got []Pressure
	cfg := Config{
		Capacity: 2 << 20, Shards: 1,
		Namespaces: one(Namespace{
			Kind: Chained, Watermark: 50,
			Pools: []Pool{{Name: "kv", SlotBytes: 64 << 10}, {Name: "state", SlotBytes: 64 << 10}},
		}),
		OnPressure: func(p Pressure) { mu.Lock(); got = append(got, p); mu.Unlock() },
	}
	e := open(t, cfg)
	h := handle(t, e)
	reports := func() []Pressure { mu.Lock(); defer mu.Unlock(); return append([]Pressure(nil), got...) }
	if len(reports()) != 0 {
		t.Fatalf("pressure before anything was stored: %+v", reports())
	}
	// Evictable blocks are no pressure, however many.
	for i := range 40 {
		if err := h.Deposit(keyOf(i), stamped(uint64(i), 64<<10)); err != nil {
			t.Fatal(err)
		}
	}
	if len(reports()) != 0 {
		t.Fatalf("pressure from evictable blocks: %+v", reports())
	}
	round := func() []View {
		var held []View
		for i := range 12 { // of 16 slots
			r := h.DepositBatch([]Item{{Key: keyOf(1000 + i), Value: stamped(9, 64<<10)}}, DepositOptions{NoEvict: true})
			if !r[0].OK() {
				t.Fatalf("no_evict deposit %d: %v", i, r[0].Err())
			}
			held = append(held, r[0].View)
		}
		return held
	}
	held := round()
	rs := reports()
	if len(rs) != 1 {
		t.Fatalf("%d reports for one crossing: %+v", len(rs), rs)
	}
	if r := rs[0]; r.Namespace != "ns" || r.Pool != "kv" || r.Watermark != 512<<10 || r.Free >= r.Watermark || r.Free < 256<<10 {
		t.Errorf("report %+v", r)
	}
	for i := range held {
		held[i].Release()
	}
	h.Deposit([]byte("recovered"), stamped(1, 64<<10))
	held = round()
	if rs := reports(); len(rs) != 2 {
		t.Errorf("%d reports after the second crossing: %+v", len(rs), rs)
	}
	for i := range held {
		held[i].Release()
	}
}

// A callback that panics is the embedder's fault, not the end of the process.
func TestPressurePanics(t *testing.T) {
	cfg := small(4, func(cfg *Config) {
		cfg.Namespaces[0].Watermark = 100
		cfg.OnPressure = func(Pressure) { panic("embedder") }
	})
	e := open(t, cfg)
	h := handle(t, e)
	r := h.DepositBatch([]Item{{Key: keyOf(1), Value: stamped(1, 64)}}, DepositOptions{NoEvict: true})
	if !r[0].OK() {
		t.Fatal(r[0].Err())
	}
	for i := range 20 {
		if err := h.Set(keyOf(i), stamped(1, 64)); err != nil {
			t.Fatal(err)
		}
	}
	if stats(t, e).Counts.PolicyFaults == 0 {
		t.Error("the panic was not counted")
	}
	r[0].View.Release()
}

// no_evict is hard: a held block stays through any pressure, and may leave by
// hand only, and then its bytes stay.
func TestNoEvict(t *testing.T) {
	for _, v := range helping {
		t.Run(v.name, func(t *testing.T) {
			cfg := small(16, nil)
			v.config(&cfg.Namespaces[0])
			e := open(t, cfg)
			h := handle(t, e)
			r := h.DepositBatch([]Item{{Key: keyOf(0), Value: stamped(7, 1000)}}, DepositOptions{NoEvict: true})
			if !r[0].OK() || r[0].Existing {
				t.Fatalf("%+v", r[0])
			}
			for i := 1; i < 400; i++ {
				if err := h.Set(keyOf(i), stamped(uint64(i), 1000)); err != nil {
					t.Fatal(err)
				}
			}
			if !h.Has(keyOf(0)) {
				t.Fatal("a held block was evicted")
			}
			if e.Claims() != 1 {
				t.Errorf("Claims = %d, one hold is out", e.Claims())
			}
			if ok, err := h.Delete(keyOf(0)); !ok || err != nil {
				t.Fatalf("Delete of a held block: %v, %v", ok, err)
			}
			for i := 400; i < 600; i++ {
				h.Set(keyOf(i), stamped(uint64(i), 1000))
			}
			if seed, ok := seedOf(r[0].View.Bytes()); !ok || seed != 7 {
				t.Error("bytes of a held block changed after its Delete")
			}
			if err := r[0].View.Release(); err != nil {
				t.Error(err)
			}
			// Everything may leave again: as many new blocks as there are slots.
			for i := 600; i < 640; i++ {
				if err := h.Set(keyOf(i), stamped(1, 1000)); err != nil {
					t.Fatalf("after the release: %v", err)
				}
			}
		})
	}
}

// A hold on a group holds the memory of all its parts.
func TestPressureCountsWholeGroups(t *testing.T) {
	var got atomic.Int32
	e := open(t, chained(16, func(cfg *Config) {
		cfg.Capacity = 1 << 20
		cfg.Namespaces[0].Pools[0].SlotBytes = 64 << 10
		cfg.Namespaces[0].Watermark = 50
		cfg.OnPressure = func(Pressure) { got.Add(1) }
	}))
	h := handle(t, e)
	var rs []Result
	for p := range 3 { // 12 of 16 slots
		rs = append(rs, h.DepositGroup(group(p, "a", "b", "c", "d"), DepositOptions{NoEvict: true})...)
	}
	allOK(t, "groups", rs)
	h.Deposit([]byte("next"), stamped(1, 100)) // the watermark is looked at on the way in
	if got.Load() != 1 {
		t.Errorf("%d reports with 12 of 16 slots held and a watermark of half", got.Load())
	}
	releaseAll(t, rs)
	h.Deposit([]byte("recovered"), stamped(1, 100))
	rs = h.DepositGroup(group(9, "a", "b", "c", "d"), DepositOptions{NoEvict: true})
	h.Delete(group(9, "a")[0].Key) // held, and removed by hand
	releaseAll(t, rs)
	rs = nil
	for p := range 3 {
		rs = append(rs, h.DepositGroup(group(20+p, "a", "b", "c", "d"), DepositOptions{NoEvict: true})...)
	}
	h.Deposit([]byte("last"), stamped(1, 100))
	if got.Load() != 2 {
		t.Errorf("%d reports after the second crossing", got.Load())
	}
	releaseAll(t, rs)
}

// A deposit of what is resident makes no room first, by any road: in place,
// copied outside the token, in a chain, as a group, with a hold.
func TestDepositOfResidentEvictsNothing(t *testing.T) {
	deposit := func(size int) func(*testing.T, *Handle, int) bool {
		return func(t *testing.T, h *Handle, i int) bool {
			return h.Deposit(keyOf(i), stamped(uint64(i), size)) == nil
		}
	}
	all := func(rs []Result) bool {
		for i := range rs {
			if !rs[i].OK() {
				return false
			}
			rs[i].View.Release()
		}
		return true
	}
	sized := func(size int) Config {
		return Config{Capacity: 256 * int64(size), Shards: 1, Namespaces: one(Namespace{Pools: []Pool{{Name: "kv", SlotBytes: size}}, MaxBlocks: 256})}
	}
	for _, tc := range []struct {
		name string
		cfg  Config
		n    int // deposits that fill the cache
		put  func(t *testing.T, h *Handle, i int) bool
	}{
		{"in place", sized(4096), 256, deposit(4096)},
		{"large", sized(16384), 256, deposit(16384)},
		{"chains", chained(256, nil), 64, func(t *testing.T, h *Handle, i int) bool {
			return all(h.DepositBatch(chainOf(i, 0, 4), DepositOptions{}))
		}},
		{"chain ends", chained(256, nil), 64, func(t *testing.T, h *Handle, i int) bool {
			return all(h.DepositBatch(chainOf(i, 0, 3), DepositOptions{})) &&
				all(h.DepositBatch(chainOf(i, 3, 4), DepositOptions{Parent: chainKey(i, 2), Position: 3}))
		}},
		{"groups", chained(256, nil), 64, func(t *testing.T, h *Handle, i int) bool {
			return all(h.DepositGroup(chainOf(i, 0, 4), DepositOptions{}))
		}},
		{"holds", sized(4096), 256, func(t *testing.T, h *Handle, i int) bool {
			return all(h.DepositBatch([]Item{{Key: keyOf(i), Value: stamped(uint64(i), 4096)}}, DepositOptions{NoEvict: true}))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := open(t, tc.cfg)
			h := handle(t, e)
			for i := range tc.n {
				if !tc.put(t, h, i) {
					t.Fatalf("deposit %d refused", i)
				}
			}
			before := stats(t, e)
			if before.Counts.Evicted != 0 || before.Blocks != 256 {
				t.Fatalf("%d blocks, %d evicted: the cache should be exactly full", before.Blocks, before.Counts.Evicted)
			}
			for i := range tc.n {
				if !tc.put(t, h, i) {
					t.Fatalf("second deposit %d refused", i)
				}
			}
			after := stats(t, e)
			if after.Counts.Evicted != 0 || after.Blocks != 256 || after.Counts.Stored != before.Counts.Stored || after.Counts.Existing == 0 {
				t.Errorf("%d blocks, %d evicted, %d stored again, %d existing", after.Blocks, after.Counts.Evicted, after.Counts.Stored-before.Counts.Stored, after.Counts.Existing)
			}
			if n := e.Claims(); n != 0 {
				t.Errorf("%d claims left", n)
			}
		})
	}
}
