package evict

import (
	"slices"
	"testing"
)

func openDensity(t testing.TB, n int) (*fake, *density) {
	t.Helper()
	f, p := open(t, "density", n)
	d := p.(*density)
	d.recs.every = 1 // sample all
	return f, d
}

func mustCheck(t *testing.T, p Policy) {
	t.Helper()
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
}

func TestClasses(t *testing.T) {
	f, d := openDensity(t, 200)
	d.Insert(f.chain(0, 1, 2, 3), 10)
	for id, want := range map[ID]class{1: chainClass(0, 0), 2: chainClass(0, 0), 3: classTail} {
		if got := d.nodes[id].class(); got != want {
			t.Errorf("block %d has class %d, want %d", id, got, want)
		}
	}
	// A single block is no tail; long chains have classes of their own.
	d.Insert(f.chain(0, 4), 11)
	if got := d.nodes[4].class(); got != chainClass(0, 0) {
		t.Errorf("a single block has class %d", got)
	}
	for n, want := range map[uint32]uint8{0: 0, 3: 0, 4: 1, 63: 1, 64: 2} {
		if got := lengthOf(n); got != want {
			t.Errorf("lengthOf(%d) = %d, want %d", n, got, want)
		}
	}
	// Fourteen children do not make a hub, the fifteenth does.
	for id := ID(10); id < 25; id++ {
		if got := d.nodes[4].class(); got == classHub {
			t.Fatalf("hub after %d children", id-10)
		}
		run := f.chain(4, id)
		d.Insert(run, 20)
		if d.nodes[id].turn() != 1 {
			t.Errorf("child %d has turn %d, want 1", id, d.nodes[id].turn())
		}
		d.Remove(id, Evicted, 20) // children that left count too
	}
	if got := d.nodes[4].class(); got != classHub {
		t.Errorf("class %d after %d children, want hub", got, hubAt)
	}
	// What follows a hub is a new conversation.
	d.Insert(f.chain(4, 30, 31), 30)
	if got := d.nodes[30].class(); got != chainClass(0, 0) {
		t.Errorf("under a hub class %d, want turn 0", got)
	}
	mustCheck(t, d)
}

func TestTurns(t *testing.T) {
	f, d := openDensity(t, 100)
	turn := func(id ID) uint8 { return d.nodes[id].turn() }
	d.Insert(f.chain(0, 1, 2), 1)
	d.Insert(f.chain(1, 3, 4), 2) // diverges before the old tail
	d.Insert(f.chain(3, 5, 6), 3)
	d.Insert(f.chain(5, 7, 8), 4)
	d.Insert(f.chain(7, 9, 10), 5)
	for id, want := range map[ID]uint8{1: 0, 3: 1, 5: 2, 7: 3, 9: 3} {
		if turn(id) != want {
			t.Errorf("block %d has turn %d, want %d", id, turn(id), want)
		}
	}
	// A block that left is known by its record.
	d.Insert(f.chain(0, 20), 10)
	d.Remove(20, Evicted, 11)
	d.Insert(f.chain(0, 20), 12)
	if turn(20) != 1 {
		t.Errorf("the second time turn %d, want 1", turn(20))
	}
	// The deepest block known decides: 31 was seen at turn 0, 20 is of turn 1.
	d.Insert(f.chain(0, 31), 13)
	d.Remove(31, Evicted, 14)
	d.Insert(f.chain(20, 30, 31, 32), 15)
	if turn(30) != 1 {
		t.Errorf("turn %d, want 1", turn(30))
	}
	mustCheck(t, d)
}

