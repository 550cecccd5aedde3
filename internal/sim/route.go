package sim

import (
	"encoding/binary"

	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// post is a destination's end of the route of one item, from Post to Landed or
// Shut.
type post struct {
	d        *destSide
	op       peer.OpID
	index    int
	slot     *slot
	epoch    uint64
	route    wire.Route
	offer    *wire.Offered
	source   *table // that offered
	got      [len(words{})]bool
	closing  bool
	answered bool
	landing  bool
}

func (p *post) tag(kind string) tag {
	return tag{kind: kind, a: p.d.to.id, b: int(p.op), c: p.index}
}

func (w *world) post(d *destSide, a peer.Post) {
	s := d.n.tab.slots[a.Slot-1]
	p := &post{d: d, op: a.Op, index: a.Index, slot: s, epoch: s.epoch, route: d.conn.route, offer: a.Offer, source: d.conn.s.tab}
	if d.posted(a.Op, a.Index) != nil {
		w.fail("%v posts item %d.%d twice", d, a.Op, a.Index)
	}
	d.posts = append(d.posts, p)
	if p.route == wire.RouteShm && a.Offer.Flags&wire.OfferNoPool == 0 {
		p.copyWord(0)
	}
	if p.route != wire.RouteShm && w.chance(25) {
		w.after(w.delay(), d.n, p.tag("break"), func() { p.land(wire.StatusLost) }) // this end breaks
	}
}

// desc describes a post's memory to a source that writes it.
func (p *post) desc() []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(p.d.n.inc))
	b = binary.LittleEndian.AppendUint64(b, uint64(p.slot.id))
	return binary.LittleEndian.AppendUint64(b, p.epoch)
}

// lastWord is that of a step that begins with word i: payload moves word by word,
// or at once where all orders are explored.
func (w *world) lastWord(i int) int {
	if w.manual {
		return len(words{}) - 1
	}
	return i
}

// copyWord is one step of the destination's own copy from shared memory: word i,
// and the rest after it.
func (p *post) copyWord(i int) {
	w, d := p.d.n.w, p.d
	w.after(w.delay(), d.n, p.tag("copy"), func() {
		if p.answered {
			return
		}
		if w.chance(100) {
			p.land(wire.StatusSource)
			return
		}
		from := p.source.slots[p.offer.Offsets[0]-1]
		if from.epoch != p.offer.Offsets[1] && p.source.n.inc == p.source.inc && p.source.n.alive {
			w.fail("%v reads %v of %v for item %d.%d, which is freed", d, from, p.source.n, p.op, p.index)
		}
		for last := w.lastWord(i); i <= last; i++ {
			p.put(i, from.data[i])
		}
		if i < len(words{}) {
			p.copyWord(i)
		}
	})
}

// put is the destination's own end of a route writing one word.
func (p *post) put(i int, word uint64) {
	w := p.d.n.w
	if p.answered {
		return
	}
	if p.slot.epoch != p.epoch || p.slot.state != slotReserved {
		w.fail("%v writes %v after it was freed", p.d, p.slot)
	}
	p.slot.data[i] = word
	p.got[i] = true
	for _, ok := range p.got {
		if !ok {
			return
		}
	}
	p.verify()
}

// verify ends a post whose bytes are all there.
func (p *post) verify() {
	if p.landing {
		return
	}
	p.landing = true
	w := p.d.n.w
	w.after(w.delay(), p.d.n, p.tag("verify"), func() {
		if p.slot.data.sum() != p.offer.Sum && !w.broken.tear {
			p.land(wire.StatusChecksum)
			return
		}
		p.land(wire.StatusOK)
	})
}

func (p *post) land(s wire.Status) {
	if p.answered {
		return
	}
	p.answered = true
	p.d.forget(p)
	if s != wire.StatusOK {
		p.d.n.w.report.Broken++
	}
	p.d.step(peer.Landed{Op: p.op, Index: p.index, Status: s})
}

func (d *destSide) forget(p *post) {
	for i, q := range d.posts {
		if q == p {
			d.posts = append(d.posts[:i], d.posts[i+1:]...)
			return
		}
	}
}

func (w *world) closePost(d *destSide, op peer.OpID, index int) {
	p := d.posted(op, index)
	if p == nil || p.closing {
		w.fail("%v closes item %d.%d, which is not posted, or twice", d, op, index)
		return
	}
	p.closing = true
	w.after(w.delay(), d.n, p.tag("shut"), func() {
		if p.answered {
			return // it had landed by then
		}
		p.answered = true
		d.forget(p)
		d.step(peer.Shut{Op: op, Index: index})
	})
}

