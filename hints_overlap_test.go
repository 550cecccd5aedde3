package kvcr_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints"
)

// A block that a prefetch brings and a request wants, or the other way round, crosses
// the network once.
func TestPrefetchOverlapsFetch(t *testing.T) {
	a := openHinted(t, nil)
	keys := keysOf(0, 20)
	a.deposit(t, keys)
	from := kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 20 * time.Second}
	for _, tt := range []struct {
		name  string
		first bool // the prefetch
	}{
		{"prefetch, then fetch", true},
		{"fetch, then prefetch", false},
	} {
		for _, deliver := range []bool{false, true} {
			if deliver && !tt.first {
				continue // what is delivered does not come to lie here
			}
			t.Run(tt.name+map[bool]string{true: ", delivered"}[deliver], func(t *testing.T) {
				b := openHinted(t, nil)
				r := openRelay(t, a.endpoint)
				r.hold(true)
				before := a.served()
				dst := make([]byte, len(keys)*64<<10)
				get := func(source string) *kvcr.Op {
					opt := from
					opt.Sources = []string{source}
					if !deliver {
						return b.h.FetchFrom(keys, opt)
					}
					var targets []kvcr.Target
					for i, k := range keys {
						targets = append(targets, kvcr.Target{Key: k, Dst: dst[i*64<<10 : (i+1)*64<<10]})
					}
					return b.h.DeliverFrom(targets, opt)
				}
				flying := func() bool {
					for _, q := range b.h.Query(keys) {
						if q.Status != kvcr.StatusFetching {
							return false
						}
					}
					return true
				}
				var id string
				var op *kvcr.Op
				if tt.first {
					id = b.order(hints.TypePrefetch, r.endpoint, hashesOf(0, 20)...)
					eventually(t, "it is under way", flying)
					op = get(a.endpoint)
					if n := b.stats().Joined; n != 20 {
						t.Errorf("%d joined", n)
					}
				} else {
					op = get(r.endpoint)
					eventually(t, "it is under way", flying)
					id = b.order(hints.TypePrefetch, r.endpoint, hashesOf(0, 20)...)
					eventually(t, "its hashes are resolved", func() bool { s, _ := b.last(id, 0, 19); return s == hints.StageResolved })
				}
				// What a request has joined must not make work yield to it.
				if n, want := b.stats().RequestBlocks, map[bool]int{true: 0, false: 20}[tt.first]; n != want {
					t.Errorf("requests fetch %d blocks, want %d", n, want)
				}
				r.hold(false)
				rs := wait(t, op)
				for i := range rs {
					switch {
					case !rs[i].OK():
						t.Fatalf("%s: %v", keys[i], rs[i].Reason)
					case !deliver && !bytes.Equal(rs[i].View.Bytes(), payload(string(keys[i]), 64<<10)),
						deliver && !bytes.Equal(dst[i*64<<10:(i+1)*64<<10], payload(string(keys[i]), 64<<10)):
						t.Fatalf("%s: wrong bytes", keys[i])
					}
				}
				release(rs)
				end := b.end(id, 0)
				if want := map[bool]int{true: end.Copied, false: end.Present}[tt.first]; want != 20 {
					t.Errorf("the prefetch: %+v", end)
				}
				if n := a.served() - before; n != 20 {
					t.Errorf("%d blocks were served", n)
				}
				if n := b.stats().RequestBlocks; n != 0 {
					t.Errorf("requests fetch %d blocks", n)
				}
			})
		}
	}
}

// What a caller passes to a fetch is its own again when the call returns, also where the
// fetch waits for somebody else's.
func TestJoinedFetchOwnsItsOptions(t *testing.T) {
	a, b := openHinted(t, nil), openHinted(t, nil)
	keys := keysOf(0, 4)
	a.deposit(t, keys)
	r := openRelay(t, a.endpoint)
	r.hold(true)
	b.order(hints.TypePrefetch, r.endpoint, hashesOf(0, 4)...)
	eventually(t, "it is under way", func() bool { return b.h.Query(keys)[3].Status == kvcr.StatusFetching })
	opt := kvcr.FetchOptions{Sources: []string{a.endpoint}, Generations: make([]uint32, 4), Timeout: 600 * time.Millisecond}
	op := b.h.FetchFrom(keys, opt)
	opt.Sources[0] = nobody
	for i := range opt.Generations {
		opt.Generations[i] = 12345
	}
	rs := wait(t, op)
	for i := range rs {
		if !rs[i].OK() {
			t.Errorf("%s: %v", keys[i], rs[i].Reason)
		}
	}
	release(rs)
	r.hold(false)
}

// A request that has joined a prefetch which then fails fetches by itself, and one that
// is aborted meanwhile does not wait.
func TestJoinedPrefetchFails(t *testing.T) {
	a, b := openHinted(t, nil), openHinted(t, nil)
	keys := keysOf(0, 8)
	a.deposit(t, keys)
	r := openRelay(t, a.endpoint)
	r.hold(true)
	id := b.order(hints.TypePrefetch, r.endpoint, hashesOf(0, 8)...)
	eventually(t, "it is under way", func() bool { return b.h.Query(keys)[7].Status == kvcr.StatusFetching })
	opt := kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: time.Second}
	aborted := b.h.FetchFrom(keys, kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: time.Minute})
	aborted.Abort()
	for _, res := range wait(t, aborted) {
		if res.Reason != kvcr.ReasonAborted {
			t.Errorf("aborted: %v", res.Reason)
		}
	}
	op := b.h.FetchFrom(keys, opt) // which waits for half of its time
	rs := wait(t, op)
	for i := range rs {
		if !rs[i].OK() {
			t.Errorf("%s: %v", keys[i], rs[i].Reason)
		}
	}
	release(rs)
	r.cut()
	r.ln.Close()
	b.end(id, 0)
}

