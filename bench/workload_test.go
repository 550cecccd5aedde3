package bench

import (
	"math"
	"testing"
)

// TestZipfDistribution compares frequencies with 1/(rank+1)^theta. The method
// is exact for the first two ranks and approximate after them.
func TestZipfDistribution(t *testing.T) {
	const n, draws, theta = 1000, 2_000_000, 0.99
	z := NewZipf(n, theta, 1)
	counts := make([]int, n)
	for range draws {
		counts[z.Rank()]++
	}
	zeta := 0.0
	for i := range n {
		zeta += 1 / math.Pow(float64(i+1), theta)
	}
	share := func(from, to int) (got, want float64) {
		for i := from; i < to; i++ {
			got += float64(counts[i]) / draws
			want += 1 / math.Pow(float64(i+1), theta) / zeta
		}
		return got, want
	}
	for _, r := range []struct {
		from, to  int
		tolerance float64
	}{{0, 1, 0.01}, {1, 2, 0.015}, {2, 10, 0.10}, {10, 100, 0.05}, {100, 1000, 0.05}} {
		got, want := share(r.from, r.to)
		if math.Abs(got/want-1) > r.tolerance {
			t.Errorf("ranks %d to %d: share %.4f, want %.4f within %.1f %%", r.from, r.to-1, got, want, 100*r.tolerance)
		}
	}
}

func TestZipfScatterIsABijection(t *testing.T) {
	for _, n := range []int{2, 3, 10, 1000, 1 << 16, 2654435761 % 100003} {
		z := NewZipf(n, 0.99, 1)
		seen := make([]bool, n)
		for rank := range n {
			k := uint64(rank) * z.scatter % z.elements
			if seen[k] {
				t.Fatalf("n=%d: two ranks give key %d", n, k)
			}
			seen[k] = true
		}
	}
}

func TestWalkReadShare(t *testing.T) {
	w := newWalk(NewZipf(100, 0.99, 1), 50_000, 90)
	puts := 0
	for _, p := range w.put {
		if p {
			puts++
		}
	}
	if share := float64(puts) / 50_000; math.Abs(share-0.1) > 0.01 {
		t.Errorf("%.3f of the steps write, want 0.1", share)
	}
}

func TestKeysDiffer(t *testing.T) {
	ks := sequence(10_000)
	seen := map[string]bool{}
	stamps := map[uint64]bool{}
	for i := range ks.Len() {
		k := ks.At(i)
		if k.Text != string(k.Bytes) || len(k.Bytes) != KeyBytes || k.number() != uint64(i) {
			t.Fatalf("key %d: text %x, bytes %x, number %d", i, k.Text, k.Bytes, k.number())
		}
		if seen[k.Text] || stamps[k.stamp()] {
			t.Fatalf("key %d is not new, or its stamp", i)
		}
		seen[k.Text], stamps[k.stamp()] = true, true
	}
}

func TestValuesBelongToTheirKey(t *testing.T) {
	ks, v := sequence(2), newValues(64, 1)
	b := v.of(ks.At(0))
	if !stamped(b, ks.At(0)) || stamped(b, ks.At(1)) {
		t.Fatal("a value is that of its key and of no other")
	}
	b[len(b)-1] ^= 1
	if stamped(b, ks.At(0)) {
		t.Error("a torn value passes")
	}
	if c := v.of(ks.At(0)); string(c) == string(b) {
		t.Error("two values of a key are the same bytes")
	}
}
