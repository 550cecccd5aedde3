package peer

import (
	"crypto/rand"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// rawDest is the destination's end of a connection, in the hands of a test.
type rawDest struct {
	t    testing.TB
	nc   net.Conn
	self uint64
	who  uint64
	w    *wire.PeerWelcome
}

func rawDial(t testing.TB, n *Node, self uint64) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", strings.TrimPrefix(n.Endpoints()[0], "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(20 * time.Second))
	h := wire.Hello{MinVersion: 1, MaxVersion: 1, Incarnation: self}
	rand.Read(h.Nonce[:])
	nc.Write(h.Append(nil, 0))
	if _, _, err := readOne(nc, wire.TypeChallenge); err != nil {
		t.Fatal(err)
	}
	nc.Write((&wire.Auth{}).Append(nil, 0))
	if _, _, err := readOne(nc, wire.TypeWelcome); err != nil {
		t.Fatal(err)
	}
	return nc
}

func newRawDest(t testing.TB, n *Node, self uint64, routes wire.Routes, host [16]byte) *rawDest {
	t.Helper()
	d := &rawDest{t: t, nc: rawDial(t, n, self), self: self, who: uint64(n.Self())}
	hello := wire.PeerHello{Routes: routes, PeerInfo: wire.PeerInfo{Host: host}}
	d.nc.Write(hello.Append(nil, 1))
	m, _, err := readOne(d.nc, wire.TypePeerWelcome)
	if err != nil {
		t.Fatal(err)
	}
	d.w = m.(*wire.PeerWelcome)
	return d
}

func (d *rawDest) send(id uint64, m wire.Message) { d.nc.Write(m.Append(nil, id)) }

func (d *rawDest) readOne(want ...wire.Type) wire.Message {
	d.t.Helper()
	m, _, err := readOne(d.nc, want...)
	if err != nil {
		d.t.Fatal(err)
	}
	return m
}

// start begins an operation and returns the offer.
func (d *rawDest) start(id uint64, items []wire.Wanted) *wire.Offer {
	d.t.Helper()
	d.send(id, &wire.Start{Source: d.who, Dest: d.self, Timeout: 60_000, Namespace: "ns", Items: items})
	return d.readOne(wire.TypeOffer).(*wire.Offer)
}

// ended waits until the node closes the connection.
func (d *rawDest) ended() {
	d.t.Helper()
	if _, err := io.Copy(io.Discard, d.nc); err != nil {
		d.t.Errorf("the connection is not closed: %v", err)
	}
}

var streamOnly = wire.Routes(0).With(wire.RouteStream)

// served is a source with 8 blocks, and a well-behaved destination that must not
// feel anything.
func served(t *testing.T, size int) (src *table, a *Node, others func()) {
	src = newTable(t, 8, size, false)
	for i := range 8 {
		src.put(t, keyOf(i), size)
	}
	a = openNode(t, src)
	dst := newTable(t, 8, size, false)
	b := openNode(t, dst)
	others = func() {
		t.Helper()
		dst.drop()
		mustFetch(t, b, a.Endpoints()[0], 0, 8)
		dst.quiet(t)
	}
	others()
	return src, a, others
}

