package shard

import (
	"github.com/kvcr-go/kvcr/ring"
)

// Lane is one handle's way into one shard. A Lane has one user at a time.
//
// A call first tries the token and executes in place (helping). When the token
// is held, or the shard may not be helped, the command goes through the lane's
// rings and the caller waits for its completion, helping whenever it can.
type Lane struct {
	s      *Shard
	number int

	cmds  *ring.SPSC // to the token holder; made at the first use
	comps *ring.SPSC // back
	// key belongs to the token holder while a keyed command is under way.
	key    []byte
	call   func() // with opCall: the token holder's, as key is
	parker ring.Parker

	run run // commits of one deposit, gathered until its last one

	// Magazine: records reserved ahead, all of one shape.
	mag      [magazine]uint32
	magN     int
	magShape Shape
	magKey   int
	recalls  uint32 // of the shard's, answered
}

// laneSlots is the depth of a lane's rings: a batch of 64 in flight.
const laneSlots = 64

// magazine is how many records a lane holds ahead, and magazineBytes the
// largest slot it does so for.
const (
	magazine      = 4
	magazineBytes = 64 << 10
)

// NewLane adds a lane to the shard; false when MaxLanes are in use.
func (s *Shard) NewLane() (*Lane, bool) {
	s.lanesMu.Lock()
	defer s.lanesMu.Unlock()
	for i := range s.lanes {
		if s.lanes[i].Load() == nil {
			l := &Lane{s: s, number: i}
			s.lanes[i].Store(l)
			return l, true
		}
	}
	return nil, false
}

// Close gives the lane's records back and frees its place.
func (l *Lane) Close() {
	l.Recall()
	l.s.lanesMu.Lock()
	defer l.s.lanesMu.Unlock()
	l.s.Do(func() { l.s.lanes[l.number].Store(nil) })
}

// Recall gives the records of the magazine back.
func (l *Lane) Recall() {
	if l.magN == 0 {
		return
	}
	l.s.Do(func() {
		for _, id := range l.mag[:l.magN] {
			l.s.abort(id)
		}
		l.s.inMagazines.Add(-int32(l.magN))
		l.magN = 0
	})
}

// enterSpins is how often enter looks at a held token, with a pause of about
// 45 ns between: a command in place takes under a microsecond, a round trip
// through the rings several.
const enterSpins = 48

// enter gets the token if the caller may execute in place. It waits a little
// for a holder that is about to go.
func (l *Lane) enter() bool {
	if !l.s.helped {
		return false
	}
	for range enterSpins {
		if l.s.token.try() {
			return true
		}
		ring.Pause()
	}
	return false
}

// help gets the token if it is free this moment.
func (l *Lane) help() bool { return l.s.helped && l.s.token.try() }

// opcode of a command.
type opcode uint8

const (
	opReserve opcode = iota + 1
	opCommit
	opAbort
	opDelete
	opClaim
	opDeleteGeneration // its id is the generation
	opExisting         // a deposit whose block its caller has found resident, and claims
	opCall             // the lane's call, see turn
)

// request is a command as it travels: 56 bytes, no pointers.
//
//	0  op | flags<<8 | layout<<16 | chain<<32
//	1  hash
//	2  id | parent<<32
//	3  size | keyLen<<32
//	4  reads | tag<<32
type request struct {
	op     opcode
	flags  uint8
	layout uint16
	chain  uint32
	hash   uint64
	id     uint32
	parent uint32
	size   uint32
	keyLen uint32
	reads  uint32
	tag    uint32
}

func (r *request) pack(m *ring.Msg) {
	m[0] = uint64(r.op) | uint64(r.flags)<<8 | uint64(r.layout)<<16 | uint64(r.chain)<<32
	m[1] = r.hash
	m[2] = uint64(r.id) | uint64(r.parent)<<32
	m[3] = uint64(r.size) | uint64(r.keyLen)<<32
	m[4] = uint64(r.reads) | uint64(r.tag)<<32
}

func unpack(m *ring.Msg) request {
	return request{
		op: opcode(m[0]), flags: uint8(m[0] >> 8), layout: uint16(m[0] >> 16), chain: uint32(m[0] >> 32),
		hash: m[1],
		id:   uint32(m[2]), parent: uint32(m[2] >> 32),
		size: uint32(m[3]), keyLen: uint32(m[3] >> 32),
		reads: uint32(m[4]), tag: uint32(m[4] >> 32),
	}
}

