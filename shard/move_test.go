package shard

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/shard/evict"
)

var (
	moveA = MoveID{7, 1}
	moveB = MoveID{7, 2}
)

// lend claims a key's block, which must be there.
func lend(t testing.TB, s *Shard, k []byte) (Claim, Departing) {
	t.Helper()
	c, l, got := s.Lend(s.hash(k), k, 0)
	if got != MoveOK {
		t.Fatalf("Lend(%q): %v", k, got)
	}
	return c, Departing{Block: l.Block, Hash: s.hash(k), Key: k}
}

func mustMark(t testing.TB, s *Shard, b Block, m MoveID) {
	t.Helper()
	if got := s.Mark(b, m); got != MoveOK {
		t.Fatalf("Mark: %v", got)
	}
}

func removeMoved(s *Shard, m MoveID, blocks ...Departing) []MoveResult {
	out := make([]MoveResult, len(blocks))
	s.RemoveMoved(blocks, m, out)
	return out
}

// adoption reserves memory for a key and fills it with its pattern.
func adoption(t testing.TB, s *Shard, k []byte, size int) Adoption {
	t.Helper()
	a, _, _, why := s.ReserveAdoption(s.hash(k), k, poolsOf(s), int64(size), LookNot)
	if why != OK {
		t.Fatalf("ReserveAdoption(%q): %v", k, why)
	}
	copy(s.Bytes(a.Claim()), pattern(k, 0, size))
	return a
}

func poolsOf(s *Shard) []byte {
	if s.store.classes != nil {
		return nil
	}
	return []byte{0}
}

// bound counts the marks and holds.
func bound(s *Shard) (marks, holds int) {
	s.Do(func() { marks, holds = len(s.moves.marks), len(s.moves.holds) })
	return marks, holds
}

// ending is what a case of TestMarkEnds may do to the mover's claims, and what
// it leaves to be done at the end.
type ending struct{ free, later func() }

