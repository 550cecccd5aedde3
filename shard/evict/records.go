package evict

import (
	"fmt"
	"math/bits"
)

const (
	maxRecords = 8192
	levels     = 4
)

// record is what density remembers of one sampled block. It outlives the block,
// so that it can tell how long after its last use a block was wanted again.
type record struct {
	hash       uint64
	last       uint32 // tick of the last use known
	slot       ID     // where the block was when it was resident
	prev, next uint32 // in its level, newest to oldest
	chain      uint32 // in its hash bucket
	class      class
	turn       uint8
	level      uint8 // levels: not in use
}

func (r *record) weight() float64 { return float64(uint32(1) << r.level) }

// records is a FIFO of sampled blocks in four levels. A level passes on half of
// what it drops, and one there stands for two: so the same number of records
// reaches 1+2+4+8 times as far back as one level would.
type records struct {
	recs    []record // 1..
	buckets []uint32
	free    uint32
	level   [levels]struct {
		newest, oldest uint32
		n              int
	}
	room  int    // records in a level
	every uint64 // one block in every is sampled
	seed  uint64
}

// init sizes the records so that level 0 holds what is sampled in one turnover
// of the blocks, and all levels reach 15 back. Up to 2048 blocks every block is
// sampled: there the samples are few, and one in eight scattered results by
// half a point.
func (rs *records) init(blocks int, seed uint64) {
	every := max(1, (levels*blocks+maxRecords-1)/maxRecords)
	rs.every = uint64(every)
	rs.room = max(1, blocks/every)
	rs.seed = mix(seed + 1)
	// A push comes before the drop it forces, hence one more.
	rs.recs = make([]record, 1+levels*rs.room+1)
	rs.buckets = make([]uint32, 1<<bits.Len(uint(len(rs.recs))))
	rs.reset()
}

func (rs *records) reset() {
	clear(rs.recs)
	clear(rs.buckets)
	clear(rs.level[:])
	rs.free = 0
	for i := len(rs.recs) - 1; i > 0; i-- {
		rs.recs[i] = record{next: rs.free, level: levels}
		rs.free = uint32(i)
	}
}

// sampled mixes the hash again: shards and buckets were chosen by its bits.
func (rs *records) sampled(hash uint64) bool { return mix(hash^rs.seed)%rs.every == 0 }

func (rs *records) bucket(hash uint64) *uint32 {
	return &rs.buckets[mix(hash)&uint64(len(rs.buckets)-1)]
}

// find returns the record of a key hash, or 0.
func (rs *records) find(hash uint64) uint32 {
	for i := *rs.bucket(hash); i != 0; i = rs.recs[i].chain {
		if rs.recs[i].hash == hash {
			return i
		}
	}
	return 0
}

// put takes a free record for hash and pushes it at level 0. The caller must
// make room afterwards, and fill the rest of the record.
func (rs *records) put(hash uint64) uint32 {
	i := rs.free
	if i == 0 {
		panic("evict: no free record; room was not made after the last put")
	}
	r := &rs.recs[i]
	rs.free = r.next
	b := rs.bucket(hash)
	*r = record{hash: hash, chain: *b}
	*b = i
	rs.push(i, 0)
	return i
}

// drop gives a record back.
func (rs *records) drop(i uint32) {
	r := &rs.recs[i]
	rs.unlink(i)
	for at := rs.bucket(r.hash); ; at = &rs.recs[*at].chain {
		if *at == i {
			*at = r.chain
			break
		}
	}
	*r = record{next: rs.free, level: levels}
	rs.free = i
}

func (rs *records) push(i uint32, level uint8) {
	l, r := &rs.level[level], &rs.recs[i]
	r.level, r.prev, r.next = level, 0, l.newest
	if l.newest != 0 {
		rs.recs[l.newest].prev = i
	} else {
		l.oldest = i
	}
	l.newest = i
	l.n++
}

func (rs *records) unlink(i uint32) {
	r := &rs.recs[i]
	l := &rs.level[r.level]
	if r.prev != 0 {
		rs.recs[r.prev].next = r.next
	} else {
		l.newest = r.next
	}
	if r.next != 0 {
		rs.recs[r.next].prev = r.prev
	} else {
		l.oldest = r.prev
	}
	l.n--
}

// survives draws the half of a level's records that move up. A key must not
// always draw the same: with bits of its hash alone, keys that survive gain a
// turn each time until all are of the last one, and the first turn is left to
// keys whose records die young, so that only its quick returns are seen. On a
// long run over a fixed set of keys that cost 5 points of hits.
func (rs *records) survives(r *record, level int) bool {
	return mix(r.hash^uint64(r.last)<<32^rs.seed)>>(32+level)&1 == 0
}

// move puts a record at the new end of a level.
func (rs *records) move(i uint32, level uint8) {
	rs.unlink(i)
	rs.push(i, level)
}

func (rs *records) check() error {
	used := 0
	for lv := range rs.level {
		l := &rs.level[lv]
		if l.n > rs.room {
			return fmt.Errorf("level %d holds %d records, room is %d", lv, l.n, rs.room)
		}
		n, prev := 0, uint32(0)
		for i := l.newest; i != 0; i = rs.recs[i].next {
			r := &rs.recs[i]
			if n++; n > l.n {
				return fmt.Errorf("level %d loops at record %d", lv, i)
			}
			if r.prev != prev || int(r.level) != lv || rs.find(r.hash) != i || !rs.sampled(r.hash) {
				return fmt.Errorf("record %d of level %d: %+v", i, lv, *r)
			}
			if !r.class.chained() && r.class != classHub && r.class != classTail {
				return fmt.Errorf("record %d has class %d", i, r.class)
			}
			prev = i
		}
		if n != l.n || prev != l.oldest {
			return fmt.Errorf("level %d: %d records ending at %d, want %d ending at %d", lv, n, prev, l.n, l.oldest)
		}
		used += n
	}
	free := 0
	for i := rs.free; i != 0; i = rs.recs[i].next {
		if free++; free > len(rs.recs) {
			return fmt.Errorf("free records loop")
		}
	}
	if used+free != len(rs.recs)-1 {
		return fmt.Errorf("%d records used and %d free of %d", used, free, len(rs.recs)-1)
	}
	return nil
}
