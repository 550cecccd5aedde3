package peer

import (
	"errors"
	"fmt"

	"github.com/kvcr-go/kvcr/wire"
)

// Resolution is what a source knows of one hash. With StatusOK the embedded fields
// describe the block, Description in words that nobody has checked; else Status says why there is none: StatusMiss, StatusAmbiguous,
// StatusAdapter, StatusSelf; or why there was no answer: StatusTimeout, StatusAborted,
// StatusUnsupported and what else refusals say. Its slices are the caller's.
type Resolution struct {
	Hash uint64
	wire.Resolved
	// Source is the life of the process that has answered, 0 for none: Generation
	// means something in that one only. It is 0 where the source tells none.
	Source Incarnation
}

// Resolving has a source tell the keys of a list of hashes: the asking side, a machine
// as Dest is. It takes Up, Down, Frame, Tick and Unreachable, and sends.
//
// What must hold:
//
//	H1  Each hash is answered in its place, by the answer to the request that named it:
//	    an id is used for one part of the list and never again.
//	H2  An answer counts once, and only when it names this process and the one at the
//	    other end of the connection.
//	H3  A request is repeated until it is answered: with backoff, and at once on a new
//	    connection. Window requests at most are without an answer.
type Resolving struct {
	self   Incarnation
	timing Timing
	limits ResolveLimits
	nextID func() OpID

	up    bool
	peer  Incarnation // of the last connection
	all   []Resolution
	sent  int // hashes that requests have named
	left  int // hashes without an answer
	parts []*resolvePart
	why   error // of the first part that the source did not answer; nil: none
	out   []Action
}

// resolvePart is one request that is not answered.
type resolvePart struct {
	id     OpID
	at     []Resolution // of all
	msg    *wire.ResolveHashes
	repeat backoff
}

// ResolveLimits shape the requests of one list of hashes.
type ResolveLimits struct {
	Part   int // hashes of one request. Default, and most, wire.MaxHashes
	Window int // requests without an answer. Default 2
}

// NewResolving begins with a list of hashes, which may have one twice. nextID numbers
// requests; it gives no number twice in this incarnation.
func NewResolving(self Incarnation, hashes []uint64, timing Timing, limits ResolveLimits, nextID func() OpID) *Resolving {
	if limits.Part <= 0 || limits.Part > wire.MaxHashes {
		limits.Part = wire.MaxHashes
	}
	if limits.Window <= 0 {
		limits.Window = 2
	}
	r := &Resolving{self: self, timing: timing.withDefaults(), limits: limits, nextID: nextID, left: len(hashes)}
	r.all = make([]Resolution, len(hashes))
	for i, h := range hashes {
		r.all[i].Hash = h
	}
	return r
}

// Ops is the number of hashes without an answer.
func (r *Resolving) Ops() int { return r.left }

// Results are the answers, in the order of the hashes, once there are none without.
// The error is that of the first hashes that the source did not answer.
func (r *Resolving) Results() ([]Resolution, error) { return r.all, r.why }

// Step lets the machine take one event. The actions are valid until the next call.
func (r *Resolving) Step(now Time, ev Event) []Action {
	r.out = r.out[:0]
	switch e := ev.(type) {
	case Up:
		r.up, r.peer = true, e.Peer
		for _, p := range r.parts {
			r.ask(now, p)
		}
	case Down:
		r.up = false
	case Unreachable:
		r.End(e.Status, ErrRefused, nil)
	case Frame:
		r.frame(e)
	case Tick:
		for _, p := range r.parts {
			if r.up && p.repeat.due(now, &r.timing) {
				r.out = append(r.out, Send{uint64(p.id), p.msg})
			}
		}
	}
	for r.up && r.sent < len(r.all) && len(r.parts) < r.limits.Window {
		r.more(now)
	}
	return r.out
}

// Next is when a Tick is due, 0 for never.
func (r *Resolving) Next() (at Time) {
	for _, p := range r.parts {
		if r.up {
			at = earliest(at, p.repeat.at)
		}
	}
	return at
}

