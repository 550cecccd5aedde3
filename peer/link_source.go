package peer

import (
	"errors"
	"net"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// sourceID names a link to a destination. A destination that reaches this node by
// several endpoints has a link for each, and each its own connection, operations and
// machine: it knows them apart by numbers of its own.
type sourceID struct {
	who    Incarnation
	number uint64
}

// sourceLink is this node as the source of one destination process, as far as that has
// it by one endpoint.
type sourceLink struct {
	sourceID
	node    *Node
	link    link
	dogs    watchdogs
	traffic traffic

	// Of who runs the link.
	side   SourceRoute // of the connection, nil: down
	route  wire.Route
	writes map[item]SourceRoute // begun and not answered
	pins   map[OpID]func()      // asked and not answered: how to stop

	// Guarded by node.mu.
	name    string
	current wire.Route
	users   int // connections that are, or may become, the link's
	guests  int // payload connections that are being taken over
}

func newSourceLink(n *Node, id sourceID) *sourceLink {
	l := &sourceLink{sourceID: id, node: n, writes: map[item]SourceRoute{}, pins: map[OpID]func(){}}
	m := NewSource(n.cfg.Self, id.who, n.cfg.Records, n.cfg.Timing, SourceLimits{
		Ops: n.cfg.MaxOps, Pins: n.cfg.Pinner != nil, Namespace: n.compare,
	})
	l.link = link{node: n, m: m, do: l.do, took: l.took, ran: l.ran}
	return l
}

// readier is a route's side that has something to do before there can be
// transfers. It calls up when that is done.
type readier interface{ whenReady(up func()) }

// begin answers PeerHello and gives the connection to the event loops. Nothing is
// left of it on failure.
func (l *sourceLink) begin(nc net.Conn, c *control, s *Session, route wire.Route, side SourceRoute, w *wire.PeerWelcome) {
	n := l.node
	up := func() {
		l.link.post(connUp{Up: Up{Peer: l.who, Route: route}, conn: c, before: func() {
			l.side, l.route = side, route
			n.mu.Lock()
			l.name, l.current = c.name, route
			n.mu.Unlock()
			n.log.Info("a peer fetches from here", "peer", c.name, "incarnation", uint64(l.who), "link", l.number, "route", route.String())
		}})
	}
	c.onEnd = func() {
		n.dropToken(s.token)
		if side != nil {
			side.Down()
		}
		n.leaveSource(l, &l.users)
	}
	late, wait := side.(readier)
	if wait {
		patience := time.AfterFunc(n.cfg.HandshakeTimeout, func() { c.fail(errors.New("it has not asked for what it chose")) })
		late.whenReady(func() {
			patience.Stop()
			up()
		})
		down := c.onEnd
		c.onEnd = func() {
			patience.Stop()
			down()
		}
	}
	if a, ok := side.(attacher); ok {
		n.addToken(s.token, &target{l.who, a, l})
	}
	_, err := nc.Write(w.Append(nil, 1))
	nc.SetDeadline(time.Time{})
	if err == nil {
		err = n.enroll(nc, c, func() {
			if !wait {
				up()
			}
		})
	} else {
		nc.Close()
		c.close()
		c.over()
	}
	if err != nil {
		n.log.Warn("a peer's connection is not served", "peer", c.name, "err", err)
	}
}

func (l *sourceLink) batch() *link { return &l.link }

func (l *sourceLink) frame(c *control, id uint64, m wire.Message) {
	switch m := m.(type) {
	case *wire.PeerQuery:
		l.link.post(call(func() {
			if l.link.conn == c {
				l.link.send(Send{id, l.query(m)})
			}
		}))
	case *wire.Invalidate:
		l.link.post(call(func() {
			if l.link.conn == c {
				l.link.send(Send{id, l.invalidate(m)})
			}
		}))
	case *wire.ResolveHashes:
		l.resolve(c, id, m)
	case *wire.Ping:
		c.write((&wire.Pong{Bytes: m.Bytes}).Append(nil, id))
	default:
		l.link.postFrom(c, Frame{id, m})
	}
}

// query says what of the keys could be offered now.
func (l *sourceLink) query(m *wire.PeerQuery) *wire.Results {
	rec := l.node.cfg.Records
	r := &wire.Results{Results: make([]wire.Result, len(m.Keys))}
	for i, key := range m.Keys {
		var o wire.Offered
		c, s := rec.Claim(m.Namespace, &wire.Wanted{Key: key}, &o)
		r.Results[i].Status = s
		if s == wire.StatusOK {
			r.Results[i].Tier, r.Results[i].Size = tierMemory, o.Size
			rec.Unclaim(c)
		}
	}
	return r
}

// tierMemory is the number of managed memory (G2) among the tiers.
const tierMemory = 2

func (l *sourceLink) invalidate(m *wire.Invalidate) *wire.Statuses {
	r := &wire.Statuses{Statuses: make([]wire.Status, len(m.Items))}
	for i := range m.Items {
		switch {
		case m.Source != 0 && m.Source != uint64(l.node.cfg.Self):
			r.Statuses[i] = wire.StatusIncarnation
		default:
			r.Statuses[i] = l.node.cfg.Records.Invalidate(m.Namespace, &m.Items[i])
		}
	}
	return r
}

// garbled: what a destination sends is no answer.
func (l *sourceLink) garbled(*control, uint64, error) {}

func (l *sourceLink) lost(c *control) { l.link.post(connDown{c}) }

func (l *sourceLink) pace() { l.link.pace() }

func (l *sourceLink) took(ev Event) {
	switch e := ev.(type) {
	case Written:
		if id := (item{e.Op, e.Index}); l.writes[id] != nil {
			delete(l.writes, id)
			l.node.count.writing.Add(-1)
		}
	case Pinned:
		delete(l.pins, e.Op)
	case Frame:
		if m, ok := e.Msg.(*wire.Finish); ok && l.route == wire.RouteShm {
			l.lent(OpID(e.ID), m)
		}
	case Down:
		l.side = nil
	case Dead:
		// The machine serves it no more, whoever has its connection: a connection
		// anew gets another.
		if c := l.link.conn; c != nil {
			c.fail(errors.New("its process has ended"))
		}
	}
}

// lent counts what the destination could read in our memory, at the end of its
// operation: there is no Write that would count it.
func (l *sourceLink) lent(id OpID, m *wire.Finish) {
	s := l.link.m.(*Source)
	op := s.byID[id]
	if op == nil || op.finish || !s.meant(m.Source, m.Dest) {
		return
	}
	for i := range op.items {
		o := &op.offer.Items[i]
		if o.Status == wire.StatusOK && o.Flags&wire.OfferNoPool == 0 {
			l.node.count.out(wire.RouteShm, int64(o.Size))
			l.traffic.add(int64(o.Size))
		}
	}
}

func (l *sourceLink) do(a Action) {
	switch a := a.(type) {
	case Write:
		id := item{a.Op, a.Index}
		if l.side == nil {
			l.link.post(Written{a.Op, a.Index, wire.StatusLost})
			return
		}
		l.writes[id] = l.side
		l.node.count.writing.Add(1)
		l.side.Write(a)
		l.node.count.out(l.route, int64(a.Offer.Size))
		l.traffic.add(int64(a.Offer.Size))
	case CancelWrite:
		if side := l.writes[item{a.Op, a.Index}]; side != nil {
			side.CancelWrite(a.Op, a.Index)
		}
	case Pin:
		op := a.Op
		l.pins[op] = nil
		stop := l.node.cfg.Pinner.Ask(a.Namespace, a.Items, a.Keys, func(items []PinnedItem) {
			l.link.post(Pinned{op, items})
		})
		l.pins[op] = stop
	case CancelPin:
		if stop := l.pins[a.Op]; stop != nil {
			stop()
		}
	case Outcome:
		l.node.count.given.ended(a.Status)
		if f := l.node.cfg.OnOutcome; f != nil {
			f(a)
		}
	}
}

func (l *sourceLink) ran() {
	if l.side != nil {
		l.side.Flush()
	}
	l.node.tidySource(l)
}

// idle reports that nothing of the link is left. It is called by who runs it.
func (l *sourceLink) idle() bool {
	return l.link.conn == nil && l.link.m.Ops() == 0 && len(l.writes) == 0 && len(l.pins) == 0
}
