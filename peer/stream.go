package peer

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/wire"
)

// streamRoute is payload over connections of our own: BLOCK frames, each followed
// by the bytes of a block, straight from the source's arena into the destination's
// slots.
type streamRoute struct{ n *Node }

func (*streamRoute) Kind() wire.Route           { return wire.RouteStream }
func (*streamRoute) Announce(*wire.PeerInfo)    {}
func (*streamRoute) Usable(*wire.PeerInfo) bool { return true }
func (*streamRoute) Close() error               { return nil }

func (r *streamRoute) Dest(_ context.Context, s *Session) (DestRoute, error) {
	return newStreamDest(s, r.n.cfg.Streams), nil
}

func (r *streamRoute) Source(_ context.Context, s *Session) (SourceRoute, error) {
	return newStreamSource(s), nil
}

// streamSource writes blocks to the payload connections that the destination has
// dialled. All of them take from one queue, so that each is as busy as it can be;
// a block is not split. A connection has a goroutine only while it has something
// to write.
type streamSource struct {
	s *Session

	mu      sync.Mutex
	queue   []*outItem        // in order, with those that were cancelled: not more than half
	queued  int64             // bytes
	byID    map[item]*outItem // of queue, but for those
	streams map[int]*outStream
	down    bool
}

// outItem is a Write.
type outItem struct {
	Write
	cancelled bool
}

// outStream is one payload connection.
type outStream struct {
	src  *streamSource
	nc   net.Conn
	raw  syscall.RawConn
	busy bool // a goroutine, or Flush, writes; guarded by src.mu

	// Of who has set busy.
	all   [][]byte // frames and pieces of the batch
	bufs  [][]byte // those not yet written: a part of all
	heads []byte
	batch []*outItem
}

const (
	// writeBatch is how many bytes of blocks go into one write, at least one block.
	writeBatch = 256 << 10
	// writeItems is the most blocks of one write.
	writeItems = 32
	// inlineMost is how many bytes Flush writes itself, if the kernel takes them: a
	// goroutine would be woken for less than its waking costs.
	inlineMost = 128 << 10
	// unixBuffer is the send buffer of a unix socket in bytes. The kernel's own, a
	// fifth of a MiB, has both ends wait for each other all the time; TCP makes its
	// own as large as needed.
	unixBuffer = 512 << 10
	// maxStreams bounds the payload connections of one session.
	maxStreams = 16

	blockHead = wire.HeaderSize + 12
)

func newStreamSource(s *Session) *streamSource {
	return &streamSource{s: s, byID: map[item]*outItem{}, streams: map[int]*outStream{}}
}

func (r *streamSource) Write(w Write) {
	var have uint64
	for _, b := range r.s.Memory.ClaimBytes(w.Claim) {
		have += uint64(len(b))
	}
	if have < w.Offer.Size { // it lies on a device, for one
		r.s.Event(Written{w.Op, w.Index, wire.StatusUnsupported})
		return
	}
	r.mu.Lock()
	if r.down {
		r.mu.Unlock()
		r.s.Event(Written{w.Op, w.Index, wire.StatusLost})
		return
	}
	it := &outItem{Write: w}
	r.queue = append(r.queue, it)
	r.queued += int64(w.Offer.Size)
	r.byID[item{w.Op, w.Index}] = it
	r.mu.Unlock()
}

func (r *streamSource) CancelWrite(op OpID, index int) {
	id := item{op, index}
	r.mu.Lock()
	it := r.byID[id]
	if it != nil {
		delete(r.byID, id)
		it.cancelled = true
		r.queued -= int64(it.Offer.Size)
		if len(r.queue) > 2*len(r.byID) {
			r.queue = slices.DeleteFunc(r.queue, func(it *outItem) bool { return it.cancelled })
		}
	}
	r.mu.Unlock()
	if it != nil {
		r.s.Event(Written{op, index, wire.StatusAborted})
	}
}

// Flush has the queue written: little of it here and now, else by goroutines.
func (r *streamSource) Flush() {
	r.mu.Lock()
	if len(r.byID) == 0 || r.down {
		r.mu.Unlock()
		return
	}
	if r.queued <= inlineMost {
		for i := range maxStreams { // the lowest, so that a lone block meets a warm one
			st := r.streams[i]
			if st == nil || st.busy {
				continue
			}
			st.busy = true
			st.take()
			r.mu.Unlock()
			st.now()
			return
		}
	}
	r.startLocked()
	r.mu.Unlock()
}

// startLocked wakes connections while there is work for them. mu held.
func (r *streamSource) startLocked() {
	n := len(r.byID)
	for _, st := range r.streams {
		if n == 0 {
			return
		}
		if st.busy {
			continue
		}
		if !r.s.node.spawnAs(roleStream, st.run) {
			return
		}
		st.busy = true
		n--
	}
}

