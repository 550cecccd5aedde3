package oracle

import (
	"fmt"
	"slices"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

// Index is a plan.Index as a Subject. It panics where the index contradicts itself:
// Check takes that for a difference.
func Index() Subject {
	x := plan.New(plan.Config{})
	return &index{Index: x, scratch: x.NewScratch(), alone: true}
}

type index struct {
	*plan.Index
	scratch *plan.Scratch
	alone   bool // nobody writes meanwhile: two lookups say the same
	choices []plan.Choice
	multi   []plan.Multi
}

func (x *index) Apply(e events.RouterEvent) {
	// The error says that the event means nothing; the oracle ignores it as well.
	_ = x.Index.Apply(&e)
}

func (x *index) Remove(o plan.Owner) { x.RemoveOwner(o) }

func (x *index) SetMembers(m []plan.Member) { x.SetTopology(slices.Clone(m)) }

func (x *index) Ask(local []uint64) Reply {
	var r Reply
	local = slices.Clone(local)
	m := x.Match(x.scratch, local)
	x.choices = x.Plan(x.scratch, m, x.choices)
	for _, c := range x.choices {
		h := Hint{Choice: c}
		endpoint, hashes, ok := x.scratch.Hint(c)
		if ok != (c.Kind != plan.None) || ok && endpoint == "" {
			panic(fmt.Sprintf("hint of %s: endpoint %q, %t", choiceName(c), endpoint, ok))
		}
		h.Hashes = slices.Clone(hashes)
		if chain := x.scratch.Chain(); ok && !slices.Equal(chain[:c.End], hashes) {
			panic(fmt.Sprintf("hint of %s names %v, the chain begins with %v", choiceName(c), hashes, chain[:c.End]))
		}
		r.Hints = append(r.Hints, h)
	}
	r.Intervals = x.scratch.Intervals(nil)
	again := x.Choose(x.scratch, local, nil)
	if x.alone && !slices.Equal(again, x.choices) {
		panic(fmt.Sprintf("Choose says %+v, Plan %+v", again, x.choices))
	}
	m = x.Match(x.scratch, local)
	x.multi = x.PlanMulti(x.scratch, m, x.multi)
	for _, c := range x.multi {
		c.Segments = slices.Clone(c.Segments)
		r.Multi = append(r.Multi, c)
	}
	m = x.Match(x.scratch, local)
	r.Scores = x.Scores(x.scratch, m, nil)
	return r
}

func (x *index) Dump() (out []events.RouterEvent) {
	x.Index.Dump(func(e *events.RouterEvent) bool {
		one := *e
		one.Blocks, one.Hashes = slices.Clone(e.Blocks), slices.Clone(e.Hashes)
		out = append(out, one)
		return true
	})
	return out
}

func (x *index) Count() (pairs, blocks [4]int) {
	s := x.Stats()
	return s.Pairs, s.Blocks
}
