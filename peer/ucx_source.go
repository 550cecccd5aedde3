package peer

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvcr-go/kvcr/ucx"
	"github.com/kvcr-go/kvcr/ucx/cuda"
	"github.com/kvcr-go/kvcr/wire"
)

// ucxSource is the source's side of a session over route ucx: it sends the messages
// of its Writes in order, as many at a time as the window takes.
type ucxSource struct {
	u     *UCX
	life  *ucxLife
	s     *Session
	ep    *ucx.Endpoint
	share stageShare

	mu     sync.Mutex
	writes map[item]*ucxWrite
	queue  []*ucxSend // not begun; those of cancelled Writes are skipped
	flying int        // begun
	bytes  int        // of them
	ends   int        // messages that have ended, ever
	timed  bool       // a timer looks whether ends changes
	down   bool
}

// ucxWrite is a Write without an answer. Guarded by ucxSource.mu.
type ucxWrite struct {
	Write
	src    []Span
	have   uint64 // bytes of src
	open   int    // messages that may still read the claim, or will
	unsent int    // those of them that have not begun
	over   bool
	status wire.Status
}

// ucxSend is one message: n bytes of the block from at.
type ucxSend struct {
	o     *ucxSource
	w     *ucxWrite
	tag   uint64
	at, n int
	chunk *chunk
}

func (o *ucxSource) Write(write Write) {
	tag, pieces, ok := parseDesc(write.Desc, write.Offer.Size)
	w := &ucxWrite{Write: write}
	w.find(o.s.Memory)
	var msgs []*ucxSend
	at := 0
	for _, size := range pieces {
		for end := at + size; at < end; at += min(messageMost, end-at) {
			msgs = append(msgs, &ucxSend{o: o, w: w, tag: tag + uint64(len(msgs)), at: at, n: min(messageMost, end-at)})
		}
	}
	w.open, w.unsent = len(msgs), len(msgs)
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.down:
		w.status = wire.StatusLost
	case write.Offer.Size == 0: // the destination waits for nothing
	case !ok || w.have < write.Offer.Size:
		w.status = wire.StatusUnsupported
	}
	o.writes[item{w.Op, w.Index}] = w
	if w.status != wire.StatusOK {
		w.open, w.unsent = 0, 0
	} else {
		o.queue = append(o.queue, msgs...)
	}
	o.settleLocked(w)
}

// find says where the claimed block lies.
func (w *ucxWrite) find(memory Memory) {
	if m, ok := memory.(SpanMemory); ok {
		w.src = m.ClaimSpans(w.Claim)
	} else {
		for _, b := range memory.ClaimBytes(w.Claim) {
			w.src = append(w.src, Span{Host: b, Device: -1, Len: len(b)})
		}
	}
	for _, s := range w.src {
		w.have += uint64(s.Len)
	}
}

// Flush sends what Write has queued, in one go.
func (o *ucxSource) Flush() { o.pump() }

func (o *ucxSource) pump() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pumpLocked()
}

// pumpLocked begins what can be. mu held.
func (o *ucxSource) pumpLocked() {
	for len(o.queue) > 0 {
		m := o.queue[0]
		if !m.w.over {
			if o.flying >= ucxWindow || o.flying > 0 && o.bytes+m.n > ucxWindowBytes {
				return
			}
			err := o.beginLocked(m)
			if errors.Is(err, ucx.ErrFull) {
				return // pumped again
			}
			if err != nil {
				o.failLocked(m.w, wire.StatusLost)
			}
		}
		o.queue[0] = nil
		o.queue = o.queue[1:]
	}
}

// beginLocked sends a message, from where it lies or by way of staging. mu held.
func (o *ucxSource) beginLocked(m *ucxSend) error {
	piece := m.whole()
	mem, off, ok := o.u.locate(piece)
	var err error
	if ok {
		if err = o.sendLocked(m, mem, off); err == nil && piece.Host == nil {
			o.u.devices.out.Add(int64(m.n))
		}
	} else {
		if m.chunk = o.u.out.take(m.n, &o.share, o); m.chunk == nil {
			return ucx.ErrFull
		}
		o.u.crew.push(m.copyIn)
	}
	if err == nil {
		m.w.unsent--
		o.flying++
		o.bytes += m.n
		o.watchLocked()
	}
	return err
}

// watchLocked has the session ended when the destination takes nothing of what is
// on its way for as long as a connection may stall: a claim must not wait for a
// peer that has stopped. mu held.
func (o *ucxSource) watchLocked() {
	if o.timed {
		return
	}
	o.timed = true
	ends := o.ends
	time.AfterFunc(o.s.node.cfg.Stall, func() {
		o.mu.Lock()
		o.timed = false
		stalled := o.flying > 0 && o.ends == ends && !o.down
		if o.flying > 0 && !stalled && !o.down {
			o.watchLocked()
		}
		o.mu.Unlock()
		if stalled {
			o.s.Fail(errors.New("the destination takes nothing over UCX"))
		}
	})
}

func (o *ucxSource) sendLocked(m *ucxSend, mem *ucx.Memory, off uint64) error {
	_, err := o.life.start(ucx.Op{Kind: ucx.OpSend, Endpoint: o.ep, Mem: mem, Off: off, Len: uint64(m.n), Tag: m.tag, Done: m.done}, o)
	return err
}

