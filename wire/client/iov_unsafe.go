package client

import (
	"syscall"
	"unsafe"
)

// writev writes a and then b, either of which may be empty, to a descriptor that
// does not block, and returns the bytes that were taken.
//
// Unsafe: passes addresses to the kernel. Sound: iov holds the slices' pointers as
// pointers, lengths are the slices' own, and iov lives on this stack until the call
// has returned.
func writev(fd uintptr, a, b []byte) (int, error) {
	var iov [2]syscall.Iovec
	n := 0
	for _, p := range [2][]byte{a, b} {
		if len(p) > 0 {
			iov[n].Base = &p[0]
			iov[n].SetLen(len(p))
			n++
		}
	}
	sent, _, e := syscall.Syscall(syscall.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&iov[0])), uintptr(n))
	if e != 0 {
		return 0, e
	}
	return int(sent), nil
}
