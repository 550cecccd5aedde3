package plan

import (
	"math/bits"
	"slices"

	"github.com/kvcr-go/kvcr/hints/events"
)

// Scores gives the hits of every owner that has any, in the order of owners. It
// appends to dst[:0]. m is the last Match with s; what Plan left in s is replaced.
func (x *Index) Scores(s *Scratch, m *Match, dst []Score) []Score {
	x.epochs.enter(s.reader)
	defer x.epochs.leave(s.reader)
	if !x.steadily(s, m, func() { dst = x.scores(s, m, dst[:0]) }) {
		return dst[:0]
	}
	return dst
}

func (x *Index) scores(s *Scratch, m *Match, dst []Score) []Score {
	w := &s.walk
	w.begin(m, forScores)
	for i, st := range m.stops {
		for word, set := range m.set(i) {
			for ; set != 0; set &= set - 1 {
				w.front[word*64+bits.TrailingZeros64(set)] = int32(st.depth)
			}
		}
	}
	n := len(w.front)
	s.bases = sized(s.bases, numTiers*n)
	copy(s.bases, w.front)
	stops, sets := m.stops, m.sets
	for tier := events.HostPinned; int(tier) < numTiers; tier++ {
		w.runStrays(x.tiers[tier])
		w.run(x.tiers[tier], stops, sets)
		copy(s.bases[int(tier)*n:], w.front)
		stops, sets = s.frontStops(w)
	}
	s.slots = s.slots[:0]
	for slot, front := range w.front {
		if front > 0 {
			s.slots = append(s.slots, uint32(slot))
		}
	}
	slices.SortFunc(s.slots, func(a, b uint32) int { return m.names[a].Compare(m.names[b]) })
	for _, slot := range s.slots {
		sc := Score{Owner: m.names[slot]}
		last := 0
		for tier := range numTiers {
			front := int(s.bases[tier*n+int(slot)])
			sc.Hits[tier] = front - last
			last = front
		}
		dst = append(dst, sc)
	}
	return dst
}

// frontStops groups the owners that a walk has left above the root by where it did.
// Strays are in no group.
func (s *Scratch) frontStops(w *walk) (stops []stop, sets []uint64) {
	s.slots = s.slots[:0]
	for slot, front := range w.front {
		if front > 0 && !has(w.strays, uint32(slot)) {
			s.slots = append(s.slots, uint32(slot))
		}
	}
	slices.SortFunc(s.slots, func(a, b uint32) int { return int(w.front[a]) - int(w.front[b]) })
	stops, sets = s.stops[:0], s.sets[:0]
	for _, slot := range s.slots {
		depth := int(w.front[slot])
		if n := len(stops); n == 0 || stops[n-1].depth != depth {
			stops = append(stops, stop{depth, len(sets)})
			for range w.m.words {
				sets = append(sets, 0)
			}
		}
		sets[stops[len(stops)-1].at+int(slot/64)] |= 1 << (slot % 64)
	}
	s.stops, s.sets = stops, sets
	return stops, sets
}
