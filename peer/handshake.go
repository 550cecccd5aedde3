package peer

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// readOne reads one frame of a handshake, and nothing beyond it. A frame of another
// type is refused by its header, before anything is waited for.
func readOne(nc io.Reader, want ...wire.Type) (wire.Message, uint64, error) {
	var head [wire.HeaderSize]byte
	if _, err := io.ReadFull(nc, head[:]); err != nil {
		return nil, 0, err
	}
	h, err := wire.ParseHeader(head[:])
	if err != nil {
		return nil, 0, &refused{wire.StatusUnsupported, err.Error()}
	}
	for _, t := range want {
		if h.Type != t {
			continue
		}
		payload := make([]byte, h.Length) // bounded by the type
		if _, err := io.ReadFull(nc, payload); err != nil {
			return nil, 0, err
		}
		m := wire.New(t)
		if err := m.Parse(payload); err != nil {
			return nil, 0, &refused{wire.StatusUnsupported, err.Error()}
		}
		return m, h.ID, nil
	}
	return nil, 0, refusef(wire.StatusUnsupported, "%v instead of %v", h.Type, want[0])
}

// readAnswer is readOne for the side that dialled: the peer may refuse instead.
func readAnswer(nc io.Reader, want wire.Type) (wire.Message, error) {
	m, _, err := readOne(nc, want, wire.TypeError, wire.TypeGoodbye, wire.TypeStatus)
	if err != nil {
		return nil, err
	}
	switch m := m.(type) {
	case *wire.ErrorReply:
		return nil, refusalOf(m.Code, m.Text)
	case *wire.Goodbye:
		return nil, refusalOf(m.Reason, m.Text)
	case *wire.StatusReply:
		return nil, refusef(m.Status, "the peer answers %v", m.Status)
	}
	return m, nil
}

// connect dials an address of a peer and proves both sides to each other. ready
// goes on with the handshake in the same time. who is 0 or the incarnation that
// must be there.
func (n *Node) connect(ctx context.Context, network, addr, namespace string, who Incarnation, ready func(nc net.Conn, at Incarnation) error) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.HandshakeTimeout)
	defer cancel()
	d := net.Dialer{KeepAlive: -1} // tune sets it, where it is wanted
	nc, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
	at, err := n.greet(nc, namespace)
	if err == nil && who != 0 && at != who {
		err = errors.New("another life of the process listens there")
	}
	if err == nil {
		err = ready(nc, at)
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		nc.Close()
		return nil, err
	}
	return nc, nil
}

// greet is the dialler's part of the handshake, up to Welcome. It returns who
// listens.
func (n *Node) greet(nc net.Conn, namespace string) (Incarnation, error) {
	hello := wire.Hello{
		MinVersion: wire.Version, MaxVersion: wire.Version, Incarnation: uint64(n.cfg.Self),
		Namespace: namespace, Client: n.cfg.Name,
	}
	rand.Read(hello.Nonce[:])
	if _, err := nc.Write(hello.Append(nil, 0)); err != nil {
		return 0, err
	}
	m, err := readAnswer(nc, wire.TypeChallenge)
	if err != nil {
		return 0, err
	}
	ch := m.(*wire.Challenge)
	secret := n.cfg.Secret
	switch {
	case ch.Version != wire.Version:
		return 0, refusef(wire.StatusUnsupported, "the peer chose version %d, not %d", ch.Version, wire.Version)
	case ch.AuthRequired && len(secret) == 0:
		return 0, refusef(wire.StatusUnauthorized, "the peer asks for a secret, and none is set here")
	case !ch.AuthRequired && len(secret) > 0:
		return 0, refusef(wire.StatusUnauthorized, "the peer asks for no secret: it may be another one")
	case ch.Incarnation == 0:
		return 0, refusef(wire.StatusUnsupported, "the peer has no incarnation")
	}
	var auth wire.Auth
	var proof [32]byte
	if ch.AuthRequired {
		auth.MAC = wire.ClientMAC(secret, &hello, ch)
		proof = wire.ServerMAC(secret, &hello, ch)
	}
	if _, err := nc.Write(auth.Append(nil, 0)); err != nil {
		return 0, err
	}
	if m, err = readAnswer(nc, wire.TypeWelcome); err != nil {
		return 0, err
	}
	if !wire.SameMAC(m.(*wire.Welcome).MAC, proof) {
		return 0, refusef(wire.StatusUnauthorized, "the peer has not proved that it has the secret")
	}
	// Only now: a stranger could claim to be us.
	if Incarnation(ch.Incarnation) == n.cfg.Self {
		return 0, refusef(wire.StatusSelf, "the address is this process's own")
	}
	return Incarnation(ch.Incarnation), nil
}

