package node

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/events/zmtp"
	"github.com/kvcr-go/kvcr/hints/keys"
	"github.com/kvcr-go/kvcr/hints/plan"
	"github.com/kvcr-go/kvcr/wire"
	"github.com/kvcr-go/kvcr/wire/client"
)

// blockTokens is how many tokens a block of these tests has.
const blockTokens = 4

// routedPair is two nodes and a router that knows them by their events alone.
type routedPair struct {
	t       *testing.T
	recipe  keys.Recipe
	lora    string
	nodes   [2]*Node
	clients [2]*client.Client
	peers   [2]string
	index   *plan.Index
	scratch *plan.Scratch
}

// chained is a prompt's blocks.
type chained struct {
	tokens []uint32
	keys   [][]byte
	hashes []uint64 // as routers know them
	locals []uint64
}

// startRoutedPair starts two nodes that tell routers about their blocks as vLLM does, or
// (plane) over Dynamo's plane.
func startRoutedPair(t *testing.T, recipe keys.Recipe, lora string, plane bool) *routedPair {
	r := &routedPair{t: t, recipe: recipe, lora: lora, index: plan.New(plan.Config{})}
	r.scratch = r.index.NewScratch()
	var members []plan.Member
	for i := range r.nodes {
		worker := events.Worker{ID: uint64(i)}
		router := &Router{Recipe: recipe, Worker: worker.ID}
		if plane {
			router.Plane = &events.PlanePublisherConfig{Endpoint: "tcp://127.0.0.1:0", Linger: -1}
		} else {
			router.Events = &events.PublisherConfig{Endpoint: "tcp://127.0.0.1:0", Bind: true, Replay: "tcp://127.0.0.1:0", Linger: -1}
		}
		n, err := Start(Config{
			Engine: kvcr.Config{
				Capacity: 16 << 20, Namespaces: []kvcr.Namespace{{Name: "kv", MaxValue: 4096}},
				Peers: &kvcr.Peers{Listen: []string{"tcp://127.0.0.1:0"}, Routes: []string{"stream"}},
			},
			Binary: []string{"127.0.0.1:0"}, Router: router, DrainTimeout: 2 * time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		})
		r.nodes[i], r.peers[i] = n, n.Engine().Peers().Endpoints()[0]
		_, binary, _ := n.Addrs()
		if r.clients[i], err = client.Dial(t.Context(), client.Options{Addr: binary[0].String()}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.clients[i].Close() })
		if kvEvents, replay, planeAt := n.EventEndpoints(); plane {
			r.hearPlane(n, planeAt)
		} else {
			c, err := events.NewConsumer(events.ConsumerConfig{
				Endpoint: kvEvents, Replay: replay, Worker: worker, Normalizer: events.NormalizerConfig{BlockSize: blockTokens},
				OnEvents: func(evs []events.RouterEvent) {
					for i := range evs {
						r.index.Apply(&evs[i])
					}
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
		}
		members = append(members, plan.Member{Owner: plan.Owner{Worker: worker}, Endpoint: r.peers[i], Type: "aggregated", Capable: true})
	}
	r.index.SetTopology(members)
	return r
}

// hearPlane applies what a node says over Dynamo's plane.
func (r *routedPair) hearPlane(n *Node, endpoint string) {
	c, err := zmtp.Dial(r.t.Context(), endpoint, zmtp.SUB, zmtp.Options{})
	if err == nil {
		err = c.Subscribe("kv-events")
	}
	if err != nil {
		r.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var m zmtp.Message
		var d events.RouterEventDecoder
		for c.Read(&m) == nil {
			var ev events.RouterEvent
			e, err := events.ParsePlaneFrames(m.Frames)
			if err == nil {
				err = d.Decode(e.Payload, &ev)
			}
			if err == nil {
				err = r.index.Apply(&ev)
			}
			if err != nil {
				r.t.Error(err)
			}
		}
	}()
	r.t.Cleanup(func() {
		c.Close()
		<-ended
	})
	r.eventually("the plane has a subscriber", func() bool { return n.routing.plane.Stats().Subscribers == 1 })
}

func (r *routedPair) eventually(what string, ok func() bool) {
	r.t.Helper()
	for until := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			r.t.Fatal("not in time: ", what)
		}
	}
}

// prompt returns the blocks of a prompt, whose keys are as the recipe has them.
func (r *routedPair) prompt(first uint32, blocks int) (c chained) {
	for i := range uint32(blocks * blockTokens) {
		c.tokens = append(c.tokens, first+i*i)
	}
	h := keys.Hasher{BlockSize: blockTokens, Seed: keys.BlockSeed(r.lora, "")}
	var digest []byte
	for i, b := range h.AppendBlocks(nil, c.tokens, nil) {
		key := binary.BigEndian.AppendUint64(nil, b.Hash)
		if r.recipe.Style == "vllm" {
			sum := sha256.Sum256(fmt.Append(digest, c.tokens[i*blockTokens:(i+1)*blockTokens]))
			digest = sum[:]
			key = digest
			b.Hash, _ = keys.Low64(digest)
		}
		c.keys, c.hashes, c.locals = append(c.keys, key), append(c.hashes, b.Hash), append(c.locals, b.Local)
	}
	return c
}

