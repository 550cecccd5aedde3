package bench

import (
	"strings"
	"testing"
)

func TestCompare(t *testing.T) {
	row := func(name, impl string, better Better, runs ...float64) Row {
		return Row{Suite: "s", Name: name, Impl: impl, Better: better, Value: (&Series{Runs: runs}).Median(), Runs: runs}
	}
	five := func(around float64) []float64 {
		return []float64{around, around * 1.01, around * 0.99, around * 1.02, around * 0.98}
	}
	tests := []struct {
		name     string
		old, new Row
		verdict  string
		tooFew   bool
	}{
		{"quicker", row("t", ours, Lower, five(100)...), row("t", ours, Lower, five(80)...), "better", false},
		{"slower", row("t", ours, Lower, five(100)...), row("t", ours, Lower, five(120)...), "worse", false},
		{"more", row("t", ours, Higher, five(100)...), row("t", ours, Higher, five(120)...), "better", false},
		{"less", row("t", ours, Higher, five(100)...), row("t", ours, Higher, five(80)...), "worse", false},
		{"noise", row("t", ours, Lower, five(100)...), row("t", ours, Lower, five(100.5)...), "no change", false},
		{"equal", row("t", ours, Lower, 5, 5, 5, 5, 5), row("t", ours, Lower, 5, 5, 5, 5, 5), "no change", false},
		{"from nothing", row("t", ours, Lower, 0, 0, 0, 0, 0), row("t", ours, Lower, five(3)...), "worse", false},
		{"three runs", row("t", ours, Lower, 100, 101, 102), row("t", ours, Lower, 1, 2, 3), "no change", true},
		{"one run", row("t", ours, Lower, 100), row("t", ours, Lower, 1), "no change", true},
		{"four runs", row("t", ours, Lower, 100, 101, 102, 103), row("t", ours, Lower, 1, 2, 3, 4), "better", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := append([]float64(nil), tt.new.Runs...)
			got, onlyOld, onlyNew := Compare([]Row{tt.old}, []Row{tt.new})
			if len(got) != 1 || onlyOld+onlyNew != 0 || got[0].Verdict != tt.verdict || got[0].TooFew != tt.tooFew {
				t.Errorf("%+v, want %s, too few %t", got, tt.verdict, tt.tooFew)
			}
			for i := range before {
				if tt.new.Runs[i] != before[i] {
					t.Fatal("the runs were put in another order")
				}
			}
		})
	}
	old := []Row{row("a", ours, Lower, five(1)...), row("gone", ours, Lower, 1), row("a", "otter", Lower, five(1)...), (&Conditions{Go: "go1", Quick: true}).row("s")}
	new := []Row{row("a", ours, Lower, five(2)...), row("fresh", ours, Lower, 1), row("a", "otter", Lower, five(1)...), (&Conditions{Go: "go2", Profiles: []string{"cpu"}}).row("s")}
	var text strings.Builder
	if err := WriteCompare(&text, old, new); err != nil {
		t.Fatal(err)
	}
	for _, w := range []string{"+100.0 %", "0 better, 1 worse, 0 no change: kvcr", "0 better, 0 worse, 1 no change: others", "1 rows of the old run alone, 1 of the new",
		"Go was go1, is go2", "quick was true, is false", "profiles was [], is [cpu]"} {
		if !strings.Contains(text.String(), w) {
			t.Errorf("no %q in\n%s", w, text.String())
		}
	}
}
