package load

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"
)

// Spec says what to do to a server.
type Spec struct {
	Network, Addr string // tcp or unix
	Proto         string // resp, memcached, binary; shm and plain: see RunShared
	Op            string // get, set, fill: every key once
	Size          int    // bytes of a value, at least 8
	Keys          int
	Conns         int
	Pipeline      int // requests of a batch
	Duration      time.Duration
	// Rate makes it an open loop: requests a second, sent at their times whatever
	// the server does. Pipeline must be 1.
	Rate float64
	CPU  int // to run on; -1: any
	// Unstamped values are not compared: those of a server without a cache.
	Unstamped bool
}

// Result is what came of it.
type Result struct {
	Ops              uint64
	Seconds          float64
	P50, P99, P999   time.Duration // of a batch, from its (intended) start
	Checked          uint64        // answers compared with what they must be
	BacklogAtTheEnd  int           // open loop: requests that had not been sent
	BytesPerSecond   float64       // of values
	OperationsPerSec float64
	// Latencies of an open loop, from their intended begins: see Histogram.
	Latencies []byte
}

// Histogram is what an open loop measured, in nanoseconds.
func (r *Result) Histogram() (*hdrhistogram.Histogram, error) {
	return hdrhistogram.Decode(r.Latencies)
}

// conn is one connection and its batch.
type conn struct {
	i     int // in runner.conns
	fd    int
	keys  []int
	start time.Time
	// Sending: request and part under way, and what is left to write of them.
	req, part int
	out       [][]byte
	outBuf    []byte
	blocked   bool
	// Receiving.
	want, got int
	reply     []byte // the batch's answers, when they are few bytes
	busy      bool
	id        uint64
}

// checkedBytes is the largest batch of answers that is kept and checked.
const checkedBytes = 256 << 10

type runner struct {
	spec    Spec
	d       *dialect
	set     bool
	value   []byte
	epoll   int
	conns   []*conn
	scratch []byte
	hist    *hdrhistogram.Histogram
	rng     *rand.Rand
	res     Result
	fillAt  int
}

// Run does it. The calling goroutine is locked to its thread.
func Run(spec Spec) (res Result, err error) {
	if spec.Proto == "shm" || spec.Proto == "plain" {
		return RunShared(spec)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if spec.CPU >= 0 {
		var set unix.CPUSet
		set.Set(spec.CPU)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return res, os.NewSyscallError("sched_setaffinity", err)
		}
	}
	if spec.Size < 8 || spec.Keys < 1 || spec.Conns < 1 || spec.Pipeline < 1 || spec.Rate > 0 && spec.Pipeline != 1 {
		return res, fmt.Errorf("load: %+v: sizes from 8, all counts from 1, a rate with pipeline 1 only", spec)
	}
	d, err := dialectOf(spec.Proto, spec.Size)
	if err != nil {
		return res, err
	}
	r := &runner{
		spec: spec, d: d, set: spec.Op != "get", value: make([]byte, spec.Size), scratch: make([]byte, 1<<20),
		hist: hdrhistogram.New(1000, int64(10*time.Minute), 3), rng: rand.New(rand.NewPCG(1, uint64(spec.Size))),
	}
	for i := range r.value {
		r.value[i] = byte(i * 7)
	}
	if r.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return res, os.NewSyscallError("epoll_create1", err)
	}
	defer unix.Close(r.epoll)
	defer func() {
		for _, c := range r.conns {
			unix.Close(c.fd)
		}
	}()
	for range spec.Conns {
		if err := r.dial(); err != nil {
			return res, err
		}
	}
	if err := r.run(); err != nil {
		return res, err
	}
	if spec.Rate > 0 {
		if r.res.Latencies, err = r.hist.Encode(hdrhistogram.V2CompressedEncodingCookieBase); err != nil {
			return res, err
		}
	}
	r.res.P50 = time.Duration(r.hist.ValueAtQuantile(50))
	r.res.P99 = time.Duration(r.hist.ValueAtQuantile(99))
	r.res.P999 = time.Duration(r.hist.ValueAtQuantile(99.9))
	r.res.OperationsPerSec = float64(r.res.Ops) / r.res.Seconds
	r.res.BytesPerSecond = r.res.OperationsPerSec * float64(spec.Size)
	return r.res, nil
}

