package sim

import (
	"fmt"
	"time"

	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// move is one key of an admitted move, from its mark until both sides are through
// with it.
type move struct {
	from    *table
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
	m := &move{from: t, unit: t.blocks[key].unit, key: key, id: id, at: w.now}
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

// checkUnmarked checks that a source has lifted the marks of a destination that it
// has lost (S3).
func (w *world) checkUnmarked(s *srcSide) {
	for _, m := range w.moves {
		if m.from == s.tab && m.id.Dest == s.dest && !m.removed && !m.unit.gone && m.unit.mark == m.id {
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
			if side := d.n.dests[m.from.n.id]; side.ops[m.id.Op] != nil && !side.outcomeOf(m) {
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

// checkDest follows what a destination tells its callers: D1 and D5.
func (w *world) checkDest(d *destSide, a peer.Action) {
	find := func(id peer.OpID, i int) *operation {
		op := d.ops[id]
		if op == nil || i >= len(op.Items) {
			w.fail("%v speaks of item %d.%d, which there is not", d, id, i)
			return nil
		}
		return op
	}
	switch a := a.(type) {
	case peer.Settle:
		op := find(a.Op, a.Index)
		if op == nil {
			return
		}
		if op.settled[a.Index] {
			w.fail("%v settles item %d.%d twice", d, a.Op, a.Index)
		}
		op.settled[a.Index] = true
		switch {
		case a.Status != wire.StatusOK:
			w.report.Failed[min(int(a.Status), len(w.report.Failed)-1)]++
		case op.Deliver:
			w.report.Delivered++
		case !a.Existing && op.Mode == wire.TransferCopy:
			w.report.Copies++
		}
		if op.Deliver && !op.quarantined[a.Index] {
			w.checkQuiet(d, a.Op, a.Index)
		}
	case peer.Outcome:
		op := find(a.Op, a.Index)
		if op == nil {
			return
		}
		if op.told[a.Index] || op.Mode != wire.TransferMove || !op.settled[a.Index] {
			w.fail("%v: an outcome of item %d.%d too early, twice, or of a copy", d, a.Op, a.Index)
		}
		op.told[a.Index] = true
		if a.Status != wire.StatusOK {
			w.report.Kept[min(int(a.Status), len(w.report.Kept)-1)]++
		} else if !w.wasRemoved(d, a.Op, string(a.Key)) {
			w.fail("%v says that %s was moved by operation %d; it was not", d, a.Key, a.Op)
		}
	case peer.Quarantine:
		if op := find(a.Op, a.Index); op != nil {
			if op.quarantined[a.Index] {
				w.fail("%v reports item %d.%d twice", d, a.Op, a.Index)
			}
			op.quarantined[a.Index] = true
			w.report.Quarantined++
		}
	case peer.Quiesce:
		if op := find(a.Op, a.Index); op != nil && !op.quarantined[a.Index] {
			w.fail("%v frees item %d.%d, which was not quarantined", d, a.Op, a.Index)
		}
	case peer.Ended:
		op := d.ops[a.Op]
		if op == nil {
			w.fail("%v ends operation %d, which there is not", d, a.Op)
			return
		}
		for i := range op.Items {
			if !op.settled[i] || op.told[i] != (op.Mode == wire.TransferMove) || d.posted(a.Op, i) != nil {
				w.fail("%v ends operation %d before its item %d", d, a.Op, i)
			}
		}
		delete(d.ops, a.Op)
	}
}

// wasRemoved reports whether the source's copy of a key has been removed by an
// operation that has just been told so.
func (w *world) wasRemoved(d *destSide, id peer.OpID, key string) bool {
	for _, m := range w.moves {
		if m.id == (peer.MoveID{Dest: d.n.inc, Op: id}) && keys[m.key].name == key && m.removed {
			return true
		}
	}
	return false
}

// checkQuiet checks that nobody will write a caller's memory any more, when the
// caller is told that it is over.
func (w *world) checkQuiet(d *destSide, op peer.OpID, i int) {
	if d.posted(op, i) != nil {
		w.fail("%v settles item %d.%d of a delivery while its end of the route is open", d, op, i)
	}
	for _, x := range w.writes {
		if x.s.dest == d.n.inc && x.s.n == d.to && x.target != nil && x.op == op && x.index == i {
			w.fail("%v settles item %d.%d of a delivery while %v may write it", d, op, i, x.s)
		}
	}
}

// checkCaller is the same, looked at when a word is written.
func (w *world) checkCaller(x *write) {
	d := x.target.dest
	if op := d.ops[x.op]; op != nil && op.Deliver && op.settled[x.index] && !op.quarantined[x.index] {
		w.fail("%v writes the memory of item %d.%d after the caller was told that it is over", x.s, x.op, x.index)
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
	d := c.src.from.dests[t.n.id]
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

// hopeless reports whether an operation waits for a process that never comes back,
// and of whose death there is no proof.
func (d *destSide) hopeless() bool { return d.to.gone && !d.n.w.sameHost[d.n.id][d.to.id] }

// checkEnd is what must hold when nothing happens any more.
func (w *world) checkEnd() {
	if left := w.leftover(); left != "" {
		w.fail("left over at the end: %s", left)
	}
}

// leftover says what is not over, "" for nothing.
func (w *world) leftover() (left string) {
	add := func(format string, args ...any) { left += fmt.Sprintf(format, args...) + "; " }
	for _, n := range w.nodes {
		if !n.alive {
			continue
		}
		waits := map[*destSide]bool{}
		for _, d := range n.dests {
			switch {
			case d == nil || d.m.Ops() == 0:
			case d.hopeless():
				waits[d] = true
				for id, op := range d.ops {
					for i := range op.Items {
						if !op.settled[i] {
							add("%v item %d.%d is not settled", d, id, i)
						}
					}
				}
			default:
				add("%v has %d operations", d, d.m.Ops())
			}
		}
		for _, s := range n.sources {
			if s.m.Ops() > 0 {
				add("%v has %d operations", s, s.m.Ops())
			}
		}
		t := n.tab
		if len(t.claims) > 0 {
			add("%v has %d claims", n, len(t.claims))
		}
		for _, b := range t.blocks {
			switch {
			case b == nil:
			case b.mark != (peer.MoveID{}):
				add("%v has %s marked", n, keys[b.key].name)
			case b.hold != (peer.HoldID{}) && !w.tables[b.hold.Source].n.gone:
				add("%v holds %s", n, keys[b.key].name)
			case b.hold != (peer.HoldID{}) && w.sameHost[n.id][w.tables[b.hold.Source].n.id]:
				add("%v holds %s though the death of its source is proven", n, keys[b.key].name)
			}
		}
		for _, s := range t.slots {
			if s.state == slotReserved && !waits[s.dest] || s.state == slotRetiring {
				add("%v has %v reserved or retiring", n, s)
			}
		}
	}
	for _, x := range w.writes {
		add("%v writes item %d.%d", x.s, x.op, x.index)
	}
	return left
}
