package peer

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/internal/procs"
	"github.com/kvcr-go/kvcr/wire"
)

// gated is a table whose memory is shared only when the test says so.
type gated struct {
	*table
	share func() error
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

// A control connection that is lost while a route comes about says nothing about the
// route: the next one takes it again.
func TestRouteIsNotToBlameForALostConnection(t *testing.T) {
	needShm(t)
	var r *relay
	var cuts atomic.Int32
	g := &gated{newTable(t, 4, 4096, true), func() error {
		if cuts.Add(1) > 1 {
			return nil
		}
		r.cut()
		return errors.New("too late")
	}}
	g.put(t, keyOf(0), 4096)
	a := openWith(t, g, withRoutes(wire.RouteShm, wire.RouteStream))
	r = newRelay(t, a.Endpoints()[0])
	b := openNode(t, newTable(t, 4, 4096, true), withRoutes(wire.RouteShm, wire.RouteStream)) // closes before the relay does
	if got := fetch(t, b, r.endpoint(), Submit{Namespace: "ns", Items: wanted(0, 1)}, 5*time.Second); got[0].Status != wire.StatusOK {
		t.Errorf("fetched: %v", got[0].Status)
	}
	if p, _ := b.Known(r.endpoint()); p.Route != wire.RouteShm || cuts.Load() != 2 {
		t.Errorf("route %v after %d attempts, want shm after 2", p.Route, cuts.Load())
	}
}

// What tells a lost connection from a route that fails.
func TestLostMeanwhile(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	nc, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	other, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	failed := errors.New("no memory")
	for _, tt := range []struct {
		err  error
		lost bool
	}{
		{failed, false},
		{fmt.Errorf("attach: %w", refusalOf(wire.CodeHandshake, "no such control connection")), true},
		{refusalOf(wire.CodeAuth, "who are you"), false},
		{refusalOf(wire.CodeInternal, "no memory"), false},
	} {
		if got := lostMeanwhile(nc, tt.err); got != tt.lost {
			t.Errorf("%v: %t", tt.err, got)
		}
	}
	other.Write([]byte("x"))
	within(t, 5*time.Second, func() bool { return lostMeanwhile(nc, failed) == false }, func() string { return "lost, with something to read" })
	if _, err := io.ReadFull(nc, make([]byte, 1)); err != nil {
		t.Errorf("looking has taken what was to be read: %v", err)
	}
	other.Close()
	within(t, 5*time.Second, func() bool { return lostMeanwhile(nc, failed) }, func() string { return "a connection that has ended is not lost" })
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
