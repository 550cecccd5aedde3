package page

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/kvcr-go/kvcr/bench"
)

// suite says how one is shown.
type suite struct {
	name, title string
	figures     func(rows, *figures)
}

// suites in the order of the page. Whatever is not here comes after them, with
// everyFigure.
var suites = []suite{
	{"engine", "Engine, in one process", engineFigures},
	{"ring", "Command ring", ringFigures},
	{"replay", "Hit ratios", replayFigures},
	{"node", "Node, over the network", nodeFigures},
	{"trace", "Traces against a node, open loop", traceFigures},
	{"peer", "Between nodes", peerFigures},
	{"hints", "Hints", hintsFigures},
	{"scale", "At scale, in virtual time", scaleFigures},
	{"soak", "Soak under faults", soakFigures},
	{"plan", "Planner", planFigures},
}

// figures collects the charts of one suite.
type figures struct {
	styles  *styles
	workers int
	list    []figure
}

type figure struct {
	Title, Note string
	Lines       *drawnLines
	Bars        *drawnBars
}

// lines adds a chart, unless there is nothing in it.
func (f *figures) lines(title, note string, l lines) {
	if d, ok := l.draw(); ok {
		f.list = append(f.list, figure{Title: title, Note: note, Lines: &d})
	}
}

func (f *figures) bars(title, note string, b bars) {
	if d, ok := b.draw(); ok {
		f.list = append(f.list, figure{Title: title, Note: note, Bars: &d})
	}
}

// megaOps is a row's time for each operation as millions a second.
func megaOps(r bench.Row) (v, lo, hi float64) { return perNano(r, 1e3) }

func engineFigures(rs rows, f *figures) {
	each := "million operations a second, each worker (more is better)"
	if f.workers > 0 {
		each = fmt.Sprintf("million operations a second, each of %d workers (more is better)", f.workers)
	}
	compared := rs.named("get-view", "get-copy", "mix")
	for _, size := range compared.values("size") {
		of := compared.with("size", size)
		// A chart for each question: times differ too much for one scale.
		for _, q := range different(of, engineQuestion) {
			g := group{}
			for _, r := range of.where(func(r bench.Row) bool { return engineQuestion(r) == q }) {
				g.bars = append(g.bars, barOf(f.styles, r, megaOps))
			}
			sortBars(g.bars, true)
			f.bars(fmt.Sprintf("Values of %s, %s", say(of[0], "size"), q), "", bars{label: each, groups: []group{g}})
		}
	}
	for _, op := range []string{"put", "deliver"} {
		copies := rs.named(op)
		gigabytes := func(r bench.Row) (v, lo, hi float64) {
			size, _ := num(r, "size")
			return perNano(r, size*float64(max(1, f.workers)))
		}
		l := lines{xLabel: "block size", yLabel: "GB/s, all workers", xLog: true, xTicks: ticksOf(copies, "size")}
		for i, checksum := range copies.values("checksum") {
			of := copies.with("checksum", checksum)
			s := f.styles.of("kvcr")
			s.n = i
			l.series = append(l.series, seriesOf("kvcr, checksums "+checksum, s, of.impl("kvcr"), "size", gigabytes),
				seriesOf("limit: Go's copy beside it ("+checksum+")", limit(i), of.impl("go-copy"), "size", gigabytes))
		}
		f.lines(map[string]string{"put": "Bandwidth of puts", "deliver": "Bandwidth of deliveries"}[op],
			"The limit is Go's copy between the same buffers and memory of the same kind, without a cache.", l)
	}
	curves := rs.named("get-latency-curve")
	l := curveChart("time from when a get was due")
	for _, r := range different(curves, func(r bench.Row) string { return r.Impl + "|" + text(r, "beside") }) {
		of := curves.where(func(x bench.Row) bool { return x.Impl+"|"+text(x, "beside") == r })
		name, s := of[0].Impl+", alone", f.styles.of(of[0].Impl)
		if text(of[0], "beside") == "puts" {
			name = of[0].Impl + ", beside puts of 2 MiB"
			s.n += dashedHalf(s)
		}
		l.series = append(l.series, curveSeries(name, s, of))
	}
	f.lines("Latency of a 64 B get, open loop", "20,000 gets a second at their times, alone and beside another goroutine that writes 2 MiB values as fast as it can.", l)
}

