package plan

import (
	"math/bits"
)

// owned is a word that says who owns which edges of a chunk. It is replaced as a
// whole, so whoever loads it sees the owners of one moment.
//
//	63  62 61 55 54  48 47   32 31          0
//	+-----+-----+------+-------+-------------+
//	| 00  |  0  |  0   |   0   |      0      |  nobody
//	| 01  | end | from |   0   |    slot     |  one owner: edges [from, end)
//	| 10  |  0  |  0   |   0   |   record    |  any other case
//	+-----+-----+------+-------+-------------+
//
// A record is words that never change while the record is reachable:
//
//	number of groups
//	each group:  mask of edges, first word | words<<32, that many words of slots
//
// A group's slots own exactly the edges of its mask; a slot is in one group at most,
// no group is empty. Slots that own the same edges mostly share a group, so that a
// chunk that 64 owners have costs a bit each; slots far apart get groups of their own
// when that is shorter.
type owned uint64

const (
	ownedOne  owned = 1 << 62
	ownedMany owned = 2 << 62
	ownedKind owned = 3 << 62
)

func oneOwner(slot uint32, mask uint64) owned {
	from := bits.TrailingZeros64(mask)
	return ownedOne | owned(slot) | owned(from)<<48 | owned(from+bits.OnesCount64(mask))<<55
}

func (o owned) slot() uint32 { return uint32(o) }

func (o owned) mask() uint64 {
	from, end := o>>48&0x7f, o>>55&0x7f
	return ^uint64(0) >> (64 - (end - from)) << from
}

// unbroken reports whether the bits of a mask that is not 0 are one run.
func unbroken(mask uint64) bool {
	m := mask >> bits.TrailingZeros64(mask)
	return m&(m+1) == 0
}

func groupSpan(first, n int) uint64 { return uint64(first) | uint64(n)<<32 }

// groupAt splits off the group at the head of words.
func groupAt(words []uint64) (mask uint64, first int, slots, rest []uint64) {
	n := int(words[1] >> 32)
	return words[0], int(uint32(words[1])), words[2 : 2+n : 2+n], words[2+n:]
}

// records is the memory of records, in cells of 4 words. A record's number is that of
// its first cell. Sizes are rounded up to classes, of which each keeps a list of its
// own: what all of them hold is at most the sum of what each once needed.
//
// One goroutine at a time takes and gives back; anyone may read what is reachable.
type records struct {
	slabs slabs[[]uint64]
	room  uint32 // first cell of the last ordinary slab that was never used, with its slab
	free  [recordClasses][]uint32
	held  int64 // bytes of slabs
	buf   []uint64
}

const (
	cellWords     = 4
	slabCellBits  = 12
	slabCells     = 1 << slabCellBits
	recordClasses = 34
)

// recordClass returns the class of a size in cells, and the size of the class: 1, 2,
// 3, 4, 6, 8, 12, 16 and so on.
func recordClass(cells int) (class, size int) {
	if cells <= 2 {
		return cells - 1, cells
	}
	log := bits.Len(uint(cells-1)) - 1 // 2^log < cells <= 2^(log+1)
	if half := 3 << (log - 1); cells <= half {
		return 2 * log, half
	}
	return 2*log + 1, 2 << log
}

func (r *records) bytes() int64 {
	n := r.held
	for i := range r.free {
		n += int64(cap(r.free[i])) * 4
	}
	return n
}

// words returns a record.
func (r *records) words(number uint32) []uint64 {
	slab := *r.slabs.get(number >> slabCellBits)
	return slab[number&(slabCells-1)*cellWords:]
}

func (r *records) take(words int) uint32 {
	class, size := recordClass((words + cellWords - 1) / cellWords)
	if list := r.free[class]; len(list) > 0 {
		n := list[len(list)-1]
		r.free[class] = list[:len(list)-1]
		return n
	}
	if size > slabCells/8 {
		return r.grow(size)
	}
	if r.room == 0 || int(r.room&(slabCells-1))+size > slabCells {
		r.room = r.grow(slabCells)
		if r.room == 0 {
			r.room++ // so that 0 is no number with room; one cell is lost
		}
	}
	n := r.room
	r.room += uint32(size)
	if r.room&(slabCells-1) == 0 {
		r.room = 0
	}
	return n
}

// grow adds a slab and returns its first cell.
func (r *records) grow(cells int) uint32 {
	slab := make([]uint64, cells*cellWords)
	r.held += int64(len(slab))*8 + 32
	r.slabs.add(&slab)
	return uint32(r.slabs.len()-1) << slabCellBits
}

