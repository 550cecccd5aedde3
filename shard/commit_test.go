package shard

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// chain is the puts of a chain of keys, the first under parent.
func chain(s *Shard, parent Claim, n0 int, keys ...[]byte) []Put {
	puts := make([]Put, len(keys))
	for i, k := range keys {
		puts[i] = Put{
			Hash: s.hash(k), Key: k, Value: pattern(k, 0, 64), Shape: Shape{Size: 64},
			ChainLen: uint32(n0 + len(keys)), Follows: i > 0, Tail: i == len(keys)-1 && n0+len(keys) > 1,
		}
	}
	puts[0].Parent = parent
	return puts
}

// group is the puts of one group: the last part leads.
func group(s *Shard, version int, keys ...[]byte) []Put {
	puts := make([]Put, len(keys))
	for i, k := range keys {
		puts[i] = Put{Hash: s.hash(k), Key: k, Value: pattern(k, version, 64), Shape: Shape{Size: 64}, Member: i < len(keys)-1}
	}
	return puts
}

func runOf(l *Lane, puts []Put) []Outcome {
	outs := make([]Outcome, len(puts))
	l.PutRun(puts, outs, 0)
	return outs
}

func mustRun(t testing.TB, l *Lane, puts []Put) []Outcome {
	t.Helper()
	outs := runOf(l, puts)
	for i := range outs {
		if outs[i].Reason != OK {
			t.Fatalf("block %d of %d: %v", i, len(outs), outs[i].Reason)
		}
	}
	return outs
}

func keys(from, n int) (out [][]byte) {
	for i := range n {
		out = append(out, key(from+i))
	}
	return out
}

// ways runs a test with every command executed in place, and with every
// command through the rings.
func ways(t *testing.T, r rig, f func(t *testing.T, s *Shard, l *Lane)) {
	for _, helped := range []bool{true, false} {
		t.Run(fmt.Sprintf("helped=%t", helped), func(t *testing.T) {
			s := newTest(t, r)
			s.helped = helped
			l := newLane(t, s)
			within(t, 30*time.Second, func() { f(t, s, l) })
			if !t.Failed() {
				purge(t, s, l)
			}
		})
	}
}

func TestGroup(t *testing.T) {
	ways(t, rig{}, func(t *testing.T, s *Shard, l *Lane) {
		a, b, c := key(1), key(2), key(3)
		mustRun(t, l, group(s, 1, a, b, c))
		for _, k := range [][]byte{a, b, c} {
			check(t, l, k, pattern(k, 1, 64))
		}
		if got := s.stats.Blocks.Load(); got != 3 {
			t.Errorf("%d blocks, want 3", got)
		}
		// A claim on any part protects all.
		for i, k := range [][]byte{a, b, c} {
			claim, ok := get(l, k)
			if !ok {
				t.Errorf("%s is a miss", k)
				return
			}
			for j := range 200 {
				f := key(1000 + 200*i + j)
				mustPut(t, l, f, pattern(f, 0, 64))
			}
			for _, k := range [][]byte{a, b, c} {
				check(t, l, k, pattern(k, 1, 64))
			}
			if s.Claims() != 1 {
				t.Errorf("%d claims for one", s.Claims())
			}
			s.Release(claim)
		}
		// Deleting one part takes all; a claim keeps the bytes of all.
		claim, _ := get(l, a)
		if why := del(l, b); why != OK {
			t.Errorf("delete: %v", why)
		}
		for _, k := range [][]byte{a, b, c} {
			if has(l, k) {
				t.Errorf("%s survived the delete of its group", k)
			}
		}
		for j := range 200 {
			f := key(3000 + j)
			mustPut(t, l, f, pattern(f, 0, 64))
		}
		if !bytes.Equal(s.Bytes(claim), pattern(a, 1, 64)) {
			t.Error("the bytes of a claimed part changed after the delete")
		}
		s.Release(claim)
	})
}

