/* A double of the CUDA driver library, for tests on machines without one.

   What it is strict about, because a real driver may not be and the mistake
   would show only now and then:
     - device memory is a PROT_NONE mapping: the processor faults on it. Copies
       use a second mapping of the same pages, which nobody else knows;
     - streams are threads, and each operation starts a little later;
     - calls need a context, their own device, live memory in one allocation,
       and host memory in one registration or in none;
     - giving back what an operation still needs is counted as a violation.

   Tests steer and watch it through a file both map (KVCR_CUDA_DOUBLE): an array
   of 64-bit words, below. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;

enum { /* words of the control file; double_test.go has the same list */
	W_ALLOCS, W_ALLOC_BYTES, W_REGISTRATIONS, W_STREAMS, W_CONTEXTS, /* live now */
	W_COPIES, W_BATCH_CALLS, W_HOST_CALLS, W_SYNCS, W_QUERIES,        /* ever */
	W_MAX_STREAMS,  /* the most streams with copies at one time */
	W_VIOLATIONS,
	/* Orders to the double. */
	W_DEVICES,      /* number of devices; 0 means 2 */
	W_FAIL_ALLOC,   /* the next n allocations are out of memory */
	W_FAIL_COPY,    /* code for a copy, once W_FAIL_AFTER more were taken */
	W_FAIL_AFTER,
	W_FAIL_REGISTER, /* the n-th registration from now is out of memory; 0 never */
	W_FAIL_HOST,    /* code for launching a host function */
	W_FAIL_BATCH,   /* code for batch calls */
	W_FAIL_STREAM,  /* the n-th stream creation from now is out of memory */
	W_STICKY,       /* code; streams of device W_STICKY_DEVICE stop and say it */
	W_STICKY_DEVICE,
	W_HOLD,         /* streams start nothing while this is set */
	W_DELAY,        /* most microseconds before an operation; 0 means 200 */
	W_FAIL_INIT,    /* code for cuInit */
	W_NO_HOST_POINTERS, /* registered memory has another address on the device */
	W_FOREIGN,      /* other users of each primary context */
	W_RESET,        /* the next cuInit forgets all memory of earlier tests */
	W_LINGER,       /* microseconds from what a host function does to its return */
	WORDS
};

#define MAX_DEVICES 8
#define MAX_RANGES 4096

typedef struct ctx {
	int device, retained;
	struct stream *streams;
} ctx;

typedef struct op {
	struct op *next;
	int kind; /* 0 copy, 1 host function */
	char *dst, *src;
	size_t size;
	uint64_t lo[2], hi[2]; /* what it touches: device range, host range */
	void (*fn)(void *);
	void *arg;
} op;

typedef struct stream {
	struct stream *next;
	ctx *ctx;
	pthread_t thread;
	op *first, **last;
	int stop;
} stream;

typedef struct {
	uint64_t base, size;
	char *hidden; /* device memory: the mapping copies use */
	int device;
} range;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint64_t private_words[WORDS];
static uint64_t *w = private_words;
static int initialised;
static ctx contexts[MAX_DEVICES];
static range allocs[MAX_RANGES], hosts[MAX_RANGES];
static int nallocs, nhosts;
static __thread ctx *stack[16];
static __thread int depth;

static uint64_t get(int i) { return __atomic_load_n(&w[i], __ATOMIC_SEQ_CST); }
static void put(int i, uint64_t v) { __atomic_store_n(&w[i], v, __ATOMIC_SEQ_CST); }
static uint64_t add(int i, int64_t d) { return __atomic_add_fetch(&w[i], (uint64_t)d, __ATOMIC_SEQ_CST); }
static int devices(void) { return get(W_DEVICES) ? (int)get(W_DEVICES) : 2; }

/* Counts down to the call that fails. */
static int falls(int i) {
	uint64_t n = get(i);
	if (n == 0) return 0;
	put(i, n - 1);
	return n == 1;
}

