package plan

import "math/bits"

// view is a stretch of a chunk that a prompt follows, for lookups.
type view struct {
	id     uint32 // 0: none
	c      *chunk
	from   int // position of the prompt that its first edge is at
	at     int // place of that edge in the chunk
	end    int // position after its last edge
	hashes []uint64
	owned  owned // as the last call of owners saw it
}

func (v *view) hashesFrom(p, end int) []uint64 { return v.hashes[p-v.from : end-v.from] }

// step finds the live edge at position p, whose parent is parent (the root at 0), and
// who owns it: into aNext the owners in a, into bNext those in b. It returns up to
// which position the same is so of every edge, p itself if there is no live edge.
func (v *view) step(t *tier, locals []uint64, parent uint64, p int, a, b, aNext, bNext []uint64) (end int) {
	if p == v.end {
		v.find(t, locals, parent, p)
	}
	for v.end > p {
		if end = v.owners(t, p, a, b, aNext, bNext); end > p {
			return end
		}
		v.search(t, locals, parent, p) // another edge may live
	}
	return p
}

// find makes v a stretch that locals[p:] follows after parent, given that v ended at p
// or is none. Its first edge may be dead. v.end is p if no edge is there.
func (v *view) find(t *tier, locals []uint64, parent uint64, p int) {
	if v.id != 0 {
		at := v.at + p - v.from
		if n := v.c.len(); at < n {
			if v.take(t, v.id, at, locals, p) {
				return
			}
		} else if next := v.c.next.Load(); next != 0 && at == n { // (A)
			if t.isHead(t.chunk(next), false, parent, locals[p]) && v.take(t, next, 0, locals, p) {
				return
			}
		}
	} else if p > 0 {
		// Nothing was followed to here.
		if e := t.node(parent); e != 0 && v.take(t, e.chunk(), e.at()+1, locals, p) {
			return
		}
	}
	v.search(t, locals, parent, p)
}

// search looks everywhere for a live edge at p; v.end is p if there is none.
func (v *view) search(t *tier, locals []uint64, parent uint64, p int) {
	for range 4 { // rewritings are rare: once is mostly enough
		moves := t.moves.Load()
		if v.searchOnce(t, locals, parent, p) {
			return
		}
		if t.moves.Load() == moves { // (M)
			break
		}
	}
	*v = view{from: p, end: p}
}

func (v *view) searchOnce(t *tier, locals []uint64, parent uint64, p int) bool {
	root, local := p == 0, locals[p]
	pr := t.heads.probe(t.headHash(root, parent, local))
	for n := pr.next(); n != 0; n = pr.next() {
		if c := t.chunk(n); t.isHead(c, root, parent, local) {
			if t.inSearch != nil {
				t.inSearch()
			}
			if t.lives(c, 0) && v.take(t, n, 0, locals, p) {
				return true
			}
		}
	}
	if root {
		return false
	}
	pr = t.nodes.probe(t.nodeHash(parent))
	for n := pr.next(); n != 0; n = pr.next() {
		e := edge(n)
		if t.hash(e) != parent {
			continue
		}
		if c, at := t.chunk(e.chunk()), e.at()+1; at < c.len() && t.lives(c, at) && v.take(t, e.chunk(), at, locals, p) {
			return true
		}
	}
	return false
}

// take makes v the stretch of a chunk, from one of its edges on, that locals[p:]
// follows. False: it does not follow that edge.
func (v *view) take(t *tier, id uint32, at int, locals []uint64, p int) bool {
	c := t.chunk(id)
	n := min(c.len()-at, len(locals)-p)
	if n <= 0 {
		return false
	}
	l, h := t.blocks.of(c.base, at+n)
	n = samePrefix(l[at:], locals[p:p+n])
	if n == 0 {
		return false
	}
	*v = view{id: id, c: c, from: p, at: at, end: p + n, hashes: h[at : at+n]}
	return true
}

// samePrefix returns how many words at the heads of a and b are equal.
func samePrefix(a, b []uint64) int {
	const step = 8
	n := min(len(a), len(b))
	a, b = a[:n], b[:n]
	i := 0
	for ; i+step <= n; i += step {
		// Arrays are compared with vector instructions, slices are not.
		if *(*[step]uint64)(a[i:]) != *(*[step]uint64)(b[i:]) {
			break
		}
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}

// owners finds who owns the edge at position p: into aNext the owners in a, into bNext
// those in b. It returns the position up to which the same is so of all edges, p
// itself if the edge is dead.
func (v *view) owners(t *tier, p int, a, b, aNext, bNext []uint64) (end int) {
	clear(aNext)
	clear(bNext)
	at := v.at + p - v.from
	end = v.end
	v.owned = owned(v.c.owned.Load()) // (A)
	var one [3]uint64
	n, words := t.recs.groups(v.owned, &one)
	dead := true
	for range n {
		var mask uint64
		var first int
		var slots []uint64
		mask, first, slots, words = groupAt(words)
		mask >>= at
		if mask&1 == 0 {
			continue
		}
		dead = false
		hit := uint64(0)
		for i, s := range slots {
			i += first
			if i >= len(a) {
				break // owners that came after the lookup began
			}
			x := s & a[i]
			aNext[i] |= x
			hit |= x
			if b != nil {
				x = s & b[i]
				bNext[i] |= x
				hit |= x
			}
		}
		if hit != 0 {
			end = min(end, p+bits.TrailingZeros64(^mask))
		}
	}
	if dead {
		return p
	}
	return end
}

// fresh adds to active the owners in sources that own the edge at p, as the last call
// of owners saw it, and calls began for each that was not active. It returns the
// position up to which all of these own every edge, at most end; with every, also up
// to which no other owner in sources begins to own.
func (v *view) fresh(t *tier, p, end int, active, sources []uint64, every bool, began func(slot uint32)) int {
	at := v.at + p - v.from
	var one [3]uint64
	n, words := t.recs.groups(v.owned, &one)
	for range n {
		var mask uint64
		var first int
		var slots []uint64
		mask, first, slots, words = groupAt(words)
		mask >>= at
		holds := mask&1 != 0
		if !holds && !every {
			continue
		}
		hit := uint64(0)
		for i, s := range slots {
			i += first
			if i >= len(active) || i >= len(sources) {
				break
			}
			s &= sources[i]
			hit |= s
			if !holds {
				continue
			}
			for s &^= active[i]; s != 0; s &= s - 1 {
				slot := uint32(i*64 + bits.TrailingZeros64(s))
				active[i] |= 1 << (slot % 64)
				began(slot)
			}
		}
		switch {
		case hit == 0:
		case holds:
			end = min(end, p+bits.TrailingZeros64(^mask))
		case mask != 0:
			end = min(end, p+bits.TrailingZeros64(mask))
		}
	}
	return end
}
