package server

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
)

// start serves a small engine on a free port and checks at the end that nothing
// is left: no claim, no session.
func start(t *testing.T, edit func(*Options)) *Server {
	t.Helper()
	return startWith(t, kvcr.Config{Capacity: 64 << 20, Namespaces: []kvcr.Namespace{{Name: "default", MaxValue: 8 << 20}}}, edit)
}

func startWith(t *testing.T, cfg kvcr.Config, edit func(*Options)) *Server {
	t.Helper()
	e, err := kvcr.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	opt := Options{Engine: e, RESP: []string{"127.0.0.1:0"}, Loops: 2}
	if edit != nil {
		edit(&opt)
	}
	s, err := Start(opt)
	if err != nil {
		e.Close()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		s.EndClaims()
		if n := e.Claims(); n != 0 {
			t.Errorf("%d claims left", n)
		}
		if n := s.conns.Load(); n != 0 {
			t.Errorf("%d sessions left", n)
		}
		if err := e.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// dial connects to the first RESP address.
func dial(t *testing.T, s *Server) net.Conn {
	t.Helper()
	resp, _ := s.Addrs()
	c, err := net.Dial(resp[0].Network(), resp[0].String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

// ask sends a request and compares the whole answer.
func ask(t *testing.T, c net.Conn, request, want string) {
	t.Helper()
	if _, err := c.Write([]byte(request)); err != nil {
		t.Fatalf("%.60q: %v", request, err)
	}
	expect(t, c, request, want)
}

func expect(t *testing.T, c net.Conn, what, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("%.60q: answer %.200q, %v; want %.200q", what, got[:n], err, want)
	}
}

func readFull(c net.Conn, b []byte) (int, error) { return io.ReadFull(c, b) }

func cmd(args ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b.String()
}

func bulk(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }

func TestCommands(t *testing.T) {
	s := start(t, func(o *Options) { o.AllowFlush = true })
	c := dial(t, s)
	big := strings.Repeat("0123456789abcdef", 100<<10/16)
	for _, tt := range []struct{ request, want string }{
		{cmd("PING"), "+PONG\r\n"},
		{"PING\r\n", "+PONG\r\n"},
		{cmd("PING", "hi"), bulk("hi")},
		{cmd("ECHO", "a b"), bulk("a b")},
		{cmd("GET", "none"), "$-1\r\n"},
		{cmd("SET", "k", "v1"), "+OK\r\n"},
		{cmd("get", "k"), bulk("v1")},
		{cmd("SET", "k", "value two"), "+OK\r\n"},
		{cmd("GET", "k"), bulk("value two")},
		{cmd("SET", "k", ""), "+OK\r\n"},
		{cmd("GET", "k"), bulk("")},
		{cmd("SET", "k", "x", "NX"), "$-1\r\n"},
		{cmd("SET", "n", "x", "NX"), "+OK\r\n"},
		{cmd("SET", "m", "x", "XX"), "$-1\r\n"},
		{cmd("SET", "n", "y", "xx"), "+OK\r\n"},
		{cmd("GET", "n"), bulk("y")},
		{cmd("SETNX", "n", "z"), ":0\r\n"},
		{cmd("SETNX", "o", "z"), ":1\r\n"},
		{cmd("SET", "k", "v", "EX", "100"), "+OK\r\n"},
		{cmd("SET", "k", "v", "EX", "0"), "-ERR invalid expire time in 'set' command\r\n"},
		{cmd("SET", "k", "v", "EX"), "-ERR syntax error\r\n"},
		{cmd("SET", "k", "v", "NX", "XX"), "-ERR syntax error\r\n"},
		{cmd("SET", "k", "v", "BOGUS"), "-ERR syntax error\r\n"},
		{cmd("SETEX", "k", "100", "w"), "+OK\r\n"},
		{cmd("PSETEX", "k", "100000", "w"), "+OK\r\n"},
		{cmd("SET", "big", big), "+OK\r\n"},
		{cmd("GET", "big"), bulk(big)},
		{cmd("STRLEN", "big"), fmt.Sprintf(":%d\r\n", len(big))},
		{cmd("STRLEN", "none"), ":0\r\n"},
		{cmd("GETRANGE", "big", "2", "5"), bulk("2345")},
		{cmd("GETRANGE", "big", "-3", "-1"), bulk("def")},
		{cmd("GETRANGE", "big", "5", "2"), bulk("")},
		{cmd("GETRANGE", "big", "0", "49999"), bulk(big[:50000])},
		{cmd("GETRANGE", "big", "x", "2"), "-ERR value is not an integer or out of range\r\n"},
		{cmd("SET", "big", big, "NX"), "$-1\r\n"},
		{cmd("SET", "big2", big, "NX", "PX", "100000"), "+OK\r\n"},
		{cmd("GET", "big2"), bulk(big)},
		{cmd("SET", "big", big, "BOGUS"), "-ERR syntax error\r\n"},
		{cmd("MSET", "a", "1", "b", "2"), "+OK\r\n"},
		{cmd("MSET", "a", "1", "b"), "-ERR wrong number of arguments for 'mset' command\r\n"},
		{cmd("MGET", "a", "none", "b", "big"), "*4\r\n" + bulk("1") + "$-1\r\n" + bulk("2") + bulk(big)},
		{cmd("EXISTS", "a", "none", "b", "a"), ":3\r\n"},
		{cmd("DEL", "a", "none", "b"), ":2\r\n"},
		{cmd("UNLINK", "a"), ":0\r\n"},
		{cmd("SELECT", "0"), "+OK\r\n"},
		{cmd("SELECT", "1"), "-ERR DB index is out of range\r\n"},
		{cmd("CLIENT", "SETINFO", "LIB-NAME", "x"), "+OK\r\n"},
		{cmd("CLIENT", "SETNAME", "me"), "+OK\r\n"},
		{cmd("CLIENT", "GETNAME"), bulk("me")},
		{cmd("CLIENT", "KILL"), "-ERR unknown subcommand or wrong number of arguments for 'client|KILL'\r\n"},
		{cmd("COMMAND"), "*0\r\n"},
		{cmd("CONFIG", "GET", "save"), "*0\r\n"},
		{cmd("NONSENSE", "x"), "-ERR unknown command 'NONSENSE'\r\n"},
		{cmd("\r\n$-1\x00"), "-ERR unknown command '??$-1?'\r\n"},
		{cmd("GET"), "-ERR wrong number of arguments for 'get' command\r\n"},
		{cmd("GET", "a", "b"), "-ERR wrong number of arguments for 'get' command\r\n"},
		{cmd("GET", ""), "-ERR key of 0 bytes: must be 1 to 1024\r\n"},
		{cmd("GET", strings.Repeat("k", 1025)), "-ERR key of 1025 bytes: must be 1 to 1024\r\n"},
		{cmd("AUTH", "x"), "-ERR Client sent AUTH, but no password is set\r\n"},
		{cmd("HELLO", "4"), "-NOPROTO unsupported protocol version\r\n"},
		{cmd("DBSIZE"), ":5\r\n"},
		{cmd("FLUSHALL"), "+OK\r\n"},
		{cmd("DBSIZE"), ":0\r\n"},
		{cmd("QUIT"), "+OK\r\n"},
	} {
		ask(t, c, tt.request, tt.want)
	}
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("after QUIT: %v, want the end", err)
	}
}

// One byte at a time, and all in one piece, give the same answers.
func TestCuts(t *testing.T) {
	s := start(t, nil)
	big := strings.Repeat("x", 20000)
	request := cmd("SET", "k", "v") + cmd("GET", "k") + cmd("SET", "big", big, "EX", "100") + cmd("GET", "big") + "PING\r\n"
	want := "+OK\r\n" + bulk("v") + "+OK\r\n" + bulk(big) + "+PONG\r\n"
	c := dial(t, s)
	ask(t, c, request, want)
	c.(*net.TCPConn).SetNoDelay(true)
	for i := range request {
		if _, err := c.Write([]byte{request[i]}); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, c, "byte by byte", want)
}

// A value over the maximum is refused by name, wherever it is met, and the
// connection ends after the answer.
func TestTooLarge(t *testing.T) {
	s := start(t, nil)
	c := dial(t, s)
	ask(t, c, cmd("SET", "k", strings.Repeat("x", 9<<20)), "-ERR value of 9437184 bytes is too large: at most 8388608\r\n")
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("afterwards: %v, want the end", err)
	}
}

// A client that half-closes after its request gets the whole answer (M3), also
// when that is larger than any socket buffer.
func TestHalfClose(t *testing.T) {
	s := start(t, nil)
	c := dial(t, s)
	big := strings.Repeat("y", 8<<20)
	ask(t, c, cmd("SET", "big", big), "+OK\r\n")
	if _, err := c.Write([]byte(cmd("GET", "big") + cmd("GET", "big"))); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // the server has seen the end by now
	got, err := io.ReadAll(c)
	if want := bulk(big) + bulk(big); err != nil || !bytes.Equal(got, []byte(want)) {
		t.Errorf("%d bytes, %v; want %d", len(got), err, len(want))
	}
}

// A client that asks for a lot and does not read is not read from beyond the cap
// (M2); others on its loop go on; what it asked for comes when it reads.
func TestSlowReader(t *testing.T) {
	s := start(t, func(o *Options) { o.Loops = 1; o.OutboundCap = 1 << 20 })
	c := dial(t, s)
	value := strings.Repeat("z", 1<<20)
	ask(t, c, cmd("SET", "k", value), "+OK\r\n")
	const gets = 300
	wrote := make(chan error, 1)
	go func() {
		_, err := c.Write([]byte(strings.Repeat(cmd("GET", "k"), gets)))
		wrote <- err
	}()
	other := dial(t, s)
	for range 100 {
		ask(t, other, cmd("PING"), "+PONG\r\n")
		time.Sleep(time.Millisecond)
	}
	s.mu.Lock()
	for ss := range s.sessions {
		ss.mu.Lock()
		// One turn may go over the cap by what it gathers before it looks, and one value.
		if ss.queued > 1<<20+flushAt+2<<20 {
			t.Errorf("%d bytes wait for one connection", ss.queued)
		}
		ss.mu.Unlock()
	}
	s.mu.Unlock()
	r := bufio.NewReaderSize(c, 1<<16)
	want := []byte(bulk(value))
	got := make([]byte, len(want))
	for i := range gets {
		if _, err := io.ReadFull(r, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("answer %d: %v", i, err)
		}
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	ask(t, c, cmd("PING"), "+PONG\r\n") // it lives on
	if n := s.Stats().SlowConns; n != 1 {
		t.Errorf("%d connections left their loop, want 1", n)
	}
}

// A client that announces a value and dies leaves nothing behind (M1, A2).
func TestDiesInTheMiddle(t *testing.T) {
	s := start(t, nil)
	for cut := range 40 {
		c := dial(t, s)
		request := cmd("SET", "key", strings.Repeat("v", 30000))
		if _, err := c.Write([]byte(request[:cut*len(request)/40])); err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	c := dial(t, s)
	ask(t, c, cmd("GET", "key"), "$-1\r\n")
}

// An idle connection, and one that does not authenticate, are closed.
func TestTimeouts(t *testing.T) {
	s := start(t, func(o *Options) {
		o.IdleTimeout, o.HandshakeTimeout = 700*time.Millisecond, 700*time.Millisecond
		o.Password = "secret"
	})
	begin := time.Now()
	idle, late := dial(t, s), dial(t, s)
	ask(t, idle, cmd("AUTH", "secret"), "+OK\r\n")
	for _, c := range []net.Conn{idle, late} {
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("an answer to nothing")
		}
	}
	if d := time.Since(begin); d < 600*time.Millisecond || d > 5*time.Second {
		t.Errorf("closed after %v", d)
	}
}

func TestPassword(t *testing.T) {
	s := start(t, func(o *Options) { o.Password = "secret" })
	c := dial(t, s)
	ask(t, c, cmd("GET", "k"), "-NOAUTH Authentication required.\r\n")
	ask(t, c, cmd("AUTH", "wrong"), "-WRONGPASS invalid username-password pair or user is disabled.\r\n")
	ask(t, c, cmd("AUTH", "other", "secret"), "-WRONGPASS invalid username-password pair or user is disabled.\r\n")
	ask(t, c, cmd("AUTH", "default", "secret"), "+OK\r\n")
	ask(t, c, cmd("SET", "k", strings.Repeat("v", 5000)), "+OK\r\n")
	c = dial(t, s)
	ask(t, c, cmd("HELLO", "3", "AUTH", "default", "secret", "SETNAME", "me"), "%7\r\n"+bulk("server")+bulk("kvcr"))
	c = dial(t, s)
	ask(t, c, "*1\r\n$5000\r\n", "-ERR Protocol error: invalid bulk length\r\n")
	c = dial(t, s)
	for range 3 {
		ask(t, c, cmd("AUTH", "guess"), "-WRONGPASS invalid username-password pair or user is disabled.\r\n")
	}
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("after three guesses: %v, want the end", err)
	}
}

// A key with a time to live goes, and one that was written anew stays.
func TestExpiry(t *testing.T) {
	s := start(t, nil)
	c := dial(t, s)
	for _, size := range []int{10, 20000} {
		v := strings.Repeat("v", size)
		ask(t, c, cmd("SET", "k", v, "PX", "300"), "+OK\r\n")
		ask(t, c, cmd("SET", "l", v, "PX", "300"), "+OK\r\n")
		ask(t, c, cmd("SET", "l", v), "+OK\r\n")
		ask(t, c, cmd("EXISTS", "k", "l"), ":2\r\n")
		time.Sleep(time.Second)
		ask(t, c, cmd("EXISTS", "k"), ":0\r\n")
		ask(t, c, cmd("EXISTS", "l"), ":1\r\n")
	}
}

// Commands that arrive together run in their order, whatever is read ahead.
func TestPipelineOrder(t *testing.T) {
	s := start(t, nil)
	c := dial(t, s)
	var request, want strings.Builder
	for i := range 200 {
		v := fmt.Sprint("value ", i)
		request.WriteString(cmd("SET", "k", v) + cmd("GET", "k"))
		want.WriteString("+OK\r\n" + bulk(v))
		switch i % 7 {
		case 1:
			request.WriteString(cmd("DEL", "k") + cmd("GET", "k"))
			want.WriteString(":1\r\n$-1\r\n")
		case 3:
			request.WriteString(cmd("SET", "k", "nx", "NX") + cmd("get", "k") + cmd("set", "k", "") + cmd("GET", ""))
			want.WriteString("$-1\r\n" + bulk(v) + "+OK\r\n-ERR key of 0 bytes: must be 1 to 1024\r\n")
		case 5:
			large := strings.Repeat("L", 20000)
			request.WriteString(cmd("SET", "k", large) + cmd("GET", "k"))
			want.WriteString("+OK\r\n" + bulk(large))
		}
	}
	ask(t, c, request.String(), want.String())
	// A SET that cannot be ends the connection, and nothing behind it is run.
	ask(t, c, cmd("SET", "other", "1")+cmd("SET", "", "x")+cmd("SET", "other", "2"), "+OK\r\n-ERR key of 0 bytes: must be 1 to 1024\r\n")
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("afterwards: %v, want the end", err)
	}
	ask(t, dial(t, s), cmd("GET", "other"), bulk("1"))
}

