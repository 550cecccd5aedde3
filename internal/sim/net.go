package sim

import (
	"time"

	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

type direction uint8

const (
	toSource direction = iota
	toDest
)

// conn is a control connection that a destination has dialled. Either end sees its
// loss at a moment of its own; what is read by then has come in order and whole,
// up to some message.
type conn struct {
	w      *world
	n      int // how many there were before
	d      *destSide
	s      *srcSide
	route  wire.Route
	open   [2]bool // the ends that have not seen its loss, by whom they send to
	snaped bool
	lost   [2]peer.Time // messages that are to arrive after this do not
	last   [2]peer.Time // when the last message arrives
	upAt   peer.Time    // when the destination learns of it; nothing overtakes that
}

// dialTimeout is after what time an attempt to connect is given up.
const dialTimeout = time.Second

// dial connects, sooner or later, while there is a need and somebody who may
// listen.
func (d *destSide) dial() {
	if d == nil || d.dialing || d.conn != nil || d.to.gone || d.m.Ops() == 0 && len(d.resolves) == 0 {
		return
	}
	w, life, inc := d.n.w, d.n.life, d.n.inc
	d.dialing = true
	if !w.cut[d.n.id][d.to.id] {
		w.after(w.delay(), d.to, tag{kind: "accept", a: int(inc)}, func() {
			if d.n.life == life && d.n.alive {
				w.accept(d, inc)
			}
		})
	}
	w.after(dialTimeout+w.delay(), d.n, tag{kind: "redial", a: d.to.id}, func() {
		d.dialing = false
		d.dial()
	})
}

// accept is the source's half of a new connection; it is the first to know.
func (w *world) accept(d *destSide, inc peer.Incarnation) {
	n := d.to
	w.conns++
	c := &conn{w: w, n: w.conns, d: d, s: n.sourceFor(d, inc), route: w.pickRoute(d.n, n), open: [2]bool{true, true}}
	// A destination has one connection by each name: an older one is lost, whether its
	// end has been seen or not.
	if old := c.s.conn; old != nil {
		old.close(toDest)
	}
	w.tracef("%v accepts %v, route %s", n, d.n, c.route)
	c.s.conn = c
	c.s.step(peer.Up{Peer: inc, Route: c.route})
	c.upAt = w.now + w.delay()
	w.after(c.upAt-w.now, d.n, tag{kind: "up", a: n.id, b: c.n}, func() {
		switch {
		case d.conn != nil:
			c.close(toSource)
		case c.open[toSource]:
			d.conn = c
			d.step(peer.Up{Peer: n.inc, Route: c.route})
			d.eachResolve(peer.Up{Peer: n.inc, Route: c.route})
		}
	})
}

func (w *world) pickRoute(a, b *node) wire.Route {
	switch {
	case w.Route != wire.RouteNone:
		return w.Route
	case w.sameHost[a.id][b.id] && w.rng.IntN(8) > 0:
		return wire.RouteShm
	}
	return []wire.Route{wire.RouteStream, wire.RouteUCX, wire.RouteUCXPut, wire.RouteUCXPut}[w.rng.IntN(4)]
}

// send sends a message, encoded and parsed like on a real connection.
func (c *conn) send(dir direction, id uint64, m wire.Message) {
	w := c.w
	if !c.open[dir] || c.snaped {
		return
	}
	copies, ordered := 1, true
	if w.mode == Harsh && w.faults {
		ordered = w.rng.IntN(3) > 0
		switch r := w.rng.IntN(20); {
		case r < 2:
			copies = 0
			w.report.Lost++
			w.tracef("      (lost)")
		case r < 4:
			copies = 2
			w.report.Repeated++
		}
	}
	frame := m.Append(nil, id)
	if w.mode == Harsh && w.chance(3) {
		w.ghost(c, dir, frame)
	}
	if w.manual {
		w.remember(c, dir, frame)
	}
	for range copies {
		at := max(w.now+w.delay(), c.upAt)
		if ordered {
			at = max(at, c.last[dir])
			c.last[dir] = at
		}
		n := c.s.n
		if dir == toDest {
			n = c.d.n
		}
		w.after(at-w.now, n, tag{kind: "frame", a: int(dir), b: c.n, frame: frame}, func() {
			if c.open[1-dir] && (!c.snaped || at <= c.lost[dir] || w.manual) {
				c.receive(dir, frame)
			}
		})
	}
}

// ghost has a message arrive on a later connection between the same two nodes, if
// by then one of them runs another process: it names a life that is over (M5).
func (w *world) ghost(c *conn, dir direction, frame []byte) {
	dest, source := c.d.n, c.s.n
	from, to := c.d.n.inc, c.s.n.inc
	w.after(time.Duration(w.rng.Int64N(int64(maxDelay))), nil, tag{kind: "ghost"}, func() {
		if !dest.alive || !source.alive || dest.inc == from && source.inc == to {
			return
		}
		d := dest.dest(source, c.d.name)
		if now := d.conn; now != nil && now.s.tab == source.tab && now.open[1-dir] && max(dest.stalled, source.stalled) <= w.now {
			w.tracef("a message of the past arrives:")
			w.report.Ghosts++
			now.receive(dir, frame)
		}
	})
}

func (c *conn) receive(dir direction, frame []byte) {
	h, payload, rest, err := wire.Next(append([]byte(nil), frame...))
	if err != nil || len(rest) > 0 {
		c.w.fail("a frame does not parse: %v", err)
		return
	}
	m := wire.New(h.Type)
	if err := m.Parse(payload); err != nil {
		c.w.fail("a payload does not parse: %v", err)
		return
	}
	if again := m.Append(nil, h.ID); string(again) != string(frame) {
		c.w.fail("%s is not the same when it is encoded again", h.Type)
	}
	switch q := m.(type) {
	case *wire.ResolveHashes:
		c.s.resolve(c, h.ID, q)
		return
	case *wire.HashesResolved:
		if c.w.Trace != nil {
			c.w.tracef("%v gets %d %s", c.d, h.ID, showMessage(m))
		}
		if c.d.conn == c {
			c.d.eachResolve(peer.Frame{ID: h.ID, Msg: m})
		}
		return
	}
	if dir == toSource {
		c.s.step(peer.Frame{ID: h.ID, Msg: m})
		return
	}
	if done, ok := m.(*wire.Done); ok {
		c.w.arrived(c.d, peer.OpID(h.ID), done)
	}
	c.d.step(peer.Frame{ID: h.ID, Msg: m})
}

// snap breaks the connection. Each end sees it when it does.
func (c *conn) snap() {
	if c.snaped {
		return
	}
	w := c.w
	c.snaped = true
	for _, dir := range []direction{toSource, toDest} {
		// The end that reads dir sees the loss; what would arrive after a moment
		// before that is lost.
		seen := w.delay()
		c.lost[dir] = w.now + seen*peer.Time(w.rng.IntN(3))/2
		n := c.s.n
		if dir == toDest {
			n = c.d.n
		}
		w.after(seen, n, tag{kind: "down", a: int(dir), b: c.n}, func() { c.close(1 - dir) })
	}
}

// close is the moment at which one end sees the loss: that which sends to dir.
func (c *conn) close(dir direction) {
	if !c.open[dir] {
		return
	}
	c.open[dir] = false
	if !c.snaped {
		c.snap()
	}
	if dir == toDest {
		if c.s.conn == c {
			c.s.conn = nil
			c.s.step(peer.Down{})
		}
		return
	}
	if c.d.conn == c {
		c.d.conn = nil
		c.d.eachResolve(peer.Down{})
		c.d.step(peer.Down{})
	}
}