// dashedHalf moves a style to the same colour with another dash.
func dashedHalf(s style) int {
	if s.ours {
		return 1
	}
	return colours
}

func engineQuestion(r bench.Row) string {
	switch r.Name {
	case "get-view":
		return "read by reference"
	case "get-copy":
		return "read into a buffer"
	}
	return fmt.Sprintf("%s reads, else writes", say(r, "read"))
}

// impl are the rows of one implementation.
func (rs rows) impl(name string) rows {
	return rs.where(func(r bench.Row) bool { return r.Impl == name })
}

func (rs rows) impls() []string {
	return different(rs, func(r bench.Row) string { return r.Impl })
}

func ringFigures(rs rows, f *figures) {
	for _, q := range []struct{ name, title string }{{"one-way", "Messages one way"}, {"round-trip", "Messages there and back"}} {
		of := rs.named(q.name)
		l := lines{xLabel: "messages in a batch", yLabel: "million messages a second", xLog: true, yLog: true, xTicks: ticksOf(of, "batch")}
		for _, impl := range of.impls() {
			l.series = append(l.series, seriesOf(impl, f.styles.of(impl), of.impl(impl), "batch", megaOps))
		}
		f.lines(q.title, "", l)
	}
}

// policyNames are those of the simulated policies, for people.
var policyNames = map[string]string{"lru": "LRU", "tail-lru": "tail-first LRU", "s3fifo": "S3-FIFO", "belady": "Belady (bound)"}

func replayFigures(rs rows, f *figures) {
	hits := rs.named("usable-prefix-hit")
	for _, trace := range hits.values("trace") {
		of := hits.with("trace", trace)
		l := lines{xLabel: "capacity, % of the trace's different blocks", yLabel: "usable-prefix hits, %", xLog: true, xTicks: ticksOf(of, "capacity")}
		for _, impl := range of.impls() {
			name, s := impl, f.styles.of(impl)
			if n := policyNames[impl]; n != "" {
				name = n
			}
			switch impl {
			case "belady":
				s = limit(0)
			case "tail-lru": // lies on LRU in places: both have to be seen
				s.n += colours
			}
			l.series = append(l.series, seriesOf(name, s, of.impl(impl), "capacity", spread))
		}
		f.lines("Hit ratio against capacity: "+trace, "Hits are leading blocks of a request that were resident, of all blocks asked for.", l)
	}
	keys := rs.named("key-hit")
	c := bars{label: "hits, % (more is better)"}
	for _, k := range keys.values("keys") {
		g := group{name: fmt.Sprintf("%s, capacity %s of the keys", k, say(keys[0], "capacity"))}
		for _, r := range keys.with("keys", k) {
			b := barOf(f.styles, r, spread)
			if r.Impl == "belady" {
				b.style = limit(0)
			}
			if n := policyNames[r.Impl]; n != "" {
				b.name = n
			}
			g.bars = append(g.bars, b)
		}
		sortBars(g.bars, true)
		c.groups = append(c.groups, g)
	}
	f.bars("Hit ratio on keys without chains", "", c)
}

