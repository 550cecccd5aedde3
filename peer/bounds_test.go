package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/internal/procs"
	"github.com/kvcr-go/kvcr/wire"
)

// Who asks how things stand waits for nobody, and keeps nobody waiting, while
// links begin to dial and new endpoints push old ones out.
func TestStateWhileDialling(t *testing.T) {
	b := openNode(t, newTable(t, 4, 4096, false), func(c *Config) { c.MaxPeers = 2 })
	endpoints := []string{freePort(t), freePort(t), freePort(t)}
	end := time.Now().Add(500 * time.Millisecond)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Add(2)
		go func() {
			defer wg.Done()
			for time.Now().Before(end) {
				b.Peers()
				b.Known(endpoints[i%len(endpoints)])
			}
		}()
		go func() {
			defer wg.Done()
			for k := 0; time.Now().Before(end); k++ {
				done := make(chan Settle, 1)
				b.Submit(endpoints[(i+k)%len(endpoints)], Submit{Namespace: "ns", Items: wanted(0, 1), Deadline: b.Now()}, func(s Settle) { done <- s })
				<-done
			}
		}()
	}
	over := make(chan struct{})
	go func() { wg.Wait(); close(over) }()
	select {
	case <-over:
	case <-time.After(10 * time.Second):
		t.Fatal("a deadlock")
	}
}

// held keeps a source's link from running until the returned function is called,
// as a slow block table would.
func held(t *testing.T, n *Node, who Incarnation) (release func()) {
	t.Helper()
	n.mu.Lock()
	l := n.sources[who]
	n.mu.Unlock()
	if l == nil {
		t.Fatal("no such peer")
	}
	begun, gate, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		l.link.post(call(func() { close(begun); <-gate }))
	}()
	<-begun
	return func() { close(gate); <-over }
}

// Frames that come faster than the machine takes them wait in the kernel, and not
// in our memory; all of them are answered.
func TestFramesWaitOutside(t *testing.T) {
	src := newTable(t, 4, 4096, false)
	a := openNode(t, src)
	d := newRawDest(t, a, 501, streamOnly, [16]byte{})
	d.send(1, &wire.Ping{})
	d.readOne(wire.TypePong)
	release := held(t, a, 501)
	// 8000 keys of 30 bytes: a large question with a small answer.
	q := wire.PeerQuery{Namespace: "ns"}
	for i := range 8000 {
		q.Keys = append(q.Keys, []byte(fmt.Sprintf("%030d", i)))
	}
	frame := q.Append(nil, 9)
	const limit = 128 << 20
	sent := 0
	for sent < limit {
		d.nc.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
		n, err := d.nc.Write(frame[sent%len(frame):])
		if sent += n; err != nil {
			break
		}
	}
	// What socket buffers take differs from machine to machine: some MiB.
	if sent > limit/4 {
		t.Errorf("%d MiB are taken while nobody looks at them", sent>>20)
	}
	release()
	d.nc.SetDeadline(time.Now().Add(20 * time.Second))
	for range sent / len(frame) {
		if r := d.readOne(wire.TypeResults).(*wire.Results); len(r.Results) != len(q.Keys) {
			t.Fatalf("%d results", len(r.Results))
		}
	}
}

// talker is a machine that answers every event at length.
type talker struct {
	l    *link
	most int // bytes that waited to be written
}

func (m *talker) Step(Time, Event) []Action {
	m.most = max(m.most, len(m.l.out))
	return []Action{Send{1, &wire.Goodbye{Text: strings.Repeat("x", 1000)}}}
}

func (*talker) Next() Time { return 0 }
func (*talker) Ops() int   { return 0 }

