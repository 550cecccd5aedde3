package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kvcr-go/kvcr/arena"
	"github.com/kvcr-go/kvcr/bench"
	"github.com/kvcr-go/kvcr/bench/trace"
	"github.com/kvcr-go/kvcr/wire"
)

// peerdemoCmd shows the exchange of blocks between two processes of this program.
type peerdemoCmd struct {
	Trace  string   `default:"conversation" placeholder:"NAME" help:"Whose blocks: a file of requests (Mooncake JSONL), or conversation, synthetic, generated."`
	Bytes  string   `default:"auto" placeholder:"SIZE" help:"All blocks together; auto: 1/32 of the machine's memory, 64 to 256 MiB."`
	Block  string   `default:"1MiB" placeholder:"SIZE" help:"Bytes of a block, 256KiB to 2MiB."`
	Per    int      `default:"8" placeholder:"N" help:"Blocks of one operation, 1 to 128."`
	Routes []string `default:"shm,ucx,stream" placeholder:"NAME,..." help:"Ways for payload; what this build or machine lacks is left out by name."`
	Quiet  bool     `help:"No progress."`
}

// pinEvery is how many blocks there are for each one that A keeps in place, so that
// its move ends as a copy.
const pinEvery = 64

// pageIDs are beyond all ids of traces.
const pageIDs = 1 << 48

// setup chooses the blocks.
func (c *peerdemoCmd) setup() (s demoSetup, tr *trace.Trace, err error) {
	block, err := parseSize(c.Block)
	if err != nil {
		return s, nil, usageError{err}
	}
	if block < 256<<10 || block > 2<<20 || block%4096 != 0 {
		return s, nil, usageError{fmt.Errorf("--block %s: must be 256KiB to 2MiB, a multiple of 4KiB", c.Block)}
	}
	if c.Per < 1 || c.Per > wire.MaxItems {
		return s, nil, usageError{fmt.Errorf("--per %d: must be 1 to %d", c.Per, wire.MaxItems)}
	}
	for _, r := range c.Routes {
		if err := oneOf(r, peerRoutes...); err != nil {
			return s, nil, usageError{fmt.Errorf("--routes: %w", err)}
		}
	}
	var all int64
	if c.Bytes == "auto" {
		limit, _ := arena.MemoryLimit()
		all = min(max(limit/32, 64<<20), 256<<20)
	} else if all, err = parseSize(c.Bytes); err != nil {
		return s, nil, usageError{err}
	}
	blocks := int(all / block)
	if blocks < 16 {
		return s, nil, usageError{fmt.Errorf("--bytes %s: must be at least 16 blocks", c.Bytes)}
	}
	if tr, err = openTrace(c.Trace, "stop"); err != nil {
		return s, nil, err
	}
	s = demoSetup{Block: int(block), Slots: blocks + 1, Chains: chainsOf(tr, blocks)}
	for i := range min(len(s.ids(false)), wire.MaxItems) {
		s.Page = append(s.Page, pageIDs+uint64(i))
	}
	return s, tr, nil
}

// chainsOf takes the first different blocks of a trace, in the chains in which its
// requests bring them.
func chainsOf(tr *trace.Trace, blocks int) (chains []demoChain) {
	seen := map[uint64]bool{}
	for i := range tr.Requests {
		ids := tr.Requests[i].IDs
		at := 0
		for at < len(ids) && seen[ids[at]] {
			at++
		}
		c := demoChain{Position: at}
		if at > 0 {
			c.Parent = ids[at-1]
		}
		for at < len(ids) && !seen[ids[at]] && len(seen) < blocks {
			seen[ids[at]] = true
			c.IDs = append(c.IDs, ids[at])
			at++
		}
		if len(c.IDs) > 0 {
			chains = append(chains, c)
		}
		if len(seen) == blocks {
			break
		}
	}
	return chains
}