// whole is where the message's bytes lie if that is one piece, else the zero Span.
func (m *ucxSend) whole() Span {
	at := m.at
	for _, s := range m.w.src {
		if at < s.Len {
			if at+m.n <= s.Len {
				return s.Slice(at, m.n)
			}
			return Span{}
		}
		at -= s.Len
	}
	return Span{}
}

// copyIn brings a message's bytes into its chunk and sends them: devices copy
// theirs by themselves, and the last of them sends.
func (m *ucxSend) copyIn() {
	to, at := m.chunk.bytes, m.at
	c := cuda.Copy{Direction: cuda.ToHost}
	for _, s := range m.w.src {
		if at >= s.Len {
			at -= s.Len
			continue
		}
		n := min(s.Len-at, len(to))
		switch {
		case n == 0:
		case s.Host != nil:
			copy(to, s.Host[at:])
		default:
			c.Device = s.Device // a block's pieces on two devices are refused below
			c.Host = append(c.Host, to[:n])
			c.Mem = append(c.Mem, cuda.Span{Ptr: cuda.DevicePtr(s.Addr) + cuda.DevicePtr(at), Size: int64(n)})
		}
		to, at = to[n:], 0
	}
	if len(c.Host) == 0 {
		m.retry()
		return
	}
	c.Done = m.copied
	m.o.u.copyDevice(c)
}

// copied is the end of a device's copy. It runs on a goroutine of the driver's.
func (m *ucxSend) copied(r cuda.Result) {
	if r.Err == nil {
		m.retry()
		return
	}
	o := m.o
	o.u.log.Warn("a block cannot be read from its device", "err", r.Err)
	o.mu.Lock()
	defer o.mu.Unlock()
	if r.Unsettled {
		m.chunk = nil // the device may still write to it: never given back
	}
	o.failLocked(m.w, wire.StatusSource)
	o.endLocked(m)
}

// retry sends a message from its chunk. While no request is free it is tried again.
func (m *ucxSend) retry() {
	o := m.o
	o.mu.Lock()
	defer o.mu.Unlock()
	err := ucx.ErrClosed
	if !o.down {
		err = o.sendLocked(m, o.u.out.mem, m.chunk.off())
	}
	if errors.Is(err, ucx.ErrFull) {
		time.AfterFunc(time.Millisecond, m.retry)
		return
	}
	if err != nil {
		o.failLocked(m.w, wire.StatusLost)
		o.endLocked(m)
	}
}

// done is the end of a send. It runs on the progress goroutine.
func (m *ucxSend) done(c ucx.Completion) {
	o := m.o
	o.mu.Lock()
	if c.Err != nil {
		o.failLocked(m.w, wire.StatusLost)
	}
	o.endLocked(m)
	o.pumpLocked()
	down := o.down
	o.mu.Unlock()
	o.life.feed()
	if c.Err != nil && !down {
		o.s.Fail(fmt.Errorf("a send over UCX has failed: %w", c.Err))
	}
}

// endLocked: the message does not read the claim any more. mu held.
func (o *ucxSource) endLocked(m *ucxSend) {
	if m.chunk != nil {
		m.chunk.give()
		m.chunk = nil
	}
	o.flying--
	o.ends++
	o.bytes -= m.n
	m.w.open--
	o.settleLocked(m.w)
	if o.down && o.flying == 0 {
		o.u.hangUp(o.ep)
	}
}

// failLocked lets a Write begin no more messages. mu held.
func (o *ucxSource) failLocked(w *ucxWrite, why wire.Status) {
	if w.over {
		return
	}
	w.over = true
	if w.open > 0 && w.status == wire.StatusOK {
		w.status = why
	}
	w.open -= w.unsent
	w.unsent = 0
	o.settleLocked(w)
}

// settleLocked answers a Write of which nothing is left. mu held.
func (o *ucxSource) settleLocked(w *ucxWrite) {
	id := item{w.Op, w.Index}
	if w.open > 0 || o.writes[id] != w {
		return
	}
	delete(o.writes, id)
	w.over = true
	o.u.crew.push(func() { o.s.Event(Written{w.Op, w.Index, w.status}) })
}

func (o *ucxSource) CancelWrite(op OpID, index int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if w := o.writes[item{op, index}]; w != nil && w.unsent > 0 {
		o.failLocked(w, wire.StatusAborted)
	}
}

func (o *ucxSource) Down() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.down {
		return
	}
	o.down = true
	for _, w := range o.writes {
		o.failLocked(w, wire.StatusLost)
	}
	o.queue = nil
	o.life.leave(o)
	if o.flying == 0 {
		o.u.hangUp(o.ep)
		return
	}
	o.later(func() {
		o.ep.Abort() // UCX gets a second, and then is cut short
		o.later(func() { o.life.condemn("sends of a session that is down do not end") })
	})
}

// later runs f if something is still being sent when a time of grace is over.
func (o *ucxSource) later(f func()) {
	time.AfterFunc(closeGrace, func() {
		o.mu.Lock()
		n := o.flying
		o.mu.Unlock()
		if n > 0 {
			f()
		}
	})
}

// hangUp closes an endpoint on which nothing is under way, without a hurry: UCX 1.13
// does not bear well that connections are cut while something moves.
func (u *UCX) hangUp(ep *ucx.Endpoint) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		ep.Abort() // the worker is about to be closed
		return
	}
	u.work.Add(1)
	go func() {
		defer u.work.Done()
		_ = ep.Close(closeGrace) // what stays goes with the worker
	}()
}
