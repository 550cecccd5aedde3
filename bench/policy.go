package bench

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/bench/model"
	"github.com/kvcr-go/kvcr/bench/trace"
)

// Percents are the capacities at which policies are compared, in percent of a
// trace's different blocks.
var Percents = []float64{1, 2, 5, 10, 20, 50}

// Model is a simulated policy that the engine is compared with.
type Model struct {
	Name, Label string
	New         func() model.Cache
	// Bound marks what no policy can reach.
	Bound bool
}

// Models lists the simulated policies, the best known last.
func Models() []Model {
	return []Model{
		{Name: "lru", Label: "LRU", New: func() model.Cache { return &model.LRU{} }},
		{Name: "tail-lru", Label: "tail-first LRU", New: func() model.Cache { return &model.LRU{TailFirst: true} }},
		{Name: "s3fifo", Label: "S3-FIFO", New: func() model.Cache { return &model.S3FIFO{Small: 0.1, Promote: 2} }},
		{Name: "belady", Label: "Belady (bound)", New: func() model.Cache { return &model.Belady{} }, Bound: true},
	}
}

// CapacityOf is percent of the trace's different blocks, at least one.
func CapacityOf(tr *trace.Trace, percent float64) int {
	return max(1, int(math.Round(float64(tr.Unique())*percent/100)))
}

// Ratio is one policy at one capacity.
type Ratio struct {
	Percent float64 `json:"capacity_percent"` // of the trace's different blocks
	Prefix  float64 `json:"prefix_hit_percent"`
	Block   float64 `json:"block_hit_percent"`
}

// Curve is one policy over capacities.
type Curve struct {
	Impl   string  `json:"impl"`
	Label  string  `json:"label"`
	Bound  bool    `json:"bound"`
	Ratios []Ratio `json:"ratios"`
}

// ModelCurves simulates every model at each capacity.
func ModelCurves(ctx context.Context, tr *trace.Trace, percents []float64, progress func(string)) ([]Curve, error) {
	requests := model.Prepare(tr)
	var curves []Curve
	for _, m := range Models() {
		c := Curve{Impl: m.Name, Label: m.Label, Bound: m.Bound}
		for _, p := range percents {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			progress(fmt.Sprintf("%s at %g %%: %s", tr.Name, p, m.Label))
			r := requests.Run(CapacityOf(tr, p), m.New())
			c.Ratios = append(c.Ratios, Ratio{p, r.Percent(), r.BlockPercent()})
		}
		curves = append(curves, c)
	}
	return curves, nil
}

// EngineCurve replays the trace through the engine at each capacity. o.Trace
// is the trace; o.Blocks is set for each capacity.
func EngineCurve(ctx context.Context, o ReplayOptions, percents []float64, progress func(string)) (Curve, []*ReplayResult, error) {
	c := Curve{Impl: ours}
	var results []*ReplayResult
	for _, p := range percents {
		progress(fmt.Sprintf("%s at %g %%: kvcr", o.Trace.Name, p))
		o.Blocks = CapacityOf(o.Trace, p)
		r, err := Replay(ctx, o)
		if err != nil {
			return c, results, err
		}
		if r.WrongBytes > 0 {
			return c, results, fmt.Errorf("%s at %g %%: %d wrong bytes in %d blocks", o.Trace.Name, p, r.WrongBytes, r.WrongBlocks)
		}
		c.Label = "kvcr (" + r.Policy + ")"
		c.Ratios = append(c.Ratios, Ratio{p, r.PrefixPercent(), r.BlockPercent()})
		results = append(results, r)
	}
	return c, results, nil
}

// Policy compares the engine's hit ratios on traces with those of simulated
// policies, then on keys without chains.
func Policy(ctx context.Context, o Options, traces []*trace.Trace) (*Report, error) {
	return runParts(ctx, o, []part{
		{[]string{"usable-prefix-hit", "block-hit", "unreachable"}, 3, func(ctx context.Context, o Options, rep *Report) error {
			for _, tr := range traces {
				if o.Smoke {
					tr = begin(tr, smokeRequests)
				}
				if err := comparePolicies(ctx, o, rep, tr); err != nil {
					return fmt.Errorf("%s: %w", tr.Name, err)
				}
			}
			return nil
		}},
		{[]string{"key-hit"}, 1, compareKeyPolicies},
	})
}

// smokeRequests of a trace are replayed when nothing is measured.
const smokeRequests = 300

// begin is a trace's first n requests. No figure is known of such a part, so it
// counts as made up.
func begin(tr *trace.Trace, n int) *trace.Trace {
	return &trace.Trace{Name: tr.Name, Requests: tr.Requests[:min(n, len(tr.Requests))], Made: true}
}

// floors are the hit ratios on recorded traces under which the default policy
// has lost what it was chosen for, by capacity.
var floors = map[string]map[float64]float64{
	"conversation": {1: 9, 5: 21, 10: 28.4, 20: 33.8},
}