// Eviction takes all parts of a group or none.
func TestGroupsLeaveWhole(t *testing.T) {
	for _, policy := range []string{"density", "lru", "s3fifo"} {
		t.Run(policy, func(t *testing.T) {
			s := newTest(t, rig{policy: policy})
			l := newLane(t, s)
			for g := range 200 {
				mustRun(t, l, group(s, g, keys(g*3, 3)...))
				for h := range g + 1 {
					n := 0
					for _, k := range keys(h*3, 3) {
						if has(l, k) {
							n++
						}
					}
					if n != 0 && n != 3 {
						t.Fatalf("after group %d, %d of 3 parts of group %d are resident", g, n, h)
					}
				}
			}
			evictAll(t, s)
			purge(t, s, l)
		})
	}
}

// No part of a group can be read before its last one is committed. The
// commits go through a lane one by one, as a ring may split them.
func TestGroupAppearsWhole(t *testing.T) {
	s := newTest(t, rig{})
	l, other := newLane(t, s), newLane(t, s)
	ks := keys(1, 3)
	puts := group(s, 1, ks...)
	for i := range puts {
		var out [1]reply
		l.do([]request{{op: opReserve, size: 64, keyLen: uint32(len(ks[i]))}}, out[:])
		if out[0].reason != OK {
			t.Fatal(out[0].reason)
		}
		s.fill(out[0].id, &puts[i])
		l.do([]request{puts[i].commit(out[0].id)}, out[:])
		if out[0].reason != OK {
			t.Fatal(out[0].reason)
		}
		for _, k := range ks {
			if has(other, k) != (i == 2) {
				t.Fatalf("%s after %d of 3 parts: resident %t", k, i+1, has(other, k))
			}
		}
		mustPut(t, other, key(100), pattern(key(100), i, 64)) // another lane's command in between
	}
	if why := del(l, ks[0]); why != OK {
		t.Fatal(why)
	}
	purge(t, s, l)
}

