package peer

import (
	"errors"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// destLink is this node as the destination of all that it fetches from one
// endpoint.
type destLink struct {
	node     *Node
	number   uint64 // of all its connections, and of no other link of this node
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
	posts map[item]posted      // not answered
	calls map[uint64]*destCall // requests without an answer
	// resolves are calls of Resolve under way; resolving has an element for each.
	resolves  map[*resolveCall]struct{}
	resolving chan struct{}
	// quarantine has the bytes of items that were reported.
	quarantine map[item]int64

	// Guarded by link.mu.
	dialling bool        // one goroutine at a time, whose is brief
	waiting  int         // calls that want a connection
	refusal  wire.Status // of the last attempt, until the next: nobody waits for that
	wantNS   string

	// Of who dials.
	came  time.Time // when there was a connection last
	brief int       // how many before it, one after another, were soon lost

	// Guarded by node.mu.
	name    string
	current wire.Route
	who     Incarnation
	lastErr error                       // of the last attempt to connect
	unlike  error                       // that layouts differ, since then
	failed  map[Incarnation]wire.Routes // routes that did not come about with it
}

// destWork is an operation's caller.
type destWork struct {
	namespace string
	devices   bool // Submit.Devices
	settle    func(Settle)
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

func newDestLink(n *Node, number uint64, endpoint, network, addr string) *destLink {
	l := &destLink{
		node: n, number: number, endpoint: endpoint, network: network, addr: addr, wantNS: n.cfg.Namespace,
		ops: map[OpID]*destWork{}, posts: map[item]posted{}, calls: map[uint64]*destCall{}, failed: map[Incarnation]wire.Routes{},
		quarantine: map[item]int64{}, resolves: map[*resolveCall]struct{}{}, resolving: make(chan struct{}, destResolves),
	}
	m := NewDest(n.cfg.Self, n.cfg.Records, n.cfg.Timing)
	l.link = link{node: n, m: m, do: l.do, took: l.took, ran: l.ran, fill: l.describe}
	return l
}

// submit begins an operation whose Op is set.
func (l *destLink) submit(s Submit, settle func(Settle)) {
	ev := Event(s) // once, for the machine too
	l.link.post(call(func() {
		s := ev.(Submit)
		why := wire.StatusOK
		switch {
		case l.node.closing.Load():
			why = wire.StatusClosed
		case l.link.m.Ops() >= l.node.cfg.MaxOps:
			why = wire.StatusBusy
		case l.node.count.quarantined.Load() >= l.node.cfg.MaxQuarantine:
			why = wire.StatusQuarantine
		case s.Devices && l.side != nil && l.route != wire.RouteUCX:
			why = wire.StatusUnsupported
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
		l.ops[s.Op] = &destWork{s.Namespace, s.Devices, settle}
		l.link.mu.Lock()
		l.wantNS = s.Namespace
		l.link.mu.Unlock()
		l.link.step(ev)
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

func (l *destLink) batch() *link { return &l.link }

func (l *destLink) frame(c *control, id uint64, m wire.Message) {
	switch m := m.(type) {
	case *wire.Goodbye:
		l.node.log.Info("a peer ends the connection", "peer", c.name, "reason", m.Reason.String(), "text", m.Text)
		c.fail(errors.New("the peer said goodbye: " + m.Text))
	case *wire.ErrorReply, *wire.StatusReply, *wire.Results, *wire.Statuses, *wire.HashesResolved:
		l.link.post(call(func() { l.answer(c, id, m) }))
	default:
		l.link.postFrom(c, Frame{id, m})
	}
}

// answer takes the answer to a request. One to a request that is not known is a
// repetition, or late.
func (l *destLink) answer(c *control, id uint64, m wire.Message) {
	if l.link.conn != c {
		return
	}
	if k := l.calls[id]; k != nil && l.endCall(id, k) {
		k.done(m)
		return
	}
	l.eachResolve(func(k *resolveCall) {
		if k.m.asks(id) >= 0 {
			k.step(Frame{id, m})
		}
	})
}

// garbled stands for an answer that is no message of its type.
type garbled struct {
	wire.Message
	err error
}

// garbled ends the request that such an answer belongs to: repeated on the next
// connection, which it would end too, it would fare no better.
func (l *destLink) garbled(c *control, id uint64, err error) {
	l.link.post(call(func() { l.answer(c, id, &garbled{err: err}) }))
}

func (l *destLink) lost(c *control) { l.link.post(connDown{c}) }

func (l *destLink) pace() { l.link.pace() }

func (l *destLink) took(ev Event) {
	switch e := ev.(type) {
	case Landed:
		l.answered(item{e.Op, e.Index}, e.Status == wire.StatusOK)
	case Shut:
		l.answered(item{e.Op, e.Index}, false)
	case Frame:
		switch m := e.Msg.(type) {
		case *wire.Done:
			if m.Source == uint64(l.peer) && m.Dest == uint64(l.node.cfg.Self) {
				l.told(OpID(e.ID), m)
			}
		case *wire.Refused:
			l.differs(OpID(e.ID), m)
		}
	case Dead:
		l.dogs.keep(func(p Incarnation) bool { return p != e.Peer })
	case Down:
		l.side = nil
		for id, k := range l.calls {
			l.endCall(id, k)
			k.done(nil)
		}
		l.eachResolve(func(k *resolveCall) { k.step(Down{}) })
	}
}

// told passes on what the source says it has sent.
func (l *destLink) told(op OpID, m *wire.Done) {
	for _, s := range m.Items {
		if p, ok := l.posts[item{op, int(s.Index)}]; ok && s.Status == wire.StatusOK {
			p.side.Done(op, int(s.Index))
		}
	}
}

func (l *destLink) answered(id item, ok bool) {
	p, there := l.posts[id]
	if !there {
		return
	}
	delete(l.posts, id)
	l.node.count.posted.Add(-p.size)
	l.node.count.posts.Add(-1)
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
		w := l.ops[a.Op]
		if w != nil && w.devices && l.route != wire.RouteUCX { // agreed on since submit
			l.link.post(Landed{a.Op, a.Index, wire.StatusUnsupported})
			return
		}
		p := posted{side: l.side, size: int64(a.Offer.Size)}
		l.posts[id] = p
		l.node.count.posted.Add(p.size)
		l.node.count.posts.Add(1)
		namespace := ""
		if w != nil {
			namespace = w.namespace
		}
		l.side.Post(a, namespace)
	case Close:
		if p, ok := l.posts[item{a.Op, a.Index}]; ok {
			p.side.Close(a.Op, a.Index)
		}
	case Settle:
		if w := l.ops[a.Op]; w != nil {
			w.settle(a)
		}
	case Ended:
		delete(l.ops, a.Op)
		l.node.count.ops.Add(1)
		if w, ok := l.side.(opWatcher); ok {
			w.ended(a.Op)
		}
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
		if _, it := l.link.m.(*Dest).item(op, i); it != nil { // the post may be answered: only proof is missing
			q = int64(it.offer.Size)
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