// TestHitsByTimestamp: a use that only the tick shows is counted once.
func TestHitsByTimestamp(t *testing.T) {
	f, d := openDensity(t, 100)
	d.period = 1 << 30 // no learn, which would fade what is counted
	sum := func() (hits float64) {
		for c := range d.haz.hits {
			for _, h := range d.haz.hits[c] {
				hits += h
			}
		}
		return hits
	}
	d.Insert(f.chain(0, 1), 1000)
	f.last[1] = 1500
	r := d.recs.find(f.hash[1])
	if !d.poll(r) || d.poll(r) || sum() != 1 {
		t.Fatalf("%g hits counted, want 1", sum())
	}
	if got := d.haz.hits[chainClass(0, 0)][bucket(500)]; got != 1 {
		t.Errorf("%g hits at age 500 of turn 0, want 1", got)
	}
	if rec := d.recs.recs[r]; rec.turn != 1 || rec.class != chainClass(1, 0) || rec.last != 1500 {
		t.Errorf("record %+v, want turn 1 and last 1500", rec)
	}
	// A reader's tick a little behind the owner's is not a use long ago.
	f.last[1] = 1499
	if d.poll(r) {
		t.Error("a tick before the last use known was counted")
	}
	// Another key in the slot is another block.
	d.Remove(1, Evicted, 1600)
	old := f.hash[1]
	f.hash[1] = 4711
	d.Insert([]Insert{{ID: 1, Hash: 4711}}, 1700)
	f.last[1] = 1800
	if d.poll(d.recs.find(old)) || sum() != 1 {
		t.Errorf("a stranger's use was counted: %g hits", sum())
	}
	// The evicted key comes back: a hit at the age of its last use.
	f.hash[2] = old
	d.Insert([]Insert{{ID: 2, Hash: old}}, 2500)
	if got := d.haz.hits[chainClass(1, 0)][bucket(1000)]; got != 1 {
		t.Errorf("%g hits at age 1000 of turn 1, want 1", got)
	}
	mustCheck(t, d)
}

// TestClaimedLeafKeepsAncestors: the others leave, the chain above a claim stays.
func TestClaimedLeafKeepsAncestors(t *testing.T) {
	f, d := openDensity(t, 16)
	d.Insert(f.chain(0, 1, 2, 3), 1)
	d.Insert(f.chain(2, 4), 2)
	d.Insert(f.chain(0, 5), 3)
	f.busy[3] = true
	got := drain(t, d, 10)
	slices.Sort(got)
	if !slices.Equal(got, []ID{4, 5}) {
		t.Errorf("evicted %v, want 4 and 5", got)
	}
	f.busy[3] = false
	if got := drain(t, d, 20); !slices.Equal(got, []ID{3, 2, 1}) {
		t.Errorf("evicted %v, want the chain from its end", got)
	}
}

// TestBusyIsNotATurn: a claimed leaf that Victim met again and again counts as
// used once.
func TestBusyIsNotATurn(t *testing.T) {
	f, d := openDensity(t, 16)
	d.Insert(f.chain(0, 1), 1)
	d.Insert(f.chain(0, 2), 2)
	f.busy[1], f.last[1] = true, 3
	for now := range uint32(8) {
		if v := d.Victim(10 + now); v != 2 {
			t.Fatalf("victim %d, want 2", v)
		}
	}
	f.busy[1] = false
	d.Victim(30)
	if got := d.nodes[1].turn(); got != 1 {
		t.Errorf("turn %d, want 1", got)
	}
}

// TestUnreachableFirst: blocks below one removed by hand, and deposits whose
// parent is missing, leave before older ones.
func TestUnreachableFirst(t *testing.T) {
	f, d := openDensity(t, 16)
	d.Insert(f.chain(0, 1), 1)
	d.Insert(f.chain(0, 2, 3, 4), 50)
	lost := f.chain(0, 5, 6)
	lost[0].Unreachable = true
	d.Insert(lost, 51)
	d.Remove(2, Deleted, 52)
	d.Insert(f.chain(0, 2), 53) // another block in the slot
	f.hash[2] = 99
	d.Victim(54)
	d.Victim(70) // 8 nodes for each access: the sweep is through
	got := drain(t, d, 71)
	first := slices.Clone(got[:4])
	slices.Sort(first)
	if !slices.Equal(first, []ID{3, 4, 5, 6}) {
		t.Errorf("evicted %v, want 3, 4, 5, 6 before 1 and 2", got)
	}
}

// TestOrphansAreNotChildren: the block that takes a slot over is not kept by
// children of the one before, once nothing else is left.
func TestOrphansAreNotChildren(t *testing.T) {
	f, d := openDensity(t, 16)
	d.Insert(f.chain(0, 1, 2), 1)
	d.Remove(1, Deleted, 2)
	f.busy[2] = true
	d.Insert(f.chain(0, 1), 3)
	if v := d.Victim(3); v != 1 {
		t.Errorf("victim %d, want 1: its child is not its own", v)
	}
	mustCheck(t, d)
}