// Whatever a destination sends, the source lives, serves others, and has its
// claims back when the connection is gone.
func TestHostileDestination(t *testing.T) {
	const size = 4 << 20 // more than a socket takes
	src, a, others := served(t, size)
	garbage := make([]byte, 4096)
	rand.Read(garbage)
	ids := func(d *rawDest) (s, o uint64) { return d.who, d.self }
	for i, tt := range []struct {
		name string
		do   func(d *rawDest)
	}{
		{"garbage", func(d *rawDest) { d.nc.Write(garbage); d.ended() }},
		{"half a frame", func(d *rawDest) { d.nc.Write((&wire.Start{Namespace: "ns"}).Append(nil, 1)[:30]) }},
		{"a source's frame", func(d *rawDest) { d.send(1, &wire.Finished{}); d.ended() }},
		{"a bad payload", func(d *rawDest) {
			b := (&wire.Finish{}).Append(nil, 1)
			b[3] = byte(wire.TypeStart)
			d.nc.Write(b)
			d.ended()
		}},
		{"a value", func(d *rawDest) {
			d.send(1, &wire.Get{Key: []byte("k")})
			d.send(2, &wire.Ping{})
			d.readOne(wire.TypePong)
		}},
		{"not offered", func(d *rawDest) {
			d.start(7, wanted(0, 2))
			s, o := ids(d)
			d.send(7, &wire.Accept{Source: s, Dest: o, Items: []wire.Accepted{{Index: 99}, {Index: wire.MaxItems - 1}}})
			if m := d.readOne(wire.TypeDone).(*wire.Done); len(m.Items) != 2 || m.Items[0].Status == wire.StatusOK {
				t.Errorf("accepting what was not offered: %+v", m)
			}
			d.send(8, &wire.Accept{Source: s, Dest: o, Items: []wire.Accepted{{Index: 0}}})
			d.readOne(wire.TypeDone)
			d.send(7, &wire.Confirm{Source: s, Dest: o, Indices: []uint32{0, 1, 50}})
			d.readOne(wire.TypeRemoved)
		}},
		{"another's incarnation", func(d *rawDest) {
			d.send(7, &wire.Start{Source: d.who, Dest: d.self + 1, Timeout: 1000, Namespace: "ns", Items: wanted(0, 1)})
			d.readOne(wire.TypeRefused)
		}},
		{"accepts and never dials", func(d *rawDest) {
			d.start(7, wanted(0, 8))
			s, o := ids(d)
			d.send(7, &wire.Accept{Source: s, Dest: o, Items: []wire.Accepted{{Index: 0}, {Index: 1}, {Index: 2}}})
		}},
		{"never reads", func(d *rawDest) {
			nc := rawDial(t, a, d.self)
			nc.Write((&wire.PeerStream{Token: d.w.Token}).Append(nil, 0))
			d.start(7, wanted(0, 8))
			s, o := ids(d)
			var all []wire.Accepted
			for i := range 8 {
				all = append(all, wire.Accepted{Index: uint32(i)})
			}
			d.send(7, &wire.Accept{Source: s, Dest: o, Items: all})
			// The writes end by themselves: the block that was begun by the stall, and
			// with it the connection; what waits for another by the operation's time.
			m := d.readOne(wire.TypeDone).(*wire.Done)
			lost := false
			for _, it := range m.Items {
				lost = lost || it.Status == wire.StatusLost
			}
			if !lost {
				t.Errorf("%+v", m)
			}
		}},
		{"operations without end", func(d *rawDest) {
			for id := range uint64(1100) {
				d.send(id+1, &wire.Start{Source: d.who, Dest: d.self, Timeout: 60_000, Namespace: "ns", Items: wanted(0, 1)})
			}
			busy := 0
			for range 1100 {
				if m, ok := d.readOne(wire.TypeOffer, wire.TypeRefused).(*wire.Refused); ok && m.Status == wire.StatusBusy {
					busy++
				}
			}
			if busy != 1100-1024 {
				t.Errorf("%d are refused", busy)
			}
		}},
		{"another's move", func(d *rawDest) {
			s, o := ids(d)
			d.send(7, &wire.Start{Source: s, Dest: o, Mode: wire.TransferMove, Timeout: 60_000, Namespace: "ns", Items: wanted(0, 4)})
			if m := d.readOne(wire.TypeOffer).(*wire.Offer); m.Items[0].Keep != wire.StatusOK {
				t.Fatalf("not marked: %+v", m.Items[0])
			}
			spoof := newRawDest(t, a, d.self, streamOnly, [16]byte{})
			spoof.send(7, &wire.Confirm{Source: s, Dest: o, Indices: []uint32{0, 1, 2, 3}})
			for _, it := range spoof.readOne(wire.TypeRemoved).(*wire.Removed).Items {
				if it.Status == wire.StatusOK {
					t.Errorf("item %d is removed for who has not asked for it", it.Index)
				}
			}
			spoof.nc.Close()
		}},
		{"same incarnation again", func(d *rawDest) {
			d.start(7, wanted(0, 8))
			again := newRawDest(t, a, d.self, streamOnly, [16]byte{})
			again.start(8, wanted(0, 1))
			d.ended()
			again.nc.Close()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := newRawDest(t, a, uint64(1000+i), streamOnly, [16]byte{})
			d.t = t
			tt.do(d)
			others()
			d.nc.Close()
			src.quiet(t)
			within(t, 5*time.Second, func() bool { return a.Stats().Sources == 1 }, func() string { return "the source does not forget the peer" })
		})
	}
	t.Run("token", func(t *testing.T) {
		nc := rawDial(t, a, 4711)
		nc.Write((&wire.PeerStream{Token: 12345}).Append(nil, 0))
		if _, _, err := readOne(nc, wire.TypeError); err != nil {
			t.Errorf("a token that nobody gave: %v", err)
		}
		others()
	})
}

