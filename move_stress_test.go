package kvcr_test

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

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
