package peer

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/panjf2000/gnet/v2"
	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/wire"
)

// control is a control connection after its handshake. Its event loop reads it;
// anybody writes, to a descriptor of our own, since the loop's may be closed and
// taken over by another connection at any time.
type control struct {
	node *Node
	to   receiver
	name string // for logs
	// fromServer: the peer is the server, so we are the destination.
	fromServer bool

	// Of the loop.
	in   []byte // a frame that is not whole
	fast int    // bytes of frames since the last pace

	once  sync.Once
	ended atomic.Bool // the receiver hears of the end, or has
	onEnd func()      // run after the receiver has heard of the end; may be nil

	mu    sync.Mutex
	gc    gnet.Conn // nil before the loop has it
	fd    int       // ours; -1: closed
	queue []byte    // what the kernel has not taken
	// writing: a goroutine does, draining bytes that are not in queue any more.
	writing  bool
	draining int
	dead     bool
	why      error // of the end, if it was ours
}

// receiver is who a control connection belongs to.
type receiver interface {
	// batch returns the link that takes the frames.
	batch() *link
	frame(c *control, id uint64, m wire.Message)
	pace() // waits until the frames so far are being dealt with
	// garbled is a frame that is no message of its type; the connection ends.
	garbled(c *control, id uint64, err error)
	lost(c *control)
}

// outQueue is how many bytes may wait for a peer that does not read, before its
// connection is closed. More than all answers to all operations that it may have.
const outQueue = 16 << 20

// copyAtOnce is the most bytes of a read of which messages share a copy.
const copyAtOnce = 2 << 10

// outFree is what may wait whatever waits for others: so that they cannot have a
// connection closed that has little to say.
const outFree = 64 << 10

// newControl prepares an authenticated connection: from here on it can be written
// to. On failure the connection is closed.
func (n *Node) newControl(nc net.Conn, to receiver, name string, fromServer bool) (*control, error) {
	c := &control{node: n, to: to, name: name, fromServer: fromServer, fd: -1}
	raw, err := nc.(syscall.Conn).SyscallConn()
	if err != nil {
		nc.Close()
		return nil, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		c.fd, failed = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
		if _, ok := nc.(*net.TCPConn); ok {
			tune(int(fd))
		}
	})
	if err = errors.Join(err, failed); err != nil {
		nc.Close()
		return nil, err
	}
	return c, nil
}

// enroll hands a connection to the event loops, which take it over. first is run
// before anything is read from it. When it fails the receiver hears that the
// connection is lost.
func (n *Node) enroll(nc net.Conn, c *control, first func()) error {
	if !n.addControl(c) {
		nc.Close()
		c.close()
		c.over()
		return ErrClosed
	}
	first()
	_, err := n.loops.EnrollContext(nc, c) // it closes nc
	if err == nil && !c.opened() {
		err = errors.New("the event loop does not watch it") // gnet does not say so
	}
	if err != nil {
		c.close()
		c.over()
	}
	return err
}

// over tells once that nothing comes from the connection any more.
func (c *control) over() {
	c.once.Do(func() {
		c.node.dropControl(c)
		c.ended.Store(true)
		c.to.lost(c)
		if c.onEnd != nil {
			c.onEnd()
		}
	})
}

// opened reports whether an event loop has had the connection.
func (c *control) opened() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gc != nil || c.dead
}

// tune has a dead link noticed: by probes while it is silent, and by what is not
// acknowledged while it is not.
func tune(fd int) {
	// Errors mean a link that is noticed later.
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 15)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 5)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 20_000)
}

// write sends b, which is not kept, behind what waits. It never blocks.
func (c *control) write(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return
	}
	if len(c.queue) == 0 && !c.writing {
		for len(b) > 0 {
			n, err := unix.Write(c.fd, b)
			if err == unix.EINTR {
				continue
			}
			if err == unix.EAGAIN {
				break
			}
			if err != nil {
				c.endLocked(os.NewSyscallError("write", err))
				return
			}
			b = b[n:]
		}
	}
	if len(b) == 0 {
		return
	}
	waits := len(c.queue) + c.draining + len(b)
	if all := &c.node.count.outbound; waits > outQueue || waits > outFree && all.Load()+int64(len(b)) > c.node.cfg.MaxOutbound {
		c.endLocked(fmt.Errorf("%d bytes wait for the peer to read, %d for all peers", waits, all.Load()))
		return
	}
	c.queue = append(c.queue, b...)
	c.node.count.outbound.Add(int64(len(b)))
	if !c.writing {
		dup, err := unix.FcntlInt(uintptr(c.fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			c.endLocked(os.NewSyscallError("dup", err))
			return
		}
		f := os.NewFile(uintptr(dup), "control")
		if !c.node.spawn(func() { c.drain(f) }) {
			f.Close()
			c.endLocked(ErrClosed)
			return
		}
		c.writing = true
	}
}

