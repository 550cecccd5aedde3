package kvcr_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/peer"
)

// numbers is a key adapter for which the block with hash 7 is "block-7", unless it is
// told otherwise.
type numbers struct {
	mu        sync.Mutex
	other     map[uint64]string // keys of hashes
	ambiguous map[uint64]bool
	broken    map[uint64]bool
	asked     func(hash uint64) // before it answers a peer or a router
}

func (n *numbers) key(hash uint64) string {
	if k, ok := n.other[hash]; ok {
		return k
	}
	return fmt.Sprintf("block-%d", hash)
}

func (n *numbers) Encode(hash uint64) (hints.Key, bool) { return hints.Key{}, false }

func (n *numbers) ToRouter(_ string, key []byte) (uint64, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for h, k := range n.other {
		if k == string(key) {
			return h, true
		}
	}
	h, err := strconv.ParseUint(strings.TrimPrefix(string(key), "block-"), 10, 64)
	return h, err == nil
}

func (n *numbers) FromRouter(hash uint64) (hints.Key, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if f := n.asked; f != nil {
		n.mu.Unlock()
		f(hash)
		n.mu.Lock()
	}
	switch {
	case n.broken[hash]:
		panic("broken")
	case n.ambiguous[hash]:
		return hints.Key{}, hints.ErrAmbiguous
	}
	return hints.Key{Namespace: "kv", Key: []byte(n.key(hash))}, nil
}

// hintedEngine is a peer that acts on hints, and remembers all outcomes.
type hintedEngine struct {
	*peerEngine
	t     *testing.T
	names *numbers

	mu   sync.Mutex
	seen []hints.Outcome
	sent int
}

func openHinted(t *testing.T, change func(*kvcr.Config)) *hintedEngine {
	t.Helper()
	e := &hintedEngine{t: t, names: &numbers{other: map[uint64]string{}, ambiguous: map[uint64]bool{}, broken: map[uint64]bool{}}}
	e.peerEngine = openPeer(t, func(c *kvcr.Config) {
		c.Hints = &kvcr.Hints{Adapter: e.names}
		c.Peers.Routes = []string{"stream"}
		c.OperationTimeout = 5 * time.Second
		if change != nil {
			change(c)
		}
	})
	r, err := e.SubscribeOutcomes()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer r.Close()
		for {
			o, err := r.Next(context.Background())
			if err != nil {
				return
			}
			e.mu.Lock()
			e.seen = append(e.seen, o)
			e.mu.Unlock()
		}
	}()
	return e
}

// action is an action of an envelope, to be numbered.
func action(kind, source string, hashes ...uint64) hints.Action {
	if kind == hints.TypeInvalidate || kind == hints.TypeEvict {
		return hints.Action{Type: kind, Payload: &hints.Removal{Hashes: hashes}}
	}
	return hints.Action{Type: kind, Payload: &hints.Transfer{Source: source, Hashes: hashes}}
}

// submit sends actions in one envelope, and returns its id and the answers.
func (e *hintedEngine) submit(request string, actions ...hints.Action) (id string, rs []hints.Result) {
	e.t.Helper()
	e.mu.Lock()
	e.sent++
	id = fmt.Sprint("m", e.sent)
	e.mu.Unlock()
	for i := range actions {
		actions[i].ID = fmt.Sprint("a", i)
	}
	rs, err := e.SubmitHintValue(request, &hints.Envelope{MessageID: id, Actions: actions})
	if err != nil {
		e.t.Fatal(err)
	}
	return id, rs
}

// order submits one action that must be accepted, and returns its message's id.
func (e *hintedEngine) order(kind, source string, hashes ...uint64) string {
	e.t.Helper()
	id, rs := e.submit("", action(kind, source, hashes...))
	if rs[0].Status != hints.Accepted {
		e.t.Fatalf("%s: %v: %s", kind, rs[0].Reason, rs[0].Detail)
	}
	return id
}

// outcomes are those of one action so far.
func (e *hintedEngine) outcomes(id string, index int) (all []hints.Outcome) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, o := range e.seen {
		if o.MessageID == id && o.Index == index {
			all = append(all, o)
		}
	}
	return all
}

