package kvcr

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/internal/cells"
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/ucx/cuda"
)

// devices copies between our memory and that of GPUs.
//
// Payload memory is registered with the driver in the background, so that copies
// go straight from and to slots. What is not, or not yet, takes the ring: pinned
// memory of a fixed size that blocks pass through. The ring serves what comes from
// other nodes, too, and is registered with UCX beside the payload.
//
//	V1  A View is held, or a reservation or chunk kept, until the driver is through
//	    with the copy that names its memory.
//	V2  What a lost device may still write to (Unsettled) is never given back.
type devices struct {
	e    *Engine
	d    *cuda.Driver
	log  *slog.Logger
	ring []byte
	stop context.CancelFunc
	work sync.WaitGroup // registrations

	mu     sync.Mutex
	cells  *cells.Cells
	freed  chan struct{} // closed, and another made, when cells come free
	live   int           // copies under way
	queue  []waitingCopy // refused for the moment
	timer  bool
	closed bool
	gone   bool // all registrations are undone
}

type waitingCopy struct {
	cuda.Copy
	until time.Time
}

const (
	deviceCell = 64 << 10
	// defaultDeviceRing is the default of Config.DeviceStaging.
	defaultDeviceRing = 64 << 20
	// copySpans is the most spans of one batch.
	copySpans = 1024
	// copyPatience is how long a copy is offered to a driver that has too many.
	copyPatience = 10 * time.Second
)

// openDevices registers the ring, and begins to register payload memory.
func (e *Engine) openDevices() error {
	if e.cfg.CUDA == nil {
		return nil
	}
	size := e.cfg.DeviceStaging
	for _, ns := range e.list {
		if ns.payload.Placement().GoHeap {
			return &ConfigError{"CUDA", "set", "needs memory outside of Go's heap", "set Memory.Backing to memfd in race builds"}
		}
		size = max(size, 4*ns.maxBlock)
	}
	size = (size + deviceCell - 1) / deviceCell * deviceCell
	ring, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return fmt.Errorf("kvcr: open: %d bytes of device staging: %w", size, err)
	}
	_ = unix.Madvise(ring, unix.MADV_DONTFORK) // children must not share what devices write to
	ctx, stop := context.WithCancel(context.Background())
	g := &devices{e: e, d: e.cfg.CUDA, log: slog.New(slog.DiscardHandler), ring: ring, stop: stop, cells: cells.New(size / deviceCell), freed: make(chan struct{})}
	if e.cfg.Peers != nil && e.cfg.Peers.Logger != nil {
		g.log = e.cfg.Peers.Logger
	}
	if err := g.d.RegisterHost(ctx, ring, nil); err != nil {
		stop()
		_ = unix.Munmap(ring) // mapped whole
		return fmt.Errorf("kvcr: open: device staging: %w", err)
	}
	e.devices = g
	g.work.Add(1)
	go g.register(ctx)
	return nil
}

// register makes payload memory known to the driver, one namespace after another.
func (g *devices) register(ctx context.Context) {
	defer g.work.Done()
	for _, ns := range g.e.list {
		err := g.d.RegisterHost(ctx, ns.payload.Bytes(0, int(ns.payload.Size())), func(done, total int64) {
			g.log.Info("memory is being registered with the GPU driver", "namespace", ns.cfg.Name, "bytes", done, "of", total)
		})
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			g.log.Warn("copies between slots and GPUs take a detour", "namespace", ns.cfg.Name, "err", err)
			continue
		}
		ns.pinned.Store(true)
	}
}

// chunk is a part of the ring.
type deviceChunk struct {
	at, n int // cells
	b     []byte
}

// tryChunk returns a chunk of n bytes, if there is one; else a channel that is
// closed when it may be tried again.
func (g *devices) tryChunk(n int) (*deviceChunk, <-chan struct{}) {
	k := max(1, (n+deviceCell-1)/deviceCell)
	g.mu.Lock()
	defer g.mu.Unlock()
	at, ok := g.cells.Take(k)
	if !ok {
		return nil, g.freed
	}
	return &deviceChunk{at, k, g.ring[at*deviceCell:][:n:n]}, nil
}

func (g *devices) give(c *deviceChunk) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cells.Give(c.at, c.n)
	close(g.freed)
	g.freed = make(chan struct{})
}

// copy starts a copy, now or when the driver takes it. c.Done is called once,
// perhaps before copy returns.
func (g *devices) copy(c cuda.Copy) {
	done := c.Done
	c.Done = func(r cuda.Result) {
		done(r)
		g.ended()
	}
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		done(cuda.Result{Err: cuda.ErrClosed})
		return
	}
	g.live++
	g.mu.Unlock()
	g.submit(waitingCopy{c, time.Now().Add(copyPatience)})
}

