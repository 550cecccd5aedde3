package bench

import (
	"context"
	"slices"
	"testing"

	"github.com/kvcr-go/kvcr/hints/events"
)

// Every part of the suite but for that with other processes, as small as it can be.
func TestHintsSmoke(t *testing.T) {
	rep, err := Hints(context.Background(), Options{Smoke: true, Only: []string{"submit-discard", "recovery", "ingest", "index-bytes"}})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range rep.Rows() {
		if !slices.Contains(names, r.Name) {
			names = append(names, r.Name)
		}
		if r.Value < 0 || r.Value == 0 && r.Name != "submit-discard-allocs" && r.Name != "submit-discard-kept" {
			t.Errorf("%s: %v", r.Key(), r.Value)
		}
	}
	if want := []string{"submit-discard", "submit-discard-allocs", "submit-discard-kept", "recovery", "ingest", "index-bytes"}; !slices.Equal(names, want) {
		t.Errorf("results %v, want %v", names, want)
	}
}

// publishingTo returns an engine for so many chains, and one who has subscribed to it,
// until the test ends.
func publishingTo(t *testing.T, ctx context.Context, chains int) (*publishing, subscriber) {
	t.Helper()
	p, err := newPublishing(ctx, chains*publishChain)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	})
	sub, err := openIndexSubscriber(p.pub)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sub.close() })
	if err := p.subscribed(ctx, 1); err != nil {
		t.Fatal(err)
	}
	return p, sub
}

// What an engine holds is what its subscribers have heard of.
func TestPublishing(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), publishWait)
	defer cancel()
	const chains = 4
	p, sub := publishingTo(t, ctx, chains)
	for n := range chains {
		if err := p.deposit(n); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.remove(1); err != nil {
		t.Fatal(err)
	}
	if err := wait(ctx, sub, func(h heard) bool { return h.removed >= publishChain }); err != nil {
		t.Fatal(err)
	}
	if err := sub.check((chains - 1) * publishChain); err != nil {
		t.Error(err)
	}
	if err := sub.check(chains * publishChain); err == nil {
		t.Error("a lost block is not noticed")
	}
	if h := sub.counted(); h != (heard{stored: chains * publishChain, removed: publishChain}) {
		t.Errorf("heard %+v", h)
	}
}

// A relay drops as many batches as it is told, and passes on the others.
func TestRelay(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), publishWait)
	defer cancel()
	p, err := events.NewPublisher(events.PublisherConfig{Endpoint: "tcp://127.0.0.1:0", Bind: true, Linger: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	r, err := newRelay(ctx, p.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	sub, err := newIndexSubscriber(r.endpoint, "") // nobody to ask: what is dropped is a gap
	if err != nil {
		t.Fatal(err)
	}
	defer sub.close()
	if err := eventually(ctx, func() bool { return r.pub.Subscribers() == 1 && p.Stats().Subscribers == 1 }); err != nil {
		t.Fatal(err)
	}
	publish := func(n uint64) {
		c := makeTokenChain(n, 4, publishBlock)
		if _, err := p.Publish(c.stored(0, 4)); err != nil {
			t.Fatal(err)
		}
	}
	publish(0)
	if err := wait(ctx, sub, func(h heard) bool { return h.stored == 4 }); err != nil {
		t.Fatal(err)
	}
	r.drop.Store(2)
	for n := range uint64(3) {
		publish(1 + n)
	}
	// Gaps are counted a moment after the blocks.
	if err := eventually(ctx, func() bool { h := sub.counted(); return h.stored == 8 && h.missed == 1 }); err != nil {
		t.Fatal(err, sub.counted())
	}
	if n := r.dropped.Load(); n != 2 {
		t.Errorf("%d batches dropped", n)
	}
}
