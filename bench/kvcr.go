package bench

import (
	"fmt"

	"github.com/kvcr-go/kvcr"
)

// peerKVCR is the cache under test in the form of its peers.
var peerKVCR = Peer{Name: ours, Bounded: true, References: true, Open: openKVCR}

// openKVCR opens a flat namespace with size classes, the default.
func openKVCR(s Shape) (Cache, error) {
	return openEngine(kvcr.Config{
		Capacity: s.Capacity,
		Namespaces: []kvcr.Namespace{{
			Name:     "bench",
			MaxValue: max(s.ValueSize, 64<<10),
			// Room for a third more than is written: keys are hashed over shards.
			MaxBlocks: s.Keys + s.Keys/3 + 1024,
		}},
	})
}

// poolName is KVCR with blocks of one size, as KV caches have them.
const poolName = "kvcr-pool"

var peerPool = Peer{Name: poolName, Bounded: true, References: true, Open: openKVCRPool}

// openKVCRPool opens a flat namespace with one pool of fixed slots.
func openKVCRPool(s Shape) (Cache, error) {
	return openEngine(kvcr.Config{
		Capacity: s.Capacity,
		Namespaces: []kvcr.Namespace{{
			Name:      "bench",
			Pools:     []kvcr.Pool{{Name: "kv", SlotBytes: s.ValueSize}},
			Checksums: kvcr.ChecksumOff, // size classes carry none either
		}},
	})
}

type engineCache struct{ *kvcr.Engine }

func openEngine(cfg kvcr.Config) (Cache, error) {
	// As a server does it: the first touch of a page is the kernel's work, and on
	// a virtual machine the host's.
	cfg.Memory.Prefault = true
	e, err := kvcr.Open(cfg)
	if err != nil {
		return nil, fmt.Errorf("kvcr: %w", err)
	}
	return engineCache{e}, nil
}

// Settle has nothing to wait for: a write is complete when Set returns.
func (c engineCache) Settle() {}

func (c engineCache) Worker() (Worker, error) {
	h, err := c.Handle()
	if err != nil {
		return nil, err
	}
	return engineWorker{h}, nil
}

type engineWorker struct{ h *kvcr.Handle }

func (w engineWorker) View(k Key) (uint64, bool) {
	v, ok := w.h.Get(k.Bytes)
	if !ok {
		return 0, false
	}
	first := head(v.Bytes())
	v.Release()
	return first, true
}

func (w engineWorker) Copy(dst []byte, k Key) (int, bool) { return w.h.CopyTo(dst, k.Bytes) }
func (w engineWorker) Set(k Key, value []byte) error      { return w.h.Set(k.Bytes, value) }
func (w engineWorker) Close() error                       { return w.h.Close() }