func (c *peerdemoCmd) Run(e *env) error {
	setup, tr, err := c.setup()
	if err != nil {
		return err
	}
	p := newProgress(e.stderr, c.Quiet)
	defer p.clear()
	d := &demo{env: e, setup: setup, per: c.Per, progress: p, align: "llrrrrrl"}
	begun := time.Now()
	for _, route := range c.Routes {
		err := d.route(route)
		var none *noRoute
		if errors.As(err, &none) {
			d.table = append(d.table, []string{route, "-", "-", "-", "-", "-", "-", "left out: " + none.why})
			err = nil
		}
		if err != nil {
			p.clear()
			return errors.Join(fmt.Errorf("route %s: %w", route, err), d.print(e.stdout, tr, time.Since(begun)))
		}
	}
	p.clear()
	if err := d.print(e.stdout, tr, time.Since(begun)); err != nil {
		return err
	}
	return d.verdict()
}

// demo is one run: what was seen so far.
type demo struct {
	env      *env
	setup    demoSetup
	per      int
	progress *progress

	align string
	table [][]string
	kills [][]string
	wrong int // bytes
	lost  int // blocks
}

// route shows all with two fresh processes.
func (d *demo) route(route string) (err error) {
	ctx, cancel := context.WithTimeout(d.env.ctx, 5*time.Minute)
	defer cancel()
	setup := d.setup
	setup.Route = route
	open := func(name string) (*other, error) {
		setup.Name = name
		return startOther(ctx, d.env, setup)
	}
	a, err := open("A")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.stop()) }()
	b, err := open("B")
	if err != nil {
		return err
	}
	// b is another process after the kill.
	defer func() { err = errors.Join(err, b.stop()) }()
	if _, err := a.say(demoAsk{Do: "deposit", Pin: pinEvery}); err != nil {
		return err
	}
	label := route
	for _, verb := range []string{"first fetch", "fetch", "deliver", "move"} {
		d.progress.say("%s: %s", route, verb)
		if _, err := b.say(demoAsk{Do: "drop"}); err != nil {
			return err
		}
		got, err := b.say(demoAsk{Do: strings.TrimPrefix(verb, "first "), Source: a.endpoint, Per: d.per})
		if err != nil {
			return err
		}
		if !strings.HasPrefix(got.Route, route) {
			return fmt.Errorf("the nodes took route %s", got.Route)
		}
		d.row(label, verb, got)
		label = ""
	}
	// Wherever a move ended, somebody has the block.
	if _, err := d.served(false, a, b); err != nil {
		return err
	}
	d.progress.say("%s: kill", route)
	return d.kill(route, a, &b, open)
}

// row adds what one verb did to the table.
func (d *demo) row(route, verb string, got demoAnswer) {
	d.wrong += got.Wrong
	outcome := "all arrived"
	if n := len(d.setup.ids(false)); got.Blocks < n {
		d.lost += n - got.Blocks
		outcome = fmt.Sprintf("%d of %d did NOT arrive: %s", n-got.Blocks, n, reasons(got.Failed))
	} else if verb == "move" {
		outcome = fmt.Sprintf("%d moved", got.Moved)
		if len(got.Kept) > 0 {
			outcome += ", A kept " + reasons(got.Kept)
		}
	}
	if got.Wrong > 0 {
		outcome += fmt.Sprintf("; %d WRONG bytes", got.Wrong)
	}
	var sum float64
	for _, t := range got.Times {
		sum += t
	}
	slices.Sort(got.Times)
	quantile := func(q float64) string {
		if len(got.Times) == 0 {
			return "-"
		}
		return short(time.Duration(got.Times[int(q*float64(len(got.Times)-1)+0.5)] * float64(time.Second)))
	}
	speed := "-"
	bytes := int64(got.Blocks) * int64(d.setup.Block)
	if sum > 0 {
		speed = fmt.Sprintf("%.2f", float64(bytes)/sum/1e9)
	}
	d.table = append(d.table, []string{route, verb, count(got.Blocks), formatSize(bytes), speed, quantile(0.5), quantile(0.99), outcome})
}

// reasons writes 3 no_evict, 1 held.
func reasons(m map[string]int) string {
	var parts []string
	for _, why := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%d (%s)", m[why], why))
	}
	return strings.Join(parts, ", ")
}

// served counts the blocks that at least one of the processes has, each compared
// byte by byte, and notes those that none has.
func (d *demo) served(page bool, from ...*other) (int, error) {
	have := map[uint64]bool{}
	for _, o := range from {
		got, err := o.say(demoAsk{Do: "have", Page: page})
		if err != nil {
			return 0, err
		}
		d.wrong += got.Wrong
		for _, id := range got.IDs {
			have[id] = true
		}
	}
	d.lost += len(d.setup.ids(page)) - len(have)
	return len(have), nil
}

