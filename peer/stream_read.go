package peer

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/internal/blockcopy"
	"github.com/kvcr-go/kvcr/internal/points"
	"github.com/kvcr-go/kvcr/wire"
)

// inStream is the place of one payload connection, which comes and goes.
type inStream struct {
	d     *streamDest
	index int
	alive bool     // a goroutine dials or reads; guarded by d.mu
	nc    net.Conn // guarded by d.mu; nil: none

	// For judge, guarded by d.mu but for reads.
	dialled uint64        // moment
	brought uint64        // the last moment when a block that came was posted
	reads   atomic.Uint64 // that brought something
	judged  uint64        // reads, when judge looked last
	silent  bool          // from then to now

	// Of the goroutine.
	raw  syscall.RawConn
	head [blockHead]byte
	have int // bytes in head
	bufs [][]byte
	// moved: something came since the deadline passed last, which was at quiet if
	// not.
	moved bool
	quiet time.Time
	part  [1][]byte // the first of bufs, shortened
	into  [][]byte  // what readv reads into
	n     int       // what it has read
	err   error
	// attempt is try, made once.
	attempt func(uintptr) bool
	sum     blockcopy.Growing // of the block that is being read
	// held is the size of blocks that have come and wait to be told of together, 0: none.
	held int
}

const (
	// linger is how long a connection is read from when nothing is posted any
	// more.
	linger = time.Second
	// maxBlock is the most bytes that a BLOCK may name; no pool has larger slots.
	maxBlock = 1 << 40
	// readPart is the most that is read at once of a block with a checksum: it is
	// summed while it is in the nearest caches.
	readPart = 256 << 10
	// unaskedMost is how many bytes of blocks that were never asked for are read,
	// in one session, before they end its payload connections.
	unaskedMost = 1 << 20
	// heldMost is how many bytes of blocks are told of together, while more comes
	// without a wait: a few small ones.
	heldMost = 64 << 10
	// drainPart is what is read at once of a block that nobody wants.
	drainPart = 64 << 10
)

// run reads the connection, dialling it first, and again when it is lost, until
// nothing is posted for a while.
func (st *inStream) run() {
	d := st.d
	for failures := 0; ; failures++ {
		if failures > 0 {
			select {
			case <-d.ctx.Done():
			case <-time.After(backoffAfter(failures - 1)):
			}
		}
		d.mu.Lock()
		if d.down || len(d.posts) == 0 && st.nc == nil {
			st.alive = false
			d.mu.Unlock()
			return
		}
		nc := st.nc
		d.mu.Unlock()
		if nc == nil && d.lost != nil {
			return // the session ends
		}
		if nc == nil {
			if err := st.dial(); err != nil {
				d.s.node.log.Debug("no payload connection", "err", err)
				continue
			}
		}
		err := st.read()
		if err == nil {
			return // nothing is posted, and alive is false
		}
		st.letGo()
		d.s.node.log.Debug("a payload connection is lost", "err", err)
		if d.lost != nil {
			d.lost(err)
		}
		failures = 0
	}
}

func (st *inStream) dial() error {
	d := st.d
	nc, err := d.s.dial(d.ctx, "", "", "", st.index)
	if err != nil {
		return err
	}
	return st.adopt(nc)
}

// adopt makes a connection the stream's.
func (st *inStream) adopt(nc net.Conn) error {
	raw, err := nc.(syscall.Conn).SyscallConn()
	if err != nil {
		nc.Close()
		return err
	}
	nc.SetDeadline(time.Time{}) // read arms it
	d := st.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down {
		nc.Close()
		return ErrClosed
	}
	d.moment++
	st.nc, st.raw, st.have, st.dialled, st.brought = nc, raw, 0, d.moment, 0
	return nil
}

// read reads blocks. nil: nothing is posted, and the goroutine is let go. Else the
// connection is closed, and st.nc nil.
func (st *inStream) read() error {
	st.arm()
	for {
		done, err := st.readHead()
		if done {
			return nil
		}
		if err == nil {
			err = st.block()
		}
		if err != nil {
			st.end()
			return err
		}
	}
}

