package peer

import (
	"sync"
	"time"

	"github.com/kvcr-go/kvcr/internal/points"
	"github.com/kvcr-go/kvcr/wire"
)

// machine is a Dest or a Source.
type machine interface {
	Step(now Time, ev Event) []Action
	Next() Time
	Ops() int
}

// link runs one machine: events from any goroutine, one Step at a time, its actions
// in order before the next.
//
// Whoever posts an event runs the machine until there are none left, unless
// somebody does already: then that one takes it. So actions may post events, and
// no goroutine belongs to an idle link.
//
//	L1  Frames of a connection reach the machine between its Up and its Down only,
//	    since conn is compared when the event is taken, not when it is posted.
//	L2  What Step wants sent in one run goes out in one write, after the actions; but
//	    no later than there is outRun of it.
//	L3  link.mu may be taken with node.mu held, and never the other way round.
type link struct {
	node *Node
	m    machine
	do   func(Action)             // one action that is not Send
	took func(Event)              // sees each event before the machine does; may be nil
	ran  func()                   // after each run, still exclusively
	fill func(*wire.Accept, OpID) // describes memory; may be nil

	// Of who runs.
	conn *control    // nil: down
	peer Incarnation // at the other end of the last one
	out  []byte

	mu      sync.Mutex
	taken   sync.Cond // a queue was taken, or nobody runs the machine; its L is set by pace
	lots    uint64    // queues that were taken
	queue   []queued
	spare   []queued
	running bool
	held    int // who is about to post more
	timer   *time.Timer
	due     Time // what the timer is set to, 0: not
	ops     int  // of the machine, after the last run
	up      *control
	closed  bool
}

// Events of a link: what the machines do not know of connections.
type (
	connUp struct {
		Up
		conn   *control
		before func() // run before the machine hears of it
	}
	connDown struct{ conn *control }
	// call runs a function as an event: exclusively, and in order.
	call func()
)

func (connUp) event()   {}
func (connDown) event() {}
func (call) event()     {}

// queued is an event, and the connection that it was read from if it is a Frame.
type queued struct {
	Event
	from *control
}

// post hands an event over. It must not be called with a lock held that actions
// take.
func (l *link) post(ev Event) { l.postFrom(nil, ev) }

// postFrom is post for an event that is of no interest once the connection is down.
func (l *link) postFrom(c *control, ev Event) {
	l.mu.Lock()
	l.queue = append(l.queue, queued{ev, c})
	l.run()
}

// hold has events wait until release, so that those of one read from a connection
// are taken together: what they have sent goes out in one write. The caller must
// release, soon.
func (l *link) hold() {
	l.mu.Lock()
	l.held++
	l.mu.Unlock()
}

func (l *link) release() {
	l.mu.Lock()
	l.held--
	l.run()
}

// heldEvents is how many events wait for release at most: several connections may hold
// in turn, so that there is always one that does.
const heldEvents = 256

// run runs the machine until there are no events left, unless somebody else does or
// will. It is called with mu held, and gives it up.
func (l *link) run() {
	if l.running || l.held > 0 && len(l.queue) < heldEvents || len(l.queue) == 0 {
		l.mu.Unlock()
		return
	}
	l.running = true
	for len(l.queue) > 0 {
		lot := l.queue
		l.queue = l.spare[:0]
		l.lots++
		l.taken.Broadcast()
		l.mu.Unlock()
		for i, ev := range lot {
			l.take(ev)
			lot[i] = queued{}
			if len(l.out) > outRun {
				l.flush()
			}
		}
		l.flush()
		l.ran()
		l.mu.Lock()
		l.spare = lot
		l.ops = l.m.Ops()
		l.up = l.conn
	}
	l.arm()
	l.running = false
	l.taken.Broadcast()
	l.mu.Unlock()
}

// pace waits until what is in the queue has been taken by who runs the machine. The
// event loop does so after every paceBytes of frames: else a peer that sends faster
// than another goroutine takes its frames would have us keep them. Who runs a
// machine waits for no event loop.
func (l *link) pace() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken.L = &l.mu
	for lots := l.lots; l.running && len(l.queue) > 0 && l.lots == lots; {
		l.taken.Wait()
	}
}

// take runs one event.
func (l *link) take(q queued) {
	switch e := q.Event.(type) {
	case Frame:
		if q.from == l.conn {
			points.Of("read", e.Msg.Type(), uint64(l.peer))
			l.step(q.Event)
		}
	case connUp:
		if e.conn.ended.Load() {
			return // its Down has been here
		}
		if l.conn != nil {
			l.down()
		}
		l.conn, l.peer = e.conn, e.Peer
		if e.before != nil {
			e.before()
		}
		l.step(e.Up)
	case connDown:
		if e.conn == l.conn {
			l.down()
		}
	case call:
		e()
	default:
		l.step(e)
	}
}

// down ends the connection, for whatever reason.
func (l *link) down() {
	l.flush()
	c := l.conn
	l.conn = nil
	c.close()
	l.step(Down{})
}

func (l *link) step(ev Event) {
	if l.took != nil {
		l.took(ev)
	}
	for _, a := range l.m.Step(l.node.Now(), ev) {
		if s, ok := a.(Send); ok {
			l.send(s)
			continue
		}
		l.do(a)
	}
}

func (l *link) send(s Send) {
	if l.conn == nil {
		return
	}
	if m, ok := s.Msg.(*wire.Accept); ok && l.fill != nil {
		l.fill(m, OpID(s.ID))
	}
	l.out = s.Msg.Append(l.out, s.ID)
}

// flush writes what was gathered.
func (l *link) flush() {
	if len(l.out) == 0 {
		return
	}
	if l.conn != nil {
		l.atFrames("send")
		l.conn.write(l.out)
		l.atFrames("sent")
	}
	l.out = l.out[:0]
	if cap(l.out) > outKept {
		l.out = nil
	}
}

// atFrames tells tests of what is in out; see package points.
func (l *link) atFrames(what string) {
	if points.Hook == nil {
		return
	}
	for b := l.out; len(b) > 0; {
		h, _, rest, err := wire.Next(b)
		if err != nil {
			return // it is our own, and whole
		}
		points.Of(what, h.Type, uint64(l.peer))
		b = rest
	}
}

// outKept is the most memory in bytes that an idle link keeps for what it sends
// next.
const outKept = 16 << 10

const (
	// outRun is how many bytes are gathered for one write.
	outRun = 256 << 10
	// paceBytes is how many bytes of a peer's frames may wait for the machine, twice
	// (those that are being taken, and those behind them).
	paceBytes = 256 << 10
)

// arm sets the timer to what the machine waits for; none, when that is nothing. mu
// held.
func (l *link) arm() {
	next := l.m.Next()
	if l.closed {
		next = 0
	}
	if next != 0 && l.due != 0 && l.due <= next {
		return // a Tick too early does no harm, and is rarer than a later Next
	}
	l.due = next
	if next == 0 {
		if l.timer != nil {
			l.timer.Stop()
			l.timer = nil
		}
		return
	}
	wait := max(0, next-l.node.Now())
	if l.timer == nil {
		l.timer = time.AfterFunc(wait, l.tick)
	} else {
		l.timer.Reset(wait)
	}
}

func (l *link) tick() {
	l.mu.Lock()
	l.due = 0
	over := l.closed
	l.mu.Unlock()
	if !over {
		l.post(Tick{})
	}
}

// close lets no timer run any more.
func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	l.due = 0
}

// state is what others may know of the link.
func (l *link) state() (conn *control, ops int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.up, l.ops
}
