package cuda

import (
	"slices"
)

// region is memory that copies may touch: an allocation, memory of somebody
// else that was looked up, or registered host memory.
type region struct {
	base, size uint64
	device     int    // its ordinal; for host memory, that of the device that registered it
	owned      bool   // made by Alloc
	chunk      uint64 // host memory: bytes of each registration; a copy must not span two

	// inFlight counts batches that use the region, unsettled those of them
	// that a lost device may still serve. Guarded by Driver.mu.
	inFlight, unsettled int
	// leaving: the driver is taking the memory back, so new copies are refused.
	leaving bool
}

func (r *region) end() uint64 { return r.base + r.size }

// regions is an ordered set of regions that do not overlap.
type regions struct{ list []*region }

// find returns the region with all of [addr, addr+size), or nil. partly reports
// that some other part of the range is in a region.
func (rs *regions) find(addr, size uint64) (r *region, partly bool) {
	if size > -addr && addr != 0 {
		return nil, false // runs over the end of the address space
	}
	i := rs.after(addr)
	if i < len(rs.list) && rs.list[i].base <= addr {
		r := rs.list[i]
		return pick(size <= r.end()-addr, r), size > r.end()-addr
	}
	return nil, i < len(rs.list) && rs.list[i].base < addr+size
}

func pick(ok bool, r *region) *region {
	if ok {
		return r
	}
	return nil
}

// after is the index of the first region that ends above addr.
func (rs *regions) after(addr uint64) int {
	i, _ := slices.BinarySearchFunc(rs.list, addr, func(r *region, a uint64) int {
		if r.end() <= a {
			return -1
		}
		return 1
	})
	return i
}

// add puts r in order, unless it overlaps another.
func (rs *regions) add(r *region) bool {
	i := rs.after(r.base)
	if i < len(rs.list) && rs.list[i].base < r.end() {
		return false
	}
	rs.list = slices.Insert(rs.list, i, r)
	return true
}

// at returns the region that begins at addr, or nil.
func (rs *regions) at(addr uint64) *region {
	if i := rs.after(addr); i < len(rs.list) && rs.list[i].base == addr {
		return rs.list[i]
	}
	return nil
}

func (rs *regions) remove(r *region) {
	if i := slices.Index(rs.list, r); i >= 0 {
		rs.list = slices.Delete(rs.list, i, i+1)
	}
}
