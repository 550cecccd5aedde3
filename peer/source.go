package peer

import (
	"slices"

	"github.com/kvcr-go/kvcr/wire"
)

// Source is the source side of all operations that a destination process has with this
// one by one endpoint: of one Dest.
//
// An item's life:
//
//	offered -> writing -> written ----------> ended      (copy)
//	    |          |          \-(Confirm)---> removed or kept   (move)
//	    \----------+------------------------> ended
//
// What must hold:
//
//	S1  A block is claimed from Offer until it is not read any more: written and
//	    not marked, or the operation has ended. On the shm route, where the
//	    destination reads, until Finish or proof of its death; no timer ends it.
//	S2  A block is removed only for a Confirm that names both processes, on a
//	    connection that is up, while the mark is still the operation's (M1, M5).
//	S3  Every mark ends: by Remove, or Unmark at Decline, Finish, Down, or when
//	    the allowance is over (M6).
//	S4  An operation of one id starts once, and again only when its connection was
//	    lost before its Offer arrived; what is answered follows from present state
//	    (M4).
type Source struct {
	self   Incarnation
	dest   Incarnation
	rec    SourceRecords
	timing Timing
	limits SourceLimits

	up    bool
	gone  bool // the destination has ended; a connection to it is of no use
	route wire.Route
	ops   []*srcOp
	byID  map[OpID]*srcOp
	ended endedOps
	out   []Action
}

// SourceLimits bound what a destination may have a source do at once.
type SourceLimits struct {
	// Ops is the number of its operations. Default 1024.
	Ops int
	// Pins: there is a framework that lends what the records do not have.
	Pins bool
	// Namespace compares the layouts: it returns StatusOK, or why an operation
	// on the namespace is refused, and a sentence for people. nil: never.
	Namespace func(name string, fingerprint [32]byte) (wire.Status, string)
}

// NewSource returns the source machine for one link of a destination process.
func NewSource(self, dest Incarnation, rec SourceRecords, timing Timing, limits SourceLimits) *Source {
	if limits.Ops == 0 {
		limits.Ops = 1024
	}
	return &Source{self: self, dest: dest, rec: rec, timing: timing.withDefaults(), limits: limits, byID: map[OpID]*srcOp{}}
}

type srcState uint8

const (
	srcOffered srcState = iota
	srcWriting
	srcWritten
)

type srcItem struct {
	state   srcState
	claim   Claim
	marked  bool        // the mark may still be ours
	result  wire.Status // of the write
	told    bool        // Done has named it
	outcome wire.Status // of the move, once decided
	decided bool
}

type srcOp struct {
	id      OpID
	start   *wire.Start
	offer   *wire.Offer
	items   []srcItem
	writes  int // items that are being written
	pinning bool
	ending  bool // over when nothing is being written
	finish  bool // Finished is owed then
	lost    bool // it ends because the connection went, and may begin again on the next
	// route is how payload goes, as far as claims depend on it: shm, if any
	// connection that had our Offer was of that kind.
	route wire.Route
	// expire is when the operation's time is up; then the allowances of M6 run.
	expire Time
	stage  srcStage
}

// srcStage is what the next timer of an operation does.
type srcStage uint8

const (
	stageRunning srcStage = iota // cancels writes
	stageAsk                     // asks for confirmations
	stageKeep                    // gives up the move
	stageForget                  // forgets the operation
	stageOver
)

// Ops is the number of operations that are not forgotten.
func (s *Source) Ops() int { return len(s.ops) }

// Step lets the machine take one event. The actions are valid until the next
// call.
func (s *Source) Step(now Time, ev Event) []Action {
	clear(s.out) // an idle machine keeps no messages alive
	s.out = s.out[:0]
	// As in Dest.Step, an event of one operation looks at no other.
	one := true
	var id OpID
	switch e := ev.(type) {
	case Up:
		one = false
		s.up, s.route = !s.gone, e.Route
	case Down:
		one = false
		s.disconnected()
	case Dead:
		one = false
		s.dead()
	case Frame:
		id = OpID(e.ID)
		s.frame(now, e)
	case Written:
		id = e.Op
		s.written(e)
	case Pinned:
		id = e.Op
		s.pinned(e)
	case Tick:
		one = false
		s.tick(now)
	}
	if one {
		if op := s.byID[id]; op != nil && s.settle(op) {
			i := slices.Index(s.ops, op)
			s.ops = slices.Delete(s.ops, i, i+1)
		}
		return s.out
	}
	s.ops = slices.DeleteFunc(s.ops, s.settle)
	return s.out
}

// Next is when a Tick is due, 0 for never.
func (s *Source) Next() (at Time) {
	for _, op := range s.ops {
		if op.stage != stageOver {
			at = earliest(at, op.expire)
		}
	}
	return at
}

func (s *Source) do(a Action) { s.out = append(s.out, a) }

func (s *Source) send(id uint64, m wire.Message) {
	if s.up {
		s.do(Send{id, m})
	}
}

// disconnected keeps every copy: nobody can confirm now (M5), and a new
// connection begins anew. Where the destination reads our memory, it may go on.
func (s *Source) disconnected() {
	s.up = false
	for _, op := range s.ops {
		s.keepAll(op, wire.StatusLost)
		s.cancelAll(op)
		if op.route != wire.RouteShm {
			op.ending, op.finish, op.lost = true, false, true
		}
	}
}

