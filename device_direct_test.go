package kvcr_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/arena"
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/ucx"
	"github.com/kvcr-go/kvcr/ucx/cuda"
)

// These tests have no GPU, and a UCX library without CUDA support will do: the
// double's device memory is made to be reached by the processor, and UCX is told
// that it is host memory (peer.DirectHost). All of the direct way runs, over TCP, but
// for the memory type that UCX gets; what UCX and a GPU do with CUDA memory is not
// tested.

// openDirect is openGPU with memory that UCX reaches at its addresses.
func openDirect(t *testing.T) *gpuRig {
	t.Helper()
	if !ucx.Built {
		t.Skip(ucx.ErrNotBuilt)
	}
	g := openGPU(t)
	for _, at := range g.base {
		reachable(t, at, gpuElements*gpuElement)
	}
	return g
}

func reachable(t *testing.T, at cuda.DevicePtr, size int) {
	t.Helper()
	if _, _, errno := unix.Syscall(unix.SYS_MPROTECT, uintptr(at), uintptr(size), unix.PROT_READ|unix.PROT_WRITE); errno != 0 {
		t.Fatal(errno)
	}
}

func (g *gpuRig) direct(c *kvcr.Config) {
	g.config(c)
	c.Peers.Routes = []string{"ucx", "stream"}
	c.Peers.Direct = peer.DirectHost
}

func overUCX(c *kvcr.Config) {
	c.Memory.Backing = arena.Memfd
	c.Peers.Routes = []string{"ucx", "stream"}
}

func directIn(e *peerEngine) int64 {
	in, _ := e.Peers().UCX().DirectBytes()
	return in
}

// Blocks come straight to devices: the driver copies them back for their checksums,
// unless that is switched off, and nothing to a device but what was resident.
func TestDirectDelivery(t *testing.T) {
	for _, verified := range []bool{true, false} {
		t.Run(fmt.Sprintf("verified=%t", verified), func(t *testing.T) {
			g := openDirect(t)
			a := openPeer(t, overUCX)
			b := openPeer(t, func(c *kvcr.Config) {
				g.direct(c)
				c.Peers.DirectUnverified = !verified
			})
			keys := keysOf(0, gpuElements)
			a.deposit(t, keys)
			b.deposit(t, keys[:10])
			blocks := deliveries(keys)
			blocks = append(blocks,
				kvcr.RegionBlock{Key: []byte("nobody has it"), Ref: ref("gpu1", 0)},
				kvcr.RegionBlock{Key: keys[20], Ref: ref("gpu1", 20)}, // once more, to another place
				kvcr.RegionBlock{Key: keys[21], Ref: ref("host", 21)})
			before := g.d.Stats()
			opt := kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 10 * time.Second}
			for i, r := range wait(t, b.h.DeliverRefs(blocks, opt)) {
				if want := map[bool]kvcr.Reason{true: kvcr.ReasonMiss}[i == len(keys)]; r.Reason != want {
					t.Errorf("block %d: %v, want %v", i, r.Reason, want)
				}
			}
			after := g.d.Stats()
			g.check(keys)
			if !bytes.Equal(g.read(1, 20), payload(string(keys[20]), gpuElement)) {
				t.Error("a key that was asked for twice is in one place only")
			}
			const direct, resident = 55 * gpuElement, 10 * gpuElement
			back := map[bool]uint64{true: direct}[verified]
			if in := directIn(b); in != direct || after.ToDevice-before.ToDevice != resident || after.ToHost-before.ToHost != back {
				t.Errorf("%d bytes came directly, %d were copied to devices, %d from them", in, after.ToDevice-before.ToDevice, after.ToHost-before.ToHost)
			}
			if err := g.regions.Deregister("gpu1"); err != nil {
				t.Errorf("a region whose keys are answered: %v", err)
			}
			g.register(peer.Region{Label: "gpu1", Device: 1, Addr: uintptr(g.base[1]), Size: gpuElement, Count: gpuElements})
			if r := wait(t, b.h.DeliverRefs([]kvcr.RegionBlock{{Key: keys[30], Ref: ref("gpu1", 63)}}, opt)); !r[0].OK() || directIn(b) != direct+gpuElement {
				t.Errorf("to a region that was registered anew: %v", r[0].Reason)
			}
		})
	}
}

