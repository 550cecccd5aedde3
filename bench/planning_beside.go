package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/kvcr-go/kvcr/arena"
	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

// What plan-beside-events looks up in, and what comes meanwhile.
const (
	besideWorkers = 64
	besideBlocks  = 1_000_000 // of each worker; quick 30,000
	besideChain   = 1000      // blocks of a prompt
	besideTargets = 8
	besideRate    = 1_000_000 // block events a second
	besideEvent   = 64        // blocks of an event
	// besidePairBytes is what a (worker, block) is allowed while the index grows:
	// tables are copied as they double.
	besidePairBytes = 64
	// besideTimes is how many times the quiet p99 a busy one may be.
	besideTimes = 3
)

// besideSize is how many blocks each worker gets, and why not all, if so.
func (o Options) besideSize() (blocks int, why string) {
	switch {
	case o.Smoke:
		return 4 * besideChain, "smoke"
	case o.Quick:
		return 30 * besideChain, "quick"
	}
	free, from := arena.DefaultSize()
	most := int(free / (besideWorkers * besidePairBytes) / besideChain * besideChain)
	if most < besideBlocks {
		return max(besideChain, most), fmt.Sprintf("%d MiB of memory (%s)", free>>20, from)
	}
	return besideBlocks, ""
}

// besideIndex is a full index and prompts to look up in it.
type besideIndex struct {
	index   *plan.Index
	scratch *plan.Scratch
	prompts [][]uint64
	choices []plan.Choice
	// What the writer applies in turn: a chain comes, and one that came before goes.
	come, leave [][]events.RouterEvent
}

func newBesideIndex(ctx context.Context, blocks int, progress func(string)) (*besideIndex, error) {
	b := &besideIndex{index: plan.New(plan.Config{})}
	var members []plan.Member
	for w := range besideWorkers {
		members = append(members, plan.Member{Owner: plan.Owner{Worker: events.Worker{ID: uint64(w)}}, Type: "aggregated", Endpoint: fmt.Sprintf("tcp://10.0.0.%d:17771", w)})
	}
	for t := range besideTargets {
		members = append(members, plan.Member{Owner: plan.Owner{Worker: events.Worker{ID: uint64(1000 + t)}}, Type: "aggregated", Capable: true})
	}
	b.index.SetTopology(members)
	b.scratch = b.index.NewScratch()
	var deal chains
	var evs []events.RouterEvent
	chain := make([]events.Block, besideChain)
	apply := func() error {
		for i := range evs {
			if err := b.index.Apply(&evs[i]); err != nil {
				return err
			}
		}
		evs = evs[:0]
		return nil
	}
	for done := 0; done < blocks; done += besideChain {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		progress(fmt.Sprintf("lookups beside events: %d of %d blocks for each of %d workers", done, blocks, besideWorkers))
		for w := range besideWorkers {
			deal.next(chain)
			evs = stores(evs, events.Worker{ID: uint64(w)}, events.HostPinned, chain, besideEvent)
			if (done/besideChain+w)%97 == 0 { // some prompts, of all workers and ages
				var locals []uint64
				for _, bl := range chain {
					locals = append(locals, bl.Local)
				}
				b.prompts = append(b.prompts, locals)
				for t := range besideTargets {
					evs = stores(evs, events.Worker{ID: uint64(1000 + t)}, events.Device, chain[:besideChain/4], besideEvent)
				}
			}
			if err := apply(); err != nil {
				return nil, err
			}
		}
	}
	for i := range 256 {
		w := events.Worker{ID: uint64(i % besideWorkers)}
		chain := make([]events.Block, 512)
		deal.next(chain)
		b.come = append(b.come, stores(nil, w, events.HostPinned, chain, besideEvent))
		b.leave = append(b.leave, removes(nil, w, events.HostPinned, chain, besideEvent))
	}
	return b, nil
}

