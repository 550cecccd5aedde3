package client

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// limits are the node's, and never beyond the protocol's own.
type limits struct {
	value    uint64 // bytes of a value
	key      int    // bytes
	chunk    int    // bytes of a value in one frame
	inFlight int    // requests
}

// conn is one connection after its handshake. See the package comment for C1 to
// C4.
type conn struct {
	cl  *Client
	nc  net.Conn
	raw syscall.RawConn
	lim limits

	slots chan struct{} // one element for each id in the table
	gone  chan struct{} // closed by fail
	ok    atomic.Bool   // takes new requests
	load  atomic.Int32  // live calls, for who chooses a connection
	reads atomic.Uint64 // times that bytes have come

	// in[r:w] is what was read and not yet used; the reader's.
	in   []byte
	r, w int

	// For the parts of a frame that are read straight to where they go; the
	// reader's. readFn is readReady, once made.
	direct struct {
		id   uint64
		left int // bytes of the frame
		err  error
	}
	readFn func(uintptr) bool

	// rmu is held while the reader touches a call or its caller's memory.
	rmu sync.Mutex

	// wmu is held while what follows is touched.
	wmu  sync.Mutex
	out  []byte // frames being written, from sent on
	sent int
	part []byte // bytes of a value that follow out
	cur  *call  // whose caller owns part, nil: nobody's
	// Of who has set writing. wait: wait until the kernel takes everything; full
	// and err say how the last attempt ended. writeFn is writeReady, once made.
	wait, full bool
	err        error
	writeFn    func(uintptr) bool

	mu      sync.Mutex
	calls   map[uint64]*call
	lastID  uint64
	live    int // calls in the table that are no tombstones
	buf     []byte
	round   uint64  // the one that will take buf
	bulk    []*call // with bytes of a value still to be taken, in turn
	writing bool
	dead    *Error // why the connection is over
	bye     *Error // why it will be: the node takes no more requests
	broken  error  // why nothing can be written any more; writing stays set
	// claims are those of this connection: our number to the node's.
	claims map[uint64]uint64
	// quietSince is when the first call gave up since bytes came last, at the
	// quietMark-th read. Zero: none has.
	quietSince time.Time
	quietMark  uint64
}

const (
	readBuffer = 32 << 10
	// bufKept is the most memory in bytes that a connection keeps for its next
	// frames.
	bufKept = 256 << 10
	// roundsForOthers bounds how long a caller writes what others have added; 2 to
	// 16 measured the same.
	roundsForOthers = 4
)

func newConn(cl *Client, nc net.Conn, raw syscall.RawConn, lim limits) *conn {
	c := &conn{
		cl: cl, nc: nc, raw: raw, lim: lim,
		slots: make(chan struct{}, lim.inFlight), gone: make(chan struct{}),
		in: make([]byte, readBuffer), calls: map[uint64]*call{}, claims: map[uint64]uint64{},
	}
	c.readFn, c.writeFn = c.readReady, c.writeReady
	c.ok.Store(true)
	return c
}

// run sends a call's request and waits for its end. The error is that of a call
// without an answer.
func (c *conn) run(ctx context.Context, expired <-chan time.Time, k *call) *Error {
	if err := k.check(&c.lim); err != nil {
		return err
	}
	select {
	case c.slots <- struct{}{}:
	default:
		select {
		case c.slots <- struct{}{}:
		case <-c.gone:
			return &Error{Err: ErrLost}
		case <-ctx.Done():
			return &Error{Err: ended(ctx)}
		case <-expired:
			return &Error{Err: ErrTimeout}
		}
	}
	if !c.start(k) {
		return &Error{Err: ErrLost}
	}
	var err error
	select {
	case <-k.done:
		return k.err
	case <-ctx.Done():
		err = ended(ctx)
	case <-expired:
		err = ErrTimeout
	}
	if !c.abandon(k) {
		return k.err // the answer was there first
	}
	return &Error{Err: err, MayHaveRun: k.handed}
}