// giveBack takes a record back that nobody can reach any more.
func (r *records) giveBack(number uint32) {
	class, _ := recordClass((recordLen(r.words(number)) + cellWords - 1) / cellWords)
	r.free[class] = append(r.free[class], number)
}

func recordLen(words []uint64) int {
	n := 1
	for range words[0] {
		n += 2 + int(words[n+1]>>32)
	}
	return n
}

// groups returns the groups of o: how many, and their words. one is memory for a word
// that is no record.
func (r *records) groups(o owned, one *[3]uint64) (n int, words []uint64) {
	switch o & ownedKind {
	case ownedOne:
		slot := o.slot()
		one[0], one[1], one[2] = o.mask(), groupSpan(int(slot/64), 1), 1<<(slot%64)
		return 1, one[:]
	case ownedMany:
		w := r.words(uint32(o))
		return int(w[0]), w[1:]
	}
	return 0, nil
}

// live returns the edges of o that have an owner.
func (r *records) live(o owned) (live uint64) {
	var one [3]uint64
	n, words := r.groups(o, &one)
	var mask uint64
	for range n {
		mask, _, _, words = groupAt(words)
		live |= mask
	}
	return live
}

// of returns the edges that a slot owns.
func (r *records) of(o owned, slot uint32) uint64 {
	if o&ownedKind == ownedOne {
		if o.slot() == slot {
			return o.mask()
		}
		return 0
	}
	n, words := r.groups(o, nil)
	for range n {
		var mask uint64
		var first int
		var slots []uint64
		mask, first, slots, words = groupAt(words)
		if at := int(slot/64) - first; at >= 0 && at < len(slots) && slots[at]>>(slot%64)&1 != 0 {
			return mask
		}
	}
	return 0
}

// with returns o with another mask for one slot. A record of o stays as it is; its
// memory is the caller's to give back if the result is another one.
func (r *records) with(o owned, slot uint32, mask uint64) owned {
	var one [3]uint64
	n, words := r.groups(o, &one)
	if n == 0 || n == 1 && o&ownedKind == ownedOne && o.slot() == slot {
		if mask == 0 {
			return 0
		}
		if unbroken(mask) {
			return oneOwner(slot, mask)
		}
		n = 0
	}
	word, bit := int(slot/64), uint64(1)<<(slot%64)
	out := append(r.buf[:0], 0)
	placed := mask == 0
	for range n {
		var m uint64
		var first int
		var slots []uint64
		m, first, slots, words = groupAt(words)
		at := word - first
		has := at >= 0 && at < len(slots) && slots[at]&bit != 0
		switch {
		case m == mask && !placed && (has || extends(first, len(slots), word)):
			lo, hi := min(first, word), max(first+len(slots), word+1)
			out = append(out, m, groupSpan(lo, hi-lo))
			out = append(out, zeros[:first-lo]...)
			out = append(out, slots...)
			out = append(out, zeros[:hi-first-len(slots)]...)
			out[len(out)-(hi-word)] |= bit
			placed = true
		case has:
			lo, hi := trimmed(slots, at, bit)
			if lo == hi {
				continue
			}
			out = append(out, m, groupSpan(first+lo, hi-lo))
			out = append(out, slots[lo:hi]...)
			if at >= lo && at < hi {
				out[len(out)-(hi-at)] &^= bit
			}
		default:
			out = append(out, m, groupSpan(first, len(slots)))
			out = append(out, slots...)
		}
		out[0]++
	}
	if !placed {
		out = append(out, mask, groupSpan(word, 1), bit)
		out[0]++
	}
	r.buf = out
	if out[0] == 0 {
		return 0
	}
	if out[0] == 1 && len(out) == 4 && out[3]&(out[3]-1) == 0 && unbroken(out[1]) {
		return oneOwner(uint32(out[2])*64+uint32(bits.TrailingZeros64(out[3])), out[1])
	}
	number := r.take(len(out))
	copy(r.words(number), out)
	return ownedMany | owned(number)
}

// extends reports whether a group should take in a slot of another word: the words
// between cost less than a group of its own.
func extends(first, n, word int) bool { return word >= first-maxGap && word < first+n+maxGap }

const maxGap = 3

var zeros [maxGap]uint64

// trimmed returns the words of slots that are not 0 at their ends once bit is gone
// from slots[at].
func trimmed(slots []uint64, at int, bit uint64) (lo, hi int) {
	hi = len(slots)
	word := func(i int) uint64 {
		if i == at {
			return slots[i] &^ bit
		}
		return slots[i]
	}
	for lo < hi && word(lo) == 0 {
		lo++
	}
	for hi > lo && word(hi-1) == 0 {
		hi--
	}
	return lo, hi
}
