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
	v       *Inventory
	members map[plan.Owner]plan.Member
	order   []plan.Owner // of members, smallest first
	local   []uint64
	chain   []uint64
	path    map[plan.Owner][]uint64 // what a worker's own walk finds: device, then host
	front   map[plan.Owner]int      // F of every target
	has     map[plan.Owner][]bool   // which positions of the chain a source holds pinned
	root    map[plan.Owner]int      // how much of the chain it holds from the root on
	starts  []int                   // positive partial frontiers (rule 1), smallest first
}

// Ask answers for every target, smallest first. If two members are one owner the
// last counts.
func (v *Inventory) Ask(members []plan.Member, local []uint64) Answer {
	return v.ask(members, local).answer()
}

func (q *question) answer() Answer {
	a := Answer{Chain: q.chain, Intervals: q.intervals()}
	for _, o := range q.order {
		if q.isTarget(o) {
			a.Choices = append(a.Choices, q.choose(o))
		}
	}
	return a
}

func (v *Inventory) ask(members []plan.Member, local []uint64) *question {
	q := &question{v: v, local: local, members: map[plan.Owner]plan.Member{}, path: map[plan.Owner][]uint64{},
		front: map[plan.Owner]int{}, has: map[plan.Owner][]bool{}, root: map[plan.Owner]int{}}
	for _, m := range members {
		q.members[m.Owner] = m
	}
	for o := range q.members {
		q.order = append(q.order, o)
	}
	slices.SortFunc(q.order, compareOwners)
	q.findChain()
	for _, o := range q.order {
		q.look(o)
	}
	q.starts = q.frontiers()
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

// look counts what one owner holds.
func (q *question) look(o plan.Owner) {
	device, host := q.v.tiers[events.Device], q.v.tiers[events.HostPinned]
	var path []uint64
	if !o.Cache {
		path = device.walk(o, path, q.local)
	}
	path = host.walk(o, path, q.local)
	q.path[o] = path
	if q.isTarget(o) {
		q.front[o] = len(path) // 4.1: F = device depth and contiguous pinned blocks
	}
	root := 0
	for root < len(path) && root < len(q.chain) && path[root] == q.chain[root] {
		root++
	}
	q.root[o] = root
	has := make([]bool, len(q.chain))
	for i := range has {
		child, ok := host.has(o, after(q.chain[:i], q.local[i]))
		has[i] = ok && child == q.chain[i]
	}
	q.has[o] = has
}

func (q *question) isTarget(o plan.Owner) bool { return !o.Cache && q.members[o].Capable }

// eligible is 4.2: another than the target, reachable, of the target's type, which
// is one that there is (1.3), and not the cache that is attached to it.
//
// Chosen: a source need not be capable of taking hints itself.
func (q *question) eligible(source, target plan.Owner) bool {
	s, t := q.members[source], q.members[target]
	if source == target || s.Endpoint == "" || typeOf(s) == "" || typeOf(s) != typeOf(t) {
		return false
	}
	return !(source.Cache && s.HasAttached && s.Attached == target.Worker)
}

func typeOf(m plan.Member) string {
	switch m.Type {
	case "agg":
		return "aggregated"
	case "aggregated", "prefill", "decode":
		return m.Type
	}
	return ""
}

func (q *question) choose(target plan.Owner) plan.Choice {
	f := q.front[target]
	c := plan.Choice{Target: target.Worker, Frontier: f}
	// Root prefixes first, so that on an equal end theirs is kept (rule 9); sources
	// smallest first, so that on an equal end the smallest is.
	best := f
	for _, s := range q.order {
		if q.eligible(s, target) && q.root[s] > best {
			best = q.root[s]
			c.Kind, c.Source, c.End = plan.RootPrefix, s, best
		}
	}
	for _, s := range q.order {
		if q.eligible(s, target) {
			if end := q.continues(s, target); end > best {
				best = end
				c.Kind, c.Source, c.End = plan.Continuation, s, best
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
func (q *question) continues(source, target plan.Owner) int {
	f, end, has := q.front[target], 0, q.has[source]
	if !q.onChain(target) {
		return 0
	}
	for _, start := range q.starts {
		if start > f {
			break
		}
		e := start
		for e < len(has) && has[e] {
			e++
		}
		end = max(end, e)
	}
	if end <= f {
		return 0
	}
	return end
}

// onChain reports whether what a target holds is the chain's begin.
func (q *question) onChain(target plan.Owner) bool { return q.root[target] == q.front[target] }

// frontiers are the positive partial ones (rule 1), smallest first.
func (q *question) frontiers() []int {
	var out []int
	for o, f := range q.front {
		if 0 < f && f < len(q.local) && q.onChain(o) {
			out = append(out, f)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// intervals are the runs of sources that a frontier falls into, each from the
// smallest such frontier on (rules 6 and 7; "intervals_kept" of the fixtures). Rule 7
// drops those that no target can use.
//
// Chosen: a run that no target may use, for who the source is, is none of them; the
// smallest frontier is that of any target, also one that may not use the source.
func (q *question) intervals() []plan.Interval {
	var out []plan.Interval
	for _, s := range q.order {
		for _, r := range runs(q.has[s]) {
			first, usable := 0, false
			for _, f := range q.starts {
				if r[0] <= f && f < r[1] && first == 0 {
					first = f
				}
			}
			for t, f := range q.front {
				usable = usable || q.eligible(s, t) && q.onChain(t) && f < len(q.local) && 0 < f && r[0] <= f && f < r[1]
			}
			if usable {
				out = append(out, plan.Interval{Source: s, Start: first, End: r[1]})
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
