package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/events/zmtp"
	"github.com/kvcr-go/kvcr/hints/keys"
	"github.com/kvcr-go/kvcr/internal/pyzmq"
	"github.com/kvcr-go/kvcr/wire"
	"github.com/kvcr-go/kvcr/wire/client"
)

const routedBlock = 4 // tokens

// routed is a node that routers know, with a client of it.
type routed struct {
	*Node
	t  *testing.T
	cl *client.Client
}

// startRouted starts one with a namespace "kv", whose keys are Dynamo's hashes, and
// another one.
func startRouted(t *testing.T, r Router) *routed {
	t.Helper()
	r.Recipe = keys.Recipe{Style: "dynamo", Hash: "xxh3", Seed: "1337", BlockSize: routedBlock}
	return startWith(t, r, nil)
}

func startWith(t *testing.T, r Router, peers *kvcr.Peers) *routed {
	t.Helper()
	r.Worker = 7
	n, err := Start(Config{
		Engine: kvcr.Config{Capacity: 16 << 20, Namespaces: []kvcr.Namespace{
			{Name: "kv", Pools: []kvcr.Pool{{Name: "kv", SlotBytes: 4 << 10}}, Share: 0.5}, {Name: "other", Share: 0.5},
		}, Peers: peers},
		Binary: []string{"127.0.0.1:0"}, HTTP: "127.0.0.1:0", DrainTimeout: 2 * time.Second, Router: &r,
	})
	if err != nil {
		t.Fatal(err)
	}
	out := &routed{Node: n, t: t}
	t.Cleanup(func() { out.stop() })
	out.cl = out.dial("")
	return out
}

func (n *routed) dial(namespace string) *client.Client {
	n.t.Helper()
	_, binary, _ := n.Addrs()
	cl, err := client.Dial(n.t.Context(), client.Options{Addr: binary[0].String(), Namespace: namespace})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { cl.Close() })
	return cl
}

// stop closes the node, within its bound.
func (n *routed) stop() {
	n.t.Helper()
	begun := time.Now()
	if err := n.Close(); err != nil {
		n.t.Errorf("Close: %v", err)
	}
	// DrainTimeout, and Linger of two publishers.
	if d := time.Since(begun); d > 6*time.Second {
		n.t.Errorf("Close took %v", d)
	}
}

