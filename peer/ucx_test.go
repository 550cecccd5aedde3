package peer

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/ucx"
	"github.com/kvcr-go/kvcr/wire"
)

// withUCX opens route ucx over a table's memory, where that is not Go's, and waits
// until it is registered. Without UCX in the build the test is skipped.
func withUCX(t testing.TB, tb *table, change ...func(*UCXConfig)) nodeOption {
	t.Helper()
	if !ucx.Built {
		t.Skip(ucx.ErrNotBuilt)
	}
	cfg := UCXConfig{Staging: 8 << 20}
	if tb.file != nil {
		cfg.Memory = [][]byte{tb.mem}
	}
	for _, f := range change {
		f(&cfg)
	}
	u, err := OpenUCX(cfg)
	if err != nil {
		t.Fatal(err)
	}
	within(t, 5*time.Second, func() bool { return u.current() != nil }, func() string { return "the memory is not registered" })
	return func(c *Config) {
		c.UCX = u
		c.Routes = []wire.Route{wire.RouteUCX, wire.RouteStream}
	}
}

// startUCXChild is another process with a node over route ucx.
func startUCXChild(t testing.TB, role string, env ...string) *child {
	t.Helper()
	if !ucx.Built {
		t.Skip(ucx.ErrNotBuilt)
	}
	return startChild(t, role, append(env, envUCX+"=1")...)
}

func wantRoute(t testing.TB, n *Node, endpoint string, want wire.Route) {
	t.Helper()
	if s, _ := n.Known(endpoint); s.Route != want {
		t.Errorf("route %v, want %v", s.Route, want)
	}
}

// Blocks of all sizes arrive whole, from and to memory that is registered and
// memory that is not; those longer than a message in several.
func TestUCX(t *testing.T) {
	sizes := []int{0, 1, 63, 4096, 64 << 10, messageMost - 1, messageMost, messageMost + 1, 3<<20 + 5}
	for _, from := range []bool{true, false} {
		for _, to := range []bool{true, false} {
			t.Run(fmt.Sprintf("registered=%t,%t", from, to), func(t *testing.T) {
				src, dst := newTable(t, 40, 4<<20, from), newTable(t, 40, 4<<20, to)
				a := openNode(t, src, withUCX(t, src))
				b := openNode(t, dst, withUCX(t, dst))
				for i := range 36 {
					src.put(t, keyOf(i), sizes[i%len(sizes)])
				}
				for range 2 {
					mustFetch(t, b, a.Endpoints()[0], 0, 36)
					for i := range 36 {
						if err := dst.check(keyOf(i), sizes[i%len(sizes)]); err != nil {
							t.Error(err)
						}
					}
					dst.drop()
				}
				wantRoute(t, b, a.Endpoints()[0], wire.RouteUCX)
				src.quiet(t)
				dst.quiet(t)
				if s := b.Stats(); s.Posted != 0 || s.Fetched[wire.RouteUCX].Blocks != 72 {
					t.Errorf("stats %+v", s)
				}
			})
		}
	}
}

// Two processes: copies, deliveries and moves, until nothing is left to do.
func TestUCXProcesses(t *testing.T) {
	src := startUCXChild(t, "source")
	dst := newTable(t, childBlocks, childSize, true)
	b := openNode(t, dst, withUCX(t, dst))
	for range 3 {
		mustFetch(t, b, src.endpoint, 0, childBlocks)
		for i := range childBlocks {
			if err := dst.check(keyOf(i), childSize); err != nil {
				t.Error(err)
			}
		}
		dst.quiet(t)
		dst.drop()
	}
	wantRoute(t, b, src.endpoint, wire.RouteUCX)
	op := b.NextOp()
	out := make([][]byte, childBlocks)
	dst.mu.Lock()
	for i := range out {
		out[i] = make([]byte, childSize)
		dst.caller[fmt.Sprintf("%d/%d", op, i)] = out[i]
	}
	dst.mu.Unlock()
	for i, s := range fetch(t, b, src.endpoint, Submit{Op: op, Namespace: "ns", Deliver: true, Items: wanted(0, childBlocks)}, 5*time.Second) {
		if s.Status != wire.StatusOK || !bytes.Equal(out[i], payload(keyOf(i), childSize)) {
			t.Errorf("delivery %d: %v", i, s.Status)
		}
	}
	for i, s := range fetch(t, b, src.endpoint, Submit{Namespace: "ns", Mode: wire.TransferMove, Items: wanted(0, childBlocks)}, 5*time.Second) {
		if s.Status != wire.StatusOK {
			t.Errorf("move %d: %v", i, s.Status)
		}
	}
	dst.quiet(t)
	within(t, 5*time.Second, func() bool { return src.ask("use") == "0" }, func() string { return "claims stay at the source" })
	dst.drop()
	if r := fetch(t, b, src.endpoint, Submit{Namespace: "ns", Items: wanted(0, 1)}, 5*time.Second); r[0].Status != wire.StatusMiss {
		t.Errorf("what was moved is %v", r[0].Status)
	}
}

