package server

import (
	"slices"
	"testing"
)

// FuzzExtents: whatever is taken and given, no two places share a byte, a take
// fails only where no gap is long enough, and in the end all is one again.
func FuzzExtents(f *testing.F) {
	f.Add([]byte{10, 20, 0x81, 30, 0x80, 0x80})
	f.Add([]byte{1, 1, 1, 1, 0x80, 0x82, 0x81, 0x80, 64, 64})
	f.Add([]byte{0, 127, 127, 127, 127, 0x80, 127})
	f.Fuzz(func(t *testing.T, ops []byte) {
		const units = 256
		const size = units * stagingUnit
		free := extents{{0, size}}
		type taken struct{ off, n int64 }
		var out []taken
		var used [units]bool
		mark := func(x taken, v bool) {
			for u := x.off / stagingUnit; u < (x.off+x.n+stagingUnit-1)/stagingUnit; u++ {
				if used[u] == v {
					t.Fatalf("unit %d of the place of %d bytes at %d: used is %t already", u, x.n, x.off, v)
				}
				used[u] = v
			}
		}
		for _, op := range ops {
			if op&0x80 != 0 {
				if len(out) > 0 {
					i := int(op&0x7f) % len(out)
					mark(out[i], false)
					free.give(out[i].off, out[i].n)
					out = slices.Delete(out, i, i+1)
				}
				continue
			}
			n := int64(op) * 97 // not a multiple of the unit
			off, ok := free.take(n)
			gap, longest := 0, 0
			for _, u := range used {
				if gap++; u {
					gap = 0
				}
				longest = max(longest, gap)
			}
			if ok != (roundUp(n) <= int64(longest)*stagingUnit) {
				t.Fatalf("take(%d) is %t, the longest gap is %d", n, ok, longest*stagingUnit)
			}
			if ok {
				if off < 0 || off+n > size || off%stagingUnit != 0 {
					t.Fatalf("%d bytes at %d of %d", n, off, size)
				}
				mark(taken{off, n}, true)
				out = append(out, taken{off, n})
			}
		}
		for _, x := range out {
			free.give(x.off, x.n)
		}
		if !slices.Equal(free, extents{{0, size}}) {
			t.Fatalf("at the end %v is free", free)
		}
	})
}
