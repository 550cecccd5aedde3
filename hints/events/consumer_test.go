package events

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/hints/events/zmtp"
	"github.com/kvcr-go/kvcr/internal/pyzmq"
)

// place is where the index says a block is.
type place struct {
	w    Worker
	tier Tier
	hash uint64
}

// index is what a router would know.
type index struct {
	mu   sync.Mutex
	have map[place]bool
	gaps []Gap
	ids  map[Worker]uint64
	bad  string
}

func newIndex() *index { return &index{have: map[place]bool{}, ids: map[Worker]uint64{}} }

func (x *index) apply(events []RouterEvent) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, ev := range events {
		if ev.ID < x.ids[ev.Worker] {
			x.bad = fmt.Sprintf("event %d of %v after %d", ev.ID, ev.Worker, x.ids[ev.Worker])
		}
		x.ids[ev.Worker] = ev.ID
		for _, b := range ev.Blocks {
			x.have[place{ev.Worker, ev.Tier, b.Hash}] = true
		}
		for _, h := range ev.Hashes {
			delete(x.have, place{ev.Worker, ev.Tier, h})
		}
		if ev.Op == Cleared {
			for p := range x.have {
				if p.w == ev.Worker {
					delete(x.have, p)
				}
			}
		}
	}
}

func (x *index) gap(g Gap) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.gaps = append(x.gaps, g)
}

// hashes returns the blocks of the index, of all workers and tiers.
func (x *index) hashes() []uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	h := []uint64{}
	for p := range x.have {
		h = append(h, p.hash)
	}
	slices.Sort(h)
	return h
}

func (x *index) kinds() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := ""
	for _, g := range x.gaps {
		s += fmt.Sprintf("%v[%d,%d) ", g.Kind, g.From, g.To)
	}
	return s
}

// want waits until the index has exactly these blocks.
func (x *index) want(t testing.TB, c *Consumer, hashes ...uint64) {
	t.Helper()
	slices.Sort(hashes)
	for end := time.Now().Add(10 * time.Second); !slices.Equal(x.hashes(), hashes); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the index has %v, want %v; gaps %s; %+v", x.hashes(), hashes, x.kinds(), c.Stats())
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.bad != "" {
		t.Fatal(x.bad)
	}
}

func (x *index) wantGaps(t testing.TB, want string) {
	t.Helper()
	if got := x.kinds(); got != want {
		t.Errorf("gaps %q, want %q", got, want)
	}
}

func consume(t testing.TB, cfg ConsumerConfig) (*Consumer, *index) {
	t.Helper()
	x := newIndex()
	cfg.OnEvents, cfg.OnGap = x.apply, x.gap
	cfg.Worker.ID, cfg.Normalizer.BlockSize = 1, 1
	cfg.MinBackoff, cfg.MaxBackoff = time.Millisecond, 20*time.Millisecond
	c, err := NewConsumer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { within(t, 5*time.Second, "Close", func() { c.Close() }) })
	return c, x
}

// engine is a publisher of libzmq, which acts as vLLM's.
type engine struct {
	py          *pyzmq.Peer
	pub, replay string
	number      int
	payloads    []string
}

func newEngine(py *pyzmq.Peer, newForm bool, more pyzmq.Command) *engine {
	c := pyzmq.Command{"op": "publisher", "id": "engine", "new": newForm, "topic": "kv"}
	for k, v := range more {
		c[k] = v
	}
	a := py.Do(c)
	return &engine{py: py, pub: a.Pub, replay: a.Replay}
}

// send publishes one batch for each event, lost on its way if drop.
func (e *engine) send(drop bool, events ...Event) {
	var payloads []string
	for _, ev := range events {
		payloads = append(payloads, fmt.Sprintf("%x", AppendBatch(nil, &Batch{TS: 1, Events: []Event{ev}}, Maps)))
	}
	e.py.Do(pyzmq.Command{"op": "publish", "id": "engine", "payloads": payloads, "drop": drop})
}