// A node without the route, or whose memory is not registered yet, is served over
// streams.
func TestUCXFallsBack(t *testing.T) {
	src, dst := newTable(t, 4, 4096, true), newTable(t, 4, 4096, true)
	src.put(t, keyOf(0), 4096)
	a := openNode(t, src, withUCX(t, src))
	plain := openNode(t, newTable(t, 4, 4096, true))
	mustFetch(t, plain, a.Endpoints()[0], 0, 1)
	wantRoute(t, plain, a.Endpoints()[0], wire.RouteStream)
	var u *UCX
	b := openNode(t, dst, withUCX(t, dst), func(c *Config) { u = c.UCX.(*UCX) })
	u.ready.Store(false)
	mustFetch(t, b, a.Endpoints()[0], 0, 1)
	wantRoute(t, b, a.Endpoints()[0], wire.RouteStream)
	u.ready.Store(true)
	// A worker that cannot be reached: the way is tried, and another one taken.
	lost := openNode(t, newTable(t, 4, 4096, true), withUCX(t, dst, func(c *UCXConfig) {}), func(c *Config) {
		c.HandshakeTimeout = 500 * time.Millisecond
		gone := c.UCX.(*UCX)
		other, err := gone.newLife()
		if err != nil {
			t.Fatal(err)
		}
		if err := other.end(); err != nil {
			t.Fatal(err)
		}
		gone.life.addr = other.addr
	})
	mustFetch(t, lost, a.Endpoints()[0], 0, 1)
	wantRoute(t, lost, a.Endpoints()[0], wire.RouteStream)
}

// The end of either process at any moment: memory comes back, what arrived is
// whole, and who is left goes on.
func TestUCXKilled(t *testing.T) {
	rounds := 8
	if testing.Short() {
		rounds = 2
	}
	t.Run("source", func(t *testing.T) {
		dst := newTable(t, 4*childBlocks, childSize, true)
		b := openNode(t, dst, withUCX(t, dst))
		for round := range rounds {
			c := startUCXChild(t, "source")
			got := make(chan Settle, childBlocks)
			b.Submit(c.endpoint, Submit{Namespace: "ns", Items: wanted(0, childBlocks), Deadline: b.Now() + 5*time.Second}, func(s Settle) { got <- s })
			first := <-got // the transfer is under way
			time.Sleep(rand.N(10 * time.Millisecond))
			c.kill()
			ok := 0
			for i := range childBlocks {
				s := first
				if i > 0 {
					s = <-got
				}
				if s.Status == wire.StatusOK {
					ok++
					if err := dst.check(keyOf(s.Index), childSize); err != nil {
						t.Errorf("round %d: %v", round, err)
					}
				}
			}
			t.Logf("round %d: %d of %d arrived", round, ok, childBlocks)
			dst.quiet(t)
			dst.drop()
		}
	})
	t.Run("destination", func(t *testing.T) {
		src := newTable(t, childBlocks, childSize, true)
		for i := range childBlocks {
			src.put(t, keyOf(i), childSize)
		}
		a := openNode(t, src, withUCX(t, src))
		for range rounds {
			c := startUCXChild(t, "dest", envEndpoint+"="+a.Endpoints()[0])
			c.ask("fetch")
			within(t, 5*time.Second, func() bool { n, _, _, _ := src.use(); return n > 0 }, func() string { return "it fetches nothing" })
			time.Sleep(rand.N(20 * time.Millisecond))
			c.kill()
			src.quiet(t)
		}
		dst := newTable(t, childBlocks, childSize, true)
		b := openNode(t, dst, withUCX(t, dst))
		mustFetch(t, b, a.Endpoints()[0], 0, childBlocks)
		wantRoute(t, b, a.Endpoints()[0], wire.RouteUCX)
	})
}

