package bench

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"

	"golang.org/x/perf/benchmath"
)

// Change is what two runs say of one row.
type Change struct {
	Row      Row // of the new run
	Old, New float64
	Delta    float64 // percent; NaN when there is no old value to divide by
	P        float64 // of both being samples of one distribution
	Verdict  string  // better, worse, no change
	// TooFew runs were made to tell any difference from chance.
	TooFew bool
}

// The verdicts.
const (
	better   = "better"
	worse    = "worse"
	noChange = "no change"
)

// tooFew reports whether not even the clearest difference of so many runs would
// pass the test: of three against three it has p = 0.1.
func tooFew(old, new int) bool {
	orders := 1.0 // in which the runs can come out, all alike if nothing changed
	for i := range old {
		orders *= float64(new+i+1) / float64(i+1)
	}
	return 2/orders > benchmath.DefaultThresholds.CompareAlpha
}

// Compare compares the rows that both runs have by the U test of Mann and Whitney,
// as benchstat does, which assumes nothing of how values are distributed.
func Compare(old, new []Row) (changes []Change, onlyOld, onlyNew int) {
	before := map[string]Row{}
	for _, r := range old {
		if r.Name != RunName {
			before[r.Key()] = r
		}
	}
	for _, r := range new {
		if r.Name == RunName {
			continue
		}
		o, ok := before[r.Key()]
		if !ok {
			onlyNew++
			continue
		}
		delete(before, r.Key())
		changes = append(changes, change(o, r))
	}
	return changes, len(before), onlyNew
}

func change(old, new Row) Change {
	// NewSample sorts what it is given.
	a := benchmath.NewSample(slices.Clone(old.Runs), &benchmath.DefaultThresholds)
	b := benchmath.NewSample(slices.Clone(new.Runs), &benchmath.DefaultThresholds)
	test := benchmath.AssumeNothing.Compare(a, b)
	c := Change{Row: new, Old: old.Value, New: new.Value, Delta: math.NaN(), P: test.P, Verdict: noChange, TooFew: tooFew(len(old.Runs), len(new.Runs))}
	if old.Value != 0 {
		c.Delta = 100 * (new.Value/old.Value - 1)
	}
	if test.P <= test.Alpha && new.Value != old.Value {
		c.Verdict = worse
		if (new.Value > old.Value) == (new.Better == Higher) {
			c.Verdict = better
		}
	}
	return c
}

// WriteCompare prints what changed between two runs, and what the machine's part in
// it may be.
func WriteCompare(w io.Writer, old, new []Row) error {
	changes, onlyOld, onlyNew := Compare(old, new)
	rows := [][]string{{"", "impl", "old", "new", "", "delta", "p", ""}}
	few := 0
	count := map[bool]map[string]int{true: {}, false: {}} // ours or not
	for _, c := range changes {
		delta := "-"
		if !math.IsNaN(c.Delta) {
			delta = fmt.Sprintf("%+.1f %%", c.Delta)
		}
		rows = append(rows, []string{c.Row.Title(), c.Row.Impl, Number(c.Old), Number(c.New), c.Row.Unit, delta, fmt.Sprintf("%.3f", c.P), c.Verdict})
		count[isOurs(c.Row.Impl)][c.Verdict]++
		if c.TooFew {
			few++
		}
	}
	if err := WriteColumns(w, "llrrlrrl", rows); err != nil {
		return err
	}
	say := func(format string, args ...any) error {
		_, err := fmt.Fprintf(w, format+"\n", args...)
		return err
	}
	for _, side := range []struct {
		who  string
		ours bool
	}{{"kvcr", true}, {"others, whose code is the same: what changed there is the machine's", false}} {
		n := count[side.ours]
		if err := say("%d better, %d worse, %d no change: %s", n[better], n[worse], n[noChange], side.who); err != nil {
			return err
		}
	}
	if few > 0 {
		if err := say("%d rows have too few runs to tell any difference from chance: four on both sides are enough", few); err != nil {
			return err
		}
	}
	if onlyOld+onlyNew > 0 {
		if err := say("not compared: %d rows of the old run alone, %d of the new", onlyOld, onlyNew); err != nil {
			return err
		}
	}
	return warnOfConditions(w, old, new)
}

func isOurs(impl string) bool { return impl == ours || impl == poolName || impl == again }

// warnOfConditions says where two runs are not alike.
func warnOfConditions(w io.Writer, old, new []Row) error {
	before := map[string]Conditions{}
	each := func(rows []Row, f func(string, Conditions) error) error {
		for _, r := range rows {
			if r.Name != RunName {
				continue
			}
			c, err := ConditionsOf(r)
			if err = cmp.Or(err, f(r.Suite, c)); err != nil {
				return err
			}
		}
		return nil
	}
	if err := each(old, func(suite string, c Conditions) error { before[suite] = c; return nil }); err != nil {
		return err
	}
	return each(new, func(suite string, c Conditions) error {
		o, ok := before[suite]
		if !ok {
			return nil
		}
		for _, d := range []struct {
			what     string
			old, new any
		}{
			{"machine", o.Machine(), c.Machine()}, {"Go", o.Go, c.Go}, {"quick", o.Quick, c.Quick}, {"smoke", o.Smoke, c.Smoke},
			{"profiles", fmt.Sprint(o.Profiles), fmt.Sprint(c.Profiles)},
		} {
			if d.old == d.new {
				continue
			}
			if _, err := fmt.Fprintf(w, "%s: not the same conditions: %s was %v, is %v\n", suite, d.what, d.old, d.new); err != nil {
				return err
			}
		}
		return nil
	})
}
