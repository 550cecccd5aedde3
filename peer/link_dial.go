package peer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/wire"
)

// ran sees to it that there is a connection while there is work for one.
func (l *destLink) ran() {
	if w, ok := l.side.(runWatcher); ok {
		w.ran()
	}
	if l.link.conn != nil {
		return
	}
	l.link.mu.Lock()
	begin := !l.dialling && (l.waiting > 0 || l.link.m.Ops() > 0) && !l.node.closing.Load()
	l.dialling = l.dialling || begin
	l.link.mu.Unlock()
	if begin && !l.node.spawn(l.dial) { // which takes node.mu: never with link.mu held
		l.rested()
	}
}

func (l *destLink) rested() {
	l.link.mu.Lock()
	l.dialling = false
	l.link.mu.Unlock()
}

const (
	firstBackoff = 20 * time.Millisecond
	lastBackoff  = 900 * time.Millisecond
	// briefMost bounds the pause after connections that came about and were soon
	// lost: eight dials a second at most, of a peer that lets us in and then does not
	// want us.
	briefMost = 4
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
	if !l.came.IsZero() && time.Since(l.came) < lastBackoff {
		l.brief = min(l.brief+1, briefMost)
	} else {
		l.brief = 0
	}
	for failures := l.brief; ; failures++ {
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
		n.mu.Lock()
		l.unlike = nil
		n.mu.Unlock()
		err := l.try()
		n.mu.Lock()
		l.lastErr = err
		n.mu.Unlock()
		if err == nil {
			l.came = time.Now()
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
	l.link.post(call(l.rested))
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
	l.eachResolve(func(k *resolveCall) { k.step(Unreachable{r.status}) })
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
		avoid, err := l.failed[at], n.mayBeNamedLocked(l, at)
		n.mu.Unlock()
		if err != nil {
			return err
		}
		w, err = n.shake(nc, l.number, avoid)
		return err
	})
	if err != nil {
		return err
	}
	if w.Route == wire.RouteNone {
		nc.Close()
		n.mu.Lock()
		delete(l.failed, who) // there is no other: what failed may do the next time
		n.mu.Unlock()
		return refusef(wire.StatusUnsupported, "no route in common")
	}
	c, err := n.newControl(nc, l, peerName(&w.PeerInfo, nc), true)
	if err != nil {
		return err
	}
	s := &Session{
		Peer: who, Info: w.PeerInfo, Namespace: namespace, Memory: n.cfg.Records, Event: l.link.post, Fail: c.fail,
		node: n, link: &l.link, token: w.Token, local: w.Local, watch: func(nc net.Conn) error { return l.dogs.watch(&n.procs, nc, who, l.link.post) },
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
		// Over ucx a source that does not reach our worker ends the connection itself.
		lost := w.Route != wire.RouteUCX && lostMeanwhile(nc, err)
		nc.Close()
		c.close()
		if n.ctx.Err() != nil {
			return err
		}
		if lost {
			return fmt.Errorf("the connection was lost while route %v came about: %v", w.Route, err) // no refusal of the peer's
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

// lostMeanwhile reports whether the control connection, which nothing has been read
// from since its handshake, ended while a route came about. Then err says nothing about
// the route: to avoid it would slow the peers down for as long as both live.
func lostMeanwhile(nc net.Conn, err error) bool {
	if errors.As(err, new(outOfTurn)) {
		return true // the source has lost it, and we shall hear of that
	}
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true
	}
	over := false
	err = raw.Control(func(fd uintptr) {
		n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		over = err == nil && n == 0 || err != nil && err != unix.EAGAIN && err != unix.EINTR
	})
	return over || err != nil
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
	l.eachResolve(func(k *resolveCall) { k.step(Up{Peer: who, Route: route}) })
}
