package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/hints/plan/fixture"
)

// PlanOptions are those of the planner's suite, Planning.
type PlanOptions struct {
	Options
	// Exe is this program: each sample is taken by a process of it.
	Exe string
	// Base is another build of this program, whose processes take turns with those
	// of Exe; empty: none.
	Base string
	// Check, if above 0, compares the planner with its oracle over so many
	// inventories at random, from Seed on, and measures nothing.
	Check int
	Seed  uint64
}

const (
	// planRuns is how many processes each arm has of each fixture.
	planRuns = 6
	implBase = "base"
	// implReference is the planner that the table of the router's contract is of.
	implReference = "reference"
	referenceNote = "as published for its own machine (Xeon 6975P-C, one pinned core)"
)

// published is what the reference says of a fixture, in microseconds; 0 where it says
// nothing. Source: the continuation pull request, after its optimisations.
type published struct{ p50, p99, kib float64 }

var publishedPlans = map[string]published{
	"f01": {7.37, 7.86, 0}, "f02": {35.76, 40.53, 0}, "f03": {61.81, 67.71, 0}, "f04": {93.63, 100.62, 0}, "f05": {90.09, 96.50, 0},
	"f06": {122.19, 129.21, 550}, "f07": {2.23, 2.56, 0}, "f08": {176.57, 185.49, 0}, "f09": {495.93, 514.73, 2184}, "f10": {62.29, 0, 0}, "f11": {83.00, 0, 0},
}

// planBar is half of what the reference takes; where nothing is to be planned, next to
// nothing.
func planBar(id string) Bar {
	switch p := publishedPlans[id].p50; {
	case id == "f07":
		return Bar{Limit: 2, HasLimit: true}
	case p > 0:
		return Bar{Limit: p / 2, HasLimit: true}
	}
	return Bar{}
}

// planSuite is one run of the suite.
type planSuite struct {
	PlanOptions
	shapes []planShape
	cpu    int // that the samples are pinned to
}

type planShape struct {
	id      string
	sources int
}

// Planning measures the planner of hints over its 15 fixtures, each sample in a process
// of its own, and lookups beside events; or it compares the planner with its oracle.
func Planning(ctx context.Context, o PlanOptions) (*Report, error) {
	if o.Runs == 0 {
		o.Runs = planRuns
		if o.Smoke {
			o.Runs = 1
		}
	}
	s := &planSuite{PlanOptions: o, cpu: cpuAt(max(0, allowedCPUs()-1))}
	if o.Check < 0 {
		return &Report{}, &OptionError{"Check", o.Check, "0 or more inventories"}
	}
	if o.Check > 0 {
		if o.Workers == 0 {
			s.Options.Workers = allowedCPUs()
		}
		return runParts(ctx, s.Options, []part{{[]string{"check"}, 1, s.check}})
	}
	for _, id := range fixture.IDs() {
		v, err := fixture.Build(id)
		if err != nil {
			return &Report{}, err
		}
		s.shapes = append(s.shapes, planShape{id, len(v.Sources) + len(v.Caches)})
	}
	rep, err := runParts(ctx, s.Options, []part{
		{[]string{"plan", "plan-again"}, 24, s.times},
		{[]string{"plan-bytes"}, 3, s.bytes},
		{[]string{"plan-beside-events"}, 10, s.beside},
	})
	if len(o.Only) == 0 {
		rep.absent(checkResult(checkEnough, 1), fmt.Sprintf("takes a quarter of an hour: kvcr bench plan --check %d", checkEnough))
	}
	return rep, err
}

// arm is one of several builds or names whose processes take turns.
type arm struct{ impl, exe string }

