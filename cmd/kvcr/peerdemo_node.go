package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/arena"
	"github.com/kvcr-go/kvcr/bench"
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// demoSetup is the first line that a node of the demonstration reads.
type demoSetup struct {
	Name   string
	Route  string
	Block  int // bytes
	Slots  int // blocks that fit
	Chains []demoChain
	Page   []uint64 // ids of the parts of one page, which live and move together
}

// demoChain is a request's blocks that no request before it had.
type demoChain struct {
	IDs      []uint64
	Parent   uint64 // of the first, when Position is not 0
	Position int
}

// demoAsk is any later line, demoAnswer what the node says to each.
type demoAsk struct {
	Do     string // deposit, fetch, deliver, move, have, alone, drop
	Page   bool   // the page's parts in one operation, and not the chains
	Pin    int    // deposit: every so manieth block may not leave; 0: all may
	Source string
	Per    int  // blocks of one operation
	Half   bool // an answer more, when half of the bytes have come
}

type demoAnswer struct {
	Error    string         `json:",omitempty"`
	NoRoute  string         `json:",omitempty"` // why the route cannot be had
	Endpoint string         `json:",omitempty"`
	Half     int            `json:",omitempty"` // blocks that had come
	Blocks   int            // stored, transferred or found
	Wrong    int            // bytes
	Route    string         `json:",omitempty"` // that was taken
	Times    []float64      `json:",omitempty"` // seconds of each operation
	Failed   map[string]int `json:",omitempty"` // blocks without success, by reason
	Moved    int            `json:",omitempty"`
	Kept     map[string]int `json:",omitempty"` // by reason
	IDs      []uint64       `json:",omitempty"` // have: those that are here
	Given    int            `json:",omitempty"` // have: moves away so far that removed the copy here
}

// peerdemoNodeCmd is one of the two processes. It answers lines of its standard
// input until that ends.
type peerdemoNodeCmd struct{}

func (*peerdemoNodeCmd) Run(e *env) error {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(e.stdout)
	var setup demoSetup
	if err := in.Decode(&setup); err != nil {
		return err
	}
	n, err := openDemoNode(setup, out)
	var bad *kvcr.ConfigError
	if errors.As(err, &bad) && bad.Field == "Peers.Routes" {
		return out.Encode(demoAnswer{NoRoute: bad.Limit})
	}
	if err != nil {
		return err
	}
	defer n.close()
	if err := out.Encode(demoAnswer{Endpoint: n.e.Peers().Endpoints()[0]}); err != nil {
		return err
	}
	for {
		var ask demoAsk
		if err := in.Decode(&ask); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		a, err := n.do(e.ctx, ask)
		if err != nil {
			a.Error = err.Error()
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
}

// demoNode is an engine with a node among peers.
type demoNode struct {
	demoSetup
	e       *kvcr.Engine
	h       *kvcr.Handle
	out     *json.Encoder
	scratch []byte
	pinned  []kvcr.View
	// outcomes of moves; who only gives blocks away takes none out, and none beyond
	// the first are kept.
	outcomes chan wire.Status
}

func openDemoNode(s demoSetup, out *json.Encoder) (*demoNode, error) {
	n := &demoNode{demoSetup: s, out: out, scratch: make([]byte, s.Block), outcomes: make(chan wire.Status, wire.MaxItems)}
	cfg := kvcr.Config{
		Capacity:   max(int64(s.Slots)*int64(s.Block), 1<<20),
		Namespaces: []kvcr.Namespace{{Name: "demo", Kind: kvcr.Chained, Pools: []kvcr.Pool{{Name: "kv", SlotBytes: s.Block}}}},
		// Touched at Open, so that no transfer pays for that.
		Memory: kvcr.Memory{Prefault: true},
		Peers: &kvcr.Peers{
			Name: s.Name, Listen: []string{"tcp://127.0.0.1:0"}, Routes: []string{s.Route},
			OnOutcome: func(o peer.Outcome) {
				select {
				case n.outcomes <- o.Status:
				default:
				}
			},
		},
	}
	if s.Route == "shm" {
		cfg.Memory.Backing = arena.Memfd
	}
	var err error
	if n.e, err = kvcr.Open(cfg); err != nil {
		return nil, err
	}
	if n.h, err = n.e.Handle(); err != nil {
		return nil, errors.Join(err, n.e.Close())
	}
	return n, nil
}

func (n *demoNode) close() error {
	n.unpin()
	return errors.Join(n.h.Close(), n.e.Close())
}

func (n *demoNode) unpin() {
	n.h.Release(n.pinned)
	n.pinned = nil
}

// ids are those of the page, or of the chains, parents first.
func (s *demoSetup) ids(page bool) (ids []uint64) {
	if page {
		return s.Page
	}
	for _, c := range s.Chains {
		ids = append(ids, c.IDs...)
	}
	return ids
}

func (n *demoNode) keys(page bool) *bench.Keys { return bench.NewKeys(n.ids(page)) }

func (n *demoNode) do(ctx context.Context, ask demoAsk) (a demoAnswer, err error) {
	switch ask.Do {
	case "deposit":
		if ask.Page {
			a.Blocks, err = n.depositPage()
		} else {
			a.Blocks, err = n.depositChains(ask.Pin)
		}
	case "fetch", "deliver", "move":
		a, err = n.transfer(ctx, ask)
	case "have":
		a.Given = int(n.e.Peers().Stats().Given.Moved)
		keys := n.keys(ask.Page)
		for i := range keys.Len() {
			k := keys.At(i)
			if v, ok := n.h.Get(k.Bytes); ok {
				a.Blocks++
				a.Wrong += k.Wrong(v.Bytes(), n.scratch)
				a.IDs = append(a.IDs, n.ids(ask.Page)[i])
				v.Release()
			}
		}
	case "alone":
		err = n.alone()
	case "drop":
		n.unpin()
		for _, page := range []bool{true, false} {
			keys := n.keys(page)
			for i := keys.Len() - 1; i >= 0; i-- { // children first
				if _, err := n.h.Delete(keys.At(i).Bytes); err != nil {
					return a, err
				}
			}
		}
	default:
		err = fmt.Errorf("%q: no such thing to do", ask.Do)
	}
	return a, err
}

// alone waits until no peer is connected: what one had still said has been acted on
// by then.
func (n *demoNode) alone() error {
	connected := func(p peer.PeerState) bool { return p.Connected }
	for end := time.Now().Add(demoPatience); slices.ContainsFunc(n.e.Peers().Peers(), connected); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("a peer is connected after %v", demoPatience)
		}
	}
	return nil
}

