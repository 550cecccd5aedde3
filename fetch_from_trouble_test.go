package kvcr_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// What a user may get wrong costs the call's keys, with a reason.
func TestFetchFromMisuse(t *testing.T) {
	a, b := openPeer(t, nil), openPeer(t, nil)
	a.deposit(t, keysOf(0, 1))
	k := keysOf(0, 1)
	many := make([]string, 100_000)
	for i := range many {
		many[i] = "nonsense"
	}
	for _, tt := range []struct {
		name    string
		sources []string
		keys    [][]byte
		want    kvcr.Reason
	}{
		{"no sources", nil, k, kvcr.ReasonMiss},
		{"empty endpoint", []string{""}, k, kvcr.ReasonSource},
		{"no scheme", []string{"127.0.0.1:1"}, k, kvcr.ReasonSource},
		{"no port", []string{"tcp://127.0.0.1"}, k, kvcr.ReasonSource},
		{"another scheme", []string{"http://127.0.0.1:1"}, k, kvcr.ReasonSource},
		{"itself", []string{b.endpoint}, k, kvcr.ReasonSource},
		{"no keys", []string{a.endpoint}, nil, kvcr.ReasonOK},
		{"an empty key", []string{a.endpoint}, [][]byte{{}}, kvcr.ReasonKey},
		{"too long a key", []string{a.endpoint}, [][]byte{make([]byte, 1025)}, kvcr.ReasonKey},
		{"the longest key", []string{a.endpoint}, [][]byte{make([]byte, 1024)}, kvcr.ReasonMiss},
		{"very many sources", many, k, kvcr.ReasonSource},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, move := range []bool{false, true} {
				op := b.h.FetchFrom(tt.keys, kvcr.FetchOptions{Sources: tt.sources, Timeout: 2 * time.Second, Move: move})
				for _, r := range wait(t, op) {
					if r.Reason != tt.want {
						t.Errorf("move=%t: %v, want %v", move, r.Reason, tt.want)
					}
				}
				op.Abort()
			}
			var targets []kvcr.Target
			for _, k := range tt.keys {
				targets = append(targets, kvcr.Target{Key: k})
			}
			for _, r := range wait(t, b.h.DeliverFrom(targets, kvcr.FetchOptions{Sources: tt.sources, Timeout: 2 * time.Second, Move: true})) {
				if r.Reason != tt.want {
					t.Errorf("deliver: %v, want %v", r.Reason, tt.want)
				}
			}
		})
	}
	// Behind sources of no use there may be one.
	rs := wait(t, b.h.FetchFrom(k, kvcr.FetchOptions{Sources: []string{"", "tcp://", b.endpoint, a.endpoint}, Timeout: 5 * time.Second}))
	if !rs[0].OK() {
		t.Error(rs[0].Reason)
	}
	release(rs)
	// Without peers nobody is asked.
	c := openPeer(t, func(c *kvcr.Config) { c.Peers.Listen = nil })
	c.Close()
	if rs := wait(t, c.h.FetchFrom(k, kvcr.FetchOptions{Sources: []string{a.endpoint}})); rs[0].Reason != kvcr.ReasonClosed {
		t.Error(rs[0].Reason)
	}
}

// A target is the caller's once its key is answered.
func TestDeliverFromLetsGo(t *testing.T) {
	routes(t, func(t *testing.T, open func(*testing.T, func(*kvcr.Config)) *peerEngine, _ wire.Route) {
		a, b := open(t, nil), open(t, nil)
		keys := keysOf(0, 60)
		a.deposit(t, keys)
		for round := range 30 {
			targets := make([]kvcr.Target, len(keys))
			for i, k := range keys {
				targets[i] = kvcr.Target{Key: k, Dst: make([]byte, 64<<10)}
			}
			opt := kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 5 * time.Second}
			if round%2 == 0 {
				opt.Timeout = time.Duration(round) * 200 * time.Microsecond
			}
			op := b.h.DeliverFrom(targets, opt)
			if round%2 == 1 {
				time.Sleep(time.Duration(round) * 100 * time.Microsecond)
				op.Abort()
			}
			for i, r := range wait(t, op) {
				switch {
				case r.OK() && !bytes.Equal(targets[i].Dst, payload(string(keys[i]), 64<<10)):
					t.Fatalf("%s: wrong bytes", keys[i])
				case !r.OK() && r.Reason != map[bool]kvcr.Reason{true: kvcr.ReasonAborted, false: kvcr.ReasonTimeout}[round%2 == 1]:
					t.Fatalf("%s: %v", keys[i], r.Reason)
				}
				for j := range targets[i].Dst { // the race detector looks at this
					targets[i].Dst[j] = 0xEE
				}
			}
			time.Sleep(time.Millisecond)
			for i := range targets {
				if bytes.Count(targets[i].Dst, []byte{0xEE}) != 64<<10 {
					t.Fatalf("%s: written after its answer", keys[i])
				}
			}
		}
	})
}

