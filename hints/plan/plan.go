package plan

import (
	"slices"

	"github.com/kvcr-go/kvcr/hints/events"
)

// Plan looks the prompt up in HostPinned and chooses for every target, in the order
// of owners. It appends to dst[:0]. m is the last Match with s.
func (x *Index) Plan(s *Scratch, m *Match, dst []Choice) []Choice {
	x.epochs.enter(s.reader)
	defer x.epochs.leave(s.reader)
	w := &s.walk
	steady := x.steadily(s, m, func() {
		w.begin(m, forOne)
		w.run(x.tiers[events.HostPinned], m.stops, m.sets)
	})
	w.accumulate()
	dst = dst[:0]
	for i := range m.topology.targets {
		c := Choice{Target: m.topology.targets[i].worker}
		if steady {
			w.choose(&m.topology.targets[i], &c)
		}
		dst = append(dst, c)
	}
	return dst
}

// steadily does a walk with m. If slots went to other owners since m was made, or do
// so meanwhile, it makes m anew and does it again. False: that did not end, nothing of
// the walk may be used.
func (x *Index) steadily(s *Scratch, m *Match, do func()) bool {
	for range 4 {
		if x.owners.turn.Load() != m.turn {
			x.match(m, &s.walk)
		}
		do()
		if x.owners.turn.Load() == m.turn {
			return true
		}
	}
	return false
}

// choose makes c the answer for a target.
func (w *walk) choose(t *target, c *Choice) {
	front := int(w.front[t.slot])
	c.Frontier = front
	if t.class < 0 || front == len(w.m.locals) {
		return
	}
	best, kind := w.root[t.class].serving(t.slot), RootPrefix
	if front > 0 && !has(w.strays, t.slot) {
		if at := w.openingAt(front); at >= 0 {
			if on := w.from[at][t.class].serving(t.slot); on.end > best.end {
				best, kind = on, Continuation
			}
		}
	}
	if int(best.end) > front && int(best.end) <= len(w.chain) {
		c.Kind, c.Source, c.End = kind, w.m.names[best.slot], int(best.end)
	}
}

// openingAt returns the place of the last opening that is not above a position, or -1.
func (w *walk) openingAt(p int) int {
	i, exact := slices.BinarySearch(w.openings, int32(p))
	if exact {
		return i
	}
	return i - 1
}

// Choose is Match and Plan.
func (x *Index) Choose(s *Scratch, locals []uint64, dst []Choice) []Choice {
	return x.Plan(s, x.Match(s, locals), dst)
}

// Chain returns the external hashes of the last lookup, from the root, as far as
// they are known: at least to the End of each of its choices.
func (s *Scratch) Chain() []uint64 { return s.walk.chain }

// Intervals appends the intervals of the last Plan to dst[:0], in no order.
func (s *Scratch) Intervals(dst []Interval) []Interval {
	w := &s.walk
	dst = dst[:0]
	if w.purpose != forOne {
		return dst
	}
	for _, sp := range w.spans {
		dst = append(dst, Interval{w.m.names[sp.slot], int(w.openings[sp.start]), int(sp.end)})
	}
	return dst
}
