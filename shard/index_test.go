package shard

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// indexModel drives an index and a map beside it. The index knows ids and
// hashes only, so the map is from id to hash.
type indexModel struct {
	x      index
	hashes map[uint32]uint64
	fail   func(format string, args ...any)
}

func newIndexModel(dir, overflow int, fail func(string, ...any)) *indexModel {
	return &indexModel{x: newIndex(make([]bucket, dir+overflow), dir), hashes: map[uint32]uint64{}, fail: fail}
}

func (m *indexModel) find(hash uint64, id uint32) *atomic.Uint64 {
	_, e := m.x.lookup(hash, func(at uint32) bool { return at == id })
	return e
}

func (m *indexModel) insert(hash uint64, id uint32) {
	if _, have := m.hashes[id]; have {
		return
	}
	if m.x.insert(hash, id) {
		m.hashes[id] = hash
		return
	}
	// Only a full chain and an empty pool may refuse.
	for b := m.x.first(hash); b != nil; b = m.x.next(b) {
		for i := range b.entries {
			if uint32(b.entries[i].Load()) == 0 {
				m.fail("insert refused beside a free entry")
			}
		}
	}
	if m.x.fresh != 0 || m.x.freeOver != 0 {
		m.fail("insert refused with overflow buckets left: fresh %d, free list at %d", m.x.fresh, m.x.freeOver)
	}
}

func (m *indexModel) remove(id uint32) {
	hash, have := m.hashes[id]
	if got := m.x.remove(hash, id); got != have {
		m.fail("remove(%d) = %t, want %t", id, got, have)
	}
	delete(m.hashes, id)
}

func (m *indexModel) replace(old, id uint32) {
	hash, have := m.hashes[old]
	if _, taken := m.hashes[id]; !have || taken {
		return
	}
	m.x.replace(hash, m.find(hash, old), id)
	delete(m.hashes, old)
	m.hashes[id] = hash
}

// check compares everything: all entries of the map found, none invented, no
// chain longer than its entries need, every overflow bucket in one place.
func (m *indexModel) check() {
	for id, hash := range m.hashes {
		if m.find(hash, id) == nil {
			m.fail("id %d with hash %#x is lost", id, hash)
		}
	}
	total, used := 0, 0
	for i := range m.x.dir {
		entries, buckets := 0, 0
		b := &m.x.buckets[i]
		if v := uint32(b.head.Load()); v&1 != 0 {
			m.fail("odd version %d at rest", v)
		}
		for ; b != nil; b = m.x.next(b) {
			buckets++
			for k := range b.entries {
				if e := b.entries[k].Load(); uint32(e) != 0 {
					entries++
					if hash, ok := m.hashes[uint32(e)]; !ok || fingerprint(hash) != e>>32 {
						m.fail("entry %#x was never inserted", e)
					}
				} else if e != 0 {
					m.fail("a fingerprint without an id: %#x", e)
				}
			}
		}
		if want := max(1, (entries+bucketEntries-1)/bucketEntries); buckets != want {
			m.fail("chain %d has %d buckets for %d entries, want %d", i, buckets, entries, want)
		}
		total += entries
		used += buckets - 1
	}
	if total != len(m.hashes) {
		m.fail("%d entries, want %d", total, len(m.hashes))
	}
	for n := m.x.freeOver; n != 0; n = nextBucket(m.x.buckets[n-1].head.Load()) {
		if used++; used > len(m.x.buckets) {
			m.fail("the free list has a loop")
			return
		}
	}
	if pool := len(m.x.buckets) - int(m.x.dir); used+int(m.x.fresh) != pool {
		m.fail("%d overflow buckets in use or free and %d fresh, of %d", used, m.x.fresh, pool)
	}
}