// Aborted operations leave nothing, and nothing of them lands in what was given to
// others: their slots are used again at once, and all bytes are right.
func TestUCXAborts(t *testing.T) {
	const n = 24
	src, dst := newTable(t, n, childSize, true), newTable(t, n+2, childSize, true)
	for i := range n {
		src.put(t, keyOf(i), childSize)
	}
	var u *UCX
	a := openNode(t, src, withUCX(t, src))
	b := openNode(t, dst, withUCX(t, dst), func(c *Config) { u = c.UCX.(*UCX) })
	mustFetch(t, b, a.Endpoints()[0], 0, n)
	dst.drop()
	aborted := 0
	for round := range 60 {
		got := make(chan Settle, n)
		op := b.Submit(a.Endpoints()[0], Submit{Namespace: "ns", Items: wanted(0, n), Deadline: b.Now() + 5*time.Second}, func(s Settle) { got <- s })
		time.Sleep(rand.N(8 * time.Millisecond))
		b.Abort(a.Endpoints()[0], op)
		for range n {
			if s := <-got; s.Status == wire.StatusAborted {
				aborted++
			} else if s.Status == wire.StatusOK {
				if err := dst.check(keyOf(s.Index), childSize); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			}
		}
		dst.drop()
	}
	dst.quiet(t)
	mustFetch(t, b, a.Endpoints()[0], 0, n)
	for i := range n {
		if err := dst.check(keyOf(i), childSize); err != nil {
			t.Error(err)
		}
	}
	src.quiet(t)
	t.Logf("%d items were aborted", aborted)
	if aborted == 0 {
		t.Error("nothing was aborted in time")
	}
	within(t, 2*drainLinger, func() bool { return u.drains.Load() == 0 }, func() string { return fmt.Sprintf("%d drains stay", u.drains.Load()) })
	if s := u.life.w.Stats(); s.InFlight != 0 {
		t.Errorf("%d operations stay with UCX", s.InFlight)
	}
}

// A peer that is stopped in the midst of a transfer: memory comes back within a
// bound, without its help.
func TestUCXStopped(t *testing.T) {
	c := startUCXChild(t, "source")
	dst := newTable(t, 2*childBlocks, childSize, true)
	b := openNode(t, dst, withUCX(t, dst))
	got := make(chan Settle, childBlocks)
	b.Submit(c.endpoint, Submit{Namespace: "ns", Items: wanted(0, childBlocks), Deadline: b.Now() + 500*time.Millisecond}, func(s Settle) { got <- s })
	first := <-got
	c.cmd.Process.Signal(sigstop)
	start := time.Now()
	ok := 0
	for i := range childBlocks {
		s := first
		if i > 0 {
			s = <-got
		}
		if s.Status == wire.StatusOK {
			ok++
		}
	}
	_, slots, _, _ := dst.use()
	t.Logf("%d arrived; answered after %v, %d slots out", ok, time.Since(start), slots)
	if slots == 0 {
		t.Error("nothing was under way: this shows nothing")
	}
	within(t, 5*closeGrace, func() bool { _, n, _, _ := dst.use(); return n == 0 }, func() string { return "slots are still out" })
	t.Logf("memory is back after %v", time.Since(start))
	c.cmd.Process.Signal(sigcont)
}

// A destination that is stopped: the source's claims end, and it serves others.
func TestUCXDestinationStopped(t *testing.T) {
	src := newTable(t, childBlocks, childSize, true)
	for i := range childBlocks {
		src.put(t, keyOf(i), childSize)
	}
	a := openNode(t, src, withUCX(t, src))
	c := startUCXChild(t, "dest", envEndpoint+"="+a.Endpoints()[0])
	c.ask("fetch")
	for round := 0; ; round++ { // until it is stopped in the midst of it
		within(t, 5*time.Second, func() bool { return a.count.writing.Load() > 0 }, func() string { return "it fetches nothing" })
		c.cmd.Process.Signal(sigstop)
		time.Sleep(20 * time.Millisecond)
		if a.count.writing.Load() > 0 {
			break
		}
		c.cmd.Process.Signal(sigcont)
		if round == 50 {
			t.Fatal("it cannot be stopped in the midst of a transfer")
		}
	}
	start := time.Now()
	src.quiet(t)
	t.Logf("claims are back after %v", time.Since(start))
	c.kill()
	dst := newTable(t, childBlocks, childSize, true)
	b := openNode(t, dst, withUCX(t, dst))
	mustFetch(t, b, a.Endpoints()[0], 0, childBlocks)
}

