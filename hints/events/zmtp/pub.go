package zmtp

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// PubOptions shape a Pub. The zero PubOptions are valid.
type PubOptions struct {
	Options // MaxMessage: 64 KiB, as subscribers send subscriptions only
	// Queue is how many messages may wait for one subscriber, beyond what the system
	// buffers; further ones are lost to it, and to it alone. Default 100,000.
	Queue int
	// QueueBytes bounds the same by bytes. Default 256 MiB.
	QueueBytes int
	// Linger is how long Close waits for subscribers to take what is queued.
	// Default 1 s; negative: not at all.
	Linger time.Duration
	// Redial is how long Connect waits between attempts. Default 250 ms.
	Redial time.Duration
}

func (o PubOptions) withDefaults() PubOptions {
	if o.MaxMessage <= 0 {
		o.MaxMessage = 64 << 10
	}
	o.Options = o.Options.withDefaults()
	if o.Queue <= 0 {
		o.Queue = 100_000
	}
	if o.QueueBytes <= 0 {
		o.QueueBytes = 256 << 20
	}
	if o.Linger == 0 {
		o.Linger = time.Second
	}
	if o.Redial <= 0 {
		o.Redial = 250 * time.Millisecond
	}
	return o
}

// maxTopics and maxTopic bound the subscriptions of one peer.
const (
	maxTopics = 1024
	maxTopic  = 1 << 10
)

// A Pub sends each message to all subscribers of its topic. It never waits for one: a
// subscriber that does not keep up loses messages, and whoever numbers them notices.
type Pub struct {
	opt    PubOptions
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // of Connect

	dropped atomic.Uint64

	mu        sync.Mutex
	subs      []*subscriber // replaced, never changed
	listeners []*Listener
	closed    bool
}

// NewPub returns a Pub that neither listens nor connects yet.
func NewPub(opt PubOptions) *Pub {
	p := &Pub{opt: opt.withDefaults()}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Bind lets subscribers connect to an endpoint and returns it, with the port chosen.
func (p *Pub) Bind(endpoint string) (string, error) {
	l, err := Listen(endpoint, PUB, p.opt.Options, p.serve)
	if err != nil {
		return "", err
	}
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.listeners = append(p.listeners, l)
	}
	p.mu.Unlock()
	if closed {
		l.Close()
		return "", ErrClosed
	}
	return l.Endpoint(), nil
}

// Connect connects to a subscriber or broker that listens, and again whenever the
// connection ends. It does not wait.
func (p *Pub) Connect(endpoint string) error {
	if _, _, err := split(endpoint); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		roleSocket.Take()
		for p.ctx.Err() == nil {
			if c, err := Dial(p.ctx, endpoint, PUB, p.opt.Options); err == nil {
				p.serve(c)
				c.Close()
			}
			select {
			case <-p.ctx.Done():
			case <-time.After(p.opt.Redial):
			}
		}
	}()
	return nil
}

// Send queues a message for those who have subscribed to its topic. wire is the whole
// message, as AppendMessage makes it, with topic as its first frame; the Pub keeps it,
// and it must not change any more. Send reports how many will get it.
func (p *Pub) Send(topic, wire []byte) (subscribers int) {
	p.mu.Lock()
	subs := p.subs
	p.mu.Unlock()
	for _, s := range subs {
		switch s.push(topic, wire) {
		case pushed:
			subscribers++
		case full:
			p.dropped.Add(1)
		}
	}
	return subscribers
}

// Dropped returns how many messages a subscriber did not get because its queue was
// full; each counts once for each subscriber.
func (p *Pub) Dropped() uint64 { return p.dropped.Load() }

// Subscribers returns how many peers are connected and have subscribed to something.
func (p *Pub) Subscribers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, s := range p.subs {
		if s.subscribed() {
			n++
		}
	}
	return n
}

// Close lets subscribers take what is queued for Linger, then closes all connections
// and waits for their goroutines.
func (p *Pub) Close() error {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	subs, listeners := p.subs, p.listeners
	p.mu.Unlock()
	var errs []error
	if first {
		if p.opt.Linger > 0 {
			deadline := time.NewTimer(p.opt.Linger)
			defer deadline.Stop()
		wait:
			for _, s := range subs {
				select {
				case <-s.drained():
				case <-s.gone:
				case <-deadline.C:
					break wait
				}
			}
		}
		p.cancel()
		for _, s := range subs {
			s.conn.Close()
		}
		for _, l := range listeners {
			errs = append(errs, l.Close())
		}
	}
	p.wg.Wait()
	return errors.Join(errs...)
}

