package shard

import (
	"bytes"
	"errors"
	"testing"

	"github.com/kvcr-go/kvcr/shard/evict"
)

// spied is a policy whose answers a test changes.
type spied struct {
	evict.Policy
	admit  func(run []evict.Insert) bool
	decide func(id evict.ID) evict.Decision
	victim func(now uint32) evict.ID
	insert func()
}

func (p *spied) Admit(run []evict.Insert) bool {
	if p.admit != nil {
		return p.admit(run)
	}
	return p.Policy.Admit(run)
}

func (p *spied) Decide(id evict.ID) evict.Decision {
	if p.decide != nil {
		return p.decide(id)
	}
	return p.Policy.Decide(id)
}

func (p *spied) Victim(now uint32) evict.ID {
	if p.victim != nil {
		return p.victim(now)
	}
	return p.Policy.Victim(now)
}

func (p *spied) Insert(run []evict.Insert, now uint32) {
	if p.insert != nil {
		p.insert()
	}
	p.Policy.Insert(run, now)
}

// spy wraps the named policy.
func spy(p *spied, name string) NewPolicy {
	return func(nodes []evict.Node, b evict.Blocks, seed uint64) (evict.Policy, error) {
		var err error
		p.Policy, err = evict.New(name, nodes, b, seed)
		return p, err
	}
}

// An embedder's policy that panics or answers nonsense is counted, and the
// shard goes on: blocks enter, and some block leaves when room is needed.
func TestPolicyFaults(t *testing.T) {
	const slots = 8
	for _, tt := range []struct {
		name  string
		spoil func(p *spied)
	}{
		{"victim panics", func(p *spied) { p.victim = func(uint32) evict.ID { panic("oh") } }},
		{"victim is no record", func(p *spied) { p.victim = func(uint32) evict.ID { return slots + 1 } }},
		{"victim far out", func(p *spied) { p.victim = func(uint32) evict.ID { return 1<<32 - 1 } }},
		{"victim is always the same", func(p *spied) { p.victim = func(uint32) evict.ID { return 1 } }},
		{"decide panics", func(p *spied) { p.decide = func(evict.ID) evict.Decision { panic("oh") } }},
		{"admit panics", func(p *spied) { p.admit = func([]evict.Insert) bool { panic("oh") } }},
		{"insert panics", func(p *spied) { p.insert = func() { panic("oh") } }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &spied{}
			s := newTest(t, rig{pools: []Pool{{64, slots}}, make: spy(p, "fifo"), foreign: true, loose: true})
			l := newLane(t, s)
			s.Do(func() { tt.spoil(p) })
			// A claimed block must survive whatever the policy says.
			mustPut(t, l, key(0), pattern(key(0), 0, 64))
			c, ok := get(l, key(0))
			if !ok {
				t.Fatal("a miss")
			}
			for i := 1; i < 5*slots; i++ {
				mustPut(t, l, key(i), pattern(key(i), 0, 64))
				check(t, l, key(i), pattern(key(i), 0, 64))
			}
			if !bytes.Equal(s.Bytes(c), pattern(key(0), 0, 64)) || !has(l, key(0)) {
				t.Error("the claimed block left")
			}
			s.Release(c)
			if n := s.stats.PolicyFaults.Load(); n == 0 {
				t.Error("no fault was counted")
			}
			l.Recall()
			leaked(t, s)
		})
	}
}

// What the policy refuses is dropped: the key keeps its old value, a chain its
// blocks before, and nothing leaks.
func TestAdmitRefuses(t *testing.T) {
	p := &spied{}
	s := newTest(t, rig{make: spy(p, "lru")})
	l := newLane(t, s)
	k := key(1)
	mustPut(t, l, k, pattern(k, 0, 64))
	c, _ := get(l, k) // so that a set needs memory of its own, and admission
	s.Do(func() { p.admit = func([]evict.Insert) bool { return false } })
	if why := put(l, k, pattern(k, 1, 64)); why != Dropped {
		t.Errorf("set: %v", why)
	}
	if o := give(l, key(2), pattern(key(2), 0, 64)); o.Reason != Dropped {
		t.Errorf("deposit: %v", o.Reason)
	}
	if o := give(l, k, pattern(k, 1, 64)); o.Reason != OK || !o.Old {
		t.Errorf("deposit of a resident key: %+v", o)
	}
	for _, o := range runOf(l, group(s, 1, keys(10, 3)...))[2:] {
		if o.Reason != Dropped {
			t.Errorf("leader of a group: %v", o.Reason)
		}
	}
	s.Release(c)
	check(t, l, k, pattern(k, 0, 64))
	if n := s.stats.Dropped.Load(); n != 3 {
		t.Errorf("%d dropped, want 3", n)
	}
	leaked(t, s)
	purge(t, s, l)
}

