package soak

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/kvcr-go/kvcr/bench"
)

// report fills in the rows and how they are printed.
func (r *run) report(rep *bench.Report) {
	row := func(name, unit string, better bench.Better, v float64, params ...bench.Param) *bench.Result {
		res := &bench.Result{Suite: "soak", Name: name, Params: params, Unit: unit, Better: better, Series: []*bench.Series{{Impl: "kvcr", Runs: []float64{v}}}}
		rep.Results = append(rep.Results, res)
		return res
	}
	none := bench.Bar{HasLimit: true}
	row("wrong-bytes", "findings", bench.Lower, float64(r.trouble.count(wrongBytes))).Bar = none
	for _, kind := range violationKinds {
		row("violations", "findings", bench.Lower, float64(r.trouble.count(kind)), bench.Param{Name: "kind", Value: kind}).Bar = none
	}
	row("bytes-checked", "bytes", bench.Higher, float64(r.bytes.Load()))
	each := func(name, unit string, t *tally) {
		t.each(func(kind string, n int64) {
			row(name, unit, bench.Higher, float64(n), bench.Param{Name: "kind", Value: kind})
		})
	}
	each("operations", "calls", &r.ops)
	each("faults", "faults", &r.faults)
	each("actions", "actions", &r.actions)
	for _, l := range r.looked {
		for _, what := range slices.Sorted(maps.Keys(l.base)) {
			if l.base[what] == 0 && l.end[what] == 0 {
				continue
			}
			of := []bench.Param{{Name: "kind", Value: l.kind}, {Name: "process", Value: l.process}, {Name: "what", Value: what}}
			row("base", unitOf(what), bench.Lower, float64(l.base[what]), of...)
			if l.checked {
				row("end", unitOf(what), bench.Lower, float64(l.end[what]), of...)
			}
		}
	}
	rep.Own = r.print
}

func unitOf(what string) string {
	switch what {
	case levelQuarantine, levelPosted, levelHeap, levelRSS:
		return "bytes"
	}
	return "count"
}

// print writes the report as tables of its own: its rows are no comparisons.
func (r *run) print(w io.Writer) error {
	table := func(title string, t *tally) error {
		rows := [][]string{{title, ""}}
		t.each(func(kind string, n int64) { rows = append(rows, []string{"  " + kind, bench.Number(float64(n))}) })
		if err := bench.WriteColumns(w, "lr", rows); err != nil {
			return err
		}
		_, err := fmt.Fprintln(w)
		return err
	}
	fmt.Fprintf(w, "soak of %d nodes for %v, seed %d\n\n", r.o.Nodes, r.o.For, r.o.Seed)
	for _, t := range []struct {
		title string
		tally *tally
	}{{"operations", &r.ops}, {"faults", &r.faults}, {"actions of hints", &r.actions}} {
		if err := table(t.title, t.tally); err != nil {
			return err
		}
	}
	rows := [][]string{{"levels", "process", "what", "base", "end", "allowed"}}
	for _, l := range r.looked {
		allowed := allowance(r.o.Nodes)
		if l.kind == "" {
			allowed = ownAllowance
		}
		for _, what := range slices.Sorted(maps.Keys(l.base)) {
			if l.base[what] == 0 && l.end[what] == 0 {
				continue
			}
			end := "not reached"
			if l.checked {
				end = bench.Number(float64(l.end[what]))
			}
			rows = append(rows, []string{l.kind, l.process, what, bench.Number(float64(l.base[what])), end, bench.Number(float64(l.base[what] + allowed[what]))})
		}
	}
	if err := bench.WriteColumns(w, "lllrrr", rows); err != nil {
		return err
	}
	found := 0
	for _, kind := range violationKinds {
		found += r.trouble.count(kind)
	}
	verdict := "no violation"
	if found > 0 {
		verdict = fmt.Sprintf("%d VIOLATIONS", found)
	}
	_, err := fmt.Fprintf(w, "\n%s bytes were checked, %d reads were wrong; %s\n", bench.Number(float64(r.bytes.Load())), r.trouble.count(wrongBytes), verdict)
	return err
}
