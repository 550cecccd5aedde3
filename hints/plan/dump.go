package plan

import (
	"math/bits"

	"github.com/kvcr-go/kvcr/hints/events"
)

// Dump calls yield with one Stored event for each block of each owner, each with its
// parent; applied in any order to an empty index they make an equal one. Other calls
// go on meanwhile: a dump has what is held during all of it, and may have what is
// held during a part. yield must keep nothing of the event; false ends the dump.
func (x *Index) Dump(yield func(ev *events.RouterEvent) bool) {
	var d dumped
	for i, t := range x.tiers {
		t.mu.Lock()
		t.unmoving++
		t.mu.Unlock()
		more := x.dumpTier(events.Tier(i), &d, yield)
		t.mu.Lock()
		t.unmoving--
		t.mu.Unlock()
		if !more {
			return
		}
	}
}

// dumped is a copy of a chunk.
type dumped struct {
	root           bool
	parent         uint64
	locals, hashes []uint64
	held           []held
}

// held is the edges that one owner has.
type held struct {
	owner Owner
	by    events.Worker
	mask  uint64
}

func (x *Index) dumpTier(tier events.Tier, d *dumped, yield func(ev *events.RouterEvent) bool) bool {
	var ev events.RouterEvent
	var block [1]events.Block
	for id := uint32(1); x.copyChunk(x.tiers[tier], id, d); id++ {
		for _, h := range d.held {
			ev = events.RouterEvent{Worker: h.by, Tier: tier, Domain: events.DomainWorker, Op: events.Stored}
			if h.owner.Cache {
				ev.Domain, ev.Owner = events.DomainCacheOwner, h.owner.Key
			}
			for rest := h.mask; rest != 0; rest &= rest - 1 {
				at := bits.TrailingZeros64(rest)
				ev.HasParent, ev.Parent = !d.root, d.parent
				if at > 0 {
					ev.HasParent, ev.Parent = true, d.hashes[at-1]
				}
				block[0] = events.Block{Hash: d.hashes[at], Local: d.locals[at]}
				ev.Blocks = block[:]
				if !yield(&ev) {
					return false
				}
			}
		}
	}
	return true
}

// copyChunk copies a chunk into d, with no owners if it is of no use. False: there is
// no such chunk yet.
func (x *Index) copyChunk(t *tier, id uint32, d *dumped) bool {
	x.owners.mu.RLock()
	defer x.owners.mu.RUnlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if int(id) >= t.chunks.len()*chunkSlabLen {
		return false
	}
	d.held = d.held[:0]
	c := t.chunk(id)
	o := owned(c.owned.Load())
	if o == 0 {
		return true
	}
	d.root, d.parent = c.root(), c.parent
	locals, hashes := t.blocks.of(c.base, c.len())
	d.locals = append(d.locals[:0], locals...)
	d.hashes = append(d.hashes[:0], hashes...)
	names := *x.owners.names.Load()
	var one [3]uint64
	n, words := t.recs.groups(o, &one)
	for range n {
		var mask uint64
		var first int
		var slots []uint64
		mask, first, slots, words = groupAt(words)
		for i, w := range slots {
			for ; w != 0; w &= w - 1 {
				slot := (first+i)*64 + bits.TrailingZeros64(w)
				h := held{owner: names[slot], by: x.owners.by[slot], mask: mask}
				if !h.owner.Cache {
					h.by = h.owner.Worker
				}
				d.held = append(d.held, h)
			}
		}
	}
	return true
}
