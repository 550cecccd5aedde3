package kvcr_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// byNumber resolves hash n to the key block-n of namespace kv.
type byNumber struct{}

func (byNumber) Resolve(hash uint64) (string, []byte, wire.Status) {
	return "kv", []byte(fmt.Sprintf("block-%d", hash)), wire.StatusOK
}

func resolving(change func(*kvcr.Config)) func(*kvcr.Config) {
	return func(c *kvcr.Config) {
		c.Peers.Resolver = byNumber{}
		if change != nil {
			change(c)
		}
	}
}

// generations resolves the hashes 0 to n-1 of a source.
func generations(t *testing.T, p *peerEngine, endpoint string, n int) []uint32 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	hashes := make([]uint64, n)
	for i := range hashes {
		hashes[i] = uint64(i)
	}
	all, err := p.Peers().Resolve(ctx, endpoint, hashes)
	if err != nil {
		t.Fatal(err)
	}
	var gens []uint32
	for _, r := range all {
		if r.Status != wire.StatusOK || r.Generation == 0 {
			t.Fatalf("hash %d: %v, generation %d", r.Hash, r.Status, r.Generation)
		}
		gens = append(gens, r.Generation)
	}
	return gens
}

// A block that takes the place of another between resolution and admission is noticed,
// however it comes to be there: it is neither copied, delivered nor moved.
func TestReboundBetween(t *testing.T) {
	for name, ns := range map[string]func(*kvcr.Config){"values": values, "pool": nil, "chained": chained} {
		for _, how := range []string{"move", "copy", "deliver"} {
			t.Run(name+"/"+how, func(t *testing.T) {
				a, b := openPeer(t, resolving(ns)), openPeer(t, ns)
				const size = 4 << 10
				keys := keysOf(0, 12)
				put := func(i int, version string) {
					t.Helper()
					if err := a.h.Set(keys[i], payload(version+string(keys[i]), size)); err != nil {
						t.Fatal(err)
					}
				}
				for i := range keys {
					put(i, "old-")
				}
				gens := generations(t, b, a.endpoint, len(keys))
				rebound := map[int]bool{0: true, 3: true, 4: true, 7: true, 11: true}
				put(0, "new-") // in place, where that is possible
				v, ok := a.h.Get(keys[3])
				if !ok {
					t.Fatal("it is not there")
				}
				put(3, "new-") // elsewhere
				v.Release()
				for _, i := range []int{4, 7} {
					if ok, err := a.h.Delete(keys[i]); !ok || err != nil {
						t.Fatal(ok, err)
					}
				}
				put(7, "new-") // one in the place of another
				put(4, "new-")
				for range 5 {
					put(11, "new-")
				}
				opt := kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 10 * time.Second, Move: how == "move", Generations: gens}
				var rs []kvcr.Result
				got := make([][]byte, len(keys))
				if how == "deliver" {
					var targets []kvcr.Target
					for i, k := range keys {
						got[i] = make([]byte, size)
						targets = append(targets, kvcr.Target{Key: k, Dst: got[i]})
					}
					rs = wait(t, b.h.DeliverFrom(targets, opt))
				} else {
					rs = wait(t, b.h.FetchFrom(keys, opt))
				}
				for i, r := range rs {
					if rebound[i] {
						if r.Reason != kvcr.ReasonMiss || b.h.Has(keys[i]) || got[i] != nil && !bytes.Equal(got[i], make([]byte, size)) {
							t.Errorf("%s, which is another block now: %v", keys[i], r.Reason)
						}
						continue
					}
					if got[i] == nil {
						got[i] = r.View.Bytes()
					}
					if !r.OK() || !bytes.Equal(got[i], payload("old-"+string(keys[i]), size)) {
						t.Errorf("%s: %v", keys[i], r.Reason)
					}
				}
				release(rs)
				for i, k := range keys {
					if rebound[i] || how != "move" {
						if !a.h.Has(k) {
							t.Errorf("the source has lost %s", k)
						}
						continue
					}
					eventually(t, "the others are moved", func() bool { return !a.h.Has(k) })
				}
			})
		}
	}
}

