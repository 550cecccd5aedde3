//go:build linux && cgo && ucx

#include "core.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>

static void event(kx_worker *w, uint32_t kind, uint32_t index, ucs_status_t status, uint64_t bytes) {
    kx_event *e = &w->events[w->nevents++];
    e->kind = kind;
    e->index = index;
    e->status = status;
    e->bytes = status == UCS_OK ? bytes : 0;
}

// Keys.

kx_key *kx_key_alloc(uint32_t nparts) {
    kx_key *k = calloc(1, sizeof(*k) + nparts * sizeof(kx_part));
    if (k != NULL) k->nparts = nparts;
    return k;
}

void kx_key_set(kx_key *k, uint32_t i, uint64_t addr, uint64_t len, void *packed) {
    k->part[i].addr = addr;
    k->part[i].len = len;
    k->part[i].packed = packed;
}

void kx_key_free(kx_key *k) {
    if (k->prev != NULL) {
        *k->prev = k->next;
        if (k->next != NULL) k->next->prev = k->prev;
    }
    for (uint32_t i = 0; i < k->nparts; i++) {
        if (k->part[i].rkey != NULL) ucp_rkey_destroy(k->part[i].rkey);
        free(k->part[i].packed);
    }
    free(k);
}

static void key_open(kx_key *k, kx_ep *ep) {
    k->ep = ep;
    k->next = ep->keys;
    k->prev = &ep->keys;
    if (k->next != NULL) k->next->prev = &k->next;
    ep->keys = k;
    if (ep->ep == NULL || ep->failed) {
        k->status = ep->status;
        return;
    }
    for (uint32_t i = 0; i < k->nparts && k->status == UCS_OK; i++) {
        k->status = ucp_ep_rkey_unpack(ep->ep, k->part[i].packed, &k->part[i].rkey);
        if (k->status != UCS_OK) k->part[i].rkey = NULL;
        free(k->part[i].packed);
        k->part[i].packed = NULL;
    }
}

static void key_close(kx_key *k) {
    k->closing = 1;
    if (k->refs == 0) kx_key_free(k);
}

static void keys_close(kx_ep *ep) {
    for (kx_key *k = ep->keys, *next; k != NULL; k = next) {
        next = k->next;
        key_close(k);
    }
}

// Endpoints.

static void ep_close_cb(void *request, ucs_status_t status, void *arg) {
    (void)status;
    ucp_request_free(request);
    ((kx_ep *)arg)->ep = NULL;
}

static void ep_flushed_cb(void *request, ucs_status_t status, void *arg) {
    (void)status;
    if (request != NULL) ucp_request_free(request);
    ((kx_ep *)arg)->inflight--;
    ((kx_ep *)arg)->flushed = 2;
}

static void ep_flush(kx_ep *ep) {
    ucp_request_param_t p = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = ep_flushed_cb,
        .user_data = ep,
    };
    ep->flushed = 1;
    ep->inflight++;
    if (!UCS_PTR_IS_PTR(ucp_ep_flush_nbx(ep->ep, &p))) ep_flushed_cb(NULL, UCS_OK, ep);
}

static void ep_failed_cb(void *arg, ucp_ep_h handle, ucs_status_t status) {
    kx_ep *ep = arg;
    (void)handle;
    if (ep->failed) return;
    ep->failed = 1;
    ep->status = status;
    event(ep->w, KX_EV_FAILED, ep - ep->w->ep, status, 0);
}

// Takes one step of a closing, never from within a callback of UCX; reports
// whether it was the last. Our own flush stands in for UCX's flushing close,
// which cannot be cut short. Keys go before their endpoint wherever operations
// have ended; under KX_NOW those in use go with the last of their operations.
static int ep_step(kx_ep *ep) {
    if (!ep->leaving) {
        if (ep->inflight > 0 && ep->closing < KX_NOW) return 0;
        if (!ep->wired && !ep->failed && ep->closing < KX_CUT) return 0;
        if (ep->closing == KX_GRACE && !ep->failed && ep->ep != NULL) {
            if (ep->flushed == 0) ep_flush(ep);
            if (ep->flushed != 2) return 0;
        }
        keys_close(ep);
        ep->leaving = 1;
        if (ep->ep != NULL) {
            ucp_request_param_t p = {
                .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
                .flags = UCP_EP_CLOSE_FLAG_FORCE,
                .cb.send = ep_close_cb,
                .user_data = ep,
            };
            if (!UCS_PTR_IS_PTR(ucp_ep_close_nbx(ep->ep, &p))) ep->ep = NULL;
        }
    }
    if (ep->ep != NULL || ep->inflight > 0) return 0;
    event(ep->w, KX_EV_CLOSED, ep - ep->w->ep, ep->status, 0);
    ep->w = NULL;
    return 1;
}

static void ep_close(kx_worker *w, kx_ep *ep, uint32_t mode) {
    if (ep->w == NULL) return;  // closed
    if (ep->closing == 0) {
        ep->draining = w->draining;
        w->draining = ep;
    }
    if (mode > ep->closing) ep->closing = mode;
}

