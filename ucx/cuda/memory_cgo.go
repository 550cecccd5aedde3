//go:build linux && cgo && ucx

package cuda

// #include "driver_cgo.h"
import "C"

// Implements:
//
//	CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes,
//	                                void **data, CUdeviceptr ptr);
//
// For memory the driver does not know it succeeds and leaves all at zero.
func (l *library) pointer(ctx, addr uintptr) (PointerInfo, error) {
	var p C.kvcr_pointer
	r := C.kvcr_pointer_info(l.driver, C.uintptr_t(ctx), C.uintptr_t(addr), &p)
	if err := l.check("cuPointerGetAttributes", r); err != nil {
		return PointerInfo{}, err
	}
	i := PointerInfo{Device: int(p.device), Base: uintptr(p.base), Size: int64(p.size)}
	switch {
	case p.managed != 0: // its type says only where it is at the moment
		i.Type = Managed
	case p._type == C.CU_MEMORYTYPE_HOST:
		i.Type = Host
	case p._type == C.CU_MEMORYTYPE_DEVICE:
		i.Type = DeviceMemory
	default:
		return PointerInfo{}, nil
	}
	return i, nil
}

// Implements:
//
//	CUresult cuMemAlloc(CUdeviceptr *dptr, size_t bytesize);
func (l *library) alloc(ctx uintptr, size int64) (DevicePtr, error) {
	var p C.CUdeviceptr
	err := l.check("cuMemAlloc", C.kvcr_alloc(l.driver, C.uintptr_t(ctx), C.size_t(size), &p))
	return DevicePtr(p), err
}

// Implements:
//
//	CUresult cuMemFree(CUdeviceptr dptr);
func (l *library) free(ctx uintptr, p DevicePtr) error {
	return l.check("cuMemFree", C.kvcr_free(l.driver, C.uintptr_t(ctx), C.CUdeviceptr(p)))
}

// Implements:
//
//	CUresult cuMemHostRegister(void *p, size_t bytesize, unsigned int Flags);
func (l *library) register(ctx, addr uintptr, size int64) error {
	return l.check("cuMemHostRegister", C.kvcr_register(l.driver, C.uintptr_t(ctx), C.uintptr_t(addr), C.size_t(size)))
}

// Implements:
//
//	CUresult cuMemHostUnregister(void *p);
func (l *library) unregister(ctx, addr uintptr) error {
	return l.check("cuMemHostUnregister", C.kvcr_unregister(l.driver, C.uintptr_t(ctx), C.uintptr_t(addr)))
}