// What happens to a marked block between mark and removal, and what the removal
// says to it (rule M1). Each case runs for a block alone and for the middle part
// of a group of three, of which the mover has claimed all parts.
func TestMarkEnds(t *testing.T) {
	noEvict := func(s *Shard, l *Lane, puts []Put) Outcome {
		puts[len(puts)-1].NoEvict = true
		return runOf(l, puts)[len(puts)-1]
	}
	cases := []struct {
		name    string
		do      func(t *testing.T, s *Shard, l *Lane, k []byte, all []Put, on *ending)
		want    MoveResult
		there   bool // afterwards
		grouped int  // 0: both, 1: alone only, 2: in groups only
	}{
		{name: "nothing", want: MoveOK},
		{name: "read", want: MoveOK, do: func(t *testing.T, s *Shard, l *Lane, k []byte, _ []Put, _ *ending) {
			check(t, l, k, pattern(k, 0, 64))
		}},
		{name: "deposit of the run", want: MoveRedeposited, there: true, do: func(t *testing.T, s *Shard, l *Lane, _ []byte, all []Put, _ *ending) {
			mustRun(t, l, all)
		}},
		{name: "deposit in place", want: MoveRedeposited, there: true, do: func(t *testing.T, s *Shard, l *Lane, k []byte, _ []Put, _ *ending) {
			if o := give(l, k, pattern(k, 0, 64)); o.Reason != OK || !o.Old {
				t.Errorf("deposit: %+v", o)
			}
		}},
		{name: "deposit of a reservation", want: MoveRedeposited, there: true, grouped: 1, do: func(t *testing.T, s *Shard, l *Lane, k []byte, _ []Put, _ *ending) {
			r, why := l.Reserve(k, Shape{Size: 64}, 0)
			if why != OK {
				t.Fatal(why)
			}
			copy(s.Bytes(r.Claim()), pattern(k, 0, 64))
			if o := l.CommitReserved(r, &Put{Hash: s.hash(k), Key: k, Shape: Shape{Size: 64}}); o.Reason != OK || !o.Old {
				t.Errorf("commit: %+v", o)
			}
		}},
		{name: "deposit from another node", want: MoveRedeposited, there: true, do: func(t *testing.T, s *Shard, l *Lane, _ []byte, all []Put, _ *ending) {
			var as []Adoption
			for _, p := range all {
				as = append(as, adoption(t, s, p.Key, 64))
			}
			if why, got := s.Adopt(as, &Adopting{}); why != OK || got != MoveOK {
				t.Errorf("Adopt: %v, %v", why, got)
			}
		}},
		{name: "deposit of another layout", want: MoveOK, grouped: 1, do: func(t *testing.T, s *Shard, l *Lane, k []byte, _ []Put, _ *ending) {
			if o := give(l, k, pattern(k, 0, 63)); o.Reason != Layout {
				t.Errorf("deposit: %+v", o)
			}
		}},
		{name: "no_evict", want: MoveNoEvict, there: true, do: func(t *testing.T, s *Shard, l *Lane, _ []byte, all []Put, on *ending) {
			o := noEvict(s, l, all)
			if o.Reason != OK {
				t.Errorf("no_evict: %+v", o)
			}
			on.later = func() { s.Unhold(o.Claim) }
		}},
		{name: "no_evict that has ended", want: MoveNoEvict, there: true, do: func(t *testing.T, s *Shard, l *Lane, _ []byte, all []Put, _ *ending) {
			if err := s.Unhold(noEvict(s, l, all).Claim); err != nil {
				t.Error(err)
			}
		}},
		{name: "delete", want: MoveMiss, do: func(t *testing.T, s *Shard, l *Lane, k []byte, _ []Put, _ *ending) {
			if why := del(l, k); why != OK {
				t.Error(why)
			}
		}},
		{name: "delete generation", want: MoveMiss, do: func(t *testing.T, s *Shard, l *Lane, k []byte, _ []Put, _ *ending) {
			c, _ := get(l, k)
			gen := s.Generation(c)
			s.Release(c)
			if why := l.DeleteGeneration(s.hash(k), k, gen, 0); why != OK {
				t.Error(why)
			}
		}},
		{name: "invalidation", want: MoveMiss, do: func(t *testing.T, s *Shard, l *Lane, k []byte, _ []Put, _ *ending) {
			if got := s.Invalidate(s.hash(k), k, 0); got != MoveOK {
				t.Error(got)
			}
		}},
		{name: "delete and deposit", want: MoveRedeposited, there: true, do: func(t *testing.T, s *Shard, l *Lane, k []byte, all []Put, _ *ending) {
			del(l, k)
			mustRun(t, l, all)
		}},
		{name: "set", want: MoveRedeposited, there: true, grouped: 1, do: func(t *testing.T, s *Shard, l *Lane, k []byte, _ []Put, _ *ending) {
			mustPut(t, l, k, pattern(k, 1, 64))
		}},
		{name: "set in place", want: MoveRedeposited, there: true, grouped: 1, do: func(t *testing.T, s *Shard, l *Lane, k []byte, _ []Put, on *ending) {
			on.free()
			before := s.stats.Replaced.Load()
			mustPut(t, l, k, pattern(k, 1, 64))
			if s.stats.Replaced.Load() != before+1 {
				t.Error("the value was not replaced")
			}
		}},
		{name: "regrouped", want: MoveRedeposited, there: true, grouped: 2, do: func(t *testing.T, s *Shard, l *Lane, k []byte, all []Put, _ *ending) {
			mustRun(t, l, group(s, 1, key(90), all[0].Key, k, all[2].Key))
		}},
		{name: "other move", want: MoveOK, do: func(t *testing.T, s *Shard, l *Lane, k []byte, _ []Put, _ *ending) {
			c, b := lend(t, s, k)
			defer s.Release(c)
			if got := s.Mark(b.Block, moveB); got != MoveMarked {
				t.Errorf("second move's Mark: %v", got)
			}
			s.Unmark(b.Block, moveB)
			if got := removeMoved(s, moveB, b); got[0] != MoveMarked {
				t.Errorf("second move's Remove: %v", got)
			}
		}},
		{name: "deposit, then other move", want: MoveMarked, there: true, do: func(t *testing.T, s *Shard, l *Lane, k []byte, all []Put, on *ending) {
			mustRun(t, l, all)
			c, b := lend(t, s, k)
			defer s.Release(c)
			mustMark(t, s, b.Block, moveB)
			on.later = func() { s.Unmark(b.Block, moveB) }
		}},
		{name: "marked twice by one", want: MoveOK, do: func(t *testing.T, s *Shard, l *Lane, k []byte, _ []Put, _ *ending) {
			c, b := lend(t, s, k)
			defer s.Release(c)
			mustMark(t, s, b.Block, moveA)
		}},
		{name: "hold refused", want: MoveOK, do: func(t *testing.T, s *Shard, l *Lane, k []byte, _ []Put, _ *ending) {
			if got := s.TakeHold(s.hash(k), k, moveB); got != MoveCrossing {
				t.Errorf("TakeHold: %v", got)
			}
		}},
		{name: "hold refused to an arrival", want: MoveOK, do: func(t *testing.T, s *Shard, l *Lane, _ []byte, all []Put, _ *ending) {
			var as []Adoption
			for _, p := range all {
				as = append(as, adoption(t, s, p.Key, 64))
			}
			if why, got := s.Adopt(as, &Adopting{Hold: moveB}); why != OK || got != MoveCrossing {
				t.Errorf("Adopt: %v, %v", why, got)
			}
		}},
		{name: "pressure", want: MoveOK, do: func(t *testing.T, s *Shard, l *Lane, _ []byte, _ []Put, on *ending) {
			on.free()
			pressed(t, l)
		}},
		{name: "released claims", want: MoveOK, do: func(t *testing.T, s *Shard, l *Lane, _ []byte, _ []Put, on *ending) {
			on.free()
		}},
	}
	for _, grouped := range []bool{false, true} {
		for _, tt := range cases {
			if tt.grouped == 1 && grouped || tt.grouped == 2 && !grouped {
				continue
			}
			t.Run(fmt.Sprintf("%s/group=%t", tt.name, grouped), func(t *testing.T) {
				ways(t, rig{pools: []Pool{{64, 32}}}, func(t *testing.T, s *Shard, l *Lane) {
					ks := keys(1, 1)
					if grouped {
						ks = keys(1, 3)
					}
					mustRun(t, l, group(s, 0, ks...))
					var claims []Claim
					var blocks []Departing
					for _, k := range ks {
						c, b := lend(t, s, k)
						claims, blocks = append(claims, c), append(blocks, b)
					}
					on := &ending{later: func() {}}
					on.free = func() {
						for _, c := range claims {
							if err := s.Release(c); err != nil {
								t.Error(err)
							}
						}
						claims = nil
					}
					mustMark(t, s, blocks[0].Block, moveA)
					if tt.do != nil {
						tt.do(t, s, l, ks[len(ks)/2], group(s, 0, ks...), on)
					}
					s.Do(func() {
						for _, problem := range s.moveProblems() {
							t.Error(problem)
						}
					})
					for range 2 { // asked again, it answers from what is there
						for i, got := range removeMoved(s, moveA, blocks...) {
							if got != tt.want && !(tt.want == MoveOK && got == MoveMiss) {
								t.Errorf("block %d: %v, want %v", i, got, tt.want)
							}
						}
					}
					if tt.want == MoveOK {
						if n := s.stats.Moved.Load(); n != uint64(len(ks)) {
							t.Errorf("Moved = %d, want %d", n, len(ks))
						}
					}
					for _, k := range ks {
						if has(l, k) != tt.there {
							t.Errorf("%q is there: %t", k, !tt.there)
						}
					}
					s.Unmark(blocks[0].Block, moveA)
					if m, _ := bound(s); m != 0 && tt.want != MoveMarked {
						t.Errorf("%d marks left", m)
					}
					on.later()
					on.free()
				})
			})
		}
	}
}