// step decodes three bytes into one operation: 200 ids, few hashes.
func (m *indexModel) step(op, a, b byte) {
	hash := uint64(b%5)<<61 | uint64(a%3)<<32 | uint64(b%4)<<30
	switch op % 8 {
	case 0, 1, 2, 3:
		m.insert(hash, uint32(a)+1)
	case 4, 5:
		m.remove(uint32(a) + 1)
	case 6:
		m.replace(uint32(a)+1, uint32(b)+1)
	case 7:
		id := uint32(a) + 1
		if want, have := m.hashes[id]; (m.find(want, id) != nil) != have {
			m.fail("lookup of %d found %t", id, !have)
		}
	}
}

// FuzzIndex: whatever the operations, the index holds what the map holds, in
// the shortest chains, and refuses only when the overflow pool is used up.
func FuzzIndex(f *testing.F) {
	f.Add([]byte{0, 1, 1, 0, 2, 1, 4, 1, 0, 7, 2, 1})
	full := []byte{}
	for i := range byte(150) { // one chain until the pool is exhausted, then down again
		full = append(full, 0, i, 0)
	}
	for i := range byte(150) {
		full = append(full, 4, i^5, 0)
	}
	f.Add(full)
	f.Fuzz(func(t *testing.T, in []byte) {
		m := newIndexModel(3, 9, t.Fatalf)
		for ; len(in) >= 3; in = in[3:] {
			m.step(in[0], in[1], in[2])
		}
		m.check()
		for id := range m.hashes {
			m.remove(id)
		}
		m.check()
	})
}

func TestIndexAgainstMap(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, size := range []struct{ dir, overflow int }{{1, 1}, {1, 12}, {3, 9}, {40, 3}} {
		m := newIndexModel(size.dir, size.overflow, func(format string, args ...any) {
			t.Fatalf("seed %d, %v: %s", seed, size, fmt.Sprintf(format, args...))
		})
		refused := 0
		for i := range 20000 {
			op := byte(rng.IntN(256))
			if i/2000%2 == 1 && op%8 < 2 {
				op = 4 // shrink for a while
			}
			n := len(m.hashes)
			a := byte(rng.IntN(256))
			_, have := m.hashes[uint32(a)+1]
			m.step(op, a, byte(rng.IntN(256)))
			if op%8 < 4 && !have && len(m.hashes) == n {
				refused++
			}
			if i%50 == 0 {
				m.check()
			}
		}
		if size.dir < 10 && refused == 0 {
			t.Errorf("%v: the overflow pool was never exhausted", size)
		}
		for id := range m.hashes {
			m.remove(id)
		}
		m.check()
	}
}

// A key's bucket depends on the lower half of its hash alone, and is spread
// over the whole directory: the uppermost bits choose the shard.
func TestIndexSpread(t *testing.T) {
	const dir = 100
	x := newIndex(make([]bucket, dir), dir)
	hits := map[*bucket]int{}
	for i := range uint64(10000) {
		low := i * 0x9e3779b97f4a7c15 >> 32
		b := x.first(low)
		hits[b]++
		if x.first(low|0xabcdef01<<32) != b {
			t.Fatalf("hash %#x: the fingerprint moves the bucket", low)
		}
	}
	for i := range x.buckets {
		if n := hits[&x.buckets[i]]; n < 50 || n > 150 {
			t.Errorf("bucket %d gets %d of 10000 hashes", i, n)
		}
	}
}

// oneChain puts every key in the first bucket's chain; the fingerprint is the
// key's number modulo few.
func oneChain(few uint64) func([]byte) uint64 {
	return func(k []byte) uint64 {
		n := uint64(0)
		for _, c := range k[len(k)-6:] {
			n = n*10 + uint64(c-'0')
		}
		return n % few << 32
	}
}

