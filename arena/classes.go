package arena

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

const (
	slabPages = 16
	slabBytes = slabPages * runPage
	smallMax  = 2048 // a larger value takes whole pages
	smallUnit = 16   // sizes of classes, and offsets of slots, are multiples of it

	// Header of a slab, at its first byte. All fields are 32 bits wide in the
	// machine's order.
	//
	//	byte 0      4      8      12     16     20     24
	//	+------+------+------+------+------+------+-----------+-----+---------
	//	|class | used |fresh | top  | next | prev | owner ... | pad | slot ...
	//	+------+------+------+------+------+------+-----------+-----+---------
	//
	//	class       index into classSizes
	//	used        slots in use
	//	fresh       slots at and above were never handed out
	//	top         slot+1 of the first free slot below fresh, 0 is none; free
	//	            slots are linked like it through their own first 4 bytes
	//	next, prev  page+1 of the neighbours in the class's list, 0 is none
	//	owner       one for each slot; 0 is free
	//	pad         to a multiple of 64, so that classes whose size is a
	//	            multiple of 64 have their slots in whole cache lines
	slabClass  = 0
	slabUsed   = 4
	slabFresh  = 8
	slabTop    = 12
	slabNext   = 16
	slabPrev   = 20
	slabOwners = 24

	// ownerEnd bounds owners. A descriptor has room for twice as many; the bit
	// is kept free.
	ownerEnd = 1 << 29
)

// class is one size of small values.
type class struct {
	size  uint32 // bytes of a slot
	slots uint32 // in a slab
	first uint32 // offset of slot 0 in the slab
}

// classes has the sizes 16, 32, 48, 64, 80 and from there steps of a quarter,
// rounded to 16, up to 2048: a value wastes less than a fifth, the few small
// ones aside. classFor maps (n+15)/16 to the smallest class that holds n bytes.
var classes, classFor = makeClasses()

func makeClasses() (cs []class, index [smallMax/smallUnit + 1]uint8) {
	unit := 0
	for size := uint32(smallUnit); ; {
		c := class{size: size}
		header := func(slots uint32) uint32 { return (slabOwners + 4*slots + 63) &^ 63 }
		for header(c.slots+1)+(c.slots+1)*size <= slabBytes {
			c.slots++
		}
		c.first = header(c.slots)
		for ; unit <= int(size)/smallUnit; unit++ {
			index[unit] = uint8(len(cs))
		}
		cs = append(cs, c)
		if size == smallMax {
			return cs, index
		}
		size = min(max(size+smallUnit, (size+size/4+smallUnit-1)&^(smallUnit-1)), smallMax)
	}
}

// Classes allocates values of any size in a part of an arena. It has one owner
// at a time, who is the only one to call it; it never allocates on the Go heap
// after NewClasses.
//
// A value of more than 2048 bytes takes a run of pages of 4 KiB. A smaller one
// takes a slot of its size class in a slab, a run of 16 pages. Every value has
// an owner, a number of the caller's, by which it can be found again from its
// place in memory: that is how room for a large value is made among small ones
// (Window).
//
// Invariants, beside those of runs:
//
//	C1  a slab is in its class's list exactly when 0 < used < slots
//	C2  a class keeps at most one slab with used == 0
//	C3  a slot's owner is 0 exactly when the slot is free; used counts the others
//	C4  freeBytes is Size less the runs in use, the overhead of slabs in use, and
//	    the slots in use
type Classes struct {
	runs      runs
	base      Off
	size      int64
	max       int
	freeBytes int64
	partial   [32]uint32 // for each class page+1 of its list's first slab
	empty     [32]uint32 // for each class page+1 of the slab kept though unused
}

// ClassesTableBytes returns how many bytes the page table of a region needs: a
// thousandth of the region.
func ClassesTableBytes(regionBytes int64) int64 { return regionBytes / runPage * 4 }

// NewClasses makes an allocator of values of 1 to max bytes over the size bytes
// of a at base, with its page table, ClassesTableBytes(size) bytes, in table at
// tableOff. Everything is free. The caller must give both parts to this
// allocator alone. size is a multiple of 64 KiB and less than 4 TiB, base of
// 4 KiB, tableOff of 4; it panics on parameters that cannot be right.
func NewClasses(a *Arena, base Off, size int64, table *Arena, tableOff Off, max int) *Classes {
	if size < slabBytes || size%slabBytes != 0 || size/runPage > maxPages || base%runPage != 0 || max < 1 || int64(max) > size {
		panic(fmt.Sprintf("arena: size classes over %d bytes at %#x for values up to %d bytes", size, uint64(base), max))
	}
	c := &Classes{base: base, size: size, max: max, freeBytes: size}
	c.runs.init(a.Bytes(base, int(size)), Cast[desc](table, tableOff, int(size/runPage)))
	return c
}

