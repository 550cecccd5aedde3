package kvcr_test

import (
	"bytes"
	"sync/atomic"
	"testing"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// lender is a host program that owns blocks: key "lent-0" lies in element 0 of its
// region, and so on.
type lender struct {
	elements int
	lent     atomic.Int64 // pins that are out
	asked    atomic.Int64
	refuse   atomic.Int64 // releases it will not take over
}

func (l *lender) RequestPin(_ string, keys [][]byte, done func(peer.PinResult)) func() {
	l.asked.Add(1)
	r := peer.PinResult{Blocks: make([]peer.PinnedBlock, len(keys))}
	for i, k := range keys {
		if n := int(k[len(k)-1] - '0'); bytes.HasPrefix(k, []byte("lent-")) && n < l.elements {
			r.Blocks[i] = peer.PinnedBlock{Refs: []peer.MemoryRef{{Label: "kv:blocks", Element: n}}, Pools: []byte{0}}
			r.Handle = "pin"
		}
	}
	if r.Handle != "" {
		l.lent.Add(1)
	}
	go done(r)
	return func() {}
}

func (l *lender) ReleasePin(string) bool {
	if l.refuse.Add(-1) >= 0 {
		return false
	}
	l.lent.Add(-1)
	return true
}

// TestFrameworkLends: a source serves blocks that its host program owns beside its
// own, gives every pin back, and lends none where the destination asks for the
// source's own.
func TestFrameworkLends(t *testing.T) {
	routes(t, func(t *testing.T, open func(*testing.T, func(*kvcr.Config)) *peerEngine, _ wire.Route) {
		const size, stride = 64 << 10, 80 << 10
		mem := make([]byte, 4*stride-(stride-size))
		fw := &lender{elements: 4}
		fw.refuse.Store(3)
		var regions peer.Regions
		if err := regions.Register(peer.Region{Label: "kv:*", Mem: mem, Size: size, Stride: stride, Count: 4}); err != nil {
			t.Fatal(err)
		}
		keys := [][]byte{[]byte("lent-0"), []byte("own"), []byte("lent-1"), []byte("lent-7"), []byte("lent-3")}
		for _, i := range []int{0, 1, 3} {
			copy(mem[i*stride:], payload(string("lent-")+string(rune('0'+i)), size))
		}
		a := open(t, func(c *kvcr.Config) { c.Peers.Framework, c.Peers.Regions = fw, &regions })
		b := open(t, nil)
		a.deposit(t, keys[1:2])
		from := kvcr.FetchOptions{Sources: []string{a.endpoint}, OwnedOnly: true}
		for i, r := range wait(t, b.h.FetchFrom(keys, from)) {
			if (i == 1) != r.OK() {
				t.Errorf("%s, owned only: %v", keys[i], r.Reason)
			}
			r.View.Release()
		}
		if fw.asked.Load() != 0 {
			t.Error("the framework was asked although only owned blocks were wanted")
		}
		from.OwnedOnly = false
		for i, r := range wait(t, b.h.FetchFrom(keys, from)) {
			if (i == 3) == r.OK() {
				t.Errorf("%s: %v", keys[i], r.Reason)
			}
			if r.OK() && !bytes.Equal(r.View.Bytes(), payload(string(keys[i]), size)) {
				t.Errorf("%s: wrong bytes", keys[i])
			}
			r.View.Release()
		}
		eventually(t, "every pin is given back", func() bool { return fw.lent.Load() == 0 })
		// The region is in use until the last ReleasePin has returned.
		eventually(t, "the region is free", func() bool { return regions.Deregister("kv:*") == nil })
	})
}
