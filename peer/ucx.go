package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcr-go/kvcr/ucx"
	"github.com/kvcr-go/kvcr/ucx/cuda"
	"github.com/kvcr-go/kvcr/wire"
)

// UCX is route ucx: the destination posts receives into registered memory, and
// tells their tags in Accept; the source sends to them. Without the build tag ucx
// OpenUCX returns ucx.ErrNotBuilt.
//
//	U1  A tag is given out once in the life of a worker, and to one message. A
//	    source knows a tag only by the Accept that follows its Post, so it never
//	    sends for what was not posted; and what it sends late, after the receive
//	    was cancelled, matches no other receive. It is received into memory that
//	    nobody reads (drains), so that nothing of it stays with UCX.
//	U2  Memory belongs to UCX until the completion of the receive or send that
//	    names it. Where that does not come in time the worker is closed, all
//	    sessions with it, and another one opened: no completion can be missing
//	    then, and nothing of the old worker can touch memory any more.
//	U3  The progress goroutine neither copies, nor sums up, nor runs machines: it
//	    leaves that to a crew of at most as many goroutines as processors.
//	U4  Memory that is not registered is reached through staging: registered
//	    chunks, of one ring for what comes in and one for what goes out. A session
//	    never has more than a quarter of a ring. Memory of devices that UCX knows
//	    (ucx_device.go) is received into, and sent from, where it lies.
type UCX struct {
	cfg  UCXConfig
	log  *slog.Logger
	ctx  *ucx.Context
	crew crew
	in   *staging
	out  *staging
	// drain takes what nobody wants; probe is what a source sends first.
	drain, probe *ucx.Memory
	scratch      []byte // behind both
	pinned       bool   // the GPU driver knows the ring for what goes out

	nextTag atomic.Uint64
	drains  atomic.Int64
	ready   atomic.Bool
	done    atomic.Int64 // bytes registered
	total   int64
	regions atomic.Pointer[[]*ucx.Memory]
	devices deviceTable
	sums    atomic.Int64 // checksums of memory on devices under way; none begins once closed

	stop chan struct{} // closed by Close
	work sync.WaitGroup

	mu     sync.Mutex
	life   *ucxLife // nil: closed, or between two lives
	failed error    // of the registration
	closed bool
	err    error // what Close said
}

// UCXConfig describes route ucx. The zero UCXConfig is valid; every zero field
// means the default its comment names.
type UCXConfig struct {
	// UCX is passed on: transports, devices, settings.
	UCX ucx.Options
	// Spin is how long the progress goroutine polls before it waits. Default 0.
	Spin time.Duration
	// Staging is the bytes of each of the two staging rings, at least four
	// messages (4 MiB). Default 32 MiB.
	Staging int
	// Memory is what slots and claims lie in. It is registered in the background;
	// until that is done peers are not offered the route. It must lie outside of
	// the Go heap, and stay mapped until Close has returned nil.
	Memory [][]byte
	// CUDA reads memory of GPUs that a framework lends; it must know that memory.
	// It must not be closed before the route. nil: such blocks are not sent.
	CUDA *cuda.Driver
	// Regions are where device memory is registered for Direct, and Direct how.
	// Without CUDA or Regions it is off.
	Regions []*Regions
	Direct  Direct
	// DirectUnverified leaves out the checksums of blocks that arrive in device
	// memory. By default each that was offered with one is copied back through
	// staging, and summed up there, before the block counts as arrived.
	DirectUnverified bool
	// OnRegistered, when not nil, hears of the progress: after each gigabyte, and
	// at the end, with an error if it failed.
	OnRegistered func(done, total int64, err error)
	// Logger; default discards.
	Logger *slog.Logger
}

const (
	// messageMost is the most bytes of one message. It is part of the protocol.
	messageMost = 1 << 20
	// ucxRequests bounds operations in flight of the node, drains among them.
	ucxRequests = 16384
	// ucxPosted bounds the receives of one session that UCX has, ucxWindow and
	// ucxWindowBytes its sends.
	ucxPosted      = 256
	ucxWindow      = 64
	ucxWindowBytes = 32 << 20
	// maxDrains bounds receives for what nobody wants; beyond it, such a message
	// stays with UCX until the worker is closed.
	maxDrains = 4096
	// drainLinger is how long after an operation's end its late messages are
	// waited for. A small one may have left, and its operation have ended, before
	// it arrives.
	drainLinger = 2 * time.Second
	// closeGrace is what a cancelled receive, or the operations of an endpoint that
	// was aborted, get before the means get stronger. See U2.
	closeGrace = 2 * time.Second

	probeTag  = 1 << 63
	probeSize = 8
)

