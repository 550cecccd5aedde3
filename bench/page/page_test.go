package page

import (
	"math"
	"regexp"
	"strings"
	"testing"

	"github.com/kvcr-go/kvcr/bench"
)

func written(t *testing.T, rows []bench.Row) string {
	t.Helper()
	var b strings.Builder
	if err := Write(&b, rows); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// The page needs nothing but itself, says what its figures were made by, and writes
// no number that is none.
func TestPageStandsAlone(t *testing.T) {
	html := written(t, sample())
	for _, w := range []string{
		"A Processor 9000", "24 GiB", "6.18.0", "transparent: madvise", "v1.2.3-4-gabcdef0", "go1.24.0 amd64", "2 January 2026",
		"kvcr bench engine", "kvcr bench peer", "speed &amp; &lt;size&gt;", "case a &lt; b", "Left out: fetch-bandwidth, route ucx-tcp: &lt;not&gt; built",
	} {
		if !strings.Contains(html, w) {
			t.Errorf("the page has no %q", w)
		}
	}
	for _, bad := range []string{`<script`, `https?:`, `\bsrc=`, `url\(`, `@import`, `href="[^#]`, `NaN`, `Inf\b`, `ZgotmplZ`, `%!`, `&lt;nil`} {
		if found := regexp.MustCompile(bad).FindString(html); found != "" {
			t.Errorf("the page has %q", found)
		}
	}
}

// The page begins with what became of every bar, under the suites in the page's order.
func TestPageOfBars(t *testing.T) {
	html := written(t, sample())
	bars := html[strings.Index(html, `<h2 id="bars">`):strings.Index(html, "<h3>Machine")]
	for _, w := range []string{
		"7 bars: 3 reached, 3 missed, 1 not measured", `<a href="#engine">engine</a>`, "get-copy size=64", "1.40x the best of the others (otter)", "1.60x; kvcr-pool 1.23x",
		"1.60x; kvcr-pool 1.23x, 20 % short", `class="missed"`, `class="reached"`, `class="open"`, "redis-server is not installed",
	} {
		if !strings.Contains(bars, w) {
			t.Errorf("the bars have no %q in\n%s", w, bars)
		}
	}
	if !strings.Contains(html, "3 things were left out") {
		t.Error("what was left out is not told")
	}
	if strings.Contains(written(t, rowsWithoutBars()), `id="bars"`) {
		t.Error("results without bars have a part for them")
	}
}

func rowsWithoutBars() []bench.Row {
	return []bench.Row{{Suite: "ring", Name: "one-way", Impl: "kvcr", Value: 5, Runs: []float64{5}, Unit: "ns", Better: bench.Lower, Params: map[string]any{"batch": 1.0}}}
}

// Whatever rows a file holds, there is a page: suites that nobody knows, values that
// cannot be drawn, nothing at all.
func TestPageOfOddRows(t *testing.T) {
	written(t, nil)
	odd := func(suite, name, impl string, value float64, params map[string]any) bench.Row {
		return bench.Row{Suite: suite, Name: name, Impl: impl, Value: value, Runs: []float64{value}, Unit: "x", Better: bench.Higher, Params: params}
	}
	instant := odd("ring", "round-trip", "kvcr", 5, map[string]any{"batch": 1.0})
	instant.Runs = []float64{0, 10} // no rate, on an axis that has no place for it
	html := written(t, []bench.Row{
		instant,
		odd("engine", "get-view", "kvcr", 0, map[string]any{"size": 64.0}), // no time at all: no rate
		odd("engine", "put", "kvcr", 5, nil),
		odd("engine", "get-latency-curve", "kvcr", 5, map[string]any{"beside": "none", "percentile": 100.0}),
		odd("ring", "one-way", "kvcr", -1, map[string]any{"batch": 1.0}),
		odd("plan", "plan", "kvcr", 7, map[string]any{"fixture": "f01", "stat": "p50"}),
		odd("mine", "loss", "kvcr", -3, map[string]any{"deep": map[string]any{"a": 1}}),
		odd("mine", "zero", "kvcr", 0, nil),
	})
	if n := strings.Count(html, "<svg class=\"chart\""); n != 3 { // the plan, the zero and what took no time once
		t.Errorf("%d charts, want 3", n)
	}
	if strings.Contains(html, "NaN") || strings.Contains(html, "Inf") {
		t.Error("a value that is no number got into the page")
	}
}

func TestTicks(t *testing.T) {
	labels := func(ticks []tick) string {
		var out []string
		for _, t := range ticks {
			out = append(out, t.label)
		}
		return strings.Join(out, "|")
	}
	for _, tt := range []struct {
		got  []tick
		want string
	}{
		{linearTicks(10, 5), "0|2|4|6|8|10"},
		{linearTicks(0.83, 4), "0|0.25|0.5|0.75|1"},
		{linearTicks(0, 4), "0|0.25|0.5|0.75|1"},
		{linearTicks(1_290_000, 3), "0|500,000|1 M|1.5 M"},
		{logTicks(0.35, 20_000), "0.1|1|10|100|1,000|10,000|100,000"},
		{logTicks(3, 70), "2|5|10|20|50|100"},
		{logTicks(10, 10), "10|20"},
	} {
		if got := labels(tt.got); got != tt.want {
			t.Errorf("ticks %s, want %s", got, tt.want)
		}
	}
	for v, want := range map[float64]string{64: "64 B", 4096: "4 KiB", 1536: "1.5 KiB", 1 << 20: "1 MiB", 3 << 30: "3 GiB"} {
		if got := bytesOf(v); got != want {
			t.Errorf("bytesOf(%v) = %q, want %q", v, got, want)
		}
	}
}

// Labels that would meet are left out, the last one never.
func TestApart(t *testing.T) {
	s := scale{lo: 0, hi: 100, from: 0, to: 100}
	got := apart([]tick{{0, "a"}, {50, "b"}, {95, "c"}, {100, "d"}}, s, func(string) float64 { return 20 })
	if got[0].label != "a" || got[1].label != "b" || got[2].label != "" || got[3].label != "d" {
		t.Errorf("labels %+v", got)
	}
	up := scale{lo: 0, hi: 100, from: 100, to: 0} // as the y axis is
	got = apart([]tick{{0, "a"}, {10, "b"}, {100, "d"}}, up, func(string) float64 { return 15 })
	if got[0].label != "" || got[1].label != "b" || got[2].label != "d" {
		t.Errorf("labels %+v", got)
	}
}

func TestScale(t *testing.T) {
	s := scale{lo: 1, hi: 1000, from: 10, to: 40, log: true}
	for v, want := range map[float64]float64{1: 10, 10: 20, 100: 30, 1000: 40} {
		if got := s.at(v); math.Abs(got-want) > 1e-9 {
			t.Errorf("%v is at %v, want %v", v, got, want)
		}
	}
	if n := nine(99.9); math.Abs(n-3) > 1e-9 {
		t.Errorf("99.9 %% has %v nines", n)
	}
}

// A table has one column for each implementation, and no value in a wrong one.
func TestTable(t *testing.T) {
	row := func(impl string, size int, runs ...float64) bench.Row {
		return bench.Row{Suite: "s", Name: "n", Impl: impl, Value: runs[0], Runs: runs, Unit: "ns", Better: bench.Lower, Params: map[string]any{"size": size}}
	}
	got := tableOf(rows{row("kvcr", 64, 5, 4, 6), row("other", 4096, 7)})
	if len(got.Lines) != 2 || len(got.Impls) != 2 || got.Better != "less is better" {
		t.Fatalf("%+v", got)
	}
	if c := got.Lines[0].Cells; c[0] != (cell{"5", "4 – 6", true}) || c[1] != (cell{}) {
		t.Errorf("first line %+v", c)
	}
	if l := got.Lines[1]; l.Cells[0].Value != "" || l.Cells[1].Value != "7" || l.Params[0] != "4 KiB" {
		t.Errorf("second line %+v", l)
	}
}
