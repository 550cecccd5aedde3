package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcr-go/kvcr/bench"
	"github.com/kvcr-go/kvcr/ucx"
)

// Options say how a soak goes.
type Options struct {
	bench.Options
	// Exe is this program: it is run again as the nodes, and as clients that are killed.
	Exe string
	// For is how long the load lasts, over all kinds of namespaces; 0: ten minutes,
	// quick half a minute, smoke three seconds.
	For time.Duration
	// Nodes are at least 2; 0: 3.
	Nodes int
	// Seed of all choices; 0: any.
	Seed uint64
	// Kinds of the nodes' namespace, one after the other; empty: flat and chained,
	// smoke chained alone.
	Kinds []string
	// Sabotage is for tests.
	Sabotage Sabotage

	capacity int           // bytes of a node
	pause    time.Duration // of a client between two things that it does, at most
	slow     time.Duration // that slow readers stand still, at most
	vanish   time.Duration // between two clients that are killed, at most
	period   time.Duration // of faults
	settle   time.Duration // how long leaks are waited for
	nodeEnv  []string
}

// Sabotage breaks something on purpose, for tests of the checks: each must be found.
type Sabotage struct {
	Flip      bool // a bit of an answer
	Claim     bool // a client does not leave
	Goroutine bool // one of this process does not end
	Mute      bool // one accepted action is forgotten, so that its end is nobody's
}

const (
	kindFlat    = "flat"
	kindChained = "chained"
)

// lastRoutes are the routes of the node without shared memory.
var lastRoutes = "stream"

func init() {
	if ucx.Built {
		lastRoutes = "ucx,stream"
	}
}