// A block that is not what its source has summed up is refused, though it is on the
// device; when nobody looks it is not.
func TestDirectChecksum(t *testing.T) {
	for _, verified := range []bool{true, false} {
		t.Run(fmt.Sprintf("verified=%t", verified), func(t *testing.T) {
			g := openDirect(t)
			a := openPeer(t, overUCX)
			b := openPeer(t, func(c *kvcr.Config) {
				g.direct(c)
				c.Peers.DirectUnverified = !verified
			})
			keys := keysOf(0, 2)
			a.deposit(t, keys)
			v, _ := a.h.Get(keys[1])
			v.Bytes()[gpuElement-1] ^= 1
			v.Release()
			rs := wait(t, b.h.DeliverRefs(deliveries(keys), kvcr.FetchOptions{Sources: []string{a.endpoint}}))
			if !rs[0].OK() || rs[1].OK() == verified || verified && rs[1].Reason != kvcr.ReasonChecksum {
				t.Errorf("%v and %v", rs[0].Reason, rs[1].Reason)
			}
			if directIn(b) != 2*gpuElement {
				t.Error("the blocks have not come directly")
			}
		})
	}
}

// Over other routes, and from a second source after a first that has another route,
// blocks take the ring, already with the first contact.
func TestDirectElsewhere(t *testing.T) {
	g := openDirect(t)
	keys := keysOf(0, gpuElements)
	var from []string
	for _, route := range []string{"stream", "shm"} {
		a := openPeer(t, func(c *kvcr.Config) {
			c.Memory.Backing = arena.Memfd
			c.Peers.Routes = []string{route}
		})
		a.deposit(t, keys[len(from)*32:][:32])
		from = append(from, a.endpoint)
	}
	b := openPeer(t, func(c *kvcr.Config) {
		g.direct(c)
		c.Peers.Routes = []string{"ucx", "shm", "stream"}
	})
	for range 2 {
		for i, r := range wait(t, b.h.DeliverRefs(deliveries(keys), kvcr.FetchOptions{Sources: from, Timeout: 10 * time.Second})) {
			if !r.OK() {
				t.Errorf("block %d: %v", i, r.Reason)
			}
		}
		g.check(keys)
	}
	if in := directIn(b); in != 0 {
		t.Errorf("%d bytes came directly", in)
	}
	if b.Peers().Stats().Refusals == 0 {
		t.Error("a source is asked although its route is known")
	}
}

// remotePayload brings every block whose key begins with "far".
type remotePayload struct{}

func (remotePayload) Query(_ string, keys [][]byte) []bool {
	out := make([]bool, len(keys))
	for i, k := range keys {
		out[i] = bytes.HasPrefix(k, []byte("far"))
	}
	return out
}

func (r remotePayload) Fetch(_ context.Context, namespace string, keys [][]byte, sink kvcr.Sink) error {
	for i, has := range r.Query(namespace, keys) {
		if !has {
			sink.Fail(i, kvcr.ReasonMiss)
			continue
		}
		b, err := sink.Reserve(i, gpuElement)
		if err != nil {
			return err
		}
		copy(b, payload(string(keys[i]), gpuElement))
		if err := sink.Commit(i); err != nil {
			return err
		}
	}
	return nil
}

// What no peer has comes from Config.Remote, which cannot write to devices, by way
// of the ring.
func TestDirectAndRemote(t *testing.T) {
	g := openDirect(t)
	a := openPeer(t, overUCX)
	b := openPeer(t, func(c *kvcr.Config) {
		g.direct(c)
		c.Remote = remotePayload{}
	})
	keys := keysOf(0, 20)
	a.deposit(t, keys)
	for i := range 20 {
		keys = append(keys, fmt.Appendf(nil, "far-%d", i))
	}
	blocks := append(deliveries(keys), kvcr.RegionBlock{Key: []byte("nobody has it"), Ref: ref("gpu0", 50)})
	for i, r := range wait(t, b.h.DeliverRefs(blocks, kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 10 * time.Second})) {
		if want := map[bool]kvcr.Reason{true: kvcr.ReasonMiss}[i == len(keys)]; r.Reason != want {
			t.Errorf("block %d: %v, want %v", i, r.Reason, want)
		}
	}
	g.check(keys)
	if in := directIn(b); in != 20*gpuElement {
		t.Errorf("%d bytes came directly", in)
	}
}

