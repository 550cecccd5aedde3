package events

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/hints/events/zmtp"
	"github.com/kvcr-go/kvcr/internal/pyzmq"
)

func newPublisher(t testing.TB, cfg PublisherConfig) *Publisher {
	t.Helper()
	if cfg.Endpoint == "" {
		cfg.Endpoint = "tcp://127.0.0.1:0"
	}
	if cfg.Linger == 0 {
		cfg.Linger = -1
	}
	p, err := NewPublisher(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { within(t, 5*time.Second, "Close", func() { p.Close() }) })
	return p
}

func publish(t testing.TB, p *Publisher, events ...Event) uint64 {
	t.Helper()
	seq, err := p.Publish(&Batch{TS: 1.5, Events: events})
	if err != nil {
		t.Fatal(err)
	}
	return seq
}

// libzmq reads what a Publisher sends, and gets the same bytes again by replay.
func TestPublisherLibzmq(t *testing.T) {
	py := pyzmq.Start(t)
	for _, form := range []ReplayForm{ReplayWithTopic, ReplayOld} {
		p := newPublisher(t, PublisherConfig{Replay: "tcp://127.0.0.1:*", Topic: "kv-events", Rank: 3, ReplayForm: form, BufferSteps: 50})
		py.Do(pyzmq.Command{"op": "socket", "id": "sub", "type": "SUB", "connect": p.Endpoint(), "subscribe": []string{"kv-"}})
		eventually(t, "subscribed", func() bool { return p.Stats().Subscribers == 1 })
		const n = 80
		for i := range n {
			ev := store("", uint64(i), uint64(i+1))
			ev.Medium = "CPU_PINNED"
			if seq := publish(t, p, ev, remove(math.MaxUint64)); seq != uint64(i) {
				t.Fatalf("sequence %d, want %d", seq, i)
			}
		}
		live := py.Recv("sub", n)
		if len(live) != n {
			t.Fatalf("libzmq got %d of %d batches", len(live), n)
		}
		for i, m := range live {
			if l, err := ParseLive(m); err != nil || string(l.Topic) != "kv-events" || l.Seq != uint64(i) {
				t.Fatalf("batch %d comes as %q, %v", i, m, err)
			}
		}
		value := fmt.Sprint(py.Do(pyzmq.Command{"op": "unpack", "payload": fmt.Sprintf("%x", live[1][2])}).Value)
		if want := "[1.5 [map[block_hashes:[2] block_size:1 lora_id:<nil> lora_name:<nil> medium:CPU_PINNED parent_block_hash:1 token_ids:[2] type:BlockStored]" +
			" map[block_hashes:[1.8446744073709552e+19] medium:<nil> type:BlockRemoved]] 3]"; value != want {
			t.Errorf("Python reads %s\nwant %s", value, want)
		}

		for _, from := range []int{0, 40, n - 1, n, n + 100} {
			py.Do(pyzmq.Command{"op": "socket", "id": "dealer", "type": "DEALER", "connect": p.ReplayEndpoint()})
			py.Do(pyzmq.Command{"op": "send", "id": "dealer", "frames": []string{"", fmt.Sprintf("%016x", from)}})
			replies := py.Bytes(py.Do(pyzmq.Command{"op": "recv", "id": "dealer", "n": n + 1, "end": true}).Messages)
			py.Do(pyzmq.Command{"op": "close", "id": "dealer"})
			first := min(max(from, n-50), n)
			if len(replies) != n-first+1 {
				t.Fatalf("from %d: %d replies, want batches %d to %d and the end", from, len(replies), first, n-1)
			}
			for i, m := range replies {
				want := slices.Concat([][]byte{nil, []byte("kv-events")}, [][]byte{binary.BigEndian.AppendUint64(nil, math.MaxUint64), nil})
				if first+i < n {
					want = slices.Concat([][]byte{nil}, live[first+i])
				}
				if form == ReplayOld {
					want = slices.Delete(want, 1, 2)
				}
				if !slices.EqualFunc(m, want, bytes.Equal) {
					t.Fatalf("reply %d is %q, want %q", i, m, want)
				}
			}
		}
		py.Do(pyzmq.Command{"op": "close", "id": "sub"})
	}
}

