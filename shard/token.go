package shard

import (
	"runtime"
	"sync/atomic"
	"time"
)

// MaxLanes is how many lanes (handles) a shard can serve: the bits of its
// doorbell, which is one cache line.
const MaxLanes = 512

// token is the right to write the shard, and the doorbell that tells its
// holder about commands.
//
// Edges:
//
//	(T) hand-over: token.Store(0) pairs with the next successful CAS: all that
//	    the last holder wrote, the consumer side of command rings and the
//	    producer side of completion rings included, is the next holder's.
//	(D) no lost command: a producer pushes, rings, then tries the token; a
//	    holder frees the token, then looks at the doorbell. All four are
//	    sequentially consistent, so one of the two sees the other: either the
//	    producer gets the token, or the holder (who then takes the token again,
//	    or wakes the owner) sees the bell.
type token struct {
	_     [64]byte
	held  atomic.Uint32
	_     [60]byte
	bells [MaxLanes / 64]atomic.Uint64
}

func (t *token) try() bool { return t.held.Load() == 0 && t.held.CompareAndSwap(0, 1) }

func (t *token) free() bool { return t.held.Load() == 0 }

func (t *token) release() { t.held.Store(0) } // (T), (D)

func (t *token) ring(lane int) { t.bells[lane/64].Or(1 << (lane % 64)) } // (D)

// rung reports whether a bell has not been answered yet.
func (t *token) rung() bool {
	for i := range t.bells {
		if t.bells[i].Load() != 0 {
			return true
		}
	}
	return false
}

// helpBudget is how many commands a helper drains before it passes the rest to
// the owner: at half a microsecond each it keeps a caller for 32 µs at most.
const helpBudget = 64

// unlock frees the token, then answers bells that rang while it was held. A
// helper answers one round itself (budget), the owner goes on in its loop.
// Whoever executes commands defers it: a panic in one must not leave the token
// held, and everybody else waiting.
func (s *Shard) unlock(budget int) {
	for {
		s.token.release()
		if !s.token.rung() {
			return
		}
		if budget <= 0 || !s.helped {
			s.parker.Wake()
			return
		}
		if !s.token.try() {
			return // the new holder looks at the bells when it frees the token
		}
		budget -= s.drain(budget)
	}
}

// drain executes up to max commands from the rings whose bells rang, and
// returns how many. Token holder only.
func (s *Shard) drain(max int) int {
	done := 0
	for i := range s.token.bells {
		if s.token.bells[i].Load() == 0 {
			continue
		}
		set := s.token.bells[i].Swap(0)
		for b := 0; set != 0; b++ {
			if set&(1<<b) == 0 {
				continue
			}
			set &^= 1 << b
			l := s.lanes[i*64+b].Load()
			if l == nil {
				continue
			}
			n := l.drain(max - done)
			done += n
			if !l.cmds.Empty() {
				s.token.bells[i].Or(1 << b) // budget spent: the rest stays announced
			}
			if done >= max {
				if set != 0 {
					s.token.bells[i].Or(set)
				}
				return done
			}
		}
	}
	return done
}

// own is the owner goroutine: it executes what callers could not, and sleeps.
func (s *Shard) own() {
	defer close(s.stopped)
	if s.pin >= 0 {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		s.pinned.Store(pinThread(s.pin) == nil)
	}
	for {
		s.parker.Wait(func() bool {
			return s.stop.Load() || s.token.held.Load() == 0 && s.token.rung()
		})
		if s.stop.Load() {
			return
		}
		s.serve()
	}
}

// serve is one round of the owner.
func (s *Shard) serve() {
	if s.token.try() {
		defer s.unlock(0)
		s.drain(ownerBudget)
	}
}

// ownerBudget bounds one round of the owner, so that callers of Do get a turn.
const ownerBudget = 256

// Do runs f with the token held. For rare work: statistics, snapshots, close.
// It must not be called from a policy or callback.
func (s *Shard) Do(f func()) {
	for i := 0; !s.token.try(); i++ {
		// The holder needs at most helpBudget commands to get here.
		if i < 64 {
			runtime.Gosched()
		} else {
			time.Sleep(20 * time.Microsecond)
		}
	}
	defer s.unlock(helpBudget)
	f()
}

// Stop ends the owner goroutine and waits for it.
func (s *Shard) Stop() {
	s.stop.Store(true)
	s.parker.Wake()
	<-s.stopped
}