// Strangers who say nothing, or too little, are sent away, and do not keep others
// from being served.
func TestHostileStrangers(t *testing.T) {
	src := newTable(t, 8, 4096, false)
	src.put(t, keyOf(0), 4096)
	a := openNode(t, src, func(c *Config) { c.Handshakes = 4; c.HandshakeTimeout = 300 * time.Millisecond })
	addr := strings.TrimPrefix(a.Endpoints()[0], "tcp://")
	var all []net.Conn
	for range 20 {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		all = append(all, nc)
	}
	all[0].Write([]byte("GET / HTTP/1.1\r\nHost: kvcr\r\n\r\n"))
	for _, nc := range all {
		nc.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := io.Copy(io.Discard, nc); err != nil && strings.Contains(err.Error(), "timeout") {
			t.Errorf("a stranger is not sent away: %v", err)
		}
	}
	dst := newTable(t, 8, 4096, false)
	mustFetch(t, openNode(t, dst), a.Endpoints()[0], 0, 1)
	if n := a.Stats().Refused; n < 20 {
		t.Errorf("%d refused", n)
	}
}

// rawSource plays the source for one node.
type rawSource struct {
	t    *testing.T
	ln   net.Listener
	self uint64
	w    wire.PeerWelcome
	ctrl chan net.Conn // after PeerWelcome
	pay  chan net.Conn // after PeerStream
	dest atomic.Uint64
}

func newRawSource(t *testing.T) *rawSource {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &rawSource{t: t, ln: ln, self: 77, ctrl: make(chan net.Conn, 64), pay: make(chan net.Conn, 64), w: wire.PeerWelcome{Route: wire.RouteStream, Token: 5}}
	done := make(chan struct{})
	t.Cleanup(func() { ln.Close(); <-done })
	go func() {
		defer close(done)
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { nc.Close() })
			r.greet(nc)
		}
	}()
	return r
}

func (r *rawSource) greet(nc net.Conn) {
	nc.SetDeadline(time.Now().Add(20 * time.Second))
	m, _, err := readOne(nc, wire.TypeHello)
	if err != nil {
		return
	}
	r.dest.Store(m.(*wire.Hello).Incarnation)
	nc.Write((&wire.Challenge{Version: 1, Incarnation: r.self, MaxKey: 1, MaxInFlight: 1, MaxChunk: 1}).Append(nil, 0))
	if _, _, err := readOne(nc, wire.TypeAuth); err != nil {
		return
	}
	nc.Write((&wire.Welcome{}).Append(nil, 0))
	m, _, err = readOne(nc, wire.TypePeerHello, wire.TypePeerStream)
	if err != nil {
		return
	}
	if _, ok := m.(*wire.PeerStream); ok {
		r.pay <- nc
		return
	}
	nc.Write(r.w.Append(nil, 1))
	r.ctrl <- nc
}

