package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// planned is an event from outside: what callers, engines and fate do. It has
// randomness of its own, so that leaving one out leaves the others as they are.
type planned struct {
	at   peer.Time
	kind string
	node int
	what func(w *world, n *node, rng *rand.Rand) string
}

// planSize is how many events a plan has at most.
const planSize = 64

type action struct {
	name   string
	weight int
	fault  bool // not in Calm
	what   func(w *world, n *node, rng *rand.Rand) string
}

var actions = []action{
	{"submit", 40, false, (*world).doSubmit},
	{"cross", 8, false, (*world).doCross},
	{"abort", 6, false, (*world).doAbort},
	{"read", 10, false, (*world).doRead},
	{"deposit", 10, false, func(w *world, n *node, rng *rand.Rand) string {
		k := rng.IntN(ownKeys())
		n.tab.deposit(k, rng.IntN(4) == 0)
		return keys[k].name
	}},
	{"delete", 3, false, func(w *world, n *node, rng *rand.Rand) string {
		k := rng.IntN(ownKeys())
		return fmt.Sprintf("%s: %s", keys[k].name, n.tab.Invalidate("", &wire.Wanted{Key: []byte(keys[k].name)}))
	}},
	{"resolve", 8, false, (*world).doResolve},
	{"rebind", 4, false, (*world).doRebind},
	{"evict", 6, false, func(w *world, n *node, rng *rand.Rand) string { return fmt.Sprint(n.tab.evict()) }},
	{"no_evict", 4, false, (*world).doNoEvict},
	{"cut", 7, true, (*world).doCut},
	{"crash", 7, true, (*world).doCrash},
	{"stall", 5, true, (*world).doStall},
	{"step", 3, true, func(w *world, n *node, rng *rand.Rand) string {
		d := time.Duration(rng.IntN(8000)) * time.Millisecond
		n.skew += d
		w.report.ClockSteps++
		// Timers that are due by now are, with everything that has come, later.
		for _, d := range n.dests {
			if d != nil {
				d.armed = 0
				n.arm(d.to.id, &d.armed, d.m.Next, d.step)
			}
		}
		for _, s := range n.sources {
			s.armed = 0
			n.arm(-int(s.dest), &s.armed, s.m.Next, s.step)
		}
		return d.String()
	}},
}

// makePlan draws the events. Many schedules are busy in a short time, where races
// are; some take their time.
func (w *world) makePlan() {
	total := 0
	for _, a := range actions {
		if !a.fault || w.mode != Calm {
			total += a.weight
		}
	}
	span := []time.Duration{50 * time.Millisecond, 300 * time.Millisecond, 2 * time.Second, planTime - time.Second}[w.rng.IntN(4)]
	skip := make(map[int]bool, len(w.Skip))
	for _, i := range w.Skip {
		skip[i] = true
	}
	for i := range 8 + w.rng.IntN(planSize-8) {
		at := time.Second + time.Duration(w.rng.Int64N(int64(span)))
		r, node := w.rng.IntN(total), w.rng.IntN(len(w.nodes))
		var a action
		for _, a = range actions {
			if a.fault && w.mode == Calm {
				continue
			}
			if r -= a.weight; r < 0 {
				break
			}
		}
		if skip[i] {
			continue
		}
		p := planned{at, a.name, node, a.what}
		w.plan = append(w.plan, p)
		rng := newRand(w.Seed, uint64(i)+2)
		w.push(event{at: at, do: func() {
			n := w.nodes[node]
			if !n.alive || n.stalled > w.now && !a.fault {
				return
			}
			text := p.what(w, n, rng)
			w.tracef("plan %d: %s n%d %s", i, p.kind, node, text)
		}})
	}
}

func (w *world) describePlan() (lines []string) {
	plan := slices.Clone(w.plan)
	slices.SortFunc(plan, func(a, b planned) int { return int(a.at - b.at) })
	for _, p := range plan {
		lines = append(lines, fmt.Sprintf("%9.3fms %s n%d", float64(p.at-time.Second)/1e6, p.kind, p.node))
	}
	return lines
}

// any draws one of the names by which a node reaches another.
func (w *world) any(n, to *node, rng *rand.Rand) *destSide { return n.dest(to, rng.IntN(w.names)) }

// other draws another node than n.
func (w *world) other(n *node, rng *rand.Rand) *node {
	i := rng.IntN(len(w.nodes) - 1)
	if i >= n.id {
		i++
	}
	return w.nodes[i]
}

// wanted draws keys: some single ones, with luck a chain in order, groups whole or
// in part.
func wanted(rng *rand.Rand, lent bool) (items []wire.Wanted) {
	var at []int
	for range 1 + rng.IntN(3) {
		k := rng.IntN(ownKeys())
		if lent && rng.IntN(4) == 0 {
			k = ownKeys() + rng.IntN(len(keys)-ownKeys())
		}
		if p := keys[k].parent; p >= 0 && rng.IntN(3) > 0 {
			at = append(at, keys[p].group...)
		}
		if rng.IntN(10) == 0 {
			at = append(at, k)
		} else {
			at = append(at, keys[k].group...)
		}
	}
	seen := map[int]bool{}
	for _, k := range at {
		if !seen[k] {
			seen[k] = true
			items = append(items, wire.Wanted{Key: []byte(keys[k].name)})
		}
	}
	return items
}

func (w *world) doSubmit(n *node, rng *rand.Rand) string {
	from, items := w.other(n, rng), wanted(rng, true)
	if rng.IntN(3) > 0 {
		from.have(items)
	}
	return w.any(n, from, rng).submit(wire.Transfer(min(1, rng.IntN(3))), items, rng)
}

