package shard

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvcr-go/kvcr/arena"
)

func sameHash([]byte) uint64 { return 0xdeadbeef_00000001 }

// Two keys, one hash: only the whole key decides.
func TestCollision(t *testing.T) {
	s := newTest(t, rig{hash: sameHash})
	l := newLane(t, s)
	k1, k2 := []byte("first"), []byte("other") // of one length as well
	v1, v2 := pattern(k1, 0, 100), pattern(k2, 0, 50)
	mustPut(t, l, k1, v1)
	if has(l, k2) {
		t.Fatal("a key that was never put is a hit")
	}
	if _, ok := l.Ask(s.hash(k2), k2, 0); ok {
		t.Fatal("a key that was never put is a hit for the token holder")
	}
	if why := del(l, k2); why != Miss {
		t.Fatalf("delete of a key that was never put: %v", why)
	}
	mustPut(t, l, k2, v2)
	check(t, l, k1, v1)
	check(t, l, k2, v2)
	if n, ok := s.TryCopy(s.hash(k2), k2, make([]byte, 100)); ok && n != len(v2) {
		t.Errorf("copy without a claim has %d bytes, want %d", n, len(v2))
	}
	if why := del(l, k1); why != OK {
		t.Fatalf("delete: %v", why)
	}
	if has(l, k1) {
		t.Error("a deleted key is a hit")
	}
	check(t, l, k2, v2)
	purge(t, s, l)
}

// Thousands of keys on one hash fill the overflow pool; then puts are refused,
// and nothing that was stored is lost.
func TestCollisionsExhaustTheIndex(t *testing.T) {
	records, every := 4000, 1
	if testing.Short() {
		records, every = 2000, 7 // a hit far down the chain claims hundreds of strangers
	}
	s := newTest(t, rig{pools: []Pool{{16, uint32(records)}}, hash: sameHash, policy: "lru"})
	l := newLane(t, s)
	stored := 0
	for i := range records {
		switch o := give(l, key(i), pattern(key(i), 0, 16)); o.Reason {
		case OK:
			if stored != i {
				t.Fatalf("key %d is stored after a refusal", i)
			}
			stored++
		case Capacity:
		default:
			t.Fatalf("key %d: %v", i, o.Reason)
		}
		if i > stored+20 {
			break
		}
	}
	plan := s.Plan()
	if want := (1 + plan.Overflow) * bucketEntries; stored != want {
		t.Errorf("%d keys stored, the chain has room for %d", stored, want)
	}
	if got := s.stats.IndexFull.Load(); got == 0 {
		t.Error("refusals for a full index are not counted")
	}
	for i := 0; i < stored; i += every {
		check(t, l, key(i), pattern(key(i), 0, 16))
	}
	if has(l, key(records)) {
		t.Error("a hit for a key that was never put")
	}
	for i := 0; i < stored; i += 2 {
		if why := del(l, key(i)); why != OK {
			t.Fatalf("delete of %d: %v", i, why)
		}
	}
	for i := 0; i < stored; i += every {
		if got, want := has(l, key(i)), i%2 == 1; got != want {
			t.Fatalf("key %d is a hit: %t, want %t", i, got, want)
		}
	}
	purge(t, s, l)
}