// A move and a copy of the same blocks from the same source, ordered at once, both get
// what they ask for, and neither loses a block.
func TestMoveOverlapsCopy(t *testing.T) {
	for range 5 {
		a, b := openHinted(t, nil), openHinted(t, nil)
		keys := keysOf(0, 200)
		a.deposit(t, keys)
		id, _ := b.submit("", action(hints.TypePrefetch, a.endpoint, hashesOf(0, 150)...),
			action(hints.TypeMove, a.endpoint, hashesOf(50, 200)...), action(hints.TypePrefetch, a.endpoint, hashesOf(100, 200)...))
		op := b.h.FetchFrom(keys, kvcr.FetchOptions{Sources: []string{a.endpoint}})
		other := openHinted(t, nil)
		taken := other.order(hints.TypeMove, a.endpoint, hashesOf(0, 200)...)
		rs := wait(t, op)
		release(rs)
		b.end(id, 0)
		moved := b.end(id, 1)
		b.end(id, 2)
		theirs := other.end(taken, 0)
		if moved.Moved+theirs.Moved > 200 {
			t.Errorf("moved twice: %+v %+v", moved, theirs)
		}
		for i, k := range keys {
			if !a.h.Has(k) && !b.h.Has(k) && !other.h.Has(k) {
				s, why := b.last(id, 1, uint64(i))
				t.Errorf("%s is lost: %v %q", k, s, why)
			}
		}
	}
}

// The carrier of independent work may end while it is under way.
func TestCarrierDiscarded(t *testing.T) {
	a, b := openHinted(t, nil), openHinted(t, nil)
	a.deposit(t, keysOf(0, 10))
	r := openRelay(t, a.endpoint)
	r.hold(true)
	id, _ := b.submit("carrier", action(hints.TypeFetch, a.endpoint, 1, 2), action(hints.TypeMove, r.endpoint, hashesOf(0, 10)...))
	eventually(t, "it is under way", func() bool { return b.stats().Bytes == 10*64<<10 })
	b.DiscardHint("carrier")
	if n := b.stats().Advice.Requests; n != 0 {
		t.Errorf("advice for %d requests is left", n)
	}
	r.hold(false)
	if o := b.end(id, 1); o.Moved != 10 || o.RequestID != "carrier" {
		t.Errorf("%+v", o)
	}
}

// Blocks in flight stay within the budget.
func TestBudgetOfWork(t *testing.T) {
	sources := []*hintedEngine{openHinted(t, nil), openHinted(t, nil), openHinted(t, nil)}
	b := openHinted(t, func(c *kvcr.Config) {
		c.Hints.MaxInFlight = 8 * 64 << 10
		c.Hints.SourcesAtOnce = 3
	})
	var relays []*relay
	for i, s := range sources {
		s.deposit(t, keysOf(i*40, (i+1)*40))
		relays = append(relays, openRelay(t, s.endpoint))
		relays[i].hold(true)
	}
	var ids []string
	for i, r := range relays {
		ids = append(ids, b.order(hints.TypePrefetch, r.endpoint, hashesOf(uint64(i*40), uint64(i+1)*40)...))
	}
	eventually(t, "work is under way", func() bool { return b.stats().Bytes == 6*64<<10 }) // a quarter for each
	ctx, stop := context.WithCancel(t.Context())
	watched := make(chan int64)
	go func() {
		most := int64(0)
		for ctx.Err() == nil {
			if st, err := b.Stats(); err == nil {
				most = max(most, st.Hints.Bytes)
			}
		}
		watched <- most
	}()
	for _, r := range relays {
		r.hold(false)
	}
	for _, id := range ids {
		if o := b.end(id, 0); o.Copied != 40 {
			t.Errorf("%+v", o)
		}
	}
	stop()
	if most := <-watched; most > 8*64<<10 {
		t.Errorf("%d bytes were in flight", most)
	}
	eventually(t, "all is given back", func() bool { return b.stats().Bytes == 0 })
}

// Work does not begin while requests fetch many blocks.
func TestWorkYields(t *testing.T) {
	a := openHinted(t, nil)
	b := openHinted(t, func(c *kvcr.Config) { c.Hints.YieldAbove, c.Hints.YieldFor = 10, time.Minute })
	a.deposit(t, keysOf(0, 30))
	r := openRelay(t, a.endpoint)
	r.hold(true)
	op := b.h.FetchFrom(keysOf(0, 20), kvcr.FetchOptions{Sources: []string{r.endpoint}, Timeout: 20 * time.Second})
	id := b.order(hints.TypePrefetch, r.endpoint, hashesOf(20, 30)...)
	eventually(t, "it waits", func() bool { return b.stats().Bytes == 10*64<<10 })
	if n := b.has(keysOf(20, 30)); n != 0 {
		t.Errorf("%d blocks have come", n)
	}
	r.hold(false)
	rs := wait(t, op)
	for i := range rs {
		if !rs[i].OK() {
			t.Errorf("block %d: %v", i, rs[i].Reason)
		}
	}
	release(rs)
	if o := b.end(id, 0); o.Copied != 10 {
		t.Errorf("%+v", o)
	}
}
