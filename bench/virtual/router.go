package virtual

import (
	"bytes"
	"fmt"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

// router is the one that all requests pass.
type router struct {
	f       *fleet
	index   *plan.Index
	scratch *plan.Scratch
	choices []plan.Choice
	// load is how many blocks each node has to compute, as far as the router knows.
	load    []int
	applied []uint64 // the last event of each node
	hints   int      // that were given
	actions int      // that were ordered
}

// actionEvery is after how many hints one node is told to prefetch or move what a
// request has asked for: seldom enough that the traffic is that of requests, often
// enough that there always is some.
const actionEvery = 8

func (r *router) open(f *fleet) {
	*r = router{f: f, index: plan.New(plan.Config{}), load: make([]int, f.Nodes), applied: make([]uint64, f.Nodes)}
	members := make([]plan.Member, f.Nodes)
	for i, n := range f.nodes {
		members[i] = plan.Member{Owner: plan.Owner{Worker: events.Worker{ID: uint64(i)}}, Endpoint: n.endpoint, Type: "aggregated", Capable: true}
	}
	r.index.SetTopology(members)
	r.scratch = r.index.NewScratch()
}

// apply takes a batch of a node's events.
func (r *router) apply(batch []events.RouterEvent) {
	defer r.f.cpu.to(r.f.cpu.to(Apply))
	for i := range batch {
		r.f.counts[Events]++
		r.f.counts[Changes] += len(batch[i].Blocks) + len(batch[i].Hashes)
		last := &r.applied[batch[i].Worker.ID]
		if *last++; batch[i].ID != *last {
			r.f.fault("event %d of node %d comes in the place of %d", batch[i].ID, batch[i].Worker.ID, *last)
		}
		if err := r.index.Apply(&batch[i]); err != nil {
			r.f.fault("event %d of node %d: %v", batch[i].ID, batch[i].Worker.ID, err)
		}
	}
}

// take sends a request to a node.
func (r *router) take(q *request) {
	f := r.f
	was := f.cpu.to(Plan)
	r.choices = r.index.Choose(r.scratch, q.locals, r.choices)
	f.cpu.to(was)
	f.counts[Plans]++
	target := r.pick(-1)
	c := r.choices[target]
	q.assigned = len(q.hashes) - c.Frontier
	r.load[target] += q.assigned
	envelope := r.envelope(q.id, c)
	f.fold(uint64(target), uint64(c.Frontier), uint64(c.Kind), c.Source.Worker.ID, uint64(c.End))
	f.after(f.about(routerDelay), tag{evRequest, int32(target), q.n}, func() { f.nodes[target].take(q, envelope) })
	if envelope == nil {
		return
	}
	if r.hints++; r.hints%actionEvery == 0 {
		r.order(q, target)
	}
}

// order has a node besides the target prefetch or, every other time, move the blocks.
func (r *router) order(q *request, besides int) {
	f := r.f
	at := r.pick(besides)
	id := fmt.Sprintf("o%d", q.n)
	envelope := r.envelope(id, r.choices[at])
	if envelope == nil {
		return
	}
	what := []byte("kv.prefetch")
	if r.actions++; r.actions%2 == 0 {
		what = []byte("kv.move")
	}
	envelope = bytes.Replace(envelope, []byte("kv.fetch"), what, 1)
	f.after(f.about(routerDelay), tag{evAction, int32(at), q.n}, func() { f.nodes[at].order(envelope) })
}

// envelope is the hint of a choice, nil for none.
func (r *router) envelope(id string, c plan.Choice) []byte {
	if c.Kind == plan.None {
		return nil
	}
	r.f.counts[Named] += c.End
	defer r.f.cpu.to(r.f.cpu.to(Plan))
	return r.scratch.AppendEnvelope(nil, id, c)
}

// pick chooses the node that has least to compute, one of several at random; not
// besides, unless that is negative. It leaves what nodes have to the hints: more
// traffic than these make so there cannot be.
func (r *router) pick(besides int) (target int) {
	least, alike := int(^uint(0)>>1), 0
	for i, load := range r.load {
		switch {
		case i == besides || load > least:
			continue
		case load < least:
			least, alike = load, 0
		}
		if alike++; r.f.rng.IntN(alike) == 0 {
			target = i
		}
	}
	return target
}

// over hears that a node is through with a request.
func (r *router) over(q *request, target int) {
	r.load[target] -= q.assigned
	r.f.live--
}
