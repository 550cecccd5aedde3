package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/kvcr-go/kvcr/bench"
	"github.com/kvcr-go/kvcr/bench/page"
)

// benchCmd measures. Its flags are no settings: a measurement is described by its
// command line alone.
//
// A suite is a field of this struct whose type is a benchSuite: what lists suites
// or runs all of them finds it here.
type benchCmd struct {
	JSON       string   `name:"json" placeholder:"FILE" help:"Write all figures as JSON; - is standard output."`
	Report     string   `placeholder:"DIR" help:"Write a page with charts, DIR/index.html."`
	Compare    string   `placeholder:"OLD.json" help:"Compare with what an earlier run wrote as JSON."`
	Profile    []string `placeholder:"KIND,..." enum:"cpu,mem,mutex,block,trace" help:"Take profiles: cpu, mem, mutex, block, trace. Samples say suite and role, those of processor time the shard too. They cost time: such figures are for orientation."`
	ProfileDir string   `default:"profiles" placeholder:"DIR" help:"Where profiles go, as SUITE.KIND.pprof."`
	Quick      bool     `help:"At most 45 seconds a suite, 10 minutes in all: fewer and shorter rounds, less memory. For orientation."`
	Smoke      bool     `help:"Run every case as small as it can be: all bytes are checked, nothing is measured."`
	Runs       int      `default:"0" help:"Rounds; 0 for 5, quick 3."`
	Only       string   `placeholder:"NAME,..." help:"Only results of these names."`
	Quiet      bool     `help:"No progress."`

	Engine benchEngineCmd `cmd:"" help:"Gets, mixes, puts, delivers, allocations, memory and pauses, beside other caches and Go's copy."`
	Ring   benchRingCmd   `cmd:"" help:"The command ring, beside a channel and the queues of xsync."`
	Replay benchReplayCmd `cmd:"" help:"Hit ratios on traces and keys, beside LRU, S3-FIFO and Belady's bound."`
	Node   benchNodeCmd   `cmd:"" help:"A node, beside redis-server, memcached and a plain server, where they are installed."`
	Trace  benchTraceCmd  `cmd:"" help:"Traces against a whole node, each request at its time: waits, services, and whether it keeps up."`
	Soak   benchSoakCmd   `cmd:"" help:"Nodes under mixed clients, peers and hints with faults: every byte checked, nothing left behind."`
	Peer   benchPeerCmd   `cmd:"" help:"Fetches between two processes, beside plain copies, plain sockets and ucx_perftest."`
	Hints  benchHintsCmd  `cmd:"" help:"Hints served, events published and ingested: beside what the reference says of itself."`
	Plan   benchPlanCmd   `cmd:"" help:"The planner over its 15 fixtures, a process for each sample; lookups beside events; the planner beside its oracle."`
	Scale  benchScaleCmd  `cmd:"" help:"A router and up to a thousand nodes in virtual time: how the cost of a request grows with nodes, blocks and requests."`

	All benchAllCmd `cmd:"" help:"All suites, each in a process of its own, and what became of every bar. With --runs 3 it took 39 minutes on two processors, a third of it the engine suite; with --quick at most 10."`

	Suites       benchListCmd    `cmd:"" default:"1" help:"List the suites."`
	FromStored   benchStoredCmd  `cmd:"" name:"report" help:"Say what became of every bar, make the page, or compare, from stored results."`
	ShowProfiles benchProfileCmd `cmd:"" name:"profile" help:"Say where the time went in profiles."`

	PeerSource  benchSourceCmd   `cmd:"" hidden:"" help:"The source of the peer suite."`
	PlanSample  benchSampleCmd   `cmd:"" hidden:"" help:"One sample of the planner's suite."`
	Load        benchLoadCmd     `cmd:"" hidden:"" help:"The generator of load of the node suite."`
	PlainServer benchPlainCmd    `cmd:"" hidden:"" help:"The plain server of the node suite."`
	SoakClient  benchVanishCmd   `cmd:"" hidden:"" help:"A client of the soak, which is killed."`
	Profiled    benchProfiledCmd `cmd:"" hidden:"" help:"Another command, with profiles taken of it."`
}

// benchSuite is a suite's command.
type benchSuite interface {
	// measure runs the suite. What was measured counts also when it fails.
	measure(e *env, o bench.Options) (*bench.Report, error)
}

// suitesOf are the commands of suites, in order.
func suitesOf(root *kong.Node) (suites []*kong.Node) {
	for _, n := range root.Children {
		if n.Name == "bench" {
			for _, c := range n.Children {
				if _, ok := c.Target.Addr().Interface().(benchSuite); ok {
					suites = append(suites, c)
				}
			}
		}
	}
	return suites
}

// commandLine is what was typed, without the program's name.
type commandLine []string

// outputFlags say what becomes of the figures, and are no part of what made them.
var outputFlags = []string{"--json", "--report", "--compare", "--profile-dir", "--quiet", "--svg"}

