package kvcr_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints"
)

// advise submits kv.fetch for a request.
func (e *hintedEngine) advise(request string, ts ...hints.Transfer) []hints.Result {
	e.t.Helper()
	var actions []hints.Action
	for i := range ts {
		actions = append(actions, hints.Action{Type: hints.TypeFetch, Payload: &ts[i]})
	}
	_, rs := e.submit(request, actions...)
	return rs
}

// reasons fetches keys and returns how each ended. Views are released.
func (e *hintedEngine) reasons(keys [][]byte, opt kvcr.FetchOptions) (out []kvcr.Reason) {
	e.t.Helper()
	rs := wait(e.t, e.h.FetchFrom(keys, opt))
	for i := range rs {
		if rs[i].OK() && !bytes.Equal(rs[i].View.Bytes(), payload(string(keys[i]), 64<<10)) {
			e.t.Errorf("%s: wrong bytes", keys[i])
		}
		out = append(out, rs[i].Reason)
	}
	release(rs)
	return out
}

// nobody is an endpoint at which nobody listens.
const nobody = "tcp://127.0.0.1:1"

// What a hint says of a request is followed by its queries, fetches and deliveries,
// for the blocks that it lists, and by nobody else's.
func TestAdviceIsFollowed(t *testing.T) {
	a, b := openHinted(t, nil), openHinted(t, nil)
	keys := keysOf(0, 10)
	a.deposit(t, keys)
	b.deposit(t, keys[:2])
	b.advise("r", hints.Transfer{Source: a.endpoint, Hashes: hashesOf(1, 6)})
	status := func(request string) (out []kvcr.Status) {
		for _, q := range b.h.QueryFor(request, keys) {
			out = append(out, q.Status)
		}
		return out
	}
	const hit, miss, there = kvcr.StatusHit, kvcr.StatusMiss, kvcr.StatusFetchable
	for request, want := range map[string][]kvcr.Status{
		"r":     {hit, hit, there, there, there, there, miss, miss, miss, miss},
		"other": {hit, hit, miss, miss, miss, miss, miss, miss, miss, miss},
		"":      {hit, hit, miss, miss, miss, miss, miss, miss, miss, miss},
	} {
		for i, s := range status(request) {
			if s != want[i] {
				t.Errorf("request %q, %s: %v, want %v", request, keys[i], s, want[i])
			}
		}
	}
	if q := b.h.QueryFor("r", keys)[2]; q.Tier != kvcr.TierRemote {
		t.Error(q.Tier)
	}
	for i, r := range b.reasons(keys, kvcr.FetchOptions{RequestID: "other"}) {
		if want := i < 2; (r == kvcr.ReasonOK) != want {
			t.Errorf("%s, for another request: %v", keys[i], r)
		}
	}
	var targets []kvcr.Target
	for _, k := range keys {
		targets = append(targets, kvcr.Target{Key: k, Dst: make([]byte, 64<<10)})
	}
	for i, r := range wait(t, b.h.DeliverFrom(targets, kvcr.FetchOptions{RequestID: "r"})) {
		switch {
		case (i < 6) != r.OK():
			t.Errorf("%s, delivered: %v", keys[i], r.Reason)
		case r.OK() && !bytes.Equal(targets[i].Dst, payload(string(keys[i]), 64<<10)):
			t.Errorf("%s, delivered: wrong bytes", keys[i])
		}
	}
	if b.has(keys) != 2 {
		t.Error("a delivery leaves blocks here")
	}
	for i, r := range b.reasons(keys, kvcr.FetchOptions{RequestID: "r"}) {
		if want := i < 6; (r == kvcr.ReasonOK) != want || !want && r != kvcr.ReasonMiss {
			t.Errorf("%s: %v", keys[i], r)
		}
	}
	// Sources of the caller's come first, and for all keys.
	for i, r := range b.reasons(keys, kvcr.FetchOptions{RequestID: "r", Sources: []string{nobody, a.endpoint}, Timeout: 900 * time.Millisecond}) {
		if r != kvcr.ReasonOK {
			t.Errorf("%s, with sources: %v", keys[i], r)
		}
	}
	if n := a.has(keys); n != 10 {
		t.Errorf("the source has %d blocks: advice copies", n)
	}
	b.DiscardHint("r")
	if got := b.h.QueryFor("r", keysOf(20, 21))[0].Status; got != miss {
		t.Error(got)
	}
}

