package kvcr_test

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/peer"
)

// whole checks that every accepted action of a message has one end, as its last
// outcome, and one final stage for each hash.
func (e *hintedEngine) whole(id string, index int, hashes []uint64) {
	e.t.Helper()
	all := e.outcomes(id, index)
	final := map[uint64]int{}
	for i, o := range all {
		if (o.Stage == hints.StageEnd) != (i == len(all)-1) {
			e.t.Errorf("outcome %d of %d is %v", i, len(all), o.Stage)
		}
		for _, h := range o.Hashes {
			switch o.Stage {
			case hints.StageAccepted, hints.StageResolved:
			case hints.StageCopied:
				if o.Type != hints.TypeMove {
					final[h]++
				}
			default:
				final[h]++
			}
		}
	}
	for _, h := range hashes {
		if final[h] != 1 {
			s, why := e.last(id, index, h)
			e.t.Errorf("hash %d has %d ends; the last is %v %q", h, final[h], s, why)
		}
	}
}

// Hints that name this very process are refused before anything is looked up, by
// whatever address they name it.
func TestSelfSource(t *testing.T) {
	e := openHinted(t, nil)
	e.deposit(t, keysOf(0, 3))
	e.names.asked = func(hash uint64) { t.Errorf("hash %d is looked up", hash) }
	alias := openRelay(t, e.endpoint)
	for _, source := range []string{e.endpoint, alias.endpoint} {
		for _, kind := range []string{hints.TypePrefetch, hints.TypeMove} {
			id := e.order(kind, source, 0, 1, 9)
			if o := e.end(id, 0); o.Failed != 3 || o.Reason != "self_source" {
				t.Errorf("%s: %+v", kind, o)
			}
			e.is(id, 0, hints.StageFailed, "self_source")
		}
		e.advise("r", hints.Transfer{Source: source, Hashes: []uint64{0, 5}})
		if rs := e.reasons(keysOf(5, 6), kvcr.FetchOptions{RequestID: "r"}); rs[0] == kvcr.ReasonOK {
			t.Error("it has fetched from itself")
		}
		e.DiscardHint("r")
	}
	if e.has(keysOf(0, 3)) != 3 {
		t.Error("its own blocks have gone")
	}
}

// A block that is replaced at the source between resolution and transfer is neither
// copied nor removed.
func TestRebound(t *testing.T) {
	a := openHinted(t, nil)
	b := openHinted(t, func(c *kvcr.Config) { c.Hints.YieldAbove, c.Hints.YieldFor = 1, time.Minute })
	a.deposit(t, keysOf(0, 10))
	r := openRelay(t, a.endpoint)
	r.hold(true)
	op := b.h.FetchFrom(keysOf(0, 4), kvcr.FetchOptions{Sources: []string{r.endpoint}, Timeout: 20 * time.Second})
	move, copied := b.order(hints.TypeMove, r.endpoint, 4, 5), b.order(hints.TypePrefetch, r.endpoint, 6, 7)
	eventually(t, "the first is resolved and waits", func() bool { return b.stats().Bytes > 0 })
	k := keysOf(4, 5)[0]
	a.h.Delete(k)
	if err := a.h.Deposit(k, payload("another", 64<<10)); err != nil {
		t.Fatal(err)
	}
	r.hold(false)
	release(wait(t, op))
	b.end(move, 0)
	b.end(copied, 0)
	b.is(move, 4, hints.StageFailed, "generation")
	b.is(move, 5, hints.StageMoved, "")
	b.is(copied, 6, hints.StageCopied, "")
	if v, ok := a.h.Get(k); !ok || !bytes.Equal(v.Bytes(), payload("another", 64<<10)) {
		t.Error("the source has lost its new block")
	} else {
		v.Release()
	}
	if b.h.Has(k) {
		t.Error("the old block is here")
	}
}

// Readers at the source keep their bytes during a move; a no_evict claim keeps the
// block.
func TestMoveUnderReaders(t *testing.T) {
	a, b := openHinted(t, nil), openHinted(t, nil)
	keys := keysOf(0, 10)
	a.deposit(t, keys[1:])
	held := a.h.DepositBatch([]kvcr.Item{{Key: keys[0], Value: payload("block-0", 64<<10)}}, kvcr.DepositOptions{NoEvict: true})
	read, _ := a.h.Get(keys[1])
	id := b.order(hints.TypeMove, a.endpoint, hashesOf(0, 10)...)
	if o := b.end(id, 0); o.Moved != 9 || o.Kept != 1 || o.Bytes != 10*64<<10 {
		t.Errorf("%+v", o)
	}
	b.is(id, 0, hints.StageKept, "no_evict")
	if !a.h.Has(keys[0]) || a.h.Has(keys[1]) {
		t.Error("what is claimed has left, or what is read has not")
	}
	if !bytes.Equal(read.Bytes(), payload("block-1", 64<<10)) {
		t.Error("a reader has lost its bytes")
	}
	read.Release()
	held[0].View.Release()
	if n := b.has(keys); n != 10 {
		t.Errorf("%d blocks have come", n)
	}
}

