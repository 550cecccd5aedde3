package peer

import (
	"slices"

	"github.com/kvcr-go/kvcr/wire"
)

// Dest is the destination side of all operations with one endpoint.
//
// An item's life:
//
//	asked -> posted -> landed -> committed ------------------> ended
//	  |         |         |          \-> held -(Removed)-----> ended   (move)
//	  \---------+---------+--------------------------------> ended   (failed)
//
// A posted item is closed (its memory let go) before it ends without having
// landed. What must hold:
//
//	D1  Each item is settled exactly once, and no later than it ends.
//	D2  A slot is reserved from Reserve to exactly one of Commit and Free, and is
//	    never freed while posted.
//	D3  An item is held from the commit to Removed for the very hold (M2, M5).
//	D4  Confirm is sent only for items held at that moment (M4).
//	D5  Of an operation submitted as a move each item has exactly one Outcome, not
//	    before it is settled and not after it ends.
type Dest struct {
	self   Incarnation
	rec    DestRecords
	timing Timing

	up    bool
	peer  Incarnation // of the last connection
	gone  Incarnation // that has ended last; a connection to it is of no use
	route wire.Route
	ops   []*destOp // in order of Submit
	byID  map[OpID]*destOp
	out   []Action
}

// NewDest returns the destination machine of a process for one endpoint.
func NewDest(self Incarnation, rec DestRecords, timing Timing) *Dest {
	return &Dest{self: self, rec: rec, timing: timing.withDefaults(), byID: map[OpID]*destOp{}}
}

type destPhase uint8

const (
	destStarting  destPhase = iota // Start is not answered
	destRunning                    // items are on their way, or held
	destFinishing                  // Finish is not answered
)

type destState uint8

const (
	destAsked destState = iota
	destPosted
	destLanded
	destHeld
	destEnded
)

type destItem struct {
	state   destState
	settled bool
	closing bool        // Close was said
	why     wire.Status // of a failure that waits for Shut
	written bool        // put route: Done has named the item
	proven  bool        // the source will not write any more
	shut    bool        // our end writes no more; only proof is missing
	quiet   bool        // Quarantine was said
	told    bool        // Outcome was said
	keep    wire.Status // move: why it is carried out as a copy, StatusOK when it is not
	slot    Slot
	offer   *wire.Offered
	// Of the first of several parts that are committed together: their number,
	// else 0 or 1; and 1 + the index of the item with their parent, 0 for none.
	parts, after int
}

type destOp struct {
	Submit
	moving bool        // submitted as a move
	keep   wire.Status // why it is a copy all the same
	phase  destPhase
	asked  Incarnation // that Start was sent to last and has not refused, 0 for none
	source Incarnation // that answered, 0 before and once there is nobody to tell
	route  wire.Route  // of the connection that it answered on
	// linger: a connection that it was asked on had route shm. Then the source
	// keeps its claims beyond the connection, until it is told that all is over.
	linger bool
	items  []destItem
	repeat backoff
	// expired: the deadline has been acted on.
	expired bool
	// late is when memory that is still not proven free is reported.
	late Time
}

// Ops is the number of operations that are not forgotten.
func (d *Dest) Ops() int { return len(d.ops) }

// Step lets the machine take one event. The actions are valid until the next
// call.
func (d *Dest) Step(now Time, ev Event) []Action {
	d.out = d.out[:0]
	only := OpID(0) // the operation that the event is about, 0: any
	switch e := ev.(type) {
	case Submit:
		d.submit(now, e)
		only = e.Op
	case Abort:
		d.abort(now, e)
	case Up:
		d.connected(now, e)
	case Down:
		d.disconnected()
	case Unreachable:
		for _, op := range d.ops {
			if op.phase == destStarting {
				for i := range op.items {
					d.fail(op, i, e.Status)
				}
			}
		}
	case Dead:
		d.dead(e.Peer)
	case Frame:
		d.frame(now, e)
		only = OpID(e.ID)
	case Landed:
		only = e.Op
		if op, it := d.item(e.Op, e.Index); it != nil && it.state == destPosted {
			d.landed(op, e.Index, e.Status)
		}
	case Shut:
		only = e.Op
		if op, it := d.item(e.Op, e.Index); it != nil && it.state == destPosted {
			it.shut = true
			d.release(op, e.Index)
		}
	case Tick:
		d.tick(now)
	}
	d.settle(now, only)
	return d.out
}

