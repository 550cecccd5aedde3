package peer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// destLink is this node as the destination of all that it fetches from one
// endpoint.
type destLink struct {
	node     *Node
	endpoint string
	network  string
	addr     string
	link     link
	dogs     watchdogs
	traffic  traffic
	users    int // who has found the link and not used it yet; guarded by node.mu

	// Of who runs the link.
	side  DestRoute // of the connection, nil: down
	route wire.Route
	peer  Incarnation          // of the last connection
	ops   map[OpID]*destWork   // that the machine knows
	posts map[item]*posted     // not answered
	calls map[uint64]*destCall // requests without an answer
	// quarantine has the bytes of items that were reported.
	quarantine map[item]int64

	// Guarded by link.mu.
	dialling bool
	waiting  int         // calls that want a connection
	refusal  wire.Status // of the last attempt, until the next: nobody waits for that
	wantNS   string

	// Guarded by node.mu.
	name    string
	current wire.Route
	who     Incarnation
	lastErr error
	failed  map[Incarnation]wire.Routes // routes that did not come about with it
}

// destWork is an operation's caller.
type destWork struct {
	namespace string
	settle    func(Settle)
	sizes     map[int]int64 // bytes of items that were posted
}

// posted is a Post without an answer.
type posted struct {
	side DestRoute
	size int64
}

// destCall is a request that is no transfer. done is called once, with nil when
// the connection went.
type destCall struct {
	msg  wire.Message
	done func(wire.Message)
}

func newDestLink(n *Node, endpoint, network, addr string) *destLink {
	l := &destLink{
		node: n, endpoint: endpoint, network: network, addr: addr,
		ops: map[OpID]*destWork{}, posts: map[item]*posted{}, calls: map[uint64]*destCall{}, failed: map[Incarnation]wire.Routes{},
		quarantine: map[item]int64{},
	}
	m := NewDest(n.cfg.Self, n.cfg.Records, n.cfg.Timing)
	l.link = link{node: n, m: m, do: l.do, took: l.took, ran: l.ran, fill: l.describe}
	return l
}

// submit begins an operation whose Op is set.
func (l *destLink) submit(s Submit, settle func(Settle)) {
	l.link.post(call(func() {
		why := wire.StatusOK
		switch {
		case l.node.closing.Load():
			why = wire.StatusClosed
		case l.link.m.Ops() >= l.node.cfg.MaxOps:
			why = wire.StatusBusy
		case l.node.count.quarantined.Load() >= l.node.cfg.MaxQuarantine:
			why = wire.StatusQuarantine
		default:
			why = l.lastRefusal()
		}
		if why != wire.StatusOK {
			l.node.count.refusals.Add(1)
			for i := range s.Items {
				settle(Settle{Op: s.Op, Index: i, Status: why})
			}
			return
		}
		l.ops[s.Op] = &destWork{s.Namespace, settle, map[int]int64{}}
		l.link.mu.Lock()
		l.wantNS = s.Namespace
		l.link.mu.Unlock()
		l.link.step(s)
	}))
}

// request sends a message once there is a connection, and calls done with the
// answer, or with nil when the connection is lost before. cancel forgets it.
func (l *destLink) request(id uint64, namespace string, m wire.Message, done func(wire.Message)) (cancel func()) {
	k := &destCall{m, done}
	l.link.post(call(func() {
		if l.node.closing.Load() {
			done(nil)
			return
		}
		if why := l.lastRefusal(); why != wire.StatusOK {
			done(&wire.StatusReply{Status: why})
			return
		}
		l.calls[id] = k
		l.link.mu.Lock()
		l.waiting++
		if l.link.m.Ops() == 0 {
			l.wantNS = namespace
		}
		l.link.mu.Unlock()
		l.link.send(Send{id, m}) // without a connection: at Up
	}))
	return func() { l.link.post(call(func() { l.endCall(id, k) })) }
}

// endCall forgets a request, if it is still that one.
func (l *destLink) endCall(id uint64, k *destCall) bool {
	if l.calls[id] != k {
		return false
	}
	delete(l.calls, id)
	l.link.mu.Lock()
	l.waiting--
	l.link.mu.Unlock()
	return true
}

func (l *destLink) frame(c *control, id uint64, m wire.Message) {
	switch m := m.(type) {
	case *wire.Goodbye:
		l.node.log.Info("a peer ends the connection", "peer", c.name, "reason", m.Reason.String(), "text", m.Text)
		c.fail(errors.New("the peer said goodbye: " + m.Text))
	case *wire.ErrorReply, *wire.StatusReply, *wire.Results, *wire.Statuses:
		l.link.post(call(func() {
			if k := l.calls[id]; k != nil && l.link.conn == c && l.endCall(id, k) {
				k.done(m)
			}
		}))
	default:
		l.link.post(connFrame{c, Frame{id, m}})
	}
}

func (l *destLink) lost(c *control) { l.link.post(connDown{c}) }

