package sim

import (
	"time"

	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// move is one key of an admitted move, from its mark until both sides are through
// with it.
type move struct {
	from    *table
	side    *srcSide // whose operation it is
	unit    *unit
	key     int
	id      peer.MoveID
	removed bool
	at      peer.Time // of its mark
	until   peer.Time // when the source must have given up at the latest, see admit
}

func (m *move) hold() peer.HoldID { return peer.HoldID{Source: m.from.inc, Op: m.id.Op} }

// living reports whether the process of a table lives.
func (t *table) living() bool { return t.n.alive && t.n.inc == t.inc }

// admit notes a mark.
func (w *world) admit(t *table, key int, id peer.MoveID) {
	if b := t.blocks[key]; b.hold != (peer.HoldID{}) {
		w.fail("%v marks %s, which it holds", t.n, keys[key].name)
	}
	m := &move{from: t, side: w.source, unit: t.blocks[key].unit, key: key, id: id, at: w.now}
	if start, ok := w.frame.(*wire.Start); ok {
		// M6: two allowances after the operation's time. Timers here are late by up
		// to maxDelay.
		m.until = w.now + min(peer.Time(start.Timeout)*1e6, t.n.timing.Operation) + 2*t.n.timing.Allowance + maxDelay
	}
	w.moves = append(w.moves, m)
}

// kept reports whether a destination has and holds what a move brought it.
func (w *world) kept(m *move) (string, bool) {
	d := w.tables[m.id.Dest]
	b := d.blocks[m.key]
	switch {
	case b == nil:
		return "has no copy", false
	case b.hold != m.hold():
		return "does not hold its copy", false
	case b.mark != (peer.MoveID{}):
		return "has marked its copy", false
	}
	return "", true
}

// removing checks that the source may remove a unit now (S2 and the invariant).
func (w *world) removing(t *table, u *unit, id peer.MoveID) {
	f, ok := w.frame.(*wire.Confirm)
	switch {
	case !ok || w.source.conn == nil || f.Source != uint64(t.inc) || f.Dest != uint64(w.source.dest) || id.Dest != w.source.dest:
		w.fail("%v removes %s without a confirmation", t.n, keys[u.blocks[0].key].name)
	case u.lifted[id] != wire.StatusOK:
		w.fail("%v removes %s, whose mark was lifted: %s", t.n, keys[u.blocks[0].key].name, u.lifted[id])
	case u.mark != id:
		w.fail("%v removes %s, which another move has marked", t.n, keys[u.blocks[0].key].name)
	}
	lost := false
	for _, m := range w.moves {
		if m.unit != u || m.id != id || m.from != t {
			continue
		}
		m.removed = true
		if d := w.tables[id.Dest]; !d.living() {
			lost = true
		} else if why, ok := w.kept(m); !ok {
			w.fail("%v removes %s of operation %d, but %v %s", t.n, keys[m.key].name, id.Op, d.n, why)
		}
	}
	if lost {
		w.tracef("      (lost in the stated window)")
		w.report.Window++
	}
	w.report.Removed += len(u.blocks)
}

// checkUnmarked checks that a source has lifted the marks of a connection that it has
// lost (S3).
func (w *world) checkUnmarked(s *srcSide) {
	for _, m := range w.moves {
		if m.side == s && !m.removed && !m.unit.gone && m.unit.mark == m.id {
			w.fail("%v has %s marked without a connection", s, keys[m.key].name)
		}
	}
}

// dropped checks that a hold is dropped only when the source will not remove its
// copy any more because of it (D3).
func (w *world) dropped(t *table, u *unit, hold peer.HoldID) {
	src := w.tables[hold.Source]
	if !src.living() {
		return
	}
	for _, m := range w.moves {
		if m.from == src && m.id == (peer.MoveID{Dest: t.inc, Op: hold.Op}) && !m.removed && !m.unit.gone && m.unit.mark == m.id {
			for _, b := range u.blocks {
				if b.key == m.key {
					w.fail("%v drops its hold of %s for operation %d, but %v has it marked still", t.n, keys[m.key].name, hold.Op, src.n)
				}
			}
		}
	}
}

// checkMoves is the invariant, after each step.
func (w *world) checkMoves() {
	live := w.moves[:0]
	for _, m := range w.moves {
		d := w.tables[m.id.Dest]
		switch {
		case !m.removed && !m.unit.gone && m.unit.mark == m.id && m.from.living():
			if w.now > m.until && m.from.n.stalled < m.at && !w.manual {
				w.fail("%v has %s marked since %v, beyond all allowances", m.from.n, keys[m.key].name, m.at-time.Second)
			}
			live = append(live, m)
		case !m.removed && m.unit.gone && m.unit.mark == m.id && m.from.living():
			w.fail("%v has lost %s, which was marked by %x.%d", m.from.n, keys[m.key].name, m.id.Dest, m.id.Op)
		case m.removed && d.living():
			// Until the answer has been read.
			if side := d.n.destOf(m.from.n, m.id.Op); side.ops[m.id.Op] != nil && !side.outcomeOf(m) {
				if why, ok := w.kept(m); !ok {
					w.fail("%v has removed %s of operation %d, unanswered, and %v %s", m.from.n, keys[m.key].name, m.id.Op, d.n, why)
				}
				live = append(live, m)
			}
		}
	}
	clear(w.moves[len(live):])
	w.moves = live
}

// outcomeOf reports whether the destination has heard how a move ended.
func (d *destSide) outcomeOf(m *move) bool {
	op := d.ops[m.id.Op]
	for i := range op.Items {
		if string(op.Items[i].Key) == keys[m.key].name {
			return op.told[i]
		}
	}
	return true
}

// checkConfirm is D4.
func (w *world) checkConfirm(d *destSide, id peer.OpID, m *wire.Confirm) {
	op := d.ops[id]
	if op == nil {
		w.fail("%v confirms operation %d, which is over", d, id)
		return
	}
	for _, i := range m.Indices {
		if !d.n.tab.Holds("", op.Items[i].Key, peer.HoldID{Source: peer.Incarnation(m.Source), Op: id}) {
			w.fail("%v confirms item %d.%d, which it does not hold", d, id, i)
		}
	}
}

// checkUnwritten checks that memory which its operation lets go will not be
// written any more (D2).
func (w *world) checkUnwritten(t *table, s *slot) {
	if d := s.dest; d != nil {
		if p := d.posted(s.op, s.index); p != nil && p.slot == s {
			w.fail("%v lets go of %v, which is posted for item %d.%d", t.n, s, s.op, s.index)
		}
	}
	for _, x := range w.writes {
		if x.target == s && x.targetE == s.epoch {
			w.fail("%v lets go of %v, which %v may still write for item %d.%d", t.n, s, x.s, x.op, x.index)
		}
	}
}

// checkOrder checks that a block is not committed before its parent, when both are
// on their way by one operation.
func (w *world) checkOrder(t *table, slots []*slot) {
	for _, s := range slots {
		for _, p := range t.slots {
			if p.state == slotReserved && p.dest == s.dest && p.op == s.op && p.key == keys[s.key].parent && p.index < s.index && keys[s.key].group[0] != keys[p.key].group[0] {
				w.fail("%v commits %s before its parent", t.n, keys[s.key].name)
			}
		}
	}
}

// checkUnread checks that a claim which ends is not being read under (S1).
func (w *world) checkUnread(t *table, id peer.Claim, c *claim) {
	for _, x := range w.writes {
		if x.s.n == t.n && x.id == id {
			w.fail("%v ends the claim of item %d.%d, which is being written", t.n, x.op, x.index)
		}
	}
	if c.src == nil || !c.src.from.alive || c.src.from.inc != c.src.dest || c.b == nil {
		return
	}
	d := c.src.from.dest(t.n, c.src.name)
	for _, p := range d.posts {
		if p.source == t && p.op == c.owner.Op && !p.answered && p.route == wire.RouteShm && p.offer.Flags&wire.OfferNoPool == 0 && p.slot.key == c.b.key {
			w.fail("%v ends the claim of item %d.%d, which %v is reading", t.n, p.op, p.index, d)
		}
	}
}

// checkOffer is S4.
func (w *world) checkOffer(s *srcSide, id peer.OpID) {
	if s.over[id] {
		w.fail("%v begins operation %d again", s, id)
	}
	if s.begun[id] == nil {
		s.begun[id] = s.conn
	}
}

func (w *world) checkSource(s *srcSide, a peer.Action) {
	switch a := a.(type) {
	case peer.Outcome:
		id := itemID{a.Op, a.Index}
		if s.told[id] {
			w.fail("%v: a second outcome of item %d.%d", s, a.Op, a.Index)
		}
		s.told[id] = true
	case peer.Ended:
		for _, x := range w.writes {
			if x.s == s && x.op == a.Op {
				w.fail("%v ends operation %d while item %d is being written", s, a.Op, x.index)
			}
		}
		if c := s.begun[a.Op]; c != nil && c == s.conn {
			s.over[a.Op] = true
		}
		delete(s.begun, a.Op)
		for i := range wire.MaxItems {
			if id := (itemID{a.Op, i}); s.told[id] || s.wrote[id] {
				delete(s.told, id)
				delete(s.wrote, id)
			}
		}
	}
}
