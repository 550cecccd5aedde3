package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// The answer to a call that was given up comes later, after and between those to
// others, and reaches none of them.
func TestLateAnswer(t *testing.T) {
	first := make(chan uint64, 1)
	f := newFake(t, func(f *fake) {
		f.serve = func(p *peer) {
			old, _ := p.want(wire.TypeGet, nil)
			first <- old
			p.want(wire.TypeCancel, nil)
			var a, b wire.Get
			ida, _ := p.want(wire.TypeGet, &a)
			idb, ok := p.want(wire.TypeGet, &b)
			if !ok {
				return
			}
			half := func(id uint64, key []byte) {
				p.send((&wire.Value{Total: 8, Value: key[:4], More: true}).Append(nil, id))
			}
			rest := func(id uint64, key []byte) { p.send((&wire.Data{Offset: 4, Bytes: key[4:]}).Append(nil, id)) }
			half(idb, b.Key)
			half(old, []byte("lateLATE"))
			half(ida, a.Key)
			rest(old, []byte("lateLATE"))
			rest(idb, b.Key)
			rest(ida, a.Key)
			p.store()
		}
	})
	cl := f.dial(nil)
	ctx, cancel := context.WithCancel(soon(t))
	go func() { <-first; cancel() }()
	buf := make([]byte, 8)
	_, _, err := cl.Get(ctx, []byte("lateLATE"), buf)
	if e := want(t, err, context.Canceled, "get"); !e.MayHaveRun {
		t.Errorf("says that it was not sent: %v", e)
	}
	var wg sync.WaitGroup
	for _, key := range []string{"aaaaAAAA", "bbbbBBBB"} {
		wg.Add(1)
		go func() {
			defer wg.Done()
			v, ok, err := cl.Get(soon(t), []byte(key), nil)
			if err != nil || !ok || string(v) != key {
				t.Errorf("Get %s: %q, %t, %v", key, v, ok, err)
			}
		}()
	}
	wg.Wait()
	if !bytes.Equal(buf, make([]byte, 8)) {
		t.Errorf("the late value is in the caller's buffer: %q", buf)
	}
	if f.connections() != 1 {
		t.Error("the connection was not kept")
	}
}

func TestTimeouts(t *testing.T) {
	f := newFake(t, func(f *fake) { f.serve = (*peer).drain })
	cl := f.dial(func(o *Options) { o.RequestTimeout = 30 * time.Millisecond })
	_, _, err := cl.Get(background, []byte("k"), nil)
	if want(t, err, ErrTimeout, "get"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no DeadlineExceeded: %v", err)
	}
	ctx, cancel := context.WithTimeout(background, 10*time.Millisecond)
	defer cancel()
	want(t, cl.Set(ctx, []byte("k"), nil), ErrTimeout, "set")
	if e := want(t, cl.Set(ctx, []byte("k"), nil), ErrTimeout, "set"); e.MayHaveRun {
		t.Errorf("context ended before the call: %v", e)
	}
}

