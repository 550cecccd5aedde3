package shard

import (
	"bytes"
	"runtime"
	"sync"
	"testing"
	"time"
)

// A drained shard answers Closed, keeps what readers claim and writers fill,
// and counts it until the last of them is through.
func TestDrain(t *testing.T) {
	for _, helped := range []bool{true, false} {
		s := newTest(t, rig{pools: []Pool{{64, 64}}, loose: true})
		s.helped = helped
		l, magazines := newLane(t, s), newLane(t, s)
		for i := range 70 {
			mustPut(t, l, key(i), pattern(key(i), 0, 64))
		}
		mustRun(t, l, group(s, 1, keys(200, 3)...))
		mustRun(t, l, group(s, 1, keys(210, 3)...))
		mustPut(t, l, key(100), pattern(key(100), 0, 64))
		mustPut(t, l, key(101), pattern(key(101), 0, 64))
		claims := map[string]Claim{}
		for _, k := range [][]byte{key(100), key(101), key(200)} {
			c, ok := get(l, k)
			if !ok {
				t.Fatalf("%s is a miss", k)
			}
			claims[string(k)] = c
		}
		again, _ := get(l, key(202)) // a second claim on the group
		del(l, key(101))             // claimed and not resident any more
		held := l.Put(&Put{Hash: s.hash(key(102)), Key: key(102), Value: pattern(key(102), 0, 64), Shape: Shape{Size: 64}, NoEvict: true}, 0)
		open, why := l.Reserve(key(300), Shape{Size: 64}, 0)
		committed, why2 := l.Reserve(key(301), Shape{Size: 64}, 0)
		if held.Reason != OK || why != OK || why2 != OK {
			t.Fatal(held.Reason, why, why2)
		}
		back, _ := get(l, key(100))
		s.Release(back)
		l.Recall()
		magazines.Close()

		s.Drain()
		if has, ok, sure := s.Peek(s.hash(key(100)), key(100)); ok {
			t.Errorf("a hit after Drain: %+v, sure %t", has, sure)
		}
		if why := put(l, key(1), pattern(key(1), 0, 64)); why != Closed {
			t.Errorf("put after Drain: %v", why)
		}
		if why := del(l, key(1)); why != Closed {
			t.Errorf("delete after Drain: %v", why)
		}
		if _, ok := l.Ask(s.hash(key(100)), key(100), 0); ok {
			t.Error("Ask hits after Drain")
		}
		if _, why := l.Reserve(key(2), Shape{Size: 64}, 0); why != Closed {
			t.Errorf("reserve after Drain: %v", why)
		}
		// 100, 101, 102, a group of 3, two reservations.
		if n := s.Lingering(); n != 8 {
			t.Errorf("%d records linger, want 8", n)
		}
		for k, c := range claims {
			v := 0
			if k == string(key(200)) {
				v = 1
			}
			if !bytes.Equal(s.Bytes(c), pattern([]byte(k), v, 64)) {
				t.Errorf("the bytes of %s changed with Drain", k)
			}
		}
		left := 8
		step := func(what string, freed int, f func()) {
			t.Helper()
			f()
			left -= freed
			if n := s.Lingering(); n != left {
				t.Errorf("%s: %d records linger, want %d", what, n, left)
			}
		}
		step("release", 1, func() { s.Release(claims[string(key(100))]) })
		step("release of a deleted block", 1, func() { s.Release(claims[string(key(101))]) })
		step("one of two claims on a group", 0, func() { s.Release(claims[string(key(200))]) })
		step("the other", 3, func() { s.Release(again) })
		step("unhold", 1, func() { s.Unhold(held.Claim) })
		step("abandon", 1, func() { s.Abandon(open) })
		step("a commit that comes too late", 1, func() {
			o := l.CommitReserved(committed, &Put{Hash: s.hash(key(301)), Key: key(301), Shape: Shape{Size: 64}})
			if o.Reason != Closed {
				t.Errorf("commit after Drain: %v", o.Reason)
			}
		})
		if left != 0 {
			t.Errorf("the test expects %d records to linger", left)
		}
	}
}

// An abort after Drain counts like an abandoned reservation.
func TestAbortAfterDrain(t *testing.T) {
	s := newTest(t, rig{loose: true})
	l := newLane(t, s)
	r, why := l.Reserve(key(1), Shape{Size: 64}, 0)
	if why != OK {
		t.Fatal(why)
	}
	s.Drain()
	if n := s.Lingering(); n != 1 {
		t.Errorf("%d records linger, want the reservation", n)
	}
	l.Abort(r)
	if n := s.Lingering(); n != 0 {
		t.Errorf("%d records linger after the abort", n)
	}
}

// Drain in the middle of a group's commits: its parts are not forgotten.
func TestDrainWithinRun(t *testing.T) {
	s := newTest(t, rig{loose: true})
	l := newLane(t, s)
	puts := group(s, 1, keys(1, 3)...)
	reqs := make([]request, 3)
	out := make([]reply, 3)
	for i := range reqs {
		reqs[i] = request{op: opReserve, size: 64, keyLen: uint32(len(puts[i].Key))}
	}
	l.do(reqs, out)
	for i := range puts {
		s.fill(out[i].id, &puts[i])
		reqs[i] = puts[i].commit(out[i].id)
	}
	l.do(reqs[:2], out[:2])
	s.Drain()
	l.do(reqs[2:], out[2:])
	if out[2].reason != Closed {
		t.Errorf("the leader's commit: %v", out[2].reason)
	}
	if n := s.Lingering(); n != 0 {
		t.Errorf("%d records linger after a group that came too late", n)
	}
}

