package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/bench"
	"github.com/kvcr-go/kvcr/bench/trace"
)

// replayCmd replays a trace. Flags that are settings too are nil when not
// given: then environment and file decide, then the defaults named here.
type replayCmd struct {
	File string `name:"config" placeholder:"FILE" help:"YAML file with settings (also KVCR_CONFIG)."`

	Trace    string  `default:"conversation" placeholder:"NAME" help:"A file of requests (Mooncake JSONL), or conversation, synthetic, generated. A recorded trace that is not there is generated in its shape."`
	Capacity *string `placeholder:"SIZE" help:"Size of the cache: percent of the trace's different blocks, or bytes. Default 10%."`
	Block    *string `placeholder:"SIZE" help:"Bytes of a block: a multiple of 64, of 4 KiB from 4 KiB up. Default 4KiB."`
	Policy   *string `placeholder:"NAME" help:"Eviction policy. Default density."`
	Seed     *string `placeholder:"N" help:"Seed of the policy's sampling."`
	OnBroken string  `default:"stop" enum:"stop,continue" help:"On a line that is no request: stop, or continue and count it."`
	SVG      string  `name:"svg" placeholder:"FILE" help:"Draw hit ratios against capacity beside LRU, S3-FIFO and Belady's bound: replays at six capacities."`
	JSON     string  `name:"json" placeholder:"FILE" help:"Write the result as JSON; - is standard output."`
	Quiet    bool    `help:"No progress."`
}

// replayPlan is what a replay shall do.
type replayPlan struct {
	percent float64 // of the different blocks; 0: bytes
	bytes   int64
	block   int
	policy  string
	seed    uint64
	memory  kvcr.Memory
}

func (c *replayCmd) plan(e *env) (replayPlan, error) {
	given := map[string]string{}
	for name, v := range map[string]*string{"block": c.Block, "policy": c.Policy, "seed": c.Seed} {
		if v != nil {
			given[name] = *v
		}
	}
	p := replayPlan{block: bench.DefaultBlockBytes}
	if c.Capacity != nil {
		var err error
		if p.percent, err = parsePercent(*c.Capacity); err != nil {
			return p, usageError{fmt.Errorf("flag: capacity: %w", err)}
		}
		if p.percent == 0 {
			given["capacity"] = *c.Capacity
		}
	}
	_, cfg, err := resolve(given, e.environ, e.configFile(c.File))
	if err != nil {
		return p, usageError{err}
	}
	if p.percent == 0 {
		if p.bytes = cfg.Capacity; p.bytes == 0 {
			p.percent = 10
		}
	}
	if len(cfg.ns.Pools) > 0 {
		p.block = cfg.ns.Pools[0].SlotBytes
	}
	p.policy, p.seed, p.memory = cfg.ns.Policy, cfg.Seed, cfg.Memory
	return p, nil
}