// A claim keeps its bytes over 100 refills of the shard.
func TestClaimsKeepBytes(t *testing.T) {
	const slots = 32
	for _, policy := range []string{"density", "lru", "fifo", "s3fifo"} {
		t.Run(policy, func(t *testing.T) {
			s := newTest(t, rig{pools: []Pool{{128, slots}}, policy: policy})
			l := newLane(t, s)
			held := map[int]Claim{}
			for i := range slots {
				mustPut(t, l, key(i), pattern(key(i), 0, 128))
				if i%3 == 0 {
					c, ok := get(l, key(i))
					if !ok {
						t.Fatalf("%s is a miss", key(i))
					}
					held[i] = c
				}
			}
			del(l, key(0))                                 // deleted,
			mustPut(t, l, key(3), pattern(key(3), 1, 128)) // replaced,
			for i := range 100 * slots {                   // or still resident
				k := key(100 + i)
				mustPut(t, l, k, pattern(k, 0, 128))
				if i%slots == 0 {
					for j, c := range held {
						if !bytes.Equal(s.Bytes(c), pattern(key(j), 0, 128)) {
							t.Fatalf("refill %d: the bytes of claimed %s changed", i/slots, key(j))
						}
					}
				}
			}
			for j := range held {
				if j > 3 && !has(l, key(j)) {
					t.Errorf("claimed %s was evicted", key(j))
				}
			}
			// Everything claimed: a put is refused, nothing is lost.
			var all []Claim
			s.Do(func() {
				s.Each(func(k []byte, _ int64) {
					c, ok, _ := s.Peek(s.hash(k), k)
					if !ok {
						t.Errorf("%s is a miss", k)
					}
					all = append(all, c)
				})
			})
			if why := put(l, key(9999), pattern(key(9999), 0, 128)); why != Capacity {
				t.Errorf("put with all blocks claimed: %v, want %v", why, Capacity)
			}
			for _, c := range all {
				s.Release(c)
			}
			for _, c := range held {
				s.Release(c)
			}
			evictAll(t, s)
			purge(t, s, l)
		})
	}
}

// 10,000 lookups whose claims are never used leave nothing behind: everything
// is evictable afterwards.
func TestLookupsLeaveNothing(t *testing.T) {
	s := newTest(t, rig{pools: []Pool{{64, 50}}})
	l := newLane(t, s)
	for i := range 50 {
		mustPut(t, l, key(i), pattern(key(i), 0, 64))
	}
	for i := range 10000 {
		k := key(i % 100)
		if i%3 == 0 {
			has(l, k)
		} else if c, ok := get(l, k); ok != (i%100 < 50) {
			t.Fatalf("%s is a hit: %t", k, ok)
		} else if ok {
			s.Release(c)
		}
	}
	leaked(t, s)
	evictAll(t, s)
	purge(t, s, l)
}

// Readers hold claims for a while beside a writer that refills the shard: what
// they read never changes, on any of their goroutines.
func TestReadersBesideRefills(t *testing.T) {
	const slots, keys = 48, 120
	s := newTest(t, rig{pools: []Pool{{256, slots}}})
	w := newLane(t, s)
	refills := 600
	if testing.Short() {
		refills = 150
	}
	var done atomic.Bool
	var wg sync.WaitGroup
	for r := range 3 {
		l := newLane(t, s)
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(uint64(r), 7))
			for !done.Load() {
				k := key(rng.IntN(keys))
				c, ok := get(l, k)
				if !ok {
					continue
				}
				first := bytes.Clone(s.Bytes(c))
				if !isPattern(first, k) {
					t.Errorf("%s reads %x", k, first)
				}
				for range rng.IntN(4) {
					runtime.Gosched()
				}
				if !bytes.Equal(first, s.Bytes(c)) {
					t.Errorf("the bytes of %s changed under a claim", k)
				}
				s.Release(c)
			}
		}()
	}
	rng := rand.New(rand.NewPCG(1, 7))
	for i := range refills * slots {
		k := key(rng.IntN(keys))
		if why := put(w, k, pattern(k, i%16, 200)); why != OK {
			t.Errorf("put: %v", why)
		}
		if t.Failed() {
			break
		}
	}
	done.Store(true)
	wg.Wait()
	purge(t, s, w)
}

// Copies without a claim are whole, beside a writer that overwrites in place,
// replaces, deletes and evicts.
func TestTryCopyIsWhole(t *testing.T) {
	for _, tt := range []struct {
		name        string
		slots, keys int
	}{{"overwritten in place", 16, 2}, {"evicted and reused", 4, 12}} {
		t.Run(tt.name, func(t *testing.T) {
			s := newTest(t, rig{pools: []Pool{{4096, uint32(tt.slots)}}, policy: "lru"})
			w := newLane(t, s)
			var done atomic.Bool
			var copies atomic.Int64
			var wg sync.WaitGroup
			for r := range 2 {
				wg.Add(1)
				go func() {
					defer wg.Done()
					dst := make([]byte, 4096)
					rng := rand.New(rand.NewPCG(uint64(r), 8))
					for !done.Load() {
						k := key(rng.IntN(tt.keys))
						n, ok := s.TryCopy(s.hash(k), k, dst)
						if !ok {
							continue
						}
						copies.Add(1)
						if versionOf(dst[:n], k, 16) < 0 {
							t.Errorf("%s copies %d bytes, foreign or torn", k, n)
							return
						}
					}
				}()
			}
			rounds := 100000
			if testing.Short() {
				rounds = 8000
			}
			rng := rand.New(rand.NewPCG(2, 8))
			v := make([]byte, 4096)
			for i := range rounds {
				k := key(rng.IntN(tt.keys))
				if i%10 == 0 {
					del(w, k)
					continue
				}
				n := len(v)
				if i%5 == 0 {
					n -= 8 * (i % 16)
				}
				stamp(v[:n], k, i%16)
				mustPut(t, w, k, v[:n])
				if t.Failed() {
					break
				}
			}
			done.Store(true)
			wg.Wait()
			t.Logf("%d copies", copies.Load())
			purge(t, s, w)
		})
	}
}

