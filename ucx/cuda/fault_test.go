//go:build linux && cgo && ucx

package cuda

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"
	"unsafe"
)

// The tests of this file order faults, which only the double takes orders for.

func TestDeviceMemoryIsNoAddress(t *testing.T) {
	d := openDouble(t, Options{})
	p, err := d.Alloc(0, 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() == nil {
			t.Error("the processor read device memory")
		}
	}()
	addr := uintptr(p)
	_ = **(**byte)(unsafe.Pointer(&addr))
}

func TestLibrariesThatAreNone(t *testing.T) {
	path := double(t)
	control[wFailInit].Store(100)
	if info, err := Probe(Options{Library: path}); !errors.Is(err, ErrNoDevice) || info.Version != 12080 {
		t.Errorf("no devices: %+v, %v", info, err)
	}
	control[wFailInit].Store(34)
	if _, err := Open(Options{Library: path}); !errors.Is(err, ErrNoDriver) {
		t.Errorf("the stub of the toolkit: %v", err)
	}
	control[wFailInit].Store(0)
	if err := buildDouble("old.so", "-DcuLaunchHostFunc=notThere"); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Library: filepath.Join(libraries, "old.so")}); !errors.Is(err, ErrNoDriver) || !strings.Contains(err.Error(), "cuLaunchHostFunc") {
		t.Errorf("a function is missing: %v", err)
	}
	if _, err := Open(Options{Library: "libcuda-nonexistent.so"}); !errors.Is(err, ErrNoDriver) || !strings.Contains(err.Error(), "libcuda-nonexistent.so") {
		t.Errorf("no library: %v", err)
	}
}

// What Open had when it failed is given back.
func TestOpenUndoesItself(t *testing.T) {
	path := double(t)
	for n := range 2 * maxStreams {
		control[wFailStream].Store(uint64(n) + 1)
		if d, err := Open(Options{Library: path}); !errors.Is(err, ErrOutOfMemory) || d != nil {
			t.Errorf("stream %d refused: %v", n, err)
		}
		checkDouble(t)
	}
	if _, err := Open(Options{Library: path, Devices: []int{1, 0, 7}}); !errors.Is(err, ErrNoDevice) {
		t.Error(err)
	}
	checkDouble(t)
}

func TestOutOfMemory(t *testing.T) {
	d := openDouble(t, Options{HostChunk: 4096})
	control[wFailAlloc].Store(1)
	var de *DriverError
	if _, err := d.Alloc(1, 4096); !errors.Is(err, ErrOutOfMemory) || !errors.As(err, &de) || de.Name != "CUDA_ERROR_OUT_OF_MEMORY" || de.Call != "cuMemAlloc" {
		t.Errorf("Alloc: %v", err)
	}
	mem := hostMemory(t, 8*4096)
	control[wFailRegister].Store(6)
	last := int64(0)
	err := d.RegisterHost(context.Background(), mem, func(done, _ int64) { last = done })
	if !errors.Is(err, ErrOutOfMemory) || last != 5*4096 {
		t.Errorf("RegisterHost: %v after %d bytes", err, last)
	}
	if n := control[wRegistrations].Load(); n != 0 || d.Stats().Registered != 0 {
		t.Errorf("%d registrations left, %d bytes counted", n, d.Stats().Registered)
	}
}

// A batch is spread over at most 4 streams, at least 64 spans each.
func TestStreams(t *testing.T) {
	d := openDouble(t, Options{})
	f := newFixture(t, d, 1, 1024, 64)
	for n, want := range map[int]uint64{1: 1, 65: 1, 128: 2, 255: 3, 1000: 4} {
		control[wMaxStreams].Store(0)
		control[wHold].Store(1)
		calls := control[wHostCalls].Load()
		out := f.start(ToDevice, seq(n), seq(n))
		eventually(t, "notices", func() bool { return control[wHostCalls].Load() == calls+want })
		control[wHold].Store(0)
		if r := f.wait(out); r.Err != nil {
			t.Error(r.Err)
		}
		if got := control[wMaxStreams].Load(); got != want {
			t.Errorf("%d spans on %d streams, want %d", n, got, want)
		}
	}
	if control[wStreams].Load() != 2*maxStreams {
		t.Errorf("%d streams for 2 devices", control[wStreams].Load())
	}
}

