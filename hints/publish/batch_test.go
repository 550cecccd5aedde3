package publish

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvcr-go/kvcr/hints/events"
)

const dram = events.HostPinned

// line is an event in short: what it says, where, and of what.
func line(ev *Event) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d", [...]string{"stored", "removed", "cleared"}[ev.Op], ev.Tier)
	if ev.HasParent {
		fmt.Fprintf(&b, " after %d", ev.Parent)
	}
	for _, x := range ev.Blocks {
		fmt.Fprintf(&b, " %d", x.Hash)
	}
	for _, h := range ev.Hashes {
		fmt.Fprintf(&b, " -%d", h)
	}
	if len(ev.Tokens) > 0 {
		fmt.Fprintf(&b, " tokens %v", ev.Tokens)
	}
	return b.String()
}

func lines(b *batch) (out []string) {
	for _, ev := range b.events(func(*Event) {}) {
		out = append(out, line(&ev))
	}
	return out
}

func TestCoalescing(t *testing.T) {
	after := func(hash, parent uint64, tokens ...uint32) *block {
		return &block{hash: hash, parent: parent, hasParent: parent != 0, described: true, tokens: tokens, size: 2}
	}
	with := func(b *block, edit func(*block)) *block { edit(b); return b }
	tests := []struct {
		name string
		do   func(b *batch)
		want []string
	}{
		{"a chain", func(b *batch) {
			b.stored(dram, after(1, 0, 10, 11))
			b.stored(dram, after(2, 1, 12, 13))
			b.stored(dram, after(3, 2, 14, 15))
		}, []string{"stored 1 1 2 3 tokens [10 11 12 13 14 15]"}},
		{"a chain after a parent", func(b *batch) {
			b.stored(dram, after(2, 1))
			b.stored(dram, after(3, 2))
		}, []string{"stored 1 after 1 2 3"}},
		{"a fork", func(b *batch) {
			b.stored(dram, after(1, 0))
			b.stored(dram, after(2, 1))
			b.stored(dram, after(3, 1))
		}, []string{"stored 1 1 2", "stored 1 after 1 3"}},
		{"two roots", func(b *batch) {
			b.stored(dram, after(1, 0))
			b.stored(dram, after(2, 0))
		}, []string{"stored 1 1", "stored 1 2"}},
		{"two tiers", func(b *batch) {
			b.stored(dram, after(1, 0))
			b.stored(events.Disk, after(2, 1))
			b.removed(dram, 1)
			b.removed(events.Disk, 2)
			b.removed(events.Disk, 3)
		}, []string{"stored 1 1", "stored 2 after 1 2", "removed 1 -1", "removed 2 -2 -3"}},
		{"a removal between", func(b *batch) {
			b.stored(dram, after(1, 0))
			b.removed(dram, 9)
			b.removed(dram, 8)
			b.stored(dram, after(2, 1))
		}, []string{"stored 1 1", "removed 1 -9 -8", "stored 1 after 1 2"}},
		{"tokens and none", func(b *batch) {
			b.stored(dram, after(1, 0, 1, 2))
			b.stored(dram, after(2, 1))
		}, []string{"stored 1 1 tokens [1 2]", "stored 1 after 1 2"}},
		{"other adapters, tenants, sizes, and blocks not described", func(b *batch) {
			b.stored(dram, after(1, 0))
			b.stored(dram, with(after(2, 1), func(s *block) { s.lora = "x" }))
			b.stored(dram, with(after(3, 2), func(s *block) { s.salt = "x" }))
			b.stored(dram, with(after(4, 3), func(s *block) { s.size = 4 }))
			b.stored(dram, with(after(5, 4), func(s *block) { s.described = false; s.size = 4 }))
		}, []string{"stored 1 1", "stored 1 after 1 2", "stored 1 after 2 3", "stored 1 after 3 4", "stored 1 after 4 5"}},
		{"a circle", func(b *batch) { // routers drop an event with a hash twice
			b.stored(dram, after(2, 1))
			b.stored(dram, after(3, 2))
			b.stored(dram, after(1, 3))
			b.stored(dram, after(1, 1))
		}, []string{"stored 1 after 1 2 3", "stored 1 after 3 1"}},
		{"the same hash again in a chain", func(b *batch) {
			b.stored(dram, after(2, 1))
			b.stored(dram, after(3, 2))
			b.stored(dram, after(2, 3))
		}, []string{"stored 1 after 1 2 3", "stored 1 after 3 2"}},
		{"eagle", func(b *batch) {
			b.stored(dram, after(1, 0, 10, 11, 12))
			b.stored(dram, after(2, 1, 12, 13, 14))
			b.stored(dram, after(3, 2, 99, 15, 16)) // not the token that 2 looked ahead to
			b.stored(dram, after(4, 3, 16, 17))     // not eagle
		}, []string{"stored 1 1 2 tokens [10 11 12 13 14]", "stored 1 after 2 3 tokens [99 15 16]", "stored 1 after 3 4 tokens [16 17]"}},
		{"cleared", func(b *batch) {
			b.stored(dram, after(1, 0))
			b.cleared()
			b.stored(dram, after(2, 1))
		}, []string{"stored 1 1", "cleared 0", "stored 1 after 1 2"}},
	}
	var b batch
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b.reset()
			tt.do(&b)
			if got := lines(&b); !slices.Equal(got, tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func TestMediaOfBlocks(t *testing.T) {
	var b batch
	b.stored(dram, &block{hash: 1, media: []uint64{7, 8}, described: true})
	b.stored(dram, &block{hash: 2, parent: 1, hasParent: true, described: true})
	b.stored(dram, &block{hash: 3, parent: 2, hasParent: true, media: []uint64{9}, described: true})
	b.stored(dram, &block{hash: 4, media: []uint64{5}, described: true})
	out := b.events(func(*Event) {})
	if len(out) != 2 || !slices.Equal(out[0].Media, []Media{{0, 7}, {0, 8}, {2, 9}}) || !slices.Equal(out[1].Media, []Media{{0, 5}}) {
		t.Errorf("%+v", out)
	}
}

// A used batch costs no memory.
func TestBatchAllocatesNothing(t *testing.T) {
	var b batch
	tokens := make([]uint32, 16)
	fill := func() {
		b.reset()
		for i := range uint64(100) {
			b.stored(dram, &block{hash: i + 1, parent: i, hasParent: i%10 != 0, tokens: tokens, size: 16, lora: "x", described: true})
			if i%7 == 0 {
				b.removed(dram, i)
			}
		}
		b.events(func(ev *Event) { ev.ID = 1 })
	}
	fill()
	if n := testing.AllocsPerRun(50, fill); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Every index once, parents first; of circles too, as far as can be.
func TestOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 40).Draw(t, "n")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		circles := rapid.IntRange(0, 3).Draw(t, "circles") == 0
		rank := rng.Perm(n)
		parents := make([]int32, n)
		for i := range parents {
			parents[i] = int32(rng.IntN(n+1) - 1)
			if p := parents[i]; p >= 0 && !circles && rank[p] >= rank[i] {
				parents[i] = -1
			}
		}
		out := order(parents)
		when := map[int32]int{}
		for at, i := range out {
			if _, had := when[i]; had {
				t.Fatalf("%v: %d twice in %v", parents, i, out)
			}
			when[i] = at
		}
		if len(out) != n {
			t.Fatalf("%v: %v", parents, out)
		}
		for i, p := range parents {
			if p >= 0 && !circles && when[p] > when[int32(i)] {
				t.Fatalf("%v: %d before its parent %d in %v", parents, i, p, out)
			}
		}
	})
	// Chains stay together: one event for each, however the snapshot mixes them.
	got := order([]int32{4, -1, 1, 0, -1, 2})
	if !slices.Equal(got, []int32{1, 2, 5, 4, 0, 3}) {
		t.Errorf("%v", got)
	}
}