// A reader that sees a chain in the middle of a change must not be sure of a
// miss: the entry that moves may have passed behind its back.
func TestMissWaitsForAnEvenVersion(t *testing.T) {
	s := newTest(t, rig{})
	l := newLane(t, s)
	mustPut(t, l, key(1), pattern(key(1), 0, 32))
	k := key(2)
	b := s.index.first(s.hash(k))
	if _, ok, sure := s.Peek(s.hash(k), k); ok || !sure {
		t.Fatalf("at rest: hit %t, sure %t", ok, sure)
	}
	bump(b)
	if _, ok, sure := s.Peek(s.hash(k), k); ok || sure {
		t.Errorf("within a change: hit %t, sure %t", ok, sure)
	}
	bump(b)
	if _, ok, sure := s.Peek(s.hash(k), k); ok || !sure {
		t.Errorf("after it: hit %t, sure %t", ok, sure)
	}
}

// moveModel is a removal at the granularity of its stores beside a reader at
// the granularity of its loads, on a chain of two buckets with one entry each
// that matter: the writer removes A from the first bucket and moves B, the last
// entry, into the hole; the reader looks for B.
type moveModel struct {
	version          int
	hole, last       byte
	writer           int
	reader, from     int
	sawHole, sawLast byte
}

// steps returns the successors; verdict 1 is a hit, 2 a sure miss, 3 unsure.
func (m moveModel) steps(evenOnly bool) (next []moveModel, verdict int) {
	writer := []func(*moveModel){
		func(m *moveModel) { m.version++ },
		func(m *moveModel) { m.hole = 'B' },
		func(m *moveModel) { m.last = 0 },
		func(m *moveModel) { m.version++ },
	}
	if m.writer < len(writer) {
		n := m
		writer[n.writer](&n)
		n.writer++
		next = append(next, n)
	}
	n := m
	n.reader++
	switch m.reader {
	case 0:
		n.from = m.version
	case 1:
		n.sawHole = m.hole
	case 2:
		n.sawLast = m.last
	case 3:
		switch {
		case m.sawHole == 'B' || m.sawLast == 'B':
			return next, 1
		case m.version == m.from && (!evenOnly || m.from%2 == 0):
			return next, 2
		}
		return next, 3
	}
	return append(next, n), 0
}

func (m moveModel) falseMiss(evenOnly bool) bool {
	next, verdict := m.steps(evenOnly)
	if verdict == 2 {
		return true // B is resident in every state
	}
	for _, n := range next {
		if n.falseMiss(evenOnly) {
			return true
		}
	}
	return false
}

func TestMoveStates(t *testing.T) {
	start := moveModel{hole: 'A', last: 'B'}
	if start.falseMiss(true) {
		t.Error("some interleaving of a removal and a probe answers a false miss")
	}
	if !start.falseMiss(false) {
		t.Error("the enumeration does not find the false miss of a reader that accepts odd versions")
	}
}

// Every change of a chain moves its version by two, once before it and once
// after: readers depend on both.
func TestChangesMoveTheVersion(t *testing.T) {
	m := newIndexModel(1, 4, t.Fatalf)
	head := &m.x.buckets[0]
	step := func(what string, f func()) {
		t.Helper()
		was := uint32(head.head.Load())
		f()
		if now := uint32(head.head.Load()); now != was+2 {
			t.Errorf("%s: version %d, was %d", what, now, was)
		}
	}
	hash := func(id uint32) uint64 { return uint64(id%3) << 32 }
	for id := uint32(1); id <= 20; id++ {
		step(fmt.Sprintf("insert of %d", id), func() { m.insert(hash(id), id) })
	}
	for id := uint32(2); id <= 20; id += 3 {
		step(fmt.Sprintf("replacement of %d", id), func() { m.replace(id, id+100) })
	}
	for _, id := range []uint32{1, 102, 120, 7, 105, 19, 3} {
		step(fmt.Sprintf("removal of %d", id), func() { m.remove(id) })
	}
	m.check()
	head.head.Store(head.head.Load() | (1<<32 - 2)) // the version wraps and spares the link
	link := nextBucket(head.head.Load())
	m.insert(hash(1), 1)
	if now := head.head.Load(); uint32(now) != 0 || nextBucket(now) != link {
		t.Errorf("head %#x after the wrap, want version 0 and link %d", now, link)
	}
	m.check()
}

