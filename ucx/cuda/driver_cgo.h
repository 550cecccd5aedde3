/* The part of the CUDA driver API this package uses, with the values its
   reference documents: there are no CUDA headers at build time. The library is
   opened at run time, so its functions are a table of pointers.

   Handles cross to Go as uintptr_t, and addresses as numbers. Functions that
   need a context push it and pop it themselves: Go may run each call on another
   thread, and the context is a property of the thread. */
#ifndef KVCR_DRIVER_CGO_H
#define KVCR_DRIVER_CGO_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef void (*CUhostFn)(void *);

enum {
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_NOT_SUPPORTED = 801,

	CU_STREAM_NON_BLOCKING = 1,       /* not ordered with the legacy default stream */
	CU_MEMHOSTREGISTER_PORTABLE = 1,  /* known to all contexts */

	CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
	CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
	CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
	CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
	CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,

	CU_MEMORYTYPE_HOST = 1,
	CU_MEMORYTYPE_DEVICE = 2,

	CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91,

	CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1
};

typedef struct {
	int type, id;
} CUmemLocation;

typedef struct {
	int srcAccessOrder;
	CUmemLocation srcLocHint, dstLocHint; /* type 0: no hint */
	unsigned flags;
} CUmemcpyAttributes;

_Static_assert(sizeof(CUmemcpyAttributes) == 24, "layout of CUmemcpyAttributes");
_Static_assert(sizeof(size_t) == 8 && sizeof(void *) == 8, "64-bit only");

/* name, symbol, arguments; those of the second list may be missing. */
#define KVCR_NEEDED(X) \
	X(init, cuInit, (unsigned)) \
	X(version, cuDriverGetVersion, (int *)) \
	X(count, cuDeviceGetCount, (int *)) \
	X(get, cuDeviceGet, (CUdevice *, int)) \
	X(name, cuDeviceGetName, (char *, int, CUdevice)) \
	X(attribute, cuDeviceGetAttribute, (int *, int, CUdevice)) \
	X(total, cuDeviceTotalMem_v2, (size_t *, CUdevice)) \
	X(retain, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice)) \
	X(release, cuDevicePrimaryCtxRelease_v2, (CUdevice)) \
	X(state, cuDevicePrimaryCtxGetState, (CUdevice, unsigned *, int *)) \
	X(push, cuCtxPushCurrent_v2, (CUcontext)) \
	X(pop, cuCtxPopCurrent_v2, (CUcontext *)) \
	X(attributes, cuPointerGetAttributes, (unsigned, int *, void **, CUdeviceptr)) \
	X(alloc, cuMemAlloc_v2, (CUdeviceptr *, size_t)) \
	X(free, cuMemFree_v2, (CUdeviceptr)) \
	X(hostRegister, cuMemHostRegister_v2, (void *, size_t, unsigned)) \
	X(hostUnregister, cuMemHostUnregister, (void *)) \
	X(streamCreate, cuStreamCreate, (CUstream *, unsigned)) \
	X(streamDestroy, cuStreamDestroy_v2, (CUstream)) \
	X(streamQuery, cuStreamQuery, (CUstream)) \
	X(streamSynchronize, cuStreamSynchronize, (CUstream)) \
	X(toDevice, cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream)) \
	X(toHost, cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream)) \
	X(launchHost, cuLaunchHostFunc, (CUstream, CUhostFn, void *))
#define KVCR_OPTIONAL(X) \
	X(errorName, cuGetErrorName, (CUresult, const char **)) \
	X(errorString, cuGetErrorString, (CUresult, const char **)) \
	X(copyBatch, cuMemcpyBatchAsync, (CUdeviceptr *, CUdeviceptr *, size_t *, size_t, \
		CUmemcpyAttributes *, size_t *, size_t, size_t *, CUstream))

#define KVCR_FIELD(name, symbol, args) CUresult(*name) args;
typedef struct {
	KVCR_NEEDED(KVCR_FIELD)
	KVCR_OPTIONAL(KVCR_FIELD)
} kvcr_driver;
#undef KVCR_FIELD

/* Pops the context a call needed, and passes on what the call said. */
static inline CUresult kvcr_leave(const kvcr_driver *d, CUresult r) {
	CUcontext was;
	CUresult p = d->pop(&was);
	return r ? r : p;
}

/* Notices: a list that streams push on and Go takes whole. */
typedef struct kvcr_board kvcr_board;
typedef struct kvcr_note {
	struct kvcr_note *next;
	kvcr_board *board;
} kvcr_note;
struct kvcr_board {
	_Atomic(kvcr_note *) head;
	int fd; /* eventfd, rung when the list stops being empty */
	uint32_t n;
	kvcr_note notes[];
};

/* library_cgo.c */
int kvcr_open(kvcr_driver *d, const char *path, char *why, size_t len);
CUresult kvcr_device(const kvcr_driver *d, int ordinal, char *name, int len, size_t *total);
CUresult kvcr_retain(const kvcr_driver *d, int ordinal, uintptr_t *ctx, int *hostPointers);
CUresult kvcr_release(const kvcr_driver *d, int ordinal);
CUresult kvcr_active(const kvcr_driver *d, int ordinal, int *active);
CUresult kvcr_version(const kvcr_driver *d, int *version);
CUresult kvcr_init(const kvcr_driver *d, int *count);
void kvcr_error(const kvcr_driver *d, CUresult r, const char **name, const char **text);

/* memory_cgo.c */
typedef struct {
	unsigned type, managed;
	int device;
	CUdeviceptr base;
	size_t size;
} kvcr_pointer;
CUresult kvcr_pointer_info(const kvcr_driver *d, uintptr_t ctx, uintptr_t addr, kvcr_pointer *p);
CUresult kvcr_alloc(const kvcr_driver *d, uintptr_t ctx, size_t size, CUdeviceptr *p);
CUresult kvcr_free(const kvcr_driver *d, uintptr_t ctx, CUdeviceptr p);
CUresult kvcr_register(const kvcr_driver *d, uintptr_t ctx, uintptr_t addr, size_t size);
CUresult kvcr_unregister(const kvcr_driver *d, uintptr_t ctx, uintptr_t addr);

/* stream_cgo.c */
typedef struct {
	CUresult copy;     /* of the copies */
	CUresult batch;    /* of the call for many copies, when it was not usable */
	CUresult announce; /* of the notice */
} kvcr_issued;
CUresult kvcr_stream(const kvcr_driver *d, uintptr_t ctx, uintptr_t *stream);
CUresult kvcr_destroy(const kvcr_driver *d, uintptr_t ctx, uintptr_t stream);
CUresult kvcr_query(const kvcr_driver *d, uintptr_t ctx, uintptr_t stream);
CUresult kvcr_synchronize(const kvcr_driver *d, uintptr_t ctx, uintptr_t stream);
kvcr_issued kvcr_issue(const kvcr_driver *d, uintptr_t ctx, uintptr_t stream, int toHost, int batch,
	uint64_t *dst, uint64_t *src, size_t *size, size_t n, kvcr_note *note);
kvcr_board *kvcr_board_open(uint32_t n, int *err);
uint32_t kvcr_board_take(kvcr_board *b, uint32_t *out, uint32_t len);
void kvcr_board_close(kvcr_board *b);
kvcr_note *kvcr_board_note(kvcr_board *b, uint32_t i);

#endif