// accepted runs the listener's part of the handshake on one connection, and hands
// it on.
func (n *Node) accepted(nc net.Conn, local bool) {
	hello, first, err := n.admit(nc)
	if err == nil {
		switch m := first.(type) {
		case *wire.PeerHello:
			if local {
				err = errors.New("this socket is for payload")
			} else {
				err = n.admitPeer(nc, Incarnation(hello.Incarnation), m)
			}
		case *wire.PeerStream:
			err = n.admitStream(nc, hello, m)
		}
	}
	if err == nil {
		return
	}
	n.count.refused.Add(1)
	if !errors.Is(err, io.EOF) {
		level := slog.LevelDebug // strangers must not fill the log
		now, last := int64(n.Now()), n.warned.Load()
		if (last == 0 || now-last >= int64(time.Second)) && n.warned.CompareAndSwap(last, now) {
			level = slog.LevelWarn
		}
		n.log.Log(n.ctx, level, "a connection is refused", "from", nc.RemoteAddr().String(), "err", err, "refused", n.count.refused.Load())
	}
	var r *refused
	code := wire.CodeHandshake
	if errors.As(err, &r) {
		switch r.status {
		case wire.StatusUnauthorized:
			code = wire.CodeAuth
		case wire.StatusBusy:
			code = wire.CodeTooMany
		case wire.StatusClosed:
			code = wire.CodeShutdown
		}
		if errors.Is(err, errVersion) {
			code = wire.CodeBadVersion
		}
		// Whoever does not read it will not know.
		_, _ = nc.Write((&wire.ErrorReply{Code: code, Text: r.why}).Append(nil, 0))
	}
	nc.Close()
}

var errVersion = &refused{wire.StatusUnsupported, fmt.Sprintf("this node speaks version %d", wire.Version)}

// admit proves both sides to each other and returns the first message afterwards.
func (n *Node) admit(nc net.Conn) (*wire.Hello, wire.Message, error) {
	m, _, err := readOne(nc, wire.TypeHello)
	if err != nil {
		return nil, nil, err
	}
	hello := m.(*wire.Hello)
	if hello.MinVersion > wire.Version || hello.MaxVersion < wire.Version {
		return nil, nil, errVersion
	}
	if hello.Incarnation == 0 {
		return nil, nil, refusef(wire.StatusUnsupported, "a peer has an incarnation that is not 0")
	}
	secret := n.cfg.Secret
	ch := wire.Challenge{
		Version: wire.Version, AuthRequired: len(secret) > 0, Incarnation: uint64(n.cfg.Self),
		MaxValue: 1 << 40, MaxKey: wire.MaxKey, MaxInFlight: uint32(n.cfg.MaxOps), MaxChunk: wire.MaxChunk,
	}
	rand.Read(ch.Nonce[:])
	if _, err := nc.Write(ch.Append(nil, 0)); err != nil {
		return nil, nil, err
	}
	if m, _, err = readOne(nc, wire.TypeAuth); err != nil {
		return nil, nil, err
	}
	var w wire.Welcome
	if len(secret) > 0 {
		if !wire.SameMAC(m.(*wire.Auth).MAC, wire.ClientMAC(secret, hello, &ch)) {
			return nil, nil, refusef(wire.StatusUnauthorized, "the peer's proof is wrong: its secret is another one")
		}
		w.MAC = wire.ServerMAC(secret, hello, &ch)
	}
	if _, err := nc.Write(w.Append(nil, 0)); err != nil {
		return nil, nil, err
	}
	m, _, err = readOne(nc, wire.TypePeerHello, wire.TypePeerStream)
	return hello, m, err
}