// What a run of a link has to say is handed over in time, not gathered without an
// end.
func TestSendsAreHandedOver(t *testing.T) {
	n := openNode(t, newTable(t, 1, 1, false))
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	l := &link{node: n, do: func(Action) {}, ran: func() {}}
	m := &talker{l: l}
	l.m = m
	c := &control{node: n, fd: fds[0]}
	l.post(call(func() { // all of it in one run
		l.conn = c
		for range 20_000 {
			l.post(Tick{})
		}
	}))
	if m.most > 2*outRun {
		t.Errorf("%d bytes were gathered", m.most)
	}
	c.mu.Lock()
	if waits := len(c.queue) + c.draining; waits > outQueue || !c.dead {
		t.Errorf("%d bytes wait for a peer that does not read; its connection has ended: %t", waits, c.dead)
	}
	c.mu.Unlock()
	c.close()
	within(t, 5*time.Second, func() bool { return n.Stats().Outbound == 0 }, func() string { return fmt.Sprintf("%d bytes still wait", n.Stats().Outbound) })
}

// deafControl is a connection whose other end reads nothing, and whose socket is
// full.
func deafControl(t *testing.T, n *Node) *control {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fds[1]) })
	c := &control{node: n, fd: fds[0]}
	t.Cleanup(c.close)
	for { // what the kernel takes does not count
		if _, err := unix.Write(c.fd, make([]byte, 4096)); err != nil {
			return c
		}
	}
}

// What a goroutine is just writing waits as well.
func TestOutQueue(t *testing.T) {
	c := deafControl(t, openNode(t, newTable(t, 1, 1, false)))
	c.write(make([]byte, outQueue*3/4))
	within(t, 5*time.Second, func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.draining > 0 }, func() string { return "nobody writes" })
	c.write(make([]byte, outQueue/2))
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.dead {
		t.Errorf("%d bytes wait", len(c.queue)+c.draining)
	}
}

// All peers together have a limit too; who has little waiting does not feel it.
func TestMaxOutbound(t *testing.T) {
	n := openNode(t, newTable(t, 1, 1, false), func(c *Config) { c.MaxOutbound = 1 << 20 })
	conn := func() *control { return deafControl(t, n) }
	a, b, c := conn(), conn(), conn()
	dead := func(c *control) bool { c.mu.Lock(); defer c.mu.Unlock(); return c.dead }
	a.write(make([]byte, 900<<10))
	b.write(make([]byte, outFree))
	c.write(make([]byte, 200<<10))
	if dead(a) || dead(b) || !dead(c) {
		t.Errorf("ended: %t, %t, %t, want the last alone", dead(a), dead(b), dead(c))
	}
	b.write([]byte{1})
	b.write(make([]byte, 200<<10))
	if !dead(b) {
		t.Error("one that has much waiting is kept beyond the limit")
	}
	if got := n.Stats().Outbound; got < 900<<10 || got > 1<<20 {
		t.Errorf("%d bytes are said to wait", got)
	}
	a.close()
	within(t, 5*time.Second, func() bool { return n.Stats().Outbound == 0 }, func() string { return fmt.Sprintf("%d bytes still wait", n.Stats().Outbound) })
}

// gated is a table whose memory is shared only when the test says so.
type gated struct {
	*table
	share func() error
}

func (g *gated) Share(ns string) (*os.File, int64, error) {
	if err := g.share(); err != nil {
		return nil, 0, err
	}
	return g.table.Share(ns)
}

func openWith(t *testing.T, r Records, opts ...nodeOption) *Node {
	t.Helper()
	return openNode(t, nil, append(opts, func(c *Config) { c.Records = r })...)
}

// attachOnly begins a payload connection over route shm and does not wait.
func attachOnly(t *testing.T, d *rawDest) net.Conn {
	t.Helper()
	nc, err := net.Dial("unix", d.w.Local)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(10 * time.Second))
	nc.Write((&wire.Hello{MinVersion: 1, MaxVersion: 1, Incarnation: d.self, Namespace: "ns"}).Append(nil, 0))
	if _, _, err := readOne(nc, wire.TypeChallenge); err != nil {
		t.Fatal(err)
	}
	nc.Write((&wire.Auth{}).Append(nil, 0))
	if _, _, err := readOne(nc, wire.TypeWelcome); err != nil {
		t.Fatal(err)
	}
	nc.Write((&wire.PeerStream{Token: d.w.Token}).Append(nil, 0))
	nc.Write((&wire.ShmAttach{}).Append(nil, 1))
	return nc
}

