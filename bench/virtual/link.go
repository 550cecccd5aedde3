package virtual

import (
	"time"

	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// link is one node as the destination of another: the machines of both sides, and what
// connects them. It is dialled when first needed, and stays.
type link struct {
	f        *fleet
	from, to *node // source and destination
	dest     *peer.Dest
	source   *peer.Source // from the first connection on
	dialled  bool
	up       bool         // the destination knows of the connection
	arrives  [2]peer.Time // when the last message does, by direction
	sent     [2]int       // messages
	got      [2]int
	timers   [2]peer.Time
	ops      map[peer.OpID]*operation
	posts    map[item]*posted
	writes   map[item]*written
	resolves []*action
}

type direction uint8

const (
	toSource direction = iota
	toDest
)

type item struct {
	op    peer.OpID
	index int
}

// operation is who has asked for one.
type operation struct {
	settle  func(peer.Settle)
	outcome func(index int, s wire.Status) // nil: of a copy there is none
	left    int                            // answers that are owed: one or two for each item
}

// posted is memory that waits for its bytes.
type posted struct{ slot peer.Slot }

// written is a block that the source sends.
type written struct {
	begins    peer.Time
	cancelled bool
}

// link finds or makes the link to a source.
func (n *node) link(endpoint string) *link {
	if l := n.links[endpoint]; l != nil {
		return l
	}
	f := n.f
	from := f.endpoints[endpoint]
	if from == nil || from == n {
		f.fault("%v is told to ask %s", n, endpoint)
		from = f.nodes[(n.id+1)%f.Nodes]
	}
	l := &link{f: f, from: from, to: n, ops: map[peer.OpID]*operation{}, posts: map[item]*posted{}, writes: map[item]*written{}}
	l.dest = peer.NewDest(n.inc, n.table, peer.Timing{})
	n.links[endpoint] = l
	return l
}

// dial connects, once.
func (l *link) dial() {
	if l.dialled {
		return
	}
	l.dialled = true
	f := l.f
	f.after(f.about(peerDelay), tag{evConnect, int32(l.from.id), uint64(l.to.id)}, func() {
		was := f.cpu.to(Machines)
		l.source = peer.NewSource(l.from.inc, l.to.inc, l.from.table, peer.Timing{}, peer.SourceLimits{})
		f.cpu.to(was)
		l.from.serves[l] = struct{}{}
		l.stepSource(peer.Up{Peer: l.to.inc, Route: wire.RouteStream})
		l.arrives[toDest] = f.now + f.about(peerDelay)
		f.push(l.arrives[toDest], tag{evUp, int32(l.to.id), uint64(l.from.id)}, func() {
			l.up = true
			l.stepDest(l.upEvent())
			for _, a := range append([]*action(nil), l.resolves...) {
				a.step(l.upEvent())
			}
		})
	})
}

func (l *link) upEvent() peer.Up { return peer.Up{Peer: l.from.inc, Route: wire.RouteStream} }

// submit begins an operation.
func (l *link) submit(mode wire.Transfer, items []wire.Wanted, settle func(peer.Settle), outcome func(int, wire.Status)) {
	op := l.to.nextOp()
	o := &operation{settle: settle, left: len(items)}
	if mode == wire.TransferMove {
		o.outcome, o.left = outcome, 2*len(items)
	}
	l.ops[op] = o
	l.stepDest(peer.Submit{Op: op, Mode: mode, Items: items, Deadline: l.f.now + fetchDeadline})
	l.dial()
}

func (l *link) stepDest(ev peer.Event) {
	f := l.f
	f.counts[Steps]++
	was := f.cpu.to(Machines)
	actions, next := l.dest.Step(f.now, ev), l.dest.Next()
	f.cpu.to(was)
	// What is done for one action may have the machine take another step, which uses
	// the same memory.
	for _, a := range append([]peer.Action(nil), actions...) {
		l.doDest(a)
	}
	f.arm(l.to, &l.timers[toDest], next, l.dest.Next, func() { l.stepDest(peer.Tick{}) })
}

func (l *link) doDest(a peer.Action) {
	f := l.f
	switch a := a.(type) {
	case peer.Send:
		l.send(toSource, a.ID, a.Msg)
	case peer.Post:
		id := item{a.Op, a.Index}
		if l.posts[id] != nil {
			f.fault("%v posts item %d.%d twice", l.to, a.Op, a.Index)
		}
		l.posts[id] = &posted{a.Slot}
	case peer.Close:
		id := item{a.Op, a.Index}
		if p := l.posts[id]; p != nil {
			f.after(0, tag{evShut, int32(l.to.id), uint64(a.Op)}, func() {
				if l.posts[id] == p {
					delete(l.posts, id)
					l.stepDest(peer.Shut{Op: a.Op, Index: a.Index})
				}
			})
		}
	case peer.Settle:
		if o := l.ops[a.Op]; o != nil {
			o.left--
			o.settle(a)
		}
	case peer.Outcome:
		if o := l.ops[a.Op]; o != nil && o.outcome != nil {
			o.left--
			o.outcome(a.Index, a.Status)
		}
	case peer.Ended:
		if o := l.ops[a.Op]; o == nil || o.left != 0 {
			f.fault("%v ends operation %d, which owes answers or is none", l.to, a.Op)
		}
		delete(l.ops, a.Op)
	default:
		f.fault("%v does %T", l.to, a)
	}
}

func (l *link) stepSource(ev peer.Event) {
	f := l.f
	f.counts[Steps]++
	was := f.cpu.to(Machines)
	actions, next := l.source.Step(f.now, ev), l.source.Next()
	f.cpu.to(was)
	for _, a := range actions { // nothing of which has it take another step
		l.doSource(a)
	}
	f.arm(l.from, &l.timers[toSource], next, l.source.Next, func() { l.stepSource(peer.Tick{}) })
}

func (l *link) doSource(a peer.Action) {
	switch a := a.(type) {
	case peer.Send:
		l.send(toDest, a.ID, a.Msg)
	case peer.Write:
		l.write(a)
	case peer.CancelWrite:
		if w := l.writes[item{a.Op, a.Index}]; w != nil && w.begins > l.f.now {
			w.cancelled = true
		}
	case peer.Outcome, peer.Ended:
	default:
		l.f.fault("%v does %T", l.from, a)
	}
}

// write sends a block after those that its node is sending already.
func (l *link) write(a peer.Write) {
	f, id := l.f, item{a.Op, a.Index}
	w := &written{begins: max(f.now, l.from.sending)}
	l.writes[id] = w
	l.from.sent++
	l.from.sending = w.begins + idTransfer/time.Duration(f.Length)
	what := uint64(a.Op)<<16 | uint64(a.Index)
	f.push(l.from.sending, tag{evWritten, int32(l.from.id), what}, func() {
		delete(l.writes, id)
		s := wire.StatusOK
		if w.cancelled {
			s = wire.StatusAborted
		} else {
			f.after(peerDelay, tag{evLanded, int32(l.to.id), what}, func() { l.landed(id) })
		}
		l.stepSource(peer.Written{Op: a.Op, Index: a.Index, Status: s})
	})
}

func (l *link) landed(id item) {
	if l.posts[id] != nil { // else it was closed
		delete(l.posts, id)
		l.stepDest(peer.Landed{Op: id.op, Index: id.index, Status: wire.StatusOK})
	}
}

// send sends a message: encoded, and parsed when it arrives.
func (l *link) send(dir direction, id uint64, m wire.Message) {
	f := l.f
	was := f.cpu.to(Messages)
	frame := m.Append(nil, id)
	f.cpu.to(was)
	l.sent[dir]++
	n := l.sent[dir]
	f.counts[Frames]++
	f.counts[FrameBytes] += len(frame)
	f.foldBytes(frame)
	if f.broken.finished && m.Type() == wire.TypeFinished && id%4 == 0 {
		l.got[dir]++ // it will not be missed
		return
	}
	l.arrives[dir] = max(l.arrives[dir], f.now+f.about(peerDelay))
	at := l.from
	if dir == toDest {
		at = l.to
	}
	f.push(l.arrives[dir], tag{evFrame, int32(at.id), id}, func() {
		if l.got[dir]++; l.got[dir] != n {
			f.fault("message %d from %v to %v comes as number %d", n, l.from, l.to, l.got[dir])
		}
		l.receive(dir, frame)
	})
}

func (l *link) receive(dir direction, frame []byte) {
	f := l.f
	was := f.cpu.to(Messages)
	h, payload, rest, err := wire.Next(frame)
	var m wire.Message
	if err == nil {
		m = wire.New(h.Type)
		err = m.Parse(payload)
	}
	f.cpu.to(was)
	if err != nil || len(rest) > 0 {
		f.fault("a frame of %d bytes does not parse: %v", len(frame), err)
		return
	}
	switch m := m.(type) {
	case *wire.ResolveHashes:
		f.counts[Steps]++
		was := f.cpu.to(Machines)
		answer, failures, what := peer.AnswerHashes(l.from.inc, l.from, l.from.table, m)
		f.cpu.to(was)
		if failures > 0 {
			f.fault("%v cannot tell %d hashes: %s", l.from, failures, what)
		}
		l.send(toDest, h.ID, answer)
	case *wire.HashesResolved:
		for _, a := range append([]*action(nil), l.resolves...) {
			a.step(peer.Frame{ID: h.ID, Msg: m})
		}
	default:
		if dir == toSource {
			l.stepSource(peer.Frame{ID: h.ID, Msg: m})
		} else {
			l.stepDest(peer.Frame{ID: h.ID, Msg: m})
		}
	}
}

// arm sets a machine's timer to next, unless it goes off before: then it is set again.
func (f *fleet) arm(n *node, timer *peer.Time, next peer.Time, due func() peer.Time, tick func()) {
	if next == 0 || *timer != 0 && *timer <= next {
		return
	}
	*timer = next
	f.push(next, tag{evTimer, int32(n.id), 0}, func() {
		if *timer != next {
			return // another was set, which is earlier
		}
		*timer = 0
		was := f.cpu.to(Machines)
		at := due()
		f.cpu.to(was)
		if at != 0 && at <= f.now {
			f.counts[Ticks]++
			tick()
			return
		}
		f.arm(n, timer, at, due, tick)
	})
}
