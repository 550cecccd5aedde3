package kvcr_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/arena"
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/ucx"
	"github.com/kvcr-go/kvcr/ucx/cuda"
	"github.com/kvcr-go/kvcr/wire"
)

// Words of the double's control file, see ucx/cuda/testdata.
const (
	doubleRegistrations = 2
	doubleHostCalls     = 7
	doubleViolations    = 11
	doubleFailCopy      = 14
	doubleFailRegister  = 16
	doubleSticky        = 20
	doubleStickyDevice  = 21
	doubleHold          = 22
	doubleDelay         = 23
	doubleReset         = 27
	doubleWords         = 29
)

// gpuRig is a driver, the double of one, with a region on each of two devices and
// one in host memory: 64 elements of 64 KiB.
type gpuRig struct {
	t       *testing.T
	d       *cuda.Driver
	control *[doubleWords]atomic.Uint64
	regions *peer.Regions
	base    [2]cuda.DevicePtr
	bounce  []byte // registered host memory for looking at devices
}

const (
	gpuElements = 64
	gpuElement  = 64 << 10
)

// gpuDouble is where the double is. TestMain removes it.
var gpuDouble = sync.OnceValue(func() string {
	dir, err := os.MkdirTemp("", "kvcr-double")
	if err != nil {
		panic(err)
	}
	kvcr.AtTestEnd = append(kvcr.AtTestEnd, func() { os.RemoveAll(dir) })
	return dir
})

// openGPU compiles the double; device memory faults when the processor touches it.
func openGPU(t *testing.T) *gpuRig {
	t.Helper()
	if _, err := cuda.Probe(cuda.Options{Library: "/nonexistent"}); errors.Is(err, cuda.ErrNotBuilt) {
		t.Skip(err)
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no gcc to build a double of the CUDA driver: apt-get install gcc libc6-dev")
	}
	lib, path := filepath.Join(gpuDouble(), "double.so"), filepath.Join(gpuDouble(), "control")
	if _, err := os.Stat(lib); err != nil { // one for the process: a driver library stays loaded
		if out, err := exec.Command("gcc", "-O2", "-shared", "-fPIC", "-pthread", "-o", lib, "ucx/cuda/testdata/libcuda_double.c").CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, out)
		}
		if err := os.WriteFile(path, make([]byte, doubleWords*8), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("KVCR_CUDA_DOUBLE", path)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, doubleWords*8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	g := &gpuRig{t: t, control: (*[doubleWords]atomic.Uint64)(unsafe.Pointer(&mem[0])), regions: &peer.Regions{}}
	for i := range g.control {
		g.control[i].Store(0)
	}
	g.control[doubleReset].Store(1)
	if g.d, err = cuda.Open(cuda.Options{Library: lib}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.d.Close(); err != nil {
			t.Errorf("driver: %v", err)
		}
		if n := g.control[doubleViolations].Load(); n != 0 {
			t.Errorf("%d violations", n)
		}
		if n := g.control[doubleRegistrations].Load(); n != 0 {
			t.Errorf("%d registrations are left", n)
		}
	})
	if g.bounce, err = unix.Mmap(-1, 0, gpuElement, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE); err != nil {
		t.Fatal(err)
	}
	if err := g.d.RegisterHost(t.Context(), g.bounce, nil); err != nil {
		t.Fatal(err)
	}
	for n := range g.base {
		if g.base[n], err = g.d.Alloc(n, gpuElements*gpuElement); err != nil {
			t.Fatal(err)
		}
		g.register(peer.Region{Label: fmt.Sprintf("gpu%d", n), Device: n, Addr: uintptr(g.base[n]), Size: gpuElement, Count: gpuElements})
	}
	g.register(peer.Region{Label: "host", Mem: make([]byte, gpuElements*gpuElement), Size: gpuElement, Count: gpuElements})
	return g
}

func (g *gpuRig) register(r peer.Region) {
	g.t.Helper()
	if err := g.regions.Register(r); err != nil {
		g.t.Fatal(err)
	}
}