static ctx *current(void) { return depth ? stack[depth - 1] : NULL; }
static int sticky(ctx *c) {
	return c && (int)get(W_STICKY_DEVICE) == c->device ? (int)get(W_STICKY) : 0;
}
#define NEED_CONTEXT() \
	ctx *c = current(); \
	if (!initialised) return 3; \
	if (c == NULL || (c->retained == 0 && get(W_FOREIGN) == 0)) return 201; \
	if (sticky(c)) return sticky(c)

static range *find(range *r, int n, uint64_t at) {
	for (int i = 0; i < n; i++)
		if (at >= r[i].base && at < r[i].base + r[i].size) return &r[i];
	return NULL;
}
static int touches(range *r, int n, uint64_t at, uint64_t size) {
	for (int i = 0; i < n; i++)
		if (at < r[i].base + r[i].size && r[i].base < at + size) return 1;
	return 0;
}

/* Reports whether work that has not ended needs [lo, hi); with mu held. */
static int needed(int side, uint64_t lo, uint64_t hi) {
	for (int d = 0; d < MAX_DEVICES; d++)
		for (stream *s = contexts[d].streams; s; s = s->next)
			for (op *o = s->first; o; o = o->next)
				if (o->kind == 0 && o->lo[side] < hi && lo < o->hi[side]) return 1;
	return 0;
}

static void *run(void *arg) {
	stream *s = arg;
	unsigned seed = (unsigned)(uintptr_t)s;
	pthread_mutex_lock(&mu);
	for (;;) {
		/* Orders come without a signal: look again now and then. */
		if (s->first == NULL || get(W_HOLD) || sticky(s->ctx)) {
			if (s->stop && (s->first == NULL || sticky(s->ctx))) break;
			if (s->first == NULL) {
				pthread_cond_wait(&changed, &mu);
				continue;
			}
			pthread_mutex_unlock(&mu);
			usleep(200);
			pthread_mutex_lock(&mu);
			continue;
		}
		op *o = s->first;
		pthread_mutex_unlock(&mu);
		unsigned most = get(W_DELAY) ? (unsigned)get(W_DELAY) : 200;
		if (o->kind == 0 && rand_r(&seed) % 8 == 0) usleep(rand_r(&seed) % most);
		int dead = sticky(s->ctx);
		if (!dead && o->kind == 0) memcpy(o->dst, o->src, o->size);
		if (!dead && o->kind == 1) {
			o->fn(o->arg);
			usleep(get(W_LINGER));
		}
		pthread_mutex_lock(&mu);
		if (dead) continue;
		s->first = o->next;
		if (s->first == NULL) s->last = &s->first;
		free(o);
		pthread_cond_broadcast(&changed);
	}
	pthread_mutex_unlock(&mu);
	return NULL;
}

static void enqueue(stream *s, op *o) {
	o->next = NULL;
	*s->last = o;
	s->last = &o->next;
	uint64_t busy = 0;
	for (stream *t = s->ctx->streams; t; t = t->next) {
		/* A host function that has just rung may still be first. */
		op *p = t->first;
		while (p != NULL && p->kind != 0) p = p->next;
		busy += p != NULL;
	}
	if (busy > get(W_MAX_STREAMS)) put(W_MAX_STREAMS, busy);
	pthread_cond_broadcast(&changed);
}

/* With mu held. */
static CUresult drain(stream *s) {
	while (s->first != NULL) {
		if (sticky(s->ctx)) return sticky(s->ctx);
		pthread_mutex_unlock(&mu);
		usleep(100);
		pthread_mutex_lock(&mu);
	}
	return sticky(s->ctx);
}

CUresult cuDriverGetVersion(int *v) {
	*v = 12080;
	return 0;
}