// offerAll answers the next Start with all that it asks for, in blocks of size bytes,
// and returns its connection and operation.
func (r *rawSource) offerAll(size uint64) (ctrl net.Conn, id uint64, err error) {
	ctrl = <-r.ctrl
	m, id, err := readOne(ctrl, wire.TypeStart)
	if err != nil {
		return nil, 0, err
	}
	o := &wire.Offer{Source: r.self, Dest: r.dest.Load()}
	for range m.(*wire.Start).Items {
		o.Items = append(o.Items, wire.Offered{Size: size, Flags: wire.OfferNoPool})
	}
	ctrl.Write(o.Append(nil, id))
	return ctrl, id, nil
}

func (r *rawSource) endpoint() string { return "tcp://" + r.ln.Addr().String() }

// until writes b again and again until the other end takes no more, and returns how
// many bytes it took.
func until(nc net.Conn, b []byte) (n int) {
	for n < 256<<20 {
		k, err := nc.Write(b)
		if n += k; err != nil {
			break
		}
	}
	return n
}

// flood has every payload connection written to, while there are any, and reports
// those that are read without an end.
func (r *rawSource) flood(write func(net.Conn) int) {
	for {
		select {
		case nc := <-r.pay:
			if n := write(nc); n > 64<<20 {
				r.t.Errorf("%d bytes that nobody wants are read", n)
			}
		case <-time.After(300 * time.Millisecond):
			return
		}
	}
}