func (n *demoNode) depositChains(pin int) (stored int, err error) {
	value := make([]byte, n.Block)
	for _, c := range n.Chains {
		keys := bench.NewKeys(append([]uint64{c.Parent}, c.IDs...))
		for i := range c.IDs {
			k := keys.At(i + 1)
			k.Fill(value)
			opt := kvcr.DepositOptions{Position: c.Position + i}
			if opt.Position > 0 {
				opt.Parent = keys.At(i).Bytes
			}
			stored++
			opt.NoEvict = pin > 0 && stored%pin == 0
			r := n.h.DepositBatch([]kvcr.Item{{Key: k.Bytes, Value: value}}, opt)[0]
			if !r.OK() {
				return stored, r.Err()
			}
			if opt.NoEvict {
				n.pinned = append(n.pinned, r.View)
			}
		}
	}
	return stored, nil
}

func (n *demoNode) depositPage() (stored int, err error) {
	keys := n.keys(true)
	items := make([]kvcr.Item, keys.Len())
	for i := range items {
		k := keys.At(i)
		items[i] = kvcr.Item{Key: k.Bytes, Value: make([]byte, n.Block)}
		k.Fill(items[i].Value)
	}
	for _, r := range n.h.DepositGroup(items, kvcr.DepositOptions{}) {
		if !r.OK() {
			return stored, r.Err()
		}
		stored++
	}
	return stored, nil
}

// transfer has blocks come from a source, one operation after the other, and looks
// at every byte. Only the operations are timed, a move up to its outcome.
func (n *demoNode) transfer(ctx context.Context, ask demoAsk) (a demoAnswer, err error) {
	if ask.Half {
		stop := n.sayHalf(len(n.Page) / 2)
		defer stop()
	}
	keys := n.keys(ask.Page)
	if ask.Page {
		ask.Per = keys.Len() // else it would not move
	}
	a.Failed, a.Kept = map[string]int{}, map[string]int{}
	buffer := make([]byte, ask.Per*n.Block)
	clear(buffer) // touched, as the engine's memory is
	for from := 0; from < keys.Len(); from += ask.Per {
		var ids [][]byte
		var targets []kvcr.Target
		for i := from; i < min(from+ask.Per, keys.Len()); i++ {
			k, at := keys.At(i), (i-from)*n.Block
			ids = append(ids, k.Bytes)
			targets = append(targets, kvcr.Target{Key: k.Bytes, Dst: buffer[at : at+n.Block]})
		}
		opt := kvcr.FetchOptions{Sources: []string{ask.Source}, Timeout: demoPatience, Move: ask.Do == "move"}
		start := time.Now()
		var op *kvcr.Op
		if ask.Do == "deliver" {
			op = n.h.DeliverFrom(targets, opt)
		} else {
			op = n.h.FetchFrom(ids, opt)
		}
		results, err := op.Wait(ctx)
		if err != nil {
			return a, err
		}
		if opt.Move {
			if err := n.ended(len(ids), &a); err != nil {
				return a, err
			}
		}
		a.Times = append(a.Times, time.Since(start).Seconds())
		for i := range results {
			r, k := &results[i], keys.At(from+i)
			if !r.OK() {
				a.Failed[r.Reason.String()]++
				continue
			}
			block := targets[i].Dst
			if ask.Do != "deliver" {
				block = r.View.Bytes()
			}
			a.Blocks++
			a.Wrong += k.Wrong(block, n.scratch)
			r.View.Release()
		}
	}
	if p, ok := n.e.Peers().Known(ask.Source); ok {
		a.Route = p.Route.String()
	}
	return a, nil
}

// ended waits for the outcomes of a move.
func (n *demoNode) ended(blocks int, a *demoAnswer) error {
	late := time.After(demoPatience)
	for known := range blocks {
		select {
		case s := <-n.outcomes:
			if s == wire.StatusOK {
				a.Moved++
			} else {
				a.Kept[s.String()]++
			}
		case <-late:
			return fmt.Errorf("%d of %d moves have an outcome after %v", known, blocks, demoPatience)
		}
	}
	return nil
}

// sayHalf answers once so many blocks have come.
func (n *demoNode) sayHalf(half int) (stop func()) {
	fetched := func() (blocks int) {
		for _, t := range n.e.Peers().Stats().Fetched {
			blocks += int(t.Blocks)
		}
		return blocks
	}
	before, over, done := fetched(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			if got := fetched() - before; got >= half {
				n.out.Encode(demoAnswer{Half: got})
				return
			}
			select {
			case <-over:
				return
			case <-time.After(50 * time.Microsecond):
			}
		}
	}()
	return func() {
		close(over)
		<-done
	}
}
