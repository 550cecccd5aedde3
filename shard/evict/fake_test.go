package evict

import "testing"

// fake is a shard reduced to what policies ask of it.
type fake struct {
	last []uint32
	busy []bool
	hash []uint64

	asked int // calls of Busy
}

func newFake(n int) *fake {
	return &fake{last: make([]uint32, n+1), busy: make([]bool, n+1), hash: make([]uint64, n+1)}
}

func (f *fake) Last(id ID) uint32          { return f.last[id] }
func (f *fake) SetLast(id ID, tick uint32) { f.last[id] = tick }
func (f *fake) Busy(id ID) bool            { f.asked++; return f.busy[id] }
func (f *fake) Hash(id ID) uint64          { return f.hash[id] }

func open(t testing.TB, name string, n int) (*fake, Policy) {
	t.Helper()
	f := newFake(n)
	p, err := New(name, make([]Node, n+1), f, 1)
	if err != nil {
		t.Fatal(err)
	}
	return f, p
}

// chain makes a run of ids, each under the one before, the first under parent.
func (f *fake) chain(parent ID, ids ...ID) []Insert {
	var run []Insert
	for i, id := range ids {
		f.hash[id] = mix(uint64(id) + 1000)
		run = append(run, Insert{
			ID: id, Hash: f.hash[id], Parent: parent,
			ChainLen: uint32(len(ids)), Tail: i > 0 && i == len(ids)-1,
		})
		parent = id
	}
	return run
}

// drain evicts until nothing is left and returns the order.
func drain(t testing.TB, p Policy, now uint32) []ID {
	t.Helper()
	var out []ID
	for {
		id := p.Victim(now)
		if id == 0 {
			return out
		}
		p.Remove(id, Evicted, now)
		if err := p.Check(); err != nil {
			t.Fatalf("after %d left: %v", id, err)
		}
		out = append(out, id)
	}
}