// pressed writes three times what fits, so that all leaves that may.
func pressed(t testing.TB, l *Lane) {
	t.Helper()
	n := l.s.cfg.Records
	for i := range 3 * n {
		k := key(1000 + i)
		if why := put(l, k, pattern(k, 0, 64)); why != OK {
			t.Fatalf("put %d of %d: %v", i, 3*n, why)
		}
	}
	if has(l, key(1000)) {
		t.Fatal("there was no pressure")
	}
}

// What a move binds stays under pressure, with every policy, alone and in groups,
// and with an embedder's policy that insists; what it let go may leave.
func TestBoundUnderPressure(t *testing.T) {
	rigs := map[string]rig{"foreign": {foreign: true, make: spy(&spied{}, "lru")}}
	var insist spied
	insist.victim = func(uint32) evict.ID { return 1 } // the block that is bound
	rigs["insisting"] = rig{foreign: true, make: spy(&insist, "lru")}
	for _, name := range evict.Names() {
		rigs[name] = rig{policy: name}
		rigs[name+" classes"] = rig{policy: name, classes: 1 << 20, records: 64}
	}
	for name, r := range rigs {
		for _, hold := range []bool{false, true} {
			for _, n := range []int{1, 3} {
				t.Run(fmt.Sprintf("%s/hold=%t/parts=%d", name, hold, n), func(t *testing.T) {
					if r.pools == nil && r.classes == 0 {
						r.pools = []Pool{{64, 32}}
					}
					s := newTest(t, r)
					l := newLane(t, s)
					ks := keys(1, n)
					mustRun(t, l, group(s, 0, ks...))
					c, b := lend(t, s, ks[0])
					if hold {
						if got := s.TakeHold(b.Hash, b.Key, moveA); got != MoveOK {
							t.Fatal(got)
						}
					} else {
						mustMark(t, s, b.Block, moveA)
					}
					s.Release(c)
					pressed(t, l)
					for _, k := range ks {
						check(t, l, k, pattern(k, 0, 64))
					}
					if hold {
						if !s.Holds(b.Hash, b.Key, moveA) {
							t.Error("the hold is gone")
						}
						s.DropHold(b.Hash, b.Key, moveA)
					} else {
						s.Unmark(b.Block, moveA)
					}
					if name != "insisting" {
						pressed(t, l)
						evictAll(t, s)
					}
					purge(t, s, l)
				})
			}
		}
	}
}

// Rules M2 and M3: what may be held, by whom, against what, and until when.
func TestHoldRules(t *testing.T) {
	for _, grouped := range []bool{false, true} {
		ways(t, rig{pools: []Pool{{64, 32}}}, func(t *testing.T, s *Shard, l *Lane) {
			ks := keys(1, 1)
			if grouped {
				ks = keys(1, 3)
			}
			k, hash := ks[0], s.hash(ks[0])
			last := ks[len(ks)-1]
			expect := func(what string, got, want MoveResult) {
				t.Helper()
				if got != want {
					t.Errorf("group=%t: %s: %v, want %v", grouped, what, got, want)
				}
			}
			expect("hold of nothing", s.TakeHold(hash, k, moveA), MoveMiss)
			mustRun(t, l, group(s, 0, ks...))
			c, b := lend(t, s, k)
			expect("hold", s.TakeHold(hash, k, moveA), MoveOK)
			expect("hold again", s.TakeHold(hash, k, moveA), MoveOK)
			expect("hold of another move", s.TakeHold(hash, k, moveB), MoveHeld)
			expect("mark", s.Mark(b.Block, moveB), MoveHeld)
			expect("invalidation", s.Invalidate(hash, k, 0), MoveHeld)
			for _, wrong := range []MoveID{moveB, {moveA.Peer + 1, moveA.Op}, {}} {
				if s.Holds(hash, k, wrong) {
					t.Errorf("%v holds", wrong)
				}
				s.DropHold(hash, k, wrong)
			}
			if !s.Holds(s.hash(last), last, moveA) {
				t.Error("the hold is gone, after others were dropped")
			}
			var heldBytes int64
			s.Do(func() { heldBytes = s.heldBytes[0] })
			if want := int64(64 * len(ks)); heldBytes != want {
				t.Errorf("%d bytes held, want %d", heldBytes, want)
			}
			// no_evict beside it: each ends alone.
			puts := group(s, 0, ks...)
			puts[len(puts)-1].NoEvict = true
			o := runOf(l, puts)[len(puts)-1]
			if o.Reason != OK {
				t.Fatalf("no_evict: %v", o.Reason)
			}
			s.DropHold(s.hash(last), last, moveA)
			if s.Holds(hash, k, moveA) {
				t.Error("the hold is there, after it was dropped")
			}
			expect("mark beside no_evict", s.Mark(b.Block, moveB), MoveNoEvict)
			expect("invalidation beside no_evict", s.Invalidate(hash, k, 0), MoveNoEvict)
			expect("hold beside no_evict", s.TakeHold(hash, k, moveB), MoveOK)
			if err := s.Unhold(o.Claim); err != nil {
				t.Error(err)
			}
			if !s.Holds(hash, k, moveB) {
				t.Error("the end of no_evict took the hold along")
			}
			expect("invalidation of another generation", s.Invalidate(hash, k, b.gen+1), MoveGeneration)
			// By hand it may go.
			if why := del(l, k); why != OK {
				t.Errorf("delete of a held block: %v", why)
			}
			if s.Holds(hash, k, moveB) {
				t.Error("a deleted block is held")
			}
			expect("mark of a deleted block", s.Mark(b.Block, moveB), MoveMiss)
			s.Release(c)
			expect("mark of a block that is no more", s.Mark(b.Block, moveB), MoveMiss)
			expect("invalidation of nothing", s.Invalidate(hash, k, 0), MoveMiss)
		})
	}
}

