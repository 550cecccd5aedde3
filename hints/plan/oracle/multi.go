package oracle

import (
	"fmt"
	"math"
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

// serves are the blocks of the chain that a source may serve to a target: the target
// can place them, and the source has them pinned, or has all from the root to them.
//
// Chosen: as with one source, a target whose own blocks are not the chain's takes
// from the root only.
func (q *question) serves(source, target *member) []bool {
	out := make([]bool, len(q.chain)+1) // ends with one that nobody serves
	if eligible(source, target) {
		for i := range q.chain {
			out[i] = i < source.root || target.on && source.has[i]
		}
	}
	return out
}

// cover counts, for every position from the frontier on, the fewest segments that
// cover what is before it.
func (q *question) cover(target *member) Cover {
	if target.cover != nil {
		return *target.cover
	}
	f := target.front
	c := Cover{Target: target.Owner.Worker, Frontier: f, End: f}
	target.cover = &c
	var serving [][]bool
	for i := range q.all {
		if s := q.serves(&q.all[i], target); slices.Contains(s, true) {
			serving = append(serving, s)
		}
	}
	fewest := make([]int, max(f, len(q.chain))+1)
	for i := range fewest {
		fewest[i] = math.MaxInt
	}
	fewest[f] = 0
	for at := f; at < len(fewest) && fewest[at] < math.MaxInt; at++ {
		c.End, c.Segments = at, fewest[at]
		for _, s := range serving {
			for to := at; to < len(s) && s[to]; to++ {
				fewest[to+1] = min(fewest[to+1], fewest[at]+1)
			}
		}
	}
	return c
}

// wrong says what is wrong with the segments that a subject gives a target, if
// anything is.
func (q *question) wrong(m plan.Multi) string {
	target := q.member(workerOwner(m.Target))
	want := q.cover(target)
	at := want.Frontier
	for _, s := range m.Segments {
		if s.From != at || s.To <= s.From || s.To > len(q.chain) {
			return "the segments do not join"
		}
		source := q.member(s.Source)
		if source == nil || slices.Contains(q.serves(source, target)[s.From:s.To], false) {
			return "a source does not serve all of its segment"
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
	if best := q.greedy(target); !slices.Equal(m.Segments, best.Segments) {
		return fmt.Sprintf("want %+v", best.Segments)
	}
	return ""
}

func (q *question) member(o plan.Owner) *member {
	for i := range q.all {
		if q.all[i].Owner == o {
			return &q.all[i]
		}
	}
	return nil
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
