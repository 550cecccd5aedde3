package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
)

// Clients as people run them. Those that are not installed are skipped by name;
// the fixed-length client is ours and always runs.

// program is the path of an installed program; without one the test is skipped.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed", name)
	}
	return path
}

// output runs a program to its end.
func output(t *testing.T, stdin, path string, args ...string) string {
	t.Helper()
	c := exec.Command(path, args...)
	c.Stdin = strings.NewReader(stdin)
	c.WaitDelay = 20 * time.Second
	out, err := c.CombinedOutput()
	if err != nil {
		t.Errorf("%s %.200q: %v\n%.2000s", path, args, err, out)
	}
	return string(out)
}

// address is how these programs are told where to connect to.
func address(s *Server) []string {
	addrs, _ := s.Addrs()
	host, port, err := net.SplitHostPort(addrs[0].String())
	if err != nil {
		panic(err) // a listener's own address
	}
	return []string{"-h", host, "-p", port}
}

func TestRedisCLI(t *testing.T) {
	path := program(t, "redis-cli")
	for _, tt := range []struct {
		name     string
		flags    []string
		password string
	}{
		{"resp2", nil, ""},
		{"resp3", []string{"-3"}, ""},
		{"password", []string{"-a", "secret", "--no-auth-warning"}, "secret"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := start(t, func(o *Options) { o.Password, o.AllowFlush = tt.password, true })
			flags := append(address(s), tt.flags...)
			cli := func(stdin string, args ...string) string {
				t.Helper()
				return output(t, stdin, path, append(flags[:len(flags):len(flags)], args...)...)
			}
			big := strings.Repeat("0123456789abcdef", 100<<10/16)
			for _, tt := range []struct{ stdin, args, want string }{
				{"", "PING", "PONG\n"},
				{"", "SET k v", "OK\n"},
				{"", "GET k", "v\n"},
				{"", "GET none", "\n"},
				{"", "SET k w NX", "\n"},
				{"", "SET k w XX EX 100", "OK\n"},
				{"", "MSET a 1 b 2", "OK\n"},
				{"", "MGET a none b", "1\n\n2\n"},
				{"", "EXISTS a b none", "2\n"},
				{big, "-x SET big", "OK\n"},
				{"", "STRLEN big", strconv.Itoa(len(big)) + "\n"},
				{"", "GETRANGE big 2 5", "2345\n"},
				{"", "GET big", big + "\n"},
				{"", "DEL a b none", "2\n"},
				{"", "DBSIZE", "2\n"},
				{"", "NONSENSE x", "ERR unknown command 'NONSENSE'\n\n"},
				{"GET k\nSELECT 0\nGET k\n", "", "w\nOK\nw\n"},
				{"", "FLUSHALL", "OK\n"},
				{"", "DBSIZE", "0\n"},
			} {
				if got := cli(tt.stdin, strings.Fields(tt.args)...); got != tt.want {
					t.Errorf("redis-cli %s: %.200q, want %.200q", tt.args, got, tt.want)
				}
			}
			if info := cli("", "INFO"); !strings.Contains(info, "server_name:kvcr") {
				t.Errorf("INFO: %q", info)
			}
			var mass strings.Builder
			const n = 5000
			for i := range n {
				mass.WriteString(cmd("SET", fmt.Sprintf("mass-%d", i), strconv.Itoa(i)))
			}
			if out := cli(mass.String(), "--pipe"); !strings.Contains(out, fmt.Sprintf("errors: 0, replies: %d\n", n)) {
				t.Errorf("--pipe: %q", out)
			}
			if got := cli("", "GET", fmt.Sprintf("mass-%d", n-1)); got != strconv.Itoa(n-1)+"\n" {
				t.Errorf("the last of them: %q", got)
			}
		})
	}
}

