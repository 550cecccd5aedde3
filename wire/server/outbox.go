package server

import (
	"github.com/kvcr-go/kvcr"
)

// outbox gathers the answers of one turn: text that it owns, and blocks lent by
// the engine. The zero outbox is ready. One user at a time.
type outbox struct {
	text []byte
	segs []segment
	mark int // text up to here is in segs
	size int // bytes in segs

	short [lendFrom - 1]byte // see get
}

// segment is a part of the stream: text[lo:hi], or a block under a claim.
type segment struct {
	lo, hi int
	block  []byte
	view   kvcr.View // zero for all but the last piece of a block
}

// lendFrom is the size in bytes from which a block is written from the arena.
// Below, a copy into the text costs less than another part of a gathering write.
const lendFrom = 2 << 10

// get looks a key up for one answer: what the outbox would copy anyway it may have
// without a claim, which it returns as b, to be appended to the text. Otherwise the
// block is v, for add.
func (o *outbox) get(h *kvcr.Handle, key []byte) (b []byte, v kvcr.View, ok bool) {
	n, v, ok := h.GetOrCopy(o.short[:], key)
	return o.short[:n], v, ok
}

// add appends a claimed block and takes over its claim.
func (o *outbox) add(v kvcr.View) {
	if v.Pieces() == 1 {
		o.addPart(v, v.Bytes())
		return
	}
	o.cut()
	for i := range v.Pieces() {
		b, _ := v.Piece(i)
		o.segs = append(o.segs, segment{block: b})
		o.size += len(b)
	}
	o.segs[len(o.segs)-1].view = v
}

// addPart appends a part of a claimed block of one piece, and takes over its
// claim.
func (o *outbox) addPart(v kvcr.View, b []byte) {
	if len(b) < lendFrom {
		o.text = append(o.text, b...)
		v.Release()
		return
	}
	o.cut()
	o.segs = append(o.segs, segment{block: b, view: v})
	o.size += len(b)
}

// cut ends the text that has been appended so far.
func (o *outbox) cut() {
	if len(o.text) > o.mark {
		o.segs = append(o.segs, segment{lo: o.mark, hi: len(o.text)})
		o.size += len(o.text) - o.mark
		o.mark = len(o.text)
	}
}

// len is the number of bytes gathered.
func (o *outbox) len() int { return o.size + len(o.text) - o.mark }

// bytes is a segment's part of the stream.
func (o *outbox) bytes(s *segment) []byte {
	if s.block != nil {
		return s.block
	}
	return o.text[s.lo:s.hi]
}

// textKept is the most memory an outbox keeps for its next turn: there is one for
// each event loop, and a turn sends at flushAt.
const textKept = 2 * flushAt

// reset forgets everything; claims must have been released or moved.
func (o *outbox) reset() {
	clear(o.segs)
	o.segs, o.mark, o.size = o.segs[:0], 0, 0
	if cap(o.text) > textKept {
		o.text = nil
	}
	o.text = o.text[:0]
}

// drop forgets everything and ends all claims.
func (o *outbox) drop() {
	for i := range o.segs {
		o.segs[i].view.Release()
	}
	o.reset()
}

// parcel is a part of the stream that waits for the kernel.
type parcel struct {
	b    []byte
	view kvcr.View
}

// releaseAll ends the claims of parcels.
func releaseAll(lot []parcel) {
	for i := range lot {
		lot[i].view.Release()
	}
}

// parcels takes everything but the first sent bytes out of the outbox: text is
// copied, blocks keep their claims. Claims of blocks that were sent whole end.
func (o *outbox) parcels(into []parcel, sent int) []parcel {
	o.cut()
	for i := range o.segs {
		s := &o.segs[i]
		b := o.bytes(s)
		if sent >= len(b) {
			sent -= len(b)
			s.view.Release()
			continue
		}
		b = b[sent:]
		sent = 0
		if s.block == nil {
			b = append([]byte(nil), b...)
		}
		into = append(into, parcel{b, s.view})
	}
	o.reset()
	return into
}
