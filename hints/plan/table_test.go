package plan

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// A table holds the numbers that were put in and not taken out, under few hashes,
// which share pages, groups and fingerprints, as under many.
func TestTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kinds := rapid.SampledFrom([]uint32{1, 7, 1000}).Draw(t, "hashes")
		hashOf := func(n uint32) uint64 { return uint64(n%kinds) << 40 } // all in one page
		tab := table{hashOf: hashOf}
		in := map[uint32]bool{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			from := rapid.Uint32Range(1, 2000).Draw(t, "from")
			add := rapid.Bool().Draw(t, "add")
			for n := from; n < from+rapid.Uint32Range(1, 200).Draw(t, "many"); n++ {
				if add && !in[n] {
					tab.add(hashOf(n), n)
					in[n] = true
				} else if !add && in[n] {
					tab.remove(hashOf(n), n)
					delete(in, n)
				}
			}
		}
		if tab.len != len(in) {
			t.Fatalf("len %d, want %d", tab.len, len(in))
		}
		got := map[uint32]bool{}
		for k := range kinds {
			var seen []uint32
			for p := tab.probe(hashOf(k)); ; {
				n := p.next()
				if n == 0 {
					break
				}
				if n%kinds == k {
					seen = append(seen, n)
					got[n] = true
				}
			}
			slices.Sort(seen)
			if len(slices.Compact(seen)) != len(seen) {
				t.Fatalf("a number came twice: %v", seen)
			}
		}
		for n := range in {
			if !got[n] {
				t.Fatalf("%d of %d is not found", n, len(in))
			}
		}
		if len(got) != len(in) {
			t.Fatalf("%d numbers are found, want %d", len(got), len(in))
		}
		if pg := tab.pages[0].Load(); pg != nil && len(pg.groups) > 4+len(in) {
			t.Fatalf("%d groups for %d numbers", len(pg.groups), len(in))
		}
	})
}

// What stays in a table is found at every moment while other numbers come and go.
func TestTableProbesBesideWriter(t *testing.T) {
	hashOf := func(n uint32) uint64 { return uint64(n) * 0x9e3779b97f4a7c15 >> 12 } // one page
	tab := table{hashOf: hashOf}
	const stay = 50
	for n := uint32(1); n <= stay; n++ {
		tab.add(hashOf(n), n)
	}
	var stop atomic.Bool
	var readers sync.WaitGroup
	for range 2 {
		readers.Add(1)
		go func() {
			defer readers.Done()
			for !stop.Load() {
				for n := uint32(1); n <= stay; n++ {
					found := false
					p := tab.probe(hashOf(n))
					for got := p.next(); got != 0; got = p.next() {
						found = found || got == n
					}
					if !found {
						t.Errorf("%d was missed", n)
						return
					}
				}
			}
		}()
	}
	r := rand.New(rand.NewPCG(1, 1))
	var in []uint32
	for n := uint32(stay + 1); n < 30_000; n++ {
		tab.add(hashOf(n), n)
		in = append(in, n)
		for len(in) > 300 || len(in) > 0 && r.IntN(3) == 0 {
			i := r.IntN(len(in))
			tab.remove(hashOf(in[i]), in[i])
			in[i] = in[len(in)-1]
			in = in[:len(in)-1]
		}
	}
	stop.Store(true)
	readers.Wait()
}