// dead ends everything: the process is gone.
func (s *Source) dead() {
	s.up, s.gone = false, true
	for _, op := range s.ops {
		s.keepAll(op, wire.StatusSource)
		s.cancelAll(op)
		op.ending, op.finish, op.lost = true, false, true
	}
}

// keepAll lifts the operation's marks.
func (s *Source) keepAll(op *srcOp, why wire.Status) {
	for i := range op.items {
		s.keep(op, i, why)
	}
}

func (s *Source) keep(op *srcOp, i int, why wire.Status) {
	it := &op.items[i]
	if !it.marked || it.decided {
		return
	}
	s.rec.Unmark(it.claim, MoveID{s.dest, op.id})
	s.decide(op, i, why)
}

func (s *Source) decide(op *srcOp, i int, outcome wire.Status) {
	it := &op.items[i]
	it.decided, it.outcome = true, outcome
	s.do(Outcome{op.id, i, op.start.Namespace, op.start.Items[i].Key, outcome})
}

func (s *Source) cancelAll(op *srcOp) {
	if op.pinning {
		s.do(CancelPin{op.id})
	}
	for i := range op.items {
		if op.items[i].state == srcWriting {
			s.do(CancelWrite{op.id, i})
		}
	}
}

func (s *Source) unclaim(op *srcOp, i int) {
	if it := &op.items[i]; it.claim != 0 {
		s.rec.Unclaim(it.claim)
		it.claim = 0
	}
}

// written takes the end of a Write.
func (s *Source) written(w Written) {
	op := s.byID[w.Op]
	if op == nil || w.Index < 0 || w.Index >= len(op.items) || op.items[w.Index].state != srcWriting {
		return
	}
	it := &op.items[w.Index]
	it.state, it.result = srcWritten, w.Status
	op.writes--
	if w.Status != wire.StatusOK {
		s.keep(op, w.Index, w.Status)
	}
	if !it.marked || it.decided {
		s.unclaim(op, w.Index)
	}
	if w.Status != wire.StatusOK || op.writes == 0 {
		s.tell(op)
	}
}

// tell sends Done for what has been written since the last one.
func (s *Source) tell(op *srcOp) {
	m := &wire.Done{Source: uint64(s.self), Dest: uint64(s.dest)}
	for i := range op.items {
		if it := &op.items[i]; it.state == srcWritten && !it.told {
			it.told = true
			m.Items = append(m.Items, wire.ItemStatus{Index: uint32(i), Status: it.result})
		}
	}
	if len(m.Items) > 0 {
		s.send(uint64(op.id), m)
	}
}

// tick does what is due.
func (s *Source) tick(now Time) {
	for _, op := range s.ops {
		for op.stage != stageOver && now >= op.expire {
			op.expire += s.timing.Allowance
			s.expired(op)
		}
	}
}

// expired is one step of an operation's time running out (M6).
func (s *Source) expired(op *srcOp) {
	switch op.stage {
	case stageRunning:
		s.cancelAll(op)
	case stageAsk:
		m := &wire.Ask{Source: uint64(s.self), Dest: uint64(s.dest)}
		for i := range op.items {
			if it := &op.items[i]; it.marked && !it.decided {
				m.Indices = append(m.Indices, uint32(i))
			}
		}
		if len(m.Indices) > 0 {
			s.send(uint64(op.id), m)
		}
	case stageKeep:
		s.keepAll(op, wire.StatusTimeout)
	case stageForget:
		if op.route != wire.RouteShm {
			op.ending = true
		}
	}
	op.stage++
}

// settle ends an operation that is over and not being read any more, and reports
// whether it did: then it is to be taken out of ops.
func (s *Source) settle(op *srcOp) bool {
	if !op.ending || op.pinning || op.writes > 0 {
		return false
	}
	s.keepAll(op, wire.StatusAborted)
	for i := range op.items {
		s.unclaim(op, i)
	}
	delete(s.byID, op.id)
	if !op.lost {
		s.ended.add(op.id)
	}
	if op.finish {
		s.send(uint64(op.id), &wire.Finished{Source: uint64(s.self), Dest: uint64(s.dest)})
	}
	s.do(Ended{op.id})
	return true
}

// endedOps remembers the last operations that ended in order, so that a repeated
// Start that comes late does not begin one again. What it has forgotten does
// little harm: the destination answers the Offer with Finish. It grows as it is used:
// a source has one for each destination, and most have few operations.
type endedOps struct {
	ids  []OpID
	next int  // in ids, once there are keptEnded
	most OpID // of all ever: a destination counts its operations, so that a new one is beyond
}

const keptEnded = 1024

func (e *endedOps) add(id OpID) {
	e.most = max(e.most, id)
	if len(e.ids) < keptEnded {
		e.ids = append(e.ids, id)
		return
	}
	e.ids[e.next] = id
	e.next = (e.next + 1) % keptEnded
}

func (e *endedOps) has(id OpID) bool { return id <= e.most && slices.Contains(e.ids, id) }
