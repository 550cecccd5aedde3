//go:build !race

package kvcr

import "testing"

// The paths that callers care about allocate nothing.
func TestAllocations(t *testing.T) {
	for _, v := range helping {
		t.Run(v.name, func(t *testing.T) {
			ns := Namespace{MaxValue: 128 << 10}
			v.config(&ns)
			e := open(t, Config{Capacity: 8 << 20, Shards: 4, Namespaces: one(ns)})
			h := handle(t, e)
			key, miss, big := []byte("key"), []byte("miss"), []byte("big")
			value, large := stamped(1, 1000), stamped(2, 64<<10)
			buf := make([]byte, 2000)
			for range 10 { // lanes, rings and parkers are made at the first use
				h.Set(key, value)
				h.Set(big, large)
				h.Delete(miss)
			}
			for name, f := range map[string]func(){
				"hit": func() {
					v, ok := h.Get(key)
					if !ok {
						t.Fatal("miss")
					}
					v.Release()
				},
				"miss": func() {
					if _, ok := h.Get(miss); ok {
						t.Fatal("hit")
					}
				},
				"CopyTo":   func() { h.CopyTo(buf, key) },
				"AppendTo": func() { h.AppendTo(buf[:0], key) },
				"GetOrCopy": func() {
					for _, dst := range [][]byte{buf, buf[:10]} {
						_, v, ok := h.GetOrCopy(dst, key)
						if !ok {
							t.Fatal("miss")
						}
						v.Release()
					}
				},
				"Has": func() { h.Has(key) },
				"Set": func() {
					if err := h.Set(key, value); err != nil {
						t.Fatal(err)
					}
				},
				"Set of 64 KiB": func() {
					if err := h.Set(big, large); err != nil {
						t.Fatal(err)
					}
				},
				"Deposit": func() { h.Deposit(key, value) },
				"Delete":  func() { h.Delete(miss) },
			} {
				if checking() && (name == "hit" || name == "CopyTo" || name == "AppendTo" || name == "GetOrCopy" || name == "Has") {
					continue // checking builds keep a book of claims
				}
				if n := testing.AllocsPerRun(200, f); n != 0 {
					t.Errorf("%s allocates %.1f times", name, n)
				}
			}
		})
	}
}