// start puts a call into the table and its request on the way. The caller has
// taken a slot; false: the connection takes no more requests.
func (c *conn) start(k *call) bool {
	c.mu.Lock()
	if c.dead != nil || c.bye != nil || c.broken != nil {
		c.mu.Unlock()
		<-c.slots
		return false
	}
	if k.op == opFetch && len(k.claims) > 0 {
		c.giveAlong(k)
	}
	c.lastID++
	k.id, k.round = c.lastID, c.round
	c.calls[k.id] = k
	c.live++
	c.load.Store(int32(c.live))
	c.buf = k.append(c.buf, &c.lim)
	if k.bulk {
		c.bulk = append(c.bulk, k)
	}
	crowd := c.live > 1
	mine := c.takeRole()
	c.mu.Unlock()
	if mine {
		if crowd {
			// Others are about to send, most likely: let them add their frames.
			// Measured, ns for a GET of 128 bytes, with 1 and with 64 callers on two
			// cores: 8400 and 1150; without this 8800 and 2450; with a goroutine
			// that writes, which yields, 9600 and 1250.
			runtime.Gosched()
		}
		c.push()
	}
	return true
}

// takeRole reports whether the caller has to write now. mu held.
func (c *conn) takeRole() bool {
	if c.writing || c.dead != nil {
		return false
	}
	c.writing = true
	return true
}