CUresult cuInit(unsigned flags) {
	pthread_mutex_lock(&mu);
	const char *path = getenv("KVCR_CUDA_DOUBLE");
	if (!initialised && path != NULL) {
		int fd = open(path, O_RDWR | O_CLOEXEC);
		void *p = fd < 0 ? MAP_FAILED : mmap(NULL, WORDS * 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (fd >= 0) close(fd);
		if (p != MAP_FAILED) w = p;
	}
	CUresult r = flags ? 1 : (CUresult)get(W_FAIL_INIT);
	if (r == 0) {
		initialised = 1;
		for (int i = 0; i < MAX_DEVICES; i++) contexts[i].device = i;
		if (get(W_RESET)) nallocs = nhosts = 0;
		put(W_RESET, 0);
	}
	pthread_mutex_unlock(&mu);
	return r;
}

CUresult cuDeviceGetCount(int *n) {
	*n = devices();
	return initialised ? 0 : 3;
}
CUresult cuDeviceGet(CUdevice *d, int i) {
	if (!initialised) return 3;
	if (i < 0 || i >= devices()) return 101;
	*d = i;
	return 0;
}
CUresult cuDeviceGetName(char *name, int len, CUdevice d) {
	snprintf(name, len, "Double %d", d);
	return 0;
}
CUresult cuDeviceGetAttribute(int *v, int which, CUdevice d) {
	(void)d;
	*v = which == 91 ? !get(W_NO_HOST_POINTERS) : 0;
	return 0;
}
CUresult cuDeviceTotalMem_v2(size_t *n, CUdevice d) {
	*n = (size_t)(d + 1) << 30;
	return 0;
}

CUresult cuDevicePrimaryCtxRetain(ctx **c, CUdevice d) {
	*c = &contexts[d];
	if (sticky(*c)) return sticky(*c);
	pthread_mutex_lock(&mu);
	contexts[d].retained++;
	pthread_mutex_unlock(&mu);
	add(W_CONTEXTS, 1);
	return 0;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d) {
	pthread_mutex_lock(&mu);
	int ok = contexts[d].retained > 0;
	if (ok) contexts[d].retained--;
	pthread_mutex_unlock(&mu);
	if (!ok) return 201;
	add(W_CONTEXTS, -1);
	return 0;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice d, unsigned *flags, int *active) {
	*flags = 0;
	*active = contexts[d].retained > 0 || get(W_FOREIGN) > 0;
	return 0;
}
CUresult cuCtxPushCurrent_v2(ctx *c) {
	if (c == NULL || depth == 16) return 201;
	stack[depth++] = c;
	return 0;
}
CUresult cuCtxPopCurrent_v2(ctx **c) {
	if (depth == 0) return 201;
	*c = stack[--depth];
	return 0;
}

CUresult cuPointerGetAttributes(unsigned n, int *which, void **data, CUdeviceptr at) {
	NEED_CONTEXT();
	pthread_mutex_lock(&mu);
	range *a = find(allocs, nallocs, at), *h = find(hosts, nhosts, at), *r = a ? a : h;
	for (unsigned i = 0; i < n; i++) {
		switch (which[i]) {
		case 2: *(unsigned *)data[i] = a ? 2 : h ? 1 : 0; break;
		case 8: *(unsigned *)data[i] = 0; break;
		case 9: *(int *)data[i] = r ? r->device : -2; break;
		case 11: *(uint64_t *)data[i] = r ? r->base : 0; break;
		case 12: *(size_t *)data[i] = r ? r->size : 0; break;
		default: pthread_mutex_unlock(&mu); return 1;
		}
	}
	pthread_mutex_unlock(&mu);
	return 0;
}

CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t size) {
	NEED_CONTEXT();
	uint64_t n = get(W_FAIL_ALLOC);
	if (n) put(W_FAIL_ALLOC, n - 1);
	if (n || nallocs == MAX_RANGES || size > (size_t)(c->device + 1) << 30) return 2;
	size_t whole = (size + 4095) & ~(size_t)4095;
	int fd = memfd_create("device memory", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, whole) != 0) return 2;
	char *front = mmap(NULL, whole, PROT_NONE, MAP_SHARED, fd, 0);
	char *hidden = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (front == MAP_FAILED || hidden == MAP_FAILED) return 2;
	memset(hidden, 0xEE, whole); /* undefined, and not by chance what was hoped for */
	pthread_mutex_lock(&mu);
	allocs[nallocs++] = (range){(uint64_t)front, size, hidden, c->device};
	pthread_mutex_unlock(&mu);
	add(W_ALLOCS, 1);
	add(W_ALLOC_BYTES, size);
	*p = (uint64_t)front;
	return 0;
}

