package peer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// Tests of one process that is known by several endpoints: its own address, and
// relays that lead there.

// eachRoute runs a test over the routes that there are.
func eachRoute(t *testing.T, f func(t *testing.T, shared bool, opt func(*table) nodeOption)) {
	t.Run("stream", func(t *testing.T) {
		f(t, false, func(*table) nodeOption { return withRoutes(wire.RouteStream) })
	})
	t.Run("shm", func(t *testing.T) {
		needShm(t)
		f(t, true, func(*table) nodeOption { return shmFirst })
	})
	t.Run("ucx", func(t *testing.T) {
		f(t, true, func(tb *table) nodeOption { return withUCX(t, tb) })
	})
}

// idle waits until nodes have no operations left: a relay that ends sooner would have
// them wait for a connection.
func idle(t *testing.T, nodes ...*Node) {
	t.Helper()
	for _, n := range nodes {
		within(t, 10*time.Second, func() bool {
			for _, p := range n.Peers() {
				if p.Operations > 0 {
					return false
				}
			}
			return true
		}, func() string { return fmt.Sprintf("operations are left: %+v", n.Peers()) })
	}
}

// connOf is the connection to an endpoint.
func connOf(n *Node, endpoint string) *control {
	n.mu.Lock()
	defer n.mu.Unlock()
	c, _ := n.dests[endpoint].link.state()
	return c
}

// byEach fetches keys one by one by each name, from several goroutines in so many
// rounds, and returns how they were settled. next says which key is a name's next.
func byEach(t *testing.T, b *Node, names []string, mode wire.Transfer, rounds int, next func(name, round int) int) map[wire.Status]int {
	t.Helper()
	var mu sync.Mutex
	all := map[wire.Status]int{}
	var wg sync.WaitGroup
	for i, name := range names {
		for k := range 4 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for round := k; round < rounds; round += 4 {
					r := fetch(t, b, name, Submit{Namespace: "ns", Mode: mode, Items: wanted(next(i, round), 1)}, 5*time.Second)
					mu.Lock()
					all[r[0].Status]++
					mu.Unlock()
				}
			}()
		}
	}
	wg.Wait()
	return all
}

// A process is fetched from by two names at a time: each has its connection, which
// lasts.
func TestTwoNames(t *testing.T) {
	eachRoute(t, func(t *testing.T, shared bool, opt func(*table) nodeOption) {
		const n, size = 64, 16 << 10
		src, dst := newTable(t, n, size, shared), newTable(t, 2*n, size, shared)
		for i := range n {
			src.put(t, keyOf(i), size)
		}
		a, b := openNode(t, src, opt(src)), openNode(t, dst, opt(dst))
		names := []string{a.Endpoints()[0], newRelay(t, a.Endpoints()[0]).endpoint()}
		got := byEach(t, b, names, wire.TransferCopy, n/2, func(name, round int) int { return name*n/2 + round })
		if got[wire.StatusOK] != n {
			t.Errorf("fetched: %v", got)
		}
		for i := range n {
			if err := dst.check(keyOf(i), size); err != nil {
				t.Error(err)
			}
		}
		if s := b.Stats(); s.Dials != 2 || s.Reconnects != 0 || s.Connections != 2 || s.Dests != 2 {
			t.Errorf("%d dials, %d reconnects, %d connections, want one connection of each name", s.Dials, s.Reconnects, s.Connections)
		}
		if s := a.Stats(); s.Sources != 2 {
			t.Errorf("the source has %d links, want one of each name", s.Sources)
		}
		for _, name := range names {
			if p, ok := b.Known(name); !ok || !p.Connected || p.Incarnation != a.Self() || p.Traffic.Blocks != n/2 {
				t.Errorf("%s: %+v", name, p)
			}
		}
		src.quiet(t)
		dst.quiet(t)
		idle(t, a, b)
	})
}

// Moves of the same blocks by two names at a time: each block is moved once, by one of
// them, and the other finds it here or gone.
func TestMovesByTwoNames(t *testing.T) {
	eachRoute(t, func(t *testing.T, shared bool, opt func(*table) nodeOption) {
		const n, size = 64, 16 << 10
		src, dst := newTable(t, n, size, shared), newTable(t, 2*n, size, shared)
		for i := range n {
			src.put(t, keyOf(i), size)
		}
		var taken, given atomic.Int32
		count := func(of *atomic.Int32) nodeOption {
			return func(c *Config) {
				c.OnOutcome = func(o Outcome) {
					if o.Status == wire.StatusOK {
						of.Add(1)
					}
				}
			}
		}
		a, b := openNode(t, src, opt(src), count(&given)), openNode(t, dst, opt(dst), count(&taken))
		names := []string{a.Endpoints()[0], newRelay(t, a.Endpoints()[0]).endpoint()}
		got := byEach(t, b, names, wire.TransferMove, n, func(_, round int) int { return round })
		if got[wire.StatusOK]+got[wire.StatusMiss] != 2*n || got[wire.StatusOK] < n {
			t.Errorf("moved: %v", got)
		}
		src.quiet(t)
		dst.quiet(t)
		idle(t, a, b)
		gone := 0
		for i := range n {
			if err := dst.check(keyOf(i), size); err != nil {
				t.Error(err)
			}
			if src.check(keyOf(i), size) != nil {
				gone++
			}
		}
		if int(given.Load()) != gone || taken.Load() != given.Load() || gone == 0 {
			t.Errorf("%d blocks are gone from the source; it says %d, the destination %d", gone, given.Load(), taken.Load())
		}
	})
}