func (g *devices) submit(w waitingCopy) {
	err := g.d.Submit(w.Copy)
	if err == nil {
		return
	}
	if errors.Is(err, cuda.ErrBusy) && time.Now().Before(w.until) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.queue = append(g.queue, w)
		if !g.timer {
			g.timer = true
			time.AfterFunc(time.Millisecond, g.again)
		}
		return
	}
	w.Done(cuda.Result{Err: err})
}

// again offers what the driver has refused, in order.
func (g *devices) again() {
	g.mu.Lock()
	queue := g.queue
	g.queue, g.timer = nil, false
	g.mu.Unlock()
	for _, w := range queue {
		g.submit(w)
	}
}

func (g *devices) ended() {
	g.mu.Lock()
	g.live--
	last := g.closed && g.live == 0
	g.mu.Unlock()
	if last {
		go g.e.settle() // not here: the driver waits for us
	}
}

// close lets no copy begin any more, and waits a while for those under way.
func (g *devices) close() {
	g.stop()
	g.work.Wait()
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		g.mu.Lock()
		idle := g.live == 0
		g.mu.Unlock()
		if idle {
			return
		}
	}
}

// release undoes the registrations and reports whether none is left: then memory
// may be unmapped. Call it after close, with no copy of ours under way.
func (g *devices) release() bool {
	if g == nil || g.gone {
		return true
	}
	for _, ns := range g.e.list {
		if ns.pinned.Load() {
			if err := g.d.Unregister(ns.payload.Bytes(0, int(ns.payload.Size()))); err != nil && !errors.Is(err, cuda.ErrClosed) {
				g.log.Error("memory stays registered with the GPU driver", "namespace", ns.cfg.Name, "err", err)
				return false
			}
			ns.pinned.Store(false)
		}
	}
	if err := g.d.Unregister(g.ring); err != nil && !errors.Is(err, cuda.ErrClosed) {
		g.log.Error("staging stays registered with the GPU driver", "err", err)
		return false
	}
	g.gone = true
	_ = unix.Munmap(g.ring) // mapped whole
	g.ring = nil
	return true
}

// unsettled reports whether a lost device may still write to memory.
func (g *devices) unsettled() bool { return g != nil && g.d.Stats().UnsettledBatches > 0 }

// batches collects spans for one direction, and starts them device by device.
type deviceBatches struct {
	dir cuda.Direction
	of  map[int]*deviceBatch
}

type deviceBatch struct {
	host [][]byte
	mem  []cuda.Span
	done []func(cuda.Result)
	full []*deviceBatch
}

// add appends the two sides of one block: its pieces in order, and as many bytes
// of a device. done is called with the result of the whole batch.
func (b *deviceBatches) add(host [][]byte, s peer.Span, done func(cuda.Result)) {
	if b.of == nil {
		b.of = map[int]*deviceBatch{}
	}
	d := b.of[s.Device]
	if d == nil {
		d = &deviceBatch{}
		b.of[s.Device] = d
	}
	at := s.Addr
	for _, p := range host {
		if len(p) > 0 {
			d.host = append(d.host, p)
			d.mem = append(d.mem, cuda.Span{Ptr: cuda.DevicePtr(at), Size: int64(len(p))})
			at += uintptr(len(p))
		}
	}
	d.done = append(d.done, done)
	if len(d.host) >= copySpans {
		d.full = append(d.full, &deviceBatch{host: d.host, mem: d.mem, done: d.done})
		d.host, d.mem, d.done = nil, nil, nil
	}
}

// start hands everything over.
func (b *deviceBatches) start(g *devices) {
	for device, d := range b.of {
		for _, x := range append(slices.Clone(d.full), d) {
			if len(x.done) == 0 {
				continue
			}
			finish := func(r cuda.Result) {
				for _, f := range x.done {
					f(r)
				}
			}
			if len(x.host) == 0 { // blocks of no bytes
				finish(cuda.Result{})
				continue
			}
			g.copy(cuda.Copy{Direction: b.dir, Device: device, Host: x.host, Mem: x.mem, Done: finish})
		}
	}
	b.of = nil
}

// reasonOfCopy says in an engine's words how a copy ended.
func reasonOfCopy(err error) Reason {
	switch {
	case err == nil:
		return ReasonOK
	case errors.Is(err, cuda.ErrClosed):
		return ReasonClosed
	case errors.Is(err, cuda.ErrMismatch), errors.Is(err, cuda.ErrNotKnown), errors.Is(err, cuda.ErrWrongDevice), errors.Is(err, cuda.ErrWrongType):
		return ReasonLayout
	case errors.Is(err, cuda.ErrBusy):
		return ReasonCapacity
	}
	return ReasonSource
}
