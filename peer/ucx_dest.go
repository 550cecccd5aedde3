package peer

import (
	"errors"
	"sync"
	"time"

	"github.com/kvcr-go/kvcr/ucx"
	"github.com/kvcr-go/kvcr/wire"
)

// ucxDest is the destination's side of a session over route ucx.
//
// A message's receive goes this way; what is in brackets happens to those of a
// Post that is closed, or has failed:
//
//	queued --> posted --> ended     (staged: posted --> copied --> ended)
//	  \          \
//	   \          \--(cancelled)--> drained
//	    \-------------------------> drained
//
// Receives are posted in the order in which the source is asked for them, so that
// a source that sends in that order finds a receive for its oldest message.
type ucxDest struct {
	u     *UCX
	life  *ucxLife
	s     *Session
	share stageShare
	sums  stageShare // of the other ring, for checksums

	mu      sync.Mutex
	posts   map[item]*ucxPost // not answered, or about to be
	queue   []*ucxRecv        // not posted; those of closed Posts are skipped
	running int               // posted, without drains
	drains  map[OpID]map[*ucxRecv]struct{}
	down    bool
}

// ucxPost is a Post without an answer. Guarded by ucxDest.mu.
type ucxPost struct {
	Post
	d       *ucxDest
	tag     uint64 // of the first message
	sizes   []int  // of the slot's pieces, as far as the block fills them
	device  []Span // those pieces, when they lie on a device
	msgs    []*ucxRecv
	open    int // messages that may still touch the slot, or will
	closing bool
	asked   bool        // Close has been called
	missing bool        // a message has not come
	status  wire.Status // why
}

// ucxRecv is one message.
type ucxRecv struct {
	d   *ucxDest
	op  OpID
	p   *ucxPost // nil: a drain
	tag uint64
	n   int // bytes

	mem   *ucx.Memory // registered memory that it goes to; nil: staged
	off   uint64
	to    []byte // staged: where it is copied
	chunk *chunk

	queued, posted bool
	req            ucx.Request
}

func (d *ucxDest) Post(post Post, _ string) {
	p := &ucxPost{Post: post, d: d}
	left := post.Offer.Size
	var pieces []Span
	for _, s := range slotSpans(d.s.Memory, post.Slot) {
		s = s.Slice(0, int(min(uint64(s.Len), left)))
		left -= uint64(s.Len)
		if s.Len > 0 {
			pieces = append(pieces, s)
			p.sizes = append(p.sizes, s.Len)
			p.open += messages(s.Len)
		}
	}
	if left > 0 { // the slot is not what was offered
		d.s.Event(Landed{post.Op, post.Index, wire.StatusTooLarge})
		return
	}
	p.tag = d.u.nextTag.Add(uint64(p.open)) - uint64(p.open)
	p.msgs = make([]*ucxRecv, 0, p.open)
	for _, s := range pieces {
		mem, off, ok := d.u.locate(s)
		if s.Host == nil {
			if !ok { // receives have no way to it
				d.s.Event(Landed{post.Op, post.Index, wire.StatusUnsupported})
				return
			}
			p.device = pieces
		}
		for at := 0; at < s.Len; at += messageMost {
			n := min(messageMost, s.Len-at)
			r := &ucxRecv{d: d, op: post.Op, p: p, tag: p.tag + uint64(len(p.msgs)), n: n, queued: true}
			if ok {
				r.mem, r.off = mem, off+uint64(at)
			} else {
				r.to = s.Host[at : at+n]
			}
			p.msgs = append(p.msgs, r)
		}
	}
	d.mu.Lock()
	if d.down {
		d.mu.Unlock()
		d.s.Event(Landed{post.Op, post.Index, wire.StatusLost})
		return
	}
	d.posts[item{post.Op, post.Index}] = p
	d.queue = append(d.queue, p.msgs...)
	d.pumpLocked()
	d.settleLocked(p)
	d.mu.Unlock()
}

// Done changes nothing: a receive's own completion is the arrival.
func (d *ucxDest) Done(OpID, int) {}