// What a group does to blocks that are resident under its keys.
func TestGroupOverResident(t *testing.T) {
	a, b, c, d := key(1), key(2), key(3), key(4)
	for _, tt := range []struct {
		name   string
		before func(t *testing.T, s *Shard, l *Lane)
		puts   func(s *Shard) []Put
		keep   [][]byte // resident in version 1
		want   [][]byte // resident in version 2
		gone   [][]byte
	}{
		{"the leader's key alone",
			func(t *testing.T, s *Shard, l *Lane) { mustPut(t, l, b, pattern(b, 1, 64)) },
			func(s *Shard) []Put { return group(s, 2, a, b) }, nil, [][]byte{a, b}, nil},
		{"a part's key alone",
			func(t *testing.T, s *Shard, l *Lane) { mustPut(t, l, a, pattern(a, 1, 64)) },
			func(s *Shard) []Put { return group(s, 2, a, b) }, nil, [][]byte{a, b}, nil},
		{"both keys, each alone",
			func(t *testing.T, s *Shard, l *Lane) {
				mustPut(t, l, a, pattern(a, 1, 64))
				mustPut(t, l, b, pattern(b, 1, 64))
			},
			func(s *Shard) []Put { return group(s, 2, a, b) }, nil, [][]byte{a, b}, nil},
		{"the same group",
			func(t *testing.T, s *Shard, l *Lane) { mustRun(t, l, group(s, 1, a, b)) },
			func(s *Shard) []Put { return group(s, 2, a, b) }, [][]byte{a, b}, nil, nil},
		{"a part of another group",
			func(t *testing.T, s *Shard, l *Lane) { mustRun(t, l, group(s, 1, c, a, d)) },
			func(s *Shard) []Put { return group(s, 2, a, b) }, nil, [][]byte{a, b}, [][]byte{c, d}},
		{"the leader of another group",
			func(t *testing.T, s *Shard, l *Lane) { mustRun(t, l, group(s, 1, c, b)) },
			func(s *Shard) []Put { return group(s, 2, a, b) }, nil, [][]byte{a, b}, [][]byte{c}},
		{"a set of one part",
			func(t *testing.T, s *Shard, l *Lane) { mustRun(t, l, group(s, 1, a, b, c)) },
			func(s *Shard) []Put {
				return []Put{{Hash: s.hash(b), Key: b, Value: pattern(b, 2, 64), Shape: Shape{Size: 64}, Set: true}}
			}, nil, [][]byte{b}, [][]byte{a, c}},
		{"a set of the leader",
			func(t *testing.T, s *Shard, l *Lane) { mustRun(t, l, group(s, 1, a, b, c)) },
			func(s *Shard) []Put {
				return []Put{{Hash: s.hash(c), Key: c, Value: pattern(c, 2, 64), Shape: Shape{Size: 64}, Set: true}}
			}, nil, [][]byte{c}, [][]byte{a, b}},
		{"a deposit of one part",
			func(t *testing.T, s *Shard, l *Lane) { mustRun(t, l, group(s, 1, a, b, c)) },
			func(s *Shard) []Put {
				return []Put{{Hash: s.hash(b), Key: b, Value: pattern(b, 2, 64), Shape: Shape{Size: 64}}}
			}, [][]byte{a, b, c}, nil, nil},
		{"two groups of one deposit that share a part",
			func(*testing.T, *Shard, *Lane) {},
			func(s *Shard) []Put {
				return append(group(s, 1, c, a, d), group(s, 2, a, b)...)
			}, nil, [][]byte{a, b}, [][]byte{c, d}},
		{"a chain and a group that takes a block of it",
			func(*testing.T, *Shard, *Lane) {},
			func(s *Shard) []Put {
				return append(chain(s, Claim{}, 0, c, a), group(s, 2, a, b)...)
			}, nil, [][]byte{a, b}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ways(t, rig{}, func(t *testing.T, s *Shard, l *Lane) {
				tt.before(t, s, l)
				mustRun(t, l, tt.puts(s))
				for _, k := range tt.keep {
					check(t, l, k, pattern(k, 1, 64))
				}
				for _, k := range tt.want {
					check(t, l, k, pattern(k, 2, 64))
				}
				for _, k := range tt.gone {
					if has(l, k) {
						t.Errorf("%s is still resident", k)
					}
				}
				audit(t, s)
			})
		})
	}
}

// A NoEvict deposit of a resident part claims the group and shows the part.
func TestHoldOfResidentPart(t *testing.T) {
	ways(t, rig{}, func(t *testing.T, s *Shard, l *Lane) {
		a, b := key(1), key(2)
		mustRun(t, l, group(s, 1, a, b))
		for _, k := range [][]byte{a, b} {
			p := Put{Hash: s.hash(k), Key: k, Value: pattern(k, 1, 64), Shape: Shape{Size: 64}, NoEvict: true}
			o := l.Put(&p, 0)
			if o.Reason != OK || !o.Old {
				t.Fatalf("%+v", o)
			}
			if !bytes.Equal(s.Bytes(o.Claim), pattern(k, 1, 64)) {
				t.Errorf("the claim on %s shows %.8x", k, s.Bytes(o.Claim))
			}
			if err := s.Unhold(o.Claim); err != nil {
				t.Error(err)
			}
		}
		leakedBut(t, s, l)
	})
}

// leakedBut is leaked after the lane's magazine went back.
func leakedBut(t *testing.T, s *Shard, l *Lane) {
	t.Helper()
	l.Recall()
	leaked(t, s)
	s.Do(func() {
		if len(s.held) != 0 {
			t.Errorf("holds left: %v", s.held)
		}
		for i, n := range s.heldBytes {
			if n != 0 {
				t.Errorf("pool %d: %d bytes held", i, n)
			}
		}
	})
}