// A value whose node does not read is given up at once, and the node that reads
// later finds all frames whole, with the bytes that the value had.
func TestGiveUpLongSet(t *testing.T) {
	const size = 20 << 20 // more than the socket's buffers take
	read, done := make(chan struct{}), make(chan error, 1)
	f := newFake(t, func(f *fake) {
		f.serve = func(p *peer) {
			<-read
			var set wire.Set
			id, _ := p.want(wire.TypeSet, &set)
			v := pattern(size, 9)
			for at := 0; ; {
				h, payload, more := p.next()
				if h.Type == wire.TypeCancel {
					if at == 0 || at >= size {
						done <- errors.New("no part of the value was sent, or all of it")
					}
					p.send((&wire.StatusReply{Status: wire.StatusAborted}).Append(nil, id))
					close(done)
					p.store()
					return
				}
				var d wire.Data
				if !more || d.Parse(payload) != nil || h.ID != id || int(d.Offset) != at || !bytes.Equal(d.Bytes, v[at:at+len(d.Bytes)]) {
					done <- errors.New("bad DATA")
					return
				}
				at += len(d.Bytes)
			}
		}
	})
	cl := f.dial(nil)
	ctx, cancel := context.WithCancel(soon(t))
	defer cancel()
	v := pattern(size, 9)
	var start time.Time
	go func() {
		c := cl.slots[0].conn.Load()
		last, same := 0, 0
		eventually(func() bool { // until the kernel takes no more, in the middle of a chunk
			c.wmu.Lock()
			defer c.wmu.Unlock()
			if n := len(c.part); c.full && n > 0 && n == last {
				same++
			} else {
				last, same = n, 0
			}
			return same == 100
		})
		start = time.Now()
		cancel()
	}()
	e := want(t, cl.Set(ctx, []byte("k"), v), context.Canceled, "set")
	clear(v)
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("returned after %v", d)
	}
	if e.MayHaveRun {
		t.Errorf("cannot have run without its last chunk: %v", e)
	}
	close(read)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, err := cl.Ping(soon(t)); err != nil || f.connections() != 1 {
		t.Errorf("Ping over connection %d: %v", f.connections(), err)
	}
}

// A long value does not hold up what is asked for meanwhile.
func TestFramesBetweenChunks(t *testing.T) {
	started, goOn, before := make(chan struct{}), make(chan struct{}), make(chan int, 1)
	f := newFake(t, func(f *fake) {
		f.challenge.MaxChunk = 1000
		f.serve = func(p *peer) {
			set, _ := p.want(wire.TypeSet, nil)
			close(started)
			<-goOn
			for n := 0; ; n++ {
				h, payload, ok := p.next()
				if !ok {
					return
				}
				if h.Type == wire.TypePing {
					p.send((&wire.Pong{Bytes: payload}).Append(nil, h.ID))
					before <- n
				} else if !h.More() {
					p.send((&wire.StatusReply{}).Append(nil, set))
				}
			}
		}
	})
	cl := f.dial(nil)
	errs := make(chan error, 2)
	go func() { errs <- cl.Set(soon(t), []byte("k"), pattern(20<<20, 1)) }()
	<-started
	go func() { _, err := cl.Ping(soon(t)); errs <- err }()
	c := cl.slots[0].conn.Load()
	if !eventually(func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.lastID == 2 }) {
		t.Fatal("PING does not start")
	}
	close(goOn)
	if n := <-before; n == 0 || n > 20_000 {
		t.Errorf("PING came after %d of 20972 chunks", n)
	}
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// What the node said before it closed is heard, also by who was writing.
func TestLastWord(t *testing.T) {
	f := newFake(t, func(f *fake) {
		f.serve = func(p *peer) {
			p.want(wire.TypeSet, nil)
			p.send((&wire.ErrorReply{Code: wire.CodeBadFlags, Text: "so"}).Append(nil, 0))
		}
	})
	cl := f.dial(nil)
	e := want(t, cl.Set(soon(t), []byte("k"), make([]byte, 50<<20)), ErrRefused, "set")
	if e.Code != wire.CodeBadFlags || e.MayHaveRun {
		t.Errorf("error %#v", e)
	}
	c := cl.slots[0].conn.Load()
	<-c.gone
}

// A connection that can only be read from is given up soon.
func TestWriteFails(t *testing.T) {
	hold := make(chan struct{})
	f := newFake(t, func(f *fake) { f.serve = func(p *peer) { p.drain(); <-hold } })
	defer close(hold)
	cl := f.dial(nil)
	c := cl.slots[0].conn.Load()
	c.nc.(*net.TCPConn).CloseWrite()
	if e := want(t, cl.Set(soon(t), []byte("k"), nil), ErrLost, "set"); !errors.Is(e, syscall.EPIPE) {
		t.Errorf("error %v", e)
	}
}