// Keys that change on both sides while they are fetched bring one of their values.
func TestFetchFromWhileKeysChange(t *testing.T) {
	a, b := openPeer(t, values), openPeer(t, values)
	keys := keysOf(0, 8)
	stop := make(chan struct{})
	var workers sync.WaitGroup
	for side, p := range []*peerEngine{a, b} {
		h, err := p.Handle()
		if err != nil {
			t.Fatal(err)
		}
		workers.Add(1)
		go func() {
			defer workers.Done()
			defer h.Close()
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				k := keys[n%len(keys)]
				if n%5 == side {
					h.Delete(k)
				} else {
					h.Set(k, payload(string(k), 16*(1+n%200)))
				}
			}
		}()
	}
	for n := range 300 {
		opt := kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 5 * time.Second, Move: n%2 == 0}
		for i, r := range wait(t, b.h.FetchFrom(keys, opt)) {
			if r.OK() {
				if v := r.View.Bytes(); len(v) == 0 || !bytes.Equal(v, payload(string(keys[i]), len(v))) {
					t.Fatalf("%s: wrong bytes", keys[i])
				}
				r.View.Release()
			}
		}
	}
	close(stop)
	workers.Wait()
	eventually(t, "no mark and no hold is left", func() bool { return a.Claims() == 0 && b.Claims() == 0 })
}

// Close ends what is under way, from many goroutines, with answers for all.
func TestCloseDuringFetchFrom(t *testing.T) {
	for round := range 4 {
		a, b := openPeer(t, nil), openPeer(t, nil)
		keys := keysOf(0, 200)
		a.deposit(t, keys)
		closing := b
		if round%2 == 1 {
			closing = a
		}
		var started, workers sync.WaitGroup
		var over atomic.Bool
		for w := range 6 {
			h, err := b.Handle()
			if err != nil {
				t.Fatal(err)
			}
			started.Add(1)
			workers.Add(1)
			go func() {
				defer workers.Done()
				defer h.Close()
				once := sync.OnceFunc(started.Done)
				for n := 0; !over.Load(); n++ {
					lo := (n*13 + w*31) % 150
					opt := kvcr.FetchOptions{Sources: []string{"tcp://127.0.0.1:1", a.endpoint}, Timeout: 2 * time.Second, Move: n%3 == 0}
					if n > 0 {
						opt.Sources = opt.Sources[1:]
					}
					op := h.FetchFrom(keys[lo:lo+50], opt)
					once()
					if n%4 == 3 {
						op.Abort()
					}
					ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
					rs, err := op.Wait(ctx)
					cancel()
					if err != nil {
						t.Error("an operation has no end")
						return
					}
					for i := range rs {
						if r := &rs[i]; !r.OK() && closing == b && over.Load() && r.Reason != kvcr.ReasonClosed {
							t.Errorf("after Close: %v", r.Reason)
						}
						rs[i].View.Release()
					}
				}
			}()
		}
		started.Wait()
		time.Sleep(time.Duration(1+round*5) * time.Millisecond)
		begun := time.Now()
		if err := closing.Close(); err != nil && !errors.Is(err, kvcr.ErrBusy) {
			t.Error(err)
		}
		if d := time.Since(begun); d > 8*time.Second {
			t.Errorf("Close took %v", d)
		}
		over.Store(true)
		workers.Wait()
	}
}

// Callbacks may call the engine, the node and the operation.
func TestFetchFromCallbacks(t *testing.T) {
	a := openPeer(t, nil)
	var b *peerEngine
	var op atomic.Pointer[kvcr.Op]
	var calls atomic.Int64
	b = openPeer(t, func(c *kvcr.Config) {
		c.Peers.OnOutcome = func(o peer.Outcome) {
			calls.Add(1)
			if p := op.Load(); p != nil {
				p.Abort()
				p.Results()
			}
			b.Peers().Stats()
			b.Peers().Peers()
			b.Claims()
			if v, ok := b.Get(o.Key); ok {
				v.Release()
			}
		}
	})
	keys := keysOf(0, 200)
	a.deposit(t, keys)
	o := b.h.FetchFrom(keys, kvcr.FetchOptions{Sources: []string{a.endpoint}, Move: true, Timeout: 5 * time.Second})
	op.Store(o)
	for i, r := range wait(t, o) {
		if !r.OK() && r.Reason != kvcr.ReasonAborted {
			t.Errorf("%s: %v", keys[i], r.Reason)
		}
		r.View.Release()
	}
	if calls.Load() == 0 {
		t.Error("no outcome")
	}
	for _, k := range keys {
		if !a.h.Has(k) && !b.h.Has(k) {
			t.Errorf("%s is lost", k)
		}
	}
}

