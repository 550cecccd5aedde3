package ring

import (
	"context"
	"runtime"
	"sync/atomic"
)

// Fence orders everything this goroutine pushed or popped so far before
// everything it loads from here on.
//
// Push and Pop are releases only, so that they need not wait for a line held
// by the other core: a load that follows may be served first. Whoever tells
// the other side something by a Push and then decides by a load whether that
// side needs help calls Fence between the two. Wake does so itself, and a
// compare-and-swap is a fence as well.
func Fence() { fence() }

const (
	// spinPolls is how often a wait polls before it lets another goroutine
	// run: meant as a few microseconds with the pause between two polls, about
	// what a park and its wake cost, so that a wait costs at most a small
	// multiple of the better choice. Not measured yet: a value to start from.
	spinPolls = 64

	// yieldPolls is how often a wait then polls with runtime.Gosched between:
	// it hands the processor to the goroutine that is to make the condition
	// true, if that one waits for a processor and not for something else.
	yieldPolls = 4
)

// The states of a Parker.
const (
	awake  = 0 // nobody sleeps, or a waker has taken the announcement
	asleep = 1 // the sleeper has announced itself, and takes a token to leave
)

// Parker lets one goroutine, the sleeper, wait for a condition that others,
// the wakers, make true. The zero Parker is ready to use; a Parker must not be
// copied. The sleeper's role may be handed on like a ring's.
//
// The sleeper announces itself, looks at the condition once more, and sleeps.
// A waker makes the condition true, then looks for an announcement:
//
//	(C) doze: state swap -> ready()  against  condition made true -> fence -> state load
//	    Both are sequentially consistent, so at least one sees the other.
//	(D) token: condition made true -> state CAS -> send  pairs with  receive -> ready()
//
//	   sleeper                           wakers
//	awake  -> asleep  announce
//	asleep -> awake   retract            asleep -> awake   take; then send one token
//
// Invariants: whoever moves the state to awake ends that announcement, alone.
// A sleeper whose announcement was taken receives its token before it
// announces again. So there is never more than one token, a send never blocks,
// and no token is left for a later wait.
type Parker struct {
	state atomic.Uint32 // (C), (D)

	// The sleeper's words. A waker reads ch only, after it saw asleep, and ch
	// is set once, before the first announcement.
	ch     chan struct{}
	procs  int // GOMAXPROCS when the limits below were set
	spins  int
	yields int

	hook func(step) // set by tests: runs at each step of the slow paths
}

// step names a point between two moves of the protocol, for tests.
type step uint8

const (
	stepAnnounce step = iota // sleeper: about to announce
	stepCheck                // sleeper: announced, about to look again
	stepSleep                // sleeper: looked, about to sleep
	stepRetract              // sleeper: about to retract its announcement
	stepTake                 // waker: saw the announcement, about to take it
	stepSend                 // waker: took it, about to send
)

func (p *Parker) at(s step) {
	if p.hook != nil {
		p.hook(s)
	}
}

// Wait returns once ready returns true: it polls ready, first spinning, then
// yielding the processor, and then parks the goroutine. The sleeper only.
//
// The caller must see to it that Wake is called after anything that makes
// ready true. Wakes may be spurious; ready is called after each one, always on
// this goroutine, any number of times, and must neither block nor panic. Wait
// allocates once in the life of a Parker.
func (p *Parker) Wait(ready func() bool) {
	if p.poll(ready) {
		return
	}
	for !p.announce(ready) {
		p.at(stepSleep)
		<-p.ch // (D)
		p.limits()
		if ready() {
			return
		}
	}
}

// WaitContext is Wait that ends with ctx as well: it returns nil if ready
// returned true, also if ctx is done by then, and ctx.Err() otherwise.
func (p *Parker) WaitContext(ctx context.Context, ready func() bool) error {
	if ready() {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if p.poll(ready) {
		return nil
	}
	for !p.announce(ready) {
		p.at(stepSleep)
		select {
		case <-p.ch: // (D)
			p.limits()
			if ready() {
				return nil
			}
		case <-ctx.Done():
			p.retract()
			if ready() {
				return nil
			}
			return ctx.Err()
		}
	}
	return nil
}

// Wake wakes the sleeper if one has announced itself, and reports whether it
// did. Any goroutine, after it made the condition true; what it made true with
// Push or Pop counts. It never blocks. While nobody sleeps it costs a fence,
// which waits for this goroutine's earlier stores, and a load: call it once
// for a batch.
func (p *Parker) Wake() bool {
	fence()                       // (C): the condition first, then the look
	if p.state.Load() != asleep { // (C)
		return false
	}
	p.at(stepTake)
	if !p.state.CompareAndSwap(asleep, awake) { // (D)
		return false // another waker has it, or the sleeper saw the condition
	}
	p.at(stepSend)
	p.ch <- struct{}{} // (D): there is room, see the invariants
	return true
}

// Sleeping reports whether the sleeper had announced itself at some moment
// about now. Any goroutine; a hint, since it implies no fence.
func (p *Parker) Sleeping() bool { return p.state.Load() == asleep }

// poll reports whether ready came true without a park. It ends by itself.
func (p *Parker) poll(ready func() bool) bool {
	if ready() {
		return true
	}
	if p.ch == nil {
		p.ch = make(chan struct{}, 1)
		p.limits()
	}
	for i := 0; i < p.spins; i++ {
		pause()
		if ready() {
			return true
		}
	}
	for i := 0; i < p.yields; i++ {
		runtime.Gosched()
		if ready() {
			return true
		}
	}
	return false
}

// limits sets how long to poll, if GOMAXPROCS has changed: with one processor
// a spin only delays whoever is to make the condition true. Looked up at most
// once for each park, because it takes a lock of the scheduler.
func (p *Parker) limits() {
	procs := runtime.GOMAXPROCS(0)
	if procs == p.procs {
		return
	}
	p.procs, p.spins, p.yields = procs, spinPolls, yieldPolls
	if procs == 1 {
		p.spins = 0
	}
}

// announce tells wakers that a token is wanted, and reports whether ready is
// true after all; then nothing is announced any more.
func (p *Parker) announce(ready func() bool) bool {
	p.at(stepAnnounce)
	if old := p.state.Swap(asleep); old != awake { // (C)
		panic("ring: Parker has a sleeper already: the role was not handed over")
	}
	p.at(stepCheck)
	if !ready() { // (C)
		return false
	}
	p.retract()
	return true
}

// retract ends this sleeper's announcement. If a waker was faster, its token
// is sent or about to be; the sleeper takes it, so that no later wait does.
func (p *Parker) retract() {
	p.at(stepRetract)
	if !p.state.CompareAndSwap(asleep, awake) {
		<-p.ch
	}
}

// Pause tells the processor that the caller spins. For short waits that are not
// worth a Parker; the caller bounds them.
func Pause() { pause() }
