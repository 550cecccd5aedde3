//go:build linux && cgo && ucx

// The C half of a worker. Everything here runs on the goroutine that progresses
// the worker, and nothing here calls Go: callbacks of UCX append to `events`,
// which the caller of kx_turn reads before its next turn.
//
// No struct holds a Go pointer. Memory is named by address as a number.

#ifndef KVCR_UCX_CORE_H
#define KVCR_UCX_CORE_H

#include <stdint.h>
#include <ucp/api/ucp.h>

enum { // what a command does; the first four are the Kinds of ucx.go
    KX_PUT = 1,
    KX_SEND,
    KX_RECV,
    KX_FLUSH,
    KX_CANCEL,     // slot: a request
    KX_EP_OPEN,    // ptr: the peer's address, freed here
    KX_EP_CLOSE,   // arg: a close mode
    KX_KEY_OPEN,   // ptr: a kx_key
    KX_KEY_CLOSE,  // ptr: a kx_key, freed here or after its last operation
    KX_SHUTDOWN,   // receives are cancelled, endpoints closed over what they carry
};

enum { // close modes, each stronger than the one before
    KX_GRACE = 1,  // after the last operation, flushing
    KX_FORCE,      // after the last operation, without a word to the peer
    KX_NOW,        // as soon as it is connected; operations in flight end with an error
    KX_CUT,        // at once
};

enum { // events
    KX_EV_DONE = 1,   // index: a request
    KX_EV_FAILED,     // index: an endpoint; at most once in its life
    KX_EV_CLOSED,     // index: an endpoint; once in its life, the last of it
};

typedef struct kx_worker kx_worker;
typedef struct kx_ep     kx_ep;
typedef struct kx_key    kx_key;

typedef struct { // 48 bytes, filled by Go
    uint32_t kind;
    uint32_t slot;  // request
    uint32_t ep;
    uint32_t arg;   // memory type, or close mode
    uint64_t addr;  // local memory
    uint64_t len;
    uint64_t tag;   // tag, or remote address
    uint64_t ptr;   // C memory
} kx_cmd;

typedef struct {
    uint32_t kind;
    uint32_t index;
    int32_t  status;
    uint32_t reserved;
    uint64_t bytes;
} kx_event;

typedef struct { // one registration of the peer
    uint64_t    addr, len;
    void       *packed;  // freed once unpacked
    ucp_rkey_h  rkey;
} kx_part;

struct kx_key {
    kx_ep       *ep;
    kx_key      *next, **prev;
    uint32_t     refs;     // operations in flight
    uint32_t     closing;
    ucs_status_t status;   // of unpacking
    uint32_t     nparts;
    kx_part      part[];
};

// I1  events never overflows: a request is in it at most once between its start
//     and the turn after, an endpoint at most twice in its life, and Go reuses
//     neither slot before it has read what the slot produced.
typedef struct {
    kx_worker   *w;
    void        *ucp;      // not NULL: UCX will call back
    kx_ep       *ep;
    kx_key      *key;
    uint64_t     bytes;
    uint32_t     pending;  // parts of a put still open
    ucs_status_t status;   // first failure among them
} kx_req;

// I2  An endpoint is EV_CLOSED when UCX has closed it and its last operation has
//     ended: no request points into a slot that Go hands out again.
struct kx_ep {
    kx_worker   *w;
    ucp_ep_h     ep;        // NULL: never opened, or closed
    kx_key      *keys;
    kx_ep       *draining;  // next of the endpoints that are closing
    uint32_t     inflight;  // operations, and our own flush
    uint8_t      closing;   // a close mode, or 0
    uint8_t      wired;     // the peer has answered our hello
    uint8_t      flushed;   // our flush of closing: 1 started, 2 ended
    uint32_t     serial;    // of this life of the slot; what the hello carries
    uint8_t      leaving;   // ucp_ep_close_nbx was called
    uint8_t      failed;
    ucs_status_t status;    // why it failed
};

struct kx_worker {
    ucp_worker_h ucp;
    int          efd;
    uint32_t     nreq, nep;
    kx_req      *req;
    kx_ep       *ep;
    kx_event    *events;
    uint32_t     nevents, maxevents;
    uint32_t     progressed;  // by the last turn
    uint32_t     ending;      // shutdown: 1 asked for, 2 flushing, 3 flushed
    uint32_t     serial;      // of the endpoint made last
    kx_req      *starting;    // a receive whose call has not returned
    kx_ep       *draining;    // endpoints that are closing but not closed
};

kx_worker *kx_worker_open(ucp_context_h ctx, uint32_t nreq, uint32_t nep, ucs_status_t *status);
void kx_worker_free(kx_worker *w);
uint32_t kx_turn(kx_worker *w, const kx_cmd *cmd, uint32_t n, uint32_t max);
int kx_arm(kx_worker *w);
void kx_destroy(kx_worker *w);
void kx_hello(kx_ep *ep);
ucs_status_t kx_hello_listen(kx_worker *w);
kx_key *kx_key_alloc(uint32_t nparts);
void kx_key_set(kx_key *k, uint32_t i, uint64_t addr, uint64_t len, void *packed);
void kx_key_free(kx_key *k);

#endif