// Whatever a source sends, the destination lives, fetches from others, and has its
// slots back.
func TestHostileSource(t *testing.T) {
	const size = 64 << 10
	good := newTable(t, 8, size, false)
	for i := range 8 {
		good.put(t, keyOf(i), size)
	}
	a := openNode(t, good)
	offer := func(r *rawSource, start *wire.Start, size uint64) *wire.Offer {
		m := &wire.Offer{Source: r.self, Dest: r.dest.Load()}
		for range start.Items {
			m.Items = append(m.Items, wire.Offered{Size: size, Flags: wire.OfferSum | wire.OfferNoPool})
		}
		return m
	}
	block := func(id uint64, index int, size uint64) []byte {
		return (&wire.Block{Index: uint32(index), Size: size}).Append(nil, id)
	}
	for _, tt := range []struct {
		name string
		want wire.Status // of all items
		do   func(r *rawSource, ctrl net.Conn, id uint64, s *wire.Start)
	}{
		{"garbage", wire.StatusTimeout, func(r *rawSource, ctrl net.Conn, id uint64, s *wire.Start) { ctrl.Write(make([]byte, 999)) }},
		{"too few offers", wire.StatusSource, func(r *rawSource, ctrl net.Conn, id uint64, s *wire.Start) {
			m := offer(r, s, size)
			m.Items = m.Items[:1]
			ctrl.Write(m.Append(nil, id))
		}},
		{"too large", wire.StatusTooLarge, func(r *rawSource, ctrl net.Conn, id uint64, s *wire.Start) {
			ctrl.Write(offer(r, s, 1<<60).Append(nil, id))
		}},
		{"wrong bytes", wire.StatusChecksum, func(r *rawSource, ctrl net.Conn, id uint64, s *wire.Start) {
			ctrl.Write(offer(r, s, size).Append(nil, id))
			pay := <-r.pay
			for i := range s.Items {
				pay.Write(append(block(id, i, size), make([]byte, size)...))
			}
		}},
		{"wrong size", wire.StatusSource, func(r *rawSource, ctrl net.Conn, id uint64, s *wire.Start) {
			ctrl.Write(offer(r, s, size).Append(nil, id))
			pay := <-r.pay
			for i := range s.Items {
				pay.Write(append(block(id, i, 10), make([]byte, 10)...))
			}
		}},
		{"unsolicited", wire.StatusChecksum, func(r *rawSource, ctrl net.Conn, id uint64, s *wire.Start) {
			ctrl.Write(offer(r, s, size).Append(nil, id))
			pay := <-r.pay
			pay.Write(append(block(id+5, 0, 100), make([]byte, 100)...))
			pay.Write(append(block(id, 99, 100_000), make([]byte, 100_000)...))
			for i := range s.Items {
				pay.Write(append(block(id, i, size), make([]byte, size)...))
				pay.Write(append(block(id, i, size), make([]byte, size)...)) // twice
			}
		}},
		{"unsolicited without end", wire.StatusTimeout, func(r *rawSource, ctrl net.Conn, id uint64, s *wire.Start) {
			ctrl.Write(offer(r, s, size).Append(nil, id))
			r.flood(func(nc net.Conn) int { return until(nc, append(block(id+5, 0, size), make([]byte, size)...)) })
		}},
		{"unsolicited and huge", wire.StatusTimeout, func(r *rawSource, ctrl net.Conn, id uint64, s *wire.Start) {
			ctrl.Write(offer(r, s, size).Append(nil, id))
			r.flood(func(nc net.Conn) int {
				nc.Write(block(id, 77, maxBlock))
				return until(nc, make([]byte, 1<<20))
			})
		}},
		{"no frame", wire.StatusTimeout, func(r *rawSource, ctrl net.Conn, id uint64, s *wire.Start) {
			ctrl.Write(offer(r, s, size).Append(nil, id))
			(<-r.pay).Write([]byte(strings.Repeat("x", 5000)))
		}},
		{"another frame", wire.StatusTimeout, func(r *rawSource, ctrl net.Conn, id uint64, s *wire.Start) {
			ctrl.Write(offer(r, s, size).Append(nil, id))
			(<-r.pay).Write((&wire.Auth{}).Append(nil, 0))
		}},
		{"announces and stalls", wire.StatusTimeout, func(r *rawSource, ctrl net.Conn, id uint64, s *wire.Start) {
			ctrl.Write(offer(r, s, size).Append(nil, id))
			for i := range 2 {
				(<-r.pay).Write(append(block(id, i, size), make([]byte, 1000)...))
			}
		}},
		{"half a header", wire.StatusTimeout, func(r *rawSource, ctrl net.Conn, id uint64, s *wire.Start) {
			ctrl.Write(offer(r, s, size).Append(nil, id))
			(<-r.pay).Write(block(id, 0, size)[:20])
		}},
		{"says done and sends nothing", wire.StatusTimeout, func(r *rawSource, ctrl net.Conn, id uint64, s *wire.Start) {
			ctrl.Write(offer(r, s, size).Append(nil, id))
			m := &wire.Done{Source: r.self, Dest: r.dest.Load(), Items: []wire.ItemStatus{{Index: 0}, {Index: 1}, {Index: wire.MaxItems - 1}}}
			ctrl.Write(m.Append(nil, id))
		}},
		{"loses the payload connection in a block", wire.StatusLost, func(r *rawSource, ctrl net.Conn, id uint64, s *wire.Start) {
			ctrl.Write(offer(r, s, size).Append(nil, id))
			for i := range 2 {
				pay := <-r.pay
				pay.Write(append(block(id, i, size), make([]byte, 1000)...))
				pay.Close()
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dst := newTable(t, 16, size, false)
			b := openNode(t, dst)
			r := newRawSource(t)
			go func() {
				ctrl, ok := <-r.ctrl
				if !ok {
					return
				}
				m, id, err := readOne(ctrl, wire.TypeStart)
				if err == nil {
					tt.do(r, ctrl, id, m.(*wire.Start))
				}
			}()
			for i, s := range fetch(t, b, r.endpoint(), Submit{Namespace: "ns", Items: []wire.Wanted{{Key: []byte("x")}, {Key: []byte("y")}}}, 500*time.Millisecond) {
				if s.Status != tt.want && !(tt.want == wire.StatusTimeout && s.Status == wire.StatusLost) {
					t.Errorf("item %d: %v, want %v", i, s.Status, tt.want)
				}
			}
			mustFetch(t, b, a.Endpoints()[0], 0, 8)
			dst.quiet(t)
			if b.Stats().Posted != 0 {
				t.Error("memory is still posted")
			}
		})
	}
}
