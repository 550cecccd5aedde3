package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/kvcr-go/kvcr/hints/plan"
	"github.com/kvcr-go/kvcr/hints/plan/fixture"
)

// PlanSpec is what a process of the planner's suite measures.
type PlanSpec struct {
	Fixture string
	// For is how long, but planLeast operations at least.
	For time.Duration
	// CPU is the processor to stay on.
	CPU int
	// Count counts allocations, and times nothing.
	Count bool
}

// planSample is what it found.
type planSample struct {
	Ops      int
	P50, P99 float64 // ns
	Bytes    float64 // allocated by each operation
	Pinned   bool
}

func (s planSample) stat(name string) float64 {
	if name == "p99" {
		return s.P99
	}
	return s.P50
}

const (
	// planLeast is enough for ten values beyond the 99th percentile.
	planLeast = 1000
	planMost  = 1 << 20
)

// PlanSample is one process of the planner's suite. It stays on one processor.
func PlanSample(ctx context.Context, spec PlanSpec, out io.Writer) error {
	pinned := pinProcess(os.Getpid(), spec.CPU) == nil
	runtime.GOMAXPROCS(1)
	sample, err := takePlanSample(ctx, spec)
	if err != nil {
		return err
	}
	sample.Pinned = pinned
	return json.NewEncoder(out).Encode(sample)
}

// takePlanSample builds a fixture, compares what the planner says with what the fixture
// expects, and measures operations: the walk through HostPinned, the summary, and the
// choice for every target. What comes before it, the match on the device, is not timed.
func takePlanSample(ctx context.Context, spec PlanSpec) (sample planSample, err error) {
	v, err := fixture.Build(spec.Fixture)
	if err != nil {
		return sample, err
	}
	x := plan.New(plan.Config{})
	if err := v.Load(x); err != nil {
		return sample, err
	}
	s := x.NewScratch()
	if err := expectPlan(v, x, s); err != nil {
		return sample, err
	}
	runtime.GC() // what building has left
	m := x.Match(s, v.Locals)
	var choices []plan.Choice
	took := make([]time.Duration, 0, planMost)
	for range planLeast { // caches are warm, scratch has grown
		choices = x.Plan(s, m, choices)
	}
	var before, after runtime.MemStats
	if spec.Count {
		runtime.ReadMemStats(&before)
	}
	for begin := time.Now(); sample.Ops < planLeast || time.Since(begin) < spec.For && sample.Ops < planMost; sample.Ops++ {
		if spec.Count {
			choices = x.Plan(s, m, choices)
			continue
		}
		start := time.Now()
		choices = x.Plan(s, m, choices)
		took = append(took, time.Since(start))
	}
	if spec.Count {
		runtime.ReadMemStats(&after)
		// The process itself allocates a little meanwhile: less than a byte each.
		sample.Bytes = float64((after.TotalAlloc - before.TotalAlloc) / uint64(sample.Ops))
	} else {
		slices.Sort(took)
		sample.P50, sample.P99 = atPercentile(took, 50), atPercentile(took, 99)
	}
	if err := expectPlan(v, x, s); err != nil {
		return sample, err
	}
	return sample, ctx.Err()
}

// expectPlan plans once, and reports what is not as the fixture expects.
func expectPlan(v *fixture.Inventory, x *plan.Index, s *plan.Scratch) error {
	want, kept := v.Expect()
	got := x.Choose(s, v.Locals, nil)
	if n := len(s.Intervals(nil)); n != kept || len(got) != len(want) {
		return fmt.Errorf("fixture %s: %d choices and %d intervals, expected %d and %d", v.ID, len(got), n, len(want), kept)
	}
	for i, c := range got {
		if c != want[i] {
			return fmt.Errorf("fixture %s, target %d: the planner says %+v, expected %+v", v.ID, i, c, want[i])
		}
		if _, hashes, _ := s.Hint(c); !slices.Equal(hashes, v.Hashes[:c.End]) {
			return fmt.Errorf("fixture %s, target %d: the hint names other hashes than the prompt has", v.ID, i)
		}
	}
	return nil
}
