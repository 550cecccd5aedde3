package shard

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// threePools is a shard for blocks of several pieces: KV pages, an indexer's
// state, and a few large slots.
var threePools = rig{pools: []Pool{{256, 20}, {64, 40}, {1024, 4}}, records: 60, side: 1 << 20}

func layout(t testing.TB, s *Shard, pools ...uint8) uint16 {
	t.Helper()
	n, ok := s.Layout(pools)
	if !ok {
		t.Fatalf("layout %v refused", pools)
	}
	return n
}

// pieced is a put of one block of several pieces.
func pieced(t testing.TB, s *Shard, k []byte, version int, pools ...uint8) Put {
	p := Put{Hash: s.hash(k), Key: k, Shape: Shape{Layout: layout(t, s, pools...)}, Sum: true}
	for i, pool := range pools {
		p.Pieces = append(p.Pieces, pattern(k, version*100+i, s.store.slotBytes(int(pool))))
	}
	p.Shape.Size = len(p.Pieces[0])
	return p
}

func checkPieces(t testing.TB, l *Lane, p *Put, pools ...uint8) {
	t.Helper()
	s := l.s
	c, ok := get(l, p.Key)
	if !ok {
		t.Fatalf("%.20q is a miss", p.Key)
	}
	defer s.Release(c)
	if s.Pieces(c) != len(pools) {
		t.Fatalf("%.20q has %d pieces, want %d", p.Key, s.Pieces(c), len(pools))
	}
	n := 0
	for i, pool := range pools {
		b, at := s.Piece(c, i)
		n += len(b)
		if at != int(pool) || !bytes.Equal(b, p.Pieces[i]) {
			t.Fatalf("piece %d of %.20q: pool %d (want %d), bytes equal: %t", i, p.Key, at, pool, bytes.Equal(b, p.Pieces[i]))
		}
	}
	if s.Len(c) != n {
		t.Errorf("%.20q: length %d, want %d", p.Key, s.Len(c), n)
	}
	if !s.Verify(c) {
		t.Errorf("%.20q does not match its checksum", p.Key)
	}
}

func TestPieces(t *testing.T) {
	s := newTest(t, threePools)
	l := newLane(t, s)
	layouts := [][]uint8{{0}, {1}, {2}, {0, 1}, {1, 0}, {0, 1, 1, 2}, {1, 1, 1, 1, 1}}
	puts := make([]Put, len(layouts))
	for i, pools := range layouts {
		k := key(i)
		if i%2 == 1 {
			k = longKey(i, 100)
		}
		puts[i] = pieced(t, s, k, 1, pools...)
		if o := l.Put(&puts[i], 0); o.Reason != OK {
			t.Fatalf("%v: %v", pools, o.Reason)
		}
	}
	for i, pools := range layouts {
		checkPieces(t, l, &puts[i], pools...)
	}
	audit(t, s)
	// A deposit of the key with the same pieces is one that is here already,
	// with others a mistake.
	again := pieced(t, s, puts[5].Key, 2, layouts[5]...)
	if o := l.Put(&again, 0); o.Reason != OK || !o.Old {
		t.Errorf("same layout: %+v", o)
	}
	for _, pools := range [][]uint8{{0, 1, 1}, {0, 1, 1, 1}, {1, 1, 1, 2}, {0, 1, 2, 1}} {
		other := pieced(t, s, puts[5].Key, 2, pools...)
		if o := l.Put(&other, 0); o.Reason != Layout {
			t.Errorf("layout %v over %v: %v", pools, layouts[5], o.Reason)
		}
	}
	checkPieces(t, l, &puts[5], layouts[5]...)
	// A set replaces the pieces too.
	set := pieced(t, s, puts[5].Key, 3, 1, 0)
	set.Set = true
	if o := l.Put(&set, 0); o.Reason != OK {
		t.Errorf("set: %v", o.Reason)
	}
	checkPieces(t, l, &set, 1, 0)
	purge(t, s, l)
}

