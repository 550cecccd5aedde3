package kvcr

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"sync"

	"github.com/kvcr-go/kvcr/shard"
)

// Event says that a block became resident in a tier or left it. There is one
// for each change of presence: a Set over a resident key, or a Deposit of one,
// changes none.
type Event struct {
	// Seq counts the engine's events from 1 without gaps; Epoch identifies this
	// life of the engine: after a restart sequences begin again.
	Seq       uint64
	Epoch     string
	Namespace string
	Key       []byte
	Parent    []byte // of a stored block that names a resident parent
	Stored    bool   // false: removed
	Tier      Tier
	Bytes     int64
}

// Entry is one resident block of a snapshot.
type Entry struct {
	Namespace string
	Key       []byte
	Parent    []byte // its resident parent, where the policy knows chains (density)
	Tier      Tier
	Bytes     int64
}

// SubscribeOptions shape a subscription.
type SubscribeOptions struct {
	// Buffer is how many events may wait for the reader. Default 65,536. When
	// it is full the subscription loses events: see Next.
	Buffer int
}

// Subscription receives the engine's inventory changes in order. Its methods
// are for one goroutine.
type Subscription struct {
	hub   *hub
	e     *Engine
	limit int
	wake  chan struct{}

	mu     sync.Mutex // guards what follows
	queue  []reported
	gap    bool
	closed bool

	// Next's own.
	batch []reported // taken from queue, which gets its memory back
	next  int        // in batch
	// passed is, by shard, the sequence that the last snapshot covers.
	passed map[*part]uint64
}

// reported is an event, and the shard that reported it.
type reported struct {
	Event
	from *part
}

// eventsKept is for how many events a subscription keeps memory.
const eventsKept = 4096

// hub numbers events and hands them to subscriptions.
type hub struct {
	epoch string

	mu   sync.Mutex
	seq  uint64
	subs map[*Subscription]struct{}
}

func (h *hub) init() {
	var id [8]byte
	rand.Read(id[:]) // never fails: see crypto/rand
	h.epoch = hex.EncodeToString(id[:])
	h.subs = map[*Subscription]struct{}{}
}

// Epoch identifies this life of the engine in events.
func (e *Engine) Epoch() string { return e.hub.epoch }

// Subscribe begins to collect inventory events. Call Snapshot next for what is
// resident already.
func (e *Engine) Subscribe(opt SubscribeOptions) (*Subscription, error) {
	if opt.Buffer < 0 {
		return nil, &OpError{Op: "subscribe", Err: ErrConfig, Detail: "Buffer is negative"}
	}
	if opt.Buffer == 0 {
		opt.Buffer = 1 << 16
	}
	s := &Subscription{hub: &e.hub, e: e, limit: opt.Buffer, wake: make(chan struct{}, 1), passed: map[*part]uint64{}}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed.Load() {
		return nil, &OpError{Op: "subscribe", Err: ErrClosed}
	}
	e.hub.mu.Lock()
	first := len(e.hub.subs) == 0
	e.hub.subs[s] = struct{}{}
	e.hub.mu.Unlock()
	if first {
		e.watch(true)
	}
	return s, nil
}

// watch turns the shards' reports on or off. e.mu held.
func (e *Engine) watch(on bool) {
	for _, ns := range e.list {
		for _, p := range ns.parts {
			var sink func(shard.Change)
			if on {
				sink = func(c shard.Change) { e.hub.publish(p, c) }
			}
			p.Do(func() { p.Watch(sink) })
		}
	}
}

// publish runs under a shard's token: the shard's events keep their order.
func (h *hub) publish(p *part, c shard.Change) {
	n := len(c.Key)
	both := append(append(make([]byte, 0, n+len(c.Parent)), c.Key...), c.Parent...)
	ev := Event{
		Epoch: h.epoch, Namespace: p.ns.cfg.Name, Key: both[:n:n],
		Stored: c.Stored, Tier: TierDRAM, Bytes: c.Bytes,
	}
	if c.Parent != nil {
		ev.Parent = both[n:]
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seq++
	ev.Seq = h.seq
	for s := range h.subs {
		s.push(p, &ev)
	}
}

func (s *Subscription) push(p *part, ev *Event) {
	s.mu.Lock()
	if len(s.queue) == s.limit {
		s.gap = true
	}
	if !s.gap {
		s.queue = append(s.queue, reported{*ev, p})
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Next returns the next event. After ErrGap events were lost; Snapshot begins
// anew. ErrClosed ends the stream.
func (s *Subscription) Next(ctx context.Context) (Event, error) {
	for {
		for s.next < len(s.batch) {
			r := &s.batch[s.next]
			s.next++
			if r.Seq > s.passed[r.from] {
				return r.Event, nil
			}
		}
		clear(s.batch)
		if cap(s.batch) > eventsKept {
			s.batch = nil
		}
		s.mu.Lock()
		s.batch, s.queue, s.next = s.queue, s.batch[:0], 0
		gap, closed := s.gap, s.closed
		s.mu.Unlock()
		if len(s.batch) > 0 {
			continue
		}
		if gap {
			return Event{}, ErrGap
		}
		if closed {
			return Event{}, ErrClosed
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
}

// Snapshot returns all resident blocks. Events that it covers are not
// delivered by later calls of Next: snapshot and events together are exact. It
// stops the writers of one shard at a time while it copies that shard's keys.
func (s *Subscription) Snapshot() ([]Entry, error) {
	s.mu.Lock()
	s.gap = false
	s.queue = nil
	s.mu.Unlock()
	s.batch, s.next = nil, 0
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	if s.e.closed.Load() {
		return nil, &OpError{Op: "snapshot", Err: ErrClosed}
	}
	var out []Entry
	for _, ns := range s.e.list {
		for _, p := range ns.parts {
			p.Do(func() {
				p.EachLinked(func(key, parent []byte, bytes int64) {
					out = append(out, Entry{
						Namespace: ns.cfg.Name, Key: append([]byte(nil), key...), Parent: append([]byte(nil), parent...),
						Tier: TierDRAM, Bytes: bytes,
					})
				})
				s.hub.mu.Lock()
				s.passed[p] = s.hub.seq
				s.hub.mu.Unlock()
			})
		}
	}
	return out, nil
}

// Covered is the number up to which the last Snapshot covers every event; of
// later ones it covers some, and Next does not deliver those. 0 before the first
// Snapshot.
func (s *Subscription) Covered() uint64 {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	least, any := uint64(0), false
	for _, seq := range s.passed {
		if !any || seq < least {
			least, any = seq, true
		}
	}
	return least
}

// Close ends the subscription.
func (s *Subscription) Close() error {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	s.hub.mu.Lock()
	_, had := s.hub.subs[s]
	delete(s.hub.subs, s)
	last := had && len(s.hub.subs) == 0
	s.hub.mu.Unlock()
	s.end()
	if last && !s.e.closed.Load() {
		s.e.watch(false)
	}
	return nil
}

func (s *Subscription) end() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.subs {
		s.end()
	}
}