// push writes what there is, without waiting. What the kernel does not take is
// left to a goroutine. The caller has set writing.
func (c *conn) push() {
	for range roundsForOthers {
		if !c.take() {
			return
		}
		if !c.write(false) {
			return
		}
		if c.full {
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead == nil {
		c.cl.work.Add(1) // not from zero: the reader is there until after fail
		go c.flush()
	}
}

// flush writes until there is nothing more.
func (c *conn) flush() {
	defer c.cl.work.Done()
	roleWriter.Take()
	for c.write(true) && c.take() {
	}
}

// take makes the next round of what is to be written: all frames, and one chunk
// of a long value. It reports false, and ends the caller's role, if there is
// nothing.
func (c *conn) take() bool {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead != nil || len(c.buf) == 0 && len(c.bulk) == 0 {
		c.writing = false
		return false
	}
	old := c.out[:0]
	if cap(old) > bufKept {
		old = nil
	}
	c.out, c.buf, c.sent = c.buf, old, 0
	c.round++
	if len(c.bulk) > 0 {
		k := c.bulk[0]
		c.bulk = slices.Delete(c.bulk, 0, 1)
		n := min(len(k.src)-k.at, c.lim.chunk)
		c.cur, c.part = k, k.src[k.at:k.at+n]
		more := k.at+n < len(k.src)
		c.out = wire.AppendDataHeader(c.out, k.id, uint64(k.at), n, more)
		k.at += n
		if more {
			c.bulk = append(c.bulk, k)
		}
	}
	return true
}

// write writes the round, and waits for the kernel if it may; full says whether
// something is left. False: the connection is dead.
func (c *conn) write(wait bool) bool {
	c.wait, c.err = wait, nil
	err := c.raw.Write(c.writeFn)
	if err == nil {
		err = c.err
	}
	if err != nil {
		c.writeFailed(err)
		return false
	}
	return true
}

// lastWord is how long a connection that takes no more bytes is still read from:
// the node may have said why.
const lastWord = 100 * time.Millisecond

// writeFailed leaves the end of the connection to the reader, soon.
func (c *conn) writeFailed(err error) {
	c.mu.Lock()
	c.ok.Store(false)
	c.broken = err
	c.mu.Unlock()
	c.nc.SetReadDeadline(time.Now().Add(lastWord))
}

// writeReady writes the round as far as the kernel takes it now. It reports
// whether the attempt is over.
func (c *conn) writeReady(fd uintptr) bool {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	for c.sent < len(c.out) || len(c.part) > 0 {
		n, err := writev(fd, c.out[c.sent:], c.part)
		switch err {
		case nil:
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			c.full = true
			return !c.wait
		default:
			c.err = err
			return true
		}
		text := min(n, len(c.out)-c.sent)
		c.sent += text
		c.part = c.part[n-text:]
	}
	c.full, c.part, c.cur = false, nil, nil
	return true
}

// detach takes the memory of k's caller out of the writer's hands. What is left of
// the frame is sent from a copy.
func (c *conn) detach(k *call) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if c.cur == k {
		c.part, c.cur = bytes.Clone(c.part), nil
	}
}

// stopSending takes a long value out of the queue and reports whether the node
// still waits for a part of it. mu held.
func (c *conn) stopSending(k *call) bool {
	if !k.bulk || k.at == len(k.src) {
		return false
	}
	c.bulk = slices.DeleteFunc(c.bulk, func(o *call) bool { return o == k })
	return true
}

// wasHanded reports whether all of a request was taken to be written. mu held.
func (c *conn) wasHanded(k *call) bool {
	return k.round < c.round && (!k.bulk || k.at == len(k.src))
}

// abandon gives a call up and leaves a tombstone. False: it has ended meanwhile.
// Either way nobody but the caller knows of k afterwards, nor of its memory.
func (c *conn) abandon(k *call) bool {
	c.mu.Lock()
	if c.calls[k.id] != k {
		c.mu.Unlock()
		<-k.done // who took it out is about to say so
		return false
	}
	k.handed = c.wasHanded(k)
	c.calls[k.id] = tombstone
	if k.op == opFetch {
		c.calls[k.id] = claimsTombstone
	}
	if k.op == opReserve {
		c.calls[k.id] = placeTombstone
	}
	c.ended(k)
	if n := c.reads.Load(); c.quietSince.IsZero() || n != c.quietMark {
		c.quietSince, c.quietMark = time.Now(), n
	}
	// A RELEASE has to happen: claims that stay are memory lost to the node.
	if k.op != opRelease {
		c.buf = (&wire.Cancel{Target: k.id}).Append(c.buf, 0)
	}
	over := c.bye
	if c.live > 0 {
		over = nil
	}
	mine := c.takeRole()
	c.mu.Unlock()
	if k.bulk {
		c.detach(k)
	}
	c.rmu.Lock() // C3
	c.rmu.Unlock()
	if mine {
		c.push()
	}
	if over != nil {
		c.fail(over)
	}
	return true
}

// ended counts a live call out of the table and its value out of the queue; it
// reports whether the node still waits for a part of that. mu held.
func (c *conn) ended(k *call) bool {
	c.live--
	c.load.Store(int32(c.live))
	return c.stopSending(k)
}

// fail ends the connection and all its calls, for a reason that the first caller
// gives. It must not be called with a lock held.
func (c *conn) fail(why *Error) {
	c.mu.Lock()
	if c.dead != nil {
		c.mu.Unlock()
		return
	}
	c.dead = why
	c.ok.Store(false)
	calls := c.calls
	for _, k := range calls {
		if !isTombstone(k) {
			k.handed = c.wasHanded(k)
		}
	}
	c.calls, c.bulk, c.buf, c.claims = nil, nil, nil, nil
	c.live = 0
	c.load.Store(0)
	c.mu.Unlock()
	c.nc.Close()
	c.wmu.Lock()
	c.out, c.sent, c.part, c.cur = nil, 0, nil, nil
	c.wmu.Unlock()
	c.rmu.Lock() // C3
	c.rmu.Unlock()
	for _, k := range calls {
		if !isTombstone(k) {
			k.err = why.of(k.op, k.handed)
			k.done <- struct{}{}
		}
	}
	close(c.gone)
	c.cl.opt.Log.Debug("connection ended", "addr", c.cl.opt.Addr, "err", why)
}

// lost ends the connection because the system says that it is over.
func (c *conn) lost(cause error) {
	c.mu.Lock()
	if c.broken != nil && errors.Is(cause, os.ErrDeadlineExceeded) {
		cause = c.broken
	}
	why := &Error{Op: "connection", Addr: c.cl.opt.Addr, Err: ErrLost, Cause: cause}
	if c.bye != nil {
		why.Code, why.Text = c.bye.Code, c.bye.Text
	}
	c.mu.Unlock()
	c.fail(why)
}

// stuck ends a connection on which a call gave up longer than limit ago and
// nothing has come since.
func (c *conn) stuck(limit time.Duration) bool {
	c.mu.Lock()
	if c.quietSince.IsZero() {
		c.mu.Unlock()
		return false
	}
	if c.reads.Load() != c.quietMark {
		c.quietSince = time.Time{}
	}
	quiet := !c.quietSince.IsZero() && time.Since(c.quietSince) > limit
	c.mu.Unlock()
	if quiet {
		c.lost(errQuiet)
	}
	return quiet
}