// A damaged piece is found by its checksum.
func TestVerifyFindsDamage(t *testing.T) {
	s := newTest(t, threePools)
	l := newLane(t, s)
	p := pieced(t, s, key(1), 1, 0, 1, 2)
	l.Put(&p, 0)
	c, ok := get(l, key(1))
	if !ok || !s.Verify(c) {
		t.Fatalf("hit %t, or a sound block is refused", ok)
	}
	for i := range 3 {
		b, _ := s.Piece(c, i)
		b[len(b)-1] ^= 1
		if s.Verify(c) {
			t.Errorf("damage in piece %d is not seen", i)
		}
		b[len(b)-1] ^= 1
	}
	s.Release(c)
}

// A block gets all of its memory or none: whatever piece lacks, nothing is
// lost, and only blocks that help are evicted for it.
func TestReserveAllOrNothing(t *testing.T) {
	s := newTest(t, threePools)
	l := newLane(t, s)
	free := func() (f []int64) {
		s.Do(func() { f = s.Free() })
		return f
	}
	// Hold all four large slots.
	var held []Claim
	for i := range 4 {
		p := pieced(t, s, key(i), 1, 2)
		p.NoEvict = true
		o := l.Put(&p, 0)
		if o.Reason != OK {
			t.Fatal(o.Reason)
		}
		held = append(held, o.Claim)
	}
	for i := range 3 {
		p := pieced(t, s, key(10+i), 1, 0, 1)
		if o := l.Put(&p, 0); o.Reason != OK {
			t.Fatal(o.Reason)
		}
	}
	before := free()
	for _, pools := range [][]uint8{{2}, {0, 2}, {0, 1, 0, 1, 2, 0}, {2, 0}} {
		p := pieced(t, s, longKey(50, 200), 1, pools...)
		if o := l.Put(&p, 0); o.Reason != Capacity {
			t.Errorf("%v: %v, want %v", pools, o.Reason, Capacity)
		}
	}
	if after := free(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("free bytes %v after refused puts, %v before", after, before)
	}
	for i := range 3 {
		p := pieced(t, s, key(10+i), 1, 0, 1)
		checkPieces(t, l, &p, 0, 1) // not evicted: they have nothing the large pool lacks
	}
	for _, c := range held {
		if err := s.Unhold(c); err != nil {
			t.Error(err)
		}
	}
	p := pieced(t, s, longKey(50, 200), 1, 0, 2)
	if o := l.Put(&p, 0); o.Reason != OK {
		t.Errorf("after the holds: %v", o.Reason)
	}
	for i := range 3 {
		p := pieced(t, s, key(10+i), 1, 0, 1)
		checkPieces(t, l, &p, 0, 1)
	}
	checkPieces(t, l, &p, 0, 2)
	purge(t, s, l)
}

// Blocks of random layouts and key lengths beside a model, until the pools
// have turned over many times.
func TestPiecesSoak(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	s := newTest(t, threePools)
	l := newLane(t, s)
	layouts := [][]uint8{{0}, {1}, {2}, {0, 1}, {1, 0}, {0, 1, 1, 2}, {1, 1, 1, 1, 1}}
	type block struct {
		version int
		pools   []uint8
	}
	model := map[string]block{}
	rounds := 4000
	if testing.Short() {
		rounds = 1000
	}
	for i := range rounds {
		n := rng.IntN(40)
		k := key(n)
		if n%3 == 0 {
			k = longKey(n, 41+n*20)
		}
		if rng.IntN(5) == 0 {
			del(l, k)
			delete(model, string(k))
			continue
		}
		b := block{i, layouts[rng.IntN(len(layouts))]}
		p := pieced(t, s, k, b.version, b.pools...)
		p.Set = true
		if o := l.Put(&p, 0); o.Reason != OK {
			t.Fatalf("round %d: %v", i, o.Reason)
		}
		model[string(k)] = b
		probe := key(rng.IntN(40))
		if b, ok := model[string(probe)]; ok && has(l, probe) {
			p := pieced(t, s, probe, b.version, b.pools...)
			checkPieces(t, l, &p, b.pools...)
		}
		if i%200 == 0 {
			audit(t, s)
			s.Do(func() {
				s.Each(func(k []byte, _ int64) {
					if _, ok := model[string(k)]; !ok {
						t.Errorf("%.20q is resident and was deleted or never put", k)
					}
				})
			})
		}
		if t.Failed() {
			break
		}
	}
	purge(t, s, l)
}