// A destination that goes while it is given memory leaves nothing behind: no
// peer, no process that is watched.
func TestShmAttachedTooLate(t *testing.T) {
	needShm(t)
	begun, gate := make(chan struct{}, 1), make(chan struct{})
	g := &gated{newTable(t, 4, 4096, true), func() error { begun <- struct{}{}; <-gate; return nil }}
	a := openWith(t, g, shmFirst)
	d := newRawDest(t, a, 502, wire.Routes(0).With(wire.RouteShm), hostID())
	nc := attachOnly(t, d)
	<-begun
	d.nc.Close()
	within(t, 5*time.Second, func() bool { return a.Stats().Connections == 0 }, func() string { return "still connected" })
	close(gate)
	_, _ = io.Copy(io.Discard, nc) // to the end that the node makes
	within(t, 5*time.Second, func() bool { return a.Stats().Sources == 0 && a.procs.Len() == 0 }, func() string {
		return fmt.Sprintf("%d peers are known, %d processes watched", a.Stats().Sources, a.procs.Len())
	})
}

// A destination that agrees on shared memory and never asks for it has not all
// the time, and not any number of connections.
func TestShmNeverAttached(t *testing.T) {
	needShm(t)
	a := openNode(t, newTable(t, 4, 4096, true), shmFirst, func(c *Config) { c.HandshakeTimeout = time.Second })
	refused := 0
	for range 3 * maxUsers {
		nc := rawDial(t, a, 503)
		nc.Write((&wire.PeerHello{Routes: wire.Routes(0).With(wire.RouteShm), PeerInfo: wire.PeerInfo{Host: hostID()}}).Append(nil, 1))
		m, _, err := readOne(nc, wire.TypePeerWelcome, wire.TypeError)
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := m.(*wire.ErrorReply); ok {
			refused++
			if e.Code != wire.CodeTooMany {
				t.Errorf("%v", e.Code)
			}
		}
	}
	if refused != 2*maxUsers {
		t.Errorf("%d are refused, want %d", refused, 2*maxUsers)
	}
	within(t, 5*time.Second, func() bool { s := a.Stats(); return s.Connections == 0 && s.Sources == 0 }, func() string { return "still connected" })
}

// Cancelling costs what it cancels, however much waits.
func TestCancelManyWrites(t *testing.T) {
	const n = 1024 * wire.MaxItems
	src := newTable(t, 1, 64, false)
	answered := 0
	r := newStreamSource(&Session{Memory: src, Event: func(Event) { answered++ }})
	src.put(t, keyOf(0), 64)
	o := &wire.Offered{}
	c, _ := src.Claim("", &wire.Wanted{Key: []byte(keyOf(0))}, o)
	for i := range n {
		r.Write(Write{Op: OpID(i / wire.MaxItems), Index: i % wire.MaxItems, Claim: c, Offer: o})
	}
	start := time.Now()
	for i := range n {
		r.CancelWrite(OpID(i/wire.MaxItems), i%wire.MaxItems)
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("%v for %d writes", took, n)
	}
	if answered != n || len(r.queue) > n/2 || r.queued != 0 {
		t.Errorf("%d of %d are answered, %d wait, %d bytes", answered, n, len(r.queue), r.queued)
	}
	r.Down()
	if answered != n {
		t.Error("answered twice")
	}
}

// What is cancelled is not sent, and what is not cancelled is, wherever it waits.
func TestCancelSome(t *testing.T) {
	const n = 64
	src := newTable(t, n, 64, false)
	var sent []int
	r := newStreamSource(&Session{Memory: src, Event: func(e Event) {
		if w := e.(Written); w.Status == wire.StatusOK {
			sent = append(sent, w.Index)
		}
	}})
	o := &wire.Offered{Size: 64}
	for i := range n {
		src.put(t, keyOf(i), 64)
		c, _ := src.Claim("", &wire.Wanted{Key: []byte(keyOf(i))}, &wire.Offered{})
		r.Write(Write{Op: 1, Index: i, Claim: c, Offer: o})
	}
	for i := range n {
		if i%3 != 0 {
			r.CancelWrite(1, i)
		}
	}
	st := &outStream{src: r}
	for r.takeFor(st) {
		st.done(nil)
	}
	if len(sent) != (n+2)/3 || r.queued != 0 || len(r.queue) != 0 {
		t.Errorf("sent %v, %d wait", sent, len(r.queue))
	}
	for k, i := range sent {
		if i != 3*k {
			t.Errorf("sent %v", sent)
			break
		}
	}
}