// What happens to the connection of one name is not felt by the other, whether the
// source has seen the end of it or not; and the name itself connects anew.
func TestOneNameIsCut(t *testing.T) {
	for _, how := range []struct {
		name string
		cut  func(*relay)
	}{{"cut", (*relay).cut}, {"halved", (*relay).halve}} {
		t.Run(how.name, func(t *testing.T) {
			eachRoute(t, func(t *testing.T, shared bool, opt func(*table) nodeOption) {
				const n, size, cuts = 32, 64 << 10, 4
				// What was moved may still be read from when it is put there again.
				src, dst := newTable(t, (2+cuts)*n, size, shared), newTable(t, 4*n, size, shared)
				for i := range 2 * n {
					src.put(t, keyOf(i), size)
				}
				a, b := openNode(t, src, opt(src)), openNode(t, dst, opt(dst))
				r := newRelay(t, a.Endpoints()[0])
				direct, relayed := a.Endpoints()[0], r.endpoint()
				mustFetch(t, b, direct, 0, 1)
				first := connOf(b, direct)
				stop := make(chan struct{})
				var wg sync.WaitGroup
				wg.Add(1)
				go func() { // the lower half of the keys, as fast as it goes
					defer wg.Done()
					for round := 0; ; round++ {
						select {
						case <-stop:
							return
						default:
						}
						for i, s := range fetch(t, b, direct, Submit{Namespace: "ns", Items: wanted(0, n)}, 5*time.Second) {
							if s.Status != wire.StatusOK {
								t.Errorf("round %d, item %d by the name that was not cut: %v", round, i, s.Status)
							}
						}
						dst.dropAll(0, n)
					}
				}()
				end := sync.OnceFunc(func() { close(stop); wg.Wait() })
				defer end()
				for range cuts {
					mustFetch(t, b, relayed, n, 1)
					dst.dropAll(n, 1)
					over := make(chan struct{})
					go func() {
						defer close(over)
						fetch(t, b, relayed, Submit{Namespace: "ns", Mode: wire.TransferMove, Items: wanted(n, n)}, time.Second)
					}()
					how.cut(r) // at some moment of the move
					<-over
					within(t, 5*time.Second, func() bool { _, _, _, holds := dst.use(); return holds == 0 }, func() string { return "a hold stays" })
					for i := n; i < 2*n; i++ {
						if src.check(keyOf(i), size) != nil {
							if err := dst.check(keyOf(i), size); err != nil {
								t.Errorf("%s is nowhere: %v", keyOf(i), err)
							}
							src.put(t, keyOf(i), size)
						}
					}
					dst.dropAll(n, n)
				}
				end()
				mustFetch(t, b, relayed, n, n)
				src.quiet(t)
				dst.quiet(t)
				idle(t, a, b)
				if s := b.Stats(); s.Reconnects < cuts || connOf(b, direct) != first {
					t.Errorf("%d reconnects after %d cuts; the connection of the other name lives: %t", s.Reconnects, cuts, connOf(b, direct) == first)
				}
				within(t, 5*time.Second, func() bool { s := a.Stats(); return s.Connections == 2 && s.Sources == 2 }, func() string {
					return fmt.Sprintf("%d connections, %d links, want one of each name", a.Stats().Connections, a.Stats().Sources)
				})
			})
		})
	}
}

