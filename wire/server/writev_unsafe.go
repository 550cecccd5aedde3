package server

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// vectors is a list of byte ranges as writev takes it, used again and again:
// x/sys makes a new one for each call.
type vectors struct{ iov []unix.Iovec }

// add appends a range, which must not be empty.
func (v *vectors) add(b []byte) {
	e := unix.Iovec{Base: &b[0]}
	e.SetLen(len(b))
	v.iov = append(v.iov, e)
}

// reset forgets the ranges, and with them what they keep alive.
func (v *vectors) reset() {
	clear(v.iov)
	v.iov = v.iov[:0]
}

// write sends the ranges, at least one, without waiting.
//
// Unsafe: passes the address of the list to the kernel. Sound: the list and what
// it names are reachable through v until the call returns, and Go's heap does not
// move; memory of the arena is under claims that the caller holds.
func (v *vectors) write(fd int) (n int, err error) {
	r, _, errno := unix.Syscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(&v.iov[0])), uintptr(len(v.iov)))
	if errno != 0 {
		return 0, errno
	}
	return int(r), nil
}

// sendSome is the most bytes that send takes.
const sendSome = 16 << 10

// send sends 1 to sendSome bytes without waiting. Go's scheduler is not told of
// the call, which is a twentieth of a short request: it does not wait, and copies
// less than takes the scheduler to notice.
//
// Unsafe: passes the address of b to the kernel. Sound: b is reachable until the
// call returns, and Go's heap does not move.
func send(fd int, b []byte) (n int, err error) {
	r, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(r), nil
}