// A source that fails costs what only it has: what is here is served, a further source
// is a fallback, and what a source does not have is not asked for again.
func TestAdviceFallsBack(t *testing.T) {
	a, c := openHinted(t, nil), openHinted(t, nil)
	keys := keysOf(0, 10)
	a.deposit(t, keys[:4])
	c.deposit(t, keys[4:8])
	all := hashesOf(0, 10)
	b := openHinted(t, nil)
	b.deposit(t, keys[9:])
	rs := b.advise("r", hints.Transfer{Source: nobody, Hashes: all}, hints.Transfer{Source: a.endpoint, Hashes: all}, hints.Transfer{Source: c.endpoint, Hashes: all})
	for _, r := range rs {
		if r.Status != hints.Accepted {
			t.Fatal(r)
		}
	}
	for i, r := range b.reasons(keys, kvcr.FetchOptions{RequestID: "r", Timeout: 1500 * time.Millisecond}) {
		if want := i != 8; (r == kvcr.ReasonOK) != want {
			t.Errorf("%s: %v", keys[i], r)
		}
	}
	st := b.stats().Advice
	if st.Failures != 1 || st.Fallbacks != 2 || st.Misses == 0 {
		t.Errorf("%+v", st)
	}
	// Nobody is asked for block 8 any more.
	asked := a.Peers().Stats().Operations + b.Peers().Stats().Operations + b.Peers().Stats().Dials
	if r := b.reasons(keys[8:9], kvcr.FetchOptions{RequestID: "r"}); r[0] != kvcr.ReasonMiss {
		t.Error(r)
	}
	if now := a.Peers().Stats().Operations + b.Peers().Stats().Operations + b.Peers().Stats().Dials; now != asked {
		t.Error("a miss is asked for again")
	}
	if s := b.h.QueryFor("r", keys[8:9])[0].Status; s != kvcr.StatusMiss {
		t.Errorf("a remembered miss is %v", s)
	}
	// The failed source is known to fail: nobody waits for it.
	b.h.DeleteBatch(keys)
	begun := time.Now()
	for i, r := range b.reasons(keys[:8], kvcr.FetchOptions{RequestID: "r", Timeout: 1500 * time.Millisecond}) {
		if r != kvcr.ReasonOK {
			t.Errorf("%s: %v", keys[i], r)
		}
	}
	if d := time.Since(begun); d > time.Second {
		t.Errorf("it took %v", d)
	}
}

// With PoisonOnConflict a second source spoils the request, as in the reference; what
// is here is served all the same.
func TestAdvicePoisons(t *testing.T) {
	a := openHinted(t, nil)
	b := openHinted(t, func(c *kvcr.Config) { c.Hints.Advice.PoisonOnConflict = true })
	keys := keysOf(0, 4)
	a.deposit(t, keys)
	b.deposit(t, keys[:1])
	rs := b.advise("r", hints.Transfer{Source: a.endpoint, Hashes: hashesOf(0, 4)}, hints.Transfer{Source: nobody, Hashes: hashesOf(0, 4)})
	if rs[0].Status != hints.Accepted || rs[1].Reason != hints.SourceConflict {
		t.Error(rs)
	}
	for i, r := range b.reasons(keys, kvcr.FetchOptions{RequestID: "r"}) {
		if want := i == 0; (r == kvcr.ReasonOK) != want {
			t.Errorf("%s: %v", keys[i], r)
		}
	}
	if n := b.stats().Advice.Conflicts; n != 1 {
		t.Errorf("%d conflicts", n)
	}
	b.advise("r", hints.Transfer{Source: a.endpoint, Hashes: hashesOf(0, 4)}) // begins anew
	for i, r := range b.reasons(keys, kvcr.FetchOptions{RequestID: "r"}) {
		if r != kvcr.ReasonOK {
			t.Errorf("%s: %v", keys[i], r)
		}
	}
}

