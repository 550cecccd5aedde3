package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/arena"
	"github.com/kvcr-go/kvcr/wire/resp"
)

// Clients that break rules, stall or die. Whatever one of them does, the others
// are served in time (pingBound), every byte that anybody gets is right, and in
// the end no claim, no session and no memory is missing.

// attacked is start for tests in which clients misbehave: before the server goes
// it must have forgotten all of them by itself.
func attacked(t *testing.T, edit func(*Options)) *Server {
	t.Helper()
	s := start(t, edit)
	t.Cleanup(func() { leftNothing(t, s) })
	return s
}

// leftNothing fails unless claims and sessions go within settleBound, and the
// whole memory is free when everything was deleted. It shuts the server down:
// handles keep some records at hand for their next values.
func leftNothing(t testing.TB, s *Server) {
	t.Helper()
	e, bound := s.opt.Engine, settleBound
	if t.Failed() {
		bound /= 10 // it was waited for already
	}
	if !comesTrue(bound, func() bool { return s.conns.Load() == 0 && e.Claims() == 0 }) {
		t.Errorf("%v after the last client went: %d sessions, %d claims", bound, s.conns.Load(), e.Claims())
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	keys, err := s.snapshot("")
	if err != nil {
		t.Fatalf("snapshot: %v", err)
	}
	for _, key := range keys {
		if _, err := e.Delete(key); err != nil {
			t.Errorf("Delete(%q): %v", key, err)
		}
	}
	h, err := e.Handle()
	if err != nil {
		t.Fatalf("Handle: %v", err)
	}
	defer h.Close()
	// Shards take back what readers freed when they lack room: make them.
	var taken []*kvcr.Reservation
	for i := range 200 {
		if r, err := h.Reserve([]byte(strconv.Itoa(i)), 1<<20); err == nil {
			taken = append(taken, r)
		}
	}
	for _, r := range taken {
		r.Abort()
	}
	st, err := e.Stats()
	if err != nil {
		t.Fatalf("Stats: %v", err)
	}
	if n := st.Namespaces[0]; n.FreeBytes != n.CapacityBytes {
		t.Errorf("everything is deleted: %d bytes are free of %d", n.FreeBytes, n.CapacityBytes)
	}
}

// settleBound is how long the server may take to notice that a client is gone.
const settleBound = 3 * time.Second

// comesTrue polls until ok or the time is over.
func comesTrue(d time.Duration, ok func() bool) bool {
	for end := time.Now().Add(d); ; time.Sleep(2 * time.Millisecond) {
		if ok() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// less is n in short runs and in builds that check, else all.
func less(n, all int) int {
	if testing.Short() || arena.Checking {
		return n
	}
	return all
}

// pingBound is how long a ping may take while others attack, on the attacked
// loop. It is far above what it takes (well under a millisecond) and far below
// what waiting for one of the attackers would take.
func pingBound() time.Duration { return time.Duration(less(1500, 500)) * time.Millisecond }

// pings asks for a ping every millisecond, from now until stop.
func pings(t *testing.T, s *Server) (stop func()) {
	t.Helper()
	c := dial(t, s)
	quit, done := make(chan struct{}), make(chan struct{})
	n, worst := 0, time.Duration(0)
	var err error
	go func() {
		defer close(done)
		answer := make([]byte, 7)
		for {
			select {
			case <-quit:
				return
			case <-time.After(time.Millisecond):
			}
			begin := time.Now()
			c.SetDeadline(begin.Add(10 * time.Second))
			if _, err = c.Write([]byte("PING\r\n")); err == nil {
				_, err = io.ReadFull(c, answer)
			}
			if err == nil && string(answer) != "+PONG\r\n" {
				err = fmt.Errorf("answer %q", answer)
			}
			if err != nil {
				return
			}
			n++
			worst = max(worst, time.Since(begin))
		}
	}()
	var once sync.Once
	stop = func() {
		t.Helper()
		once.Do(func() {
			close(quit)
			<-done
			c.Close()
			if err != nil {
				t.Errorf("the ping of another connection: %v", err)
			}
			if worst > pingBound() || n == 0 {
				t.Errorf("%d pings of another connection took up to %v, may take %v", n, worst, pingBound())
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// narrow connects with a small receive buffer: answers back up at the server.
func narrow(t *testing.T, s *Server) *net.TCPConn {
	t.Helper()
	return dialTCP(t, s, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 32<<10) })
}

func dialTCP(t testing.TB, s *Server, control func(fd int) error) *net.TCPConn {
	t.Helper()
	d := net.Dialer{Timeout: 10 * time.Second}
	if control != nil {
		d.Control = func(_, _ string, rc syscall.RawConn) (err error) {
			if e := rc.Control(func(fd uintptr) { err = control(int(fd)) }); e != nil {
				return e
			}
			return err
		}
	}
	addrs, _ := s.Addrs()
	c, err := d.Dial("tcp", addrs[0].String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(30 * time.Second))
	return c.(*net.TCPConn)
}

// reset closes with RST instead of FIN.
func reset(c *net.TCPConn) {
	c.SetLinger(0)
	c.Close()
}

// putValue stores a value over a connection that goes again.
func putValue(t testing.TB, s *Server, key, value string) {
	t.Helper()
	c := dialTCP(t, s, nil)
	if _, err := io.WriteString(c, cmd("SET", key, value)); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 5)
	if _, err := io.ReadFull(c, answer); err != nil || string(answer) != "+OK\r\n" {
		t.Fatalf("SET %s: %q, %v", key, answer, err)
	}
	c.Close()
}

// waiting is the number of bytes that wait for the slowest of all connections.
func waiting(s *Server) (most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ss := range s.sessions {
		ss.mu.Lock()
		most = max(most, ss.queued)
		ss.mu.Unlock()
	}
	return most
}

// noise is what payloads are cut from.
var noise = sync.OnceValue(func() []byte {
	b := make([]byte, 10<<20)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
})

// stamped is a value that tells by itself whether it is whole: all of it follows
// from its first eight bytes, the seed.
func stamped(seed uint64, size int) []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, size), seed)
	return append(b, noise()[seed%(1<<14)*64:][:size-8]...)
}

// genuine returns the seed of a payload and whether every byte is right.
func genuine(b []byte) (seed uint64, ok bool) {
	if len(b) < 8 {
		return 0, false
	}
	seed = binary.LittleEndian.Uint64(b)
	return seed, bytes.Equal(b[8:], noise()[seed%(1<<14)*64:][:len(b)-8])
}

// readBulk reads one bulk string; nil is a null.
func readBulk(r *bufio.Reader, into []byte) ([]byte, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	if line == "$-1\r\n" {
		return nil, nil
	}
	n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(line, "$"), "\r\n"))
	if err != nil || n < 0 || n > 16<<20 {
		return nil, fmt.Errorf("not the head of a bulk string: %q", line)
	}
	if n+2 > cap(into) {
		into = make([]byte, n+2)
	}
	into = into[:n+2]
	if _, err := io.ReadFull(r, into); err != nil {
		return nil, err
	}
	if into[n] != '\r' || into[n+1] != '\n' {
		return nil, fmt.Errorf("a bulk string of %d bytes ends in %q", n, into[n:])
	}
	return into[:n], nil
}

