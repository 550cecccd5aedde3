package arena

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// prefaultChunk is what one thread touches at a time: large enough that the
// system call does not count, small enough that Progress moves (64 MiB take 10
// to 60 ms) and threads finish together. A multiple of every page size up to
// its own; larger pages are their own chunk.
const prefaultChunk = 64 << 20

// populate touches all of mem with the given number of threads. Pages that
// cannot be had are an error here, not a SIGBUS later. touchOnly skips the
// system call, for memory it does not apply to.
//
// The workers share one word, next: own word, Add hands each chunk to one
// worker. What they touched is published to the caller by the channel's close.
func (k *kernel) populate(mem []byte, pageBytes int64, threads int, touchOnly bool, progress func(done, total int64)) error {
	chunk := int(max(pageBytes, prefaultChunk))
	chunks := (len(mem) + chunk - 1) / chunk
	if threads <= 0 {
		threads = min(runtime.NumCPU(), 16)
	}
	threads = min(threads, chunks)
	type report struct {
		n   int
		err error
	}
	reports := make(chan report, threads)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range threads {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				i := int(next.Add(1) - 1)
				if i >= chunks {
					return
				}
				b := mem[i*chunk : min((i+1)*chunk, len(mem))]
				err := k.populateChunk(b, touchOnly)
				reports <- report{len(b), err}
				if err != nil {
					next.Store(int64(chunks)) // the others stop after their chunk
					return
				}
			}
		}()
	}
	go func() { wg.Wait(); close(reports) }()
	var done int64
	var failed error
	for r := range reports {
		if r.err != nil {
			failed = errors.Join(failed, r.err)
			continue
		}
		done += int64(r.n)
		if progress != nil && failed == nil {
			progress(done, int64(len(mem)))
		}
	}
	return failed
}

func (k *kernel) populateChunk(b []byte, touchOnly bool) error {
	if !touchOnly {
		for {
			err := k.madvise(b, unix.MADV_POPULATE_WRITE)
			switch err {
			case nil:
				return nil
			case unix.EINTR, unix.EAGAIN:
				continue
			case unix.EFAULT:
				return fmt.Errorf("pages cannot be had (a use would be SIGBUS): %w", err)
			}
			if err != unix.EINVAL && err != unix.ENOSYS { // before Linux 5.14: touch by hand
				return err
			}
			break
		}
	}
	return touch(b)
}

// touch writes one zero into every page of b, which must hold nothing yet. A
// page that cannot be had raises SIGBUS; the runtime turns it into a panic on
// this goroutine, and that into an error.
func touch(b []byte) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		if f, ok := r.(interface {
			error
			Addr() uintptr
		}); ok {
			err = fmt.Errorf("pages cannot be had: %w", f)
			return
		}
		panic(r)
	}()
	page := os.Getpagesize()
	for i := 0; i < len(b); i += page {
		b[i] = 0
	}
	return nil
}