func TestRedisBenchmark(t *testing.T) {
	path := program(t, "redis-benchmark")
	for _, tt := range []struct {
		name  string
		flags []string
		size  int
		words []string
	}{
		{"small", []string{"-c", "50", "-n", strconv.Itoa(less(5000, 20000))}, 64, []string{"PING_MBULK", "SET", "GET", "MSET (10 keys)"}},
		{"pipelined", []string{"-c", "20", "-n", strconv.Itoa(less(10000, 50000)), "-P", "32"}, 100, []string{"PING_MBULK", "SET", "GET", "MSET (10 keys)"}},
		{"large", []string{"-c", "10", "-n", "1000", "-P", "4"}, 200 << 10, []string{"SET", "GET"}},
		{"resp3", []string{"-3", "-c", "10", "-n", "5000"}, 3000, []string{"SET", "GET", "MSET (10 keys)"}},
		{"a connection each", []string{"-k", "0", "-c", "10", "-n", "500"}, 3000, []string{"SET", "GET"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := attacked(t, func(o *Options) { o.Password = "secret" })
			args := append(address(s), "-a", "secret", "-q", "-r", "50", "-d", strconv.Itoa(tt.size))
			var tests []string
			for _, word := range tt.words {
				tests = append(tests, strings.ToLower(strings.Fields(word)[0]))
			}
			out := output(t, "", path, append(append(args, tt.flags...), "-t", strings.Join(tests, ","))...)
			for _, word := range tt.words {
				if !strings.Contains(out, word+": ") || strings.Contains(out, "rror") {
					t.Errorf("no figures for %s, or an error: %q", word, out)
				}
			}
			c := dial(t, s)
			ask(t, c, cmd("AUTH", "secret")+cmd("STRLEN", "key:000000000007"), fmt.Sprintf("+OK\r\n:%d\r\n", tt.size))
			c.Close()
		})
	}
}

// redisPy talks as applications do: both protocols, pipelines, asyncio.
const redisPy = `
import asyncio, sys
import redis, redis.asyncio

host, port, password = sys.argv[1], int(sys.argv[2]), sys.argv[3]
big = bytes(range(256)) * 8192

for protocol in (2, 3):
    r = redis.Redis(host=host, port=port, password=password, protocol=protocol)
    assert r.ping()
    assert r.set("k", big) is True
    assert r.get("k") == big
    assert r.get("none") is None
    assert r.set("k", b"x", nx=True) is None
    assert r.set("k", b"x", ex=100) is True
    assert r.mset({"a": b"1", "b": b""}) is True
    assert r.mget("a", "none", "b") == [b"1", None, b""]
    assert r.exists("a", "b", "none") == 2
    with r.pipeline(transaction=False) as p:
        for i in range(1000):
            p.set("p%d" % i, b"%d" % i)
            p.get("p%d" % i)
        got = p.execute()
    assert got[1::2] == [b"%d" % i for i in range(1000)]
    assert r.delete("a", "b", "none") == 2
    try:
        r.execute_command("NONSENSE")
        raise AssertionError("NONSENSE was taken")
    except redis.ResponseError:
        pass
    assert r.get("k") == b"x"
    r.close()

async def one(r, i):
    value = big[i:] + big[:i]
    await r.set("key-%d" % i, value)
    assert await r.get("key-%d" % i) == value
    assert await r.exists("key-%d" % i) == 1
    assert await r.delete("key-%d" % i) == 1

async def main():
    pool = redis.asyncio.BlockingConnectionPool(host=host, port=port, password=password, max_connections=50)
    r = redis.asyncio.Redis(connection_pool=pool)
    for i in range(0, 200, 50):
        await asyncio.gather(*(one(r, j) for j in range(i, i + 50)))
    await pool.disconnect()

asyncio.run(main())
print("done")
`

func TestRedisPy(t *testing.T) {
	path := program(t, "python3")
	if err := exec.Command(path, "-c", "import redis, redis.asyncio").Run(); err != nil {
		t.Skip("redis-py is not installed")
	}
	s := startWith(t, kvcr.Config{Capacity: 256 << 20, Namespaces: []kvcr.Namespace{{Name: "default", MaxValue: 8 << 20}}}, func(o *Options) { o.Password = "secret" })
	at := address(s)
	if out := output(t, "", path, "-c", redisPy, at[1], at[3], "secret"); !strings.HasSuffix(out, "done\n") {
		t.Errorf("%s", out)
	}
}

