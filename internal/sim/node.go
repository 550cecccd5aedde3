package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// node is a place that runs one process after the other.
type node struct {
	w       *world
	id      int
	life    int // counts the processes
	alive   bool
	gone    bool // and never comes back
	inc     peer.Incarnation
	skew    peer.Time // of its clock to the world's
	stalled peer.Time // it does nothing before
	tab     *table
	timing  peer.Timing
	dests   []*destSide // by node, nil for itself; and so on for each further name
	sources []*srcSide
	lastOp  peer.OpID
	bound   []int // by hash: its key; see resolve.go
}

func (n *node) String() string { return fmt.Sprintf("n%d/%x", n.id, uint64(n.inc)) }

func (n *node) clock() peer.Time { return n.w.now + n.skew }

// boot starts a process, with some blocks.
func (n *node) boot() {
	w := n.w
	n.start(timing, 5+w.rng.IntN(10), 1+w.rng.IntN(6))
	for range w.rng.IntN(6) {
		n.tab.deposit(w.rng.IntN(ownKeys()), false)
	}
}

func (n *node) start(timing peer.Timing, slots, holds int) {
	w := n.w
	n.alive, n.life, n.lastOp, n.sources = true, n.life+1, 0, nil
	n.inc = w.nextInc
	w.nextInc++
	n.tab = newTable(w, n, n.inc, slots, holds)
	n.bound = newBindings()
	n.timing = timing
	w.tables[n.inc] = n.tab
	n.dests = make([]*destSide, w.names*len(w.nodes))
	for i := range n.dests {
		if to := i % len(w.nodes); to != n.id {
			n.dests[i] = &destSide{n: n, to: w.nodes[to], name: i / len(w.nodes), m: peer.NewDest(n.inc, n.tab, timing), ops: map[peer.OpID]*operation{}}
		}
	}
	if n.life > 1 {
		w.report.Restarts++
	}
	w.tracef("%v starts", n)
}

// dest is the destination side for another node, by one of its names.
func (n *node) dest(to *node, name int) *destSide { return n.dests[to.id+name*len(n.w.nodes)] }

// destOf is the destination side that an operation with another node is of; any, if it
// is over.
func (n *node) destOf(to *node, op peer.OpID) *destSide {
	for name := range n.w.names {
		if d := n.dest(to, name); d.ops[op] != nil {
			return d
		}
	}
	return n.dest(to, 0)
}

// crash ends the process. Its connections break; on one host its death can be
// proven.
func (n *node) crash() {
	w := n.w
	w.tracef("%v DIES", n)
	w.report.Crashes++
	n.alive = false
	dead := n.inc
	// A dead process writes no more.
	w.writes = slices.DeleteFunc(w.writes, func(x *write) bool { return x.s.n == n })
	for _, m := range w.nodes {
		for _, s := range m.sources {
			if s.conn != nil && (m == n || s.conn.d.n == n) {
				s.conn.snap()
			}
		}
	}
	for _, d := range n.dests {
		if d != nil && d.conn != nil {
			d.conn.snap() // the source's end may be over already
		}
	}
	for _, m := range w.nodes {
		if m == n || !m.alive || !w.sameHost[n.id][m.id] {
			continue
		}
		w.after(w.delay(), m, tag{kind: "dead", a: int(dead)}, func() {
			w.tracef("%v has proof that %x is dead", m, uint64(dead))
			for name := range w.names {
				m.dest(n, name).step(peer.Dead{Peer: dead})
			}
			for _, s := range m.sources {
				if s.dest == dead {
					s.step(peer.Dead{Peer: dead})
				}
			}
		})
	}
}

// operation is what is known of one from outside.
type operation struct {
	peer.Submit
	settled, told []bool
	quarantined   []bool
	expect        map[int]words // blocks that are meant, of those that were resolved
}

// destSide runs the destination machine of a process for one name of another node.
type destSide struct {
	n       *node
	to      *node
	name    int
	m       *peer.Dest
	conn    *conn
	dialing bool
	ops     map[peer.OpID]*operation
	posts   []*post
	armed   peer.Time
	// resolves are lists of hashes without all answers.
	resolves []*resolving
}

func (d *destSide) String() string { return fmt.Sprintf("%v<-n%d%s", d.n, d.to.id, shownName(d.name)) }

// shownName tells sides of one node and several names apart.
func shownName(name int) string { return strings.Repeat("'", name) }

// arm sets the timer of a machine: Tick comes when Next says, or somewhat later.
func (n *node) arm(who int, armed *peer.Time, next func() peer.Time, step func(peer.Event)) {
	at := next()
	if at == 0 || at == *armed {
		return
	}
	*armed = at
	late := peer.Time(0)
	if n.w.rng.IntN(4) == 0 {
		late = n.w.delay()
	}
	n.w.push(event{at: max(n.w.now, at-n.skew) + late, timer: true, n: n, life: n.life, armed: armed, tag: tag{kind: "timer", a: who, b: int(at)}, do: func() {
		if *armed != at {
			return
		}
		*armed = 0
		if n.clock() < at {
			n.w.fail("%v: the simulator's own timer is early", n)
		}
		step(peer.Tick{})
		if t := next(); t != 0 && t <= n.clock() {
			n.w.fail("%v: Next stays at %v after a Tick at %v", n, t, n.clock())
		}
	}})
}

func (d *destSide) step(ev peer.Event) {
	w := d.n.w
	if w.Trace != nil {
		w.tracef("%v %s", d, showEvent(ev))
	}
	w.destination = d
	actions := d.m.Step(d.n.clock(), ev)
	for _, a := range actions {
		d.act(a)
	}
	w.destination = nil
	d.n.arm(d.to.id, &d.armed, d.m.Next, d.step)
	d.dial()
}