func (g *gpuRig) config(c *kvcr.Config) {
	c.Memory.Backing = arena.Memfd // race builds keep other memory in Go's heap
	c.CUDA, c.Regions = g.d, g.regions
	c.DeviceStaging = 1 << 20
}

func (g *gpuRig) copy(dir cuda.Direction, device, element int) {
	g.t.Helper()
	end := make(chan cuda.Result, 1)
	err := g.d.Submit(cuda.Copy{
		Direction: dir, Device: device, Host: [][]byte{g.bounce},
		Mem:  []cuda.Span{{Ptr: g.base[device] + cuda.DevicePtr(element*gpuElement), Size: gpuElement}},
		Done: func(r cuda.Result) { end <- r },
	})
	if err != nil {
		g.t.Fatal(err)
	}
	if r := <-end; r.Err != nil {
		g.t.Fatal(r.Err)
	}
}

// read is what an element of a device holds.
func (g *gpuRig) read(device, element int) []byte {
	g.copy(cuda.ToHost, device, element)
	return append([]byte(nil), g.bounce...)
}

func (g *gpuRig) write(device, element int, b []byte) {
	copy(g.bounce, b)
	g.copy(cuda.ToDevice, device, element)
}

func ref(label string, element int) peer.MemoryRef {
	return peer.MemoryRef{Label: label, Element: element}
}

// deliveries spreads keys over both devices.
func deliveries(keys [][]byte) (blocks []kvcr.RegionBlock) {
	for i, k := range keys {
		blocks = append(blocks, kvcr.RegionBlock{Key: k, Ref: ref(fmt.Sprintf("gpu%d", i%2), i)})
	}
	return blocks
}

func (g *gpuRig) check(keys [][]byte) {
	g.t.Helper()
	for i, k := range keys {
		if !bytes.Equal(g.read(i%2, i), payload(string(k), gpuElement)) {
			g.t.Errorf("%s has other bytes on its device", k)
		}
	}
}

// Blocks go to devices and come back from them, with memory registered and before
// it is.
func TestDevices(t *testing.T) {
	for _, registered := range []bool{true, false} {
		t.Run(fmt.Sprintf("registered=%t", registered), func(t *testing.T) {
			g := openGPU(t)
			if !registered {
				g.control[doubleFailRegister].Store(2) // the ring is first
			}
			e := openPeer(t, func(c *kvcr.Config) {
				g.config(c)
				c.Peers.Routes = []string{"stream"} // registers nothing
			})
			if registered {
				eventually(t, "memory is registered", func() bool { return g.control[doubleRegistrations].Load() == 3 })
			}
			keys := keysOf(0, 40)
			e.deposit(t, keys)
			blocks := deliveries(keys)
			blocks = append(blocks,
				kvcr.RegionBlock{Key: keys[3], Ref: ref("host", 1)},
				kvcr.RegionBlock{Key: []byte("nobody has it"), Ref: ref("gpu0", 50)},
				kvcr.RegionBlock{Key: keys[3], Ref: ref("gpu0", gpuElements)},
				kvcr.RegionBlock{Key: keys[3], Ref: ref("nowhere", 0)},
				kvcr.RegionBlock{Ref: ref("gpu0", 0)})
			rs := wait(t, e.h.DeliverRefs(blocks, kvcr.FetchOptions{}))
			for i, want := range []kvcr.Reason{40: kvcr.ReasonOK, kvcr.ReasonMiss, kvcr.ReasonLayout, kvcr.ReasonLayout, kvcr.ReasonKey} {
				if rs[i].Reason != want {
					t.Errorf("block %d: %v, want %v", i, rs[i].Reason, want)
				}
			}
			g.check(keys)
			if err := g.regions.Deregister("gpu1"); err != nil {
				t.Errorf("a region whose keys are answered: %v", err)
			}
			// And back, under other keys.
			var back []kvcr.RegionBlock
			for i := range 20 {
				back = append(back, kvcr.RegionBlock{Key: fmt.Appendf(nil, "back-%d", i), Ref: ref("gpu0", 2*i)})
			}
			back = append(back, kvcr.RegionBlock{Key: []byte("from the host"), Ref: ref("host", 1)}, kvcr.RegionBlock{Key: keys[0], Ref: ref("gpu0", 0)})
			rs = wait(t, e.h.DepositRefs(back, kvcr.DepositOptions{}))
			for i, r := range rs {
				want := payload("block-3", gpuElement)
				if i < 20 {
					want = payload(fmt.Sprintf("block-%d", 2*i), gpuElement)
				} else if i == 21 {
					want = payload("block-0", gpuElement)
				}
				v, ok := e.h.Get(back[i].Key)
				if !r.OK() || !ok || !bytes.Equal(v.Bytes(), want) || !v.Verify() || r.Existing != (i == 21) {
					t.Errorf("%s: %v, existing %t", back[i].Key, r.Reason, r.Existing)
				}
				v.Release()
			}
		})
	}
}