// Hashes are often the first that is asked of a source: the connection that this makes
// is as good for the blocks as one that they had made.
func TestResolveThenFetch(t *testing.T) {
	routes(t, func(t *testing.T, open func(*testing.T, func(*kvcr.Config)) *peerEngine, route wire.Route) {
		a, b := open(t, resolving(nil)), open(t, nil)
		keys := keysOf(0, 5)
		a.deposit(t, keys)
		gens := generations(t, b, a.endpoint, len(keys))
		rs := wait(t, b.h.FetchFrom(keys, kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 10 * time.Second, Move: true, Generations: gens}))
		for i, r := range rs {
			if !r.OK() {
				t.Errorf("%s: %v", keys[i], r.Reason)
			}
		}
		release(rs)
		st, _ := b.Peers().Known(a.endpoint)
		if n := b.Peers().Stats().Dials; st.Route != route || n != 1 {
			t.Errorf("they came over route %v, and it took %d dials; want %v and one", st.Route, n, route)
		}
		eventually(t, "they are moved", func() bool { return !a.h.Has(keys[4]) })
	})
}

// In a batch of many operations, with keys asked for twice, each key goes with its own
// generation.
func TestGenerationsOfManyKeys(t *testing.T) {
	// The source is busy at first, so that keys are asked for again.
	a := openPeer(t, resolving(func(c *kvcr.Config) { values(c); c.MaxTransferBlocks = 60 }))
	b := openPeer(t, values)
	const n = 600
	keys := keysOf(0, n)
	for _, k := range keys {
		if err := a.h.Set(k, k); err != nil {
			t.Fatal(err)
		}
	}
	gens := generations(t, b, a.endpoint, n)
	want := make([]kvcr.Reason, n)
	for i := range keys {
		switch i % 7 {
		case 2: // another generation
			gens[i]++
			want[i] = kvcr.ReasonMiss
		case 4: // any
			gens[i] = 0
		}
	}
	for i := range n { // and most of them again, with the right one, a wrong one, or any
		again, reason := gens[i], want[i]
		switch {
		case i%7 == 2:
			again, reason = gens[i]-1, kvcr.ReasonOK
		case i%5 == 1 && i%7 != 4:
			again, reason = gens[i]+1, kvcr.ReasonMiss
		case i%5 == 2:
			again, reason = 0, kvcr.ReasonOK
		case i%5 == 3:
			continue
		}
		keys, gens, want = append(keys, keys[i]), append(gens, again), append(want, reason)
	}
	targets := make([]kvcr.Target, len(keys))
	for i, k := range keys {
		targets[i] = kvcr.Target{Key: k, Dst: make([]byte, len(k))}
	}
	opt := kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 15 * time.Second, Generations: gens}
	op := b.h.DeliverFrom(targets, opt)
	given := append([]uint32(nil), gens...)
	clear(gens) // the caller may
	for i, r := range wait(t, op) {
		if r.Reason != want[i] || r.OK() && !bytes.Equal(targets[i].Dst, keys[i]) {
			t.Fatalf("deliver %d, %s@%d: %v, want %v", i, keys[i], given[i], r.Reason, want[i])
		}
	}
	opt.Generations = given
	rs := wait(t, b.h.FetchFrom(keys, opt))
	for i, r := range rs {
		if r.Reason != want[i] || r.OK() && !bytes.Equal(r.View.Bytes(), keys[i]) {
			t.Fatalf("fetch %d, %s@%d: %v, want %v", i, keys[i], given[i], r.Reason, want[i])
		}
	}
	release(rs)
}

