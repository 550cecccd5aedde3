package plan

import (
	"slices"

	"github.com/kvcr-go/kvcr/hints/events"
)

// cover is what the sources of one lookup hold, made ready for choosing the one that
// reaches farthest from a position.
type cover struct {
	starts   [len(types)][]reach
	segments []Segment
}

// reach is the best sources that hold the chain from start, or from before it, up to
// their ends.
type reach struct {
	start int32
	best  pair
}

// PlanMulti is Plan for targets that can fetch from several sources: from a target's
// frontier on it covers as many blocks as its sources together hold without a gap,
// with the fewest segments. Each segment goes to the source that reaches farthest from
// where the one before it ended, the smallest of several: after any number of segments
// no other choice can have come farther, so none ends farther or needs fewer.
//
// Blocks that a source holds on the host count wherever its run begins, unlike in
// Plan; of its device blocks those count that its frontier includes.
//
// It appends to dst[:0]. Segments are valid until the next lookup with s.
func (x *Index) PlanMulti(s *Scratch, m *Match, dst []Multi) []Multi {
	x.epochs.enter(s.reader)
	defer x.epochs.leave(s.reader)
	w := &s.walk
	steady := x.steadily(s, m, func() {
		w.begin(m, forMany)
		w.run(x.tiers[events.HostPinned], m.stops, m.sets)
	})
	s.cover.fill(w)
	dst = dst[:0]
	s.cover.segments = s.cover.segments[:0]
	for i := range m.topology.targets {
		t := &m.topology.targets[i]
		a := Multi{Target: t.worker}
		if steady {
			a.Frontier = int(w.front[t.slot])
			if t.class >= 0 {
				a.Segments = s.cover.segmentsFor(w, t)
			}
		}
		dst = append(dst, a)
	}
	return dst
}

// fill makes c of the spans of a walk of many, and of the prefixes of its sources.
func (c *cover) fill(w *walk) {
	p := w.m.topology
	for _, slot := range p.slots {
		if prefix := w.prefix(slot); prefix > 0 && has(p.sources, slot) {
			w.spans = append(w.spans, span{slot, 0, prefix})
		}
	}
	slices.SortFunc(w.spans, func(a, b span) int { return int(a.start) - int(b.start) })
	for class := range c.starts {
		c.starts[class] = c.starts[class][:0]
	}
	for _, sp := range w.spans {
		starts := &c.starts[p.class[sp.slot]]
		n := len(*starts)
		if n == 0 || (*starts)[n-1].start != sp.start {
			r := reach{start: sp.start}
			if n > 0 {
				r.best = (*starts)[n-1].best
			}
			*starts = append(*starts, r)
			n++
		}
		(*starts)[n-1].best.add(candidate{slot: sp.slot, ident: p.ident[sp.slot], rank: p.rank[sp.slot], end: sp.end})
	}
}

func (c *cover) segmentsFor(w *walk, t *target) []Segment {
	first := len(c.segments)
	if has(w.strays, t.slot) {
		// As in Plan, it takes nothing but what a source has from the root on.
		if best := w.root[t.class].serving(t.slot); best.end > w.front[t.slot] {
			c.segments = append(c.segments, Segment{w.m.names[best.slot], int(w.front[t.slot]), int(best.end)})
		}
		return c.segments[first:len(c.segments):len(c.segments)]
	}
	starts := c.starts[t.class]
	for at := w.front[t.slot]; ; {
		i, exact := slices.BinarySearchFunc(starts, at, func(r reach, at int32) int { return int(r.start) - int(at) })
		if !exact {
			i--
		}
		if i < 0 {
			break
		}
		best := starts[i].best.serving(t.slot)
		if best.end <= at || int(best.end) > len(w.chain) {
			break
		}
		c.segments = append(c.segments, Segment{w.m.names[best.slot], int(at), int(best.end)})
		at = best.end
	}
	return c.segments[first:len(c.segments):len(c.segments)]
}
