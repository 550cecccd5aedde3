package kvcr

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A View is released once. What a copy of it can break, checking builds find.
func TestReleaseTwice(t *testing.T) {
	e := open(t, Config{Capacity: 1 << 20, Shards: 1})
	h := handle(t, e)
	h.Set([]byte("k"), stamped(1, 100))
	v, ok := h.Get([]byte("k"))
	if !ok {
		t.Fatal("miss")
	}
	other, _ := h.Get([]byte("k"))
	if n := e.Claims(); n != 2 {
		t.Fatalf("Claims = %d, two are out", n)
	}
	copied := v
	if err := v.Release(); err != nil {
		t.Fatal(err)
	}
	isErr(t, "second Release", v.Release(), ErrReleased)
	isErr(t, "Release of the zero View", new(View).Release(), ErrReleased)
	if v.Bytes() != nil || v.Len() != 0 || v.Pieces() != 0 || v.Generation() != 0 || !v.Verify() {
		t.Error("a released View is not the zero View")
	}
	if checking() {
		isErr(t, "Release of a copy", copied.Release(), ErrReleased)
		isErr(t, "and again", copied.Release(), ErrReleased)
	}
	if n := e.Claims(); n != 1 {
		t.Errorf("Claims = %d, one is out", n)
	}
	// The other reader's claim is unharmed.
	h.Delete([]byte("k"))
	for i := range 2000 {
		h.Set(keyOf(i), stamped(uint64(i)+2, 2000))
	}
	if seed, ok := seedOf(other.Bytes()); !ok || seed != 1 {
		t.Error("bytes changed under a View")
	}
	if err := other.Release(); err != nil {
		t.Error(err)
	}
}

// A no_evict hold, released twice through a copy, must not take away the hold
// of another.
func TestReleaseHoldTwice(t *testing.T) {
	if !checking() {
		t.Skip("only checking builds keep books on copies")
	}
	e := open(t, small(4, nil))
	h := handle(t, e)
	item := []Item{{Key: []byte("k"), Value: stamped(1, 100)}}
	a := h.DepositBatch(item, DepositOptions{NoEvict: true})[0].View
	b := h.DepositBatch(item, DepositOptions{NoEvict: true})[0].View
	copied := a
	if err := a.Release(); err != nil {
		t.Fatal(err)
	}
	isErr(t, "Release of a copy", copied.Release(), ErrReleased)
	for i := range 50 {
		h.Set(keyOf(i), stamped(2, 100))
	}
	if !h.Has([]byte("k")) || e.Claims() != 1 {
		t.Errorf("the second hold is gone; Claims = %d", e.Claims())
	}
	if err := b.Release(); err != nil {
		t.Error(err)
	}
}

// Views stay as they are while all memory around them is written 100 times
// over.
func TestViewsSurviveRefills(t *testing.T) {
	for _, v := range helping {
		for _, c := range []struct {
			name string
			ns   Namespace
			size func(*rand.Rand) int
		}{
			{"classes", Namespace{MaxValue: 64 << 10}, func(r *rand.Rand) int {
				if r.IntN(10) == 0 {
					return 8 + r.IntN(60<<10)
				}
				return 8 + r.IntN(3000)
			}},
			{"pool", Namespace{Pools: []Pool{{SlotBytes: 4096}}}, func(r *rand.Rand) int { return 8 + r.IntN(4089) }},
			{"chained", Namespace{Kind: Chained, Pools: []Pool{{SlotBytes: 8192}}}, func(r *rand.Rand) int { return 8192 }},
		} {
			t.Run(c.name+"/"+v.name, func(t *testing.T) {
				ns := c.ns
				v.config(&ns)
				viewsSurviveRefills(t, ns, c.size)
			})
		}
	}
}

