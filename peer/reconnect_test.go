package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// freePort is an address that nobody listens on at the moment.
func freePort(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return "tcp://" + ln.Addr().String()
}

func at(endpoint string) nodeOption { return func(c *Config) { c.Listen = []string{endpoint} } }

// Who asks before the peer listens is served when it does, within its deadline;
// and not at all after it.
func TestFirstContactBeforeListen(t *testing.T) {
	src, dst := newTable(t, 8, 4096, false), newTable(t, 8, 4096, false)
	src.put(t, keyOf(0), 4096)
	endpoint := freePort(t)
	b := openNode(t, dst)
	r := fetch(t, b, endpoint, Submit{Namespace: "ns", Items: wanted(0, 1)}, 200*time.Millisecond)
	if r[0].Status != wire.StatusTimeout {
		t.Errorf("nobody listens: %v", r[0].Status)
	}
	done := make(chan []Settle)
	go func() {
		done <- fetch(t, b, endpoint, Submit{Namespace: "ns", Items: wanted(0, 1)}, 5*time.Second)
	}()
	time.Sleep(150 * time.Millisecond)
	openNode(t, src, at(endpoint))
	if r := <-done; r[0].Status != wire.StatusOK {
		t.Errorf("it listens now: %v", r[0].Status)
	}
	if err := dst.check(keyOf(0), 4096); err != nil {
		t.Error(err)
	}
}

// A peer that comes back at the same address is another incarnation, and is
// fetched from; many who wait for it make one connection.
func TestRestart(t *testing.T) {
	src, dst := newTable(t, 128, 4096, false), newTable(t, 128, 4096, false)
	for i := range 100 {
		src.put(t, keyOf(i), 4096)
	}
	endpoint := freePort(t)
	a := openNode(t, src, at(endpoint))
	b := openNode(t, dst)
	mustFetch(t, b, endpoint, 0, 10)
	first, _ := b.Known(endpoint)
	closeNode(t, a)
	within(t, 2*time.Second, func() bool { s, _ := b.Known(endpoint); return !s.Connected }, func() string { return "still connected" })
	a = openNode(t, src, at(endpoint))
	dials := b.Stats().Dials
	var wg sync.WaitGroup
	var failed atomic.Int32
	for i := range 64 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			r := fetch(t, b, endpoint, Submit{Namespace: "ns", Items: wanted(10+i, 1)}, 5*time.Second)
			if r[0].Status != wire.StatusOK {
				failed.Add(1)
				t.Errorf("fetcher %d: %v", i, r[0].Status)
			}
		}()
	}
	wg.Wait()
	if n := b.Stats().Dials - dials; n != 1 {
		t.Errorf("64 fetchers dialled %d times", n)
	}
	second, _ := b.Known(endpoint)
	if second.Incarnation == first.Incarnation || second.Incarnation != a.Self() {
		t.Errorf("incarnations %x, then %x", first.Incarnation, second.Incarnation)
	}
	if b.Stats().Reconnects != 1 {
		t.Errorf("%d reconnects", b.Stats().Reconnects)
	}
	src.quiet(t)
	dst.quiet(t)
}

// relay stands between two nodes and can cut what it carries.
type relay struct {
	ln    net.Listener
	to    string
	mu    sync.Mutex
	conns []net.Conn
	wg    sync.WaitGroup
	stall atomic.Bool // nothing from the server passes
	lame  atomic.Bool // the server does not hear that a client has gone
}

func newRelay(t testing.TB, endpoint string) *relay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{ln: ln, to: strings.TrimPrefix(endpoint, "tcp://")}
	r.wg.Add(1)
	go r.serve()
	t.Cleanup(func() {
		ln.Close()
		r.cut()
		r.wg.Wait()
	})
	return r
}

func (r *relay) endpoint() string { return "tcp://" + r.ln.Addr().String() }

func (r *relay) serve() {
	defer r.wg.Done()
	for {
		c, err := r.ln.Accept()
		if err != nil {
			return
		}
		s, err := net.Dial("tcp", r.to)
		if err != nil {
			c.Close()
			continue
		}
		r.mu.Lock()
		r.conns = append(r.conns, c, s)
		r.mu.Unlock()
		pipe := func(to, from net.Conn, server bool) {
			defer r.wg.Done()
			defer func() {
				c.Close()
				if !r.lame.Load() {
					s.Close()
				}
			}()
			b := make([]byte, 16<<10)
			for {
				n, err := from.Read(b)
				for server && r.stall.Load() && err == nil {
					time.Sleep(time.Millisecond)
					if _, e := to.Write(nil); e != nil {
						return
					}
				}
				if n > 0 {
					if _, err := to.Write(b[:n]); err != nil {
						return
					}
				}
				if err != nil {
					return
				}
			}
		}
		r.wg.Add(2)
		go pipe(s, c, false)
		go pipe(c, s, true)
	}
}

