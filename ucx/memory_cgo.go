//go:build linux && cgo && ucx

package ucx

/*
#include <stdlib.h>
#include "core.h"
*/
import "C"

import (
	"sync/atomic"
	"unsafe"
)

// Memory is one registered region. Safe for use by many goroutines.
type Memory struct {
	ctx   *Context
	typ   MemoryType
	base  uintptr
	size  uint64
	parts []C.ucp_mem_h // one for each chunk of the context

	// uses counts operations in flight on the region; -1 once it is deregistered.
	uses atomic.Int64
}

// Register makes mem reachable by devices and, through its key, by peers. The
// caller must pass memory outside the Go heap that stays mapped until Deregister
// has returned nil. It blocks while pages are pinned: seconds for many gigabytes.
// progress, when not nil, is called on this goroutine with the bytes done after
// each gigabyte; returning false gives up with ErrClosed and undoes what was done.
func (c *Context) Register(mem []byte, progress func(done, total uint64) bool) (*Memory, error) {
	return c.RegisterAt(uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uint64(len(mem)), Host, progress)
}

// RegisterAt is Register for an address, which may be a device's.
//
// Implements:
//
//	ucs_status_t ucp_mem_map(ucp_context_h context, const ucp_mem_map_params_t *params, ucp_mem_h *memh_p);
func (c *Context) RegisterAt(addr uintptr, size uint64, t MemoryType, progress func(done, total uint64) bool) (*Memory, error) {
	if size == 0 || addr == 0 || uint64(addr)+size < uint64(addr) || size > 1<<62 {
		return nil, ErrInvalid
	}
	if !c.Supports(t) {
		return nil, &OpError{Op: "ucp_mem_map of " + t.String() + " memory", Err: StatusUnsupported}
	}
	if err := c.reserve(int64(size)); err != nil {
		return nil, err
	}
	m := &Memory{ctx: c, typ: t, base: addr, size: size}
	for done := uint64(0); done < size; {
		n := min(size-done, c.chunk)
		params := C.ucp_mem_map_params_t{
			field_mask: C.UCP_MEM_MAP_PARAM_FIELD_ADDRESS | C.UCP_MEM_MAP_PARAM_FIELD_LENGTH |
				C.UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
			length:      C.size_t(n),
			memory_type: C.ucs_memory_type_t(t),
		}
		// The address may be a device's: it goes in as a number.
		*(*uintptr)(unsafe.Pointer(&params.address)) = addr + uintptr(done)
		var h C.ucp_mem_h
		err := statusError("ucp_mem_map", C.ucp_mem_map(c.ucp, &params, &h))
		if err == nil {
			m.parts = append(m.parts, h)
			done += n
			if progress != nil && !progress(done, size) {
				err = ErrClosed
			}
		}
		if err != nil {
			m.uses.Store(-1)
			m.unmap()
			return nil, err
		}
	}
	return m, nil
}

// reserve counts a region before it is registered, so that concurrent calls
// cannot pass the caps together, and Close cannot pass a registration.
func (c *Context) reserve(size int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ucp == nil:
		return ErrClosed
	case c.regions >= c.limits.MaxRegions:
		return &LimitError{What: "regions", Limit: int64(c.limits.MaxRegions),
			Fix: "register larger regions, or raise Options.MaxRegions"}
	case size > c.limits.MaxRegisteredBytes-c.bytes:
		return &LimitError{What: "registered bytes", Limit: c.limits.MaxRegisteredBytes,
			Fix: "deregister what is unused, or raise Options.MaxRegisteredBytes"}
	}
	c.regions++
	c.bytes += size
	return nil
}

// unmap deregisters every part and gives back what reserve took. Caller: whoever
// set uses to -1.
func (m *Memory) unmap() {
	for _, h := range m.parts {
		C.ucp_mem_unmap(m.ctx.ucp, h)
	}
	m.parts = nil
	m.ctx.mu.Lock()
	m.ctx.regions--
	m.ctx.bytes -= int64(m.size)
	m.ctx.mu.Unlock()
}

// Deregister ends the registration and with it every key of the region: a peer's
// put fails at the device, or at this process where UCX emulates it. It refuses
// with a BusyError while operations of this process use the region. A region
// already deregistered gives nil.
//
// Where UCX emulates puts (tcp) nothing checks a key: the caller must have closed
// the worker, or have other proof that no peer writes, before it unmaps memory.
func (m *Memory) Deregister() error {
	if !m.uses.CompareAndSwap(0, -1) {
		if n := m.uses.Load(); n > 0 {
			return &BusyError{What: "operations", N: int(n)}
		} else if n == 0 {
			return m.Deregister() // the last operation ended in between
		}
		return nil
	}
	m.unmap()
	return nil
}

// Size is the region's length in bytes.
func (m *Memory) Size() uint64 { return m.size }

// OffsetOf returns where in the region b starts; ErrRange when it is not wholly
// inside.
func (m *Memory) OffsetOf(b []byte) (uint64, error) {
	off := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))) - m.base)
	if !m.holds(off, uint64(len(b))) {
		return 0, ErrRange
	}
	return off, nil
}

func (m *Memory) holds(off, n uint64) bool { return off <= m.size && n <= m.size-off }

// use keeps the region registered until unuse; false when it is not registered.
func (m *Memory) use() bool {
	for {
		n := m.uses.Load()
		if n < 0 {
			return false
		}
		if m.uses.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (m *Memory) unuse() { m.uses.Add(-1) }

// Key returns what a peer needs to write to the region, for Endpoint.Import. The
// caller owns it. Whoever has it may write to the whole region.
//
// Implements:
//
//	ucs_status_t ucp_rkey_pack(ucp_context_h context, ucp_mem_h memh, void **rkey_buffer_p, size_t *size_p);
func (m *Memory) Key() ([]byte, error) {
	if !m.ctx.limits.Puts {
		return nil, errNoPuts
	}
	if !m.use() {
		return nil, ErrClosed
	}
	defer m.unuse()
	parts := make([]keyPart, len(m.parts))
	for i, h := range m.parts {
		var buf unsafe.Pointer
		var size C.size_t
		if err := statusError("ucp_rkey_pack", C.ucp_rkey_pack(m.ctx.ucp, h, &buf, &size)); err != nil {
			return nil, err
		}
		off := uint64(i) * m.ctx.chunk
		parts[i] = keyPart{
			addr:   uint64(m.base) + off,
			length: min(m.size-off, m.ctx.chunk),
			rkey:   C.GoBytes(buf, C.int(size)),
		}
		C.ucp_rkey_buffer_release(buf)
	}
	return sealKey(m.typ, parts), nil
}