// A chain out of a device's memory, more of it than the ring holds.
func TestDeviceChain(t *testing.T) {
	g := openGPU(t)
	e := openPeer(t, func(c *kvcr.Config) {
		g.config(c)
		c.Namespaces[0].Kind = kvcr.Chained
	})
	keys := keysOf(0, gpuElements)
	var blocks []kvcr.RegionBlock
	for i, k := range keys {
		g.write(0, i, payload(string(k), gpuElement))
		blocks = append(blocks, kvcr.RegionBlock{Key: k, Ref: ref("gpu0", i)})
	}
	op := e.h.DepositRefs(blocks, kvcr.DepositOptions{NoEvict: true})
	for i, r := range wait(t, op) {
		if !r.OK() || !bytes.Equal(r.View.Bytes(), payload(string(keys[i]), gpuElement)) {
			t.Errorf("block %d: %v", i, r.Reason)
		}
		r.View.Release()
	}
	// It ends before its first bad block.
	bad := []kvcr.RegionBlock{{Key: []byte("a"), Ref: ref("gpu0", 0)}, {Key: []byte("b"), Ref: ref("none", 0)}, {Key: []byte("c"), Ref: ref("gpu0", 1)}}
	rs := wait(t, e.h.DepositRefs(bad, kvcr.DepositOptions{}))
	if !rs[0].OK() || rs[1].Reason != kvcr.ReasonLayout || rs[2].Reason != kvcr.ReasonLayout || e.h.Has([]byte("c")) {
		t.Errorf("a chain with a bad block: %v %v %v", rs[0].Reason, rs[1].Reason, rs[2].Reason)
	}
}

// From another node to devices, over every route, with a ring that holds a quarter
// of it.
func TestDevicesFromPeer(t *testing.T) {
	routes(t, func(t *testing.T, open func(*testing.T, func(*kvcr.Config)) *peerEngine, route wire.Route) {
		g := openGPU(t)
		a, b := open(t, nil), open(t, g.config)
		keys := keysOf(0, gpuElements)
		a.deposit(t, keys)
		b.deposit(t, keys[:10])
		blocks := append(deliveries(keys), kvcr.RegionBlock{Key: []byte("nobody has it"), Ref: ref("gpu0", 0)})
		opt := kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 10 * time.Second}
		rs := wait(t, b.h.DeliverRefs(blocks, opt))
		for i, r := range rs[:len(keys)] {
			if !r.OK() {
				t.Errorf("block %d: %v", i, r.Reason)
			}
		}
		if rs[len(keys)].Reason != kvcr.ReasonMiss {
			t.Errorf("what nobody has: %v", rs[len(keys)].Reason)
		}
		g.check(keys)
		if b.h.Has(keys[20]) {
			t.Error("a delivered block has become resident")
		}
		if s, _ := b.Peers().Known(a.endpoint); s.Route != route {
			t.Errorf("route %v, want %v", s.Route, route)
		}
	})
}