// Long values take turns, chunk by chunk.
func TestLongValuesTakeTurns(t *testing.T) {
	var turns atomic.Int32
	began, goOn := make(chan struct{}, 2), make(chan struct{})
	f := newFake(t, func(f *fake) {
		f.challenge.MaxChunk = 100_000
		f.serve = func(p *peer) {
			p.want(wire.TypeSet, nil)
			began <- struct{}{}
			<-goOn
			last := uint64(0)
			for h, _, ok := p.next(); ok; h, _, ok = p.next() {
				if h.Type != wire.TypeData {
					continue
				}
				if h.ID != last {
					turns.Add(1)
				}
				last = h.ID
				if !h.More() {
					p.send((&wire.StatusReply{}).Append(nil, h.ID))
				}
			}
		}
	})
	cl := f.dial(nil)
	c := cl.slots[0].conn.Load()
	errs := make(chan error, 2)
	set := func() { errs <- cl.Set(soon(t), []byte("k"), make([]byte, 20<<20)) }
	go set()
	<-began
	go set()
	if !eventually(func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.lastID == 2 }) {
		t.Fatal("the second SET does not start")
	}
	close(goOn)
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n := turns.Load(); n < 100 {
		t.Errorf("%d turns with 210 chunks of each", n)
	}
}

// A SET that is answered before its end is not sent any further.
func TestEarlyRefusal(t *testing.T) {
	chunks := make(chan int, 1)
	f := newFake(t, func(f *fake) {
		f.serve = func(p *peer) {
			id, ok := p.want(wire.TypeSet, nil)
			if !ok {
				return
			}
			p.send((&wire.StatusReply{Status: wire.StatusCapacity}).Append(nil, id))
			for n := 0; ; n++ {
				h, payload, ok := p.next()
				if !ok {
					return
				}
				if h.Type == wire.TypeCancel {
					var c wire.Cancel
					if c.Parse(payload) != nil || c.Target != id {
						p.f.tb.Errorf("CANCEL of %d, want %d", c.Target, id)
					}
					chunks <- n
					p.store()
					return
				}
			}
		}
	})
	cl := f.dial(nil)
	if e := want(t, cl.Set(soon(t), []byte("k"), make([]byte, 60<<20)), ErrCapacity, "set"); e.Status != wire.StatusCapacity || e.MayHaveRun {
		t.Errorf("error %#v", e)
	}
	if n := <-chunks; n >= 240 {
		t.Errorf("all %d chunks were sent", n)
	}
	if _, err := cl.Ping(soon(t)); err != nil || f.connections() != 1 {
		t.Errorf("Ping over connection %d: %v", f.connections(), err)
	}
}

func TestStatuses(t *testing.T) {
	var answer atomic.Pointer[[]byte]
	f := newFake(t, func(f *fake) {
		f.serve = func(p *peer) {
			for h, _, ok := p.next(); ok; h, _, ok = p.next() {
				b := bytes.Clone(*answer.Load())
				b[8] = byte(h.ID)
				p.send(b)
			}
		}
	})
	cl := f.dial(nil)
	for status, err := range map[wire.Status]error{
		wire.StatusCapacity: ErrCapacity, wire.StatusTooLarge: ErrTooLarge, wire.StatusBadKey: ErrBadKey,
		wire.StatusBadLayout: ErrBadLayout, wire.StatusTimeout: ErrTimeout, wire.StatusAborted: ErrAborted,
		wire.StatusDropped: ErrDropped, wire.StatusClosed: ErrClosing, wire.StatusUnsupported: ErrUnsupported,
		wire.StatusBusy: ErrBusy, wire.StatusUnauthorized: ErrUnauthorized, wire.StatusReleased: ErrReleased,
		wire.StatusMiss: ErrRefused, 77: ErrRefused,
	} {
		b := (&wire.StatusReply{Status: status, Detail: 5}).Append(nil, 0)
		answer.Store(&b)
		e := want(t, cl.Set(soon(t), []byte("k"), nil), err, "set")
		unclear := err == ErrRefused || err == ErrTimeout || err == ErrAborted
		if e.Status != status || e.MayHaveRun != unclear || (e.Size == 5) != (status == wire.StatusTooLarge) {
			t.Errorf("status %v: %#v", status, e)
		}
	}
	for code, err := range map[wire.Code]error{wire.CodeInternal: ErrRefused, wire.CodeTooMany: ErrBusy, 77: ErrRefused} {
		b := (&wire.ErrorReply{Code: code, Text: "so"}).Append(nil, 1)
		answer.Store(&b)
		_, e := cl.Stats(soon(t))
		if e := want(t, e, err, "stats"); e.Code != code || e.Text != "so" || e.MayHaveRun != (err == ErrRefused) {
			t.Errorf("code %v: %#v", code, e)
		}
	}
	if f.connections() != 1 {
		t.Error("the connection was not kept")
	}
}

