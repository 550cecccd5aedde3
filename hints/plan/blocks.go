package plan

import "math/bits"

// blocks is the memory of the hashes: local and external ones in two arrays side by
// side. It is given out in units of 4 blocks, up to 16 at a time, which lie together
// within one region of 16; a region's free units are the bits of one word, so that
// what is given back joins by itself.
//
// What is written before it is published may be read by anyone until it is given
// back. One goroutine at a time takes and gives back.
type blocks struct {
	slabs   slabs[hashSlab]
	regions []region
	lists   [regionUnits + 1]uint32 // first region whose longest free run is that long, +1
	some    uint32                  // bit n: lists[n] is not empty
	free    int                     // units
}

const (
	unitBlocks  = 4
	regionUnits = 16
	slabRegions = 64
	slabUnits   = slabRegions * regionUnits
	chunkBlocks = regionUnits * unitBlocks // the most that a chunk holds
)

type hashSlab struct {
	locals, hashes [slabUnits * unitBlocks]uint64
}

const hashSlabBytes = 16 * slabUnits * unitBlocks

type region struct {
	next, prev uint32 // in its list, +1
	free       uint16 // bit i: unit i is free
	run        uint8  // its list
}

const regionBytes = 12

// of returns the local and external hashes of n blocks that begin at a unit.
func (b *blocks) of(base uint32, n int) (locals, hashes []uint64) {
	s := b.slabs.get(base / slabUnits)
	at := int(base%slabUnits) * unitBlocks
	return s.locals[at : at+n : at+n], s.hashes[at : at+n : at+n]
}

func (b *blocks) bytes() int64 {
	return int64(b.slabs.len())*(hashSlabBytes+8) + int64(cap(b.regions))*regionBytes
}

// take gives out n units, or fewer: at least half, to use up what other chunks have
// left of regions; or any number, if a third of all units is free and no run is that
// long. Without the last, regions that each have one unit left in use would make the
// memory grow without bound.
func (b *blocks) take(n int) (base uint32, got int) {
	lists := b.some >> n << n
	if lists&(1<<regionUnits-1) == 0 && n < regionUnits {
		// Only whole regions have n together.
		if least := (n + 1) / 2; b.some&(1<<n-1)>>least != 0 {
			n = bits.Len32(b.some&(1<<n-1)) - 1
			lists = 1 << n
		}
	}
	if lists == 0 && b.some != 0 && b.free > len(b.regions)*regionUnits/3 {
		n = bits.Len32(b.some) - 1
		lists = 1 << n
	}
	if lists == 0 {
		b.grow()
		lists = 1 << regionUnits
	}
	r := b.lists[bits.TrailingZeros32(lists)] - 1
	reg := &b.regions[r]
	// Bits of runs that are long enough: i and the n-1 above it are free.
	runs := reg.free
	for i := 1; i < n; i++ {
		runs &= reg.free >> i
	}
	first := bits.TrailingZeros16(runs)
	b.unlist(r)
	reg.free &^= uint16(1<<n-1) << first
	b.list(r)
	b.free -= n
	return r*regionUnits + uint32(first), n
}

func (b *blocks) giveBack(base uint32, n int) {
	r := base / regionUnits
	b.unlist(r)
	b.regions[r].free |= uint16(1<<n-1) << (base % regionUnits)
	b.list(r)
	b.free += n
}

func (b *blocks) grow() {
	b.slabs.add(new(hashSlab))
	first := uint32(len(b.regions))
	for i := range uint32(slabRegions) {
		b.regions = append(b.regions, region{free: 1<<regionUnits - 1})
		b.list(first + i)
	}
	b.free += slabUnits
}

func (b *blocks) list(r uint32) {
	reg := &b.regions[r]
	n := longestRun(reg.free)
	reg.run = uint8(n)
	reg.prev, reg.next = 0, b.lists[n]
	if reg.next != 0 {
		b.regions[reg.next-1].prev = r + 1
	}
	b.lists[n] = r + 1
	if n > 0 {
		b.some |= 1 << n
	}
}

func (b *blocks) unlist(r uint32) {
	reg := &b.regions[r]
	if reg.prev != 0 {
		b.regions[reg.prev-1].next = reg.next
	} else {
		b.lists[reg.run] = reg.next
		if reg.next == 0 {
			b.some &^= 1 << reg.run
		}
	}
	if reg.next != 0 {
		b.regions[reg.next-1].prev = reg.prev
	}
}

func longestRun(free uint16) (n int) {
	for ; free != 0; n++ {
		free &= free >> 1
	}
	return n
}
