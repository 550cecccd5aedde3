package kvcr

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// Lookup says of a block what a claim says, for blocks of every form.
func TestRecordsLookup(t *testing.T) {
	e := open(t, Config{Capacity: 8 << 20, Namespaces: []Namespace{
		{Name: "values", MaxValue: 64 << 10, Share: 0.5},
		{Name: "chains", Kind: Chained, Share: 0.5, Pools: []Pool{{Name: "k", SlotBytes: 4 << 10}, {Name: "v", SlotBytes: 8 << 10}}},
	}})
	values, chains := handleIn(t, e, "values"), handleIn(t, e, "chains")
	long := bytes.Repeat([]byte("k"), MaxKeyBytes)
	for k, n := range map[string]int{"empty": 0, "one": 1, string(long): 64 << 10} {
		if err := values.Set([]byte(k), make([]byte, n)); err != nil {
			t.Fatal(err)
		}
	}
	k, v := make([]byte, 4<<10), make([]byte, 8<<10)
	for _, r := range chains.DepositGroup([]Item{
		{Key: []byte("group/0"), Value: k}, {Key: []byte("group/1"), Pieces: [][]byte{v, k, v}, Pools: []string{"v", "k", "v"}}, {Key: []byte("group/2"), Value: k},
	}, DepositOptions{}) {
		if !r.OK() {
			t.Fatal(r.Reason)
		}
	}
	if err := chains.Deposit([]byte("alone"), k); err != nil {
		t.Fatal(err)
	}
	rec := e.Records()
	for _, tt := range []struct {
		namespace, key string
		parts, part    uint16
	}{
		{"values", "empty", 0, 0}, {"values", "one", 0, 0}, {"values", string(long), 0, 0},
		{"chains", "group/0", 3, 0}, {"chains", "group/1", 3, 1}, {"chains", "group/2", 3, 2}, {"chains", "alone", 0, 0},
	} {
		var o wire.Offered
		c, st := rec.Claim(tt.namespace, &wire.Wanted{Key: []byte(tt.key)}, &o)
		if st != wire.StatusOK {
			t.Fatalf("%.10s: %v", tt.key, st)
		}
		rec.Unclaim(c)
		r := wire.Resolved{Pools: []byte("old"), Parts: 9, Part: 9, Size: 9}
		if st := rec.Lookup(tt.namespace, []byte(tt.key), &r); st != wire.StatusOK {
			t.Errorf("%.10s: %v", tt.key, st)
		}
		if r.Generation != o.Generation || r.Generation == 0 || r.Size != o.Size || !bytes.Equal(r.Pools, o.Pools) || r.Parts != o.Parts || r.Parts != tt.parts || r.Part != tt.part {
			t.Errorf("%.10s: %+v, offered as %+v", tt.key, r, o)
		}
	}
	for _, tt := range []struct {
		namespace, key string
		want           wire.Status
	}{
		{"values", "group/0", wire.StatusMiss}, {"values", "nothing", wire.StatusMiss}, {"nowhere", "one", wire.StatusMiss},
		{"values", "", wire.StatusBadKey}, {"values", string(long) + "k", wire.StatusBadKey},
	} {
		if st := rec.Lookup(tt.namespace, []byte(tt.key), new(wire.Resolved)); st != tt.want {
			t.Errorf("%s %.10s: %v, want %v", tt.namespace, tt.key, st, tt.want)
		}
	}
	// What other steps of the records, and the shards' owners, are at does not matter.
	rec.mu.Lock()
	looked := make(chan wire.Status)
	e.list[0].parts[0].Do(func() {
		go func() { looked <- rec.Lookup("values", []byte("one"), new(wire.Resolved)) }()
		select {
		case st := <-looked:
			if st != wire.StatusOK {
				t.Error(st)
			}
		case <-time.After(5 * time.Second):
			t.Error("Lookup waits")
			go func() { <-looked }()
		}
	})
	rec.mu.Unlock()
	quiet(t, e)
}

// Lookups under way when the engine closes end before its memory goes, and later ones
// are refused.
func TestRecordsLookupAtClose(t *testing.T) {
	for range 20 {
		e := open(t, Config{Capacity: 1 << 20, Namespaces: one(Namespace{})})
		h := handle(t, e)
		for i := range 100 {
			if err := h.Set(fmt.Appendf(nil, "%d", i), make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
		}
		rec := e.Records()
		begun, ended := make(chan bool, 2), make(chan error, 2)
		for range cap(begun) {
			go func() {
				for i := 0; ; i++ {
					switch st := rec.Lookup("ns", fmt.Appendf(nil, "%d", i%100), new(wire.Resolved)); st {
					case wire.StatusOK:
					case wire.StatusClosed:
						ended <- nil
						return
					default:
						ended <- fmt.Errorf("%v", st)
						return
					}
					if i == 100 {
						begun <- true
					}
				}
			}()
		}
		<-begun
		<-begun
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		for range cap(ended) {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
}
