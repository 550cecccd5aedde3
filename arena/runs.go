package arena

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

const (
	pageShift = 12
	runPage   = 1 << pageShift // a page of the allocator, whatever the kernel's are
)

// A page descriptor says what one page of the region is part of.
//
//	 31   30 29                                0
//	+-------+-----------------------------------+
//	| type  |               value               |
//	+-------+-----------------------------------+
//
//	type       value
//	0 free     first and last page of a free run: its length in pages;
//	           pages between them: 0
//	1 run      first page of a run in use: its owner
//	2 slab     first page of a slab: its class + 1
//	3 inner    any further page of a run or slab: distance to the first
//
// Moves, all by the owner of the allocator:
//
//	free  -> run, slab     take; the further pages of it become inner
//	run, slab, inner -> free   give; the length is that of the joined run
//
// Zero is a free page between two others, so that a cleared table is valid.
type desc uint32

const (
	descFree desc = iota << 30
	descRun
	descSlab
	descInner

	descType  desc = 3 << 30
	descValue desc = 1<<30 - 1
)

// maxPages is what the value of a free run can count.
const maxPages = int64(descValue)

// runs hands out runs of whole pages of a region: two-level segregated fit. A
// free run is in the bin of its length: one bin for each length below 16, then
// 16 bins for each doubling. Two bit maps find the first bin that holds only
// runs long enough, in a few instructions whatever the number of runs; the fit
// is at most 1/16 too long, and what is left over is split off at once.
//
// The links of a bin's list are stored in the free runs themselves, in the
// first 8 bytes of the first page, as page+1: next, then previous, 0 for none.
//
// Invariants:
//
//	R1  the runs in use, the slabs and the free runs tile the region
//	R2  no two free runs touch
//	R3  a free run is in exactly the list of its length's bin
//	R4  a bin's bit is set exactly when its list is not empty, a row's bit
//	    exactly when one of its bins' is
//	R5  free is the number of pages in free runs
type runs struct {
	mem   []byte // the region
	desc  []desc // one for each page
	free  uint32
	rows  uint32
	bins  [binRows]uint16
	heads [binRows][16]uint32 // page+1 of a list's first run
}

// binRows: lengths below 16 are row 0, 2^30 is row 27.
const binRows = 28

// binOf returns the bin that runs of n pages are kept in.
func binOf(n uint32) (row, col int) {
	l := bits.Len32(n)
	if l <= 4 {
		return 0, int(n)
	}
	return l - 4, int(n>>(l-5)) & 15
}

func (r *runs) init(mem []byte, table []desc) {
	clear(table)
	*r = runs{mem: mem, desc: table}
	r.insert(0, uint32(len(table)))
}

// take removes n pages from the free runs and reports whether a run was long
// enough. The caller must describe them. fromEnd takes the last pages of the
// run that is found and not the first.
func (r *runs) take(n uint32, fromEnd bool) (page uint32, ok bool) {
	page, ok = r.find(n)
	if !ok {
		return 0, false
	}
	have := uint32(r.desc[page])
	r.remove(page, have)
	rest := have - n
	switch {
	case rest == 0:
	case fromEnd:
		r.insert(page, rest)
		page += rest
	default:
		r.insert(page+n, rest)
	}
	return page, true
}

// searchMax bounds the search in the one bin that also holds runs that are too
// short. 16 is arbitrary: the bin's runs differ by 1/16, and a run that is
// missed here only costs an eviction.
const searchMax = 16

func (r *runs) find(n uint32) (page uint32, ok bool) {
	up := n
	if l := bits.Len32(n); l > 4 {
		up += 1<<(l-5) - 1 // the next bin, unless n is the shortest of its own
	}
	row, col := binOf(up)
	if set := r.bins[row] >> col << col; set != 0 {
		return r.heads[row][bits.TrailingZeros16(set)] - 1, true
	}
	if set := r.rows >> (row + 1) << (row + 1); set != 0 {
		row = bits.TrailingZeros32(set)
		return r.heads[row][bits.TrailingZeros16(r.bins[row])] - 1, true
	}
	row, col = binOf(n)
	p := r.heads[row][col]
	for range searchMax {
		if p == 0 {
			break
		}
		if uint32(r.desc[p-1]) >= n {
			return p - 1, true
		}
		p = r.link(p-1, linkNext)
	}
	return 0, false
}