func TestLayoutNumbers(t *testing.T) {
	s := newTest(t, threePools)
	a := layout(t, s, 0, 1)
	b := layout(t, s, 1, 0)
	if a == b || layout(t, s, 0, 1) != a || layout(t, s, 1, 0) != b || layout(t, s, 0) != 0 {
		t.Errorf("numbers %d and %d are not those of their lists", a, b)
	}
	for _, pools := range [][]uint8{nil, {3}, {0, 200}, make([]uint8, MaxPieces+1)} {
		if n, ok := s.Layout(pools); ok {
			t.Errorf("layout %v is number %d, want a refusal", pools, n)
		}
	}
	for i := 0; i < maxLayouts; i++ { // base 2 numerals: all different
		var pools []uint8
		for b := i + 1; b != 0; b /= 2 {
			pools = append(pools, uint8(b%2))
		}
		s.Layout(pools)
	}
	if n, ok := s.Layout([]uint8{2, 2, 2, 2, 2, 2, 2}); ok {
		t.Errorf("list %d of at most %d was accepted", n, maxLayouts)
	}
	if layout(t, s, 0, 1) != a {
		t.Error("a full table forgot a list")
	}
	l := newLane(t, s)
	p := Put{Hash: s.hash(key(1)), Key: key(1), Value: []byte("x"), Shape: Shape{Size: 1, Layout: maxLayouts}}
	if o := l.Put(&p, 0); o.Reason != Layout {
		t.Errorf("put with an unknown layout: %v", o.Reason)
	}
}

// Keys of every kind of length are kept whole, and differ by their last byte.
func TestKeyLengths(t *testing.T) {
	s := newTest(t, rig{pools: []Pool{{64, 64}}, side: 1 << 20, policy: "lru", hash: sameHash})
	l := newLane(t, s)
	lengths := []int{1, 2, 39, 40, 41, 42, 55, 56, 57, 71, 72, 73, 500, 1023, 1024}
	mk := func(n int, last byte) []byte {
		k := bytes.Repeat([]byte{'x'}, n)
		k[n-1] = last
		return k
	}
	for _, n := range lengths {
		for _, last := range []byte{'a', 'b'} {
			mustPut(t, l, mk(n, last), pattern(mk(n, last), n, 64))
		}
	}
	for _, n := range lengths {
		for _, last := range []byte{'a', 'b'} {
			check(t, l, mk(n, last), pattern(mk(n, last), n, 64))
		}
		if has(l, mk(n, 'c')) {
			t.Errorf("%d bytes: a key with another last byte is a hit", n)
		}
		if why := del(l, mk(n, 'a')); why != OK {
			t.Errorf("%d bytes: delete: %v", n, why)
		}
		if has(l, mk(n, 'a')) || !has(l, mk(n, 'b')) {
			t.Errorf("%d bytes: the delete took the wrong one", n)
		}
	}
	purge(t, s, l)
}

// When the side region is used up, blocks that use it make room.
func TestSideRegionFull(t *testing.T) {
	const records = 400
	s := newTest(t, rig{pools: []Pool{{16, records}}, side: 64 << 10, policy: "lru"})
	l := newLane(t, s)
	for i := range 300 { // about 1 KiB each: 64 KiB hold some 60
		k := longKey(i, 1024)
		mustPut(t, l, k, pattern(k, 0, 16))
		check(t, l, k, pattern(k, 0, 16))
	}
	n := s.stats.Blocks.Load()
	if n < 40 || n > 64 {
		t.Errorf("%d blocks with keys of 1024 bytes in 64 KiB", n)
	}
	audit(t, s)
	// With all of it claimed a long key is refused and a short one is not.
	var claims []Claim
	for i := range 300 {
		if c, ok := get(l, longKey(i, 1024)); ok {
			claims = append(claims, c)
		}
	}
	if why := put(l, longKey(999, 1024), []byte("x")); why != Capacity {
		t.Errorf("a long key with the side region claimed: %v", why)
	}
	mustPut(t, l, key(1), pattern(key(1), 0, 16))
	for _, c := range claims {
		s.Release(c)
	}
	mustPut(t, l, longKey(999, 1024), pattern(key(1), 0, 16))
	purge(t, s, l)
}

