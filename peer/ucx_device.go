package peer

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcr-go/kvcr/internal/blockcopy"
	"github.com/kvcr-go/kvcr/ucx"
	"github.com/kvcr-go/kvcr/ucx/cuda"
	"github.com/kvcr-go/kvcr/wire"
)

// Direct is how memory of devices is made known to UCX, so that bytes move between
// it and the network without staging. The choice and what follows from it are tested
// over TCP with DirectHost; DirectAuto on a GPU differs in the memory type that UCX
// gets, and in what UCX, the GPU and its driver do with it, among which is whether a
// copy by the driver after UCX's completion sees all that a device has written.
type Direct uint8

const (
	// DirectAuto: as CUDA memory, if the UCX library has CUDA support; else not.
	DirectAuto Direct = iota
	// DirectOff: not at all. Blocks go through staging.
	DirectOff
	// DirectHost: as host memory. For devices whose memory the processor reaches at
	// the same addresses, such as those of tests; others fail, or fault.
	DirectHost
)

// deviceRegions is room for regions on devices among UCX's.
const deviceRegions = 4096

// deviceTable is the memory of devices that UCX knows: one registration for each
// registered region, from Regions.Register, or the route's beginning, to
// Regions.Deregister, or the route's end.
type deviceTable struct {
	on      bool // immutable after openDirect
	typ     ucx.MemoryType
	in, out atomic.Int64 // bytes that took no staging

	mu     sync.RWMutex
	list   []*deviceRegion
	closed bool
}

type deviceRegion struct {
	Region
	mem *ucx.Memory
}

// openDirect makes the regions on devices known, if that can be.
func (u *UCX) openDirect() {
	t := &u.devices
	switch {
	case u.cfg.CUDA == nil, len(u.cfg.Regions) == 0, u.cfg.Direct == DirectOff:
		return
	case u.cfg.Direct == DirectHost:
		t.on, t.typ = true, ucx.Host
	case u.ctx.Supports(ucx.CUDA):
		t.on, t.typ = true, ucx.CUDA
	default:
		return
	}
	for _, r := range u.cfg.Regions {
		r.Watch(u)
	}
}

// closeDirect ends the registrations. Call it when no worker is left.
func (u *UCX) closeDirect() error {
	t := &u.devices
	if !t.on {
		return nil
	}
	t.mu.Lock()
	t.closed = true
	var errs []error
	var left []*deviceRegion
	for _, g := range t.list {
		if err := g.mem.Deregister(); err != nil {
			errs, left = append(errs, err), append(left, g)
		}
	}
	t.list = left
	t.mu.Unlock()
	if len(left) == 0 { // until then Deregister of a region must fail
		for _, r := range u.cfg.Regions {
			r.Unwatch(u)
		}
	}
	return errors.Join(errs...)
}

// RegionRegistered registers memory of a device. Where that fails blocks of the
// region go through staging.
func (u *UCX) RegionRegistered(g Region) {
	t := &u.devices
	t.mu.RLock()
	closed := t.closed
	t.mu.RUnlock()
	if g.Device < 0 || closed {
		return
	}
	mem, err := u.ctx.RegisterAt(g.Addr, uint64(g.Extent()), t.typ, nil)
	if err != nil {
		u.log.Warn("blocks of a region on a GPU take a detour", "region", g.Label, "err", err)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		_ = mem.Deregister() // nobody has seen it
		return
	}
	t.list = append(t.list, &deviceRegion{g, mem})
}

// RegionLeaving ends the registration, unless UCX may still touch the memory.
func (u *UCX) RegionLeaving(g Region) error {
	t := &u.devices
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, d := range t.list {
		if d.Label == g.Label && d.Addr == g.Addr { // two registries may have the label
			if err := d.mem.Deregister(); err != nil {
				return fmt.Errorf("UCX has it registered: %w", err)
			}
			t.list = append(t.list[:i:i], t.list[i+1:]...)
			return nil
		}
	}
	return nil
}

// find says where in registered memory a device's span lies.
func (t *deviceTable) find(s Span) (*ucx.Memory, uint64, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, g := range t.list {
		if s.Device == g.Device && s.Addr >= g.Addr && s.Addr-g.Addr <= uintptr(g.Extent()-min(s.Len, g.Extent())) {
			return g.mem, uint64(s.Addr - g.Addr), s.Len <= g.Extent()
		}
	}
	return nil, 0, false
}

