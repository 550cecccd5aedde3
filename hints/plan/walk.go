package plan

import (
	"math/bits"
	"slices"
)

// walk is one pass over a lower tier along a prompt. Owners join it where the tiers
// above left them, go on while they own every edge, and stop: that is their frontier.
//
// Where a target stops with some blocks but not all is an opening: the sources that
// own the edge there become active, and stay so while they own every further edge.
// Each such run is a span.
type walk struct {
	t       *tier
	m       *Match
	purpose purpose

	// Sets of slots.
	alive, next        []uint64 // owners that go on
	active, activeNext []uint64 // sources
	strays             []uint64 // owners that left the chain

	chain []uint64 // external hashes: the device path, then the edges that were followed
	front []int32  // by slot: where the owner stopped
	last  []uint64 // by slot of a stray: the external hash there
	left  []int32  // by slot of a stray: where it left the chain
	start []int32  // by slot of an active source: its opening; forMany, its position

	openings []int32 // positions, ascending
	spans    []span

	root [len(types)]pair   // by class: the best that stopped, for root prefixes
	from [][len(types)]pair // by opening: the best of its spans; see accumulate
}

// purpose says which sources a walk follows.
type purpose uint8

const (
	forScores purpose = iota // none
	forOne                   // those active from an opening on
	forMany                  // all: they are active wherever they own the edge
)

// span is a run of one source.
type span struct {
	slot       uint32
	start, end int32 // start: of openings; forMany, a position
}

// size makes the sets as long as those of m.
func (w *walk) size(m *Match) {
	w.m = m
	w.alive = sized(w.alive, m.words)
	w.next = sized(w.next, m.words)
	w.active = sized(w.active, m.words)
	w.activeNext = sized(w.activeNext, m.words)
	w.strays = sized(w.strays, m.words)
	w.front = sized(w.front, m.words*64)
	w.start = sized(w.start, m.words*64)
	w.last = sized(w.last, m.words*64)
	w.left = sized(w.left, m.words*64)
}

func sized[T any](s []T, n int) []T { return slices.Grow(s[:0], n)[:n] }

// begin readies w for the tiers below the device.
func (w *walk) begin(m *Match, purpose purpose) {
	w.size(m)
	w.purpose = purpose
	clear(w.front)
	clear(w.strays)
	w.chain = append(w.chain[:0], m.path...)
	w.openings, w.spans, w.from = w.openings[:0], w.spans[:0], w.from[:0]
	w.root = [len(types)]pair{}
}

// run walks t. The owners of stops join at their depths, all others at the root.
func (w *walk) run(t *tier, stops []stop, sets []uint64) {
	w.t = t
	locals := w.m.locals
	clear(w.active)
	w.m.everyone(w.alive)
	for i := range w.alive {
		w.alive[i] &^= w.strays[i]
	}
	for _, st := range stops {
		for i := range w.alive {
			w.alive[i] &^= sets[st.at+i]
		}
	}
	known := len(w.chain) // what the tier must agree with
	var v view
	p, some := 0, true
	for {
		if !some {
			// Nobody goes on: to where the next owners join.
			if len(stops) == 0 {
				return
			}
			p = stops[0].depth
			v = view{from: p, end: p}
		}
		if len(stops) > 0 && stops[0].depth == p {
			for i := range w.alive {
				w.alive[i] |= sets[stops[0].at+i]
			}
			stops = stops[1:]
		}
		if p == len(locals) {
			w.stopAll(p)
			return
		}
		parent := uint64(0)
		if p > 0 {
			parent = w.chain[p-1]
		}
		end := v.step(t, locals, parent, p, w.alive, w.active, w.next, w.activeNext)
		if end == p {
			w.stopAll(p)
			some = false
			continue
		}
		if p < known {
			ours := w.chain[p:min(end, known)]
			if n := samePrefix(ours, v.hashesFrom(p, end)); n == 0 {
				w.stray(&v, p)
				some = false
				continue
			} else if n < len(ours) {
				end = p + n
			}
		}
		if len(stops) > 0 {
			end = min(end, stops[0].depth)
		}
		opens := w.stopped(p)
		w.closed(p)
		w.alive, w.next = w.next, w.alive
		w.active, w.activeNext = w.activeNext, w.active
		if w.purpose == forMany {
			end = v.fresh(t, p, end, w.active, w.m.topology.sources, true, func(slot uint32) { w.start[slot] = int32(p) })
		} else if opens && w.purpose == forOne {
			at := int32(len(w.openings))
			w.openings = append(w.openings, int32(p))
			w.from = append(w.from, [len(types)]pair{})
			end = v.fresh(t, p, end, w.active, w.m.topology.sources, false, func(slot uint32) { w.start[slot] = at })
		}
		some = !empty(w.alive) || !empty(w.active)
		if some && end > len(w.chain) { // up to end somebody owns every edge
			w.chain = append(w.chain, v.hashesFrom(len(w.chain), end)...)
		}
		p = end
	}
}