// Generations are the first source's: others are asked for any.
func TestGenerationsOfTheFirst(t *testing.T) {
	a, b, c := openPeer(t, resolving(nil)), openPeer(t, nil), openPeer(t, nil)
	keys := keysOf(0, 3)
	a.deposit(t, keys)
	b.deposit(t, keys[1:2])
	gens := generations(t, c, a.endpoint, 3)
	gens[1]++
	gens[2]++
	for _, sources := range [][]string{{a.endpoint, b.endpoint}, {b.endpoint, a.endpoint}} {
		opt := kvcr.FetchOptions{Sources: sources, Timeout: 5 * time.Second, Generations: gens}
		rs := wait(t, c.h.FetchFrom(keys, opt))
		want := []kvcr.Reason{kvcr.ReasonOK, kvcr.ReasonOK, kvcr.ReasonMiss}
		if sources[0] == b.endpoint { // whose numbers are others
			want[1], want[2] = kvcr.ReasonOK, kvcr.ReasonOK
		}
		for i, r := range rs {
			if r.Reason != want[i] {
				t.Errorf("%v: %s: %v, want %v", sources, keys[i], r.Reason, want[i])
			}
		}
		release(rs)
		c.h.DeleteBatch(keys)
	}
}

// A list of generations that does not fit the keys is a mistake that moves nothing.
func TestGenerationsMisfit(t *testing.T) {
	a, b := openPeer(t, nil), openPeer(t, nil)
	keys := keysOf(0, 3)
	a.deposit(t, keys)
	opt := kvcr.FetchOptions{Sources: []string{a.endpoint}, Move: true, Generations: make([]uint32, 2)}
	dst := make([]byte, 64<<10)
	var targets []kvcr.Target
	var blocks []kvcr.RegionBlock
	for _, k := range keys {
		targets = append(targets, kvcr.Target{Key: k, Dst: dst})
		blocks = append(blocks, kvcr.RegionBlock{Key: k})
	}
	for _, op := range []*kvcr.Op{b.h.FetchFrom(keys, opt), b.h.DeliverFrom(targets, opt), b.h.DeliverRefs(blocks, opt)} {
		for i, r := range wait(t, op) {
			if r.Reason != kvcr.ReasonKey {
				t.Errorf("%s: %v", keys[i], r.Reason)
			}
		}
	}
	opt.Generations = nil
	rs := wait(t, b.h.FetchFrom(keys, opt))
	for _, r := range rs {
		if !r.OK() {
			t.Error(r.Reason)
		}
	}
	release(rs)
}

// On their way to devices keys are taken apart, and keep their generations.
func TestGenerationsOnDevices(t *testing.T) {
	for _, direct := range []bool{false, true} {
		t.Run(fmt.Sprintf("direct=%t", direct), func(t *testing.T) {
			var here, there func(*kvcr.Config)
			if direct {
				here, there = openDirect(t).direct, overUCX
			} else {
				here = openGPU(t).config
			}
			a, b := openPeer(t, resolving(there)), openPeer(t, here)
			keys := keysOf(0, gpuElements)
			a.deposit(t, keys)
			b.deposit(t, keys[3:9])
			gens := generations(t, b, a.endpoint, len(keys))
			for i := range gens {
				if i%5 == 0 {
					gens[i]++
				}
			}
			opt := kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 10 * time.Second, Generations: gens}
			for i, r := range wait(t, b.h.DeliverRefs(deliveries(keys), opt)) {
				resident := i >= 3 && i < 9
				if wrong := i%5 == 0 && !resident; wrong != (r.Reason == kvcr.ReasonMiss) || !wrong && !r.OK() {
					t.Errorf("%s: %v", keys[i], r.Reason)
				}
			}
			if direct && directIn(b) == 0 {
				t.Error("nothing has come directly")
			}
		})
	}
}