func (r *runner) dial() error {
	nc, err := net.DialTimeout(r.spec.Network, r.spec.Addr, 5*time.Second)
	if err != nil {
		return err
	}
	defer nc.Close()
	if err := r.d.greet(nc); err != nil {
		return err
	}
	f, err := nc.(interface{ File() (*os.File, error) }).File()
	if err != nil {
		return err
	}
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return err
	}
	c := &conn{i: len(r.conns), fd: fd}
	r.conns = append(r.conns, c)
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(c.i)}
	return unix.EpollCtl(r.epoll, unix.EPOLL_CTL_ADD, fd, &ev)
}

func (r *runner) replyBytes() int {
	if r.set {
		return r.d.setReply
	}
	return r.d.getReply
}

// begin starts a batch on an idle connection; false when fill has no keys left.
func (r *runner) begin(c *conn, at time.Time) (bool, error) {
	c.keys = c.keys[:0]
	for range r.spec.Pipeline {
		if r.spec.Op == "fill" {
			if r.fillAt == r.spec.Keys {
				break
			}
			c.keys = append(c.keys, r.fillAt)
			r.fillAt++
		} else {
			c.keys = append(c.keys, r.rng.IntN(r.spec.Keys))
		}
	}
	if len(c.keys) == 0 {
		return false, nil
	}
	c.start, c.req, c.part, c.got, c.busy = at, 0, 0, 0, true
	c.out, c.outBuf = c.out[:0], c.outBuf[:0]
	c.want = len(c.keys) * r.replyBytes()
	if c.want <= checkedBytes && cap(c.reply) < c.want {
		c.reply = make([]byte, checkedBytes)
	}
	return true, r.send(c)
}

// render fills c.out with more of the batch.
func (r *runner) render(c *conn) {
	c.out, c.outBuf = c.out[:0], c.outBuf[:0]
	if !r.set {
		for ; c.req < len(c.keys); c.req++ {
			c.id++
			c.outBuf = r.d.get(c.outBuf, c.keys[c.req], c.id)
		}
		c.out = append(c.out, c.outBuf)
		return
	}
	// Small values are put together in one buffer; of large ones one part at a
	// time is written from the shared value.
	for c.req < len(c.keys) {
		if c.part == 0 {
			c.id++
		}
		n := r.d.parts[c.part]
		from := 0
		for _, p := range r.d.parts[:c.part] {
			from += p
		}
		c.outBuf = r.d.head(c.outBuf, c.keys[c.req], c.id, c.part)
		if c.part == 0 {
			// The stamp of the key, then the shared rest.
			c.outBuf = binary.LittleEndian.AppendUint64(c.outBuf, stampOf(c.keys[c.req]))
			from, n = from+8, n-8
		}
		large := n > 16<<10
		if large {
			c.out = append(c.out, c.outBuf, r.value[from:from+n])
		} else {
			c.outBuf = append(c.outBuf, r.value[from:from+n]...)
		}
		last := c.part == len(r.d.parts)-1
		if c.part++; last {
			c.part = 0
			c.req++
		}
		if large {
			if last && len(r.d.tail) > 0 {
				c.out = append(c.out, r.d.tail)
			}
			return
		}
		if last {
			c.outBuf = append(c.outBuf, r.d.tail...)
		}
		if len(c.outBuf) > 128<<10 {
			break
		}
	}
	c.out = append(c.out, c.outBuf)
}

// send writes as much of the batch as the kernel takes.
func (r *runner) send(c *conn) error {
	for {
		if len(c.out) == 0 {
			if c.req == len(c.keys) {
				return r.watch(c, false)
			}
			r.render(c)
		}
		n, err := unix.Writev(c.fd, c.out)
		if err == unix.EAGAIN {
			return r.watch(c, true)
		}
		if err != nil {
			return os.NewSyscallError("writev", err)
		}
		for n > 0 {
			if n < len(c.out[0]) {
				c.out[0] = c.out[0][n:]
				break
			}
			n -= len(c.out[0])
			c.out = c.out[1:]
		}
	}
}

// watch asks epoll for room to write, or not.
func (r *runner) watch(c *conn, room bool) error {
	if c.blocked == room {
		return nil
	}
	c.blocked = room
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(c.i)}
	if room {
		ev.Events |= unix.EPOLLOUT
	}
	return unix.EpollCtl(r.epoll, unix.EPOLL_CTL_MOD, c.fd, &ev)
}

