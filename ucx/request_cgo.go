//go:build linux && cgo && ucx

package ucx

/*
#include "core.h"
*/
import "C"

import "fmt"

// slot is one operation in flight, or none (done == nil). Guarded by Worker.mu.
type slot struct {
	gen      uint32 // of the last operation
	kind     Kind
	canceled bool // a cancel was queued; at most one is, which bounds the queue
	user     uint64
	done     func(Completion)
	mem      *Memory
}

func request(gen, index uint32) Request { return Request(gen)<<32 | Request(index) }

// Submit hands operations over, in order, in one crossing into C. It never blocks
// and copies ops. n operations were accepted and will each complete once; err
// says why the next one was not: a LimitError (wait for completions), ErrClosed,
// ErrRange or ErrInvalid. reqs is nil, or takes the Request of each.
//
// An operation on an endpoint that has failed is accepted, and completes with
// the reason.
func (w *Worker) Submit(ops []Op, reqs []Request) (n int, err error) {
	if reqs != nil && len(reqs) < len(ops) {
		return 0, ErrInvalid
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for n = range ops {
		r, err := w.submitLocked(&ops[n])
		if err != nil {
			w.wakeLocked()
			return n, err
		}
		if reqs != nil {
			reqs[n] = r
		}
	}
	w.wakeLocked()
	return len(ops), nil
}

// Start is Submit for one operation.
func (w *Worker) Start(op Op) (Request, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, err := w.submitLocked(&op)
	w.wakeLocked()
	return r, err
}

func (w *Worker) submitLocked(op *Op) (Request, error) {
	if !w.closing.IsZero() {
		return 0, ErrClosed
	}
	cmd, err := w.checkLocked(op)
	if err != nil {
		return 0, err
	}
	if len(w.free) == 0 {
		return 0, &LimitError{What: "requests in flight", Limit: int64(len(w.slots)),
			Fix: "wait for completions, or raise WorkerOptions.MaxRequests"}
	}
	if op.Mem != nil && !op.Mem.use() {
		return 0, ErrClosed
	}
	i := w.free[len(w.free)-1]
	w.free = w.free[:len(w.free)-1]
	s := &w.slots[i]
	s.gen++
	if s.gen == 0 {
		s.gen = 1 // the zero Request names nothing
	}
	s.kind, s.canceled, s.user, s.done, s.mem = op.Kind, false, op.User, op.Done, op.Mem
	cmd.slot = C.uint32_t(i)
	w.queue = append(w.queue, cmd)
	w.submitted.Add(1)
	return request(s.gen, i), nil
}

// checkLocked turns an operation into a command, or says why it can never work.
func (w *Worker) checkLocked(op *Op) (C.kx_cmd, error) {
	cmd := C.kx_cmd{kind: C.uint32_t(op.Kind), len: C.uint64_t(op.Len), tag: C.uint64_t(op.Tag)}
	if op.Done == nil || op.Kind < OpPut || op.Kind > OpFlush {
		return cmd, fmt.Errorf("%w: %v without a completion function, or no kind of operation", ErrInvalid, op.Kind)
	}
	if (op.Mem != nil) != (op.Kind != OpFlush) || (op.Endpoint != nil) != (op.Kind != OpRecv) || (op.Key != nil) != (op.Kind == OpPut) {
		return cmd, fmt.Errorf("%w: %v with the wrong choice of Mem, Endpoint and Key", ErrInvalid, op.Kind)
	}
	if op.Kind == OpPut && !w.ctx.limits.Puts {
		return cmd, errNoPuts
	}
	if m := op.Mem; m != nil {
		if m.ctx != w.ctx {
			return cmd, fmt.Errorf("%w: memory of another context", ErrInvalid)
		}
		if !m.holds(op.Off, op.Len) || op.Len == 0 {
			return cmd, fmt.Errorf("%w: %d bytes at %d of %d", ErrRange, op.Len, op.Off, m.size)
		}
		cmd.addr, cmd.arg = C.uint64_t(uint64(m.base)+op.Off), C.uint32_t(m.typ)
	}
	if ep := op.Endpoint; ep != nil {
		if ep.w != w {
			return cmd, fmt.Errorf("%w: endpoint of another worker", ErrInvalid)
		}
		if ep.mode != 0 {
			return cmd, ErrClosed
		}
		cmd.ep = C.uint32_t(ep.index)
	}
	if k := op.Key; k != nil {
		switch {
		case k.ep != op.Endpoint:
			return cmd, fmt.Errorf("%w: key of another endpoint", ErrInvalid)
		case k.c == 0:
			return cmd, ErrClosed
		case op.RemoteOff > k.size || op.Len > k.size-op.RemoteOff:
			return cmd, fmt.Errorf("%w: %d bytes at %d of the peer's %d", ErrRange, op.Len, op.RemoteOff, k.size)
		}
		cmd.tag, cmd.ptr = C.uint64_t(k.base+op.RemoteOff), k.c
	}
	return cmd, nil
}

// Cancel asks UCX to end a posted receive; puts, sends and flushes end with their
// endpoint instead. It never blocks. The receive's completion says how it ended:
// StatusCanceled, or nil where the message won. A receive whose message has
// begun to arrive is not cancelled. Cancel of what has completed does nothing.
func (w *Worker) Cancel(r Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := uint32(r)
	if uint64(i) >= uint64(len(w.slots)) {
		return
	}
	s := &w.slots[i]
	if s.done == nil || s.gen != uint32(r>>32) || s.kind != OpRecv || s.canceled {
		return
	}
	s.canceled = true
	w.queue = append(w.queue, C.kx_cmd{kind: C.KX_CANCEL, slot: C.uint32_t(i)})
	w.wakeLocked()
}

// endRequestLocked frees a slot and leaves in e what is to be told.
func (w *Worker) endRequestLocked(i uint32, status Status, bytes uint64, e *ending) {
	s := &w.slots[i]
	*e = ending{done: s.done, c: Completion{Request: request(s.gen, i), Kind: s.kind, User: s.user, Bytes: bytes}}
	if status != 0 {
		e.c.Err = status
		w.failed.Add(1)
	}
	w.completed.Add(1)
	if s.mem != nil {
		s.mem.unuse()
	}
	s.done, s.mem = nil, nil
	w.free = append(w.free, i)
}
