package cells

import (
	"math/rand/v2"
	"testing"
)

// Against a map of who has what: runs never overlap, never wrap around the end,
// and are found while there are any.
func TestCells(t *testing.T) {
	type run struct{ at, n int }
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		c := New(1 + r.IntN(40))
		owner := make([]int, c.Len())
		var runs []run
		for step := range 2000 {
			if len(runs) > 0 && r.IntN(2) == 0 {
				k := r.IntN(len(runs))
				for i := range runs[k].n {
					owner[runs[k].at+i] = 0
				}
				c.Give(runs[k].at, runs[k].n)
				runs = append(runs[:k], runs[k+1:]...)
				continue
			}
			n := 1 + r.IntN(5)
			longest, row := 0, 0
			for _, o := range owner {
				if row++; o != 0 {
					row = 0
				}
				longest = max(longest, row)
			}
			at, ok := c.Take(n)
			if ok != (longest >= n) {
				t.Fatalf("seed %d, step %d: Take(%d) says %t, the longest row is %d", seed, step, n, ok, longest)
			}
			if !ok {
				continue
			}
			for i := at; i < at+n; i++ {
				if owner[i] != 0 {
					t.Fatalf("seed %d, step %d: cell %d is taken twice", seed, step, i)
				}
				owner[i] = step + 1
			}
			runs = append(runs, run{at, n})
		}
		used := 0
		for _, x := range runs {
			used += x.n
		}
		if c.Free() != c.Len()-used {
			t.Errorf("seed %d: %d free, want %d", seed, c.Free(), c.Len()-used)
		}
	}
	if _, ok := New(4).Take(5); ok {
		t.Error("more than there are")
	}
}