// Describe tells the tags of an item, and how it is cut.
func (d *ucxDest) Describe(dst []byte, op OpID, index int) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.posts[item{op, index}]; p != nil {
		return appendDesc(dst, p.tag, p.sizes)
	}
	return dst // it is over: the source will refuse, and nobody waits
}

func (d *ucxDest) pump() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pumpLocked()
}

// pumpLocked posts what can be. mu held.
func (d *ucxDest) pumpLocked() {
	for len(d.queue) > 0 && d.running < ucxPosted {
		r := d.queue[0]
		if r.queued {
			if err := d.postLocked(r); errors.Is(err, ucx.ErrFull) {
				return // pumped again
			} else if err != nil {
				r.p.failLocked(wire.StatusLost) // which takes r along
			}
		}
		d.queue[0] = nil
		d.queue = d.queue[1:]
	}
}

// postLocked posts one receive. mu held.
func (d *ucxDest) postLocked(r *ucxRecv) error {
	op := ucx.Op{Kind: ucx.OpRecv, Mem: r.mem, Off: r.off, Len: uint64(r.n), Tag: r.tag, Done: r.done}
	if r.mem == nil {
		if r.chunk == nil {
			if r.chunk = d.u.in.take(r.n, &d.share, d); r.chunk == nil {
				return ucx.ErrFull
			}
		}
		op.Mem, op.Off = d.u.in.mem, r.chunk.off()
	}
	req, err := d.life.start(op, d)
	if err == nil {
		r.req, r.queued, r.posted = req, false, true
		d.running++
	}
	return err
}

// start starts an operation. With ucx.ErrFull p is pumped later.
func (l *ucxLife) start(op ucx.Op, p pumper) (ucx.Request, error) {
	req, err := l.w.Start(op)
	if errors.Is(err, ucx.ErrFull) {
		l.starve(p)
		req, err = l.w.Start(op) // the last one may have ended in between
	}
	return req, err
}

// done is the end of a receive. It runs on the progress goroutine.
func (r *ucxRecv) done(c ucx.Completion) {
	d := r.d
	d.mu.Lock()
	r.posted = false
	switch {
	case r.p == nil:
		d.u.drains.Add(-1)
		delete(d.drains[r.op], r)
		if len(d.drains[r.op]) == 0 {
			delete(d.drains, r.op)
		}
	case c.Err == nil && c.Bytes == uint64(r.n):
		d.running--
		if r.to != nil {
			d.u.crew.push(r.copyOut)
		} else {
			r.endLocked()
		}
	default:
		d.running--
		why := wire.StatusLost
		if c.Err == nil || errors.Is(c.Err, ucx.StatusTruncated) {
			why = wire.StatusSource // it is not what was asked for
		}
		if ucx.Canceled(c.Err) {
			d.drainLocked(r)
		}
		r.p.missing = true
		r.p.failLocked(why)
		r.endLocked()
	}
	d.pumpLocked()
	d.mu.Unlock()
	d.life.feed()
}

// copyOut brings a staged message to its place.
func (r *ucxRecv) copyOut() {
	copy(r.to, r.chunk.bytes)
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	r.endLocked()
}

// endLocked: the message will not touch the slot any more. mu held.
func (r *ucxRecv) endLocked() {
	if r.chunk != nil {
		r.chunk.give()
		r.chunk = nil
	}
	r.p.open--
	r.d.settleLocked(r.p)
}

// failLocked has a Post end early: what is not posted will not be, what is posted
// is cancelled. mu held.
func (p *ucxPost) failLocked(why wire.Status) {
	if p.closing {
		return
	}
	p.closing, p.status = true, why
	for _, r := range p.msgs {
		switch {
		case r.queued:
			r.queued, p.missing = false, true
			if r.chunk != nil {
				r.chunk.give()
				r.chunk = nil
			}
			p.open--
			p.d.drainLocked(r)
		case r.posted:
			p.d.life.w.Cancel(r.req)
		}
	}
	p.d.settleLocked(p)
}

