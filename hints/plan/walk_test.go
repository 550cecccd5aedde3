package plan

import (
	"testing"

	"pgregory.net/rapid"
)

// A pair has the best candidate for every target, whichever one it leaves out.
func TestPair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p pair
		var all []candidate
		for i := range rapid.IntRange(0, 8).Draw(t, "candidates") {
			c := candidate{
				slot:  uint32(100 + i),
				ident: rapid.Uint32Range(0, 3).Draw(t, "ident"),
				rank:  int32(i*7%8 + 1),
				end:   int32(rapid.IntRange(1, 3).Draw(t, "end")),
			}
			all = append(all, c)
			p.add(c)
		}
		for target := range uint32(5) {
			var best candidate
			for _, c := range all {
				if c.ident != target && (best.end == 0 || c.better(best)) {
					best = c
				}
			}
			if got := p.serving(target); got != best {
				t.Fatalf("target %d: %+v of %+v, want %+v", target, got, all, best)
			}
		}
	})
}
