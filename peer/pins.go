package peer

import (
	"slices"
	"sync"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// Framework is the host program that owns blocks of its own, in regions that it
// has registered, and lends them to peers.
type Framework interface {
	// RequestPin asks that the blocks of keys stay where they are, and returns
	// at once. The framework calls done exactly once, from any goroutine, with an
	// answer for every key; after cancel it may answer with no block at all.
	RequestPin(namespace string, keys [][]byte, done func(PinResult)) (cancel func())
	// ReleasePin ends a pin. False: the framework cannot take it over now, and is
	// asked again. Only after it has returned true are the pin's regions no longer
	// in use, so that it cannot deregister them itself.
	ReleasePin(handle string) bool
}

// PinResult is a framework's answer. Handle names the pin of all its blocks and is
// not empty when there is one; Blocks[i] is where the i-th key's block lies, empty
// for a key that the framework does not have.
type PinResult struct {
	Handle string
	Blocks []PinnedBlock
}

// PinnedBlock is one block in registered regions: its pieces in order, and the
// pools of the namespace that they belong to, as the namespace numbers them (none
// in a namespace of size classes).
type PinnedBlock struct {
	Refs  []MemoryRef
	Pools []byte
}

// pinClaim marks the numbers of claims on pinned blocks, which the records do not
// know.
const pinClaim Claim = 1 << 63

// Pins shares the framework's pins between operations: a block that is pinned, or
// being asked for, is not asked for again, and a pin is given back when no
// operation reads through it. A question that was cancelled does not count: its
// answer is given back, whatever it is.
//
// Invariant: a pin that the framework has granted is released exactly once, after
// its last claim, and again until the framework says that it has taken it over.
// While a release is not taken over its blocks are not asked for again.
type Pins struct {
	fw      Framework
	regions *Regions
	retry   time.Duration

	mu     sync.Mutex
	blocks map[pinKey]*pinBlock
	claims map[Claim]*pinBlock
	last   Claim
	closed bool
	idle   sync.Cond // signalled when nothing is pinned or asked for
	busy   int       // requests and pins that are not over
}

type pinKey struct{ namespace, key string }

type pinState uint8

const (
	pinAsked pinState = iota
	pinHeld
	pinLeaving // its release is not taken over yet
)

// pinBlock is one key's part of a pin.
type pinBlock struct {
	key     pinKey
	state   pinState
	asked   *pinRequest
	pin     *pin
	offer   wire.Offered
	spans   []Span
	claims  int
	waiters []*pinWait
}

// pinRequest is one question to the framework.
type pinRequest struct {
	blocks   []*pinBlock
	cancel   func()
	answered bool
	// abandoned: its blocks may be of another request by now.
	abandoned bool
}

// pin is one grant of the framework's.
type pin struct {
	handle string
	claims int // of all its blocks
	blocks []*pinBlock
	free   []func() // region acquisitions
}

// pinWait is one operation that waits for blocks.
type pinWait struct {
	items []PinnedItem
	at    map[*pinBlock]int // blocks it still waits for: which of items
	done  func([]PinnedItem)
}

// NewPins returns the table of pins of a framework over its regions.
func NewPins(fw Framework, regions *Regions) *Pins {
	p := &Pins{fw: fw, regions: regions, retry: 10 * time.Millisecond, blocks: map[pinKey]*pinBlock{}, claims: map[Claim]*pinBlock{}}
	p.idle.L = &p.mu
	return p
}

// Ask claims the blocks of keys for one operation. done is called once, from any
// goroutine, with an item for each index; a block that is not to be had has claim
// 0. stop, which may be called at any time and any number of times, has done
// called with what there is by then.
func (p *Pins) Ask(namespace string, indices []int, keys [][]byte, done func([]PinnedItem)) (stop func()) {
	w := &pinWait{items: make([]PinnedItem, len(keys)), at: map[*pinBlock]int{}, done: done}
	req := &pinRequest{}
	var ask [][]byte
	p.mu.Lock()
	for k, key := range keys {
		w.items[k].Index = indices[k]
		if p.closed {
			continue
		}
		id := pinKey{namespace, string(key)}
		b := p.blocks[id]
		if b == nil {
			b = &pinBlock{key: id, asked: req}
			p.blocks[id] = b
			req.blocks = append(req.blocks, b)
			ask = append(ask, []byte(id.key))
		}
		switch b.state {
		case pinAsked:
			b.waiters = append(b.waiters, w)
			w.at[b] = k
		case pinHeld:
			p.lendLocked(b, &w.items[k])
		}
	}
	waits := len(w.at) > 0
	if len(ask) > 0 {
		p.busy++
	}
	p.mu.Unlock()
	if len(ask) > 0 {
		cancel := p.fw.RequestPin(namespace, ask, func(r PinResult) { p.answer(req, r) })
		p.mu.Lock()
		req.cancel = cancel
		unwanted := !req.answered && !wantedLocked(req)
		if unwanted {
			p.abandonLocked(req)
		}
		p.mu.Unlock()
		if unwanted && cancel != nil { // every operation stopped meanwhile
			cancel()
		}
	}
	if !waits {
		done(w.items)
		return func() {}
	}
	return func() { p.stop(w) }
}

// lendLocked claims a pinned block for an operation.
func (p *Pins) lendLocked(b *pinBlock, it *PinnedItem) {
	p.last++
	c := p.last | pinClaim
	p.claims[c] = b
	b.claims++
	b.pin.claims++
	it.Claim, it.Offer = c, b.offer
}

// abandonLocked forgets what a request asks for, since it is being cancelled.
func (p *Pins) abandonLocked(r *pinRequest) {
	for _, b := range r.blocks {
		delete(p.blocks, b.key)
	}
	r.cancel, r.abandoned = nil, true
}

func wantedLocked(r *pinRequest) bool {
	return slices.ContainsFunc(r.blocks, func(b *pinBlock) bool { return len(b.waiters) > 0 })
}

// answer takes the framework's answer to a request. A second one, or one that
// does not fit the question, grants nothing, and its pin is given back.
func (p *Pins) answer(req *pinRequest, r PinResult) {
	p.mu.Lock()
	again := req.answered
	req.answered = true
	if again {
		p.busy++ // for the release
	}
	g := &pin{handle: r.Handle}
	fits := !again && !req.abandoned && r.Handle != "" && len(r.Blocks) == len(req.blocks)
	var over []*pinWait
	for k, b := range req.blocks {
		if again || req.abandoned {
			break
		}
		if fits && p.grantLocked(g, b, r.Blocks[k]) {
			b.state = pinHeld
		} else {
			delete(p.blocks, b.key)
		}
		for _, w := range b.waiters {
			if b.state == pinHeld {
				p.lendLocked(b, &w.items[w.at[b]])
			}
			if delete(w.at, b); len(w.at) == 0 {
				over = append(over, w)
			}
		}
		b.waiters = nil
	}
	release := p.dropLocked(g)
	p.mu.Unlock()
	release()
	for _, w := range over {
		w.done(w.items)
	}
}

// grantLocked takes one block of a grant, if its references are good.
func (p *Pins) grantLocked(g *pin, b *pinBlock, lent PinnedBlock) bool {
	if len(lent.Refs) == 0 || len(lent.Refs) > wire.MaxPieces || len(lent.Pools) != 0 && len(lent.Pools) != len(lent.Refs) {
		return false
	}
	spans, free, err := p.regions.Acquire(lent.Refs)
	if err != nil {
		return false
	}
	b.pin, b.spans = g, spans
	b.offer = wire.Offered{Flags: wire.OfferNoPool, Pools: slices.Clone(lent.Pools)}
	for _, s := range spans {
		b.offer.Size += uint64(s.Len)
	}
	g.blocks, g.free = append(g.blocks, b), append(g.free, free)
	return true
}

// dropLocked begins to give a pin back if nobody reads through it, and returns
// what to do once the lock is free. Every grant passes here, also one without a
// block.
func (p *Pins) dropLocked(g *pin) func() {
	if g.claims > 0 {
		return func() {}
	}
	for _, b := range g.blocks {
		b.state = pinLeaving
	}
	return func() { p.release(g) }
}

// release gives a pin back, again and again until the framework has taken it over.
func (p *Pins) release(g *pin) {
	if g.handle != "" && !p.fw.ReleasePin(g.handle) {
		time.AfterFunc(p.retry, func() { p.release(g) })
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range g.blocks {
		delete(p.blocks, b.key)
	}
	for _, free := range g.free {
		free()
	}
	if p.busy--; p.busy == 0 {
		p.idle.Broadcast()
	}
}

// stop answers an operation with what it has, and tells the framework when nobody
// wants its answer any more.
func (p *Pins) stop(w *pinWait) {
	p.mu.Lock()
	if len(w.at) == 0 {
		p.mu.Unlock()
		return
	}
	var cancels []func()
	for b := range w.at {
		b.waiters = slices.DeleteFunc(b.waiters, func(x *pinWait) bool { return x == w })
		if r := b.asked; r.cancel != nil && !r.answered && !wantedLocked(r) {
			cancels = append(cancels, r.cancel)
			p.abandonLocked(r)
		}
	}
	clear(w.at)
	p.mu.Unlock()
	for _, cancel := range cancels {
		cancel()
	}
	w.done(w.items)
}

// IsPin reports whether a claim is one of these, not of the records.
func IsPin(c Claim) bool { return c&pinClaim != 0 }

// Spans is the memory of a claimed block, its pieces in order.
func (p *Pins) Spans(c Claim) []Span {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b := p.claims[c]; b != nil {
		return b.spans
	}
	return nil
}

// Unclaim ends a claim.
func (p *Pins) Unclaim(c Claim) {
	p.mu.Lock()
	b := p.claims[c]
	release := func() {}
	if b != nil {
		delete(p.claims, c)
		b.claims--
		b.pin.claims--
		release = p.dropLocked(b.pin)
	}
	p.mu.Unlock()
	release()
}

// Busy is the number of pins and requests that are not over.
func (p *Pins) Busy() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.busy
}

// Close asks for nothing more and waits until every pin is given back, or until
// the time is up; it reports whether none is left.
func (p *Pins) Close(within time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	late := false
	t := time.AfterFunc(within, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		late = true
		p.idle.Broadcast()
	})
	defer t.Stop()
	for p.busy > 0 && !late {
		p.idle.Wait()
	}
	return p.busy == 0
}
