package shard

import (
	"fmt"
	"sync/atomic"
)

// word is a block's life in one word: every transition is one atomic step, and
// no reader ever sees half of one.
//
//	63            32 31    29 28                0
//	+---------------+--------+------------------+
//	|  generation   | state  |  pins | leader   |
//	+---------------+--------+------------------+
//
//	generation  changes whenever a slot starts a new life, so a stale
//	            reference never matches.
//	state       FREE, FILLING, READY, RETIRING, MEMBER.
//	pins        claims of readers (READY, RETIRING; otherwise 0).
//	leader      the record whose word decides for this one (MEMBER only).
//
// Transitions, and who may make them:
//
//	FREE     -> FILLING    token holder
//	FILLING  -> READY      token holder           release: publishes the bytes
//	FILLING  -> MEMBER     token holder           release
//	FILLING  -> FREE       token holder           abort
//	READY, pins==0 -> FILLING -> READY  token holder, to overwrite in place; the
//	                       second step is a release and a new generation
//	READY    -> pins+1     anyone                 acquire: bytes are readable
//	pins+n   -> pins+n+1   a claim's holder, n > 0, also in RETIRING
//	pins+n   -> pins+n-1   the claim's holder     release: our reads are over
//	READY    -> RETIRING   token holder
//	RETIRING, pins==0 -> FREE  whoever produced it; acquire: all reads are over.
//	                       That one alone puts the record on the return stack
//	                       (or, holding the token, on the free list)
//	MEMBER   -> FREE       token holder, after its leader is FREE
//
// Invariants: pins == 0 in FREE and FILLING. RETIRING admits no claims, so
// (RETIRING, pins == 0) has exactly one producer and a record is freed exactly
// once, without a lock. Generation changes on the way to FREE and with an
// overwrite.
type word struct{ atomic.Uint64 }

type state uint32

const (
	free state = iota
	filling
	ready
	retiring
	member
)

const (
	pinBits  = 29
	pinMask  = 1<<pinBits - 1
	genShift = 32
	genOne   = 1 << genShift
)

func stateOf(w uint64) state   { return state(w>>pinBits) & 7 }
func pinsOf(w uint64) uint32   { return uint32(w) & pinMask }
func genOf(w uint64) uint32    { return uint32(w >> genShift) }
func stateBits(s state) uint64 { return uint64(s) << pinBits }
func withState(w uint64, s state, low uint32) uint64 {
	return w&^(genOne-1) | stateBits(s) | uint64(low)
}

// claim takes a read claim and returns the word with it. It fails when the
// record is not READY or its pins are exhausted (a miss, not an overflow).
// A loop and not an Add, because an Add could touch a record that is no longer
// READY. It ends: a failed swap means that another claim or release, or the
// retirement, succeeded.
func (w *word) claim() (uint64, bool) {
	for {
		old := w.Load()
		if stateOf(old) != ready || pinsOf(old) == pinMask {
			return old, false
		}
		if w.CompareAndSwap(old, old+1) {
			return old + 1, true
		}
	}
}

// again takes another claim for a caller that holds one: so the word cannot
// become FREE meanwhile, and RETIRING does not refuse it. It fails when the pins
// are exhausted.
func (w *word) again() bool {
	for {
		old := w.Load()
		if pinsOf(old) == 0 {
			panic(fmt.Sprintf("shard: second claim without a first, word %#x", old))
		}
		if pinsOf(old) == pinMask {
			return false
		}
		if w.CompareAndSwap(old, old+1) {
			return true
		}
	}
}

// unclaim gives one claim back and reports whether this was the last one of a
// RETIRING record: then the word is FREE already, with the next generation,
// and the caller must put the record on the return stack.
func (w *word) unclaim() (last bool) {
	now := w.Add(^uint64(0)) // release: our reads are over
	if stateOf(now) != retiring || pinsOf(now) != 0 {
		if pinsOf(now) == pinMask {
			panic(fmt.Sprintf("shard: release without a claim, word %#x", now+1))
		}
		return false
	}
	// Nobody else writes (RETIRING, 0): see the invariants.
	w.Store(nextFree(now))
	return true
}

// retire closes a READY record to new claims; it fails when the record is not
// READY, or has claims and force is false. It returns the claims left.
func (w *word) retire(force bool) (pins uint32, ok bool) {
	for {
		old := w.Load()
		if stateOf(old) != ready || pinsOf(old) != 0 && !force {
			return pinsOf(old), false
		}
		if w.CompareAndSwap(old, withState(old, retiring, pinsOf(old))) {
			return pinsOf(old), true
		}
	}
}

// firstFree is the word of a record that was never used. Its generations count from a
// place of its own, far from those of other records (multiples of the golden ratio lie
// so), so that a key whose block is replaced by one in another record has another
// generation too; and start is random, so that a generation that a peer knows of an
// earlier life of the process is none of this one's. Both but for a chance of about one
// in 2^32.
func firstFree(start, id uint32) uint64 { return uint64(max(start+id*0x9e3779b1, 1)) << genShift }

// nextFree is the word of the record's next life. 0 is no generation: it means any.
func nextFree(w uint64) uint64 { return uint64(max(genOf(w)+1, 1)) << genShift }
