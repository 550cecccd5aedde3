package faults

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/ucx"
)

// death is one way to die: at a point of a transfer that one of the two comes to.
type death struct {
	route  string
	move   bool
	source bool // the point is the source's, not the destination's
	point  string
	victim string // "source", "destination", "both"
}

func (d death) String() string {
	return fmt.Sprintf("%s, move=%t, %s, %s dies", d.route, d.move, d.point, d.victim)
}

// killRoutes are the routes that can be had here.
func killRoutes() []string {
	if ucx.Built {
		return []string{"stream", "shm", "ucx"}
	}
	return []string{"stream", "shm"}
}

// deaths are all of them.
func deaths() (list []death) {
	for _, route := range killRoutes() {
		for _, move := range []bool{false, true} {
			requests, replies := []string{"START"}, []string{"OFFER"}
			var halfway []string
			switch route {
			case "shm":
				halfway = []string{"copy", "copied"}
			case "stream":
				halfway = []string{"part"}
			}
			if route != "shm" {
				requests, replies = append(requests, "ACCEPT"), append(replies, "DONE")
			}
			if move {
				requests, replies = append(requests, "CONFIRM"), append(replies, "REMOVED")
			}
			requests, replies = append(requests, "FINISH"), append(replies, "FINISHED")
			add := func(source bool, points ...string) {
				for _, p := range points {
					for _, victim := range []string{"source", "destination", "both"} {
						list = append(list, death{route, move, source, p, victim})
					}
				}
			}
			add(false, halfway...)
			for _, m := range requests {
				add(false, "send "+m, "sent "+m)
				add(true, "read "+m)
			}
			for _, m := range replies {
				add(true, "send "+m, "sent "+m)
				add(false, "read "+m)
			}
		}
	}
	return list
}

// mayConfirm reports whether a confirmation may be on its way at that point, or
// read: from here on the source may remove its copy though the destination dies.
// While the source stands at a point the destination goes on: it confirms what has
// arrived, which DONE may follow, and on route shm it needs nothing but the OFFER.
func (d death) mayConfirm() bool {
	switch d.point {
	case "sent OFFER":
		return d.move && d.route == "shm"
	case "send DONE", "sent DONE", "read DONE", "sent CONFIRM":
		return d.move
	}
	return d.hasConfirmed() && d.point != "send CONFIRM"
}

// hasConfirmed reports whether the destination has something to confirm, or has
// done so, when that point is reached.
func (d death) hasConfirmed() bool {
	switch d.point {
	case "send CONFIRM", "sent CONFIRM", "read CONFIRM", "send REMOVED", "sent REMOVED", "read REMOVED",
		"send FINISH", "sent FINISH", "read FINISH", "send FINISHED", "sent FINISHED", "read FINISHED":
		return d.move
	}
	return false
}

// window is the one stated exception of a move: the destination dies between its
// confirmation and the source's reading of it.
func (d death) window() bool {
	return d.mayConfirm() && (!d.hasConfirmed() || d.point == "sent CONFIRM" || d.point == "read CONFIRM")
}

// TestKills kills source, destination or both at each step of copies and moves. The
// survivor goes on, no block is lost, nothing stays claimed, marked, held or
// reserved, who comes back at the same address is fetched from within a second,
// and a third process is served all the while as well as before.
func TestKills(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("%d kills, -seed %d", *killsFlag, seed)
	order := rand.New(rand.NewPCG(seed, 0))
	list := deaths()
	order.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	kills := *killsFlag
	if testing.Short() {
		kills = min(kills, 6)
	}
	for len(list) < kills {
		list = append(list, list...)
	}
	list = list[:kills]
	for _, route := range killRoutes() {
		t.Run(route, func(t *testing.T) {
			mine := slices.Clone(list)
			mine = slices.DeleteFunc(mine, func(d death) bool { return d.route != route })
			killAll(t, route, mine)
		})
	}
}

// pair is a source and a destination.
type pair struct {
	t    *testing.T
	a, b *proc // b fetches from a
	w    *witness
	lost map[string]int // blocks that went, by why
}

func killAll(t *testing.T, route string, list []death) {
	routes := []string{route, "stream"}
	if route == "stream" {
		routes = routes[:1]
	}
	p := &pair{t: t, w: watch(t, routes), lost: map[string]int{}}
	defer p.w.close()
	p.a = start(t, settings{Name: "source", Listen: address(t), Routes: routes})
	p.b = start(t, settings{Name: "destination", Listen: address(t), Routes: routes})
	for _, c := range []*proc{p.a, p.b} {
		c.must(request{Verb: "deposit", Keys: witnessed})
	}
	p.w.only(p.a, p.b)
	p.fetchWithin("first", time.Second)
	time.Sleep(150 * time.Millisecond) // for the witness to see how fast it is
	before, _ := p.w.median()
	if s, _ := p.w.e.Peers().Known(p.a.endpoint); !strings.HasPrefix(s.Route.String(), route) {
		t.Fatalf("the route is %v, and not %s", s.Route, route)
	}
	for i, d := range list {
		if p.kill(i, d); t.Failed() {
			t.Fatalf("kill %d: %v", i, d)
		}
	}
	after, n := p.w.median()
	t.Logf("%d kills; lost with the destination: %v; the witness: %v before, %v between them, %d fetches", len(list), p.lost, before, after, n)
	if limit := 10*before + 20*time.Millisecond; after > limit {
		t.Errorf("the witness's fetches take %v, took %v before: over %v", after, before, limit)
	}
}