CUresult cuMemFree_v2(CUdeviceptr p) {
	NEED_CONTEXT();
	pthread_mutex_lock(&mu);
	range *r = find(allocs, nallocs, p);
	if (r == NULL || r->base != p || r->device != c->device) {
		pthread_mutex_unlock(&mu);
		return 1;
	}
	range gone = *r;
	if (needed(0, gone.base, gone.base + gone.size)) add(W_VIOLATIONS, 1);
	*r = allocs[--nallocs];
	size_t whole = (gone.size + 4095) & ~(size_t)4095;
	munmap((void *)gone.base, whole);
	munmap(gone.hidden, whole);
	pthread_mutex_unlock(&mu);
	add(W_ALLOCS, -1);
	add(W_ALLOC_BYTES, -(int64_t)gone.size);
	return 0;
}

CUresult cuMemHostRegister_v2(void *p, size_t size, unsigned flags) {
	NEED_CONTEXT();
	if (flags != 1 || size == 0) return 1;
	if (falls(W_FAIL_REGISTER)) return 2;
	pthread_mutex_lock(&mu);
	CUresult r = 0;
	if (touches(hosts, nhosts, (uint64_t)p, size)) r = 712;
	else if (nhosts == MAX_RANGES) r = 2;
	else hosts[nhosts++] = (range){(uint64_t)p, size, NULL, c->device};
	pthread_mutex_unlock(&mu);
	if (r == 0) add(W_REGISTRATIONS, 1);
	return r;
}

CUresult cuMemHostUnregister(void *p) {
	NEED_CONTEXT();
	pthread_mutex_lock(&mu);
	range *r = find(hosts, nhosts, (uint64_t)p);
	if (r == NULL || r->base != (uint64_t)p) {
		pthread_mutex_unlock(&mu);
		return 713;
	}
	if (needed(1, r->base, r->base + r->size)) add(W_VIOLATIONS, 1);
	*r = hosts[--nhosts];
	pthread_mutex_unlock(&mu);
	add(W_REGISTRATIONS, -1);
	return 0;
}

CUresult cuStreamCreate(stream **out, unsigned flags) {
	NEED_CONTEXT();
	if (flags != 1) return 1;
	if (falls(W_FAIL_STREAM)) return 2;
	stream *s = calloc(1, sizeof *s);
	s->ctx = c;
	s->last = &s->first;
	pthread_mutex_lock(&mu);
	s->next = c->streams;
	c->streams = s;
	pthread_mutex_unlock(&mu);
	if (pthread_create(&s->thread, NULL, run, s) != 0) return 2;
	add(W_STREAMS, 1);
	*out = s;
	return 0;
}

CUresult cuStreamDestroy_v2(stream *s) {
	ctx *c = s->ctx;
	if (current() != c) return 201;
	pthread_mutex_lock(&mu);
	if (s->first && !sticky(c)) add(W_VIOLATIONS, 1);
	s->stop = 1;
	pthread_cond_broadcast(&changed);
	for (stream **p = &c->streams; *p; p = &(*p)->next)
		if (*p == s) {
			*p = s->next;
			break;
		}
	pthread_mutex_unlock(&mu);
	pthread_join(s->thread, NULL);
	for (op *o = s->first, *next; o; o = next) {
		next = o->next;
		free(o);
	}
	free(s);
	add(W_STREAMS, -1);
	return sticky(c);
}

CUresult cuStreamQuery(stream *s) {
	NEED_CONTEXT();
	if (s->ctx != c) return 400;
	add(W_QUERIES, 1);
	pthread_mutex_lock(&mu);
	CUresult r = s->first ? 600 : 0;
	pthread_mutex_unlock(&mu);
	return r;
}

