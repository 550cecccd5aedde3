package kvcr_test

import (
	"bytes"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/wire"
)

// values makes an engine's namespace one of size classes.
func values(c *kvcr.Config) {
	c.Shards = 2
	c.Namespaces = []kvcr.Namespace{{Name: "kv", MaxValue: 1 << 20, MeanValue: 512}}
}

// chained makes an engine's namespace one of chains of 4 KiB blocks.
func chained(c *kvcr.Config) {
	c.Namespaces = []kvcr.Namespace{{Name: "kv", Kind: kvcr.Chained, Pools: []kvcr.Pool{{Name: "kv", SlotBytes: 4 << 10}}}}
}

func release(rs []kvcr.Result) {
	for i := range rs {
		rs[i].View.Release()
	}
}

// A batch may be larger than what transfers may claim at once: it takes its turns.
func TestFetchFromManyKeys(t *testing.T) {
	for _, tt := range []struct{ keys, source, dest int }{{5000, 512, 512}, {1000, 100, 0}, {1000, 0, 100}, {60, 1, 1}, {60, 1, 0}, {20000, 0, 0}} {
		t.Run(fmt.Sprintf("keys=%d/source=%d/dest=%d", tt.keys, tt.source, tt.dest), func(t *testing.T) {
			a := openPeer(t, func(c *kvcr.Config) { values(c); c.MaxTransferBlocks = tt.source })
			b := openPeer(t, func(c *kvcr.Config) { values(c); c.MaxTransferBlocks = tt.dest })
			keys := keysOf(0, tt.keys)
			targets := make([]kvcr.Target, len(keys))
			for i, k := range keys {
				if err := a.h.Set(k, k); err != nil {
					t.Fatal(err)
				}
				targets[i] = kvcr.Target{Key: k, Dst: make([]byte, len(k))}
			}
			opt := kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 15 * time.Second}
			for i, r := range wait(t, b.h.DeliverFrom(targets, opt)) {
				if !r.OK() || !bytes.Equal(targets[i].Dst, keys[i]) {
					t.Fatalf("deliver %s: %v", keys[i], r.Reason)
				}
			}
			opt.Move = true
			rs := wait(t, b.h.FetchFrom(keys, opt))
			for i, r := range rs {
				if !r.OK() || !bytes.Equal(r.View.Bytes(), keys[i]) {
					t.Errorf("fetch %s: %v", keys[i], r.Reason)
					break
				}
			}
			release(rs)
			eventually(t, "the source has removed all", func() bool { st, _ := a.Stats(); return st.Blocks == 0 })
		})
	}
}

// Keys that are asked for twice get their own answers.
func TestDeliverFromTwice(t *testing.T) {
	routes(t, func(t *testing.T, open func(*testing.T, func(*kvcr.Config)) *peerEngine, _ wire.Route) {
		a, b := open(t, nil), open(t, nil)
		keys := keysOf(0, 2)
		a.deposit(t, keys)
		bufs := [][]byte{make([]byte, 10), make([]byte, 64<<10), make([]byte, 100<<10), make([]byte, 64<<10)}
		rs := wait(t, b.h.DeliverFrom([]kvcr.Target{{Key: keys[0], Dst: bufs[0]}, {Key: keys[0], Dst: bufs[1]}, {Key: keys[0], Dst: bufs[2]}, {Key: keys[0], Dst: bufs[3]}},
			kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 5 * time.Second}))
		for i, r := range rs {
			fits := len(bufs[i]) == 64<<10
			switch {
			case fits && (!r.OK() || !bytes.Equal(bufs[i], payload(string(keys[0]), 64<<10))):
				t.Errorf("target %d, as long as the block: %v", i, r.Reason)
			case !fits && r.Reason != kvcr.ReasonLayout:
				t.Errorf("target %d, of another length: %v", i, r.Reason)
			case !fits && !bytes.Equal(bufs[i], make([]byte, len(bufs[i]))):
				t.Errorf("target %d, of another length, was written to", i)
			}
		}
	})
}

// Times without an end are no times in the past.
func TestFetchFromEndlessTimeout(t *testing.T) {
	a, b := openPeer(t, nil), openPeer(t, nil)
	a.deposit(t, keysOf(0, 1))
	rs := wait(t, b.h.FetchFrom(keysOf(0, 2), kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: math.MaxInt64}))
	if !rs[0].OK() || rs[1].Reason != kvcr.ReasonMiss {
		t.Errorf("%v %v", rs[0].Reason, rs[1].Reason)
	}
	release(rs)
}