func TestReplayFrameVectors(t *testing.T) {
	v := loadVectors(t)
	for _, c := range v.Frames {
		frames := make([][]byte, len(c.Frames))
		for i, f := range c.Frames {
			frames[i] = f
		}
		live, liveErr := ParseLive(frames)
		reply, last, replyErr := ParseReplay(frames)
		seq, askErr := ParseReplayRequest(frames)
		ok := false
		switch c.Name {
		case "live":
			ok = liveErr == nil && live.Seq == 0 && len(live.Topic) == 0 && len(live.Payload) == 130
		case "live_topic":
			ok = liveErr == nil && live.Seq == 258 && string(live.Topic) == "kv-events"
		case "replay_request_dealer":
			ok = askErr == nil && seq == 5 && slices.EqualFunc(AppendReplayFrames(nil, 5), frames, bytes.Equal)
		case "replay_reply_old":
			ok = replyErr == nil && !last && reply.Seq == 5 && reply.Topic == nil && len(reply.Payload) == 130
		case "replay_reply_new":
			ok = replyErr == nil && !last && reply.Seq == 5 && string(reply.Topic) == "kv-events" && len(reply.Payload) == 130
		case "replay_end_old", "replay_end_new":
			ok = replyErr == nil && last
		}
		if !ok {
			t.Errorf("%s: live %+v %v, reply %+v %t %v, request %d %v", c.Name, live, liveErr, reply, last, replyErr, seq, askErr)
		}
	}
	for _, frames := range [][][]byte{nil, {{}}, {{}, {}}, {{}, {1, 2, 3}, {4}}, make([][]byte, 5), {{}, {}, {}, {}}} {
		_, errLive := ParseLive(frames)
		_, _, errReplay := ParseReplay(frames)
		_, errAsk := ParseReplayRequest(frames)
		if !errors.Is(errLive, ErrFrames) || !errors.Is(errReplay, ErrFrames) || !errors.Is(errAsk, ErrFrames) {
			t.Errorf("%q: %v, %v, %v", frames, errLive, errReplay, errAsk)
		}
	}
}

func TestRing(t *testing.T) {
	r := newRing(100, 1000)
	check := func(from, to uint64) {
		t.Helper()
		for seq := uint64(0); seq <= to+1; seq++ {
			wire, at, ok := r.get(seq)
			if want := max(seq, from); ok != (want < to) || ok && (at != want || wire[0] != byte(want)) {
				t.Fatalf("get(%d) = %v, %d, %t; %d to %d are kept", seq, wire, at, ok, from, to)
			}
		}
		if r.end() != to {
			t.Fatalf("end is %d, want %d", r.end(), to)
		}
	}
	check(0, 0)
	for i := range uint64(250) {
		r.add([]byte{byte(i)})
		check(i-min(i, 99), i+1)
	}
	r.add(append([]byte{250}, make([]byte, 949)...)) // and 50 of a byte
	check(200, 251)
	r.add(append([]byte{251}, make([]byte, 5000)...)) // the last one is kept whatever it is
	check(251, 252)
	r.add([]byte{252})
	check(252, 253)
}

func TestOffsetEndpoint(t *testing.T) {
	for _, c := range []struct {
		in   string
		rank uint32
		want string
	}{
		{"tcp://*:5557", 0, "tcp://*:5557"},
		{"tcp://*:5557", 3, "tcp://*:5560"},
		{"tcp://[::]:5557", 1, "tcp://[::]:5558"},
		{"tcp://host:65530", 5, "tcp://host:65535"},
		{"tcp://host:65530", 6, ""},
		{"tcp://host:port", 6, ""},
		{"tcp://*:*", 6, "tcp://*:*"},
		{"tcp://127.0.0.1:0", 6, "tcp://127.0.0.1:0"},
		{"inproc://cache", 2, "inproc://cache_dp2"},
		{"ipc:///tmp/x", 2, "ipc:///tmp/x_dp2"},
		{"", 2, ""},
	} {
		if got, err := OffsetEndpoint(c.in, c.rank); got != c.want || (err != nil) != (c.want == "" && c.in != "") {
			t.Errorf("OffsetEndpoint(%q, %d) = %q, %v", c.in, c.rank, got, err)
		}
	}
	for endpoint, binds := range map[string]bool{"tcp://*:5557": true, "tcp://[::]:5557": true, "ipc:///tmp/x": true, "inproc://x": true, "tcp://0.0.0.0:1": true,
		"tcp://127.0.0.1:0": true, "tcp://10.0.0.1:5557": false, "tcp://router:5557": false} {
		if Binds(endpoint) != binds {
			t.Errorf("Binds(%q) = %t", endpoint, !binds)
		}
	}
}

