package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
)

// Options shape a suite. The zero Options are the full run.
type Options struct {
	// Quick bounds a suite to 45 seconds: fewer rounds, shorter ones, less
	// memory. Its figures are for orientation.
	Quick bool
	// Runs is the number of rounds; 0: 5, quick 3.
	Runs int
	// Only names the results wanted; empty: all.
	Only []string
	// Sizes are the bytes of the values that caches are compared with; empty:
	// 64, 4096 and 65536.
	Sizes []int
	// Workers is the number of goroutines and of processors used; 0: 2.
	Workers int
	// Capacity of the caches in bytes; 0: 1 GiB, quick 256 MiB.
	Capacity int64
	// Big adds the cases that need over 2 GiB of memory and a minute.
	Big bool
	// Smoke makes everything as small as it can be: it runs every case and checks
	// every byte, and measures nothing. Implies Quick.
	Smoke bool
	// Progress hears what begins now; nil: nobody does.
	Progress func(what string)
	// Profiles are being taken of this suite; nil: none. Processes that it starts
	// leave theirs as well.
	Profiles *Profiles

	// until is when no further round begins; zero: never.
	until time.Time
}

func (o Options) withDefaults() Options {
	if o.Smoke {
		o.Quick = true
		if o.Runs == 0 {
			o.Runs = 1
		}
		if o.Capacity == 0 {
			o.Capacity = 16 << 20
		}
	}
	if o.Runs == 0 {
		o.Runs = 5
		if o.Quick {
			o.Runs = 3
		}
	}
	if len(o.Sizes) == 0 {
		o.Sizes = []int{64, 4096, 65536}
	}
	if o.Workers == 0 {
		o.Workers = 2
	}
	if o.Capacity == 0 {
		o.Capacity = 1 << 30
		if o.Quick {
			o.Capacity = 256 << 20
		}
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	return o
}

// OptionError names an option that no suite can work with.
type OptionError struct {
	Option string
	Value  any
	Limit  string
}

func (e *OptionError) Error() string {
	return fmt.Sprintf("bench: %s = %v: %s", e.Option, e.Value, e.Limit)
}

// validate reports every bad option. names are the results of the suite.
func (o Options) validate(names []string) error {
	var errs []error
	if o.Runs < 1 {
		errs = append(errs, &OptionError{"Runs", o.Runs, "at least 1"})
	}
	for _, n := range o.Sizes {
		if n < 16 || int64(n) > o.Capacity/64 {
			errs = append(errs, &OptionError{"Sizes", n, "16 bytes to a 64th of the capacity"})
		}
	}
	if o.Workers < 1 {
		errs = append(errs, &OptionError{"Workers", o.Workers, "at least 1"})
	}
	if o.Capacity < 16<<20 {
		errs = append(errs, &OptionError{"Capacity", o.Capacity, "at least 16 MiB"})
	}
	for _, n := range o.Only {
		if !slices.Contains(names, n) {
			errs = append(errs, &OptionError{"Only", n, fmt.Sprintf("one of %v", names)})
		}
	}
	return errors.Join(errs...)
}

func (o Options) wants(names ...string) bool {
	return len(o.Only) == 0 || slices.ContainsFunc(names, func(n string) bool { return slices.Contains(o.Only, n) })
}

// quickBudget is what Quick promises, less the last round of each part.
const quickBudget = 40 * time.Second

// slice gives o the share i of n of the time left, of equal ones from i on.
func (o Options) slice(i, n int) Options {
	if !o.until.IsZero() {
		o.until = time.Now().Add(time.Until(o.until) / time.Duration(n-i))
	}
	return o
}

// rounds calls measure for each round, at least once, until time is up.
func (o Options) rounds(ctx context.Context, measure func(round int) error) error {
	for round := range o.Runs {
		if err := ctx.Err(); err != nil {
			return err
		}
		if round > 0 && !o.until.IsZero() && time.Now().After(o.until) {
			return nil
		}
		if err := measure(round); err != nil {
			return err
		}
	}
	return nil
}

// span is how long one measurement of one implementation lasts.
func (o Options) span() time.Duration {
	switch {
	case o.Smoke:
		return time.Millisecond
	case o.Quick:
		return 50 * time.Millisecond
	}
	return 400 * time.Millisecond
}

// keys bounds the number of keys for a run that is in a hurry, where loading
// the caches would take longer than measuring them.
func (o Options) keys(n int) int {
	switch {
	case o.Smoke:
		return min(n, 2<<10)
	case o.Quick:
		return min(n, 1<<20)
	}
	return n
}

// steps is the length of a walk: about as many accesses as one measurement
// makes, so that the walk does not visit few keys again and again.
func (o Options) steps() int {
	switch {
	case o.Smoke:
		return 4 << 10
	case o.Quick:
		return 256 << 10
	}
	return 1 << 20
}

// processors sets GOMAXPROCS for a suite and returns the undo.
func (o Options) processors() func() {
	before := runtime.GOMAXPROCS(o.Workers)
	return func() { runtime.GOMAXPROCS(before) }
}

// part is one measured piece of a suite.
type part struct {
	names  []string // of its results
	weight int      // its part of the time of a quick run
	run    func(ctx context.Context, o Options, rep *Report) error
}

// runParts runs the parts that o wants, in order, and returns what was
// measured also when one of them fails.
func runParts(ctx context.Context, o Options, parts []part) (*Report, error) {
	o = o.withDefaults()
	var names []string
	for _, p := range parts {
		names = append(names, p.names...)
	}
	rep := &Report{workers: o.Workers}
	if err := o.validate(names); err != nil {
		return rep, err
	}
	parts = slices.DeleteFunc(parts, func(p part) bool { return !o.wants(p.names...) })
	left := 0
	for _, p := range parts {
		left += p.weight
	}
	defer o.processors()()
	start := time.Now()
	for _, p := range parts {
		po := o
		if o.Quick {
			budget := quickBudget - time.Since(start)
			po.until = time.Now().Add(budget * time.Duration(p.weight) / time.Duration(left))
			left -= p.weight
		}
		if err := p.run(ctx, po, rep); err != nil {
			return rep, fmt.Errorf("bench: %s: %w", p.names[0], err)
		}
	}
	return rep, nil
}

// closedLoop runs work on n goroutines for about d after a short warm-up and
// returns nanoseconds for each operation as one of them sees it. work(i, n)
// does n operations as worker i; chunk is how many it does between two looks
// at the clock.
func closedLoop(ctx context.Context, n int, d time.Duration, chunk int, work func(worker, ops int) error) (float64, error) {
	type outcome struct {
		ops     int
		elapsed time.Duration
		err     error
	}
	outcomes := make([]outcome, n)
	var ready, done sync.WaitGroup
	begin := make(chan struct{})
	ready.Add(n)
	for i := range n {
		done.Add(1)
		go func() {
			defer done.Done()
			asClient(ctx)
			out := &outcomes[i]
			ready.Done()
			<-begin
			for _, phase := range []time.Duration{d / 10, d} {
				out.ops = 0
				start := time.Now()
				for out.elapsed = 0; out.elapsed < phase; out.elapsed = time.Since(start) {
					if out.err = work(i, chunk); out.err == nil {
						out.err = ctx.Err()
					}
					if out.err != nil {
						return
					}
					out.ops += chunk
				}
			}
		}()
	}
	ready.Wait()
	close(begin)
	done.Wait()
	var ops int
	var elapsed time.Duration
	for _, out := range outcomes {
		if out.err != nil {
			return 0, out.err
		}
		ops += out.ops
		elapsed += out.elapsed
	}
	return float64(elapsed.Nanoseconds()) / float64(ops), nil
}

// chunkFor is how many operations on values of size bytes go between two
// looks at the clock: enough that the look costs under a percent.
func chunkFor(size int) int { return max(1, min(64, 1<<20/size)) }