// Releases on many goroutines beside Drain and Lingering: the count ends at 0,
// exactly when the last one is through.
func TestDrainBesideReleases(t *testing.T) {
	rounds := 20
	if testing.Short() {
		rounds = 6
	}
	for range rounds {
		s := newTest(t, rig{pools: []Pool{{64, 200}}, policy: "lru", loose: true})
		l := newLane(t, s)
		var claims [4][]Claim
		for i := range 200 {
			mustPut(t, l, key(i), pattern(key(i), 0, 64))
			for r := range claims {
				if (i+r)%3 == 0 {
					c, _ := get(l, key(i))
					claims[r] = append(claims[r], c)
				}
			}
		}
		l.Close()
		var wg sync.WaitGroup
		for r := range claims {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for _, c := range claims[r] {
					s.Release(c)
				}
			}()
		}
		s.Drain()
		for i := 0; s.Lingering() > 0; i++ {
			if i > 50000 {
				t.Fatalf("%d records linger for ever", s.Lingering())
			}
			time.Sleep(20 * time.Microsecond)
		}
		wg.Wait()
		if n := s.Lingering(); n != 0 {
			t.Errorf("%d records linger after all releases", n)
		}
	}
}

// Lanes are counted: MaxLanes at once, and a closed one makes room.
func TestLanes(t *testing.T) {
	s := newTest(t, rig{})
	var ls []*Lane
	for range MaxLanes {
		ls = append(ls, newLane(t, s))
	}
	if _, ok := s.NewLane(); ok {
		t.Errorf("more than %d lanes", MaxLanes)
	}
	last := ls[MaxLanes-1]
	mustPut(t, last, key(1), pattern(key(1), 0, 64))
	s.helped = false // the last bell of the last word
	mustPut(t, last, key(2), pattern(key(2), 0, 64))
	ls[7].Close()
	l, ok := s.NewLane()
	if !ok || l.number != 7 {
		t.Errorf("a closed lane's place is not taken: %t", ok)
	}
	mustPut(t, l, key(3), pattern(key(3), 0, 64))
	check(t, last, key(3), pattern(key(3), 0, 64))
	for _, l := range append(ls[:7], ls[8:]...) {
		l.Close()
	}
	l.Recall()
	leaked(t, s)
}

// Records in magazines come back when memory runs out, when their lane is
// closed, and are never more than their share.
func TestMagazines(t *testing.T) {
	const slots = 64
	s := newTest(t, rig{pools: []Pool{{64, slots}}, policy: "lru"})
	s.helped = false
	a, b := newLane(t, s), newLane(t, s)
	for i := range 200 {
		mustPut(t, a, key(i%20), pattern(key(i%20), i, 64))
		mustPut(t, b, key(100+i%20), pattern(key(100+i%20), i, 64))
		if n := int(s.inMagazines.Load()); n > slots/16 {
			t.Fatalf("%d records in magazines, at most %d may be", n, slots/16)
		}
	}
	audit(t, s)
	if n := s.inMagazines.Load(); n == 0 {
		t.Error("no lane has a magazine after 200 queued puts")
	}
	// Claim all that is resident; what a put then finds is in magazines.
	for i := range slots {
		put(a, key(1000+i), pattern(key(1000+i), 0, 64))
	}
	var claims []Claim
	s.Do(func() {
		s.Each(func(k []byte, _ int64) {
			if c, ok, _ := s.Peek(s.hash(k), k); ok {
				claims = append(claims, c)
			}
		})
	})
	s.helped = true
	if why := put(b, key(5000), pattern(key(5000), 0, 64)); why != Capacity {
		t.Errorf("put with everything claimed or in magazines: %v", why)
	}
	// Each lane answers the recall with its next reservation.
	large := pattern(key(1), 0, 64)
	got := 0
	for i := range 8 {
		for _, l := range []*Lane{a, b} {
			if r, why := l.Reserve(key(6000+i), Shape{Size: len(large)}, 0); why == OK {
				got++
				defer l.Abort(r)
			}
		}
	}
	if n := s.inMagazines.Load(); n != 0 {
		t.Errorf("%d records stay in magazines after a recall", n)
	}
	if want := slots - len(claims); got != want {
		t.Errorf("%d reservations after the recall, %d records are not claimed", got, want)
	}
	for _, c := range claims {
		s.Release(c)
	}
	b.Close()
}

// A lane takes from its magazine while the token is held, and the count says
// so.
func TestMagazineIsUsed(t *testing.T) {
	s := newTest(t, rig{pools: []Pool{{64, 64}}})
	s.helped = false
	l := newLane(t, s)
	mustPut(t, l, key(1), pattern(key(1), 0, 64))
	if l.magN != 1 {
		t.Fatalf("%d records in the magazine after a queued put, want 1", l.magN)
	}
	ahead := l.mag[0]
	for !s.token.try() {
		runtime.Gosched()
	}
	id, why := l.reserve(Shape{Size: 64}, len(key(1)), 0) // would wait for ever without one
	s.unlock(0)
	if why != OK || id != ahead || l.magN != 0 {
		t.Errorf("reserved %d (%v), the magazine held %d and has %d left", id, why, ahead, l.magN)
	}
	if n := s.inMagazines.Load(); n != 0 {
		t.Errorf("%d records counted in magazines", n)
	}
	l.Abort(Reserved{id: id})
	// Another shape is not served from it.
	mustPut(t, l, key(2), pattern(key(2), 0, 64))
	ahead = l.mag[0]
	if id, why := l.reserve(Shape{Size: 63}, len(key(1)), 0); why != OK || id == ahead {
		t.Errorf("a reservation of another size: %v, record %d", why, id)
	} else {
		l.Abort(Reserved{id: id})
	}
	purge(t, s, l)
}