// Readers beside groups that are deposited, replaced, deleted and evicted: who
// claims one part reads the others of the same deposit under that claim. The
// first bytes of each part carry the deposit's number.
func TestGroupStress(t *testing.T) {
	const groups, parts = 12, 3
	s := newTest(t, rig{pools: []Pool{{128, 30}}, policy: "lru"})
	w := newLane(t, s)
	part := func(g, i int) []byte { return key(g*10 + i) }
	var done atomic.Bool
	var wg sync.WaitGroup
	var seen atomic.Int64
	for r := range 3 {
		l := newLane(t, s)
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(uint64(r), 2))
			for !done.Load() {
				g, i := rng.IntN(groups), rng.IntN(parts)
				c, ok := get(l, part(g, i))
				if !ok {
					continue
				}
				version := int(s.Bytes(c)[64])
				if !bytes.Equal(s.Bytes(c)[:64], pattern(part(g, i), version, 64)) {
					t.Errorf("part %d of group %d has foreign bytes", i, g)
				}
				// The other parts, through the group's own links: a claim on
				// one is a claim on all.
				for m := c.lead; m != 0; m = s.cold[m].group {
					b := s.Bytes(Claim{id: m})
					if int(b[64]) != version {
						t.Errorf("group %d: parts of deposits %d and %d under one claim", g, version, b[64])
					}
				}
				if rng.IntN(3) == 0 {
					runtime.Gosched()
				}
				// And through the index: a part found now is of this deposit or
				// of a later one, never absent while the group is resident.
				j := (i + 1) % parts
				if d, ok := get(l, part(g, j)); ok {
					if d.lead == c.lead && int(s.Bytes(d)[64]) != version {
						t.Errorf("group %d: one leader, deposits %d and %d", g, version, s.Bytes(d)[64])
					}
					s.Release(d)
				}
				seen.Add(1)
				s.Release(c)
			}
		}()
	}
	rounds := 20000
	if testing.Short() {
		rounds = 5000
	}
	rng := rand.New(rand.NewPCG(5, 5))
	for n := range rounds {
		g := rng.IntN(groups)
		switch rng.IntN(6) {
		case 0:
			del(w, part(g, rng.IntN(parts)))
		case 1: // one part alone: the group it replaces must go
			k := part(g, rng.IntN(parts))
			mustPut(t, w, k, append(pattern(k, n%200, 64), byte(n%200)))
		default:
			puts := make([]Put, parts)
			for i := range puts {
				k := part(g, i)
				v := append(pattern(k, n%200, 64), byte(n%200))
				puts[i] = Put{Hash: s.hash(k), Key: k, Value: v, Shape: Shape{Size: len(v)}, Set: true, Member: i < parts-1}
			}
			for _, o := range runOf(w, puts) {
				if o.Reason != OK && o.Reason != Capacity {
					t.Errorf("deposit %d: %v", n, o.Reason)
				}
			}
		}
		if t.Failed() {
			break
		}
	}
	done.Store(true)
	wg.Wait()
	if seen.Load() == 0 {
		t.Error("no reader saw a group")
	}
	t.Logf("%d claims", seen.Load())
	purge(t, s, w)
}

// orphansOf fails for every resident key whose parent is not resident.
func orphansOf(t *testing.T, l *Lane, parents map[string][]byte) {
	t.Helper()
	for k, parent := range parents {
		if parent != nil && has(l, []byte(k)) && !has(l, parent) {
			t.Fatalf("%s is resident and its parent %s is not", k, parent)
		}
	}
}

