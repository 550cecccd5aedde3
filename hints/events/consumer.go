package events

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvcr-go/kvcr/hints/events/zmtp"
	"github.com/kvcr-go/kvcr/internal/role"
)

// ConsumerConfig shapes a Consumer.
type ConsumerConfig struct {
	// Endpoint is where the publisher listens; with Bind, where we listen for
	// publishers that connect. Required.
	Endpoint string
	Bind     bool
	// Replay is where the publisher answers for batches that were missed. Empty:
	// nowhere, and every missed batch is a Gap.
	Replay string
	// Topic is the beginning of the topics to hear of.
	Topic string
	// Worker is who publishes; batches that name a rank are of that one.
	Worker Worker
	// Normalizer shapes the events: BlockSize is required.
	Normalizer NormalizerConfig

	// OnEvents receives what changed, in the order of the publisher. OnGap hears of
	// batches that will never come. Both are called from one goroutine at a time and
	// hold up the stream; the slice and what it refers to are valid during the call.
	OnEvents func([]RouterEvent)
	OnGap    func(Gap)
	// KeepOnGap leaves it to OnGap to bring the index back in step. Without it the
	// events after a gap begin with a Cleared, so that the index never shows
	// blocks whose removal was missed.
	KeepOnGap bool

	// ReplayTimeout bounds the wait for each reply of a replay. Default 5 s.
	ReplayTimeout time.Duration
	// Settle is how long after connecting the publisher is asked once more what it
	// has, unless a batch has come live by then: one that was sent between the first
	// answer and its hearing of our subscription shows no gap until the next.
	// Default 1 s.
	Settle time.Duration
	// MinBackoff and MaxBackoff bound the wait before connecting again. Defaults
	// 50 ms and 5 s.
	MinBackoff, MaxBackoff time.Duration
	// MaxMessage bounds the bytes of a batch. Default 64 MiB.
	MaxMessage int
	// Log hears of gaps, of malformed batches and of lost connections. Default: nobody.
	Log *slog.Logger
}

// GapKind says why batches are missing.
type GapKind uint8

// The kinds. The first four are those of a replay that was answered.
const (
	GapEmpty        GapKind = iota // the replay had none of them
	GapStartedLate                 // it began after the first one asked for
	GapHole                        // it left some out
	GapEndedEarly                  // it ended before the last one
	GapReplayFailed                // no replay: nobody to ask, no connection, no answer in time
	GapMalformed                   // they came, and are no batches
	GapRestart                     // the publisher began anew; what it had before is not known to exist
	gapKinds
)

var gapNames = [gapKinds]string{"empty", "started_after_requested", "non_contiguous", "ended_before_target", "replay_failed", "malformed", "restart"}

func (k GapKind) String() string {
	if k < gapKinds {
		return gapNames[k]
	}
	return "unknown"
}

// Gap is a run of batches that the index will never hear of: From and all after it,
// before To. Of GapRestart both are 0.
type Gap struct {
	Worker   Worker
	From, To uint64
	Kind     GapKind
}

// ConsumerStats counts what a Consumer did.
type ConsumerStats struct {
	Connects  uint64 // connections that were made
	Batches   uint64 // applied
	Replayed  uint64 // of these, by replay
	Events    uint64 // router events handed on
	Stored    uint64 // blocks in them
	Removed   uint64
	Cleared   uint64 // events
	Stale     uint64 // batches that came again
	Replays   uint64 // requests for batches
	Gaps      [gapKinds]uint64
	Malformed uint64 // batches
	BadFrames uint64 // messages that are none of a publisher
	Foreign   uint64 // batches of more ranks than we follow, or of another one in a replay
	Drops     Drops  // events
	Connected int
}

// A Consumer follows one publisher: it subscribes, applies batches in the order of
// their sequence, asks for those that are missing before it applies later ones, and
// connects again when the connection ends. A restarted publisher is noticed, since
// it cannot repeat its last batch.
//
// While a replay is under way live batches wait where they are: in the network and in
// the publisher's queue for us.
type Consumer struct {
	cfg    ConsumerConfig
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	listen *zmtp.Listener

	mu      sync.Mutex // guards what follows; held while batches are applied
	stats   ConsumerStats
	conns   uint64 // numbers connections
	streams map[uint32]*stream
	norm    *Normalizer

	live, again decoding // of live batches, of replayed ones
	out         []RouterEvent

	shownMu sync.Mutex // guards shown, which is stats as of late
	shown   ConsumerStats
}

type decoding struct {
	d   Decoder
	b   Batch
	bad bool // the batch is malformed
}

// stream is one sequence: that of one rank.
type stream struct {
	worker Worker
	known  bool   // a batch has come
	next   uint64 // sequence expected
	base   uint64 // added to sequences for RouterEvent.ID, so that a restart does not set it back
	last   uint64 // hash of the batch before next
	// floor is what next was when the latest connection began; conn is the one that
	// the last live batch came over.
	floor, conn uint64
	// sure is the latest connection of which it is known that the publisher at its end is
	// the one whose batches we have; or of which that cannot be known.
	sure uint64
}

