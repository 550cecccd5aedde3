package arena

import (
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Options describes an arena. Only Size is required; every other zero field
// means the default its comment names.
type Options struct {
	// Name appears in errors, in Placement, in the name of a memfd and of a
	// file. Letters, digits, '.', '_' and '-' are kept, others become '_'.
	Name string

	// Size is the number of bytes to reserve, at least 1. The mapping is
	// rounded up to whole pages, Arena.Size is not.
	Size int64

	// Backing is the kind of memory object. Default Anonymous.
	Backing Backing

	// Path is for File backing only: a directory, in which a file with a fresh
	// name is made, or the name of a file to make. The last element of a file's
	// name must begin with FilePrefix and end with FileSuffix: by that a file
	// left by a killed process is recognised and removed.
	Path string

	// Pages is the kind of pages to try first. Default PagesAuto. What is not
	// there is replaced by the next smaller kind and reported in Placement.
	Pages Pages

	// Strict makes Map fail with *PagesError instead of replacing the pages
	// asked for. It has no meaning with PagesAuto.
	Strict bool

	// NUMA is the memory policy. A refusal is reported, never an error.
	NUMA NUMA

	// Lock keeps the memory from being swapped out, which also touches all of
	// it. What RLIMIT_MEMLOCK refuses is reported, unless LockStrict is set:
	// then Map fails with *LockError.
	Lock       bool
	LockStrict bool

	// Prefault touches every page before Map returns, with PrefaultThreads
	// threads (default: one for each processor, at most 16). Explicit huge
	// pages are touched in any case, because one that is missing would
	// otherwise kill the process at its first use.
	Prefault        bool
	PrefaultThreads int

	// Progress, if not nil, is told how many of total bytes have been touched.
	// It is called on the goroutine that called Map, done never decreases, and
	// the last call of a success has done == total.
	Progress func(done, total int64)
}

// Arena is one region of memory outside the Go heap (but see doc.go for race
// builds). Its methods may be called from any goroutine; Close must not run at
// the same time as, or before, any use of the memory.
type Arena struct {
	mem   []byte // the Size bytes callers see; nil after Close
	place Placement
	fd    int // -1 without one

	mu      sync.Mutex // guards closing, so that Close may be called twice at once
	release func() error
	closed  bool
}

// Map reserves an arena. It blocks while memory is touched or locked. On an
// error nothing stays mapped, open or on disk. Errors: *OptionError,
// *SizeError, *SpaceError, *PagesError, *LockError, *MapError.
func Map(o Options) (*Arena, error) { return realKernel.mapArena(o) }

// Size returns the bytes asked for; 0 after Close.
func (a *Arena) Size() int64 { return int64(len(a.mem)) }

// Bytes returns the n bytes at off, their capacity clipped so that an append
// copies instead of running into what follows. It panics when they are not
// inside the arena. The caller must hold whatever right to these bytes the
// package above hands out; the slice dies with the arena.
func (a *Arena) Bytes(off Off, n int) []byte {
	if n < 0 || uint64(n) > uint64(len(a.mem)) || uint64(off) > uint64(len(a.mem))-uint64(n) {
		panic(outOfRange(off, n, len(a.mem)))
	}
	return a.mem[off : off+Off(n) : off+Off(n)]
}

// Placement returns what was obtained from the system, and why not more. It
// stays readable after Close. The caller owns the result.
func (a *Arena) Placement() Placement { return a.place.clone() }

// FD returns the descriptor of a memfd or file and whether there is one. It
// stays owned by the arena and is closed by Close; it is marked close-on-exec.
func (a *Arena) FD() (fd int, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || a.fd < 0 {
		return -1, false
	}
	return a.fd, true
}

// Seal forbids every process that gets the memfd's descriptor from now on to
// write to the memory, to map it writable, to resize it, or to lift the seals.
// This arena's own mapping stays writable. It fails for other backings.
func (a *Arena) Seal() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return ErrClosed
	}
	if a.place.Backing != Memfd {
		return &OptionError{Field: "Seal", Value: "of " + a.place.Backing.String() + " memory", Fix: "only a memfd can be sealed"}
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(a.fd), unix.F_ADD_SEALS, seals); err != nil {
		return &MapError{Name: a.place.Name, Op: "seal", Size: a.place.Size, Err: err}
	}
	return nil
}

// Close unmaps the memory, closes the descriptor and removes the file. The
// caller must have dropped every slice and word of the arena: a later use of
// one is a fault. Close may be called again, and then returns nil.
func (a *Arena) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil
	}
	a.closed = true
	a.mem = nil // Bytes panics from now on, instead of handing out a fault
	return a.release()
}

func outOfRange(off Off, n, size int) string {
	return fmt.Sprintf("arena: %d bytes at %#x are outside an arena of %d", n, uint64(off), size)
}

// cleanName keeps what is safe in a file name.
func cleanName(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
			return r
		}
		return '_'
	}, s)
}