func nodeFigures(rs rows, f *figures) {
	ops := rs.named("get", "set")
	placed := map[string]string{"one-core": "server and load on a processor each", "none": "not pinned"}
	for _, pin := range ops.values("pin") {
		for _, size := range ops.with("pin", pin).values("size") {
			of := ops.with("pin", pin).with("size", size)
			c := bars{label: "operations a second (more is better)"}
			ask := func(r bench.Row) string {
				return fmt.Sprintf("%s, %s over %s, pipeline %s", r.Name, text(r, "proto"), text(r, "net"), say(r, "pipeline"))
			}
			for _, q := range different(of, ask) {
				g := group{name: q}
				for _, r := range of.where(func(r bench.Row) bool { return ask(r) == q }) {
					g.bars = append(g.bars, barOf(f.styles, r, spread))
				}
				sortBars(g.bars, true)
				c.groups = append(c.groups, g)
			}
			f.bars(fmt.Sprintf("Throughput of a node, values of %s, %s", say(of[0], "size"), placed[pin]), "", c)
		}
		// The unix socket's own row is beside TCP at one size: no curve.
		gets := ops.named("get").with("pin", pin).where(func(r bench.Row) bool {
			return r.Impl != "kvcr-tcp" && (text(r, "net") != "unix" || text(r, "proto") == "shm")
		})
		l := lines{xLabel: "value size", yLabel: "GB/s of values read", xLog: true, yLog: true, xTicks: ticksOf(gets, "size")}
		kind := func(r bench.Row) string {
			return fmt.Sprintf("%s, %s, pipeline %s", r.Impl, text(r, "proto"), say(r, "pipeline"))
		}
		limits, used := 0, map[string]int{}
		for _, k := range different(gets, kind) {
			of := gets.where(func(r bench.Row) bool { return kind(r) == k })
			impl := of[0].Impl
			s, name := f.styles.of(impl), k
			switch impl {
			case "net", "plain-read":
				s, name = limit(limits), "limit: plain "+map[string]string{"net": "server over loopback", "plain-read": "reads of the same memory"}[impl]+", pipeline "+say(of[0], "pipeline")
				limits++
			default:
				for range used[impl] { // another dash for each of its lines
					s.n += dashedHalf(s)
				}
				used[impl]++
			}
			l.series = append(l.series, seriesOf(name, s, of, "size", func(r bench.Row) (v, lo, hi float64) {
				size, _ := num(r, "size")
				v, lo, hi = spread(r)
				return v * size / 1e9, lo * size / 1e9, hi * size / 1e9
			}))
		}
		f.lines("Bandwidth of reads, "+placed[pin], "", l)
		curves := rs.named("get-latency-curve").with("pin", pin)
		c := curveChart("time from when a get was due")
		for _, impl := range curves.impls() {
			c.series = append(c.series, curveSeries(impl, f.styles.of(impl), curves.impl(impl)))
		}
		f.lines("Latency of a 64 B GET at half of redis's throughput, open loop, "+placed[pin], "", c)
	}
}

// stageNames are the parts of a request's time, for people.
var stageNames = map[string]string{
	"issue-lag": "until accepted (issue lag)", "queue-wait": "in its lane's queue", "service": "service", "lookup": "of it: lookup and reads", "store": "of it: writes of what was missing", "scheduled-to-finished": "from scheduled to finished",
}

func traceFigures(rs rows, f *figures) {
	requests := rs.named("request")
	play := func(r bench.Row) string {
		return fmt.Sprintf("%s at %s times its speed", text(r, "trace"), say(r, "speed"))
	}
	for _, p := range different(requests, play) {
		of := requests.where(func(r bench.Row) bool { return play(r) == p })
		l := curveChart("time of a request")
		for i, stage := range of.values("stage") {
			s := nth(i)
			if stage == "scheduled-to-finished" {
				s = f.styles.of("kvcr")
			}
			l.series = append(l.series, curveSeries(stageNames[stage], s, of.with("stage", stage)))
		}
		f.lines("Where the time of a request goes: "+p, "", l)
	}
	took := rs.named("took")
	c := bars{label: "time until all had ended, of the window in which they came (up to 1.1 it has kept up)"}
	g := group{}
	for _, r := range took {
		b := barOf(f.styles, r, spread)
		b.name = fmt.Sprintf("%s, %s x", text(r, "trace"), say(r, "speed"))
		g.bars = append(g.bars, b)
	}
	c.groups = append(c.groups, g)
	f.bars("Whether the node keeps up", "", c)
}