// What is not the protocol ends the connection and its calls; none hangs.
func TestGarbage(t *testing.T) {
	value := func(v wire.Value) []byte { return v.Append(nil, 1) }
	data := func(d wire.Data) []byte { return d.Append(nil, 1) }
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	begin := value(wire.Value{Total: 8, Value: []byte("1234"), More: true})
	edit := func(b []byte, at int, v byte) []byte { b[at] = v; return b }
	get := func(cl *Client) error { _, _, err := cl.Get(background, []byte("k"), make([]byte, 8)); return err }
	query := func(cl *Client) error { _, err := cl.Query(background, keysOf("a", "b")); return err }
	exists := func(cl *Client) error { _, err := cl.Exists(background, keysOf("a", "b")...); return err }
	prefix := func(cl *Client) error { _, err := cl.Prefix(background, keysOf("a", "b")); return err }
	fetch := func(cl *Client) error { _, err := cl.Fetch(background, keysOf("a", "b")); return err }
	ping := func(cl *Client) error { _, err := cl.Ping(background); return err }
	for _, tt := range []struct {
		name string
		call func(*Client) error
		b    []byte
		err  error
	}{
		{"no frame", get, bytes.Repeat([]byte("x"), 100), ErrProtocol},
		{"frame version", get, edit(value(wire.Value{}), 2, 9), ErrProtocol},
		{"reserved byte", get, edit(value(wire.Value{}), 6, 1), ErrProtocol},
		{"too long", get, edit(value(wire.Value{}), 19, 1), ErrProtocol},
		{"unknown type", get, edit(value(wire.Value{}), 3, 0xee), ErrProtocol},
		{"a client's frame", get, (&wire.Get{Key: []byte("k")}).Append(nil, 1), ErrProtocol},
		{"a handshake's frame", get, (&wire.Welcome{}).Append(nil, 1), ErrProtocol},
		{"another answer", get, (&wire.Count{}).Append(nil, 1), ErrProtocol},
		{"another answer, of a value", query, value(wire.Value{}), ErrProtocol},
		{"status ok", get, (&wire.StatusReply{}).Append(nil, 1), ErrProtocol},
		{"an id that was not used", get, (&wire.StatusReply{Status: 1}).Append(nil, 2), ErrProtocol},
		{"a value for an id that was not used", get, (&wire.Value{}).Append(nil, 2), ErrProtocol},
		{"id 0", get, (&wire.StatusReply{Status: 1}).Append(nil, 0), ErrProtocol},
		{"events", get, (&wire.Events{}).Append(nil, 1), ErrProtocol},
		{"value of 7 bytes of payload", get, edit(value(wire.Value{})[:wire.HeaderSize+7], 16, 7), ErrProtocol},
		{"no more, but bytes are missing", get, value(wire.Value{Total: 8, Value: []byte("1234")}), ErrProtocol},
		{"more, but none are missing", get, value(wire.Value{Total: 4, Value: []byte("1234"), More: true}), ErrProtocol},
		{"beyond the node's limit", get, value(wire.Value{Total: 64<<20 + 1, More: true}), ErrProtocol},
		{"data first", get, data(wire.Data{Bytes: []byte("1")}), ErrProtocol},
		{"value twice", get, join(begin, begin), ErrProtocol},
		{"gap", get, join(begin, data(wire.Data{Offset: 5, Bytes: []byte("5678")})), ErrProtocol},
		{"data too long", get, join(begin, data(wire.Data{Offset: 4, Bytes: []byte("567890")})), ErrProtocol},
		{"data ends early", get, join(begin, data(wire.Data{Offset: 4, Bytes: []byte("567")})), ErrProtocol},
		{"statuses too few", exists, (&wire.Statuses{Statuses: make([]wire.Status, 1)}).Append(nil, 1), ErrProtocol},
		{"results too many", query, (&wire.Results{Results: make([]wire.Result, 3)}).Append(nil, 1), ErrProtocol},
		{"claims none", fetch, (&wire.Claims{}).Append(nil, 1), ErrProtocol},
		{"count beyond the keys", prefix, (&wire.Count{N: 3}).Append(nil, 1), ErrProtocol},
		{"pong of another", ping, (&wire.Pong{Bytes: []byte("12345678")}).Append(nil, 1), ErrProtocol},
		{"bad payload", query, edit((&wire.Results{Results: make([]wire.Result, 2)}).Append(nil, 1), wire.HeaderSize, 200), ErrProtocol},
		{"error for all", get, (&wire.ErrorReply{Code: wire.CodeBadFlags, Text: "so"}).Append(nil, 0), ErrRefused},
		{"error for all, of a client that came too often", get, (&wire.ErrorReply{Code: wire.CodeTooMany}).Append(nil, 0), ErrBusy},
		{"status in the middle", get, join(begin, (&wire.StatusReply{Status: wire.StatusAborted}).Append(nil, 1)), ErrAborted},
		{"error in the middle", get, join(begin, (&wire.ErrorReply{Code: wire.CodeInternal}).Append(nil, 1)), ErrRefused},
		{"end in the middle of a value", get, begin, ErrLost},
		{"end in the middle of a chunk", get, value(wire.Value{Total: 8, Value: []byte("12345678")})[:wire.HeaderSize+12], ErrLost},
		{"end in the middle of a header", get, begin[:10], ErrLost},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var asked atomic.Int32
			f := newFake(t, func(f *fake) {
				f.serve = func(p *peer) {
					p.next()
					asked.Add(1)
					p.send(tt.b)
					if tt.err != ErrLost {
						p.drain()
					}
				}
			})
			err := tt.call(f.dial(nil))
			var e *Error
			if !errors.Is(err, tt.err) || !errors.As(err, &e) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			if tt.err == ErrProtocol && e.Cause == nil {
				t.Errorf("no reason given: %v", e)
			}
			if n := asked.Load(); n != 1 && tt.name != "end in the middle of a header" {
				t.Errorf("asked %d times after an answer had begun", n)
			}
		})
	}
}