// A group leaves whole or not at all, and a part alone lifts the mark.
func TestRemoveGroup(t *testing.T) {
	ways(t, rig{pools: []Pool{{64, 32}}}, func(t *testing.T, s *Shard, l *Lane) {
		ks := keys(1, 3)
		mustRun(t, l, group(s, 0, ks...))
		mustPut(t, l, key(9), pattern(key(9), 0, 64))
		var claims []Claim
		var blocks []Departing
		for _, k := range append(slices.Clone(ks), key(9)) {
			c, b := lend(t, s, k)
			claims, blocks = append(claims, c), append(blocks, b)
			mustMark(t, s, b.Block, moveA)
		}
		if m, _ := bound(s); m != 2 {
			t.Errorf("%d marks, want one for the group and one for the block", m)
		}
		// One part named twice does not stand for another.
		got := removeMoved(s, moveA, blocks[0], blocks[1], blocks[1], blocks[3])
		if want := []MoveResult{MoveGroup, MoveGroup, MoveGroup, MoveOK}; !slices.Equal(got, want) {
			t.Errorf("two parts of three and a block: %v, want %v", got, want)
		}
		if got := removeMoved(s, moveA, blocks[:3]...); got[0] != MoveGroup {
			t.Errorf("all parts, after the mark was lifted: %v", got)
		}
		mustMark(t, s, blocks[2].Block, moveA)
		if got := removeMoved(s, moveA, blocks[2], blocks[0], blocks[1]); !slices.Equal(got, []MoveResult{0, 0, 0}) {
			t.Errorf("all parts: %v", got)
		}
		for i, k := range ks {
			if has(l, k) {
				t.Errorf("%q is there", k)
			}
			if !bytes.Equal(s.Bytes(claims[i]), pattern(k, 0, 64)) {
				t.Errorf("the bytes of %q changed under its claim", k)
			}
		}
		for _, c := range claims {
			s.Release(c)
		}
	})
}

// An arrival is held the moment it can be found: no mark, no eviction and no
// invalidation comes between. Three goroutines try all the time.
func TestAdoptHoldsAtOnce(t *testing.T) {
	n := 16000
	s := newTest(t, rig{pools: []Pool{{64, uint32(n + 64)}}, policy: "fifo"})
	var now atomic.Int64
	done := make(chan struct{})
	var wg sync.WaitGroup
	try := func(f func(k []byte)) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-done:
					return
				default:
					f(key(int(now.Load())))
				}
			}
		}()
	}
	try(func(k []byte) {
		if got := s.Invalidate(s.hash(k), k, 0); got == MoveOK {
			t.Errorf("%q was invalidated", k)
		}
	})
	try(func(k []byte) {
		if c, b, got := s.Lend(s.hash(k), k, 0); got == MoveOK {
			if got := s.Mark(b.Block, moveB); got == MoveOK {
				t.Errorf("%q was marked", k)
			}
			s.Release(c)
		}
	})
	// The third looks whenever the token is free for a moment, however short.
	try(func(k []byte) {
		if !s.token.try() {
			return
		}
		if lead := s.leadOf(s.hash(k), k); lead != 0 && !s.heldFor(lead, moveA) {
			t.Errorf("%q is resident and not held", k)
		}
		s.token.release()
	})
	for i := range n {
		now.Store(int64(i))
		if why, got := s.Adopt([]Adoption{adoption(t, s, key(i), 64)}, &Adopting{Hold: moveA}); why != OK || got != MoveOK {
			t.Errorf("Adopt: %v, %v", why, got)
		}
	}
	close(done)
	wg.Wait()
	for i := range n {
		if !s.Holds(s.hash(key(i)), key(i), moveA) {
			t.Fatalf("%q is not held", key(i))
		}
		s.DropHold(s.hash(key(i)), key(i), moveA)
	}
	if _, h := bound(s); h != 0 {
		t.Errorf("%d holds left", h)
	}
}

// With an embedder's policy all of this runs on the owner goroutine, where that
// policy expects to be called.
func TestMovesOnTheOwner(t *testing.T) {
	calls := 0
	onOwner := func() {
		calls++
		if buf := make([]byte, 16<<10); !bytes.Contains(buf[:runtime.Stack(buf, false)], []byte("shard.(*Shard).own(")) {
			t.Error("the policy was called on another goroutine than the owner")
		}
	}
	var p spied
	p.insert = onOwner
	p.victim = func(now uint32) evict.ID { onOwner(); return p.Policy.Victim(now) }
	s := newTest(t, rig{pools: []Pool{{64, 4}}, foreign: true, make: spy(&p, "lru")})
	for i := range 8 {
		if why, got := s.Adopt([]Adoption{adoption(t, s, key(i), 64)}, &Adopting{}); why != OK || got != MoveOK {
			t.Errorf("Adopt: %v, %v", why, got)
		}
	}
	if calls != 8+4 {
		t.Errorf("%d calls of the policy, want 8 inserts and 4 victims", calls)
	}
}