func peerFigures(rs rows, f *figures) {
	// What was measured twice, to know the noise, is in the table.
	fetches := rs.named("fetch-bandwidth").where(func(r bench.Row) bool { return !strings.HasSuffix(r.Impl, "-again") })
	way := func(r bench.Row) string {
		route := text(r, "route")
		if n := text(r, "net"); n != "" {
			route += " over " + n
		}
		return route
	}
	for _, route := range different(fetches, func(r bench.Row) string { return text(r, "route") }) {
		of := fetches.with("route", route).where(func(r bench.Row) bool { return route != "shm" || r.Impl != "ucx_perftest" })
		l := lines{xLabel: "block size", yLabel: "GB/s", xLog: true, xTicks: ticksOf(of, "size")}
		limits := 0
		for _, k := range different(of, func(r bench.Row) string { return r.Impl + "|" + way(r) }) {
			same := of.where(func(r bench.Row) bool { return r.Impl+"|"+way(r) == k })
			impl := same[0].Impl
			s, name := f.styles.of(impl), impl+", "+way(same[0])
			if s.ours {
				if text(same[0], "net") != "" {
					s.n += 2
				}
			} else {
				s, name = limit(limits), "limit: "+name
				limits++
			}
			l.series = append(l.series, seriesOf(name, s, same, "size", spread))
		}
		note := "Limits are what moves as many bytes in the same run without an engine: copies in memory, sockets over loopback."
		if route == "shm" && len(fetches.with("route", route).impl("ucx_perftest")) > 0 {
			note += " ucx_perftest sends one block again and again, which stays in the caches: it is in the table."
		}
		f.lines("Bandwidth of fetches of 64 blocks, route "+route, note, l)
	}
	for _, q := range []struct{ name, title, label string }{
		{"fetch-latency", "Latency of one block of 64 KiB between idle nodes", "µs, median (less is better)"},
		{"fetch-rate", "Small fetches", "fetches of 4 KiB a second, 64 in flight (more is better)"},
	} {
		of := rs.named(q.name)
		c := bars{label: q.label}
		for _, route := range of.values("route") {
			g := group{name: "route " + route}
			for _, r := range of.with("route", route) {
				g.bars = append(g.bars, barOf(f.styles, r, spread))
			}
			c.groups = append(c.groups, g)
		}
		f.bars(q.title, "", c)
	}
	curves := rs.named("fetch-latency-curve")
	l := curveChart("time of a fetch")
	for i, route := range curves.values("route") {
		l.series = append(l.series, curveSeries("route "+route, nth(i), curves.with("route", route)))
	}
	f.lines("Latency of a fetch of 64 KiB", "", l)
}

// planFigures expects plan {fixture, sources, stat}: without sources there are bars
// by fixture. What was measured twice, and allocations, are in the tables.
func planFigures(rs rows, f *figures) {
	plans := rs.named("plan")
	sources := plans.where(func(r bench.Row) bool { _, ok := num(r, "sources"); return ok })
	l := lines{xLabel: "sources", yLabel: "cost of a plan, µs", xLog: true, yLog: true, xTicks: ticksOf(sources, "sources")}
	kind := func(r bench.Row) string { return r.Impl + ", " + text(r, "stat") }
	for i, k := range different(sources, kind) {
		l.series = append(l.series, seriesOf(k, nth(i), sources.where(func(r bench.Row) bool { return kind(r) == k }), "sources", spread))
	}
	// Several fixtures have as many sources: points, since a line between them
	// would mean nothing.
	for i := range l.series {
		l.series[i].loose = true
	}
	f.lines("Planner cost against sources", "Each point is an inventory: several have as many sources.", l)
	for _, stat := range plans.values("stat") {
		c := bars{label: "µs for all targets (less is better)"}
		g := group{}
		for _, r := range plans.with("stat", stat) {
			b := barOf(f.styles, r, spread)
			b.name = text(r, "fixture")
			if r.Impl != "kvcr" {
				b.name += " " + r.Impl
			}
			g.bars = append(g.bars, b)
		}
		c.groups = append(c.groups, g)
		f.bars("Planner cost by inventory, "+stat, "", c)
	}
	everyFigure(without(rs, "plan", "plan-again", "plan-bytes"), f)
}