// maxRanks bounds the streams behind one endpoint.
const maxRanks = 4096

// NewConsumer begins to follow a publisher, which need not be there yet. Failures:
// ErrConfig, zmtp.ErrEndpoint, and with Bind those of listening.
func NewConsumer(cfg ConsumerConfig) (*Consumer, error) {
	switch {
	case cfg.Endpoint == "":
		return nil, fmt.Errorf("%w: Endpoint is empty", ErrConfig)
	case cfg.OnEvents == nil:
		return nil, fmt.Errorf("%w: OnEvents is nil", ErrConfig)
	case cfg.Normalizer.BlockSize == 0:
		return nil, fmt.Errorf("%w: Normalizer.BlockSize is 0", ErrConfig)
	}
	if err := zmtp.CheckEndpoint(cfg.Endpoint); err != nil {
		return nil, err
	}
	if cfg.Replay != "" {
		if err := zmtp.CheckEndpoint(cfg.Replay); err != nil {
			return nil, err
		}
	}
	if cfg.ReplayTimeout <= 0 {
		cfg.ReplayTimeout = 5 * time.Second
	}
	if cfg.Settle <= 0 {
		cfg.Settle = time.Second
	}
	if cfg.MinBackoff <= 0 {
		cfg.MinBackoff = 50 * time.Millisecond
	}
	if cfg.MaxBackoff < cfg.MinBackoff {
		cfg.MaxBackoff = max(5*time.Second, cfg.MinBackoff)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Normalizer.Log == nil {
		cfg.Normalizer.Log = cfg.Log
	}
	c := &Consumer{cfg: cfg, streams: map[uint32]*stream{}, norm: NewNormalizer(cfg.Normalizer)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if cfg.Bind {
		l, err := zmtp.Listen(cfg.Endpoint, zmtp.SUB, zmtp.Options{MaxMessage: cfg.MaxMessage}, c.follow)
		if err != nil {
			return nil, err
		}
		c.listen = l
		return c, nil
	}
	c.wg.Add(1)
	go roleConsumer.Run(c.run)
	return c, nil
}

// roleConsumer is that of the goroutine that follows a publisher, in profiles.
var roleConsumer = role.New("event-consumer")

// Endpoint returns where the Consumer connects to or listens, with the port chosen.
func (c *Consumer) Endpoint() string {
	if c.listen != nil {
		return c.listen.Endpoint()
	}
	return c.cfg.Endpoint
}

// Stats returns the counters. It does not wait for a replay or a callback.
func (c *Consumer) Stats() ConsumerStats {
	c.shownMu.Lock()
	defer c.shownMu.Unlock()
	return c.shown
}

// show makes the counters visible. c.mu held.
func (c *Consumer) show() {
	c.stats.Drops = c.norm.Drops()
	c.shownMu.Lock()
	c.shown = c.stats
	c.shownMu.Unlock()
}

// Close ends the connections and waits for callbacks that are under way. It must not
// be called from one.
func (c *Consumer) Close() error {
	c.cancel()
	var err error
	if c.listen != nil {
		err = c.listen.Close()
	}
	c.wg.Wait()
	return err
}

// run connects to the publisher, again and again.
func (c *Consumer) run() {
	defer c.wg.Done()
	wait := c.cfg.MinBackoff
	for c.ctx.Err() == nil {
		began := time.Now()
		conn, err := zmtp.Dial(c.ctx, c.cfg.Endpoint, zmtp.SUB, zmtp.Options{MaxMessage: c.cfg.MaxMessage})
		if err == nil {
			c.follow(conn)
			conn.Close()
		} else if c.ctx.Err() == nil {
			c.cfg.Log.Debug("no connection to publisher", "endpoint", c.cfg.Endpoint, "err", err)
		}
		if time.Since(began) > c.cfg.MaxBackoff {
			wait = c.cfg.MinBackoff // it was well
		}
		select {
		case <-c.ctx.Done():
		case <-time.After(wait/2 + rand.N(wait/2+1)):
		}
		wait = min(2*wait, c.cfg.MaxBackoff)
	}
}

// follow applies what comes over one connection until it ends.
func (c *Consumer) follow(conn *zmtp.Conn) {
	stop := context.AfterFunc(c.ctx, func() { conn.Close() })
	defer stop()
	if conn.Subscribe(c.cfg.Topic) != nil {
		return
	}
	c.mu.Lock()
	number := c.connected()
	c.catchUp(number)
	c.show()
	c.mu.Unlock()

	quiet := true // no live batch yet; guarded by mu
	ended := make(chan struct{})
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		select {
		case <-ended:
		case <-time.After(c.cfg.Settle):
			c.mu.Lock()
			defer c.mu.Unlock()
			if quiet && c.ctx.Err() == nil {
				c.catchUp(number)
				c.show()
			}
		}
	}()
	var m zmtp.Message
	var err error
	for {
		if err = conn.Read(&m); err != nil {
			break
		}
		c.mu.Lock()
		quiet = false
		c.message(m.Frames, number)
		c.show()
		c.mu.Unlock()
	}
	close(ended)
	<-settled
	c.mu.Lock()
	c.stats.Connected--
	c.show()
	c.mu.Unlock()
	if c.ctx.Err() == nil {
		c.cfg.Log.Info("connection to publisher ended", "endpoint", c.cfg.Endpoint, "err", err)
	}
}

// connected begins a connection and returns its number. c.mu held, as in all that
// follows.
func (c *Consumer) connected() uint64 {
	c.conns++
	c.stats.Connects++
	c.stats.Connected++
	for _, s := range c.streams {
		s.floor = s.next
	}
	return c.conns
}

// message takes a live message.
func (c *Consumer) message(frames [][]byte, conn uint64) {
	l, err := ParseLive(frames)
	if err != nil || l.Seq == endSeq {
		c.stats.BadFrames++
		return
	}
	if c.ctx.Err() != nil {
		return // between Close and the end of the connection
	}
	s := c.decode(&c.live, l)
	if s == nil {
		return
	}
	if l.Seq < s.next {
		if l.Seq >= s.floor || conn == s.conn {
			c.stats.Stale++ // by replay it was faster
			return
		}
		// A new connection begins with what is new.
		c.restarted(s)
	}
	s.conn = conn
	if s.known && s.sure < conn && c.canAsk() { // it could not be asked when it connected
		same, _ := c.sameLife(s)
		if c.ctx.Err() != nil {
			return
		}
		if !same {
			c.restarted(s)
		}
	}
	s.sure = max(s.sure, conn)
	if l.Seq > s.next {
		c.replay(s, l.Seq)
		if c.ctx.Err() != nil || l.Seq < s.next { // it came by replay
			return
		}
	}
	c.apply(s, &c.live, l)
}

// decode reads the batch and returns its stream, which of a malformed batch is a guess.
// Nil: one stream too many.
func (c *Consumer) decode(d *decoding, l Live) *stream {
	w := c.cfg.Worker
	err := d.d.Decode(l.Payload, &d.b)
	if d.bad = err != nil; d.bad {
		if c.stats.Malformed++; c.stats.Malformed <= 3 {
			c.cfg.Log.Warn("malformed batch", "endpoint", c.cfg.Endpoint, "seq", l.Seq, "err", err)
		}
		if len(c.streams) == 1 {
			for _, s := range c.streams {
				return s
			}
		}
	} else if d.b.HasRank {
		w.Rank = d.b.Rank
	}
	s := c.streams[w.Rank]
	if s == nil {
		if len(c.streams) >= maxRanks {
			c.stats.Foreign++
			return nil
		}
		s = &stream{worker: w}
		c.streams[w.Rank] = s
	}
	return s
}

// apply hands on the batch that follows in its stream.
func (c *Consumer) apply(s *stream, d *decoding, l Live) {
	s.known, s.next, s.last = true, l.Seq+1, xxh3.Hash(l.Payload)
	c.stats.Batches++
	if d.bad {
		c.gap(s, l.Seq, l.Seq+1, GapMalformed)
		return
	}
	c.emit(s, &d.b, s.base+l.Seq)
}

func (c *Consumer) emit(s *stream, b *Batch, id uint64) {
	c.out = c.norm.Normalize(c.out[:0], s.worker, id, b)
	if len(c.out) == 0 {
		return
	}
	c.stats.Events += uint64(len(c.out))
	for i := range c.out {
		switch ev := &c.out[i]; ev.Op {
		case Stored:
			c.stats.Stored += uint64(len(ev.Blocks))
		case Removed:
			c.stats.Removed += uint64(len(ev.Hashes))
		case Cleared:
			c.stats.Cleared++
		}
	}
	c.cfg.OnEvents(c.out)
}

// gap reports batches that will not come, and has the index forget what they may have
// changed.
func (c *Consumer) gap(s *stream, from, to uint64, kind GapKind) {
	c.stats.Gaps[kind]++
	c.cfg.Log.Warn("inventory batches lost", "endpoint", c.cfg.Endpoint, "worker", s.worker.ID, "rank", s.worker.Rank, "from", from, "to", to, "kind", kind.String())
	if c.cfg.OnGap != nil {
		c.cfg.OnGap(Gap{Worker: s.worker, From: from, To: to, Kind: kind})
	}
	if !c.cfg.KeepOnGap {
		id := s.base
		if to > 0 {
			id += to - 1
		}
		c.emit(s, &Batch{Events: []Event{{Kind: AllBlocksCleared}}}, id)
	}
}

// restarted begins a stream anew.
func (c *Consumer) restarted(s *stream) {
	s.base += s.next
	s.known, s.next, s.floor = false, 0, 0
	c.gap(s, 0, 0, GapRestart)
}
