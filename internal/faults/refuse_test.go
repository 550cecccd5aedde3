package faults

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// A source that refuses, for whatever reason, answers in about the time of a round
// trip, long before the fetch's time is up; and a peer that does not fit is
// refused alone.
func TestRefusalsComeAtOnce(t *testing.T) {
	routes := []string{"stream"}
	w := watch(t, routes)
	a := start(t, settings{Name: "source", Listen: address(t), Routes: routes})
	odd := start(t, settings{Name: "other layout", Listen: address(t), Routes: routes, SlotBytes: bigBytes / 2})
	e, h := openHere(t, settings{Name: "destination", Routes: routes, Listen: address(t)})
	t.Cleanup(w.close) // before its peers are gone
	a.must(request{Verb: "deposit", Keys: witnessed})
	w.only(a)
	_ = h.Deposit([]byte("s-own"), payload("s-own"))
	for _, tt := range []struct {
		name, endpoint string
		move           bool
		want           kvcr.Reason
	}{
		{"a miss", a.endpoint, false, kvcr.ReasonMiss},
		{"a miss in a move", a.endpoint, true, kvcr.ReasonMiss},
		{"another layout", odd.endpoint, false, kvcr.ReasonLayout},
		{"another layout, move", odd.endpoint, true, kvcr.ReasonLayout},
		{"itself", e.Peers().Endpoints()[0], false, kvcr.ReasonSource},
		{"itself, move", e.Peers().Endpoints()[0], true, kvcr.ReasonSource},
	} {
		t.Run(tt.name, func(t *testing.T) {
			opt := kvcr.FetchOptions{Sources: []string{tt.endpoint}, Move: tt.move, Timeout: 20 * time.Second}
			waitOp(t, h.FetchFrom(bytesOf([]string{"s-warm"}), opt)) // there is a connection, if there can be one
			best := time.Hour
			for range 3 {
				start := time.Now()
				r := waitOp(t, h.FetchFrom(bytesOf([]string{"s-none"}), opt))
				best = min(best, time.Since(start))
				if r[0].Reason != tt.want {
					t.Fatalf("%v, want %v", r[0].Reason, tt.want)
				}
			}
			if best > 50*time.Millisecond {
				t.Errorf("refused after %v, over 50ms", best)
			}
		})
	}
	restHere(t, e)
	if !h.Has([]byte("s-own")) {
		t.Error("a move from itself has taken a block away")
	}
}

// Who is named by another address is still the same process: nothing is moved from
// itself to itself (the block would be gone).
func TestSelfByAnotherAddress(t *testing.T) {
	e, h := openHere(t, settings{Name: "self", Listen: address(t), Routes: []string{"stream"}})
	relay := newRelay(t, strings.TrimPrefix(e.Peers().Endpoints()[0], "tcp://"))
	relay.open(t)
	if err := h.Deposit([]byte("s-0"), payload("s-0")); err != nil {
		t.Fatal(err)
	}
	r := waitOp(t, h.FetchFrom(bytesOf([]string{"s-0", "s-1"}), kvcr.FetchOptions{Sources: []string{relay.endpoint()}, Move: true, Timeout: 5 * time.Second}))
	if !r[0].OK() || r[1].Reason != kvcr.ReasonSource {
		t.Errorf("%v, %v", r[0].Reason, r[1].Reason)
	}
	r[0].View.Release()
	restHere(t, e)
	if !h.Has([]byte("s-0")) {
		t.Error("a block was moved from itself to itself, and is gone")
	}
}

// Advice to move that is of no use, for any reason, costs nothing but what it was
// for: what is resident is served, and a further source is asked for the rest.
func TestBadAdvicePoisonsNothing(t *testing.T) {
	routes := []string{"stream"}
	a := start(t, settings{Name: "source", Listen: address(t), Routes: routes})
	odd := start(t, settings{Name: "other layout", Listen: address(t), Routes: routes, SlotBytes: bigBytes / 2})
	dead := start(t, settings{Name: "dead", Listen: address(t), Routes: routes})
	dead.kill()
	e, h := openHere(t, settings{Name: "destination", Routes: routes, Listen: address(t)})
	a.must(request{Verb: "deposit", Keys: []string{"s-far"}})
	if err := h.Deposit([]byte("s-near"), payload("s-near")); err != nil {
		t.Fatal(err)
	}
	for name, endpoint := range map[string]string{
		"nobody": dead.endpoint, "layout": odd.endpoint, "self": e.Peers().Endpoints()[0], "no address": "somewhere", "no such scheme": "udp://127.0.0.1:1",
	} {
		t.Run(name, func(t *testing.T) {
			for _, move := range []bool{false, true} {
				opt := kvcr.FetchOptions{Sources: []string{endpoint}, Move: move, Timeout: 100 * time.Millisecond}
				r := waitOp(t, h.FetchFrom(bytesOf([]string{"s-near", "s-far"}), opt))
				if !r[0].OK() || r[1].OK() {
					t.Errorf("move=%t: the local hit: %v; the other: %v", move, r[0].Reason, r[1].Reason)
				}
				r[0].View.Release()
				opt.Sources, opt.Timeout = append(opt.Sources, a.endpoint), 400*time.Millisecond
				r = waitOp(t, h.FetchFrom(bytesOf([]string{"s-near", "s-far"}), opt))
				if !r[0].OK() || !r[1].OK() {
					t.Fatalf("move=%t, with a further source: %v, %v", move, r[0].Reason, r[1].Reason)
				}
				r[0].View.Release()
				r[1].View.Release()
				restHere(t, e)
				a.rest(t)
				if _, err := h.Delete([]byte("s-far")); err != nil {
					t.Fatal(err)
				}
				a.must(request{Verb: "deposit", Keys: []string{"s-far"}})
			}
		})
	}
}

// Invalidation and moves that name a generation leave a later one alone.
func TestGenerationMismatch(t *testing.T) {
	a, ha := openHere(t, settings{Name: "source", Listen: address(t), Routes: []string{"stream"}})
	b, _ := openHere(t, settings{Name: "destination", Routes: []string{"stream"}})
	endpoint := a.Peers().Endpoints()[0]
	key := []byte("s-0")
	if err := ha.Deposit(key, payload("s-0")); err != nil {
		t.Fatal(err)
	}
	v, _ := ha.Get(key)
	old := v.Generation()
	v.Release()
	if _, err := ha.Delete(key); err != nil {
		t.Fatal(err)
	}
	if err := ha.Deposit(key, payload("s-0")); err != nil { // in between, it has come again
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	got, err := b.Peers().Invalidate(ctx, endpoint, "kv", []wire.Wanted{{Key: key, Generation: old}})
	if err != nil || got[0] != wire.StatusGeneration {
		t.Errorf("invalidate: %v, %v", got, err)
	}
	settled := make(chan peer.Settle, 1)
	b.Peers().Submit(endpoint, peer.Submit{
		Namespace: "kv", Mode: wire.TransferMove, Items: []wire.Wanted{{Key: key, Generation: old}}, Deadline: b.Peers().Now() + 5*time.Second,
	}, func(s peer.Settle) { settled <- s })
	if s := <-settled; s.Status != wire.StatusGeneration {
		t.Errorf("move: %v", s.Status)
	}
	restHere(t, a)
	restHere(t, b)
	if !ha.Has(key) {
		t.Error("the later block is gone")
	}
}