func (e *engine) follow(t testing.TB, cfg ConsumerConfig) (*Consumer, *index) {
	t.Helper()
	cfg.Endpoint, cfg.Replay, cfg.Topic = e.pub, e.replay, "kv"
	c, x := consume(t, cfg)
	if !e.py.Do(pyzmq.Command{"op": "subscriber", "id": "engine"}).Subscribed {
		t.Fatal("nobody subscribes")
	}
	return c, x
}

func (e *engine) close() { e.py.Do(pyzmq.Command{"op": "close", "id": "engine"}) }

// Batches that were lost are replayed before later ones count, whichever form the
// replies have.
func TestConsumerLibzmq(t *testing.T) {
	py := pyzmq.Start(t)
	for _, form := range []bool{true, false} {
		e := newEngine(py, form, nil)
		e.send(false, store("", 0, 1), store("", 1, 2)) // before anybody listens
		c, x := e.follow(t, ConsumerConfig{Settle: time.Hour})
		x.want(t, c, 1, 2)
		e.send(false, store("", 2, 3))
		e.send(true, store("", 3, 4), remove(1), store("", 4, 5))
		e.send(false, store("", 5, 6))
		x.want(t, c, 2, 3, 4, 5, 6)
		// The store is lost, the removal is not; the late store must not revive it.
		e.send(true, store("", 0, 100))
		e.send(false, remove(100))
		e.send(false, store("", 0, 7))
		x.want(t, c, 2, 3, 4, 5, 6, 7)
		x.wantGaps(t, "")
		if got := py.Do(pyzmq.Command{"op": "asked", "id": "engine"}).Asked; !slices.Equal(got, []uint64{0, 3, 7}) {
			t.Errorf("replays were asked for from %v, want 0, 3 and 7", got)
		}
		if st := c.Stats(); st.Batches != 10 || st.Replayed != 6 || st.Replays != 3 || st.Connected != 1 || st.Malformed+st.BadFrames+st.Foreign > 0 {
			t.Errorf("%+v", st)
		}
		c.Close()
		e.close()
	}
}

// The four ways in which a replay may fall short, and two in which there is none. The
// index then has less than the engine, never more.
func TestReplayFailures(t *testing.T) {
	py := pyzmq.Start(t)
	block := func(i int) Event { return store("", 0, uint64(i)) }
	for _, tt := range []struct {
		name   string
		behave pyzmq.Command
		gaps   string
		have   []uint64
	}{
		{"empty", pyzmq.Command{"forget": true, "skip": []int{5}}, "empty[1,5) ", []uint64{5}},
		{"started late", pyzmq.Command{"skip": []int{1, 2}}, "started_after_requested[1,3) ", []uint64{3, 4, 5}},
		{"hole", pyzmq.Command{"skip": []int{2}}, "non_contiguous[2,3) ", []uint64{3, 4, 5}},
		{"ended early", pyzmq.Command{"skip": []int{4, 5}}, "ended_before_target[4,5) ", []uint64{5}},
		{"only later ones", pyzmq.Command{"skip": []int{1, 2, 3, 4}}, "started_after_requested[1,5) ", []uint64{5}},
		{"mute", pyzmq.Command{"mute": true}, "replay_failed[1,5) ", []uint64{5}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEngine(py, true, nil)
			defer e.close()
			e.send(false, block(99))
			c, x := e.follow(t, ConsumerConfig{ReplayTimeout: 300 * time.Millisecond})
			x.want(t, c, 99)
			e.send(true, block(1), block(2), block(3), block(4))
			tt.behave["op"], tt.behave["id"] = "behave", "engine"
			py.Do(tt.behave)
			e.send(false, block(5))
			x.want(t, c, tt.have...)
			x.wantGaps(t, tt.gaps)
			// All is well again.
			e.send(false, block(6))
			x.want(t, c, append(tt.have, 6)...)
			c.Close()
		})
	}
}