// Who fetches from itself, by whatever address, is told at once, and has what others
// have.
func TestFetchFromSelf(t *testing.T) {
	a, b := openPeer(t, resolving(nil)), openPeer(t, nil)
	keys := keysOf(0, 2)
	b.deposit(t, keys[:1])
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(a.endpoint, "tcp://"))
	alias := "tcp://localhost:" + port
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, self := range []string{a.endpoint, alias} {
		start := time.Now()
		rs := wait(t, a.h.FetchFrom(keys, kvcr.FetchOptions{Sources: []string{self}, Timeout: 15 * time.Second, Move: true}))
		if rs[0].Reason != kvcr.ReasonSource || rs[1].Reason != kvcr.ReasonSource || time.Since(start) > 5*time.Second {
			t.Errorf("%s: %v, %v after %v", self, rs[0].Reason, rs[1].Reason, time.Since(start))
		}
		all, err := a.Peers().Resolve(ctx, self, []uint64{0, 1})
		if err == nil || all[0].Status != wire.StatusSelf || all[1].Status != wire.StatusSelf {
			t.Errorf("%s: %v, %v", self, all[0].Status, err)
		}
		rs = wait(t, a.h.FetchFrom(keys, kvcr.FetchOptions{Sources: []string{self, b.endpoint}, Timeout: 15 * time.Second}))
		if !rs[0].OK() {
			t.Errorf("%s, and another: %v", self, rs[0].Reason)
		}
		release(rs)
		a.h.DeleteBatch(keys)
	}
}

// A hash that comes to stand for another key moves nothing under the old one that is
// not there any more, and nothing else.
func TestReboundHash(t *testing.T) {
	var names [2]string
	now := 0
	names[0], names[1] = "block-0", "block-1"
	r := resolverFunc(func(hash uint64) (string, []byte, wire.Status) { return "kv", []byte(names[now]), wire.StatusOK })
	a := openPeer(t, func(c *kvcr.Config) { c.Peers.Resolver = r })
	b := openPeer(t, nil)
	keys := keysOf(0, 2)
	a.deposit(t, keys)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	resolve := func() peer.Resolution {
		all, err := b.Peers().Resolve(ctx, a.endpoint, []uint64{42})
		if err != nil || all[0].Status != wire.StatusOK {
			t.Fatal(all, err)
		}
		return all[0]
	}
	was := resolve()
	now = 1
	a.h.Delete(keys[0])
	if is := resolve(); string(was.Key) != names[0] || string(is.Key) != names[1] || was.Size != 64<<10 {
		t.Fatalf("%+v, then %+v", was, is)
	}
	rs := wait(t, b.h.FetchFrom([][]byte{was.Key}, kvcr.FetchOptions{Sources: []string{a.endpoint}, Move: true, Generations: []uint32{was.Generation}}))
	if rs[0].Reason != kvcr.ReasonMiss || !a.h.Has(keys[1]) || b.h.Has(keys[0]) || b.h.Has(keys[1]) {
		t.Errorf("%v", rs[0].Reason)
	}
}

type resolverFunc func(hash uint64) (string, []byte, wire.Status)

func (f resolverFunc) Resolve(hash uint64) (string, []byte, wire.Status) { return f(hash) }

// BenchmarkResolve asks a node on the same machine for the keys of hashes.
func BenchmarkResolve(b *testing.B) {
	for _, n := range []int{1, 128, 1024} {
		b.Run(fmt.Sprintf("hashes=%d", n), func(b *testing.B) {
			open := func(change func(*kvcr.Config)) *kvcr.Engine {
				cfg := kvcr.Config{Capacity: 64 << 20, Peers: &kvcr.Peers{Listen: []string{"tcp://127.0.0.1:0"}}}
				values(&cfg)
				if change != nil {
					change(&cfg)
				}
				e, err := kvcr.Open(cfg)
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { e.Close() })
				return e
			}
			source, dest := open(resolving(nil)), open(nil)
			h, err := source.Handle()
			if err != nil {
				b.Fatal(err)
			}
			hashes := make([]uint64, n)
			for i := range hashes {
				hashes[i] = uint64(i)
				if err := h.Set([]byte(fmt.Sprintf("block-%d", i)), binary.LittleEndian.AppendUint64(nil, uint64(i))); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				all, err := dest.Peers().Resolve(b.Context(), source.Peers().Endpoints()[0], hashes)
				if err != nil || all[n-1].Status != wire.StatusOK {
					b.Fatal(all[n-1].Status, err)
				}
			}
		})
	}
}
