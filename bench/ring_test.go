package bench

import (
	"context"
	"os"
	"testing"

	"github.com/kvcr-go/kvcr/ring"
)

func TestQueuesMoveEveryMessage(t *testing.T) {
	for _, q := range queues {
		for _, batch := range []int{1, 8, 1024} {
			if err := oneWay(q.open, batch, 10_000); err != nil {
				t.Errorf("%s one way, batch %d: %v", q.name, batch, err)
			}
			if err := roundTrip(q.open, batch, 3_000); err != nil {
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

// TestRingSuite runs when a person asks for it: it takes 20 seconds.
func TestRingSuite(t *testing.T) {
	if os.Getenv("BENCH_SUITES") == "" {
		t.Skip("BENCH_SUITES is not set")
	}
	rep, err := Ring(context.Background(), Options{Quick: true, Progress: func(s string) { t.Log(s) }})
	if err != nil {
		t.Fatal(err)
	}
	rep.WriteText(os.Stderr)
}