// describe marks n pages from page as one thing whose first page is d.
func (r *runs) describe(page, n uint32, d desc) {
	t := r.desc[page : page+n]
	t[0] = d
	for i := 1; i < len(t); i++ {
		t[i] = descInner | desc(i)
	}
}

// give returns n described pages, joining them with free neighbours.
func (r *runs) give(page, n uint32) {
	clear(r.desc[page : page+n])
	if page > 0 && r.desc[page-1]&descType == descFree {
		before := uint32(r.desc[page-1])
		if before == 0 || before > page || r.desc[page-before] != desc(before) {
			panic(r.broken(page-1, "the end of a free run"))
		}
		r.remove(page-before, before)
		page, n = page-before, n+before
	}
	if end := page + n; int(end) < len(r.desc) && r.desc[end]&descType == descFree {
		after := uint32(r.desc[end])
		if after == 0 || uint64(end)+uint64(after) > uint64(len(r.desc)) || r.desc[end+after-1] != desc(after) {
			panic(r.broken(end, "the start of a free run"))
		}
		r.remove(end, after)
		n += after
	}
	r.insert(page, n)
}

// insert makes n pages a free run and puts it at the front of its list.
func (r *runs) insert(page, n uint32) {
	r.desc[page], r.desc[page+n-1] = desc(n), desc(n)
	row, col := binOf(n)
	head := r.heads[row][col]
	r.setLink(page, linkNext, head)
	r.setLink(page, linkPrev, 0)
	if head != 0 {
		r.setLink(head-1, linkPrev, page+1)
	}
	r.heads[row][col] = page + 1
	r.bins[row] |= 1 << col
	r.rows |= 1 << row
	r.free += n
}

// remove takes a free run of n pages out of its list. Both of its ends become
// pages between others, until the caller says what they are.
func (r *runs) remove(page, n uint32) {
	row, col := binOf(n)
	next, prev := r.link(page, linkNext), r.link(page, linkPrev)
	if next != 0 {
		if r.link(next-1, linkPrev) != page+1 {
			panic(r.broken(page, "in a list whose next run does not know it"))
		}
		r.setLink(next-1, linkPrev, prev)
	}
	if prev != 0 {
		if r.link(prev-1, linkNext) != page+1 {
			panic(r.broken(page, "in a list whose previous run does not know it"))
		}
		r.setLink(prev-1, linkNext, next)
	} else {
		if r.heads[row][col] != page+1 {
			panic(r.broken(page, "not the first of its list, which it says it is"))
		}
		if r.heads[row][col] = next; next == 0 {
			if r.bins[row] &^= 1 << col; r.bins[row] == 0 {
				r.rows &^= 1 << row
			}
		}
	}
	r.desc[page], r.desc[page+n-1] = 0, 0
	r.free -= n
}

const (
	linkNext = 0 // byte offsets into the first page of a free run
	linkPrev = 4
)

// link reads a link of a free run and checks that it leads to a page.
func (r *runs) link(page uint32, which int) uint32 {
	v := binary.NativeEndian.Uint32(r.mem[int(page)<<pageShift+which:])
	if uint64(v) > uint64(len(r.desc)) {
		panic(fmt.Sprintf("arena: free page %d of %d has link %#x: it was written to after it was freed", page, len(r.desc), v))
	}
	return v
}

func (r *runs) setLink(page uint32, which int, v uint32) {
	binary.NativeEndian.PutUint32(r.mem[int(page)<<pageShift+which:], v)
}

// start returns the first page of what page is part of, in use or not. For a
// free page that is not known; it is returned as it is.
func (r *runs) start(page uint32) uint32 {
	d := r.desc[page]
	if d&descType != descInner {
		return page
	}
	back := uint32(d & descValue)
	if back == 0 || back > page {
		panic(r.broken(page, "inside something"))
	}
	return page - back
}

// length returns how many pages the run or slab at page has, looking no further
// than to limit.
func (r *runs) length(page, limit uint32) uint32 {
	n := uint32(1)
	for page+n < limit && r.desc[page+n] == descInner|desc(n) {
		n++
	}
	return n
}

func (r *runs) broken(page uint32, what string) string {
	return fmt.Sprintf("arena: page %d of %d should be %s and has descriptor %#x", page, len(r.desc), what, uint32(r.desc[page]))
}
