package events

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kvcr-go/kvcr/hints/events/zmtp"
)

// PlanePublisherConfig shapes a PlanePublisher. The zero PlanePublisherConfig is valid.
type PlanePublisherConfig struct {
	// Endpoint is where subscribers come; it is for the caller to register. Default
	// tcp://0.0.0.0:0, any free port.
	Endpoint string
	// Brokers, if any, are whom to connect to instead (their XSUB endpoints).
	Brokers []string
	// Scope and Topic name the subject. Default topic kv-events. Subscribers that
	// come to us see the topic alone, brokers the whole subject.
	Scope Scope
	Topic string
	// PublisherID identifies this publisher; of at most 53 bits. Default: random.
	PublisherID uint64
	// StateSource is the msgpack of our id as a cache owner, which goes with events
	// of DomainCacheOwner.
	StateSource []byte
	// HWM, HWMBytes, Linger and Now are those of PublisherConfig.
	HWM      int
	HWMBytes int
	Linger   time.Duration
	Now      func() time.Time
}

// maxPublisherID is the largest integer that JSON keeps with all its bits.
const maxPublisherID = 1<<53 - 1

// A PlanePublisher sends router events over Dynamo's event plane. It has no replay: who
// misses events asks the worker for a dump. Its methods may be called from any
// goroutine; none of them waits for a peer, except Close for a bounded time.
type PlanePublisher struct {
	cfg      PlanePublisherConfig
	pub      *zmtp.Pub
	endpoint string
	subject  string // the first frame
	envelope Envelope

	mu      sync.Mutex // orders events
	closed  bool
	payload []byte
	wrapped []byte
}

// NewPlanePublisher listens, or connects to the brokers.
func NewPlanePublisher(cfg PlanePublisherConfig) (*PlanePublisher, error) {
	if cfg.Endpoint == "" {
		cfg.Endpoint = "tcp://0.0.0.0:0"
	}
	if cfg.Topic == "" {
		cfg.Topic = "kv-events"
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.PublisherID > maxPublisherID {
		return nil, fmt.Errorf("%w: PublisherID %d exceeds %d, which JSON keeps", ErrConfig, cfg.PublisherID, uint64(maxPublisherID))
	}
	for cfg.PublisherID == 0 {
		cfg.PublisherID = rand.Uint64() & maxPublisherID
	}
	p := &PlanePublisher{cfg: cfg, subject: cfg.Topic, envelope: Envelope{Topic: cfg.Topic, PublisherID: cfg.PublisherID},
		pub: zmtp.NewPub(zmtp.PubOptions{Queue: cfg.HWM, QueueBytes: cfg.HWMBytes, Linger: cfg.Linger})}
	var err error
	if len(cfg.Brokers) == 0 {
		p.endpoint, err = p.pub.Bind(cfg.Endpoint)
	} else {
		p.subject = cfg.Scope.Subject(cfg.Topic)
		for _, b := range cfg.Brokers {
			if err == nil {
				err = p.pub.Connect(b)
			}
		}
	}
	if err != nil {
		p.pub.Close()
		return nil, err
	}
	return p, nil
}

// Endpoint returns where the publisher listens, with the port that the system chose;
// empty with brokers.
func (p *PlanePublisher) Endpoint() string { return p.endpoint }

// PublisherID returns the id in every message.
func (p *PlanePublisher) PublisherID() uint64 { return p.cfg.PublisherID }

// Publish sends one event and returns the sequence of its message; ev is read only, and
// free when Publish returns. Failure: ErrClosed.
func (p *PlanePublisher) Publish(ev *RouterEvent) (sequence uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0, ErrClosed
	}
	e := &p.envelope
	p.payload = AppendRouterEvent(p.payload[:0], ev, p.cfg.StateSource)
	e.PublishedAt, e.Payload = p.cfg.Now(), p.payload
	p.wrapped = AppendEnvelope(p.wrapped[:0], e)
	sequence = e.Sequence
	var room [4][]byte
	frames := AppendPlaneFrames(room[:0], p.subject, e.PublisherID, sequence, p.wrapped)
	p.pub.Send(frames[0], zmtp.AppendMessage(make([]byte, 0, len(p.subject)+len(p.wrapped)+64), frames...))
	e.Sequence++
	return sequence, nil
}

// Subscribers returns how many are connected and have subscribed.
func (p *PlanePublisher) Subscribers() int { return p.pub.Subscribers() }

// PlaneStats counts what a PlanePublisher did.
type PlaneStats struct {
	Messages    uint64 // sent or not: the next sequence
	Dropped     uint64 // messages that a subscriber lost because it did not keep up
	Subscribers int    // connected now, and have subscribed
}

// Stats returns the counters.
func (p *PlanePublisher) Stats() PlaneStats {
	s := PlaneStats{Dropped: p.pub.Dropped(), Subscribers: p.Subscribers()}
	p.mu.Lock()
	defer p.mu.Unlock()
	s.Messages = p.envelope.Sequence
	return s
}

// Close lets subscribers take what is queued, for Linger, then ends all connections.
func (p *PlanePublisher) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	return p.pub.Close()
}
