package zmtp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// within fails with all stacks if f takes longer than d.
func within(t testing.TB, d time.Duration, what string, f func()) {
	t.Helper()
	timer := time.AfterFunc(d, func() {
		buf := make([]byte, 1<<20)
		panic(fmt.Sprintf("%s takes longer than %v\n%s", what, d, buf[:runtime.Stack(buf, true)]))
	})
	defer timer.Stop()
	f()
}

// eventually waits until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func newPub(t testing.TB, endpoint string, opt PubOptions) (*Pub, string) {
	t.Helper()
	if opt.Linger == 0 {
		opt.Linger = -1
	}
	p := NewPub(opt)
	t.Cleanup(func() { within(t, 5*time.Second, "Close", func() { p.Close() }) })
	at, err := p.Bind(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	return p, at
}

func dial(t testing.TB, endpoint string, kind Kind) *Conn {
	t.Helper()
	c, err := Dial(t.Context(), endpoint, kind, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// subscribe returns a connection that the Pub knows to be subscribed.
func subscribe(t testing.TB, p *Pub, endpoint string, topics ...string) *Conn {
	t.Helper()
	before := p.Subscribers()
	c := dial(t, endpoint, SUB)
	for _, topic := range topics {
		if err := c.Subscribe(topic); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "subscribed", func() bool { return p.Subscribers() == before+1 })
	return c
}

func read(t testing.TB, c *Conn) []string {
	t.Helper()
	var m Message
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if err := c.Read(&m); err != nil {
		t.Fatal(err)
	}
	var s []string
	for _, f := range m.Frames {
		s = append(s, string(f))
	}
	return s
}

func send(p *Pub, frames ...string) int {
	var b [][]byte
	for _, f := range frames {
		b = append(b, []byte(f))
	}
	return p.Send(b[0], AppendMessage(nil, b...))
}

func TestPub(t *testing.T) {
	for _, endpoint := range []string{"tcp://127.0.0.1:*", "ipc://" + filepath.Join(t.TempDir(), "s"), "ipc://@kvcr-zmtp-test", "inproc://pub"} {
		t.Run(endpoint, func(t *testing.T) {
			p, at := newPub(t, endpoint, PubOptions{})
			all := subscribe(t, p, at, "")
			some := subscribe(t, p, at, "kv-", "x")
			if n := send(p, "metrics", "1", ""); n != 1 {
				t.Errorf("sent to %d, want 1", n)
			}
			long := strings.Repeat("long", 50_000)
			if n := send(p, "kv-events", "2", long); n != 2 {
				t.Errorf("sent to %d, want 2", n)
			}
			if got := read(t, all); !slices.Equal(got, []string{"metrics", "1", ""}) {
				t.Errorf("got %q", got)
			}
			for _, c := range []*Conn{all, some} {
				if got := read(t, c); !slices.Equal(got, []string{"kv-events", "2", long}) {
					t.Errorf("got %.100q", got)
				}
			}
		})
	}
}

// Both forms of a subscription count, each as often as it is cancelled.
func TestSubscriptions(t *testing.T) {
	p, at := newPub(t, "tcp://127.0.0.1:0", PubOptions{})
	c := subscribe(t, p, at, "a")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(c.Write(AppendFrame(nil, []byte("\x01a"), false)))
	must(c.Write(appendCommand(nil, "CANCEL", []byte("a"))))
	must(c.Write(AppendFrame(nil, []byte("\x00never"), false)))
	must(c.Write(appendCommand(nil, "SUBSCRIBE", []byte("b"))))
	eventually(t, "b is subscribed to", func() bool { return send(p, "b") == 1 })
	if send(p, "a") != 1 {
		t.Error("one of two subscriptions was cancelled, and both are gone")
	}
	must(c.Write(AppendFrame(nil, []byte("\x00a"), false)))
	eventually(t, "a is cancelled", func() bool { return send(p, "a") == 0 })

	for i := range maxTopics + 1 {
		if c.Write(appendCommand(nil, "SUBSCRIBE", fmt.Appendf(nil, "topic %d", i))) != nil {
			break
		}
	}
	eventually(t, "who subscribes to too much is gone", func() bool { return p.Subscribers() == 0 })
}

// A subscriber that reads nothing loses messages; its neighbour loses none, and Send
// waits for neither.
func TestSlowSubscriber(t *testing.T) {
	p, at := newPub(t, "tcp://127.0.0.1:0", PubOptions{Queue: 50})
	subscribe(t, p, at, "")
	good := subscribe(t, p, at, "")
	const n = 2000
	body := strings.Repeat("x", 20_000)
	within(t, 20*time.Second, "sending", func() {
		for i := range n {
			send(p, "", fmt.Sprint(i), body)
			if got := read(t, good); got[1] != fmt.Sprint(i) {
				t.Fatalf("got message %s, want %d", got[1], i)
			}
		}
	})
	if d := p.Dropped(); d == 0 || d > n {
		t.Errorf("%d dropped, want some of the slow one's", d)
	}
}

func TestQueueBytes(t *testing.T) {
	p, at := newPub(t, "inproc://bytes", PubOptions{QueueBytes: 1000}) // a pipe buffers nothing
	c := subscribe(t, p, at, "")
	const n = 100
	for range n {
		send(p, "", strings.Repeat("x", 300))
	}
	if d := p.Dropped(); d < n-10 {
		t.Errorf("%d of %d dropped, want all but three in the queue and those that were on their way", d, n)
	}
	send(p, "", strings.Repeat("x", 300))
	read(t, c)
}

// Close waits for what is queued, but not for those who do not take it.
func TestLinger(t *testing.T) {
	p := NewPub(PubOptions{Linger: 10 * time.Second})
	at, err := p.Bind("inproc://linger")
	if err != nil {
		t.Fatal(err)
	}
	c := subscribe(t, p, at, "")
	for i := range 100 {
		send(p, "", fmt.Sprint(i))
	}
	done := make(chan struct{})
	go func() { defer close(done); p.Close() }()
	for i := range 100 {
		if got := read(t, c); got[1] != fmt.Sprint(i) {
			t.Fatalf("got %q, want %d", got, i)
		}
	}
	within(t, 5*time.Second, "Close", func() { <-done })
	if err := c.Read(new(Message)); err != io.EOF {
		t.Errorf("after Close: %v, want EOF", err)
	}
	if _, err := p.Bind("inproc://linger"); err != ErrClosed {
		t.Errorf("Bind after Close: %v", err)
	}

	p = NewPub(PubOptions{Linger: 50 * time.Millisecond})
	if at, err = p.Bind("inproc://linger"); err != nil {
		t.Fatal(err)
	}
	subscribe(t, p, at, "")
	send(p, "", "never read")
	within(t, 5*time.Second, "Close", func() { p.Close() })
}

// A Pub that connects finds its subscriber whenever that listens.
func TestConnect(t *testing.T) {
	path := "ipc://" + filepath.Join(t.TempDir(), "sub")
	p := NewPub(PubOptions{Linger: -1, Redial: time.Millisecond})
	defer p.Close()
	if err := p.Connect("tcp://nowhere"); !errors.Is(err, ErrEndpoint) {
		t.Errorf("Connect to no port: %v", err)
	}
	if err := p.Connect(path); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		got := make(chan []string, 10)
		l, err := Listen(path, SUB, Options{}, func(c *Conn) {
			c.Subscribe("t")
			for m := new(Message); c.Read(m) == nil; {
				got <- []string{string(m.Frames[0]), string(m.Frames[1])}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "connected", func() bool { return send(p, "topic", "hello") == 1 })
		if m := <-got; m[1] != "hello" {
			t.Errorf("got %q", m)
		}
		l.Close()
		eventually(t, "gone", func() bool { return p.Subscribers() == 0 })
	}
}

// A ROUTER answers a DEALER.
func TestRequest(t *testing.T) {
	l, err := Listen("tcp://127.0.0.1:0", ROUTER, Options{}, func(c *Conn) {
		for m := new(Message); c.Read(m) == nil; {
			c.Write(AppendMessage(nil, m.Frames[0], []byte("answer to"), m.Frames[1]))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := dial(t, l.Endpoint(), DEALER)
	for _, q := range []string{"first", "", strings.Repeat("y", 300)} {
		if err := c.Write(AppendMessage(nil, nil, []byte(q))); err != nil {
			t.Fatal(err)
		}
		if got := read(t, c); !slices.Equal(got, []string{"", "answer to", q}) {
			t.Errorf("got %q", got)
		}
	}
	if _, err := Dial(t.Context(), l.Endpoint(), SUB, Options{}); !errors.Is(err, ErrProtocol) {
		t.Errorf("a SUB at a ROUTER: %v, want ErrProtocol", err)
	}
}

// raw connects without a handshake.
func raw(t testing.TB, endpoint string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Whatever strangers do, others connect and get their messages.
func TestStrangers(t *testing.T) {
	p, at := newPub(t, "tcp://127.0.0.1:0", PubOptions{Options: Options{Handshake: 200 * time.Millisecond}})
	hello := appendCommand(greeting(), "READY", ready(SUB, nil))
	change := func(at int, b byte) []byte {
		g := slices.Clone(hello)
		g[at] = b
		return g
	}
	huge := slices.Concat(hello, []byte{flagLong, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	for name, say := range map[string][]byte{
		"nothing":        nil,
		"half a hello":   hello[:30],
		"http":           []byte("GET / HTTP/1.1\r\nHost: kvcr\r\n\r\n" + strings.Repeat("x", 100)),
		"version 2":      change(10, 2),
		"curve":          change(12, 'C'),
		"no ready":       append(greeting(), AppendFrame(nil, []byte("hi"), false)...),
		"unknown first":  appendCommand(greeting(), "HELLO", nil),
		"refusal":        appendCommand(greeting(), "ERROR", []byte("\x02no")),
		"another pub":    appendCommand(greeting(), "READY", ready(PUB, nil)),
		"no kind":        appendCommand(greeting(), "READY", nil),
		"short property": appendCommand(greeting(), "READY", []byte("\x0bSocket-Type\x00\x00\x00\x04SU")),
		"short name":     appendCommand(greeting(), "READY", []byte("\xffSo")),
		"no name":        append(greeting(), flagCommand, 0),
		"huge frame":     huge,
		"huge greeting":  append(greeting(), flagLong|flagCommand, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
		"bad flags":      slices.Concat(hello, []byte{0x80, 0}),
		"endless":        slices.Concat(hello, bytes.Repeat([]byte{flagMore, 0}, 1000)),
		"command within": slices.Concat(hello, []byte{flagMore, 0}, appendCommand(nil, "PING", []byte{0, 0})),
		"long ping":      slices.Concat(hello, appendCommand(nil, "PING", make([]byte, 100))),
		"bad command":    slices.Concat(hello, []byte{flagCommand, 2, 9, 'P'}),
	} {
		c := raw(t, at)
		if _, err := c.Write(say); err != nil {
			t.Fatal(name, err)
		}
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		gone := make(chan error, 1)
		go func() {
			_, err := io.Copy(io.Discard, c)
			gone <- err
		}()
		defer func() {
			if err := <-gone; err != nil && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%s: %v, want to be disconnected", name, err)
			}
		}()
		good := subscribe(t, p, at, "")
		send(p, "", name)
		if got := read(t, good); got[1] != name {
			t.Errorf("%s: the good one got %q", name, got)
		}
		good.Close()
		eventually(t, "the good one is gone", func() bool { return p.Subscribers() == 0 })
	}
}

func TestTooManyConns(t *testing.T) {
	l, err := Listen("tcp://127.0.0.1:0", ROUTER, Options{MaxConns: 2}, func(c *Conn) { c.Read(new(Message)) })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, b := dial(t, l.Endpoint(), DEALER), dial(t, l.Endpoint(), DEALER)
	if _, err := Dial(t.Context(), l.Endpoint(), DEALER, Options{}); err == nil {
		t.Error("a third connection was let in")
	}
	if l.Refused() == 0 {
		t.Error("no refusal counted")
	}
	a.Close()
	b.Close()
	eventually(t, "room again", func() bool {
		c, err := Dial(t.Context(), l.Endpoint(), DEALER, Options{})
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

func TestPing(t *testing.T) {
	p, at := newPub(t, "tcp://127.0.0.1:0", PubOptions{})
	c := subscribe(t, p, at, "")
	c.Write(appendCommand(nil, "PING", []byte{0, 10, 'h', 'i'}))
	var m Message
	flags, err := c.frame(&m, 100)
	if err != nil || flags != flagCommand || string(m.buf) != "\x04PONGhi" {
		t.Errorf("PING is answered by %#x %q, %v", flags, m.buf, err)
	}
}

func TestMaxMessage(t *testing.T) {
	p, at := newPub(t, "tcp://127.0.0.1:0", PubOptions{})
	c, err := Dial(t.Context(), at, SUB, Options{MaxMessage: 1000})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Subscribe("")
	eventually(t, "subscribed", func() bool { return p.Subscribers() == 1 })
	send(p, strings.Repeat("a", 500), strings.Repeat("b", 500))
	send(p, strings.Repeat("a", 500), strings.Repeat("b", 501))
	read(t, c)
	if err := c.Read(new(Message)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("1001 bytes: %v, want ErrTooLarge", err)
	}
}

// An announced length costs nothing before its bytes are there.
func TestAnnounced(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	head := binary.BigEndian.AppendUint64([]byte{flagLong}, 50<<20)
	go func() {
		theirs.Write(append(head, make([]byte, 100)...))
		theirs.Close()
	}()
	c := newConn(ours, SUB, Options{}.withDefaults())
	var m Message
	if err := c.Read(&m); err != io.ErrUnexpectedEOF || cap(m.buf) > 1<<20 {
		t.Errorf("%v with a buffer of %d bytes", err, cap(m.buf))
	}
}

func TestEndpoints(t *testing.T) {
	for in, want := range map[string]string{
		"tcp://*:5557":         "tcp :5557",
		"tcp://0.0.0.0:*":      "tcp 0.0.0.0:0",
		"tcp://[::]:80":        "tcp [::]:80",
		"tcp://:::80":          "tcp [::]:80",
		"tcp://host.name:80":   "tcp host.name:80",
		"ipc:///tmp/x":         "unix /tmp/x",
		"ipc://@abstract":      "unix @abstract",
		"inproc://any thing":   "inproc any thing",
		"tcp://host":           "",
		"tcp://host:65536":     "",
		"tcp://host:080":       "",
		"tcp://host:-1":        "",
		"tcp://host:http":      "",
		"udp://host:80":        "",
		"host:80":              "",
		"ipc://":               "",
		"":                     "",
		"tcp://a:b:80":         "",
		"tcp://127.0.0.1:5557": "tcp 127.0.0.1:5557",
	} {
		network, address, err := split(in)
		if got := strings.TrimSpace(network + " " + address); got != want || (err != nil) != (want == "") || err != nil && !errors.Is(err, ErrEndpoint) {
			t.Errorf("split(%q) = %q, %v, want %q", in, got, err, want)
		}
	}
}

// The socket file of a dead process is replaced, that of a living one is not, and
// nothing else is.
func TestStaleSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	if _, err := Listen("ipc://"+path, PUB, Options{}, nil); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("somebody listens: %v, want EADDRINUSE", err)
	}
	ln.Close()
	l, err := Listen("ipc://"+path, PUB, Options{}, nil)
	if err != nil {
		t.Fatalf("nobody listens: %v", err)
	}
	l.Close()
	if _, err := Listen("ipc://"+t.TempDir(), PUB, Options{}, nil); err == nil {
		t.Error("a directory was replaced")
	}
}

func TestDialEnds(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close() // accepts, and says nothing
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	within(t, 5*time.Second, "Dial", func() {
		if _, err := Dial(ctx, "tcp://"+ln.Addr().String(), SUB, Options{}); err == nil {
			t.Error("connected to nobody")
		}
		if _, err := Dial(t.Context(), "tcp://"+ln.Addr().String(), SUB, Options{Handshake: 20 * time.Millisecond}); err == nil {
			t.Error("connected to nobody")
		}
		if _, err := Dial(t.Context(), "inproc://nobody", SUB, Options{}); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("inproc without a listener: %v", err)
		}
	})
}

// reading is a connection whose peer has sent all that it will.
type reading struct {
	net.Conn
	r io.Reader
}

func (r reading) Read(b []byte) (int, error)  { return r.r.Read(b) }
func (r reading) Write(b []byte) (int, error) { return len(b), nil }
func (r reading) Close() error                { return nil }

// FuzzRead: no bytes of a peer panic, a message is no longer than its bytes, and what
// was read is written as the same frames.
func FuzzRead(f *testing.F) {
	f.Add(AppendMessage(nil, nil, []byte("12345678"), bytes.Repeat([]byte("p"), 300)))
	f.Add(appendCommand(AppendFrame(nil, []byte("\x01topic"), false), "SUBSCRIBE", []byte("kv")))
	f.Add(appendCommand(nil, "PING", []byte{0, 1, 2, 3}))
	f.Add([]byte{flagLong, 0, 0, 0, 0, 0, 0, 0, 1, 'x'})
	f.Add([]byte{flagLong, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Add(appendCommand(nil, "READY", ready(PUB, []byte("me"))))
	f.Add(appendCommand(nil, strings.Repeat("0", 255), nil))
	f.Fuzz(func(t *testing.T, in []byte) {
		if name, body, err := cutCommand(in); err == nil && name == "READY" {
			if kind, err := peerKind(body); err == nil && kind == "" {
				t.Error("a peer without a kind")
			}
		}
		c := newConn(reading{r: bytes.NewReader(in)}, PUB, Options{MaxMessage: 1 << 16}.withDefaults())
		var m Message
		for c.Read(&m) == nil {
			size := 0
			for _, f := range m.Frames {
				size += len(f)
			}
			if len(m.Frames) == 0 || size > len(in)+1 {
				t.Fatalf("%d frames of %d bytes from %d", len(m.Frames), size, len(in))
			}
			want := make([][]byte, 0, len(m.Frames))
			for _, f := range m.Frames {
				want = append(want, slices.Clone(f))
			}
			again := newConn(reading{r: bytes.NewReader(AppendMessage(nil, want...))}, SUB, Options{}.withDefaults())
			var m2 Message
			if err := again.Read(&m2); err != nil || !slices.EqualFunc(m2.Frames, want, bytes.Equal) {
				t.Fatalf("%q reads back as %q, %v", want, m2.Frames, err)
			}
		}
	})
}
