package kvcr_test

import (
	"bytes"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// A node is fetched from by its address and by its host's name at the same time: by
// each all blocks come, and moves of the same blocks leave each of them in one place.
func TestFetchFromByTwoNames(t *testing.T) {
	if at, err := net.LookupHost("localhost"); err != nil || !strings.Contains(strings.Join(at, " "), "127.0.0.1") {
		t.Skipf("localhost is %v, %v", at, err)
	}
	routes(t, func(t *testing.T, open func(t *testing.T, change func(*kvcr.Config)) *peerEngine, route wire.Route) {
		const rounds, n = 10, 40
		a, b := open(t, nil), open(t, nil)
		names := []string{a.endpoint, strings.Replace(a.endpoint, "127.0.0.1", "localhost", 1)}
		for round := range rounds {
			keys := keysOf(round*n, round*n+n)
			a.deposit(t, keys)
			move := round%2 == 1
			var ops []*kvcr.Op
			for _, name := range names {
				ops = append(ops, b.h.FetchFrom(keys, kvcr.FetchOptions{Sources: []string{name}, Move: move, Timeout: 5 * time.Second}))
			}
			came := make([]bool, n)
			for by, op := range ops {
				rs := wait(t, op)
				for i, r := range rs {
					switch {
					case r.OK():
						came[i] = true
						if !bytes.Equal(r.View.Bytes(), payload(string(keys[i]), 64<<10)) {
							t.Errorf("%s by name %d: wrong bytes", keys[i], by)
						}
					case move && r.Reason == kvcr.ReasonMiss: // the other name's move was faster
					default:
						t.Errorf("round %d, %s by name %d: %v", round, keys[i], by, r.Reason)
					}
				}
				release(rs)
			}
			for i, ok := range came {
				if !ok {
					t.Errorf("round %d: %s has not come", round, keys[i])
				}
			}
			eventually(t, "operations end", func() bool {
				for _, p := range append(a.Peers().Peers(), b.Peers().Peers()...) {
					if p.Operations > 0 {
						return false
					}
				}
				return true
			})
			for _, k := range keys {
				if move && a.h.Has(k) {
					if s, ok := a.outcome(string(k)); ok && s == wire.StatusOK {
						t.Errorf("%s is said to be moved, and is still there", k)
					}
				}
				if !b.h.Has(k) {
					t.Errorf("%s is not here", k)
				}
				b.h.Delete(k)
			}
		}
		if s := b.Peers().Stats(); s.Reconnects != 0 || s.Connections != 2 {
			t.Errorf("%d reconnects, %d connections", s.Reconnects, s.Connections)
		}
		var at []peer.Incarnation
		for _, p := range b.Peers().Peers() {
			if p.Route != route {
				t.Errorf("%s: route %v, want %v", p.Endpoint, p.Route, route)
			}
			at = append(at, p.Incarnation)
		}
		if len(at) != 2 || at[0] != at[1] {
			t.Errorf("incarnations %x, want one and the same", at)
		}
	})
}
