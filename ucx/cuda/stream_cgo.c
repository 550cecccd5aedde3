//go:build linux && cgo && ucx

#include "driver_cgo.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

CUresult kvcr_stream(const kvcr_driver *d, uintptr_t ctx, uintptr_t *stream) {
	CUstream s = NULL;
	CUresult r = d->push((CUcontext)ctx);
	if (r) return r;
	r = kvcr_leave(d, d->streamCreate(&s, CU_STREAM_NON_BLOCKING));
	*stream = (uintptr_t)s;
	return r;
}

CUresult kvcr_destroy(const kvcr_driver *d, uintptr_t ctx, uintptr_t stream) {
	CUresult r = d->push((CUcontext)ctx);
	return r ? r : kvcr_leave(d, d->streamDestroy((CUstream)stream));
}

CUresult kvcr_query(const kvcr_driver *d, uintptr_t ctx, uintptr_t stream) {
	CUresult r = d->push((CUcontext)ctx);
	return r ? r : kvcr_leave(d, d->streamQuery((CUstream)stream));
}

CUresult kvcr_synchronize(const kvcr_driver *d, uintptr_t ctx, uintptr_t stream) {
	CUresult r = d->push((CUcontext)ctx);
	return r ? r : kvcr_leave(d, d->streamSynchronize((CUstream)stream));
}

/* Runs on a thread of the driver, and may call neither it nor Go. The list may
   be pushed on by several such threads; it is taken whole, so there is no ABA. */
static void notify(void *arg) {
	kvcr_note *note = arg;
	kvcr_board *b = note->board;
	int fd = b->fd; /* read first: after the push, the list may be taken and freed */
	kvcr_note *head = atomic_load_explicit(&b->head, memory_order_relaxed);
	do {
		note->next = head;
	} while (!atomic_compare_exchange_weak_explicit(&b->head, &head, note,
		memory_order_release, memory_order_relaxed));
	if (head == NULL) {
		uint64_t one = 1;
		while (write(fd, &one, sizeof one) < 0 && errno == EINTR) {}
	}
}

/* The notice goes on the stream whatever became of the copies: a call that was
   refused may have put some of its copies there. */
kvcr_issued kvcr_issue(const kvcr_driver *d, uintptr_t ctx, uintptr_t stream, int toHost, int batch,
	uint64_t *dst, uint64_t *src, size_t *size, size_t n, kvcr_note *note) {
	CUstream s = (CUstream)stream;
	CUcontext was;
	kvcr_issued out = {0, 0, 0};
	out.copy = d->push((CUcontext)ctx);
	if (out.copy) {
		out.announce = out.copy;
		return out;
	}
	if (batch) {
		CUmemcpyAttributes attrs = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
		size_t first = 0, failed = 0;
		out.copy = d->copyBatch(dst, src, size, n, &attrs, &first, 1, &failed, s);
		if (out.copy == CUDA_ERROR_INVALID_VALUE || out.copy == CUDA_ERROR_NOT_SUPPORTED) {
			/* Copying again what was copied does no harm. */
			out.batch = out.copy;
			batch = 0;
		}
	}
	if (!batch) {
		out.copy = 0;
		for (size_t i = 0; i < n && out.copy == 0; i++) {
			if (toHost)
				out.copy = d->toHost((void *)dst[i], src[i], size[i], s);
			else
				out.copy = d->toDevice(dst[i], (const void *)src[i], size[i], s);
		}
	}
	out.announce = d->launchHost(s, notify, note);
	d->pop(&was);
	return out;
}

kvcr_board *kvcr_board_open(uint32_t n, int *err) {
	kvcr_board *b = calloc(1, sizeof *b + n * sizeof(kvcr_note));
	if (b == NULL) {
		*err = ENOMEM;
		return NULL;
	}
	b->n = n;
	b->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (b->fd < 0) {
		*err = errno;
		free(b);
		return NULL;
	}
	for (uint32_t i = 0; i < n; i++) b->notes[i].board = b;
	return b;
}

kvcr_note *kvcr_board_note(kvcr_board *b, uint32_t i) { return &b->notes[i]; }

/* Takes what is there, at most len: the caller passes room for every notice. */
uint32_t kvcr_board_take(kvcr_board *b, uint32_t *out, uint32_t len) {
	uint32_t n = 0;
	kvcr_note *p = atomic_exchange_explicit(&b->head, NULL, memory_order_acquire);
	while (p != NULL && n < len) {
		/* The next is read first: a number given out again may be pushed anew. */
		kvcr_note *next = p->next;
		out[n++] = (uint32_t)(p - b->notes);
		p = next;
	}
	return n;
}

void kvcr_board_close(kvcr_board *b) {
	close(b->fd);
	free(b);
}
