package sim

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// keyInfo is one of the keys that all schedules use.
type keyInfo struct {
	name   string
	parent int   // -1: none
	group  []int // the parts that live and die with it, leader last; itself when alone
	lent   bool  // found in framework memory only
}

// keys has single blocks, a chain, a group, a group whose leader's parent is that
// group, and keys that only frameworks have.
var (
	keys     []keyInfo
	keyIndex = map[string]int{}
)

func init() {
	add := func(name string, parent int) int {
		k := len(keys)
		keys = append(keys, keyInfo{name: name, parent: parent, group: []int{k}})
		keyIndex[name] = k
		return k
	}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		add(name, -1)
	}
	parent := -1
	for _, name := range []string{"chain0", "chain1", "chain2"} {
		parent = add(name, parent)
	}
	group := func(parent int, names ...string) (leader int) {
		first := len(keys)
		for i, name := range names {
			if i < len(names)-1 {
				add(name, -1)
			} else {
				leader = add(name, parent)
			}
		}
		for k := first; k <= leader; k++ {
			keys[k].group = nil
			for j := first; j <= leader; j++ {
				keys[k].group = append(keys[k].group, j)
			}
		}
		return leader
	}
	group(group(-1, "page0.x", "page0"), "page1.x", "page1.y", "page1")
	for _, name := range []string{"lent0", "lent1"} {
		keys[add(name, -1)].lent = true
	}
}

// ownKeys is the number of keys that tables may have: the first ones.
func ownKeys() int { return len(keys) - 2 }

type event struct {
	at    peer.Time
	timer bool // after all else of the same moment
	seq   int
	n     *node // nil: the world's
	life  int   // of n; the event is void in another
	tag   tag
	armed *peer.Time // of a timer: what it is set to now, in the node's time; tag.b is what it was
	do    func()
}

// tag says what an event is, for those who look for states that are the same.
type tag struct {
	kind    string
	a, b, c int
	frame   []byte
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	switch {
	case e[i].at != e[j].at:
		return e[i].at < e[j].at
	case e[i].timer != e[j].timer:
		return e[j].timer
	}
	return e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	(*e)[len(*e)-1] = event{}
	*e = (*e)[:len(*e)-1]
	return last
}

type world struct {
	Options
	mode  Mode
	rng   *rand.Rand
	now   peer.Time
	queue events
	seq   int

	nodes    []*node
	names    int      // of each node, by which others reach it
	cut      [][]bool // by both nodes: no connection can be made
	sameHost [][]bool // by both nodes
	conns    int      // made so far
	tables   map[peer.Incarnation]*table
	writes   []*write
	moves    []*move
	plan     []planned
	faults   bool // still allowed
	nextInc  peer.Incarnation
	sent     []sent // if manual
	said     []said // answers for hashes
	manual   bool   // the order of events is chosen from outside, see Explore

	// Of the step that a machine is in.
	source      *srcSide
	destination *destSide
	frame       wire.Message
	frameOp     peer.OpID

	report Report
	broke  string // the promise that was broken first
}

func newWorld(o Options) *world {
	w := &world{Options: o, mode: o.Mode, rng: newRand(o.Seed, 1), now: time.Second, tables: map[peer.Incarnation]*table{}, faults: true, nextInc: 0x100}
	if w.mode == Any {
		w.mode = []Mode{Calm, TCP, TCP, TCP, Harsh, Harsh}[w.rng.IntN(6)]
	}
	nodes := o.Nodes
	if nodes == 0 {
		nodes = []int{2, 2, 2, 3, 3, 4, 5, 8}[w.rng.IntN(8)]
	}
	w.names = []int{1, 1, 2}[w.rng.IntN(3)]
	hosts := w.rng.IntN(3) // none, some or all on one host
	for i := range nodes {
		w.nodes = append(w.nodes, &node{w: w, id: i})
		w.cut = append(w.cut, make([]bool, nodes))
		w.sameHost = append(w.sameHost, make([]bool, nodes))
		for j := range i {
			same := hosts == 2 || hosts == 1 && w.rng.IntN(2) == 0
			if o.Route != wire.RouteNone {
				same = o.Route == wire.RouteShm || o.Route == wire.RouteStream && same
			}
			w.sameHost[i][j], w.sameHost[j][i] = same, same
		}
	}
	for _, n := range w.nodes {
		n.boot()
	}
	w.makePlan()
	return w
}

