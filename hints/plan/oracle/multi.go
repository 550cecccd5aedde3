package oracle

import (
	"fmt"
	"slices"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

// Cover is what all eligible sources together can do for one target.
type Cover struct {
	Target   events.Worker
	Frontier int
	End      int // Frontier, if they can do nothing
	Segments int // the fewest that reach End, each from one source
}

// serves reports whether a source may serve block i of the chain to a target: the
// target can place it, and the source has it pinned, or has all from the root to it.
//
// Chosen: as with one source, a target whose own blocks are not the chain's takes
// from the root only.
func (q *question) serves(source, target plan.Owner, i int) bool {
	return q.eligible(source, target) && (i < q.root[source] || q.onChain(target) && i < len(q.chain) && q.has[source][i])
}

// cover counts, for every position from the frontier on, the fewest segments that
// cover what is before it.
func (q *question) cover(target plan.Owner) Cover {
	f := q.front[target]
	c := Cover{Target: target.Worker, Frontier: f, End: f}
	fewest := map[int]int{f: 0}
	for at := f; ; at++ {
		n, reached := fewest[at]
		if !reached {
			return c
		}
		c.End, c.Segments = at, n
		for _, s := range q.order {
			for to := at; q.serves(s, target, to); to++ {
				if was, ok := fewest[to+1]; !ok || n+1 < was {
					fewest[to+1] = n + 1
				}
			}
		}
	}
}

// wrong says what is wrong with the segments that a subject gives a target, if
// anything is.
func (q *question) wrong(m plan.Multi) string {
	target := workerOwner(m.Target)
	want := q.cover(target)
	at := want.Frontier
	for _, s := range m.Segments {
		if s.From != at || s.To <= s.From {
			return "the segments do not join"
		}
		for i := s.From; i < s.To; i++ {
			if !q.serves(s.Source, target, i) {
				return "a source does not serve all of its segment"
			}
		}
		at = s.To
	}
	switch {
	case m.Frontier != want.Frontier:
		return fmt.Sprintf("the frontier is %d", want.Frontier)
	case at != want.End:
		return fmt.Sprintf("the end is %d", want.End)
	case len(m.Segments) != want.Segments:
		return fmt.Sprintf("%d segments do", want.Segments)
	}
	return ""
}

// scores are every owner's hits in each tier, walked in the order of tiers: each
// tier goes on where those before it ended (4.1).
func (v *Inventory) scores(local []uint64) []plan.Score {
	owners := map[plan.Owner]bool{}
	for _, t := range v.tiers {
		for o := range t.held {
			owners[o] = true
		}
	}
	var out []plan.Score
	for o := range owners {
		s := plan.Score{Owner: o}
		var path []uint64
		for i, t := range v.tiers {
			before := len(path)
			path = t.walk(o, path, local)
			s.Hits[i] = len(path) - before
		}
		if len(path) > 0 {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b plan.Score) int { return compareOwners(a.Owner, b.Owner) })
	return out
}
