//go:build linux && cgo && ucx

#include "core.h"

#include <stdlib.h>
#include <string.h>

// Hello. UCX 1.13 built with assertions (Debian's is) aborts the process of a
// peer that is still answering a connection when the connecting side goes away
// (openucx/ucx pull request 8175). So an endpoint says hello, and is not closed
// before the peer has answered: the answer travels behind UCX's own.

enum { AM_HELLO = 0, AM_ANSWER = 1 };

typedef struct {
    uint32_t index, serial;  // means something to the one who said hello only
} hello;

static void hello_sent_cb(void *request, ucs_status_t status, void *arg) {
    (void)status;
    ucp_request_free(request);
    free(arg);
}

static void hello_send(ucp_ep_h ep, unsigned id, uint32_t flags, hello h) {
    hello *copy = malloc(sizeof(h));
    if (copy == NULL) return;
    *copy = h;
    ucp_request_param_t p = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = flags,
        .cb.send = hello_sent_cb,
        .user_data = copy,
    };
    if (!UCS_PTR_IS_PTR(ucp_am_send_nbx(ep, id, copy, sizeof(h), NULL, 0, &p))) free(copy);
}

static ucs_status_t hello_cb(void *arg, const void *header, size_t n, void *data, size_t length,
                             const ucp_am_recv_param_t *p) {
    (void)arg, (void)data, (void)length;
    hello h;
    if (n != sizeof(h) || !(p->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP)) return UCS_OK;
    memcpy(&h, header, sizeof(h));
    hello_send(p->reply_ep, AM_ANSWER, 0, h);
    return UCS_OK;
}

static ucs_status_t answer_cb(void *arg, const void *header, size_t n, void *data, size_t length,
                              const ucp_am_recv_param_t *p) {
    (void)data, (void)length, (void)p;
    kx_worker *w = arg;
    hello h;
    if (n != sizeof(h)) return UCS_OK;
    memcpy(&h, header, sizeof(h));
    if (h.index < w->nep && w->ep[h.index].serial == h.serial) w->ep[h.index].wired = 1;
    return UCS_OK;
}

static ucs_status_t hello_listen(kx_worker *w, unsigned id, ucp_am_recv_callback_t cb) {
    ucp_am_handler_param_t p = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = id,
        .cb = cb,
        .arg = w,
    };
    return ucp_worker_set_am_recv_handler(w->ucp, &p);
}

void kx_hello(kx_ep *ep) {
    hello h = {.index = ep - ep->w->ep, .serial = ep->serial};
    hello_send(ep->ep, AM_HELLO, UCP_AM_SEND_FLAG_REPLY, h);
}

ucs_status_t kx_hello_listen(kx_worker *w) {
    ucs_status_t s = hello_listen(w, AM_HELLO, hello_cb);
    return s == UCS_OK ? hello_listen(w, AM_ANSWER, answer_cb) : s;
}