// Under density only leaves leave: whatever is deposited, in pieces, with
// shared prefixes and claims here and there, no resident is unreachable.
func TestChainsStayReachable(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	s := newTest(t, rig{pools: []Pool{{64, 80}}})
	l := newLane(t, s)
	rng := rand.New(rand.NewPCG(seed, 0))
	parents := map[string][]byte{}
	var claims []Claim
	rounds := 400
	if testing.Short() {
		rounds = 120
	}
	for n := range rounds {
		// A path in a tree of four children each, numbered like a heap, so that
		// a key has one parent.
		node := 1 + rng.IntN(4)
		ks := [][]byte{key(node)}
		for range rng.IntN(9) {
			node = 4*node + 1 + rng.IntN(4)*rng.IntN(2)
			ks = append(ks, key(node))
		}
		usable := 0
		for usable < len(ks) {
			c, ok := get(l, ks[usable])
			if !ok {
				break
			}
			if rng.IntN(40) == 0 && len(claims) < 10 {
				claims = append(claims, c)
			} else {
				s.Release(c)
			}
			usable++
		}
		for i := usable; i < len(ks); i++ {
			if has(l, ks[i]) {
				t.Fatalf("round %d: %s is resident behind the first miss", n, ks[i])
			}
		}
		from := min(usable, rng.IntN(len(ks)))
		var parent Claim
		if from > 0 {
			var ok bool
			if parent, ok = get(l, ks[from-1]); !ok {
				t.Fatal("the parent left between two commands")
			}
		}
		puts := chain(s, parent, from, ks[from:]...)
		outs := runOf(l, puts)
		for i, o := range outs {
			if o.Reason != OK && o.Reason != Capacity {
				t.Fatalf("round %d: %v", n, o.Reason)
			}
			if i > 0 && outs[i-1].Reason != OK && o.Reason == OK {
				t.Fatalf("round %d: block %d is stored behind a refused one", n, i)
			}
		}
		if parent != (Claim{}) {
			s.Release(parent)
		}
		for i := range ks {
			if i > 0 {
				parents[string(ks[i])] = ks[i-1]
			}
		}
		orphansOf(t, l, parents)
		if len(claims) > 0 && rng.IntN(3) == 0 {
			s.Release(claims[0])
			claims = claims[1:]
		}
		if n%50 == 0 {
			audit(t, s)
		}
	}
	for _, c := range claims {
		s.Release(c)
	}
	evictAll(t, s)
	purge(t, s, l)
}

// Claimed leaves are skipped and hold their ancestors; when every leaf is
// claimed a deposit is refused; and all of it can go afterwards.
func TestClaimedLeafHoldsAncestors(t *testing.T) {
	ways(t, rig{pools: []Pool{{64, 12}}}, func(t *testing.T, s *Shard, l *Lane) {
		a, b := keys(0, 6), keys(100, 6)
		mustRun(t, l, chain(s, Claim{}, 0, a...))
		mustRun(t, l, chain(s, Claim{}, 0, b...))
		leaf, ok := get(l, a[5])
		if !ok {
			t.Errorf("%s is a miss", a[5])
			return
		}
		for i := range 6 { // all of b must make room, nothing of a may
			k := key(1000 + i)
			mustPut(t, l, k, pattern(k, 0, 64))
			for _, k := range a {
				if !has(l, k) {
					t.Errorf("%s left below its claimed descendant", k)
				}
			}
		}
		var claims []Claim
		for i := range 6 {
			if c, ok := get(l, key(1000+i)); ok {
				claims = append(claims, c)
			}
			for _, k := range b {
				if c, ok := get(l, k); ok {
					claims = append(claims, c)
				}
			}
		}
		outs := runOf(l, chain(s, Claim{}, 0, keys(2000, 3)...))
		for _, o := range outs {
			if o.Reason != Capacity {
				t.Errorf("deposit with every leaf claimed: %v", o.Reason)
			}
		}
		for _, c := range claims {
			s.Release(c)
		}
		s.Release(leaf)
		leakedBut(t, s, l)
		evictAll(t, s)
	})
}

// A deposit larger than memory: its first part stays, the rest is refused,
// nothing leaks.
func TestDepositLargerThanMemory(t *testing.T) {
	ways(t, rig{pools: []Pool{{64, 20}}}, func(t *testing.T, s *Shard, l *Lane) {
		for i := range 20 {
			mustPut(t, l, key(5000+i), pattern(key(5000+i), 0, 64))
		}
		held, _ := get(l, key(5000))
		ks := keys(0, 100)
		outs := runOf(l, chain(s, Claim{}, 0, ks...))
		stored := 0
		for i, o := range outs {
			switch {
			case o.Reason == OK && i == stored:
				stored++
			case o.Reason == OK:
				t.Errorf("block %d is stored behind a refused one", i)
			case o.Reason != Capacity:
				t.Errorf("block %d: %v", i, o.Reason)
			}
		}
		if stored != 19 {
			t.Errorf("%d blocks of the deposit stay, want 19", stored)
		}
		for i, k := range ks {
			if has(l, k) != (i < stored) {
				t.Errorf("block %d is resident: %t", i, has(l, k))
			}
		}
		s.Release(held)
		leakedBut(t, s, l)
		audit(t, s)
		evictAll(t, s)
	})
}

