package faults

import (
	"testing"
	"time"
)

// A block that is to be removed once a move is confirmed is read, fetched and
// deposited like any other until then; and a deposit wins over the move.
func TestPendingBlocks(t *testing.T) {
	p := newPair(t, []string{"stream"})
	keys := names("b-pending", 2)
	p.a.must(request{Verb: "deposit", Keys: keys})
	p.w.only(p.a)
	p.b.must(request{Verb: "arm", Point: "send ACCEPT", Peer: p.a.self})
	fetched := p.b.begin(request{Verb: "fetch", Keys: keys, Endpoint: p.a.endpoint, Move: true, Timeout: 2 * time.Second})
	p.b.reached()
	if b := p.a.must(request{Verb: "base"}).Base; b.Marks != len(keys) {
		t.Fatalf("%d blocks are marked", b.Marks)
	}
	if has := p.a.must(request{Verb: "has", Keys: keys}).Has; !has[0] || !has[1] {
		t.Errorf("readers of the source: %v", has)
	}
	reasons, _, err := p.w.fetch(p.a.endpoint, keys, 2*time.Second)
	if err != nil || !all(reasons, "ok") {
		t.Errorf("another peer: %v, %v", reasons, err)
	}
	p.a.must(request{Verb: "deposit", Keys: keys[:1]})
	if b := p.a.must(request{Verb: "base"}).Base; b.Marks != len(keys)-1 {
		t.Errorf("%d blocks are marked, after a deposit of one", b.Marks)
	}
	p.b.must(request{Verb: "go"})
	if got, err := fetched(); err != nil || !all(got.Reasons, "ok") {
		t.Fatal(got.Reasons, err)
	}
	p.b.rest(t)
	p.a.rest(t)
	if has := p.a.must(request{Verb: "has", Keys: keys}).Has; !has[0] || has[1] {
		t.Errorf("the source has %v: the deposited one stays, the other is moved", has)
	}
	for _, c := range []*proc{p.a, p.b} {
		if told := c.must(request{Verb: "outcomes", Keys: keys}).Outcomes; told[keys[0]] != "redeposited" || told[keys[1]] != "ok" {
			t.Errorf("the %s says %v", c.set.Name, told)
		}
	}
}
