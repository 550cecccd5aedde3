package client

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvcr-go/kvcr/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// background has no deadline, soon ends a test that hangs.
var background = context.Background()

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(background, 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// pattern is a value whose every byte depends on its place and on the seed.
func pattern(n int, seed uint64) []byte {
	b := make([]byte, n+8)
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], (uint64(i)+seed)*0x9e3779b97f4a7c15)
	}
	return b[:n:n]
}

func keysOf(names ...string) (keys [][]byte) {
	for _, n := range names {
		keys = append(keys, []byte(n))
	}
	return keys
}

// want fails unless err is the condition, as an *Error of the op.
func want(t *testing.T, err error, condition error, op string) *Error {
	t.Helper()
	var e *Error
	if !errors.Is(err, condition) || !errors.As(err, &e) {
		t.Fatalf("error %v, want *Error that is %v", err, condition)
	}
	if e.Op != op || e.Addr == "" {
		t.Fatalf("error of op %q at %q, want op %q: %v", e.Op, e.Addr, op, err)
	}
	return e
}

func TestValues(t *testing.T) {
	sizes := []int{0, 1, 999, copyMax, copyMax + 1, wire.MaxChunk - 1, wire.MaxChunk, wire.MaxChunk + 1, firstAlloc + 1, 5<<20 + 3}
	for _, tt := range []struct {
		name string
		fake func(*fake)
	}{
		{"tcp", nil},
		{"unix", func(f *fake) { f.unix = filepath.Join(t.TempDir(), "s") }},
		{"small chunks", func(f *fake) { f.chunk, f.challenge.MaxChunk = 1000, 1000 }},
		{"secret", func(f *fake) { f.secret = testSecret }},
		{"mixed", func(f *fake) { f.serve = (*peer).shuffle }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake(t, tt.fake)
			cl := f.dial(nil)
			ctx := soon(t)
			for i, n := range sizes {
				key, v := fmt.Appendf(nil, "key-%d", n), pattern(n, uint64(i))
				if err := cl.Set(ctx, key, v); err != nil {
					t.Fatalf("Set of %d bytes: %v", n, err)
				}
				if got, ok := f.get(string(key)); !ok || !bytes.Equal(got, v) {
					t.Fatalf("Set of %d bytes: the node has %d, %t", n, len(got), ok)
				}
				for _, room := range []int{0, n / 2, n, n + 10} {
					dst := bytes.Repeat([]byte{0xEE}, room)
					got, ok, err := cl.Get(ctx, key, dst)
					if err != nil || !ok || !bytes.Equal(got, v) {
						t.Fatalf("Get of %d bytes into %d: %d bytes, %t, %v", n, room, len(got), ok, err)
					}
					if inPlace := room > 0 && cap(got) == room && n > 0; inPlace != (room >= n && n > 0) {
						t.Fatalf("Get of %d bytes into %d: in the caller's memory: %t", n, room, inPlace)
					}
					dst = bytes.Repeat([]byte{0xEE}, room)
					k, ok, err := cl.GetInto(ctx, key, dst)
					if room < n {
						if e := want(t, err, ErrShortBuffer, "get"); e.Size != uint64(n) {
							t.Fatalf("ErrShortBuffer with size %d, want %d", e.Size, n)
						}
						if !bytes.Equal(dst, bytes.Repeat([]byte{0xEE}, room)) {
							t.Fatalf("GetInto has written to a short buffer")
						}
					} else if err != nil || !ok || k != n || !bytes.Equal(dst[:n], v) || bytes.Count(dst[n:], []byte{0xEE}) != room-n {
						t.Fatalf("GetInto of %d bytes into %d: %d, %t, %v", n, room, k, ok, err)
					}
				}
			}
			buf := make([]byte, 3, 100)
			if v, ok, err := cl.Get(ctx, []byte("none"), buf); ok || err != nil || len(v) != 0 || cap(v) != 100 {
				t.Errorf("Get of a miss: %d of %d bytes, %t, %v", len(v), cap(v), ok, err)
			}
			if n, ok, err := cl.GetInto(ctx, []byte("none"), buf); n != 0 || ok || err != nil {
				t.Errorf("GetInto of a miss: %d, %t, %v", n, ok, err)
			}
		})
	}
}