// The end of a session answers for each write once, for those that were cancelled
// before it as well.
func TestCancelThenDown(t *testing.T) {
	answers := map[int]int{}
	src := newTable(t, 1, 64, false)
	src.put(t, keyOf(0), 64)
	o := &wire.Offered{}
	c, _ := src.Claim("", &wire.Wanted{Key: []byte(keyOf(0))}, o)
	r := newStreamSource(&Session{Memory: src, Event: func(e Event) { answers[e.(Written).Index]++ }})
	for i := range 10 {
		r.Write(Write{Op: 1, Index: i, Claim: c, Offer: o})
	}
	r.CancelWrite(1, 3)
	r.CancelWrite(1, 3)
	r.Down()
	for i := range 10 {
		if answers[i] != 1 {
			t.Errorf("write %d is answered %d times", i, answers[i])
		}
	}
}

// takeFor is take, with the lock that it wants.
func (r *streamSource) takeFor(st *outStream) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return st.take()
}

// A peer that lets everybody in and closes at once is not dialled without a pause.
func TestRedialPauses(t *testing.T) {
	b := openNode(t, newTable(t, 4, 4096, false))
	r := newRawSource(t)
	go func() {
		for nc := range r.ctrl {
			nc.Close()
		}
	}()
	t.Cleanup(func() { close(r.ctrl) })
	s := fetch(t, b, r.endpoint(), Submit{Namespace: "ns", Items: wanted(0, 1)}, time.Second)
	if s[0].Status != wire.StatusTimeout {
		t.Errorf("%v", s[0].Status)
	}
	if n := b.Stats().Dials; n < 3 || n > 40 {
		t.Errorf("%d dials in a second", n)
	}
}

// Close from within a callback returns, and says why it is not done; it is done
// once the callback is over. Submit from within one is as any other.
func TestCloseInCallback(t *testing.T) {
	src, dst := newTable(t, 8, 4096, false), newTable(t, 8, 4096, false)
	for i := range 8 {
		src.put(t, keyOf(i), 4096)
	}
	a := openNode(t, src)
	b := openNode(t, dst, func(c *Config) { c.Stall = 100 * time.Millisecond })
	var closeErr error
	var took time.Duration
	var again atomic.Int32
	done := make(chan struct{})
	b.Submit(a.Endpoints()[0], Submit{Namespace: "ns", Items: wanted(0, 1), Deadline: b.Now() + 5*time.Second}, func(Settle) {
		b.Submit(a.Endpoints()[0], Submit{Namespace: "ns", Items: wanted(1, 2), Deadline: b.Now() + 5*time.Second}, func(s Settle) {
			if again.Add(1) > 1 {
				return
			}
			ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
			defer cancel()
			start := time.Now()
			closeErr = b.Close(ctx)
			took = time.Since(start)
			close(done)
		})
	})
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("Close does not return")
	}
	if !errors.Is(closeErr, ErrClosing) || took > 8*time.Second {
		t.Errorf("%v after %v", closeErr, took)
	}
	within(t, 5*time.Second, func() bool { return again.Load() == 2 }, func() string { return "an item is not settled" })
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := b.Close(ctx); errors.Is(err, ErrClosing) {
		t.Errorf("after the callback: %v", err)
	}
	dst.quiet(t)
	src.quiet(t)
}