// Without a side region only short keys are taken.
func TestNoSideRegion(t *testing.T) {
	s := newTest(t, rig{})
	l := newLane(t, s)
	if why := put(l, longKey(1, 41), []byte("x")); why != Capacity {
		t.Errorf("%v, want %v", why, Capacity)
	}
	mustPut(t, l, longKey(1, 40), pattern(key(1), 0, 8))
	purge(t, s, l)
}

// windows is a region of small values and a large one; smaller in short runs,
// which the race detector gets.
func windows() (region int64, large int) {
	if testing.Short() {
		return 1 << 20, 256 << 10
	}
	return 4 << 20, 1 << 20
}

// One large value among 64-byte ones costs about its own size of them,
// wherever the policy's victims lie.
func TestWindow(t *testing.T) {
	region, large := windows()
	for _, policy := range []string{"density", "lru"} {
		t.Run(policy, func(t *testing.T) {
			s := newTest(t, rig{classes: region, policy: policy})
			l := newLane(t, s)
			rng := rand.New(rand.NewPCG(3, 3))
			for i := range int(region / 64) { // in an order that is not that of memory
				k := key(i)
				if i > 1000 && rng.IntN(3) == 0 {
					get := key(rng.IntN(i))
					if c, ok, _ := s.Find(s.hash(get), get); ok {
						s.Release(c)
					}
				}
				mustPut(t, l, k, pattern(k, 0, 64))
			}
			before := s.stats.Bytes.Load()
			evicted := s.stats.Evicted.Load()
			v := pattern(key(1<<20-1), 0, large)
			mustPut(t, l, key(1<<20-1), v)
			check(t, l, key(1<<20-1), v)
			gone := before + uint64(large) - s.stats.Bytes.Load()
			if gone > 2*uint64(large) {
				t.Errorf("%d bytes cost %d bytes of small values", large, gone)
			}
			t.Logf("%d bytes cost %d blocks, %d bytes", large, s.stats.Evicted.Load()-evicted, gone)
			purge(t, s, l)
		})
	}
}

// A claim in a window does not make its other blocks leave for nothing.
func TestWindowWithClaims(t *testing.T) {
	region, large := windows()
	s := newTest(t, rig{classes: region, policy: "lru"})
	l := newLane(t, s)
	n := int(region / 64)
	for i := range n {
		mustPut(t, l, key(i), pattern(key(i), 0, 64))
	}
	// One claim in the upper half of each window: none is free.
	claims := map[uint64]Claim{}
	s.Do(func() {
		for id := uint32(1); id <= s.freshRec; id++ {
			off := s.hot[id].desc.off()
			at := off / uint64(large)
			if _, have := claims[at]; !have && off%uint64(large) > uint64(large)/2 {
				k := bytes.Clone(s.keyOf(id))
				if c, ok, _ := s.Peek(s.hash(k), k); ok {
					claims[at] = c
				}
			}
		}
	})
	if len(claims) < 4 {
		t.Fatalf("%d claims", len(claims))
	}
	resident := s.stats.Blocks.Load()
	start := time.Now()
	if why := put(l, key(900000), pattern(key(900000), 0, large)); why != Capacity {
		t.Fatalf("put with a claim in every window: %v", why)
	}
	t.Logf("refused after %v", time.Since(start))
	if lost := resident - s.stats.Blocks.Load(); lost > resident/4 {
		t.Errorf("a refused put of a quarter of the region cost %d of %d blocks", lost, resident)
	} else {
		t.Logf("%d of %d blocks lost", lost, resident)
	}
	for _, c := range claims {
		s.Release(c)
	}
	mustPut(t, l, key(900000), pattern(key(900000), 0, large))
	purge(t, s, l)
}