// What of a deposit could not be stored is given back: reservations that
// succeeded behind one that failed, and parts of a group without their leader.
func TestRefusedPartIsGivenBack(t *testing.T) {
	ways(t, rig{pools: []Pool{{64, 4}, {128, 8}}}, func(t *testing.T, s *Shard, l *Lane) {
		other := layout(t, s, 1)
		mk := func(i int, layout uint16, member bool) Put {
			p := Put{Hash: s.hash(key(i)), Key: key(i), Value: pattern(key(i), 0, 64), Shape: Shape{Size: 64, Layout: layout}, Member: member}
			return p
		}
		var held []Claim
		for i := range 2 { // leaves two slots of the first pool
			p := mk(i, 0, false)
			p.NoEvict = true
			held = append(held, l.Put(&p, 0).Claim)
		}
		for _, tt := range []struct {
			name string
			puts []Put
			want []Reason
		}{
			{"one refused in the middle", []Put{mk(10, 0, false), mk(11, 0, false), mk(12, 0, false), mk(13, other, false), mk(14, other, false)},
				[]Reason{OK, OK, Capacity, Capacity, Capacity}},
			{"a group whose leader is refused", []Put{mk(20, 0, false), mk(21, other, true), mk(22, 0, true), mk(23, 0, false)},
				[]Reason{OK, Capacity, Capacity, Capacity}},
			{"a group whose part is refused", []Put{mk(30, other, true), mk(31, 0, true), mk(32, 0, true), mk(33, 0, true), mk(34, other, false)},
				[]Reason{Capacity, Capacity, Capacity, Capacity, Capacity}},
		} {
			for i, o := range runOf(l, tt.puts) {
				if o.Reason != tt.want[i] {
					t.Errorf("%s: block %d: %v, want %v", tt.name, i, o.Reason, tt.want[i])
				}
				if k := tt.puts[i].Key; has(l, k) != (tt.want[i] == OK) {
					t.Errorf("%s: block %d is resident: %t", tt.name, i, has(l, k))
				}
			}
			l.Recall()
			if n := s.Reserved(); n != 0 {
				t.Errorf("%s: %d reservations left", tt.name, n)
			}
			audit(t, s)
			for i := range tt.puts {
				del(l, tt.puts[i].Key)
			}
		}
		for _, c := range held {
			s.Unhold(c)
		}
	})
}

// A deposit over blocks that are resident in part, in every combination: after
// it the whole chain is resident, linked, and leaves leaf by leaf.
func TestChainOverResident(t *testing.T) {
	for mask := range 16 {
		t.Run(fmt.Sprintf("resident=%04b", mask), func(t *testing.T) {
			ways(t, rig{pools: []Pool{{64, 16}}}, func(t *testing.T, s *Shard, l *Lane) {
				ks := keys(0, 4)
				mustRun(t, l, chain(s, Claim{}, 0, ks...))
				for i, k := range ks { // by hand: what is below is unreachable
					if mask&(1<<i) == 0 {
						del(l, k)
					}
				}
				audit(t, s)
				outs := mustRun(t, l, chain(s, Claim{}, 0, ks...))
				parents := map[string][]byte{}
				for i, k := range ks {
					check(t, l, k, pattern(k, 0, 64))
					if outs[i].Old != (mask&(1<<i) != 0) {
						t.Errorf("block %d was resident: %t, the answer says %t", i, mask&(1<<i) != 0, outs[i].Old)
					}
					if i > 0 {
						parents[string(k)] = ks[i-1]
					}
				}
				audit(t, s)
				for i := range 40 {
					f := key(1000 + i)
					mustPut(t, l, f, pattern(f, 0, 64))
					orphansOf(t, l, parents)
				}
			})
		})
	}
}