// What ends early: time, abort and close leave neither claims nor pinned memory, and
// regions come free with the answers.
func TestDevicesEndEarly(t *testing.T) {
	g := openGPU(t)
	a := openPeer(t, nil)
	keys := keysOf(0, gpuElements)
	a.deposit(t, keys)
	e := openPeer(t, func(c *kvcr.Config) {
		g.config(c)
		c.Peers.Routes = []string{"stream"} // registers nothing
	})
	eventually(t, "memory is registered", func() bool { return g.control[doubleRegistrations].Load() == 3 })
	opt := kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 10 * time.Second}
	g.control[doubleHold].Store(1) // the devices stand still: the ring fills up
	op := e.h.DeliverRefs(deliveries(keys), opt)
	eventually(t, "copies wait", func() bool { return g.d.Stats().InFlight > 0 })
	op.Abort()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := op.Wait(ctx); err == nil {
		t.Error("all is answered, though devices still copy")
	}
	if err := g.regions.Deregister("gpu0"); !errors.Is(err, peer.ErrRegionBusy) {
		t.Errorf("a region that is being written: %v", err)
	}
	g.control[doubleHold].Store(0)
	counts := map[kvcr.Reason]int{}
	for _, r := range wait(t, op) {
		counts[r.Reason]++
	}
	if counts[kvcr.ReasonAborted] == 0 || counts[kvcr.ReasonOK]+counts[kvcr.ReasonAborted] != len(keys) {
		t.Errorf("reasons: %v", counts)
	}
	opt.Timeout = 30 * time.Millisecond
	opt.Sources = []string{"tcp://127.0.0.1:1"}
	for _, r := range wait(t, e.h.DeliverRefs(deliveries(keys), opt)) {
		if r.Reason != kvcr.ReasonTimeout {
			t.Errorf("out of time: %v", r.Reason)
			break
		}
	}
	// A device that refuses.
	e.deposit(t, keys[:1])
	g.control[doubleFailCopy].Store(2) // with 1 the driver would be asked in another way
	for _, r := range wait(t, e.h.DeliverRefs(deliveries(keys[:1]), kvcr.FetchOptions{})) {
		if r.OK() {
			t.Error("a copy that failed is a success")
		}
	}
	g.control[doubleFailCopy].Store(2)
	rs := wait(t, e.h.DepositRefs([]kvcr.RegionBlock{{Key: []byte("not copied"), Ref: ref("gpu0", 0)}}, kvcr.DepositOptions{}))
	if rs[0].Reason != kvcr.ReasonSource || e.h.Has([]byte("not copied")) {
		t.Errorf("a deposit whose copy failed: %v", rs[0].Reason)
	}
	g.control[doubleFailCopy].Store(0)
	for _, label := range []string{"gpu0", "gpu1"} {
		if err := g.regions.Deregister(label); err != nil {
			t.Error(err)
		}
	}
}

// gpuFramework lends elements of the first device: that of key "lent-7" is 7.
type gpuFramework struct{ pins, released atomic.Int32 }

func (f *gpuFramework) RequestPin(_ string, keys [][]byte, done func(peer.PinResult)) func() {
	r := peer.PinResult{Handle: fmt.Sprint("pin-", f.pins.Add(1)), Blocks: make([]peer.PinnedBlock, len(keys))}
	for i, k := range keys {
		var n int
		if _, err := fmt.Sscanf(string(k), "lent-%d", &n); err == nil {
			r.Blocks[i] = peer.PinnedBlock{Refs: []peer.MemoryRef{ref("gpu0", n)}, Pools: []byte{0}}
		}
	}
	done(r)
	return func() {}
}

func (f *gpuFramework) ReleasePin(string) bool { f.released.Add(1); return true }

