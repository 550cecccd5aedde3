//go:build linux && cgo && ucx

#include "driver_cgo.h"

CUresult kvcr_pointer_info(const kvcr_driver *d, uintptr_t ctx, uintptr_t addr, kvcr_pointer *p) {
	int which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
		CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
		CU_POINTER_ATTRIBUTE_RANGE_SIZE};
	*p = (kvcr_pointer){0};
	void *into[] = {&p->type, &p->managed, &p->device, &p->base, &p->size};
	CUresult r = d->push((CUcontext)ctx);
	return r ? r : kvcr_leave(d, d->attributes(5, which, into, (CUdeviceptr)addr));
}

CUresult kvcr_alloc(const kvcr_driver *d, uintptr_t ctx, size_t size, CUdeviceptr *p) {
	CUresult r = d->push((CUcontext)ctx);
	return r ? r : kvcr_leave(d, d->alloc(p, size));
}

CUresult kvcr_free(const kvcr_driver *d, uintptr_t ctx, CUdeviceptr p) {
	CUresult r = d->push((CUcontext)ctx);
	return r ? r : kvcr_leave(d, d->free(p));
}

CUresult kvcr_register(const kvcr_driver *d, uintptr_t ctx, uintptr_t addr, size_t size) {
	CUresult r = d->push((CUcontext)ctx);
	return r ? r : kvcr_leave(d, d->hostRegister((void *)addr, size, CU_MEMHOSTREGISTER_PORTABLE));
}

CUresult kvcr_unregister(const kvcr_driver *d, uintptr_t ctx, uintptr_t addr) {
	CUresult r = d->push((CUcontext)ctx);
	return r ? r : kvcr_leave(d, d->hostUnregister((void *)addr));
}
