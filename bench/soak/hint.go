package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/wire"
	"github.com/kvcr-go/kvcr/wire/client"
)

// hintWorker is a router and an inference engine for one node: it sends hints, and
// fetches what they say.
type hintWorker struct {
	worker
	cl    *client.Client
	count int
}

func (w *hintWorker) work(ctx context.Context) {
	defer w.hangUp()
	for w.rest(ctx) {
		if w.cl == nil && !w.dial() {
			continue
		}
		switch x := w.rng.IntN(100); {
		case x < 40:
			w.advised()
		case x < 95:
			w.independent()
		case x < 98:
			w.malformed()
		default:
			w.hangUp()
		}
	}
}

func (w *hintWorker) dial() bool {
	addr := w.node.viaBinary.addr()
	if w.direct = w.rng.IntN(4) == 0; w.direct {
		addr = w.node.binary
	}
	return w.calm("dial", func(ctx context.Context) (err error) {
		w.cl, err = client.Dial(ctx, client.Options{Addr: addr, Name: "soak " + w.name, Conns: 2})
		return err
	}) == nil
}

func (w *hintWorker) hangUp() {
	if w.cl != nil {
		w.cl.Close()
		w.cl = nil
	}
}

// source is where another node, or once in a while this one, gives blocks away.
func (w *hintWorker) source() string {
	n := w.run.nodes[w.rng.IntN(len(w.run.nodes))]
	if n == w.node && w.rng.IntN(10) > 0 {
		n = w.run.nodes[(n.index+1)%len(w.run.nodes)]
	}
	if w.rng.IntN(3) > 0 {
		return "tcp://" + n.viaPeers.addr()
	}
	return "tcp://" + n.peers
}

// The envelope of a router, as JSON and msgpack have it.
type envelope struct {
	Version string         `json:"protocol_version" msgpack:"protocol_version"`
	ID      string         `json:"message_id" msgpack:"message_id"`
	Actions []actionOfWire `json:"actions" msgpack:"actions"`
}

type actionOfWire struct {
	ID      string  `json:"action_id" msgpack:"action_id"`
	Type    string  `json:"action_type" msgpack:"action_type"`
	Version string  `json:"action_version" msgpack:"action_version"`
	Payload payload `json:"payload" msgpack:"payload"`
}

type payload struct {
	Source   string   `json:"source_control_endpoint,omitempty" msgpack:"source_control_endpoint,omitempty"`
	Hashes   []uint64 `json:"block_hashes" msgpack:"block_hashes"`
	NoRetain bool     `json:"no_retain,omitempty" msgpack:"no_retain,omitempty"`
}

func hashesOf(blocks []*block) []uint64 {
	out := make([]uint64, len(blocks))
	for i, b := range blocks {
		out[i] = b.hash
	}
	return out
}

// next is a new name for a message.
func (w *hintWorker) next(what string) string {
	w.count++
	return fmt.Sprintf("%s-%d-%s-%d", what, w.node.index, w.name, w.count)
}

// send sends an envelope and compares its results with what was sent. tracked: its
// actions have ends.
func (w *hintWorker) send(request string, e *envelope, tracked bool) bool {
	format, encode := wire.FormatJSON, json.Marshal
	if w.rng.IntN(3) == 0 {
		format, encode = wire.FormatMsgpack, msgpack.Marshal
	}
	body, err := encode(e)
	if err != nil {
		panic(err) // plain fields: cannot fail
	}
	if tracked && (!w.run.o.Sabotage.Mute || w.count != 3) {
		for _, a := range e.Actions {
			w.node.ends.sent(nameOf(e.ID, a.ID))
		}
	}
	var answer []byte
	err = w.call("hint", func(ctx context.Context) (err error) {
		answer, err = w.cl.Hint(ctx, request, format, body)
		return err
	})
	if err != nil {
		return false
	}
	var results []hints.Result
	if err := json.Unmarshal(answer, &results); err != nil || len(results) != len(e.Actions) {
		w.run.trouble.add(wrongAnswer, w.where(), "%d actions are answered with %.200s, %v", len(e.Actions), answer, err)
		return false
	}
	all := true
	for i, r := range results {
		a := e.Actions[i]
		if r.ActionID != a.ID || r.MessageID != e.ID || r.Index != i || r.Type != a.Type {
			w.run.trouble.add(wrongAnswer, w.where(), "action %d, %s/%s of %s, is answered with %+v", i, e.ID, a.ID, a.Type, r)
		}
		accepted := r.Status == hints.Accepted
		if !accepted {
			w.run.actions.add("rejected: "+r.Reason.String(), 1)
			if r.Reason != hints.LimitExceeded && !(r.Reason == hints.HandlerError && w.run.shaken.Load()) {
				w.run.trouble.add(unexpected, w.where(), "%s is rejected: %v, %s", a.Type, r.Reason, r.Detail)
			}
			all = false
		}
		if tracked {
			w.node.ends.answered(nameOf(e.ID, a.ID), accepted)
		}
	}
	return all
}

