//go:build linux && cgo && ucx

package ucx

/*
#include <stdlib.h>
#include "core.h"
*/
import "C"

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/internal/role"
)

const (
	// turnProgress bounds the calls of ucp_worker_progress in one crossing, so
	// that completions are not held back while data keeps coming. 8 to 128
	// measured the same.
	turnProgress = 32

	// vainTurns is how often a ready descriptor is believed; see backOff.
	vainTurns = 4

	// dispatchBatch completions are taken out under one hold of the lock.
	dispatchBatch = 64
)

// roleWorker is that of a worker's goroutine, in profiles.
var roleWorker = role.New("ucx")

// Worker drives operations. Its methods may be called from any goroutine.
type Worker struct {
	ctx  *Context
	opts WorkerOptions
	addr []byte
	c    *C.kx_worker // progress goroutine only
	file *os.File     // our own descriptor of the worker's event set
	raw  syscall.RawConn

	mu      sync.Mutex
	queue   []C.kx_cmd // commands not yet taken; no pointers to Go memory
	slots   []slot
	free    []uint32 // unused slots, a stack: what was used last is in cache
	eps     []*Endpoint
	epFree  []uint32
	asleep  bool // the progress goroutine waits, or is about to
	kicked  bool // it was woken through the deadline of file
	closing time.Time

	done chan struct{} // closed when the progress goroutine has ended

	// Progress goroutine only.
	spare []C.kx_cmd
	ended [dispatchBatch]ending
	looks int  // calls of look since it last went to wait
	slept bool // the last look found nothing to do
	vain  int  // waits in a row that found something to do when there was nothing
	look  func(fd uintptr) bool

	submitted, completed, failed, crossings, parks atomic.Uint64
}

// ending is a completion or a failure of an endpoint, to be told without a lock.
type ending struct {
	done func(Completion)
	c    Completion
	fail func(error)
}

// NewWorker makes a worker and starts its progress goroutine.
//
// Implements:
//
//	ucs_status_t ucp_worker_create(ucp_context_h context, const ucp_worker_params_t *params, ucp_worker_h *worker_p);
//	ucs_status_t ucp_worker_get_efd(ucp_worker_h worker, int *fd);
func (c *Context) NewWorker(o WorkerOptions) (*Worker, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	if c.ucp == nil {
		c.mu.Unlock()
		return nil, ErrClosed
	}
	c.workers++
	c.mu.Unlock()
	w := &Worker{ctx: c, opts: o, done: make(chan struct{})}
	if err := w.open(); err != nil {
		w.release()
		return nil, err
	}
	w.slots = make([]slot, o.MaxRequests)
	w.free = make([]uint32, o.MaxRequests)
	for i := range w.free {
		w.free[i] = uint32(o.MaxRequests - 1 - i)
	}
	w.eps = make([]*Endpoint, o.MaxEndpoints)
	w.epFree = make([]uint32, o.MaxEndpoints)
	for i := range w.epFree {
		w.epFree[i] = uint32(o.MaxEndpoints - 1 - i)
	}
	w.look = w.lookAt
	go roleWorker.Run(w.run)
	return w, nil
}

func (w *Worker) open() error {
	var status C.ucs_status_t
	w.c = C.kx_worker_open(w.ctx.ucp, C.uint32_t(w.opts.MaxRequests), C.uint32_t(w.opts.MaxEndpoints), &status)
	if w.c == nil {
		return statusError("ucp_worker_create", status)
	}
	err := w.openAddress()
	if err == nil {
		err = w.openFile()
	}
	if err != nil {
		C.kx_destroy(w.c)
		C.kx_worker_free(w.c)
	}
	return err
}