// An opportunistic engine asks for what is not listed, too; without an adapter it is
// the only one that asks.
func TestAdviceOpportunistic(t *testing.T) {
	a := openHinted(t, nil)
	keys := keysOf(0, 6)
	a.deposit(t, keys[:5])
	for _, opportunistic := range []bool{true, false} {
		for _, adapter := range []bool{true, false} {
			b := openHinted(t, func(c *kvcr.Config) {
				c.Hints.Advice.Opportunistic = opportunistic
				if !adapter {
					c.Hints.Adapter = nil
				}
			})
			b.advise("r", hints.Transfer{Source: a.endpoint, Hashes: []uint64{1}})
			for i, r := range b.reasons(keys, kvcr.FetchOptions{RequestID: "r"}) {
				want := i == 1 && adapter || i < 5 && opportunistic
				if (r == kvcr.ReasonOK) != want {
					t.Errorf("opportunistic %t, adapter %t, %s: %v", opportunistic, adapter, keys[i], r)
				}
			}
		}
	}
}

// With RequestMoves kv.fetch may ask for a move: of what it lists, fetched or here
// already; deliveries copy.
func TestAdviceMoves(t *testing.T) {
	for _, enabled := range []bool{true, false} {
		a := openHinted(t, nil)
		b := openHinted(t, func(c *kvcr.Config) {
			c.Hints.Advice.RequestMoves, c.Hints.Advice.Opportunistic = enabled, true
		})
		keys := keysOf(0, 10)
		a.deposit(t, keys)
		b.deposit(t, keys[:2])
		b.advise("r", hints.Transfer{Source: a.endpoint, Hashes: []uint64{1, 2, 3}, Move: true})
		b.advise("d", hints.Transfer{Source: a.endpoint, Hashes: []uint64{1, 2, 3}, Move: true})
		wait(t, b.h.DeliverFrom([]kvcr.Target{{Key: keys[3], Dst: make([]byte, 64<<10)}}, kvcr.FetchOptions{RequestID: "d"}))
		if n := a.has(keys); n != 10 {
			t.Errorf("a delivery has moved: %d blocks are left", n)
		}
		for i, r := range b.reasons(keys, kvcr.FetchOptions{RequestID: "r"}) {
			if r != kvcr.ReasonOK {
				t.Errorf("%s: %v", keys[i], r)
			}
		}
		want := map[bool]int{true: 7, false: 10}[enabled]
		if enabled {
			eventually(t, "the source lets go of what is listed", func() bool { return a.has(keys) == want })
			if n := a.has(keys[1:4]); n != 0 {
				t.Errorf("%d of the listed are left", n)
			}
		} else if n := a.has(keys); n != want {
			t.Errorf("%d blocks are left at the source, want %d", n, want)
		}
		if n := b.has(keys); n != 10 {
			t.Errorf("%d blocks are here", n)
		}
	}
}

// Blocks of a framework are taken for requests unless the hint, or the configuration,
// forbids it.
func TestAdviceAndFramework(t *testing.T) {
	fw := &lender{elements: 4}
	mem := payload("lent", 4*64<<10)
	a := openHinted(t, func(c *kvcr.Config) { lend(t, c, fw, mem) })
	key := [][]byte{[]byte("lent-1")}
	for _, tt := range []struct{ config, hint, want bool }{{false, false, true}, {false, true, false}, {true, false, false}} {
		b := openHinted(t, func(c *kvcr.Config) { c.Hints.OwnedOnly = tt.config })
		b.names.other[1] = "lent-1"
		b.advise("r", hints.Transfer{Source: a.endpoint, Hashes: []uint64{1}, NoFramework: tt.hint})
		rs := wait(t, b.h.FetchFrom(key, kvcr.FetchOptions{RequestID: "r"}))
		if rs[0].OK() != tt.want {
			t.Errorf("%+v: %v", tt, rs[0].Reason)
		}
		release(rs)
	}
	eventually(t, "the pins are given back", func() bool { return fw.lent.Load() == 0 })
}