// What is behind much on a connection that is slow, but lives, is not given up
// because another connection was lost; and what was on that one is.
func TestSlowConnectionIsNotLost(t *testing.T) {
	const size = 64 << 10
	dst := newTable(t, 4, size, false)
	b := openNode(t, dst)
	r := newRawSource(t)
	failed := make(chan error, 1)
	go func() {
		failed <- func() error {
			ctrl := <-r.ctrl
			m, id, err := readOne(ctrl, wire.TypeStart)
			if err != nil {
				return err
			}
			o := &wire.Offer{Source: r.self, Dest: r.dest.Load()}
			for range m.(*wire.Start).Items {
				o.Items = append(o.Items, wire.Offered{Size: size, Flags: wire.OfferNoPool})
			}
			ctrl.Write(o.Append(nil, id))
			first, slow := <-r.pay, <-r.pay
			first.Close() // with item 0 on it
			<-r.pay
			// Everything has been sent, as far as the source can tell.
			done := &wire.Done{Source: r.self, Dest: r.dest.Load(), Items: []wire.ItemStatus{{Index: 0}, {Index: 1}, {Index: 2}}}
			ctrl.Write(done.Append(nil, id))
			slow.Write((&wire.Block{Index: 1, Size: size}).Append(nil, id))
			b := payload(keyOf(1), size)
			for len(b) > 0 { // for twelve times as long as a connection that is silent is waited for
				slow.Write(b[:size/32])
				b = b[size/32:]
				time.Sleep(quick.Repeat * 3 / 2)
			}
			slow.Write((&wire.Block{Index: 2, Size: size}).Append(nil, id))
			slow.Write(payload(keyOf(2), size))
			return nil
		}()
	}()
	got := fetch(t, b, r.endpoint(), Submit{Namespace: "ns", Items: wanted(0, 3)}, 10*time.Second)
	if got[0].Status != wire.StatusLost || got[1].Status != wire.StatusOK || got[2].Status != wire.StatusOK {
		t.Errorf("%+v", got)
	}
	if err := <-failed; err != nil {
		t.Error(err)
	}
	dst.quiet(t)
}

// What was lost is noticed also while other connections are never silent: they
// carry what the source has begun to send later.
func TestLostBesideBusyConnection(t *testing.T) {
	const size = 16 << 10
	dst := newTable(t, 600, size, false)
	b := openNode(t, dst)
	r := newRawSource(t)
	stop := make(chan struct{})
	var source sync.WaitGroup
	source.Add(1)
	go func() {
		defer source.Done()
		ctrl := <-r.ctrl
		var busy net.Conn
		for n := 0; ; n++ {
			m, id, err := readOne(ctrl, wire.TypeStart, wire.TypeAccept, wire.TypeFinish, wire.TypeProbe)
			if err != nil {
				return
			}
			switch m := m.(type) {
			case *wire.Start:
				o := &wire.Offer{Source: r.self, Dest: r.dest.Load()}
				for range m.Items {
					o.Items = append(o.Items, wire.Offered{Size: size, Flags: wire.OfferNoPool})
				}
				ctrl.Write(o.Append(nil, id))
			case *wire.Accept:
				var over []wire.ItemStatus
				for _, it := range m.Items {
					over = append(over, wire.ItemStatus{Index: it.Index})
				}
				if busy == nil {
					first := <-r.pay
					busy = <-r.pay
					first.Close() // with the first item on it
				} else {
					for _, it := range m.Items {
						busy.Write((&wire.Block{Index: it.Index, Size: size}).Append(nil, id))
						busy.Write(make([]byte, size))
					}
				}
				ctrl.Write((&wire.Done{Source: r.self, Dest: r.dest.Load(), Items: over}).Append(nil, id))
			case *wire.Finish:
				ctrl.Write((&wire.Finished{Source: m.Source, Dest: m.Dest}).Append(nil, id))
			}
		}
	}()
	lost := make(chan Settle, 1)
	b.Submit(r.endpoint(), Submit{Namespace: "ns", Items: wanted(1000, 1), Deadline: b.Now() + 10*time.Second}, func(s Settle) { lost <- s })
	start := time.Now()
	go func() {
		for i := 0; i < 500; i++ {
			select {
			case <-stop:
				return
			default:
			}
			b.Submit(r.endpoint(), Submit{Namespace: "ns", Items: wanted(i, 1), Deadline: b.Now() + 5*time.Second}, func(Settle) {})
			time.Sleep(quick.Repeat / 5)
		}
	}()
	s := <-lost
	close(stop)
	if took := time.Since(start); s.Status != wire.StatusLost || took > 3*time.Second {
		t.Errorf("%v after %v", s.Status, took)
	}
	dst.quiet(t)
	closeNode(t, b)
	source.Wait()
}