// admitPeer makes a connection the control connection of a destination.
func (n *Node) admitPeer(nc net.Conn, who Incarnation, m *wire.PeerHello) error {
	if who == n.cfg.Self {
		return refusef(wire.StatusSelf, "source and destination are the same process")
	}
	token, err := newToken()
	if err != nil {
		return err
	}
	l, err := n.enterSource(sourceID{who, m.Link})
	if err != nil {
		return err
	}
	route := n.choose(m)
	w := wire.PeerWelcome{PeerInfo: n.info(), Token: token, Route: wire.RouteNone}
	if route != nil {
		w.Route = route.Kind()
		if w.Route == wire.RouteShm {
			w.Local = n.local
		}
	}
	var side SourceRoute
	c, err := n.newControl(nc, l, peerName(&m.PeerInfo, nc), false)
	if err != nil {
		n.leaveSource(l, &l.users)
		return err
	}
	s := &Session{
		Peer: who, Info: m.PeerInfo, Memory: n.cfg.Records, Event: l.link.post, Fail: c.fail,
		node: n, link: &l.link, token: token, watch: func(nc net.Conn) error { return l.dogs.watch(&n.procs, nc, who, l.link.post) },
	}
	if route != nil {
		if side, err = route.Source(n.ctx, s); err != nil {
			c.close()
			n.leaveSource(l, &l.users)
			return fmt.Errorf("route %v: %w", w.Route, err)
		}
	}
	l.begin(nc, c, s, w.Route, side, &w)
	return nil
}

// peerName is what logs call a peer.
func peerName(i *wire.PeerInfo, nc net.Conn) string {
	switch {
	case i.Node != "":
		return i.Node
	case i.Endpoint != "":
		return i.Endpoint
	}
	return nc.RemoteAddr().String()
}

// newToken is a number that nobody can guess, not 0.
func newToken() (uint64, error) {
	var b [8]byte
	for {
		if _, err := rand.Read(b[:]); err != nil {
			return 0, err
		}
		if t := binary.LittleEndian.Uint64(b[:]); t != 0 {
			return t, nil
		}
	}
}

// admitStream gives a payload connection to the session that it is for.
func (n *Node) admitStream(nc net.Conn, hello *wire.Hello, m *wire.PeerStream) error {
	n.mu.Lock()
	t := n.tokens[m.Token]
	ok := t != nil && t.who == Incarnation(hello.Incarnation)
	if ok {
		t.link.guests++ // what attach begins must not outlive the link
	}
	n.mu.Unlock()
	if !ok {
		return refusef(wire.StatusUnsupported, "no such control connection, or not any more")
	}
	defer n.leaveSource(t.link, &t.link.guests)
	nc.SetDeadline(time.Time{})
	t.side.attach(nc, int(m.Index), hello.Namespace)
	return nil
}

// choose picks the first of our routes that the peer can use as well.
func (n *Node) choose(m *wire.PeerHello) Route {
	for _, r := range n.routes {
		if m.Routes.Has(r.Kind()) && r.Usable(&m.PeerInfo) {
			return r
		}
	}
	return nil
}

// info is what this node says of itself.
func (n *Node) info() wire.PeerInfo {
	i := wire.PeerInfo{Node: n.cfg.Name, Endpoint: n.cfg.Advertise, Host: n.host}
	for _, r := range n.routes {
		r.Announce(&i)
	}
	return i
}

// shake is the dialler's part of the handshake after Welcome: it says which link the
// connection is for, and agrees on a route other than those avoided.
func (n *Node) shake(nc net.Conn, link uint64, avoid wire.Routes) (*wire.PeerWelcome, error) {
	hello := wire.PeerHello{PeerInfo: n.info(), Link: link}
	for _, r := range n.routes {
		if !avoid.Has(r.Kind()) {
			hello.Routes = hello.Routes.With(r.Kind())
		}
	}
	if _, err := nc.Write(hello.Append(nil, 1)); err != nil {
		return nil, err
	}
	m, err := readAnswer(nc, wire.TypePeerWelcome)
	if err != nil {
		return nil, err
	}
	w := m.(*wire.PeerWelcome)
	if !hello.Routes.Has(w.Route) && w.Route != wire.RouteNone {
		return nil, refusef(wire.StatusUnsupported, "the peer chose route %v, which was not offered", w.Route)
	}
	return w, nil
}
