package peer

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// streamDest reads blocks from payload connections into slots.
//
// Connections are dialled at the first Post and read from while something is
// posted, and a little longer: an idle peer has no goroutine.
//
//	W1  A posted item belongs to a reader from the moment its BLOCK is read, and to
//	    nobody but the table before: so Close ends it at once, or has the reader
//	    stop, which then writes what is left of the block nowhere.
//	W2  Nobody can tell what was on a connection that is lost, but for the block
//	    that was being read. What the source says it has sent was on it, if it was
//	    posted before the loss and is on no other connection. It is on none that has
//	    been silent for a while; nor on one that was dialled after the source said so,
//	    or has brought a block that was posted after that: bytes keep their order.
type streamDest struct {
	s      *Session
	lost   func(error) // of the one connection there is, which is not dialled again; nil: dialled
	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex
	posts   map[item]*inPost
	streams []*inStream
	idle    time.Time // when nothing was posted any more
	down    bool
	spare   uint64      // bytes of blocks that nobody wants which may still come
	losses  int         // of connections
	moment  uint64      // counts what W2 is about, so that it has an order
	suspect *time.Timer // runs judge; nil: there is no loss to speak of
}

// inPost is a Post without an answer.
type inPost struct {
	Post
	on      *inStream // that is reading it, nil: none
	closing bool
	losses  int    // when it was posted
	posted  uint64 // moment
	sent    uint64 // moment when the source said so, 0: it has not
}

func newStreamDest(s *Session, streams int) *streamDest {
	d := &streamDest{s: s, posts: map[item]*inPost{}, spare: unaskedMost}
	d.ctx, d.cancel = context.WithCancel(s.node.ctx)
	for i := range streams {
		st := &inStream{d: d, index: i}
		st.attempt = st.try
		d.streams = append(d.streams, st)
	}
	return d
}

func (*streamDest) Describe(dst []byte, _ OpID, _ int) []byte { return dst }

func (d *streamDest) Post(p Post, _ string) {
	d.mu.Lock()
	if d.down {
		d.mu.Unlock()
		d.s.Event(Landed{p.Op, p.Index, wire.StatusLost})
		return
	}
	d.moment++
	d.posts[item{p.Op, p.Index}] = &inPost{Post: p, losses: d.losses, posted: d.moment}
	if len(d.posts) == 1 {
		d.wakeLocked()
	}
	d.mu.Unlock()
}

// wakeLocked has all connections read. mu held.
func (d *streamDest) wakeLocked() {
	for _, st := range d.streams {
		if !st.alive {
			st.alive = d.s.node.spawnAs(roleStream, st.run)
		}
	}
}

func (d *streamDest) Done(op OpID, index int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.posts[item{op, index}]; p != nil && p.sent == 0 {
		d.moment++
		p.sent = d.moment
		d.suspectLocked(p)
	}
}

// mayBeLost reports whether a post was on a connection that is lost, unless it is on
// another. mu held.
func (d *streamDest) mayBeLost(p *inPost) bool {
	return p.sent != 0 && p.on == nil && p.losses != d.losses
}

// mayCome reports whether it is on a connection that there is (W2). mu held.
func (d *streamDest) mayCome(p *inPost) bool {
	return slices.ContainsFunc(d.streams, func(st *inStream) bool {
		return st.nc != nil && !st.silent && st.dialled < p.sent && st.brought < p.sent
	})
}

// suspectLocked sees to it that a post is judged, if it may have been lost. mu held.
func (d *streamDest) suspectLocked(p *inPost) {
	if d.mayBeLost(p) && d.suspect == nil && !d.down {
		d.listenLocked()
		d.judgeLater()
	}
}

// judgeLater sets the time for which a connection must be silent. mu held.
func (d *streamDest) judgeLater() {
	d.suspect = time.AfterFunc(4*d.s.node.cfg.Timing.Repeat, d.judge)
}

// listenLocked notes which connections have been silent since it was called last.
// mu held.
func (d *streamDest) listenLocked() {
	for _, st := range d.streams {
		n := st.reads.Load()
		st.silent, st.judged = n == st.judged, n
	}
}

// judge ends what was on a connection that is lost.
func (d *streamDest) judge() {
	d.mu.Lock()
	d.suspect = nil
	d.listenLocked()
	var lost []item
	again := false
	for id, p := range d.posts {
		switch {
		case !d.mayBeLost(p):
		case d.mayCome(p):
			again = true
		default:
			lost = append(lost, id)
			d.giveUpLocked(id, p)
		}
	}
	if again && !d.down {
		d.judgeLater()
	}
	d.mu.Unlock()
	for _, id := range lost {
		d.s.Event(Landed{id.op, id.index, wire.StatusLost})
	}
}

func (d *streamDest) Close(op OpID, index int) {
	id := item{op, index}
	d.mu.Lock()
	p := d.posts[id]
	if p == nil || p.closing {
		d.mu.Unlock()
		return
	}
	if p.on != nil {
		p.closing = true
		p.on.nc.SetReadDeadline(time.Unix(1, 0))
		d.mu.Unlock()
		return
	}
	d.giveUpLocked(id, p)
	d.mu.Unlock()
	d.s.Event(Shut{op, index})
}

// giveUpLocked takes an item out of the table whose bytes may still come. mu held.
func (d *streamDest) giveUpLocked(id item, p *inPost) {
	d.spare += blockHead + p.Offer.Size
	d.dropLocked(id)
}

// passLocked reports whether a block that nobody wants may be: one that was given
// up, or one of the few that are borne though nobody ever wanted them. mu held.
func (d *streamDest) passLocked(size uint64) bool {
	if cost := blockHead + size; cost <= d.spare {
		d.spare -= cost
		return true
	}
	return false
}

// dropLocked takes an item out of the table. mu held.
func (d *streamDest) dropLocked(id item) {
	delete(d.posts, id)
	if len(d.posts) == 0 {
		d.idle = time.Now()
	}
}

func (d *streamDest) Down() {
	d.mu.Lock()
	d.down = true
	if d.suspect != nil {
		d.suspect.Stop()
	}
	var lost []item
	for id, p := range d.posts {
		if p.on == nil {
			lost = append(lost, id)
			delete(d.posts, id)
		}
	}
	var open []net.Conn
	for _, st := range d.streams {
		if st.nc != nil {
			open = append(open, st.nc)
			if !st.alive {
				st.nc = nil
			}
		}
	}
	d.mu.Unlock()
	for _, nc := range open { // without the lock: Close waits for a read that has begun
		nc.Close() // its reader answers for what it reads
	}
	d.cancel()
	for _, id := range lost {
		d.s.Event(Landed{id.op, id.index, wire.StatusLost})
	}
}