// Alloc takes memory for a value of n bytes that belongs to owner, from 1 to
// 2^29-1, and reports whether there was any. The bytes are undefined. Values
// above 2048 bytes start at a page of 4 KiB, smaller ones at a multiple of 16
// bytes, of 64 where their class's size is one.
func (c *Classes) Alloc(n int, owner uint32) (off Off, ok bool) {
	checkOwner(owner)
	if n <= smallMax {
		return c.allocSmall(int(classFor[unitsOf(n)]), owner)
	}
	if n > c.max {
		return 0, false
	}
	pages := pagesOf(n)
	page, ok := c.take(pages, false)
	if !ok {
		return 0, false
	}
	c.runs.describe(page, pages, descRun|desc(owner))
	c.freeBytes -= int64(pages) << pageShift
	return c.base + Off(page)<<pageShift, true
}

// take gets a run of pages, giving up the slabs that are kept unused when there
// is none without them. Runs are taken from the front of a free run and slabs
// from the end, so that they grow towards each other and mix less.
func (c *Classes) take(pages uint32, fromEnd bool) (page uint32, ok bool) {
	if page, ok = c.runs.take(pages, fromEnd); !ok && c.Trim() {
		page, ok = c.runs.take(pages, fromEnd)
	}
	return page, ok
}

// Trim gives slabs that are kept unused back, and reports whether there were
// any. Alloc does so by itself before it fails.
func (c *Classes) Trim() (any bool) {
	for i, p := range c.empty {
		if p != 0 {
			c.empty[i] = 0
			c.runs.give(p-1, slabPages)
			any = true
		}
	}
	return any
}

func (c *Classes) allocSmall(k int, owner uint32) (Off, bool) {
	p := c.partial[k]
	if p == 0 {
		if p = c.openSlab(k); p == 0 {
			return 0, false
		}
	}
	cl, s := &classes[k], c.slab(p-1)
	slot := s.get(slabTop)
	if slot != 0 {
		slot--
		if slot >= s.get(slabFresh) || s.get(slabFresh) > cl.slots {
			panic(c.brokenSlab(p-1, k, slot+1))
		}
		link := s.get(cl.first + slot*cl.size)
		if link > s.get(slabFresh) {
			panic(c.brokenSlab(p-1, k, link))
		}
		s.set(slabTop, link)
	} else {
		slot = s.get(slabFresh)
		if slot >= cl.slots {
			panic(c.brokenSlab(p-1, k, slot))
		}
		s.set(slabFresh, slot+1)
	}
	if Checking && s.get(slabOwners+4*slot) != 0 {
		panic(c.brokenSlab(p-1, k, slot))
	}
	s.set(slabOwners+4*slot, owner)
	used := s.get(slabUsed) + 1
	s.set(slabUsed, used)
	if used == cl.slots {
		c.unlist(k, p-1)
	}
	c.freeBytes -= int64(cl.size)
	return c.base + Off(p-1)<<pageShift + Off(cl.first+slot*cl.size), true
}

// openSlab puts an unused slab of class k into the class's list and returns its
// page+1, 0 when there is no memory.
func (c *Classes) openSlab(k int) uint32 {
	cl := &classes[k]
	p := c.empty[k]
	if p != 0 {
		c.empty[k] = 0
	} else {
		page, ok := c.take(slabPages, true)
		if !ok {
			return 0
		}
		c.runs.describe(page, slabPages, descSlab|desc(k+1))
		s := c.slab(page)
		clear(s[:cl.first])
		s.set(slabClass, uint32(k))
		p = page + 1
	}
	c.enlist(k, p-1)
	c.freeBytes -= slabBytes - int64(cl.slots*cl.size)
	return p
}

// Free gives the memory of a value of n bytes at off back. The caller must have
// got off from Alloc(n), and nobody may use the bytes any more. What cannot be
// right panics: another size class, a place nothing begins at, and the second
// Free of the same memory while nothing else has got it.
func (c *Classes) Free(off Off, n int) {
	page := c.pageAt(off)
	if n > smallMax {
		pages := c.checkRun(off, n, page)
		c.runs.give(page, pages)
		c.freeBytes += int64(pages) << pageShift
		return
	}
	page, k, slot := c.checkSlot(off, n, page)
	cl, s := &classes[k], c.slab(page)
	s.set(slabOwners+4*slot, 0)
	s.set(cl.first+slot*cl.size, s.get(slabTop))
	s.set(slabTop, slot+1)
	used := s.get(slabUsed)
	s.set(slabUsed, used-1)
	c.freeBytes += int64(cl.size)
	if used == cl.slots {
		c.enlist(k, page)
	}
	if used == 1 {
		c.unlist(k, page)
		c.freeBytes += slabBytes - int64(cl.slots*cl.size)
		if c.empty[k] == 0 {
			c.empty[k] = page + 1
		} else {
			c.runs.give(page, slabPages)
		}
	}
}