func TestOps(t *testing.T) {
	f := newFake(t, nil)
	cl := f.dial(nil)
	ctx := soon(t)
	same := func(what string, got any, err error, want any) {
		t.Helper()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, %v, want %v", what, got, err, want)
		}
	}
	a, b, c := []byte("a"), []byte("b"), []byte("c")
	existing, err := cl.SetAbsent(ctx, a, []byte("one"))
	same("SetAbsent", existing, err, false)
	existing, err = cl.SetAbsent(ctx, a, []byte("two"))
	same("SetAbsent again", existing, err, true)
	_, err = cl.Deposit(ctx, a, []byte("three"))
	same("Deposit", nil, err, nil)
	v, _, err := cl.Get(ctx, a, nil)
	same("Get", string(v), err, "one")
	same("Set", nil, cl.Set(ctx, b, []byte("22")), nil)
	there, err := cl.Exists(ctx, a, c, b)
	same("Exists", there, err, []bool{true, false, true})
	n, err := cl.Prefix(ctx, [][]byte{a, b, c})
	same("Prefix", n, err, 2)
	results, err := cl.Query(ctx, [][]byte{c, b})
	same("Query", results, err, []wire.Result{{Status: wire.StatusMiss, Tier: 2}, {Status: wire.StatusOK, Tier: 2, Size: 2}})
	stats, err := cl.Stats(ctx)
	same("Stats", string(stats), err, `{"hits":1}`)
	hints, err := cl.Hint(ctx, "r", wire.FormatJSON, []byte("{}"))
	same("Hint", string(hints), err, "echo {}")
	same("DiscardHint", nil, cl.DiscardHint(ctx, "r"), nil)
	d, err := cl.Ping(ctx)
	same("Ping", d > 0, err, true)
	statuses, err := cl.Delete(ctx, a, c)
	same("Delete", statuses, err, []wire.Status{wire.StatusOK, wire.StatusMiss})
	there, err = cl.Exists(ctx)
	same("Exists of nothing", there, err, []bool{})
	statuses, err = cl.Delete(ctx)
	same("Delete of nothing", len(statuses), err, 0)
}

func TestTTL(t *testing.T) {
	got := make(chan uint64, 1)
	f := newFake(t, func(f *fake) {
		f.serve = func(p *peer) {
			for {
				var m wire.Set
				id, ok := p.want(wire.TypeSet, &m)
				if !ok {
					return
				}
				got <- m.TTLMillis
				p.send((&wire.StatusReply{}).Append(nil, id))
			}
		}
	})
	cl := f.dial(nil)
	for ttl, ms := range map[time.Duration]uint64{0: 0, 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, time.Hour: 3600000} {
		if err := cl.SetTTL(soon(t), []byte("k"), nil, ttl); err != nil {
			t.Fatal(err)
		}
		if g := <-got; g != ms {
			t.Errorf("ttl %v went as %d ms, want %d", ttl, g, ms)
		}
	}
	want(t, cl.SetTTL(soon(t), []byte("k"), nil, -1), ErrInvalid, "set")
}

