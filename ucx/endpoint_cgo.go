//go:build linux && cgo && ucx

package ucx

/*
#include <stdlib.h>
#include <string.h>
#include "core.h"
*/
import "C"

import (
	"time"
	"unsafe"
)

// Endpoint is one peer's worker, as this worker reaches it.
type Endpoint struct {
	w      *Worker
	index  uint32
	onFail func(error)
	closed chan struct{} // closed with the endpoint

	// Guarded by w.mu.
	err  error      // why it failed
	mode C.uint32_t // strongest close asked for; 0 while open
	over bool       // index names somebody else now
	keys int
}

// RemoteKey is a peer's region, as one endpoint reaches it. It dies with its
// endpoint.
type RemoteKey struct {
	ep   *Endpoint
	base uint64 // address in the peer's memory
	size uint64
	typ  MemoryType
	c    C.uint64_t // *kx_key; 0 once closed. Guarded by ep.w.mu
}

// Connect makes an endpoint for the worker with this address. It never blocks:
// the connection is made in the background, and operations wait for it. failed,
// when not nil, is called at most once, on the progress goroutine, when the peer
// cannot be reached any more; every operation on the endpoint then completes
// with an error. An endpoint that failed must still be closed.
//
// A peer that stops answering without closing its socket (a cut cable, a stopped
// process) is noticed by UCX's keepalive where the transport has one, else not
// at all: the caller's control connection decides about life and death.
func (w *Worker) Connect(address []byte, failed func(error)) (*Endpoint, error) {
	body, err := openBlob(blobAddress, address)
	if err != nil {
		return nil, err
	}
	c := copyOut(body)
	if c == nil {
		return nil, StatusNoMemory
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closing.IsZero() {
		err = ErrClosed
	} else if len(w.epFree) == 0 {
		err = &LimitError{What: "endpoints", Limit: int64(len(w.eps)),
			Fix: "close unused endpoints, or raise WorkerOptions.MaxEndpoints"}
	}
	if err != nil {
		C.free(c)
		return nil, err
	}
	e := &Endpoint{w: w, index: w.epFree[len(w.epFree)-1], onFail: failed, closed: make(chan struct{})}
	w.epFree = w.epFree[:len(w.epFree)-1]
	w.eps[e.index] = e
	w.pushLocked(C.kx_cmd{kind: C.KX_EP_OPEN, ep: C.uint32_t(e.index), ptr: C.uint64_t(uintptr(c))})
	return e, nil
}

// copyOut copies b to C memory with zeros behind it (blobSlack). The caller, or
// whom it hands it to, frees it.
func copyOut(b []byte) unsafe.Pointer {
	c := C.calloc(1, C.size_t(len(b)+blobSlack))
	if c != nil {
		C.memcpy(c, unsafe.Pointer(unsafe.SliceData(b)), C.size_t(len(b)))
	}
	return c
}

func (w *Worker) pushLocked(cmd C.kx_cmd) {
	w.queue = append(w.queue, cmd)
	w.wakeLocked()
}

// Err is why the endpoint failed, nil while it has not.
func (e *Endpoint) Err() error {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	return e.err
}

// Import makes a peer's key usable on this endpoint. It never blocks: a key that
// UCX refuses shows in the first Put with it.
//
// Implements:
//
//	ucs_status_t ucp_ep_rkey_unpack(ucp_ep_h ep, const void *rkey_buffer, ucp_rkey_h *rkey_p);
func (e *Endpoint) Import(key []byte) (*RemoteKey, error) {
	if !e.w.ctx.limits.Puts {
		return nil, errNoPuts
	}
	typ, parts, err := openKey(key)
	if err != nil {
		return nil, err
	}
	last := parts[len(parts)-1]
	k := &RemoteKey{ep: e, typ: typ, base: parts[0].addr, size: last.addr + last.length - parts[0].addr}
	c := C.kx_key_alloc(C.uint32_t(len(parts)))
	if c == nil {
		return nil, StatusNoMemory
	}
	for i, p := range parts {
		packed := copyOut(p.rkey)
		if packed == nil {
			C.kx_key_free(c)
			return nil, StatusNoMemory
		}
		C.kx_key_set(c, C.uint32_t(i), C.uint64_t(p.addr), C.uint64_t(p.length), packed)
	}
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	if e.mode != 0 || !e.w.closing.IsZero() {
		err = ErrClosed
	} else if e.keys >= e.w.opts.MaxKeys {
		err = &LimitError{What: "keys of an endpoint", Limit: int64(e.w.opts.MaxKeys),
			Fix: "close unused keys, or raise WorkerOptions.MaxKeys"}
	}
	if err != nil {
		C.kx_key_free(c)
		return nil, err
	}
	e.keys++
	k.c = C.uint64_t(uintptr(unsafe.Pointer(c)))
	e.w.pushLocked(C.kx_cmd{kind: C.KX_KEY_OPEN, ep: C.uint32_t(e.index), ptr: k.c})
	return k, nil
}

// Size is the length of the peer's region in bytes, Type where it lies.
func (k *RemoteKey) Size() uint64     { return k.size }
func (k *RemoteKey) Type() MemoryType { return k.typ }

// Close gives the key up; UCX's part of it goes after its last operation. It
// never blocks and may be called again. Closing the endpoint does the same.
func (k *RemoteKey) Close() {
	w := k.ep.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if k.c != 0 && k.ep.mode == 0 && w.closing.IsZero() {
		k.ep.keys--
		w.pushLocked(C.kx_cmd{kind: C.KX_KEY_CLOSE, ptr: k.c})
	}
	k.c = 0
}

// closeLocked asks for a close of at least this mode.
func (e *Endpoint) closeLocked(mode C.uint32_t) {
	if e.over || mode <= e.mode || !e.w.closing.IsZero() {
		return
	}
	e.mode = mode
	e.w.pushLocked(C.kx_cmd{kind: C.KX_EP_CLOSE, ep: C.uint32_t(e.index), arg: mode})
}

// Close refuses new operations at once, lets those in flight end for at most
// patience, then closes the endpoint over them: they end with an error. It
// blocks, and must not be called from a completion function (Abort may). An
// operation that UCX does not end even so keeps its memory (M1), and Close
// returns a BusyError within a second of patience; it may be called again.
func (e *Endpoint) Close(patience time.Duration) error {
	patience = max(patience, 0)
	e.w.mu.Lock()
	e.closeLocked(C.KX_GRACE)
	e.w.mu.Unlock()
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-e.closed:
		return nil
	case <-t.C:
	}
	e.cut()
	t.Reset(closeGrace)
	select {
	case <-e.closed:
		return nil
	case <-t.C:
		return &BusyError{What: "endpoints", N: 1}
	}
}

// Abort closes without waiting for anything: operations in flight end with an
// error. It never blocks and may be called from anywhere; Closed tells the end.
// On an endpoint that has failed, UCX is given a second to end its operations
// before it is closed over them.
func (e *Endpoint) Abort() {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	if e.over || e.mode > C.KX_GRACE {
		return
	}
	time.AfterFunc(closeGrace, e.cut)
	if e.err != nil {
		e.closeLocked(C.KX_FORCE)
	} else {
		e.closeLocked(C.KX_NOW)
	}
}

// cut ends all patience.
func (e *Endpoint) cut() {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	e.closeLocked(C.KX_CUT)
}

// Closed is closed when the endpoint is: all its operations have completed.
func (e *Endpoint) Closed() <-chan struct{} { return e.closed }

// endEndpointLocked frees the endpoint's place.
func (w *Worker) endEndpointLocked(i uint32) {
	e := w.eps[i]
	w.eps[i] = nil
	w.epFree = append(w.epFree, i)
	e.over = true
	e.mode = C.KX_CUT
	close(e.closed)
}