func (l *destLink) took(ev Event) {
	switch e := ev.(type) {
	case Landed:
		l.answered(item{e.Op, e.Index}, e.Status == wire.StatusOK)
	case Shut:
		l.answered(item{e.Op, e.Index}, false)
	case Frame:
		if m, ok := e.Msg.(*wire.Done); ok && m.Source == uint64(l.peer) && m.Dest == uint64(l.node.cfg.Self) {
			l.told(OpID(e.ID), m)
		}
	case Dead:
		l.dogs.keep(func(p Incarnation) bool { return p != e.Peer })
	case Down:
		l.side = nil
		for id, k := range l.calls {
			l.endCall(id, k)
			k.done(nil)
		}
	}
}

// told passes on what the source says it has sent.
func (l *destLink) told(op OpID, m *wire.Done) {
	for _, s := range m.Items {
		if p := l.posts[item{op, int(s.Index)}]; p != nil && s.Status == wire.StatusOK {
			p.side.Done(op, int(s.Index))
		}
	}
}

func (l *destLink) answered(id item, ok bool) {
	p := l.posts[id]
	if p == nil {
		return
	}
	delete(l.posts, id)
	l.node.count.posted.Add(-p.size)
	if ok {
		l.node.count.in(l.route, p.size)
		l.traffic.add(p.size)
	}
}

func (l *destLink) do(a Action) {
	switch a := a.(type) {
	case Post:
		id := item{a.Op, a.Index}
		if l.side == nil {
			l.link.post(Landed{a.Op, a.Index, wire.StatusLost})
			return
		}
		p := &posted{side: l.side, size: int64(a.Offer.Size)}
		l.posts[id] = p
		l.node.count.posted.Add(p.size)
		namespace := ""
		if w := l.ops[a.Op]; w != nil {
			namespace = w.namespace
			w.sizes[a.Index] = p.size
		}
		l.side.Post(a, namespace)
	case Close:
		if p := l.posts[item{a.Op, a.Index}]; p != nil {
			p.side.Close(a.Op, a.Index)
		}
	case Settle:
		if w := l.ops[a.Op]; w != nil {
			w.settle(a)
		}
	case Ended:
		delete(l.ops, a.Op)
		l.node.count.ops.Add(1)
	case Outcome:
		l.node.count.taken.ended(a.Status)
		if f := l.node.cfg.OnOutcome; f != nil {
			f(a)
		}
	case Quarantine:
		l.trouble(a.Op, a.Index, false)
	case Quiesce:
		l.trouble(a.Op, a.Index, true)
	}
}

// trouble reports memory that a peer may still write, or its end.
func (l *destLink) trouble(op OpID, i int, over bool) {
	id := item{op, i}
	q := l.quarantine[id]
	switch {
	case over:
		delete(l.quarantine, id)
		l.node.count.quarantined.Add(-q)
	default:
		if w := l.ops[op]; w != nil { // the post may be answered: only proof is missing
			q = w.sizes[i]
		}
		l.quarantine[id] = q
		l.node.count.quarantined.Add(q)
	}
	l.node.log.Warn("memory that a peer may still write", "endpoint", l.endpoint, "op", uint64(op), "item", i, "bytes", q, "over", over)
	if f := l.node.cfg.OnTrouble; f != nil {
		f(Trouble{l.endpoint, op, i, q, over})
	}
}

// describe fills in what the route tells the source about memory.
func (l *destLink) describe(m *wire.Accept, op OpID) {
	if l.side == nil {
		return
	}
	for i := range m.Items {
		m.Items[i].Desc = l.side.Describe(nil, op, int(m.Items[i].Index))
	}
}

// ran sees to it that there is a connection while there is work for one.
func (l *destLink) ran() {
	if l.link.conn != nil {
		return
	}
	l.link.mu.Lock()
	defer l.link.mu.Unlock()
	if l.dialling || l.waiting == 0 && l.link.m.Ops() == 0 || l.node.closing.Load() {
		return
	}
	l.dialling = l.node.spawn(l.dial)
}

const (
	firstBackoff = 20 * time.Millisecond
	lastBackoff  = 900 * time.Millisecond
)

// backoff is the pause after so many failures: random, so that the peers of a node
// that comes back do not all come at once.
func backoffAfter(failures int) time.Duration {
	d := min(firstBackoff<<min(failures, 10), lastBackoff)
	return d/2 + rand.N(d/2+1)
}

// dial connects, again and again while there is work. There is one at a time.
func (l *destLink) dial() {
	n := l.node
	for failures := 0; ; failures++ {
		if failures > 0 {
			select {
			case <-n.ctx.Done():
			case <-time.After(backoffAfter(failures - 1)):
			}
			l.refused(wire.StatusOK)
		}
		if l.enough() {
			return
		}
		n.count.dials.Add(1)
		err := l.try()
		n.mu.Lock()
		l.lastErr = err
		n.mu.Unlock()
		if err == nil {
			// Whoever runs the link next sees the connection, or dials again.
			l.rest()
			return
		}
		n.log.Debug("no connection", "endpoint", l.endpoint, "failures", failures+1, "err", err)
		var r *refused
		if errors.As(err, &r) {
			n.count.refusals.Add(1)
			if lasting(r.status) {
				l.refused(r.status)
			}
			n.log.Warn("no connection: refused", "endpoint", l.endpoint, "status", r.status.String(), "why", r.why)
			l.link.post(call(func() { l.refuse(r) }))
		}
	}
}

