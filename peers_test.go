package kvcr_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/arena"
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/ucx"
	"github.com/kvcr-go/kvcr/wire"
)

// peerEngine is an engine that others can fetch from.
type peerEngine struct {
	*kvcr.Engine
	h        *kvcr.Handle
	endpoint string

	mu       sync.Mutex
	outcomes map[string]wire.Status
}

func openPeer(t *testing.T, change func(*kvcr.Config)) *peerEngine {
	t.Helper()
	p := &peerEngine{outcomes: map[string]wire.Status{}}
	cfg := kvcr.Config{
		Capacity:   64 << 20,
		Namespaces: []kvcr.Namespace{{Name: "kv", Pools: []kvcr.Pool{{Name: "kv", SlotBytes: 64 << 10}}}},
		Peers: &kvcr.Peers{
			Listen: []string{"tcp://127.0.0.1:0"},
			OnOutcome: func(o peer.Outcome) {
				p.mu.Lock()
				defer p.mu.Unlock()
				p.outcomes[string(o.Key)] = o.Status
			},
		},
	}
	if change != nil {
		change(&cfg)
	}
	e, err := kvcr.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.Engine = e
	if p.h, err = e.Handle(); err != nil {
		t.Fatal(err)
	}
	if eps := e.Peers().Endpoints(); len(eps) > 0 {
		p.endpoint = eps[0]
	}
	if ucx.Built && slices.Contains(cfg.Peers.Routes, "ucx") {
		eventually(t, "the memory is registered", func() bool {
			u := e.Peers().UCX()
			done, total, err := u.Registered()
			return err == nil && done == total && total > 0
		})
	}
	t.Cleanup(func() {
		eventually(t, "no claim is left", func() bool { return e.Claims() == 0 })
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return p
}

func (p *peerEngine) outcome(key string) (wire.Status, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.outcomes[key]
	return s, ok
}

func payload(key string, n int) []byte {
	return bytes.Repeat([]byte(fmt.Sprintf("%-16s", key)), n/16)
}

func keysOf(from, to int) (keys [][]byte) {
	for i := from; i < to; i++ {
		keys = append(keys, []byte(fmt.Sprintf("block-%d", i)))
	}
	return keys
}

func (p *peerEngine) deposit(t *testing.T, keys [][]byte) {
	t.Helper()
	for _, k := range keys {
		if err := p.h.Deposit(k, payload(string(k), 64<<10)); err != nil {
			t.Fatal(err)
		}
	}
}

func wait(t *testing.T, op *kvcr.Op) []kvcr.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	rs, err := op.Wait(ctx)
	if err != nil {
		t.Fatalf("the operation has no end: %v", err)
	}
	return rs
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// routes has f run for each route that can be had here.
func routes(t *testing.T, f func(t *testing.T, open func(t *testing.T, change func(*kvcr.Config)) *peerEngine, route wire.Route)) {
	for _, r := range []struct {
		name  string
		route wire.Route
	}{{"stream", wire.RouteStream}, {"shm", wire.RouteShm}, {"ucx", wire.RouteUCX}} {
		t.Run(r.name, func(t *testing.T) {
			if r.route == wire.RouteUCX && !ucx.Built {
				t.Skip(ucx.ErrNotBuilt)
			}
			f(t, func(t *testing.T, change func(*kvcr.Config)) *peerEngine {
				return openPeer(t, func(c *kvcr.Config) {
					c.Memory.Backing = arena.Memfd
					c.Peers.Routes = []string{r.name, "stream"}
					if r.route == wire.RouteStream {
						c.Peers.Routes = []string{"stream"}
					}
					if change != nil {
						change(c)
					}
				})
			}, r.route)
		})
	}
}

func TestFetchFromPeer(t *testing.T) {
	routes(t, func(t *testing.T, open func(*testing.T, func(*kvcr.Config)) *peerEngine, route wire.Route) {
		a, b := open(t, nil), open(t, nil)
		keys := keysOf(0, 300) // more than one operation
		a.deposit(t, keys)
		ask := append(append([][]byte{}, keys...), []byte("nobody has it"), keys[5], nil)
		rs := wait(t, b.h.FetchFrom(ask, kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 10 * time.Second}))
		for i, r := range rs {
			switch i {
			case 300:
				if r.Reason != kvcr.ReasonMiss {
					t.Errorf("a key that nobody has: %v", r.Reason)
				}
				continue
			case 302:
				if r.Reason != kvcr.ReasonKey {
					t.Errorf("no key: %v", r.Reason)
				}
				continue
			}
			if !r.OK() || !bytes.Equal(r.View.Bytes(), payload(string(ask[i]), 64<<10)) {
				t.Fatalf("key %d: %v", i, r.Reason)
			}
			r.View.Release()
		}
		if s, ok := b.Peers().Known(a.endpoint); !ok || s.Route != route {
			t.Errorf("the route is %v, want %v", s.Route, route)
		}
		if st, _ := a.Stats(); st.Blocks != 300 {
			t.Errorf("the source has %d blocks: a copy takes none away", st.Blocks)
		}
		dst := make([]byte, 64<<10)
		a.deposit(t, keysOf(300, 301))
		again := make([]byte, 64<<10)
		rs = wait(t, b.h.DeliverFrom([]kvcr.Target{{keysOf(300, 301)[0], dst}, {keysOf(300, 301)[0], again}, {keys[0], make([]byte, 1)}}, kvcr.FetchOptions{Sources: []string{a.endpoint}}))
		if !rs[0].OK() || !rs[1].OK() || rs[2].Reason != kvcr.ReasonLayout || !bytes.Equal(dst, payload("block-300", 64<<10)) || !bytes.Equal(dst, again) {
			t.Errorf("delivered: %v %v %v", rs[0].Reason, rs[1].Reason, rs[2].Reason)
		}
		if b.h.Has(keysOf(300, 301)[0]) {
			t.Error("a delivered block has become resident")
		}
	})
}

func TestMoveFromPeer(t *testing.T) {
	routes(t, func(t *testing.T, open func(*testing.T, func(*kvcr.Config)) *peerEngine, _ wire.Route) {
		a, b := open(t, nil), open(t, nil)
		keys := keysOf(0, 20)
		a.deposit(t, keys)
		b.deposit(t, keys[:5]) // these are confirmed without a transfer
		for _, r := range wait(t, b.h.FetchFrom(keys, kvcr.FetchOptions{Sources: []string{a.endpoint}, Move: true})) {
			if !r.OK() {
				t.Fatal(r.Reason)
			}
			r.View.Release()
		}
		eventually(t, "the source has removed all", func() bool { st, _ := a.Stats(); return st.Blocks == 0 })
		for _, k := range keys {
			eventually(t, "both sides know", func() bool {
				sa, oka := a.outcome(string(k))
				sb, okb := b.outcome(string(k))
				return oka && okb && sa == wire.StatusOK && sb == wire.StatusOK
			})
			if v, ok := b.h.Get(k); !ok || !bytes.Equal(v.Bytes(), payload(string(k), 64<<10)) {
				t.Errorf("%s is not at the destination", k)
			} else {
				v.Release()
			}
		}
		// Crossing moves keep a copy somewhere, whatever happens.
		a.deposit(t, keys)
		ops := []*kvcr.Op{
			b.h.FetchFrom(keys, kvcr.FetchOptions{Sources: []string{a.endpoint}, Move: true}),
			a.h.FetchFrom(keys, kvcr.FetchOptions{Sources: []string{b.endpoint}, Move: true}),
		}
		for _, op := range ops {
			for _, r := range wait(t, op) {
				if r.OK() {
					r.View.Release()
				}
			}
		}
		// A hold outlives the answer, and a source that closes meanwhile.
		eventually(t, "the moves are over", func() bool {
			return a.Peers().Stats().Operations == 1 && b.Peers().Stats().Operations == 2
		})
		for _, k := range keys {
			if !a.h.Has(k) && !b.h.Has(k) {
				t.Errorf("%s is lost", k)
			}
		}
	})
}

func TestFetchFallsBack(t *testing.T) {
	a, b, c := openPeer(t, nil), openPeer(t, nil), openPeer(t, nil)
	keys := keysOf(0, 10)
	a.deposit(t, keys[:4])
	b.deposit(t, keys[4:8])
	opt := kvcr.FetchOptions{Sources: []string{"tcp://127.0.0.1:1", a.endpoint, b.endpoint}, Timeout: 3 * time.Second}
	for i, r := range wait(t, c.h.FetchFrom(keys, opt)) {
		if i < 8 != r.OK() || i >= 8 && r.Reason != kvcr.ReasonMiss {
			t.Errorf("key %d: %v", i, r.Reason)
		}
		if r.OK() {
			r.View.Release()
		}
	}
	// A peer with another layout is refused; the other source serves.
	d := openPeer(t, func(c *kvcr.Config) { c.Namespaces[0].Pools[0].SlotBytes = 128 << 10 })
	opt.Sources = []string{d.endpoint, a.endpoint}
	e := openPeer(t, nil)
	for i, r := range wait(t, e.h.FetchFrom(keys[:5], opt)) {
		if i < 4 != r.OK() {
			t.Errorf("key %d: %v", i, r.Reason)
		}
		if r.OK() {
			r.View.Release()
		}
	}
}

func TestFetchFromAborts(t *testing.T) {
	b := openPeer(t, nil)
	op := b.h.FetchFrom(keysOf(0, 3), kvcr.FetchOptions{Sources: []string{"tcp://127.0.0.1:1"}, Timeout: time.Minute})
	if !op.Abort() {
		t.Error("nothing was open")
	}
	for _, r := range wait(t, op) {
		if r.Reason != kvcr.ReasonAborted {
			t.Error(r.Reason)
		}
	}
	op = b.h.FetchFrom(keysOf(0, 3), kvcr.FetchOptions{Sources: []string{"tcp://127.0.0.1:1"}, Timeout: 50 * time.Millisecond})
	for _, r := range wait(t, op) {
		if r.Reason != kvcr.ReasonTimeout {
			t.Error(r.Reason)
		}
	}
	if rs := wait(t, b.h.FetchFrom(keysOf(0, 1), kvcr.FetchOptions{})); rs[0].Reason != kvcr.ReasonMiss {
		t.Error(rs[0].Reason)
	}
}

// Without a secret UCX listens where only this machine comes.
func TestUCXListensOnLoopback(t *testing.T) {
	if !ucx.Built {
		t.Skip(ucx.ErrNotBuilt)
	}
	device := func(change func(*kvcr.Config)) string {
		p := openPeer(t, func(c *kvcr.Config) {
			c.Memory.Backing = arena.Memfd
			c.Peers.Routes = []string{"ucx", "stream"}
			change(c)
		})
		for _, s := range p.Peers().UCX().Settings() {
			if s.Name == "NET_DEVICES" {
				return s.Value
			}
		}
		return "all"
	}
	if d := device(func(*kvcr.Config) {}); d != "lo" {
		t.Errorf("without a secret: %s", d)
	}
	if d := device(func(c *kvcr.Config) { c.Peers.Secret = []byte("0123456789abcdef") }); d != "all" {
		t.Errorf("with a secret: %s", d)
	}
}

// Close from within a callback of the node returns, and memory is unmapped once
// the callback has.
func TestCloseWithinCallback(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for Close's bound")
	}
	a := openPeer(t, nil)
	keys := keysOf(0, 2)
	a.deposit(t, keys)
	var b *kvcr.Engine
	closed := make(chan error, 1)
	var once sync.Once
	b, err := kvcr.Open(kvcr.Config{
		Capacity:   64 << 20,
		Namespaces: []kvcr.Namespace{{Name: "kv", Pools: []kvcr.Pool{{Name: "kv", SlotBytes: 64 << 10}}}},
		Peers:      &kvcr.Peers{OnOutcome: func(peer.Outcome) { once.Do(func() { closed <- b.Close() }) }},
	})
	if err != nil {
		t.Fatal(err)
	}
	h, err := b.Handle()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range wait(t, h.FetchFrom(keys, kvcr.FetchOptions{Sources: []string{a.endpoint}, Move: true})) {
		r.View.Release()
	}
	select {
	case err := <-closed:
		if !errors.Is(err, peer.ErrClosing) {
			t.Errorf("closed within a callback: %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("Close does not return")
	}
	eventually(t, "the engine is closed for good", func() bool { return !errors.Is(b.Close(), kvcr.ErrBusy) })
}