// hintsFigures leaves to the tables what is nought where all is well.
func hintsFigures(rs rows, f *figures) {
	everyFigure(without(rs, "submit-discard-allocs", "submit-discard-kept", "publish-lost"), f)
}

// without are the rows of other names.
func without(rs rows, names ...string) rows {
	return rs.where(func(r bench.Row) bool { return !slices.Contains(names, r.Name) })
}

// soakFigures show what was found, done and broken. What processes held is in the
// table only: it is right or wrong, and not more or less.
func soakFigures(rs rows, f *figures) {
	for _, c := range []struct{ name, title, label string }{
		{"violations", "What was found to be wrong", "findings (none is right)"},
		{"faults", "Faults that there were", "faults"},
		{"operations", "What clients did, and how what failed did", "calls"},
		{"actions", "Actions of hints", "actions"},
	} {
		g := group{}
		for _, r := range rs.named(c.name) {
			b := barOf(f.styles, r, spread)
			b.name = text(r, "kind")
			g.bars = append(g.bars, b)
		}
		f.bars(c.title, "", bars{label: c.label, groups: []group{g}})
	}
}

// everyFigure has a chart for each name, with a group for each of its questions.
func everyFigure(rs rows, f *figures) {
	for _, name := range different(rs, func(r bench.Row) string { return r.Name }) {
		of := rs.named(name)
		c := bars{label: fmt.Sprintf("%s (%s)", of[0].Unit, better(of[0]))}
		ask := func(r bench.Row) string { return question(r) }
		for _, q := range different(of, ask) {
			g := group{name: q}
			for _, r := range of.where(func(r bench.Row) bool { return ask(r) == q }) {
				g.bars = append(g.bars, barOf(f.styles, r, spread))
			}
			sortBars(g.bars, of[0].Better == bench.Higher)
			c.groups = append(c.groups, g)
		}
		title := name
		if t := titles[name]; t != "" {
			title = t
		}
		f.bars(title, "", c)
	}
}

// titles of charts of everyFigure, for people; others have the name.
var titles = map[string]string{
	"submit-discard": "A hint to fetch: taken and given up", "publish": "Blocks whose changes are published, to one subscriber",
	"recovery": "Lost batches: until the index is whole again", "ingest": "Events decoded and applied to an index, by blocks of a message",
	"index-bytes": "Memory of an index, by the length of chains", "plan-beside-events": "Lookups while events arrive", "plan-beside-events-ratio": "Lookups while events arrive, of those without",
	"check": "The planner beside its oracle",
}

// nines are places of the x axis of a latency's curve: each nine is as far from the
// one before.
var nines = []float64{50, 90, 99, 99.9, 99.99, 99.999}

func nine(percentile float64) float64 { return -math.Log10(1 - percentile/100) }

func curveChart(what string) lines {
	l := lines{xLabel: "percentile, by nines", yLabel: what + ", µs", yLog: true}
	for _, p := range nines {
		l.xTicks = append(l.xTicks, tick{nine(p), trim(p) + " %"})
	}
	return l
}

// curveSeries is a latency's curve, up to the last percentile that has values
// beyond it: the maximum is at no place of the axis, and in the table.
func curveSeries(name string, s style, rs rows) series {
	out := series{name: name, style: s}
	for _, r := range rs {
		if p, ok := num(r, "percentile"); ok && p < 100 {
			v, lo, hi := micros(r)
			out.points = append(out.points, point{nine(p), v, lo, hi})
		}
	}
	return out
}

// micros is a time in microseconds, which curves are drawn in.
func micros(r bench.Row) (v, lo, hi float64) {
	v, lo, hi = spread(r)
	if r.Unit == "ns" {
		return v / 1e3, lo / 1e3, hi / 1e3
	}
	return v, lo, hi
}