func TestPublisherConfig(t *testing.T) {
	for _, cfg := range []PublisherConfig{
		{Endpoint: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1"},
		{Endpoint: "tcp://*"},
		{Endpoint: "udp://*:5"},
		{Endpoint: "tcp://host"},
		{Endpoint: "tcp://127.0.0.1:0", Topic: string(make([]byte, 2000))},
		{Endpoint: "tcp://*:65535", Rank: 1},
	} {
		if p, err := NewPublisher(cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
			p.Close()
		} else if !errors.Is(err, zmtp.ErrEndpoint) && !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	p := newPublisher(t, PublisherConfig{Endpoint: "inproc://engine", Rank: 2})
	for _, b := range []Batch{{Events: make([]Event, MaxEvents+1)}, {Events: []Event{remove(slices.Repeat([]uint64{math.MaxUint64}, maxPayload/9+1)...)}}} {
		if _, err := p.Publish(&b); !errors.Is(err, ErrTooLarge) {
			t.Errorf("a batch of %d events: %v", len(b.Events), err)
		}
	}
	if seq, err := p.Publish(&Batch{}); err != nil || seq != 0 {
		t.Errorf("the first batch is %d, %v", seq, err)
	}
	if p.Endpoint() != "inproc://engine_dp2" || p.ReplayEndpoint() != "" {
		t.Errorf("endpoints %q and %q", p.Endpoint(), p.ReplayEndpoint())
	}
	p.Close()
	if _, err := p.Publish(&Batch{}); err != ErrClosed {
		t.Errorf("Publish after Close: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Errorf("Close again: %v", err)
	}
}

// Within its bounds a Publisher loses nothing on the way to who listens.
func TestPublisherKeepsUp(t *testing.T) {
	p := newPublisher(t, PublisherConfig{Replay: "tcp://127.0.0.1:0"})
	blocks := make(chan int, 1)
	total := 0
	c, err := NewConsumer(ConsumerConfig{Endpoint: p.Endpoint(), Replay: p.ReplayEndpoint(), Normalizer: NormalizerConfig{BlockSize: 16}, Settle: time.Hour,
		OnEvents: func(events []RouterEvent) {
			for _, ev := range events {
				total += len(ev.Blocks) + len(ev.Hashes)
			}
			if events[len(events)-1].Op == Cleared {
				blocks <- total
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	eventually(t, "subscribed", func() bool { return p.Stats().Subscribers == 1 })
	const n = 20_000
	b := hotBatch(1, 2)
	for range n {
		if _, err := p.Publish(b); err != nil {
			t.Fatal(err)
		}
	}
	publish(t, p, Event{Kind: AllBlocksCleared})
	within(t, 20*time.Second, "the last batch", func() {
		if got := <-blocks; got != 2*n {
			t.Errorf("%d blocks arrived, want %d", got, 2*n)
		}
	})
	if st, pst := c.Stats(), p.Stats(); st.Replays != 1 || pst.Dropped != 0 || pst.Blocks != 2*n || pst.Batches != n+1 {
		t.Errorf("%+v\n%+v", st, pst)
	}
}

// Nobody listens, or somebody listens and reads nothing: Publish does not wait, and
// memory is bounded.
func TestPublisherNeverWaits(t *testing.T) {
	p := newPublisher(t, PublisherConfig{Replay: "tcp://127.0.0.1:*", HWM: 10, BufferSteps: 20})
	big := store("", 0, make([]uint64, 10_000)...)
	within(t, 10*time.Second, "publishing to nobody", func() {
		for range 50 {
			publish(t, p, big)
		}
	})
	c, err := zmtp.Dial(t.Context(), p.Endpoint(), zmtp.SUB, zmtp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Subscribe("")
	eventually(t, "subscribed", func() bool { return p.Stats().Subscribers == 1 })
	within(t, 20*time.Second, "publishing to one who does not read", func() {
		for p.Stats().Dropped == 0 {
			publish(t, p, big)
		}
	})
	// Nor do those who ask for everything and take nothing hold up others.
	for range 3 {
		d, err := zmtp.Dial(t.Context(), p.ReplayEndpoint(), zmtp.DEALER, zmtp.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		for range 100 {
			if err := d.Write(zmtp.AppendMessage(nil, AppendReplayFrames(nil, 0)...)); err != nil {
				t.Fatal(err)
			}
		}
	}
	d, err := zmtp.Dial(t.Context(), p.ReplayEndpoint(), zmtp.DEALER, zmtp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	d.SetReadDeadline(time.Now().Add(10 * time.Second))
	d.Write(zmtp.AppendMessage(nil, nil, []byte("nonsense!")))
	d.Write(zmtp.AppendMessage(nil, AppendReplayFrames(nil, 0)...))
	n := 0
	for m := new(zmtp.Message); ; n++ {
		if err := d.Read(m); err != nil {
			t.Fatal(err)
		}
		if _, last, err := ParseReplay(m.Frames); err != nil || last {
			break
		}
	}
	if n != 20 || p.Stats().BadAsks != 1 {
		t.Errorf("%d batches replayed, want the last 20; %d bad requests, want 1", n, p.Stats().BadAsks)
	}
}