static void ep_open(kx_worker *w, kx_ep *ep, void *address) {
    ep->w = w;
    ep->ep = NULL;
    ep->keys = NULL;
    ep->draining = NULL;
    ep->inflight = 0;
    ep->closing = ep->wired = ep->flushed = ep->leaving = ep->failed = 0;
    ep->status = UCS_OK;
    ep->serial = ++w->serial;
    ucp_ep_params_t p = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = ep_failed_cb, .arg = ep},
    };
    ucs_status_t s = ucp_ep_create(w->ucp, &p, &ep->ep);
    free(address);
    if (s != UCS_OK) {
        ep->ep = NULL;
        ep_failed_cb(ep, NULL, s);
        return;
    }
    kx_hello(ep);
}

// Operations.

static void req_end(kx_req *r, ucs_status_t status) {
    kx_worker *w = r->w;
    if (status != UCS_OK && r->status == UCS_OK) r->status = status;
    if (--r->pending > 0) return;
    kx_ep *ep = r->ep;
    kx_key *k = r->key;
    r->ep = NULL;
    r->key = NULL;
    r->ucp = NULL;
    event(w, KX_EV_DONE, r - w->req, r->status, r->bytes);
    if (k != NULL && --k->refs == 0 && k->closing) kx_key_free(k);
    if (ep != NULL) ep->inflight--;
}

// started takes what a non-blocking call of UCX returned: a request, or an end.
// Callbacks run only in ucp_worker_progress, so r is still ours here.
static void started(kx_req *r, ucs_status_ptr_t p) {
    if (UCS_PTR_IS_PTR(p)) r->ucp = p;
    else req_end(r, UCS_PTR_RAW_STATUS(p));
}

static void send_cb(void *request, ucs_status_t status, void *arg) {
    ucp_request_free(request);
    req_end(arg, status);
}

static void recv_cb(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *arg) {
    kx_req *r = arg;
    r->bytes = info->length;
    if (r == r->w->starting) {
        r->w->starting = NULL;
        r->status = status;
        return;
    }
    ucp_request_free(request);
    req_end(r, status);
}

// UCX 1.13 does not tell the length of a receive that ends within the call that
// starts it, so it is asked to use the callback even then. That callback comes
// before the call returns the request, hence `starting`.
static void recv_start(kx_req *r, const kx_cmd *c, ucp_request_param_t *p) {
    kx_worker *w = r->w;
    p->cb.recv = recv_cb;
    p->op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    w->starting = r;
    ucs_status_ptr_t s = ucp_tag_recv_nbx(w->ucp, (void *)(uintptr_t)c->addr, c->len, c->tag, ~(ucp_tag_t)0, p);
    if (w->starting == NULL) {
        ucp_request_free(s);
        s = NULL;
    }
    w->starting = NULL;
    started(r, s);
}

static void put(kx_req *r, const kx_cmd *c, ucp_request_param_t *p) {
    kx_key *k = (kx_key *)(uintptr_t)c->ptr;
    uint64_t addr = c->addr, remote = c->tag, left = c->len;
    if (k->status != UCS_OK) {
        req_end(r, k->status);
        return;
    }
    k->refs++;
    r->key = k;
    // One more than the parts, so that the last part cannot end the request
    // while parts are still to be started.
    for (uint32_t i = 0; i < k->nparts && left > 0; i++) {
        kx_part *part = &k->part[i];
        if (remote >= part->addr + part->len) continue;
        uint64_t n = part->addr + part->len - remote;
        if (n > left) n = left;
        r->pending++;
        started(r, ucp_put_nbx(r->ep->ep, (void *)(uintptr_t)addr, n, remote, part->rkey, p));
        addr += n;
        remote += n;
        left -= n;
    }
    req_end(r, left == 0 ? UCS_OK : UCS_ERR_OUT_OF_RANGE);
}

static void submit(kx_worker *w, const kx_cmd *c) {
    kx_req *r = &w->req[c->slot];
    kx_ep *ep = c->kind == KX_RECV ? NULL : &w->ep[c->ep];
    r->ucp = NULL;
    r->ep = ep;
    r->key = NULL;
    r->pending = 1;
    r->status = UCS_OK;
    r->bytes = c->len;
    if (ep != NULL) {
        ep->inflight++;
        if (ep->failed || ep->ep == NULL || ep->closing) {
            req_end(r, ep->status != UCS_OK ? ep->status : UCS_ERR_CANCELED);
            return;
        }
    }
    ucp_request_param_t p = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .cb.send = send_cb,
        .user_data = r,
        .memory_type = c->arg,
    };
    switch (c->kind) {
    case KX_PUT:
        put(r, c, &p);
        break;
    case KX_SEND:
        started(r, ucp_tag_send_nbx(ep->ep, (void *)(uintptr_t)c->addr, c->len, c->tag, &p));
        break;
    case KX_RECV:
        recv_start(r, c, &p);
        break;
    case KX_FLUSH:
        p.op_attr_mask &= ~(uint32_t)UCP_OP_ATTR_FIELD_MEMORY_TYPE;
        started(r, ucp_ep_flush_nbx(ep->ep, &p));
        break;
    }
}