// What Adopt refuses it refuses whole: memory back, nothing resident, no hold.
func TestAdoptRefuses(t *testing.T) {
	budget := &MoveBudget{MaxMarks: 1, MaxHolds: 1}
	var refuse bool
	policy := spied{admit: func([]evict.Insert) bool { return !refuse }}
	r := rig{pools: []Pool{{64, 16}}, make: spy(&policy, "lru"), foreign: true, loose: true} // drained at the end
	s := newTest(t, r)
	s.Do(func() { s.budget = budget })
	l := newLane(t, s)
	adopt := func(h MoveID, ks ...[]byte) (Reason, MoveResult) {
		var as []Adoption
		for _, k := range ks {
			as = append(as, adoption(t, s, k, 64))
		}
		return s.Adopt(as, &Adopting{Hold: h})
	}
	expect := func(what string, why Reason, got MoveResult, wantWhy Reason, want MoveResult, there bool, k []byte) {
		t.Helper()
		if why != wantWhy || got != want || has(l, k) != there {
			t.Errorf("%s: %v, %v, resident %t; want %v, %v, %t", what, why, got, has(l, k), wantWhy, want, there)
		}
		leaked(t, s)
		audit(t, s)
	}
	refuse = true
	why, got := adopt(moveA, key(1))
	expect("refused by the policy", why, got, Dropped, MoveOK, false, key(1))
	refuse = false
	why, got = adopt(moveA, key(1))
	expect("first", why, got, OK, MoveOK, true, key(1))
	why, got = adopt(moveB, key(2))
	expect("over the cap", why, got, OK, MoveFull, false, key(2))
	why, got = adopt(moveB, key(1))
	expect("held by another", why, got, OK, MoveHeld, true, key(1))
	why, got = adopt(moveA, key(1))
	expect("held by the same", why, got, OK, MoveOK, true, key(1))
	why, got = adopt(MoveID{}, key(3), key(1))
	expect("group over a held block", why, got, OK, MoveHeld, false, key(3))
	why, got = adopt(MoveID{}, key(4))
	expect("copy", why, got, OK, MoveOK, true, key(4))
	a := adoption(t, s, key(1), 63)
	why, got = s.Adopt([]Adoption{a}, &Adopting{Hold: moveA})
	expect("another layout", why, got, Layout, MoveOK, true, key(1))
	if !s.Holds(s.hash(key(1)), key(1), moveA) || budget.Holds() != 1 || budget.HoldRoom(1) || !budget.HoldRoom(0) {
		t.Errorf("%d holds counted", budget.Holds())
	}
	s.DropHold(s.hash(key(1)), key(1), moveA)
	for i, want := range []MoveResult{MoveOK, MoveFull} {
		k := []int{1, 4}[i]
		c, b := lend(t, s, key(k))
		s.Release(c)
		if got := s.Mark(b.Block, moveA); got != want {
			t.Errorf("mark %d of a budget of 1: %v, want %v", i, got, want)
		}
	}
	s.Drain()
	if budget.Marks() != 0 {
		t.Errorf("%d marks after Drain", budget.Marks())
	}
	if why, _ := s.Adopt(nil, &Adopting{}); why != Closed {
		t.Errorf("Adopt after Drain: %v", why)
	}
}

// Lent blocks are described as the other side must make them: pieces, group,
// place in the chain, also where a parent was just replaced.
func TestLend(t *testing.T) {
	s := newTest(t, rig{pools: []Pool{{64, 400}, {128, 64}}, side: 64 << 10})
	l := newLane(t, s)
	ks := keys(0, 300)
	mustRun(t, l, chain(s, Claim{}, 0, ks...))
	expect := func(k []byte, parent []byte, position uint32) {
		t.Helper()
		c, got, res := s.Lend(s.hash(k), k, 0)
		if res != MoveOK {
			t.Fatal(res)
		}
		defer s.Release(c)
		if !bytes.Equal(got.Parent, parent) || got.Position != position {
			t.Errorf("%q: parent %q, position %d; want %q, %d", k, got.Parent, got.Position, parent, position)
		}
		if got.Size != 64 || !bytes.Equal(got.Pools, []byte{0}) || got.Part != 0 || got.Parts != 1 || got.Generation == 0 ||
			!bytes.Equal(s.payload.Bytes(0, int(s.payload.Size()))[got.Offsets[0]:][:64], s.Bytes(c)) {
			t.Errorf("%q: %+v", k, got)
		}
		if _, _, res := s.Lend(s.hash(k), k, got.Generation+1); res != MoveGeneration {
			t.Errorf("Lend of another generation: %v", res)
		}
		if o, ok := s.Look(s.hash(k), k); !ok || !reflect.DeepEqual(o, got.Outline) {
			t.Errorf("Look says %+v, Lend %+v", o, got.Outline)
		}
	}
	expect(ks[0], nil, 0)
	expect(ks[1], ks[0], 1)
	expect(ks[7], ks[6], 7)
	expect(ks[299], ks[298], MaxPosition)
	mustPut(t, l, ks[6], pattern(ks[6], 1, 64)) // with a child: the sweep has to tell it
	expect(ks[7], ks[6], 7)
	del(l, ks[5])
	expect(ks[6], nil, 0)
	if _, _, res := s.Lend(s.hash(ks[5]), ks[5], 0); res != MoveMiss {
		t.Errorf("Lend of nothing: %v", res)
	}
	// A group of blocks of two pieces, and one.
	n, ok := s.Layout([]byte{1, 0})
	if !ok {
		t.Fatal("no layout")
	}
	puts := group(s, 0, key(900), key(901), key(902))
	for i := range 2 {
		puts[i].Value, puts[i].Pieces = nil, [][]byte{pattern(key(1), i, 128), pattern(key(2), i, 64)}
		puts[i].Shape, puts[i].Sum = Shape{Size: 128, Layout: n}, true
	}
	mustRun(t, l, puts)
	groups := map[uint32]bool{}
	for i := range 3 {
		c, got, res := s.Lend(puts[i].Hash, puts[i].Key, 0)
		if res != MoveOK || got.Part != i || got.Parts != 3 {
			t.Fatalf("part %d: %v, %+v", i, res, got)
		}
		groups[got.Group()] = true
		if o, ok := s.Look(puts[i].Hash, puts[i].Key); !ok || !reflect.DeepEqual(o, got.Outline) {
			t.Errorf("part %d: Look says %+v, Lend %+v", i, o, got.Outline)
		}
		if i < 2 {
			pieces := s.PiecesOf(c)
			if got.Size != 192 || !bytes.Equal(got.Pools, []byte{1, 0}) || !got.HasSum || got.Sum != s.sumOf(c) || len(pieces) != 2 {
				t.Errorf("part %d: %+v", i, got)
			}
			for j, b := range pieces {
				if !bytes.Equal(b, puts[i].Pieces[j]) || !bytes.Equal(s.payload.Bytes(0, int(s.payload.Size()))[got.Offsets[j]:][:len(b)], b) {
					t.Errorf("part %d, piece %d lies elsewhere", i, j)
				}
			}
		}
		s.Release(c)
	}
	if len(groups) != 1 {
		t.Errorf("parts of one group have numbers %v", groups)
	}
	purge(t, s, l)
}

