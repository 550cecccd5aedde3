package arena

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// region is one mapping as the kernel knows it.
type region struct {
	mem []byte // the length bytes asked for, aligned
	all []byte // mem with its guard pages, if it has them: what unmap gives back
}

// mapRegion maps length bytes, a multiple of the page size, at a multiple of
// align, a power of two. fd is -1 for anonymous memory; of an object, the bytes
// from 0 are mapped. With a guard of more than 0 bytes, a page-multiple, that
// much on both sides faults on any access: an overrun dies at its cause, and the
// mapping never merges with a neighbour, which keeps what /proc/self/smaps says
// about it exact.
//
// Implements: mmap(2), mprotect(2), munmap(2).
//
// Unsafe: turns the kernel's addresses into slices. Sound: the slice covers
// exactly what mmap returned, that memory is not Go's, and it stays mapped
// until unmap; pieces are taken by slicing, which is checked.
func mapRegion(length, align, guard, flags, fd int) (region, error) {
	const readWrite = unix.PROT_READ | unix.PROT_WRITE
	if guard == 0 {
		p, err := unix.MmapPtr(fd, 0, nil, uintptr(length), readWrite, flags)
		if err != nil {
			return region{}, err
		}
		all := unsafe.Slice((*byte)(p), length)
		return region{mem: all, all: all}, nil
	}
	// Take enough to align, then cut off what is too much.
	total := length + align + 2*guard
	prot, first := readWrite, flags
	if fd >= 0 {
		prot, first = unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE
	}
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(total), prot, first)
	if err != nil {
		return region{}, err
	}
	raw := unsafe.Slice((*byte)(p), total)
	lead := guard + int(-(uintptr(p)+uintptr(guard))&uintptr(align-1))
	end := lead + length
	r := region{mem: raw[lead:end:end], all: raw[lead-guard : end+guard]}
	if fd < 0 {
		// Before the first cut, so that the whole can be given back at once.
		for _, g := range [][]byte{raw[lead-guard : lead], raw[end : end+guard]} {
			if err := unix.Mprotect(g, unix.PROT_NONE); err != nil {
				_ = region{all: raw}.unmap()
				return region{}, err
			}
		}
	} else if _, err := unix.MmapPtr(fd, 0, unsafe.Pointer(&raw[lead]), uintptr(length), readWrite, flags|unix.MAP_FIXED); err != nil {
		// The kernel may have taken our reservation away before it failed, and
		// then another thread may have got these addresses: keep off them. At
		// worst untouched address space stays reserved. Anonymous memory, which
		// fails for a lack of memory, does not come here for that reason.
		_ = region{all: raw[:lead]}.unmap()
		_ = region{all: raw[end:]}.unmap()
		return region{}, err
	}
	// A cut that fails (too many mappings) costs address space only.
	_ = region{all: raw[:lead-guard]}.unmap()
	_ = region{all: raw[end+guard:]}.unmap()
	return r, nil
}

// unmap gives the mapping back. No slice of it may be used afterwards.
//
// Unsafe: passes an address to the kernel. Sound: it is the start of a slice
// that mapRegion made.
func (r region) unmap() error {
	if len(r.all) == 0 {
		return nil
	}
	return unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(r.all)), uintptr(len(r.all)))
}

// mbind sets the memory policy of mem to mode over the nodes whose bits are set
// in mask. The pages must not have been touched: they are not moved.
//
// Implements: long mbind(void *addr, unsigned long len, int mode,
// const unsigned long *nodemask, unsigned long maxnode, unsigned flags);
//
// Unsafe: passes addresses to the kernel. Sound: mem and mask are kept alive by
// the conversions in the call's own argument list; the kernel reads maxnode-1
// bits of mask, which is how it has always counted, and mask has that many.
func mbind(mem []byte, mode int, mask []uint64) error {
	_, _, e := unix.Syscall6(unix.SYS_MBIND,
		uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uintptr(len(mem)), uintptr(mode),
		uintptr(unsafe.Pointer(unsafe.SliceData(mask))), uintptr(len(mask)*64+1), 0)
	if e != 0 {
		return e
	}
	return nil
}

// addressOf returns where b starts, for comparing with /proc/self/smaps and for
// checking alignment. It is never turned back into a pointer.
//
// Unsafe: none of it; uintptr(unsafe.Pointer) is only a number here.
func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
