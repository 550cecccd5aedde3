package plan_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kvcr-go/kvcr/hints/plan"
	"github.com/kvcr-go/kvcr/hints/plan/fixture"
)

// expected is what fixtures.json says of one fixture.
type expected struct {
	ID       string `json:"id"`
	Expected struct {
		Kept    int `json:"intervals_kept"`
		Choices []*struct {
			Source string `json:"source"`
			Index  int    `json:"index"`
			End    int    `json:"end"`
			Kind   string `json:"kind"`
		} `json:"choice_per_target"`
	} `json:"expected"`
	Depths []struct{ Frontier int } `json:"target_depths"`
}

func loadExpected(t *testing.T) []expected {
	t.Helper()
	var file struct{ Fixtures []expected }
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "shared", "contract", "vectors", "fixtures.json"))
	if err != nil {
		t.Skip("no ../shared/contract/vectors/fixtures.json beside the repository")
	}
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	return file.Fixtures
}

func build(t testing.TB, id string) (*fixture.Inventory, *plan.Index) {
	t.Helper()
	v, err := fixture.Build(id)
	if err != nil {
		t.Fatal(err)
	}
	x := plan.New(plan.Config{})
	if err := v.Load(x); err != nil {
		t.Fatal(err)
	}
	return v, x
}

func TestFixtures(t *testing.T) {
	for _, want := range loadExpected(t) {
		t.Run(want.ID, func(t *testing.T) {
			v, x := build(t, want.ID)
			s := x.NewScratch()
			got := x.Choose(s, v.Locals, nil)
			if len(got) != len(want.Expected.Choices) {
				t.Fatalf("%d choices, want %d", len(got), len(want.Expected.Choices))
			}
			counted, kept := v.Expect()
			if kept != want.Expected.Kept {
				t.Errorf("%d intervals counted, want %d", kept, want.Expected.Kept)
			}
			for i, c := range got {
				w := plan.Choice{Target: v.Targets[i], Frontier: want.Depths[i].Frontier}
				if e := want.Expected.Choices[i]; e != nil {
					w.End = e.End
					w.Kind = map[string]plan.Kind{"continuation": plan.Continuation, "root_prefix": plan.RootPrefix}[e.Kind]
					w.Source = map[string][]plan.Owner{"worker": v.Sources, "cache_owner": v.Caches}[e.Source][e.Index]
				}
				if c != w {
					t.Errorf("target %d:\n got %+v\nwant %+v", i, c, w)
				}
				if counted[i] != w {
					t.Errorf("target %d:\ncounted %+v\n   want %+v", i, counted[i], w)
				}
				if _, hashes, ok := s.Hint(c); ok != (w.Kind != plan.None) || !slices.Equal(hashes, v.Hashes[:w.End]) {
					t.Errorf("target %d: the hint has %d hashes, %t", i, len(hashes), ok)
				}
			}
			if got := len(s.Intervals(nil)); got != want.Expected.Kept {
				t.Errorf("%d intervals, want %d", got, want.Expected.Kept)
			}
		})
	}
}

// What is counted, without a file of the contract's.
func TestExpected(t *testing.T) {
	for _, id := range fixture.IDs() {
		if testing.Short() && (id == "f08" || id == "f09") {
			continue
		}
		v, x := build(t, id)
		s := x.NewScratch()
		want, kept := v.Expect()
		if got := x.Choose(s, v.Locals, nil); !slices.Equal(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", id, got, want)
		}
		if got := len(s.Intervals(nil)); got != kept {
			t.Errorf("%s: %d intervals, want %d", id, got, kept)
		}
	}
}

// The counts that are published: intervals that begin at a frontier, of all that the
// sources hold.
func TestPublishedCounts(t *testing.T) {
	for id, want := range map[string]struct{ held, kept int }{"f06": {3072, 128}, "f09": {12288, 128}} {
		if id == "f09" && testing.Short() {
			continue
		}
		v, x := build(t, id)
		held := 0
		for _, ev := range v.Events {
			if ev.HasParent {
				held++
			}
		}
		s := x.NewScratch()
		x.Choose(s, v.Locals, nil)
		if kept := len(s.Intervals(nil)); held != want.held || kept != want.kept {
			t.Errorf("%s: %d of %d intervals, want %d of %d", id, kept, held, want.kept, want.held)
		}
	}
}

func TestUnknownFixture(t *testing.T) {
	if _, err := fixture.Build("f16"); err == nil {
		t.Error("f16 was built")
	}
}

func BenchmarkPlan(b *testing.B) {
	for _, id := range fixture.IDs() {
		b.Run(id, func(b *testing.B) {
			v, x := build(b, id)
			s := x.NewScratch()
			m := x.Match(s, v.Locals)
			dst := x.Plan(s, m, nil) // s has its memory from here on
			b.ReportAllocs()
			for b.Loop() {
				dst = x.Plan(s, m, dst)
			}
			b.StopTimer()
			p50, p99, err := v.Time(3000)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(p50), "p50-ns")
			b.ReportMetric(float64(p99), "p99-ns")
		})
	}
}

func BenchmarkMatch(b *testing.B) {
	for _, id := range []string{"f02", "f09"} {
		b.Run(id, func(b *testing.B) {
			v, x := build(b, id)
			s := x.NewScratch()
			b.ReportAllocs()
			for b.Loop() {
				x.Match(s, v.Locals)
			}
		})
	}
}
