package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kvcr-go/kvcr/hints/plan/oracle"
)

// checkLot is how many inventories are checked between two looks at the context.
const checkLot = 5000

// checkEnough inventories without a difference are what the planner is believed after.
const checkEnough = 1_000_000

func checkResult(inventories int, seed uint64) Result {
	return Result{Suite: "plan", Name: "check", Params: []Param{{"inventories", inventories}, {"seed", seed}}, Unit: "differences", Better: Lower, Bar: Bar{HasLimit: true}}
}

// check compares the planner with its oracle. A difference is the suite's error, with
// the shortest story that shows it.
func (s *planSuite) check(ctx context.Context, o Options, rep *Report) error {
	seed := s.Seed
	if seed == 0 {
		seed = 1
	}
	r := rep.result(checkResult(s.Check, seed))
	begin := time.Now()
	var total oracle.Counts
	var mu sync.Mutex // progress comes from any goroutine
	for lot := uint64(0); total.Inventories < s.Check; lot++ {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("after %d of %d inventories: %w", total.Inventories, s.Check, err)
		}
		// Lots are far apart in seeds: how many one takes is not known before.
		c, err := oracle.Run(min(checkLot, s.Check-total.Inventories), seed+lot<<32, oracle.Index, func(done int) {
			mu.Lock()
			defer mu.Unlock()
			all := total.Inventories + done
			o.Progress(fmt.Sprintf("%s of %s inventories agree, %s a second", Number(float64(all)), Number(float64(s.Check)), Number(float64(all)/time.Since(begin).Seconds())))
		})
		if err != nil {
			r.series(ours).Runs = []float64{1}
			return fmt.Errorf("inventories of seed %d on: %w", seed+lot<<32, err)
		}
		total = addCounts(total, c)
		if !o.until.IsZero() && time.Now().After(o.until) && total.Inventories < s.Check {
			rep.leftOut(fmt.Sprintf("check: %s of %s inventories (quick)", Number(float64(s.Check-total.Inventories)), Number(float64(s.Check))))
			break
		}
	}
	sr := r.series(ours)
	sr.Runs = []float64{0}
	sr.Note = fmt.Sprintf("%s inventories, %s events, %s questions, %s root prefixes, %s continuations, %s without a source, in %v",
		Number(float64(total.Inventories)), Number(float64(total.Events)), Number(float64(total.Asks)), Number(float64(total.Roots)), Number(float64(total.Continuations)), Number(float64(total.Nones)), time.Since(begin).Round(time.Second))
	return nil
}

func addCounts(a, b oracle.Counts) oracle.Counts {
	a.Inventories += b.Inventories
	a.Events += b.Events
	a.Asks += b.Asks
	a.Roots += b.Roots
	a.Continuations += b.Continuations
	a.Nones += b.Nones
	return a
}
