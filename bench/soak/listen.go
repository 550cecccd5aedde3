package soak

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
	"github.com/kvcr-go/kvcr/wire"
	"github.com/kvcr-go/kvcr/wire/client"
)

// follow keeps something going with a node until ctx ends: it dials and calls f, again
// and again. f returns when its connection is lost.
func (r *run) follow(ctx context.Context, n *node, what string, f func(*client.Client) error) {
	for ctx.Err() == nil {
		dialling, cancel := context.WithTimeout(ctx, callBound)
		cl, err := client.Dial(dialling, client.Options{Addr: n.viaBinary.addr(), Name: "soak " + what})
		cancel()
		if err == nil {
			err = f(cl)
			cl.Close()
		}
		if ctx.Err() != nil {
			return
		}
		r.judge(what, n, err, r.shaken.Load())
		r.ops.add("follow again: "+what, 1)
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// mirror is what a subscriber knows of a node's inventory.
type mirror struct {
	node *node
	// slow: it stands still for seconds now and then.
	slow bool

	mu      sync.Mutex
	epoch   uint64
	keys    map[string]uint64 // sizes
	coming  map[string]uint64 // of a snapshot that is not complete
	last    uint64
	whole   bool // keys are what the node had at some moment
	changed time.Time
}

// listen follows the node until ctx ends.
func (m *mirror) listen(ctx context.Context, r *run, rng *rand.Rand) {
	r.follow(ctx, m.node, "inventory", func(cl *client.Client) error {
		epoch, last := m.again()
		s, err := cl.Subscribe(ctx, epoch, last)
		if err != nil {
			return err
		}
		defer s.Close()
		for {
			if m.slow && rng.IntN(200) == 0 && r.bad.Load() {
				r.faults.add("slow subscriber", 1)
				select {
				case <-ctx.Done():
				case <-time.After(time.Duration(rng.IntN(3000)) * time.Millisecond):
				}
			}
			f, err := s.Next(ctx)
			if err != nil {
				return err
			}
			if err := m.apply(&f); err != nil {
				return err
			}
		}
	})
}

// again is where a new subscription begins. What is left of a snapshot that was cut off
// does not come any more.
func (m *mirror) again() (epoch, sequence uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.whole, m.coming = false, nil
	return m.epoch, m.last
}

// apply takes a frame.
func (m *mirror) apply(f *wire.Events) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changed = time.Now()
	switch {
	case f.Snapshot:
		if m.coming == nil {
			m.coming = map[string]uint64{}
		}
		m.epoch, m.last, m.whole = f.Epoch, f.FirstSequence, false
	case m.coming != nil: // the first frame that is none ends it
		m.keys, m.coming, m.whole = m.coming, nil, true
	}
	to := m.keys
	if f.Snapshot {
		to = m.coming
	}
	for i, e := range f.Events {
		if seq := f.FirstSequence + uint64(i); !f.Snapshot {
			if f.Epoch != m.epoch {
				return fmt.Errorf("epoch %x in the midst of %x: %w", f.Epoch, m.epoch, errOrder)
			}
			m.last = max(m.last, seq)
		}
		switch e.Kind {
		case wire.EventStored:
			to[string(e.Key)] = e.Size
		case wire.EventRemoved:
			delete(to, string(e.Key))
		case wire.EventCleared:
			clear(to)
		}
	}
	return nil
}

// differs says how the mirror differs from another view of the same node; "" when not.
func (m *mirror) differs(have map[string]uint64) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.whole {
		return "has no whole snapshot"
	}
	for k := range have {
		if _, ok := m.keys[k]; !ok {
			return fmt.Sprintf("lacks %q, which is there", k)
		}
	}
	for k := range m.keys {
		if _, ok := have[k]; !ok {
			return fmt.Sprintf("has %q, which is gone", k)
		}
	}
	return ""
}

// router is what a router knows: an index fed by the KV events of all nodes.
type router struct {
	index     *plan.Index
	consumers []*events.Consumer
}

func newRouter(nodes []*node) (*router, error) {
	r := &router{index: plan.New(plan.Config{})}
	var members []plan.Member
	for _, n := range nodes {
		worker := events.Worker{ID: uint64(n.index)}
		c, err := events.NewConsumer(events.ConsumerConfig{
			Endpoint: "tcp://" + n.events, Replay: "tcp://" + n.replay, Worker: worker, Normalizer: events.NormalizerConfig{BlockSize: blockTokens},
			MaxBackoff: 200 * time.Millisecond,
			OnEvents: func(evs []events.RouterEvent) {
				for i := range evs {
					_ = r.index.Apply(&evs[i]) // events that mean nothing do not come from here
				}
			},
		})
		if err != nil {
			r.close()
			return nil, err
		}
		r.consumers = append(r.consumers, c)
		members = append(members, plan.Member{Owner: plan.Owner{Worker: worker}, Endpoint: "tcp://" + n.viaPeers.addr(), Type: "aggregated", Capable: true})
	}
	r.index.SetTopology(members)
	return r, nil
}

func (r *router) close() {
	for _, c := range r.consumers {
		c.Close()
	}
}

// gone says which block the index has of a node that the node has not; "" for none.
func (r *router) gone(n *node, have map[string]uint64) (what string) {
	r.index.Dump(func(ev *events.RouterEvent) bool {
		if ev.Worker.ID != uint64(n.index) {
			return true
		}
		for _, b := range ev.Blocks {
			if _, ok := have[string(keyOf(b.Hash))]; !ok {
				what = fmt.Sprintf("the index has block %x, which is gone", b.Hash)
			}
		}
		return what == ""
	})
	return what
}

func keyOf(hash uint64) []byte { return binary.BigEndian.AppendUint64(nil, hash) }

// residents are the keys that a node has now, by a subscription of its own.
func (n *node) residents(ctx context.Context) (map[string]uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	cl, err := client.Dial(ctx, client.Options{Addr: n.binary, Name: "soak residents"})
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	s, err := cl.Subscribe(ctx, 0, 0)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	m := mirror{}
	for {
		f, err := s.Next(ctx)
		if err != nil {
			return nil, err
		}
		if err := m.apply(&f); err != nil {
			return nil, err
		}
		if m.whole {
			return m.keys, nil
		}
	}
}