// Keys that a deposit names twice.
func TestChainNamesKeyTwice(t *testing.T) {
	a, b := key(1), key(2)
	for _, ks := range [][][]byte{{a, a}, {a, b, a}, {a, b, b}, {a, b, a, b, a}} {
		for _, set := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/set=%t", ks, set), func(t *testing.T) {
				ways(t, rig{}, func(t *testing.T, s *Shard, l *Lane) {
					puts := chain(s, Claim{}, 0, ks...)
					for i := range puts {
						puts[i].Set = set
					}
					mustRun(t, l, puts)
					audit(t, s)
					for _, k := range ks {
						check(t, l, k, pattern(k, 0, 64))
					}
					evictAll(t, s)
				})
			})
		}
	}
}

// Runs of several lanes interleave in the rings and a parent is deleted now
// and then in the middle of a run: every block that is linked below a resident
// parent is reachable, what lost its parent leaves first, nothing is lost or
// counted twice.
func TestRunsInterleaved(t *testing.T) {
	for _, helped := range []bool{false, true} {
		t.Run(fmt.Sprintf("helped=%t", helped), func(t *testing.T) {
			s := newTest(t, rig{pools: []Pool{{64, 300}}})
			s.helped = helped
			rounds := 150
			if testing.Short() {
				rounds = 40
			}
			var wg sync.WaitGroup
			for lane := range 3 {
				l := newLane(t, s)
				wg.Add(1)
				go func() {
					defer wg.Done()
					rng := rand.New(rand.NewPCG(uint64(lane), 3))
					for n := range rounds {
						var ks [][]byte
						for d := range 1 + rng.IntN(80) { // longer than a ring
							k := d
							if d > 3 {
								k = 10000*(lane+1) + 100*(n%5) + d // own, but for the shared first blocks
							}
							ks = append(ks, key(k))
						}
						outs := runOf(l, chain(s, Claim{}, 0, ks...))
						for i, o := range outs {
							if o.Reason != OK && o.Reason != Capacity {
								t.Errorf("block %d: %v", i, o.Reason)
							}
						}
						if rng.IntN(4) == 0 {
							del(l, ks[rng.IntN(len(ks))])
						}
						for _, k := range ks {
							if c, ok := get(l, k); ok {
								if !bytes.Equal(s.Bytes(c), pattern(k, 0, 64)) {
									t.Errorf("%s has other bytes", k)
								}
								s.Release(c)
							}
						}
						if t.Failed() {
							return
						}
					}
					l.Recall()
				}()
			}
			within(t, 60*time.Second, wg.Wait)
			l := newLane(t, s)
			audit(t, s)
			evictAll(t, s)
			purge(t, s, l)
		})
	}
}