// ended fails unless the server closes the connection without another byte.
func ended(t *testing.T, what string, c net.Conn, bound time.Duration) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(bound))
	n, err := c.Read(make([]byte, 100))
	if n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%s: %d bytes, %v; want the end within %v", what, n, err, bound)
	}
}

// A client that announces more than it sends gets no answer, nobody sees what it
// sent, and its key is anybody's as soon as it is gone (A2, D1, M1).
func TestAnnouncesMoreThanItSends(t *testing.T) {
	for _, tt := range []struct{ name, request string }{
		{"streamed", cmd("SET", "k", strings.Repeat("a", 1<<20))},
		{"streamed with options", cmd("SET", "k", strings.Repeat("a", 1<<20), "NX", "EX", "100")},
		{"small", cmd("SET", "k", "aaaa")},
		{"many", cmd("MSET", "k", strings.Repeat("a", 300<<10), "k2", "a")},
		{"get", cmd("GET", "k")},
		{"line", "SET k aaaa\r\n"},
	} {
		for _, end := range []string{"close", "reset", "half-close"} {
			t.Run(tt.name+"/"+end, func(t *testing.T) {
				s := attacked(t, func(o *Options) { o.Loops = 1 })
				stop := pings(t, s)
				c, other := dialTCP(t, s, nil), dial(t, s)
				if _, err := io.WriteString(c, tt.request[:len(tt.request)-1]); err != nil {
					t.Fatal(err)
				}
				for range 3 {
					ask(t, other, cmd("GET", "k"), "$-1\r\n")
				}
				ask(t, other, cmd("SET", "k", "mine"), "+OK\r\n")
				c.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
				if n, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("an answer to half a command: %d bytes, %v", n, err)
				}
				switch end {
				case "close":
					c.Close()
				case "reset":
					reset(c)
				case "half-close":
					c.CloseWrite()
					ended(t, end, c, settleBound)
				}
				if !comesTrue(settleBound, func() bool { return s.conns.Load() == 2 }) {
					t.Errorf("%d sessions, want the other two", s.conns.Load())
				}
				ask(t, other, cmd("GET", "k")+cmd("EXISTS", "k2"), bulk("mine")+":0\r\n")
				stop()
			})
		}
	}
}

// Values announced and never sent hold memory; it is free again when those who
// announced them are gone (D1).
func TestAnnouncersHoldNothing(t *testing.T) {
	s := attacked(t, func(o *Options) { o.Loops = 1 })
	stop := pings(t, s)
	var dead []*net.TCPConn
	for i := range 30 {
		c := dialTCP(t, s, nil)
		if _, err := fmt.Fprintf(c, "*3\r\n$3\r\nSET\r\n$3\r\nk%02d\r\n$%d\r\nxx", i, 8<<20); err != nil {
			t.Fatal(err)
		}
		dead = append(dead, c)
	}
	time.Sleep(20 * time.Millisecond)
	for i, c := range dead {
		if i%2 == 0 {
			reset(c)
		} else {
			c.Close()
		}
	}
	if !comesTrue(settleBound, func() bool { return s.conns.Load() == 1 }) {
		t.Errorf("%d sessions, want the pings' only", s.conns.Load())
	}
	c := dial(t, s)
	for i := range 8 {
		v := string(stamped(uint64(i), 8<<20))
		ask(t, c, cmd("SET", "k", v)+cmd("GET", "k"), "+OK\r\n"+bulk(v))
	}
	stop()
}

// A client asks for 1 GiB and never reads: what waits for it is bounded, others
// are served, and however it goes, it goes whole (M2).
func TestNeverReads(t *testing.T) {
	for _, size := range []int{8 << 20, 100 << 10, 4000} {
		for _, end := range []string{"close", "reset", "half-close", "write timeout"} {
			t.Run(fmt.Sprintf("size=%d/%s", size, end), func(t *testing.T) {
				const outbound = 8 << 20
				s := attacked(t, func(o *Options) {
					o.Loops, o.OutboundCap = 1, outbound
					if end == "write timeout" {
						o.WriteTimeout = 500 * time.Millisecond
					}
				})
				putValue(t, s, "k", string(stamped(1, size)))
				stop := pings(t, s)
				before := heapInUse()
				c := narrow(t, s)
				wrote := make(chan struct{})
				go func() {
					defer close(wrote)
					get := []byte(strings.Repeat(cmd("GET", "k"), max(1, (8<<20)/size)))
					for range 1 << 30 / (8 << 20) {
						if _, err := c.Write(get); err != nil {
							return // the server does not read any more, and the end comes
						}
					}
				}()
				for range 50 {
					// One turn goes over the cap by what it gathers before it looks, and by what
					// it has read ahead.
					if n := waiting(s); n > outbound+flushAt+readAhead*(size+100) {
						t.Fatalf("%d bytes wait for one connection, %d may", n, outbound)
					}
					time.Sleep(2 * time.Millisecond)
				}
				if waiting(s) == 0 {
					t.Error("nothing waits: the client read?")
				}
				if grown := heapInUse() - before; grown > 16<<20 {
					t.Errorf("the heap grew by %d bytes", grown)
				}
				switch end {
				case "close":
					c.Close()
				case "reset":
					reset(c)
				case "half-close":
					c.CloseWrite()
					time.Sleep(50 * time.Millisecond)
					c.Close()
				}
				if !comesTrue(settleBound, func() bool { return s.conns.Load() == 1 && s.opt.Engine.Claims() == 0 }) {
					t.Errorf("%d sessions, want the pings' only; %d claims", s.conns.Load(), s.opt.Engine.Claims())
				}
				c.Close()
				<-wrote
				stop()
			})
		}
	}
}