// Look waits for nobody who holds the token, leaves no claim, and is no access.
func TestLook(t *testing.T) {
	s := newTest(t, rig{pools: []Pool{{256, 16}}})
	l := newLane(t, s)
	k, hash := key(1), s.hash(key(1))
	if _, ok := s.Look(hash, k); ok {
		t.Error("found what nobody has put")
	}
	mustPut(t, l, k, pattern(k, 0, 200))
	id := s.lookup(hash, k)
	s.Do(func() { s.tick(5) })
	last, now := s.hot[id].last.Load(), s.now.Load()
	looked := make(chan bool)
	s.Do(func() {
		go func() {
			o, ok := s.Look(hash, k)
			looked <- ok && o.Size == 200 && o.Parts == 1 && o.Part == 0
		}()
		select {
		case ok := <-looked:
			if !ok {
				t.Error("it is not there, or another")
			}
		case <-time.After(5 * time.Second):
			t.Error("Look waits for the token")
			go func() { <-looked }()
		}
	})
	if s.hot[id].last.Load() != last || s.now.Load() != now {
		t.Error("Look counts as an access")
	}
	if n := s.Claims(); n != 0 {
		t.Errorf("%d claims are left", n)
	}
	// While a value is overwritten in place only the token holder can tell.
	s.Do(func() {
		w := s.hot[id].word.Load()
		s.hot[id].word.Store(withState(w, filling, 0))
		go func() {
			_, ok := s.Look(hash, k)
			looked <- ok
		}()
		time.Sleep(5 * time.Millisecond) // for it to have looked by itself
		s.hot[id].word.Store(w)
	})
	if !<-looked {
		t.Error("a key is not found while its value is overwritten")
	}
	// And while the bucket changes that a missing key would be in.
	head, other := s.index.first(hash), 2
	for s.index.first(s.hash(key(other))) != head {
		other++
	}
	s.Do(func() { head.head.Add(1) })
	if _, ok := s.Look(s.hash(key(other)), key(other)); ok {
		t.Error("found what nobody has put")
	}
	s.Do(func() { head.head.Add(^uint64(0)) })
	purge(t, s, l)
}

// A child that is adopted before its parent is reachable once both are there.
func TestAdoptLateParent(t *testing.T) {
	s := newTest(t, rig{pools: []Pool{{64, 16}}})
	l := newLane(t, s)
	parent, child := key(1), key(2)
	how := Adopting{Parent: parent, ParentHash: s.hash(parent), ChainLen: 2}
	if why, got := s.Adopt([]Adoption{adoption(t, s, child, 64)}, &how); why != OK || got != MoveOK || !how.Missing {
		t.Fatalf("child: %v, %v, parent missing %t", why, got, how.Missing)
	}
	how = Adopting{ChainLen: 2, Children: []Child{{s.hash(child), child}}}
	if why, got := s.Adopt([]Adoption{adoption(t, s, parent, 64)}, &how); why != OK || got != MoveOK || how.Missing {
		t.Fatalf("parent: %v, %v", why, got)
	}
	c, got, _ := s.Lend(s.hash(child), child, 0)
	s.Release(c)
	if !bytes.Equal(got.Parent, parent) || got.Position != 1 {
		t.Errorf("child has parent %q, position %d", got.Parent, got.Position)
	}
	purge(t, s, l)
}

// A generation names one life, and is never 0.
func TestGenerationNotZero(t *testing.T) {
	if got := genOf(nextFree(^uint64(0))); got != 1 {
		t.Errorf("after the last generation comes %d", got)
	}
	id := uint32(5)
	if got := genOf(firstFree(-(id * 0x9e3779b1), id)); got != 1 {
		t.Errorf("the first generation is %d", got)
	}
}

// A key whose block is replaced, or removed and deposited anew, has another
// generation, in whatever record it comes to lie.
func TestGenerationOfKey(t *testing.T) {
	s := newTest(t, rig{})
	l := newLane(t, s)
	k, hash := key(1), s.hash(key(1))
	seen := map[uint32]int{}
	ids := map[uint32]bool{}
	for i := range 300 {
		var held Claim
		switch i % 3 {
		case 1: // in another record
			held, _ = get(l, k)
		case 2: // in any: another key takes the first that is free
			l.Delete(hash, k, 0)
			mustPut(t, l, key(100+i%7), pattern(key(100+i%7), 0, 64))
		}
		mustPut(t, l, k, pattern(k, i, 64))
		s.Release(held)
		o, ok := s.Look(hash, k)
		if !ok {
			t.Fatal("it is not there")
		}
		if j, twice := seen[o.Generation]; twice {
			t.Fatalf("block %d has the generation of block %d", i, j)
		}
		seen[o.Generation] = i
		c, _ := get(l, k)
		ids[c.id] = true
		if o.Generation != s.Generation(c) {
			t.Errorf("Look says %d, the claim %d", o.Generation, s.Generation(c))
		}
		s.Release(c)
	}
	if len(ids) < 2 {
		t.Error("it always was the same record")
	}
}

// Lifted marks are remembered within a bound, and what is forgotten reads as
// redeposited, which removes nothing.
func TestLiftedBound(t *testing.T) {
	s := newTest(t, rig{})
	l := newLane(t, s)
	mustPut(t, l, key(1), pattern(key(1), 0, 64))
	c, b := lend(t, s, key(1))
	defer s.Release(c)
	noEvict := func() {
		o := l.Put(&Put{Hash: b.Hash, Key: b.Key, Value: pattern(b.Key, 0, 64), Shape: Shape{Size: 64}, NoEvict: true}, 0)
		s.Unhold(o.Claim)
	}
	for i := range maxLifted + 10 {
		mustMark(t, s, b.Block, MoveID{1, uint64(i)})
		noEvict()
	}
	for i, want := range map[int]MoveResult{0: MoveRedeposited, 9: MoveRedeposited, 10: MoveNoEvict, maxLifted + 9: MoveNoEvict} {
		if got := removeMoved(s, MoveID{1, uint64(i)}, b); got[0] != want {
			t.Errorf("move %d: %v, want %v", i, got[0], want)
		}
	}
	if !has(l, b.Key) {
		t.Error("the block is gone")
	}
}

