package plan

import "math/bits"

// remove takes the owner in a slot off the edges that lead to hashes.
func (t *tier) remove(slot uint32, hashes []uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if int(slot) >= len(t.pairs) || t.pairs[slot] == 0 {
		return
	}
	o := &t.cur
	at := 0 // of the last one in the open chunk
	for _, hash := range hashes {
		// Hashes mostly come in the order of their chain, or in the opposite one.
		if o.id != 0 {
			if next := at + 1; next < o.len && o.hashes[next] == hash && o.mine>>next&1 != 0 {
				at = next
				o.mine &^= 1 << at
				continue
			}
			if prev := at - 1; prev >= 0 && o.hashes[prev] == hash && o.mine>>prev&1 != 0 {
				at = prev
				o.mine &^= 1 << at
				continue
			}
		}
		p := t.nodes.probe(t.nodeHash(hash))
		for n := p.next(); n != 0; n = p.next() {
			e := edge(n)
			if t.hash(e) == hash && t.mineNow(slot, e.chunk())>>e.at()&1 != 0 {
				t.open(slot, e.chunk())
				at = e.at()
				o.mine &^= 1 << at
				break // T2
			}
		}
	}
	t.close(slot)
}

// clear takes the owner in a slot off every edge. Lookups and other writers go on
// between its parts.
func (t *tier) clear(slot uint32) {
	t.parts(func(id uint32, c *chunk) bool {
		if int(slot) >= len(t.pairs) || t.pairs[slot] == 0 {
			return false
		}
		if mask := t.recs.of(owned(c.owned.Load()), slot); mask != 0 {
			t.setOwner(slot, id, mask, 0)
		}
		return true
	})
}

// parts calls f for each chunk, under the lock, which it gives up now and then. No
// chunk is rewritten meanwhile, so that no edge is missed; edges that are stored
// meanwhile may be.
func (t *tier) parts(f func(id uint32, c *chunk) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unmoving++
	defer func() { t.unmoving-- }()
	for i := 0; i < t.chunks.len(); i++ {
		slab := t.chunks.get(uint32(i))
		for j := range slab {
			if slab[j].owned.Load() != 0 && !f(uint32(i*chunkSlabLen+j), &slab[j]) {
				return
			}
		}
		t.mu.Unlock()
		t.mu.Lock()
	}
}

// worthRewriting reports whether less than a quarter of a chunk lives, and what lives
// of it would fit into half its units.
func (t *tier) worthRewriting(c *chunk, lives uint64) bool {
	units := c.units()
	if t.unmoving > 0 || units == 1 || bits.OnesCount64(lives)*4 >= units*unitBlocks {
		return false
	}
	need := 0
	for rest := lives; rest != 0; {
		from, n := firstRun(rest)
		need += (n + unitBlocks - 1) / unitBlocks
		rest &^= maskOf(from, n)
	}
	return need*2 <= units
}

// rewrite moves the live edges of a chunk into chunks of their own, and takes it out.
func (t *tier) rewrite(id uint32, lives uint64) {
	if len(t.spare)+maxChunks-t.chunks.len()*chunkSlabLen < chunkBlocks {
		return // chunks might run out on the way
	}
	c := t.chunk(id)
	old := owned(c.owned.Load())
	locals, hashes := t.blocks.of(c.base, c.len())
	for rest := lives; rest != 0; {
		from, n := firstRun(rest)
		root, parent := c.root(), c.parent
		if from > 0 {
			root, parent = false, hashes[from-1]
		}
		into := t.newChunk(root, parent, (n+unitBlocks-1)/unitBlocks)
		nc := t.chunk(into)
		n = min(n, nc.cap())
		rest &^= maskOf(from, n)
		l, h := t.blocks.of(nc.base, n)
		copy(l, locals[from:])
		copy(h, hashes[from:])
		nc.owned.Store(uint64(t.part(old, from, n)))
		nc.shape.Add(uint32(n)) // (A)
		t.heads.add(t.headHash(root, parent, l[0]), into)
		for at := range n {
			t.nodes.add(t.nodeHash(h[at]), uint32(edgeOf(into, at)))
		}
		t.twins.Add(int64(n)) // kill counts them off
	}
	t.moves.Add(1) // (M)
	c.owned.Store(0)
	if old&ownedKind == ownedMany {
		t.retire(goneThing{record: uint32(old)})
	}
	t.kill(id)
}

// part returns the owners of n edges of o, as edges from 0 on.
func (t *tier) part(o owned, from, n int) (part owned) {
	var one [3]uint64
	groups, words := t.recs.groups(o, &one)
	for range groups {
		var mask uint64
		var first int
		var slots []uint64
		mask, first, slots, words = groupAt(words)
		mask = mask & maskOf(from, n) >> from
		if mask == 0 {
			continue
		}
		for i, w := range slots {
			for ; w != 0; w &= w - 1 {
				last := part
				part = t.recs.with(last, uint32((first+i)*64+bits.TrailingZeros64(w)), mask)
				if last&ownedKind == ownedMany {
					t.recs.giveBack(uint32(last)) // nobody has seen it
				}
			}
		}
	}
	return part
}

func firstRun(mask uint64) (from, n int) {
	from = bits.TrailingZeros64(mask)
	return from, bits.TrailingZeros64(^(mask >> from))
}

func maskOf(from, n int) uint64 { return ^uint64(0) >> (64 - n) << from }