// TestGensWrap: a slot reused four times within one sweep takes orphans for
// children. Counts stay right and every block leaves.
func TestGensWrap(t *testing.T) {
	f, d := openDensity(t, 64)
	for id := ID(2); id < 20; id++ {
		d.Insert(f.chain(0, 1, id), 1)
		d.Remove(1, Deleted, 1)
		mustCheck(t, d)
	}
	d.Insert(f.chain(0, 1), 1)
	if got := drain(t, d, 2); len(got) != 19 {
		t.Errorf("%d blocks left, want 19", len(got))
	}
}

// TestReplaceKeepsChildren: the new block takes over the chain below the old.
func TestReplaceKeepsChildren(t *testing.T) {
	f, d := openDensity(t, 16)
	d.Insert(f.chain(0, 1, 2), 1)
	f.hash[3] = f.hash[1]
	d.Replace(1, 3, 2)
	d.Insert(f.chain(0, 1), 3) // a stranger in the old slot
	f.busy[1], f.busy[2] = true, true
	if v := d.Victim(4); v != 0 {
		t.Fatalf("victim %d, want none: 3 has a busy child", v)
	}
	d.sweepAll(5)
	mustCheck(t, d)
	if d.nodes[2].ref().slot() != 3 || d.nodes[2].class() == classDead || len(d.forward) != 0 {
		t.Errorf("child %+v, %d forwards; want 3 as parent, reachable", d.nodes[2], len(d.forward))
	}
	if d.nodes[3].turn() != 1 {
		t.Errorf("a replaced value has turn %d, want 1", d.nodes[3].turn())
	}
}

// TestManyForwards: replacing more blocks with children than forwards are kept.
func TestManyForwards(t *testing.T) {
	const n = 3*maxForwards + 10
	f, d := openDensity(t, n)
	for i := ID(1); i <= n/3; i++ {
		d.Insert(f.chain(0, 3*i-2, 3*i-1), 1)
		f.hash[3*i] = f.hash[3*i-2]
		d.Replace(3*i-2, 3*i, 1)
		if len(d.forward) > maxForwards {
			t.Fatalf("%d forwards", len(d.forward))
		}
	}
	d.sweepAll(2)
	mustCheck(t, d)
	if d.lists[classDead].n != 0 {
		t.Errorf("%d blocks lost their parent", d.lists[classDead].n)
	}
}

func TestRelink(t *testing.T) {
	f, d := openDensity(t, 16)
	d.Insert(f.chain(0, 1, 2, 3), 1)
	d.Remove(1, Deleted, 2)
	d.sweepAll(2)
	if d.nodes[3].class() != classDead {
		t.Fatal("3 is reachable")
	}
	d.Insert(f.chain(0, 4), 3) // the parent again, elsewhere
	d.Relink(2, 4, 4)
	d.Relink(4, 3, 4) // nonsense: 4 is over 3
	d.sweepAll(5)
	mustCheck(t, d)
	for id, want := range map[ID]ID{4: 0, 2: 4, 3: 2} {
		if n := d.nodes[id]; n.class() == classDead || n.ref().slot() != want {
			t.Errorf("block %d under %d, class %d; want under %d and reachable", id, n.ref().slot(), n.class(), want)
		}
	}
}

// TestSweepIsPaced: a removal costs no pass over all nodes at once.
func TestSweepIsPaced(t *testing.T) {
	const n = 1 << 16
	f, d := openDensity(t, n)
	d.Insert(f.chain(0, 1, 2), 0)
	d.Insert(f.chain(0, n, n-1), 0)
	d.Remove(n, Deleted, 0)
	calls := 0
	for now := uint32(0); d.dirty || d.sweeping; now += 1 << 20 {
		before := d.cursor
		d.Victim(now)
		if d.sweeping && before != 0 && d.cursor > before && d.cursor-before > sweepStep {
			t.Fatalf("%d nodes in one call", d.cursor-before)
		}
		calls++
	}
	if calls < n/sweepStep || d.nodes[n-1].class() != classDead {
		t.Errorf("swept in %d calls, class of the orphan %d", calls, d.nodes[n-1].class())
	}
}