// Without a replay endpoint a missed batch is a gap at once.
func TestNoReplay(t *testing.T) {
	py := pyzmq.Start(t)
	e := newEngine(py, true, nil)
	defer e.close()
	e.replay = ""
	e.send(false, store("", 0, 1))
	c, x := e.follow(t, ConsumerConfig{KeepOnGap: true})
	e.send(false, store("", 0, 2))
	x.want(t, c, 2)
	e.send(true, remove(2))
	e.send(false, store("", 0, 3))
	x.want(t, c, 2, 3) // OnGap's affair
	x.wantGaps(t, "replay_failed[0,1) replay_failed[2,3) ")
	c.Close()
}

// An engine that begins anew on the same endpoints is not taken for the old one,
// whether it has fewer batches, as many or more.
func TestRestart(t *testing.T) {
	py := pyzmq.Start(t)
	for _, batches := range []int{0, 2, 3, 5} {
		e := newEngine(py, true, nil)
		e.send(false, store("", 0, 1), store("", 0, 2), store("", 0, 3))
		c, x := e.follow(t, ConsumerConfig{Settle: 50 * time.Millisecond})
		x.want(t, c, 1, 2, 3)
		e.close()
		eventually(t, "the connection ends", func() bool { return c.Stats().Connected == 0 })
		again := newEngine(py, true, pyzmq.Command{"pub": e.pub, "replay": e.replay})
		want := []uint64{}
		for i := range batches {
			again.send(false, store("", 0, uint64(11+i)))
			want = append(want, uint64(11+i))
		}
		x.want(t, c, want...)
		again.send(false, store("", 0, 20))
		x.want(t, c, append(want, 20)...)
		x.wantGaps(t, "restart[0,0) ")
		c.Close()
		again.close()
	}
}

// An engine that begins anew is noticed also where it could not be asked at first, and
// has sent as many batches as the old one by then: the next one seems to follow.
func TestRestartThatAnswersLate(t *testing.T) {
	old := newPublisher(t, PublisherConfig{Replay: "tcp://127.0.0.1:0"})
	live, replay := newProxy(t, old.Endpoint()), newProxy(t, old.ReplayEndpoint())
	c, x := consume(t, ConsumerConfig{Endpoint: live.endpoint, Replay: replay.endpoint, Settle: time.Minute})
	publish(t, old, store("", 0, 1))
	publish(t, old, store("", 0, 2))
	x.want(t, c, 1, 2)
	fresh := newPublisher(t, PublisherConfig{Replay: "tcp://127.0.0.1:0"})
	publish(t, fresh, store("", 0, 11))
	publish(t, fresh, store("", 0, 12))
	asked := c.Stats().Replays
	replay.aim("tcp://127.0.0.1:1")
	live.aim(fresh.Endpoint())
	live.cut()
	eventually(t, "it connects and has asked in vain", func() bool {
		return fresh.Stats().Subscribers == 1 && c.Stats().Replays > asked
	})
	replay.aim(fresh.ReplayEndpoint())
	publish(t, fresh, store("", 0, 13))
	x.want(t, c, 11, 12, 13)
	x.wantGaps(t, "restart[0,0) ")
}

// A connection that breaks costs nothing: what was sent meanwhile is replayed.
func TestReconnect(t *testing.T) {
	p := newPublisher(t, PublisherConfig{Replay: "tcp://127.0.0.1:0"})
	proxy := newProxy(t, p.Endpoint())
	c, x := consume(t, ConsumerConfig{Endpoint: proxy.endpoint, Replay: p.ReplayEndpoint()})
	connects := uint64(0)
	for i := range uint64(20) {
		publish(t, p, store("", 0, 2*i+1))
		if i%3 == 0 {
			eventually(t, "connected", func() bool { return c.Stats().Connects > connects })
			connects = c.Stats().Connects
			proxy.cut()
		}
		publish(t, p, store("", 0, 2*i+2))
	}
	want := []uint64{}
	for i := range uint64(40) {
		want = append(want, i+1)
	}
	x.want(t, c, want...)
	x.wantGaps(t, "")
	if st := c.Stats(); st.Connects < 5 {
		t.Errorf("only %d connections", st.Connects)
	}
}

