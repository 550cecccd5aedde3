package events

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcr-go/kvcr/hints/events/zmtp"
)

// ErrConfig: a configuration cannot work.
var ErrConfig = errors.New("bad configuration")

// ErrClosed: the publisher or consumer was closed.
var ErrClosed = zmtp.ErrClosed

// PublisherConfig shapes a Publisher. The zero PublisherConfig is valid.
type PublisherConfig struct {
	// Endpoint is where subscribers come, see Binds, or who they are. Rank is added
	// to it: see OffsetEndpoint. Default tcp://*:5557.
	Endpoint string
	// Bind has it listen at Endpoint whatever that looks like.
	Bind bool
	// Replay is where consumers ask for batches that they missed; Rank is added.
	// Empty: nowhere.
	Replay string
	// Topic goes before every message.
	Topic string
	// Rank is the data-parallel rank of batches that name none.
	Rank uint32
	// Form is how events are written, ReplayForm how replies look.
	Form       Form
	ReplayForm ReplayForm
	// BufferSteps and BufferBytes bound the batches kept for replay. Defaults
	// 10,000 and 256 MiB.
	BufferSteps int
	BufferBytes int
	// HWM is how many batches may wait for one subscriber; HWMBytes the same in
	// bytes. Further ones are lost to it, which it sees by their sequence. Defaults
	// 100,000 and 256 MiB; batches are shared with each other and with the replay.
	HWM      int
	HWMBytes int
	// Linger is how long Close waits for subscribers to take what is queued.
	// Default 1 s; negative: not at all.
	Linger time.Duration
	// Now gives batches their time. Default time.Now.
	Now func() time.Time
}

// A Publisher sends the batches of one engine rank to whoever subscribes, numbers them
// from 0 and keeps the last ones for replay. Its methods may be called from any
// goroutine; none of them waits for a peer, except Close for a bounded time.
type Publisher struct {
	cfg      PublisherConfig
	pub      *zmtp.Pub
	endpoint string
	replay   *zmtp.Listener
	ring     *ring

	replays atomic.Uint64
	badAsks atomic.Uint64

	mu      sync.Mutex // orders batches
	seq     uint64
	blocks  uint64
	bytes   uint64
	payload []byte
	closed  bool
}

