package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"

	"github.com/kvcr-go/kvcr/bench"
	"github.com/kvcr-go/kvcr/bench/load"
	"github.com/kvcr-go/kvcr/bench/page"
	"github.com/kvcr-go/kvcr/bench/soak"
	"github.com/kvcr-go/kvcr/bench/trace"
)

type benchEngineCmd struct {
	Capacity string `default:"0" placeholder:"SIZE" help:"Capacity of each cache; 0 for 1GiB, quick 256MiB."`
	Sizes    []int  `name:"size" placeholder:"BYTES,..." help:"Value sizes that caches are compared with; default 64,4096,65536."`
	Workers  int    `default:"2" help:"Goroutines, and processors used."`
	Big      bool   `help:"Also the case of ten million blocks: 2.5 GiB and a minute."`
}

func (c *benchEngineCmd) measure(e *env, o bench.Options) (*bench.Report, error) {
	var err error
	if o.Capacity, err = parseSize(c.Capacity); err != nil {
		return nil, usageError{err}
	}
	o.Sizes, o.Workers, o.Big = c.Sizes, c.Workers, c.Big
	return bench.Engine(e.ctx, o)
}

// amongAll has every bar measured, where time is no matter.
func (c *benchEngineCmd) amongAll(root *benchCmd) []string {
	if root.Quick || root.Smoke {
		return nil
	}
	return []string{"--big"}
}

type benchRingCmd struct{}

func (c *benchRingCmd) measure(e *env, o bench.Options) (*bench.Report, error) {
	return bench.Ring(e.ctx, o)
}

type benchReplayCmd struct {
	Trace string `default:"conversation,synthetic" placeholder:"NAME,..." help:"Traces, as for kvcr replay."`
}

func (c *benchReplayCmd) measure(e *env, o bench.Options) (*bench.Report, error) {
	traces, err := openTraces(c.Trace)
	if err != nil {
		return nil, err
	}
	return bench.Policy(e.ctx, o, traces)
}

func openTraces(names string) (traces []*trace.Trace, err error) {
	for _, name := range splitList(names) {
		tr, err := openTrace(name, "stop")
		if err != nil {
			return nil, err
		}
		traces = append(traces, tr)
	}
	return traces, nil
}

type benchTraceCmd struct {
	Trace string    `default:"conversation,synthetic" placeholder:"NAME,..." help:"Traces, as for kvcr replay."`
	Speed []float64 `placeholder:"TIMES,..." help:"How many times as fast as they were recorded requests come; default 120."`
}

func (c *benchTraceCmd) measure(e *env, o bench.Options) (*bench.Report, error) {
	traces, err := openTraces(c.Trace)
	if err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return bench.Trace(e.ctx, bench.TraceOptions{Options: o, Exe: exe, Traces: traces, Speeds: c.Speed})
}

type benchNodeCmd struct {
	Pin []string `placeholder:"PIN,..." enum:"one-core,none" help:"one-core: server and load on a processor each; none; default both, quick one-core."`
}

func (c *benchNodeCmd) measure(e *env, o bench.Options) (*bench.Report, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return bench.Node(e.ctx, bench.NodeOptions{Options: o, Exe: exe, Pins: c.Pin})
}

type benchPeerCmd struct {
	Route []string `placeholder:"ROUTE,..." enum:"shm,ucx-tcp,stream" help:"Routes measured: shm, ucx-tcp, stream; default all that there are."`
	Sizes []int    `name:"size" placeholder:"BYTES,..." help:"Block sizes of fetch-bandwidth; default 262144,1048576,2097152. Quick, route stream has 1 MiB alone."`
}

func (c *benchPeerCmd) measure(e *env, o bench.Options) (*bench.Report, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	o.Sizes = c.Sizes
	return bench.Fetches(e.ctx, bench.PeerOptions{Options: o, Exe: exe, Routes: c.Route})
}

type benchHintsCmd struct{}

func (c *benchHintsCmd) measure(e *env, o bench.Options) (*bench.Report, error) {
	return bench.Hints(e.ctx, o)
}

type benchPlanCmd struct {
	Base  string `placeholder:"KVCR" help:"Another build of this program: its processes take turns with those of this one."`
	Check int    `default:"0" placeholder:"N" help:"Compare the planner with its oracle over N inventories at random, and measure nothing."`
	Seed  uint64 `default:"1" placeholder:"N" help:"Of the first inventory of --check."`
}

func (c *benchPlanCmd) measure(e *env, o bench.Options) (*bench.Report, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return bench.Planning(e.ctx, bench.PlanOptions{Options: o, Exe: exe, Base: c.Base, Check: c.Check, Seed: c.Seed})
}

type benchSampleCmd struct {
	Spec string `arg:"" help:"A bench.PlanSpec as JSON."`
}

func (c *benchSampleCmd) Run(e *env) error {
	var spec bench.PlanSpec
	if err := json.Unmarshal([]byte(c.Spec), &spec); err != nil {
		return usageError{err}
	}
	return bench.PlanSample(e.ctx, spec, e.stdout)
}

type benchScaleCmd struct {
	Trace string   `default:"conversation" placeholder:"NAME" help:"Trace that requests are like, as for kvcr replay."`
	Sweep []string `placeholder:"SIZE,..." enum:"nodes,blocks,requests" help:"What grows: nodes, blocks, requests; default all, one after the other."`
	SVG   string   `name:"svg" placeholder:"FILE" help:"Draw cost against size, a chart for each sweep."`
}

func (c *benchScaleCmd) measure(e *env, o bench.Options) (*bench.Report, error) {
	tr, err := openTrace(c.Trace, "stop")
	if err != nil {
		return nil, err
	}
	rep, err := bench.Scale(e.ctx, bench.ScaleOptions{Options: o, Trace: tr, Sweeps: c.Sweep})
	if c.SVG != "" && len(rep.Results) > 0 {
		err = errors.Join(err, writeFile(e, c.SVG, func(w io.Writer) error { return page.WriteScale(w, rep.Rows()) }))
	}
	return rep, err
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

type benchSoakCmd struct {
	For   time.Duration `default:"0s" placeholder:"TIME" help:"How long the load lasts; 0 for 10m, quick 30s, smoke 3s, 1m among all suites."`
	Nodes int           `default:"3" placeholder:"N" help:"Node processes, 2 to 8."`
	Seed  uint64        `default:"0" placeholder:"N" help:"Of all choices; 0 for any. When things happen is up to the machine."`
	Kind  []string      `placeholder:"KIND,..." enum:"flat,chained" help:"Of namespaces, one after the other; default both, smoke chained."`
}

func (c *benchSoakCmd) measure(e *env, o bench.Options) (*bench.Report, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return soak.Run(e.ctx, soak.Options{Options: o, Exe: exe, For: c.For, Nodes: c.Nodes, Seed: c.Seed, Kinds: c.Kind})
}

// amongAll keeps a soak short where all suites run.
func (c *benchSoakCmd) amongAll(root *benchCmd) []string {
	if root.Quick || root.Smoke {
		return nil
	}
	return []string{"--for", "1m"}
}

type benchVanishCmd struct {
	Spec string `arg:"" help:"A soak.VanishSpec as JSON."`
}

func (c *benchVanishCmd) Run(e *env) error {
	var spec soak.VanishSpec
	if err := json.Unmarshal([]byte(c.Spec), &spec); err != nil {
		return usageError{err}
	}
	return soak.Vanish(e.ctx, spec, e.stdout)
}
