package faults

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/peer"
)

// paged is an engine whose blocks are pages of several parts.
type paged struct {
	e *kvcr.Engine
	h *kvcr.Handle

	mu   sync.Mutex
	told map[string]string
}

func openPaged(t *testing.T) *paged {
	t.Helper()
	p := &paged{told: map[string]string{}}
	e, err := kvcr.Open(kvcr.Config{
		Capacity:   16 << 20,
		Namespaces: []kvcr.Namespace{{Name: "pages", Kind: kvcr.Chained, Pools: []kvcr.Pool{{Name: "kv", SlotBytes: smallBytes}}}},
		Peers: &kvcr.Peers{Listen: []string{"tcp://127.0.0.1:0"}, Routes: []string{"stream"}, Timing: timing, OnOutcome: func(o peer.Outcome) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.told[string(o.Key)] = o.Status.String()
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	p.e = e
	if p.h, err = e.Handle(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p *paged) has(keys []string) (n int) {
	for _, k := range keys {
		if v, ok := p.h.Get([]byte(k)); ok {
			if bytes.Equal(v.Bytes(), payload(k)) {
				n++
			}
			v.Release()
		}
	}
	return n
}

// outcome is what all keys of a page are said to have come to, or that they differ.
func (p *paged) outcome(keys []string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := p.told[keys[0]]
	for _, k := range keys {
		if p.told[k] != first {
			return fmt.Sprintf("%s, and %s", first, p.told[k])
		}
	}
	return first
}

// A logical page, which is several blocks, moves whole or not at all: the source
// removes all of its parts when all have landed, and else none.
func TestPagesMoveWhole(t *testing.T) {
	for _, tt := range []struct {
		name    string
		ask     int       // parts that the move names
		noEvict int       // part that is kept at the source; -1: none
		there   int       // parts at the destination, afterwards
		kept    int       // parts at the source
		says    [2]string // the outcome at the source, at the destination
	}{
		{"all parts", 3, -1, 3, 0, [2]string{"ok", "ok"}},
		{"not all are named", 2, -1, 0, 3, [2]string{"group", "group"}},
		{"one is kept by its owner", 3, 1, 3, 3, [2]string{"no_evict", "no_evict"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := openPaged(t), openPaged(t)
			keys := names("s-part", 3)
			var items []kvcr.Item
			for _, k := range keys {
				items = append(items, kvcr.Item{Key: []byte(k), Value: payload(k)})
			}
			for _, r := range a.h.DepositGroup(items, kvcr.DepositOptions{NoEvict: tt.noEvict >= 0}) {
				if !r.OK() {
					t.Fatal(r.Reason)
				}
				if r.View.Bytes() != nil {
					defer r.View.Release()
				}
			}
			op := b.h.FetchFrom(bytesOf(keys[:tt.ask]), kvcr.FetchOptions{Sources: a.e.Peers().Endpoints(), Move: true, Timeout: 5 * time.Second})
			for _, r := range waitOp(t, op) {
				if r.OK() {
					r.View.Release()
				}
			}
			restHere(t, b.e)
			for end := time.Now().Add(4 * time.Second); a.outcome(keys[:tt.ask]) == "" && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
			if n := b.has(keys); n != tt.there {
				t.Errorf("%d parts are at the destination, want %d", n, tt.there)
			}
			if n := a.has(keys); n != tt.kept {
				t.Errorf("%d parts are at the source, want %d", n, tt.kept)
			}
			for i, p := range []*paged{a, b} {
				if says := p.outcome(keys[:tt.ask]); says != tt.says[i] {
					t.Errorf("the %s says %q, want %q", []string{"source", "destination"}[i], says, tt.says[i])
				}
			}
		})
	}
}