// Next is when a Tick is due, 0 for never.
func (d *Dest) Next() (at Time) {
	for _, op := range d.ops {
		if d.up {
			at = earliest(at, op.repeat.at)
		}
		at = earliest(at, op.late)
		if !op.expired {
			at = earliest(at, op.Deadline)
		}
	}
	return at
}

func (d *Dest) do(a Action) { d.out = append(d.out, a) }

func (d *Dest) send(op *destOp, m wire.Message) {
	if d.up {
		d.do(Send{uint64(op.Op), m})
	}
}

// item finds an item of an operation, nil when there is none.
func (d *Dest) item(id OpID, i int) (*destOp, *destItem) {
	op := d.byID[id]
	if op == nil || i < 0 || i >= len(op.items) {
		return nil, nil
	}
	return op, &op.items[i]
}

func (d *Dest) submit(now Time, s Submit) {
	if d.byID[s.Op] != nil || len(s.Items) == 0 || len(s.Items) > wire.MaxItems {
		panic("peer: Submit of an operation that runs, or of none or too many items")
	}
	s.Deadline = max(s.Deadline, 1) // 0 would be never, in Next
	op := &destOp{Submit: s, moving: s.Mode == wire.TransferMove, items: make([]destItem, len(s.Items))}
	switch {
	case op.moving && s.Deliver:
		op.Mode, op.keep = wire.TransferCopy, wire.StatusUnsupported
	case op.moving && !d.rec.HoldRoom(len(s.Items)):
		op.Mode, op.keep = wire.TransferCopy, wire.StatusCapacity
	}
	d.ops = append(d.ops, op)
	d.byID[s.Op] = op
	d.start(now, op)
}

func (d *Dest) start(now Time, op *destOp) {
	left := op.Deadline - now
	if left <= 0 {
		return // tick ends it
	}
	op.repeat.start(now, &d.timing)
	if d.up {
		op.asked = d.peer
		op.linger = op.linger || d.route == wire.RouteShm
	}
	d.send(op, &wire.Start{
		Source: uint64(d.peer), Dest: uint64(d.self), Mode: op.Mode, OwnedOnly: op.OwnedOnly,
		Timeout: uint32(max(1, min(left.Milliseconds(), 1<<32-1))), Fingerprint: op.Fingerprint, Namespace: op.Namespace, Items: op.Items,
	})
}

