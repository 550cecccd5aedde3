package peer

import (
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// Time is a reading of a monotonic clock: a distance from a fixed moment. The
// machines only compare and add.
type Time = time.Duration

// Event is something that happened to one of the machines.
type Event interface{ event() }

// Events of both machines.
type (
	// Up: the control connection is authenticated. Peer is who is at its other
	// end. Down comes between two of them: a source whose destination connects
	// anew is told first that the old connection is closed, seen or not.
	Up struct {
		Peer  Incarnation
		Route wire.Route
	}
	// Down: the control connection is closed; nothing that was read from it
	// before arrives after this. A destination with operations left (Ops) has to
	// be connected again.
	Down struct{}
	// Dead: that process has ended, and this is proof (its pidfd says so).
	Dead struct{ Peer Incarnation }
	// Frame is a message from the peer. ID is the request id of its frame. The
	// machine may keep Msg.
	Frame struct {
		ID  uint64
		Msg wire.Message
	}
	// Tick: the time that Next named has come.
	Tick struct{}
)

// Events of a destination.
type (
	// Submit begins an operation.
	Submit struct {
		Op          OpID
		Namespace   string
		Fingerprint [32]byte // zero: do not compare
		Mode        wire.Transfer
		OwnedOnly   bool
		Deliver     bool          // slots are the caller's memory: nothing is committed, a move is a copy
		Devices     bool          // slots are on devices, which only route ucx reaches: no other route gets them
		Items       []wire.Wanted // 1 to wire.MaxItems, no key twice
		Deadline    Time
	}
	// Abort ends the items named, all of an operation when there are none, with
	// StatusAborted. It does not undo.
	Abort struct {
		Op    OpID
		Items []int
	}
	// Unreachable: there is no connection and will be none soon. Operations that
	// no source knows end with Status.
	Unreachable struct{ Status wire.Status }
	// Landed ends a Post: the item's bytes are in its slot and verified, or Status
	// says why they are not. With StatusOK nobody will write the slot by this
	// operation; on a put route that takes the source's Done, which the route has
	// to be shown. Otherwise our end of the route writes it no more.
	Landed struct {
		Op     OpID
		Index  int
		Status wire.Status
	}
	// Shut ends a Post after a Close: nothing has arrived, and our end of the
	// route will write the slot no more.
	Shut struct {
		Op    OpID
		Index int
	}
)

// Events of a source.
type (
	// Written ends a Write: the source's memory is free to change, and with
	// StatusOK all bytes have left (on a put route: have arrived).
	Written struct {
		Op     OpID
		Index  int
		Status wire.Status
	}
	// Pinned ends a Pin: what the framework lends of the items asked.
	Pinned struct {
		Op    OpID
		Items []PinnedItem
	}
)

// PinnedItem is the framework's answer for one item: a claim of its memory, as
// the records number it, and its description; or the claim 0.
type PinnedItem struct {
	Index int
	Claim Claim
	Offer wire.Offered
}

// Action is what a machine wants done, in the order in which it says so.
type Action interface{ action() }

// Actions of both machines.
type (
	// Send sends a message on the control connection; without one it is lost,
	// and repeated in time. The route fills in Accepted.Desc where it needs it.
	Send struct {
		ID  uint64
		Msg wire.Message
	}
	// Outcome tells how the move of one item ended on this side: StatusOK, the
	// source's copy is removed; else it is kept (Status says why), or not known
	// to be removed. A destination says it once for each item of what was
	// submitted as a move, after Settle; a source for each block that it had.
	Outcome struct {
		Op        OpID
		Index     int
		Namespace string
		Key       []byte
		Status    wire.Status
	}
	// Ended: the machine has forgotten the operation.
	Ended struct{ Op OpID }
)

// Actions of a destination.
type (
	// Post has the bytes of an item brought into its slot, and compared with
	// the offer's checksum. Exactly one Landed or Shut answers.
	Post struct {
		Op    OpID
		Index int
		Slot  Slot
		Offer *wire.Offered
	}
	// Close ends a Post early.
	Close struct {
		Op    OpID
		Index int
	}
	// Settle is the caller's answer for an item, exactly one for each. Existing:
	// it was resident and nothing was moved. Written: of a delivery whose memory the
	// source may still write, see Quarantine.
	Settle struct {
		Op       OpID
		Index    int
		Status   wire.Status
		Existing bool
		Written  bool
	}
	// Quarantine: the peer may still write the item's memory, beyond its time.
	// Quiesce follows when that has been ruled out. Of a delivery, Settle comes
	// with it: the caller's memory is not the caller's before Quiesce.
	Quarantine struct {
		Op    OpID
		Index int
	}
	Quiesce struct {
		Op    OpID
		Index int
	}
)

// Actions of a source.
type (
	// Write sends the claimed block's bytes. Exactly one Written answers.
	Write struct {
		Op    OpID
		Index int
		Claim Claim
		Offer *wire.Offered
		Desc  []byte
	}
	// CancelWrite asks that a Write which has not begun shall not.
	CancelWrite struct {
		Op    OpID
		Index int
	}
	// Pin asks the framework to lend what the source does not have. Exactly one
	// Pinned answers, also after CancelPin.
	Pin struct {
		Op        OpID
		Namespace string
		Items     []int
		Keys      [][]byte
	}
	CancelPin struct{ Op OpID }
)

func (Up) event()          {}
func (Down) event()        {}
func (Dead) event()        {}
func (Frame) event()       {}
func (Tick) event()        {}
func (Submit) event()      {}
func (Abort) event()       {}
func (Unreachable) event() {}
func (Landed) event()      {}
func (Shut) event()        {}
func (Written) event()     {}
func (Pinned) event()      {}

func (Send) action()        {}
func (Outcome) action()     {}
func (Ended) action()       {}
func (Post) action()        {}
func (Close) action()       {}
func (Settle) action()      {}
func (Quarantine) action()  {}
func (Quiesce) action()     {}
func (Write) action()       {}
func (CancelWrite) action() {}
func (Pin) action()         {}
func (CancelPin) action()   {}

// Timing says how long the machines wait.
type Timing struct {
	// Repeat is the first wait for an answer before a request is repeated, and
	// RepeatMax the longest: it doubles in between.
	Repeat, RepeatMax Time
	// Operation bounds an operation at the source, whatever the destination
	// asked for.
	Operation Time
	// Allowance is how long a source waits for the confirmation of a move after
	// the operation's time before it asks, and again before it gives up; and
	// how long a destination waits for proof before it reports a quarantine.
	Allowance Time
}

// DefaultTiming is what Timing's zero fields mean.
var DefaultTiming = Timing{
	Repeat: 250 * time.Millisecond, RepeatMax: time.Second,
	Operation: time.Minute, Allowance: 5 * time.Second,
}

func (t Timing) withDefaults() Timing {
	pick := func(v *Time, d Time) {
		if *v <= 0 {
			*v = d
		}
	}
	pick(&t.Repeat, DefaultTiming.Repeat)
	pick(&t.RepeatMax, DefaultTiming.RepeatMax)
	pick(&t.Operation, DefaultTiming.Operation)
	pick(&t.Allowance, DefaultTiming.Allowance)
	return t
}

// backoff is when a request is repeated next. The zero backoff is off.
type backoff struct {
	at, wait Time
}

func (b *backoff) start(now Time, t *Timing) {
	b.wait = t.Repeat
	b.at = now + b.wait
}

// due reports whether it is time to repeat, and if so sets the next time.
func (b *backoff) due(now Time, t *Timing) bool {
	if b.at == 0 || now < b.at {
		return false
	}
	b.wait = min(2*b.wait, t.RepeatMax)
	b.at = now + b.wait
	return true
}

// earliest keeps the lesser of two times, 0 being never.
func earliest(a, b Time) Time {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