// describe tells a node, as the engine that computes the blocks does.
func (r *routedPair) describe(node int, c chained) {
	r.t.Helper()
	d := wire.Describe{BlockSize: blockTokens, LoRA: r.lora}
	for i, k := range c.keys {
		b := wire.Description{Key: k, Tokens: c.tokens[i*blockTokens : (i+1)*blockTokens], Flags: wire.DescribeHash, Hash: c.hashes[i]}
		if i > 0 {
			b.Flags |= wire.DescribeParent
			b.Parent = c.hashes[i-1]
		}
		d.Blocks = append(d.Blocks, b)
	}
	said, err := r.clients[node].Describe(r.t.Context(), &d)
	if err != nil {
		r.t.Fatal(err)
	}
	for i, s := range said {
		if s != wire.StatusOK {
			r.t.Errorf("block %d: %v", i, s)
		}
	}
}

func (r *routedPair) deposit(node int, c chained) {
	r.t.Helper()
	for i, k := range c.keys {
		if _, err := r.clients[node].Deposit(r.t.Context(), k, fmt.Appendf(nil, "block %d of %d", i, c.tokens[0])); err != nil {
			r.t.Fatal(err)
		}
	}
}

// frontiers waits until the router knows that each node has that much of a prompt.
func (r *routedPair) frontiers(c chained, want [2]int) {
	r.t.Helper()
	var got [2]int
	defer func() {
		if r.t.Failed() {
			r.t.Logf("the router knows %v, want %v", got, want)
		}
	}()
	r.eventually(fmt.Sprintf("frontiers %v", want), func() bool {
		got = [2]int{}
		for _, o := range r.index.Choose(r.scratch, c.locals, nil) {
			got[o.Target.ID] = o.Frontier
		}
		return got == want
	})
}

// hint sends one action to a node, which must take it.
func (r *routedPair) hint(node int, request, typ string, source int, hashes []uint64) {
	r.t.Helper()
	body, err := json.Marshal(map[string]any{"protocol_version": "0.1", "message_id": "m", "actions": []any{map[string]any{
		"action_id": "a", "action_type": typ, "action_version": "1.0",
		"payload": map[string]any{"source_control_endpoint": r.peers[source], "block_hashes": hashes},
	}}})
	if err != nil {
		r.t.Fatal(err)
	}
	answer, err := r.clients[node].Hint(r.t.Context(), request, wire.FormatJSON, body)
	var results []hints.Result
	if err == nil {
		err = json.Unmarshal(answer, &results)
	}
	if err != nil || len(results) != 1 || results[0].Status != hints.Accepted {
		r.t.Fatalf("%s: %s, %v", typ, answer, err)
	}
}

// forms are how routers hear of blocks, each with keys of its own.
func forms(t *testing.T, test func(t *testing.T, r *routedPair)) {
	existing := goleak.IgnoreCurrent()
	for _, f := range []struct {
		name   string
		recipe keys.Recipe
		lora   string
		plane  bool
	}{
		{"events of vLLM", keys.Recipe{Style: "vllm", Hash: "sha256", BlockSize: blockTokens}, "sql", false},
		{"plane of Dynamo", keys.Recipe{Style: "dynamo", Hash: "xxh3", Seed: "1337", BlockSize: blockTokens}, "", true},
	} {
		t.Run(f.name, func(t *testing.T) { test(t, startRoutedPair(t, f.recipe, f.lora, f.plane)) })
	}
	goleak.VerifyNone(t, existing)
}

// What one node was told of its blocks is known to routers wherever the blocks are
// copied or moved to by hints, also when they move on from there.
func TestDescriptionsTravel(t *testing.T) {
	forms(t, func(t *testing.T, r *routedPair) {
		copied, moved := r.prompt(100, 9), r.prompt(200, 150) // of more blocks than are resolved at a time
		for _, c := range []chained{copied, moved} {
			r.describe(0, c)
			r.deposit(0, c)
			r.frontiers(c, [2]int{len(c.keys), 0})
		}
		r.hint(1, "", hints.TypePrefetch, 0, copied.hashes[:5])
		r.frontiers(copied, [2]int{9, 5})
		r.hint(1, "", hints.TypeMove, 0, moved.hashes)
		r.frontiers(moved, [2]int{0, 150})
		r.hint(0, "", hints.TypeMove, 1, moved.hashes)
		r.frontiers(moved, [2]int{150, 0})
		for i := range r.nodes {
			st, err := r.nodes[i].Engine().Stats()
			if err != nil || st.Hints.RefusedDescriptions+st.Hints.AdapterFaults != 0 {
				t.Errorf("node %d: %+v, %v", i, st.Hints, err)
			}
			if s := r.nodes[i].routing.feed.Stats(); s.Undescribed != 0 {
				t.Errorf("node %d: %d blocks are not described", i, s.Undescribed)
			}
		}
	})
}

// A block that is fetched for a request is known to routers if the request's engine has
// said what it is before.
func TestDescribedBeforeFetch(t *testing.T) {
	forms(t, func(t *testing.T, r *routedPair) {
		c := r.prompt(200, 20)
		r.describe(0, c)
		r.deposit(0, c)
		r.frontiers(c, [2]int{20, 0})
		r.hint(1, "request", hints.TypeFetch, 0, c.hashes)
		r.describe(1, c)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		claims, err := r.clients[1].FetchFor(ctx, "request", c.keys)
		if err != nil {
			t.Fatal(err)
		}
		for i, claim := range claims {
			if claim.Status != wire.StatusOK {
				t.Errorf("block %d: %v", i, claim.Status)
			}
		}
		if err := r.clients[1].Release(ctx, claims...); err != nil {
			t.Error(err)
		}
		r.frontiers(c, [2]int{20, 20})
	})
}
