package bench

import (
	"context"
	"testing"

	"github.com/kvcr-go/kvcr/ring"
)

func TestQueuesMoveEveryMessage(t *testing.T) {
	for _, q := range queues {
		for _, batch := range []int{1, 8, 1024} {
			if err := oneWay(q.open, batch, 3_000); err != nil {
				t.Errorf("%s one way, batch %d: %v", q.name, batch, err)
			}
			if err := roundTrip(q.open, batch, 500); err != nil {
				t.Errorf("%s round trip, batch %d: %v", q.name, batch, err)
			}
		}
	}
}

// lossy drops one message of its first batch and repeats another.
type lossy struct {
	spscRing
	cut bool
}

func (q *lossy) push(ms []ring.Msg) int {
	if !q.cut {
		q.cut = true
		ms[1] = ms[0]
	}
	return q.spscRing.push(ms)
}

func TestLostMessageIsFound(t *testing.T) {
	open := func(n int) queue { return &lossy{spscRing: spscRing{ring.New(n)}} }
	if err := oneWay(open, 8, 1_000); err == nil {
		t.Error("one way: a message replaced by another went unnoticed")
	}
	if err := roundTrip(open, 8, 1_000); err == nil {
		t.Error("round trip: a message replaced by another went unnoticed")
	}
}

func TestRingSuite(t *testing.T) {
	rep, err := Ring(context.Background(), Options{Quick: true, Runs: 1, Smoke: true})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, row := range rep.Rows() {
		if row.Value <= 0 || row.Suite != "ring" {
			t.Errorf("row %+v", row)
		}
		got[row.Name+" "+row.Impl]++
	}
	for _, name := range []string{"one-way", "round-trip"} {
		for _, impl := range []string{ours, "channel", "xsync-spsc", "xsync-mpmc"} {
			if n := got[name+" "+impl]; n != 4 {
				t.Errorf("%s %s: %d batch sizes, want 4", name, impl, n)
			}
		}
	}
}
