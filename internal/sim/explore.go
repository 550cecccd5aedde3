package sim

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// Bounds say how much of each evil an exploration has, over all of a history.
type Bounds struct {
	Route               wire.Route // RouteShm or RouteUCXPut
	Timers              int        // timers of the machines that run out
	Lost, Repeated      int        // messages; any may overtake any
	Crashes             int        // with a restart at once, and the move asked for anew
	Ghosts              int        // messages that arrive once more, after a crash
	Evictions, Deposits int
	Both                bool // both nodes have the block at first, else only the second
	Single              bool // only the first node moves
	States              int  // at most
	Time                time.Duration

	broken broken
}

// Exploration is what Explore has seen.
type Exploration struct {
	States, Steps, Depth int
	Window               int  // steps that lost a block in the stated window
	Whole                bool // every history within the bounds was looked at
}

// exploreTiming makes all waits the same, so that states that differ in their past
// only are the same.
var exploreTiming = peer.Timing{Repeat: time.Second, RepeatMax: time.Second, Operation: time.Second, Allowance: time.Second}

// choice is one thing that may happen next.
type choice struct {
	kind choiceKind
	arg  int // the event's number, or the node's
}

type choiceKind uint8

const (
	chooseEvent choiceKind = iota
	chooseLose
	chooseRepeat
	chooseCrash
	chooseEvict
	chooseDeposit
	chooseGhost
)

func (c choice) String() string {
	return [...]string{"event", "lose", "repeat", "crash", "evict", "deposit", "ghost"}[c.kind] + fmt.Sprint(" ", c.arg)
}

// history is a list of choices, the last first.
type history struct {
	before *history
	last   choice
	depth  int
	window int // losses in the stated window
}

func (h *history) list() (cs []choice) {
	for ; h.before != nil; h = h.before {
		cs = append(cs, h.last)
	}
	slices.Reverse(cs)
	return cs
}

// explorer is one world whose events happen in the order chosen.
type explorer struct {
	*world
	Bounds     // what is left
	first  int // connections that there were at first
}

// exploredKey is the block that all of it is about.
const exploredKey = 0

func newExplorer(b Bounds, trace func(string)) *explorer {
	w := &world{Options: Options{Route: b.Route, Trace: trace, broken: b.broken}, mode: Harsh, rng: rand.New(rand.NewPCG(1, 1)), now: time.Second,
		tables: map[peer.Incarnation]*table{}, names: 1, nextInc: 0x100, manual: true}
	e := &explorer{world: w, Bounds: b}
	same := b.Route == wire.RouteShm
	for i := range 2 {
		w.nodes = append(w.nodes, &node{w: w, id: i})
		w.cut = append(w.cut, make([]bool, 2))
		w.sameHost = append(w.sameHost, []bool{same, same})
	}
	for _, n := range w.nodes {
		n.start(exploreTiming, 3, 1)
		if b.Both || n.id == 1 {
			n.tab.deposit(exploredKey, false)
		}
	}
	for _, n := range w.nodes {
		e.submit(n)
	}
	// Connected already, and nothing else has happened.
	for range 2 {
		for _, kind := range []string{"accept", "up"} {
			for i, ev := range w.queue {
				if ev.tag.kind == kind {
					e.take(i).do()
					break
				}
			}
		}
	}
	e.first = e.conns
	return e
}

// submit has a node ask for the move.
func (e *explorer) submit(n *node) {
	if n.id == 1 && e.Single {
		return
	}
	n.lastOp++
	s := peer.Submit{Op: n.lastOp, Mode: wire.TransferMove, Items: []wire.Wanted{{Key: []byte(keys[exploredKey].name)}}, Deadline: 10000 * time.Hour}
	d := n.dests[1-n.id]
	d.ops[s.Op] = &operation{Submit: s, settled: make([]bool, 1), told: make([]bool, 1), quarantined: make([]bool, 1)}
	d.step(s)
}

// sent is a message that was sent once.
type sent struct {
	dir   direction
	dest  *node
	frame string
}

func (w *world) remember(c *conn, dir direction, frame []byte) {
	if m := (sent{dir, c.d.n, string(frame)}); !slices.Contains(w.sent, m) {
		w.sent = append(w.sent, m)
	}
}

func (e *explorer) take(i int) event {
	ev := e.queue[i]
	e.queue = slices.Delete(e.queue, i, i+1)
	return ev
}

// void reports whether an event will do nothing, ever.
func (e *explorer) void(ev *event) bool {
	return ev.n != nil && (ev.life != ev.n.life || !ev.n.alive) || ev.tag.kind == "redial" || ev.timer && *ev.armed != peer.Time(ev.tag.b)
}

// choices lists what may happen next.
func (e *explorer) choices() (cs []choice) {
	e.queue = slices.DeleteFunc(e.queue, func(ev event) bool { return e.void(&ev) })
	for i := range e.queue {
		ev := &e.queue[i]
		if ev.timer && e.Timers == 0 || slices.ContainsFunc(e.queue[:i], func(o event) bool { return same(&o, ev) }) {
			continue
		}
		cs = append(cs, choice{chooseEvent, ev.seq})
		if ev.tag.kind == "frame" && e.Lost > 0 {
			cs = append(cs, choice{chooseLose, ev.seq})
		}
		if ev.tag.kind == "frame" && e.Repeated > 0 {
			cs = append(cs, choice{chooseRepeat, ev.seq})
		}
	}
	if e.Ghosts > 0 && e.conns > e.first {
		for i, m := range e.sent {
			if c := m.dest.dests[1-m.dest.id].conn; c != nil && c.open[1-m.dir] {
				cs = append(cs, choice{chooseGhost, i})
			}
		}
	}
	for i, n := range e.nodes {
		b := n.tab.blocks[exploredKey]
		if e.Crashes > 0 {
			cs = append(cs, choice{chooseCrash, i})
		}
		if e.Evictions > 0 && b != nil && !b.claimed() && b.mark == (peer.MoveID{}) && (b.hold == (peer.HoldID{}) || e.world.broken.evictHeld) {
			cs = append(cs, choice{chooseEvict, i})
		}
		if e.Deposits > 0 && (b == nil || b.mark != (peer.MoveID{})) {
			cs = append(cs, choice{chooseDeposit, i})
		}
	}
	return cs
}