// What changes nothing is asked once more when the connection is found dead; what
// may have been executed is not, and says so.
func TestRetry(t *testing.T) {
	var asked atomic.Int32
	f := newFake(t, nil)
	f.serve = func(p *peer) {
		if _, _, ok := p.next(); ok && asked.Add(1) > 1 {
			p.r = 0 // again, from the start
			p.store()
		}
	}
	f.set("k", []byte("v"))
	key := []byte("k")
	for _, tt := range []struct {
		name  string
		again bool
		call  func(*Client) error
	}{
		{"get", true, func(cl *Client) error { _, _, err := cl.Get(soon(t), key, nil); return err }},
		{"exists", true, func(cl *Client) error { _, err := cl.Exists(soon(t), key); return err }},
		{"query", true, func(cl *Client) error { _, err := cl.Query(soon(t), [][]byte{key}); return err }},
		{"ping", true, func(cl *Client) error { _, err := cl.Ping(soon(t)); return err }},
		{"stats", true, func(cl *Client) error { _, err := cl.Stats(soon(t)); return err }},
		{"set", false, func(cl *Client) error { return cl.Set(soon(t), key, nil) }},
		{"delete", false, func(cl *Client) error { _, err := cl.Delete(soon(t), key); return err }},
		{"fetch", false, func(cl *Client) error { _, err := cl.Fetch(soon(t), [][]byte{key}); return err }},
		{"hint", false, func(cl *Client) error { _, err := cl.Hint(soon(t), "", 0, nil); return err }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			asked.Store(0)
			cl := f.dial(nil)
			err := tt.call(cl)
			if tt.again {
				if err != nil || asked.Load() != 2 {
					t.Errorf("asked %d times: %v", asked.Load(), err)
				}
				return
			}
			if e := want(t, err, ErrLost, tt.name); !e.MayHaveRun || asked.Load() != 1 {
				t.Errorf("asked %d times: %v", asked.Load(), e)
			}
		})
	}
}

