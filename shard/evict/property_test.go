package evict

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// block is what the model knows of a resident.
type block struct {
	parent *block
	lost   bool // its parent was named but is not resident
	id     ID
}

// reachable reports that no ancestor is missing.
func (b *block) reachable() bool {
	for ; b != nil; b = b.parent {
		if b.lost {
			return false
		}
	}
	return true
}

// machine runs a policy beside a naive model of which block is under which.
type machine struct {
	*fake
	p        Policy
	leafOnly bool
	n        int
	now      uint32
	serial   uint64
	resident map[ID]*block
}

func (m *machine) tick(t *rapid.T) { m.now += rapid.Uint32Range(0, 6).Draw(t, "ticks") }

func (m *machine) pick(t *rapid.T, label string) *block {
	var ids []ID
	for id := ID(1); int(id) <= m.n; id++ {
		if m.resident[id] != nil {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		t.Skip("nothing is resident")
	}
	return m.resident[rapid.SampledFrom(ids).Draw(t, label)]
}

// free draws an ID that is not resident; low ones more often, so that slots are
// used again soon.
func (m *machine) free(t *rapid.T) ID {
	var ids []ID
	for id := ID(1); int(id) <= m.n; id++ {
		if m.resident[id] == nil {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		t.Skip("no slot is free")
	}
	return ids[rapid.IntRange(0, min(len(ids)-1, 2)).Draw(t, "slot")]
}

func (m *machine) hasChild(b *block) bool {
	for _, c := range m.resident {
		if c.parent == b {
			return true
		}
	}
	return false
}

// evictable reports whether the policy may choose b now.
func (m *machine) evictable(b *block) bool {
	return !m.busy[b.id] && !(m.leafOnly && m.hasChild(b))
}

func (m *machine) newHash(t *rapid.T) uint64 {
	if rapid.Bool().Draw(t, "seen before") { // a key that may have a record
		return mix(rapid.Uint64Range(0, 30).Draw(t, "key"))
	}
	m.serial++
	return mix(m.serial + 1<<20)
}

func (m *machine) insert(t *rapid.T) {
	m.tick(t)
	want := rapid.IntRange(1, 5).Draw(t, "blocks")
	chain := rapid.Uint32Range(0, 100).Draw(t, "chain")
	var parent *block
	lost := false
	switch rapid.IntRange(0, 3).Draw(t, "under") {
	case 0:
		lost = rapid.Bool().Draw(t, "unreachable")
	case 1, 2:
		if len(m.resident) > 0 {
			parent = m.pick(t, "parent")
		}
	}
	var run []Insert
	for range want {
		if len(m.resident) == m.n {
			break
		}
		b := &block{id: m.free(t), parent: parent, lost: lost && parent == nil}
		in := Insert{ID: b.id, Hash: m.newHash(t), ChainLen: chain, Unreachable: b.lost}
		if parent != nil {
			in.Parent = parent.id
		}
		m.hash[b.id] = in.Hash
		m.busy[b.id] = false
		m.resident[b.id] = b
		run = append(run, in)
		if rapid.IntRange(0, 5).Draw(t, "branch") > 0 {
			parent = b
		} else if rapid.Bool().Draw(t, "root") {
			parent, lost = nil, false
		}
	}
	if len(run) == 0 {
		t.Skip("full")
	}
	run[len(run)-1].Tail = len(run) > 1 && run[len(run)-1].Parent == run[len(run)-2].ID
	m.p.Insert(run, m.now)
	for _, in := range run {
		if m.last[in.ID] != m.now {
			t.Fatalf("block %d inserted at %d, last access %d", in.ID, m.now, m.last[in.ID])
		}
	}
}

func (m *machine) victim(t *rapid.T) {
	m.tick(t)
	id := m.p.Victim(m.now)
	if id == 0 {
		for _, b := range m.resident {
			if m.evictable(b) {
				t.Fatalf("no victim, but block %d could go", b.id)
			}
		}
		return
	}
	b := m.resident[id]
	if b == nil {
		t.Fatalf("victim %d is not resident", id)
	}
	if !m.evictable(b) {
		t.Fatalf("victim %d: busy %t, has a child %t", id, m.busy[id], m.hasChild(b))
	}
	if rapid.IntRange(0, 4).Draw(t, "retire fails") > 0 {
		m.p.Remove(id, Evicted, m.now)
		m.forget(b)
	}
}

// avoidWrap keeps to what density promises exactly: a slot that goes round all
// gens before a sweep has passed takes orphans for children (TestGensWrap).
func (m *machine) avoidWrap(id ID) {
	if d, ok := m.p.(*density); ok && d.nodes[id].inner() && d.nodes[id].gen() == 3 {
		d.sweepAll(m.now)
	}
}

// forget removes b from the model. Blocks under it are lost.
func (m *machine) forget(b *block) {
	for _, c := range m.resident {
		if c.parent == b {
			c.parent, c.lost = nil, true
		}
	}
	delete(m.resident, b.id)
}

func (m *machine) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"insert":  m.insert,
		"insert2": m.insert,
		"victim":  m.victim,
		"victim2": m.victim,
		"touch": func(t *rapid.T) {
			m.tick(t)
			for b := m.pick(t, "block"); b != nil; b = b.parent {
				m.last[b.id] = m.now
			}
		},
		"claim": func(t *rapid.T) {
			b := m.pick(t, "block")
			m.busy[b.id] = !m.busy[b.id]
		},
		"claim all": func(t *rapid.T) {
			busy := rapid.Bool().Draw(t, "busy")
			for id := range m.busy {
				m.busy[id] = busy
			}
		},
		"remove": func(t *rapid.T) {
			m.tick(t)
			b := m.pick(t, "block")
			m.avoidWrap(b.id)
			m.p.Remove(b.id, rapid.SampledFrom([]Reason{Deleted, Moved, Expired}).Draw(t, "why"), m.now)
			m.forget(b)
		},
		"replace": func(t *rapid.T) {
			m.tick(t)
			old, id := m.pick(t, "old"), m.free(t)
			m.hash[id] = m.hash[old.id]
			m.busy[id] = false
			m.avoidWrap(old.id)
			m.p.Replace(old.id, id, m.now)
			nb := &block{id: id, parent: old.parent, lost: old.lost}
			for _, c := range m.resident {
				if c.parent == old {
					c.parent = nb
				}
			}
			delete(m.resident, old.id)
			m.resident[id] = nb
		},
		"relink": func(t *rapid.T) {
			m.tick(t)
			b, under := m.pick(t, "block"), m.pick(t, "under")
			m.p.Relink(b.id, under.id, m.now)
			for at := under; at != nil; at = at.parent {
				if at == b {
					return
				}
			}
			if b.lost {
				b.parent, b.lost = under, false
			}
		},
		"wait": func(*rapid.T) { m.now += uint32(m.n) },
		"clear": func(t *rapid.T) {
			if rapid.IntRange(0, 9).Draw(t, "really") == 0 {
				m.p.Clear()
				clear(m.resident)
			}
		},
		"": func(t *rapid.T) {
			if err := m.p.Check(); err != nil {
				t.Fatal(err)
			}
		},
	}
}