func TestClaims(t *testing.T) {
	f := newFake(t, func(f *fake) { f.last = 100 })
	cl := f.dial(nil)
	ctx := soon(t)
	f.set("a", pattern(700_000, 1))
	claims, err := cl.Fetch(ctx, keysOf("a", "none", "a"))
	if err != nil || len(claims) != 3 || claims[1].Status != wire.StatusMiss || claims[0].Size != 700_000 || claims[0].Claim == claims[2].Claim {
		t.Fatalf("Fetch: %v, %v", claims, err)
	}
	f.set("a", []byte("another"))
	if v, err := cl.Deliver(ctx, claims[0], nil); err != nil || !bytes.Equal(v, pattern(700_000, 1)) {
		t.Fatalf("Deliver: %d bytes, %v", len(v), err)
	}
	dead, cancel := context.WithCancel(ctx)
	cancel()
	want(t, cl.Release(dead, claims...), context.Canceled, "release")
	if err := cl.Release(ctx, claims...); err != nil {
		t.Fatalf("Release after one that was not sent: %v", err)
	}
	f.mu.Lock()
	if n := len(f.claims); n != 0 {
		t.Errorf("the node still has %d claims", n)
	}
	f.mu.Unlock()
	c := cl.slots[0].conn.Load()
	c.mu.Lock()
	if n := len(c.claims); n != 0 { // the node may use their numbers again
		t.Errorf("%d claims are known after Release", n)
	}
	c.mu.Unlock()
	want(t, cl.Release(ctx, claims...), ErrReleased, "release")
	_, err = cl.Deliver(ctx, claims[0], nil)
	want(t, err, ErrReleased, "deliver")

	claims, err = cl.Fetch(ctx, keysOf("a"))
	if err != nil {
		t.Fatal(err)
	}
	f.hangUp()
	for err == nil {
		_, err = cl.Deliver(ctx, claims[0], nil)
	}
	if !errors.Is(err, ErrLost) {
		want(t, err, ErrReleased, "deliver")
	}
	// The node counts on, but could as well begin again: our numbers do not.
	if again, err := cl.Fetch(ctx, keysOf("a")); err != nil || again[0].Claim != claims[0].Claim+1 {
		t.Errorf("claims of a new connection: %v, %v", again, err)
	}
	_, err = cl.Deliver(ctx, claims[0], nil)
	want(t, err, ErrReleased, "deliver")
}

// Claims that come for a FETCH that was given up are released.
func TestLateClaims(t *testing.T) {
	released := make(chan []uint64, 1)
	asked := make(chan struct{})
	f := newFake(t, func(f *fake) {
		f.challenge.MaxInFlight = 1
		f.serve = func(p *peer) {
			id, _ := p.want(wire.TypeFetch, nil)
			close(asked)
			p.want(wire.TypeCancel, nil)
			p.send((&wire.Claims{Claims: []wire.Claim{{Claim: 41}, {Status: wire.StatusMiss}, {Claim: 43}}}).Append(nil, id))
			var r wire.Release
			id, ok := p.want(wire.TypeRelease, &r)
			if !ok {
				return
			}
			released <- r.Claims
			p.send((&wire.Statuses{Statuses: make([]wire.Status, 2)}).Append(nil, id))
			p.store()
		}
	})
	cl := f.dial(nil)
	ctx, cancel := context.WithCancel(soon(t))
	go func() { <-asked; cancel() }()
	_, err := cl.Fetch(ctx, keysOf("a", "b", "c"))
	if e := want(t, err, context.Canceled, "fetch"); !e.MayHaveRun || errors.Is(err, ErrTimeout) {
		t.Errorf("cancelled fetch: %#v", e)
	}
	if got := <-released; !reflect.DeepEqual(got, []uint64{41, 43}) {
		t.Errorf("released %v", got)
	}
	if _, err := cl.Ping(soon(t)); err != nil { // takes the only slot
		t.Errorf("Ping afterwards: %v", err)
	}
}