func (st *inStream) end() {
	st.d.mu.Lock()
	nc := st.nc
	st.nc = nil
	st.d.losses++
	for _, p := range st.d.posts {
		st.d.suspectLocked(p)
	}
	st.d.mu.Unlock()
	nc.Close()
}

// A reader's deadline says when it looks about, and not more: it is moved when it
// has passed, or by Close, and not with each block, since moving one may wake a
// thread. It comes at least as often as anything is to be noticed.

// arm sets the deadline anew.
func (st *inStream) arm() {
	st.nc.SetReadDeadline(time.Now().Add(min(linger, st.d.s.node.cfg.Stall)))
}

// stalled is asked when the deadline has passed in the midst of something: it
// reports that nothing has come for too long.
func (st *inStream) stalled() bool {
	if st.moved {
		st.moved, st.quiet = false, time.Now()
	}
	return time.Since(st.quiet) >= st.d.s.node.cfg.Stall
}

// readv reads into bufs, which are advanced; it waits for something. Of the first of
// them it reads at most so many bytes, unless that is 0.
func (st *inStream) readv(most int) (n int, err error) {
	st.into = st.bufs[:min(len(st.bufs), maxIOV)]
	if most > 0 && len(st.into[0]) > most {
		st.part[0] = st.into[0][:most]
		st.into = st.part[:]
	}
	for {
		err = st.raw.Read(st.attempt)
		if err != nil || st.err != unix.EAGAIN {
			break
		}
		st.letGo() // nobody waits for what may take long
	}
	switch {
	case err != nil:
		return 0, err
	case st.err != nil:
		return 0, os.NewSyscallError("readv", st.err)
	case st.n == 0:
		return 0, io.EOF
	}
	st.bufs = advance(st.bufs, st.n)
	st.moved = true
	st.reads.Add(1)
	return st.n, nil
}

// try is one attempt of readv. False: there is nothing to read yet, and that may take
// as long as it likes. It must call nobody, since whoever closes the connection waits
// for it, perhaps with locks.
func (st *inStream) try(fd uintptr) bool {
	for {
		st.n, st.err = unix.Readv(int(fd), st.into)
		if st.err == unix.EAGAIN {
			return st.held > 0
		}
		if st.err != unix.EINTR {
			return true
		}
	}
}

// readHead reads the next BLOCK frame. done: nothing is posted any more.
func (st *inStream) readHead() (done bool, err error) {
	d := st.d
	for st.have < blockHead {
		st.bufs = append(st.bufs[:0], st.head[st.have:])
		n, err := st.readv(0)
		if n > 0 {
			st.have += n
			continue
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return false, err
		}
		st.letGo() // before another goroutine may be the reader
		d.mu.Lock()
		if st.have == 0 && len(d.posts) == 0 && !d.down && time.Since(d.idle) >= linger {
			st.alive = false
			st.nc.SetReadDeadline(time.Time{}) // no timer either
			d.mu.Unlock()
			return true, nil
		}
		st.arm()
		d.mu.Unlock()
		if st.have > 0 && st.stalled() {
			return false, errors.New("half a frame, and nothing more")
		}
	}
	return false, nil
}

// block reads the bytes of the block whose frame is in head.
func (st *inStream) block() error {
	h, payload, _, err := wire.Next(st.head[:])
	st.have = 0
	if err != nil {
		return err
	}
	var m wire.Block
	if h.Type != wire.TypeBlock {
		return fmt.Errorf("%v on a payload connection", h.Type)
	}
	if err := m.Parse(payload); err != nil {
		return err
	}
	if m.Size > maxBlock {
		return fmt.Errorf("a block of %d bytes", m.Size)
	}
	if m.Size > heldMost {
		st.letGo() // it may take long to come
	}
	d := st.d
	id := item{OpID(h.ID), int(m.Index)}
	d.mu.Lock()
	p := d.posts[id]
	bad := false
	switch {
	case p == nil || p.on != nil:
		p = nil
	case p.Offer.Size != m.Size:
		d.giveUpLocked(id, p)
		bad, p = true, nil
	default:
		p.on = st
		st.brought = max(st.brought, p.posted)
	}
	pass := p != nil || d.passLocked(m.Size)
	d.mu.Unlock()
	if bad {
		d.s.Event(Landed{id.op, id.index, wire.StatusSource})
	}
	if !pass {
		return fmt.Errorf("a block of %d bytes that was never asked for", m.Size)
	}
	left := m.Size
	if p != nil {
		if left, err = st.receive(p, id, m.Size); err != nil {
			return err
		}
	}
	return st.drain(left)
}