// A chain of more blocks than one operation has stays one chain.
func TestFetchFromChain(t *testing.T) {
	a, b := openPeer(t, chained), openPeer(t, chained)
	keys := keysOf(0, 5*wire.MaxItems+7)
	var items []kvcr.Item
	for _, k := range keys {
		items = append(items, kvcr.Item{Key: k, Value: payload(string(k), 4<<10)})
	}
	for _, r := range a.h.DepositBatch(items, kvcr.DepositOptions{}) {
		if !r.OK() {
			t.Fatal(r.Reason)
		}
	}
	for range 5 {
		release(wait(t, b.h.FetchFrom(keys, kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 10 * time.Second})))
		for i, k := range keys {
			var o wire.Offered
			c, st := b.Records().Claim("kv", &wire.Wanted{Key: k}, &o)
			if st != wire.StatusOK || i > 0 && !bytes.Equal(o.Parent, keys[i-1]) || i == 0 && o.Parent != nil || int(o.Position) != min(i, 256) {
				t.Fatalf("%s: %v, parent %q, position %d", k, st, o.Parent, o.Position)
			}
			b.Records().Unclaim(c)
		}
		b.h.DeleteBatch(keys)
	}
}

// Groups arrive whole, wherever an operation ends.
func TestFetchFromGroups(t *testing.T) {
	a, b := openPeer(t, chained), openPeer(t, chained)
	var keys [][]byte
	for g := range 100 {
		var parts []kvcr.Item
		for p := range 3 {
			k := []byte(fmt.Sprintf("group-%d/%d", g, p))
			parts = append(parts, kvcr.Item{Key: k, Value: payload(string(k), 4<<10)})
			keys = append(keys, k)
		}
		for _, r := range a.h.DepositGroup(parts, kvcr.DepositOptions{}) {
			if !r.OK() {
				t.Fatal(r.Reason)
			}
		}
	}
	for _, move := range []bool{false, true} {
		for i, r := range wait(t, b.h.FetchFrom(keys, kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 10 * time.Second, Move: move})) {
			if !r.OK() || !bytes.Equal(r.View.Bytes(), payload(string(keys[i]), 4<<10)) {
				t.Errorf("move=%t %s: %v", move, keys[i], r.Reason)
			}
			r.View.Release()
		}
		if !move {
			b.h.DeleteBatch(keys)
		}
	}
	eventually(t, "the source has removed all", func() bool { st, _ := a.Stats(); return st.Blocks == 0 })
	// Some parts of a group are no group.
	for i, r := range wait(t, a.h.FetchFrom(keys[1:300], kvcr.FetchOptions{Sources: []string{b.endpoint}, Timeout: 10 * time.Second})) {
		if i < 2 && r.Reason != kvcr.ReasonLayout || i >= 2 && !r.OK() {
			t.Errorf("%s: %v", keys[1+i], r.Reason)
		}
		r.View.Release()
	}
}

