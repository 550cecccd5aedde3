package plan

import (
	"testing"

	"github.com/kvcr-go/kvcr/hints/events"
)

// A lookup that found where an edge was, and looks at it when it has moved, finds it
// where it is.
func TestMovedInSearch(t *testing.T) {
	x := New(Config{})
	w := events.Worker{ID: 1}
	store := &events.RouterEvent{Worker: w, Tier: events.HostPinned, Op: events.Stored}
	remove := &events.RouterEvent{Worker: w, Tier: events.HostPinned, Op: events.Removed}
	var locals []uint64
	for i := range uint64(64) {
		store.Blocks = append(store.Blocks, events.Block{Hash: i + 1, Local: i + 1})
		locals = append(locals, i+1)
		if i > 2 {
			remove.Hashes = append(remove.Hashes, i+1)
		}
	}
	if err := x.Apply(store); err != nil {
		t.Fatal(err)
	}
	tier := x.tiers[events.HostPinned]
	tier.inSearch = func() {
		tier.inSearch = nil
		if err := x.Apply(remove); err != nil {
			t.Error(err)
		}
	}
	s := x.NewScratch()
	scores := x.Scores(s, x.Match(s, locals[:3]), nil)
	if tier.inSearch != nil || tier.moves.Load() != 1 {
		t.Fatal("nothing was moved during the lookup")
	}
	if len(scores) != 1 || scores[0].Hits[events.HostPinned] != 3 {
		t.Errorf("scores %+v, want 3 blocks", scores)
	}
}
