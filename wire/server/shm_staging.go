package server

import (
	"cmp"
	"io"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/internal/blockcopy"
)

// staging is memory that one client writes to and we read.
//
// We do not map it. What we read is read once, by a system call, so that nothing
// the client does to the memory meanwhile, punching holes into it included, can
// be a signal here, and that what is checked is what is stored.
type staging struct {
	f    *os.File
	size int64

	mu    sync.Mutex // guards what follows
	free  extents
	users int // the connection, and the jobs that read it
}

// newStaging makes staging memory of size bytes, a multiple of the page size. Its
// length is sealed.
func newStaging(size int64) (*staging, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("kvcr-staging", flags|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL {
		fd, err = unix.MemfdCreate("kvcr-staging", flags) // before Linux 6.3
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "staging")
	if err := f.Truncate(size); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		f.Close()
		return nil, os.NewSyscallError("seal", err)
	}
	return &staging{f: f, size: size, free: extents{{0, size}}, users: 1}, nil
}

// take finds a place for n bytes, give takes it back.
func (st *staging) take(n int64) (off int64, ok bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.free.take(n)
}

func (st *staging) give(off, n int64) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.free.give(off, n)
}

// use keeps the memory until as many calls of drop, by who uses it already.
func (st *staging) use() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.users++
}

// drop ends a use, the last one the memory.
func (st *staging) drop(sh *sharing) {
	st.mu.Lock()
	st.users--
	last := st.users == 0
	st.mu.Unlock()
	if last {
		st.f.Close()
		sh.revoke(st.size)
	}
}

// read copies what lies at off to dst, once.
func (st *staging) read(dst []byte, off int64) error {
	for len(dst) > 0 {
		// No longer without a Go call than any other copy of a block.
		n := min(len(dst), blockcopy.Chunk)
		if k, err := st.f.ReadAt(dst[:n], off); err != nil || k < n {
			if err == nil {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		dst, off = dst[n:], off+int64(n)
	}
	return nil
}

// extent is a run of bytes.
type extent struct{ off, n int64 }

// extents are the free bytes of staging memory: in order, not empty, and no two of
// them touch.
type extents []extent

// stagingUnit is what places begin at multiples of: a cache line, so that writers
// of two values share none.
const stagingUnit = 64

// roundUp is how many bytes a place for n bytes takes.
func roundUp(n int64) int64 { return (n + stagingUnit - 1) &^ (stagingUnit - 1) }

// take finds n bytes, the first that fit. n is not more than the largest staging
// memory.
func (e *extents) take(n int64) (off int64, ok bool) {
	if n = roundUp(n); n == 0 {
		return 0, true
	}
	for i := range *e {
		x := &(*e)[i]
		if x.n < n {
			continue
		}
		off = x.off
		if x.off, x.n = x.off+n, x.n-n; x.n == 0 {
			*e = slices.Delete(*e, i, i+1)
		}
		return off, true
	}
	return 0, false
}

// give takes back what take(n) has returned.
func (e *extents) give(off, n int64) {
	if n = roundUp(n); n == 0 {
		return
	}
	i, _ := slices.BinarySearchFunc(*e, off, func(x extent, off int64) int { return cmp.Compare(x.off, off) })
	*e = slices.Insert(*e, i, extent{off, n})
	if i+1 < len(*e) && (*e)[i].off+(*e)[i].n == (*e)[i+1].off {
		(*e)[i].n += (*e)[i+1].n
		*e = slices.Delete(*e, i+1, i+2)
	}
	if i > 0 && (*e)[i-1].off+(*e)[i-1].n == (*e)[i].off {
		(*e)[i-1].n += (*e)[i].n
		*e = slices.Delete(*e, i, i+1)
	}
}