// Readers beside removals and replacements: a key that stays resident is never
// a miss, and a claim never shows another key's bytes. All keys share one
// chain and few fingerprints, so that readers meet strangers; the stable keys
// are last in the chain, so that each removal moves one of their entries.
func TestProbesBesideChanges(t *testing.T) {
	const stable, churn = 20, 20
	s := newTest(t, rig{pools: []Pool{{64, 128}}, hash: oneChain(7), policy: "lru"})
	w := newLane(t, s)
	var phase atomic.Uint32 // odd while the stable keys come and go
	phase.Store(1)
	var done atomic.Bool
	var wg sync.WaitGroup
	var hits, unsure atomic.Int64
	for r := range 3 {
		wg.Add(1)
		l := newLane(t, s)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(uint64(r), 0))
			for !done.Load() {
				i := rng.IntN(stable + churn/4)
				k := key(i)
				before := phase.Load()
				c, ok, sure := s.Peek(s.hash(k), k)
				if !sure {
					unsure.Add(1)
					c, ok = l.Ask(s.hash(k), k, 0)
				}
				if !ok {
					if i < stable && before&1 == 0 && phase.Load() == before {
						t.Errorf("%s is resident all the time and is a miss (sure %t)", k, sure)
						return
					}
					continue
				}
				hits.Add(1)
				if b := s.Bytes(c); versionOf(b, k, 16) < 0 {
					t.Errorf("%s reads %x", k, b)
				}
				s.Release(c)
			}
		}()
	}
	rng := rand.New(rand.NewPCG(9, 9))
	rounds := 2500
	if testing.Short() {
		rounds = 600
	}
	for n := range rounds {
		for i := range churn {
			mustPut(t, w, key(stable+i), pattern(key(stable+i), n%16, 64))
		}
		for i := range stable {
			del(w, key(i))
			mustPut(t, w, key(i), pattern(key(i), n%16, 64))
		}
		phase.Add(1)
		for _, i := range rng.Perm(churn) {
			del(w, key(stable+i))
			if i%4 == 0 { // by another record, or in place
				k := key(rng.IntN(stable))
				mustPut(t, w, k, pattern(k, i%16, 64))
			}
		}
		phase.Add(1)
		if t.Failed() {
			break
		}
	}
	done.Store(true)
	wg.Wait()
	if hits.Load() == 0 {
		t.Error("no reader ever hit")
	}
	t.Logf("%d hits, %d unsure", hits.Load(), unsure.Load())
	purge(t, s, w)
}

// staged runs a reader beside a writer that, in each of many trials, takes the
// reader's ground away and only then makes the record claimable: a reader that
// comes through has not looked again. The writer's two stores are adjacent and
// the claimed line changes hands between them, so that a reader that does not
// look again comes through every few hundred trials.
func staged(t *testing.T, trials int, prepare, pull, raise func(), read func() (through bool)) {
	t.Helper()
	var ready, seen atomic.Int64
	var through atomic.Int64
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		for n := int64(1); await(&ready, n); n++ {
			for range 20 {
				if read() {
					through.Add(1)
				}
			}
			seen.Store(n)
		}
	}()
	rng := rand.New(rand.NewPCG(1, 1))
	start, n := time.Now(), int64(1)
	for ; n <= int64(trials) && (n%256 != 0 || time.Since(start) < 1500*time.Millisecond); n++ {
		prepare()
		ready.Store(n)
		for i := rng.IntN(400); i > 0; i-- {
			_ = ready.Load()
		}
		pull()
		raise()
		await(&seen, n)
	}
	ready.Store(-1)
	wg.Wait()
	if k := through.Load(); k != 0 {
		t.Errorf("%d readers came through in %d trials", k, n-1)
	}
}

