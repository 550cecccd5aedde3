package bench

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// TestEngineSuite runs every case, too briefly to measure anything.
func TestEngineSuite(t *testing.T) {
	rep, err := Engine(context.Background(), Options{Quick: true, Runs: 1, Capacity: 16 << 20, Smoke: true})
	if err != nil {
		t.Fatal(err)
	}
	impls := map[string][]string{}
	for _, row := range rep.Rows() {
		if row.Suite != "engine" || row.Unit == "" || row.Better != Lower || len(row.Runs) != 1 && row.Name != "allocs" {
			t.Errorf("row %+v", row)
		}
		if row.Value < 0 || row.Value == 0 && row.Name != "allocs" {
			t.Errorf("%s %v %s: value %v", row.Name, row.Params, row.Impl, row.Value)
		}
		if !slices.Contains(impls[row.Name], row.Impl) {
			impls[row.Name] = append(impls[row.Name], row.Impl)
		}
	}
	caches := []string{ours, "otter", "theine", "ristretto", "ristretto-v0", "freecache", "bigcache", "fastcache", "xsync"}
	for name, want := range map[string][]string{
		"get-view":                  {ours, "otter", "theine", "ristretto", "ristretto-v0", "freecache", "xsync", again},
		"get-copy":                  append(slices.Clone(caches), again),
		"mix":                       caches,
		"put":                       {ours, goCopy},
		"deliver":                   {ours, goCopy},
		"allocs":                    caches,
		"get-p99-beside-puts":       {ours, "otter"},
		"timer-p99-beside-puts":     {ours, "otter"},
		"get-p99-beside-puts-ratio": {ours, "otter"},
		"rss":                       {ours, "otter"},
		"metadata":                  {ours},
		"set-completion":            {ours, "goroutine-wake"},
	} {
		for _, impl := range want {
			if !slices.Contains(impls[name], impl) {
				t.Errorf("%s has no %s, only %v", name, impl, impls[name])
			}
		}
	}
	for op, r := range map[string]*Result{
		"hit":  rep.result(Result{Suite: "engine", Name: "allocs", Params: []Param{{"op", "hit"}}}),
		"miss": rep.result(Result{Suite: "engine", Name: "allocs", Params: []Param{{"op", "miss"}}}),
	} {
		if _, verdicts, _ := r.judged(); len(verdicts) != 1 || verdicts[0].Outcome != Reached {
			t.Errorf("allocations of a %s: %+v", op, verdicts)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for name, o := range map[string]Options{
		"runs":     {Runs: -1},
		"workers":  {Workers: -1},
		"capacity": {Capacity: 1},
		"only":     {Only: []string{"get-veiw"}},
	} {
		var bad *OptionError
		if _, err := Engine(context.Background(), o); !errors.As(err, &bad) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestOnlyAndBudget(t *testing.T) {
	var ran []string
	mk := func(names ...string) part {
		return part{names, 1, func(_ context.Context, o Options, _ *Report) error {
			ran = append(ran, names[0])
			if left := time.Until(o.until); o.Quick && (left <= 0 || left > quickBudget) {
				t.Errorf("%s may take %v", names[0], left)
			}
			return nil
		}}
	}
	parts := func() []part { return []part{mk("a", "b"), mk("c"), mk("d")} }
	if _, err := runParts(context.Background(), Options{Only: []string{"b", "d"}, Quick: true}, parts()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(ran, []string{"a", "d"}) {
		t.Errorf("ran %v, want the parts of b and d", ran)
	}
	boom := errors.New("boom")
	failing := append(parts(), part{[]string{"e"}, 1, func(context.Context, Options, *Report) error { return boom }})
	if rep, err := runParts(context.Background(), Options{}, failing); !errors.Is(err, boom) || rep == nil {
		t.Errorf("report %v, error %v", rep, err)
	}
}

func TestRoundsStopWhenTimeIsUp(t *testing.T) {
	n := 0
	count := func(int) error { n++; return nil }
	o := Options{Runs: 5}
	if err := o.rounds(context.Background(), count); err != nil || n != 5 {
		t.Errorf("without a limit: %d rounds, %v", n, err)
	}
	n, o.until = 0, time.Now().Add(-time.Second)
	if err := o.rounds(context.Background(), count); err != nil || n != 1 {
		t.Errorf("late already: %d rounds, %v; want the one that must be", n, err)
	}
	o.until = time.Now().Add(time.Hour)
	if left := time.Until(o.slice(2, 4).until); left > 31*time.Minute || left < 29*time.Minute {
		t.Errorf("the third of four parts gets %v of an hour for two", left)
	}
}
