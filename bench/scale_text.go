package bench

import (
	"fmt"
	"math"

	"github.com/kvcr-go/kvcr/bench/virtual"
)

// sumUp adds the sweep's table and what it comes to, in words.
func (s *sweep) sumUp() {
	t := Table{Title: fmt.Sprintf("scale, sweep of %s: %s; trace %s", s.name, s.what, s.trace), Align: "ll"}
	head := []string{"", "processor time for each request, us"}
	for _, p := range s.points {
		head = append(head, group(int64(p.size)))
		t.Align += "r"
	}
	t.Align += "rr"
	t.Rows = append(t.Rows, append(head, "exponent", "r2"))
	line := func(label, name, param, value string, unit float64) {
		row := []string{"", label}
		for _, p := range s.points {
			row = append(row, Number(s.median(name, param, value, p.size)/unit))
		}
		if e, ok := s.exponent(value); ok {
			row = append(row, fmt.Sprintf("%.2f", e), fmt.Sprintf("%.2f", s.median("scale-r2", "part", value, 0)))
		}
		t.Rows = append(t.Rows, row)
	}
	for _, p := range virtual.Parts {
		line(p.String(), "scale", "part", p.String(), 1)
	}
	line(scaleTotal, "scale", "part", scaleTotal, 1)
	line("beside: simulation", "scale", "part", virtual.Simulation.String(), 1)
	line("beside: collector", "scale", "part", virtual.Collector.String(), 1)
	t.Rows = append(t.Rows, []string{}, []string{"", "what was done"})
	for _, c := range scaleCounts {
		line(c.name+", "+c.unit, "scale-count", "what", c.name, 1)
	}
	line("hint to data, p50, virtual ms", "scale-latency", "stat", "p50", 1e3)
	line("hint to data, p99, virtual ms", "scale-latency", "stat", "p99", 1e3)
	line("memory of all, MiB", "scale-memory", "part", scaleMemory, 1<<20)
	line("of that: index, MiB", "scale-memory", "part", "index", 1<<20)
	t.Notes = append(s.verdict(), fmt.Sprintf("at the end of every run the index held what the nodes did, and nothing was left over; two runs of seed 1 with %s %d had the same %s events, hash %016x",
		s.name, s.points[0].size, group(int64(s.events)), s.hash))
	s.rep.Tables = append(s.rep.Tables, t)
}

func (s *sweep) exponent(part string) (float64, bool) {
	for _, r := range s.rep.Results {
		if r.Name == "scale-exponent" && len(r.Params) == 2 && r.Params[0].Value == s.name && r.Params[1].Value == part {
			return r.series(ours).Median(), true
		}
	}
	return 0, false
}

// drivers are what a part has to do more of when its cost grows for a reason. The
// planner has no count: it does its work for all nodes, whoever they are.
var drivers = map[string]struct{ count, word string }{
	"events":   {"changes", "changed blocks"},
	"hints":    {"named", "blocks that hints name"},
	"peers":    {"steps", "steps of machines"},
	"messages": {"frame-bytes", "bytes"},
}

// level is what no growth is taken for: of a hundredfold size less than twice.
const level = 0.15

// verdict says what the exponents mean.
func (s *sweep) verdict() (lines []string) {
	say := func(what, part, why string) {
		e, ok := s.exponent(part)
		if !ok {
			return
		}
		line := fmt.Sprintf("%s ~ %s^%.2f", what, s.name, e)
		switch {
		case math.Abs(e) < level:
			line += ", level"
		case why != "":
			line += ": " + why
		}
		lines = append(lines, line)
	}
	for _, p := range virtual.Parts {
		say(p.String(), p.String(), s.why(p.String()))
	}
	say("a request, "+scaleTotal, scaleTotal, "")
	say(scaleMemory+" of the router and all nodes", scaleMemory, "")
	return lines
}

// why is the reason of a part's growth, where the counts tell it.
func (s *sweep) why(part string) string {
	cost, _ := s.exponent(part)
	if d, ok := drivers[part]; ok {
		work, _ := s.exponent(d.count)
		if cost-work >= level {
			return fmt.Sprintf("%s ~ ^%.2f, and each has become dearer: all nodes share the caches of one processor here", d.word, work)
		}
		return fmt.Sprintf("as %s, ~ ^%.2f", d.word, work)
	}
	switch s.name {
	case sweepNodes:
		return "every node is a target and gets a choice, whoever is picked"
	case sweepBlocks:
		return "the prompt is followed through the index, in stretches of blocks that have the same owners"
	}
	return ""
}