// Blocks of every form travel.
func TestFetchFromForms(t *testing.T) {
	routes(t, func(t *testing.T, open func(*testing.T, func(*kvcr.Config)) *peerEngine, _ wire.Route) {
		long := bytes.Repeat([]byte("long"), 256)
		t.Run("values", func(t *testing.T) {
			ns := func(c *kvcr.Config) {
				values(c)
				c.Namespaces[0].VerifyReads, c.Namespaces[0].Checksums = true, kvcr.ChecksumOn
			}
			a, b := open(t, ns), open(t, func(c *kvcr.Config) { ns(c); c.Namespaces[0].MaxValue = 64 << 10 })
			forms := map[string][]byte{"empty": {}, "one": {1}, string(long): payload("x", 20<<10), "largest": payload("y", 64<<10)}
			var keys [][]byte
			for k, v := range forms {
				keys = append(keys, []byte(k))
				if err := a.h.Set([]byte(k), v); err != nil {
					t.Fatal(err)
				}
			}
			if err := a.h.Set([]byte("too large"), make([]byte, 65<<10)); err != nil {
				t.Fatal(err)
			}
			keys = append(keys, []byte("too large"))
			opt := kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 5 * time.Second}
			for _, move := range []bool{false, true} {
				var targets []kvcr.Target
				for _, k := range keys {
					targets = append(targets, kvcr.Target{Key: k, Dst: make([]byte, len(forms[string(k)]))})
				}
				for i, r := range wait(t, b.h.DeliverFrom(targets, opt)) {
					if want, ok := forms[string(keys[i])]; ok && (!r.OK() || !bytes.Equal(targets[i].Dst, want)) || !ok && r.Reason != kvcr.ReasonLayout {
						t.Errorf("deliver %.10s: %v", keys[i], r.Reason)
					}
				}
				opt.Move = move
				for i, r := range wait(t, b.h.FetchFrom(keys, opt)) {
					if want, ok := forms[string(keys[i])]; ok && (!r.OK() || !bytes.Equal(r.View.Bytes(), want)) || !ok && r.Reason != kvcr.ReasonTooLarge {
						t.Errorf("fetch %.10s: %v", keys[i], r.Reason)
					}
					r.View.Release()
				}
				if !move {
					b.h.DeleteBatch(keys)
				}
			}
			if !a.h.Has([]byte("too large")) {
				t.Error("what the destination could not take is lost")
			}
		})
		t.Run("pieces", func(t *testing.T) {
			ns := func(c *kvcr.Config) {
				c.Namespaces = []kvcr.Namespace{{Name: "kv", Pools: []kvcr.Pool{{Name: "k", SlotBytes: 4 << 10}, {Name: "v", SlotBytes: 8 << 10}}}}
			}
			a, b := open(t, ns), open(t, ns)
			k, v := payload("k", 4<<10), payload("v", 8<<10)
			if rs := a.h.DepositBatch([]kvcr.Item{{Key: long, Pieces: [][]byte{k, v, k}, Pools: []string{"k", "v", "k"}}}, kvcr.DepositOptions{}); !rs[0].OK() {
				t.Fatal(rs[0].Reason)
			}
			opt := kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 5 * time.Second}
			dst := make([]byte, 16<<10)
			rs := wait(t, b.h.DeliverFrom([]kvcr.Target{{Key: long, Dst: dst}}, opt))
			if want := append(append(append([]byte{}, k...), v...), k...); !rs[0].OK() || !bytes.Equal(dst, want) {
				t.Errorf("deliver: %v", rs[0].Reason)
			}
			opt.Move = true
			rs = wait(t, b.h.FetchFrom([][]byte{long}, opt))
			if r := &rs[0]; !r.OK() || r.View.Len() != 16<<10 {
				t.Errorf("fetch: %v", r.Reason)
			} else {
				var got []byte
				for i := range r.View.Pieces() {
					piece, _ := r.View.Piece(i)
					got = append(got, piece...)
				}
				if !bytes.Equal(got, dst) {
					t.Error("the pieces differ")
				}
			}
			release(rs)
			eventually(t, "it is moved", func() bool { return !a.h.Has(long) })
		})
	})
}

// What has come from a peer leaves as what was deposited here: leaves first, and what
// has no prefix before anything else.
func TestFetchFromLeavesFirst(t *testing.T) {
	a := openPeer(t, chained)
	b := openPeer(t, func(c *kvcr.Config) { chained(c); c.Capacity = 1 << 20 }) // 256 blocks
	chain := func(name string, n int) (keys [][]byte) {
		var items []kvcr.Item
		for i := range n {
			k := []byte(fmt.Sprintf("%s/%d", name, i))
			keys = append(keys, k)
			items = append(items, kvcr.Item{Key: k, Value: payload(string(k), 4<<10)})
		}
		for _, r := range a.h.DepositBatch(items, kvcr.DepositOptions{}) {
			if !r.OK() {
				t.Fatal(r.Reason)
			}
		}
		return keys
	}
	fetch := func(keys [][]byte) {
		rs := wait(t, b.h.FetchFrom(keys, kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 10 * time.Second}))
		for i, r := range rs {
			if !r.OK() {
				t.Fatalf("%s: %v", keys[i], r.Reason)
			}
		}
		release(rs)
	}
	whole, torn := chain("whole", 150), chain("torn", 150)
	fetch(whole)
	fetch(torn[100:]) // its prefix is not here
	fill := func(n int) {
		for i := range n {
			if err := b.h.Deposit([]byte(fmt.Sprintf("other-%d-%d", n, i)), make([]byte, 4<<10)); err != nil {
				t.Fatal(err)
			}
		}
	}
	count := func(keys [][]byte) (n int) {
		for _, k := range keys {
			if b.h.Has(k) {
				n++
			}
		}
		return n
	}
	fill(56 + 40)
	if n := count(torn); n >= 50 || count(whole) != 150 {
		t.Errorf("%d blocks are here without their prefix, %d of a whole chain of 150", n, count(whole))
	}
	fill(100)
	gone := false
	for _, k := range whole {
		if here := b.h.Has(k); here && gone {
			t.Fatalf("%s is here without its prefix", k)
		} else if !here {
			gone = true
		}
	}
}