// receive reads a block into its slot, and answers for it. What is left is of a
// block that was closed meanwhile.
func (st *inStream) receive(p *inPost, id item, size uint64) (left uint64, err error) {
	d := st.d
	memory := d.s.Memory
	status := wire.StatusOK
	st.bufs = st.bufs[:0]
	var room uint64
	for _, b := range memory.SlotBytes(p.Slot) {
		if b = b[:min(uint64(len(b)), size-room)]; len(b) > 0 {
			st.bufs = append(st.bufs, b)
			room += uint64(len(b))
		}
	}
	// A block in one piece is summed as it comes.
	summed := p.Offer.Flags&wire.OfferSum != 0
	var whole []byte
	part := 0
	if summed && len(st.bufs) == 1 && room == size {
		whole, part = st.bufs[0], readPart
		st.sum.Reset()
	}
	// The next frame comes along, most often.
	st.bufs = append(st.bufs, st.head[:])
	left = size
	if room < size {
		status = wire.StatusTooLarge // the slot is not what was offered
		st.bufs = st.bufs[:0]
	}
	for status == wire.StatusOK && left > 0 {
		n, e := st.readv(part)
		if n > 0 {
			if uint64(n) > left {
				st.have = n - int(left)
				n = int(left)
			}
			left -= uint64(n)
			if whole != nil {
				st.sum.Extend(whole[:size-left])
			}
			points.At("part", uint64(d.s.Peer))
			continue
		}
		if !errors.Is(e, os.ErrDeadlineExceeded) {
			status, err = wire.StatusLost, e
			break
		}
		d.mu.Lock()
		closing := p.closing
		st.arm()
		d.mu.Unlock()
		switch {
		case closing:
			st.bufs = st.bufs[:0] // the slot is nobody's business any more
			st.gone(id)
			d.s.Event(Shut{id.op, id.index})
			return left, nil
		case st.stalled():
			status, err = wire.StatusLost, errors.New("half a block, and nothing more")
		}
	}
	clear(st.bufs[:cap(st.bufs)])
	st.part[0] = nil
	switch {
	case status != wire.StatusOK || !summed:
	case whole == nil && memory.SlotSum(p.Slot) == p.Offer.Sum:
	case whole != nil && st.sum.Sum(whole) == p.Offer.Sum:
		memory.SlotSummed(p.Slot, p.Offer.Sum)
	default:
		status = wire.StatusChecksum
	}
	st.gone(id)
	st.landed(Landed{id.op, id.index, status}, size)
	return left, err
}

// landed tells of a block that has come. When the next frame is here, what follows is
// likely to be: then they are told of together.
func (st *inStream) landed(ev Landed, size uint64) {
	if st.have == blockHead && uint64(st.held)+size <= heldMost {
		if st.held == 0 {
			st.d.s.hold()
		}
		st.held += max(1, int(size))
		st.d.s.Event(ev)
		return
	}
	st.d.s.Event(ev)
	st.letGo()
}

// letGo ends the wait of what has come.
func (st *inStream) letGo() {
	if st.held > 0 {
		st.held = 0
		st.d.s.release()
	}
}

// gone takes an item out of the table.
func (st *inStream) gone(id item) {
	st.d.mu.Lock()
	defer st.d.mu.Unlock()
	st.d.dropLocked(id)
}

// drain reads bytes that nobody wants.
func (st *inStream) drain(left uint64) error {
	if left == 0 {
		return nil
	}
	scratch := make([]byte, min(left, drainPart))
	for left > 0 {
		st.bufs = append(st.bufs[:0], scratch[:min(left, drainPart)])
		n, err := st.readv(0)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && !st.stalled():
			st.arm()
		case err != nil:
			return err
		}
		left -= uint64(n)
	}
	return nil
}