// Profiles tell what a goroutine is for.
func TestGoroutinesHaveRoles(t *testing.T) {
	s := start(t, nil)
	c := dial(t, s)
	ask(t, c, cmd("SET", "k", strings.Repeat("v", 8<<20)), "+OK\r\n")
	for range 20 { // more than the kernel takes
		if _, err := c.Write([]byte(cmd("GET", "k"))); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{`"role":"accept"`, `"role":"timeouts"`, `"role":"event-loop"`, `"loop":"0"`, `"role":"writer"`, `"role":"owner"`, `"shard":"default/0"`}
	for range 100 {
		var b bytes.Buffer
		if err := pprof.Lookup("goroutine").WriteTo(&b, 1); err != nil {
			t.Fatal(err)
		}
		missing := ""
		for _, w := range want {
			if !strings.Contains(b.String(), w) {
				missing = w
			}
		}
		if missing == "" {
			return
		}
		if time.Sleep(20 * time.Millisecond); s.Draining() {
			t.Fatal(missing)
		}
	}
	t.Error("not every role shows in the profile of goroutines")
}

// Commands and the errors they end in are counted by kind.
func TestCounts(t *testing.T) {
	s := start(t, nil)
	c := dial(t, s)
	ask(t, c, cmd("SET", "k", "v")+cmd("GET", "k")+cmd("GET", "none")+cmd("GET", ""), "+OK\r\n"+bulk("v")+"$-1\r\n-ERR key of 0 bytes: must be 1 to 1024\r\n")
	ask(t, c, cmd("NONSENSE"), "-ERR unknown command 'NONSENSE'\r\n")
	ask(t, c, cmd("EXISTS"), "-ERR wrong number of arguments for 'exists' command\r\n")
	ask(t, c, cmd("DEL", "k"), ":1\r\n")
	ask(t, c, cmd("MSET", "a", "1", "b", "2")+cmd("MGET", "a", "b", "c")+cmd("MGET", "a", ""), "+OK\r\n*3\r\n"+bulk("1")+bulk("2")+"$-1\r\n-ERR key of 0 bytes: must be 1 to 1024\r\n")
	// A turn has its time after its answers have gone.
	eventually(t, "the last turn has its time", func() bool { return s.Stats().Latency.Count >= 9 })
	var got []string
	st := s.Stats()
	for _, c := range st.Commands {
		if c.Count+c.Errors > 0 {
			got = append(got, fmt.Sprint(c.Proto, " ", c.Name, " ", c.Count, " ", c.Errors))
		}
		// Every command has its time, and they are all of the last seconds.
		if c.Latency.Count != c.Count || c.Recent.Count != c.Count || (c.Count > 0) != (c.Recent.P50 > 0) || c.Latency.P999 > c.Latency.Max {
			t.Errorf("%d times of %s %s: %+v, the last of them %+v", c.Count, c.Proto, c.Name, c.Latency, c.Recent)
		}
	}
	if want := "resp get 3 1, resp mget 2 1, resp set 1 0, resp mset 1 0, resp del 1 0, resp exists 1 1, resp other 0 1"; strings.Join(got, ", ") != want {
		t.Errorf("%s, want %s", strings.Join(got, ", "), want)
	}
	if st.Latency.Count != 9 || st.Recent.Count != 9 || len(st.Commands) != tallies {
		t.Errorf("%d times in all, %d of the last seconds, %d tallies", st.Latency.Count, st.Recent.Count, len(st.Commands))
	}
}