// A miss needs a chain that did not change: here the last entry of a long one,
// whose owner a reader looks for, moves to its front, past a reader on the way.
func TestMissNeedsAStillChain(t *testing.T) {
	const strangers = 30
	s := newTest(t, rig{hash: sameHash, loose: true})
	l := newLane(t, s)
	for i := range strangers + 1 {
		mustPut(t, l, key(i), pattern(key(i), 0, 64))
	}
	hash, k := sameHash(nil), key(strangers)
	find := func(k []byte) uint32 {
		id, _ := s.index.lookup(hash, func(id uint32) bool { return s.keyIs(id, k) })
		return id
	}
	first, last := find(key(0)), find(k)
	staged(t, trials()/10,
		func() {
			s.index.remove(hash, last)
			s.index.remove(hash, first)
			// The strangers close up; first goes to a front place by hand.
			head := s.index.first(hash)
			e := head.entries[0].Load()
			bump(head)
			head.entries[0].Store(fingerprint(hash)<<32 | uint64(first))
			bump(head)
			s.index.insert(hash, uint32(e))
			s.index.insert(hash, last)
		},
		func() { s.index.remove(hash, first) },
		func() {},
		func() bool {
			c, ok, sure := s.Peek(hash, k)
			if ok {
				s.Release(c)
			}
			return !ok && sure
		})
}

// await waits for n, false for the end. It spins, so that both sides keep a processor each. Where they share one
// they would take turns for ever: a new goroutine makes the scheduler wake an
// idle processor, which takes one of them over.
func await(w *atomic.Int64, n int64) bool {
	for i := 1; ; i++ {
		if v := w.Load(); v == n || v < 0 {
			return v == n
		}
		if i%2000 == 0 {
			go func() {}()
			runtime.Gosched()
		}
	}
}

func trials() int {
	if testing.Short() {
		return 20000
	}
	return 200000
}

// A hit takes effect when the entry is loaded again under the claim: a record
// that became READY after its entry had gone is no hit. A part of a group,
// since the way from its entry to the claim is longer.
func TestHitNeedsItsEntry(t *testing.T) {
	s := newTest(t, rig{})
	l := newLane(t, s)
	k := key(1)
	mustRun(t, l, group(s, 1, k, key(2)))
	hash := s.hash(k)
	head, fp := s.index.first(hash), fingerprint(hash)
	id, entry := s.index.lookup(hash, func(uint32) bool { return true })
	e, pw, lw := entry.Load(), &s.hot[id].word, &s.hot[s.lead(id)].word
	part, live := pw.Load(), lw.Load()
	staged(t, trials(),
		func() {
			lw.Store(withState(live, filling, 0))
			pw.Store(part) // so that the reader's load of it has to wait
			entry.Store(e)
		},
		func() { entry.Store(0) },
		func() { lw.Store(live) },
		func() bool {
			c, ok := s.probe(head, fp, k)
			if ok {
				s.Release(c)
			}
			return ok
		})
	entry.Store(e)
}

// A part's word is loaded again under the claim on its leader, who may have
// begun another life before.
func TestPartNeedsItsWord(t *testing.T) {
	s := newTest(t, rig{})
	l := newLane(t, s)
	a, b := key(1), key(2)
	mustRun(t, l, group(s, 1, a, b))
	part, _ := s.index.lookup(s.hash(a), func(uint32) bool { return true })
	lead := s.lead(part)
	pw, lw := &s.hot[part].word, &s.hot[lead].word
	partLive, leadLive := pw.Load(), lw.Load()
	staged(t, trials(),
		func() { lw.Store(withState(leadLive, filling, 0)); pw.Store(partLive) },
		func() { pw.Store(nextFree(partLive)) },
		func() { lw.Store(leadLive) },
		func() bool {
			at, ok := s.claim(part)
			if ok {
				s.unclaim(at)
			}
			return ok
		})
	pw.Store(partLive)
}

// isPattern reports whether b is the pattern of k in one of 16 versions.
func isPattern(b, k []byte) bool { return versionOf(b, k, 16) >= 0 }