// measured is the command that made the figures.
func (args commandLine) measured() string {
	out := []string{"kvcr"}
	for i := 0; i < len(args); i++ {
		name, _, joined := strings.Cut(args[i], "=")
		if slices.Contains(outputFlags, name) {
			if !joined && name != "--quiet" {
				i++ // its value
			}
			continue
		}
		out = append(out, args[i])
	}
	return strings.Join(out, " ")
}

// Run runs the suite that was asked for: suites have no Run of their own. It prints
// and writes what was found, also when it ended early.
func (c *benchCmd) Run(e *env, k *kong.Context, args commandLine) error {
	node := k.Selected()
	s, ok := node.Target.Addr().Interface().(benchSuite)
	if !ok {
		return nil // another command, which has run by now
	}
	// Settings of the environment do not apply here, but a misspelt one shall
	// not pass unseen.
	if _, _, err := resolve(nil, e.environ, ""); err != nil {
		return usageError{err}
	}
	if note := busyNote(readLoad(), runtime.NumCPU()); note != "" {
		fmt.Fprintf(e.stderr, "kvcr: note: %s\n", note)
	}
	old, err := c.stored()
	if err != nil {
		return err
	}
	rep, err := c.suite(e, node.Name, s, args)
	if errors.As(err, new(*bench.OptionError)) {
		return usageError{err}
	}
	if len(rep.Results)+len(rep.Absent) > 0 {
		if c.JSON != "-" {
			err = errors.Join(err, rep.WriteText(e.stdout))
			e.printf("took %v\n", rep.Conditions.Took.Round(time.Second/10))
		}
		err = errors.Join(err, c.output(e, rep.Rows(), old))
	}
	return err
}

// suite runs one, with its profiles.
func (c *benchCmd) suite(e *env, name string, s benchSuite, args commandLine) (rep *bench.Report, err error) {
	p := newProgress(e.stderr, c.Quiet)
	o := bench.Options{
		Quick: c.Quick, Smoke: c.Smoke, Runs: c.Runs, Only: splitList(c.Only),
		Progress: func(what string) { p.say("%s", what) },
	}
	here := bench.Here("/")
	here.Command, here.Revision = args.measured(), versionText()
	here.Quick, here.Smoke, here.Profiles = c.Quick, c.Smoke, c.Profile
	if len(c.Profile) > 0 {
		if o.Profiles, err = bench.StartProfiles(name, filepath.Join(c.ProfileDir, name), c.Profile); err != nil {
			return &bench.Report{}, err
		}
	}
	start := time.Now()
	bench.Labelled(e.ctx, name, bench.RoleGenerator, func(ctx context.Context) {
		labelled := *e
		labelled.ctx = ctx
		rep, err = s.measure(&labelled, o)
	})
	here.Took = time.Since(start)
	if o.Profiles != nil {
		err = errors.Join(err, o.Profiles.Stop())
	}
	p.clear()
	if rep == nil {
		rep = &bench.Report{}
	}
	if err != nil {
		here.Error = err.Error()
	}
	if c.Smoke {
		rep.Unjudge("a smoke run measures nothing")
	}
	rep.Suite, rep.Conditions = name, &here
	return rep, err
}

// stored reads what this run is to be compared with: before it takes its time.
func (c *benchCmd) stored() ([]bench.Row, error) {
	if c.Compare == "" {
		return nil, nil
	}
	rows, err := readRows(c.Compare)
	if err != nil {
		return nil, usageError{err}
	}
	return rows, nil
}

// bars says what became of each.
func (c *benchCmd) bars(e *env, rows []bench.Row) error {
	text := e.stdout
	if c.JSON == "-" {
		text = e.stderr
	}
	return bench.WriteBars(text, bench.Judge(rows))
}

// output writes rows where the flags say.
func (c *benchCmd) output(e *env, rows, old []bench.Row) error {
	var errs []error
	if c.JSON != "" {
		errs = append(errs, writeFile(e, c.JSON, func(w io.Writer) error { return bench.WriteRows(w, rows) }))
	}
	text := e.stdout
	if c.JSON == "-" {
		text = e.stderr
	}
	if c.Report != "" {
		path := filepath.Join(c.Report, "index.html")
		err := os.MkdirAll(c.Report, 0o755)
		if err == nil {
			err = writeFile(e, path, func(w io.Writer) error { return page.Write(w, rows) })
		}
		if err == nil {
			fmt.Fprintf(text, "the page is %s\n", path)
		}
		errs = append(errs, err)
	}
	if len(c.Profile) > 0 {
		fmt.Fprintf(text, "profiles are in %s: kvcr bench profile %s\n", c.ProfileDir, c.ProfileDir)
	}
	if old != nil {
		fmt.Fprintf(text, "\ncompared with %s\n", c.Compare)
		errs = append(errs, bench.WriteCompare(text, old, rows))
	}
	return errors.Join(errs...)
}

func readRows(path string) ([]bench.Row, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	rows, err := bench.ReadRows(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return rows, nil
}

func splitList(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}
