package model

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kvcr-go/kvcr/bench/trace"
	"github.com/kvcr-go/kvcr/shard/evict"
)

// capacities are those of the tables, percent of the trace's different blocks.
var capacities = []float64{1, 2, 5, 10, 20, 50}

// recorded opens a recorded trace, or skips.
func recorded(t testing.TB, name string) *trace.Trace {
	t.Helper()
	if racing {
		t.Skip("recorded traces: not in race builds")
	}
	tr, err := trace.Open(name, "../..", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if tr.Made {
		t.Skipf("no ../shared/traces/%s_trace.jsonl beside the repository", name)
	}
	return tr
}

func share(percent float64, unique int) int { return int(percent * float64(unique) / 100) }

// row plays p at all capacities, percent of unique blocks.
func row(p *Requests, unique int, fresh func() Cache) (out [6]Result) {
	for i, pc := range capacities {
		out[i] = p.Run(share(pc, unique), fresh())
	}
	return out
}

func prefix(rs [6]Result) (out [6]float64, mean float64) {
	for i, r := range rs {
		out[i] = r.Percent()
		mean += out[i] / 6
	}
	return out, mean
}

func show(v [6]float64) string {
	var s []string
	for _, x := range v {
		s = append(s, fmt.Sprintf("%5.1f", x))
	}
	return strings.Join(s, " ")
}

// TestExactRows: LRU and Belady give the figures of an independent simulator to
// the rounding of one decimal, so this is the same model.
func TestExactRows(t *testing.T) {
	for _, tt := range []struct {
		trace string
		c     func() Cache
		want  [6]float64
	}{
		{"conversation", func() Cache { return &LRU{} }, [6]float64{5.2, 7.9, 19.5, 27.8, 34.5, 36.3}},
		{"conversation", func() Cache { return &LRU{TailFirst: true} }, [6]float64{5.2, 7.9, 19.6, 27.9, 34.5, 36.3}},
		{"conversation", func() Cache { return &LRU{TailFirst: true, NoTails: true} }, [6]float64{5.3, 8.2, 20.3, 28.3, 35.0, 36.3}},
		{"conversation", func() Cache { return &S3FIFO{Small: 0.1, Promote: 2} }, [6]float64{7.7, 11.2, 19.0, 24.4, 32.8, 36.2}},
		{"conversation", func() Cache { return &Belady{} }, [6]float64{24.6, 31.4, 36.6, 36.6, 36.6, 36.6}},
		{"synthetic", func() Cache { return &LRU{} }, [6]float64{3.4, 7.6, 15.5, 26.0, 39.1, 58.9}},
		{"synthetic", func() Cache { return &LRU{TailFirst: true} }, [6]float64{3.8, 7.8, 15.7, 26.2, 39.3, 58.9}},
		{"synthetic", func() Cache { return &LRU{TailFirst: true, NoTails: true} }, [6]float64{3.9, 7.9, 16.1, 26.9, 40.1, 59.2}},
		{"synthetic", func() Cache { return &S3FIFO{Small: 0.1, Promote: 2} }, [6]float64{2.9, 7.5, 14.7, 26.0, 38.6, 57.4}},
		{"synthetic", func() Cache { return &Belady{} }, [6]float64{18.5, 26.1, 39.6, 50.6, 60.8, 64.0}},
	} {
		t.Run(fmt.Sprintf("%s/%T", tt.trace, tt.c()), func(t *testing.T) {
			t.Parallel()
			p := Prepare(recorded(t, tt.trace))
			got, _ := prefix(row(p, p.Unique(), tt.c))
			for i := range got {
				if math.Abs(got[i]-tt.want[i]) > 0.1 {
					t.Errorf("at %g %%: %.2f, want %.1f", capacities[i], got[i], tt.want[i])
				}
			}
		})
	}
}

// TestDensity: the figures the policy was chosen for, for each of three seeds of
// the sampling. At 1 % of conversation other seeds give 9.4 to 9.8, so that a
// change which only moves chance may fail here by 0.2.
func TestDensity(t *testing.T) {
	const seeds = 3
	for _, tt := range []struct {
		trace     string
		want      [6]float64
		tolerance float64
	}{
		{"conversation", [6]float64{10.0, 13.6, 21.9, 28.9, 34.3, 36.3}, 0.4},
		{"synthetic", [6]float64{4.2, 7.7, 15.5, 26.5, 40.2, 60.1}, 0.8},
	} {
		t.Run(tt.trace, func(t *testing.T) {
			t.Parallel()
			p := Prepare(recorded(t, tt.trace))
			var mean [6]float64
			for seed := range uint64(seeds) {
				rs := row(p, p.Unique(), func() Cache { return &Evict{Policy: "density", Seed: seed} })
				got, m := prefix(rs)
				t.Logf("seed %d: %s, mean %.2f", seed, show(got), m)
				for i, r := range rs {
					mean[i] += got[i] / seeds
					if got[i] < tt.want[i]-tt.tolerance {
						t.Errorf("seed %d at %g %%: %.2f, want %.1f less at most %.1f", seed, capacities[i], got[i], tt.want[i], tt.tolerance)
					}
					if r.UnreachableShare != 0 {
						t.Errorf("seed %d at %g %%: %g of the blocks are unreachable", seed, capacities[i], r.UnreachableShare)
					}
					if r.Hits != r.BlockHits {
						t.Errorf("seed %d at %g %%: %d hits of %d were usable", seed, capacities[i], r.Hits, r.BlockHits)
					}
				}
			}
			t.Logf("mean:   %s", show(mean))
		})
	}
}

// TestFloors: results that must not get worse, whatever else improves.
func TestFloors(t *testing.T) {
	mean := func(p *Requests, capacity int) float64 {
		sum := 0.0
		for seed := range uint64(3) {
			sum += p.Run(capacity, &Evict{Policy: "density", Seed: seed}).Percent() / 3
		}
		return sum
	}
	for _, tt := range []struct {
		name   string
		derive func(conv *trace.Trace) *trace.Trace
		floors map[float64]float64
		heavy  bool
	}{
		{"conversation", func(c *trace.Trace) *trace.Trace { return c }, map[float64]float64{1: 9, 5: 21, 10: 28.4, 20: 33.8}, false},
		{"conv3", trace.Steady, map[float64]float64{10: 28.9}, true},
		{"scan", func(c *trace.Trace) *trace.Trace { return trace.Scan(c, 10, 200) }, map[float64]float64{10: 27.5}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.heavy && testing.Short() {
				t.Skip("heavy: not with -short")
			}
			t.Parallel()
			conv := recorded(t, "conversation")
			unique := conv.Unique()
			p := Prepare(tt.derive(conv))
			for pc, floor := range tt.floors {
				got := mean(p, share(pc, unique))
				t.Logf("at %g %%: %.2f, floor %g", pc, got, floor)
				if got < floor {
					t.Errorf("at %g %%: %.2f, want at least %g", pc, got, floor)
				}
			}
		})
	}
	t.Run("synthetic", func(t *testing.T) {
		t.Parallel()
		p := Prepare(recorded(t, "synthetic"))
		sum := 0.0
		for _, pc := range capacities {
			sum += mean(p, share(pc, p.Unique())) / 6
		}
		t.Logf("mean %.2f, floor 25", sum)
		if sum < 25 {
			t.Errorf("mean %.2f, want at least 25", sum)
		}
	})
}