// A publisher that connects to where we listen.
func TestConsumerBinds(t *testing.T) {
	c, x := consume(t, ConsumerConfig{Endpoint: "tcp://127.0.0.1:0", Bind: true})
	p := newPublisher(t, PublisherConfig{Endpoint: c.Endpoint()}) // neither * nor port 0
	eventually(t, "subscribed", func() bool { return p.Stats().Subscribers == 1 })
	publish(t, p, store("", 0, 1))
	publish(t, p, store("", 1, 2))
	x.want(t, c, 1, 2)
}

// Several ranks behind one endpoint have a sequence each.
func TestRanks(t *testing.T) {
	c, x := consume(t, ConsumerConfig{Endpoint: "inproc://ranks", Bind: true})
	var ps []*Publisher
	for rank := range uint32(3) {
		pub := zmtp.NewPub(zmtp.PubOptions{Linger: -1})
		if err := pub.Connect("inproc://ranks"); err != nil {
			t.Fatal(err)
		}
		p := &Publisher{cfg: PublisherConfig{Rank: rank, Now: time.Now}, pub: pub, ring: newRing(10, 1000)}
		t.Cleanup(func() { p.Close() })
		eventually(t, "subscribed", func() bool { return p.Stats().Subscribers == 1 })
		ps = append(ps, p)
	}
	want := []uint64{}
	for i := range uint64(10) {
		for rank, p := range ps {
			h := 10*i + uint64(rank) + 1
			publish(t, p, store("", 0, h))
			want = append(want, h)
		}
	}
	x.want(t, c, want...)
	x.wantGaps(t, "")
	x.mu.Lock()
	defer x.mu.Unlock()
	for p := range x.have {
		if uint64(p.w.Rank) != p.hash%10-1 {
			t.Errorf("block %d is of rank %d", p.hash, p.w.Rank)
		}
	}
}

// messages to a Consumer that has no connection.
func TestMessages(t *testing.T) {
	x := newIndex()
	c := &Consumer{cfg: ConsumerConfig{OnEvents: x.apply, OnGap: x.gap}, streams: map[uint32]*stream{}, norm: NewNormalizer(NormalizerConfig{BlockSize: 1})}
	c.ctx, c.cancel = t.Context(), func() {}
	c.cfg.Log = discard
	message := func(conn, seq uint64, ev ...Event) {
		for c.conns < conn {
			c.connected()
		}
		c.message([][]byte{nil, be64(seq), AppendBatch(nil, &Batch{Events: ev}, Maps)}, conn)
	}
	message(1, 0, store("", 0, 1))
	message(1, 0, store("", 0, 2)) // stale
	message(1, 1)                  // nothing in it, but a number
	message(1, 2, store("", 0, 3))
	message(1, 1, store("", 0, 2))
	message(1, endSeq, store("", 0, 4))
	c.message([][]byte{nil, {1}, {2}}, 1)
	x.want(t, &Consumer{}, 1, 3)
	x.wantGaps(t, "")
	if c.stats.Stale != 2 || c.stats.BadFrames != 2 || c.stats.Batches != 3 {
		t.Errorf("%+v", c.stats)
	}
	c.message([][]byte{nil, be64(3), {0xc1}}, 1) // no batch
	x.want(t, &Consumer{})
	x.wantGaps(t, "malformed[3,4) ")
	message(1, 4, store("", 0, 5))
	// Over a new connection an old number is a new beginning.
	message(2, 0, store("", 0, 6))
	x.want(t, &Consumer{}, 6)
	message(2, 0, store("", 0, 7))
	x.want(t, &Consumer{}, 6)
	x.wantGaps(t, "malformed[3,4) restart[0,0) ")
	message(3, 2, store("", 0, 8))
	x.want(t, &Consumer{}, 8)
	message(3, 0, store("", 0, 9)) // over the same connection it is only old
	x.want(t, &Consumer{}, 8)
	x.wantGaps(t, "malformed[3,4) restart[0,0) replay_failed[1,2) ")
	for rank := range uint32(maxRanks + 10) {
		b := Batch{HasRank: true, Rank: rank, Events: []Event{store("", 0, 1)}}
		c.message([][]byte{nil, be64(9), AppendBatch(nil, &b, Maps)}, 3)
	}
	if len(c.streams) != maxRanks || c.stats.Foreign != 10 {
		t.Errorf("%d streams, %d foreign", len(c.streams), c.stats.Foreign)
	}
}