func (o Options) withDefaults() (Options, error) {
	def := func(full, quick, smoke time.Duration) time.Duration {
		switch {
		case o.Smoke:
			return smoke
		case o.Quick:
			return quick
		}
		return full
	}
	if o.For == 0 {
		o.For = def(10*time.Minute, 30*time.Second, 3*time.Second)
	}
	if o.Nodes == 0 {
		o.Nodes = 3
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	if len(o.Kinds) == 0 {
		if o.Kinds = []string{kindFlat, kindChained}; o.Smoke {
			o.Kinds = o.Kinds[1:]
		}
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	var errs []error
	if o.For < time.Second || o.For > 24*time.Hour {
		errs = append(errs, &bench.OptionError{Option: "for", Value: o.For, Limit: "1s to 24h"})
	}
	if o.Nodes < 2 || o.Nodes > 8 {
		errs = append(errs, &bench.OptionError{Option: "nodes", Value: o.Nodes, Limit: "2 to 8"})
	}
	for _, k := range o.Kinds {
		if k != kindFlat && k != kindChained {
			errs = append(errs, &bench.OptionError{Option: "kind", Value: k, Limit: "flat or chained"})
		}
	}
	each := o.For / time.Duration(len(o.Kinds))
	o.capacity = 64 << 20
	o.pause, o.slow, o.vanish = 4*time.Millisecond, 4*time.Second, 8*time.Second
	o.period = min(4*time.Second, max(700*time.Millisecond, each/20))
	if each < 20*time.Second {
		o.slow, o.vanish = each/6, each/3
	}
	if o.settle == 0 {
		o.settle = def(settleBound, settleBound, settleBound/4)
		if o.Sabotage != (Sabotage{}) {
			o.settle /= 5 // what is to be found stays
		}
	}
	return o, errors.Join(errs...)
}

// repeat is the command that makes the same choices.
func (o Options) repeat() string {
	return fmt.Sprintf("kvcr bench soak --for %v --nodes %d --seed %d --kind %s", o.For, o.Nodes, o.Seed, strings.Join(o.Kinds, ","))
}

// run is one soak.
type run struct {
	o    Options
	ctx  context.Context // of the command
	dir  string
	kind string // of the nodes now
	web  *http.Client

	nodes  []*node
	chains []*chain
	pairs  [][2]*block // none in flat namespaces
	names  names

	trouble trouble
	watch   watch
	ops     tally // what clients did, and how what failed did
	faults  tally
	actions tally // of hints
	bytes   atomic.Int64
	looked  []looked

	bad    atomic.Bool // faults may happen now
	shaken atomic.Bool // faults have happened
}

// looked is the levels of one process at the base and at the end.
type looked struct {
	kind, process string
	base, end     levels
	checked       bool // the end was held against the base
}

// Run soaks. The report counts also when it fails; a failure of the checks is a
// *ViolationsError.
func Run(ctx context.Context, o Options) (*bench.Report, error) {
	rep := &bench.Report{}
	o, err := o.withDefaults()
	if err != nil {
		return rep, err
	}
	r := &run{o: o, ctx: ctx, web: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, trouble: trouble{began: time.Now()}}
	if r.dir, err = os.MkdirTemp("", "kvcr-soak"); err != nil {
		return rep, err
	}
	r.o.Progress("seed " + fmt.Sprint(o.Seed))
	base, err := r.ownLevels()
	if err != nil {
		return rep, err
	}
	watching, stop := context.WithCancel(context.Background())
	var guard sync.WaitGroup
	guard.Add(1)
	go func() {
		defer guard.Done()
		r.guard(watching)
	}()
	for _, r.kind = range o.Kinds {
		if err = r.soak(ctx, o.For/time.Duration(len(o.Kinds))); err != nil {
			break
		}
	}
	stop()
	guard.Wait()
	if o.Sabotage.Goroutine {
		go func() { <-ctx.Done() }()
	}
	r.chains, r.pairs, r.nodes, r.names = nil, nil, nil, nil
	end, errLevels := r.ownSettled(base)
	r.looked = append(r.looked, looked{"", "this process", base, end, true})
	r.report(rep)
	found := r.trouble.err(o.repeat(), r.dir)
	if err = errors.Join(err, errLevels, found); found == nil {
		return rep, errors.Join(err, os.RemoveAll(r.dir))
	}
	return rep, errors.Join(err, os.WriteFile(filepath.Join(r.dir, "violations.txt"), []byte(found.Error()+"\n"), 0o644))
}

// soak is the run with nodes of one kind.
func (r *run) soak(ctx context.Context, d time.Duration) (err error) {
	rng := rand.New(rand.NewPCG(r.o.Seed, uint64(len(r.kind))))
	r.chains, r.names, r.nodes = newChains(rng, chainCount), names{}, nil
	for _, c := range r.chains {
		for _, b := range c.blocks {
			r.names[b.id] = fmt.Sprintf("block %x", b.hash)
		}
	}
	if r.pairs = nil; r.kind == kindChained {
		r.pairs = newPairs()
	}
	for _, p := range r.pairs {
		for _, b := range p {
			r.names[b.id] = string(b.key)
		}
	}
	r.bad.Store(false)
	r.shaken.Store(false)
	hosts := fmt.Sprintf("127.%d.%d.", 1+rand.IntN(250), 1+rand.IntN(250))
	defer func() {
		for _, n := range r.nodes {
			n.stop()
			n.closeRelays()
			for _, line := range n.complaints() {
				r.trouble.add(nodeDied, n.name(), "it logged: %.500s", line)
			}
		}
	}()
	for i := range r.o.Nodes {
		r.o.Progress(fmt.Sprintf("%s: node %d starts", r.kind, i))
		n, err := newNode(r, i, hosts+strconv.Itoa(1+i), r.kind)
		if n != nil {
			r.nodes = append(r.nodes, n)
		}
		if err != nil {
			return err
		}
		for _, c := range n.cells {
			r.names[c.id] = string(c.key)
		}
		if err := n.start(ctx); err != nil {
			return err
		}
	}
	r.o.Progress(r.kind + ": warm-up")
	if err := r.phase(ctx, rng, min(max(d/8, 500*time.Millisecond), 20*time.Second), nil); err != nil {
		return err
	}
	var all []looked
	for _, n := range r.nodes {
		all = append(all, looked{kind: r.kind, process: n.name(), base: n.settled(ctx, nil)})
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r.shaken.Store(true)
	r.bad.Store(true)
	if r.o.Sabotage.Flip {
		r.nodes[0].viaRESP.flip.Store(1)
	}
	if err := r.phase(ctx, rng, d, schedule(rng, r.o.Nodes, d, r.o.period)); err != nil {
		return err
	}
	if r.o.Sabotage.Claim {
		defer r.leakClaim(ctx)()
	}
	for i, n := range r.nodes {
		r.o.Progress(fmt.Sprintf("%s: node %d comes to rest", r.kind, i))
		all[i].end, all[i].checked = n.settled(ctx, all[i].base), true
	}
	r.looked = append(r.looked, all...)
	return ctx.Err()
}

// phase is load for a while, and the checks once it has ended.
func (r *run) phase(ctx context.Context, rng *rand.Rand, d time.Duration, faults []fault) error {
	listening, stopListening := context.WithCancel(ctx)
	var listeners sync.WaitGroup
	listen := func(f func()) {
		listeners.Add(1)
		go func() {
			defer listeners.Done()
			f()
		}()
	}
	defer listeners.Wait()
	defer stopListening()
	var mirrors []*mirror
	for _, n := range r.nodes {
		listen(func() { n.ends.listen(listening) })
		for i := range 2 {
			m := &mirror{node: n, slow: i == 1}
			mirrors = append(mirrors, m)
			own := rand.New(rand.NewPCG(rng.Uint64(), 0))
			listen(func() { m.listen(listening, r, own) })
		}
	}
	router, err := newRouter(r.nodes)
	if err != nil {
		return err
	}
	defer router.close()

	loading, stopLoad := context.WithTimeout(ctx, d)
	defer stopLoad()
	var load sync.WaitGroup
	for _, w := range r.workers(rng) {
		load.Add(1)
		go func() {
			defer load.Done()
			w.work(loading)
		}()
	}
	err = r.spoil(loading, faults)
	if err != nil {
		stopLoad()
	}
	<-loading.Done()
	if r.bad.Swap(false) { // what stands still would end by its bound
		for _, n := range r.nodes {
			n.cut()
		}
	}
	load.Wait()
	if err != nil || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	r.meet(rng)
	for _, n := range r.nodes {
		r.o.Progress(fmt.Sprintf("%s: the actions of node %d end", r.kind, n.index))
		n.ends.settle(ctx)
	}
	for _, n := range r.nodes {
		r.o.Progress(fmt.Sprintf("%s: what node %d has is read", r.kind, n.index))
		r.compare(ctx, n, router, mirrors)
	}
	return ctx.Err()
}

// meet connects all nodes with each other.
func (r *run) meet(rng *rand.Rand) {
	for _, n := range r.nodes {
		w := &hintWorker{worker: worker{run: r, node: n, name: "first router", rng: rand.New(rand.NewPCG(rng.Uint64(), 0))}}
		w.meet()
	}
}

// someone is a worker of any kind.
type someone interface{ work(ctx context.Context) }

// workers are the clients of all nodes. Each cell has one that writes it.
func (r *run) workers(rng *rand.Rand) (all []someone) {
	for _, n := range r.nodes {
		makers := []func(w worker) someone{
			func(w worker) someone { return &binaryWorker{worker: w} },
			func(w worker) someone { return &respWorker{worker: w} },
			func(w worker) someone { return &sharedWorker{worker: w} },
			func(w worker) someone { return &binaryWorker{worker: w} },
			func(w worker) someone { return &respWorker{worker: w} },
			func(w worker) someone { return &hintWorker{worker: w} },
			func(w worker) someone { return &slowWorker{respWorker{worker: w}} },
			func(w worker) someone { return &vanishWorker{worker: w} },
			func(w worker) someone { return &scraper{worker: w} },
		}
		kinds := []string{"binary client", "RESP client", "shared-memory client", "second binary client", "second RESP client", "router", "slow reader", "vanishing client", "scraper"}
		const writers = 5 // the first of them
		per := cellsOfNode / writers
		for i, make := range makers {
			w := worker{run: r, node: n, name: kinds[i], rng: rand.New(rand.NewPCG(rng.Uint64(), uint64(i)))}
			if i < writers {
				w.cells = n.cells[i*per : (i+1)*per]
			}
			all = append(all, make(w))
		}
	}
	return all
}