// take moves the next batch to the connection. mu held.
func (st *outStream) take() bool {
	r := st.src
	st.batch, st.all, st.heads = st.batch[:0], st.all[:0], st.heads[:0]
	if cap(st.heads) < writeItems*blockHead {
		st.heads = make([]byte, 0, writeItems*blockHead)
	}
	var size int64
	for len(r.queue) > 0 && len(st.batch) < writeItems {
		it := r.queue[0]
		if it.cancelled {
			r.queue[0] = nil
			r.queue = r.queue[1:]
			continue
		}
		if size > 0 && size+int64(it.Offer.Size) > writeBatch {
			break
		}
		r.queue[0] = nil
		r.queue = r.queue[1:]
		delete(r.byID, item{it.Op, it.Index})
		size += int64(it.Offer.Size)
		st.batch = append(st.batch, it)
	}
	r.queued -= size
	for _, it := range st.batch {
		from := len(st.heads)
		m := wire.Block{Index: uint32(it.Index), Size: it.Offer.Size}
		st.heads = m.Append(st.heads, uint64(it.Op))
		st.all = append(st.all, st.heads[from:])
		for _, b := range r.s.Memory.ClaimBytes(it.Claim) {
			if len(b) > 0 {
				st.all = append(st.all, b)
			}
		}
	}
	st.bufs = st.all
	return len(st.batch) > 0
}

// now writes the batch as far as the kernel takes it at once, and leaves the rest
// to a goroutine.
func (st *outStream) now() {
	var failed error
	err := st.raw.Write(func(fd uintptr) bool {
		for len(st.bufs) > 0 {
			n, err := unix.Writev(int(fd), st.bufs[:min(len(st.bufs), maxIOV)])
			if err == unix.EINTR {
				continue
			}
			if err == unix.EAGAIN {
				break
			}
			if err != nil {
				failed = err
				break
			}
			st.bufs = advance(st.bufs, n)
		}
		return true
	})
	if err = errors.Join(err, failed); err == nil && len(st.bufs) > 0 {
		if st.src.s.node.spawnAs(roleStream, st.rest) {
			return
		}
		err = ErrClosed
	}
	st.done(err)
	if err == nil {
		st.yield()
	}
}

// rest writes what now has left, and then goes on.
func (st *outStream) rest() {
	err := st.write()
	st.done(err)
	if err == nil {
		st.run()
	}
}

// yield lets the connection rest, unless there is more by now.
func (st *outStream) yield() {
	r := st.src
	r.mu.Lock()
	defer r.mu.Unlock()
	st.busy = false
	if len(r.byID) > 0 && !r.down {
		r.startLocked()
	}
}

// run writes batches until there are none.
func (st *outStream) run() {
	r := st.src
	for {
		r.mu.Lock()
		if r.down || !st.take() {
			st.busy = false
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		err := st.write()
		st.done(err)
		if err != nil {
			return
		}
	}
}

// maxIOV is the most parts of one writev that Linux takes.
const maxIOV = 1024

// write writes the batch, and waits for the kernel.
func (st *outStream) write() error {
	bufs := net.Buffers(st.bufs)
	for len(bufs) > 0 {
		if err := st.nc.SetWriteDeadline(time.Now().Add(st.src.s.node.cfg.Stall)); err != nil {
			return err
		}
		n, err := bufs.WriteTo(st.nc)
		if err != nil && !(n > 0 && errors.Is(err, os.ErrDeadlineExceeded)) { // it takes little, but it takes
			return err
		}
	}
	// Else it would pass, and end the next write of now before it began.
	return st.nc.SetWriteDeadline(time.Time{})
}

// done answers for the batch. After an error the connection is closed: nobody
// could tell where the next frame begins.
func (st *outStream) done(err error) {
	r := st.src
	status := wire.StatusOK
	if err != nil {
		status = wire.StatusLost
		r.s.node.log.Debug("a payload connection is lost", "err", err)
		r.mu.Lock()
		for i, other := range r.streams {
			if other == st {
				delete(r.streams, i)
			}
		}
		if len(r.byID) > 0 {
			r.startLocked()
		}
		r.mu.Unlock()
		st.nc.Close()
	}
	r.s.hold()
	for i, it := range st.batch {
		r.s.Event(Written{it.Op, it.Index, status})
		st.batch[i] = nil
	}
	r.s.release()
	clear(st.all) // arena memory is not ours any more
	st.bufs = nil
}

// attach takes a payload connection over; an earlier one of the same index ends.
func (r *streamSource) attach(nc net.Conn, index int, _ string) {
	raw, err := nc.(syscall.Conn).SyscallConn()
	if err != nil || index >= maxStreams {
		nc.Close()
		return
	}
	if uc, ok := nc.(*net.UnixConn); ok {
		_ = uc.SetWriteBuffer(unixBuffer) // else it is as it was: slower
	}
	st := &outStream{src: r, nc: nc, raw: raw}
	r.mu.Lock()
	if r.down {
		r.mu.Unlock()
		nc.Close()
		return
	}
	old := r.streams[index]
	r.streams[index] = st
	if len(r.byID) > 0 {
		r.startLocked()
	}
	r.mu.Unlock()
	if old != nil {
		old.nc.Close() // who writes to it notices
	}
}

func (r *streamSource) Down() {
	r.mu.Lock()
	lost := r.queue
	streams := r.streams
	r.queue, r.queued, r.byID, r.streams, r.down = nil, 0, map[item]*outItem{}, nil, true
	r.mu.Unlock()
	for _, st := range streams {
		st.nc.Close()
	}
	for _, it := range lost {
		if !it.cancelled {
			r.s.Event(Written{it.Op, it.Index, wire.StatusLost})
		}
	}
}

// advance drops n bytes from the front of bufs.
func advance(bufs [][]byte, n int) [][]byte {
	for n > 0 {
		if n < len(bufs[0]) {
			bufs[0] = bufs[0][n:]
			return bufs
		}
		n -= len(bufs[0])
		bufs = bufs[1:]
	}
	return bufs
}