func TestArguments(t *testing.T) {
	f := newFake(t, func(f *fake) { f.challenge.MaxKey, f.challenge.MaxValue = 100, 1000 })
	cl := f.dial(nil)
	ctx := soon(t)
	long := make([]byte, 101)
	many := make([][]byte, wire.MaxList+1)
	for i := range many {
		many[i] = []byte("k")
	}
	wide := make([][]byte, wire.MaxPayload/102+1)
	for i := range wide {
		wide[i] = long[:100]
	}
	describe := func(d wire.Describe) error { _, err := cl.Describe(ctx, &d); return err }
	for _, tt := range []struct {
		name, op string
		err      error
		call     func() error
	}{
		{"empty key", "get", ErrBadKey, func() error { _, _, err := cl.Get(ctx, nil, nil); return err }},
		{"long key", "set", ErrBadKey, func() error { return cl.Set(ctx, long, nil) }},
		{"long key in a list", "query", ErrBadKey, func() error { _, err := cl.Query(ctx, [][]byte{long}); return err }},
		{"long value", "set", ErrTooLarge, func() error { return cl.Set(ctx, []byte("k"), make([]byte, 1001)) }},
		{"many keys", "exists", ErrTooLarge, func() error { _, err := cl.Exists(ctx, many...); return err }},
		{"wide keys", "delete", ErrTooLarge, func() error { _, err := cl.Delete(ctx, wide...); return err }},
		{"long hint", "hint", ErrTooLarge, func() error { _, err := cl.Hint(ctx, "", 0, make([]byte, wire.MaxPayload)); return err }},
		{"format", "hint", ErrInvalid, func() error { _, err := cl.Hint(ctx, "", 9, nil); return err }},
		{"no request id", "discard hint", ErrInvalid, func() error { return cl.DiscardHint(ctx, "") }},
		{"request id", "discard hint", ErrInvalid, func() error { return cl.DiscardHint(ctx, "\xff") }},
		{"wide keys and a request id", "fetch", ErrTooLarge, func() error {
			_, err := cl.FetchFor(ctx, strings.Repeat("r", wire.MaxText), wide[:len(wide)-1])
			return err
		}},
		{"long key", "describe", ErrBadKey, func() error { return describe(wire.Describe{Blocks: []wire.Description{{Key: long}}}) }},
		{"adapter", "describe", ErrInvalid, func() error {
			return describe(wire.Describe{LoRA: "\xff", Blocks: []wire.Description{{Key: long[:100]}}})
		}},
		{"many tokens", "describe", ErrTooLarge, func() error {
			return describe(wire.Describe{Blocks: []wire.Description{{Key: long[:100], Tokens: make([]uint32, wire.MaxList+1)}}})
		}},
		{"wide blocks", "describe", ErrTooLarge, func() error {
			one := wire.Description{Key: long[:100], Tokens: make([]uint32, wire.MaxList)}
			return describe(wire.Describe{Blocks: slices.Repeat([]wire.Description{one}, 9)})
		}},
		{"many blocks", "describe", ErrTooLarge, func() error {
			return describe(wire.Describe{Blocks: slices.Repeat([]wire.Description{{Key: []byte("k")}}, wire.MaxList+1)})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if e := want(t, tt.call(), tt.err, tt.op); e.MayHaveRun {
				t.Errorf("says that it may have run: %v", e)
			}
		})
	}
	if e := want(t, cl.Set(ctx, []byte("k"), make([]byte, 1001)), ErrTooLarge, "set"); e.Size != 1000 {
		t.Errorf("limit %d", e.Size)
	}
	full := wide[:len(wide)-1]
	if _, err := cl.Exists(ctx, full...); err != nil {
		t.Errorf("Exists of the most that fits: %v", err)
	}
	if _, err := cl.Exists(ctx, many[1:]...); err != nil {
		t.Errorf("Exists of the most keys: %v", err)
	}
}

func TestOptions(t *testing.T) {
	_, err := Dial(background, Options{Secret: []byte("short"), Conns: -1, Name: "\xff"})
	for _, part := range []string{"Addr", "Conns", "Name", "secret"} {
		if err == nil || !bytes.Contains([]byte(err.Error()), []byte(part)) {
			t.Errorf("error does not name %s: %v", part, err)
		}
	}
	if !errors.Is(err, wire.ErrSecret) {
		t.Errorf("not ErrSecret: %v", err)
	}
}