// With no_retain a fetched block leaves with its last View; one that was here, or that
// somebody has deposited since, stays.
func TestNoRetain(t *testing.T) {
	a, b := openHinted(t, nil), openHinted(t, nil)
	keys := keysOf(0, 6)
	a.deposit(t, keys)
	b.deposit(t, keys[:1])
	b.advise("r", hints.Transfer{Source: a.endpoint, Hashes: hashesOf(0, 6), NoRetain: true})
	rs := wait(t, b.h.FetchFrom(keys, kvcr.FetchOptions{RequestID: "r"}))
	for i := range rs {
		if !rs[i].OK() {
			t.Fatalf("%s: %v", keys[i], rs[i].Reason)
		}
	}
	again := rs[1].View.Again()
	other, _ := b.h.Get(keys[2])
	held := b.h.DepositBatch([]kvcr.Item{{Key: keys[3], Value: payload("block-3", 64<<10)}}, kvcr.DepositOptions{NoEvict: true})
	if b.has(keys) != 6 {
		t.Error("a block has left under its View")
	}
	release(rs)
	for i, want := range []bool{true, true, true, true, false, false} {
		if b.h.Has(keys[i]) != want {
			t.Errorf("%s is here: %t", keys[i], !want)
		}
	}
	again.Release()
	if b.h.Has(keys[1]) {
		t.Error("the last View has kept the block")
	}
	other.Release()
	held[0].View.Release()
	if !b.h.Has(keys[2]) || !b.h.Has(keys[3]) {
		t.Error("a block of another reader's, or depositor's, has left")
	}
	if n := b.stats().NotRetained; n != 3 {
		t.Errorf("%d have left", n)
	}
	if n := a.has(keys); n != 6 {
		t.Errorf("the source has %d", n)
	}
}

// A block that somebody deposits while it is being fetched is the depositor's.
func TestNoRetainMeetsDeposit(t *testing.T) {
	a, b := openHinted(t, nil), openHinted(t, nil)
	keys := keysOf(0, 2)
	a.deposit(t, keys)
	r := openRelay(t, a.endpoint)
	r.hold(true)
	b.advise("r", hints.Transfer{Source: r.endpoint, Hashes: hashesOf(0, 2), NoRetain: true})
	op := b.h.FetchFrom(keys, kvcr.FetchOptions{RequestID: "r"})
	eventually(t, "memory is reserved for it", func() bool { return b.Peers().Stats().Posted == 2*64<<10 })
	other, err := b.Handle()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.Deposit(keys[0], payload("block-0", 64<<10)); err != nil {
		t.Fatal(err)
	}
	r.hold(false)
	release(wait(t, op))
	if !b.h.Has(keys[0]) || b.h.Has(keys[1]) {
		t.Error("the deposited block has left, or the other has not")
	}
}

// A block that came for a request only stays when somebody has wanted it since: who
// deposits it, prefetches it, or moves it here, after which it is the last copy.
func TestNoRetainOfWhatIsWanted(t *testing.T) {
	a, b := openHinted(t, nil), openHinted(t, nil)
	keys := keysOf(0, 4)
	a.deposit(t, keys)
	b.advise("r", hints.Transfer{Source: a.endpoint, Hashes: hashesOf(0, 4), NoRetain: true})
	rs := wait(t, b.h.FetchFrom(keys, kvcr.FetchOptions{RequestID: "r"}))
	if err := b.h.Deposit(keys[0], payload("block-0", 64<<10)); err != nil {
		t.Fatal(err)
	}
	for kind, hash := range map[string]uint64{hints.TypeMove: 1, hints.TypePrefetch: 2} {
		if o := b.end(b.order(kind, a.endpoint, hash), 0); o.Moved+o.Present != 1 {
			t.Errorf("%s: %+v", kind, o)
		}
	}
	release(rs)
	for i, want := range []bool{true, true, true, false} {
		if b.h.Has(keys[i]) != want {
			t.Errorf("%s is here: %t", keys[i], !want)
		}
	}
	if n := a.has(keys); n != 3 || b.stats().NotRetained != 1 {
		t.Errorf("the source has %d, %d have left", n, b.stats().NotRetained)
	}
}

// What a request has moved stays, whatever else its hint asks for: it is the last copy.
func TestNoRetainOfWhatIsMoved(t *testing.T) {
	a := openHinted(t, nil)
	b := openHinted(t, func(c *kvcr.Config) { c.Hints.Advice.RequestMoves = true })
	keys := keysOf(0, 4)
	a.deposit(t, keys)
	b.advise("r", hints.Transfer{Source: a.endpoint, Hashes: hashesOf(0, 4), NoRetain: true, Move: true})
	rs := wait(t, b.h.FetchFrom(keys, kvcr.FetchOptions{RequestID: "r"}))
	eventually(t, "the moves are over", func() bool {
		st, err := b.Stats()
		return err == nil && a.has(keys) == 0 && st.Holds == 0
	})
	release(rs)
	if n := b.has(keys); n != 4 {
		t.Errorf("%d of 4 moved blocks are left in the world", n)
	}
}
