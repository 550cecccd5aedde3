package kvcr

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/arena"
)

// What Share opens shows the engine's writes, at View.Offset, and takes none.
func TestShare(t *testing.T) {
	kinds := map[string]Namespace{
		"classes": {MaxValue: 256 << 10},
		"pools":   {Pools: []Pool{{Name: "kv", SlotBytes: 64 << 10}, {Name: "index", SlotBytes: 4 << 10, Share: 0.25}}},
		"chained": {Kind: Chained, Pools: []Pool{{SlotBytes: 64 << 10}}},
	}
	for name, ns := range kinds {
		t.Run(name, func(t *testing.T) {
			e := open(t, Config{Capacity: 16 << 20, Shards: 4, Namespaces: one(ns), Memory: Memory{Backing: arena.Memfd}})
			h := handle(t, e)
			// Twice: the second finds the memory sealed.
			for round := range 2 {
				f, size, err := e.Share("ns")
				if err != nil {
					t.Fatalf("Share, round %d: %v", round, err)
				}
				defer f.Close()
				mem, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
				if err != nil {
					t.Fatalf("mmap of %d bytes: %v", size, err)
				}
				defer unix.Munmap(mem)
				for i, n := range []int{8, 100, 4096, 60 << 10} {
					key := keyOf(4*round + i)
					want := stamped(uint64(100*round+i), n)
					if err := h.Set(key, want); err != nil {
						t.Fatalf("Set of %d bytes after Share: %v", n, err)
					}
					v, ok := h.Get(key)
					off, in := v.Offset()
					if !ok || !in || off < 0 || off > size-int64(n) {
						t.Fatalf("%d bytes: hit %t, offset %d, %t, of %d", n, ok, off, in, size)
					}
					if !bytes.Equal(mem[off:off+int64(n)], want) {
						t.Errorf("%d bytes at %d differ from what was set", n, off)
					}
					v.Release()
				}
				if _, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
					t.Error("the memory can be mapped for writing")
				}
			}
		})
	}
}

func TestOffsetOfNoSinglePlace(t *testing.T) {
	ns := Namespace{Pools: []Pool{{Name: "a", SlotBytes: 4096, Share: 0.5}, {Name: "b", SlotBytes: 4096, Share: 0.5}}}
	e := open(t, Config{Capacity: 4 << 20, Shards: 1, Namespaces: one(ns)})
	h := handle(t, e)
	item := Item{Key: keyOf(1), Pools: []string{"a", "b"}, Pieces: [][]byte{stamped(1, 4096), stamped(2, 4096)}}
	if out := h.DepositBatch([]Item{item}, DepositOptions{}); !out[0].OK() {
		t.Fatalf("deposit: %v", out[0].Reason)
	}
	v, ok := h.Get(keyOf(1))
	if !ok {
		t.Fatal("the block is gone")
	}
	if off, ok := v.Offset(); ok {
		t.Errorf("a block of two pieces lies at %d", off)
	}
	v.Release()
	if off, ok := v.Offset(); ok {
		t.Errorf("a released view lies at %d", off)
	}
	if err := h.Set(keyOf(2), nil); err != nil {
		t.Fatal(err)
	}
	empty, _ := h.Get(keyOf(2))
	defer empty.Release()
	if off, ok := empty.Offset(); !ok || off != 0 {
		t.Errorf("an empty value lies at %d, %t", off, ok)
	}
}

func TestShareRefused(t *testing.T) {
	e := open(t, Config{Capacity: 4 << 20, Shards: 1, Namespaces: one(Namespace{MaxValue: 1 << 10})})
	_, _, err := e.Share("other")
	isErr(t, "Share of no namespace", err, ErrNamespace)
	_, _, err = e.Share("ns")
	isErr(t, "Share of anonymous memory", err, ErrNotShareable)
	e.Close()
	_, _, err = e.Share("ns")
	isErr(t, "Share after Close", err, ErrClosed)
}
