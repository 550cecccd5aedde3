package kvcr_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints"
)

// Copies at the source that go between a router's look and the transfer cost
// themselves: what is left comes, each hash has its answer, and a request computes the
// gap.
func TestSourceCopyGoes(t *testing.T) {
	a := openHinted(t, nil)
	b := openHinted(t, func(c *kvcr.Config) { c.Hints.YieldAbove, c.Hints.YieldFor = 1, time.Minute })
	a.deposit(t, keysOf(0, 20))
	r := openRelay(t, a.endpoint)
	r.hold(true)
	busy := b.h.FetchFrom(keysOf(16, 20), kvcr.FetchOptions{Sources: []string{r.endpoint}, Timeout: 20 * time.Second})
	id, _ := b.submit("r",
		action(hints.TypeMove, r.endpoint, 0, 1, 2, 3, 77),
		action(hints.TypePrefetch, r.endpoint, 4, 5, 6, 7, 78),
		action(hints.TypeFetch, r.endpoint, 8, 9, 10, 79))
	eventually(t, "the first is resolved and waits", func() bool { return b.stats().Bytes > 0 })
	gone := a.order(hints.TypeEvict, "", 0, 1, 4, 5, 8)
	if o := a.end(gone, 0); o.Removed != 5 {
		t.Fatalf("%+v", o)
	}
	r.hold(false)
	release(wait(t, busy))
	if o := b.end(id, 0); o.Moved != 2 || o.Failed != 3 {
		t.Errorf("move: %+v", o)
	}
	if o := b.end(id, 1); o.Copied != 2 || o.Failed != 3 {
		t.Errorf("prefetch: %+v", o)
	}
	for _, h := range []uint64{0, 1, 4, 5, 77, 78} {
		at := 0
		if h >= 4 && h != 77 {
			at = 1
		}
		if s, why := b.last(id, at, h); s != hints.StageFailed || why != "not_found" {
			t.Errorf("block %d: %v %q", h, s, why)
		}
	}
	b.whole(id, 0, []uint64{0, 1, 2, 3, 77})
	b.whole(id, 1, []uint64{4, 5, 6, 7, 78})
	want := []kvcr.Reason{kvcr.ReasonMiss, kvcr.ReasonOK, kvcr.ReasonOK}
	for i, why := range b.reasons(keysOf(8, 11), kvcr.FetchOptions{RequestID: "r"}) {
		if why != want[i] {
			t.Errorf("block %d of the request: %v, want %v", 8+i, why, want[i])
		}
	}
	if n := b.has(keysOf(0, 8)); n != 4 {
		t.Errorf("%d blocks have come", n)
	}
}

// A copy that its writer has not completed is none, to hints as to anybody; and of a
// chain with a hole the rest comes.
func TestSourceCopyIncomplete(t *testing.T) {
	a, b := openHinted(t, nil), openHinted(t, nil)
	a.deposit(t, append(keysOf(0, 4), keysOf(6, 10)...)) // 4 is being written, 5 is not there
	w, err := a.h.Reserve(keysOf(4, 5)[0], 64<<10)
	if err != nil {
		t.Fatal(err)
	}
	copy(w.Bytes(), payload("block-4", 64<<10)[:32<<10])
	for _, kind := range []string{hints.TypePrefetch, hints.TypeMove} {
		id := b.order(kind, a.endpoint, 4)
		if o := b.end(id, 0); o.Failed != 1 || o.Reason != "not_found" {
			t.Errorf("%s of half a block: %+v", kind, o)
		}
	}
	b.advise("r", hints.Transfer{Source: a.endpoint, Hashes: hashesOf(0, 10)})
	for i, why := range b.reasons(keysOf(2, 8), kvcr.FetchOptions{RequestID: "r"}) {
		if want := i != 2 && i != 3; (why == kvcr.ReasonOK) != want {
			t.Errorf("block %d of the request: %v", 2+i, why)
		}
	}
	id := b.order(hints.TypeMove, a.endpoint, hashesOf(0, 10)...)
	if o := b.end(id, 0); o.Moved != 8 || o.Failed != 2 {
		t.Errorf("a chain with a hole: %+v", o)
	}
	copy(w.Bytes(), payload("block-4", 64<<10))
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	id = b.order(hints.TypePrefetch, a.endpoint, 4)
	if o := b.end(id, 0); o.Copied != 1 {
		t.Errorf("once it is complete: %+v", o)
	}
	if v, ok := b.h.Get(keysOf(4, 5)[0]); !ok || !bytes.Equal(v.Bytes(), payload("block-4", 64<<10)) {
		t.Error("it has come as another")
	} else {
		v.Release()
	}
}

// Of a block in several parts a hint that names some brings none: half of one is of no
// use to anybody, and would be taken for the whole.
func TestSourceCopyInParts(t *testing.T) {
	chained := func(c *kvcr.Config) { c.Namespaces[0].Kind = kvcr.Chained }
	a, b := openHinted(t, chained), openHinted(t, chained)
	var group []kvcr.Item
	for _, k := range keysOf(0, 3) {
		group = append(group, kvcr.Item{Key: k, Value: payload(string(k), 64<<10)})
	}
	for _, r := range a.h.DepositGroup(group, kvcr.DepositOptions{}) {
		if !r.OK() {
			t.Fatal(r.Reason)
		}
	}
	for _, kind := range []string{hints.TypePrefetch, hints.TypeMove} {
		id := b.order(kind, a.endpoint, 0, 1)
		if o := b.end(id, 0); o.Failed != 2 || o.Reason != "group" {
			t.Errorf("%s: %+v", kind, o)
		}
		if n := b.has(keysOf(0, 3)); n != 0 || a.has(keysOf(0, 3)) != 3 {
			t.Errorf("%s: %d of 3 parts are here", kind, n)
		}
	}
	id := b.order(hints.TypeMove, a.endpoint, 0, 1, 2)
	if o := b.end(id, 0); o.Moved != 3 || b.has(keysOf(0, 3)) != 3 || a.has(keysOf(0, 3)) != 0 {
		t.Errorf("all parts: %+v", o)
	}
}
