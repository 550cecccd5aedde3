package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/kvcr-go/kvcr/bench"
	"github.com/kvcr-go/kvcr/bench/trace"
)

// routerdemoCmd shows what hints are worth: the requests of a trace over several
// nodes, routed alike without hints and with them.
type routerdemoCmd struct {
	Trace    string `default:"conversation" placeholder:"NAME" help:"Whose requests: a file of requests (Mooncake JSONL), or conversation, synthetic, generated."`
	Requests int    `default:"150" placeholder:"N" help:"How many of them, from the first."`
	Nodes    int    `default:"3" placeholder:"N" help:"Processes, 2 to 16."`
	Block    string `default:"64KiB" placeholder:"SIZE" help:"Bytes of a block, which stands for 512 tokens."`
	Share    int    `default:"40" placeholder:"PERCENT" help:"What part of all blocks fits into one node."`
	Quiet    bool   `help:"No progress."`
}

func (c *routerdemoCmd) Run(e *env) error {
	block, err := parseSize(c.Block)
	switch {
	case err != nil:
		return usageError{err}
	case block < 4<<10 || block > 2<<20 || block%4096 != 0:
		return usageError{fmt.Errorf("--block %s: must be 4KiB to 2MiB, a multiple of 4KiB", c.Block)}
	case c.Nodes < 2 || c.Nodes > 16:
		return usageError{fmt.Errorf("--nodes %d: must be 2 to 16", c.Nodes)}
	case c.Requests < 1:
		return usageError{fmt.Errorf("--requests %d: must be at least 1", c.Requests)}
	case c.Share < 5 || c.Share > 200:
		return usageError{fmt.Errorf("--share %d: must be 5 to 200 percent", c.Share)}
	}
	tr, err := openTrace(c.Trace, "stop")
	if err != nil {
		return err
	}
	requests := related(tr.Requests, c.Requests)
	distinct := map[uint64]bool{}
	for _, r := range requests {
		for _, id := range r.IDs {
			distinct[id] = true
		}
	}
	slots := max(64, len(distinct)*c.Share/100, int(1<<20/block)) // a node has 1 MiB at least
	p := newProgress(e.stderr, c.Quiet)
	defer p.clear()
	begun := time.Now()
	var runs []*fleetRun
	for _, hinted := range []bool{false, true} {
		run, err := c.run(e.ctx, p, requests, int(block), slots, hinted)
		if err != nil {
			p.clear()
			return err
		}
		runs = append(runs, run)
	}
	p.clear()
	return c.print(e.stdout, tr, runs, len(requests), len(distinct), slots, block, time.Since(begun))
}

// related returns the first requests that share more than their first block with
// another one: the turns of conversations. What no other request shares no router can
// help with.
func related(all []trace.Request, most int) (out []trace.Request) {
	second := map[[2]uint64]int{}
	for _, r := range all {
		if len(r.IDs) > 1 {
			second[[2]uint64(r.IDs)]++
		}
	}
	for _, r := range all {
		if len(r.IDs) > 1 && second[[2]uint64(r.IDs)] > 1 && len(out) < most {
			out = append(out, r)
		}
	}
	if len(out) == 0 {
		return all[:min(most, len(all))]
	}
	return out
}

// run sends all requests through fresh nodes.
func (c *routerdemoCmd) run(ctx context.Context, p *progress, requests []trace.Request, block, slots int, hinted bool) (run *fleetRun, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	what := "without hints"
	if hinted {
		what = "with hints"
	}
	p.say("%s: %d nodes start", what, c.Nodes)
	f, err := startFleet(ctx, c.Nodes, block, slots)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.stop()) }()
	for i, r := range requests {
		for _, id := range r.IDs {
			f.lastUse[id] = i
		}
	}
	run = &fleetRun{hinted: hinted, actions: map[string]*fleetAction{}}
	for i, r := range requests {
		p.say("%s: request %d of %d", what, i+1, len(requests))
		if err := f.request(ctx, run, i, r.IDs); err != nil {
			return nil, fmt.Errorf("%s, request %d: %w", what, i+1, err)
		}
	}
	if err := f.settle(ctx, run); err != nil {
		return nil, err
	}
	p.say("%s: every block is read back", what)
	return run, f.verify(ctx, run)
}

func (c *routerdemoCmd) print(w io.Writer, tr *trace.Trace, runs []*fleetRun, requests, distinct, slots int, block int64, took time.Duration) error {
	origin := tr.Name
	if tr.Made && origin != "generated" {
		origin += ", generated"
	}
	fmt.Fprintf(w, "A router sends %d requests of a trace (%s) to %d nodes, each with room for %d of their %s blocks of %s (512 tokens). It knows what each node holds from its events, and routes by the prefix that is there and by load; with hints it also says where the rest is, and moves blocks about.\n\n",
		requests, origin, c.Nodes, slots, count(distinct), formatSize(block))
	rows := [][]string{{"", "prompt tokens", "reused local", "reused remote", "computed", "reused"}}
	wrong := 0
	for _, r := range runs {
		name := "no hints"
		if r.hinted {
			name = "hints"
		}
		share := 100 * float64(r.local+r.remote) / float64(max(1, r.blocks))
		rows = append(rows, []string{name, count(512 * r.blocks), count(512 * r.local), count(512 * r.remote), count(512 * (r.blocks - r.local - r.remote)), fmt.Sprintf("%.1f %%", share)})
		wrong += r.wrong
	}
	if err := bench.WriteColumns(w, "lrrrrr", rows); err != nil {
		return err
	}
	hinted := runs[1]
	fmt.Fprintf(w, "\nWhat the router asked for beside that, and how it ended:\n\n")
	rows = [][]string{{"action", "sent", "blocks", "copied", "moved", "kept", "removed", "present", "failed"}}
	for _, typ := range hintTypes {
		if a := hinted.actions[typ]; a != nil {
			rows = append(rows, []string{typ, count(a.sent), count(a.blocks), count(a.copied), count(a.moved), count(a.kept), count(a.removed), count(a.present), count(a.failed)})
		}
	}
	if err := bench.WriteColumns(w, "lrrrrrrrr", rows); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nkv.fetch is advice: %d requests had it. %s of blocks were compared byte by byte, %d bytes were wrong. Every other action that was accepted has ended. %.1f s.\n",
		hinted.advised, formatSize(runs[0].verified+runs[1].verified), wrong, took.Seconds())
	switch {
	case wrong > 0:
		return fmt.Errorf("%d wrong bytes", wrong)
	case hinted.open > 0:
		return fmt.Errorf("%d actions have no end", hinted.open)
	case hinted.local+hinted.remote < runs[0].local+runs[0].remote:
		return errors.New("hints have made less be reused than there was without")
	}
	return nil
}