// What a framework lends on a device is sent from it, to memory and to a device.
func TestDirectLent(t *testing.T) {
	g := openDirect(t)
	fw := &gpuFramework{}
	a := openPeer(t, func(c *kvcr.Config) {
		g.direct(c)
		c.Peers.Framework, c.Peers.Regions = fw, g.regions
	})
	b := openPeer(t, g.direct)
	var lent [][]byte
	var blocks []kvcr.RegionBlock
	for i := range gpuElements {
		lent = append(lent, fmt.Appendf(nil, "lent-%d", i))
		blocks = append(blocks, kvcr.RegionBlock{Key: lent[i], Ref: ref("gpu1", i)})
		g.write(0, i, payload(string(lent[i]), gpuElement))
	}
	opt := kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 10 * time.Second}
	before := g.d.Stats()
	for i, r := range wait(t, b.h.DeliverRefs(blocks, opt)) {
		if !r.OK() {
			t.Errorf("%s: %v", lent[i], r.Reason)
		}
	}
	_, out := a.Peers().UCX().DirectBytes()
	if in := directIn(b); in != gpuElements*gpuElement || out != in {
		t.Errorf("%d bytes left a device, %d came to one", out, in)
	}
	if after := g.d.Stats(); after.Spans != before.Spans {
		t.Error("the driver has copied")
	}
	for i := range lent {
		if !bytes.Equal(g.read(1, i), payload(string(lent[i]), gpuElement)) {
			t.Errorf("%s has other bytes", lent[i])
		}
	}
	for i, r := range wait(t, b.h.FetchFrom(lent, opt)) {
		if !r.OK() || !bytes.Equal(r.View.Bytes(), payload(string(lent[i]), gpuElement)) {
			t.Errorf("%s to memory: %v", lent[i], r.Reason)
		}
		r.View.Release()
	}
	eventually(t, "every pin is given back", func() bool { return fw.pins.Load() == fw.released.Load() && fw.pins.Load() > 0 })
	for _, label := range []string{"gpu0", "gpu1"} {
		eventually(t, label+" can be deregistered", func() bool { return g.regions.Deregister(label) == nil })
	}
}

// A block of two pieces and many messages.
func TestDirectLarge(t *testing.T) {
	const kv, state = 2<<20 + 64<<10, 64 << 10
	g := openDirect(t)
	at, err := g.d.Alloc(1, 3*(kv+state))
	if err != nil {
		t.Fatal(err)
	}
	reachable(t, at, 3*(kv+state))
	g.register(peer.Region{Label: "large", Device: 1, Addr: uintptr(at), Size: kv + state, Count: 3})
	pools := func(c *kvcr.Config) {
		c.Capacity = 256 << 20
		c.Shards = 1
		c.Namespaces[0].Kind = kvcr.Chained
		c.Namespaces[0].Pools = []kvcr.Pool{{Name: "kv", SlotBytes: kv, Share: 0.9}, {Name: "state", SlotBytes: state, Share: 0.1}}
	}
	a := openPeer(t, func(c *kvcr.Config) { overUCX(c); pools(c) })
	b := openPeer(t, func(c *kvcr.Config) { g.direct(c); pools(c) })
	want := payload("large", kv+state)
	for i, r := range a.h.DepositBatch([]kvcr.Item{{Key: []byte("large"), Pieces: [][]byte{want[:kv], want[kv:]}, Pools: []string{"kv", "state"}}}, kvcr.DepositOptions{}) {
		if !r.OK() {
			t.Fatalf("deposit %d: %v", i, r.Reason)
		}
	}
	r := wait(t, b.h.DeliverRefs([]kvcr.RegionBlock{{Key: []byte("large"), Ref: ref("large", 1)}}, kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 10 * time.Second}))
	if !r[0].OK() || directIn(b) != kv+state {
		t.Fatalf("%v, %d bytes directly", r[0].Reason, directIn(b))
	}
	for off := 0; off < kv+state; off += gpuElement {
		end := make(chan cuda.Result, 1)
		if err := g.d.Submit(cuda.Copy{Direction: cuda.ToHost, Device: 1, Host: [][]byte{g.bounce},
			Mem: []cuda.Span{{Ptr: at + cuda.DevicePtr(kv+state+off), Size: gpuElement}}, Done: func(r cuda.Result) { end <- r }}); err != nil {
			t.Fatal(err)
		}
		if r := <-end; r.Err != nil || !bytes.Equal(g.bounce, want[off:][:gpuElement]) {
			t.Fatalf("other bytes from %d (%v)", off, r.Err)
		}
	}
}