// A namespace that the source does not have is a miss, and one of another layout is
// refused; neither costs the others anything.
func TestFetchFromOtherNamespaces(t *testing.T) {
	with := func(list ...kvcr.Namespace) func(*kvcr.Config) {
		return func(c *kvcr.Config) { c.Namespaces = list }
	}
	pool := func(n int) []kvcr.Pool { return []kvcr.Pool{{Name: "kv", SlotBytes: n}} }
	a := openPeer(t, with(kvcr.Namespace{Name: "both", Pools: pool(64 << 10)}, kvcr.Namespace{Name: "other", Pools: pool(64 << 10)}, kvcr.Namespace{Name: "kind", Pools: pool(64 << 10)}))
	b := openPeer(t, with(kvcr.Namespace{Name: "mine"}, kvcr.Namespace{Name: "both", Pools: pool(64 << 10)}, kvcr.Namespace{Name: "other", Pools: pool(128 << 10)},
		kvcr.Namespace{Name: "kind", Kind: kvcr.Chained, Pools: pool(64 << 10)}))
	for _, ns := range a.Namespaces() {
		h, err := a.HandleIn(ns)
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		if err := h.Deposit([]byte("k"), payload(ns, 64<<10)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		ns   string
		want kvcr.Reason
	}{{"both", kvcr.ReasonOK}, {"mine", kvcr.ReasonMiss}, {"other", kvcr.ReasonLayout}, {"kind", kvcr.ReasonLayout}, {"both", kvcr.ReasonOK}} {
		h, err := b.HandleIn(tt.ns)
		if err != nil {
			t.Fatal(err)
		}
		for _, move := range []bool{false, true} {
			rs := wait(t, h.FetchFrom([][]byte{[]byte("k")}, kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 5 * time.Second, Move: move}))
			if r := &rs[0]; r.Reason != tt.want || r.OK() && !bytes.Equal(r.View.Bytes(), payload(tt.ns, 64<<10)) {
				t.Errorf("%s: %v, want %v", tt.ns, r.Reason, tt.want)
			}
			release(rs)
		}
		h.Close()
	}
}

// remote is a remote source that has every key with a value of its own.
type remote struct{ asked int }

func (r *remote) Query(string, [][]byte) []bool { return nil }

func (r *remote) Fetch(_ context.Context, _ string, keys [][]byte, sink kvcr.Sink) error {
	for i, k := range keys {
		r.asked++
		if b, err := sink.Reserve(i, 64<<10); err == nil {
			copy(b, payload(string(k), 64<<10))
			sink.Commit(i)
		}
	}
	return nil
}

// TestFetchFromEndsWithRemote: what no named source has, Config.Remote is asked for.
func TestFetchFromEndsWithRemote(t *testing.T) {
	r := &remote{}
	a := openPeer(t, nil)
	b := openPeer(t, func(c *kvcr.Config) { c.Remote = r })
	keys := keysOf(0, 300)
	a.deposit(t, keys[:150])
	for _, sources := range [][]string{{a.endpoint, "nonsense"}, {"nonsense", a.endpoint}, nil} {
		for _, move := range []bool{false, true} {
			r.asked = 0
			rs := wait(t, b.h.FetchFrom(keys, kvcr.FetchOptions{Sources: sources, Timeout: 5 * time.Second, Move: move}))
			for i, res := range rs {
				if !res.OK() || !bytes.Equal(res.View.Bytes(), payload(string(keys[i]), 64<<10)) {
					t.Fatalf("%s: %v", keys[i], res.Reason)
				}
			}
			release(rs)
			if want := 150; !move && sources != nil && r.asked != want {
				t.Errorf("sources %q: the remote was asked for %d keys, want %d", sources, r.asked, want)
			}
			if !move {
				b.h.DeleteBatch(keys)
				var targets []kvcr.Target
				for _, k := range keys {
					targets = append(targets, kvcr.Target{Key: k, Dst: make([]byte, 64<<10)})
				}
				for i, res := range wait(t, b.h.DeliverFrom(targets, kvcr.FetchOptions{Sources: sources, Timeout: 5 * time.Second})) {
					if !res.OK() || !bytes.Equal(targets[i].Dst, payload(string(keys[i]), 64<<10)) {
						t.Fatalf("deliver %s: %v", keys[i], res.Reason)
					}
				}
			} else {
				b.h.DeleteBatch(keys)
				a.deposit(t, keys[:150])
			}
		}
	}
}
