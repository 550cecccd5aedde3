package kvcr_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

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

// Moves of the same keys between three engines, all ways at once, aborted and timed
// out at random, beside copies: no key is lost, no byte is wrong,
// and nothing is left marked, held or claimed. (Promises 1 to 3.)
func TestMovesLoseNothing(t *testing.T) {
	routes(t, func(t *testing.T, open func(*testing.T, func(*kvcr.Config)) *peerEngine, _ wire.Route) {
		var nodes []*peerEngine
		for range 3 {
			nodes = append(nodes, open(t, func(c *kvcr.Config) {
				c.Peers.Timing = peer.Timing{Repeat: 20 * time.Millisecond, Allowance: 100 * time.Millisecond}
			}))
		}
		keys := keysOf(0, 60)
		nodes[0].deposit(t, keys)
		const size = 64 << 10
		stop := time.Now().Add(1500 * time.Millisecond)
		var workers sync.WaitGroup
		for w := range 9 {
			to := nodes[w%3]
			h, err := to.Handle()
			if err != nil {
				t.Fatal(err)
			}
			workers.Add(1)
			go func() {
				defer workers.Done()
				defer h.Close()
				rnd := rand.New(rand.NewPCG(uint64(w), 5))
				for time.Now().Before(stop) {
					var batch [][]byte
					for range 1 + rnd.IntN(20) {
						batch = append(batch, keys[rnd.IntN(len(keys))])
					}
					opt := kvcr.FetchOptions{Move: true, Timeout: 3 * time.Second}
					for _, at := range rnd.Perm(3)[:1+rnd.IntN(3)] {
						opt.Sources = append(opt.Sources, nodes[at].endpoint)
					}
					switch rnd.IntN(6) {
					case 0:
						opt.Timeout = time.Duration(1+rnd.IntN(2000)) * time.Microsecond
					case 1, 2:
						opt.Move = false // so that several have it, and moves cross
					}
					op := h.FetchFrom(batch, opt)
					if rnd.IntN(4) == 0 {
						time.Sleep(time.Duration(rnd.IntN(800)) * time.Microsecond)
						op.Abort()
					}
					for i, r := range wait(t, op) {
						if r.OK() && !bytes.Equal(r.View.Bytes(), payload(string(batch[i]), size)) {
							t.Errorf("%s: wrong bytes", batch[i])
						}
						r.View.Release()
					}
				}
			}()
		}
		workers.Wait()
		for _, n := range nodes {
			eventually(t, "no claim, mark or hold is left", func() bool {
				st, err := n.Stats()
				return err == nil && n.Claims() == 0 && st.Marks == 0 && st.Holds == 0
			})
		}
		moved := uint64(0)
		for _, n := range nodes {
			st, err := n.Stats()
			if err != nil {
				t.Fatal(err)
			}
			moved += st.Counts.Moved
		}
		t.Logf("%d blocks were moved", moved)
		for _, k := range keys {
			here := 0
			for _, n := range nodes {
				if v, ok := n.Get(k); ok {
					here++
					if !bytes.Equal(v.Bytes(), payload(string(k), size)) {
						t.Errorf("%s: wrong bytes", k)
					}
					v.Release()
				}
			}
			if here == 0 {
				t.Errorf("%s is lost", k)
			}
		}
		if moved < 50 {
			t.Errorf("only %d blocks were moved", moved)
		}
	})
}