// stopped notes that the owners in alive that are not in next stop at p. It reports
// whether that is an opening.
func (w *walk) stopped(p int) (opens bool) {
	if p == 0 {
		return false // frontiers are 0 until said otherwise
	}
	serves, sources := w.m.topology.serves, w.m.topology.sources
	for i := range w.alive {
		gone := w.alive[i] &^ w.next[i]
		if gone == 0 {
			continue
		}
		if i < len(serves) {
			opens = opens || gone&serves[i] != 0
			for s := gone & sources[i]; s != 0; s &= s - 1 {
				w.offer(&w.root, uint32(i*64+bits.TrailingZeros64(s)), p)
			}
		}
		for ; gone != 0; gone &= gone - 1 {
			w.front[i*64+bits.TrailingZeros64(gone)] = int32(p)
		}
	}
	return opens && p < len(w.m.locals)
}

// closed ends, at p, the spans of the sources in active that are not in activeNext.
func (w *walk) closed(p int) {
	for i := range w.active {
		for gone := w.active[i] &^ w.activeNext[i]; gone != 0; gone &= gone - 1 {
			slot := uint32(i*64 + bits.TrailingZeros64(gone))
			start := w.start[slot]
			w.spans = append(w.spans, span{slot, start, int32(p)})
			if w.purpose == forOne {
				w.offer(&w.from[start], slot, p)
			}
		}
	}
}

func (w *walk) stopAll(p int) {
	clear(w.next)
	clear(w.activeNext)
	w.stopped(p)
	w.closed(p)
	clear(w.alive)
	clear(w.active)
}

// stray makes strays of the owners in next, which own an edge at p that leads to
// another hash than the chain has there: they serve what is before p, and go on alone.
// The others stop at p.
func (w *walk) stray(v *view, p int) {
	lost := slices.Clone(w.next) // so rare that its memory does not matter
	clear(w.activeNext)
	w.stopped(p)
	w.closed(p)
	sources := w.m.topology.sources
	for i := range lost {
		w.strays[i] |= lost[i]
		for s := lost[i]; s != 0; s &= s - 1 {
			slot := uint32(i*64 + bits.TrailingZeros64(s))
			w.left[slot] = int32(p)
			if p > 0 && has(sources, slot) {
				w.offer(&w.root, slot, p)
			}
		}
	}
	w.follow(*v, p+1, v.hashesFrom(p, p+1)[0], lost)
	clear(w.alive)
	clear(w.active)
}

// prefix returns how much of the chain the owner in a slot has from the root on.
func (w *walk) prefix(slot uint32) int32 {
	if has(w.strays, slot) {
		return w.left[slot]
	}
	return w.front[slot]
}

// follow goes on with strays that have come over parent to p, until each has stopped.
// at is a view that has come there, or ends there.
func (w *walk) follow(at view, p int, parent uint64, strays []uint64) {
	next := make([]uint64, len(strays))
	for {
		end := p
		if p < len(w.m.locals) {
			end = at.step(w.t, w.m.locals, parent, p, strays, nil, next, nil)
		}
		if end == p {
			clear(next)
		}
		for i := range strays {
			for gone := strays[i] &^ next[i]; gone != 0; gone &= gone - 1 {
				slot := i*64 + bits.TrailingZeros64(gone)
				w.front[slot] = int32(p)
				w.last[slot] = parent
			}
		}
		strays, next = next, strays
		if empty(strays) {
			return
		}
		parent = at.hashesFrom(end-1, end)[0]
		p = end
	}
}

// runStrays goes on with the strays of the tiers above in t.
func (w *walk) runStrays(t *tier) {
	w.t = t
	for i, set := range w.strays {
		for ; set != 0; set &= set - 1 {
			slot := i*64 + bits.TrailingZeros64(set)
			alone := make([]uint64, len(w.strays))
			alone[i] = set & -set
			p := int(w.front[slot])
			w.follow(view{from: p, end: p}, p, w.last[slot], alone)
		}
	}
}

// offer considers the source in a slot, which reaches up to end, for the best of its
// class.
func (w *walk) offer(best *[len(types)]pair, slot uint32, end int) {
	p := w.m.topology
	best[p.class[slot]].add(candidate{slot: slot, ident: p.ident[slot], rank: p.rank[slot], end: int32(end)})
}

// candidate is a source and how far it covers the chain. The zero candidate is none.
type candidate struct {
	slot  uint32
	ident uint32 // the slot of the target that it does not serve
	rank  int32  // in the order of owners
	end   int32
}

func (c candidate) better(d candidate) bool {
	return c.end > d.end || c.end == d.end && c.rank < d.rank
}

// pair is the best candidate and the best of another ident. One of them serves a
// target if any candidate does, as what a target excludes has one ident.
type pair [2]candidate

func (p *pair) add(c candidate) {
	switch {
	case c.end == 0:
	case c.better(p[0]) || p[0].end == 0:
		if c.ident != p[0].ident {
			p[1] = p[0]
		}
		p[0] = c
	case c.ident != p[0].ident && (c.better(p[1]) || p[1].end == 0):
		p[1] = c
	}
}

// serving returns the best candidate for the target in a slot; none has end 0.
func (p *pair) serving(slot uint32) candidate {
	if p[0].ident != slot {
		return p[0]
	}
	return p[1]
}

// accumulate makes from the best of all spans up to each opening.
func (w *walk) accumulate() {
	for i := 1; i < len(w.from); i++ {
		for class := range types {
			last := &w.from[i-1][class]
			w.from[i][class].add(last[0])
			w.from[i][class].add(last[1])
		}
	}
}