// arrived lets the put route know what the source has written: there Done is the
// arrival.
func (w *world) arrived(d *destSide, op peer.OpID, m *wire.Done) {
	for _, it := range m.Items {
		if p := d.posted(op, int(it.Index)); p != nil && p.route == wire.RouteUCXPut && it.Status == wire.StatusOK && m.Source == uint64(p.source.inc) && m.Dest == uint64(d.n.inc) {
			p.verify()
		}
	}
}

// write is a source's end of the route of one item.
type write struct {
	s      *srcSide
	op     peer.OpID
	index  int
	id     peer.Claim
	slot   *slot
	epoch  uint64
	to     *node
	toLife int
	// target is what a put writes.
	target  *slot
	targetE uint64
	begun   bool
	cancel  bool
}

func (w *world) write(s *srcSide, a peer.Write) {
	id := itemID{a.Op, a.Index}
	if s.wrote[id] {
		w.fail("%v writes item %d.%d twice", s, a.Op, a.Index)
	}
	s.wrote[id] = true
	c := s.tab.claims[a.Claim]
	if c == nil {
		w.fail("%v writes item %d.%d without a claim", s, a.Op, a.Index)
		return
	}
	x := &write{s: s, op: a.Op, index: a.Index, id: a.Claim, slot: c.slot, epoch: c.slot.epoch, to: s.from, toLife: s.from.life}
	if len(a.Desc) > 0 {
		if inc := peer.Incarnation(binary.LittleEndian.Uint64(a.Desc)); inc == s.from.inc {
			x.target = s.from.tab.slots[binary.LittleEndian.Uint64(a.Desc[8:])-1]
			x.targetE = binary.LittleEndian.Uint64(a.Desc[16:])
		}
	}
	if s.dest != s.from.inc {
		x.toLife = -1 // its process is gone
	}
	w.writes = append(w.writes, x)
	x.next(0)
}

// next has word i written, and the rest after it.
func (x *write) next(i int) {
	w := x.s.n.w
	w.after(w.delay(), x.s.n, tag{kind: "write", a: int(x.s.dest), b: int(x.op), c: x.index}, func() {
		switch {
		case !x.begun && x.cancel:
			x.end(wire.StatusAborted)
			return
		case w.chance(120):
			x.end(wire.StatusLost)
			return
		case i == len(words{}):
			x.end(wire.StatusOK)
			return
		}
		x.begun = true
		if x.slot.epoch != x.epoch {
			w.fail("%v reads %v for item %d.%d after it was freed", x.s, x.slot, x.op, x.index)
		}
		for last := w.lastWord(i); i <= last; i++ {
			word := x.slot.data[i]
			if w.chance(400) {
				word ^= 1 << 40
				w.report.Corrupted++
			}
			x.deliver(i, word)
		}
		x.next(i)
	})
}

// deliver brings one word to the destination: into its memory, or to its end of the
// route.
func (x *write) deliver(i int, word uint64) {
	w := x.s.n.w
	if !x.to.alive || x.to.life != x.toLife {
		return
	}
	if x.target != nil {
		if x.target.epoch != x.targetE || x.target.state != slotReserved {
			w.fail("%v writes %v of %v for item %d.%d after it was freed", x.s, x.target, x.to, x.op, x.index)
			return
		}
		w.checkCaller(x)
		x.target.data[i] = word
		return
	}
	d := x.to.dest(x.s.n, x.s.name)
	w.after(w.delay(), x.to, tag{kind: "word", a: i, b: int(x.op), c: x.index}, func() {
		if p := d.posted(x.op, x.index); p != nil && p.source == x.s.tab {
			p.put(i, word)
		}
	})
}

func (x *write) end(s wire.Status) {
	w := x.s.n.w
	for i, y := range w.writes {
		if y == x {
			w.writes = append(w.writes[:i], w.writes[i+1:]...)
			break
		}
	}
	x.s.step(peer.Written{Op: x.op, Index: x.index, Status: s})
}

func (w *world) cancelWrite(s *srcSide, op peer.OpID, index int) {
	for _, x := range w.writes {
		if x.s == s && x.op == op && x.index == index {
			x.cancel = true
		}
	}
}