// settleLocked answers a Post when nothing touches the slot any more. mu held.
func (d *ucxDest) settleLocked(p *ucxPost) {
	id := item{p.Op, p.Index}
	if p.open == 0 && d.posts[id] == p {
		delete(d.posts, id)
		d.u.crew.push(p.finish)
	}
}

// finish says how a Post ended. What has come whole is verified, also when it was
// to end early.
func (p *ucxPost) finish() {
	s := p.d.s
	switch {
	case !p.missing:
		status := wire.StatusOK
		if p.device != nil {
			p.arrived()
			return
		}
		if p.Offer.Flags&wire.OfferSum != 0 && s.Memory.SlotSum(p.Slot) != p.Offer.Sum {
			status = wire.StatusChecksum
		}
		s.Event(Landed{p.Op, p.Index, status})
	case p.asked:
		s.Event(Shut{p.Op, p.Index})
	default:
		s.Event(Landed{p.Op, p.Index, p.status})
	}
}

// drainLocked receives into nowhere what the source may send, or have sent, for a
// message that is not wanted any more. mu held.
func (d *ucxDest) drainLocked(of *ucxRecv) {
	if d.u.drains.Add(1) > maxDrains {
		d.u.drains.Add(-1)
		return
	}
	r := &ucxRecv{d: d, op: of.op, tag: of.tag}
	req, err := d.life.w.Start(ucx.Op{Kind: ucx.OpRecv, Mem: d.u.drain, Len: messageMost, Tag: r.tag, Done: r.done})
	if err != nil {
		d.u.drains.Add(-1)
		return
	}
	r.req = req
	if d.drains[r.op] == nil {
		d.drains[r.op] = map[*ucxRecv]struct{}{}
	}
	d.drains[r.op][r] = struct{}{}
	if d.down {
		time.AfterFunc(drainLinger, func() { d.life.w.Cancel(req) })
	}
}

// ended hears that the machine has forgotten an operation: the source has nothing
// of it left to send.
func (d *ucxDest) ended(op OpID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lingerLocked(op)
}

// lingerLocked gives an operation's drains their last time. mu held.
func (d *ucxDest) lingerLocked(op OpID) {
	if len(d.drains[op]) == 0 {
		return
	}
	reqs := make([]ucx.Request, 0, len(d.drains[op]))
	for r := range d.drains[op] {
		reqs = append(reqs, r.req)
	}
	time.AfterFunc(drainLinger, func() {
		for _, req := range reqs {
			d.life.w.Cancel(req)
		}
	})
}

func (d *ucxDest) Close(op OpID, index int) {
	id := item{op, index}
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.posts[id]
	if p == nil || p.asked {
		return
	}
	p.asked = true
	p.failLocked(wire.StatusAborted)
	if d.posts[id] != p {
		return
	}
	time.AfterFunc(closeGrace, func() {
		d.mu.Lock()
		stuck := d.posts[id] == p && !d.down
		d.mu.Unlock()
		if stuck {
			d.s.Fail(errors.New("a receive that was cancelled does not end"))
		}
	})
}

func (d *ucxDest) Down() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down {
		return
	}
	d.down = true
	for _, p := range d.posts {
		p.failLocked(wire.StatusLost)
	}
	for op := range d.drains {
		d.lingerLocked(op)
	}
	d.life.leave(d)
	if len(d.posts) == 0 {
		return
	}
	d.later(func() {
		// UCX makes an endpoint out of the connection that is there, which closing it
		// cuts.
		if ep, err := d.life.w.Connect(d.s.Info.UCX, nil); err == nil {
			ep.Abort()
		}
		d.later(func() { d.life.condemn("receives of a session that is down do not end") })
	})
}

// later runs f if something is still posted when a time of grace is over.
func (d *ucxDest) later(f func()) {
	time.AfterFunc(closeGrace, func() {
		d.mu.Lock()
		n := len(d.posts)
		d.mu.Unlock()
		if n > 0 {
			f()
		}
	})
}