// fixedClient reads answers as LMCache's own client does: so many bytes as the
// answer it hopes for has. One byte more or less and all that follows is out of
// step, for ever.
type fixedClient struct {
	net.Conn
	chunk int // bytes of every value
}

var errStep = errors.New("out of step")

// read takes exactly as many bytes as each of the answers has and returns the
// number of the one that came.
func (c *fixedClient) read(answers ...string) (int, error) {
	got := make([]byte, len(answers[0]))
	if n, err := io.ReadFull(c, got); err != nil {
		return 0, fmt.Errorf("%q: %w", got[:n], err)
	}
	for i, a := range answers {
		if string(got) == a {
			return i, nil
		}
	}
	return 0, fmt.Errorf("%q: %w", got, errStep)
}

func (c *fixedClient) send(request string) error {
	_, err := io.WriteString(c, request)
	return err
}

func (c *fixedClient) auth(args ...string) error {
	if err := c.send(cmd(append([]string{"AUTH"}, args...)...)); err != nil {
		return err
	}
	_, err := c.read("+OK\r\n")
	return err
}

func (c *fixedClient) set(key string, value []byte) error {
	if err := c.send(fmt.Sprintf("*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n", len(key), key, len(value))); err != nil {
		return err
	}
	if _, err := c.Write(value); err != nil {
		return err
	}
	if err := c.send("\r\n"); err != nil {
		return err
	}
	_, err := c.read("+OK\r\n")
	return err
}

// get reads a value into b, of chunk bytes, and reports whether there was one.
func (c *fixedClient) get(key string, b []byte) (bool, error) {
	if err := c.send(cmd("GET", key)); err != nil {
		return false, err
	}
	head := fmt.Sprintf("$%d\r\n", c.chunk)
	const null = "$-1\r\n"
	i, err := c.read(head[:len(null)], null)
	if err != nil || i == 1 {
		return false, err
	}
	if _, err := c.read(head[len(null):]); err != nil {
		return false, err
	}
	if _, err := io.ReadFull(c, b); err != nil {
		return false, err
	}
	_, err = c.read("\r\n")
	return true, err
}

// ask sends EXISTS or DEL of one key and returns its digit.
func (c *fixedClient) ask(word, key string) (int, error) {
	if err := c.send(cmd(word, key)); err != nil {
		return 0, err
	}
	return c.read(":0\r\n", ":1\r\n")
}

// Eight workers with blocking sockets, first with room for everything, then with
// a small part of it: answers keep their length and every byte is right.
func TestFixedLengthClient(t *testing.T) {
	const workers, chunk = 8, 512<<10 + 37
	for _, tt := range []struct {
		name string
		keys int // of each of four models
		full bool
	}{
		{"room for all", 15, false},
		{"everything evicts", 150, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := attacked(t, func(o *Options) { o.Password = "secret" })
			var all sync.WaitGroup
			var hits, misses atomic.Int64
			for w := range workers {
				c := &fixedClient{dialTCP(t, s, nil), chunk}
				all.Add(1)
				go func() {
					defer all.Done()
					defer c.Close()
					if err := c.work(w, tt.keys, less(40, 200), &hits, &misses); err != nil {
						t.Errorf("worker %d: %v", w, err)
					}
				}()
			}
			all.Wait()
			st, err := s.opt.Engine.Stats()
			if err != nil {
				t.Fatal(err)
			}
			if evicts := st.Counts.Evicted > 0; evicts != tt.full || hits.Load() == 0 || st.Counts.Refused != 0 {
				t.Errorf("%d evicted, %d refused, %d hits, %d misses", st.Counts.Evicted, st.Counts.Refused, hits.Load(), misses.Load())
			}
		})
	}
}

