package kvcr_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints"
)

// Blocks that a router names by hash are copied, or moved, here in the background, and
// each action tells how it ended.
func TestPrefetchAndMove(t *testing.T) {
	a, b := openHinted(t, nil), openHinted(t, func(c *kvcr.Config) { c.Hints.Rank = 3 })
	a.deposit(t, keysOf(0, 300))
	b.deposit(t, keysOf(290, 300))
	a.names.ambiguous[400], a.names.broken[401] = true, true
	id, rs := b.submit("r1",
		action(hints.TypePrefetch, a.endpoint, append(hashesOf(0, 200), 500, 400, 401)...),
		hints.Action{Type: "kv.someday", Payload: map[string]any{}},
		action(hints.TypeMove, a.endpoint, hashesOf(200, 300)...),
		action(hints.TypePrefetch, "nonsense", 1),
		action(hints.TypeFetch, a.endpoint, 1),
	)
	b.DiscardHint("r1") // which is nothing to them
	for i, want := range []hints.Reason{hints.NoReason, hints.UnsupportedActionType, hints.NoReason, hints.InvalidSource, hints.NoReason} {
		if rs[i].Reason != want {
			t.Errorf("action %d: %v %q, want %v", i, rs[i].Reason, rs[i].Detail, want)
		}
	}
	copied, moved := b.end(id, 0), b.end(id, 2)
	if copied.Copied != 200 || copied.Failed != 3 || copied.Present+copied.Moved+copied.Kept != 0 || copied.Bytes != 200*64<<10 || copied.Reason != "" {
		t.Errorf("prefetch: %+v", copied)
	}
	if moved.Moved != 100 || moved.Bytes != 90*64<<10 || moved.Rank != 3 || moved.RequestID != "r1" || moved.ActionID != "a2" || moved.Type != hints.TypeMove {
		t.Errorf("move: %+v", moved)
	}
	b.is(id, 500, hints.StageFailed, "not_found")
	b.is(id, 400, hints.StageFailed, "ambiguous_hash")
	b.is(id, 401, hints.StageFailed, "adapter")
	if a.has(keysOf(0, 200)) != 200 || a.has(keysOf(200, 300)) != 0 || b.has(keysOf(0, 300)) != 300 {
		t.Errorf("the source has %d and %d, the destination %d", a.has(keysOf(0, 200)), a.has(keysOf(200, 300)), b.has(keysOf(0, 300)))
	}
	for _, k := range keysOf(0, 300) {
		if v, ok := b.h.Get(k); !ok || !bytes.Equal(v.Bytes(), payload(string(k), 64<<10)) {
			t.Errorf("%s is another block", k)
		} else {
			v.Release()
		}
	}
	for i, want := range map[int]int{0: 1, 1: 0, 2: 1, 3: 0, 4: 0} {
		n := 0
		for _, o := range b.outcomes(id, i) {
			if o.Stage == hints.StageEnd {
				n++
			}
		}
		if n != want {
			t.Errorf("action %d ends %d times", i, n)
		}
	}
	// Once more: there is nothing to do, or nothing left.
	id, _ = b.submit("", action(hints.TypePrefetch, a.endpoint, hashesOf(0, 210)...), action(hints.TypeMove, a.endpoint, hashesOf(195, 205)...))
	if o := b.end(id, 0); o.Present != 210 || o.Bytes != 0 {
		t.Errorf("prefetch of what is here: %+v", o)
	}
	if o := b.end(id, 1); o.Moved != 5 || o.Present != 5 || o.Bytes != 0 {
		t.Errorf("move of what is here: %+v", o)
	}
	if n := a.has(keysOf(195, 200)); n != 0 {
		t.Errorf("the source has %d still", n)
	}
	eventually(t, "all is over", func() bool { s := b.stats(); return s.Actions == 0 && s.Blocks == 0 && s.Bytes == 0 })
	if n := a.stats().AdapterFaults; n != 1 {
		t.Errorf("%d faults of the adapter", n)
	}
}

// Only complete blocks of the source's own are brought, none that its framework lends.
func TestPrefetchTakesNoPins(t *testing.T) {
	fw := &lender{elements: 4}
	mem := payload("lent", 4*64<<10)
	a := openHinted(t, func(c *kvcr.Config) { lend(t, c, fw, mem) })
	b := openHinted(t, nil)
	a.names.other[1] = "lent-1"
	a.deposit(t, keysOf(2, 3))
	id := b.order(hints.TypePrefetch, a.endpoint, 1, 2)
	b.end(id, 0)
	b.is(id, 1, hints.StageFailed, "not_found")
	b.is(id, 2, hints.StageCopied, "")
	// Nor when the source's own block goes between resolution and transfer.
	b = openHinted(t, func(c *kvcr.Config) { c.Hints.YieldAbove, c.Hints.YieldFor = 1, time.Minute })
	r := openRelay(t, a.endpoint)
	r.hold(true)
	if err := a.h.Deposit([]byte("lent-1"), payload("own", 64<<10)); err != nil {
		t.Fatal(err)
	}
	a.deposit(t, keysOf(3, 6))
	op := b.h.FetchFrom(keysOf(2, 6), kvcr.FetchOptions{Sources: []string{r.endpoint}, OwnedOnly: true})
	id = b.order(hints.TypePrefetch, r.endpoint, 1)
	eventually(t, "it is resolved and waits", func() bool { return b.stats().Bytes > 0 })
	a.h.Delete([]byte("lent-1"))
	r.hold(false)
	release(wait(t, op))
	b.end(id, 0)
	b.is(id, 1, hints.StageFailed, "not_found")
	if n := fw.asked.Load(); n != 0 {
		t.Errorf("the framework was asked %d times", n)
	}
}

// An engine without hints, without peers or without an adapter says so.
func TestNoHints(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*kvcr.Config)
		want   map[string]hints.Reason
	}{
		{"no peers", func(c *kvcr.Config) { c.Peers = nil }, map[string]hints.Reason{
			hints.TypePrefetch: hints.HandlerError, hints.TypeMove: hints.HandlerError, hints.TypeFetch: hints.NoReason, hints.TypeEvict: hints.NoReason,
		}},
		{"no adapter", func(c *kvcr.Config) { c.Hints.Adapter = nil }, map[string]hints.Reason{
			hints.TypePrefetch: hints.NoReason, hints.TypeFetch: hints.NoReason, hints.TypeEvict: hints.HandlerError, hints.TypeInvalidate: hints.HandlerError,
		}},
	} {
		cfg := kvcr.Config{Capacity: 8 << 20, Peers: &kvcr.Peers{}, Hints: &kvcr.Hints{Adapter: &numbers{}}}
		tt.change(&cfg)
		e, err := kvcr.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for kind, want := range tt.want {
			rs, err := e.SubmitHintValue("r", &hints.Envelope{Actions: []hints.Action{action(kind, "tcp://127.0.0.1:1", 1)}})
			if err != nil || rs[0].Reason != want {
				t.Errorf("%s, %s: %v %v", tt.name, kind, rs, err)
			}
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}