func TestBatchCall(t *testing.T) {
	for _, tt := range []struct {
		name  string
		setup func(t *testing.T) string // returns another library, or ""
		calls bool
	}{
		{"taken", func(*testing.T) string { return "" }, true},
		{"invalid", func(*testing.T) string { control[wFailBatch].Store(1); return "" }, false},
		{"unsupported", func(*testing.T) string { control[wFailBatch].Store(801); return "" }, false},
		{"other addresses", func(*testing.T) string { control[wNoHostPointers].Store(1); return "" }, false},
		{"missing", func(t *testing.T) string {
			if err := buildDouble("single.so", "-DcuMemcpyBatchAsync=notThere"); err != nil {
				t.Fatal(err)
			}
			return filepath.Join(libraries, "single.so")
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := double(t)
			if other := tt.setup(t); other != "" {
				path = other
			}
			d, err := Open(Options{Library: path, Devices: []int{0}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := d.Close(); err != nil {
					t.Error(err)
				}
				checkDouble(t)
			})
			f := newFixture(t, d, 0, 200, 4096)
			f.fill(9)
			want := bytes.Clone(f.mem)
			f.copy(ToDevice, seq(200), seq(200))
			control[wFailBatch].Store(0) // a refusal is for good all the same
			clear(f.mem)
			f.copy(ToHost, seq(200), seq(200))
			if !bytes.Equal(f.mem, want) {
				t.Error("other bytes came back")
			}
			if got := control[wBatchCalls].Load(); (got > 0) != tt.calls || d.Stats().BatchCall != tt.calls {
				t.Errorf("%d batch calls, stats say %t, want %t", got, d.Stats().BatchCall, tt.calls)
			}
		})
	}
}

