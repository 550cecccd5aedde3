package virtual

import (
	"fmt"
	"time"

	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// node is one of the fleet: a block table, the real front of hints, and a link for each
// node that it has fetched from.
type node struct {
	f        *fleet
	id       int
	endpoint string
	inc      peer.Incarnation
	table    *table
	feed     feed
	links    map[string]*link   // as destination, by the source's endpoint
	serves   map[*link]struct{} // as source
	lastOp   peer.OpID

	dispatcher *hints.Dispatcher
	advice     *hints.Advice
	tracker    *hints.Tracker
	outcomes   *hints.Outcomes
	results    []hints.Result

	computing peer.Time // until when
	sending   peer.Time
	sent      int // blocks
}

// Caps of a node's front: small, since there are a thousand; nothing comes near them.
const (
	maxAdvice  = 1024 // requests
	maxActions = 1024
)

func newNode(f *fleet, id int) (*node, error) {
	n := &node{
		f: f, id: id, endpoint: fmt.Sprintf("tcp://10.%d.%d.%d:7070", id>>16, id>>8&0xff, id&0xff), inc: peer.Incarnation(id + 1),
		links: map[string]*link{}, serves: map[*link]struct{}{},
	}
	n.table = newTable(f, n)
	n.feed.n = n
	var err [7]error
	n.dispatcher, err[0] = hints.NewDispatcher(hints.Config{})
	n.advice, err[1] = hints.NewAdvice(hints.AdviceConfig{Requests: maxAdvice, Now: func() time.Duration { return f.now }})
	n.outcomes, err[2] = hints.NewOutcomes(hints.OutcomesConfig{Kept: 64, KeptHashes: 4096})
	for _, e := range err {
		if e != nil {
			return nil, e
		}
	}
	n.tracker, err[3] = hints.NewTracker(n.outcomes, hints.TrackerConfig{Rank: id, Open: maxActions})
	err[4] = hints.Register(n.dispatcher, hints.FetchType(n.advice))
	err[5] = hints.Register(n.dispatcher, hints.PrefetchType(func(c *hints.Call, t *hints.Transfer) error { return n.accept(c, t, false) }))
	err[6] = hints.Register(n.dispatcher, hints.MoveType(func(c *hints.Call, t *hints.Transfer) error { return n.accept(c, t, true) }))
	for _, e := range err {
		if e != nil {
			return nil, e
		}
	}
	return n, nil
}

func (n *node) String() string { return fmt.Sprintf("n%d", n.id) }

func (n *node) nextOp() peer.OpID {
	n.lastOp++
	return n.lastOp
}

// fillChain is how long the prompts are that nodes are full of at first.
const fillChain = 16

// fill fills the table with what nobody will ask for.
func (n *node) fill() {
	for i := 0; i < n.table.capacity; i += fillChain {
		chain := make([]uint64, min(fillChain, n.table.capacity-i))
		for k := range chain {
			chain[k] = mix(uint64(n.id)<<32 | uint64(i+k) | 1<<63)
		}
		n.table.deposit(chain)
	}
}

// submit has the dispatcher serve an envelope of one action, and reports whether that
// was accepted.
func (n *node) submit(requestID string, envelope []byte) bool {
	defer n.f.cpu.to(n.f.cpu.to(Hints))
	results, err := n.dispatcher.AppendJSON(n.results[:0], requestID, envelope)
	n.results = results[:0]
	switch {
	case err != nil || len(results) != 1:
		n.f.fault("%v: %d results of an envelope, %v", n, len(results), err)
		return false
	case results[0].Status != hints.Accepted:
		n.f.counts[Refused]++
		return false
	}
	return true
}

// The key adapter: a key is its hash.

func (n *node) Encode(hash uint64) (hints.Key, bool) {
	return hints.Key{Key: appendKey(nil, hash)}, true
}

func (n *node) ToRouter(_ string, key []byte) (uint64, bool) { return hashOf(key), true }

func (n *node) FromRouter(hash uint64) (hints.Key, error) {
	if n.table.blocks[hash] == nil {
		return hints.Key{}, hints.ErrNotFound
	}
	return hints.Key{Key: appendKey(nil, hash)}, nil
}

// Resolve is what the source's side asks of the adapter.
func (n *node) Resolve(hash uint64) (string, []byte, wire.Status) {
	k, err := n.FromRouter(hash)
	if err != nil {
		return "", nil, wire.StatusMiss
	}
	return k.Namespace, k.Key, wire.StatusOK
}
