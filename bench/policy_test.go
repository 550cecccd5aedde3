package bench

import (
	"context"
	"testing"

	"github.com/kvcr-go/kvcr/bench/model"
	"github.com/kvcr-go/kvcr/bench/trace"
)

// TestPolicySuite runs the whole suite on a small trace.
func TestPolicySuite(t *testing.T) {
	rep, err := Policy(context.Background(), Options{Quick: true, Runs: 1, Only: []string{"usable-prefix-hit"}}, []*trace.Trace{small()})
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]map[float64]map[string]float64{}
	for _, row := range rep.Rows() {
		if at[row.Name] == nil {
			at[row.Name] = map[float64]map[string]float64{}
		}
		c := row.Params["capacity"].(float64)
		if at[row.Name][c] == nil {
			at[row.Name][c] = map[string]float64{}
		}
		at[row.Name][c][row.Impl] = row.Value
	}
	for _, c := range Percents {
		for _, name := range []string{"usable-prefix-hit", "block-hit"} {
			got := at[name][c]
			for _, impl := range []string{ours, "lru", "tail-lru", "s3fifo", "belady"} {
				v, ok := got[impl]
				if !ok || v < 0 || v > 100 {
					t.Errorf("%s at %g %%: %s is %v, there is one: %t", name, c, impl, v, ok)
				}
			}
			if name == "usable-prefix-hit" && got[ours] > got["belady"] {
				t.Errorf("at %g %%: kvcr's %.2f is over Belady's bound %.2f", c, got[ours], got["belady"])
			}
		}
		if n := at["unreachable"][c][ours]; n != 0 {
			t.Errorf("at %g %%: %v unreachable", c, n)
		}
	}
}

func TestKeyReplayBounds(t *testing.T) {
	w := model.Zipf(1, 5_000, 100_000)
	hits, err := replayKeys(context.Background(), w, 500, 1)
	if err != nil {
		t.Fatal(err)
	}
	lru, belady := model.RunKeys(w, 500, &model.LRU{}).Percent(), model.RunKeys(w, 500, &model.Belady{}).Percent()
	if hits < lru-3 || hits > belady {
		t.Errorf("kvcr %.2f %%, LRU %.2f %%, Belady %.2f %%", hits, lru, belady)
	}
}

func TestCapacityOf(t *testing.T) {
	tr := &trace.Trace{Requests: []trace.Request{{IDs: []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}}}
	for percent, want := range map[float64]int{1: 1, 20: 2, 25: 3, 100: 10} {
		if got := CapacityOf(tr, percent); got != want {
			t.Errorf("%g %% of 10 blocks: %d, want %d", percent, got, want)
		}
	}
}