// lookups times whole lookups, match and plan for all targets, for about d.
func (b *besideIndex) lookups(ctx context.Context, d time.Duration, seed uint64) (sorted []time.Duration, err error) {
	defer asClient(ctx)()
	r := rand.New(rand.NewPCG(seed, 1))
	took := make([]time.Duration, 0, 1<<20)
	for begin := time.Now(); (time.Since(begin) < d || len(took) < planLeast) && len(took) < cap(took); {
		locals := b.prompts[r.IntN(len(b.prompts))]
		start := time.Now()
		b.choices = b.index.Choose(b.scratch, locals, b.choices)
		took = append(took, time.Since(start))
		if len(b.choices) != besideTargets || b.choices[0].Kind == plan.None || b.choices[0].End != besideChain {
			return nil, fmt.Errorf("a lookup beside events has %d answers, the first %+v; want %d that reach block %d", len(b.choices), b.choices[:min(1, len(b.choices))], besideTargets, besideChain)
		}
		if len(took)%1024 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	slices.Sort(took)
	return took, nil
}

// besideBehind is how many chains are there beyond those of the beginning.
const besideBehind = 128

// write applies block events at besideRate until stop is closed, leaves the index as it
// was, and returns how many a second that were.
func (b *besideIndex) write(stop <-chan struct{}) (rate float64, err error) {
	applied, next := 0, 0 // block events, chains
	apply := func(evs []events.RouterEvent) {
		for i := range evs {
			if e := b.index.Apply(&evs[i]); e != nil {
				err = e
			}
			applied += len(evs[i].Blocks) + len(evs[i].Hashes)
		}
	}
	stopped := func() bool {
		select {
		case <-stop:
			return true
		default:
			return false
		}
	}
	begin := time.Now()
	for !stopped() {
		if applied >= int(time.Since(begin).Seconds()*besideRate) {
			time.Sleep(500 * time.Microsecond) // as events come: several at a time
			continue
		}
		apply(b.come[next%len(b.come)])
		if next >= besideBehind {
			apply(b.leave[(next-besideBehind)%len(b.leave)])
		}
		next++
	}
	rate = float64(applied) / time.Since(begin).Seconds()
	for i := max(0, next-besideBehind); i < next; i++ {
		apply(b.leave[i%len(b.leave)])
	}
	return rate, err
}

// beside measures lookups alone and while events arrive, in turn.
func (s *planSuite) beside(ctx context.Context, o Options, rep *Report) error {
	blocks, why := o.besideSize()
	if why != "" {
		rep.leftOut(fmt.Sprintf("plan-beside-events with %d workers of %d blocks: %d blocks each (%s)", besideWorkers, besideBlocks, blocks, why))
	}
	b, err := newBesideIndex(ctx, blocks, o.Progress)
	if err != nil {
		return err
	}
	defer runtime.GC()
	result := func(stat, load, unit string) *Result {
		params := []Param{{"blocks", besideWorkers * blocks}, {"stat", stat}}
		name := "plan-beside-events"
		if load != "" {
			params = append(params, Param{"load", load})
		} else {
			name += "-ratio"
		}
		return rep.result(Result{Suite: "plan", Name: name, Params: params, Unit: unit, Better: Lower, Across: load != ""})
	}
	percents := []struct {
		stat string
		at   int
	}{{"p50", 50}, {"p99", 99}}
	for _, p := range percents {
		result(p.stat, "quiet", "us")
		result(p.stat, "busy", "us")
	}
	d := 5 * o.span()
	if _, err := b.lookups(ctx, d/5, 0); err != nil { // warm
		return err
	}
	return o.rounds(ctx, func(round int) error {
		o.Progress(fmt.Sprintf("lookups beside events, round %d of %d", round+1, o.Runs))
		quiet, err := b.lookups(ctx, d, uint64(round))
		if err != nil {
			return err
		}
		stop := make(chan struct{})
		type written struct {
			rate float64
			err  error
		}
		ended := make(chan written, 1)
		go func() {
			rate, err := b.write(stop)
			ended <- written{rate, err}
		}()
		busy, err := b.lookups(ctx, d, uint64(round))
		close(stop)
		w := <-ended
		if err == nil {
			err = w.err
		}
		if err != nil {
			return err
		}
		note := fmt.Sprintf("%s block events a second", Number(w.rate))
		for _, p := range percents {
			q, l := atPercentile(quiet, p.at)/1e3, atPercentile(busy, p.at)/1e3
			qs, ls := result(p.stat, "quiet", "us").series(ours), result(p.stat, "busy", "us").series(ours)
			qs.Runs, ls.Runs = append(qs.Runs, q), append(ls.Runs, l)
			qs.Note = "busy: " + note
		}
		r := result("p99", "", "of the quiet one")
		r.Bar = Bar{Limit: besideTimes, HasLimit: true}
		sr := r.series(ours)
		sr.Runs, sr.Note = append(sr.Runs, atPercentile(busy, 99)/atPercentile(quiet, 99)), note
		if w.rate < 0.95*besideRate && !o.Smoke {
			rep.leftOut(fmt.Sprintf("plan-beside-events: round %d had only %s of %s block events a second", round+1, Number(w.rate), Number(besideRate)))
		}
		return nil
	})
}