// SetOwner makes owner the owner of the value of n bytes at off.
func (c *Classes) SetOwner(off Off, n int, owner uint32) {
	checkOwner(owner)
	page := c.pageAt(off)
	if n > smallMax {
		c.checkRun(off, n, page)
		c.runs.desc[page] = descRun | desc(owner)
		return
	}
	page, _, slot := c.checkSlot(off, n, page)
	c.slab(page).set(slabOwners+4*slot, owner)
}

// Owner returns the owner of the value of n bytes at off.
func (c *Classes) Owner(off Off, n int) uint32 {
	page := c.pageAt(off)
	if n > smallMax {
		c.checkRun(off, n, page)
		return uint32(c.runs.desc[page] & descValue)
	}
	page, _, slot := c.checkSlot(off, n, page)
	return c.slab(page).get(slabOwners + 4*slot)
}

// Round returns how many bytes a value of n bytes takes, the slab's header
// aside. n is at least 1.
func (c *Classes) Round(n int) int {
	if n <= smallMax {
		return int(classes[classFor[unitsOf(n)]].size)
	}
	return int(pagesOf(n)) << pageShift
}

// FreeBytes returns the bytes no value takes. Slots of another class and gaps
// between values count, so that an Alloc of less can still fail. It is Size
// when all values were freed.
func (c *Classes) FreeBytes() int64 { return c.freeBytes }

// Size returns the bytes of the region.
func (c *Classes) Size() int64 { return c.size }

// Window calls visit with the owner of every value that must go so that a value
// of n bytes fits around off: all that overlap a window of memory, and all in a
// slab that overlaps it, because a slab's memory comes back only as a whole.
// An owner of several such values is visited for each.
//
// The window is n rounded up to pages and then to a power of two, at least one
// slab for n up to 2048, and lies at a multiple of its size from the region's
// start. When it does not fit into the region, nothing is visited and the result
// is false. When every owner visited has freed its values, Alloc(n) succeeds.
//
// visit returns whether to go on. It may Free, but must not Alloc.
func (c *Classes) Window(off Off, n int, visit func(owner uint32) bool) bool {
	page := c.pageAt(off)
	want := uint32(slabPages)
	if n > smallMax {
		want = pagesOf(n)
		if uint64(want) > uint64(len(c.runs.desc)) {
			return false
		}
		want = 1 << bits.Len32(want-1)
	}
	from := page &^ (want - 1)
	end := uint64(from) + uint64(want)
	if end > uint64(len(c.runs.desc)) {
		return false
	}
	total := uint32(len(c.runs.desc))
	for p := c.runs.start(from); uint64(p) < end; {
		switch d := c.runs.desc[p]; d & descType {
		case descFree:
			// The value is a length on both ends of a free run. Only its first
			// page, which no free page precedes, may be skipped by it: visit
			// frees, and p can then be anywhere in a joined run.
			if p == 0 || c.runs.desc[p-1]&descType != descFree {
				p += max(uint32(d), 1)
			} else {
				p++
			}
		case descRun:
			next := p + c.runs.length(p, total)
			if !visit(uint32(d & descValue)) {
				return true
			}
			p = next
		case descSlab:
			if !c.visitSlab(p, int(d&descValue)-1, visit) {
				return true
			}
			p += slabPages
		default:
			panic(c.runs.broken(p, "the start of something"))
		}
	}
	return true
}

// visitSlab visits the owners of a slab's slots. When visit frees the last of
// them the slab may be gone, and then only the first 8 bytes of its memory have
// changed, since visit does not Alloc: every owner read from there on is 0.
func (c *Classes) visitSlab(page uint32, k int, visit func(owner uint32) bool) bool {
	s := c.slab(page)
	fresh := min(s.get(slabFresh), classes[k].slots)
	for slot := uint32(0); slot < fresh; slot++ {
		if owner := s.get(slabOwners + 4*slot); owner != 0 && !visit(owner) {
			return false
		}
	}
	return true
}

// pageAt returns the page that off is in.
func (c *Classes) pageAt(off Off) uint32 {
	if off < c.base || off-c.base >= Off(c.size) {
		panic(fmt.Sprintf("arena: offset %#x is outside the %d bytes at %#x", uint64(off), c.size, uint64(c.base)))
	}
	return uint32((off - c.base) >> pageShift)
}