static void shutdown_all(kx_worker *w) {
    for (uint32_t i = 0; i < w->nreq; i++) {
        kx_req *r = &w->req[i];
        if (r->ucp != NULL && r->ep == NULL) ucp_request_cancel(w->ucp, r->ucp);
    }
    for (uint32_t i = 0; i < w->nep; i++) ep_close(w, &w->ep[i], KX_NOW);
    w->ending = 1;
}

static void ending_cb(void *request, ucs_status_t status, void *arg) {
    (void)status;
    if (request != NULL) ucp_request_free(request);
    ((kx_worker *)arg)->ending = 3;
}

// Lets UCX's answers to those who connect to us leave before the worker does.
static void ending_flush(kx_worker *w) {
    ucp_request_param_t p = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = ending_cb,
        .user_data = w,
    };
    w->ending = 2;
    if (!UCS_PTR_IS_PTR(ucp_worker_flush_nbx(w->ucp, &p))) ending_cb(NULL, UCS_OK, w);
}

static void command(kx_worker *w, const kx_cmd *c) {
    void *ptr = (void *)(uintptr_t)c->ptr;
    switch (c->kind) {
    case KX_CANCEL:
        if (w->req[c->slot].ucp != NULL) ucp_request_cancel(w->ucp, w->req[c->slot].ucp);
        break;
    case KX_EP_OPEN:
        ep_open(w, &w->ep[c->ep], ptr);
        break;
    case KX_EP_CLOSE:
        ep_close(w, &w->ep[c->ep], c->arg);
        break;
    case KX_KEY_OPEN:
        key_open(ptr, &w->ep[c->ep]);
        break;
    case KX_KEY_CLOSE:
        key_close(ptr);
        break;
    case KX_SHUTDOWN:
        shutdown_all(w);
        break;
    default:
        submit(w, c);
    }
}

// Runs n commands and then progresses the worker until it has nothing to do, at
// most max times. Returns the number of events; they stay until the next turn.
uint32_t kx_turn(kx_worker *w, const kx_cmd *cmd, uint32_t n, uint32_t max) {
    w->nevents = 0;
    w->progressed = 0;
    for (uint32_t i = 0; i < n; i++) command(w, &cmd[i]);
    while (w->progressed < max && ucp_worker_progress(w->ucp) != 0) w->progressed++;
    for (kx_ep **p = &w->draining; *p != NULL;) {
        kx_ep *next = (*p)->draining;
        if (ep_step(*p)) *p = next;
        else p = &(*p)->draining;
    }
    if (w->ending == 1 && w->draining == NULL) ending_flush(w);
    return w->nevents;
}

// Arms the worker's descriptor. 1: the descriptor becomes readable with the next
// event. 0: there is something to progress now. Negative: a status.
//
// Some transports are level-triggered and arm with events pending, while Go's
// poller tells of edges only; so the descriptor is looked at once more.
int kx_arm(kx_worker *w) {
    ucs_status_t s = ucp_worker_arm(w->ucp);
    if (s == UCS_ERR_BUSY) return 0;
    if (s != UCS_OK) return s;
    struct pollfd p = {.fd = w->efd, .events = POLLIN};
    return poll(&p, 1, 0) == 0;
}

kx_worker *kx_worker_open(ucp_context_h ctx, uint32_t nreq, uint32_t nep, ucs_status_t *status) {
    *status = UCS_ERR_NO_MEMORY;
    kx_worker *w = calloc(1, sizeof(*w));
    if (w == NULL) return NULL;
    w->nreq = nreq;
    w->nep = nep;
    w->maxevents = nreq + 2 * nep;
    w->req = calloc(nreq, sizeof(*w->req));
    w->ep = calloc(nep, sizeof(*w->ep));
    w->events = calloc(w->maxevents, sizeof(*w->events));
    if (w->req == NULL || w->ep == NULL || w->events == NULL) {
        kx_worker_free(w);
        return NULL;
    }
    for (uint32_t i = 0; i < nreq; i++) w->req[i].w = w;
    ucp_worker_params_t p = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
    };
    *status = ucp_worker_create(ctx, &p, &w->ucp);
    if (*status == UCS_OK) {
        *status = ucp_worker_get_efd(w->ucp, &w->efd);
        if (*status == UCS_OK) *status = kx_hello_listen(w);
        if (*status == UCS_OK) return w;
        ucp_worker_destroy(w->ucp);
    }
    kx_worker_free(w);
    return NULL;
}

void kx_worker_free(kx_worker *w) {
    free(w->req);
    free(w->ep);
    free(w->events);
    free(w);
}

// Ends UCX's worker. Requests and endpoints that have not ended by now produce
// no more events: UCX drops them, and touches their memory no more.
void kx_destroy(kx_worker *w) {
    for (uint32_t i = 0; i < w->nreq; i++) w->req[i].key = NULL;
    for (uint32_t i = 0; i < w->nep; i++) {
        for (kx_key *k = w->ep[i].keys, *next; k != NULL; k = next) {
            next = k->next;
            kx_key_free(k);
        }
    }
    w->nevents = 0;
    ucp_worker_destroy(w->ucp);
    w->nevents = 0;
}
