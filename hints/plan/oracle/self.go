package oracle

import "github.com/kvcr-go/kvcr/hints/plan"

// Self is the oracle as a Subject.
func Self() Subject { return &self{NewInventory(), nil} }

type self struct {
	*Inventory
	members []plan.Member
}

func (s *self) SetMembers(m []plan.Member) { s.members = m }

func (s *self) Ask(local []uint64) Reply { return s.ask(s.members, local).reply() }

func (q *question) reply() Reply {
	a := q.answer()
	r := Reply{Hints: a.Hints(), Intervals: a.Intervals, Scores: q.v.scores(q.local)}
	for i := range q.all {
		if m := &q.all[i]; m.isTarget() {
			r.Multi = append(r.Multi, q.greedy(m))
		}
	}
	return r
}

// greedy takes at every position the source that reaches furthest.
func (q *question) greedy(target *member) plan.Multi {
	c := q.cover(target)
	m := plan.Multi{Target: c.Target, Frontier: c.Frontier}
	for at := c.Frontier; at < c.End; {
		var best plan.Segment
		for i := range q.all {
			to, serves := at, q.serves(&q.all[i], target)
			for serves[to] {
				to++
			}
			if to > max(at, best.To) {
				best = plan.Segment{Source: q.all[i].Owner, From: at, To: to}
			}
		}
		m.Segments = append(m.Segments, best)
		at = best.To
	}
	return m
}
