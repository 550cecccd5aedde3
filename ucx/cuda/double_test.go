//go:build linux && cgo && ucx

package cuda

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Words of the double's control file, as testdata/libcuda_double.c lists them.
const (
	wAllocs = iota
	wAllocBytes
	wRegistrations
	wStreams
	wContexts
	wCopies
	wBatchCalls
	wHostCalls
	wSyncs
	wQueries
	wMaxStreams
	wViolations
	wDevices
	wFailAlloc
	wFailCopy
	wFailAfter
	wFailRegister
	wFailHost
	wFailBatch
	wFailStream
	wSticky
	wStickyDevice
	wHold
	wDelay
	wFailInit
	wNoHostPointers
	wForeign
	wReset
	wLinger
	words
)

var (
	libraries  string // directory of the doubles
	noDouble   string // why there are none
	realDriver string // the machine's driver, when it has devices
	control    *[words]atomic.Uint64
)

func TestMain(m *testing.M) {
	if info, err := Probe(Options{}); err == nil && len(info.Devices) > 0 {
		realDriver = info.Library
	}
	dir, err := os.MkdirTemp("", "cuda")
	if err != nil {
		panic(err)
	}
	libraries = dir
	if err := mapControl(filepath.Join(dir, "control")); err != nil {
		panic(err)
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		noDouble = "no gcc to build a double of the CUDA driver: apt-get install gcc libc6-dev"
	} else if err := buildDouble("double.so"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

func mapControl(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(words * 8); err != nil {
		return err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, words*8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	control = (*[words]atomic.Uint64)(unsafe.Pointer(&mem[0]))
	return os.Setenv("KVCR_CUDA_DOUBLE", path)
}

// buildDouble compiles the double. Flags may rename functions, so that a library
// lacks them.
func buildDouble(name string, flags ...string) error {
	args := append([]string{"-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-pthread"}, flags...)
	args = append(args, "-o", filepath.Join(libraries, name), "testdata/libcuda_double.c")
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("gcc %v: %w\n%s", args, err, out)
	}
	return nil
}

func needDouble(t testing.TB) {
	t.Helper()
	if noDouble != "" {
		t.Skip(noDouble)
	}
}

// double is the path of the double, with its orders and counters at zero.
func double(t testing.TB) string {
	t.Helper()
	needDouble(t)
	for i := range control {
		control[i].Store(0)
	}
	control[wReset].Store(1) // a test of a lost device leaves memory in use
	return filepath.Join(libraries, "double.so")
}

// openDouble opens the double and checks at the end that all was given back.
func openDouble(t testing.TB, o Options) *Driver {
	t.Helper()
	o.Library = double(t)
	d, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		control[wHold].Store(0)
		if err := d.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		checkDouble(t)
	})
	return d
}

func checkDouble(t testing.TB) {
	t.Helper()
	for _, w := range []struct {
		word int
		name string
	}{{wAllocs, "allocations"}, {wAllocBytes, "bytes allocated"}, {wRegistrations, "registrations"},
		{wStreams, "streams"}, {wContexts, "contexts"}, {wViolations, "violations"}} {
		if n := control[w.word].Load(); n != 0 {
			t.Errorf("%d %s left", n, w.name)
		}
	}
}

// openAny opens the machine's driver, or the double where it has none.
func openAny(t testing.TB, o Options) *Driver {
	t.Helper()
	if realDriver == "" {
		t.Log("on the double of the CUDA driver")
		return openDouble(t, o)
	}
	t.Logf("on the real driver %s", realDriver)
	d, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return d
}

// eventually waits for what another thread does.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); !ok(); time.Sleep(200 * time.Microsecond) {
		if time.Now().After(end) {
			buf := make([]byte, 1<<16)
			t.Fatalf("%s: not within 5 s\n%s", what, buf[:runtime.Stack(buf, true)])
		}
	}
}

func descriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc/self/fd")
	}
	return len(list)
}