// TryCopy answers only what a claim would show.
func TestTryCopy(t *testing.T) {
	s := newTest(t, rig{classes: 1 << 20, side: 64 << 10})
	l := newLane(t, s)
	dst := make([]byte, 8192)
	k := key(1)
	mustPut(t, l, k, pattern(k, 0, 300))
	works := false
	if n, ok := s.TryCopy(s.hash(k), k, dst); ok {
		works = true
		if !bytes.Equal(dst[:n], pattern(k, 0, 300)) {
			t.Errorf("copied %x", dst[:n])
		}
	}
	for name, k := range map[string][]byte{"long key": longKey(2, 41), "large value": key(3)} {
		n := 300
		if name == "large value" {
			n = 4<<10 + 1
		}
		mustPut(t, l, k, pattern(k, 0, n))
		if _, ok := s.TryCopy(s.hash(k), k, dst); ok {
			t.Errorf("%s: copied without a claim", name)
		}
		check(t, l, k, pattern(k, 0, n))
	}
	if _, ok := s.TryCopy(s.hash(k), k, dst[:299]); ok {
		t.Error("copied into too small a buffer")
	}
	c, _ := get(l, k)
	if _, ok := s.TryCopy(s.hash(k), k, dst); ok != works {
		t.Error("a reader's claim disturbs a copy")
	}
	s.Release(c)
	del(l, k)
	if _, ok := s.TryCopy(s.hash(k), k, dst); ok {
		t.Error("a deleted key is copied")
	}
	leaked(t, s)
}

// Values of one length are replaced in their own memory when nobody reads
// them, else beside; either way the old claim keeps the old bytes, the
// checksum is the new value's, and the generation changes.
func TestReplace(t *testing.T) {
	s := newTest(t, rig{classes: 1 << 20})
	l := newLane(t, s)
	k := key(1)
	set := func(v []byte, sum bool) {
		o := l.Put(&Put{Hash: s.hash(k), Key: k, Value: v, Shape: Shape{Size: len(v)}, Set: true, Sum: sum}, 0)
		if o.Reason != OK {
			t.Fatal(o.Reason)
		}
	}
	gen := func() uint32 {
		c, ok := get(l, k)
		if !ok {
			t.Fatal("a miss")
		}
		defer s.Release(c)
		return s.Generation(c)
	}
	set(pattern(k, 0, 100), true)
	for i, tt := range []struct {
		name  string
		size  int
		sum   bool
		claim bool
	}{
		{"in place, without a sum", 100, false, false},
		{"in place, with a sum", 100, true, false},
		{"in place, shorter", 99, true, false},
		{"under a claim", 99, true, true},
		{"of another class", 3000, true, false},
		{"empty", 0, true, false},
		{"too large to be written under the token", inPlace + 1, true, false},
		{"small again", 10, false, false},
	} {
		old, ok := get(l, k)
		if !ok {
			t.Fatalf("%s: a miss", tt.name)
		}
		was := bytes.Clone(s.Bytes(old))
		if !tt.claim {
			s.Release(old)
		}
		before := gen()
		id := old.id
		set(pattern(k, i, tt.size), tt.sum)
		check(t, l, k, pattern(k, i, tt.size))
		if c, _ := get(l, k); c.id == id && s.Generation(c) == before {
			t.Errorf("%s: new bytes under the old generation", tt.name)
			s.Release(c)
		} else {
			if _, has := s.Sum(c); has != tt.sum {
				t.Errorf("%s: carries a sum: %t", tt.name, has)
			}
			s.Release(c)
		}
		if tt.claim {
			if !bytes.Equal(s.Bytes(old), was) {
				t.Errorf("%s: the old bytes changed", tt.name)
			}
			s.Release(old)
		}
	}
	if got := s.stats.Blocks.Load(); got != 1 {
		t.Errorf("%d blocks, want 1", got)
	}
	purge(t, s, l)
}