// NewPublisher listens or connects, as the endpoints say.
func NewPublisher(cfg PublisherConfig) (*Publisher, error) {
	if cfg.Endpoint == "" {
		cfg.Endpoint = "tcp://*:5557"
	}
	if cfg.BufferSteps <= 0 {
		cfg.BufferSteps = 10_000
	}
	if cfg.BufferBytes <= 0 {
		cfg.BufferBytes = 256 << 20
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if len(cfg.Topic) > 1<<10 {
		return nil, fmt.Errorf("%w: Topic has %d bytes, at most 1024", ErrConfig, len(cfg.Topic))
	}
	endpoint, err := OffsetEndpoint(cfg.Endpoint, cfg.Rank)
	if err != nil {
		return nil, err
	}
	replay, err := OffsetEndpoint(cfg.Replay, cfg.Rank)
	if err != nil {
		return nil, err
	}
	p := &Publisher{cfg: cfg, ring: newRing(cfg.BufferSteps, cfg.BufferBytes),
		pub: zmtp.NewPub(zmtp.PubOptions{Queue: cfg.HWM, QueueBytes: cfg.HWMBytes, Linger: cfg.Linger})}
	if p.endpoint, err = attach(p.pub, endpoint, cfg.Bind); err != nil {
		p.pub.Close()
		return nil, err
	}
	if replay != "" {
		p.replay, err = zmtp.Listen(replay, zmtp.ROUTER, zmtp.Options{MaxMessage: 4 << 10, MaxConns: maxReplays}, p.serveReplay)
		if err != nil {
			p.pub.Close()
			return nil, err
		}
	}
	return p, nil
}

// attach binds or connects a Pub, and returns where.
func attach(pub *zmtp.Pub, endpoint string, bind bool) (string, error) {
	if bind || Binds(endpoint) {
		return pub.Bind(endpoint)
	}
	return endpoint, pub.Connect(endpoint)
}

// Endpoint returns where the Publisher listens or connects to, with rank and the port
// that the system chose.
func (p *Publisher) Endpoint() string { return p.endpoint }

// ReplayEndpoint returns where replays are asked for; empty without.
func (p *Publisher) ReplayEndpoint() string {
	if p.replay == nil {
		return ""
	}
	return p.replay.Endpoint()
}

// ErrTooLarge: a batch exceeds what consumers take; split it. It was not sent, and has
// no sequence.
var ErrTooLarge = errors.New("batch too large")

// maxPayload is half of what a Consumer takes by default.
const maxPayload = 32 << 20

// Publish sends a batch and returns its sequence. A batch without a time gets the
// present one, one without a rank that of the Publisher; b is read only, and free when
// Publish returns. Failures: ErrClosed, ErrTooLarge.
func (p *Publisher) Publish(b *Batch) (seq uint64, err error) {
	with := *b
	if !with.HasRank {
		with.HasRank, with.Rank = true, p.cfg.Rank
	}
	blocks := 0
	for i := range b.Events {
		blocks += len(b.Events[i].Hashes)
	}
	if len(b.Events) > MaxEvents {
		return 0, fmt.Errorf("%w: %d events, at most %d", ErrTooLarge, len(b.Events), MaxEvents)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0, ErrClosed
	}
	if with.TS == 0 {
		with.TS = float64(p.cfg.Now().UnixMicro()) / 1e6
	}
	p.payload = AppendBatch(p.payload[:0], &with, p.cfg.Form)
	if n := len(p.payload); n > maxPayload {
		p.payload = nil
		return 0, fmt.Errorf("%w: %d events with %d blocks take %d bytes, at most %d", ErrTooLarge, len(b.Events), blocks, n, maxPayload)
	}
	seq = p.seq
	var number [8]byte
	binary.BigEndian.PutUint64(number[:], seq)
	topic := []byte(p.cfg.Topic)
	wire := zmtp.AppendMessage(make([]byte, 0, len(topic)+len(p.payload)+8+27), topic, number[:], p.payload)
	// Before it is sent: who gets it live can have it replayed.
	p.ring.add(wire)
	p.pub.Send(topic, wire)
	p.seq++
	p.blocks += uint64(blocks)
	p.bytes += uint64(len(wire))
	return seq, nil
}

// PublisherStats counts what a Publisher did.
type PublisherStats struct {
	Batches uint64 // sent or not: the next sequence
	Blocks  uint64 // in stores and removals
	Bytes   uint64
	Dropped uint64 // batches that a subscriber lost because it did not keep up
	Replays uint64 // requests for batches
	BadAsks uint64 // requests that made no sense
	// Subscribers are connected now and have subscribed.
	Subscribers int
}

// Stats returns the counters.
func (p *Publisher) Stats() PublisherStats {
	s := PublisherStats{Dropped: p.pub.Dropped(), Replays: p.replays.Load(), BadAsks: p.badAsks.Load(), Subscribers: p.pub.Subscribers()}
	p.mu.Lock()
	defer p.mu.Unlock()
	s.Batches, s.Blocks, s.Bytes = p.seq, p.blocks, p.bytes
	return s
}

// Close lets subscribers take what is queued, for Linger, then ends all connections.
func (p *Publisher) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	err := p.pub.Close()
	if p.replay != nil {
		err = errors.Join(err, p.replay.Close())
	}
	return err
}

const (
	// maxReplays bounds the connections of consumers that ask for batches; each
	// waits for the network on its own.
	maxReplays = 256
	// replayStall is how long such a consumer may take nothing.
	replayStall = 10 * time.Second
	// replayChunk is how many bytes of replies go out at once.
	replayChunk = 256 << 10
)

// serveReplay answers one consumer, in the goroutine of its connection.
func (p *Publisher) serveReplay(c *zmtp.Conn) {
	var m zmtp.Message
	for c.Read(&m) == nil {
		seq, err := ParseReplayRequest(m.Frames)
		if err != nil {
			p.badAsks.Add(1)
			continue
		}
		p.replays.Add(1)
		if p.sendReplay(c, seq) != nil {
			return
		}
	}
}

// sendReplay sends the kept batches from seq on, up to the last one of now.
func (p *Publisher) sendReplay(c *zmtp.Conn, seq uint64) error {
	var out []byte
	end := p.ring.end()
	for seq < end {
		wire, at, ok := p.ring.get(seq)
		if !ok || at >= end {
			break
		}
		out = append(out, 1, 0) // an empty frame, more follow
		if p.cfg.ReplayForm == ReplayOld {
			wire = wire[topicFrame(p.cfg.Topic):]
		}
		out = append(out, wire...)
		seq = at + 1
		if len(out) >= replayChunk {
			if err := writeWithin(c, out, replayStall); err != nil {
				return err
			}
			out = out[:0]
		}
	}
	last := [][]byte{nil, []byte(p.cfg.Topic), {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, nil}
	if p.cfg.ReplayForm == ReplayOld {
		last = append(last[:1], last[2:]...)
	}
	return writeWithin(c, zmtp.AppendMessage(out, last...), replayStall)
}

// topicFrame returns how many bytes the frame of a topic takes on the wire.
func topicFrame(topic string) int {
	return len(zmtp.AppendFrame(nil, []byte(topic), true))
}

func writeWithin(c *zmtp.Conn, wire []byte, d time.Duration) error {
	c.SetWriteDeadline(time.Now().Add(d))
	return c.Write(wire)
}
