package kvcr_test

import (
	"bytes"
	"testing"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints"
)

// kv.invalidate removes blocks at once, under readers too; kv.evict those that nobody
// uses. Each hash has its own answer.
func TestInvalidateAndEvict(t *testing.T) {
	for kind, wants := range map[string]map[uint64]string{
		hints.TypeInvalidate: {0: "", 1: "", 2: "no_evict", 3: "not_found", 4: "ambiguous_hash", 5: "adapter", 6: ""},
		hints.TypeEvict:      {0: "", 1: "busy", 2: "no_evict", 3: "not_found", 4: "ambiguous_hash", 5: "adapter", 6: ""},
	} {
		t.Run(kind, func(t *testing.T) {
			e := openHinted(t, nil)
			keys := keysOf(0, 10)
			e.deposit(t, keys)
			e.names.ambiguous[4], e.names.broken[5] = true, true
			e.h.Delete(keys[3])
			read, _ := e.h.Get(keys[1])
			held := e.h.DepositBatch([]kvcr.Item{{Key: keys[2], Value: payload("block-2", 64<<10)}}, kvcr.DepositOptions{NoEvict: true})
			id, rs := e.submit("", action(kind, "", 0, 1, 2, 3, 4, 5, 6, 0))
			if rs[0].Status != hints.Accepted {
				t.Fatal(rs)
			}
			left := 4 // 7 to 9, and block 2; blocks 4 and 5 nobody can name
			for h, why := range wants {
				if why == "busy" {
					left++
				}
				if got := e.h.Has(keys[h]); h != 3 && got != (why != "") {
					t.Errorf("block %d is here when SubmitHint returns: %t", h, got)
				}
			}
			if n := e.has(keys); n != left+2 {
				t.Errorf("%d blocks are left, want %d", n, left+2)
			}
			if !bytes.Equal(read.Bytes(), payload("block-1", 64<<10)) {
				t.Error("a reader has lost its bytes")
			}
			end := e.end(id, 0)
			for h, why := range wants {
				if why == "" {
					e.is(id, h, hints.StageRemoved, "")
				} else {
					e.is(id, h, hints.StageFailed, why)
				}
			}
			removed := 0
			for _, why := range wants {
				if why == "" {
					removed++
				}
			}
			if end.Removed != removed || end.Failed != len(wants)-removed || end.Reason != "" {
				t.Errorf("%+v", end)
			}
			read.Release()
			held[0].View.Release()
			none := e.order(kind, "", 3)
			if end := e.end(none, 0); end.Reason != "not_found" || end.Failed != 1 {
				t.Errorf("of nothing: %+v", end)
			}
		})
	}
}

// Hashes of parts of one group are all removed, although the first of them takes the
// others along.
func TestInvalidateAllParts(t *testing.T) {
	for _, kind := range []string{hints.TypeInvalidate, hints.TypeEvict} {
		e := openHinted(t, func(c *kvcr.Config) { c.Namespaces[0].Kind = kvcr.Chained })
		keys := keysOf(0, 2)
		value := payload("x", 64<<10)
		for _, r := range e.h.DepositGroup([]kvcr.Item{{Key: keys[0], Value: value}, {Key: keys[1], Value: value}}, kvcr.DepositOptions{}) {
			if !r.OK() {
				t.Fatal(r.Reason)
			}
		}
		id := e.order(kind, "", 0, 1, 5)
		if o := e.end(id, 0); o.Removed != 2 || o.Failed != 1 {
			t.Errorf("%s: %+v", kind, o)
		}
		e.is(id, 5, hints.StageFailed, "not_found")
	}
}

// A group goes as a whole; what follows a removed block in its chain stays until it is
// evicted.
func TestInvalidateGroup(t *testing.T) {
	for _, kind := range []string{hints.TypeInvalidate, hints.TypeEvict} {
		e := openHinted(t, func(c *kvcr.Config) { c.Namespaces[0].Kind = kvcr.Chained })
		keys := keysOf(0, 4)
		value := payload("x", 64<<10)
		for _, r := range e.h.DepositGroup([]kvcr.Item{{Key: keys[0], Value: value}, {Key: keys[1], Value: value}}, kvcr.DepositOptions{}) {
			if !r.OK() {
				t.Fatal(r.Reason)
			}
		}
		for _, r := range e.h.DepositBatch([]kvcr.Item{{Key: keys[2], Value: value}, {Key: keys[3], Value: value}}, kvcr.DepositOptions{Parent: keys[1], Position: 1}) {
			if !r.OK() {
				t.Fatal(r.Reason)
			}
		}
		id := e.order(kind, "", 0)
		e.end(id, 0)
		e.is(id, 0, hints.StageRemoved, "")
		for i, want := range []bool{false, false, true, true} {
			if e.h.Has(keys[i]) != want {
				t.Errorf("%s: block %d is here: %t", kind, i, !want)
			}
		}
	}
}