// halve cuts the clients' halves of all connections. The server has no news of that.
func (r *relay) halve() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lame.Store(true)
	for i := 0; i < len(r.conns); i += 2 {
		r.conns[i].Close()
	}
}

func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stall.Store(false)
	for _, c := range r.conns {
		c.Close()
	}
	r.conns = nil
}

// Connections that are cut again and again, in the midst of blocks: every item is
// settled once, those that arrived are whole, and nothing stays behind.
func TestCuts(t *testing.T) {
	t.Run("stream", func(t *testing.T) { testCuts(t, false, func(*table) nodeOption { return func(*Config) {} }) })
	t.Run("ucx", func(t *testing.T) { testCuts(t, true, func(tb *table) nodeOption { return withUCX(t, tb) }) })
}

func testCuts(t *testing.T, shared bool, route func(*table) nodeOption) {
	const n, size = 64, 256 << 10
	// Slots of one round may still be read into when the next begins.
	src, dst := newTable(t, n, size, shared), newTable(t, 4*n, size, shared)
	for i := range n {
		src.put(t, keyOf(i), size)
	}
	a, b := openNode(t, src, route(src)), openNode(t, dst, route(dst))
	r := newRelay(t, a.Endpoints()[0])
	stop := make(chan struct{})
	var cutter sync.WaitGroup
	cutter.Add(1)
	go func() {
		defer cutter.Done()
		for {
			select {
			case <-stop:
				return
			case <-time.After(7 * time.Millisecond):
				r.cut()
			}
		}
	}()
	arrived, lost := 0, 0
	for round := range 12 {
		items := wanted(0, n)
		mode := wire.TransferCopy
		for i, s := range fetch(t, b, r.endpoint(), Submit{Namespace: "ns", Mode: mode, Items: items}, 2*time.Second) {
			switch s.Status {
			case wire.StatusOK:
				arrived++
				if err := dst.check(keyOf(i), size); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			case wire.StatusLost, wire.StatusTimeout:
				lost++
			default:
				t.Errorf("round %d, item %d: %v", round, i, s.Status)
			}
		}
		dst.drop()
	}
	close(stop)
	cutter.Wait()
	t.Logf("%d arrived, %d were lost", arrived, lost)
	if lost == 0 {
		t.Error("nothing was ever cut")
	}
	src.quiet(t)
	dst.quiet(t)
	dst.drop()
	mustFetch(t, b, r.endpoint(), 0, n)
}

// A move under cuts never loses the last copy, and leaves no mark and no hold.
func TestMoveUnderCuts(t *testing.T) {
	const n, size = 16, 64 << 10
	for _, cuts := range []bool{false, true} {
		t.Run(fmt.Sprintf("cuts=%t", cuts), func(t *testing.T) {
			testMoveUnderCuts(t, cuts, n, size, false, func(*table) nodeOption { return func(*Config) {} })
		})
		t.Run(fmt.Sprintf("ucx/cuts=%t", cuts), func(t *testing.T) {
			testMoveUnderCuts(t, cuts, n, size, true, func(tb *table) nodeOption { return withUCX(t, tb) })
		})
	}
}

func testMoveUnderCuts(t *testing.T, cuts bool, n, size int, shared bool, route func(*table) nodeOption) {
	src, dst := newTable(t, n, size, shared), newTable(t, n, size, shared)
	for i := range n {
		src.put(t, keyOf(i), size)
	}
	var moved, kept atomic.Int32
	count := func(c *Config) {
		c.OnOutcome = func(o Outcome) {
			if o.Status == wire.StatusOK {
				moved.Add(1)
			} else {
				kept.Add(1)
			}
		}
	}
	a, b := openNode(t, src, route(src)), openNode(t, dst, count, route(dst))
	r := newRelay(t, a.Endpoints()[0])
	for round := range 10 {
		if cuts {
			go func() { time.Sleep(time.Duration(1+round) * time.Millisecond); r.cut() }()
		}
		fetch(t, b, r.endpoint(), Submit{Namespace: "ns", Mode: wire.TransferMove, Items: wanted(0, n)}, time.Second)
		if !cuts {
			break
		}
	}
	dst.quiet(t)
	src.quiet(t)
	for i := range n {
		if src.check(keyOf(i), size) != nil && dst.check(keyOf(i), size) != nil {
			t.Errorf("%s is nowhere", keyOf(i))
		}
		if !cuts && src.check(keyOf(i), size) == nil {
			t.Errorf("%s was not moved", keyOf(i))
		}
	}
	if !cuts && moved.Load() != int32(n) {
		t.Errorf("%d outcomes say moved, %d kept", moved.Load(), kept.Load())
	}
}

