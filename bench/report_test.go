package bench

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite golden files")

func sampleReport() *Report {
	rep := &Report{}
	r := rep.result(Result{Suite: "engine", Name: "get-copy", Params: []Param{{"size", 4096}}, Unit: "ns/op", Better: Lower, Bar: Bar{Times: 1.4}})
	*r.series(ours) = Series{Impl: ours, Runs: []float64{510, 500, 530}, Note: "100.0 % hits"}
	*r.series("otter") = Series{Impl: "otter", Rival: true, Runs: []float64{800, 750, 790}}
	*r.series("bigcache") = Series{Impl: "bigcache", Rival: true, Runs: []float64{5100, 5000, 5200}}
	*r.series("xsync") = Series{Impl: "xsync", Runs: []float64{400, 410, 405}, Note: "unbounded"}
	r = rep.result(Result{Suite: "replay", Name: "usable-prefix-hit", Params: []Param{{"trace", "conversation"}, {"capacity", 1.0}}, Unit: "%", Better: Higher, Bar: Bar{Limit: 9, HasLimit: true}})
	*r.series(ours) = Series{Impl: ours, Runs: []float64{8.5}}
	*r.series("lru") = Series{Impl: "lru", Rival: true, Runs: []float64{5.2}}
	r = rep.result(Result{Suite: "replay", Name: "usable-prefix-hit", Params: []Param{{"trace", "conversation"}, {"capacity", 10.0}}, Unit: "%", Better: Higher, Bar: Bar{Limit: 28.4, HasLimit: true}})
	*r.series(ours) = Series{Impl: ours, Runs: []float64{29.06}}
	*r.series("lru") = Series{Impl: "lru", Rival: true, Runs: []float64{27.84}}
	r = rep.result(Result{Suite: "engine", Name: "allocs", Params: []Param{{"op", "hit"}}, Unit: "allocs/op", Better: Lower, Bar: Bar{HasLimit: true}})
	*r.series(ours) = Series{Impl: ours, Runs: []float64{0, 0}}
	return rep
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

func TestReportGolden(t *testing.T) {
	var text, js bytes.Buffer
	if err := sampleReport().WriteText(&text); err != nil {
		t.Fatal(err)
	}
	golden(t, "report.txt", text.Bytes())
	if err := sampleReport().WriteJSON(&js); err != nil {
		t.Fatal(err)
	}
	golden(t, "report.json", js.Bytes())
}

// TestJSONSchema pins the field names that scripts read.
func TestJSONSchema(t *testing.T) {
	var b bytes.Buffer
	if err := sampleReport().WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var rows []map[string]any
	if err := json.Unmarshal(b.Bytes(), &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) != 9 {
		t.Fatalf("%d rows, want one for each implementation of each result: 9", len(rows))
	}
	for _, row := range rows {
		for _, field := range []string{"suite", "name", "params", "impl", "value", "unit", "better", "runs"} {
			if _, ok := row[field]; !ok {
				t.Errorf("row %v has no %s", row, field)
			}
		}
		delete(row, "rival")
		delete(row, "bars") // what is needed to judge again
		if len(row) != 8 {
			t.Errorf("row %v has other fields", row)
		}
	}
}

func TestEmptyReportIsAnArray(t *testing.T) {
	var b bytes.Buffer
	if err := (&Report{}).WriteJSON(&b); err != nil || strings.TrimSpace(b.String()) != "[]" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

func TestVerdict(t *testing.T) {
	tests := []struct {
		name        string
		better      Better
		bar         Bar
		ours        float64
		rival       float64
		pass, known bool
	}{
		{"quick enough", Lower, Bar{Times: 1.5}, 100, 150, true, true},
		{"too slow", Lower, Bar{Times: 1.5}, 100, 149, false, true},
		{"higher is better", Higher, Bar{Times: 1.5}, 150, 100, true, true},
		{"limit kept", Lower, Bar{Limit: 100, HasLimit: true}, 100, 1, true, true},
		{"limit broken", Lower, Bar{Limit: 100, HasLimit: true}, 100.1, 1, false, true},
		{"floor kept", Higher, Bar{Limit: 9, HasLimit: true}, 9, 1, true, true},
		{"floor broken", Higher, Bar{Limit: 9, HasLimit: true}, 8.9, 1, false, true},
		{"zero is a limit", Lower, Bar{HasLimit: true}, 1, 1, false, true},
		{"no bar", Lower, Bar{}, 1, 1, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := Result{Better: tt.better, Bar: tt.bar}
			r.series(ours).Runs = []float64{tt.ours}
			r.series("rival").Runs = []float64{tt.rival}
			r.series("rival").Rival = true
			// Whoever is no rival does not count, however good.
			r.series("bound").Runs = []float64{map[Better]float64{Lower: 0.001, Higher: 1e9}[tt.better]}
			_, verdicts, open := r.judged()
			known := len(verdicts) == 1
			if known != tt.known || len(open) != 0 || known && (verdicts[0].Outcome == Reached) != tt.pass {
				t.Errorf("judged %+v, open %+v; want pass %t, known %t", verdicts, open, tt.pass, tt.known)
			}
		})
	}
}

func TestMedianAndNumbers(t *testing.T) {
	if m := (&Series{Runs: []float64{9, 1, 5}}).Median(); m != 5 {
		t.Errorf("median of three: %v", m)
	}
	if m := (&Series{Runs: []float64{9, 1, 5, 7}}).Median(); m != 6 {
		t.Errorf("median of four: %v", m)
	}
	for v, want := range map[float64]string{0: "0", 0.12345: "0.1235", 1.5: "1.50", 123.456: "123.5", 1234.5: "1,235", -1234567: "-1,234,567", -123: "-123"} {
		if got := Number(v); got != want {
			t.Errorf("Number(%v) = %q, want %q", v, got, want)
		}
	}
}

// Results that differ in their last parameter only share a table where they say so.
func TestAcross(t *testing.T) {
	rep := &Report{}
	for i, f := range []string{"f01", "f02"} {
		r := rep.result(Result{Suite: "plan", Name: "plan-bytes", Params: []Param{{"stat", "p50"}, {"fixture", f}}, Unit: "bytes/op", Better: Lower, Across: true, Bar: Bar{Limit: 1, HasLimit: true}})
		r.series(ours).Runs = []float64{float64(i)}
		r.series(ours).Note = "counted"
	}
	rep.result(Result{Suite: "plan", Name: "other", Params: []Param{{"stat", "p50"}, {"fixture", "f03"}}, Unit: "bytes/op", Better: Lower}).series(ours).Runs = []float64{5}
	var b strings.Builder
	if err := rep.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	want := `plan plan-bytes stat=p50   bytes/op, lower is better
  fixture  f01  f02
  kvcr       0    1  counted
  pass  at f01: at most 1: 0
  pass  at f02: at most 1: 1

plan other stat=p50 fixture=f03   bytes/op, lower is better
  impl  median  min  max  kvcr is
  kvcr       5    5    5

2 of 2 bars reached
`
	if b.String() != want {
		t.Errorf("text\n%s\nwant\n%s", b.String(), want)
	}
}
