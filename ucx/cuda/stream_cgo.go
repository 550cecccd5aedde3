//go:build linux && cgo && ucx

package cuda

// #include "driver_cgo.h"
import "C"

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Implements:
//
//	CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags);
func (l *library) stream(ctx uintptr) (uintptr, error) {
	var s C.uintptr_t
	err := l.check("cuStreamCreate", C.kvcr_stream(l.driver, C.uintptr_t(ctx), &s))
	return uintptr(s), err
}

// Implements:
//
//	CUresult cuStreamDestroy(CUstream hStream);
func (l *library) destroy(ctx, stream uintptr) error {
	return l.check("cuStreamDestroy", C.kvcr_destroy(l.driver, C.uintptr_t(ctx), C.uintptr_t(stream)))
}

// Implements:
//
//	CUresult cuStreamQuery(CUstream hStream);
func (l *library) query(ctx, stream uintptr) (bool, error) {
	r := C.kvcr_query(l.driver, C.uintptr_t(ctx), C.uintptr_t(stream))
	if r == C.CUDA_ERROR_NOT_READY {
		return false, nil
	}
	return r == 0, l.check("cuStreamQuery", r)
}

// synchronize blocks until all work on the stream has ended.
//
// Implements:
//
//	CUresult cuStreamSynchronize(CUstream hStream);
func (l *library) synchronize(ctx, stream uintptr) error {
	return l.check("cuStreamSynchronize", C.kvcr_synchronize(l.driver, C.uintptr_t(ctx), C.uintptr_t(stream)))
}

// issue enters C once for all copies of a part. The arrays are Go memory; the
// driver reads them during the call only.
//
// Implements:
//
//	CUresult cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
//	                            CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs,
//	                            size_t *failIdx, CUstream hStream);
//	CUresult cuMemcpyHtoDAsync(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream);
//	CUresult cuMemcpyDtoHAsync(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream);
//	CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData);
func (l *library) issue(i *issue) issued {
	var toHost, batch C.int
	call := "cuMemcpyHtoDAsync"
	if i.dir == ToHost {
		toHost, call = 1, "cuMemcpyDtoHAsync"
	}
	if i.batch {
		batch = 1
	}
	r := C.kvcr_issue(l.driver, C.uintptr_t(i.ctx), C.uintptr_t(i.stream), toHost, batch,
		(*C.uint64_t)(unsafe.SliceData(i.dst)), (*C.uint64_t)(unsafe.SliceData(i.src)),
		(*C.size_t)(unsafe.SliceData(i.size)), C.size_t(len(i.size)),
		C.kvcr_board_note(l.board, C.uint32_t(i.notice)))
	if i.batch && r.batch == 0 {
		call = "cuMemcpyBatchAsync"
	}
	return issued{err: l.check(call, r.copy), announced: r.announce == 0, refused: r.batch != 0}
}

func (l *library) openBoard(n int) (int, error) {
	var errno C.int
	b := C.kvcr_board_open(C.uint32_t(n), &errno)
	if b == nil {
		return -1, fmt.Errorf("cuda: eventfd: %w", unix.Errno(errno))
	}
	// A descriptor of our own: Go closes it while the driver may still ring.
	fd, err := unix.FcntlInt(uintptr(b.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		C.kvcr_board_close(b)
		return -1, fmt.Errorf("cuda: duplicating an eventfd: %w", err)
	}
	l.board = b
	return fd, nil
}

func (l *library) take(buf []uint32) int {
	return int(C.kvcr_board_take(l.board, (*C.uint32_t)(unsafe.SliceData(buf)), C.uint32_t(len(buf))))
}

func (l *library) closeBoard() {
	C.kvcr_board_close(l.board)
	l.board = nil
}