// Random steps of several goroutines, each the only one to touch its keys, beside
// a model of what is bound; all press on one memory. With the embedder's policy
// every step runs on the owner.
func TestMovesModel(t *testing.T) {
	for _, name := range append(evict.Names(), "foreign") {
		t.Run(name, func(t *testing.T) {
			r := rig{pools: []Pool{{64, 96}}, policy: name}
			if name == "foreign" {
				r.policy, r.foreign, r.make = "", true, spy(&spied{}, "lru")
			}
			s := newTest(t, r)
			var wg sync.WaitGroup
			for g := range 4 {
				wg.Add(1)
				go func() {
					defer wg.Done()
					l := newLane(t, s)
					m := movesModel{t: t, s: s, l: l, rnd: rand.New(rand.NewPCG(uint64(g), 5)), base: 1000 * g, keys: make([]modelKey, 12)}
					for range 1500 {
						m.step()
					}
					m.end()
					l.Close()
				}()
			}
			wg.Wait()
			if m, h := bound(s); m != 0 || h != 0 {
				t.Errorf("%d marks and %d holds left", m, h)
			}
			leaked(t, s)
			audit(t, s)
			evictAll(t, s)
		})
	}
}

// modelKey is what a goroutine knows of one of its keys, all of one block.
type modelKey struct {
	mark, hold MoveID
	claim      Claim // of block, while a move is under way
	block      Departing
	claimed    bool
	lifted     MoveResult // what a removal must answer, when mark has ended
	mover      MoveID     // who marked it last, while claimed
	noEvict    []Claim
}

type movesModel struct {
	t    *testing.T
	s    *Shard
	l    *Lane
	rnd  *rand.Rand
	base int
	keys []modelKey
	ops  uint64
}

func (m *movesModel) end() {
	for i := range m.keys {
		k := &m.keys[i]
		for _, c := range k.noEvict {
			m.s.Unhold(c)
		}
		if k.claimed {
			m.s.Unmark(k.block.Block, k.mover)
			m.s.Release(k.claim)
		}
		m.s.DropHold(m.s.hash(key(m.base+i)), key(m.base+i), k.hold)
	}
}

// gone forgets what bound a block that was removed or replaced.
func (k *modelKey) gone(why MoveResult) {
	if k.mark != (MoveID{}) {
		k.lifted = why
	}
	k.mark, k.hold = MoveID{}, MoveID{}
}

func (m *movesModel) step() {
	i := m.rnd.IntN(len(m.keys))
	k, name := &m.keys[i], key(m.base+i)
	hash := m.s.hash(name)
	value := pattern(name, 0, 64)
	m.ops++
	id := MoveID{uint64(m.base + 1), m.ops}
	hard := len(k.noEvict) > 0
	must := func(what string, got, want MoveResult) {
		if got != want {
			m.t.Errorf("%q: %s: %v, want %v; %+v", name, what, got, want, *k)
		}
	}
	held := k.hold != MoveID{}
	marked := k.mark != MoveID{}
	if (marked || held || hard) && !has(m.l, name) {
		m.t.Errorf("%q is bound and gone: %+v", name, *k)
	}
	switch m.rnd.IntN(12) {
	case 0, 1: // deposit
		if o := give(m.l, name, value); o.Reason == OK && marked {
			k.mark, k.lifted = MoveID{}, MoveRedeposited
		}
	case 2: // no_evict
		if len(k.noEvict) > 1 {
			return
		}
		o := m.l.Put(&Put{Hash: hash, Key: name, Value: value, Shape: Shape{Size: 64}, NoEvict: true}, 0)
		if o.Reason != OK {
			return
		}
		k.noEvict = append(k.noEvict, o.Claim)
		if marked {
			k.mark, k.lifted = MoveID{}, MoveNoEvict
		}
	case 3:
		if hard {
			m.s.Unhold(k.noEvict[0])
			k.noEvict = k.noEvict[1:]
		}
	case 4: // set
		if put(m.l, name, value) == OK {
			k.gone(MoveRedeposited)
			m.dropNoEvict(k)
		}
	case 5: // delete
		if del(m.l, name) == OK {
			k.gone(MoveMiss)
			m.dropNoEvict(k)
		}
	case 6: // invalidation
		got := m.s.Invalidate(hash, name, 0)
		switch {
		case hard:
			must("invalidation", got, MoveNoEvict)
		case held:
			must("invalidation", got, MoveHeld)
		case got == MoveOK:
			k.gone(MoveMiss)
		default:
			must("invalidation", got, MoveMiss)
		}
	case 7, 8: // begin a move
		if k.claimed {
			return
		}
		c, lent, got := m.s.Lend(hash, name, 0)
		if got != MoveOK {
			return
		}
		k.claim, k.claimed, k.mover, k.lifted = c, true, id, MoveRedeposited
		k.block = Departing{Block: lent.Block, Hash: hash, Key: name}
		got = m.s.Mark(lent.Block, id)
		switch {
		case held:
			must("mark", got, MoveHeld)
		case hard:
			must("mark", got, MoveNoEvict)
			k.lifted = MoveNoEvict
		default:
			must("mark", got, MoveOK)
			k.mark = id
		}
		if got != MoveOK {
			m.s.Release(c)
			k.claimed = false
		}
	case 9, 10: // end it
		if !k.claimed {
			return
		}
		if m.rnd.IntN(4) == 0 {
			m.s.Unmark(k.block.Block, k.mover)
			k.mark = MoveID{}
		} else {
			got := removeMoved(m.s, k.mover, k.block)[0]
			switch {
			case marked:
				must("removal", got, MoveOK)
				if has(m.l, name) {
					m.t.Errorf("%q is there after its removal", name)
				}
			case k.lifted == MoveMiss || k.lifted == MoveRedeposited:
				// Since then it may have been removed, evicted, deposited.
				if got != MoveMiss && got != MoveRedeposited && got != MoveNoEvict {
					must("removal", got, k.lifted)
				}
			case got == MoveOK:
				must("removal", got, k.lifted)
			}
			k.mark = MoveID{}
		}
		if !bytes.Equal(m.s.Bytes(k.claim), value) {
			m.t.Errorf("%q: bytes changed under the claim", name)
		}
		m.s.Release(k.claim)
		k.claimed = false
	case 11: // arrive by a move, or end its hold
		if held && m.rnd.IntN(2) == 0 {
			if !m.s.Holds(hash, name, k.hold) {
				m.t.Errorf("%q is not held", name)
			}
			m.s.DropHold(hash, name, k.hold)
			k.hold = MoveID{}
			return
		}
		a, found, _, why := m.s.ReserveAdoption(hash, name, []byte{0}, 64, LookAny)
		var got MoveResult
		switch {
		case why != OK:
			return
		case found == Same:
			got = m.s.TakeHold(hash, name, id)
		default:
			copy(m.s.Bytes(a.Claim()), value)
			why, got = m.s.Adopt([]Adoption{a}, &Adopting{Hold: id})
		}
		switch {
		case marked:
			must("hold", got, MoveCrossing)
		case held:
			must("hold", got, MoveHeld)
		case why != OK || got == MoveMiss: // evicted since
		default:
			must("hold", got, MoveOK)
			k.hold = id
		}
	}
}

