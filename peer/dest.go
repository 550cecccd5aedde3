package peer

import (
	"slices"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// Dest is the destination side of all operations with one endpoint. Several of one
// process may have to do with the same source, each by its own connections; ids of
// operations are of the process, and tell their marks and holds apart.
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

	up   bool
	peer Incarnation // of the last connection
	// gone has the last processes that have ended; a connection to one is of no
	// use. 16 is arbitrary: a proof and a connection cross for moments only.
	gone  [16]Incarnation
	deads int // proofs so far
	route wire.Route
	ops   []*destOp // in order of Submit
	byID  map[OpID]*destOp
	out   []Action
	slots []Slot // of commitGroup
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
	asked  Incarnation // that Start was sent to last, 0 for none
	source Incarnation // that answered, 0 before and once there is nobody to tell
	route  wire.Route  // of the connection that it answered on
	// linger: a connection that it was asked on had route shm. Then the source
	// keeps its claims beyond the connection, until it is told that all is over.
	linger bool
	items  []destItem
	// What items are known to be like, so that an event of one need not look at all:
	// how many have not ended, how many have landed, before which all have ended or
	// are held (the begin of a group), and whether one may be closing.
	left, landed, low int
	closes            bool
	repeat            backoff
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
	clear(d.out) // an idle machine keeps no messages alive
	d.out = d.out[:0]
	// Which operation the event is of, if it is not of all: others are not looked
	// at, since there may be many.
	one := true
	var id OpID
	switch e := ev.(type) {
	case Submit:
		id = e.Op
		d.submit(now, e)
	case Abort:
		id = e.Op
		d.abort(now, e)
	case Up:
		one = false
		d.connected(now, e)
	case Down:
		one = false
		d.disconnected()
	case Unreachable:
		one = false
		for _, op := range d.ops {
			if op.phase == destStarting {
				for i := range op.items {
					d.fail(op, i, e.Status)
				}
			}
		}
	case Dead:
		one = false
		d.dead(e.Peer)
	case Frame:
		id = OpID(e.ID)
		d.frame(now, e)
	case Landed:
		id = e.Op
		if op, it := d.item(e.Op, e.Index); it != nil && it.state == destPosted {
			d.landed(op, e.Index, e.Status)
		}
	case Shut:
		id = e.Op
		if op, it := d.item(e.Op, e.Index); it != nil && it.state == destPosted {
			it.shut = true
			d.release(op, e.Index)
		}
	case Tick:
		one = false
		d.tick(now)
	}
	if one {
		if op := d.byID[id]; op != nil && d.settle(now, op) {
			i := slices.Index(d.ops, op)
			d.ops = slices.Delete(d.ops, i, i+1)
			d.ended(op)
		}
		return d.out
	}
	d.ops = slices.DeleteFunc(d.ops, func(op *destOp) bool {
		over := d.settle(now, op)
		if over {
			d.ended(op)
		}
		return over
	})
	return d.out
}

// ended forgets an operation that is out of ops.
func (d *Dest) ended(op *destOp) {
	delete(d.byID, op.Op)
	d.do(Ended{op.Op})
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
	op := &destOp{Submit: s, moving: s.Mode == wire.TransferMove, items: make([]destItem, len(s.Items)), left: len(s.Items)}
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
	// The time is rounded up: the source's is not over before ours.
	d.send(op, &wire.Start{
		Source: uint64(d.peer), Dest: uint64(d.self), Mode: op.Mode, OwnedOnly: op.OwnedOnly,
		Timeout: uint32(max(1, min((left+time.Millisecond-1).Milliseconds(), 1<<32-1))), Fingerprint: op.Fingerprint, Namespace: op.Namespace, Items: op.Items,
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

// set moves an item on.
func (op *destOp) set(i int, s destState) {
	it := &op.items[i]
	if it.state == destLanded {
		op.landed--
	}
	if it.state != destEnded && s == destEnded {
		op.left--
	}
	if it.state = s; s == destLanded {
		op.landed++
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
		it.closing, it.why, op.closes = true, why, true
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
		d.do(Settle{Op: op.Op, Index: i, Status: s, Existing: existing})
	}
}

// end ends an item that is not held: in a move the source keeps its copy, for the
// reason s, or for that which made it a copy.
func (d *Dest) end(op *destOp, i int, s wire.Status) {
	d.answer(op, i, s, false)
	op.set(i, destEnded)
	if s == wire.StatusOK {
		s = op.items[i].keep
	}
	d.outcome(op, i, s)
}

// unhold ends a held item.
func (d *Dest) unhold(op *destOp, i int, outcome wire.Status) {
	d.rec.DropHold(op.Namespace, op.Items[i].Key, HoldID{op.source, op.Op})
	op.set(i, destEnded)
	d.outcome(op, i, outcome)
}

func (d *Dest) outcome(op *destOp, i int, s wire.Status) {
	if it := &op.items[i]; op.moving && !it.told {
		it.told = true
		d.do(Outcome{op.Op, i, op.Namespace, op.Items[i].Key, s})
	}
}

// settle moves an operation on after an event: commits what can be, finishes what is
// over, and reports whether it is to be forgotten.
func (d *Dest) settle(now Time, op *destOp) (over bool) {
	d.commit(now, op)
	closing := op.closes && slices.ContainsFunc(op.items, func(it destItem) bool {
		return it.state != destEnded && it.closing && !it.quiet
	})
	op.closes = closing
	switch {
	case closing && op.late == 0:
		op.late = now + d.timing.Allowance
	case !closing:
		op.late = 0
	}
	if op.left == 0 && op.phase != destFinishing {
		// The source may have begun it, though its Offer has not come, or though
		// another Start of the same was refused.
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
	return op.left == 0 && op.source == 0
}
