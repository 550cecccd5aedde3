package virtual

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvcr-go/kvcr/bench/trace"
	"github.com/kvcr-go/kvcr/hints/plan"
	"github.com/kvcr-go/kvcr/peer"
)

// Options name a run. All fields but Warm are required.
type Options struct {
	Nodes int // at least 2
	// Blocks is how many a node's table has room for. It is full of others at first.
	Blocks int
	// Requests are measured, after Warm that are not. One more comes after them.
	Requests, Warm int
	// Length is how many blocks an id of the trace stands for: with 2 a block has half
	// the tokens, and prompts have twice as many.
	Length int
	Trace  *trace.Trace
	Seed   uint64

	broken broken
}

// broken parts of a run, for tests that its checks find them.
type broken struct {
	removed  bool // a removal is not told to the router
	unclaim  bool // a claim is not ended
	discard  bool // advice is not discarded
	drop     bool // a hold is not dropped
	finished bool // some messages Finished are lost, as often as they are sent
	outcome  bool // an action is not ended
}

// OptionError names an option of which there is no run.
type OptionError struct {
	Option string
	Value  any
	Limit  string
}

func (e *OptionError) Error() string {
	return fmt.Sprintf("virtual: %s = %v: %s", e.Option, e.Value, e.Limit)
}

// maxNodes is far beyond what fits the time that anybody has.
const maxNodes = 1 << 15

func (o *Options) validate() error {
	var errs []error
	check := func(ok bool, name string, value any, limit string) {
		if !ok {
			errs = append(errs, &OptionError{name, value, limit})
		}
	}
	check(o.Nodes >= 2 && o.Nodes <= maxNodes, "Nodes", o.Nodes, fmt.Sprintf("2 to %d", maxNodes))
	check(o.Blocks >= 1, "Blocks", o.Blocks, "at least 1")
	check(o.Requests >= 1, "Requests", o.Requests, "at least 1")
	check(o.Warm >= 0, "Warm", o.Warm, "at least 0")
	check(o.Length >= 1, "Length", o.Length, "at least 1")
	check(o.Trace != nil && len(o.Trace.Requests) > 0, "Trace", "none", "a trace with requests")
	return errors.Join(errs...)
}

// Result is what a run has cost and done. Cost, Counts, Latency and Hottest are of the time
// from the first measured request to the one after the last: what is under way then is about
// as much at both ends.
type Result struct {
	Options
	Cost [parts]time.Duration // processor time, by Part
	Counts
	// Latency is from the arrival of a hint to that of the last block which was fetched
	// for it, in virtual time, ascending.
	Latency []time.Duration
	Hottest float64    // blocks that one node has sent at most, of the mean of all
	Index   plan.Stats // at the end
	// Heap is what the run holds at its end, in bytes: the index with its memory, and
	// all nodes.
	Heap int64
	// Of the whole run.
	Events  uint64        // of the simulation
	Virtual time.Duration // how long it lasted
	Links   int           // pairs of nodes that have fetched, one direction each
	Hash    uint64        // over all that happened, in order
}

// PerRequest is the cost of a part for each request.
func (r *Result) PerRequest(p Part) time.Duration { return r.Cost[p] / time.Duration(r.Requests) }

// Total is the cost of all parts of the product for each request.
func (r *Result) Total() (d time.Duration) {
	for _, p := range Parts {
		d += r.PerRequest(p)
	}
	return d
}

// fleet is a run.
type fleet struct {
	Options
	cpu    stopwatch
	rng    *rand.Rand
	now    peer.Time
	queue  queue
	seq    uint64
	hash   uint64
	events uint64
	faults []string // that were seen; the first few

	nodes []*node
	// endpoints has the nodes by where they are reached.
	endpoints map[string]*node
	router    router
	arriving  stream
	live      int       // requests that have not ended
	last      peer.Time // arrival of the last request
	counts    Counts
	before    Counts // what they were when the measured requests began
	latency   []time.Duration
	result    Result
}

// Run makes one run. The error is a *OptionError, ctx's, or says which of its checks
// has failed.
func Run(ctx context.Context, o Options) (*Result, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	before := heapBytes()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	f := &fleet{Options: o, rng: rand.New(rand.NewPCG(o.Seed, 1)), endpoints: map[string]*node{}}
	if err := f.open(); err != nil {
		return nil, err
	}
	if err := f.run(ctx); err != nil {
		return nil, err
	}
	f.check()
	if len(f.faults) > 0 {
		return nil, fmt.Errorf("virtual: seed %d, %d nodes: %s", o.Seed, o.Nodes, strings.Join(f.faults, "; "))
	}
	r := f.result
	r.Options, r.Index, r.Events, r.Virtual, r.Hash = o, f.router.index.Stats(), f.events, f.now, f.hash
	for _, n := range f.nodes {
		r.Links += len(n.links)
	}
	f.arriving, f.latency = stream{}, nil
	r.Heap = max(0, heapBytes()-before)
	runtime.KeepAlive(f)
	return &r, nil
}

