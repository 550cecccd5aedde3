package bench

import (
	"context"
	"os"
	"testing"

	"github.com/kvcr-go/kvcr/bench/trace"
)

func TestReal(t *testing.T) {
	f, err := os.Open("../../shared/traces/conversation_trace.jsonl")
	if err != nil {
		t.Skip(err)
	}
	tr, err := trace.Read(f, "conversation", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []float64{1, 10} {
		r, err := Replay(context.Background(), ReplayOptions{Trace: tr, Blocks: CapacityOf(tr, p)})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%.2f %.2f\n%+v", r.PrefixPercent(), r.BlockPercent(), *r)
	}
}