// doCross has nodes move the same keys from one another, in a ring or from one to
// two.
func (w *world) doCross(n *node, rng *rand.Rand) string {
	items := wanted(rng, false)
	ring := rng.IntN(3) > 0
	text := ""
	for i := range 2 + rng.IntN(len(w.nodes)-1) {
		a, b := w.nodes[(n.id+i+1)%len(w.nodes)], w.nodes[(n.id+i)%len(w.nodes)]
		if !ring {
			b = n
		}
		if a == b || !a.alive {
			continue
		}
		b.have(items)
		text += w.any(a, b, rng).submit(wire.TransferMove, slices.Clone(items), rng) + "; "
		if w.names > 1 && rng.IntN(2) == 0 {
			text += w.any(a, b, rng).submit(wire.TransferMove, slices.Clone(items), rng) + "; "
		}
	}
	return text
}

// have deposits what is missing of some keys.
func (n *node) have(items []wire.Wanted) {
	for _, it := range items {
		if k := keyIndex[string(it.Key)]; n.alive && !keys[k].lent && n.tab.blocks[k] == nil {
			n.tab.deposit(k, false)
		}
	}
}

func (d *destSide) submit(mode wire.Transfer, items []wire.Wanted, rng *rand.Rand) string {
	n, from, w := d.n, d.to, d.n.w
	n.lastOp++
	s := peer.Submit{Op: n.lastOp, Mode: mode, Items: items, OwnedOnly: rng.IntN(4) == 0, Deliver: rng.IntN(6) == 0,
		Deadline: n.clock() + []time.Duration{30 * time.Millisecond, 300 * time.Millisecond, 2 * time.Second, 4 * time.Second}[rng.IntN(4)]}
	if rng.IntN(5) == 0 && from.alive {
		for i := range items { // the generation that it had when somebody looked
			if b := from.tab.blocks[keyIndex[string(items[i].Key)]]; b != nil {
				items[i].Generation = b.gen
			}
		}
	}
	if mode == wire.TransferMove {
		w.report.Moves += len(items)
	} else {
		w.report.Operations += len(items)
	}
	if d.name > 0 {
		w.report.Named += len(items)
	}
	d.ops[s.Op] = &operation{Submit: s, settled: make([]bool, len(items)), told: make([]bool, len(items)), quarantined: make([]bool, len(items))}
	d.step(s)
	return fmt.Sprintf("op %d %s of %d from %v%s", s.Op, mode, len(items), from, shownName(d.name))
}

func (w *world) doAbort(n *node, rng *rand.Rand) string {
	d := w.any(n, w.other(n, rng), rng)
	if n.lastOp == 0 {
		return ""
	}
	a := peer.Abort{Op: n.lastOp - peer.OpID(rng.IntN(min(3, int(n.lastOp))))}
	if rng.IntN(2) == 0 {
		a.Items = []int{rng.IntN(3)}
	}
	d.step(a)
	return fmt.Sprint(a)
}

// doRead reads a block under a claim, and looks at its bytes twice.
func (w *world) doRead(n *node, rng *rand.Rand) string {
	k := rng.IntN(ownKeys())
	b := n.tab.blocks[k]
	if b == nil {
		return "miss"
	}
	id, c := n.tab.claim(b, b.slot)
	before := c.slot.data
	t := n.tab
	w.after(w.delay(), n, tag{kind: "read"}, func() {
		if c.slot.data != before || !before.of(k) {
			w.fail("%v reads other bytes of %s than it claimed", n, keys[k].name)
		}
		t.unclaim(id)
	})
	return keys[k].name
}

// doNoEvict takes a no_evict claim for a while: it wins over a mark.
func (w *world) doNoEvict(n *node, rng *rand.Rand) string {
	k := rng.IntN(ownKeys())
	b := n.tab.blocks[k]
	if b == nil {
		return "miss"
	}
	b.lift(wire.StatusNoEvict)
	b.noEvict++
	w.after(w.delay(), n, tag{kind: "evictable"}, func() { b.noEvict-- })
	return keys[k].name
}

func (w *world) doCut(n *node, rng *rand.Rand) string {
	m := w.other(n, rng)
	w.report.Cuts++
	snap := func(d *destSide) {
		if d.conn != nil {
			d.conn.snap()
		}
	}
	snap(w.any(n, m, rng)) // the other name's may live
	if m.alive && rng.IntN(2) == 0 {
		snap(w.any(m, n, rng))
	}
	if rng.IntN(2) == 0 {
		w.cut[n.id][m.id] = true
		w.after(time.Duration(rng.IntN(4000))*time.Millisecond, nil, tag{kind: "mend"}, func() { w.cut[n.id][m.id] = false })
	}
	return fmt.Sprintf("from %v", m)
}

func (w *world) doCrash(n *node, rng *rand.Rand) string {
	n.crash()
	switch rng.IntN(5) {
	case 0:
		alive := 0
		for _, m := range w.nodes {
			if m.alive {
				alive++
			}
		}
		if alive > 0 {
			n.gone = true
			return "for good"
		}
	case 1:
		n.boot()
		return "and restarts at once"
	}
	w.after(time.Duration(rng.IntN(3000))*time.Millisecond, nil, tag{kind: "restart"}, func() {
		if !n.alive && !n.gone {
			n.boot()
		}
	})
	return "and restarts later"
}

func (w *world) doStall(n *node, rng *rand.Rand) string {
	d := time.Duration(rng.IntN([]int{200, 9000}[rng.IntN(2)])) * time.Millisecond
	n.stalled = max(n.stalled, w.now+d)
	w.report.Stalls++
	return d.String()
}
