package virtual

import (
	"strconv"
	"time"

	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// request is one prompt on its way.
type request struct {
	n        uint64
	id       string
	hashes   []uint64 // of its blocks, each of the prompt up to it
	locals   []uint64
	assigned int // blocks that the router thinks have to be computed

	came    peer.Time // at its node, with its hint
	missing [][]byte  // keys that were not there then
	plan    hints.SourcePlan
	left    int   // blocks that are asked for
	got     []int // of missing
}

func newRequest(f *fleet, a *arrival) *request {
	q := &request{n: a.n, id: "r" + strconv.FormatUint(a.n, 10), hashes: a.hashes(f.Length)}
	q.locals = make([]uint64, len(q.hashes))
	for i, h := range q.hashes {
		q.locals[i] = localOf(h)
	}
	return q
}

// take takes a request, with its hint if there is one.
func (n *node) take(q *request, envelope []byte) {
	f := n.f
	f.counts[Asked] += len(q.hashes)
	f.counts[Local] += n.prefix(q)
	q.came = f.now
	if envelope == nil {
		n.compute(q)
		return
	}
	f.counts[Hinted]++
	n.submit(q.id, envelope)
	for _, h := range q.hashes {
		if n.table.blocks[h] == nil {
			q.missing = append(q.missing, appendKey(nil, h))
		}
	}
	was := f.cpu.to(Hints)
	plans := n.advice.Plan(q.id, "", q.missing, n)
	f.cpu.to(was)
	if len(plans) == 0 {
		n.compute(q)
		return
	}
	q.plan = plans[0]
	n.fetch(q)
}

// prefix is how many leading blocks of a request are here; they are used now.
func (n *node) prefix(q *request) int {
	have := 0
	for have < len(q.hashes) && n.table.blocks[q.hashes[have]] != nil {
		have++
	}
	for i := have - 1; i >= 0; i-- { // the last ones are the first to go
		n.table.touch(n.table.blocks[q.hashes[i]])
	}
	return have
}

// fetch asks the source of the advice for what it names.
func (n *node) fetch(q *request) {
	l := n.link(q.plan.Source)
	q.left = len(q.plan.Keys)
	for at := 0; at < len(q.plan.Keys); at += wire.MaxItems {
		keys := q.plan.Keys[at:min(at+wire.MaxItems, len(q.plan.Keys))]
		items := make([]wire.Wanted, len(keys))
		for i, k := range keys {
			items[i].Key = q.missing[k]
		}
		l.submit(wire.TransferCopy, items, func(s peer.Settle) { n.fetched(q, keys[s.Index], s.Status) }, nil)
	}
}

// fetched takes the answer for one block.
func (n *node) fetched(q *request, key int, s wire.Status) {
	f := n.f
	if s == wire.StatusOK {
		q.got = append(q.got, key)
	} else {
		f.counts[Failed]++
	}
	if q.left--; q.left > 0 {
		return
	}
	f.counts[Fetched] += len(q.got)
	f.latency = append(f.latency, f.now-q.came)
	was := f.cpu.to(Hints)
	n.advice.Report(q.id, "", q.missing, &q.plan, q.plan.Keys, q.got, false)
	f.cpu.to(was)
	n.compute(q)
}

// compute has what is not there computed, after what is being computed already.
func (n *node) compute(q *request) {
	f := n.f
	missing := len(q.hashes) - n.prefix(q)
	f.counts[Computed] += missing
	n.computing = max(n.computing, f.now) + time.Duration(missing)*idCompute/time.Duration(f.Length)
	f.push(n.computing, tag{evReady, int32(n.id), q.n}, func() { n.ready(q) })
}

// ready keeps the blocks of a request that has been computed.
func (n *node) ready(q *request) {
	f := n.f
	n.table.deposit(q.hashes)
	if !f.broken.discard {
		was := f.cpu.to(Hints)
		n.advice.Discard(q.id)
		f.cpu.to(was)
	}
	f.after(f.about(routerDelay), tag{evOver, int32(n.id), q.n}, func() { f.router.over(q, n.id) })
}

func (f *fleet) blockBytes() uint64 { return uint64(idBytes / f.Length) }