// advised is a request of the inference engine: it is told where its blocks are, has
// them fetched, reads them, and is over.
func (w *hintWorker) advised() {
	request := w.next("request")
	blocks := w.chain().blocks
	blocks = blocks[:1+w.rng.IntN(len(blocks))]
	e := &envelope{Version: "0.1", ID: request}
	for i := range 1 + w.rng.IntN(2) {
		e.Actions = append(e.Actions, actionOfWire{ID: fmt.Sprint(i), Type: hints.TypeFetch, Version: "1.0", Payload: payload{w.source(), hashesOf(blocks), w.rng.IntN(8) == 0}})
	}
	if !w.send(request, e, false) {
		return
	}
	w.since = w.excuse()
	defer func() { w.since = nil }()
	keys := keysOf(blocks)
	if w.rng.IntN(4) == 0 {
		_ = w.call("query for", func(ctx context.Context) error {
			rs, err := w.cl.QueryFor(ctx, request, keys)
			if err == nil && len(rs) != len(keys) {
				w.run.trouble.add(wrongAnswer, w.where(), "query of %d keys has %d answers", len(keys), len(rs))
			}
			return err
		})
	}
	var claims []wire.Claim
	if w.call("fetch for", func(ctx context.Context) (err error) {
		claims, err = w.cl.FetchFor(ctx, request, keys)
		return err
	}) == nil {
		for _, c := range claims {
			if c.Status == wire.StatusOK {
				w.run.ops.add("blocks fetched for requests", 1)
			}
		}
		w.claimed("fetch for", w.cl, blocks, claims)
	}
	_ = w.calm("discard", func(ctx context.Context) error { return w.cl.DiscardHint(ctx, request) })
}

// independent sends actions that belong to no request.
func (w *hintWorker) independent() {
	e := &envelope{Version: "0.1", ID: w.next("message")}
	for i := range 1 + w.rng.IntN(3) {
		a := actionOfWire{ID: fmt.Sprint("action-", i), Version: "1.0", Payload: payload{Hashes: hashesOf(w.blocks(8))}}
		switch x := w.rng.IntN(100); {
		case x < 40:
			a.Type, a.Payload.Source = hints.TypePrefetch, w.source()
		case x < 85:
			a.Type, a.Payload.Source = hints.TypeMove, w.source()
		case x < 95:
			a.Type = hints.TypeEvict
		default:
			a.Type = hints.TypeInvalidate
		}
		e.Actions = append(e.Actions, a)
		w.run.ops.add(a.Type, 1)
	}
	w.send("", e, true)
}

// malformed sends what is no envelope: an error, and nothing else.
func (w *hintWorker) malformed() {
	body := []byte(`{"protocol_version": "0.1", "actions": [{"action_id": `)
	ctx, cancel := context.WithTimeout(context.Background(), callBound)
	defer cancel()
	excused := w.excuse()
	_, err := w.cl.Hint(ctx, "", wire.FormatJSON, body[:w.rng.IntN(len(body))])
	var e *client.Error
	switch {
	case err == nil:
		w.run.trouble.add(wrongAnswer, w.where(), "what is no envelope is accepted")
	case errors.As(err, &e) && e.Code != 0: // refused
	default:
		w.run.judge(w.name+": malformed hint", w.node, err, excused())
	}
	w.run.ops.add("malformed hint", 1)
}

// meet has a node fetch something from each address of each other one, so that at the
// base and at the end all of them are connected alike. (The connection by the second
// address replaces that by the first: a node knows its peers by incarnation.)
func (w *hintWorker) meet() {
	if !w.dial() {
		return
	}
	defer w.hangUp()
	for _, n := range w.run.nodes {
		if n == w.node {
			continue
		}
		for i, source := range []string{n.peers, n.viaPeers.addr()} {
			blocks := n.given(i)
			_ = w.calm("delete blocks", func(ctx context.Context) error {
				_, err := w.cl.Delete(ctx, keysOf(blocks)...)
				return err
			})
			for _, b := range blocks {
				_ = w.calm("deposit", func(ctx context.Context) error {
					cl, err := client.Dial(ctx, client.Options{Addr: n.binary, Name: "soak " + w.name})
					if err != nil {
						return err
					}
					defer cl.Close()
					_, err = cl.Deposit(ctx, b.key, appendValue(nil, b.id, 0))
					return err
				})
			}
			w.send("", &envelope{Version: "0.1", ID: w.next("meet"), Actions: []actionOfWire{{
				ID: fmt.Sprint(n.index), Type: hints.TypePrefetch, Version: "1.0", Payload: payload{Source: "tcp://" + source, Hashes: hashesOf(blocks)},
			}}}, true)
		}
	}
}

// given are the blocks that others fetch from the node when they meet.
func (n *node) given(i int) []*block { return n.run.chains[4*n.index+2*i].blocks }
