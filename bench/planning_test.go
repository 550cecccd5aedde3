package bench

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
	"github.com/kvcr-go/kvcr/hints/plan/fixture"
)

func TestPlanSample(t *testing.T) {
	for _, id := range []string{"f01", "f06", "f07", "f12", "f14", "f15"} {
		for _, count := range []bool{false, true} {
			s, err := takePlanSample(context.Background(), PlanSpec{Fixture: id, For: time.Millisecond, Count: count})
			if err != nil {
				t.Errorf("%s: %v", id, err)
				continue
			}
			if s.Ops < planLeast || !count && (s.P50 <= 0 || s.P99 < s.P50) || count && s.Bytes != 0 {
				t.Errorf("%s, allocations counted %t: %+v", id, count, s)
			}
		}
	}
	if _, err := takePlanSample(context.Background(), PlanSpec{Fixture: "f99"}); err == nil || !strings.Contains(err.Error(), "f01 to f15") {
		t.Errorf("fixture f99: %v", err)
	}
}

// A planner that has missed an event is not measured.
func TestPlanSampleChecks(t *testing.T) {
	for _, id := range []string{"f01", "f06", "f12", "f15"} {
		v, err := fixture.Build(id)
		if err != nil {
			t.Fatal(err)
		}
		of := func(ev events.RouterEvent) bool { return ev.Tier == events.HostPinned }
		at := slices.IndexFunc(v.Events, of)
		v.Events = slices.Delete(v.Events, at, at+1)
		x := plan.New(plan.Config{})
		if err := v.Load(x); err != nil {
			t.Fatal(err)
		}
		if err := expectPlan(v, x, x.NewScratch()); err == nil || !strings.Contains(err.Error(), id) {
			t.Errorf("%s without the first event of a source: %v", id, err)
		}
	}
}

func TestPlanBars(t *testing.T) {
	for _, id := range fixture.IDs() {
		b, p := planBar(id), publishedPlans[id]
		switch {
		case id == "f07":
			if b.Limit != 2 {
				t.Errorf("f07: %+v", b)
			}
		case b.HasLimit != (p.p50 > 0) || b.Limit != p.p50/2:
			t.Errorf("%s: %+v for %v µs", id, b, p.p50)
		}
	}
}

// Lookups find all that they should while events come, and the index is afterwards as
// it was.
func TestBesideIndex(t *testing.T) {
	ctx := context.Background()
	b, err := newBesideIndex(ctx, 2*besideChain, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	before := b.index.Stats()
	stop := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		_, err := b.write(stop)
		ended <- err
	}()
	took, err := b.lookups(ctx, 20*time.Millisecond, 1)
	close(stop)
	if errWrite := <-ended; err != nil || errWrite != nil {
		t.Fatal(err, errWrite)
	}
	if len(took) < planLeast || took[0] <= 0 || took[len(took)-1] < took[0] {
		t.Errorf("%d lookups, from %v", len(took), took[0])
	}
	if after := b.index.Stats(); after.Pairs != before.Pairs || after.Refused+after.Conflicts > 0 {
		t.Errorf("%+v became %+v", before, after)
	}
}
