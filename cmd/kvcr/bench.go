package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/kvcr-go/kvcr/bench"
	"github.com/kvcr-go/kvcr/bench/load"
	"github.com/kvcr-go/kvcr/bench/trace"
)

// benchCmd measures. Its flags are no settings: a measurement is described by
// its command line alone.
type benchCmd struct {
	JSON  string `name:"json" placeholder:"FILE" help:"Write all figures as JSON; - is standard output."`
	Quick bool   `help:"At most 45 seconds a suite: fewer and shorter rounds, less memory. For orientation."`
	Runs  int    `default:"0" help:"Rounds; 0 for 5, quick 3."`
	Only  string `placeholder:"NAME,..." help:"Only results of these names."`
	Quiet bool   `help:"No progress."`

	Engine benchEngineCmd `cmd:"" help:"Gets, mixes, puts, delivers, allocations, memory and pauses, beside other caches and Go's copy."`
	Ring   benchRingCmd   `cmd:"" help:"The command ring, beside a channel and the queues of xsync."`
	Replay benchReplayCmd `cmd:"" help:"Hit ratios on traces and keys, beside LRU, S3-FIFO and Belady's bound."`
	Node   benchNodeCmd   `cmd:"" help:"A node, beside redis-server, memcached and a plain server, where they are installed."`

	Peer benchPeerCmd `cmd:"" help:"Fetches between two processes, beside plain copies, plain sockets and ucx_perftest."`

	PeerSource  benchSourceCmd `cmd:"" hidden:"" help:"The source of the peer suite."`
	Load        benchLoadCmd   `cmd:"" hidden:"" help:"The generator of load of the node suite."`
	PlainServer benchPlainCmd  `cmd:"" hidden:"" help:"The plain server of the node suite."`
}

type benchEngineCmd struct {
	Capacity string `default:"0" placeholder:"SIZE" help:"Capacity of each cache; 0 for 1GiB, quick 256MiB."`
	Sizes    []int  `name:"size" placeholder:"BYTES,..." help:"Value sizes that caches are compared with; default 64,4096,65536."`
	Workers  int    `default:"2" help:"Goroutines, and processors used."`
	Big      bool   `help:"Also the case of ten million blocks: 2.5 GiB and a minute."`
}

type benchRingCmd struct{}

type benchReplayCmd struct {
	Trace string `default:"conversation,synthetic" placeholder:"NAME,..." help:"Traces, as for kvcr replay."`
}

// suite runs one suite and prints and writes what it found, also when it ended
// early.
func (c *benchCmd) suite(e *env, run func(bench.Options) (*bench.Report, error)) error {
	// Settings of the environment do not apply here, but a misspelt one shall
	// not pass unseen.
	if _, _, err := resolve(nil, e.environ, ""); err != nil {
		return usageError{err}
	}
	if note := busyNote(readLoad(), runtime.NumCPU()); note != "" {
		fmt.Fprintf(e.stderr, "kvcr: note: %s\n", note)
	}
	p := newProgress(e.stderr, c.Quiet)
	rep, err := run(bench.Options{
		Quick: c.Quick, Runs: c.Runs, Only: splitList(c.Only),
		Progress: func(what string) { p.say("%s", what) },
	})
	p.clear()
	if errors.As(err, new(*bench.OptionError)) {
		return usageError{err}
	}
	if len(rep.Results) > 0 {
		if c.JSON != "" {
			err = errors.Join(err, writeFile(e, c.JSON, rep.WriteJSON))
		}
		if c.JSON != "-" {
			err = errors.Join(err, rep.WriteText(e.stdout))
		}
	}
	return err
}

func splitList(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

func (c *benchEngineCmd) Run(e *env, root *cli) error {
	capacity, err := parseSize(c.Capacity)
	if err != nil {
		return usageError{err}
	}
	return root.Bench.suite(e, func(o bench.Options) (*bench.Report, error) {
		o.Capacity, o.Sizes, o.Workers, o.Big = capacity, c.Sizes, c.Workers, c.Big
		return bench.Engine(e.ctx, o)
	})
}

func (c *benchRingCmd) Run(e *env, root *cli) error {
	return root.Bench.suite(e, func(o bench.Options) (*bench.Report, error) { return bench.Ring(e.ctx, o) })
}

func (c *benchReplayCmd) Run(e *env, root *cli) error {
	var traces []*trace.Trace
	for _, name := range splitList(c.Trace) {
		tr, err := openTrace(name, "stop")
		if err != nil {
			return err
		}
		traces = append(traces, tr)
	}
	return root.Bench.suite(e, func(o bench.Options) (*bench.Report, error) { return bench.Policy(e.ctx, o, traces) })
}

type benchNodeCmd struct {
	Pin []string `placeholder:"PIN,..." enum:"one-core,none" help:"one-core: server and load on a processor each; none; default both, quick one-core."`
}

func (c *benchNodeCmd) Run(e *env, root *cli) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	return root.Bench.suite(e, func(o bench.Options) (*bench.Report, error) {
		return bench.Node(e.ctx, bench.NodeOptions{Options: o, Exe: exe, Pins: c.Pin})
	})
}

type benchLoadCmd struct {
	Spec string `arg:"" help:"A load.Spec as JSON."`
}

func (c *benchLoadCmd) Run(e *env) error {
	var spec load.Spec
	if err := json.Unmarshal([]byte(c.Spec), &spec); err != nil {
		return usageError{err}
	}
	res, err := load.Run(spec)
	if err != nil {
		return err
	}
	return json.NewEncoder(e.stdout).Encode(res)
}

type benchPlainCmd struct {
	Addr string `required:""`
	Size int    `required:""`
}

func (c *benchPlainCmd) Run(e *env) error { return bench.PlainServer(e.ctx, c.Addr, c.Size) }

type benchPeerCmd struct {
	Route   []string `placeholder:"ROUTE,..." enum:"shm,ucx-tcp,stream" help:"Routes measured: shm, ucx-tcp, stream; default all that there are."`
	Sizes   []int    `name:"size" placeholder:"BYTES,..." help:"Block sizes of fetch-bandwidth; default 262144,1048576,2097152. Route stream has 1 MiB alone."`
	Profile string   `placeholder:"FILE" help:"Leave CPU profiles of fetch-bandwidth or fetch-rate in FILE.dest and FILE.source: of what is measured last."`
}

func (c *benchPeerCmd) Run(e *env, root *cli) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	return root.Bench.suite(e, func(o bench.Options) (*bench.Report, error) {
		o.Sizes = c.Sizes
		return bench.Fetches(e.ctx, bench.PeerOptions{Options: o, Exe: exe, Routes: c.Route, Profile: c.Profile})
	})
}

type benchSourceCmd struct {
	Spec string `arg:"" help:"A bench.SourceSpec as JSON."`
}

func (c *benchSourceCmd) Run(e *env) error {
	var spec bench.SourceSpec
	if err := json.Unmarshal([]byte(c.Spec), &spec); err != nil {
		return usageError{err}
	}
	return bench.PeerSource(e.ctx, spec, os.Stdin, e.stdout)
}