// same reports whether two pending events are alike.
func same(a, b *event) bool {
	return a.n == b.n && a.tag.kind == b.tag.kind && a.tag.a == b.tag.a && a.tag.b == b.tag.b && a.tag.c == b.tag.c && string(a.tag.frame) == string(b.tag.frame)
}

// apply makes a choice happen.
func (e *explorer) apply(c choice) {
	defer func() {
		if p := recover(); p != nil {
			e.fail("panic: %v", p)
		}
	}()
	switch c.kind {
	case chooseEvent, chooseLose, chooseRepeat:
		i := slices.IndexFunc(e.queue, func(ev event) bool { return ev.seq == c.arg })
		ev := e.queue[i]
		switch {
		case c.kind == chooseRepeat:
			e.Repeated--
		default:
			e.take(i)
		}
		if c.kind == chooseLose {
			e.Lost--
			break
		}
		if ev.timer {
			e.Timers--
			ev.n.skew = max(ev.n.skew, peer.Time(ev.tag.b)-e.now)
		}
		ev.do()
	case chooseCrash:
		e.Crashes--
		n := e.nodes[c.arg]
		n.crash()
		n.start(exploreTiming, 3, 1)
		e.submit(n)
		for _, m := range e.nodes {
			if m != n {
				m.dests[n.id].dialing = false
				m.dests[n.id].dial()
			}
		}
	case chooseEvict:
		e.Evictions--
		e.nodes[c.arg].tab.retire(e.nodes[c.arg].tab.blocks[exploredKey].unit)
	case chooseGhost:
		e.Ghosts--
		m := e.sent[c.arg]
		e.tracef("a message of the past arrives:")
		m.dest.dests[1-m.dest.id].conn.receive(m.dir, []byte(m.frame))
	case chooseDeposit:
		e.Deposits--
		e.nodes[c.arg].tab.deposit(exploredKey, false)
	}
	// A dial that was under way when its target died, or a connection that was lost
	// before it was up, is tried again at once.
	for _, n := range e.nodes {
		for _, d := range n.dests {
			if d != nil && d.dialing && d.conn == nil && !e.pending(d) {
				d.dialing = false
				d.dial()
			}
		}
	}
	e.checkMoves()
}

// pending reports whether a connection of d is being made.
func (e *explorer) pending(d *destSide) bool {
	return slices.ContainsFunc(e.queue, func(ev event) bool {
		return !e.void(&ev) && (ev.tag.kind == "accept" && ev.n == d.to && ev.tag.a == int(d.n.inc) || ev.tag.kind == "up" && ev.n == d.n)
	})
}

// replay makes the world in which a history has happened.
func replay(b Bounds, h []choice, trace func(string)) *explorer {
	e := newExplorer(b, trace)
	for _, c := range h {
		e.choices() // forgets what is void, as when the choice was made
		e.apply(c)
	}
	return e
}

// Explore looks at every history within the bounds, shortest first, and returns the
// first that breaks a promise as a *Violation.
func Explore(b Bounds) (Exploration, error) {
	type found struct {
		h     *history
		state uint64
		broke string
	}
	var x Exploration
	seen := map[uint64]bool{}
	level := []*history{{}}
	end := time.Now().Add(b.Time)
	for len(level) > 0 {
		x.Depth = level[0].depth
		var (
			wg   sync.WaitGroup
			mu   sync.Mutex
			next int
			all  = make([][]found, len(level))
			late bool
		)
		for range runtime.GOMAXPROCS(0) {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for {
					mu.Lock()
					i := next
					next++
					late = late || b.Time > 0 && time.Now().After(end)
					stop := i >= len(level) || late
					mu.Unlock()
					if stop {
						return
					}
					path := level[i].list()
					for _, c := range replay(b, path, nil).choices() {
						e := replay(b, path, nil)
						e.choices()
						e.apply(c)
						all[i] = append(all[i], found{&history{level[i], c, level[i].depth + 1, e.report.Window}, e.state(), e.broke})
					}
				}
			}()
		}
		wg.Wait()
		level = level[:0:0]
		for _, fs := range all {
			for _, f := range fs {
				x.Steps++
				if f.broke != "" {
					return x, explain(b, f.h, f.broke)
				}
				if f.h.window > f.h.before.window {
					x.Window++
				}
				if !seen[f.state] {
					seen[f.state] = true
					level = append(level, f.h)
				}
			}
		}
		x.States = len(seen)
		if late || b.States > 0 && x.States > b.States {
			return x, nil
		}
	}
	x.Whole = true
	return x, nil
}

// explain runs a bad history once more, with its trace.
func explain(b Bounds, h *history, what string) *Violation {
	v := &Violation{What: what}
	for _, c := range h.list() {
		v.Plan = append(v.Plan, c.String())
	}
	replay(b, h.list(), func(s string) { v.Last = append(v.Last, s) })
	return v
}