// killTries is how often B is killed until it was in the midst: another program may
// have the processor just then.
const killTries = 10

// kill has B move a page and kills it when half of that has come. Then A must have
// all; B is started again and moves the page.
func (d *demo) kill(route string, a *other, b **other, open func(string) (*other, error)) error {
	for range killTries {
		for _, o := range []*other{a, *b} {
			if _, err := o.say(demoAsk{Do: "drop"}); err != nil {
				return err
			}
		}
		if _, err := a.say(demoAsk{Do: "deposit", Page: true}); err != nil {
			return err
		}
		whole, err := a.say(demoAsk{Do: "have", Page: true})
		if err != nil {
			return err
		}
		half, err := (*b).say(demoAsk{Do: "move", Page: true, Source: a.endpoint, Half: true})
		if err != nil {
			return err
		}
		(*b).kill()
		if _, err := a.say(demoAsk{Do: "alone"}); err != nil {
			return err
		}
		left, err := a.say(demoAsk{Do: "have", Page: true})
		if err != nil {
			return err
		}
		if *b, err = open("B"); err != nil {
			return err
		}
		d.wrong += whole.Wrong + left.Wrong
		n := len(d.setup.Page)
		given := left.Given - whole.Given
		d.lost += n - left.Blocks - given
		if given > 0 || half.Half == n {
			continue // too late: the page was B's by then, and went with it as anything in a cache does
		}
		got, err := (*b).say(demoAsk{Do: "move", Page: true, Source: a.endpoint})
		if err != nil {
			return err
		}
		all, err := d.served(true, a, *b)
		if err != nil {
			return err
		}
		d.kills = append(d.kills, []string{route, count(n), count(half.Half), count(left.Blocks), count(got.Blocks), fmt.Sprintf("%d of %d", all, n)})
		return nil
	}
	return fmt.Errorf("B had moved all before it was killed, %d times: give it more with --bytes", killTries)
}

// verdict fails the command when not all went well.
func (d *demo) verdict() error {
	switch {
	case d.wrong > 0 || d.lost > 0:
		return fmt.Errorf("%d wrong bytes, %d blocks lost", d.wrong, d.lost)
	case len(d.kills) == 0:
		return errors.New("no route was there to be shown")
	}
	return nil
}

func (d *demo) print(w io.Writer, tr *trace.Trace, took time.Duration) error {
	origin := tr.Name
	if tr.Made && origin != "generated" {
		origin += ", generated"
	}
	n := len(d.setup.ids(false))
	fmt.Fprintf(w, "Process A holds %d blocks of %s, the chains of a trace (%s). Process B asks for them, %d at a time, and compares each byte.\n", n, formatSize(int64(d.setup.Block)), origin, d.per)
	fmt.Fprint(w, "fetch: into B's cache; deliver: into B's own buffers; move: fetch, and A removes its copy. The first fetch connects, too.\n\n")
	rows := append([][]string{{"route", "verb", "blocks", "bytes", "GB/s", "p50", "p99", "outcome"}}, d.table...)
	if err := bench.WriteColumns(w, d.align, rows); err != nil {
		return err
	}
	if len(d.kills) == 0 {
		_, err := fmt.Fprintf(w, "\nno block was exchanged to the end\n")
		return err
	}
	fmt.Fprintf(w, "\nB is killed (SIGKILL) half way through the move of a page of %d blocks, which move together or not at all,\nis started again, and moves it once more.\n\n", len(d.setup.Page))
	rows = append([][]string{{"route", "blocks", "B had when killed", "A has after that", "B moved after restart", "served by A or B"}}, d.kills...)
	if err := bench.WriteColumns(w, "lrrrrr", rows); err != nil {
		return err
	}
	verdict := "every byte was right, no block was lost"
	if d.wrong > 0 || d.lost > 0 {
		verdict = fmt.Sprintf("%s WRONG bytes, %s blocks LOST", count(d.wrong), count(d.lost))
	}
	_, err := fmt.Fprintf(w, "\n%s; %s in all\n", verdict, took.Round(100*time.Millisecond))
	return err
}