// more asks for the next hashes of the list.
func (r *Resolving) more(now Time) {
	at := r.all[r.sent:min(r.sent+r.limits.Part, len(r.all))]
	r.sent += len(at)
	p := &resolvePart{id: r.nextID(), at: at, msg: &wire.ResolveHashes{Dest: uint64(r.self), Hashes: make([]uint64, len(at))}}
	for i := range at {
		p.msg.Hashes[i] = at[i].Hash
	}
	r.parts = append(r.parts, p)
	r.ask(now, p)
}

func (r *Resolving) ask(now Time, p *resolvePart) {
	p.repeat.start(now, &r.timing)
	r.out = append(r.out, Send{uint64(p.id), p.msg})
}

// asks finds the request with an id that is not answered.
func (r *Resolving) asks(id uint64) int {
	for i, p := range r.parts {
		if uint64(p.id) == id {
			return i
		}
	}
	return -1
}

// frame takes a message of the source. What answers no request is a repetition, or
// late, and changes nothing.
func (r *Resolving) frame(f Frame) {
	i := r.asks(f.ID)
	if !r.up || i < 0 {
		return
	}
	switch m := f.Msg.(type) {
	case *wire.HashesResolved:
		if m.Source != uint64(r.peer) || m.Dest != uint64(r.self) {
			return // of another life
		}
		p := r.parts[i]
		if len(m.Items) != len(p.at) {
			r.fail(i, wire.StatusSource, ErrLost, fmt.Errorf("%d answers for %d hashes", len(m.Items), len(p.at)))
			return
		}
		for k := range m.Items {
			p.at[k].Resolved, p.at[k].Source = m.Items[k], r.peer
		}
		r.over(i)
	case *wire.StatusReply:
		switch m.Status {
		case wire.StatusBusy: // asked again in time
		case wire.StatusOK:
			r.fail(i, wire.StatusSource, ErrLost, errNonsense)
		case wire.StatusUnsupported:
			r.fail(i, m.Status, ErrRefused, errNoHashes)
		default:
			r.fail(i, m.Status, ErrRefused, nil)
		}
	case *wire.ErrorReply:
		if m.Code == wire.CodeBadType {
			r.fail(i, wire.StatusUnsupported, ErrRefused, errOldPeer)
			return
		}
		r.fail(i, wire.StatusSource, ErrRefused, fmt.Errorf("the peer says %v: %s", m.Code, m.Text))
	case *garbled:
		r.fail(i, wire.StatusSource, ErrLost, m.err)
	}
}

var (
	errNonsense = errors.New("an answer that makes no sense")
	errOldPeer  = errors.New("the peer does not resolve hashes: it is of an earlier version; update it")
	errNoHashes = errors.New("the peer does not resolve hashes: give it a Resolver")
)

// fail answers the hashes of a request in place of the source.
func (r *Resolving) fail(i int, status wire.Status, err, cause error) {
	for k := range r.parts[i].at {
		r.parts[i].at[k].Status = status
	}
	r.failed(status, err, cause)
	r.over(i)
}

func (r *Resolving) failed(status wire.Status, err, cause error) {
	if r.why == nil {
		r.why = &Error{Op: "resolve", Status: status, Err: err, Cause: cause}
	}
}

func (r *Resolving) over(i int) {
	r.left -= len(r.parts[i].at)
	r.parts = append(r.parts[:i], r.parts[i+1:]...)
}

// End answers all hashes that have no answer, with an error that says why.
func (r *Resolving) End(status wire.Status, err, cause error) {
	if r.left == 0 {
		return
	}
	for len(r.parts) > 0 {
		r.fail(0, status, err, cause)
	}
	for i := r.sent; i < len(r.all); i++ {
		r.all[i].Status = status
	}
	r.failed(status, err, cause)
	r.sent, r.left = len(r.all), 0
}