// Values of many callers, mixed with calls that are given up at any moment: every
// byte is right, and buffers of calls that have returned are left alone.
func TestMixedLoad(t *testing.T) {
	for _, tt := range []struct {
		name  string
		conns int
		serve func(*peer)
	}{
		{"in order", 1, (*peer).store},
		{"mixed", 1, (*peer).shuffle},
		{"mixed, four connections", 4, (*peer).shuffle},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake(t, func(f *fake) {
				f.serve, f.chunk, f.challenge.MaxChunk, f.challenge.MaxInFlight = tt.serve, 20_000, 30_000, 40
			})
			cl := f.dial(func(o *Options) { o.Conns = tt.conns })
			rounds := 60
			if testing.Short() || raceBuild {
				rounds = 15
			}
			var wg sync.WaitGroup
			var ended atomic.Int64
			for g := range 64 {
				wg.Add(1)
				go func() {
					defer wg.Done()
					if err := mixedCaller(cl, g, rounds, &ended); err != nil {
						t.Errorf("caller %d: %v", g, err)
					}
				}()
			}
			wg.Wait()
			if ended.Load() == 0 {
				t.Error("no call was given up: the test shows nothing about them")
			}
			if n := f.connections(); n > tt.conns {
				t.Errorf("%d connections, at most %d", n, tt.conns)
			}
		})
	}
}

func mixedCaller(cl *Client, g, rounds int, ended *atomic.Int64) error {
	rnd := rand.New(rand.NewPCG(uint64(g), 1))
	key := fmt.Appendf(nil, "key-%d", g)
	sizes := []int{10, 1000, 30_000, 90_000}
	// The value is the last version that was set, or one whose Set was given up:
	// that may happen at any time later.
	var set, open []uint64
	size := func(version uint64) int { return sizes[version%4] }
	poisoned := make([]byte, 100_000)
	for i := range rounds {
		ctx, cancel := context.WithTimeout(background, 20*time.Second)
		if rnd.IntN(3) == 0 {
			cancel()
			ctx, cancel = context.WithTimeout(background, time.Duration(rnd.IntN(3000))*time.Microsecond)
		}
		version := uint64(g*rounds + i)
		v := pattern(size(version), version)
		switch err := cl.Set(ctx, key, v); {
		case err == nil:
			set = []uint64{version}
		case errors.Is(err, ErrTimeout):
			ended.Add(1)
			open = append(open, version)
			clear(v) // it is ours again: nothing of this may reach the node
		default:
			cancel()
			return err
		}
		buf := make([]byte, 100_000)
		got, ok, err := cl.Get(ctx, key, buf)
		cancel()
		for j := range poisoned {
			if poisoned[j] != 0 && poisoned[j] != 0xEE {
				return fmt.Errorf("a buffer was written to after its call: %x at %d", poisoned[j], j)
			}
		}
		if err != nil {
			if !errors.Is(err, ErrTimeout) {
				return err
			}
			ended.Add(1)
			for j := range buf {
				buf[j] = 0xEE
			}
			poisoned = buf
			continue
		}
		right := !ok && len(set) == 0
		for _, version := range append(open[:len(open):len(open)], set...) {
			right = right || ok && bytes.Equal(got, pattern(size(version), version))
		}
		if !right {
			return fmt.Errorf("round %d: %d bytes, %t, are none of the versions %v, %v", i, len(got), ok, set, open)
		}
	}
	return nil
}

