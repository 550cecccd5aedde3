package kvcr_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints"
)

// Three engines move and copy the same blocks from each other at once, beside requests
// that read them: every action ends whole, no block is lost, none has other bytes.
func TestHintsAmongThree(t *testing.T) {
	const blocks = 80
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	moves := func(c *kvcr.Config) { c.Hints.Advice.RequestMoves = true }
	engines := []*hintedEngine{openHinted(t, moves), openHinted(t, moves), openHinted(t, moves)}
	for i, k := range keysOf(0, blocks) {
		engines[i%3].deposit(t, [][]byte{k})
	}
	type order struct {
		e      *hintedEngine
		id     string
		hashes []uint64
	}
	var mu sync.Mutex
	var orders []order
	var workers sync.WaitGroup
	for w := range 6 {
		workers.Add(1)
		go func() {
			defer workers.Done()
			rng := rand.New(rand.NewPCG(seed, uint64(w)))
			e, from := engines[w%3], engines[(w%3+1+w/3)%3]
			h, err := e.Handle()
			if err != nil {
				t.Error(err)
				return
			}
			defer h.Close()
			for n := range 12 {
				lo := rng.IntN(blocks - 20)
				keys, hashes := keysOf(lo, lo+20), hashesOf(uint64(lo), uint64(lo)+20)
				fetch := func(opt kvcr.FetchOptions) {
					op := h.FetchFrom(keys, opt)
					<-op.Done()
					for i, r := range op.Results() {
						if r.OK() && !bytes.Equal(r.View.Bytes(), payload(string(keys[i]), 64<<10)) {
							t.Errorf("%s: wrong bytes", keys[i])
						}
						r.View.Release()
					}
				}
				switch rng.IntN(5) {
				case 0, 1:
					kind := []string{hints.TypePrefetch, hints.TypeMove}[rng.IntN(2)]
					id := fmt.Sprintf("w%d-%d", w, n)
					rs, err := e.SubmitHintValue("", &hints.Envelope{MessageID: id, Actions: []hints.Action{action(kind, from.endpoint, hashes...)}})
					if err != nil || rs[0].Status != hints.Accepted {
						t.Errorf("%v %v", rs, err)
						return
					}
					mu.Lock()
					orders = append(orders, order{e, id, hashes})
					mu.Unlock()
				case 2:
					fetch(kvcr.FetchOptions{Sources: []string{from.endpoint}, Timeout: 2 * time.Second, Move: rng.IntN(3) == 0})
				case 3: // and not to be kept
					request := fmt.Sprintf("r%d-%d", w, n)
					advice := hints.Transfer{Source: from.endpoint, Hashes: hashes, NoRetain: true, Move: rng.IntN(2) == 0}
					if _, err := e.SubmitHintValue(request, &hints.Envelope{Actions: []hints.Action{{Type: hints.TypeFetch, Payload: &advice}}}); err != nil {
						t.Error(err)
					}
					fetch(kvcr.FetchOptions{RequestID: request, Timeout: 2 * time.Second})
					e.DiscardHint(request)
				default:
					for _, k := range keys {
						if v, ok := h.Get(k); ok {
							v.Release()
						}
					}
				}
			}
		}()
	}
	workers.Wait()
	for _, o := range orders {
		o.e.end(o.id, 0)
		o.e.whole(o.id, 0, o.hashes)
	}
	for _, e := range engines {
		eventually(t, "all work is over", func() bool {
			st, err := e.Stats()
			return err == nil && st.Hints.Actions == 0 && st.Hints.Bytes == 0 && st.Hints.RequestBlocks == 0 && st.Holds == 0 && st.Marks == 0
		})
	}
	for _, k := range keysOf(0, blocks) {
		copies := 0
		for _, e := range engines {
			if v, ok := e.h.Get(k); ok {
				copies++
				if !bytes.Equal(v.Bytes(), payload(string(k), 64<<10)) {
					t.Errorf("%s has other bytes", k)
				}
				v.Release()
			}
		}
		if copies == 0 {
			t.Errorf("%s is lost", k)
		}
	}
}

// A group moves as a whole, or stays as a whole.
func TestMoveGroupByHint(t *testing.T) {
	chained := func(c *kvcr.Config) { c.Namespaces[0].Kind = kvcr.Chained }
	a, b := openHinted(t, chained), openHinted(t, chained)
	keys := keysOf(0, 6)
	value := payload("x", 64<<10)
	for i := 0; i < 6; i += 2 {
		for _, r := range a.h.DepositGroup([]kvcr.Item{{Key: keys[i], Value: value}, {Key: keys[i+1], Value: value}}, kvcr.DepositOptions{}) {
			if !r.OK() {
				t.Fatal(r.Reason)
			}
		}
	}
	id, _ := b.submit("", action(hints.TypeMove, a.endpoint, 0, 1), action(hints.TypePrefetch, a.endpoint, 2, 3), action(hints.TypeMove, a.endpoint, 4))
	if o := b.end(id, 0); o.Moved != 2 {
		t.Errorf("a whole group: %+v", o)
	}
	if o := b.end(id, 1); o.Copied != 2 {
		t.Errorf("a copy of a group: %+v", o)
	}
	if o := b.end(id, 2); o.Moved != 0 || o.Failed+o.Kept != 1 {
		t.Errorf("a part of a group: %+v", o)
	}
	if n := a.has(keys); n != 4 {
		t.Errorf("the source has %d blocks", n)
	}
	if n := b.has(keys[:4]); n != 4 {
		t.Errorf("%d blocks have come", n)
	}
}
