package virtual

import (
	"slices"
	"testing"

	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// What goes is the oldest that nothing here follows, and nobody claims, has marked or
// holds.
func TestEvict(t *testing.T) {
	f := &fleet{Options: Options{Blocks: 4, Length: 1}}
	n := &node{f: f}
	n.feed.n = n
	tab := newTable(f, n)
	n.table = tab
	has := func(want ...uint64) {
		t.Helper()
		var got []uint64
		for h := range tab.blocks {
			got = append(got, h)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("there are %v, want %v", got, want)
		}
	}
	tab.deposit([]uint64{10, 11, 12})
	tab.touch(tab.blocks[11])
	tab.touch(tab.blocks[12]) // the children are newer than their parent
	tab.deposit([]uint64{20})
	has(10, 11, 12, 20)
	tab.deposit([]uint64{30})
	has(10, 11, 20, 30)
	var o wire.Offered
	c, s := tab.Claim("", &wire.Wanted{Key: appendKey(nil, 11)}, &o)
	if s != wire.StatusOK || hashOf(o.Parent) != 10 {
		t.Errorf("a claim is %v, of a block after %x", s, o.Parent)
	}
	tab.deposit([]uint64{40, 41, 42}) // for the last there is no room
	has(10, 11, 40, 41)
	if s := tab.Mark(c, peer.MoveID{Dest: 5, Op: 6}); s != wire.StatusOK {
		t.Errorf("the mark is %v", s)
	}
	tab.Unclaim(c)
	tab.deposit([]uint64{50, 51, 52})
	has(10, 11, 50, 51)
	what := make([]wire.Status, 1)
	c, _ = tab.Claim("", &wire.Wanted{Key: appendKey(nil, 11)}, &o)
	tab.Remove([]peer.Claim{c}, peer.MoveID{Dest: 5, Op: 6}, what)
	has(10, 50, 51)
	if what[0] != wire.StatusOK || tab.used != 4 {
		t.Errorf("%v, and memory of %d blocks is used before the claim ends", what[0], tab.used)
	}
	tab.Unclaim(c)
	if tab.used != 3 || len(f.faults) > 0 {
		t.Errorf("memory of %d blocks is used after it; %v", tab.used, f.faults)
	}
}
