package kvcr_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/peer"
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

// A key whose block here is another one than the source's is not moved: the
// source's would be lost.
func TestMoveKeepsAnotherVersion(t *testing.T) {
	for _, sums := range []kvcr.Checksums{kvcr.ChecksumOff, kvcr.ChecksumOn} {
		t.Run(fmt.Sprint(sums), func(t *testing.T) {
			ns := func(c *kvcr.Config) { values(c); c.Namespaces[0].Checksums = sums }
			a, b := openPeer(t, ns), openPeer(t, ns)
			if err := errors.Join(a.h.Set([]byte("k"), []byte("new")), b.h.Set([]byte("k"), []byte("old"))); err != nil {
				t.Fatal(err)
			}
			rs := wait(t, b.h.FetchFrom([][]byte{[]byte("k")}, kvcr.FetchOptions{Sources: []string{a.endpoint}, Move: true, Timeout: 5 * time.Second}))
			if !rs[0].OK() || string(rs[0].View.Bytes()) != "old" {
				t.Errorf("what is resident is the answer: %v", rs[0].Reason)
			}
			release(rs)
			eventually(t, "both sides know", func() bool {
				_, oka := a.outcome("k")
				_, okb := b.outcome("k")
				return oka && okb
			})
			if v, ok := a.h.Get([]byte("k")); !ok || string(v.Bytes()) != "new" {
				t.Error("the source's block is lost")
			} else {
				v.Release()
			}
			if s, _ := a.outcome("k"); s == wire.StatusOK {
				t.Error("the outcome is moved")
			}
		})
	}
}

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

// Without a place for one more hold, moves are copies, and say so.
func TestMoveBeyondHolds(t *testing.T) {
	a := openPeer(t, nil)
	b := openPeer(t, func(c *kvcr.Config) { c.MaxHolds = 1 })
	keys := keysOf(0, 10)
	a.deposit(t, keys)
	rs := wait(t, b.h.FetchFrom(keys, kvcr.FetchOptions{Sources: []string{a.endpoint}, Move: true, Timeout: 5 * time.Second}))
	for i, r := range rs {
		if !r.OK() {
			t.Errorf("%s: %v", keys[i], r.Reason)
		}
		eventually(t, "the outcome is told", func() bool { _, ok := b.outcome(string(keys[i])); return ok })
		if s, _ := b.outcome(string(keys[i])); s != wire.StatusCapacity {
			t.Errorf("the outcome of %s is %v", keys[i], s)
		}
		if !a.h.Has(keys[i]) {
			t.Errorf("%s is not at the source", keys[i])
		}
	}
	release(rs)
}

// A destination full of claimed blocks refuses what does not fit, and a move leaves
// that where it was.
func TestMoveIntoFull(t *testing.T) {
	a := openPeer(t, nil)
	b := openPeer(t, func(c *kvcr.Config) { c.Capacity = 1 << 20; c.Shards = 1 })
	keys := keysOf(0, 40)
	a.deposit(t, keys)
	rs := wait(t, b.h.FetchFrom(keys, kvcr.FetchOptions{Sources: []string{a.endpoint}, Move: true, Timeout: 5 * time.Second}))
	here := 0
	for i, r := range rs {
		switch {
		case r.OK():
			here++
		case r.Reason != kvcr.ReasonCapacity:
			t.Errorf("%s: %v", keys[i], r.Reason)
		case !a.h.Has(keys[i]):
			t.Errorf("%s is lost", keys[i])
		}
	}
	if here != 16 {
		t.Errorf("%d blocks are here, 16 have room", here)
	}
	release(rs)
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
				case !r.OK() && r.Reason != kvcr.ReasonAborted && r.Reason != kvcr.ReasonTimeout:
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

// Open names all that is wrong with peers beside the rest, before it reserves
// memory.
func TestPeersConfig(t *testing.T) {
	_, err := kvcr.Open(kvcr.Config{
		Capacity: 1, MaxMarks: -1, MaxHolds: 1<<20 + 1, MaxTransferBlocks: -5,
		Peers: &kvcr.Peers{
			Listen: []string{"tcp://0.0.0.0:0", "nonsense"}, Secret: []byte("short"), Routes: []string{"bogus"}, Streams: 99,
			MaxPeers: -1, MaxOps: -1, MaxQuarantine: -1, Name: strings.Repeat("n", 300), Framework: &lender{},
		},
	})
	if !errors.Is(err, kvcr.ErrConfig) {
		t.Fatal(err)
	}
	for _, want := range []string{"Capacity", "MaxMarks", "MaxHolds", "MaxTransferBlocks", "Listen", "nonsense", "Secret", "bogus", "Streams", "MaxPeers", "MaxOps", "MaxQuarantine", "Name", "Regions"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %s: %v", want, err)
		}
	}
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

// An Open that fails for its peers leaves nothing behind; the leaks that TestMain
// looks for would be of it.
func TestPeersOpenFails(t *testing.T) {
	a := openPeer(t, nil)
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]*kvcr.Peers{
		"an address in use":        {Listen: []string{"tcp://127.0.0.1:0", a.endpoint}},
		"a file that is no socket": {Listen: []string{"unix://" + file}},
		"memory of one process":    {Routes: []string{"stream", "shm"}},
		"ucx, where it is not":     {Routes: []string{"ucx"}},
	} {
		e, err := kvcr.Open(kvcr.Config{Capacity: 8 << 20, Peers: p})
		if name == "ucx, where it is not" && err == nil {
			e.Close() // it is here
			continue
		}
		if !errors.Is(err, kvcr.ErrConfig) || e != nil {
			t.Errorf("%s: %v", name, err)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
	// What the caller has given, or is given, stays his.
	secret := []byte("sixteen bytes or more")
	b := openPeer(t, func(c *kvcr.Config) { c.Peers.Secret = secret })
	c := b.Config()
	if c.Peers == nil || &c.Peers.Secret[0] == &secret[0] {
		t.Error("the configuration shares memory with the caller")
	}
	c.Peers.Listen[0] = "changed"
	if b.Config().Peers.Listen[0] == "changed" {
		t.Error("the configuration can be changed")
	}
}
