package plan_test

import (
	"testing"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

// A dump has what stays during all of it, although most around it goes meanwhile, and
// its place before the one that the dump has come to is free.
func TestDumpMissesNothing(t *testing.T) {
	x := plan.New(plan.Config{})
	w := events.Worker{ID: 1}
	var c chains
	var stores, removes []events.RouterEvent
	for range 200 {
		s, r := cut(w, c.next(64), 64)
		apply(t, x, &s[0])
		stores, removes = append(stores, s...), append(removes, r...)
	}
	for i := range 150 {
		apply(t, x, &removes[i])
	}
	stays := map[uint64]int{}
	x.Dump(func(ev *events.RouterEvent) bool {
		for i := 150; i < 200 && len(stays) == 0; i++ {
			removes[i].Hashes = removes[i].Hashes[:61] // from the end of the chain
			apply(t, x, &removes[i])
		}
		stays[ev.Blocks[0].Hash]++
		return true
	})
	for i := 150; i < 200; i++ {
		for _, b := range stores[i].Blocks[:3] {
			if stays[b.Hash] != 1 {
				t.Fatalf("block %x of chain %d was dumped %d times", b.Hash, i, stays[b.Hash])
			}
		}
	}
	n := 0
	x.Dump(func(*events.RouterEvent) bool { n++; return n < 5 })
	if n != 5 {
		t.Errorf("a dump went on to %d after it was told to end", n)
	}
	if err := x.Check(); err != nil {
		t.Error(err)
	}
}
