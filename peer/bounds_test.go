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
	l := n.sources[sourceID{who, 0}]
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

func (g *gated) Share(ns string) (*os.File, int64, error) {
	if err := g.share(); err != nil {
		return nil, 0, err
	}
	return g.table.Share(ns)
}

// A peer that lets everybody in and closes at once is not dialled without a pause.
func TestRedialPauses(t *testing.T) {
	b := openNode(t, newTable(t, 4, 4096, false))
	r := newRawSource(t)
	stop := make(chan struct{})
	go func() {
		for {
			select {
			case nc := <-r.ctrl:
				nc.Close()
			case <-stop:
				return
			}
		}
	}()
	t.Cleanup(func() { close(stop) })
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