// times measures all fixtures. The first two arms are one build under two names: what
// they differ by is noise.
func (s *planSuite) times(ctx context.Context, o Options, rep *Report) error {
	arms := []arm{{ours, s.Exe}, {again, s.Exe}}
	if s.Base != "" {
		arms = append(arms, arm{implBase, s.Base})
	}
	stats := []string{"p50", "p99"}
	same := func(f planShape, stat string) *Result {
		return rep.result(Result{Suite: "plan", Name: "plan-again", Params: []Param{{"stat", stat}, {"fixture", f.id}}, Unit: "of the first", Better: Lower, Across: true})
	}
	for _, f := range s.shapes {
		for _, stat := range stats {
			r := s.result(rep, f, stat)
			r.series(ours).Note = "median of processes"
			if p := publishedPlans[f.id]; p.p50 > 0 {
				if v := map[string]float64{"p50": p.p50, "p99": p.p99}[stat]; v > 0 {
					ref := r.series(implReference)
					ref.Runs, ref.Note = []float64{v}, referenceNote
				}
			}
		}
	}
	for _, stat := range stats {
		for _, f := range s.shapes {
			same(f, stat)
		}
	}
	return o.rounds(ctx, func(round int) error {
		for _, f := range s.shapes {
			o.Progress(fmt.Sprintf("%s, process %d of %d of each arm", f.id, round+1, o.Runs))
			took := map[string]planSample{}
			for i := range arms {
				a := arms[(i+round)%len(arms)]
				sample, err := s.sample(ctx, o, a.exe, PlanSpec{Fixture: f.id, For: o.span() / 2, CPU: s.cpu})
				if err != nil {
					return fmt.Errorf("%s: %s: %w", f.id, a.impl, err)
				}
				if !sample.Pinned {
					rep.leftOut("plan: processes could not be pinned to one processor")
				}
				took[a.impl] = sample
			}
			for _, stat := range stats {
				r := s.result(rep, f, stat)
				for _, a := range arms {
					if a.impl != again {
						sr := r.series(a.impl)
						sr.Runs = append(sr.Runs, took[a.impl].stat(stat)/1e3)
					}
				}
				sr := same(f, stat).series(ours)
				sr.Runs = append(sr.Runs, took[again].stat(stat)/took[ours].stat(stat))
			}
		}
		return nil
	})
}

// result is the row of one fixture.
func (s *planSuite) result(rep *Report, f planShape, stat string) *Result {
	r := Result{Suite: "plan", Name: "plan", Params: []Param{{"fixture", f.id}, {"sources", f.sources}, {"stat", stat}}, Unit: "us", Better: Lower, Across: true}
	if stat == "p50" {
		r.Bar = planBar(f.id)
	}
	return rep.result(r)
}

// bytes counts what an operation allocates, apart from the runs that are timed.
func (s *planSuite) bytes(ctx context.Context, o Options, rep *Report) error {
	for _, f := range s.shapes {
		o.Progress("allocations of " + f.id)
		r := rep.result(Result{Suite: "plan", Name: "plan-bytes", Params: []Param{{"fixture", f.id}}, Unit: "allocated bytes/op", Better: Lower, Across: true})
		if f.id == "f06" || f.id == "f09" {
			r.Bar = Bar{HasLimit: true}
		}
		sample, err := s.sample(ctx, o, s.Exe, PlanSpec{Fixture: f.id, For: o.span() / 4, CPU: s.cpu, Count: true})
		if err != nil {
			return fmt.Errorf("%s: %w", f.id, err)
		}
		r.series(ours).Runs = []float64{sample.Bytes}
		ref := r.series(implReference)
		if kib := publishedPlans[f.id].kib; kib > 0 {
			ref.Runs = []float64{kib * 1024}
		}
	}
	return nil
}

// sample has a process measure.
func (s *planSuite) sample(ctx context.Context, o Options, exe string, spec PlanSpec) (out planSample, err error) {
	arg, err := json.Marshal(spec)
	if err != nil {
		return out, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, o.Profiles.child("sample", "bench", "plan-sample", string(arg))...)
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	text, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
		}
		return out, err
	}
	return out, json.Unmarshal(text, &out)
}

// atPercentile is the value below which so many percent of sorted values are.
func atPercentile(sorted []time.Duration, percent int) float64 {
	return float64(sorted[min(len(sorted)*percent/100, len(sorted)-1)].Nanoseconds())
}