// checkRun panics unless a run in use of exactly the pages of n bytes begins at
// off, which is in page.
func (c *Classes) checkRun(off Off, n int, page uint32) (pages uint32) {
	pages = pagesOf(n)
	total := uint64(len(c.runs.desc))
	end := uint64(page) + uint64(pages)
	if off%runPage != 0 || c.runs.desc[page]&descType != descRun || end > total ||
		(pages > 1 && c.runs.desc[end-1] != descInner|desc(pages-1)) ||
		(end < total && c.runs.desc[end] == descInner|desc(pages)) {
		panic(fmt.Sprintf("arena: no value of %d bytes at %#x: %s", n, uint64(off), c.runs.broken(page, fmt.Sprintf("a run of %d pages", pages))))
	}
	return pages
}

// checkSlot panics unless off, which is in page, is a slot in use of the class
// of n bytes. It returns the slab's first page, the class and the slot.
func (c *Classes) checkSlot(off Off, n int, page uint32) (first uint32, k int, slot uint32) {
	k = int(classFor[unitsOf(n)])
	cl := &classes[k]
	first = c.runs.start(page)
	if c.runs.desc[first] != descSlab|desc(k+1) {
		panic(fmt.Sprintf("arena: no value of %d bytes at %#x: %s", n, uint64(off), c.runs.broken(first, fmt.Sprintf("a slab of class %d", k))))
	}
	at := uint32(off-c.base) - first<<pageShift // less than 64 KiB: the high bits cancel
	slot = (at - cl.first) / cl.size
	s := c.slab(first)
	if at < cl.first || cl.first+slot*cl.size != at || slot >= cl.slots || s.get(slabOwners+4*slot) == 0 {
		panic(fmt.Sprintf("arena: no value of %d bytes at %#x: byte %d of the slab at page %d is not a slot in use of class %d (%d bytes)",
			n, uint64(off), at, first, k, cl.size))
	}
	return first, k, slot
}

// slab is the memory of one slab, seen as 32-bit fields.
type slab []byte

func (c *Classes) slab(page uint32) slab {
	at := int(page) << pageShift
	return c.runs.mem[at : at+slabBytes : at+slabBytes]
}

func (s slab) get(at uint32) uint32    { return binary.NativeEndian.Uint32(s[at:]) }
func (s slab) set(at uint32, v uint32) { binary.NativeEndian.PutUint32(s[at:], v) }

// enlist puts a slab at the front of its class's list.
func (c *Classes) enlist(k int, page uint32) {
	s, head := c.slab(page), c.partial[k]
	s.set(slabNext, head)
	s.set(slabPrev, 0)
	if head != 0 {
		c.slab(head-1).set(slabPrev, page+1)
	}
	c.partial[k] = page + 1
}

// unlist takes a slab out of its class's list.
func (c *Classes) unlist(k int, page uint32) {
	s := c.slab(page)
	next, prev := s.get(slabNext), s.get(slabPrev)
	if next != 0 {
		c.neighbour(k, page, next).set(slabPrev, prev)
	}
	if prev != 0 {
		c.neighbour(k, page, prev).set(slabNext, next)
		return
	}
	if c.partial[k] != page+1 {
		panic(c.brokenSlab(page, k, c.partial[k]))
	}
	c.partial[k] = next
}

// neighbour returns the slab a link of the slab at page leads to.
func (c *Classes) neighbour(k int, page, link uint32) slab {
	if uint64(link) > uint64(len(c.runs.desc)) || c.runs.desc[link-1] != descSlab|desc(k+1) {
		panic(c.brokenSlab(page, k, link))
	}
	return c.slab(link - 1)
}

func (c *Classes) brokenSlab(page uint32, k int, value uint32) string {
	return fmt.Sprintf("arena: the slab of class %d at page %d is broken at value %#x (header %x): it was written to by somebody else, or after a Free",
		k, page, value, []byte(c.slab(page)[:slabOwners]))
}

func checkOwner(owner uint32) {
	if owner == 0 || owner >= ownerEnd {
		panic(fmt.Sprintf("arena: owner %d is not in 1..%d", owner, ownerEnd-1))
	}
}

// unitsOf returns the multiples of 16 bytes that n bytes, at most smallMax, take.
func unitsOf(n int) int {
	if n < 1 {
		panic(fmt.Sprintf("arena: a value of %d bytes", n))
	}
	return (n + smallUnit - 1) / smallUnit
}

// pagesOf returns the pages that n bytes take, one more than the largest region
// has when they are more than any.
func pagesOf(n int) uint32 {
	return uint32(min((int64(n)-1)>>pageShift+1, maxPages+1))
}
