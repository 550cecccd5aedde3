package shard

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// bucket is one cache line of the index.
//
//	0  head    63..32 next overflow bucket (1-based, 0 none), 31..0 version
//	8  entry   7 x: 63..32 fingerprint, 31..0 record id (0 empty)
//
// The version of a chain is that of its first bucket; the writer bumps it
// before and after each change. A live entry moves only towards the head of
// its chain, when another one leaves.
type bucket struct {
	head    atomic.Uint64
	entries [bucketEntries]atomic.Uint64
}

const (
	bucketEntries = 7
	// bucketLoad is the average number of entries for each bucket. With 5, two
	// buckets in fifteen overflow (Poisson) and hold one entry in thirty;
	// buckets and overflow together cost 14.5 bytes for each block. 4.5 costs
	// 15.5, which together with the records is too near the 112 bytes promised.
	bucketLoad = 5
)

const _ = uint(64-unsafe.Sizeof(bucket{})) + uint(unsafe.Sizeof(bucket{})-64)

// index finds a record by its key's hash. Fixed capacity, single writer,
// lock-free readers. It knows fingerprints, not keys.
type index struct {
	buckets  []bucket // first the directory, then the overflow pool
	dir      uint64   // buckets in the directory
	fresh    uint32   // overflow buckets never used, from len(buckets) down
	freeOver uint32   // free overflow buckets, linked by head's upper half
}

// indexBuckets is how many buckets n records need: the directory, and an
// overflow pool of what Poisson gives (13.3 %) and 7 standard deviations more
// (0.34 of the root of dir each).
func indexBuckets(n int) (dir, overflow int) {
	dir = n/bucketLoad + 1
	overflow = dir*134/1000 + 5*isqrt(dir)/2 + 4
	return dir, overflow
}

func isqrt(n int) int {
	r := 0
	for r*r < n {
		r++
	}
	return r
}

func newIndex(buckets []bucket, dir int) index {
	return index{buckets: buckets, dir: uint64(dir), fresh: uint32(len(buckets) - dir)}
}

// A hash serves three times: its upper 32 bits are the fingerprint, its lower
// 32 choose the bucket; the caller may use the uppermost to choose the shard.
func fingerprint(hash uint64) uint64 { return hash >> 32 }

func (x *index) first(hash uint64) *bucket {
	hi, _ := bits.Mul64(hash<<32, x.dir)
	return &x.buckets[hi]
}

func nextBucket(head uint64) uint32 { return uint32(head >> 32) }

// next returns the overflow bucket after b, nil at the end.
func (x *index) next(b *bucket) *bucket {
	if n := nextBucket(b.head.Load()); n != 0 {
		return &x.buckets[n-1]
	}
	return nil
}

func bump(b *bucket) {
	h := b.head.Load()
	b.head.Store(h&^(1<<32-1) | uint64(uint32(h)+1))
}

// lookup calls match for each record with the hash's fingerprint until it
// returns true, and returns that record and its entry. Writer only.
func (x *index) lookup(hash uint64, match func(id uint32) bool) (uint32, *atomic.Uint64) {
	fp := fingerprint(hash)
	for b := x.first(hash); b != nil; b = x.next(b) {
		for i := range b.entries {
			e := b.entries[i].Load()
			if e>>32 == fp && uint32(e) != 0 && match(uint32(e)) {
				return uint32(e), &b.entries[i]
			}
		}
	}
	return 0, nil
}

// insert adds id; it fails when the overflow pool is exhausted. Writer only.
func (x *index) insert(hash uint64, id uint32) bool {
	e := fingerprint(hash)<<32 | uint64(id)
	head := x.first(hash)
	last := head
	for b := head; b != nil; b = x.next(b) {
		for i := range b.entries {
			if uint32(b.entries[i].Load()) == 0 {
				bump(head)
				b.entries[i].Store(e)
				bump(head)
				return true
			}
		}
		last = b
	}
	n := x.takeOverflow()
	if n == 0 {
		return false
	}
	o := &x.buckets[n-1]
	o.head.Store(0)
	o.entries[0].Store(e)
	bump(head)
	last.head.Store(uint64(n)<<32 | last.head.Load()&(1<<32-1))
	bump(head)
	return true
}

func (x *index) takeOverflow() uint32 {
	if n := x.freeOver; n != 0 {
		x.freeOver = nextBucket(x.buckets[n-1].head.Load())
		return n
	}
	if x.fresh == 0 {
		return 0
	}
	n := uint32(x.dir) + x.fresh
	x.fresh--
	return n
}

// replace puts id in the place of the record in entry: one store. Writer only.
func (x *index) replace(hash uint64, entry *atomic.Uint64, id uint32) {
	head := x.first(hash)
	bump(head)
	entry.Store(fingerprint(hash)<<32 | uint64(id))
	bump(head)
}

// remove deletes id's entry and moves the chain's last entry into the hole, so
// that chains are as short as they can be and the overflow pool does not fill
// with half-empty buckets. A reader on its way may miss the entry that moves:
// it finds the version changed and looks again. One that still stands in an
// overflow bucket given back sees entries of another chain, whose keys do not
// match, and its version has changed too. Writer only.
func (x *index) remove(hash uint64, id uint32) bool {
	head := x.first(hash)
	for b := head; b != nil; b = x.next(b) {
		for i := range b.entries {
			if uint32(b.entries[i].Load()) != id {
				continue
			}
			bump(head)
			x.fillHole(head, &b.entries[i])
			bump(head)
			return true
		}
	}
	return false
}

// fillHole moves the last entry of a chain to hole and clears its old place.
func (x *index) fillHole(head *bucket, hole *atomic.Uint64) {
	var prev *bucket
	last := head
	for n := x.next(last); n != nil; n = x.next(last) {
		prev, last = last, n
	}
	if prev == nil {
		hole.Store(0)
		return
	}
	for i := bucketEntries - 1; i >= 0; i-- {
		e := last.entries[i].Load()
		if uint32(e) == 0 {
			continue
		}
		hole.Store(e)
		if hole != &last.entries[i] {
			last.entries[i].Store(0)
		} else {
			hole.Store(0)
		}
		break
	}
	if last.empty() {
		n := nextBucket(prev.head.Load())
		prev.head.Store(prev.head.Load() & (1<<32 - 1))
		last.head.Store(uint64(x.freeOver) << 32)
		x.freeOver = n
	}
}

func (b *bucket) empty() bool {
	for i := range b.entries {
		if uint32(b.entries[i].Load()) != 0 {
			return false
		}
	}
	return true
}