// Who answers with more than was asked for does not set the index back.
func TestReplayTooMuch(t *testing.T) {
	lossy := newLossyPublisher(t, 100)
	lossy.replay = "inproc://too-much"
	l, err := zmtp.Listen(lossy.replay, zmtp.ROUTER, zmtp.Options{}, func(c *zmtp.Conn) {
		for m := new(zmtp.Message); c.Read(m) == nil; {
			lossy.p.sendReplay(c, 0)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	lossy.publish(store("", 0, 1), true)
	c, x := consume(t, ConsumerConfig{Endpoint: lossy.endpoint, Replay: lossy.replay, Settle: time.Hour})
	x.want(t, c, 1) // by the first replay
	eventually(t, "subscribed", func() bool { return lossy.pub.Subscribers() == 1 })
	lossy.publish(remove(1), true)
	x.want(t, c)
	lossy.publish(store("", 0, 2), false)
	lossy.publish(store("", 0, 3), true)
	x.want(t, c, 2, 3)
	x.wantGaps(t, "")
	if st := c.Stats(); st.Stale != 2 || st.Batches != 4 {
		t.Errorf("%+v", st)
	}
	c.Close()
}

func TestConsumerConfig(t *testing.T) {
	for _, cfg := range []ConsumerConfig{
		{},
		{Endpoint: "tcp://x:1", OnEvents: func([]RouterEvent) {}},
		{Endpoint: "tcp://x:1", Normalizer: NormalizerConfig{BlockSize: 16}},
		{Endpoint: "tcp://x", Bind: true, OnEvents: func([]RouterEvent) {}, Normalizer: NormalizerConfig{BlockSize: 16}},
		{Endpoint: "tcp://x", OnEvents: func([]RouterEvent) {}, Normalizer: NormalizerConfig{BlockSize: 16}},
		{Endpoint: "tcp://x:1", Replay: "tcp://x", OnEvents: func([]RouterEvent) {}, Normalizer: NormalizerConfig{BlockSize: 16}},
	} {
		if c, err := NewConsumer(cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
			c.Close()
		}
	}
}

// Whatever is lost on the way, and whatever the publisher has kept, the index ends as
// the publisher has it, or, after gaps, with less; never with more.
func TestLossy(t *testing.T) {
	for seed := range uint64(8) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		lossy := newLossyPublisher(t, []int{5, 1000}[seed%2])
		c, x := consume(t, ConsumerConfig{Endpoint: lossy.endpoint, Replay: lossy.replay})
		eventually(t, "subscribed", func() bool { return lossy.pub.Subscribers() == 1 })
		truth := map[uint64]bool{}
		for i := range 300 {
			ev := store("", 0, uint64(rnd.IntN(20)))
			if rnd.IntN(2) == 0 {
				ev = remove(ev.Hashes...)
			}
			truth[ev.Hashes[0]] = ev.Kind == BlockStored
			lossy.publish(ev, i > 290 || rnd.IntN(3) > 0)
		}
		lossy.publish(store("", 0, 1000), true)
		eventually(t, "the last block is there", func() bool { return slices.Contains(x.hashes(), 1000) })
		for _, h := range x.hashes() {
			if h != 1000 && !truth[h] {
				t.Errorf("seed %d: block %d is in the index and not at the publisher; gaps %s", seed, h, x.kinds())
			}
		}
		if gaps := x.kinds(); seed%2 == 1 {
			want := []uint64{1000}
			for h, there := range truth {
				if there {
					want = append(want, h)
				}
			}
			x.want(t, c, want...)
			x.wantGaps(t, "")
		} else if gaps == "" {
			t.Errorf("seed %d: five batches are kept, and there is no gap", seed)
		}
		c.Close()
		lossy.close()
	}
}