// heapInUse is the memory in use after a collection.
func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A client writes a gigabyte of sets and only then reads.
func TestWritesBeforeReading(t *testing.T) {
	s := attacked(t, func(o *Options) { o.Loops = 1 })
	stop := pings(t, s)
	c := dialTCP(t, s, nil)
	const size = 128 << 10
	n := less(128<<20, 1<<30) / size
	w := bufio.NewWriterSize(c, 256<<10)
	for i := range n {
		key := fmt.Sprintf("k%02d", i%50)
		fmt.Fprintf(w, "*3\r\n$3\r\nSET\r\n$3\r\n%s\r\n$%d\r\n", key, size)
		w.Write(stamped(uint64(i), size))
		w.WriteString("\r\n")
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	expect(t, c, "sets", strings.Repeat("+OK\r\n", n))
	r := bufio.NewReader(c)
	for i := n - 50; i < n; i++ {
		if _, err := io.WriteString(c, cmd("GET", fmt.Sprintf("k%02d", i%50))); err != nil {
			t.Fatal(err)
		}
		b, err := readBulk(r, nil)
		if seed, ok := genuine(b); err != nil || !ok || seed != uint64(i) {
			t.Fatalf("value %d: seed %d, %d bytes, %v", i, seed, len(b), err)
		}
	}
	stop()
}

// Clients come, ask for much and die with answers on their way, while others
// read and write: nobody ever sees bytes of another key (A2, M1).
func TestReconnectStorm(t *testing.T) {
	const keys, size = 24, 1 << 20
	s := attacked(t, func(o *Options) { o.OutboundCap = 512 << 10 })
	seed := func(key, version int) uint64 { return uint64(key + keys*version) }
	name := func(key int) string { return fmt.Sprintf("key-%d", key) }
	for k := range keys {
		putValue(t, s, name(k), string(stamped(seed(k, 0), size)))
	}
	stop := pings(t, s)
	quit := make(chan struct{})
	var good, bad sync.WaitGroup
	var read atomic.Int64
	for g := range 4 {
		c := dialTCP(t, s, nil)
		good.Add(1)
		go func() {
			defer good.Done()
			rnd := rand.New(rand.NewPCG(1, uint64(g)))
			r := bufio.NewReaderSize(c, 64<<10)
			var buf []byte
			for version := 1; ; version++ {
				select {
				case <-quit:
					return
				default:
				}
				c.SetDeadline(time.Now().Add(20 * time.Second))
				k, w := rnd.IntN(keys), rnd.IntN(keys)
				request := cmd("GET", name(k))
				if version%4 == 0 { // writes make blocks change hands
					request += cmd("SET", name(w), string(stamped(seed(w, version), size)))
				}
				if _, err := io.WriteString(c, request); err != nil {
					t.Errorf("reader %d: %v", g, err)
					return
				}
				b, err := readBulk(r, buf)
				if got, ok := genuine(b); err != nil || !ok || got%keys != uint64(k) || len(b) != size {
					t.Errorf("reader %d asked for key %d: %d bytes of key %d, whole: %t, %v", g, k, len(b), got%keys, ok, err)
					return
				}
				buf = b
				read.Add(1)
				if version%4 == 0 {
					if line, err := r.ReadString('\n'); line != "+OK\r\n" {
						t.Errorf("reader %d: SET answered by %q, %v", g, line, err)
						return
					}
				}
			}
		}()
	}
	storm := less(200, 500)
	turns := make(chan int)
	for range 16 {
		bad.Add(1)
		go func() {
			defer bad.Done()
			addrs, _ := s.Addrs()
			for i := range turns {
				if t.Failed() {
					continue // each of the others might wait for what does not come
				}
				rnd := rand.New(rand.NewPCG(2, uint64(i)))
				c, err := net.Dial("tcp", addrs[0].String())
				if err != nil {
					t.Errorf("client %d: %v", i, err)
					continue
				}
				c.SetDeadline(time.Now().Add(20 * time.Second))
				k := rnd.IntN(keys)
				io.WriteString(c, strings.Repeat(cmd("GET", name(k)), 1+rnd.IntN(8)))
				if rnd.IntN(2) == 0 {
					b, err := readBulk(bufio.NewReader(c), nil)
					if got, ok := genuine(b); err != nil || !ok || got%keys != uint64(k) {
						t.Errorf("client %d asked for key %d: %d bytes of key %d, whole: %t, %v", i, k, len(b), got%keys, ok, err)
					}
				}
				if rnd.IntN(2) == 0 {
					reset(c.(*net.TCPConn))
				}
				c.Close()
			}
		}()
	}
	for i := range storm {
		turns <- i
	}
	close(turns)
	bad.Wait()
	close(quit)
	good.Wait()
	if read.Load() < 20 {
		t.Errorf("only %d values were read meanwhile", read.Load())
	}
	stop()
}

// Readers wait in the middle of their answers while everything they asked for is
// replaced and evicted: what they read then is what was there when they asked, or
// when the server came to it, and never anything else (A2).
func TestThrottledReads(t *testing.T) {
	const keys, size = 8, 2 << 20
	name := func(key int) string { return fmt.Sprintf("key-%d", key) }
	for _, outbound := range []int{1, 64 << 20} {
		t.Run(fmt.Sprintf("cap=%d", outbound), func(t *testing.T) {
			s := attacked(t, func(o *Options) { o.OutboundCap = outbound })
			var request string
			for k := range keys {
				putValue(t, s, name(k), string(stamped(uint64(k), size)))
				request += cmd("GET", name(k))
			}
			var readers []*net.TCPConn
			for range 6 {
				c := narrow(t, s)
				io.WriteString(c, request)
				expect(t, c, request, "$")
				readers = append(readers, c)
			}
			time.Sleep(20 * time.Millisecond) // whoever runs ahead has done so
			w := dial(t, s)
			for round := 1; round <= less(1, 2); round++ {
				for k := range keys {
					ask(t, w, cmd("SET", name(k), string(stamped(uint64(k+keys*round), size))), "+OK\r\n")
				}
				for k := range 30 { // with the first, more than there is room for
					ask(t, w, cmd("SET", fmt.Sprintf("other-%d", k), string(stamped(uint64(1000+k), size))), "+OK\r\n")
				}
			}
			for i, c := range readers {
				r := bufio.NewReaderSize(io.MultiReader(strings.NewReader("$"), c), 64<<10)
				var buf []byte
				for k := range keys {
					b, err := readBulk(r, buf)
					if err != nil {
						t.Fatalf("reader %d, key %d: %v", i, k, err)
					}
					if b == nil && outbound == 1 && k > 0 {
						continue // evicted before the server came to it
					}
					seed, ok := genuine(b)
					if !ok || seed%keys != uint64(k) || len(b) != size || outbound > 1 && seed >= keys {
						t.Fatalf("reader %d, key %d: %d bytes of value %d, whole: %t", i, k, len(b), seed, ok)
					}
					buf = b
				}
				c.Close()
			}
			w.Close()
		})
	}
}

// Clients that send a byte now and then: they are closed when they have not
// authenticated in time, served when they have, and closed when they fall silent.
func TestSlowLoris(t *testing.T) {
	const n = 20
	limit := 600 * time.Millisecond
	timeouts := func(o *Options) {
		o.Loops, o.Password = 1, "secret"
		o.HandshakeTimeout, o.IdleTimeout = limit, limit
	}
	// drip writes a byte each 50 ms until it is through or the server has had enough.
	drip := func(c net.Conn, b string) {
		for i := range b {
			if _, err := io.WriteString(c, b[i:i+1]); err != nil {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	t.Run("before authentication", func(t *testing.T) {
		t.Parallel()
		s := attacked(t, timeouts)
		var all sync.WaitGroup
		begin := time.Now()
		for i := range n {
			c := dialTCP(t, s, nil)
			all.Add(1)
			go func() {
				defer all.Done()
				go drip(c, strings.Repeat(cmd("AUTH", "guess"), 2)[:40])
				c.SetReadDeadline(begin.Add(limit + 1500*time.Millisecond))
				if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("client %d has not authenticated and is not closed after %v", i, time.Since(begin))
				}
			}()
		}
		all.Wait()
	})
	t.Run("answers are no authentication", func(t *testing.T) {
		t.Parallel()
		s := attacked(t, timeouts)
		c := dial(t, s)
		begin := time.Now()
		var err error
		for err == nil && time.Since(begin) < limit+1500*time.Millisecond {
			if _, err = io.WriteString(c, "PING\r\n"); err == nil {
				_, err = io.ReadFull(c, make([]byte, len("-NOAUTH Authentication required.\r\n")))
			}
			time.Sleep(20 * time.Millisecond)
		}
		if err == nil {
			t.Errorf("a client that has not authenticated is served for %v", time.Since(begin))
		}
	})
	t.Run("after authentication", func(t *testing.T) {
		t.Parallel()
		s := attacked(t, timeouts)
		var all sync.WaitGroup
		for i := range n {
			c := dial(t, s)
			ask(t, c, cmd("AUTH", "secret"), "+OK\r\n")
			all.Add(1)
			go func() {
				defer all.Done()
				drip(c, cmd("ECHO", "0123456789"))
				got := make([]byte, len(bulk("0123456789")))
				if _, err := io.ReadFull(c, got); err != nil || string(got) != bulk("0123456789") {
					t.Errorf("client %d: %q, %v", i, got, err)
				}
				begin := time.Now()
				if _, err := c.Read(got); err != io.EOF || time.Since(begin) > limit+1500*time.Millisecond {
					t.Errorf("client %d fell silent: %v after %v, want the end", i, err, time.Since(begin))
				}
			}()
		}
		all.Wait()
	})
}

// A client takes little at a time, but takes something: it is not cut off,
// however long all of it takes. Only one that takes nothing is.
func TestSteadyReader(t *testing.T) {
	s := attacked(t, func(o *Options) { o.WriteTimeout = time.Second })
	want := stamped(1, 8<<20)
	putValue(t, s, "k", string(want))
	c := narrow(t, s)
	io.WriteString(c, cmd("GET", "k"))
	// Some 2.6 s for all, on a machine that has time 40 ms between two reads.
	var got []byte
	buf := make([]byte, 128<<10)
	for end := len(bulk(string(want))); len(got) < end; time.Sleep(40 * time.Millisecond) {
		n, err := io.ReadFull(c, buf[:min(len(buf), end-len(got))])
		got = append(got, buf[:n]...)
		if err != nil {
			t.Fatalf("cut off after %d of %d bytes: %v", len(got), end, err)
		}
	}
	if string(got) != bulk(string(want)) {
		t.Error("wrong bytes")
	}
}

// Answers that back up for a moment, again and again: they come whole, in order,
// and the server does not forget the commands that arrived behind them.
func TestPipelineGoesOn(t *testing.T) {
	const keys = 8
	for _, tt := range []struct {
		cap, size int
		pause     int // answers between two pauses of the reader; 0: none
	}{
		{1, 1 << 20, 0},
		{4 << 20, 256 << 10, 0},
		{64 << 20, 4000, 0},
		{64 << 20, 4000, 200},
		{64 << 20, 40000, 20},
		{100 << 10, 4000, 100},
	} {
		t.Run(fmt.Sprintf("cap=%d/size=%d/pause=%d", tt.cap, tt.size, tt.pause), func(t *testing.T) {
			s := attacked(t, func(o *Options) { o.OutboundCap = tt.cap })
			for k := range keys {
				putValue(t, s, fmt.Sprintf("k%d", k), string(stamped(uint64(k), tt.size)))
			}
			gets := max(12, (8<<20)/tt.size)
			if tt.pause > 0 {
				gets = (12 << 20) / tt.size // more than the kernel takes
			}
			var all sync.WaitGroup
			for range 4 {
				all.Add(1)
				go func() {
					defer all.Done()
					for i := 0; i < less(3, 6) && !t.Failed(); i++ {
						pipeline(t, s, gets, keys, tt.pause)
					}
				}()
			}
			all.Wait()
		})
	}
}

// pipeline asks for keys in turn, a few in each write, and compares the answers
// as they come.
func pipeline(t *testing.T, s *Server, gets, keys, pause int) {
	c := dialTCP(t, s, nil)
	if pause > 0 {
		c = narrow(t, s)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	go func() {
		for g := 0; g < gets; g += 3 {
			for k := g; k < min(g+3, gets); k++ {
				io.WriteString(c, cmd("GET", fmt.Sprintf("k%d", k%keys))) // a failure shows in the answers
			}
			if pause > 0 {
				time.Sleep(20 * time.Microsecond) // many small turns
			}
		}
	}()
	if pause > 0 {
		time.Sleep(50 * time.Millisecond) // answers back up
	}
	r := bufio.NewReaderSize(c, 64<<10)
	var b []byte
	var err error
	for g := range gets {
		if b, err = readBulk(r, b); err != nil {
			t.Errorf("answer %d of %d: %v", g, gets, err)
			return
		}
		if pause > 0 && g%pause == 0 {
			time.Sleep(time.Millisecond)
		}
		if seed, ok := genuine(b); !ok || seed != uint64(g%keys) {
			t.Errorf("answer %d of %d: %d bytes of value %d, whole: %t", g, gets, len(b), seed, ok)
			return
		}
	}
}

// What waits for one connection is bounded whatever it asks (M2): also by one
// command with many keys, and by a client that always has a value half sent.
func TestCapHolds(t *testing.T) {
	const outbound = 256 << 10
	edit := func(o *Options) { o.Loops, o.OutboundCap = 1, outbound }
	t.Run("many keys", func(t *testing.T) {
		s := attacked(t, edit)
		const size, keys = 8000, 20000 // 160 MB of answer to 140 KB
		putValue(t, s, "k", string(stamped(1, size)))
		stop := pings(t, s)
		c := narrow(t, s)
		if _, err := io.WriteString(c, "*"+strconv.Itoa(keys+1)+"\r\n$4\r\nMGET\r\n"+strings.Repeat("$1\r\nk\r\n", keys)); err != nil {
			t.Fatal(err)
		}
		most := 0
		comesTrue(100*time.Millisecond, func() bool {
			most = max(most, waiting(s))
			return false
		})
		if most > outbound+flushAt+size+100 || most == 0 {
			t.Errorf("%d bytes waited for one connection, %d may", most, outbound)
		}
		// It is not lost what was asked for.
		r := bufio.NewReaderSize(c, 64<<10)
		expectLine(t, r, fmt.Sprintf("*%d\r\n", keys))
		for i := range keys {
			b, err := readBulk(r, nil)
			if _, ok := genuine(b); err != nil || !ok || len(b) != size {
				t.Fatalf("answer %d: %d bytes, %v", i, len(b), err)
			}
		}
		stop()
	})
	t.Run("a value half sent", func(t *testing.T) {
		s := attacked(t, edit)
		const size = 4000
		putValue(t, s, "k", string(stamped(1, size)))
		stop := pings(t, s)
		c := narrow(t, s)
		c.SetWriteDeadline(time.Now().Add(2 * time.Second))
		set := cmd("SET", "half", strings.Repeat("h", streamFrom))
		gets := strings.Repeat(cmd("GET", "k"), 100)
		io.WriteString(c, set[:len(set)/2])
		most := 0
		for range 100 {
			// Each turn ends within a value, and says less than makes it look at the cap.
			if _, err := io.WriteString(c, set[len(set)/2:]+gets+set[:len(set)/2]); err != nil {
				break // it does not read any more: good
			}
			time.Sleep(3 * time.Millisecond)
			most = max(most, waiting(s))
		}
		if most > outbound+2*flushAt {
			t.Errorf("%d bytes waited for one connection, %d may", most, outbound)
		}
		c.Close()
		stop()
	})
}

func expectLine(t *testing.T, r *bufio.Reader, want string) {
	t.Helper()
	if got, err := r.ReadString('\n'); got != want {
		t.Fatalf("%q, %v; want %q", got, err, want)
	}
}

// One connection sends a large argument in the smallest pieces, and one asks for
// what is slow to count: the others on the loop do not wait for it.
func TestCostlyRequests(t *testing.T) {
	t.Run("large argument in pieces", func(t *testing.T) {
		s := attacked(t, func(o *Options) { o.Loops = 1 })
		stop := pings(t, s)
		// send has size bytes of an argument arrive in pieces, and says how long that
		// took.
		send := func(size int) time.Duration {
			c := dialTCP(t, s, nil)
			c.SetNoDelay(true)
			begin := time.Now()
			fmt.Fprintf(c, "*2\r\n$4\r\nECHO\r\n$%d\r\n", size)
			part := make([]byte, 1<<20)
			for range size>>20 - 1 {
				if _, err := c.Write(part); err != nil {
					t.Fatal(err)
				}
			}
			for range 100 { // and each of these looks like news
				c.Write(part[:1])
				time.Sleep(time.Millisecond)
			}
			d := time.Since(begin)
			reset(c)
			return d
		}
		// A copy or two of each byte, not of everything for each piece that arrives:
		// four times the bytes take four times as long and not sixteen times.
		size := less(16, 48) << 20
		quarter, whole := send(size/4), send(size)
		if most := 8*quarter + time.Second; whole > most {
			t.Errorf("%d bytes took %v and %d took %v, may take %v", size/4, quarter, size, whole, most)
		}
		stop()
	})
	for _, word := range []string{"DBSIZE", "INFO", "MGET" + strings.Repeat(" none", 1000)} {
		t.Run(word[:4], func(t *testing.T) {
			s := attacked(t, func(o *Options) { o.Loops = 1 })
			c := dialTCP(t, s, nil)
			stop := pings(t, s)
			done := make(chan struct{})
			go func() {
				defer close(done)
				io.Copy(io.Discard, c)
			}()
			line := []byte(strings.Repeat(word+"\r\n", 64<<10/len(word)))
			for end := time.Now().Add(time.Duration(less(100, 250)) * time.Millisecond); time.Now().Before(end); {
				if _, err := c.Write(line); err != nil {
					t.Fatal(err)
				}
			}
			stop()
			reset(c)
			<-done
		})
	}
}

// Clients that close their end get everything they asked for, then the end (M3).
func TestManyHalfClosed(t *testing.T) {
	s := attacked(t, nil)
	want := stamped(1, 4<<20)
	putValue(t, s, "k", string(want))
	stop := pings(t, s)
	var all sync.WaitGroup
	for i := range 10 {
		c := narrow(t, s)
		io.WriteString(c, strings.Repeat(cmd("GET", "k"), 3))
		c.CloseWrite()
		all.Add(1)
		go func() {
			defer all.Done()
			time.Sleep(time.Duration(i) * 10 * time.Millisecond)
			r := bufio.NewReaderSize(c, 256<<10)
			var b []byte
			var err error
			for range 3 {
				if b, err = readBulk(r, b); err != nil || !bytes.Equal(b, want) {
					t.Errorf("client %d: %d bytes, %v", i, len(b), err)
					return
				}
			}
			if _, err := r.ReadByte(); err != io.EOF {
				t.Errorf("client %d: %v, want the end", i, err)
			}
		}()
	}
	all.Wait()
	stop()
}

// A conversation that stops anywhere: what was whole is answered, what was not
// leaves no trace (I3).
func TestEveryPrefix(t *testing.T) {
	s := attacked(t, nil)
	stop := pings(t, s)
	big := string(stamped(7, streamFrom+100))
	talk := func(p string) (requests, answers []string) {
		for _, x := range [][2]string{
			{cmd("SET", p+"a", "v1"), "+OK\r\n"},
			{cmd("GET", p+"a"), bulk("v1")},
			{"*0\r\n*-1\r\n\r\n" + cmd("PING"), "+PONG\r\n"},
			{cmd("SET", p+"big", big, "NX", "EX", "100"), "+OK\r\n"},
			{cmd("MGET", p+"none", p+"big", p+"a"), "*3\r\n$-1\r\n" + bulk(big) + bulk("v1")},
			{"PING\r\n", "+PONG\r\n"},
			{"echo \"a b\"\r\n", bulk("a b")},
			{cmd("BOGUS", "x"), "-ERR unknown command 'BOGUS'\r\n"},
			{cmd("MSET", p+"b", "1", p+"c", ""), "+OK\r\n"},
			{cmd("EXISTS", p+"a", p+"b", p+"c"), ":3\r\n"},
			{cmd("SET", p+"a", "v2", "XX"), "+OK\r\n"},
			{cmd("DEL", p+"a", p+"b", p+"c", p+"big"), ":4\r\n"},
		} {
			requests, answers = append(requests, x[0]), append(answers, x[1])
		}
		return requests, answers
	}
	requests, _ := talk("0000-0-")
	stream := strings.Join(requests, "")
	value := strings.Index(stream, big)
	for cut := range len(stream) + 1 {
		if in := cut - value; in > 20 && in < len(big)-20 && in%1999 != 0 {
			continue // in the middle of the value one place is like another
		}
		requests, answers := talk(fmt.Sprintf("%04x-0-", cut))
		stream := strings.Join(requests, "")[:cut]
		want, end := "", 0
		for i, r := range requests {
			if end += len(r); end <= cut {
				want += answers[i]
			}
		}
		c := dialTCP(t, s, nil)
		if _, err := io.WriteString(c, stream); err != nil {
			t.Fatal(err)
		}
		c.CloseWrite()
		if got, err := io.ReadAll(c); err != nil || string(got) != want {
			t.Fatalf("cut at %d, half-closed: answer %.300q, %v; want %.300q", cut, got, err, want)
		}
		c.Close()

		requests, _ = talk(fmt.Sprintf("%04x-1-", cut))
		c = dialTCP(t, s, nil)
		if _, err := io.WriteString(c, strings.Join(requests, "")[:cut]); err != nil {
			t.Fatal(err)
		}
		if cut%2 == 0 {
			reset(c)
		}
		c.Close()
	}
	stop()
}

// Noise is answered by an error or not at all; what is counted stays a closed
// set (J2).
func TestRandomBytes(t *testing.T) {
	s := attacked(t, nil)
	stop := pings(t, s)
	words := []string{
		"\r\n", "*", "$", "*1\r\n", "*3\r\n", "$3\r\n", "$0\r\n\r\n", "SET", "GET", "$-1\r\n", "*-1\r\n", "k", "\"", "'", "\\x", ":1\r\n", "+OK\r\n", "\x00", "\xff",
		"$20000\r\n", "MGET", cmd("SET", "k", "v"), cmd("GET", "k"), cmd("HELLO", "3"), "PING\r\n", "4294967295\r\n", "-", cmd("SET", "s", strings.Repeat("s", 20000)),
	}
	for seed := range uint64(less(150, 400)) {
		rnd := rand.New(rand.NewPCG(3, seed))
		c := dialTCP(t, s, nil)
		var b []byte
		for range 1 + rnd.IntN(30) {
			if rnd.IntN(4) == 0 {
				b = append(b, byte(rnd.IntN(256)))
			} else {
				b = append(b, words[rnd.IntN(len(words))]...)
			}
		}
		for len(b) > 0 {
			n := 1 + rnd.IntN(len(b))
			if _, err := c.Write(b[:n]); err != nil {
				break // it had enough
			}
			b = b[n:]
		}
		c.CloseWrite()
		got, err := io.ReadAll(c)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("seed %d: the connection stays", seed)
		}
		if err == nil { // else the end was lost in a reset
			for len(got) > 0 {
				_, n, err := resp.ReadReply(got)
				if err != nil {
					t.Fatalf("seed %d: %.100q is no answer: %v", seed, got, err)
				}
				got = got[n:]
			}
		}
		c.Close()
	}
	if n := len(s.Stats().Commands); n != tallies {
		t.Errorf("%d kinds of commands are counted, want %d", n, tallies)
	}
	stop()
}

// Numbers on the wire are not believed (I1): each of these is refused or means
// nothing, and costs no memory.
func TestAnnouncedCounts(t *testing.T) {
	s := attacked(t, nil)
	stop := pings(t, s)
	const invalidCount, invalidBulk = "-ERR Protocol error: invalid multibulk length\r\n", "-ERR Protocol error: invalid bulk length\r\n"
	tests := []struct {
		request, want string
		open          bool // the connection goes on
	}{
		{"*2147483647\r\n", invalidCount, false},
		{"*65537\r\n", invalidCount, false},
		{"*9223372036854775807\r\n", invalidCount, false},
		{"*9223372036854775808\r\n", invalidCount, false},
		{"*99999999999999999999999999\r\n", invalidCount, false},
		{"*1x\r\n", invalidCount, false},
		{"*\r\n", invalidCount, false},
		{"*0\r\n", "", true},
		{"*-1\r\n", "", true},
		{"*-9223372036854775808\r\n", "", true},
		{"*65536\r\n", "", false},
		{"*65536\r\n$3\r\nGET\r\n", "", false},
		{"*1\r\n$-1\r\n", invalidBulk, false},
		{"*2\r\n$3\r\nGET\r\n$-1\r\n", invalidBulk, false},
		{"*2\r\n$3\r\nGET\r\n$-2147483648\r\n", invalidBulk, false},
		{"*2\r\n$3\r\nGET\r\n$9223372036854775807\r\n", invalidBulk, false},
		{"*2\r\n$3\r\nGET\r\n$67108865\r\n", invalidBulk, false},
		{"*2\r\n$3\r\nGET\r\n$67108864\r\n", "", false},
		{"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870913\r\n", invalidBulk, false},
		{"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\n", "", false},
		{"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$9223372036854775807\r\n", invalidBulk, false},
		{"*1\r\n*1\r\n*1\r\n", "-ERR Protocol error: expected '$', got '*'\r\n", false},
		{strings.Repeat("*0\r\n", 10000), "", true},
		{strings.Repeat("*1\r\n", 100), "-ERR Protocol error: expected '$', got '*'\r\n", false},
		{"*1\r\n$0\r\n\r\n", "-ERR unknown command ''\r\n", true},
	}
	before := heapInUse()
	var held []net.Conn
	for range less(5, 20) {
		for _, tt := range tests {
			c := dial(t, s)
			if tt.open {
				ask(t, c, tt.request+cmd("PING"), tt.want+"+PONG\r\n")
				continue
			}
			ask(t, c, tt.request, tt.want)
			if tt.want != "" {
				ended(t, tt.request, c, settleBound)
			} else {
				held = append(held, c)
			}
		}
	}
	time.Sleep(20 * time.Millisecond)
	if grown := heapInUse() - before; grown > 8<<20 {
		t.Errorf("%d announcements grew the heap by %d bytes", len(held), grown)
	}
	stop()
}

// At the limit a newcomer is told so and closed; it is let in when one has left,
// however that one left.
func TestConnectionLimit(t *testing.T) {
	const most = 10
	s := attacked(t, func(o *Options) { o.MaxConns, o.OutboundCap = most, 1<<20 })
	putValue(t, s, "k", string(stamped(1, 4<<20)))
	if !comesTrue(settleBound, func() bool { return s.conns.Load() == 0 }) {
		t.Fatalf("%d sessions", s.conns.Load())
	}
	refused := 0
	for _, leave := range []struct {
		name string
		how  func(c *net.TCPConn)
	}{
		{"closed", func(c *net.TCPConn) { c.Close() }},
		{"reset", reset},
		{"asked to", func(c *net.TCPConn) { ask(t, c, cmd("QUIT"), "+OK\r\n") }},
		{"died with answers on their way", func(c *net.TCPConn) {
			io.WriteString(c, strings.Repeat(cmd("GET", "k"), 20))
			comesTrue(settleBound, func() bool { return waiting(s) > 0 })
			reset(c)
		}},
	} {
		var in []*net.TCPConn
		for range most {
			c := dialTCP(t, s, nil)
			ask(t, c, cmd("PING"), "+PONG\r\n")
			in = append(in, c)
		}
		for range 3 {
			c := dial(t, s)
			expect(t, c, "one too many", "-ERR max number of clients reached\r\n")
			ended(t, "one too many", c, settleBound)
			refused++
		}
		ask(t, in[0], cmd("PING"), "+PONG\r\n")
		leave.how(in[most/2])
		if !comesTrue(settleBound, func() bool { return s.conns.Load() == most-1 }) {
			t.Fatalf("one %s: %d sessions, want %d", leave.name, s.conns.Load(), most-1)
		}
		in[most/2] = dialTCP(t, s, nil)
		ask(t, in[most/2], cmd("PING"), "+PONG\r\n")
		if n := s.Stats().Refused; n != uint64(refused) {
			t.Errorf("%d counted as refused, want %d", n, refused)
		}
		for _, c := range in {
			c.Close()
		}
		if !comesTrue(settleBound, func() bool { return s.conns.Load() == 0 }) {
			t.Fatalf("%d sessions", s.conns.Load())
		}
	}
}

// The states in which Shutdown finds connections whose answers are larger than
// what the kernel takes.
var midAnswer = []struct {
	name    string
	clients int
	cap     int // Options.OutboundCap
	left    bool
	close   bool // half-close after the request
}{
	{"in their loops", 50, 64 << 20, false, false},
	{"about to leave their loops", 50, 1, false, false},
	{"out of their loops", 20, 1, true, false},
	{"half-closed", 50, 64 << 20, false, true},
}

// answerSize is more than the kernel takes for a client that does not read.
const answerSize = 5 << 20

// asking connects n clients that have asked for an answer of answerSize bytes and
// have read one byte of it.
func asking(t *testing.T, s *Server, n int, left, half bool) (clients []*net.TCPConn) {
	t.Helper()
	putValue(t, s, "k", string(stamped(1, answerSize)))
	for range n {
		c := narrow(t, s)
		if left {
			io.WriteString(c, cmd("GET", "k"))
			if !comesTrue(settleBound, func() bool { return s.slowConns.Load() > int64(len(clients)) }) {
				t.Fatal("it does not leave its loop")
			}
			expect(t, c, "k", bulk(string(stamped(1, answerSize))))
		}
		clients = append(clients, c)
	}
	for _, c := range clients {
		io.WriteString(c, cmd("GET", "k"))
		if half {
			c.CloseWrite()
		}
	}
	for _, c := range clients {
		expect(t, c, "k", "$")
	}
	return clients
}

// Shutdown lets connections in the middle of an answer have the rest of it.
func TestShutdownDrains(t *testing.T) {
	for _, tt := range midAnswer {
		t.Run(tt.name, func(t *testing.T) {
			s := start(t, func(o *Options) { o.OutboundCap = tt.cap })
			clients := asking(t, s, less(10, tt.clients), tt.left, tt.close)
			want := bulk(string(stamped(1, answerSize)))[1:]
			var all sync.WaitGroup
			for i, c := range clients {
				all.Add(1)
				go func() {
					defer all.Done()
					time.Sleep(100 * time.Millisecond) // Shutdown is under way
					if got, err := io.ReadAll(c); err != nil || string(got) != want {
						t.Errorf("client %d: %d bytes, %v; want %d", i, len(got), err, len(want))
					}
				}()
			}
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			begin := time.Now()
			if err := s.Shutdown(ctx); err != nil {
				t.Errorf("Shutdown: %v after %v", err, time.Since(begin))
			}
			all.Wait()
			if n := s.opt.Engine.Claims(); n != 0 {
				t.Errorf("%d claims", n)
			}
		})
	}
}

// Shutdown does not wait for clients that never read, longer than it may.
func TestShutdownCutsOff(t *testing.T) {
	const bound, grace = 200 * time.Millisecond, 1500 * time.Millisecond
	for _, tt := range midAnswer {
		t.Run(tt.name, func(t *testing.T) {
			s := start(t, func(o *Options) {
				o.OutboundCap = tt.cap
				o.WriteTimeout, o.IdleTimeout = 5*time.Second, 5*time.Second
			})
			asking(t, s, less(10, tt.clients), tt.left, tt.close)
			shutdownWithin(t, s, bound, bound+grace)
		})
	}
	// Connections that have left their loops and go on asking and reading.
	t.Run("busy out of their loops", func(t *testing.T) {
		s := start(t, func(o *Options) {
			o.OutboundCap = 1
			o.WriteTimeout, o.IdleTimeout = 5*time.Second, 5*time.Second
		})
		clients := asking(t, s, 10, true, false)
		var all sync.WaitGroup
		for _, c := range clients {
			all.Add(2)
			go func() {
				defer all.Done()
				io.Copy(io.Discard, c)
			}()
			go func() {
				defer all.Done()
				for {
					if _, err := io.WriteString(c, cmd("GET", "k")); err != nil {
						return
					}
				}
			}()
		}
		time.Sleep(100 * time.Millisecond)
		shutdownWithin(t, s, bound, bound+grace)
		for _, c := range clients {
			c.Close()
		}
		all.Wait()
	})
	t.Run("idle out of their loops", func(t *testing.T) {
		s := start(t, func(o *Options) { o.OutboundCap, o.IdleTimeout = 1, 5*time.Second })
		clients := asking(t, s, 10, true, false)
		for _, c := range clients {
			expect(t, c, "k", bulk(string(stamped(1, answerSize)))[1:])
		}
		shutdownWithin(t, s, bound, bound+grace)
	})
	t.Run("in the middle of sets", func(t *testing.T) {
		s := start(t, nil)
		for range 50 {
			if _, err := io.WriteString(dial(t, s), "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000000\r\nxxx"); err != nil {
				t.Fatal(err)
			}
		}
		shutdownWithin(t, s, bound, bound+grace)
	})
	// Requests arrive at the very moment.
	t.Run("asking meanwhile", func(t *testing.T) {
		for i := 0; i < less(2, 4) && !t.Failed(); i++ {
			s := start(t, func(o *Options) { o.WriteTimeout = 2 * time.Second })
			putValue(t, s, "k", string(stamped(1, 1<<20)))
			var all sync.WaitGroup
			for range 50 {
				c := dialTCP(t, s, nil)
				c.SetDeadline(time.Now().Add(6 * time.Second))
				all.Add(1)
				go func() {
					defer all.Done()
					for {
						if _, err := io.WriteString(c, cmd("GET", "k")); err != nil {
							return
						}
						if _, err := io.CopyN(io.Discard, c, 1<<19); err != nil {
							return
						}
					}
				}()
			}
			time.Sleep(20 * time.Millisecond)
			shutdownWithin(t, s, bound, bound+grace)
			all.Wait()
		}
	})
}

// shutdownWithin gives Shutdown a context of the first and fails when it takes
// longer than the second, or leaves something.
func shutdownWithin(t *testing.T, s *Server, bound, most time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	begin := time.Now()
	err := s.Shutdown(ctx)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown: %v", err)
	}
	if d := time.Since(begin); d > most {
		t.Errorf("Shutdown took %v, may take %v", d, most)
	}
	if n := s.opt.Engine.Claims(); n != 0 {
		t.Errorf("%d claims after Shutdown", n)
	}
	if n := s.conns.Load(); n != 0 {
		t.Errorf("%d sessions after Shutdown", n)
	}
}

// There are fewer handles than slow connections: those without one are closed,
// and everything else goes on, keys with a time to live included.
func TestHandlesRunOut(t *testing.T) {
	s := startWith(t, kvcr.Config{Capacity: 64 << 20, MaxHandles: 6, Namespaces: []kvcr.Namespace{{Name: "default", MaxValue: 8 << 20}}}, func(o *Options) {
		o.Loops, o.OutboundCap = 1, 1
	})
	putValue(t, s, "k", string(stamped(1, answerSize)))
	c := dial(t, s)
	ask(t, c, cmd("SET", "short", "v", "PX", "300"), "+OK\r\n")
	for range 12 {
		slow := narrow(t, s)
		io.WriteString(slow, cmd("GET", "k"))
		expect(t, slow, "k", bulk(string(stamped(1, answerSize))))
	}
	gone := comesTrue(2*time.Second, func() bool {
		answer := make([]byte, 4)
		io.WriteString(c, cmd("EXISTS", "short"))
		if _, err := io.ReadFull(c, answer); err != nil {
			t.Fatal(err)
		}
		return string(answer) == ":0\r\n"
	})
	if !gone {
		t.Error("a key outlives its 300 ms by seconds")
	}
}

// Figures can be asked for while connections come and go: nobody waits for
// anybody for ever.
func TestStatsWhileConnecting(t *testing.T) {
	s := attacked(t, nil)
	// A hang must show where it hangs, and no cleanup would get through it.
	hang := time.AfterFunc(20*time.Second, func() {
		buf := make([]byte, 1<<20)
		panic(fmt.Sprintf("the server hangs\n%s", buf[:runtime.Stack(buf, true)]))
	})
	defer hang.Stop()
	quit := make(chan struct{})
	var asking, coming sync.WaitGroup
	for range 3 {
		asking.Add(1)
		go func() {
			defer asking.Done()
			for {
				select {
				case <-quit:
					return
				default:
					s.Stats()
				}
			}
		}()
	}
	for range 4 {
		coming.Add(1)
		go func() {
			defer coming.Done()
			for range less(30, 80) {
				c := dialTCP(t, s, nil)
				ask(t, c, cmd("PING"), "+PONG\r\n")
				c.Close()
			}
		}()
	}
	coming.Wait()
	close(quit)
	asking.Wait()
}

// Keys that are set again and again with a time to live count once.
func TestExpiryOfTheSameKey(t *testing.T) {
	s := start(t, nil)
	const most = 100
	s.ttl.mu.Lock()
	s.ttl.max = most
	s.ttl.mu.Unlock()
	c := dial(t, s)
	for range 5 * most {
		ask(t, c, cmd("SET", "k", "v", "EX", "1000"), "+OK\r\n")
	}
}

// FuzzSession: no bytes, however they are cut, crash the server, stay without an
// end, are answered by anything but RESP, or leave a claim or a session; and the
// cuts make no difference to the answers.
func FuzzSession(f *testing.F) {
	e, err := kvcr.Open(kvcr.Config{Capacity: 16 << 20, Namespaces: []kvcr.Namespace{{Name: "default", MaxValue: 1 << 20}}})
	if err != nil {
		f.Fatal(err)
	}
	// A unix socket: of closed TCP connections the kernel remembers too many.
	path := filepath.Join(f.TempDir(), "socket")
	s, err := Start(Options{Engine: e, RESP: []string{"unix:" + path}, Loops: 2, AllowFlush: true})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		leftNothing(f, s)
		if err := e.Close(); err != nil {
			f.Errorf("Close: %v", err)
		}
	})
	big := strings.Repeat("b", streamFrom+1)
	for _, seed := range []string{
		cmd("SET", "k", "v") + cmd("GET", "k"),
		cmd("SET", "k", big) + cmd("GET", "k") + cmd("MGET", "k", "none"),
		cmd("SET", "k", big, "NX") + cmd("SET", "k", big, "XX", "PX", "1") + cmd("SET", "k", big, "BOGUS"),
		cmd("SET", "", big) + "PING\r\n", cmd("SET", "k", big)[:300],
		"*0\r\n*-1\r\n\r\nPING\r\n", "*1\r\n$-1\r\n", "*2147483647\r\n", "*65536\r\n", "$1\r\na\r\n",
		"get 'a\\'b' \"\\x00\\n\"\r\nset \"k", "*3\r\n$3\r\nset\r\n$1\r\nk\r\n$20000\r\nxyz",
		cmd("HELLO", "3", "SETNAME", "me") + cmd("GET", "none") + cmd("CONFIG", "GET", "x"),
		cmd("SETNX", "n", "1") + cmd("SETEX", "n", "9", "2") + cmd("MSET", "a", "1", "b", "2") + cmd("DEL", "a", "b", "n") + cmd("DBSIZE"),
		cmd("GETRANGE", "k", "-9223372036854775808", "9223372036854775807") + cmd("STRLEN", "k") + cmd("FLUSHALL"),
		cmd("QUIT") + cmd("PING"), cmd("AUTH", "x") + cmd("SELECT", "1") + cmd("CLIENT", "ID") + cmd("COMMAND", "COUNT") + "INFO\r\n",
	} {
		f.Add([]byte(seed), []byte{1, 7, 255})
		f.Add([]byte(seed), []byte{})
	}
	// talk sends b in pieces of the lengths given, then all the rest, and returns the
	// answers; lost: a reset may have taken the end of them.
	talk := func(t *testing.T, b, cuts []byte) (answers []byte, lost bool) {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(5 * time.Second))
		for _, n := range cuts {
			part := b[:min(len(b), int(n))]
			if _, err := c.Write(part); err != nil {
				lost = true
			}
			b = b[len(part):]
		}
		if _, err := c.Write(b); err != nil {
			lost = true
		}
		c.CloseWrite()
		answers, err = io.ReadAll(c)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("the connection stays")
		}
		return answers, lost || err != nil
	}
	// These answers depend on more than the conversation.
	vary := regexp.MustCompile(`(?i)hello|info|client|px|setex|\bex\b`)
	f.Fuzz(func(t *testing.T, b, cuts []byte) {
		if len(b) > 256<<10 || len(cuts) > 64 {
			t.Skip()
		}
		whole, lost := talk(t, b, nil)
		for rest := whole; len(rest) > 0; {
			_, n, err := resp.ReadReply(rest)
			if err == resp.ErrShort && lost {
				break
			}
			if err != nil {
				t.Fatalf("%.100q is no answer: %v", rest, err)
			}
			rest = rest[n:]
		}
		if again, _ := talk(t, []byte("FLUSHALL\r\n"), nil); string(again) != "+OK\r\n" {
			t.Fatalf("FLUSHALL: %q", again)
		}
		cut, lostCut := talk(t, b, cuts)
		if !vary.Match(b) {
			switch {
			case lost || lostCut:
				n := min(len(whole), len(cut))
				whole, cut = whole[:n], cut[:n]
			}
			if !bytes.Equal(whole, cut) {
				t.Fatalf("in one piece: %.200q\nin pieces %v: %.200q", whole, cuts, cut)
			}
		}
		if again, _ := talk(t, []byte("FLUSHALL\r\n"), nil); string(again) != "+OK\r\n" {
			t.Fatalf("FLUSHALL: %q", again)
		}
		if !comesTrue(settleBound, func() bool { return s.conns.Load() == 0 && e.Claims() == 0 }) {
			t.Fatalf("%d sessions, %d claims left", s.conns.Load(), e.Claims())
		}
	})
}