func (f *fleet) open() error {
	for i := range f.Nodes {
		n, err := newNode(f, i)
		if err != nil {
			return err
		}
		f.nodes = append(f.nodes, n)
		f.endpoints[n.endpoint] = n
	}
	f.cpu.start()
	f.router.open(f)
	for _, n := range f.nodes {
		n.fill()
	}
	f.arriving = newStream(&f.Options)
	f.next()
	return nil
}

// next has the next request come.
func (f *fleet) next() {
	if f.arriving.left == 0 {
		return
	}
	a := f.arriving.next()
	f.push(a.at, tag{evArrive, -1, a.n}, func() {
		switch int(a.n) {
		case f.Warm:
			f.before, f.latency = f.counts, nil
			for _, n := range f.nodes {
				n.sent = 0
			}
			f.cpu.start()
		case f.Warm + f.Requests:
			f.measured()
		}
		f.live++
		f.last = f.now
		f.router.take(newRequest(f, &a))
		f.next()
	})
}

// measured takes down what the measured requests have cost.
func (f *fleet) measured() {
	r := &f.result
	r.Cost = f.cpu.stop()
	r.Counts = f.counts
	for i, n := range f.before {
		r.Counts[i] -= n
	}
	r.Latency = slices.Clone(f.latency)
	slices.Sort(r.Latency)
	most, sent := 0, 0
	for _, n := range f.nodes {
		most, sent = max(most, n.sent), sent+n.sent
	}
	if sent > 0 {
		r.Hottest = float64(most) * float64(f.Nodes) / float64(sent)
	}
}

// drain is how long it may take until nothing is left to do, once requests have ceased:
// operations end in ten seconds.
const drain = 5 * time.Minute

// checkEvery is how many events go between two looks at the context.
const checkEvery = 1 << 12

func (f *fleet) run(ctx context.Context) error {
	for len(f.queue) > 0 {
		if f.events%checkEvery == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		e := f.queue.pop()
		if f.arriving.left == 0 && e.at > f.last+drain {
			f.fault("something goes on for ever: an event of kind %d of node %d", e.tag.kind, e.tag.node)
			break
		}
		f.now = e.at
		f.events++
		f.fold(uint64(e.at), uint64(e.tag.kind)<<32|uint64(uint32(e.tag.node)), e.tag.n)
		e.do()
	}
	return nil
}

// fold adds to the hash of what has happened.
func (f *fleet) fold(words ...uint64) {
	for _, w := range words {
		f.hash = mix(f.hash + w)
	}
}

func (f *fleet) foldBytes(b []byte) { f.fold(xxh3.Hash(b)) }

// mix is the finaliser of splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func (f *fleet) push(at peer.Time, t tag, do func()) {
	f.seq++
	f.queue.push(event{at: max(at, f.now), seq: f.seq, tag: t, do: do})
}

func (f *fleet) after(d time.Duration, t tag, do func()) { f.push(f.now+d, t, do) }

// about is a delay between half and one and a half of d.
func (f *fleet) about(d time.Duration) time.Duration {
	return d/2 + time.Duration(f.rng.Int64N(int64(d)))
}

// maxFaults is how many faults are told.
const maxFaults = 8

// fault notes that something is as it must not be.
func (f *fleet) fault(format string, args ...any) {
	if len(f.faults) < maxFaults {
		f.faults = append(f.faults, fmt.Sprintf("at %v: ", f.now)+fmt.Sprintf(format, args...))
	}
}

// Delays of the virtual world. Ratios matter, not the values: they are those of a
// network in one building and of blocks of 512 tokens of a model of some ten billion
// weights, on one card.
const (
	routerDelay   = 200 * time.Microsecond // router to node and back
	peerDelay     = 50 * time.Microsecond  // node to node
	feedDelay     = time.Millisecond       // from a change to its sending
	idCompute     = 5 * time.Millisecond   // of the blocks of one id
	idTransfer    = 2500 * time.Microsecond
	idBytes       = 64 << 20
	fetchDeadline = 10 * time.Second
)