// Two nodes that fetch from each other at the same time, one of which comes back
// again and again as another process would.
func TestUCXBothWays(t *testing.T) {
	const n, size = 16, 256 << 10
	left, right := newTable(t, 3*n, size, true), newTable(t, 3*n, size, true)
	for i := range n {
		left.put(t, keyOf(i), size)
		right.put(t, keyOf(n+i), size)
	}
	a := openNode(t, left, withUCX(t, left))
	endpoint := freePort(t)
	for round := range 4 {
		b := openNode(t, right, withUCX(t, right), at(endpoint))
		var wg sync.WaitGroup
		for range 2 {
			wg.Add(2)
			go func() {
				defer wg.Done()
				for i, s := range fetch(t, a, endpoint, Submit{Namespace: "ns", Items: wanted(n, n)}, 5*time.Second) {
					if s.Status != wire.StatusOK {
						t.Errorf("round %d, to the left %d: %v", round, i, s.Status)
					}
				}
			}()
			go func() {
				defer wg.Done()
				for i, s := range fetch(t, b, a.Endpoints()[0], Submit{Namespace: "ns", Items: wanted(0, n)}, 5*time.Second) {
					if s.Status != wire.StatusOK {
						t.Errorf("round %d, to the right %d: %v", round, i, s.Status)
					}
				}
			}()
		}
		wg.Wait()
		wantRoute(t, a, endpoint, wire.RouteUCX)
		wantRoute(t, b, a.Endpoints()[0], wire.RouteUCX)
		for i := range 2 * n {
			for _, tb := range []*table{left, right} {
				if err := tb.check(keyOf(i), size); err != nil {
					t.Error(err)
				}
			}
		}
		left.quiet(t)
		right.quiet(t)
		closeNode(t, b)
		left.dropAll(n, n)
		right.dropAll(0, n)
	}
}

// Bytes that are not those of the sum are not committed.
func TestUCXChecksum(t *testing.T) {
	src, dst := newTable(t, 2, childSize, true), newTable(t, 2, childSize, true)
	src.put(t, keyOf(0), childSize)
	src.put(t, keyOf(1), childSize)
	src.mem[src.blocks[keyOf(1)].at+childSize-1] ^= 1
	a, b := openNode(t, src, withUCX(t, src)), openNode(t, dst, withUCX(t, dst))
	rs := fetch(t, b, a.Endpoints()[0], Submit{Namespace: "ns", Items: wanted(0, 2)}, 5*time.Second)
	if rs[0].Status != wire.StatusOK || rs[1].Status != wire.StatusChecksum {
		t.Errorf("%v and %v", rs[0].Status, rs[1].Status)
	}
	if dst.check(keyOf(0), childSize) != nil || dst.check(keyOf(1), childSize) == nil {
		t.Error("the wrong block is resident")
	}
}

// What a destination says of its memory is checked before it is believed.
func TestUCXDesc(t *testing.T) {
	good := appendDesc(nil, 77, []int{5, 0, 3})
	if tag, pieces, ok := parseDesc(good, 8); !ok || tag != 77 || len(pieces) != 3 {
		t.Errorf("%d %v %t", tag, pieces, ok)
	}
	for name, bad := range map[string][]byte{
		"empty": nil, "short": good[:7], "cut": good[:len(good)-1], "a piece less": good[:len(good)-8],
		"too much": appendDesc(nil, 77, []int{5, 4}), "overflow": appendDesc(nil, 77, []int{-1, 9}),
		"a probe's tag": appendDesc(nil, probeTag|77, []int{8}), "many": appendDesc(nil, 77, make([]int, wire.MaxPieces+1)),
	} {
		if _, _, ok := parseDesc(bad, 8); ok {
			t.Errorf("%s is taken", name)
		}
	}
}
