package bench

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// What is said of bars after a run can be said again of what it has stored.
func TestStoredBarsAreJudged(t *testing.T) {
	rep := sampleReport()
	rep.Suite, rep.Conditions = "engine", &Conditions{Quick: true}
	shm := rep.result(Result{Suite: "node", Name: "get", Params: []Param{{"proto", "shm"}}, Unit: "ops/s", Better: Higher, Bar: Bar{Times: 5}, Also: []Bar{{Times: 0.8, Of: "plain-read"}}})
	shm.series(ours).Runs = []float64{66}
	shm.series("plain-read").Runs = []float64{100}
	shm.series("redis").Rival = true // and has no runs
	shm.without = "redis-server is not installed"
	rep.absent(Result{Suite: "engine", Name: "gc-pause", Params: []Param{{"stat", "p99"}}, Better: Lower, Bar: Bar{Times: 0.7}}, "--big measures it")
	var b bytes.Buffer
	if err := rep.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	rows, err := ReadRows(&b)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := WriteBars(&text, Judge(rows)); err != nil {
		t.Fatal(err)
	}
	want := `bars
engine
  reached       get-copy size=4096  1.40x the best of the others (otter): 1.55x
  reached       allocs op=hit       at most 0: 0
  not measured  gc-pause stat=p99   0.70x the best of the others: --big measures it
  not measured  node get proto=shm  5.00x the best of the others: redis-server is not installed
replay
  missed   usable-prefix-hit capacity=1 trace=conversation   at least 9: 8.50, 5.6 % under
  reached  usable-prefix-hit capacity=10 trace=conversation  at least 28.40: 29.06
node
  missed  get proto=shm  0.80x plain-read: 0.66x, 18 % short
7 bars: 3 reached, 2 missed, 2 not measured; a quick run's figures are for orientation
`
	if text.String() != want {
		t.Errorf("text\n%s\nwant\n%s", text.String(), want)
	}
	// A suite of its own says the same under its tables.
	text.Reset()
	if err := rep.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, w := range []string{"3 of 5 bars reached\n", "not measured: node get proto=shm, 5.00x the best of the others: redis-server is not installed\n", "MISS  0.80x plain-read: 0.66x, 18 % short\n"} {
		if !strings.Contains(text.String(), w) {
			t.Errorf("no %q in\n%s", w, text.String())
		}
	}
}

// By how much a bar was missed is a part of what it asks for.
func TestMissedByHowMuch(t *testing.T) {
	for _, tt := range []struct {
		bar         Bar
		better      Better
		ours, other float64
		off         string
	}{
		{Bar{Limit: 100, HasLimit: true}, Lower, 150, 0, "50 % over"},
		{Bar{Limit: 100, HasLimit: true}, Lower, 1606, 0, "16.1 times that"},
		{Bar{Limit: 100, HasLimit: true}, Higher, 50, 0, "50 % under"},
		{Bar{HasLimit: true}, Lower, 3, 0, "none is allowed"},
		{Bar{Times: 2}, Higher, 190, 100, "5.0 % short"},
		{Bar{Times: 2}, Lower, 100, 150, "25 % short"},
		{Bar{Times: 0.85, Of: "net"}, Higher, 68, 100, "20 % short"},
		{Bar{Times: 0.85, Of: "net"}, Higher, 85, 100, ""},
	} {
		j := tt.bar.judge(tt.better, []standing{{ours, tt.ours, false}, {"net", tt.other, tt.bar.Of == ""}})
		if j.Off != tt.off || (j.Outcome == Missed) != (tt.off != "") {
			t.Errorf("%+v, %s, %v of %v: %s, off by %q; want %q", tt.bar, tt.better, tt.ours, tt.other, j.Outcome, j.Off, tt.off)
		}
	}
}

// Bars that are not judged are told, with what they ask for.
func TestUnjudge(t *testing.T) {
	rep := sampleReport()
	rep.Suite, rep.Conditions = "engine", &Conditions{}
	rep.Unjudge("a smoke run")
	all := Judge(rep.Rows())
	if len(all) != 4 || slices.ContainsFunc(all, func(j Judgement) bool { return j.Outcome != NotMeasured || j.Got != "a smoke run" }) {
		t.Errorf("%+v", all)
	}
	var b strings.Builder
	if err := WriteBars(&b, all); err != nil || b.String() != "4 bars, none judged: a smoke run\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

// Where servers are missing, or a placement is not measured, every bar of it is told.
func TestAbsentBars(t *testing.T) {
	rep := &Report{}
	rep.absentPin("none", "quick")
	// 14 rows of which two have two bars, shared memory with two, p99.9 and idle.
	if want := 14 + 2 + 2 + 2; len(rep.Absent) != want {
		t.Errorf("%d bars, want %d: %s", len(rep.Absent), want, fmt.Sprint(rep.Absent))
	}
}
