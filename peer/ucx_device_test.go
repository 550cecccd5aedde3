package peer

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/ucx"
	"github.com/kvcr-go/kvcr/ucx/cuda"
)

// watcher notes what it is told.
type watcher struct {
	has     []string
	refuse  error
	leaving func() // called by RegionLeaving
}

func (w *watcher) RegionRegistered(g Region) { w.has = append(w.has, g.Label) }

func (w *watcher) RegionLeaving(g Region) error {
	if w.leaving != nil {
		w.leaving()
	}
	if w.refuse == nil {
		w.has = slices.DeleteFunc(w.has, func(l string) bool { return l == g.Label })
	}
	return w.refuse
}

// Watchers know what is registered, and one that refuses leaves all as it was.
func TestRegionWatchers(t *testing.T) {
	var r Regions
	a, b := &watcher{}, &watcher{}
	r.Watch(a)
	for _, label := range []string{"x", "y"} {
		if err := r.Register(Region{Label: label, Mem: make([]byte, 8), Size: 8}); err != nil {
			t.Fatal(err)
		}
	}
	r.Watch(b)
	check := func(when string, want ...string) {
		t.Helper()
		for _, w := range []*watcher{a, b} {
			if slices.Sort(w.has); !slices.Equal(w.has, want) {
				t.Errorf("%s: a watcher knows %v, want %v", when, w.has, want)
			}
		}
	}
	check("registered", "x", "y")
	b.refuse = errors.New("a device reads it")
	if err := r.Deregister("x"); !errors.Is(err, ErrRegionBusy) || !strings.Contains(err.Error(), "a device reads it") {
		t.Errorf("refused: %v", err)
	}
	check("refused", "x", "y")
	_, free, err := r.Acquire([]MemoryRef{{Label: "x"}})
	if err != nil {
		t.Fatalf("a region that stays: %v", err)
	}
	b.refuse = nil
	if err := r.Deregister("x"); !errors.Is(err, ErrRegionBusy) {
		t.Errorf("in use: %v", err)
	}
	check("in use", "x", "y")
	free()
	b.leaving = func() {
		if _, _, err := r.Acquire([]MemoryRef{{Label: "x"}}); !errors.Is(err, ErrNoRegion) {
			t.Errorf("acquired while it leaves: %v", err)
		}
	}
	if err := r.Deregister("x"); err != nil {
		t.Error(err)
	}
	b.leaving = nil
	check("deregistered", "y")
	r.Unwatch(b)
	if err := r.Deregister("y"); err != nil || len(a.has) != 0 || len(b.has) != 1 {
		t.Errorf("%v, %v and %v", err, a.has, b.has)
	}
}

// A region stays while UCX may write to it, whoever has had his answer; it is found
// by the spans that lie in it wholly; and Close leaves nothing that would refuse.
// There is no GPU here: the memory is the host's.
func TestUCXRegions(t *testing.T) {
	if !ucx.Built {
		t.Skip(ucx.ErrNotBuilt)
	}
	mem, err := unix.Mmap(-1, 0, 64<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	base := uintptr(unsafe.Pointer(&mem[0]))
	var r Regions
	register := func() {
		t.Helper()
		if err := r.Register(Region{Label: "gpu", Device: 1, Addr: base, Size: 4096, Count: 4, Stride: 8192}); err != nil {
			t.Fatal(err)
		}
	}
	register()
	u, err := OpenUCX(UCXConfig{Staging: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	u.cfg.CUDA, u.cfg.Regions, u.cfg.Direct = new(cuda.Driver), []*Regions{&r}, DirectHost // the driver is not used
	u.openDirect()
	if err := r.Register(Region{Label: "host", Mem: mem[40<<10:], Size: 24 << 10}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		s    Span
		want bool
	}{
		{Span{Device: 1, Addr: base, Len: 4096}, true},
		{Span{Device: 1, Addr: base + 3*8192, Len: 4096}, true},
		{Span{Device: 1, Addr: base + 3*8192, Len: 4097}, false},
		{Span{Device: 1, Addr: base - 1, Len: 4096}, false},
		{Span{Device: 0, Addr: base, Len: 4096}, false},
		{Span{Device: 1, Addr: base, Len: 1 << 20}, false},
		{Span{}, false},
	} {
		if got := u.Reaches(tt.s); got != tt.want {
			t.Errorf("%+v is reached: %t", tt.s, got)
		}
	}
	m, off, ok := u.locate(Span{Device: 1, Addr: base + 8192, Len: 4096})
	if !ok || off != 8192 {
		t.Fatalf("found at %d, %t", off, ok)
	}
	end := make(chan struct{})
	req, err := u.life.w.Start(ucx.Op{Kind: ucx.OpRecv, Mem: m, Off: off, Len: 4096, Tag: 5, Done: func(ucx.Completion) { close(end) }})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Deregister("gpu"); !errors.Is(err, ErrRegionBusy) || !strings.Contains(err.Error(), "UCX") {
		t.Errorf("a region that UCX receives into: %v", err)
	}
	if !u.Reaches(Span{Device: 1, Addr: base, Len: 4096}) {
		t.Error("it is not reached any more")
	}
	u.life.w.Cancel(req)
	<-end
	within(t, 5*time.Second, func() bool { return r.Deregister("gpu") == nil }, func() string { return "it stays" })
	if u.Reaches(Span{Device: 1, Addr: base, Len: 4096}) {
		t.Error("a region that is gone is reached")
	}
	register()
	if !u.Reaches(Span{Device: 1, Addr: base, Len: 4096}) {
		t.Error("a region that has come back is not reached")
	}
	if err := u.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.Deregister("gpu"); err != nil || len(r.watchers) != 0 {
		t.Errorf("after Close: %v, %d watchers", err, len(r.watchers))
	}
	// Without CUDA in the library the default leaves all to staging.
	u, err = OpenUCX(UCXConfig{Staging: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	u.cfg.CUDA, u.cfg.Regions = new(cuda.Driver), []*Regions{&r}
	u.openDirect()
	if u.devices.on != u.ctx.Supports(ucx.CUDA) {
		t.Errorf("direct: %t, the library has CUDA: %t", u.devices.on, u.ctx.Supports(ucx.CUDA))
	}
	if err := u.Close(); err != nil {
		t.Error(err)
	}
}