// Memory in flight is not given back, and batches have a cap.
func TestBusyMemory(t *testing.T) {
	d := openDouble(t, Options{MaxBatches: 3})
	f := newFixture(t, d, 0, 4, 4096)
	engine, err := Open(Options{Library: d.Info().Library})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	p, err := engine.Alloc(0, 4*4096)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Adopt(p, 4*4096); err != nil {
		t.Fatal(err)
	}
	g := *f
	g.dptr = p
	control[wHold].Store(1)
	outs := []<-chan Result{f.start(ToDevice, seq(4), seq(4)), g.start(ToDevice, seq(4), seq(4)), f.start(ToHost, seq(1), seq(1))}
	var le *LimitError
	if err := d.Submit(f.copyOf(ToHost, seq(1), seq(1), nil)); !errors.Is(err, ErrBusy) || !errors.As(err, &le) || le.Limit != 3 {
		t.Errorf("a fourth batch of 3: %v", err)
	}
	for name, err := range map[string]error{"Free": d.Free(f.dptr), "Forget": d.Forget(p), "Unregister": d.Unregister(f.mem)} {
		var be *BusyError
		if !errors.Is(err, ErrBusy) || errors.Is(err, ErrDeviceLost) || !errors.As(err, &be) || be.InFlight == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s := d.Stats(); s.InFlight != 3 {
		t.Errorf("stats %+v", s)
	}
	control[wHold].Store(0)
	for _, out := range outs {
		if r := f.wait(out); r.Err != nil {
			t.Error(r.Err)
		}
	}
	for name, err := range map[string]error{"Free": d.Free(f.dptr), "Forget": d.Forget(p), "Unregister": d.Unregister(f.mem)} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A copy that the driver refuses fails its batch, which ends only when the
// copies before it have.
func TestRefusedCopyWaitsForTheRest(t *testing.T) {
	for _, single := range []bool{false, true} {
		t.Run(fmt.Sprintf("single=%t", single), func(t *testing.T) {
			d := openDouble(t, Options{})
			f := newFixture(t, d, 0, 300, 4096)
			if single {
				control[wFailBatch].Store(801)
			}
			control[wHold].Store(1)
			control[wFailAfter].Store(200)
			control[wFailCopy].Store(2) // another code than those that mean the batch call is no good
			copies := control[wCopies].Load()
			out := f.start(ToHost, seq(300), seq(300))
			eventually(t, "200 copies", func() bool { return control[wFailCopy].Load() == 0 })
			time.Sleep(5 * time.Millisecond)
			select {
			case r := <-out:
				t.Fatalf("ended with 200 copies in flight: %+v", r)
			default:
			}
			if err := d.Unregister(f.mem); !errors.Is(err, ErrBusy) {
				t.Errorf("Unregister: %v", err)
			}
			control[wHold].Store(0)
			var de *DriverError
			r := f.wait(out)
			if !errors.Is(r.Err, ErrOutOfMemory) || !errors.As(r.Err, &de) || r.Bytes != 0 || r.Unsettled {
				t.Errorf("%+v", r)
			}
			if n := control[wCopies].Load() - copies; n != 200 {
				t.Errorf("%d copies, want 200", n)
			}
			f.copy(ToHost, seq(300), seq(300))
			if s := d.Stats(); s.Batches != 2 || s.Failed != 1 || s.Spans != 300 {
				t.Errorf("stats %+v", s)
			}
		})
	}
}

func TestRefusedNotice(t *testing.T) {
	d := openDouble(t, Options{})
	f := newFixture(t, d, 0, 256, 4096)
	f.fill(5)
	want := bytes.Clone(f.mem)
	control[wFailHost].Store(2)
	f.copy(ToDevice, seq(256), seq(256))
	clear(f.mem)
	f.copy(ToHost, seq(256), seq(256))
	if !bytes.Equal(f.mem, want) {
		t.Error("other bytes came back")
	}
	if n := d.Stats().SlowNotifications; n != 8 {
		t.Errorf("%d parts waited for, want 8", n)
	}
}

// The loss of a device ends its batches, unsettled, and leaves others alone.
func TestLostDevice(t *testing.T) {
	for _, tt := range []struct {
		name string
		lose func()
	}{
		{"while copying", func() {}},
		{"at a copy", func() { control[wFailCopy].Store(719) }},
		{"at a notice", func() { control[wFailHost].Store(719) }},
	} {
		for _, foreign := range []uint64{0, 1} {
			t.Run(fmt.Sprintf("%s, %d others", tt.name, foreign), func(t *testing.T) {
				path := double(t)
				fds := descriptors(t)
				d, err := Open(Options{Library: path})
				if err != nil {
					t.Fatal(err)
				}
				bad, good := newFixture(t, d, 1, 256, 4096), newFixture(t, d, 0, 256, 4096)
				spare := newFixture(t, d, 1, 1, 4096)
				control[wForeign].Store(foreign)
				control[wStickyDevice].Store(1)
				control[wHold].Store(1)
				calls := control[wHostCalls].Load()
				first := bad.start(ToHost, seq(256), seq(256))
				eventually(t, "4 parts in flight", func() bool { return control[wHostCalls].Load() == calls+4 })
				tt.lose()
				var second <-chan Result
				if tt.name != "while copying" {
					second = bad.start(ToHost, seq(1), seq(1))
					eventually(t, "the device's loss", func() bool { return d.Stats().LostDevices == 1 || control[wSyncs].Load() > 0 })
				}
				control[wSticky].Store(719)
				r := bad.wait(first)
				if !errors.Is(r.Err, ErrDeviceLost) || !r.Unsettled || r.Bytes != 0 {
					t.Errorf("in flight: %+v", r)
				}
				if second != nil {
					if r := bad.wait(second); !errors.Is(r.Err, ErrDeviceLost) {
						t.Errorf("at the loss: %+v", r)
					}
				}
				control[wHold].Store(0)
				control[wFailHost].Store(0)
				if err := d.Submit(bad.copyOf(ToDevice, seq(1), seq(1), func(Result) {})); !errors.Is(err, ErrDeviceLost) || !strings.Contains(err.Error(), "device 1") {
					t.Errorf("Submit: %v", err)
				}
				if _, err := d.Alloc(1, 10); !errors.Is(err, ErrDeviceLost) {
					t.Errorf("Alloc: %v", err)
				}
				if err := d.Unregister(bad.mem); !errors.Is(err, ErrBusy) || !errors.Is(err, ErrDeviceLost) {
					t.Errorf("Unregister: %v", err)
				}
				if err := d.Unregister(spare.mem); err != nil {
					t.Errorf("Unregister of memory no batch used: %v", err)
				}
				good.copy(ToDevice, seq(256), seq(256))
				if s := d.Stats(); s.LostDevices != 1 || s.UnsettledBatches == 0 || s.InFlight != 0 {
					t.Errorf("stats %+v", s)
				}
				err = d.Close()
				if foreign == 0 && err != nil {
					t.Errorf("Close, with the context gone: %v", err)
				}
				if foreign != 0 && (!errors.Is(err, ErrBusy) || !errors.Is(err, ErrDeviceLost) || control[wRegistrations].Load() != 1) {
					t.Errorf("Close, with the context alive: %v, %d registrations", err, control[wRegistrations].Load())
				}
				if n := control[wStreams].Load() + control[wContexts].Load() + control[wViolations].Load(); n != 0 {
					t.Errorf("%d streams, contexts and violations left", n)
				}
				if got := descriptors(t); got != fds+int(foreign) {
					t.Errorf("%d descriptors, before %d", got, fds)
				}
			})
		}
	}
}

// C says nothing when compiled with all warnings.
func TestCodeCompilesWithoutWarnings(t *testing.T) {
	needDouble(t)
	files, _ := filepath.Glob("*_cgo.c")
	for _, f := range files {
		out, err := exec.Command("gcc", "-Wall", "-Wextra", "-Werror", "-O2", "-c", "-o", "/dev/null", f).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", f, err, out)
		}
	}
}