func TestGetDoesNotAllocate(t *testing.T) {
	if raceBuild {
		t.Skip("the race detector allocates")
	}
	f := newFake(t, nil)
	cl := f.dial(nil)
	withDeadline := soon(t)
	for _, n := range []int{100, 300_000} {
		f.set("key", pattern(n, 1))
		key, buf := []byte("key"), make([]byte, n)
		miss := []byte("none")
		for _, ctx := range []context.Context{background, withDeadline} {
			if a := testing.AllocsPerRun(200, func() {
				v, ok, err := cl.Get(ctx, key, buf)
				if err != nil || !ok || len(v) != n {
					t.Fatalf("%d bytes, %t, %v", len(v), ok, err)
				}
				if _, ok, err := cl.GetInto(ctx, key, buf); err != nil || !ok {
					t.Fatal(err)
				}
				if _, ok, err := cl.Get(ctx, miss, buf); err != nil || ok {
					t.Fatal(err)
				}
			}); a != 0 {
				t.Errorf("three reads of %d bytes: %v allocations", n, a)
			}
		}
	}
}

func TestConnectionsOnDemand(t *testing.T) {
	release, asked := make(chan struct{}), make(chan struct{})
	f := newFake(t, func(f *fake) {
		f.serve = func(p *peer) {
			for id, ok := p.want(wire.TypeStats, nil); ok; id, ok = p.want(wire.TypeStats, nil) {
				asked <- struct{}{}
				defer p.send((&wire.StatsReply{}).Append(nil, id))
				if id == 2 {
					break
				}
			}
			<-release
		}
	})
	cl := f.dial(func(o *Options) { o.Conns = 3 })
	open := func() (n int) {
		for i := range cl.slots {
			if cl.slots[i].conn.Load() != nil {
				n++
			}
		}
		return n
	}
	var wg sync.WaitGroup
	for i, n := range []int{1, 2, 2, 3, 3, 3} {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if _, err := cl.Stats(soon(t)); err != nil {
				t.Error(err)
			}
		}()
		<-asked
		if !eventually(func() bool { return open() == n }) {
			t.Fatalf("%d connections with %d calls waiting, want %d", open(), i+1, n)
		}
	}
	close(release)
	wg.Wait()
	if n := f.connections(); n != 3 {
		t.Errorf("%d connections were made", n)
	}
}

// eventually reports whether cond holds within a few seconds.
func eventually(cond func() bool) bool {
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(100 * time.Microsecond) {
		if cond() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

func TestClose(t *testing.T) {
	asked := make(chan struct{}, 10)
	f := newFake(t, func(f *fake) {
		f.serve = func(p *peer) {
			for _, ok := p.want(wire.TypeGet, nil); ok; _, ok = p.want(wire.TypeGet, nil) {
				asked <- struct{}{}
			}
		}
		f.challenge.MaxInFlight = 2 // the third waits for its turn
	})
	cl := f.dial(nil)
	errs := make(chan error, 3)
	for range 3 {
		go func() {
			_, _, err := cl.Get(background, []byte("k"), nil)
			errs <- err
		}()
	}
	<-asked
	<-asked
	start := time.Now()
	var wg sync.WaitGroup
	for range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := cl.Close(); err != nil {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
	for range 3 {
		want(t, <-errs, ErrClosed, "get")
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("Close took %v", d)
	}
	_, err := cl.Ping(background)
	want(t, err, ErrClosed, "ping")
	_, err = cl.Subscribe(background, 0, 0)
	want(t, err, ErrClosed, "subscribe")
	if err := cl.Close(); err != nil {
		t.Error(err)
	}
}

// Close does not wait for a node that does not answer the handshake.
func TestCloseWhileConnecting(t *testing.T) {
	var silent atomic.Bool
	hello := make(chan struct{}, 1)
	f := newFake(t, func(f *fake) {
		f.hello = func(_ *wire.Hello, nc net.Conn) bool {
			if silent.Load() {
				hello <- struct{}{}
				nc.Read(make([]byte, 1))
				return false
			}
			return true
		}
	})
	cl := f.dial(nil)
	silent.Store(true)
	f.hangUp()
	errs := make(chan error)
	go func() {
		_, err := cl.Ping(background)
		errs <- err
	}()
	<-hello
	cl.Close()
	want(t, <-errs, ErrClosed, "ping")
}