// One claim on the block that would leave first does not keep large values
// out while the rest of the region could go.
func TestWindowElsewhere(t *testing.T) {
	region, large := windows()
	for _, policy := range []string{"density", "lru"} {
		t.Run(policy, func(t *testing.T) {
			s := newTest(t, rig{classes: region, policy: policy})
			l := newLane(t, s)
			for i := range int(region / 64) {
				mustPut(t, l, key(i), pattern(key(i), 0, 64))
			}
			var c Claim
			s.Do(func() {
				k := bytes.Clone(s.keyOf(s.victim()))
				c, _, _ = s.Peek(s.hash(k), k)
			})
			if why := put(l, key(900000), pattern(key(900000), 0, large)); why != OK {
				t.Errorf("put of a quarter of the region with one claim: %v", why)
			}
			s.Release(c)
			purge(t, s, l)
		})
	}
}

// A small value is not refused for want of a whole slab: single pages serve.
func TestSmallValueInAPage(t *testing.T) {
	s := newTest(t, rig{classes: 128 << 10, records: 64})
	l := newLane(t, s)
	var claims []Claim
	for i := range 32 { // every page taken and claimed
		mustPut(t, l, key(i), pattern(key(i), 0, 4096))
		c, _ := get(l, key(i))
		claims = append(claims, c)
	}
	small := func(i int) []byte { return pattern(key(i), 1, 100) }
	if why := put(l, key(100), small(100)); why != Capacity {
		t.Errorf("put with every page claimed: %v", why)
	}
	for i := 1; i < 32; i += 6 { // pages with claimed neighbours
		s.Release(claims[i])
		del(l, key(i))
		mustPut(t, l, key(100+i), small(100+i))
		claims[i], _ = get(l, key(100+i))
	}
	for i := range 32 {
		if i%6 == 1 {
			check(t, l, key(100+i), small(100+i))
		} else {
			check(t, l, key(i), pattern(key(i), 0, 4096))
		}
	}
	for _, c := range claims {
		s.Release(c)
	}
	mustPut(t, l, key(101), pattern(key(101), 2, 101)) // replaced where it is, or elsewhere
	check(t, l, key(101), pattern(key(101), 2, 101))
	purge(t, s, l)
}

// Values of every size up to the maximum, beside a model that verifies bytes.
func TestClassesSoak(t *testing.T) {
	const region, most = 4 << 20, 512 << 10
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	s := newTest(t, rig{classes: region, maxValue: most, side: 256 << 10})
	l := newLane(t, s)
	type value struct{ version, size int }
	model := map[string]value{}
	rounds := 4000
	if testing.Short() {
		rounds = 1000
	}
	names := func(n int) []byte {
		if n%5 == 0 {
			return longKey(n, 41+n%900)
		}
		return key(n)
	}
	hits := 0
	for i := range rounds {
		k := names(rng.IntN(600))
		switch rng.IntN(8) {
		case 0:
			why := del(l, k)
			if _, have := model[string(k)]; !have && why == OK {
				t.Fatalf("deleted %.20q, which was not there", k)
			}
			delete(model, string(k))
		case 1, 2, 3:
			c, ok := get(l, k)
			if !ok {
				continue // evicted, or never put
			}
			v, have := model[string(k)]
			if !have {
				t.Fatalf("round %d: %.20q is a hit and was deleted or never put", i, k)
			}
			if !bytes.Equal(s.Bytes(c), pattern(k, v.version, v.size)) {
				t.Fatalf("round %d: %.20q has other bytes", i, k)
			}
			s.Release(c)
			hits++
		default:
			size := rng.IntN(300)
			switch rng.IntN(10) {
			case 0:
				size = rng.IntN(most + 1)
			case 1, 2:
				size = rng.IntN(20000)
			}
			if why := put(l, k, pattern(k, i, size)); why != OK {
				t.Fatalf("round %d: put of %d bytes: %v", i, size, why)
			}
			model[string(k)] = value{i, size}
		}
		if i%500 == 0 {
			audit(t, s)
		}
	}
	if hits == 0 {
		t.Error("no hit")
	}
	mustPut(t, l, key(1), pattern(key(1), 0, most))
	check(t, l, key(1), pattern(key(1), 0, most))
	if why := put(l, key(2), pattern(key(2), 0, most+1)); why == OK {
		t.Error("a value above the maximum was stored")
	}
	purge(t, s, l)
}