// A source that restarts is found again by both names.
func TestRestartBehindTwoNames(t *testing.T) {
	const n = 32
	src, dst := newTable(t, n, 4096, false), newTable(t, 2*n, 4096, false)
	for i := range n {
		src.put(t, keyOf(i), 4096)
	}
	endpoint := freePort(t)
	a := openNode(t, src, at(endpoint))
	b := openNode(t, dst)
	names := []string{endpoint, newRelay(t, endpoint).endpoint()}
	half := func(name, round int) int { return name*n/2 + round }
	for range 3 {
		if got := byEach(t, b, names, wire.TransferCopy, n/2, half); got[wire.StatusOK] != n {
			t.Errorf("fetched: %v", got)
		}
		for _, name := range names {
			if p, _ := b.Known(name); p.Incarnation != a.Self() {
				t.Errorf("%s: incarnation %x, want %x", name, p.Incarnation, a.Self())
			}
		}
		dst.quiet(t)
		dst.drop()
		closeNode(t, a)
		src.quiet(t)
		within(t, 5*time.Second, func() bool { return b.Stats().Connections == 0 }, func() string { return "still connected" })
		a = openNode(t, src, at(endpoint))
	}
	if s := b.Stats(); s.Reconnects != 4 {
		t.Errorf("%d reconnects, want one of each name for each restart", s.Reconnects)
	}
}

// A process that dies is noticed by each name that has its memory; and a destination
// that dies, by each link of its.
func TestDeathBehindTwoNames(t *testing.T) {
	needShm(t)
	t.Run("source", func(t *testing.T) {
		c := startChild(t, "source")
		dst := newTable(t, 4*childBlocks, childSize, true)
		b := openNode(t, dst, shmFirst)
		names := []string{c.endpoint, newRelay(t, c.endpoint).endpoint()}
		got := make(chan Settle, childBlocks)
		for i, name := range names {
			mustFetch(t, b, name, i*childBlocks/2, 1)
		}
		for i, name := range names {
			b.Submit(name, Submit{Namespace: "ns", Mode: wire.TransferMove, Items: wanted(i*childBlocks/2, childBlocks/2), Deadline: b.Now() + time.Second}, func(s Settle) { got <- s })
		}
		c.kill()
		for range childBlocks {
			<-got
		}
		dst.quiet(t)
	})
	t.Run("destination", func(t *testing.T) {
		src := newTable(t, childBlocks, childSize, true)
		for i := range childBlocks {
			src.put(t, keyOf(i), childSize)
		}
		a := openNode(t, src, shmFirst)
		c := startChild(t, "dest", envEndpoint+"="+a.Endpoints()[0])
		relayed := newRelay(t, a.Endpoints()[0]).endpoint()
		watches := func(n int, ask func()) {
			t.Helper()
			within(t, 5*time.Second, func() bool { ask(); return a.procs.Len() == n }, func() string {
				return fmt.Sprintf("%d watches over the destination, want one of each link", a.procs.Len())
			})
		}
		watches(1, func() { c.ask("once %s", relayed) })
		c.ask("fetch")
		watches(2, func() {})
		within(t, 5*time.Second, func() bool { n, _, _, _ := src.use(); return n > 0 }, func() string { return "it fetches nothing" })
		c.kill()
		src.quiet(t)
		within(t, 5*time.Second, func() bool { return a.Stats().Sources == 0 && a.procs.Len() == 0 }, func() string {
			return fmt.Sprintf("%d links and %d watches are left", a.Stats().Sources, a.procs.Len())
		})
	})
}

// An operation is aborted by the name that it was submitted by, and another name's
// goes on.
func TestAbortByName(t *testing.T) {
	const n, size = 8, 4 << 20
	src, dst := newTable(t, 2*n, size, false), newTable(t, 2*n, size, false)
	for i := range 2 * n {
		src.put(t, keyOf(i), size)
	}
	a, b := openNode(t, src), openNode(t, dst)
	r := newRelay(t, a.Endpoints()[0])
	direct, relayed := a.Endpoints()[0], r.endpoint()
	mustFetch(t, b, direct, 0, 1)
	mustFetch(t, b, relayed, n, 1)
	dst.drop()
	r.stall.Store(true)
	got := make(chan Settle, n)
	op := b.Submit(relayed, Submit{Namespace: "ns", Items: wanted(n, n), Deadline: b.Now() + 10*time.Second}, func(s Settle) { got <- s })
	b.Abort(direct, op) // not known there
	mustFetch(t, b, direct, 0, n)
	select {
	case s := <-got:
		t.Errorf("item %d was settled: %v", s.Index, s.Status)
	default:
	}
	b.Abort(relayed, op)
	for range n {
		if s := <-got; s.Status != wire.StatusAborted {
			t.Errorf("item %d: %v", s.Index, s.Status)
		}
	}
	r.stall.Store(false)
	src.quiet(t)
	dst.quiet(t)
}