func comparePolicies(ctx context.Context, o Options, rep *Report, tr *trace.Trace) error {
	models, err := ModelCurves(ctx, tr, Percents, o.Progress)
	if err != nil {
		return err
	}
	add := func(name string, percent, value float64, unit string, better Better, bar Bar, impl string, rival bool) {
		r := rep.result(Result{Suite: "replay", Name: name, Params: []Param{{"trace", tr.Name}, {"capacity", percent}}, Unit: unit, Better: better, Bar: bar})
		s := r.series(impl)
		s.Rival = rival
		s.Runs = append(s.Runs, value)
	}
	addCurve := func(c Curve) {
		rival := c.Impl != ours && !c.Bound
		for _, p := range c.Ratios {
			bar := Bar{}
			if floor, ok := floors[tr.Name][p.Percent]; ok && !tr.Made {
				bar = Bar{Limit: floor, HasLimit: true}
			}
			add("usable-prefix-hit", p.Percent, p.Prefix, "%", Higher, bar, c.Impl, rival)
		}
		for _, p := range c.Ratios {
			add("block-hit", p.Percent, p.Block, "%", Higher, Bar{}, c.Impl, rival)
		}
	}
	// The engine is the only one that chance (the seed of its sampling) moves.
	err = o.rounds(ctx, func(round int) error {
		c, results, err := EngineCurve(ctx, ReplayOptions{Trace: tr, Seed: uint64(round + 1)}, Percents, o.Progress)
		if err != nil {
			return err
		}
		addCurve(c)
		for i, r := range results {
			add("unreachable", c.Ratios[i].Percent, float64(r.Unreachable), "blocks", Lower, Bar{HasLimit: true}, ours, false)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, c := range models {
		addCurve(c)
	}
	return nil
}

// compareKeyPolicies compares hit ratios on keys that form no chains: zipf,
// and a loop over ten times the capacity.
func compareKeyPolicies(ctx context.Context, o Options, rep *Report) error {
	keys, accesses := 1_000_000, 4_000_000
	if o.Quick {
		keys, accesses = 200_000, 800_000
	}
	if o.Smoke {
		keys, accesses = 20_000, 80_000
	}
	// A loop is learned over many laps, so it is a tenth as long.
	for _, w := range []struct {
		keys model.Keys
		// bar from the models' ratios
		bar func(ratio map[string]float64) float64
	}{
		{model.Zipf(1, keys, accesses), func(r map[string]float64) float64 { return r["s3fifo"] - 0.3 }},
		{model.Loop(keys/10, accesses), func(map[string]float64) float64 { return 8 }},
	} {
		capacity := w.keys.Unique / 10
		r := rep.result(Result{Suite: "replay", Name: "key-hit", Params: []Param{{"keys", w.keys.Name}, {"capacity", 10}}, Unit: "%", Better: Higher})
		r.series(ours)
		ratios := map[string]float64{}
		for _, m := range Models() {
			if m.Name == "tail-lru" {
				continue // without chains it is LRU
			}
			o.Progress(fmt.Sprintf("%s: %s", w.keys.Name, m.Label))
			ratios[m.Name] = model.RunKeys(w.keys, capacity, m.New()).Percent()
			s := r.series(m.Name)
			s.Rival = !m.Bound
			s.Runs = []float64{ratios[m.Name]}
		}
		r.Bar = Bar{Limit: w.bar(ratios), HasLimit: true}
		err := o.rounds(ctx, func(round int) error {
			o.Progress(fmt.Sprintf("%s: kvcr, round %d of %d", w.keys.Name, round+1, o.Runs))
			hits, err := replayKeys(ctx, w.keys, capacity, uint64(round+1))
			r.series(ours).Runs = append(r.series(ours).Runs, hits)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// replayKeys reads every key and deposits it when it was missing; it returns
// the hit ratio in percent.
func replayKeys(ctx context.Context, w model.Keys, capacity int, seed uint64) (percentHit float64, err error) {
	const valueBytes = 64
	e, err := kvcr.Open(kvcr.Config{
		// Enough for every shard's least; MaxBlocks is what counts.
		Capacity: max(int64(capacity)*valueBytes, 16<<20),
		Seed:     seed,
		Namespaces: []kvcr.Namespace{{
			Name:      "keys",
			Pools:     []kvcr.Pool{{Name: "kv", SlotBytes: valueBytes}},
			MaxBlocks: capacity,
		}},
	})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	c := engineCache{e}
	worker, err := c.Worker()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, worker.Close()) }()
	const lot = 64 << 10
	l := &lane{worker: worker, values: newValues(valueBytes, seed)}
	for from := 0; from < len(w.IDs); from += lot {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		keys := NewKeys(w.IDs[from:min(from+lot, len(w.IDs))])
		for i := range keys.Len() {
			k, before := keys.At(i), l.misses
			if err := l.view(k); err != nil {
				return 0, err
			}
			if l.misses > before {
				if err := l.set(k); err != nil {
					return 0, err
				}
			}
		}
	}
	return percent(l.hits, l.hits+l.misses), nil
}