// drain writes the queue, waiting for the kernel, until it is empty.
func (c *control) drain(f *os.File) {
	defer f.Close()
	for {
		c.mu.Lock()
		b := c.queue
		c.node.count.outbound.Add(int64(-c.draining))
		c.queue, c.draining = nil, len(b)
		if len(b) == 0 || c.dead {
			c.writing = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		for len(b) > 0 {
			f.SetWriteDeadline(time.Now().Add(c.node.cfg.Stall))
			n, err := f.Write(b)
			if b = b[n:]; err != nil && !(n > 0 && errors.Is(err, os.ErrDeadlineExceeded)) {
				c.fail(err)
				break
			}
		}
	}
}

// fail ends the connection for a reason.
func (c *control) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(err)
}

// close ends the connection. What was written before is still sent.
func (c *control) close() { c.fail(nil) }

func (c *control) endLocked(why error) {
	if c.dead {
		return
	}
	c.node.count.outbound.Add(int64(-len(c.queue)))
	c.dead, c.why, c.queue = true, why, nil
	// The loop's descriptor is another: without this the peer would see the end
	// only when the loop has closed it.
	_ = unix.Shutdown(c.fd, unix.SHUT_RDWR) // it may have ended by itself
	unix.Close(c.fd)
	c.fd = -1
	if c.gc != nil {
		_ = c.gc.Close() // asynchronous, and no harm when it is closed
	}
}

// events are what gnet calls, on its loops.
type events struct{ gnet.BuiltinEventEngine }

func (*events) OnOpen(gc gnet.Conn) ([]byte, gnet.Action) {
	roleLoop.Take() // gnet starts its goroutines itself
	c := gc.Context().(*control)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return nil, gnet.Close
	}
	c.gc = gc
	return nil, gnet.None
}

func (*events) OnTraffic(gc gnet.Conn) gnet.Action {
	c := gc.Context().(*control)
	b, err := gc.Next(-1)
	if err != nil || len(b) == 0 {
		return gnet.None
	}
	if len(c.in) > 0 {
		c.in = append(c.in, b...)
		b = c.in
	}
	l := c.to.batch()
	l.hold()
	rest, err := c.feed(b)
	l.release()
	if err != nil {
		c.node.log.Warn("a peer's connection is closed: its frames make no sense", "peer", c.name, "err", err)
		c.write((&wire.ErrorReply{Code: wire.CodeOf(err), Text: err.Error()}).Append(nil, 0))
		c.fail(err)
		return gnet.Close
	}
	switch {
	case len(rest) == 0:
		c.in = c.in[:0]
		if cap(c.in) > outKept {
			c.in = nil
		}
	case len(c.in) > 0:
		if len(rest) < len(c.in) {
			c.in = c.in[:copy(c.in, rest)]
		}
	default:
		c.in = append(c.in, rest...)
	}
	return gnet.None
}

func (*events) OnClose(gc gnet.Conn, err error) gnet.Action {
	c := gc.Context().(*control)
	c.fail(err)
	c.over()
	return gnet.None
}

// feed hands on the whole frames in b and returns the rest.
func (c *control) feed(b []byte) (rest []byte, err error) {
	// A message aliases its payload and may be kept. Small ones that came together
	// have one copy, of which each keeps little that is not its own.
	copied := len(b) <= copyAtOnce
	if copied {
		b = append([]byte(nil), b...)
	}
	for {
		h, payload, rest, err := wire.Next(b)
		if errors.Is(err, wire.ErrShort) {
			return b, nil
		}
		if err != nil {
			return nil, err
		}
		b = rest
		m := wire.New(h.Type)
		if m == nil { // a later version knows more
			c.write((&wire.ErrorReply{Code: wire.CodeBadType, Text: "not known here"}).Append(nil, h.ID))
			continue
		}
		if c.fromServer && !h.Type.FromServer() || !c.fromServer && !h.Type.FromClient() {
			return nil, fmt.Errorf("%v from the wrong side", h.Type)
		}
		if !copied {
			payload = append([]byte(nil), payload...)
		}
		if err := m.Parse(payload); err != nil {
			c.to.garbled(c, h.ID, err)
			return nil, err
		}
		c.to.frame(c, h.ID, m)
		if c.fast += wire.HeaderSize + len(payload); c.fast >= paceBytes {
			c.fast = 0
			c.to.pace()
		}
	}
}