func viewsSurviveRefills(t *testing.T, ns Namespace, size func(*rand.Rand) int) {
	const capacity = 2 << 20
	e := open(t, Config{Capacity: capacity, Shards: 2, Namespaces: one(ns)})
	refills := pick(2, 100)
	stop := make(chan struct{})
	var readers, writers sync.WaitGroup
	var hits atomic.Int64
	for g := range 3 {
		h := handle(t, e)
		rng := rand.New(rand.NewPCG(uint64(g), 3))
		readers.Add(1)
		go func() {
			defer readers.Done()
			type held struct {
				v    View
				seed uint64
				gen  uint32
			}
			var hs []held
			check := func(x *held) {
				if seed, ok := seedOf(x.v.Bytes()); !ok || seed != x.seed || x.v.Generation() != x.gen || !x.v.Verify() {
					t.Errorf("bytes changed under a View: seed %#x, was %#x, whole %v, generation %d, was %d", seed, x.seed, ok, x.v.Generation(), x.gen)
				}
			}
			defer func() {
				for i := range hs {
					check(&hs[i])
					hs[i].v.Release()
				}
			}()
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if v, ok := h.Get(keyOf(rng.IntN(2000))); ok {
					seed, whole := seedOf(v.Bytes())
					if !whole {
						t.Error("Get returned broken bytes")
					}
					hs = append(hs, held{v, seed, v.Generation()})
					hits.Add(1)
				}
				if len(hs) > 20 {
					at := rng.IntN(len(hs))
					check(&hs[at])
					hs[at].v.Release()
					hs[at] = hs[len(hs)-1]
					hs = hs[:len(hs)-1]
				}
				if n%8 == 0 {
					time.Sleep(20 * time.Microsecond)
				}
			}
		}()
	}
	for g := range 2 {
		h := handle(t, e)
		rng := rand.New(rand.NewPCG(uint64(g), 4))
		writers.Add(1)
		go func() {
			defer writers.Done()
			for written, n := 0, 0; written < refills*capacity/2 || hits.Load() < 50; n++ {
				b := stamped(rng.Uint64(), size(rng))
				written += len(b)
				k := keyOf(rng.IntN(2000))
				if n%50 == 0 {
					h.Delete(k)
				}
				// A large value needs room in one piece, and claimed blocks may
				// lie in every place where it would fit.
				if err := h.Set(k, b); err != nil && !(len(b) > 4096 && errors.Is(err, ErrFull)) {
					t.Errorf("Set: %v", err)
					return
				}
			}
		}()
	}
	within(60*time.Second, "refilling", writers.Wait)
	close(stop)
	readers.Wait()
	st := stats(t, e)
	if st.Counts.Evicted == 0 || st.Counts.Hits == 0 {
		t.Errorf("nothing was shown: %+v", st.Counts)
	}
	if n := e.Claims(); n != 0 {
		t.Errorf("%d claims are left", n)
	}
}

// Looking at keys protects nothing: after 10,000 lookups that were not used,
// all memory can still be had.
func TestLookupsLeaveNoClaims(t *testing.T) {
	const slots = 64
	e := open(t, small(slots, nil))
	h := handle(t, e)
	for i := range slots {
		h.Deposit(keyOf(i), stamped(1, 4096))
	}
	keys := make([][]byte, slots)
	for i := range keys {
		keys[i] = keyOf(i)
	}
	buf := make([]byte, 4096)
	for i := range 10000 {
		switch i % 4 {
		case 0:
			h.Query(keys[i%slots : i%slots+1])
		case 1:
			h.Has(keys[i%slots])
		case 2:
			h.CopyTo(buf, keys[i%slots])
		case 3:
			h.AppendTo(buf[:0], keys[i%slots])
		}
	}
	if n := e.Claims(); n != 0 {
		t.Fatalf("%d claims are left", n)
	}
	for i := range slots {
		if err := h.Deposit(keyOf(1000+i), stamped(2, 4096)); err != nil {
			t.Fatalf("deposit %d: %v", i, err)
		}
	}
	for i := range slots {
		if !h.Has(keyOf(1000 + i)) {
			t.Errorf("block %d is not there: an old one stayed in its place", i)
		}
	}
}

// What a copying read returns is whole, beside writers that replace the value
// in place or in another place, change its length, or take it away.
func TestCopiesAreWhole(t *testing.T) {
	for _, v := range helping {
		t.Run(v.name, func(t *testing.T) {
			ns := Namespace{MaxValue: 64 << 10}
			v.config(&ns)
			e := open(t, Config{Capacity: 4 << 20, Shards: 1, Namespaces: one(ns)})
			const keys = 2
			names := [keys][]byte{keyOf(0), keyOf(1)}
			rounds := pick(3000, 60000)
			if v.name == "rings" {
				rounds = pick(500, 5000) // each a round trip to the owner
			}
			stop := make(chan struct{})
			var readers sync.WaitGroup
			for range 2 {
				h := handle(t, e)
				readers.Add(1)
				go func() {
					defer readers.Done()
					buf := make([]byte, 16<<10)
					last := [keys]uint64{}
					for i := 0; ; i++ {
						select {
						case <-stop:
							return
						default:
						}
						if i%64 == 0 {
							runtime.Gosched() // or owner and writers wait for a processor
						}
						n, ok := h.CopyTo(buf, names[i%keys])
						if !ok {
							continue
						}
						seed, whole := seedOf(buf[:n])
						if !whole {
							t.Errorf("a copy of %d bytes is broken", n)
							return
						}
						// One writer for each key counts up.
						if seed < last[i%keys] {
							t.Errorf("value %d after value %d", seed, last[i%keys])
						}
						last[i%keys] = seed
					}
				}()
			}
			var writers sync.WaitGroup
			for k := range keys {
				h := handle(t, e)
				rng := rand.New(rand.NewPCG(uint64(k), 6))
				writers.Add(1)
				go func() {
					defer writers.Done()
					sizes := []int{4096, 4096, 4090, 4000, 1000, 9000}
					for i := range rounds {
						n := sizes[0]
						if i%8 == 0 {
							n = sizes[rng.IntN(len(sizes))]
						}
						if err := h.Set(keyOf(k), stamped(uint64(i+1), n)); err != nil {
							t.Errorf("Set: %v", err)
						}
						if i%100 == 99 {
							h.Delete(keyOf(k))
						}
					}
				}()
			}
			within(60*time.Second, "the writers", writers.Wait)
			close(stop)
			readers.Wait()
		})
	}
}