// end waits for the end of an action.
func (e *hintedEngine) end(id string, index int) hints.Outcome {
	e.t.Helper()
	var end hints.Outcome
	eventually(e.t, fmt.Sprintf("the end of action %d of %s", index, id), func() bool {
		for _, o := range e.outcomes(id, index) {
			if o.Stage == hints.StageEnd {
				end = o
				return true
			}
		}
		return false
	})
	return end
}

// last is how a block of an action stands, and why.
func (e *hintedEngine) last(id string, index int, hash uint64) (stage hints.Stage, reason string) {
	for _, o := range e.outcomes(id, index) {
		if slices.Contains(o.Hashes, hash) {
			stage, reason = o.Stage, o.Reason
		}
	}
	return stage, reason
}

// is checks how a block of the first action of a message stands.
func (e *hintedEngine) is(id string, hash uint64, stage hints.Stage, reason string) {
	e.t.Helper()
	if s, why := e.last(id, 0, hash); s != stage || why != reason {
		e.t.Errorf("block %d: %v (%q), want %v (%q)", hash, s, why, stage, reason)
	}
}

// has tells which of the keys are here.
func (e *hintedEngine) has(keys [][]byte) (n int) {
	for _, r := range e.h.Query(keys) {
		if r.Status == kvcr.StatusHit {
			n++
		}
	}
	return n
}

func (e *hintedEngine) stats() *kvcr.HintStats {
	e.t.Helper()
	st, err := e.Stats()
	if err != nil {
		e.t.Fatal(err)
	}
	return st.Hints
}

// served is how many blocks others have fetched from here.
func (e *hintedEngine) served() (n uint64) {
	for _, t := range e.Peers().Stats().Served {
		n += t.Blocks
	}
	return n
}

func hashesOf(from, to uint64) (hashes []uint64) {
	for h := from; h < to; h++ {
		hashes = append(hashes, h)
	}
	return hashes
}

// relay passes on what goes to an endpoint. Its first connection of a peer is for
// control, further ones are for payload.
type relay struct {
	endpoint string
	ln       net.Listener

	mu    sync.Mutex
	cond  sync.Cond
	held  bool // payload waits
	conns []net.Conn
	ended sync.WaitGroup
}

func openRelay(t *testing.T, to string) *relay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{endpoint: "tcp://" + ln.Addr().String(), ln: ln}
	r.cond.L = &r.mu
	r.ended.Add(1)
	go func() {
		defer r.ended.Done()
		for n := 0; ; n++ {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", strings.TrimPrefix(to, "tcp://"))
			if err != nil {
				in.Close()
				continue
			}
			r.mu.Lock()
			r.conns = append(r.conns, in, out)
			r.mu.Unlock()
			r.ended.Add(2)
			go r.pass(in, out, false)
			go r.pass(out, in, n > 0)
		}
	}()
	t.Cleanup(func() {
		ln.Close()
		r.cut()
		r.ended.Wait()
	})
	return r
}

func (r *relay) pass(from, to net.Conn, payload bool) {
	defer r.ended.Done()
	defer from.Close()
	defer to.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		r.mu.Lock()
		for payload && r.held {
			r.cond.Wait()
		}
		r.mu.Unlock()
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// hold lets payload wait, or go on.
func (r *relay) hold(held bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = held
	r.cond.Broadcast()
}

// cut ends all connections.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
	}
	r.conns, r.held = nil, false
	r.cond.Broadcast()
}

// lend gives a configuration a framework that lends blocks of 64 KiB in mem.
func lend(t *testing.T, c *kvcr.Config, fw *lender, mem []byte) {
	t.Helper()
	var regions peer.Regions
	if err := regions.Register(peer.Region{Label: "kv:*", Mem: mem, Size: 64 << 10, Count: len(mem) / (64 << 10)}); err != nil {
		t.Fatal(err)
	}
	c.Peers.Framework, c.Peers.Regions = fw, &regions
}
