package faults

import (
	"strings"
	"testing"
	"time"
)

// TestStopped stops a peer without killing it (SIGSTOP), in the midst of moves and
// between fetches: whoever waits for it has an answer when the time is up, with
// nothing lost and nothing left over once it goes on.
func TestStopped(t *testing.T) {
	for _, routes := range [][]string{{"stream"}, {"shm", "stream"}} {
		t.Run(routes[0], func(t *testing.T) {
			t.Parallel()
			p := newPair(t, routes)
			t.Run("source", p.sourceStops)
			t.Run("destination", p.destinationStops)
		})
	}
}

// newPair starts a source and a destination that know each other.
func newPair(t *testing.T, routes []string) *pair {
	t.Helper()
	p := &pair{t: t, w: watch(t, routes), lost: map[string]int{}}
	p.a = start(t, settings{Name: "source", Listen: address(t), Routes: routes})
	p.b = start(t, settings{Name: "destination", Listen: address(t), Routes: routes})
	for _, c := range []*proc{p.a, p.b} {
		c.must(request{Verb: "deposit", Keys: witnessed})
	}
	t.Cleanup(p.w.close) // before they are gone
	p.fetchWithin("first", time.Second)
	p.w.only(p.b)
	return p
}

// A fetch of a source that has stopped ends in its time, and keeps no memory; the
// next ones are served when it goes on.
func (p *pair) sourceStops(t *testing.T) {
	keys := names("b-src", 4)
	p.a.must(request{Verb: "deposit", Keys: keys})
	taken := p.b.rest(t).Taken
	p.a.pause()
	const limit = 400 * time.Millisecond
	a := p.b.must(request{Verb: "fetch", Keys: keys, Endpoint: p.a.endpoint, Timeout: limit})
	if !all(a.Reasons, "timeout") || a.Took < limit || a.Took > limit+time.Second {
		t.Errorf("%v after %v, of a source that does not answer", a.Reasons, a.Took)
	}
	// In the midst: the destination has its offer, then the source stops.
	p.a.resume()
	p.fetchWithin("between", time.Second)
	p.w.only() // what it claims is not to be counted
	p.b.rest(t)
	p.b.must(request{Verb: "arm", Point: "read OFFER", Peer: p.a.self})
	fetched := p.b.begin(request{Verb: "fetch", Keys: keys, Endpoint: p.a.endpoint, Move: true, Timeout: limit})
	p.b.reached()
	p.a.pause()
	p.b.must(request{Verb: "go"})
	got, err := fetched()
	if err != nil || got.Took > limit+time.Second {
		t.Fatalf("%v after %v, %v", got.Reasons, got.Took, err)
	}
	has := p.b.must(request{Verb: "has", Keys: keys}).Has
	b := p.b.must(request{Verb: "base"}).Base
	held := 0
	for i := range keys {
		if has[i] != (got.Reasons[i] == "ok") {
			t.Errorf("%s: %s, and there: %t", keys[i], got.Reasons[i], has[i])
		}
		if has[i] {
			held++
		}
	}
	// What has arrived is held for the answer that does not come; the rest has let
	// its memory go.
	if b.Holds != held || b.Claims != 0 || b.Posted != 0 || b.Quarantined != 0 || b.Taken != taken {
		t.Errorf("%d have arrived, and the destination has %+v, %d bytes taken before", held, b, taken)
	}
	if p.b.set.Routes[0] == "shm" && held != len(keys) {
		t.Errorf("route shm needs no source that runs: %v", got.Reasons)
	}
	p.a.resume()
	p.fetchWithin("after", 2*time.Second)
	p.w.only(p.b)
	p.b.rest(t)
	p.a.rest(t)
	p.nowhereLost(t, keys)
}

