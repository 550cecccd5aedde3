package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/kvcr-go/kvcr/arena"
	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

// What ingest feeds an index with.
const (
	ingestWorkers = 64
	ingestBlock   = 16 // tokens
	ingestChain   = 512
	ingestHeld    = 1 << 20 // blocks that the index holds of others; quick a quarter
	ingestRate    = 2_000_000

	wireVLLM, wireDynamo = "vllm", "dynamo"
)

// ingestFeed is the messages of one chain, stored and removed, as they come over the
// wire.
type ingestFeed struct {
	worker          events.Worker
	stored, removed [][]byte
}

// ingester does with messages what a router's goroutine does.
type ingester struct {
	wire  string // vllm: batches; dynamo: events of its plane
	index *plan.Index
	feeds []ingestFeed
	next  int // of feeds

	dec   events.Decoder
	norm  *events.Normalizer
	batch events.Batch
	out   []events.RouterEvent
	id    uint64

	plane events.RouterEventDecoder
	event events.RouterEvent
}

// newIngester makes messages of size blocks each, of twice as many chains as are there
// at a time, and an index that holds other blocks already.
func newIngester(wire string, size, held int) (*ingester, error) {
	g := &ingester{wire: wire, index: plan.New(plan.Config{}), norm: events.NewNormalizer(events.NormalizerConfig{BlockSize: ingestBlock})}
	var deal chains
	chain := make([]events.Block, ingestChain)
	for done := 0; done < held; done += ingestChain {
		deal.next(chain)
		for _, ev := range stores(nil, events.Worker{ID: uint64(done / ingestChain % ingestWorkers)}, events.HostPinned, chain, 64) {
			if err := g.index.Apply(&ev); err != nil {
				return nil, err
			}
		}
	}
	for f := range 2 * ingestWorkers {
		g.feeds = append(g.feeds, ingestMessages(wire, size, f))
	}
	for i := range g.ahead() {
		if err := g.take(g.feeds[i].worker, g.feeds[i].stored); err != nil {
			return nil, err
		}
	}
	return g, nil
}

func ingestMessages(wire string, size, number int) ingestFeed {
	feed := ingestFeed{worker: events.Worker{ID: uint64(number % ingestWorkers)}}
	c := makeTokenChain(uint64(number), ingestChain, ingestBlock)
	if wire == wireDynamo {
		for _, ev := range stores(nil, feed.worker, events.HostPinned, c.blocks, size) {
			feed.stored = append(feed.stored, events.AppendRouterEvent(nil, &ev, nil))
		}
		for _, ev := range removes(nil, feed.worker, events.HostPinned, c.blocks, size) {
			feed.removed = append(feed.removed, events.AppendRouterEvent(nil, &ev, nil))
		}
		return feed
	}
	for from := 0; from < ingestChain; from += size {
		feed.stored = append(feed.stored, events.AppendBatch(nil, c.stored(from, from+size), events.Maps))
	}
	for to := ingestChain; to > 0; to -= size {
		feed.removed = append(feed.removed, events.AppendBatch(nil, c.removed(to-size, to), events.Maps))
	}
	return feed
}

// ahead is how many chains are there at a time.
func (g *ingester) ahead() int { return len(g.feeds) / 2 }