// kill is one death and all that must be so afterwards.
func (p *pair) kill(i int, d death) {
	t := p.t
	keys := names(fmt.Sprintf("b%d", i), 3)
	p.a.must(request{Verb: "deposit", Keys: keys})
	at, other := p.b, p.a
	if d.source {
		at, other = p.a, p.b
	}
	dies := map[string][]*proc{"source": {p.a}, "destination": {p.b}, "both": {p.a, p.b}}[d.victim]
	taken := map[*proc]int64{}
	for _, c := range []*proc{p.a, p.b} {
		taken[c] = c.rest(t).Taken
	}
	survivors := slices.DeleteFunc([]*proc{p.a, p.b}, func(c *proc) bool { return slices.Contains(dies, c) })
	p.w.only(survivors...)
	suicide := len(dies) == 1 && dies[0] == at
	at.must(request{Verb: "arm", Point: d.point, Peer: other.self, Kill: suicide})
	fetched := p.b.begin(request{Verb: "fetch", Keys: keys, Endpoint: p.a.endpoint, Move: d.move, Timeout: 4 * time.Second})
	if suicide {
		select {
		case <-at.dead:
		case <-time.After(10 * time.Second):
			t.Fatalf("%v: never", d)
		}
		at.reap()
	} else {
		at.reached()
		for _, c := range dies {
			c.kill()
		}
		if !slices.Contains(dies, at) {
			at.must(request{Verb: "go"})
		}
	}
	for _, c := range dies {
		c.restart()
		c.must(request{Verb: "deposit", Keys: witnessed})
	}
	p.fetchWithin(fmt.Sprintf("n%d", i), time.Second)
	got, err := fetched()
	for _, c := range survivors {
		if c.call(request{Verb: "base"}); c.gone() {
			t.Fatalf("%v: the %s did not survive", d, c.set.Name)
		}
	}
	if len(survivors) == 1 {
		switch d.victim {
		case "source":
			if err != nil {
				t.Fatalf("%v: the destination's fetch: %v", d, err)
			}
			p.destinationHas(d, keys, got.Reasons)
		case "destination":
			p.sourceHas(d, keys)
		}
	}
	over := time.Now()
	for _, c := range []*proc{p.a, p.b} {
		c.must(request{Verb: "drop", Keys: keys})
		if slices.Contains(survivors, c) {
			c.restWith(t, taken[c])
		} else {
			c.rest(t)
		}
	}
	if took := time.Since(over); took > 2*time.Second { // by a timer, and not by what has happened
		t.Errorf("%v: at rest only after %v", d, took)
	}
}

func (p *proc) gone() bool {
	select {
	case <-p.dead:
		return true
	default:
		return false
	}
}

// destinationHas looks for what the destination was told to have, after the death
// of the source.
func (p *pair) destinationHas(d death, keys, reasons []string) {
	has := p.b.must(request{Verb: "has", Keys: keys}).Has
	n := 0
	for i, k := range keys {
		if has[i] {
			n++
		}
		if reasons[i] == "ok" && !has[i] {
			p.t.Errorf("%v: %s was fetched, and is not there", d, k)
		}
	}
	if d.hasConfirmed() && n == 0 {
		p.t.Errorf("%v: confirmed, and nothing is there", d)
	}
	if strings.HasSuffix(d.point, "FINISH") && n != len(keys) {
		p.t.Errorf("%v: finished, and only %d are there", d, n)
	}
	p.served(d, p.b, keys, has)
}

// sourceHas looks for what the source must have kept, after the death of the
// destination.
func (p *pair) sourceHas(d death, keys []string) {
	has := p.a.must(request{Verb: "has", Keys: keys}).Has
	told := p.a.must(request{Verb: "outcomes", Keys: keys}).Outcomes
	for i, k := range keys {
		switch {
		case has[i] && told[k] == "ok":
			p.t.Errorf("%v: %s is said to be moved, and is there", d, k)
		case has[i]:
		case !d.mayConfirm():
			p.t.Errorf("%v: %s is lost, though nobody confirmed it", d, k)
		case told[k] != "ok":
			p.t.Errorf("%v: %s is gone, with the outcome %q", d, k, told[k])
		case d.window():
			p.lost["in the window"]++
		default:
			p.lost["as its only owner"]++
		}
	}
	p.served(d, p.a, keys, has)
}

// served has the witness fetch what a survivor has, bytes and all.
func (p *pair) served(d death, from *proc, keys []string, has []bool) {
	var want []string
	for i, k := range keys {
		if has[i] {
			want = append(want, k)
		}
	}
	if len(want) == 0 {
		return
	}
	reasons, _, err := p.w.fetch(from.endpoint, want, 5*time.Second)
	if err != nil || !all(reasons, "ok") {
		p.t.Errorf("%v: the %s serves %v of %v: %v", d, from.set.Name, reasons, want, err)
	}
}

// fetchWithin has the destination fetch something new.
func (p *pair) fetchWithin(name string, limit time.Duration) {
	p.t.Helper()
	keys := names("s"+name, 2)
	p.a.must(request{Verb: "deposit", Keys: keys})
	a := p.b.must(request{Verb: "fetch", Keys: keys, Endpoint: p.a.endpoint, Timeout: limit})
	if !all(a.Reasons, "ok") {
		p.t.Errorf("%s: fetched %v within %v", name, a.Reasons, a.Took)
	}
	for _, c := range []*proc{p.a, p.b} {
		c.must(request{Verb: "drop", Keys: keys})
	}
}
