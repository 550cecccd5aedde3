// Package memfd receives shared memory from other processes: descriptors that come
// beside a message, and sealed memfds, mapped so that no change of their length can
// turn reading them into a fault.
package memfd

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrUnsealed: what was passed is no memfd of fixed length, or shorter than said.
var ErrUnsealed = errors.New("not a sealed memfd of the length that was said")

// UnsealedError says what was wrong with what was passed. It is an ErrUnsealed.
type UnsealedError struct {
	Size  int64  // bytes; -1: no memfd
	Seals int    // F_SEAL_*
	Said  uint64 // bytes
}

func (e *UnsealedError) Error() string {
	return fmt.Sprintf("shared memory of %d bytes with seals %#x, said to be %d", e.Size, e.Seals, e.Said)
}

// Is makes an UnsealedError an ErrUnsealed.
func (e *UnsealedError) Is(target error) bool { return target == ErrUnsealed }

// Descriptors takes over what came beside a message.
func Descriptors(control []byte) (files []*os.File) {
	msgs, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "shared memory"))
		}
	}
	return files
}

// Map maps what another process has passed, of which size bytes at least must be
// there. The mapping is not there in a child that is forked. f may be closed
// afterwards.
func Map(f *os.File, size uint64, prot int) ([]byte, error) {
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, &UnsealedError{-1, 0, size}
	}
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if seals&unix.F_SEAL_SHRINK == 0 || size == 0 || st.Size() < 0 || uint64(st.Size()) < size {
		return nil, &UnsealedError{st.Size(), seals, size}
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	if err := unix.Madvise(mem, unix.MADV_DONTFORK); err != nil {
		_ = unix.Munmap(mem) // it was mapped whole, just now
		return nil, os.NewSyscallError("madvise", err)
	}
	return mem, nil
}