func (d *destSide) act(a peer.Action) {
	w := d.n.w
	if w.Trace != nil {
		w.tracef("    %v: %s", d, showAction(a))
	}
	switch a := a.(type) {
	case peer.Send:
		d.send(a)
	case peer.Post:
		w.post(d, a)
	case peer.Close:
		w.closePost(d, a.Op, a.Index)
	case peer.Settle, peer.Outcome, peer.Quarantine, peer.Quiesce, peer.Ended:
		w.checkDest(d, a)
	default:
		w.fail("%v does %T", d, a)
	}
}

func (d *destSide) send(a peer.Send) {
	switch m := a.Msg.(type) {
	case *wire.Confirm:
		d.n.w.checkConfirm(d, peer.OpID(a.ID), m)
	case *wire.Accept:
		for i := range m.Items {
			if p := d.posted(peer.OpID(a.ID), int(m.Items[i].Index)); p != nil && p.route == wire.RouteUCXPut {
				m.Items[i].Desc = p.desc()
			}
		}
	}
	if d.conn != nil {
		d.conn.send(toSource, a.ID, a.Msg)
	}
}

// posted finds the post of an item that is not answered yet.
func (d *destSide) posted(op peer.OpID, index int) *post {
	for _, p := range d.posts {
		if p.op == op && p.index == index && !p.answered {
			return p
		}
	}
	return nil
}

// srcSide runs the source machine of a process for one destination process, as far as
// that has it by one name.
type srcSide struct {
	n     *node
	tab   *table // of its process
	from  *node
	dest  peer.Incarnation
	name  int
	m     *peer.Source
	conn  *conn
	armed peer.Time
	// begun has the operations that run, and the connection that they began on;
	// over those that ended otherwise than by its loss (S4).
	begun map[peer.OpID]*conn
	over  map[peer.OpID]bool
	wrote map[itemID]bool
	told  map[itemID]bool
}

type itemID struct {
	op    peer.OpID
	index int
}

func (s *srcSide) String() string {
	return fmt.Sprintf("%v->%x%s", s.n, uint64(s.dest), shownName(s.name))
}

// sourceFor finds or makes the source side for a destination process, as the link's
// number has a node do.
func (n *node) sourceFor(d *destSide, dest peer.Incarnation) *srcSide {
	for _, s := range n.sources {
		if s.dest == dest && s.name == d.name {
			return s
		}
	}
	limits := peer.SourceLimits{Pins: n.id%2 == 0, Ops: 64}
	s := &srcSide{n: n, tab: n.tab, from: d.n, dest: dest, name: d.name, m: peer.NewSource(n.inc, dest, n.tab, n.timing, limits),
		begun: map[peer.OpID]*conn{}, over: map[peer.OpID]bool{}, wrote: map[itemID]bool{}, told: map[itemID]bool{}}
	n.sources = append(n.sources, s)
	return s
}

func (s *srcSide) step(ev peer.Event) {
	w := s.n.w
	if w.Trace != nil {
		w.tracef("%v %s", s, showEvent(ev))
	}
	w.source, w.frame, w.frameOp = s, nil, 0
	if f, ok := ev.(peer.Frame); ok {
		w.frame, w.frameOp = f.Msg, peer.OpID(f.ID)
	}
	actions := s.m.Step(s.n.clock(), ev)
	for _, a := range actions {
		s.act(a)
	}
	w.source, w.frame = nil, nil
	switch ev.(type) {
	case peer.Down, peer.Dead:
		w.checkUnmarked(s)
	}
	s.n.arm(-int(s.dest), &s.armed, s.m.Next, s.step)
}

func (s *srcSide) act(a peer.Action) {
	w := s.n.w
	if w.Trace != nil {
		w.tracef("    %v: %s", s, showAction(a))
	}
	switch a := a.(type) {
	case peer.Send:
		if _, ok := a.Msg.(*wire.Offer); ok {
			w.checkOffer(s, peer.OpID(a.ID))
		}
		if s.conn != nil {
			s.conn.send(toDest, a.ID, a.Msg)
		}
	case peer.Write:
		w.write(s, a)
	case peer.CancelWrite:
		w.cancelWrite(s, a.Op, a.Index)
	case peer.Pin:
		s.pin(a)
	case peer.CancelPin: // frameworks answer when they do
	case peer.Outcome, peer.Ended:
		w.checkSource(s, a)
	default:
		w.fail("%v does %T", s, a)
	}
}

// pin lends framework memory, some of it, late, or not at all.
func (s *srcSide) pin(p peer.Pin) {
	w := s.n.w
	w.after(w.delay(), s.n, tag{kind: "pin", a: int(s.dest), b: int(p.Op)}, func() {
		e := peer.Pinned{Op: p.Op}
		for i, at := range p.Items {
			item := peer.PinnedItem{Index: at}
			k := s.tab.keyOf(p.Keys[i])
			if keys[k].lent && w.rng.IntN(3) > 0 {
				m := s.tab.addSlot()
				m.lent, m.state, m.key, m.data = true, slotRetiring, k, contentOf(k, 1)
				id, c := s.tab.claim(nil, m)
				c.src, c.owner = s, peer.MoveID{Dest: s.dest, Op: p.Op}
				item.Claim = id
				item.Offer = wire.Offered{Size: 8 * uint64(len(words{})), Sum: m.data.sum(), Flags: wire.OfferSum | wire.OfferNoPool}
			}
			e.Items = append(e.Items, item)
		}
		s.step(e)
	})
}
