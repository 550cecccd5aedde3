package bench

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/kvcr-go/kvcr/bench/trace"
)

func TestPowerFit(t *testing.T) {
	xs := []float64{10, 32, 100, 316, 1000}
	of := func(f func(x float64) float64) (ys []float64) {
		for _, x := range xs {
			ys = append(ys, f(x))
		}
		return ys
	}
	for _, tt := range []struct {
		name         string
		ys           []float64
		exponent, r2 float64
	}{
		{"a power", of(func(x float64) float64 { return 3 * math.Pow(x, 0.75) }), 0.75, 1},
		{"falling", of(func(x float64) float64 { return 7 / x }), -1, 1},
		{"level", of(func(x float64) float64 { return 5 }), 0, 1},
		{"with a part that is level", of(func(x float64) float64 { return 100 + x }), 0.5, 0.927},
		{"level but for noise", []float64{5, 6, 5, 6, 5}, 0, 0},
		{"with what has no logarithm", append([]float64{0, -1}, of(func(x float64) float64 { return x * x })[2:]...), 2, 1},
	} {
		e, r2, ok := powerFit(xs, tt.ys)
		if !ok || math.Abs(e-tt.exponent) > 0.005 || math.Abs(r2-tt.r2) > 0.005 {
			t.Errorf("%s: exponent %.3f, r2 %.3f, %t; want %.3f, %.3f", tt.name, e, r2, ok, tt.exponent, tt.r2)
		}
	}
	if _, _, ok := powerFit([]float64{4, 4}, []float64{1, 2}); ok {
		t.Error("two points above one another have a fit")
	}
	if _, _, ok := powerFit(nil, nil); ok {
		t.Error("nothing has a fit")
	}
}

func TestScale(t *testing.T) {
	p := trace.DefaultParams(1)
	p.Conversations = 400
	tr := trace.Generate("made", p)
	rep, err := Scale(t.Context(), ScaleOptions{Options: Options{Smoke: true}, Trace: tr})
	if err != nil {
		t.Fatal(err)
	}
	sizes := map[string]int{}
	total := map[string]float64{}
	fits := map[string]int{}
	for _, r := range rep.Rows() {
		switch r.Name {
		case "scale":
			key := r.Params["sweep"].(string) + r.Params["part"].(string)
			sizes[key]++
			if r.Unit != "us" || r.Value < 0 || r.Params["size"].(int) < 1 {
				t.Errorf("%+v", r)
			}
			if part := r.Params["part"]; part == "planner" || part == "events" || part == "hints" || part == "peers" || part == "messages" {
				total[r.Params["sweep"].(string)] += r.Value
			} else if part == "total" {
				total[r.Params["sweep"].(string)] -= r.Value
			}
		case "scale-exponent":
			fits[r.Params["sweep"].(string)]++
		}
	}
	for _, s := range Sweeps {
		for _, part := range []string{"planner", "events", "hints", "peers", "messages", "total", "simulation", "collector"} {
			if sizes[s+part] != 3 {
				t.Errorf("sweep of %s has %d sizes of %s", s, sizes[s+part], part)
			}
		}
		if math.Abs(total[s]) > 0.1 { // nanoseconds are rounded
			t.Errorf("sweep of %s: the parts and their total differ by %v us", s, total[s])
		}
		if fits[s] < 7 {
			t.Errorf("sweep of %s has %d exponents", s, fits[s])
		}
	}
	var b strings.Builder
	if err := rep.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"scale, sweep of nodes", "trace made", "exponent", "planner ~ nodes^", "a request, total ~ blocks^", "hash ", "3 bars"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if n := strings.Count(b.String(), "\n"); n > 140 {
		t.Errorf("the text has %d lines: figures that are in a table have tables of their own", n)
	}
}

func TestScaleOptions(t *testing.T) {
	for _, o := range []ScaleOptions{
		{Trace: trace.Generate("made", trace.DefaultParams(1)), Sweeps: []string{"moons"}},
		{Trace: &trace.Trace{}},
		{},
	} {
		var bad *OptionError
		if _, err := Scale(t.Context(), o); !errors.As(err, &bad) {
			t.Errorf("%v of %+v", err, o.Sweeps)
		}
	}
}

// A level cost is called so; a growing one has its reason, which is the work where that
// grows as well, and the caches where it does not.
func TestScaleVerdict(t *testing.T) {
	s := &sweep{name: sweepNodes, rep: &Report{}, points: []sweepPoint{{size: 10}, {size: 1000}}}
	for part, e := range map[string]float64{"planner": 0.6, "events": 0.5, "changes": 0.48, "peers": 0.5, "steps": 0.1, "hints": 0.1, "messages": -0.1, "total": 0.4} {
		s.enter("scale-exponent", "part", part, 0, "", Lower, e)
	}
	got := strings.Join(s.verdict(), "\n")
	for _, want := range []string{
		"planner ~ nodes^0.60: every node is a target", "events ~ nodes^0.50: as changed blocks, ~ ^0.48", "peers ~ nodes^0.50: steps of machines ~ ^0.10, and each has become dearer",
		"hints ~ nodes^0.10, level", "messages ~ nodes^-0.10, level", "total ~ nodes^0.40",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}
