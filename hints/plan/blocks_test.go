package plan

import (
	"testing"

	"pgregory.net/rapid"
)

// Units are given out once each, within one region, and join again when they are
// given back.
func TestBlocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b blocks
		type piece struct {
			base uint32
			n    int
		}
		var out []piece
		owner := map[uint32]bool{}
		most := 0
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			if rapid.IntRange(0, 2).Draw(t, "take") > 0 || len(out) == 0 {
				want := rapid.IntRange(1, regionUnits).Draw(t, "units")
				base, n := b.take(want)
				if n < 1 || n > want || base/regionUnits != (base+uint32(n)-1)/regionUnits {
					t.Fatalf("took %d units at %d, wanted %d", n, base, want)
				}
				for u := base; u < base+uint32(n); u++ {
					if owner[u] {
						t.Fatalf("unit %d was given out twice", u)
					}
					owner[u] = true
				}
				out = append(out, piece{base, n})
			} else {
				i := rapid.IntRange(0, len(out)-1).Draw(t, "which")
				p := out[i]
				b.giveBack(p.base, p.n)
				for u := p.base; u < p.base+uint32(p.n); u++ {
					delete(owner, u)
				}
				out[i] = out[len(out)-1]
				out = out[:len(out)-1]
			}
			most = max(most, len(owner))
		}
		if got, want := b.free+len(owner), len(b.regions)*regionUnits; got != want {
			t.Fatalf("%d units, want %d", got, want)
		}
		if n := len(b.regions) * regionUnits; n > 2*most+slabUnits {
			t.Fatalf("%d units for %d", n, most)
		}
		for _, p := range out {
			b.giveBack(p.base, p.n)
		}
		for i := range b.regions {
			if b.regions[i].free != 1<<regionUnits-1 {
				t.Fatalf("region %d has %#x free", i, b.regions[i].free)
			}
		}
		if b.some != 1<<regionUnits {
			t.Fatalf("lists %#x", b.some)
		}
	})
}

// Chunks make do with what is left of regions that others keep open.
func TestBlocksFillGaps(t *testing.T) {
	var b blocks
	for range slabUnits {
		b.take(1)
	}
	for u := range uint32(slabUnits) {
		if u%regionUnits != 7 {
			b.giveBack(u, 1)
		}
	}
	taken := 0
	for taken < slabUnits/2 {
		_, n := b.take(regionUnits)
		taken += n
	}
	if n := b.slabs.len(); n != 1 {
		t.Errorf("%d slabs for %d units", n, taken+slabRegions)
	}
}
