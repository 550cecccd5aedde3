package hints

import (
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

// hashSet is a set of router hashes. It is filled once, by newHashSet, and then only
// read, by everybody who holds a reference; the last one gives its memory back.
//
// Most advice is discarded unread, so it is at first no more than a copy of the list.
// The table that answers quickly is built when somebody asks.
type hashSet struct {
	refs  atomic.Int32
	class int
	list  []uint64

	mu    sync.Mutex  // builds the table
	built atomic.Bool // (T) table written -> Store(true) pairs with Load -> table read
	table []uint64    // open addressing; 0 is an empty place
	zero  bool        // the hash 0 is in the set
	shift int         // place of a hash: its product's upper bits
}

// setPools keep sets by size class: class c has room for 8<<c hashes.
var setPools [28]sync.Pool

// placeFactor spreads hashes over places. Hashes come from outside; a secret odd factor
// keeps whoever makes them up from aiming at one place.
var placeFactor = rand.Uint64() | 1

// fewHashes is up to what length a list is searched as it is: it is four cache lines.
const fewHashes = 32

// newHashSet returns a set with one reference.
func newHashSet(hashes []uint64) *hashSet {
	class := max(0, bits.Len(uint(len(hashes)-1))-3)
	s, _ := setPools[class].Get().(*hashSet)
	if s == nil {
		s = &hashSet{class: class, list: make([]uint64, 0, 8<<class)}
	}
	s.list = append(s.list[:0], hashes...)
	s.built.Store(false)
	s.refs.Store(1)
	return s
}

func (s *hashSet) hold() { s.refs.Add(1) }

func (s *hashSet) release() {
	if s.refs.Add(-1) == 0 {
		setPools[s.class].Put(s)
	}
}

// has reports whether h is in the set. The caller holds a reference.
func (s *hashSet) has(h uint64) bool {
	if len(s.list) <= fewHashes {
		for _, e := range s.list {
			if e == h {
				return true
			}
		}
		return false
	}
	if !s.built.Load() { // (T)
		s.build()
	}
	if h == 0 {
		return s.zero
	}
	mask := len(s.table) - 1
	for at := int(h * placeFactor >> s.shift); ; at = (at + 1) & mask {
		switch s.table[at] {
		case h:
			return true
		case 0:
			return false
		}
	}
}

// build makes the table, at most half full.
func (s *hashSet) build() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.built.Load() {
		return
	}
	log := bits.Len(uint(2*len(s.list) - 1))
	if cap(s.table) < 1<<log {
		s.table = make([]uint64, 1<<log)
	} else {
		s.table = s.table[:1<<log]
		clear(s.table)
	}
	s.zero, s.shift = false, 64-log
	mask := len(s.table) - 1
	for _, h := range s.list {
		if h == 0 {
			s.zero = true
			continue
		}
		at := int(h * placeFactor >> s.shift)
		for s.table[at] != 0 && s.table[at] != h {
			at = (at + 1) & mask
		}
		s.table[at] = h
	}
	s.built.Store(true) // (T)
}