// openAddress keeps the worker's address as Go memory.
//
// Implements:
//
//	ucs_status_t ucp_worker_get_address(ucp_worker_h worker, ucp_address_t **address_p, size_t *address_length_p);
func (w *Worker) openAddress() error {
	var a *C.ucp_address_t
	var n C.size_t
	if err := statusError("ucp_worker_get_address", C.ucp_worker_get_address(w.c.ucp, &a, &n)); err != nil {
		return err
	}
	w.addr = sealBlob(blobAddress, C.GoBytes(unsafe.Pointer(a), C.int(n)))
	C.ucp_worker_release_address(w.c.ucp, a)
	return nil
}

// openFile gives Go's poller a descriptor of its own: UCX closes the other.
func (w *Worker) openFile() error {
	fd, err := unix.FcntlInt(uintptr(w.c.efd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return &OpError{Op: "dup", Err: err}
	}
	if err := unix.SetNonblock(fd, true); err != nil { // what makes os.NewFile use the poller
		unix.Close(fd)
		return &OpError{Op: "fcntl", Err: err}
	}
	w.file = os.NewFile(uintptr(fd), "ucx")
	if w.raw, err = w.file.SyscallConn(); err == nil {
		err = w.file.SetReadDeadline(time.Time{}) // fails where the poller did not take it
	}
	if err != nil {
		w.file.Close()
		return &OpError{Op: "poll", Err: err}
	}
	return nil
}

func (w *Worker) release() {
	w.ctx.mu.Lock()
	w.ctx.workers--
	w.ctx.mu.Unlock()
}

// Address is what a peer needs for Connect. The caller owns it.
func (w *Worker) Address() []byte { return append([]byte(nil), w.addr...) }

// wakeLocked gets the progress goroutine out of its wait. A deadline in the past
// does it without a system call.
func (w *Worker) wakeLocked() {
	if w.asleep && !w.kicked {
		w.kicked = true
		w.file.SetReadDeadline(time.Unix(1, 0))
	}
}

// run is the progress goroutine.
func (w *Worker) run() {
	defer close(w.done)
	defer w.release()
	var active time.Time // the last turn that did something; with Spin only
	for {
		w.mu.Lock()
		cmds := w.queue
		w.queue = w.spare[:0]
		closing, open := w.closing, len(w.slots)-len(w.free)+len(w.eps)-len(w.epFree)
		w.mu.Unlock()
		w.spare = cmds
		if !closing.IsZero() && len(cmds) == 0 && (open == 0 && w.c.ending == 3 || time.Now().After(closing)) {
			w.end()
			return
		}
		n := w.turn(cmds)
		if n > 0 {
			w.dispatch(int(n))
		}
		if n > 0 || len(cmds) > 0 || w.c.progressed > 0 {
			if w.opts.Spin > 0 {
				active = time.Now()
			}
			w.vain = 0
			continue
		}
		if w.opts.Spin > 0 && time.Since(active) < w.opts.Spin {
			runtime.Gosched()
			continue
		}
		w.wait()
	}
}

// turn is the one crossing into C that submits, progresses and collects.
func (w *Worker) turn(cmds []C.kx_cmd) C.uint32_t {
	w.crossings.Add(1)
	return C.kx_turn(w.c, unsafe.SliceData(cmds), C.uint32_t(len(cmds)), turnProgress)
}

// wait returns when UCX has something to progress, when a command has come, or
// when the time for closing is over.
func (w *Worker) wait() {
	w.mu.Lock()
	if len(w.queue) > 0 {
		w.mu.Unlock()
		return
	}
	w.asleep = true
	if !w.closing.IsZero() {
		w.file.SetReadDeadline(w.closing)
	}
	w.mu.Unlock()
	w.looks = 0
	w.raw.Read(w.look) // its error is a deadline: a wake
	if w.looks == 1 && !w.slept {
		w.backOff()
	}
	w.mu.Lock()
	w.asleep = false
	if w.kicked || !w.closing.IsZero() {
		w.kicked = false
		w.file.SetReadDeadline(time.Time{})
	}
	w.mu.Unlock()
}

// lookAt runs in the poller's loop: once before it waits, once for each edge.
// The poller forgets edges from before the first call, so arming belongs here.
func (w *Worker) lookAt(uintptr) bool {
	w.looks++
	if w.looks > 1 {
		return true
	}
	w.slept = C.kx_arm(w.c) == 1
	if !w.slept {
		return true
	}
	w.parks.Add(1)
	w.vain = 0
	return false
}

// backOff slows a loop that UCX makes spin: while a TCP connection is made, its
// descriptor stays ready although there is nothing to progress before UCX's own
// thread has done its part, which it cannot while we hold the processor.
func (w *Worker) backOff() {
	w.vain++
	if w.vain > vainTurns {
		time.Sleep(min(time.Duration(w.vain-vainTurns)*10*time.Microsecond, 200*time.Microsecond))
	}
}

// dispatch tells the n events of the last turn to whom they concern.
func (w *Worker) dispatch(n int) {
	events := unsafe.Slice(w.c.events, n)
	for len(events) > 0 {
		batch := events[:min(len(events), dispatchBatch)]
		events = events[len(batch):]
		told := 0
		w.mu.Lock()
		for i := range batch {
			ev, e := &batch[i], &w.ended[told]
			switch ev.kind {
			case C.KX_EV_DONE:
				w.endRequestLocked(uint32(ev.index), Status(ev.status), uint64(ev.bytes), e)
				told++
			case C.KX_EV_FAILED:
				ep := w.eps[ev.index]
				ep.err = Status(ev.status)
				if ep.onFail != nil {
					*e = ending{fail: ep.onFail, c: Completion{Err: ep.err}}
					told++
				}
			case C.KX_EV_CLOSED:
				w.endEndpointLocked(uint32(ev.index))
			}
		}
		w.mu.Unlock()
		w.tell(w.ended[:told])
	}
}

func (w *Worker) tell(ended []ending) {
	for i := range ended {
		e := &ended[i]
		if e.done != nil {
			e.done(e.c)
		} else {
			e.fail(e.c.Err)
		}
		*e = ending{} // holds nothing of the caller alive
	}
}

// end destroys UCX's worker and completes what it did not.
func (w *Worker) end() {
	C.kx_destroy(w.c)
	for i := range w.slots {
		w.mu.Lock()
		told := 0
		if w.slots[i].done != nil {
			w.endRequestLocked(uint32(i), StatusCanceled, 0, &w.ended[0])
			told = 1
		}
		w.mu.Unlock()
		w.tell(w.ended[:told])
	}
	w.mu.Lock()
	for i, ep := range w.eps {
		if ep != nil {
			w.endEndpointLocked(uint32(i))
		}
	}
	w.mu.Unlock()
	w.file.Close()
	C.kx_worker_free(w.c)
	w.c = nil
}

// Close ends the worker: receives are cancelled, endpoints closed over what they
// carry, and what UCX has not ended after patience is ended with UCX's worker.
// Every operation has completed when Close returns nil. It blocks, for patience
// and what a completion function takes; from such a function it cannot succeed
// and says so with a BusyError. Calling it again waits again.
func (w *Worker) Close(patience time.Duration) error {
	patience = max(patience, 0)
	w.mu.Lock()
	if w.closing.IsZero() {
		w.closing = time.Now().Add(patience)
		w.queue = append(w.queue, C.kx_cmd{kind: C.KX_SHUTDOWN})
		w.wakeLocked()
	}
	w.mu.Unlock()
	t := time.NewTimer(patience + closeGrace)
	defer t.Stop()
	select {
	case <-w.done:
		return nil
	case <-t.C:
		return &BusyError{What: "progress goroutines", N: 1}
	}
}

// Stats is a snapshot.
func (w *Worker) Stats() WorkerStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return WorkerStats{
		Submitted: w.submitted.Load(), Completed: w.completed.Load(), Failed: w.failed.Load(),
		Crossings: w.crossings.Load(), Parks: w.parks.Load(),
		InFlight: len(w.slots) - len(w.free), Endpoints: len(w.eps) - len(w.epFree),
	}
}