// A parent deleted in the middle of a run, exactly: the commits of a lane with
// the delete of another between them.
func TestParentDeletedWithinRun(t *testing.T) {
	s := newTest(t, rig{})
	l, other := newLane(t, s), newLane(t, s)
	ks := keys(0, 4)
	puts := chain(s, Claim{}, 0, ks...)
	reqs := make([]request, 4)
	out := make([]reply, 4)
	for i, k := range ks {
		reqs[i] = request{op: opReserve, size: 64, keyLen: uint32(len(k))}
	}
	l.do(reqs, out)
	for i := range puts {
		s.fill(out[i].id, &puts[i])
		reqs[i] = puts[i].commit(out[i].id)
		if i < 3 {
			reqs[i].flags |= flagMore
		}
	}
	l.do(reqs[:2], out[:2])
	// ks[1] is the run's last block and claimed by it.
	if n := s.Claims(); n != 1 {
		t.Errorf("%d claims within a run, want the one on its last block", n)
	}
	if why := del(other, ks[1]); why != OK {
		t.Fatalf("delete within the run: %v", why)
	}
	l.do(reqs[2:], out[2:])
	for _, o := range out[2:] {
		if o.reason != OK {
			t.Errorf("commit after the delete: %v", o.reason)
		}
	}
	leaked(t, s)
	audit(t, s)
	for i, k := range ks {
		if has(l, k) != (i != 1) {
			t.Errorf("%s is resident: %t", k, has(l, k))
		}
	}
	// The two that lost their parent are the next to leave.
	s.Do(func() {
		for range 2 {
			v := s.victim()
			if k := s.keyOf(v); !bytes.Equal(k, ks[2]) && !bytes.Equal(k, ks[3]) {
				t.Errorf("victim is %s before the unreachable blocks", k)
			}
			s.retire(v, 0, false)
		}
	})
	if !has(l, ks[0]) {
		t.Errorf("%s left with its unreachable descendants", ks[0])
	}
	purge(t, s, l)
}

// The sink hears of every change once, in order: a replay of it is the shard.
func TestChangesReplay(t *testing.T) {
	s := newTest(t, rig{pools: []Pool{{64, 40}}, side: 256 << 10})
	l := newLane(t, s)
	resident := map[string]int64{}
	s.Do(func() {
		s.Watch(func(c Change) {
			k := string(c.Key)
			n, have := resident[k]
			switch {
			case c.Stored && have:
				t.Errorf("%.20q stored twice", k)
			case !c.Stored && (!have || n != c.Bytes):
				t.Errorf("%.20q left with %d bytes, it was there: %t with %d", k, c.Bytes, have, n)
			case c.Stored && c.Parent != nil && resident[string(c.Parent)] == 0:
				t.Errorf("%.20q under %.20q, which is not resident", k, c.Parent)
			}
			if c.Stored {
				resident[k] = c.Bytes
			} else {
				delete(resident, k)
			}
		})
	})
	rng := rand.New(rand.NewPCG(4, 4))
	for range 600 {
		switch rng.IntN(5) {
		case 0:
			del(l, key(rng.IntN(60)))
		case 1:
			runOf(l, group(s, 1, keys(100+3*rng.IntN(10), 3)...))
		case 2:
			runOf(l, chain(s, Claim{}, 0, longKey(rng.IntN(3), 50), longKey(10+rng.IntN(9), 60), key(rng.IntN(20))))
		default:
			put(l, key(rng.IntN(60)), pattern(key(1), 0, 64))
		}
	}
	s.Do(func() {
		n := 0
		s.Each(func(k []byte, size int64) {
			n++
			if got, ok := resident[string(k)]; !ok || got != size {
				t.Errorf("%.20q is resident with %d bytes, the changes say %t, %d", k, size, ok, got)
			}
		})
		if n != len(resident) {
			t.Errorf("%d resident, the changes say %d", n, len(resident))
		}
	})
	purge(t, s, l)
	if len(resident) != 0 {
		t.Errorf("%d blocks left without a word", len(resident))
	}
}

// Who lists residents with their parents may come in the middle of a run.
func TestEachLinkedDuringRuns(t *testing.T) {
	ways(t, rig{pools: []Pool{{64, 1000}}}, func(t *testing.T, s *Shard, l *Lane) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range 4 {
				runOf(l, chain(s, Claim{}, 0, keys(200*i, 200)...))
			}
		}()
		for running := true; running; {
			select {
			case <-done:
				running = false
			case <-time.After(100 * time.Microsecond): // somebody else's turn
			}
			s.Do(func() {
				parents, resident := map[string]bool{}, map[string]bool{}
				s.EachLinked(func(k, parent []byte, _ int64) {
					resident[string(k)] = true
					if parent != nil {
						parents[string(parent)] = true
					}
				})
				for p := range parents {
					if !resident[p] {
						t.Errorf("%.20q is a parent, and not resident", p)
					}
				}
			})
		}
	})
}