// A route that did not come about once is tried again where there is no other.
func TestOnlyRouteFailsOnce(t *testing.T) {
	needShm(t)
	var broken atomic.Bool
	broken.Store(true)
	g := &gated{newTable(t, 4, 4096, true), func() error {
		if broken.Load() {
			return errors.New("out of descriptors")
		}
		return nil
	}}
	g.put(t, keyOf(0), 4096)
	only := withRoutes(wire.RouteShm)
	a, b := openWith(t, g, only), openNode(t, newTable(t, 4, 4096, true), only)
	r := fetch(t, b, a.Endpoints()[0], Submit{Namespace: "ns", Items: wanted(0, 1)}, 5*time.Second)
	if r[0].Status != wire.StatusUnsupported {
		t.Errorf("no route: %v", r[0].Status)
	}
	broken.Store(false)
	within(t, 5*time.Second, func() bool {
		return fetch(t, b, a.Endpoints()[0], Submit{Namespace: "ns", Items: wanted(0, 1)}, time.Second)[0].Status == wire.StatusOK
	}, func() string { return "the only route is never tried again" })
}

// Where a process cannot be watched, on either side, payload goes over streams.
func TestShmUnwatchable(t *testing.T) {
	needShm(t)
	whole := procs.System
	defer func() { procs.System = whole }()
	for _, tt := range []struct {
		name  string
		spoil func(k *procs.Kernel)
	}{
		{"another pid namespace", func(k *procs.Kernel) {
			k.Cred = func(fd int) (*unix.Ucred, error) {
				c, err := whole.Cred(fd)
				if c != nil {
					c.Pid = 0
				}
				return c, err
			}
		}},
		{"another user", func(k *procs.Kernel) {
			k.Cred = func(fd int) (*unix.Ucred, error) {
				c, err := whole.Cred(fd)
				if c != nil {
					c.Uid = 65534
				}
				return c, err
			}
		}},
		{"no pidfd", func(k *procs.Kernel) {
			k.PeerPidfd = func(int) (int, error) { return -1, unix.ENOPROTOOPT }
			k.Open = func(int, int) (int, error) { return -1, unix.ENOSYS }
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			src := startChild(t, "source")
			k := whole
			tt.spoil(&k)
			procs.System = k
			dst := newTable(t, childBlocks, childSize, true)
			b := openNode(t, dst, shmFirst)
			mustFetch(t, b, src.endpoint, 0, 4) // the source could watch us, we not it
			if s, _ := b.Known(src.endpoint); s.Route != wire.RouteStream {
				t.Errorf("route %v", s.Route)
			}
			closeNode(t, b)
			own := newTable(t, 4, 4096, true)
			own.put(t, keyOf(0), 4096)
			a := openNode(t, own, shmFirst)
			c := openNode(t, newTable(t, 4, 4096, true), shmFirst)
			mustFetch(t, c, a.Endpoints()[0], 0, 1)
			if s, _ := c.Known(a.Endpoints()[0]); s.Route != wire.RouteStream {
				t.Errorf("route %v", s.Route)
			}
			closeNode(t, c)
			closeNode(t, a)
			procs.System = whole
		})
	}
}

// Memory of sources is mapped as long as there is a session with them.
func TestShmMappingsEnd(t *testing.T) {
	needShm(t)
	maps := func() int {
		b, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Skipf("mappings cannot be counted: %v", err)
		}
		return strings.Count(string(b), "kvcr-test")
	}
	src, dst := newTable(t, 4, 4096, true), newTable(t, 4, 4096, false)
	src.put(t, keyOf(0), 4096)
	before := maps()
	for range 10 {
		a, b := openNode(t, src, shmFirst), openNode(t, dst, shmFirst)
		mustFetch(t, b, a.Endpoints()[0], 0, 1)
		fetch(t, b, a.Endpoints()[0], Submit{Namespace: "another", Items: wanted(0, 1)}, 5*time.Second)
		dst.drop()
		mustFetch(t, b, a.Endpoints()[0], 0, 1)
		if s, _ := b.Known(a.Endpoints()[0]); s.Route != wire.RouteShm || maps() == before {
			t.Fatalf("route %v, %d mappings", s.Route, maps())
		}
		dst.drop()
		closeNode(t, a) // the source first: the destination lets go by itself
		within(t, 5*time.Second, func() bool { return maps() == before }, func() string { return fmt.Sprintf("%d mappings, %d before", maps(), before) })
		closeNode(t, b)
	}
}