// TestDerivedTraces prints the table of steady state and change. It is slow, and
// a report, not a check: set KVCR_TABLE=1 for it.
func TestDerivedTraces(t *testing.T) {
	if os.Getenv("KVCR_TABLE") == "" {
		t.Skip("set KVCR_TABLE=1 for the table")
	}
	conv, syn := recorded(t, "conversation"), recorded(t, "synthetic")
	c1, c2 := trace.Halves(conv)
	s1, s2 := trace.Halves(syn)
	for _, tt := range []struct {
		tr     *trace.Trace
		unique int
	}{
		{conv, conv.Unique()}, {syn, syn.Unique()},
		{trace.Steady(conv), conv.Unique()}, {trace.Steady(syn), syn.Unique()},
		{trace.Alternate(syn, conv), conv.Unique()}, {trace.Mix(conv, syn), conv.Unique() + syn.Unique()},
		{trace.Scan(conv, 10, 200), conv.Unique()},
		{c1, c1.Unique()}, {c2, c2.Unique()}, {s1, s1.Unique()}, {s2, s2.Unique()},
	} {
		p := Prepare(tt.tr)
		report := func(name string, f func() Cache) {
			got, mean := prefix(row(p, tt.unique, f))
			t.Logf("%-13s %-20s %s  mean %.2f", tt.tr.Name, name, show(got), mean)
		}
		report("LRU", func() Cache { return &LRU{} })
		report("S3-FIFO 0.1", func() Cache { return &S3FIFO{Small: 0.1, Promote: 2} })
		report("S3-FIFO 0.5 no tails", func() Cache { return &S3FIFO{Small: 0.5, Promote: 1, NoTails: true} })
		for _, name := range evict.Names() {
			report(name, func() Cache { return &Evict{Policy: name} })
		}
		report("density, late", func() Cache { return &Evict{Policy: "density", Late: true} })
	}
}