// work is one worker's life: what it looks up it stores when it is missing.
func (c *fixedClient) work(number, keys, turns int, hits, misses *atomic.Int64) error {
	user := []string{"secret"}
	if number%2 == 0 {
		user = []string{"default", "secret"}
	}
	if err := c.auth(user...); err != nil {
		return err
	}
	rnd := rand.New(rand.NewPCG(5, uint64(number)))
	b := make([]byte, c.chunk)
	for range turns {
		k := rnd.IntN(keys)
		key := fmt.Sprintf("model@1@%d@%016x@half", number%4, k)
		seed := uint64(number%4 + 4*k)
		there, err := c.ask("EXISTS", key)
		if err != nil {
			return fmt.Errorf("EXISTS: %w", err)
		}
		found, err := c.get(key, b)
		if err != nil {
			return fmt.Errorf("GET, after EXISTS said %d: %w", there, err)
		}
		if found {
			hits.Add(1)
			if got, ok := genuine(b); !ok || got != seed {
				return fmt.Errorf("%s: bytes of value %d, want %d, all right: %t", key, got, seed, ok)
			}
		} else {
			misses.Add(1)
			if err := c.set(key, stamped(seed, c.chunk)); err != nil {
				return fmt.Errorf("SET: %w", err)
			}
		}
		if rnd.IntN(20) == 0 {
			if _, err := c.ask("DEL", key); err != nil {
				return fmt.Errorf("DEL: %w", err)
			}
		}
	}
	return nil
}

// An error where a client hopes for +OK ends the connection right behind its
// line: the client must not take the rest of it for its next answer.
func TestErrorEndsFixedLengthClient(t *testing.T) {
	const chunk = 1 << 20
	for _, tt := range []struct{ name, request, begins string }{
		{"no memory", cmd("SET", "one more", strings.Repeat("x", chunk)), "-OOM "},
		{"no memory, small", cmd("SET", "one more", strings.Repeat("x", streamFrom/2)), "-OOM "},
		{"too large", cmd("SET", "one more", strings.Repeat("x", 8<<20+1)), "-ERR value of 8388609 bytes"},
		{"key too long", cmd("SET", strings.Repeat("k", kvcr.MaxKeyBytes+1), strings.Repeat("x", chunk)), "-ERR key of "},
		{"key too long, small", cmd("SET", strings.Repeat("k", kvcr.MaxKeyBytes+1), "x"), "-ERR key of "},
		{"key of EXISTS", cmd("EXISTS", strings.Repeat("k", kvcr.MaxKeyBytes+1)), "-ERR key of "},
		{"key of DEL", cmd("DEL", ""), "-ERR key of 0 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := start(t, nil)
			release := pinAll(t, s.opt.Engine, chunk)
			defer release()
			c := dialTCP(t, s, nil)
			if _, err := io.WriteString(c, tt.request+cmd("PING")); err != nil {
				t.Fatal(err)
			}
			c.SetReadDeadline(time.Now().Add(5 * time.Second))
			got, err := io.ReadAll(c)
			// The command behind it may be unread when the server closes: a reset then.
			var reset net.Error
			if err != nil && (!errors.As(err, &reset) || reset.Timeout()) {
				t.Fatalf("%.200q, %v; want the end", got, err)
			}
			if len(got) == 0 && err != nil {
				t.Skip("a reset took the answer: the kernel's right")
			}
			if !bytes.HasPrefix(got, []byte(tt.begins)) || bytes.IndexByte(got, '\n') != len(got)-1 {
				t.Errorf("%.300q, want one line that begins with %q", got, tt.begins)
			}
		})
	}
}

// pinAll fills the engine with values of size bytes and claims all of them.
func pinAll(t *testing.T, e *kvcr.Engine, size int) (release func()) {
	t.Helper()
	h, err := e.Handle()
	if err != nil {
		t.Fatal(err)
	}
	var views []kvcr.View
	for _, n := range []int{size, size / 16, size / 256, 100} { // the smaller ones fill what is left
		for i, refused := 0, 0; refused < 20; i++ {
			key := fmt.Appendf(nil, "pin-%d-%d", n, i)
			if err := h.Set(key, make([]byte, n)); err != nil {
				refused++
				continue
			}
			if v, ok := h.Get(key); ok {
				views = append(views, v)
			}
		}
	}
	return func() {
		for i := range views {
			views[i].Release()
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
}