// Each life of a block's memory has a generation of its own, also when a value
// is replaced in place: a reader that looks twice can tell.
func TestGenerationTellsLives(t *testing.T) {
	for _, v := range helping {
		t.Run(v.name, func(t *testing.T) {
			e := open(t, small(1, func(cfg *Config) { v.config(&cfg.Namespaces[0]) }))
			h := handle(t, e)
			seen := map[uint32]int{}
			for i := range 20 { // one slot: all lives are of the same memory
				if i%5 == 4 {
					h.Delete([]byte("k"))
				}
				if err := h.Set([]byte("k"), stamped(uint64(i), 100)); err != nil {
					t.Fatal(err)
				}
				a, _ := h.Get([]byte("k"))
				b, _ := h.Get([]byte("k"))
				if a.Generation() != b.Generation() {
					t.Errorf("two Views of one life have generations %d and %d", a.Generation(), b.Generation())
				}
				if j, ok := seen[a.Generation()]; ok {
					t.Errorf("value %d has the generation %d of value %d", i, a.Generation(), j)
				}
				seen[a.Generation()] = i
				a.Release()
				b.Release()
			}
		})
	}
}

// A random mix, then silence: nothing is claimed, nothing reserved, and with
// all keys deleted every byte is free.
func TestSoakThenIdle(t *testing.T) {
	for _, v := range helping {
		t.Run(v.name, func(t *testing.T) {
			ns := Namespace{MaxValue: 100 << 10}
			v.config(&ns)
			e := open(t, Config{Capacity: 4 << 20, Shards: 4, Namespaces: one(ns)})
			empty := stats(t, e).Namespaces[0].FreeBytes
			var wg sync.WaitGroup
			for g := range 4 {
				h := handle(t, e)
				rng := rand.New(rand.NewPCG(uint64(g), 5))
				wg.Add(1)
				go func() {
					defer wg.Done()
					var views [8]View
					for range pick(3000, 20000) {
						k := keyOf(rng.IntN(300))
						switch at := rng.IntN(8); rng.IntN(8) {
						case 0, 1:
							if err := h.Set(k, stamped(rng.Uint64(), 8+rng.IntN(5000))); err != nil {
								t.Errorf("Set: %v", err)
							}
						case 2:
							h.Delete(k)
						case 3:
							if r, err := h.Reserve(k, 100); err != nil {
								t.Errorf("Reserve: %v", err)
							} else if rng.IntN(2) == 0 {
								stamp(r.Bytes(), 1)
								r.Commit()
							} else {
								r.Abort()
							}
						case 4:
							r := h.DepositBatch([]Item{{Key: k, Value: stamped(1, 100)}}, DepositOptions{NoEvict: true})
							r[0].View.Release()
						default:
							views[at].Release()
							views[at], _ = h.Get(k)
						}
					}
					for i := range views {
						views[i].Release()
					}
					h.Close()
				}()
			}
			within(60*time.Second, "the soak", wg.Wait)
			if n, m := e.Claims(), reserved(e); n != 0 || m != 0 {
				t.Errorf("%d claims and %d reservations are left", n, m)
			}
			h := handle(t, e)
			for i := range 300 {
				h.Delete(keyOf(i))
			}
			h.Set([]byte("x"), nil) // makes the shards collect what readers gave back
			h.Delete([]byte("x"))
			st := stats(t, e)
			if st.Blocks != 0 || st.PayloadBytes != 0 {
				t.Errorf("%d blocks of %d bytes are left", st.Blocks, st.PayloadBytes)
			}
			if c := st.Counts; c.Stored != c.Evicted+c.Deleted {
				t.Errorf("%d stored, %d evicted, %d deleted", c.Stored, c.Evicted, c.Deleted)
			}
			// Size classes may keep an empty slab each; what readers returned
			// last is collected at the next need. Nearly all must be free, and
			// all of it must be usable.
			if free := st.Namespaces[0].FreeBytes; free < empty-empty/8 {
				t.Errorf("%d of %d bytes are free", free, empty)
			}
			for i := range 4 * 4 {
				if err := h.Set(keyOf(i), stamped(1, 100<<10)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// Find by the whole key, never by its hash.
func TestHashCollisions(t *testing.T) {
	for _, v := range helping {
		t.Run(v.name, func(t *testing.T) {
			ns := Namespace{MaxValue: 64 << 10, LongKeyBytes: 1 << 20}
			v.config(&ns)
			e := open(t, Config{Capacity: 4 << 20, Shards: 1, Namespaces: one(ns), Hash: func([]byte) uint64 { return 0xfeedface00000000 }})
			h := handle(t, e)
			long := func(last byte) []byte {
				k := make([]byte, 1024)
				k[1023] = last
				return k
			}
			pairs := [][2][]byte{
				{[]byte("k1"), []byte("k2")},
				{[]byte("a"), []byte("aa")},
				{long(1), long(2)},
				{long(0)[:41], long(0)[:40]}, // around what a record holds inline
			}
			for _, p := range pairs {
				if err := h.Set(p[0], stamped(1, 64)); err != nil {
					t.Fatal(err)
				}
				if _, ok := h.Get(p[1]); ok {
					t.Fatalf("%d bytes stored, found under another key of %d", len(p[0]), len(p[1]))
				}
				if ok, _ := h.Delete(p[1]); ok {
					t.Fatal("Delete of one key removed another")
				}
				if err := h.Set(p[1], stamped(2, 64)); err != nil {
					t.Fatal(err)
				}
				for i := range p {
					v, ok := h.Get(p[i])
					if !ok {
						t.Fatal("miss")
					}
					if seed, _ := seedOf(v.Bytes()); seed != uint64(i+1) {
						t.Errorf("key %d has the value of %d", i+1, seed)
					}
					v.Release()
				}
				if ok, _ := h.Delete(p[0]); !ok || h.Has(p[0]) || !h.Has(p[1]) {
					t.Error("Delete took the wrong one")
				}
			}
		})
	}
}

// A second claim protects by itself, also on a block that is on its way out.
func TestViewAgain(t *testing.T) {
	e := open(t, small(4, nil))
	h := handle(t, e)
	if err := h.Set(keyOf(1), stamped(1, 4096)); err != nil {
		t.Fatal(err)
	}
	first, _ := h.Get(keyOf(1))
	if _, err := h.Delete(keyOf(1)); err != nil {
		t.Fatal(err)
	}
	second := first.Again()
	first.Release()
	for i := range 20 {
		if err := h.Set(keyOf(2+i), stamped(9, 4096)); err != nil {
			t.Fatal(err)
		}
	}
	if seed, ok := seedOf(second.Bytes()); !ok || seed != 1 {
		t.Error("the bytes under the second claim changed")
	}
	if err := second.Release(); err != nil {
		t.Error(err)
	}
	if none := first.Again(); none.Release() == nil {
		t.Error("a released View gave a claim")
	}
}

// Memory that the last reader has let go of is free at once, as Stats has it.
func TestFreeBytesAfterLastRelease(t *testing.T) {
	e := open(t, Config{Capacity: 4 << 20, Shards: 1, Namespaces: one(Namespace{Pools: []Pool{{Name: "kv", SlotBytes: 64 << 10}}})})
	h := handle(t, e)
	if err := h.Deposit(keyOf(1), stamped(1, 64<<10)); err != nil {
		t.Fatal(err)
	}
	before := stats(t, e).Namespaces[0].FreeBytes
	v, ok := h.Get(keyOf(1))
	if !ok {
		t.Fatal("not there")
	}
	if _, err := h.Delete(keyOf(1)); err != nil {
		t.Fatal(err)
	}
	if free := stats(t, e).Namespaces[0].FreeBytes; free != before {
		t.Errorf("%d bytes are free while a reader has the block, %d were", free, before)
	}
	v.Release()
	if free := stats(t, e).Namespaces[0].FreeBytes; free != before+64<<10 {
		t.Errorf("%d bytes are free after the last release, %d were before", free, before)
	}
}
