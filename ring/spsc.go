package ring

import (
	"fmt"
	"sync/atomic"
)

// Msg is what travels: 56 bytes without a pointer, so that a slot (a sequence
// and a Msg) is one 64-byte line. What the words mean is the caller's.
type Msg [7]uint64

// slot is one cell of a ring. One line carries both the announcement and the
// payload: a consumer that sees seq has already paid for msg.
type slot struct {
	seq atomic.Uint64 // position+1 of the message below; 0 before the first
	msg Msg
}

const (
	slotSize = 64  // pinned by the layout test
	line     = 128 // not 64: amd64 prefetches lines in pairs; some arm64 lines are 128

	minCapacity = 2
	maxCapacity = 1 << 20 // 64 MiB of slots: beyond it the queue hides the overload
)

// SPSC is a bounded FIFO queue for one producer and one consumer.
// Call New; the zero SPSC is not usable. An SPSC must not be copied.
//
// Two edges carry the design; each end of each is marked below.
//
//	(A) publish: slot write -> slot.seq store  pairs with  slot.seq load -> slot read
//	(B) reclaim: slot read  -> head store      pairs with  head load     -> slot write
//
// Both stores are releases, not sequentially consistent ones: see Fence.
type SPSC struct {
	_ [line]byte
	// Producer's line.
	tail     atomic.Uint64 // next position to fill; written by the producer only
	headSeen uint64        // producer's last sight of head; never ahead of it
	_        [line - 16]byte
	// Consumer's line.
	head atomic.Uint64 // next position to empty; written by the consumer only
	_    [line - 8]byte
	// Immutable after New; shared by both sides.
	mask  uint64
	slots []slot
	// Empty unless checking.
	check roles
	_     [line]byte
}

// New returns an empty queue for capacity messages, which takes 64 bytes each
// of Go memory the collector does not scan. It panics unless capacity is a
// power of two from 2 to 1<<20.
func New(capacity int) *SPSC {
	if capacity < minCapacity || capacity > maxCapacity || capacity&(capacity-1) != 0 {
		panic(fmt.Sprintf("ring: capacity %d: want a power of two from %d to %d", capacity, minCapacity, maxCapacity))
	}
	return &SPSC{mask: uint64(capacity - 1), slots: makeSlots(capacity)}
}

// Cap returns the number of messages the queue holds when full. Any goroutine.
func (q *SPSC) Cap() int { return len(q.slots) }

// Push appends a copy of *m and reports whether there was room. Producer
// only. It never blocks, yields or allocates.
func (q *SPSC) Push(m *Msg) bool {
	if checking {
		q.check.enterProducer()
		defer q.check.leaveProducer()
	}
	tail := q.tail.Load() // own word: no ordering needed
	if tail-q.headSeen > q.mask {
		q.headSeen = q.head.Load() // (B): the slots below head are ours again
		if tail-q.headSeen > q.mask {
			return false
		}
	}
	s := &q.slots[tail&q.mask]
	if checking {
		q.checkFree(s, tail)
	}
	s.msg = *m
	publish(&q.tail, tail+1, &s.seq, tail+1) // (A): the consumer may now read the slot
	return true
}

// PushBatch appends copies of the first messages of ms, as many as there is
// room for, and returns their number. Producer only. It never blocks, yields
// or allocates.
//
// The consumer sees nothing of the batch before it may see all of it: the
// first slot is announced last, with the batch's only release. A consumer
// reads slots in order, so it looks at the others only after it has acquired
// the first, and their sequences need no ordering of their own.
func (q *SPSC) PushBatch(ms []Msg) int {
	if checking {
		q.check.enterProducer()
		defer q.check.leaveProducer()
	}
	tail := q.tail.Load() // own word: no ordering needed
	n := uint64(len(ms))
	room := q.mask + 1 - (tail - q.headSeen)
	if n > room {
		q.headSeen = q.head.Load() // (B): the slots below head are ours again
		room = q.mask + 1 - (tail - q.headSeen)
		n = min(n, room)
	}
	if n == 0 {
		return 0
	}
	for i := uint64(1); i < n; i++ {
		s := &q.slots[(tail+i)&q.mask]
		if checking {
			q.checkFree(s, tail+i)
		}
		s.msg = ms[i]
		storePlain(&s.seq, tail+i+1) // ordered by the release of the first slot
	}
	s := &q.slots[tail&q.mask]
	if checking {
		q.checkFree(s, tail)
	}
	s.msg = ms[0]
	publish(&q.tail, tail+n, &s.seq, tail+1) // (A): the consumer may now read all n slots
	return int(n)
}

// Pop copies the oldest message to *m, removes it, and reports whether there
// was one; *m is unchanged if not. Consumer only. It never blocks, yields or
// allocates.
func (q *SPSC) Pop(m *Msg) bool {
	if checking {
		q.check.enterConsumer()
		defer q.check.leaveConsumer()
	}
	head := q.head.Load() // own word: no ordering needed
	s := &q.slots[head&q.mask]
	if s.seq.Load() != head+1 { // (A)
		return false
	}
	*m = s.msg
	release(&q.head, head+1) // (B): the producer may fill the slot again
	return true
}

// PopBatch moves the oldest messages to the front of ms, as many as there are
// and as fit, and returns their number. Consumer only. It never blocks,
// yields or allocates.
func (q *SPSC) PopBatch(ms []Msg) int {
	if checking {
		q.check.enterConsumer()
		defer q.check.leaveConsumer()
	}
	head := q.head.Load() // own word: no ordering needed
	n := 0
	for n < len(ms) {
		s := &q.slots[head&q.mask]
		if s.seq.Load() != head+1 { // (A)
			break
		}
		ms[n] = s.msg
		head++
		n++
	}
	if n > 0 {
		release(&q.head, head) // (B): the producer may fill the n slots again
	}
	return n
}

// Empty reports whether Pop would return false. Consumer only; another
// goroutine uses Len.
func (q *SPSC) Empty() bool {
	head := q.head.Load()                            // own word: no ordering needed
	return q.slots[head&q.mask].seq.Load() != head+1 // (A)
}

// Len returns how many messages the queue held at some moment about now: from
// 0 to Cap, exact when neither side is at work. Any goroutine.
func (q *SPSC) Len() int {
	// head first: tail is never behind a head read before it. No slot is
	// touched on the strength of these two, so neither is the end of an edge.
	head := q.head.Load()
	tail := q.tail.Load()
	return int(min(tail-head, q.mask+1))
}

// checkFree panics if the slot for position pos still holds a message the
// consumer has not taken: invariant I1 or I2 is broken.
func (q *SPSC) checkFree(s *slot, pos uint64) {
	want := uint64(0)
	if pos > q.mask {
		want = pos - q.mask // what the lap before left
	}
	if got := s.seq.Load(); got != want || q.head.Load() < want {
		panic(fmt.Sprintf("ring: fill of position %#x: slot has sequence %#x, want %#x; head %#x", pos, got, want, q.head.Load()))
	}
}