// A deposit never changes a resident block; another length is another layout.
func TestDepositKeepsTheFirst(t *testing.T) {
	s := newTest(t, rig{classes: 1 << 20})
	l := newLane(t, s)
	k := key(1)
	if o := give(l, k, pattern(k, 0, 100)); o.Reason != OK || o.Old {
		t.Fatalf("%+v", o)
	}
	if o := give(l, k, pattern(k, 1, 100)); o.Reason != OK || !o.Old {
		t.Errorf("second deposit: %+v", o)
	}
	if o := give(l, k, pattern(k, 2, 101)); o.Reason != Layout {
		t.Errorf("deposit of another length: %+v", o)
	}
	check(t, l, k, pattern(k, 0, 100))
	if st := s.Stats(); st.Stored.Load() != 1 || st.Existing.Load() != 1 {
		t.Errorf("stored %d, existing %d", st.Stored.Load(), st.Existing.Load())
	}
	purge(t, s, l)
}

// A second release is refused where the claim shows it, and in checking builds
// also through a copy.
func TestReleaseTwice(t *testing.T) {
	s := newTest(t, rig{})
	l := newLane(t, s)
	mustPut(t, l, key(1), pattern(key(1), 0, 8))
	if err := s.Release(Claim{}); !errors.Is(err, ErrReleased) {
		t.Errorf("release of the zero claim: %v", err)
	}
	c, ok := get(l, key(1))
	if !ok {
		t.Fatal("a miss")
	}
	other, _ := get(l, key(1))
	if err := s.Release(c); err != nil {
		t.Error(err)
	}
	if arena.Checking {
		if err := s.Release(c); !errors.Is(err, ErrReleased) {
			t.Errorf("second release through a copy: %v", err)
		}
	}
	if n := s.Claims(); n != 1 {
		t.Errorf("%d claims, want the other reader's", n)
	}
	s.Release(other)
	leaked(t, s)
}

// Peek leaves no trace of an access, Find does.
func TestTouch(t *testing.T) {
	s := newTest(t, rig{})
	l := newLane(t, s)
	k := key(1)
	mustPut(t, l, k, pattern(k, 0, 8))
	c, _ := get(l, k)
	s.Release(c)
	h := &s.hot[c.id]
	s.Do(func() { s.tick(5) })
	was := h.last.Load()
	if c, ok, _ := s.Peek(s.hash(k), k); ok {
		s.Release(c)
	}
	if h.last.Load() != was {
		t.Error("Peek counts as an access")
	}
	if c, ok, _ := s.Find(s.hash(k), k); ok {
		s.Release(c)
	}
	if h.last.Load() != s.now.Load() || s.now.Load() == was {
		t.Errorf("Find stores tick %d, now is %d", h.last.Load(), s.now.Load())
	}
}

// When probes keep failing the token holder answers, and its answer carries
// the same claim.
func TestAsk(t *testing.T) {
	for _, helped := range []bool{true, false} {
		t.Run(fmt.Sprintf("helped=%t", helped), func(t *testing.T) {
			s := newTest(t, rig{})
			s.helped = helped
			l := newLane(t, s)
			k := key(1)
			mustPut(t, l, k, pattern(k, 0, 100))
			c, ok := l.Ask(s.hash(k), k, 3)
			if !ok {
				t.Fatal("a miss")
			}
			if !bytes.Equal(s.Bytes(c), pattern(k, 0, 100)) || s.Claims() != 1 {
				t.Errorf("%x under %d claims", s.Bytes(c), s.Claims())
			}
			s.Release(c)
			if _, ok := l.Ask(s.hash(key(2)), key(2), 0); ok {
				t.Error("a hit for an absent key")
			}
			l.Recall()
			leaked(t, s)
		})
	}
}