func newMachine(t *rapid.T, name string, n int) *machine {
	m := &machine{
		fake: newFake(n), n: n, resident: make(map[ID]*block),
		leafOnly: name == "density",
		now:      rapid.SampledFrom([]uint32{0, 1 << 31, ^uint32(0) - 50}).Draw(t, "start"),
	}
	p, err := New(name, make([]Node, n+1), m.fake, 3)
	if err != nil {
		t.Fatal(err)
	}
	m.p = p
	return m
}

// TestModel: under any operations a victim exists when the model has one, is
// never busy, and (density) never has a resident child; Check holds after each.
func TestModel(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				m := newMachine(t, name, rapid.IntRange(1, 24).Draw(t, "N"))
				t.Repeat(m.actions())
				if m.leafOnly {
					m.checkReachability(t)
				}
			})
		})
	}
}

// checkParents compares what Parent says with the model.
func (m *machine) checkParents(t *rapid.T, d *density) {
	for id, b := range m.resident {
		want := ID(0)
		if b.parent != nil {
			want = b.parent.id
		}
		if got := d.Parent(id); got != want {
			t.Fatalf("Parent(%d) = %d, want %d", id, got, want)
		}
	}
}

// checkReachability lets the sweep finish, and compares what it marked with the
// model. Then with no claims the unreachable leave before all others.
func (m *machine) checkReachability(t *rapid.T) {
	d := m.p.(*density)
	m.checkParents(t, d)
	d.sweepAll(m.now)
	if err := d.Check(); err != nil {
		t.Fatal(err)
	}
	m.checkParents(t, d)
	dead := 0
	for id, b := range m.resident {
		n := &d.nodes[id]
		if marked := n.class() == classDead; marked == b.reachable() {
			t.Fatalf("block %d: marked unreachable %t, reachable %t", id, marked, b.reachable())
		}
		var parent ID
		if b.parent != nil {
			parent = b.parent.id
		}
		if got := n.ref().slot(); got != parent {
			t.Fatalf("block %d: parent %d, want %d", id, got, parent)
		}
		if !b.reachable() {
			dead++
		}
	}
	clear(m.busy)
	for left := 0; len(m.resident) > 0; left++ {
		b := m.resident[m.p.Victim(m.now)]
		if b == nil || m.hasChild(b) {
			t.Fatalf("no proper victim with %d blocks left", len(m.resident))
		}
		if left < dead == b.reachable() {
			t.Fatalf("victim %d of %d unreachable ones is %s", left, dead, fmt.Sprintf("block %d, reachable %t", b.id, b.reachable()))
		}
		m.p.Remove(b.id, Evicted, m.now)
		m.forget(b)
	}
}
