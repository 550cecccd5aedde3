package sim

import (
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

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