// fail notes a broken promise. The schedule ends with the present event.
func (w *world) fail(format string, args ...any) {
	if w.broke == "" {
		w.broke = fmt.Sprintf(format, args...)
		w.tracef("BROKEN: %s", w.broke)
	}
}

func (w *world) tracef(format string, args ...any) {
	if w.Trace != nil {
		w.Trace(fmt.Sprintf("%9.3fms  ", float64(w.now-time.Second)/1e6) + fmt.Sprintf(format, args...))
	}
}

// chance is true once in n times, while faults are allowed.
func (w *world) chance(n int) bool { return w.faults && w.mode != Calm && w.rng.IntN(n) == 0 }

// delay is how long something takes: mostly a little, sometimes beyond timeouts.
func (w *world) delay() peer.Time {
	us := time.Microsecond
	switch r := w.rng.IntN(100); {
	case r < 20:
		return 0
	case r < 80 || !w.faults:
		return time.Duration(w.rng.IntN(3000)) * us
	case r < 97:
		return time.Duration(w.rng.IntN(100_000)) * us
	default:
		return time.Duration(w.rng.Int64N(int64(maxDelay)))
	}
}

const maxDelay = 3 * time.Second

func (w *world) push(e event) {
	w.seq++
	e.seq = w.seq
	if w.manual {
		w.queue = append(w.queue, e)
		return
	}
	heap.Push(&w.queue, e)
}

// after has do called later, in the present life of n.
func (w *world) after(d peer.Time, n *node, t tag, do func()) {
	e := event{at: w.now + d, n: n, tag: t, do: do}
	if n != nil {
		e.life = n.life
	}
	w.push(e)
}

// Bounds of a schedule in virtual time: the plan's events, and the end of what they
// began once faults have stopped.
const (
	planTime  = 8 * time.Second
	drainTime = 120 * time.Second
	maxSteps  = 100_000
)

func (w *world) run() {
	w.report.Schedules = 1
	defer func() {
		if p := recover(); p != nil {
			w.fail("panic: %v", p)
		}
	}()
	w.after(planTime, nil, tag{kind: "heal"}, w.heal)
	for w.broke == "" && len(w.queue) > 0 {
		e := heap.Pop(&w.queue).(event)
		if e.n != nil {
			if e.life != e.n.life || !e.n.alive {
				continue
			}
			if e.n.stalled > e.at {
				e.at = e.n.stalled // keeps its turn among what waits
				heap.Push(&w.queue, e)
				continue
			}
		}
		w.now = max(w.now, e.at)
		if w.now > planTime+drainTime {
			w.fail("something goes on for ever: %s", w.leftover())
			return
		}
		if w.report.Steps++; w.report.Steps > maxSteps {
			w.fail("more than %d steps: %s", maxSteps, w.leftover())
			return
		}
		e.do()
		w.checkMoves()
	}
	if w.broke == "" {
		w.checkEnd()
	}
}

// heal ends all faults: from here on everything must come to its end.
func (w *world) heal() {
	w.tracef("faults end")
	w.faults = false
	for i := range w.cut {
		clear(w.cut[i])
	}
	for _, n := range w.nodes {
		n.stalled = min(n.stalled, w.now)
		if !n.alive && !n.gone {
			n.boot()
		}
	}
	for _, n := range w.nodes {
		for _, d := range n.dests {
			d.dial()
		}
	}
}
