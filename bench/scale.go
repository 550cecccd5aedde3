package bench

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/kvcr-go/kvcr/bench/trace"
	"github.com/kvcr-go/kvcr/bench/virtual"
)

// ScaleOptions are those of the suite scale.
type ScaleOptions struct {
	Options
	Trace *trace.Trace
	// Sweeps to make, of Sweeps; empty: all.
	Sweeps []string
}

// Sweeps are the sizes that suite scale lets grow.
var Sweeps = []string{sweepNodes, sweepBlocks, sweepRequests}

const (
	sweepNodes    = "nodes"
	sweepBlocks   = "blocks"
	sweepRequests = "requests"
)

// Names of what suite scale measures beside the parts of package virtual.
const (
	scaleTotal  = "total"  // cost of all parts that are the product's
	scaleMemory = "memory" // of the whole fleet
)

// Scale runs a router and its nodes in virtual time (package virtual), and lets the number
// of nodes, the length of prompts and the number of requests grow, one at a time. The
// cost of each part for each request, in processor time, makes a power of the size.
func Scale(ctx context.Context, o ScaleOptions) (*Report, error) {
	if len(o.Sweeps) == 0 {
		o.Sweeps = Sweeps
	}
	for _, s := range o.Sweeps {
		if !slices.Contains(Sweeps, s) {
			return &Report{}, &OptionError{"sweep", s, "one of " + strings.Join(Sweeps, ", ")}
		}
	}
	if o.Trace == nil || o.Trace.Blocks() == 0 {
		return &Report{}, &OptionError{"trace", "empty", "a trace with requests"}
	}
	names := []string{"scale", "scale-exponent", "scale-r2", "scale-count", "scale-memory", "scale-latency"}
	return runParts(ctx, o.Options, []part{{names, 1, func(ctx context.Context, opts Options, rep *Report) error {
		o.Options = opts
		for i, name := range o.Sweeps {
			s := o.sweep(name)
			s.rep = rep
			if err := s.measure(ctx, opts.slice(i, len(o.Sweeps))); err != nil {
				return fmt.Errorf("sweep of %s: %w", name, err)
			}
			s.sumUp()
		}
		return nil
	}}})
}

// sweep is runs that differ in one size.
type sweep struct {
	name   string
	what   string // that grows, for people
	trace  string
	points []sweepPoint
	rep    *Report
	hash   uint64 // of the first run
	events uint64
}

type sweepPoint struct {
	size int
	virtual.Options
}

// tableBlocks is how many blocks of a trace's size a node has room for: some seconds of
// its requests, and twice the longest prompt.
const tableBlocks = 512

// sweep says what its points are.
func (o *ScaleOptions) sweep(name string) *sweep {
	s := &sweep{name: name, trace: o.Trace.Name}
	add := func(size, nodes, requests, length int) {
		warm := virtual.WarmUp * nodes
		switch {
		case o.Smoke:
			warm = nodes
		case o.Quick:
			warm /= 2
		}
		s.points = append(s.points, sweepPoint{size, virtual.Options{
			Nodes: nodes, Requests: requests, Warm: warm, Length: length, Blocks: tableBlocks * length, Trace: o.Trace,
		}})
	}
	pick := func(full, quick, smoke int) int {
		switch {
		case o.Smoke:
			return smoke
		case o.Quick:
			return quick
		}
		return full
	}
	switch name {
	case sweepNodes:
		s.what = "nodes, each with as many requests"
		for _, n := range [][]int{{10, 32, 100, 316, 1000}, {4, 8, 16}}[pick(0, 0, 1)] {
			add(n, n, n*pick(20, 5, 4), 1)
		}
	case sweepBlocks:
		s.what = "blocks of a prompt, and of a node's table with them"
		mean := float64(o.Trace.Blocks()) / float64(len(o.Trace.Requests))
		nodes := pick(64, 32, 6)
		for _, length := range [][]int{{1, 2, 4, 8, 16}, {1, 2, 4}}[pick(0, 0, 1)] {
			add(max(1, int(math.Round(mean*float64(length)))), nodes, nodes*pick(20, 10, 4), length)
		}
	case sweepRequests:
		s.what = "requests, one after another"
		nodes := pick(100, 50, 6)
		for _, n := range [][]int{{1000, 3160, 10_000, 31_600, 100_000}, {500, 1580, 5000, 15_800}, {30, 60, 120}}[pick(0, 1, 2)] {
			add(n, nodes, n, 1)
		}
	}
	return s
}

