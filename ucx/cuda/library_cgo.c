//go:build linux && cgo && ucx

#include "driver_cgo.h"

#include <dlfcn.h>
#include <stdio.h>

/* Returns 1 and fills d, or 0 and says why. The library is never closed: it has
   threads of its own by the time it is asked anything. */
int kvcr_open(kvcr_driver *d, const char *path, char *why, size_t len) {
	void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (h == NULL) {
		const char *e = dlerror();
		snprintf(why, len, "%s", e ? e : "unknown error");
		return 0;
	}
#define KVCR_LOAD(name, symbol, args) d->name = (CUresult(*) args)dlsym(h, #symbol);
#define KVCR_CHECK(name, symbol, args) \
	if (d->name == NULL) { \
		snprintf(why, len, "%s: no %s: the driver is too old or is not one", path, #symbol); \
		return 0; \
	}
	KVCR_NEEDED(KVCR_LOAD)
	KVCR_OPTIONAL(KVCR_LOAD)
	KVCR_NEEDED(KVCR_CHECK)
	return 1;
}

CUresult kvcr_version(const kvcr_driver *d, int *version) { return d->version(version); }

CUresult kvcr_init(const kvcr_driver *d, int *count) {
	CUresult r = d->init(0);
	return r ? r : d->count(count);
}

CUresult kvcr_device(const kvcr_driver *d, int ordinal, char *name, int len, size_t *total) {
	CUdevice dev;
	CUresult r = d->get(&dev, ordinal);
	if (r == 0) r = d->name(name, len, dev);
	if (r == 0) r = d->total(total, dev);
	return r;
}

CUresult kvcr_retain(const kvcr_driver *d, int ordinal, uintptr_t *ctx, int *hostPointers) {
	CUdevice dev;
	CUcontext c = NULL;
	CUresult r = d->get(&dev, ordinal);
	*hostPointers = 0;
	if (r == 0 && d->attribute(hostPointers, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, dev) != 0)
		*hostPointers = 0;
	if (r == 0) r = d->retain(&c, dev);
	*ctx = (uintptr_t)c;
	return r;
}

CUresult kvcr_release(const kvcr_driver *d, int ordinal) {
	CUdevice dev;
	CUresult r = d->get(&dev, ordinal);
	return r ? r : d->release(dev);
}

CUresult kvcr_active(const kvcr_driver *d, int ordinal, int *active) {
	CUdevice dev;
	unsigned flags;
	CUresult r = d->get(&dev, ordinal);
	return r ? r : d->state(dev, &flags, active);
}

void kvcr_error(const kvcr_driver *d, CUresult r, const char **name, const char **text) {
	*name = *text = NULL;
	if (d->errorName == NULL || d->errorName(r, name) != 0) *name = NULL;
	if (d->errorString == NULL || d->errorString(r, text) != 0) *text = NULL;
}