// parsePercent reads 10%; what has no percent sign is 0.
func parsePercent(s string) (float64, error) {
	text, ok := strings.CutSuffix(strings.TrimSpace(s), "%")
	if !ok {
		return 0, nil
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || !(v > 0 && v <= 100) {
		return 0, fmt.Errorf("%q is no percentage over 0 and up to 100", s)
	}
	return v, nil
}

// blocks is the capacity in blocks.
func (p replayPlan) blocks(tr *trace.Trace) int {
	if p.percent > 0 {
		return bench.CapacityOf(tr, p.percent)
	}
	return int(max(1, p.bytes/int64(p.block)))
}

// traceNames are the names that stand for a trace beside files.
var traceNames = []string{"conversation", "synthetic", "generated"}

// openTrace reads a trace. A bare name that is neither a file nor known is a
// mistake and not a wish for a generated trace.
func openTrace(name, onBroken string) (*trace.Trace, error) {
	if _, err := os.Stat(name); err != nil && !slices.Contains(traceNames, name) && !strings.ContainsAny(name, "./") {
		return nil, usageError{fmt.Errorf("trace %q: no such file, nor one of %s%s", name, strings.Join(traceNames, ", "), nearest(name, traceNames))}
	}
	opts := trace.Options{OnBroken: trace.Stop}
	if onBroken == "continue" {
		opts.OnBroken = trace.Continue
	}
	tr, err := trace.Open(name, ".", opts)
	if err != nil {
		return nil, fmt.Errorf("trace %s: %w", name, err)
	}
	return tr, nil
}

// outcome is the JSON form of a replay.
type outcome struct {
	*bench.ReplayResult
	Models []bench.Curve `json:"models"` // at the same capacity
}

func (c *replayCmd) Run(e *env) error {
	pl, err := c.plan(e)
	if err != nil {
		return err
	}
	tr, err := openTrace(c.Trace, c.OnBroken)
	if err != nil {
		return err
	}
	p := newProgress(e.stderr, c.Quiet)
	defer p.clear()
	o := bench.ReplayOptions{
		Trace: tr, Blocks: pl.blocks(tr), BlockBytes: pl.block, Policy: pl.policy, Seed: pl.seed, Memory: pl.memory,
		Progress: func(r bench.ReplayProgress) {
			p.say("%s: request %s of %s (%d %%), %.1f %% usable hits, %d wrong bytes, %s", tr.Name, count(r.Requests), count(r.Total),
				100*r.Requests/r.Total, 100*float64(r.Hits)/float64(max(1, r.Blocks)), r.WrongBytes, r.Elapsed.Round(100*time.Millisecond))
		},
	}
	res, err := bench.Replay(e.ctx, o)
	if errors.Is(err, kvcr.ErrConfig) {
		return usageError{err}
	}
	if err != nil {
		return err
	}
	models, err := bench.ModelCurves(e.ctx, tr, []float64{100 * float64(res.Capacity) / float64(res.Unique)}, func(what string) { p.say("%s", what) })
	if err != nil {
		return err
	}
	if c.SVG != "" {
		if err := c.chart(e, o, p); err != nil {
			return err
		}
	}
	p.clear()
	if c.JSON != "" {
		err := writeFile(e, c.JSON, func(w io.Writer) error {
			enc := json.NewEncoder(w)
			enc.SetIndent("", "  ")
			return enc.Encode(outcome{res, models})
		})
		if err != nil {
			return err
		}
	}
	if c.JSON != "-" {
		if err := printReplay(e.stdout, res, models, c.SVG); err != nil {
			return err
		}
	}
	if res.WrongBytes > 0 {
		return fmt.Errorf("%d wrong bytes in %d blocks", res.WrongBytes, res.WrongBlocks)
	}
	return nil
}

// chart replays at each of the capacities that policies are compared at.
func (c *replayCmd) chart(e *env, o bench.ReplayOptions, p *progress) error {
	say := func(what string) { p.say("chart: %s", what) }
	o.Progress = nil
	mine, _, err := bench.EngineCurve(e.ctx, o, bench.Percents, say)
	if err != nil {
		return err
	}
	models, err := bench.ModelCurves(e.ctx, o.Trace, bench.Percents, say)
	if err != nil {
		return err
	}
	chart := bench.Chart{Title: o.Trace.Name + ": usable-prefix hits", Curves: append([]bench.Curve{mine}, models...)}
	return writeFile(e, c.SVG, chart.WriteSVG)
}

func printReplay(w io.Writer, r *bench.ReplayResult, models []bench.Curve, svg string) error {
	origin := ""
	if r.Made {
		origin = ", generated"
	}
	if r.Broken > 0 {
		origin += fmt.Sprintf(", %s broken lines passed over", count(r.Broken))
	}
	rows := [][]string{
		{"trace", fmt.Sprintf("%s%s: %s requests, %s blocks, %s different", r.Trace, origin, count(r.Requests), count(r.Blocks), count(r.Unique))},
		{"cache", fmt.Sprintf("%s blocks of %s, %.1f %% of the different ones; policy %s", count(r.Capacity), formatSize(int64(r.BlockBytes)),
			100*float64(r.Capacity)/float64(r.Unique), r.Policy)},
		{"memory", fmt.Sprintf("%s used of %s reserved, metadata included", formatSize(r.MemoryUsed), formatSize(r.MemoryReserved))},
		{},
		{"usable hits", fmt.Sprintf("%6.2f %%  kvcr: resident, and all blocks before them", r.PrefixPercent())},
	}
	for _, m := range models {
		rows = append(rows, []string{"", fmt.Sprintf("%6.2f %%  %s", m.Ratios[0].Prefix, m.Label)})
	}
	rows = append(rows,
		[]string{"block hits", fmt.Sprintf("%6.2f %%  kvcr: resident, usable or not; %s unreachable at the end", r.BlockPercent(), count(r.Unreachable))},
		[]string{},
		[]string{"speed", fmt.Sprintf("%s blocks/s, %s/s read and verified or written, %s in all", count(int(math.Round(r.BlocksPerSecond()))),
			formatSize(int64(r.BytesPerSecond())), r.Elapsed.Round(time.Millisecond))},
		[]string{"get", serviceTimes(r.Get)},
		[]string{"deposit", serviceTimes(r.Deposit)},
		[]string{"", "service times of one block in a closed loop: not what a schedule would see"},
		[]string{},
	)
	if r.Refused > 0 {
		rows = append(rows, []string{"refused", count(r.Refused) + " blocks, for lack of memory"})
	}
	verdict := "every byte of every hit was right"
	if r.WrongBytes > 0 {
		verdict = fmt.Sprintf("%s WRONG bytes in %s blocks", count(int(r.WrongBytes)), count(r.WrongBlocks))
	}
	rows = append(rows, []string{"verified", formatSize(r.VerifiedBytes) + ": " + verdict})
	if svg != "" {
		rows = append(rows, []string{"chart", svg})
	}
	return bench.WriteColumns(w, "ll", rows)
}

func serviceTimes(l bench.Latency) string {
	return fmt.Sprintf("p50 %s, p99 %s, p99.9 %s", short(l.P50), short(l.P99), short(l.P999))
}

// short rounds a duration to three digits.
func short(d time.Duration) string {
	unit := time.Nanosecond
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}

// count writes n with a comma after each three digits.
func count(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