// generated is a trace that is always at hand.
func generated() *trace.Trace {
	p := trace.DefaultParams(1)
	p.Conversations = 1500
	return trace.Generate("generated", p)
}

// TestModelsAgree: what must hold of any trace. Belady is a bound, density keeps
// every block reachable, an endless cache hits whatever came before, and the
// policies of the shard come close to the models of the same name.
func TestModelsAgree(t *testing.T) {
	tr := generated()
	p := Prepare(tr)
	if p.Unique() != tr.Unique() {
		t.Fatalf("%d blocks, trace has %d", p.Unique(), tr.Unique())
	}
	for _, pc := range []float64{2, 10, 30} {
		n := share(pc, p.Unique())
		bound := p.Run(n, &Belady{})
		lru := p.Run(n, &LRU{TailFirst: true})
		for _, c := range []Cache{
			&LRU{}, &LRU{TailFirst: true, NoTails: true}, &S3FIFO{Small: 0.1, Promote: 2},
			&Evict{Policy: "density", Check: 50}, &Evict{Policy: "density", Late: true, Check: 50},
			&Evict{Policy: "lru", Check: 50}, &Evict{Policy: "fifo", Check: 50}, &Evict{Policy: "s3fifo", Check: 50},
		} {
			r := p.Run(n, c)
			name := fmt.Sprintf("%T", c)
			if e, ok := c.(*Evict); ok {
				name = e.Policy
				if name == "density" && (r.UnreachableShare != 0 || r.Hits != r.BlockHits) {
					t.Errorf("%g %%: density: %v", pc, r)
				}
				if name == "lru" && math.Abs(r.Percent()-lru.Percent()) > 0.5 {
					t.Errorf("%g %%: lru %v, the exact model %v", pc, r, lru)
				}
			}
			if r.IDs != tr.Blocks() || r.Hits == 0 || r.Hits > bound.Hits || r.Hits > r.BlockHits {
				t.Errorf("%g %%: %s: %v of %d; Belady %v", pc, name, r, r.IDs, bound)
			}
		}
	}
	seen := make(map[uint64]bool)
	again := 0
	for _, r := range tr.Requests {
		for _, id := range r.IDs {
			if seen[id] {
				again++
			}
			seen[id] = true
		}
	}
	for _, c := range []Cache{&LRU{}, &S3FIFO{Small: 0.1, Promote: 1}, &Belady{}, &Evict{Policy: "density"}, &Evict{Policy: "s3fifo"}} {
		if r := p.Run(p.Unique(), c); r.Hits != again {
			t.Errorf("%T with room for all: %d hits, want %d", c, r.Hits, again)
		}
	}
}

// TestBeladyExact compares with every possible choice on small streams.
func TestBeladyExact(t *testing.T) {
	// best is the most block hits over all ways to evict, refusing blocks included.
	var best func(ids []uint32, cache []uint32, capacity int) int
	best = func(ids, cache []uint32, capacity int) int {
		if len(ids) == 0 {
			return 0
		}
		if slices.Contains(cache, ids[0]) {
			return 1 + best(ids[1:], cache, capacity)
		}
		top := best(ids[1:], cache, capacity) // refused
		if len(cache) < capacity {
			return max(top, best(ids[1:], append(slices.Clone(cache), ids[0]), capacity))
		}
		for i := range cache {
			next := slices.Clone(cache)
			next[i] = ids[0]
			top = max(top, best(ids[1:], next, capacity))
		}
		return top
	}
	for seed := range uint64(40) {
		k := Uniform(seed, 5, 10)
		if got, want := RunKeys(k, 2, &Belady{}).Hits, best(k.IDs, nil, 2); got != want {
			t.Errorf("stream %v: %d hits, the best is %d", k.IDs, got, want)
		}
	}
}

// TestUnreachableShare: a cache that drops heads first is caught at it.
func TestUnreachableShare(t *testing.T) {
	tr := &trace.Trace{Requests: []trace.Request{{IDs: []uint64{1, 2, 3, 4}}, {IDs: []uint64{9}}}}
	if r := Run(tr, 4, &LRU{}); r.UnreachableShare != (0+0.75)/2 {
		t.Errorf("share %g, want 3 of 4 in the second of two samples", r.UnreachableShare)
	}
	if r := Run(tr, 4, &LRU{TailFirst: true}); r.UnreachableShare != 0 {
		t.Errorf("tail first: share %g", r.UnreachableShare)
	}
}