// A framework's blocks on a GPU reach other nodes over route ucx, by way of pinned
// memory; over streams they are refused, and streams go on.
func TestPinnedOnDevice(t *testing.T) {
	routes(t, func(t *testing.T, open func(*testing.T, func(*kvcr.Config)) *peerEngine, route wire.Route) {
		g := openGPU(t)
		fw := &gpuFramework{}
		a := open(t, func(c *kvcr.Config) {
			g.config(c)
			c.Peers.Framework, c.Peers.Regions = fw, g.regions
		})
		b := open(t, nil)
		var lent [][]byte
		for i := range gpuElements {
			lent = append(lent, fmt.Appendf(nil, "lent-%d", i))
			g.write(0, i, payload(string(lent[i]), gpuElement))
		}
		ours := keysOf(0, 5)
		a.deposit(t, ours)
		opt := kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 10 * time.Second}
		for i, r := range wait(t, b.h.FetchFrom(append(lent, ours...), opt)) {
			key := append(lent, ours...)[i]
			switch {
			case i < len(lent) && route != wire.RouteUCX:
				if r.Reason != kvcr.ReasonSource {
					t.Errorf("%s over %v: %v", key, route, r.Reason)
				}
			case !r.OK() || !bytes.Equal(r.View.Bytes(), payload(string(key), gpuElement)):
				t.Errorf("%s over %v: %v", key, route, r.Reason)
			default:
				r.View.Release()
			}
		}
		eventually(t, "every pin is given back", func() bool { return fw.pins.Load() == fw.released.Load() && fw.pins.Load() > 0 })
	})
}

// A lent block of many messages, cut in the midst of device memory, to the caller's
// memory and to a slot.
func TestLargePinOnDevice(t *testing.T) {
	if !ucx.Built {
		t.Skip(ucx.ErrNotBuilt)
	}
	const size = 2<<20 + 64<<10
	g := openGPU(t)
	at, err := g.d.Alloc(1, 2*size)
	if err != nil {
		t.Fatal(err)
	}
	g.register(peer.Region{Label: "large", Device: 1, Addr: uintptr(at) + size, Size: size})
	big, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.d.RegisterHost(t.Context(), big, nil); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < size; i += 8 {
		binary.LittleEndian.PutUint64(big[i:], uint64(i)*0x9e3779b97f4a7c15)
	}
	end := make(chan cuda.Result, 1)
	if err := g.d.Submit(cuda.Copy{Direction: cuda.ToDevice, Device: 1, Host: [][]byte{big}, Mem: []cuda.Span{{Ptr: at + size, Size: size}}, Done: func(r cuda.Result) { end <- r }}); err != nil {
		t.Fatal(err)
	}
	if r := <-end; r.Err != nil {
		t.Fatal(r.Err)
	}
	config := func(c *kvcr.Config) {
		c.Memory.Backing = arena.Memfd
		c.Namespaces[0].Pools[0].SlotBytes = size
		c.Shards = 1
		c.Peers.Routes = []string{"ucx"}
	}
	a := openPeer(t, func(c *kvcr.Config) {
		config(c)
		c.CUDA, c.Regions = g.d, g.regions
		c.Peers.Framework, c.Peers.Regions = &largeFramework{}, g.regions
	})
	b := openPeer(t, config)
	opt := kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 10 * time.Second}
	dst := make([]byte, size)
	if rs := wait(t, b.h.DeliverFrom([]kvcr.Target{{Key: []byte("large"), Dst: dst}}, opt)); !rs[0].OK() || !bytes.Equal(dst, big) {
		t.Errorf("delivered: %v", rs[0].Reason)
	}
	rs := wait(t, b.h.FetchFrom([][]byte{[]byte("large")}, opt))
	if !rs[0].OK() || !bytes.Equal(rs[0].View.Bytes(), big) {
		t.Errorf("fetched: %v", rs[0].Reason)
	}
	rs[0].View.Release()
}

// largeFramework lends the one element of region "large".
type largeFramework struct{}

func (largeFramework) RequestPin(_ string, keys [][]byte, done func(peer.PinResult)) func() {
	r := peer.PinResult{Handle: "pin", Blocks: make([]peer.PinnedBlock, len(keys))}
	for i := range keys {
		r.Blocks[i] = peer.PinnedBlock{Refs: []peer.MemoryRef{ref("large", 0)}, Pools: []byte{0}}
	}
	done(r)
	return func() {}
}

func (largeFramework) ReleasePin(string) bool { return true }