// A block that Decide keeps is passed over, and counts as accessed.
func TestDecideKeeps(t *testing.T) {
	const slots = 8
	p := &spied{}
	s := newTest(t, rig{pools: []Pool{{64, slots}}, make: spy(p, "lru")})
	l := newLane(t, s)
	for i := range slots {
		mustPut(t, l, key(i), pattern(key(i), 0, 64))
	}
	kept := evict.ID(0)
	s.Do(func() {
		p.decide = func(id evict.ID) evict.Decision {
			if kept == 0 {
				kept = id
			}
			if id == kept {
				return evict.Keep
			}
			return evict.Drop
		}
	})
	for i := range 4 * slots {
		mustPut(t, l, key(100+i), pattern(key(100+i), 0, 64))
	}
	if kept == 0 || !has(l, key(0)) {
		t.Errorf("the kept block (record %d) left", kept)
	}
	// One that keeps everything makes puts fail, not hang.
	s.Do(func() { p.decide = func(evict.ID) evict.Decision { return evict.Keep } })
	if why := put(l, key(999), pattern(key(999), 0, 64)); why != Capacity {
		t.Errorf("put when everything is kept: %v", why)
	}
	purge(t, s, l)
}

// A claim that comes between the choice of a victim and its retirement costs
// another victim, not the put.
func TestVictimClaimedMeanwhile(t *testing.T) {
	const slots = 8
	p := &spied{}
	s := newTest(t, rig{pools: []Pool{{64, slots}}, make: spy(p, "lru")})
	l := newLane(t, s)
	for i := range slots {
		mustPut(t, l, key(i), pattern(key(i), 0, 64))
	}
	var claims []Claim
	s.Do(func() {
		p.decide = func(id evict.ID) evict.Decision {
			if len(claims) < 3 { // a reader is faster, three times
				k := bytes.Clone(s.keyOf(uint32(id)))
				if c, ok, _ := s.Peek(s.hash(k), k); ok {
					claims = append(claims, c)
				}
			}
			return evict.Drop
		}
	})
	if why := put(l, key(100), pattern(key(100), 0, 64)); why != OK {
		t.Errorf("put with %d of %d blocks claimed: %v", len(claims), slots, why)
	}
	if len(claims) != 3 {
		t.Errorf("%d claims", len(claims))
	}
	for _, c := range claims {
		if k := s.keyOf(c.id); !has(l, k) {
			t.Errorf("claimed %s left", k)
		}
		s.Release(c)
	}
	purge(t, s, l)
}

// Holds are hard, count, and end with Unhold alone; a held block may be
// deleted by hand, and its bytes stay until then.
func TestHolds(t *testing.T) {
	ways(t, rig{pools: []Pool{{64, 16}}}, func(t *testing.T, s *Shard, l *Lane) {
		hold := func(k []byte, set bool) Outcome {
			return l.Put(&Put{Hash: s.hash(k), Key: k, Value: pattern(k, 0, 64), Shape: Shape{Size: 64}, Set: set, NoEvict: true}, 0)
		}
		heldBytes := func() (n int64) {
			s.Do(func() { n = s.heldBytes[0] })
			return n
		}
		var outs []Outcome
		for i := range 4 {
			o := hold(key(i), i%2 == 0)
			if o.Reason != OK || o.Old || !bytes.Equal(s.Bytes(o.Claim), pattern(key(i), 0, 64)) {
				t.Errorf("hold: %+v", o)
				return
			}
			outs = append(outs, o)
		}
		twice := hold(key(0), false)
		if twice.Reason != OK || !twice.Old {
			t.Errorf("second hold of one block: %+v", twice)
		}
		if n := heldBytes(); n != 4*64 {
			t.Errorf("%d bytes held, want 4 slots", n)
		}
		for i := range 200 {
			mustPut(t, l, key(100+i), pattern(key(100+i), 0, 64))
		}
		for i := range 4 {
			check(t, l, key(i), pattern(key(i), 0, 64))
		}
		// One of two holds ends: the other protects.
		if err := s.Unhold(outs[0].Claim); err != nil {
			t.Error(err)
		}
		if n := heldBytes(); n != 4*64 {
			t.Errorf("%d bytes held after one of two holds ended", n)
		}
		for i := range 100 {
			mustPut(t, l, key(400+i), pattern(key(400+i), 0, 64))
		}
		check(t, l, key(0), pattern(key(0), 0, 64))
		// Deleted and replaced while held.
		if why := del(l, key(1)); why != OK {
			t.Errorf("delete of a held block: %v", why)
		}
		mustPut(t, l, key(2), pattern(key(2), 1, 64))
		if n := heldBytes(); n != 2*64 {
			t.Errorf("%d bytes held after a delete and a replacement", n)
		}
		for i := range 100 {
			mustPut(t, l, key(600+i), pattern(key(600+i), 0, 64))
		}
		for _, i := range []int{1, 2} {
			if !bytes.Equal(s.Bytes(outs[i].Claim), pattern(key(i), 0, 64)) {
				t.Errorf("the bytes of held %s changed", key(i))
			}
		}
		if has(l, key(1)) {
			t.Error("a deleted block is a hit because it is held")
		}
		for _, o := range append(outs[1:], twice) {
			if err := s.Unhold(o.Claim); err != nil {
				t.Error(err)
			}
		}
		if err := s.Unhold(Claim{}); !errors.Is(err, ErrReleased) {
			t.Errorf("unhold of the zero claim: %v", err)
		}
		leakedBut(t, s, l)
		evictAll(t, s)
	})
}