func kvEvents() *events.PublisherConfig {
	return &events.PublisherConfig{Endpoint: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", Topic: "kv@node"}
}

func routedKey(hash uint64) []byte { return binary.BigEndian.AppendUint64(nil, hash) }

// chain is the blocks of a prompt that begins with a token of its own.
func chain(first uint32, n int) (blocks []events.Block, tokens []uint32) {
	for i := range uint32(n * routedBlock) {
		tokens = append(tokens, 100+i)
	}
	tokens[0] = first
	h := keys.Hasher{BlockSize: routedBlock, Seed: keys.Seed}
	return h.AppendBlocks(nil, tokens, nil), tokens
}

func (n *routed) deposit(hashes ...uint64) {
	n.t.Helper()
	for _, h := range hashes {
		if _, err := n.cl.Deposit(n.t.Context(), routedKey(h), make([]byte, 4<<10)); err != nil {
			n.t.Fatal(err)
		}
	}
}

// describe tells of the blocks of a chain.
func (n *routed) describe(blocks []events.Block, tokens []uint32) {
	n.t.Helper()
	m := wire.Describe{BlockSize: routedBlock}
	for i, b := range blocks {
		d := wire.Description{Key: routedKey(b.Hash), Tokens: tokens[i*routedBlock : (i+1)*routedBlock]}
		if i > 0 {
			d.Flags, d.Parent = wire.DescribeParent, blocks[i-1].Hash
		}
		m.Blocks = append(m.Blocks, d)
	}
	sts, err := n.cl.Describe(n.t.Context(), &m)
	if err != nil || len(sts) != len(blocks) || slices.ContainsFunc(sts, func(st wire.Status) bool { return st != wire.StatusOK }) {
		n.t.Fatalf("describe: %v, %v", sts, err)
	}
}

// order has the node act on hashes.
func (n *routed) order(kind string, hashes ...uint64) {
	n.t.Helper()
	body := fmt.Sprintf(`{"message_id":"m","actions":[{"action_id":"a","action_type":%q,"payload":{"block_hashes":%s}}]}`, kind, mustJSON(hashes))
	answer, err := n.cl.Hint(n.t.Context(), "", wire.FormatJSON, []byte(body))
	if err != nil || !bytes.Contains(answer, []byte(`"ACCEPTED"`)) {
		n.t.Fatalf("%s: %s, %v", kind, answer, err)
	}
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// waitFor polls until ok.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// zmqRouter is a router that libzmq connects to a node.
type zmqRouter struct {
	t    *testing.T
	py   *pyzmq.Peer
	n    *routed
	live [][][]byte // messages that came
	dec  events.Decoder
}

// subscribe connects a SUB socket and waits until the node knows.
func subscribe(t *testing.T, py *pyzmq.Peer, endpoint, topic string, subscribers func() int) {
	t.Helper()
	py.Do(pyzmq.Command{"op": "socket", "id": "sub", "type": "SUB", "connect": endpoint, "subscribe": []string{topic}})
	waitFor(t, "subscribed", func() bool {
		py.Do(pyzmq.Command{"op": "recv", "id": "sub", "n": 0, "timeout": 1})
		return subscribers() == 1
	})
}

// hear returns the events of live batches, as lines, once there are n of them.
func (r *zmqRouter) hear(n int) (lines []string) {
	r.t.Helper()
	for len(lines) < n {
		got := r.py.Recv("sub", 1)
		if len(got) == 0 {
			r.t.Fatalf("%d of %d events came: %q", len(lines), n, lines)
		}
		r.live = append(r.live, got[0])
		lines = append(lines, r.lines(got[0])...)
	}
	return lines
}

// lines decodes a live message.
func (r *zmqRouter) lines(frames [][]byte) (out []string) {
	r.t.Helper()
	l, err := events.ParseLive(frames)
	if err != nil || string(l.Topic) != "kv@node" {
		r.t.Fatalf("topic %q, %v", l.Topic, err)
	}
	var b events.Batch
	if err := r.dec.Decode(l.Payload, &b); err != nil {
		r.t.Fatal(err)
	}
	for i := range b.Events {
		ev := &b.Events[i]
		line := fmt.Sprintf("%v %s %v", ev.Kind, ev.Medium, ev.Hashes)
		if ev.HasParent {
			line += fmt.Sprint(" after ", ev.Parent)
		}
		if len(ev.Tokens) > 0 {
			line += fmt.Sprint(" tokens ", ev.Tokens, " of ", ev.BlockSize)
		}
		out = append(out, line)
	}
	return out
}

// replay asks for all that the node has kept.
func (r *zmqRouter) replay() [][][]byte {
	_, at, _ := r.n.EventEndpoints()
	r.py.Do(pyzmq.Command{"op": "socket", "id": "dealer", "type": "DEALER", "connect": at})
	r.py.Do(pyzmq.Command{"op": "send", "id": "dealer", "frames": []string{"", fmt.Sprintf("%016x", 0)}})
	defer r.py.Do(pyzmq.Command{"op": "close", "id": "dealer"})
	return r.py.Bytes(r.py.Do(pyzmq.Command{"op": "recv", "id": "dealer", "n": 1000, "end": true}).Messages)
}

func startZMQ(t *testing.T) *zmqRouter {
	t.Helper()
	py := pyzmq.Start(t)
	n := startRouted(t, Router{Events: kvEvents(), Rank: 3})
	at, _, _ := n.EventEndpoints()
	subscribe(t, py, at, "kv@", func() int { return n.routing.events.Stats().Subscribers })
	return &zmqRouter{t: t, py: py, n: n}
}

// A router on libzmq hears in vLLM's form what clients deposit and what leaves; what
// was described comes with tokens and parent, the rest by its hash alone. What it asks
// for again comes byte for byte as it came first, with its topic.
func TestRouterHearsNode(t *testing.T) {
	r := startZMQ(t)
	n := r.n
	bs, tokens := chain(1, 3)
	n.describe(bs, tokens)
	var heard []string
	for i := range bs { // one by one, so that each has its event
		n.deposit(bs[i].Hash)
		heard = append(heard, r.hear(1)...)
	}
	n.deposit(99)
	heard = append(heard, r.hear(1)...)
	n.order(hints.TypeEvict, bs[2].Hash)
	heard = append(heard, r.hear(1)...)
	if _, err := n.cl.Delete(t.Context(), routedKey(bs[1].Hash)); err != nil {
		t.Fatal(err)
	}
	heard = append(heard, r.hear(1)...)
	want := []string{
		fmt.Sprintf("BlockStored CPU_PINNED [%d] tokens [1 101 102 103] of 4", bs[0].Hash),
		fmt.Sprintf("BlockStored CPU_PINNED [%d] after %d tokens [104 105 106 107] of 4", bs[1].Hash, bs[0].Hash),
		fmt.Sprintf("BlockStored CPU_PINNED [%d] after %d tokens [108 109 110 111] of 4", bs[2].Hash, bs[1].Hash),
		"BlockStored CPU_PINNED [99]",
		fmt.Sprintf("BlockRemoved CPU_PINNED [%d]", bs[2].Hash),
		fmt.Sprintf("BlockRemoved CPU_PINNED [%d]", bs[1].Hash),
	}
	if !slices.Equal(heard, want) {
		t.Errorf("heard\n%q, want\n%q", heard, want)
	}
	value := fmt.Sprint(r.py.Do(pyzmq.Command{"op": "unpack", "payload": fmt.Sprintf("%x", r.live[3][2])}).Value.([]any)[1:])
	if want := "[[map[block_hashes:[99] block_size:0 lora_id:<nil> lora_name:<nil> medium:CPU_PINNED parent_block_hash:<nil> token_ids:[] type:BlockStored]] 3]"; value != want {
		t.Errorf("Python reads %s\nwant %s", value, want)
	}

	replies := r.replay()
	if last := replies[len(replies)-1]; len(last) != 4 || string(last[1]) != "kv@node" || binary.BigEndian.Uint64(last[2]) != math.MaxUint64 {
		t.Errorf("the end is %q", last)
	}
	replies = replies[:len(replies)-1]
	if lines := r.lines(replies[0][1:]); !slices.Equal(lines, []string{"AllBlocksCleared  []"}) {
		t.Errorf("the node begins with %q", lines)
	}
	if len(replies) != 1+len(r.live) {
		t.Fatalf("%d replies, %d batches came live", len(replies), len(r.live))
	}
	for i, m := range r.live {
		if got := replies[1+i]; len(got[0]) != 0 || !slices.EqualFunc(got[1:], m, bytes.Equal) {
			t.Errorf("batch %d comes again as %q, came as %q", i, got, m)
		}
	}
	st := n.routing.totals()
	if p := st.Published; p.Stored != 4 || p.Removed != 2 || p.Undescribed != 1 || p.Gaps != 0 || st.Events.Replays != 1 || st.Events.Subscribers != 1 || st.Table.Keys != 2 {
		t.Errorf("%+v %+v %+v", p, st.Events, st.Table)
	}
}

// Case H3: a block that is stored five times and evicted once is one stored and one
// removed to a router.
func TestRouterHearsOnce(t *testing.T) {
	r := startZMQ(t)
	for range 5 {
		r.n.deposit(5)
	}
	r.n.order(hints.TypeEvict, 5)
	r.n.deposit(6) // nothing else comes before it
	want := []string{"BlockStored CPU_PINNED [5]", "BlockRemoved CPU_PINNED [5]", "BlockStored CPU_PINNED [6]"}
	if heard := r.hear(3); !slices.Equal(heard, want) {
		t.Errorf("heard %q, want %q", heard, want)
	}
}

// Over Dynamo's plane a router hears the same in the form of its own events, of those
// blocks that it can place.
func TestRouterHearsPlane(t *testing.T) {
	py := pyzmq.Start(t)
	n := startRouted(t, Router{Plane: &events.PlanePublisherConfig{Endpoint: "tcp://127.0.0.1:0", PublisherID: 77}, Rank: 2})
	_, _, at := n.EventEndpoints()
	subscribe(t, py, at, "kv-events", func() int { return n.routing.plane.Stats().Subscribers })
	bs, tokens := chain(1, 2)
	n.describe(bs, tokens)
	heard := func() (ev events.RouterEvent) {
		t.Helper()
		got := py.Recv("sub", 1)
		if len(got) == 0 {
			t.Fatal("no event comes")
		}
		e, err := events.ParsePlaneFrames(got[0])
		if err != nil || string(got[0][0]) != "kv-events" || e.PublisherID != 77 {
			t.Fatalf("%q, %+v, %v", got[0][0], e, err)
		}
		var d events.RouterEventDecoder
		if err := d.Decode(e.Payload, &ev); err != nil {
			t.Fatal(err)
		}
		if ev.Worker != (events.Worker{ID: 7, Rank: 2}) || ev.Tier != events.HostPinned {
			t.Errorf("of %+v, tier %v", ev.Worker, ev.Tier)
		}
		return ev
	}
	n.deposit(bs[0].Hash)
	if ev := heard(); ev.Op != events.Stored || ev.HasParent || !slices.Equal(ev.Blocks, bs[:1]) {
		t.Errorf("%+v", ev)
	}
	n.deposit(99) // not described: nothing could be matched with it
	n.deposit(bs[1].Hash)
	if ev := heard(); ev.Op != events.Stored || !ev.HasParent || ev.Parent != bs[0].Hash || !slices.Equal(ev.Blocks, bs[1:]) {
		t.Errorf("%+v", ev)
	}
	n.order(hints.TypeEvict, bs[1].Hash)
	if ev := heard(); ev.Op != events.Removed || !slices.Equal(ev.Hashes, []uint64{bs[1].Hash}) {
		t.Errorf("%+v", ev)
	}
	if st := n.routing.totals(); st.Published.Undescribed != 1 || st.Plane.Messages != 4 || st.Events != nil {
		t.Errorf("%+v %+v", st.Published, st.Plane)
	}
}

// A router that follows a node through a restart knows in the end what the new life
// holds, and nothing of the old one.
func TestRouterFollowsRestart(t *testing.T) {
	n := startRouted(t, Router{Events: kvEvents()})
	cfg := kvEvents()
	cfg.Endpoint, cfg.Replay, _ = n.EventEndpoints()
	cfg.Bind = true // at a port that is no wildcard any more
	held := map[uint64]bool{}
	changed := make(chan struct{}, 1)
	ask := make(chan chan []uint64)
	apply := make(chan []events.RouterEvent)
	ended := make(chan struct{})
	defer func() { <-ended }()
	go func() { // the router's index
		defer close(ended)
		for {
			select {
			case evs, ok := <-apply:
				if !ok {
					return
				}
				for i := range evs {
					switch ev := &evs[i]; ev.Op {
					case events.Cleared:
						clear(held)
					case events.Stored:
						for _, b := range ev.Blocks {
							held[b.Hash] = true
						}
					case events.Removed:
						for _, h := range ev.Hashes {
							delete(held, h)
						}
					}
				}
				select {
				case changed <- struct{}{}:
				default:
				}
			case to := <-ask:
				var all []uint64
				for h := range held {
					all = append(all, h)
				}
				slices.Sort(all)
				to <- all
			}
		}
	}()
	defer close(apply)
	c, err := events.NewConsumer(events.ConsumerConfig{
		Endpoint: cfg.Endpoint, Replay: cfg.Replay, Topic: "kv@", Worker: events.Worker{ID: 7},
		Normalizer: events.NormalizerConfig{BlockSize: routedBlock}, MinBackoff: 5 * time.Millisecond, MaxBackoff: 20 * time.Millisecond,
		OnEvents: func(evs []events.RouterEvent) {
			mine := make([]events.RouterEvent, len(evs))
			for i := range evs {
				mine[i] = evs[i]
				mine[i].Blocks, mine[i].Hashes = slices.Clone(evs[i].Blocks), slices.Clone(evs[i].Hashes)
			}
			apply <- mine
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	knows := func(want ...uint64) {
		t.Helper()
		slices.Sort(want)
		var all []uint64
		for end := time.After(20 * time.Second); ; {
			to := make(chan []uint64)
			ask <- to
			if all = <-to; slices.Equal(all, want) {
				return
			}
			select {
			case <-changed:
			case <-end:
				t.Fatalf("the router knows %d, want %d", all, want)
			}
		}
	}
	old, tokens := chain(1, 3)
	n.describe(old, tokens)
	n.deposit(old[0].Hash, old[1].Hash, old[2].Hash)
	knows(old[0].Hash, old[1].Hash, old[2].Hash)
	n.cl.Close()
	n.stop()

	again := startRouted(t, Router{Events: cfg})
	fresh, tokens := chain(2, 2)
	again.describe(fresh, tokens)
	again.deposit(fresh[0].Hash, fresh[1].Hash)
	knows(fresh[0].Hash, fresh[1].Hash)
	again.order(hints.TypeEvict, fresh[1].Hash)
	knows(fresh[0].Hash)
}

// A subscriber that takes nothing costs messages to itself, and Close no more than its
// bound.
func TestCloseBesideStuckRouter(t *testing.T) {
	existing := goleak.IgnoreCurrent()
	dir := t.TempDir()
	n := startRouted(t, Router{
		Events: &events.PublisherConfig{Endpoint: "ipc://" + filepath.Join(dir, "events"), HWM: 4, Linger: 300 * time.Millisecond},
		Plane:  &events.PlanePublisherConfig{Endpoint: "ipc://" + filepath.Join(dir, "plane"), HWM: 4, Linger: 300 * time.Millisecond},
	})
	kv, _, plane := n.EventEndpoints()
	for _, at := range []string{kv, plane} {
		c, err := zmtp.Dial(t.Context(), at, zmtp.SUB, zmtp.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.Subscribe(""); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, "both are subscribed", func() bool {
		return n.routing.events.Stats().Subscribers == 1 && n.routing.plane.Stats().Subscribers == 1
	})
	// Large messages fill the sockets' buffers.
	bs, tokens := chain(1, 512)
	n.describe(bs, tokens)
	var hashes []uint64
	for _, b := range bs {
		hashes = append(hashes, b.Hash)
	}
	waitFor(t, "neither takes more", func() bool {
		n.deposit(hashes...)
		n.order(hints.TypeEvict, hashes...)
		return n.routing.events.Stats().Dropped > 0 && n.routing.plane.Stats().Dropped > 0
	})
	begun := time.Now()
	n.cl.Close()
	if err := n.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if d := time.Since(begun); d < 300*time.Millisecond || d > 4*time.Second {
		t.Errorf("Close took %v; each of two publishers lingers 300 ms", d)
	}
	goleak.VerifyNone(t, existing)
}

// Routers know one namespace. Clients of another one can neither have the node act on
// it nor listen, nor describe blocks; what they ask for a request is their own.
func TestHintsOfAnotherNamespace(t *testing.T) {
	n := startRouted(t, Router{})
	n.deposit(1)
	other := n.dial("other")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	body := []byte(`{"actions":[{"action_type":"kv.invalidate","payload":{"block_hashes":[1]}}]}`)
	for _, tt := range []struct {
		cl *client.Client
		ok bool
	}{{n.cl, true}, {n.dial("kv"), true}, {other, false}} {
		_, hint := tt.cl.Hint(ctx, "r", wire.FormatJSON, []byte(`{"actions":[]}`))
		stream, sub := tt.cl.SubscribeOutcomes(ctx, 0, 0)
		_, desc := tt.cl.Describe(ctx, &wire.Describe{BlockSize: routedBlock, Blocks: []wire.Description{{Key: routedKey(1)}}})
		for what, err := range map[string]error{"hint": hint, "outcomes": sub, "describe": desc, "discard": tt.cl.DiscardHint(ctx, "r")} {
			if tt.ok && err != nil || !tt.ok && !errors.Is(err, client.ErrUnsupported) {
				t.Errorf("%s, namespace of routers %t: %v", what, tt.ok, err)
			}
		}
		if sub == nil {
			stream.Close()
		}
	}
	if _, err := other.Hint(ctx, "", wire.FormatJSON, body); !errors.Is(err, client.ErrUnsupported) {
		t.Errorf("invalidate: %v", err)
	}
	if there, err := n.cl.Exists(ctx, routedKey(1)); err != nil || !there[0] {
		t.Errorf("the block of the routers' namespace: %v, %v", there, err)
	}
	if rs, err := other.QueryFor(ctx, "r", [][]byte{routedKey(1)}); err != nil || rs[0].Status != wire.StatusMiss {
		t.Errorf("a query for a request: %v, %v", rs, err)
	}
	if cs, err := other.FetchFor(ctx, "r", [][]byte{routedKey(1)}); err != nil || cs[0].Status != wire.StatusMiss {
		t.Errorf("a fetch for a request: %v, %v", cs, err)
	}
}

// What a description cannot be is said for each block.
func TestDescribeRefused(t *testing.T) {
	n := startRouted(t, Router{})
	bs, tokens := chain(1, 1)
	good := wire.Description{Key: routedKey(bs[0].Hash), Tokens: tokens}
	with := func(edit func(*wire.Description)) wire.Description {
		d := good
		edit(&d)
		return d
	}
	for what, tt := range map[string]struct {
		d    wire.Description
		want wire.Status
	}{
		"good":                    {good, wire.StatusOK},
		"the right hash":          {with(func(d *wire.Description) { d.Flags, d.Hash = wire.DescribeHash, bs[0].Hash }), wire.StatusOK},
		"another hash":            {with(func(d *wire.Description) { d.Flags, d.Hash = wire.DescribeHash, 5 }), wire.StatusBadKey},
		"no key of routers":       {with(func(d *wire.Description) { d.Key = []byte("k") }), wire.StatusBadKey},
		"tokens of another block": {with(func(d *wire.Description) { d.Tokens = make([]uint32, 9) }), wire.StatusBadLayout},
	} {
		sts, err := n.cl.Describe(t.Context(), &wire.Describe{BlockSize: routedBlock, Blocks: []wire.Description{tt.d, good}})
		if err != nil || sts[0] != tt.want || sts[1] != wire.StatusOK {
			t.Errorf("%s: %v, %v; want %v", what, sts, err, tt.want)
		}
	}
}

// Events are not published where others could listen, unless that is asked for. What
// cannot be is said before anything is opened.
func TestRouterRefused(t *testing.T) {
	kv, plane := events.PublisherConfig{Endpoint: "tcp://127.0.0.1:0"}, events.PlanePublisherConfig{Endpoint: "tcp://127.0.0.1:0"}
	good := keys.Recipe{Style: "dynamo", Hash: "xxh3", Seed: "1337", BlockSize: routedBlock}
	at := func(endpoint string) *events.PublisherConfig {
		return &events.PublisherConfig{Endpoint: endpoint, Linger: -1}
	}
	bound := at("tcp://192.0.2.1:5557")
	bound.Bind = true
	starts := func(r Router, public bool) error {
		cfg := config()
		cfg.RESP, cfg.HTTP, cfg.Public, cfg.Router = nil, "", public, &r
		n, err := Start(cfg)
		if err == nil {
			err = n.Close()
		}
		return err
	}
	for name, tt := range map[string]struct {
		r    Router
		err  error
		want string // in the message
	}{
		"default events":    {Router{Recipe: good, Events: at("")}, ErrPublicEvents, "Events.Endpoint"},
		"events":            {Router{Recipe: good, Events: at("tcp://*:0")}, ErrPublicEvents, "Events.Endpoint"},
		"events, bound":     {Router{Recipe: good, Events: bound}, ErrPublicEvents, "Events.Endpoint"},
		"replay":            {Router{Recipe: good, Events: &events.PublisherConfig{Endpoint: kv.Endpoint, Replay: "tcp://0.0.0.0:0"}}, ErrPublicEvents, "Events.Replay"},
		"default plane":     {Router{Recipe: good, Plane: &events.PlanePublisherConfig{}}, ErrPublicEvents, "Plane.Endpoint"},
		"plane":             {Router{Recipe: good, Plane: &events.PlanePublisherConfig{Endpoint: "tcp://[::]:0"}}, ErrPublicEvents, "Plane.Endpoint"},
		"loopback":          {Router{Recipe: good, Events: &kv, Plane: &plane}, nil, ""},
		"to a router":       {Router{Recipe: good, Events: at("tcp://192.0.2.1:5557")}, nil, ""},
		"to a broker":       {Router{Recipe: good, Plane: &events.PlanePublisherConfig{Brokers: []string{"tcp://192.0.2.1:5557"}, Linger: -1}}, nil, ""},
		"no recipe":         {Router{}, keys.ErrInvalid, "recipe style"},
		"a negative rank":   {Router{Recipe: good, Rank: -1}, kvcr.ErrConfig, "Hints.Rank"},
		"no such directory": {Router{Recipe: good, Events: at("ipc:///no/such/place/events")}, os.ErrNotExist, "/no/such/place"},
		"too long a topic":  {Router{Recipe: good, Events: &events.PublisherConfig{Endpoint: kv.Endpoint, Topic: strings.Repeat("t", 2000)}}, events.ErrConfig, "Topic"},
	} {
		err := starts(tt.r, false)
		if !errors.Is(err, tt.err) || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %v and %q", name, err, tt.err, tt.want)
		}
		if name == "events" || name == "replay" || name == "plane" {
			if err := starts(tt.r, true); err != nil {
				t.Errorf("%s, allowed: %v", name, err)
			}
		}
	}
	bare := config()
	bare.Engine.Namespaces, bare.Router = nil, &Router{Recipe: good}
	if _, err := Start(bare); err == nil || !strings.Contains(err.Error(), "name one") {
		t.Errorf("without a namespace: %v", err)
	}
}

// Two blocks whose keys share what routers know of them cannot be told apart: hints
// that name it touch neither, at the source and here, until one of them has gone.
func TestCollisionRecovers(t *testing.T) {
	recipe := keys.Recipe{Style: "vllm", Hash: "sha256", BlockSize: routedBlock}
	peers := func() *kvcr.Peers {
		return &kvcr.Peers{Listen: []string{"tcp://127.0.0.1:0"}, Routes: []string{"stream"}}
	}
	a, b := startWith(t, Router{Recipe: recipe}, peers()), startWith(t, Router{Recipe: recipe}, peers())
	digest := func(first byte, low uint64) []byte {
		return append(append([]byte{first}, make([]byte, 23)...), routedKey(low)...)
	}
	style := keys.VLLM{DigestBytes: 32}
	if h, ok := style.Hash(digest(2, 5)); !ok || h != 5 {
		t.Fatalf("the hash is %d", h)
	}
	put := func(n *routed, key []byte) {
		t.Helper()
		if _, err := n.cl.Deposit(t.Context(), key, bytes.Repeat(key[:1], 4<<10)); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range [][]byte{digest(1, 5), digest(2, 5), digest(1, 6)} {
		put(a, key)
	}
	known := func(n *routed, keys int) {
		t.Helper()
		waitFor(t, "the table follows", func() bool { return n.routing.table.Stats().Keys == keys })
	}
	known(a, 3)
	outcomes, err := b.cl.SubscribeOutcomes(t.Context(), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer outcomes.Close()
	// act has b do something, and returns how each hash ended.
	act := func(kind, source string, hashes ...uint64) map[uint64]string {
		t.Helper()
		body := fmt.Sprintf(`{"actions":[{"action_type":%q,"payload":{"source_control_endpoint":%q,"block_hashes":%s}}]}`, kind, source, mustJSON(hashes))
		if answer, err := b.cl.Hint(t.Context(), "", wire.FormatJSON, []byte(body)); err != nil || !bytes.Contains(answer, []byte(`"ACCEPTED"`)) {
			t.Fatalf("%s: %s, %v", kind, answer, err)
		}
		ends := map[uint64]string{}
		for {
			f, err := outcomes.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range f.Items {
				for _, h := range o.Hashes {
					ends[h] = strings.TrimSpace(o.Stage.String() + " " + o.Reason)
				}
				if o.Stage == wire.OutcomeEnd {
					return ends
				}
			}
		}
	}
	is := func(got map[uint64]string, five, six string) {
		t.Helper()
		if got[5] != five || got[6] != six {
			t.Errorf("hash 5 %s, hash 6 %s; want %s, %s", got[5], got[6], five, six)
		}
	}
	from := a.Engine().Peers().Endpoints()[0]
	is(act(hints.TypePrefetch, from, 5, 6), "failed ambiguous_hash", "copied")
	is(act(hints.TypeMove, from, 5, 6), "failed ambiguous_hash", "moved")
	if there, err := a.cl.Exists(t.Context(), digest(1, 5), digest(2, 5)); err != nil || !there[0] || !there[1] {
		t.Errorf("at the source: %v, %v", there, err)
	}
	if _, err := a.cl.Delete(t.Context(), digest(1, 5)); err != nil {
		t.Fatal(err)
	}
	known(a, 1)
	is(act(hints.TypeMove, from, 5, 6), "moved", "present")
	if v, ok, err := b.cl.Get(t.Context(), digest(2, 5), nil); err != nil || !ok || v[0] != 2 {
		t.Errorf("the block that was left has not come: %t, %v", ok, err)
	}
	// The same here.
	put(b, digest(3, 5))
	known(b, 3)
	is(act(hints.TypeInvalidate, "", 5, 6), "failed ambiguous_hash", "removed")
	if there, err := b.cl.Exists(t.Context(), digest(2, 5), digest(3, 5)); err != nil || !there[0] || !there[1] {
		t.Errorf("here: %v, %v", there, err)
	}
	if _, err := b.cl.Delete(t.Context(), digest(2, 5)); err != nil {
		t.Fatal(err)
	}
	known(b, 1)
	is(act(hints.TypeEvict, "", 5, 6), "removed", "failed not_found")
}

// A node that routers know says so in STATS; another one says nothing of it.
func TestStatsOfRouters(t *testing.T) {
	n := startRouted(t, Router{Events: kvEvents()})
	n.deposit(1, 2)
	n.order(hints.TypeInvalidate, 1)
	var got struct {
		Hints  *struct{ Accepted, Outcomes map[string]uint64 }
		Router *struct {
			Table     keys.TableStats
			Published *struct{ Stored, Removed uint64 }
			EventsAt  string
		}
	}
	stats := func(cl *client.Client) []byte {
		t.Helper()
		b, err := cl.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got.Hints, got.Router = nil, nil
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		return b
	}
	waitFor(t, "it is published", func() bool {
		stats(n.cl)
		return got.Router.Published.Removed == 1
	})
	at, _, _ := n.EventEndpoints()
	if got.Hints.Accepted["kv.invalidate"] != 1 || got.Hints.Outcomes["end"] != 1 || got.Router.Table.Keys != 1 || got.Router.Published.Stored != 2 || got.Router.EventsAt != at {
		t.Errorf("%+v %+v", got.Hints, got.Router)
	}
	plain, err := Start(config())
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	b := stats((&routed{Node: plain, t: t}).dial(""))
	if got.Hints != nil || got.Router != nil || bytes.Contains(b, []byte("Hints")) {
		t.Errorf("a node without routers says %s", b)
	}
}