// A node that loses every connection is not asked for ever.
func TestRetryOnce(t *testing.T) {
	f := newFake(t, func(f *fake) { f.serve = func(p *peer) { p.next() } })
	cl := f.dial(nil)
	_, _, err := cl.Get(soon(t), []byte("k"), nil)
	if e := want(t, err, ErrLost, "get"); !e.MayHaveRun || !errors.Is(err, io.EOF) {
		t.Errorf("error %v", err)
	}
	if n := f.connections(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
}

func TestReconnectStorm(t *testing.T) {
	f := newFake(t, func(f *fake) { f.secret = testSecret })
	f.set("k", []byte("v"))
	cl := f.dial(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := make(chan struct{})
	defer close(stop)
	for range 4 { // these see connections die in their hands
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				v, ok, err := cl.Get(background, []byte("k"), nil)
				if err == nil && (!ok || string(v) != "v") || err != nil && !errors.Is(err, ErrLost) {
					t.Errorf("Get: %q, %t, %v", v, ok, err)
					return
				}
			}
		}()
	}
	for i := range 200 {
		f.hangUp()
		ok := eventually(func() bool {
			_, err := cl.Ping(soon(t))
			if err != nil && !errors.Is(err, ErrLost) {
				t.Fatalf("Ping in round %d: %v", i, err)
			}
			return err == nil
		})
		if !ok {
			t.Fatalf("no connection in round %d", i)
		}
	}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if n := len(cl.conns); n > 3 {
		t.Errorf("the client knows of %d connections", n)
	}
}

