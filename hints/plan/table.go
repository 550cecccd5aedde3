package plan

import (
	"math/bits"
	"math/rand/v2"
	"sync/atomic"
)

// table is a hash table of numbers that several may have one hash. It holds no keys:
// who probes must check each number that a probe gives, as it may be of another key.
// Zero is no number.
//
// One goroutine at a time changes it, any may probe it meanwhile: a number that is in
// the table during the whole probe is found. For that numbers never move within a
// page: a removed one leaves a tombstone where probes must go on, and a page that is
// full is replaced as a whole; whoever probes the old one still finds what was there.
//
// A page is an open-addressed array of groups of 8: a word of 8 fingerprints, of which
// 0 is free and 1 a tombstone, beside the 8 numbers. That is 5 bytes for each at full
// load. Pages grow by 15 to 35 %, each by another part, so that at no time all of them
// are at their emptiest.
type table struct {
	pages  [tablePages]atomic.Pointer[page]
	hashOf func(n uint32) uint64 // of a number in the table
	len    int
	bytes  int64
}

const (
	tablePageBits = 12
	tablePages    = 1 << tablePageBits
)

// fullPercent is how much of a page may be in use. A page of one group has a free
// slot left then, which ends probes.
const fullPercent = 92

type group struct {
	prints  atomic.Uint64
	numbers [8]atomic.Uint32
}

type page struct {
	groups    []group
	len, dead int // numbers and tombstones; the writer's
}

const (
	printFree = 0
	printDead = 1
	lowBits   = 0x0101010101010101
	highBits  = 0x8080808080808080
)

// printOf is the fingerprint of a hash: its lowest byte, which page and group do not
// depend on.
func printOf(hash uint64) uint64 {
	p := hash & 0xff
	if p <= printDead {
		p += 2
	}
	return p
}

func pageOf(hash uint64) uint64 { return hash >> (64 - tablePageBits) }

func homeOf(hash uint64, groups int) int {
	return int(hash << tablePageBits >> 32 * uint64(groups) >> 32)
}

// bytesEqual has the highest bit set in each byte of prints that is print, and may be
// in bytes above such a one.
func bytesEqual(prints, print uint64) uint64 {
	x := prints ^ print*lowBits
	return (x - lowBits) &^ x & highBits
}

// probe goes over the numbers that may be of one hash.
type probe struct {
	groups []group
	at     int // group
	left   int // groups that were not looked at, without at
	print  uint64
	prints uint64
	match  uint64
}

func (t *table) probe(hash uint64) probe {
	pg := t.pages[pageOf(hash)].Load()
	if pg == nil {
		return probe{}
	}
	p := probe{groups: pg.groups, at: homeOf(hash, len(pg.groups)), left: len(pg.groups) - 1, print: printOf(hash)}
	p.prints = p.groups[p.at].prints.Load()
	p.match = bytesEqual(p.prints, p.print)
	return p
}

// touch brings what a probe of a hash reads first into the cache. Calls one after the
// other wait for memory together.
func (t *table) touch(hash uint64) uint64 {
	pg := t.pages[pageOf(hash)].Load()
	if pg == nil {
		return 0
	}
	return pg.groups[homeOf(hash, len(pg.groups))].prints.Load()
}

// next returns the next number, 0 after the last.
func (p *probe) next() uint32 {
	for {
		for p.match != 0 {
			i := bits.TrailingZeros64(p.match) >> 3
			p.match &= p.match - 1
			if n := p.groups[p.at].numbers[i].Load(); n != 0 {
				return n
			}
		}
		if p.left <= 0 || bytesEqual(p.prints, printFree) != 0 {
			return 0
		}
		p.left--
		if p.at++; p.at == len(p.groups) {
			p.at = 0
		}
		p.prints = p.groups[p.at].prints.Load()
		p.match = bytesEqual(p.prints, p.print)
	}
}

// add puts a number in. It must not be in yet.
func (t *table) add(hash uint64, n uint32) {
	slot := &t.pages[pageOf(hash)]
	pg := slot.Load()
	if pg == nil || (pg.len+pg.dead+1)*100 > len(pg.groups)*8*fullPercent {
		pg = t.renew(pg)
		slot.Store(pg)
	}
	pg.put(hash, n)
	t.len++
}

func (pg *page) put(hash uint64, n uint32) {
	at := homeOf(hash, len(pg.groups))
	for {
		g := &pg.groups[at]
		prints := g.prints.Load()
		free := bytesEqual(prints, printFree)
		dead := bytesEqual(prints, printDead)
		if free|dead != 0 {
			if dead != 0 {
				// The lowest is exact, the others may be marked for it.
				free = dead
				pg.dead--
			}
			i := bits.TrailingZeros64(free) >> 3
			g.numbers[i].Store(n)
			g.prints.Store(prints&^(0xff<<(8*i)) | printOf(hash)<<(8*i))
			pg.len++
			return
		}
		if at++; at == len(pg.groups) {
			at = 0
		}
	}
}

// remove takes a number out. It must be in.
func (t *table) remove(hash uint64, n uint32) {
	slot := &t.pages[pageOf(hash)]
	pg := slot.Load()
	print := printOf(hash)
	at := homeOf(hash, len(pg.groups))
	for range pg.groups {
		g := &pg.groups[at]
		prints := g.prints.Load()
		for m := bytesEqual(prints, print); m != 0; m &= m - 1 {
			i := bits.TrailingZeros64(m) >> 3
			if g.numbers[i].Load() != n || prints>>(8*i)&0xff != print {
				continue
			}
			prints &^= 0xff << (8 * i)
			if bytesEqual(g.prints.Load(), printFree) == 0 {
				prints |= printDead << (8 * i)
				pg.dead++
			}
			g.prints.Store(prints)
			pg.len--
			t.len--
			if len(pg.groups) > 2 && pg.len*4 < len(pg.groups)*8 {
				slot.Store(t.renew(pg))
			}
			return
		}
		if at++; at == len(pg.groups) {
			at = 0
		}
	}
	panic("plan: a number that should be in a table is not")
}

// renew returns a page with the numbers of pg and room for more.
func (t *table) renew(pg *page) *page {
	if pg == nil {
		t.bytes += groupBytes
		return &page{groups: make([]group, 1)}
	}
	room := float64(pg.len+1) * 100 / fullPercent * (1.15 + 0.2*rand.Float64())
	groups := 1 + int(room/8)
	if size := groups * groupBytes; size > 32<<10 {
		// Go gives out whole pages of 8 KiB: use the last one up.
		groups = (size + 8<<10 - 1) / (8 << 10) * (8 << 10) / groupBytes
	}
	next := &page{groups: make([]group, groups)}
	t.bytes += int64(len(next.groups)-len(pg.groups)) * groupBytes
	for i := range pg.groups {
		g := &pg.groups[i]
		prints := g.prints.Load()
		for j := range g.numbers {
			if prints>>(8*j)&0xff > printDead {
				n := g.numbers[j].Load()
				next.put(t.hashOf(n), n)
			}
		}
	}
	return next
}

const groupBytes = 40