// TestReplaceDuringSweep: an orphan moved behind the sweep's back is still found.
func TestReplaceDuringSweep(t *testing.T) {
	f, d := openDensity(t, 16)
	d.Insert(f.chain(0, 10, 11), 1)
	d.Remove(10, Deleted, 1)
	d.beginSweep()
	d.stepped = 1
	d.sweepNodes(5, 1) // past slot 2
	f.hash[2] = f.hash[11]
	d.Replace(11, 2, 1)
	d.sweepAll(1)
	mustCheck(t, d)
	if d.nodes[2].class() != classDead {
		t.Errorf("block 2 has class %d, want unreachable", d.nodes[2].class())
	}
}

// TestNoCircleThroughSlots: a block put under an orphan, into the very slot whose
// last block was the orphan's parent.
func TestNoCircleThroughSlots(t *testing.T) {
	f, d := openDensity(t, 16)
	d.Insert(f.chain(0, 1, 2), 1)
	d.beginSweep()
	d.stepped = 1
	d.sweepNodes(4, 1) // both seen: the sweep under way does not find the orphan
	d.Remove(1, Deleted, 1)
	d.Insert(f.chain(2, 1), 1)
	mustCheck(t, d)
	if got := drain(t, d, 2); !slices.Equal(got, []ID{1, 2}) {
		t.Errorf("evicted %v, want 1, then 2", got)
	}
}

// TestHeirBehindAnOrphan: 1 is to follow its parent's heir 3, which is below 6,
// an orphan of slot 5 where now a child of 1 lives. Only once 6 is cut loose can
// it, without a circle.
func TestHeirBehindAnOrphan(t *testing.T) {
	f, d := openDensity(t, 16)
	d.Insert(f.chain(0, 5, 6), 1)
	d.Insert(f.chain(6, 2, 1), 1)
	d.beginSweep()
	d.stepped = 1
	d.sweepNodes(8, 1) // all seen: none is resolved again in this sweep
	d.Remove(5, Deleted, 1)
	f.hash[3] = f.hash[2]
	d.Replace(2, 3, 1)
	d.Insert(f.chain(1, 5), 1)
	mustCheck(t, d)
	d.sweepAll(1)
	mustCheck(t, d)
	for id, want := range map[ID]ID{5: 1, 1: 3, 3: 6, 6: 0} {
		if n := d.nodes[id]; n.ref().slot() != want || n.class() != classDead {
			t.Errorf("block %d under %d, class %d; want under %d and unreachable", id, n.ref().slot(), n.class(), want)
		}
	}
}

// TestClockWraps: ages are differences, so a wrap changes no victim.
func TestClockWraps(t *testing.T) {
	var want []ID
	for i, start := range []uint32{1000, ^uint32(0) - 20} {
		f, d := openDensity(t, 64)
		d.learned = start
		now := start
		for id := ID(1); id <= 50; id++ {
			now++
			d.Insert(f.chain(0, id), now)
			if id > 10 && id%3 == 0 {
				f.last[id-9] = now
			}
		}
		got := drain(t, d, now+5)
		if i == 0 {
			want = got
		} else if !slices.Equal(got, want) {
			t.Errorf("across the wrap %v, want %v", got, want)
		}
	}
}

// TestNoAllocations: after New the policy lives in what it has.
func TestNoAllocations(t *testing.T) {
	for _, name := range Names() {
		f, p := open(t, name, 1000)
		run := make([]Insert, 1)
		now := uint32(0)
		insert := func(id ID) {
			now++
			f.hash[id] = mix(uint64(now))
			run[0] = Insert{ID: id, Hash: f.hash[id]}
			p.Insert(run, now)
		}
		for id := ID(1); id <= 1000; id++ {
			insert(id)
		}
		allocs := testing.AllocsPerRun(5000, func() {
			v := p.Victim(now)
			p.Remove(v, Evicted, now)
			insert(v)
			f.last[1+now%1000] = now
		})
		if allocs != 0 {
			t.Errorf("%s: %g allocations an operation", name, allocs)
		}
	}
}