// measure makes the runs, each round with a seed of its own.
func (s *sweep) measure(ctx context.Context, o Options) error {
	var lasts time.Duration // a round
	return o.rounds(ctx, func(round int) error {
		begin := time.Now()
		if !o.until.IsZero() && begin.Add(lasts).After(o.until) && round > 0 {
			return nil // there is no time for another one
		}
		defer func() { lasts = time.Since(begin) }()
		ys := map[string][]float64{}
		var xs []float64
		for i, p := range s.points {
			o.Progress(fmt.Sprintf("sweep of %s: %d, round %d of %d", s.name, p.size, round+1, o.Runs))
			p.Seed = uint64(round + 1)
			r, err := virtual.Run(ctx, p.Options)
			if err != nil {
				return err
			}
			if round == 0 && i == 0 {
				// Once more: it has to be the same.
				s.hash, s.events = r.Hash, r.Events
				again, err := virtual.Run(ctx, p.Options)
				if err != nil {
					return err
				}
				if again.Hash != r.Hash {
					return fmt.Errorf("two runs of one seed differ: %016x and %016x", r.Hash, again.Hash)
				}
			}
			xs = append(xs, float64(p.size))
			for _, part := range append(slices.Clone(virtual.Parts), virtual.Simulation, virtual.Collector) {
				ys[part.String()] = append(ys[part.String()], s.enter("scale", "part", part.String(), p.size, "us", Lower, micros(r.PerRequest(part))))
			}
			ys[scaleTotal] = append(ys[scaleTotal], s.enter("scale", "part", scaleTotal, p.size, "us", Lower, micros(r.Total())))
			ys[scaleMemory] = append(ys[scaleMemory], s.enter("scale-memory", "part", scaleMemory, p.size, "B", Lower, float64(r.Heap)))
			s.enter("scale-memory", "part", "index", p.size, "B", Lower, float64(r.Index.Bytes))
			for _, c := range scaleCounts {
				ys[c.name] = append(ys[c.name], s.enter("scale-count", "what", c.name, p.size, c.unit, c.better, c.of(r)))
			}
			if n := len(r.Latency); n > 0 {
				s.enter("scale-latency", "stat", "p50", p.size, "us, virtual", Lower, micros(r.Latency[n/2]))
				s.enter("scale-latency", "stat", "p99", p.size, "us, virtual", Lower, micros(r.Latency[min(n-1, n*99/100)]))
			}
		}
		for _, part := range scaleFitted() {
			if exponent, r2, ok := powerFit(xs, ys[part]); ok {
				s.enter("scale-exponent", "part", part, 0, "of the size", Lower, exponent)
				s.enter("scale-r2", "part", part, 0, "of 1", Higher, r2)
			}
		}
		return nil
	})
}

func micros(d time.Duration) float64 { return float64(d) / 1e3 }

// scaleCounts are what is done for each request: where a part's cost grows and this does
// not, the same work has become dearer.
var scaleCounts = []struct {
	name, unit string
	better     Better
	of         func(*virtual.Result) float64
}{
	{"hinted", "of 1", Higher, each(virtual.Hinted)},
	{"named", "blocks a request", Lower, each(virtual.Named)},
	{"local", "% of blocks", Higher, share(virtual.Local)},
	{"fetched", "% of blocks", Higher, share(virtual.Fetched)},
	{"failed", "% of blocks", Lower, share(virtual.Failed)},
	{"changes", "blocks a request", Lower, each(virtual.Changes)},
	{"steps", "a request", Lower, each(virtual.Steps)},
	{"frames", "a request", Lower, each(virtual.Frames)},
	{"frame-bytes", "B a request", Lower, each(virtual.FrameBytes)},
	{"busiest source", "times the mean", Lower, func(r *virtual.Result) float64 { return r.Hottest }},
}

func each(c virtual.Count) func(*virtual.Result) float64 {
	return func(r *virtual.Result) float64 { return float64(r.Counts[c]) / float64(r.Requests) }
}

func share(c virtual.Count) func(*virtual.Result) float64 {
	return func(r *virtual.Result) float64 {
		return 100 * float64(r.Counts[c]) / float64(max(1, r.Counts[virtual.Asked]))
	}
}

// scaleFitted are the costs that have an exponent, then what explains them.
func scaleFitted() (names []string) {
	for _, p := range virtual.Parts {
		names = append(names, p.String())
	}
	return append(names, scaleTotal, scaleMemory, "named", "changes", "steps", "frames", "frame-bytes")
}

// enter adds a round's value to a result, and returns it. size 0: it has none.
func (s *sweep) enter(name, param, value string, size int, unit string, better Better, v float64) float64 {
	r := s.result(name, param, value, size)
	r.Unit, r.Better, r.Tabled = unit, better, true
	if name == "scale-exponent" && value == scaleTotal {
		r.Bar = Bar{Limit: scaleLimits[s.name], HasLimit: true}
	}
	series := r.series(ours)
	series.Runs = append(series.Runs, v)
	return v
}

// scaleLimits are how fast the cost of a request may grow: with the nodes at most as
// they do, since every one of them is a target; with the blocks a little faster, since
// tables outgrow caches; with the requests that were before it not at all, but for that.
var scaleLimits = map[string]float64{sweepNodes: 1, sweepBlocks: 1.1, sweepRequests: 0.15}

func (s *sweep) result(name, param, value string, size int) *Result {
	params := []Param{{"sweep", s.name}, {param, value}}
	if size > 0 {
		params = append(params, Param{"size", size})
	}
	return s.rep.result(Result{Suite: "scale", Name: name, Params: params})
}

func (s *sweep) median(name, param, value string, size int) float64 {
	return s.result(name, param, value, size).series(ours).Median()
}