// A destination that stops after its confirmation was due: the source asks, keeps
// its copy, and says so to who confirms in the end.
func (p *pair) destinationStops(t *testing.T) {
	keys := names("b-dst", 2)
	p.a.must(request{Verb: "deposit", Keys: keys})
	p.w.only(p.a)
	p.b.must(request{Verb: "arm", Point: "send CONFIRM", Peer: p.a.self})
	fetched := p.b.begin(request{Verb: "fetch", Keys: keys, Endpoint: p.a.endpoint, Move: true, Timeout: 400 * time.Millisecond})
	p.b.reached()
	p.b.pause()
	deadline := time.Now().Add(5 * time.Second)
	for p.a.must(request{Verb: "base"}).Base.Marks > 0 {
		if time.Now().After(deadline) {
			t.Fatal("the marks are never lifted")
		}
		time.Sleep(5 * time.Millisecond)
	}
	if has := p.a.must(request{Verb: "has", Keys: keys}).Has; !has[0] || !has[1] {
		t.Fatalf("nobody has confirmed, and the source has %v", has)
	}
	p.b.resume()
	p.b.must(request{Verb: "go"})
	if _, err := fetched(); err != nil {
		t.Fatal(err)
	}
	p.fetchWithin("after", 2*time.Second)
	p.b.rest(t)
	p.a.rest(t)
	for side, c := range map[string]*proc{"source": p.a, "destination": p.b} {
		for k, how := range c.must(request{Verb: "outcomes", Keys: keys}).Outcomes {
			if how == "ok" || how == "" {
				t.Errorf("the %s says of %s: %q, though the source has kept it", side, k, how)
			}
		}
	}
	if has := p.a.must(request{Verb: "has", Keys: keys}).Has; !has[0] || !has[1] {
		t.Errorf("a confirmation that came too late has removed: %v", has)
	}
	p.nowhereLost(t, keys)
	p.w.only(p.b)
}

// nowhereLost has each key somewhere, and outcomes that tell where.
func (p *pair) nowhereLost(t *testing.T, keys []string) {
	t.Helper()
	a, b := p.a.must(request{Verb: "has", Keys: keys}).Has, p.b.must(request{Verb: "has", Keys: keys}).Has
	told := p.a.must(request{Verb: "outcomes", Keys: keys}).Outcomes
	for i, k := range keys {
		if !a[i] && !b[i] {
			t.Errorf("%s is lost", k)
		}
		if moved := told[k] == "ok"; told[k] != "" && moved == a[i] {
			t.Errorf("the source says of %s: %q; and has it: %t", k, told[k], a[i])
		}
	}
	for _, c := range []*proc{p.a, p.b} {
		c.must(request{Verb: "drop", Keys: keys})
	}
}

// Many who wait for a peer that has just come back make one connection to it; and
// the first contact may come before it listens.
func TestReturn(t *testing.T) {
	addr := address(t)
	relay := newRelay(t, strings.TrimPrefix(addr, "tcp://"))
	a := spawn(t, settings{Name: "source", Listen: addr, Routes: []string{"shm", "stream"}, Slots: 96})
	b := start(t, settings{Name: "destination", Routes: []string{"shm", "stream"}, Slots: 96})
	keys := names("s-many", 64)
	fetch := func(limit time.Duration) (wait func() int) {
		var all []func() (reply, error)
		for _, k := range keys {
			all = append(all, b.begin(request{Verb: "fetch", Keys: []string{k}, Endpoint: relay.endpoint(), Timeout: limit}))
		}
		return func() (ok int) {
			for _, f := range all {
				if r, err := f(); err == nil && r.Reasons[0] == "ok" {
					ok++
				}
			}
			return ok
		}
	}
	if n := fetch(100 * time.Millisecond)(); n != 0 {
		t.Fatalf("%d were fetched from nobody", n)
	}
	var first uint64
	for _, when := range []string{"first contact", "a new life"} {
		// All wait for a peer that does not listen, or no more.
		wait := fetch(10 * time.Second)
		time.Sleep(30 * time.Millisecond)
		if accepted := relay.accepted(); accepted != 0 {
			t.Errorf("%s: %d connections to nobody", when, accepted)
		}
		if first == 0 {
			a.open()
		} else {
			a.restart()
		}
		if a.self == first {
			t.Errorf("%s: the same incarnation", when)
		}
		first = a.self
		a.must(request{Verb: "deposit", Keys: keys})
		relay.open(t) // only now it is there, with all that is asked for
		if n := wait(); n != len(keys) {
			t.Errorf("%s: %d of %d fetches", when, n, len(keys))
		}
		if accepted := relay.accepted(); accepted != 1 {
			t.Errorf("%s: %d fetches made %d connections", when, len(keys), accepted)
		}
		b.rest(t)
		a.rest(t)
		relay.shut()
		a.kill()
		b.must(request{Verb: "drop", Keys: keys})
	}
}