// Refusals come at once, with their reason, and are the refused one's alone.
func TestRefused(t *testing.T) {
	src := newTable(t, 8, 4096, false)
	src.put(t, keyOf(0), 4096)
	layout := func(b byte) nodeOption {
		return func(c *Config) { c.Fingerprint = func(string) (f [32]byte) { f[0] = b; return f } }
	}
	other := func(c *Config) { c.Secret = []byte("another secret, just as long") }
	a := openNode(t, src, withSecret, layout(1))
	plain := openNode(t, newTable(t, 1, 4096, false), layout(1))
	fine := openNode(t, newTable(t, 8, 4096, false), withSecret, layout(1))
	for _, tt := range []struct {
		name     string
		opts     []nodeOption
		endpoint string
		want     wire.Status
	}{
		{"wrong secret", []nodeOption{other, layout(1)}, a.Endpoints()[0], wire.StatusUnauthorized},
		{"no secret", []nodeOption{layout(1)}, a.Endpoints()[0], wire.StatusUnauthorized},
		{"asks for none", []nodeOption{withSecret, layout(1)}, plain.Endpoints()[0], wire.StatusUnauthorized},
		{"layout", []nodeOption{withSecret, layout(2)}, a.Endpoints()[0], wire.StatusBadLayout},
		{"no endpoint", nil, "tcp://nowhere", wire.StatusUnsupported},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := openNode(t, newTable(t, 8, 4096, false), tt.opts...)
			start := time.Now()
			r := fetch(t, b, tt.endpoint, Submit{Namespace: "ns", Items: wanted(0, 1)}, 20*time.Second)
			if r[0].Status != tt.want || time.Since(start) > 2*time.Second {
				t.Errorf("%v after %v, want %v at once", r[0].Status, time.Since(start), tt.want)
			}
			if tt.want == wire.StatusUnauthorized {
				_, err := b.Query(context.Background(), tt.endpoint, "ns", [][]byte{[]byte("k")})
				var e *Error
				if !errors.As(err, &e) || e.Status != tt.want || !errors.Is(err, ErrRefused) {
					t.Errorf("Query: %v", err)
				}
			}
			mustFetch(t, fine, a.Endpoints()[0], 0, 1)
		})
	}
}

func TestSelf(t *testing.T) {
	src := newTable(t, 8, 4096, false)
	src.put(t, keyOf(0), 4096)
	a := openNode(t, src)
	r := fetch(t, a, a.Endpoints()[0], Submit{Namespace: "ns", Items: wanted(0, 2)}, 20*time.Second)
	if r[0].Status != wire.StatusSelf || r[1].Status != wire.StatusSelf {
		t.Errorf("fetching from oneself: %+v", r)
	}
}

func TestQueryAndInvalidate(t *testing.T) {
	src := newTable(t, 8, 4096, false)
	src.put(t, keyOf(0), 100)
	src.put(t, keyOf(1), 200)
	a, b := openNode(t, src), openNode(t, newTable(t, 1, 4096, false))
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	got, err := b.Query(ctx, a.Endpoints()[0], "ns", [][]byte{[]byte(keyOf(0)), []byte(keyOf(7)), []byte(keyOf(1))})
	want := []wire.Result{{Status: wire.StatusOK, Tier: 2, Size: 100}, {Status: wire.StatusMiss}, {Status: wire.StatusOK, Tier: 2, Size: 200}}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("Query: %v, %v", got, err)
	}
	st, err := b.Invalidate(ctx, a.Endpoints()[0], "ns", []wire.Wanted{{Key: []byte(keyOf(0)), Generation: 9}, {Key: []byte(keyOf(1)), Generation: 2}, {Key: []byte(keyOf(5))}})
	if err != nil || fmt.Sprint(st) != fmt.Sprint([]wire.Status{wire.StatusGeneration, wire.StatusOK, wire.StatusMiss}) {
		t.Errorf("Invalidate: %v, %v", st, err)
	}
	src.quiet(t)
	late, stop := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer stop()
	if _, err := b.Query(late, freePort(t), "ns", nil); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrLost) {
		t.Errorf("Query of nobody: %v", err)
	}
}

// Delivery goes to the caller's memory, and leaves nothing in the table.
func TestDeliver(t *testing.T) {
	const size = 300 << 10
	src, dst := newTable(t, 4, size, false), newTable(t, 4, size, false)
	src.put(t, keyOf(0), size)
	a, b := openNode(t, src), openNode(t, dst)
	op := b.NextOp()
	mine := make([]byte, size)
	dst.caller[fmt.Sprintf("%d/0", op)] = mine
	r := fetch(t, b, a.Endpoints()[0], Submit{Op: op, Namespace: "ns", Deliver: true, Mode: wire.TransferMove, Items: wanted(0, 1)}, 5*time.Second)
	if r[0].Status != wire.StatusOK || string(mine) != string(payload(keyOf(0), size)) {
		t.Errorf("delivered: %v, bytes right: %t", r[0].Status, string(mine) == string(payload(keyOf(0), size)))
	}
	dst.quiet(t)
	if src.check(keyOf(0), size) != nil || dst.check(keyOf(0), size) == nil {
		t.Error("a delivery moves nothing")
	}
}