CUresult cuStreamSynchronize(stream *s) {
	NEED_CONTEXT();
	if (s->ctx != c) return 400;
	add(W_SYNCS, 1);
	pthread_mutex_lock(&mu);
	CUresult r = drain(s);
	pthread_mutex_unlock(&mu);
	return r;
}

static CUresult copy(int toHost, uint64_t dev, uint64_t host, size_t size, stream *s) {
	NEED_CONTEXT();
	if (s->ctx != c) return 400;
	uint64_t fail = get(W_FAIL_COPY);
	if (fail) {
		uint64_t after = get(W_FAIL_AFTER);
		if (after == 0) {
			put(W_FAIL_COPY, 0);
			return (CUresult)fail;
		}
		put(W_FAIL_AFTER, after - 1);
	}
	pthread_mutex_lock(&mu);
	range *a = find(allocs, nallocs, dev), *h = find(hosts, nhosts, host);
	CUresult r = 0;
	if (size == 0 || a == NULL || a->device != c->device || dev + size > a->base + a->size) r = 1;
	else if (h ? host + size > h->base + h->size : touches(hosts, nhosts, host, size)) r = 1;
	if (r == 0) {
		char *d = a->hidden + (dev - a->base);
		op *o = calloc(1, sizeof *o);
		*o = (op){.dst = toHost ? (char *)host : d, .src = toHost ? d : (char *)host, .size = size,
			.lo = {dev, host}, .hi = {dev + size, host + size}};
		enqueue(s, o);
		if (h == NULL) r = drain(s); /* pageable memory is copied within the call */
	}
	pthread_mutex_unlock(&mu);
	add(W_COPIES, 1);
	return r;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t n, stream *s) {
	return copy(0, dst, (uint64_t)src, n, s);
}
CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t n, stream *s) {
	return copy(1, src, (uint64_t)dst, n, s);
}

typedef struct {
	int order, hints[4];
	unsigned flags;
} attributes;
CUresult cuMemcpyBatchAsync(CUdeviceptr *dst, CUdeviceptr *src, size_t *size, size_t n,
	attributes *attrs, size_t *index, size_t nattrs, size_t *failed, stream *s) {
	NEED_CONTEXT();
	*failed = SIZE_MAX;
	if (get(W_FAIL_BATCH)) return (CUresult)get(W_FAIL_BATCH);
	if (nattrs != 1 || index[0] != 0 || attrs[0].order != 1 || attrs[0].flags || n == 0) return 1;
	add(W_BATCH_CALLS, 1);
	for (size_t i = 0; i < n; i++) {
		pthread_mutex_lock(&mu);
		int toHost = find(allocs, nallocs, src[i]) != NULL;
		pthread_mutex_unlock(&mu);
		CUresult r = copy(toHost, toHost ? src[i] : dst[i], toHost ? dst[i] : src[i], size[i], s);
		if (r) {
			*failed = i;
			return r;
		}
	}
	return 0;
}

CUresult cuLaunchHostFunc(stream *s, void (*fn)(void *), void *arg) {
	NEED_CONTEXT();
	if (s->ctx != c) return 400;
	if (get(W_FAIL_HOST)) return (CUresult)get(W_FAIL_HOST);
	add(W_HOST_CALLS, 1);
	op *o = calloc(1, sizeof *o);
	*o = (op){.kind = 1, .fn = fn, .arg = arg};
	pthread_mutex_lock(&mu);
	enqueue(s, o);
	pthread_mutex_unlock(&mu);
	return 0;
}

CUresult cuGetErrorName(CUresult r, const char **name) {
	switch (r) {
	case 1: *name = "CUDA_ERROR_INVALID_VALUE"; return 0;
	case 2: *name = "CUDA_ERROR_OUT_OF_MEMORY"; return 0;
	case 100: *name = "CUDA_ERROR_NO_DEVICE"; return 0;
	case 719: *name = "CUDA_ERROR_LAUNCH_FAILED"; return 0;
	}
	*name = "CUDA_ERROR_OTHER";
	return 0;
}
CUresult cuGetErrorString(CUresult r, const char **text) {
	(void)r;
	*text = "as the test ordered";
	return 0;
}