// serve keeps one subscriber until its connection ends.
func (p *Pub) serve(c *Conn) {
	s := &subscriber{conn: c, opt: &p.opt, wake: make(chan struct{}, 1), gone: make(chan struct{})}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.subs = append(p.subs[:len(p.subs):len(p.subs)], s)
	p.mu.Unlock()

	written := make(chan struct{})
	go func() {
		defer close(written)
		s.write()
		c.Close() // ends the reads
	}()
	s.read()
	c.Close()
	close(s.gone)
	<-written

	p.mu.Lock()
	var rest []*subscriber
	for _, o := range p.subs {
		if o != s {
			rest = append(rest, o)
		}
	}
	p.subs = rest
	p.mu.Unlock()
}

// subscriber is one peer of a Pub: topics and a queue.
type subscriber struct {
	conn *Conn
	opt  *PubOptions
	wake chan struct{} // a message or a watcher has come
	gone chan struct{} // closed when the connection has ended

	mu      sync.Mutex
	topics  map[string]int // how often each is subscribed to
	queue   [][]byte       // from head on
	head    int
	bytes   int
	writing bool            // the last batch is not out yet
	idle    []chan struct{} // closed when nothing is queued
}

type pushResult uint8

const (
	pushed pushResult = iota
	unwanted
	full
)

func (s *subscriber) push(topic, wire []byte) pushResult {
	s.mu.Lock()
	if !s.wants(topic) {
		s.mu.Unlock()
		return unwanted
	}
	if n := len(s.queue) - s.head; n >= s.opt.Queue || n > 0 && s.bytes+len(wire) > s.opt.QueueBytes {
		s.mu.Unlock()
		return full
	}
	if s.head > len(s.queue)/2 && len(s.queue) == cap(s.queue) {
		s.queue = s.queue[:copy(s.queue, s.queue[s.head:])]
		s.head = 0
	}
	s.queue = append(s.queue, wire)
	s.bytes += len(wire)
	s.mu.Unlock()
	s.poke()
	return pushed
}

func (s *subscriber) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// wants reports whether a topic is subscribed to. s.mu held.
func (s *subscriber) wants(topic []byte) bool {
	if s.topics[""] > 0 {
		return true
	}
	for t := range s.topics {
		if len(topic) >= len(t) && string(topic[:len(t)]) == t {
			return true
		}
	}
	return false
}

func (s *subscriber) subscribed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.topics) > 0
}

// read takes subscriptions until the connection ends, or the peer breaks a bound.
func (s *subscriber) read() {
	var m Message
	for s.conn.Read(&m) == nil {
		if len(m.Frames) != 1 || len(m.Frames[0]) == 0 || m.Frames[0][0] > 1 {
			continue // messages to a PUB mean nothing
		}
		topic := string(m.Frames[0][1:])
		s.mu.Lock()
		switch n := s.topics[topic]; {
		case m.Frames[0][0] == 1 && (len(topic) > maxTopic || n == 0 && len(s.topics) >= maxTopics):
			s.mu.Unlock()
			return
		case m.Frames[0][0] == 1:
			if s.topics == nil {
				s.topics = map[string]int{}
			}
			s.topics[topic]++
		case n > 1:
			s.topics[topic]--
		case n == 1:
			delete(s.topics, topic)
		}
		s.mu.Unlock()
	}
}

// write sends what is queued until the connection ends.
func (s *subscriber) write() {
	var batch net.Buffers
	for {
		batch = s.take(batch[:0])
		if len(batch) == 0 {
			select {
			case <-s.wake:
				continue
			case <-s.gone:
				return
			}
		}
		all := batch // WriteTo consumes what it is called on
		if s.conn.writeAll(batch) != nil {
			return
		}
		clear(all)
		batch = all
	}
}

// take moves what is queued to batch, up to what one call to the system should carry.
func (s *subscriber) take(batch net.Buffers) net.Buffers {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writing = false
	for size := 0; s.head < len(s.queue) && len(batch) < 512 && size < 1<<20; s.head++ {
		wire := s.queue[s.head]
		s.queue[s.head] = nil
		batch = append(batch, wire)
		size += len(wire)
		s.bytes -= len(wire)
	}
	if s.head == len(s.queue) {
		s.queue, s.head = s.queue[:0], 0
	}
	if s.writing = len(batch) > 0; !s.writing {
		for _, c := range s.idle {
			close(c)
		}
		s.idle = nil
	}
	return batch
}

// drained returns a channel that is closed when all that was queued has been handed
// to the system.
func (s *subscriber) drained() <-chan struct{} {
	c := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.writing && s.head == len(s.queue) {
		close(c)
	} else {
		s.idle = append(s.idle, c)
	}
	return c
}