// receive reads answers and reports whether the batch is complete.
func (r *runner) receive(c *conn) (bool, error) {
	for {
		buf := r.scratch
		keep := c.want <= checkedBytes
		if keep {
			buf = c.reply[c.got:c.want]
		}
		n, err := unix.Read(c.fd, buf)
		if err == unix.EAGAIN {
			return false, nil
		}
		if err != nil {
			return false, os.NewSyscallError("read", err)
		}
		if n == 0 {
			return false, fmt.Errorf("load: the server closed the connection")
		}
		if !keep && len(r.d.parts) == 1 {
			if err := r.glance(c, buf[:n]); err != nil {
				return false, err
			}
		}
		if c.got += n; c.got > c.want {
			return false, fmt.Errorf("load: %d bytes of answers, expected %d: is every key there?", c.got, c.want)
		}
		if c.got == c.want {
			if keep {
				return true, r.check(c)
			}
			return true, nil
		}
		if n < len(buf) {
			return false, nil // most likely there is no more
		}
	}
}

// check compares the answers of a batch.
func (r *runner) check(c *conn) error {
	size := r.replyBytes()
	for i, key := range c.keys {
		if err := r.checkOne(c.reply[i*size:][:size], key); err != nil {
			return err
		}
	}
	return nil
}

// checkOne compares the begin of an answer, up to the key's number in the value.
func (r *runner) checkOne(b []byte, key int) error {
	begins := r.d.getBegins
	if r.set {
		begins = r.d.setBegins
	}
	if !bytes.HasPrefix(b, begins) {
		return fmt.Errorf("load: answer %.40q, expected it to begin with %q", b, begins)
	}
	if !r.set && !r.spec.Unstamped && binary.LittleEndian.Uint64(b[r.d.valueAt:]) != stampOf(key) {
		return fmt.Errorf("load: WRONG BYTES: the value of key %d carries another key's number", key)
	}
	r.res.Checked++
	return nil
}

// glance compares those answers of a large batch whose begin lies whole in what
// was just read. Values of several frames come in any order and are passed over.
func (r *runner) glance(c *conn, b []byte) error {
	size := r.replyBytes()
	need := r.d.valueAt + 8
	for i := (c.got + size - 1) / size; i < len(c.keys) && i*size+need <= c.got+len(b); i++ {
		if err := r.checkOne(b[i*size-c.got:], c.keys[i]); err != nil {
			return err
		}
	}
	return nil
}

func (r *runner) run() error {
	begin := time.Now()
	end := begin.Add(r.spec.Duration)
	open := r.spec.Rate > 0
	var idle []*conn
	idle = append(idle, r.conns...)
	sent := 0
	due := func(i int) time.Time { return begin.Add(time.Duration(float64(i) / r.spec.Rate * 1e9)) }
	busy := 0
	start := func() error {
		for len(idle) > 0 {
			now := time.Now()
			at := now
			if open {
				if at = due(sent); at.After(now) || at.After(end) {
					return nil
				}
			} else if r.spec.Op != "fill" && now.After(end) {
				return nil
			}
			c := idle[len(idle)-1]
			ok, err := r.begin(c, at)
			if err != nil || !ok {
				return err
			}
			idle = idle[:len(idle)-1]
			busy++
			sent++
		}
		return nil
	}
	events := make([]unix.EpollEvent, 256)
	for {
		if err := start(); err != nil {
			return err
		}
		if busy == 0 && (r.spec.Op == "fill" || time.Now().After(end)) {
			break
		}
		wait := 1000
		if open {
			wait = 0 // it spins: a late send would be the generator's fault
		}
		n, err := unix.EpollWait(r.epoll, events, wait)
		if err != nil && err != unix.EINTR {
			return os.NewSyscallError("epoll_wait", err)
		}
		for _, ev := range events[:max(n, 0)] {
			c := r.conns[ev.Fd]
			if ev.Events&unix.EPOLLOUT != 0 {
				if err := r.send(c); err != nil {
					return err
				}
			}
			if ev.Events&^unix.EPOLLOUT == 0 || !c.busy {
				continue
			}
			done, err := r.receive(c)
			if err != nil {
				return err
			}
			if !done {
				continue
			}
			now := time.Now()
			_ = r.hist.RecordValue(max(1000, now.Sub(c.start).Nanoseconds())) // within range
			r.res.Ops += uint64(len(c.keys))
			c.busy = false
			busy--
			idle = append(idle, c)
			if !open {
				if err := start(); err != nil {
					return err
				}
			}
		}
	}
	r.res.Seconds = time.Since(begin).Seconds()
	if open {
		r.res.BacklogAtTheEnd = max(0, int(r.spec.Rate*r.spec.Duration.Seconds())-sent)
	}
	return nil
}