// A hold on a set that replaces is one on the new block.
func TestHoldOfReplacement(t *testing.T) {
	s := newTest(t, rig{classes: 1 << 20})
	l := newLane(t, s)
	k := key(1)
	var outs []Outcome
	for v := range 3 {
		o := l.Put(&Put{Hash: s.hash(k), Key: k, Value: pattern(k, v, 100+v), Shape: Shape{Size: 100 + v}, Set: true, NoEvict: true}, 0)
		if o.Reason != OK {
			t.Fatal(o.Reason)
		}
		outs = append(outs, o)
	}
	for v, o := range outs {
		if !bytes.Equal(s.Bytes(o.Claim), pattern(k, v, 100+v)) {
			t.Errorf("hold %d shows other bytes", v)
		}
	}
	// The plain set does not write into held memory.
	mustPut(t, l, k, pattern(k, 7, 102))
	if !bytes.Equal(s.Bytes(outs[2].Claim), pattern(k, 2, 102)) {
		t.Error("a set wrote into held memory")
	}
	for _, o := range outs {
		s.Unhold(o.Claim)
	}
	leakedBut(t, s, l)
	purge(t, s, l)
}

// The embedder hears once when holds push a pool under its watermark, once
// again only after it was above, and of each pool on its own.
func TestPressure(t *testing.T) {
	type call struct {
		pool       int
		free, mark int64
	}
	var calls []call
	r := rig{pools: []Pool{{64, 10}, {256, 10}}, foreign: true}
	r.watermark = watermark{30, func(pool int, free, mark int64) { calls = append(calls, call{pool, free, mark}) }}
	s := newTest(t, r)
	l := newLane(t, s)
	heard := func(want ...call) {
		t.Helper()
		s.Do(func() {
			if len(calls) != len(want) {
				t.Errorf("heard %v, want %v", calls, want)
			} else {
				for i := range want {
					if calls[i] != want[i] {
						t.Errorf("heard %v, want %v", calls, want)
					}
				}
			}
			calls = nil
		})
	}
	second := layout(t, s, 1)
	hold := func(k []byte, layout uint16) Claim {
		t.Helper()
		o := l.Put(&Put{Hash: s.hash(k), Key: k, Value: pattern(k, 0, 64), Shape: Shape{Size: 64, Layout: layout}, NoEvict: true}, 0)
		if o.Reason != OK {
			t.Fatal(o.Reason)
		}
		return o.Claim
	}
	touch := func() { // any reservation
		mustPut(t, l, key(900), pattern(key(900), 0, 64))
		del(l, key(900))
	}
	for i := range 50 { // full of blocks that may go: no pressure
		mustPut(t, l, key(100+i), pattern(key(100+i), 0, 64))
	}
	heard()
	var first []Claim
	for i := range 7 {
		first = append(first, hold(key(i), 0))
	}
	touch()
	heard() // exactly 30 % left
	first = append(first, hold(key(7), 0))
	touch()
	heard(call{0, 2 * 64, 3 * 64})
	touch()
	touch()
	heard() // once
	var other []Claim
	for i := range 8 {
		other = append(other, hold(key(50+i), second))
	}
	touch()
	heard(call{1, 2 * 256, 3 * 256})
	for _, c := range first[:4] {
		s.Unhold(c)
	}
	touch()
	heard()
	for i := range 4 {
		first[i] = hold(key(20+i), 0)
	}
	touch()
	heard(call{0, 2 * 64, 3 * 64}) // again, after it was above
	for _, c := range append(first, other...) {
		s.Unhold(c)
	}
	leakedBut(t, s, l)
	purge(t, s, l)
}

// A callback that panics is counted, and the shard goes on.
func TestPressurePanics(t *testing.T) {
	r := rig{pools: []Pool{{64, 4}}, foreign: true}
	r.watermark = watermark{50, func(int, int64, int64) { panic("oh") }}
	s := newTest(t, r)
	l := newLane(t, s)
	var claims []Claim
	for i := range 4 {
		o := l.Put(&Put{Hash: s.hash(key(i)), Key: key(i), Value: []byte("v"), Shape: Shape{Size: 1}, NoEvict: true}, 0)
		if o.Reason != OK {
			t.Fatal(o.Reason)
		}
		claims = append(claims, o.Claim)
	}
	if why := put(l, key(9), []byte("v")); why != Capacity {
		t.Errorf("put with everything held: %v", why)
	}
	if s.stats.PolicyFaults.Load() == 0 {
		t.Error("the panic was not counted")
	}
	for _, c := range claims {
		s.Unhold(c)
	}
	mustPut(t, l, key(9), []byte("v"))
	purge(t, s, l)
}

// New reports what it cannot build.
func TestNewRefuses(t *testing.T) {
	c := rig{}.config()
	for _, n := range []int{0, -1, MaxRecords + 1} {
		c.Records = n
		if s, err := New(c); err == nil {
			s.Stop()
			t.Errorf("%d records were accepted", n)
		}
	}
}