// Items that are aborted, or late, in the midst of a transfer end at once; the
// others are not affected.
func TestAbortAndDeadline(t *testing.T) {
	const n, size = 32, 1 << 20
	src, dst := newTable(t, n, size, false), newTable(t, n, size, false)
	for i := range n {
		src.put(t, keyOf(i), size)
	}
	a, b := openNode(t, src), openNode(t, dst)
	r := newRelay(t, a.Endpoints()[0])
	mustFetch(t, b, r.endpoint(), 0, 1)
	dst.drop()

	// Stalled in the midst: abort half of it, then let it go on.
	var once sync.Once
	got := make(chan Settle, n)
	op := b.Submit(r.endpoint(), Submit{Namespace: "ns", Items: wanted(0, n), Deadline: b.Now() + 5*time.Second}, func(s Settle) {
		once.Do(func() { r.stall.Store(true) })
		got <- s
	})
	first := <-got
	if first.Status != wire.StatusOK {
		t.Fatalf("first: %v", first.Status)
	}
	var half []int
	for i := n / 2; i < n; i++ {
		half = append(half, i)
	}
	b.Abort(r.endpoint(), op, half...)
	aborted := 0
	for end := time.After(time.Second); aborted < n/4; {
		select {
		case s := <-got:
			if s.Status == wire.StatusAborted {
				aborted++
			}
		case <-end:
			t.Fatalf("only %d are aborted while the peer is silent", aborted)
		}
	}
	r.stall.Store(false)
	dst.quiet(t)
	src.quiet(t)
	dst.drop()

	// Silent until beyond the deadline.
	r.stall.Store(true)
	start := time.Now()
	late := 0
	for _, s := range fetch(t, b, r.endpoint(), Submit{Namespace: "ns", Items: wanted(0, n)}, 300*time.Millisecond) {
		if s.Status == wire.StatusTimeout {
			late++
		}
	}
	if late != n || time.Since(start) > time.Second {
		t.Errorf("%d of %d timed out after %v", late, n, time.Since(start))
	}
	r.stall.Store(false)
	dst.quiet(t)
	src.quiet(t)
	mustFetch(t, b, r.endpoint(), 0, n)
}

// A closed node settles everything, and Close may be called again.
func TestClose(t *testing.T) {
	const n, size = 32, 1 << 20
	src, dst := newTable(t, n, size, false), newTable(t, n, size, false)
	for i := range n {
		src.put(t, keyOf(i), size)
	}
	for _, which := range []string{"destination", "source"} {
		t.Run(which, func(t *testing.T) {
			a, b := openNode(t, src), openNode(t, dst)
			got := make(chan Settle, n)
			b.Submit(a.Endpoints()[0], Submit{Namespace: "ns", Items: wanted(0, n), Deadline: b.Now() + time.Second}, func(s Settle) { got <- s })
			<-got
			if which == "source" {
				closeNode(t, a)
			} else {
				closeNode(t, b)
			}
			for range n - 1 {
				select {
				case <-got:
				case <-time.After(3 * time.Second):
					t.Fatal("an item is not settled")
				}
			}
			dst.quiet(t)
			src.quiet(t)
			closeNode(t, a)
			closeNode(t, b)
			r := fetch(t, b, a.Endpoints()[0], Submit{Namespace: "ns", Items: wanted(0, 1)}, time.Second)
			if r[0].Status != wire.StatusClosed {
				t.Errorf("after Close: %v", r[0].Status)
			}
			dst.drop()
		})
	}
}

func TestConfig(t *testing.T) {
	_, err := Open(Config{
		Listen: []string{"tcp://0.0.0.0:0", "udp://1", "unix://"}, Secret: []byte("short"), Streams: 99,
		Routes: []wire.Route{wire.RouteUCX}, MaxOps: -1, MaxOutbound: -1, ResolveTimeout: -1, Namespace: strings.Repeat("n", wire.MaxName+1),
	})
	for _, field := range []string{"Records", "Listen", "Secret", "Streams", "Routes", "MaxOps", "MaxOutbound", "ResolveTimeout", "Namespace"} {
		if err == nil || !strings.Contains(err.Error(), "Config."+field) {
			t.Errorf("%s is not complained of: %v", field, err)
		}
	}
	if _, err := Open(Config{Records: newTable(t, 1, 1, false), Listen: []string{"tcp://0.0.0.0:0"}}); err == nil {
		t.Error("an open address without a secret is served")
	}
}