// A block that does not fit here is refused before it is fetched.
func TestMoveOfWhatDoesNotFit(t *testing.T) {
	two := func(c *kvcr.Config) {
		c.Namespaces = []kvcr.Namespace{{Name: "kv"}, {Name: "theirs"}}
	}
	a := openHinted(t, two)
	b := openHinted(t, func(c *kvcr.Config) { c.Namespaces = []kvcr.Namespace{{Name: "kv", MaxValue: 64 << 10}} })
	for i, n := range []int{64 << 10, 128 << 10} {
		if err := a.h.Deposit(keysOf(i, i+1)[0], payload("x", n)); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.h.Deposit(keysOf(2, 3)[0], payload("x", 64<<10)); err != nil {
		t.Fatal(err)
	}
	if err := a.h.Deposit(keysOf(2, 3)[0], payload("x", 32<<10)); err != nil {
		t.Fatal(err)
	}
	id := b.order(hints.TypeMove, a.endpoint, 0, 1, 2)
	b.end(id, 0)
	b.is(id, 0, hints.StageMoved, "")
	b.is(id, 1, hints.StageFailed, "too_large")
	b.is(id, 2, hints.StageFailed, "bad_layout") // another block has the key here
	id = b.order(hints.TypePrefetch, a.endpoint, 2)
	b.end(id, 0)
	b.is(id, 2, hints.StageFailed, "bad_layout")
	if a.served() != 1 || a.has(keysOf(1, 3)) != 2 {
		t.Errorf("%d blocks were served", a.served())
	}
}

// A source that dies in the middle costs the blocks that have not come. Every action
// ends, and nothing that is left is lost.
func TestSourceDies(t *testing.T) {
	for _, how := range []string{"cut", "closed"} {
		t.Run(how, func(t *testing.T) {
			a := openHinted(t, nil)
			b := openHinted(t, func(c *kvcr.Config) {
				c.Hints.MaxInFlight = 32 * 64 << 10 // some chunks
				c.Hints.MoveTimeout, c.Hints.TransferTimeout, c.Hints.ResolveTimeout = 300*time.Millisecond, time.Second, 300*time.Millisecond
				c.Peers.Timing = peer.Timing{Allowance: 200 * time.Millisecond}
			})
			a.deposit(t, keysOf(0, 200))
			r := openRelay(t, a.endpoint)
			id, _ := b.submit("", action(hints.TypeMove, r.endpoint, hashesOf(0, 100)...), action(hints.TypePrefetch, r.endpoint, hashesOf(100, 200)...))
			eventually(t, "some have come", func() bool { return b.has(keysOf(0, 100)) > 20 })
			if how == "cut" {
				r.ln.Close()
				r.cut()
			} else if err := a.Close(); err != nil && !errors.Is(err, kvcr.ErrBusy) {
				t.Error(err)
			}
			behind := b.order(hints.TypePrefetch, r.endpoint, 7, 300)
			for i := range 2 {
				b.end(id, i)
				b.whole(id, i, hashesOf(uint64(i*100), uint64(i+1)*100))
			}
			b.end(behind, 0)
			b.whole(behind, 0, []uint64{7, 300})
			if how == "cut" {
				for _, k := range keysOf(0, 200) {
					if !a.h.Has(k) && !b.h.Has(k) {
						t.Errorf("%s is lost", k)
					}
				}
			}
			eventually(t, "all is over", func() bool { s := b.stats(); return s.Actions == 0 && s.Blocks == 0 && s.Bytes == 0 })
		})
	}
}

// A source that says nothing costs its own work only.
func TestSilentSource(t *testing.T) {
	a := openHinted(t, nil)
	a.deposit(t, keysOf(0, 10))
	b := openHinted(t, func(c *kvcr.Config) { c.Hints.ResolveTimeout = 200 * time.Millisecond })
	id, _ := b.submit("", action(hints.TypeMove, nobody, 1, 2, 3), action(hints.TypePrefetch, a.endpoint, hashesOf(0, 10)...))
	if o := b.end(id, 1); o.Copied != 10 {
		t.Errorf("%+v", o)
	}
	if o := b.end(id, 0); o.Failed != 3 || o.Reason != "timeout" {
		t.Errorf("%+v", o)
	}
}

// Close ends every action at once, and the stream of outcomes with them.
func TestCloseDuringWork(t *testing.T) {
	for _, closed := range []string{"resolving", "transferring", "moving"} {
		t.Run(closed, func(t *testing.T) {
			a := openHinted(t, nil)
			a.deposit(t, keysOf(0, 100))
			b := openHinted(t, func(c *kvcr.Config) { c.Hints.MaxInFlight = 64 * 64 << 10 })
			reader, err := b.SubscribeOutcomes()
			if err != nil {
				t.Fatal(err)
			}
			defer reader.Close()
			r := openRelay(t, a.endpoint)
			r.hold(true)
			var resolving atomic.Bool
			goOn := make(chan struct{})
			if closed == "resolving" {
				a.names.asked = func(uint64) {
					resolving.Store(true)
					<-goOn
				}
			}
			id, _ := b.submit("", action(hints.TypeMove, r.endpoint, hashesOf(0, 60)...), action(hints.TypePrefetch, r.endpoint, hashesOf(50, 100)...))
			switch closed {
			case "resolving":
				eventually(t, "it resolves", resolving.Load)
			case "moving":
				r.hold(false)
				eventually(t, "some have come", func() bool { return b.has(keysOf(0, 60)) > 0 })
			default:
				eventually(t, "it transfers", func() bool { return b.stats().Bytes > 0 })
			}
			begun := time.Now()
			if err := b.Close(); err != nil && !errors.Is(err, kvcr.ErrBusy) {
				t.Error(err)
			}
			if d := time.Since(begun); d > 6*time.Second {
				t.Errorf("Close took %v", d)
			}
			close(goOn)
			ends := 0
			for {
				o, err := reader.Next(t.Context())
				if errors.Is(err, hints.ErrClosed) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if o.Stage == hints.StageEnd {
					ends++
				}
			}
			if ends != 2 {
				t.Errorf("%d actions have ended", ends)
			}
			eventually(t, "the outcomes are read", func() bool { return len(b.outcomes(id, 1)) > 0 && b.end(id, 0).Stage == hints.StageEnd })
			b.end(id, 1)
			b.whole(id, 0, hashesOf(0, 60))
			b.whole(id, 1, hashesOf(50, 100))
			if _, err := b.SubmitHint("", []byte(`{"actions":[]}`), kvcr.HintAny); !errors.Is(err, kvcr.ErrClosed) {
				t.Errorf("after Close: %v", err)
			}
			b.DiscardHint("r")
			if closed == "moving" {
				eventually(t, "the source has settled", func() bool { return a.Claims() == 0 })
			}
		})
	}
}

// More work than may be queued is refused, and what was accepted is done.
func TestTooMuchWork(t *testing.T) {
	a := openHinted(t, nil)
	a.deposit(t, keysOf(0, 10))
	b := openHinted(t, func(c *kvcr.Config) { c.Hints.MaxActions, c.Hints.MaxBlocks = 3, 20 })
	r := openRelay(t, a.endpoint)
	r.hold(true)
	id, rs := b.submit("", action(hints.TypePrefetch, r.endpoint, hashesOf(0, 10)...), action(hints.TypePrefetch, r.endpoint, hashesOf(0, 11)...),
		action(hints.TypePrefetch, r.endpoint, 1), action(hints.TypeMove, r.endpoint, 2), action(hints.TypeMove, r.endpoint, 3))
	for i, want := range []hints.Reason{hints.NoReason, hints.LimitExceeded, hints.NoReason, hints.NoReason, hints.LimitExceeded} {
		if rs[i].Reason != want {
			t.Errorf("action %d: %v", i, rs[i].Reason)
		}
	}
	if s := b.stats(); s.Actions != 3 || s.Blocks != 12 {
		t.Errorf("%d actions, %d blocks", s.Actions, s.Blocks)
	}
	r.hold(false)
	for _, i := range []int{0, 2, 3} {
		if o := b.end(id, i); o.Failed != 0 {
			t.Errorf("%+v", o)
		}
	}
	eventually(t, "there is room again", func() bool {
		_, rs := b.submit("", action(hints.TypePrefetch, r.endpoint, 1))
		return rs[0].Status == hints.Accepted
	})
}