// locate says where in registered memory a span lies. The zero Span lies nowhere.
func (u *UCX) locate(s Span) (*ucx.Memory, uint64, bool) {
	switch {
	case s.Host != nil:
		return u.find(s.Host)
	case s.Len > 0:
		return u.devices.find(s)
	}
	return nil, 0, false
}

// Reaches reports whether blocks can be received into a span of a device without
// staging. The caller keeps its region registered.
func (u *UCX) Reaches(s Span) bool {
	if u == nil || !u.devices.on {
		return false
	}
	_, _, ok := u.devices.find(s)
	return ok
}

// DirectBytes counts the bytes that were received into memory of devices, and sent
// from it, without staging.
func (u *UCX) DirectBytes() (in, out int64) { return u.devices.in.Load(), u.devices.out.Load() }

// slotSpans is the memory of a slot.
func slotSpans(memory Memory, slot Slot) (spans []Span) {
	if m, ok := memory.(SpanMemory); ok {
		return m.SlotSpans(slot)
	}
	for _, b := range memory.SlotBytes(slot) {
		spans = append(spans, Span{Host: b, Device: -1, Len: len(b)})
	}
	return spans
}

// copyDevice has a device copy. A driver that has too much to do is asked again.
// c.Done is called once, perhaps before copyDevice returns.
func (u *UCX) copyDevice(c cuda.Copy) {
	err := cuda.ErrNotBuilt
	if d := u.cfg.CUDA; d != nil {
		err = d.Submit(c)
	}
	if errors.Is(err, cuda.ErrBusy) {
		time.AfterFunc(time.Millisecond, func() { u.copyDevice(c) })
	} else if err != nil {
		c.Done(cuda.Result{Err: err})
	}
}

// arrived answers a Post whose block has come whole, to a device. The processor
// cannot sum up what lies there.
func (p *ucxPost) arrived() {
	u := p.d.u
	u.devices.in.Add(int64(p.Offer.Size))
	if p.Offer.Flags&wire.OfferSum == 0 || u.cfg.DirectUnverified {
		p.d.s.Event(Landed{p.Op, p.Index, wire.StatusOK})
		return
	}
	u.mu.Lock()
	closed := u.closed
	if !closed {
		u.sums.Add(1)
	}
	u.mu.Unlock()
	if closed {
		p.d.s.Event(Landed{p.Op, p.Index, wire.StatusLost})
		return
	}
	v := &deviceSum{p: p, left: p.device}
	v.sum.Reset()
	v.pump()
}

// deviceSum is the checksum of a block on a device, on its way: message by message
// the device copies it back to staging (the ring for what goes out, which the driver
// knows), where the crew sums it up. One step at a time; none of them waits.
type deviceSum struct {
	p     *ucxPost
	left  []Span
	sum   blockcopy.Summer
	chunk *chunk
}

// pump asks for the next bytes; without room it is called again.
func (v *deviceSum) pump() {
	if len(v.left) == 0 {
		status := wire.StatusOK
		if v.sum.Sum64() != v.p.Offer.Sum {
			status = wire.StatusChecksum
		}
		v.end(status)
		return
	}
	u, s := v.p.d.u, v.left[0]
	s = s.Slice(0, min(s.Len, messageMost))
	if v.chunk = u.out.take(s.Len, &v.p.d.sums, v); v.chunk == nil {
		return
	}
	u.copyDevice(cuda.Copy{
		Direction: cuda.ToHost, Device: s.Device, Host: [][]byte{v.chunk.bytes},
		Mem: []cuda.Span{{Ptr: cuda.DevicePtr(s.Addr), Size: int64(s.Len)}}, Done: v.copied,
	})
}

// copied is the end of a device's copy. It runs on a goroutine of the driver's.
func (v *deviceSum) copied(r cuda.Result) {
	u := v.p.d.u
	if r.Err == nil {
		u.crew.push(v.add)
		return
	}
	u.log.Warn("a block cannot be read back from its device", "err", r.Err)
	if !r.Unsettled { // else the device may still write to it: never given back
		v.chunk.give()
	}
	u.crew.push(func() { v.end(wire.StatusLost) })
}

func (v *deviceSum) add() {
	n := len(v.chunk.bytes)
	v.sum.Update(v.chunk.bytes)
	v.chunk.give()
	if s := v.left[0]; n < s.Len {
		v.left = append([]Span{s.Slice(n, s.Len-n)}, v.left[1:]...)
	} else {
		v.left = v.left[1:]
	}
	v.pump()
}

func (v *deviceSum) end(status wire.Status) {
	v.p.d.s.Event(Landed{v.p.Op, v.p.Index, status})
	v.p.d.u.sums.Add(-1)
}
