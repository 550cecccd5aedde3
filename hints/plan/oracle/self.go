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
	for _, c := range a.Choices {
		r.Multi = append(r.Multi, q.greedy(q.cover(workerOwner(c.Target))))
	}
	return r
}

// greedy takes at every position the source that reaches furthest.
func (q *question) greedy(c Cover) plan.Multi {
	m := plan.Multi{Target: c.Target, Frontier: c.Frontier}
	for at := c.Frontier; at < c.End; {
		var best plan.Segment
		for _, s := range q.order {
			to := at
			for q.serves(s, workerOwner(c.Target), to) {
				to++
			}
			if to > max(at, best.To) {
				best = plan.Segment{Source: s, From: at, To: to}
			}
		}
		m.Segments = append(m.Segments, best)
		at = best.To
	}
	return m
}