// dropNoEvict ends the holds of a block that is gone.
func (m *movesModel) dropNoEvict(k *modelKey) {
	for _, c := range k.noEvict {
		m.s.Unhold(c)
	}
	k.noEvict = nil
}

// Rule M7: stored is published before an arrival is answered, with its parent;
// removed when nobody can claim the block any more.
func TestMoveEvents(t *testing.T) {
	s := newTest(t, rig{pools: []Pool{{64, 16}}})
	l := newLane(t, s)
	var seen []string
	s.Do(func() {
		s.Watch(func(c Change) {
			seen = append(seen, fmt.Sprintf("%t %s under %q", c.Stored, c.Key, c.Parent))
			if c.Stored {
				return
			}
			for id := uint32(1); id <= s.freshRec; id++ {
				if st := stateOf(s.hot[id].word.Load()); s.keyIs(id, c.Key) && st != retiring && st != free {
					t.Errorf("%q is told removed with word %#x", c.Key, s.hot[id].word.Load())
				}
			}
			if s.lookup(s.hash(c.Key), c.Key) != 0 {
				t.Errorf("%q is told removed and can be found", c.Key)
			}
		})
	})
	expect := func(want ...string) {
		t.Helper()
		if !slices.Equal(seen, want) {
			t.Errorf("events %q, want %q", seen, want)
		}
		seen = nil
	}
	s.Adopt([]Adoption{adoption(t, s, key(1), 64)}, &Adopting{Hold: moveA})
	expect(`true key-000001 under ""`)
	s.Adopt([]Adoption{adoption(t, s, key(2), 64)}, &Adopting{Hold: moveA, Parent: key(1), ParentHash: s.hash(key(1))})
	expect(`true key-000002 under "key-000001"`)
	s.Adopt([]Adoption{adoption(t, s, key(2), 64)}, &Adopting{Hold: moveA}) // resident by now
	expect()
	var blocks []Departing
	for i := 1; i < 3; i++ {
		s.DropHold(s.hash(key(i)), key(i), moveA)
		c, b := lend(t, s, key(i))
		mustMark(t, s, b.Block, moveB)
		blocks = append(blocks, b)
		defer s.Release(c)
	}
	removeMoved(s, moveB, blocks...)
	expect(`false key-000002 under ""`, `false key-000001 under ""`)
	s.Do(func() { s.Watch(nil) })
	if has(l, key(1)) {
		t.Error("a removed block is there")
	}
}

// A block adopted for its readers leaves by ExpelBlock, unless somebody has wanted it
// since.
func TestPassing(t *testing.T) {
	s := newTest(t, rig{pools: []Pool{{64, 16}}})
	l := newLane(t, s)
	adopt := func(n int, h MoveID) Block {
		t.Helper()
		why, got := s.Adopt([]Adoption{adoption(t, s, key(n), 64)}, &Adopting{Passing: true, Hold: h})
		c, ok := get(l, key(n))
		if why != OK || got != MoveOK || !ok {
			t.Fatal(why, got, ok)
		}
		defer s.Release(c)
		return s.BlockOf(c)
	}
	hold := func(n int) (uint64, []byte, MoveID) { return s.hash(key(n)), key(n), MoveID{1, uint64(n)} }
	wanted := []func(n int){
		0: nil,
		1: func(n int) { give(l, key(n), pattern(key(n), 0, 64)) },
		2: func(n int) { s.TakeHold(hold(n)); s.DropHold(hold(n)) },
		3: func(n int) {
			if !s.Keep(s.hash(key(n)), key(n)) {
				t.Error("Keep says that it is not there")
			}
		},
		4: func(n int) { mustPut(t, l, key(n), pattern(key(n), 1, 64)) },
	}
	for n, want := range wanted {
		b := adopt(n, MoveID{})
		if want != nil {
			want(n)
		}
		if got := s.ExpelBlock(b); (got == MoveOK) != (want == nil) {
			t.Errorf("%d: %v", n, got)
		}
		if got := s.ExpelBlock(b); got != MoveMiss {
			t.Errorf("%d, once more: %v", n, got)
		}
	}
	_, _, m := hold(20)
	if b := adopt(20, m); s.ExpelBlock(b) != MoveMiss {
		t.Error("the copy that a move has brought has left")
	}
	s.DropHold(hold(20))
	if n := s.budget.Passing(); n != 0 || s.moves.n != 0 {
		t.Errorf("%d pass, %d in all", n, s.moves.n)
	}
	adopt(22, MoveID{})
	l.Delete(s.hash(key(22)), key(22), 0)
	if n := s.budget.Passing(); n != 0 {
		t.Errorf("%d pass that are gone", n)
	}
	if !s.Keep(s.hash(key(99)), key(99)) {
		t.Error("Keep looks where nothing passes")
	}
	adopt(23, MoveID{})
	if s.Keep(s.hash(key(99)), key(99)) {
		t.Error("Keep finds what is not there")
	}
	purge(t, s, l)
}