// take ingests messages of a worker.
func (g *ingester) take(w events.Worker, messages [][]byte) error {
	for _, m := range messages {
		if g.wire == wireDynamo {
			if err := g.plane.Decode(m, &g.event); err != nil {
				return err
			}
			if err := g.index.Apply(&g.event); err != nil {
				return err
			}
			continue
		}
		if err := g.dec.Decode(m, &g.batch); err != nil {
			return err
		}
		g.id++
		g.out = g.norm.Normalize(g.out[:0], w, g.id, &g.batch)
		for i := range g.out {
			if err := g.index.Apply(&g.out[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// run stores chains and removes as many others, for about d, and returns how many block
// events a second that was, and for each second that this process had of a processor.
func (g *ingester) run(ctx context.Context, d time.Duration) (rate, perCPU float64, err error) {
	defer asClient(ctx)()
	before := g.index.Stats().Pairs[events.HostPinned]
	cpu := ownUse().CPU
	done, begin, took := 0, time.Now(), time.Duration(0)
	for ; took < d; took = time.Since(begin) {
		in, out := &g.feeds[(g.next+g.ahead())%len(g.feeds)], &g.feeds[g.next]
		if err := g.take(in.worker, in.stored); err != nil {
			return 0, 0, err
		}
		if err := g.take(out.worker, out.removed); err != nil {
			return 0, 0, err
		}
		g.next = (g.next + 1) % len(g.feeds)
		done += 2 * ingestChain
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
	}
	used := max(1, ownUse().CPU-cpu)
	st := g.index.Stats()
	if after := st.Pairs[events.HostPinned]; after != before || st.Conflicts+st.Refused > 0 || g.norm.Drops() != (events.Drops{}) {
		return 0, 0, fmt.Errorf("%d blocks became %d, %d conflicts, %d refused, dropped %v", before, after, st.Conflicts, st.Refused, g.norm.Drops())
	}
	return float64(done) / took.Seconds(), float64(done) / used.Seconds(), nil
}

func measureIngest(ctx context.Context, o Options, rep *Report) error {
	held := ingestHeld
	switch {
	case o.Smoke:
		held = 1 << 12
	case o.Quick:
		held /= 4
	}
	cases := []struct {
		wire string
		size int
		bar  Bar
	}{
		{wireVLLM, 64, Bar{Limit: ingestRate, HasLimit: true}}, {wireVLLM, 1, Bar{}},
		{wireDynamo, 64, Bar{Limit: ingestRate, HasLimit: true}}, {wireDynamo, 1, Bar{}},
	}
	// One core: the collector's work counts too.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for i, c := range cases {
		r := rep.result(Result{Suite: "hints", Name: "ingest", Params: []Param{{"wire", c.wire}, {"blocks", c.size}}, Unit: "block events/s", Better: Higher, Bar: c.bar, Across: true})
		s := r.series(ours)
		g, err := newIngester(c.wire, c.size, held)
		if err != nil {
			return err
		}
		err = o.slice(i, len(cases)).rounds(ctx, func(round int) error {
			o.Progress(fmt.Sprintf("ingestion, %s, %d blocks in a message, round %d of %d", c.wire, c.size, round+1, o.Runs))
			rate, perCPU, err := g.run(ctx, o.span())
			if err != nil {
				return err
			}
			s.Runs, s.cpu = append(s.Runs, rate), append(s.cpu, perCPU)
			s.Note = fmt.Sprintf("decode, normalise, apply; %s for each second of a processor", Number(middle(slices.Clone(s.cpu))))
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Sizes of the index that index-bytes measures.
const (
	indexWorkers = 64
	indexBlocks  = 1_000_000 // of each worker; quick 30,000
	indexBar     = 24        // bytes for each (worker, block)
)

// measureIndexBytes fills an index with chains that no two workers share, which is the
// most that (worker, block) pairs can take, and compares the heap before and after.
func measureIndexBytes(ctx context.Context, o Options, rep *Report) error {
	blocks, why := indexBlocks, ""
	free, from := arena.DefaultSize()
	switch most := int(free / (indexWorkers * besidePairBytes)); {
	case o.Smoke:
		blocks = 2000
	case o.Quick:
		blocks, why = 30_000, "quick"
	case most < blocks:
		blocks, why = most/1000*1000, fmt.Sprintf("%d MiB of memory (%s)", free>>20, from)
	}
	if why != "" {
		rep.leftOut(fmt.Sprintf("index-bytes with %d workers of %d blocks: %d blocks each (%s)", indexWorkers, indexBlocks, blocks, why))
	}
	for _, length := range []int{1000, 100, 20} {
		o.Progress(fmt.Sprintf("memory of an index, chains of %d blocks", length))
		r := rep.result(Result{Suite: "hints", Name: "index-bytes", Params: []Param{{"pairs", indexWorkers * blocks}, {"chain", length}}, Unit: "bytes/(worker, block)", Better: Lower, Across: true})
		if length == 1000 {
			r.Bar = Bar{Limit: indexBar, HasLimit: true}
		}
		before := liveHeap()
		x := plan.New(plan.Config{})
		var deal chains
		chain := make([]events.Block, length)
		for done := 0; done < blocks; done += length {
			if err := ctx.Err(); err != nil {
				return err
			}
			for w := range indexWorkers {
				deal.next(chain)
				for _, ev := range stores(nil, events.Worker{ID: uint64(w)}, events.HostPinned, chain, 64) {
					if err := x.Apply(&ev); err != nil {
						return err
					}
				}
			}
		}
		st := x.Stats()
		pairs := float64(st.Pairs[events.HostPinned])
		s := r.series(ours)
		s.Runs = []float64{float64(liveHeap()-before) / pairs}
		s.Note = fmt.Sprintf("%.2f by the index's own count", float64(st.Bytes)/pairs)
		runtime.KeepAlive(x)
	}
	runtime.GC()
	return nil
}