func (d *Dest) abort(now Time, a Abort) {
	op := d.byID[a.Op]
	if op == nil {
		return
	}
	if len(a.Items) == 0 {
		for i := range op.items {
			d.fail(op, i, wire.StatusAborted)
		}
	}
	for _, i := range a.Items {
		if i >= 0 && i < len(op.items) {
			d.fail(op, i, wire.StatusAborted)
		}
	}
	d.probe(op)
	op.repeat.start(now, &d.timing)
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

// connected repeats what the last connection may have lost.
func (d *Dest) connected(now Time, u Up) {
	if u.Peer == d.gone {
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
	d.gone = p
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

// fail ends an item, at once or when its memory is let go.
func (d *Dest) fail(op *destOp, i int, why wire.Status) {
	it := &op.items[i]
	switch it.state {
	case destAsked:
		d.end(op, i, why)
	case destPosted:
		if it.closing {
			return
		}
		it.closing, it.why = true, why
		d.do(Close{op.Op, i})
		d.refuse(op, i, why)
	case destLanded:
		d.rec.Free(it.slot)
		it.slot = 0
		d.end(op, i, why)
	}
}

// refuse answers for an item whose memory is not let go yet: that waits, where it
// is ours; with the caller's memory the caller has to wait, see tick.
func (d *Dest) refuse(op *destOp, i int, why wire.Status) {
	if !op.Deliver {
		d.answer(op, i, why, false)
	}
}

// release frees a closed item's memory once nobody can write it.
func (d *Dest) release(op *destOp, i int) {
	it := &op.items[i]
	if it.state != destPosted || !it.shut || op.route == wire.RouteUCXPut && !it.proven {
		return
	}
	d.rec.Free(it.slot)
	it.slot = 0
	if it.quiet {
		d.do(Quiesce{op.Op, i})
	}
	d.end(op, i, it.why)
}

func (d *Dest) answer(op *destOp, i int, s wire.Status, existing bool) {
	if it := &op.items[i]; !it.settled {
		it.settled = true
		d.do(Settle{op.Op, i, s, existing})
	}
}

// end ends an item that is not held: in a move the source keeps its copy, for the
// reason s, or for that which made it a copy.
func (d *Dest) end(op *destOp, i int, s wire.Status) {
	d.answer(op, i, s, false)
	it := &op.items[i]
	it.state = destEnded
	if s == wire.StatusOK {
		s = it.keep
	}
	d.outcome(op, i, s)
}

// unhold ends a held item.
func (d *Dest) unhold(op *destOp, i int, outcome wire.Status) {
	d.rec.DropHold(op.Namespace, op.Items[i].Key, HoldID{op.source, op.Op})
	op.items[i].state = destEnded
	d.outcome(op, i, outcome)
}

func (d *Dest) outcome(op *destOp, i int, s wire.Status) {
	if it := &op.items[i]; op.moving && !it.told {
		it.told = true
		d.do(Outcome{op.Op, i, op.Namespace, op.Items[i].Key, s})
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
	m := &wire.Accept{Source: uint64(op.source), Dest: uint64(d.self)}
	for i := range op.items {
		it := &op.items[i]
		if pick(it) && !(op.route == wire.RouteShm && it.offer.Flags&wire.OfferNoPool == 0) {
			m.Items = append(m.Items, wire.Accepted{Index: uint32(i)})
		}
	}
	if len(m.Items) > 0 {
		d.send(op, m)
	}
}

func (d *Dest) confirm(op *destOp) {
	m := &wire.Confirm{Source: uint64(op.source), Dest: uint64(d.self)}
	for i := range op.items {
		if d.held(op, i) {
			m.Indices = append(m.Indices, uint32(i))
		}
	}
	if len(m.Indices) > 0 {
		d.send(op, m)
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
					d.answer(op, i, it.why, false) // a deadline ends the wait
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

// settle moves operations on after an event: commits what can be, finishes what
// is over and forgets what has finished. An operation that nothing has happened to
// does not change by it: only names the one to look at, 0 for all.
func (d *Dest) settle(now Time, only OpID) {
	keep := d.ops[:0]
	for _, op := range d.ops {
		if only != 0 && op.Op != only {
			keep = append(keep, op)
			continue
		}
		d.commit(now, op)
		waiting, closing := 0, false
		for i := range op.items {
			if it := &op.items[i]; it.state != destEnded {
				waiting++
				closing = closing || it.closing && !it.quiet
			}
		}
		switch {
		case closing && op.late == 0:
			op.late = now + d.timing.Allowance
		case !closing:
			op.late = 0
		}
		if waiting == 0 && op.phase != destFinishing {
			// The source may have begun it, though its Offer has not come.
			if op.phase == destStarting {
				op.source = op.asked
			}
			op.phase = destFinishing
			if op.source != 0 && (d.up || op.linger) {
				op.repeat.start(now, &d.timing)
				d.again(op)
			} else {
				op.forget()
			}
		}
		if waiting == 0 && op.source == 0 {
			delete(d.byID, op.Op)
			d.do(Ended{op.Op})
			continue
		}
		keep = append(keep, op)
	}
	clear(d.ops[len(keep):])
	d.ops = keep
}