// Names of one process have a limit, and so have names of all: who asks by one more is
// refused at once and told why, and the others are served as before.
func TestTooManyNames(t *testing.T) {
	src, dst := newTable(t, 64, 4096, false), newTable(t, 64, 4096, false)
	for i := range 64 {
		src.put(t, keyOf(i), 4096)
	}
	a := openNode(t, src)
	b := openNode(t, dst, func(c *Config) { c.MaxPeers = maxNames + 1 })
	var relays []*relay
	for i := range maxNames {
		relays = append(relays, newRelay(t, a.Endpoints()[0]))
		mustFetch(t, b, relays[i].endpoint(), i, 1)
	}
	one := a.Endpoints()[0]
	for range 3 {
		began := time.Now()
		r := fetch(t, b, one, Submit{Namespace: "ns", Items: wanted(20, 2)}, 10*time.Second)
		if r[0].Status != wire.StatusBusy || r[1].Status != wire.StatusBusy || time.Since(began) > 5*time.Second {
			t.Fatalf("one name more than may be: %+v after %v", r, time.Since(began))
		}
	}
	p, _ := b.Known(one)
	if want := fmt.Sprintf("%d other endpoints lead to that process, and no more may: fetch by one of them", maxNames); p.LastError == nil || p.LastError.Error() != want {
		t.Errorf("%v, want %q", p.LastError, want)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := b.Query(ctx, one, "ns", [][]byte{[]byte(keyOf(0))})
	var e *Error
	if !errors.As(err, &e) || e.Status != wire.StatusBusy || !errors.Is(err, ErrRefused) {
		t.Errorf("Query: %v", err)
	}
	for i, r := range relays {
		mustFetch(t, b, r.endpoint(), 30+i, 1)
	}
	if s, from := b.Stats(), a.Stats(); s.Reconnects != 0 || from.Sources != maxNames || s.Dests > maxNames+1 {
		t.Errorf("%d reconnects, %d endpoints, %d links at the source", s.Reconnects, s.Dests, from.Sources)
	}
	// A name that is connected no more makes room for another, and may come back: it
	// could have something to end.
	relays[0].cut()
	within(t, 5*time.Second, func() bool { return a.Stats().Sources == maxNames-1 && connOf(b, relays[0].endpoint()) == nil }, func() string { return "the link is not forgotten" })
	mustFetch(t, b, one, 40, 1)
	mustFetch(t, b, relays[0].endpoint(), 41, 1)
	if n := a.Stats().Sources; n != maxNames+1 {
		t.Errorf("%d links at the source", n)
	}

	// Of all names there is no room for more than MaxPeers, while each is in use.
	full := openNode(t, newTable(t, 8, 4096, false), func(c *Config) { c.MaxPeers = 2 })
	for i, r := range relays[1:] {
		want := wire.StatusOK
		if i >= 2 {
			want = wire.StatusBusy
		}
		if got := fetch(t, full, r.endpoint(), Submit{Namespace: "ns", Items: wanted(i, 1)}, 5*time.Second); got[0].Status != want {
			t.Errorf("name %d of 2: %v, want %v", i+1, got[0].Status, want)
		}
	}
}

// A source takes so many links of a destination and no more, whatever that says of
// itself; each is served by itself, and a connection of the same number takes the place
// of the one before.
func TestLinksOfOneDestination(t *testing.T) {
	src := newTable(t, 4, 4096, false)
	src.put(t, keyOf(0), 4096)
	a := openNode(t, src)
	const self = 4712
	hello := func(link uint64) *rawDest {
		d := &rawDest{t: t, nc: rawDial(t, a, self), self: self, who: uint64(a.Self())}
		d.send(1, &wire.PeerHello{Routes: streamOnly, Link: link})
		return d
	}
	var all []*rawDest
	for i := range maxLinks {
		d := hello(uint64(i) << 40)
		d.w = d.readOne(wire.TypePeerWelcome).(*wire.PeerWelcome)
		all = append(all, d)
	}
	if e := hello(99).readOne(wire.TypeError).(*wire.ErrorReply); e.Code != wire.CodeTooMany {
		t.Errorf("one link too many: %v %s", e.Code, e.Text)
	}
	for i, d := range all { // one id, and as many operations
		d.start(7, wanted(0, 1))
		if c, _, _, _ := src.use(); c != i+1 {
			t.Errorf("%d claims of %d links", c, i+1)
		}
	}
	again := hello(3 << 40)
	again.readOne(wire.TypePeerWelcome)
	all[3].ended()
	within(t, 5*time.Second, func() bool { c, _, _, _ := src.use(); return c == maxLinks-1 }, func() string { return "the claims of the connection before stay" })
	for i, d := range all {
		if i != 3 {
			d.send(7, &wire.Finish{Source: d.who, Dest: self})
			d.readOne(wire.TypeFinished)
		}
		d.nc.Close()
	}
	again.nc.Close()
	src.quiet(t)
	within(t, 5*time.Second, func() bool { return a.Stats().Sources == 0 }, func() string { return "the source does not forget the peer" })
}