// reply is a completion: 0 tag | reason<<32 | flags<<40, 1 id | refill<<32.
type reply struct {
	tag    uint32
	reason Reason
	old    bool // a deposit found its key resident
	id     uint32
	refill uint32
}

func (r *reply) pack(m *ring.Msg) {
	m[0] = uint64(r.tag) | uint64(r.reason)<<32
	if r.old {
		m[0] |= 1 << 40
	}
	m[1] = uint64(r.id) | uint64(r.refill)<<32
}

func unpackReply(m *ring.Msg) reply {
	return reply{tag: uint32(m[0]), reason: Reason(m[0] >> 32), old: m[0]>>40&1 != 0, id: uint32(m[1]), refill: uint32(m[1] >> 32)}
}

// exec executes one command. Token holder only.
func (l *Lane) exec(r *request) reply {
	s := l.s
	s.tick(r.reads)
	out := reply{tag: r.tag}
	if s.closed && r.op != opAbort {
		out.reason = Closed
		if r.op == opCommit {
			s.abandonRun(&l.run)
			s.abort(r.id)
		}
		return out
	}
	s.closeRun(&l.run)
	switch r.op {
	case opReserve:
		out.id, out.reason = s.reserve(Shape{Size: int(r.size), Layout: r.layout}, int(r.keyLen))
	case opCommit, opExisting:
		out = s.commit(&l.run, r)
		out.tag = r.tag
		if r.flags&flagRefill != 0 {
			out.refill = s.refill(Shape{Size: int(r.size), Layout: r.layout}, int(r.keyLen))
		}
	case opAbort:
		s.abort(r.id)
	case opDelete:
		out.reason = s.remove(r.hash, l.key)
	case opDeleteGeneration:
		out.reason = Miss
		if id := s.lookup(r.hash, l.key); id != 0 && genOf(s.hot[s.lead(id)].word.Load()) == r.id {
			out.reason = s.remove(r.hash, l.key)
		}
	case opCall:
		l.call()
	case opClaim:
		out.id, out.reason = s.claimLocked(r.hash, l.key)
	}
	return out
}

// drain executes up to max of the lane's commands and posts their completions.
// Token holder only.
func (l *Lane) drain(max int) int {
	var m ring.Msg
	n := 0
	for n < max && l.cmds.Pop(&m) {
		r := unpack(&m)
		out := l.exec(&r)
		out.pack(&m)
		if !l.comps.Push(&m) {
			panic("shard: completion ring full: more completions than commands")
		}
		n++
	}
	if n > 0 {
		l.parker.Wake()
	}
	return n
}

// do executes the requests in order and fills the replies.
func (l *Lane) do(reqs []request, out []reply) {
	if l.enter() {
		defer l.s.unlock(helpBudget)
		for i := range reqs {
			out[i] = l.exec(&reqs[i])
		}
		return
	}
	l.queue(reqs, out)
}

// helpOnce executes what is in the rings, if the token is free.
func (l *Lane) helpOnce() bool {
	if !l.help() {
		return false
	}
	defer l.s.unlock(helpBudget)
	l.s.drain(helpBudget)
	return true
}

// queue sends the requests through the ring and waits for the replies.
func (l *Lane) queue(reqs []request, out []reply) {
	if l.cmds == nil {
		l.cmds, l.comps = ring.New(laneSlots), ring.New(laneSlots)
	}
	sent, got := 0, 0
	var m ring.Msg
	for got < len(reqs) {
		for sent < len(reqs) && sent-got < laneSlots {
			reqs[sent].tag = uint32(sent)
			reqs[sent].pack(&m)
			if !l.cmds.Push(&m) {
				break
			}
			sent++
		}
		l.s.token.ring(l.number) // (D)
		if !l.helpOnce() && !l.s.helped {
			l.s.parker.Wake()
		}
		for got < sent && l.comps.Pop(&m) {
			out[got] = unpackReply(&m)
			got++
		}
		if got == sent && sent < len(reqs) {
			continue
		}
		if got < len(reqs) && got < sent {
			l.parker.Wait(func() bool {
				if !l.comps.Empty() {
					return true
				}
				l.helpOnce()
				return !l.comps.Empty()
			})
			for got < sent && l.comps.Pop(&m) {
				out[got] = unpackReply(&m)
				got++
			}
		}
	}
}