// A node that was away is found again after pauses, and calls wait for these no
// longer than their context.
func TestNodeAway(t *testing.T) {
	f := newFake(t, nil)
	cl := f.dial(func(o *Options) { o.MaxBackoff = time.Second })
	f.close()
	for range 6 {
		_, err := cl.Ping(soon(t))
		if e := want(t, err, ErrLost, "ping"); e.MayHaveRun {
			t.Errorf("no connection, but %v", e)
		}
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(background, 10*time.Millisecond)
	defer cancel()
	cl.slots[0].mu.Lock()
	cl.slots[0].notBefore = time.Now().Add(time.Second)
	cl.slots[0].mu.Unlock()
	_, err := cl.Ping(ctx)
	want(t, err, ErrTimeout, "ping")
	if d := time.Since(start); d > 900*time.Millisecond {
		t.Errorf("waited for %v", d)
	}
	f.listen(f.addr())
	if _, err := cl.Ping(soon(t)); err != nil {
		t.Errorf("the node is back: %v", err)
	}
}

// After GOODBYE the node still gives the answers it owes; new calls go elsewhere.
func TestGoodbye(t *testing.T) {
	asked, gone := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	first.Store(true)
	f := newFake(t, nil)
	f.serve = func(p *peer) {
		if !first.Swap(false) {
			p.store()
			return
		}
		id, ok := p.want(wire.TypeStats, nil)
		if !ok {
			return
		}
		p.send((&wire.Goodbye{Reason: wire.CodeShutdown, Text: "restarting"}).Append(nil, 0))
		close(asked)
		<-gone
		p.send((&wire.StatsReply{Body: []byte("old")}).Append(nil, id))
		if _, _, ok := p.next(); ok {
			f.tb.Error("a frame after GOODBYE")
		}
	}
	cl := f.dial(nil)
	got := make(chan string)
	go func() {
		b, err := cl.Stats(soon(t))
		if err != nil {
			t.Error(err)
		}
		got <- string(b)
	}()
	<-asked
	old := cl.slots[0].conn.Load()
	if !eventually(func() bool { return !old.ok.Load() }) {
		t.Fatal("GOODBYE was not heard")
	}
	if _, err := cl.Ping(soon(t)); err != nil {
		t.Errorf("Ping after GOODBYE: %v", err)
	}
	close(gone)
	if b := <-got; b != "old" {
		t.Errorf("Stats before GOODBYE: %q", b)
	}
	<-old.gone // it has nothing more to wait for
}

// What is not answered because the node said goodbye has its reason in the error.
func TestGoodbyeReason(t *testing.T) {
	f := newFake(t, func(f *fake) {
		f.serve = func(p *peer) {
			p.next()
			p.send((&wire.Goodbye{Reason: wire.CodeShutdown, Text: "restarting"}).Append(nil, 0))
		}
	})
	cl := f.dial(nil)
	if e := want(t, cl.Set(soon(t), []byte("k"), nil), ErrLost, "set"); e.Code != wire.CodeShutdown || e.Text != "restarting" || !e.MayHaveRun {
		t.Errorf("error %#v", e)
	}
}

// A connection on which nothing comes any more is left after a while.
func TestQuietConnection(t *testing.T) {
	var deaf atomic.Bool
	deaf.Store(true)
	f := newFake(t, nil)
	f.serve = func(p *peer) {
		if deaf.Load() {
			p.drain()
		} else {
			p.store()
		}
	}
	cl := f.dial(func(o *Options) { o.RequestTimeout = 20 * time.Millisecond })
	_, err := cl.Ping(background)
	want(t, err, ErrTimeout, "ping")
	deaf.Store(false)
	if !eventually(func() bool { _, err := cl.Ping(background); return err == nil }) {
		t.Fatal("the client stays with the deaf connection")
	}
	if n := f.connections(); n != 2 {
		t.Errorf("%d connections", n)
	}
}

// Requests beyond what the node allows wait for their turn, and for no longer than
// their context.
func TestInFlight(t *testing.T) {
	asked, release := make(chan struct{}, 1), make(chan struct{})
	f := newFake(t, func(f *fake) {
		f.challenge.MaxInFlight = 1
		f.serve = func(p *peer) {
			for {
				id, ok := p.want(wire.TypeStats, nil)
				if !ok {
					return
				}
				asked <- struct{}{}
				<-release
				p.send((&wire.StatsReply{}).Append(nil, id))
			}
		}
	})
	cl := f.dial(nil)
	errs := make(chan error, 2)
	go func() { _, err := cl.Stats(soon(t)); errs <- err }()
	<-asked
	ctx, cancel := context.WithTimeout(background, 10*time.Millisecond)
	defer cancel()
	_, err := cl.Ping(ctx)
	if e := want(t, err, ErrTimeout, "ping"); e.MayHaveRun {
		t.Errorf("was never sent: %v", e)
	}
	go func() { _, err := cl.Stats(soon(t)); errs <- err }()
	close(release)
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}