// Aborted and late deliveries: elements come free, what is reported as arrived is
// whole, and nothing of an old delivery lands after its answer.
func TestDirectEndsEarly(t *testing.T) {
	g := openDirect(t)
	a := openPeer(t, overUCX)
	b := openPeer(t, g.direct)
	keys := keysOf(0, gpuElements)
	a.deposit(t, keys)
	opt := kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 5 * time.Second}
	wait(t, b.h.DeliverRefs(deliveries(keys), opt))
	empty := make([]byte, gpuElement)
	counts := map[kvcr.Reason]int{}
	for round := range 40 {
		for i := range keys {
			g.write(i%2, i, empty)
		}
		opt.Timeout = 5 * time.Second
		if round%2 == 0 {
			opt.Timeout = 1 + rand.N(12*time.Millisecond)
		}
		op := b.h.DeliverRefs(deliveries(keys), opt)
		if round%2 == 1 {
			time.Sleep(rand.N(12 * time.Millisecond))
			op.Abort()
		}
		rs := wait(t, op)
		var marks []int // elements that nobody may write any more
		for i, r := range rs {
			counts[r.Reason]++
			switch {
			case r.OK() && !bytes.Equal(g.read(i%2, i), payload(string(keys[i]), gpuElement)):
				t.Errorf("round %d: %s has other bytes", round, keys[i])
			case !r.OK():
				g.write(i%2, i, empty)
				marks = append(marks, i)
			}
		}
		time.Sleep(time.Millisecond)
		for _, i := range marks {
			if !bytes.Equal(g.read(i%2, i), empty) {
				t.Errorf("round %d: %s was written after its answer", round, keys[i])
			}
		}
	}
	t.Logf("%v", counts)
	if ok, aborted := counts[kvcr.ReasonOK], counts[kvcr.ReasonAborted]; ok == 0 || aborted == 0 || ok+aborted+counts[kvcr.ReasonTimeout] != 40*len(keys) {
		t.Error("there must be blocks that arrived, aborted ones, and none but for time")
	}
	for _, label := range []string{"gpu0", "gpu1"} {
		eventually(t, label+" can be deregistered", func() bool { return g.regions.Deregister(label) == nil })
	}
}

// Close while blocks are read back from a device that stands still for a moment:
// everything is answered, and nothing stays registered.
func TestDirectClose(t *testing.T) {
	g := openDirect(t)
	a := openPeer(t, overUCX)
	b := openPeer(t, g.direct)
	keys := keysOf(0, gpuElements)
	a.deposit(t, keys)
	g.control[doubleHold].Store(1)
	op := b.h.DeliverRefs(deliveries(keys), kvcr.FetchOptions{Sources: []string{a.endpoint}, Timeout: 10 * time.Second})
	eventually(t, "blocks are read back", func() bool { return g.d.Stats().InFlight > 0 })
	closed := make(chan error, 1)
	go func() { closed <- b.Close() }()
	select {
	case err := <-closed:
		t.Errorf("closed while a device copies: %v", err)
	case <-time.After(100 * time.Millisecond):
		g.control[doubleHold].Store(0)
		if err := <-closed; err != nil {
			t.Error(err)
		}
	}
	g.control[doubleHold].Store(0)
	for i, r := range wait(t, op) {
		if r.OK() && !bytes.Equal(g.read(i%2, i), payload(string(keys[i]), gpuElement)) {
			t.Errorf("%s has other bytes", keys[i])
		}
	}
	for _, label := range []string{"gpu0", "gpu1"} {
		if err := g.regions.Deregister(label); err != nil {
			t.Error(err)
		}
	}
}

const envDirectSource = "KVCR_TEST_DIRECT_SOURCE"

// A source that dies in the midst of it.
func TestDirectSourceKilled(t *testing.T) {
	keys := keysOf(0, gpuElements)
	if os.Getenv(envDirectSource) != "" {
		a := openPeer(t, overUCX)
		a.deposit(t, keys)
		fmt.Println(a.endpoint)
		_, _ = io.Copy(io.Discard, os.Stdin) // until the parent ends
		return
	}
	g := openDirect(t)
	b := openPeer(t, g.direct)
	lost := 0
	for round := range 6 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestDirectSourceKilled$")
		cmd.Env = append(os.Environ(), envDirectSource+"=1")
		if _, err := cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		opt := kvcr.FetchOptions{Sources: []string{strings.TrimSpace(line)}, Timeout: 10 * time.Second}
		if rs := wait(t, b.h.DeliverRefs(deliveries(keys[:1]), opt)); !rs[0].OK() {
			t.Errorf("round %d: %v", round, rs[0].Reason)
		}
		before := directIn(b)
		op := b.h.DeliverRefs(deliveries(keys), opt)
		eventually(t, "blocks arrive", func() bool { return directIn(b) > before })
		_ = cmd.Process.Kill()
		start := time.Now()
		for i, r := range wait(t, op) {
			if !r.OK() {
				lost++
			} else if !bytes.Equal(g.read(i%2, i), payload(string(keys[i]), gpuElement)) {
				t.Errorf("round %d: %s has other bytes", round, keys[i])
			}
		}
		if d := time.Since(start); d > 8*time.Second {
			t.Errorf("round %d: answered %v after the source's death", round, d)
		}
		_ = cmd.Wait()
	}
	t.Logf("%d blocks were lost", lost)
	for _, label := range []string{"gpu0", "gpu1"} {
		eventually(t, label+" can be deregistered", func() bool { return g.regions.Deregister(label) == nil })
	}
}
