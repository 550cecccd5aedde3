package virtual

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/bench/trace"
)

func small(seed uint64) Options {
	p := trace.DefaultParams(1)
	p.Conversations = 600
	return Options{Nodes: 12, Blocks: 300, Requests: 240, Warm: 200, Length: 1, Trace: trace.Generate("generated", p), Seed: seed}
}

// A run has everything in it, and nothing left over.
func TestRun(t *testing.T) {
	r, err := Run(t.Context(), small(1))
	if err != nil {
		t.Fatal(err)
	}
	for c, least := range map[Count]int{Asked: 3000, Local: 50, Fetched: 100, Computed: 1000, Hinted: 40, Actions: 4, Moved: 5,
		Plans: 240, Events: 500, Changes: 2000, Frames: 240, FrameBytes: 10_000, Steps: 500} {
		if r.Counts[c] < least {
			t.Errorf("count %d is %d, want %d at least", c, r.Counts[c], least)
		}
	}
	if r.Plans() != 240 || r.Counts[Failed]*10 > r.Counts[Fetched] || r.Counts[Refused] > 0 {
		t.Errorf("%d plans, %d blocks failed, %d actions refused", r.Plans(), r.Counts[Failed], r.Counts[Refused])
	}
	for p := range parts {
		if r.Cost[p] <= 0 && p != Collector {
			t.Errorf("the part %v has cost nothing", p)
		}
	}
	if n := len(r.Latency); n < 40 || r.Latency[0] < time.Millisecond || r.Latency[n-1] > 5*time.Second {
		t.Errorf("latencies of %d hints: %v", n, r.Latency)
	}
	if r.Links < 12 || r.Hottest < 1 || r.Heap < 100_000 || r.Index.Pairs[1] < 12*200 {
		t.Errorf("%d links, %.1f hottest, %d bytes, %d blocks in the index", r.Links, r.Hottest, r.Heap, r.Index.Pairs[1])
	}
}

// Plans of the measured requests.
func (r *Result) Plans() int { return r.Counts[Plans] }

// The same seed makes the same run, another seed another one.
func TestSameSeed(t *testing.T) {
	hash := func(seed uint64) uint64 {
		r, err := Run(t.Context(), small(seed))
		if err != nil {
			t.Fatal(err)
		}
		return r.Hash
	}
	if a, b, c := hash(1), hash(1), hash(2); a != b || a == c {
		t.Errorf("hashes %x and %x of one seed, %x of another", a, b, c)
	}
}

// What is wrong at the end is found.
func TestChecks(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  func(*broken)
		want string
	}{
		{"a removal is not told", func(b *broken) { b.removed = true }, "the router thinks that"},
		{"a claim stays", func(b *broken) { b.unclaim = true }, "claims left"},
		{"advice stays", func(b *broken) { b.discard = true }, "requests with advice left"},
		{"a hold stays", func(b *broken) { b.drop = true }, "holds left"},
		{"an operation does not end", func(b *broken) { b.finished = true }, "goes on for ever"},
		{"an action does not end", func(b *broken) { b.outcome = true }, "actions left"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := small(1)
			tt.set(&o.broken)
			if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v; want %q", err, tt.want)
			}
		})
	}
}

func TestOptions(t *testing.T) {
	_, err := Run(t.Context(), Options{Nodes: 1, Warm: -1})
	for _, want := range []string{"Nodes = 1", "Blocks = 0", "Requests = 0", "Warm = -1", "Length = 0", "Trace"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q in it", err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, small(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("%v of a run that is not wanted any more", err)
	}
}

// Requests come at the rate of the fleet from the begin on, with ids of their own but
// for the first, and conversations in them.
func TestStream(t *testing.T) {
	o := small(1)
	o.Nodes, o.Requests, o.Warm = 40, 4000, 0
	s := newStream(&o)
	seen := map[uint64]bool{}
	var last time.Duration
	firsts, again, blocks := 0, 0, 0
	for s.left > 0 {
		a := s.next()
		if a.at < last {
			t.Fatalf("request %d comes at %v, after one at %v", a.n, a.at, last)
		}
		last = a.at
		hs := a.hashes(2)
		if len(hs) != 2*len(a.ids) {
			t.Fatalf("%d hashes of %d ids", len(hs), len(a.ids))
		}
		for i, h := range hs {
			blocks++
			switch {
			case i < 2 && seen[h]:
				firsts++
			case seen[h]:
				again++
			}
			seen[h] = true
		}
	}
	if want := 4000 * time.Second / (nodeRate * 40); last < want*9/10 || last > want*11/10 {
		t.Errorf("4000 requests came in %v, want about %v", last, want)
	}
	if firsts != 2*o.Requests || again < blocks/5 || again > blocks*2/3 {
		t.Errorf("of %d blocks %d begin prompts as others did, %d are of earlier turns", blocks, firsts, again)
	}
}
