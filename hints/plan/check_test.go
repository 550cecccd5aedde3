package plan

import (
	"fmt"
	"math/bits"
)

// Check looks whether the index is in order: the invariants of tier, and that nothing
// was lost of its memory. Nobody may write meanwhile.
func (x *Index) Check() error {
	for i, t := range x.tiers {
		if err := t.check(); err != nil {
			return fmt.Errorf("tier %d: %w", i, err)
		}
	}
	return nil
}

type checkedEdge struct {
	root          bool
	parent, local uint64
}

func (t *tier) check() error {
	live := map[checkedEdge]edge{}
	toHash := map[uint64]int{}
	pairs := make([]int, len(t.pairs))
	owns := map[[2]uint64]edge{} // slot, hash
	edges, chunks, used, records, lives := 0, 0, 0, 0, 0
	units := map[uint32]uint32{}
	for id := uint32(1); int(id) < t.chunks.len()*chunkSlabLen; id++ {
		c := t.chunk(id)
		if c.shape.Load() == 0 {
			continue
		}
		used++
		for u := range uint32(c.units()) {
			if other := units[c.base+u]; other != 0 {
				return fmt.Errorf("chunks %d and %d share unit %d", id, other, c.base+u)
			}
			units[c.base+u] = id
		}
		o := owned(c.owned.Load())
		if o == 0 {
			continue // gone
		}
		chunks++
		n := c.len()
		if n == 0 || n > c.cap() {
			return fmt.Errorf("chunk %d has %d edges, room for %d", id, n, c.cap())
		}
		if o&ownedKind == ownedMany {
			records++
		}
		locals, hashes := t.blocks.of(c.base, n)
		if !t.heads.holds(t.headHash(c.root(), c.parent, locals[0]), id) {
			return fmt.Errorf("chunk %d is not in heads", id)
		}
		if next := c.next.Load(); next != 0 {
			if nc := t.chunk(next); nc.prev != id || nc.parent != hashes[n-1] || n != c.cap() {
				return fmt.Errorf("chunk %d does not follow chunk %d", next, id)
			}
		}
		if t.recs.live(o)>>(n-1)>>1 != 0 {
			return fmt.Errorf("chunk %d of %d edges has owners of %#x", id, n, t.recs.live(o))
		}
		lives += bits.OnesCount64(t.recs.live(o))
		for at := range n {
			edges++
			e := edgeOf(id, at)
			toHash[hashes[at]]++
			if !t.nodes.holds(t.nodeHash(hashes[at]), uint32(e)) {
				return fmt.Errorf("edge %d of chunk %d is not in nodes", at, id)
			}
			key := checkedEdge{c.root() && at == 0, c.parent, locals[at]}
			if at > 0 {
				key.parent = hashes[at-1]
			}
			if t.lives(c, at) {
				if other, ok := live[key]; ok {
					return fmt.Errorf("edges %d and %d live and are the same", e, other) // T1
				}
				live[key] = e
			}
			for slot := range t.pairs {
				if t.recs.of(o, uint32(slot))>>at&1 == 0 {
					continue
				}
				pairs[slot]++
				k := [2]uint64{uint64(slot), hashes[at]}
				if other, ok := owns[k]; ok {
					return fmt.Errorf("slot %d owns edges %d and %d to one hash", slot, e, other) // T2
				}
				owns[k] = e
			}
		}
	}
	all := 0
	for slot, n := range pairs {
		all += n
		if n != t.pairs[slot] {
			return fmt.Errorf("slot %d owns %d edges, counted %d", slot, n, t.pairs[slot])
		}
	}
	if all != t.allPairs || lives != t.live {
		return fmt.Errorf("%d pairs and %d live edges, counted %d and %d", all, lives, t.allPairs, t.live)
	}
	if edges != t.nodes.len || chunks != t.heads.len {
		return fmt.Errorf("%d edges and %d chunks, in tables %d and %d", edges, chunks, t.nodes.len, t.heads.len)
	}
	if twins := int64(edges - len(toHash)); twins != t.twins.Load() {
		return fmt.Errorf("%d twins, counted %d", twins, t.twins.Load())
	}
	if n := used + len(t.spare) + 1; t.chunks.len() > 0 && n != t.chunks.len()*chunkSlabLen {
		return fmt.Errorf("%d of %d chunks are in use or spare", n, t.chunks.len()*chunkSlabLen)
	}
	if n := len(units) + t.blocks.free; n != len(t.blocks.regions)*regionUnits {
		return fmt.Errorf("%d of %d units are in use or free", n, len(t.blocks.regions)*regionUnits)
	}
	return nil
}

func (t *table) holds(hash uint64, n uint32) bool {
	p := t.probe(hash)
	for got := p.next(); got != 0; got = p.next() {
		if got == n {
			return true
		}
	}
	return false
}