// warnings counts what a node warns of.
type warnings struct {
	slog.Handler
	n atomic.Int32
}

func (w *warnings) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (w *warnings) Handle(context.Context, slog.Record) error    { w.n.Add(1); return nil }

// Strangers do not fill the log.
func TestStrangersAreLoggedRarely(t *testing.T) {
	w := &warnings{}
	a := openNode(t, newTable(t, 1, 1, false), func(c *Config) { c.Logger = slog.New(w) })
	start := time.Now()
	for range 200 {
		nc, err := net.Dial("tcp", strings.TrimPrefix(a.Endpoints()[0], "tcp://"))
		if err != nil {
			t.Fatal(err)
		}
		nc.Write(make([]byte, wire.HeaderSize))
		_, _ = io.Copy(io.Discard, nc)
		nc.Close()
	}
	within(t, 5*time.Second, func() bool { return a.Stats().Refused == 200 }, func() string { return "not all are refused" })
	if n, most := w.n.Load(), int32(time.Since(start)/time.Second)+1; n < 1 || n > most {
		t.Errorf("%d warnings, want 1 to %d", n, most)
	}
}

// Destinations that come and go a thousand times leave no goroutine and no
// descriptor behind, whatever route they agreed on, whether they fetched or not.
func TestComeAndGo(t *testing.T) {
	src := newTable(t, 8, 4096, !raceBuild)
	for i := range 8 {
		src.put(t, keyOf(i), 4096)
	}
	shm := !raceBuild && hostID() != [16]byte{}
	a := openNode(t, src, shmFirst)
	cycle := func(i int) {
		d := newRawDest(t, a, uint64(10_000+i), streamOnly, [16]byte{})
		switch i % 4 {
		case 1:
			d.start(7, wanted(0, 8))
		case 2:
			nc := rawDial(t, a, d.self)
			nc.Write((&wire.PeerStream{Token: d.w.Token}).Append(nil, 0))
			d.start(7, wanted(0, 1))
			d.send(7, &wire.Accept{Source: d.who, Dest: d.self, Items: []wire.Accepted{{Index: 0}}})
			d.readOne(wire.TypeDone)
			nc.Close()
		case 3:
			if shm {
				d.nc.Close()
				d = newRawDest(t, a, d.self, wire.Routes(0).With(wire.RouteShm), hostID())
				nc := attachOnly(t, d)
				if _, _, err := readOne(nc, wire.TypeShmPools); err != nil {
					t.Fatal(err)
				}
				nc.Close()
			}
		}
		d.nc.Close()
	}
	calm := func() bool { s := a.Stats(); return s.Connections == 0 && s.Sources == 0 && a.procs.Len() == 0 }
	what := func() string { return fmt.Sprintf("%+v, %d processes", a.Stats(), a.procs.Len()) }
	for i := range 20 {
		cycle(i)
	}
	within(t, 10*time.Second, calm, what)
	goroutines, fds := runtimeGoroutines(), openFiles(t)
	n := 1000
	if testing.Short() || raceBuild {
		n = 100
	}
	for i := range n {
		cycle(i)
	}
	within(t, 10*time.Second, calm, what)
	within(t, 10*time.Second, func() bool { return runtimeGoroutines() <= goroutines+2 && openFiles(t) <= fds+2 }, func() string {
		return fmt.Sprintf("%d goroutines, %d before; %d descriptors, %d before", runtimeGoroutines(), goroutines, openFiles(t), fds)
	})
	src.quiet(t)
}

func openFiles(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skipf("descriptors cannot be counted: %v", err)
	}
	return len(all)
}