// lasting reports whether the same refusal is to be expected for a while.
func lasting(s wire.Status) bool {
	return s == wire.StatusSelf || s == wire.StatusUnauthorized || s == wire.StatusUnsupported
}

func (l *destLink) refused(s wire.Status) {
	l.link.mu.Lock()
	defer l.link.mu.Unlock()
	l.refusal = s
}

func (l *destLink) lastRefusal() wire.Status {
	l.link.mu.Lock()
	defer l.link.mu.Unlock()
	return l.refusal
}

// enough reports that there is no work, or that the node is closing, and ends the
// dialling then.
func (l *destLink) enough() bool {
	l.link.mu.Lock()
	defer l.link.mu.Unlock()
	if l.node.ctx.Err() != nil || l.waiting == 0 && l.link.ops == 0 && len(l.link.queue) == 0 && !l.link.running {
		l.dialling = false
		return true
	}
	return false
}

// rest ends the dialling, behind the connection's Up in the queue: before it, whoever
// runs the link would see no connection and nobody who dials.
func (l *destLink) rest() {
	l.link.post(call(func() {
		l.link.mu.Lock()
		l.dialling = false
		l.link.mu.Unlock()
	}))
}

// refuse ends what waits for a connection: there will be none soon. Operations that
// the source knows wait on.
func (l *destLink) refuse(r *refused) {
	if l.link.conn != nil {
		return
	}
	l.link.step(Unreachable{r.status})
	for id, k := range l.calls {
		l.endCall(id, k)
		k.done(&wire.StatusReply{Status: r.status})
	}
}

// try makes one connection and brings it up.
func (l *destLink) try() error {
	n := l.node
	l.link.mu.Lock()
	namespace := l.wantNS
	l.link.mu.Unlock()
	var who Incarnation
	var w *wire.PeerWelcome
	nc, err := n.connect(n.ctx, l.network, l.addr, "", 0, func(nc net.Conn, at Incarnation) (err error) {
		who = at
		n.mu.Lock()
		avoid := l.failed[at]
		n.mu.Unlock()
		w, err = n.shake(nc, avoid)
		return err
	})
	if err != nil {
		return err
	}
	if w.Route == wire.RouteNone {
		nc.Close()
		return refusef(wire.StatusUnsupported, "no route in common")
	}
	c, err := n.newControl(nc, l, peerName(&w.PeerInfo, nc), true)
	if err != nil {
		return err
	}
	s := &Session{
		Peer: who, Info: w.PeerInfo, Namespace: namespace, Memory: n.cfg.Records, Event: l.link.post, Fail: c.fail,
		node: n, token: w.Token, local: w.Local, watch: func(nc net.Conn) error { return l.dogs.watch(&n.procs, nc, who, l.link.post) },
	}
	s.dial = func(ctx context.Context, network, addr, namespace string, index int) (net.Conn, error) {
		if network == "" {
			network, addr = l.network, l.addr
		}
		return n.connect(ctx, network, addr, namespace, who, func(nc net.Conn, _ Incarnation) error {
			_, err := nc.Write((&wire.PeerStream{Token: w.Token, Index: uint8(index)}).Append(nil, 0))
			return err
		})
	}
	side, err := n.routeOf(w.Route).Dest(n.ctx, s)
	if err != nil {
		nc.Close()
		c.close()
		if n.ctx.Err() != nil {
			return err
		}
		n.log.Warn("a route did not come about: another is agreed on", "endpoint", l.endpoint, "route", w.Route.String(), "err", err)
		n.mu.Lock()
		l.failed = map[Incarnation]wire.Routes{who: l.failed[who].With(w.Route)} // earlier lives do not count
		n.mu.Unlock()
		return fmt.Errorf("route %v did not come about: %v", w.Route, err) // no refusal of the peer's
	}
	c.onEnd = side.Down
	nc.SetDeadline(time.Time{})
	return n.enroll(nc, c, func() {
		l.link.post(connUp{Up: Up{Peer: who, Route: w.Route}, conn: c, before: func() { l.opened(c, who, w.Route, side) }})
	})
}

// opened notes the new connection. It is run by who runs the link.
func (l *destLink) opened(c *control, who Incarnation, route wire.Route, side DestRoute) {
	n := l.node
	again := l.peer != 0
	l.side, l.route, l.peer = side, route, who
	n.mu.Lock()
	l.name, l.current, l.who = c.name, route, who
	n.mu.Unlock()
	l.dogs.keep(func(old Incarnation) bool { return old == who || l.link.m.(*Dest).depends(old) })
	if again {
		n.count.reconnects.Add(1)
	}
	n.log.Info("connected to a peer", "endpoint", l.endpoint, "peer", c.name, "incarnation", uint64(who), "route", route.String())
	for id, k := range l.calls {
		l.link.send(Send{id, k.msg})
	}
}