// OpenUCX opens UCX and a worker, which takes some milliseconds, and begins to
// register memory. The caller must Close it; a Node that has it does.
func OpenUCX(cfg UCXConfig) (*UCX, error) {
	if cfg.Staging == 0 {
		cfg.Staging = 32 << 20
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Staging < 4*messageMost {
		return nil, &ConfigError{"Staging", cfg.Staging, fmt.Sprintf("use at least %d bytes", 4*messageMost)}
	}
	if cfg.UCX.MaxRegions == 0 {
		cfg.UCX.MaxRegions = len(cfg.Memory) + 4 + deviceRegions
	}
	u := &UCX{cfg: cfg, log: cfg.Logger, stop: make(chan struct{})}
	u.nextTag.Store(rand.Uint64() >> 2) // so that lives of one address differ
	for _, m := range cfg.Memory {
		u.total += int64(len(m))
	}
	var err error
	if u.ctx, err = ucx.Open(cfg.UCX); err != nil {
		return nil, err
	}
	if err = u.openScratch(); err == nil {
		u.life, err = u.newLife()
	}
	if err != nil {
		return nil, errors.Join(err, u.Close())
	}
	u.openDirect()
	u.work.Add(1)
	go roleWork.Run(u.register)
	return u, nil
}

func (u *UCX) openScratch() (err error) {
	if u.scratch, err = mapStaging(messageMost + stageUnit); err != nil {
		return err
	}
	if u.drain, err = u.ctx.Register(u.scratch[:messageMost], nil); err != nil {
		return err
	}
	if u.probe, err = u.ctx.Register(u.scratch[messageMost:], nil); err != nil {
		return err
	}
	if u.in, err = u.newStaging(u.cfg.Staging); err != nil {
		return err
	}
	if u.out, err = u.newStaging(u.cfg.Staging); err == nil && u.cfg.CUDA != nil {
		err = u.cfg.CUDA.RegisterHost(context.Background(), u.out.bytes, nil)
		u.pinned = err == nil
	}
	return err
}

// register makes the memory known to UCX. Close ends it between two gigabytes.
func (u *UCX) register() {
	defer u.work.Done()
	var list []*ucx.Memory
	var err error
	tell := u.cfg.OnRegistered
	for _, mem := range u.cfg.Memory {
		before := u.done.Load()
		var m *ucx.Memory
		m, err = u.ctx.Register(mem, func(done, _ uint64) bool {
			u.done.Store(before + int64(done))
			if tell != nil {
				tell(u.done.Load(), u.total, nil)
			}
			select {
			case <-u.stop:
				return false
			default:
				return true
			}
		})
		if err != nil {
			err = fmt.Errorf("peer: registering %d of %d bytes with UCX: %w", len(mem), u.total, err)
			break
		}
		list = append(list, m)
	}
	u.regions.Store(&list)
	u.mu.Lock()
	u.failed = err
	closed := u.closed
	u.ready.Store(err == nil && !closed)
	u.mu.Unlock()
	if err != nil && !closed {
		u.log.Warn("route ucx is not offered", "err", err)
	}
	if tell != nil && !closed {
		tell(u.done.Load(), u.total, err)
	}
}

// Registered is how much of the memory is registered, of how much, and why no more
// will be.
func (u *UCX) Registered() (done, total int64, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.done.Load(), u.total, u.failed
}

// UCX is the node's route ucx, nil when it has none.
func (n *Node) UCX() *UCX {
	u, _ := n.cfg.UCX.(*UCX)
	return u
}

// Settings lists what was chosen for UCX, with its source.
func (u *UCX) Settings() []ucx.Setting { return u.ctx.Settings() }

// Kind is wire.RouteUCX.
func (*UCX) Kind() wire.Route { return wire.RouteUCX }

// Announce tells the worker's address, once memory is registered.
func (u *UCX) Announce(info *wire.PeerInfo) {
	if l := u.current(); l != nil {
		info.UCX = l.addr
	}
}

// Usable reports whether both sides have a worker and registered memory.
func (u *UCX) Usable(peer *wire.PeerInfo) bool { return len(peer.UCX) > 0 && u.current() != nil }

// current is the living worker, nil when the route cannot be used now.
func (u *UCX) current() *ucxLife {
	if !u.ready.Load() {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.life
}

// find says where in registered memory b lies.
func (u *UCX) find(b []byte) (m *ucx.Memory, off uint64, ok bool) {
	for _, m := range *u.regions.Load() {
		if off, err := m.OffsetOf(b); err == nil {
			return m, off, true
		}
	}
	return nil, 0, false
}

// Close ends the route: the worker, and with it all that UCX has of ours; then the
// registrations. With an error memory may still be in use, and must stay mapped.
// It may be called again, and then does what is left.
func (u *UCX) Close() error {
	u.mu.Lock()
	l := u.life
	first := !u.closed
	u.closed, u.life = true, nil
	u.ready.Store(false)
	u.mu.Unlock()
	if first {
		close(u.stop)
	}
	u.work.Wait() // registration, and lives that end
	var errs []error
	if l != nil {
		if err := l.end(); err != nil {
			errs = append(errs, err)
			u.mu.Lock()
			u.life = l // for the next Close
			u.mu.Unlock()
		}
	}
	if len(errs) == 0 { // chunks have come free with the worker: it is up to the devices
		for end := time.Now().Add(closeGrace); u.sums.Load() > 0 && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		if n := u.sums.Load(); n > 0 {
			errs = append(errs, fmt.Errorf("%d blocks on devices are being read back", n))
		}
	}
	u.crew.wait()
	if u.pinned {
		err := u.cfg.CUDA.Unregister(u.out.bytes)
		u.pinned = err != nil && !errors.Is(err, cuda.ErrClosed)
		if u.pinned {
			errs = append(errs, err)
		}
	}
	release := func(m *ucx.Memory) {
		if m != nil {
			errs = append(errs, m.Deregister())
		}
	}
	if list := u.regions.Load(); list != nil {
		for _, m := range *list {
			release(m)
		}
	}
	errs = append(errs, u.closeDirect())
	release(u.drain)
	release(u.probe)
	for _, s := range []*staging{u.in, u.out} {
		if s != nil {
			release(s.mem)
		}
	}
	err := errors.Join(errs...)
	if err == nil {
		err = u.ctx.Close()
	}
	if err != nil {
		return fmt.Errorf("peer: route ucx: %w", err)
	}
	u.unmap()
	return nil
}

func (u *UCX) unmap() {
	u.mu.Lock()
	defer u.mu.Unlock()
	unmapStaging(&u.scratch)
	for _, s := range []*staging{u.in, u.out} {
		if s != nil {
			unmapStaging(&s.bytes)
		}
	}
}

// Dest begins the destination's side of a session: it waits for the message that
// the source sends first, so that a way that does not work is not used.
func (u *UCX) Dest(ctx context.Context, s *Session) (DestRoute, error) {
	l := u.current()
	if l == nil {
		return nil, errors.New("no UCX worker at the moment")
	}
	ctx, cancel := context.WithTimeout(ctx, s.node.cfg.HandshakeTimeout)
	defer cancel()
	got := make(chan error, 1)
	req, err := l.w.Start(ucx.Op{
		Kind: ucx.OpRecv, Mem: u.probe, Off: probeSize, Len: probeSize, Tag: probeTag | s.token,
		Done: func(c ucx.Completion) { got <- c.Err },
	})
	if err != nil {
		return nil, err
	}
	select {
	case err = <-got:
	case <-ctx.Done():
		l.w.Cancel(req)
		err = fmt.Errorf("no message of the source's UCX worker has come: %w", ctx.Err())
	}
	if err != nil {
		return nil, err
	}
	d := &ucxDest{u: u, life: l, s: s, posts: map[item]*ucxPost{}, drains: map[OpID]map[*ucxRecv]struct{}{}}
	d.share.limit, d.sums.limit = u.cfg.Staging/4, u.cfg.Staging/4
	if !l.enter(d, s.Fail) {
		return nil, errors.New("the UCX worker has been closed")
	}
	return d, nil
}

// Source begins the source's side: an endpoint to the destination's worker, on
// which a first message goes out at once.
func (u *UCX) Source(_ context.Context, s *Session) (SourceRoute, error) {
	l := u.current()
	if l == nil {
		return nil, errors.New("no UCX worker at the moment")
	}
	o := &ucxSource{u: u, life: l, s: s, writes: map[item]*ucxWrite{}}
	o.share.limit = u.cfg.Staging / 4
	if !l.enter(o, s.Fail) {
		return nil, errors.New("the UCX worker has been closed")
	}
	var err error
	o.ep, err = l.w.Connect(s.Info.UCX, func(err error) { s.Fail(fmt.Errorf("the UCX endpoint has failed: %w", err)) })
	if err != nil {
		l.leave(o)
		return nil, err
	}
	_, err = l.w.Start(ucx.Op{
		Kind: ucx.OpSend, Endpoint: o.ep, Mem: u.probe, Len: probeSize, Tag: probeTag | s.token,
		Done: func(ucx.Completion) {}, // the endpoint's failure says more
	})
	if err != nil {
		o.Down()
		return nil, err
	}
	return o, nil
}
