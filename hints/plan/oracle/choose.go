package oracle

import (
	"slices"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

// Answer is what one question comes to.
type Answer struct {
	Chain   []uint64 // external hashes from the root on, as far as anything reaches
	Choices []plan.Choice
	// Intervals are the runs of sources that the frontier of a target that may use
	// the source falls into, each from the first target's frontier in it on.
	Intervals []plan.Interval
}

// question is one prompt against one inventory and one set of members.
type question struct {
	v     *Inventory
	local []uint64
	chain []uint64
	all   []member // smallest owner first
	// starts are the positive partial frontiers (rule 1), smallest first.
	starts []int
}

// member is what is known and counted of one member.
type member struct {
	plan.Member
	front int    // F, of a target
	root  int    // how much of the chain its own walk finds: device, then host
	on    bool   // and it finds nothing but the chain
	has   []bool // which positions of the chain it holds pinned
	cover *Cover // of a target, when it has been counted
}

func (m *member) isTarget() bool { return !m.Owner.Cache && m.Capable }

// Ask answers for every target, smallest first. If two members are one owner the
// last counts.
func (v *Inventory) Ask(members []plan.Member, local []uint64) Answer {
	return v.ask(members, local).answer()
}

func (q *question) answer() Answer {
	a := Answer{Chain: q.chain, Intervals: q.intervals()}
	for i := range q.all {
		if q.all[i].isTarget() {
			a.Choices = append(a.Choices, q.choose(&q.all[i]))
		}
	}
	return a
}

func (v *Inventory) ask(members []plan.Member, local []uint64) *question {
	q := &question{v: v, local: local}
	last := map[plan.Owner]plan.Member{}
	for _, m := range members {
		last[m.Owner] = m
	}
	for _, m := range last {
		q.all = append(q.all, member{Member: m})
	}
	slices.SortFunc(q.all, func(a, b member) int { return compareOwners(a.Owner, b.Owner) })
	q.findChain()
	for i := range q.all {
		q.look(&q.all[i])
	}
	for i := range q.all {
		if m := &q.all[i]; m.isTarget() && typeOf(m) != "" && m.on && 0 < m.front && m.front < len(local) {
			q.starts = append(q.starts, m.front)
		}
	}
	slices.Sort(q.starts)
	q.starts = slices.Compact(q.starts)
	return q
}

// findChain makes the chain of external hashes that hints name: the deepest device
// chain, carried on over whatever the pinned tier has, until nothing follows (4.1).
//
// Chosen: where the two tiers disagree about a block, the device's word is the
// chain, and what the pinned tier has under another hash is not of it.
func (q *question) findChain() {
	device, host := q.v.tiers[events.Device], q.v.tiers[events.HostPinned]
	for o := range device.held {
		if c := device.walk(o, nil, q.local); len(c) > len(q.chain) {
			q.chain = c
		}
	}
	for len(q.chain) < len(q.local) {
		s, ok := host.edges[after(q.chain, q.local[len(q.chain)])]
		if !ok {
			return
		}
		q.chain = append(q.chain, s.child)
	}
}

// look counts what one member holds.
func (q *question) look(m *member) {
	device, host := q.v.tiers[events.Device], q.v.tiers[events.HostPinned]
	var path []uint64
	if !m.Owner.Cache {
		path = device.walk(m.Owner, path, q.local)
	}
	path = host.walk(m.Owner, path, q.local)
	m.front = len(path) // 4.1: F = device depth and contiguous pinned blocks
	for m.root < len(path) && m.root < len(q.chain) && path[m.root] == q.chain[m.root] {
		m.root++
	}
	m.on = m.root == m.front
	m.has = make([]bool, len(q.chain))
	if len(host.held[m.Owner]) == 0 {
		return
	}
	for i := range m.has {
		child, ok := host.has(m.Owner, after(q.chain[:i], q.local[i]))
		m.has[i] = ok && child == q.chain[i]
	}
}

// eligible is 4.2: another than the target, reachable, of the target's type, which
// is one that there is (1.3), and not the cache that is attached to it.
//
// Chosen: a source need not be capable of taking hints itself.
func eligible(source, target *member) bool {
	if source.Owner == target.Owner || source.Endpoint == "" {
		return false
	}
	if typeOf(source) == "" || typeOf(source) != typeOf(target) {
		return false
	}
	return !(source.Owner.Cache && source.HasAttached && source.Attached == target.Owner.Worker)
}

func typeOf(m *member) string {
	switch m.Type {
	case "agg":
		return "aggregated"
	case "aggregated", "prefill", "decode":
		return m.Type
	}
	return ""
}

func (q *question) choose(target *member) plan.Choice {
	c := plan.Choice{Target: target.Owner.Worker, Frontier: target.front}
	// Root prefixes first, so that on an equal end theirs is kept (rule 9); sources
	// smallest first, so that on an equal end the smallest is.
	best := target.front
	for i := range q.all {
		if s := &q.all[i]; s.root > best && eligible(s, target) {
			best = s.root
			c.Kind, c.Source, c.End = plan.RootPrefix, s.Owner, best
		}
	}
	for i := range q.all {
		if s := &q.all[i]; eligible(s, target) {
			if end := q.continues(s, target); end > best {
				best = end
				c.Kind, c.Source, c.End = plan.Continuation, s.Owner, best
			}
		}
	}
	return c
}

// continues is the end of what a source holds from some destination's frontier on,
// at or before the target's own, without a gap (rules 1 to 3, 8). 0: nothing.
//
// Chosen: a target whose own blocks are not those of the chain gets no continuation
// of the chain, since it holds nothing that would be continued.
func (q *question) continues(source, target *member) int {
	end := 0
	if !target.on {
		return 0
	}
	for _, start := range q.starts {
		if start > target.front {
			break
		}
		e := start
		for e < len(source.has) && source.has[e] {
			e++
		}
		end = max(end, e)
	}
	if end <= target.front {
		return 0
	}
	return end
}

// intervals are the runs of those who can be sources, that a frontier falls into, each
// from the smallest such frontier on (rules 1, 6 and 7; "intervals_kept" of the
// fixtures).
//
// Chosen: a run counts also if just those targets that stand in it may not use the
// source.
func (q *question) intervals() []plan.Interval {
	var out []plan.Interval
	for _, s := range q.all {
		if s.Endpoint == "" || typeOf(&s) == "" {
			continue
		}
		for _, r := range runs(s.has) {
			i := slices.IndexFunc(q.starts, func(f int) bool { return r[0] <= f && f < r[1] })
			if i >= 0 {
				out = append(out, plan.Interval{Source: s.Owner, Start: q.starts[i], End: r[1]})
			}
		}
	}
	return out
}

// runs are the longest stretches of true.
func runs(has []bool) (out [][2]int) {
	for i := 0; i < len(has); i++ {
		if !has[i] {
			continue
		}
		from := i
		for i < len(has) && has[i] {
			i++
		}
		out = append(out, [2]int{from, i})
	}
	return out
}
