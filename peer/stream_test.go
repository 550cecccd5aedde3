package peer

import (
	"net"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// Connections that were idle for longer than any of their deadlines carry on.
func TestStreamAfterSilence(t *testing.T) {
	const n, size = 17, 1 << 20
	src, dst := newTable(t, n, size, false), newTable(t, n, size, false)
	for i := range n - 1 {
		src.put(t, keyOf(i), size)
	}
	src.put(t, keyOf(n-1), 4096) // little enough to be written at once
	impatient := func(c *Config) { c.Stall = 50 * time.Millisecond; c.HandshakeTimeout = 100 * time.Millisecond }
	a, b := openNode(t, src, impatient), openNode(t, dst, impatient)
	for _, pause := range []time.Duration{0, 150 * time.Millisecond, linger + 150*time.Millisecond} {
		time.Sleep(pause)
		mustFetch(t, b, a.Endpoints()[0], 0, n)
		dst.drop()
		time.Sleep(pause)
		mustFetch(t, b, a.Endpoints()[0], n-1, 1)
		dst.drop()
	}
	if c := a.Stats().Connections; c != 1 {
		t.Errorf("%d control connections", c)
	}
}

// A payload connection that is lost takes along what was on it, as soon as the
// source says that it had sent it, and nothing else; another one is dialled.
func TestPayloadConnectionLost(t *testing.T) {
	const size = 64 << 10
	dst := newTable(t, 4, size, false)
	b := openNode(t, dst)
	r := newRawSource(t)
	failed := make(chan error, 1)
	go func() {
		failed <- func() error {
			ctrl, id, err := r.offerAll(size)
			if err != nil {
				return err
			}
			(<-r.pay).Close() // with item 0 on it
			send := func(nc net.Conn, i uint32) {
				nc.Write((&wire.Block{Index: i, Size: size}).Append(nil, id))
				nc.Write(payload(keyOf(int(i)), size))
			}
			send(<-r.pay, 1)
			again := <-r.pay
			done := &wire.Done{Source: r.self, Dest: r.dest.Load(), Items: []wire.ItemStatus{{Index: 0}, {Index: 1}}}
			ctrl.Write(done.Append(nil, id))
			time.Sleep(20 * quick.Repeat) // item 2 is in nobody's hands yet, and not lost
			send(again, 2)
			return nil
		}()
	}()
	start := time.Now()
	got := fetch(t, b, r.endpoint(), Submit{Namespace: "ns", Items: wanted(0, 3)}, 10*time.Second)
	if got[0].Status != wire.StatusLost || got[1].Status != wire.StatusOK || got[2].Status != wire.StatusOK {
		t.Errorf("%+v", got)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("after %v", took)
	}
	if err := <-failed; err != nil {
		t.Error(err)
	}
	for i := 1; i < 3; i++ {
		if err := dst.check(keyOf(i), size); err != nil {
			t.Error(err)
		}
	}
	dst.quiet(t)
}

// A block that is given up while it comes lets its slot go at once, whatever the
// source does; what is left of it goes nowhere, and the connection carries on.
func TestCloseWhileReceiving(t *testing.T) {
	const size = 64 << 10
	dst := newTable(t, 2, size, false)
	b := openNode(t, dst, func(c *Config) { c.Stall = time.Minute; c.Streams = 1 })
	r := newRawSource(t)
	got := make(chan Settle, 2)
	op := b.Submit(r.endpoint(), Submit{Namespace: "ns", Items: wanted(0, 2), Deadline: b.Now() + 10*time.Second}, func(s Settle) { got <- s })
	ctrl := <-r.ctrl
	_, id, err := readOne(ctrl, wire.TypeStart)
	if err != nil {
		t.Fatal(err)
	}
	one := wire.Offered{Size: size, Flags: wire.OfferNoPool}
	ctrl.Write((&wire.Offer{Source: r.self, Dest: r.dest.Load(), Items: []wire.Offered{one, one}}).Append(nil, id))
	pay := <-r.pay
	pay.Write((&wire.Block{Index: 0, Size: size}).Append(nil, id))
	pay.Write(make([]byte, 1000))
	time.Sleep(20 * time.Millisecond) // it is read by now, most likely
	b.Abort(r.endpoint(), op, 0)
	if s := <-got; s.Index != 0 || s.Status != wire.StatusAborted {
		t.Errorf("%+v", s)
	}
	within(t, 2*time.Second, func() bool { _, n, _, _ := dst.use(); return n == 1 }, func() string { return "the slot is kept" })
	pay.Write(make([]byte, size-1000))
	pay.Write((&wire.Block{Index: 1, Size: size}).Append(nil, id))
	pay.Write(payload(keyOf(1), size))
	if s := <-got; s.Index != 1 || s.Status != wire.StatusOK {
		t.Errorf("%+v", s)
	}
	if err := dst.check(keyOf(1), size); err != nil {
		t.Error(err)
	}
	dst.quiet(t)
}

// Blocks that were given up may still come, however many; the connection carries on
// behind them.
func TestGivenUpBlocksMayCome(t *testing.T) {
	const n, size = 40, 64 << 10 // more than unaskedMost
	dst := newTable(t, n, size, false)
	b := openNode(t, dst, func(c *Config) { c.Streams = 1 })
	r := newRawSource(t)
	got := make(chan Settle, n)
	op := b.Submit(r.endpoint(), Submit{Namespace: "ns", Items: wanted(0, n), Deadline: b.Now() + 10*time.Second}, func(s Settle) { got <- s })
	ctrl := <-r.ctrl
	_, id, err := readOne(ctrl, wire.TypeStart)
	if err != nil {
		t.Fatal(err)
	}
	o := &wire.Offer{Source: r.self, Dest: r.dest.Load()}
	var give []int
	for i := range n {
		o.Items = append(o.Items, wire.Offered{Size: size, Flags: wire.OfferNoPool})
		give = append(give, i)
	}
	ctrl.Write(o.Append(nil, id))
	pay := <-r.pay
	b.Abort(r.endpoint(), op, give[:n-1]...)
	for range n - 1 {
		if s := <-got; s.Status != wire.StatusAborted {
			t.Errorf("%+v", s)
		}
	}
	for i := range n {
		pay.Write((&wire.Block{Index: uint32(i), Size: size}).Append(nil, id))
		pay.Write(payload(keyOf(i), size))
	}
	if s := <-got; s.Index != n-1 || s.Status != wire.StatusOK || len(r.pay) != 0 {
		t.Errorf("%+v, and %d more connections", s, len(r.pay))
	}
	dst.quiet(t)
}
