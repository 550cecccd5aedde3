package peer

import (
	"slices"

	"github.com/kvcr-go/kvcr/wire"
)

// connected repeats what the last connection may have lost.
func (d *Dest) connected(now Time, u Up) {
	if slices.Contains(d.gone[:], u.Peer) {
		return
	}
	d.up, d.peer, d.route = true, u.Peer, u.Route
	for _, op := range d.ops {
		switch {
		case op.phase == destStarting:
			d.start(now, op)
		case op.source != u.Peer && !op.holds():
			// The process that served it is gone from this address: nothing of
			// the operation is left there.
			d.provenAll(op)
			op.phase = destFinishing
			op.forget()
		default:
			d.again(op)
			op.repeat.start(now, &d.timing)
		}
	}
}

// forget makes settle drop an operation without an answer to Finish.
func (op *destOp) forget() { op.source = 0 }

func (op *destOp) holds() bool {
	return slices.ContainsFunc(op.items, func(it destItem) bool { return it.state == destHeld })
}

// disconnected fails what the source was sending: it has stopped, or will stop
// without our hearing of it. What it holds of ours by a hold stays.
func (d *Dest) disconnected() {
	d.up = false
	for _, op := range d.ops {
		if op.phase == destStarting {
			continue // asked again on the next connection
		}
		for i := range op.items {
			d.fail(op, i, wire.StatusLost)
		}
		if op.phase == destFinishing && !op.linger {
			op.forget() // a source forgets what its connection asked for
		}
	}
}

// dead ends what depended on a process that has ended. What its connection still
// has to say is of no use: nothing would end what that begins.
func (d *Dest) dead(p Incarnation) {
	d.gone[d.deads%len(d.gone)] = p
	d.deads++
	if d.peer == p {
		d.up = false
	}
	for _, op := range d.ops {
		if op.asked == p {
			op.asked = 0
		}
		if op.source != p {
			continue
		}
		for i := range op.items {
			it := &op.items[i]
			if it.state == destHeld {
				d.unhold(op, i, wire.StatusSource)
			}
			d.fail(op, i, wire.StatusSource)
		}
		d.provenAll(op)
		op.phase = destFinishing
		op.forget()
	}
}

func (d *Dest) provenAll(op *destOp) {
	for i := range op.items {
		op.items[i].proven = true
		d.release(op, i)
	}
}

// again repeats the requests of an operation that are not answered.
func (d *Dest) again(op *destOp) {
	if op.phase == destFinishing {
		d.send(op, &wire.Finish{Source: uint64(op.source), Dest: uint64(d.self)})
		return
	}
	d.accept(op, func(it *destItem) bool { return it.state == destPosted && !it.closing && !it.written })
	d.confirm(op)
	d.probe(op)
}

// accept asks for the items that pick chooses, where the source has to act.
func (d *Dest) accept(op *destOp, pick func(*destItem) bool) {
	var items []wire.Accepted
	for i := range op.items {
		it := &op.items[i]
		if pick(it) && !(op.route == wire.RouteShm && it.offer.Flags&wire.OfferNoPool == 0) {
			items = append(items, wire.Accepted{Index: uint32(i)})
		}
	}
	if len(items) > 0 {
		d.send(op, &wire.Accept{Source: uint64(op.source), Dest: uint64(d.self), Items: items})
	}
}

func (d *Dest) confirm(op *destOp) {
	var at []uint32
	for i := range op.items {
		if d.held(op, i) {
			at = append(at, uint32(i))
		}
	}
	if len(at) > 0 {
		d.send(op, &wire.Confirm{Source: uint64(op.source), Dest: uint64(d.self), Indices: at})
	}
}

// held reports whether an item may be confirmed: the records are asked, since they
// know what has become of the block (M4). A hold that is gone was lost to an order
// from elsewhere; then nothing is left to confirm.
func (d *Dest) held(op *destOp, i int) bool {
	if op.items[i].state != destHeld {
		return false
	}
	if !d.rec.Holds(op.Namespace, op.Items[i].Key, HoldID{op.source, op.Op}) {
		d.unhold(op, i, wire.StatusMiss)
		return false
	}
	return true
}

// probe has the source stop what it does for items that are being closed.
func (d *Dest) probe(op *destOp) {
	var at []uint32
	for i := range op.items {
		if it := &op.items[i]; it.state == destPosted && it.closing {
			at = append(at, uint32(i))
		}
	}
	if len(at) > 0 {
		d.send(op, &wire.Probe{Source: uint64(op.source), Dest: uint64(d.self), Cancel: true, Indices: at})
	}
}

// tick does what is due.
func (d *Dest) tick(now Time) {
	for _, op := range d.ops {
		if now >= op.Deadline && !op.expired {
			op.expired = true
			for i := range op.items {
				if !op.items[i].settled {
					d.fail(op, i, wire.StatusTimeout)
				}
			}
			d.probe(op)
			op.repeat.start(now, &d.timing)
		}
		if op.late != 0 && now >= op.late {
			op.late = 0
			for i := range op.items {
				if it := &op.items[i]; it.state == destPosted && it.closing && !it.quiet {
					it.quiet = true
					d.do(Quarantine{op.Op, i})
					if !it.settled { // a deadline ends the wait
						it.settled = true
						d.do(Settle{Op: op.Op, Index: i, Status: it.why, Written: true})
					}
				}
			}
		}
		if d.up && op.repeat.due(now, &d.timing) {
			if op.phase == destStarting {
				at, wait := op.repeat.at, op.repeat.wait
				d.start(now, op)
				op.repeat = backoff{at, wait}
			} else {
				d.again(op)
			}
		}
	}
}
