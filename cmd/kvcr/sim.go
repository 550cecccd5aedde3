package main

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/kvcr-go/kvcr/bench"
	"github.com/kvcr-go/kvcr/internal/sim"
	"github.com/kvcr-go/kvcr/wire"
)

// simCmd runs the transfer protocol over a simulated network. Its flags are no
// settings: a schedule is described by its command line alone.
type simCmd struct {
	N       uint64 `short:"n" name:"schedules" default:"100000" placeholder:"N" help:"Schedules, of seeds that follow one another."`
	Seed    uint64 `default:"1" placeholder:"N" help:"Seed of the first."`
	Nodes   int    `default:"0" placeholder:"N" help:"Nodes, 2 to 8; 0: chosen by the seed."`
	Mode    string `default:"any" enum:"any,calm,tcp,harsh" help:"How bad the network is: any, calm, tcp, harsh."`
	Route   string `default:"any" enum:"any,shm,ucx,ucx-put,stream" help:"Route of the payload: any, shm, ucx, ucx-put, stream."`
	Workers int    `default:"0" placeholder:"N" help:"Schedules at once; 0: one for each processor."`
	Trace   bool   `help:"Print what happens: for one schedule."`
	Quiet   bool   `help:"No progress."`
}

// simBatch is how many seeds a worker takes at a time.
const simBatch = 64

func (c *simCmd) options() (sim.Options, error) {
	o := sim.Options{Nodes: c.Nodes}
	var err error
	if o.Mode, err = sim.ParseMode(c.Mode); err != nil {
		return o, usageError{err}
	}
	for r := wire.RouteShm; c.Route != "any"; r++ {
		if r.String() == c.Route {
			o.Route = r
			break
		}
	}
	if c.Nodes != 0 && (c.Nodes < 2 || c.Nodes > sim.MaxNodes) {
		return o, usageError{fmt.Errorf("flag: nodes: %d; 2 to %d are possible", c.Nodes, sim.MaxNodes)}
	}
	if c.Trace && c.N != 1 {
		return o, usageError{errors.New("flag: trace: shows one schedule; add -n 1 --seed N")}
	}
	return o, nil
}

func (c *simCmd) Run(e *env) error {
	o, err := c.options()
	if err != nil {
		return err
	}
	if c.Trace {
		o.Trace = func(line string) { e.printf("%s\n", line) }
	}
	p := newProgress(e.stderr, c.Quiet)
	began := time.Now()
	total, err := c.runAll(e, o, p)
	p.clear()
	if total.Schedules > 0 {
		if err := printSim(e, &total, time.Since(began)); err != nil {
			return err
		}
	}
	var v *sim.Violation
	if errors.As(err, &v) {
		e.printf("\n%s", sim.Shrink(v, 500).Details())
		return fmt.Errorf("%w; again: kvcr sim -n 1 --trace --seed %d --mode %s --route %s --nodes %d", err, v.Options.Seed, c.Mode, c.Route, c.Nodes)
	}
	return err
}

// runAll spreads the seeds over workers. It returns what they saw, and the first
// error.
func (c *simCmd) runAll(e *env, o sim.Options, p *progress) (total sim.Report, err error) {
	workers := c.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex // guards next, total and err
		next uint64
	)
	began := time.Now()
	take := func(done *sim.Report, failed error) (from, n uint64) {
		mu.Lock()
		defer mu.Unlock()
		total.Add(done)
		if err == nil {
			err = failed
		}
		if err == nil {
			err = e.ctx.Err()
		}
		if err != nil || next == c.N {
			return 0, 0
		}
		rate := float64(total.Schedules) / time.Since(began).Seconds()
		p.say("schedule %s of %s, %s/s, %s moves, %s removed, %s lost in the stated window", count(total.Schedules), count(int(c.N)),
			count(int(rate)), count(total.Moves), count(total.Removed), count(total.Window))
		n = min(simBatch, c.N-next)
		from = c.Seed + next
		next += n
		return from, n
	}
	for range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			var mine sim.Report
			var failed error
			for {
				from, n := take(&mine, failed)
				if n == 0 {
					return
				}
				mine = sim.Report{}
				for i := uint64(0); i < n && failed == nil; i++ {
					o := o
					o.Seed = from + i
					var r sim.Report
					r, failed = sim.Run(o)
					mine.Add(&r)
				}
			}
		}()
	}
	wg.Wait()
	return total, err
}

func printSim(e *env, r *sim.Report, elapsed time.Duration) error {
	row := func(name string, n int, what string) []string { return []string{name, count(n), what} }
	rows := [][]string{
		row("schedules", r.Schedules, fmt.Sprintf("%s/s, %s steps", count(int(float64(r.Schedules)/elapsed.Seconds())), count(r.Steps))),
		row("asked", r.Operations+r.Moves, fmt.Sprintf("blocks: %s to copy, %s to move", count(r.Operations), count(r.Moves))),
		row("copied", r.Copies, ""),
		row("delivered", r.Delivered, ""),
		row("moved", r.Removed, "removed at the source"),
		row("lost", r.Window, "in the stated window: the destination died after it confirmed, before that was read"),
		{},
	}
	for s, n := range r.Kept {
		if n > 0 {
			rows = append(rows, row("kept", n, wire.Status(s).String()))
		}
	}
	rows = append(rows, []string{})
	for s, n := range r.Failed {
		if n > 0 {
			rows = append(rows, row("failed", n, wire.Status(s).String()))
		}
	}
	rows = append(rows, []string{},
		row("cuts", r.Cuts, "connections or links"),
		row("crashes", r.Crashes, fmt.Sprintf("%s restarts", count(r.Restarts))),
		row("stalls", r.Stalls, fmt.Sprintf("and %s clocks stepped", count(r.ClockSteps))),
		row("messages", r.Lost, fmt.Sprintf("lost, %s repeated, %s of an earlier life", count(r.Repeated), count(r.Ghosts))),
		row("payloads", r.Broken, fmt.Sprintf("broken off, %s words corrupted", count(r.Corrupted))),
		row("quarantined", r.Quarantined, "slots, for a time"),
	)
	return bench.WriteColumns(e.stdout, "lrl", rows)
}
