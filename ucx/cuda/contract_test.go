package cuda

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// What holds in every build: nothing opens without a driver, and the error says
// which of the reasons it is.
func TestNothingOpensWithoutADriver(t *testing.T) {
	const path = "/nonexistent/libcuda.so.1"
	_, probed := Probe(Options{Library: path})
	d, opened := Open(Options{Library: path})
	if d != nil {
		t.Fatal("a Driver without a library")
	}
	for _, err := range []error{probed, opened} {
		switch {
		case errors.Is(err, ErrNotBuilt):
			if !strings.Contains(err.Error(), "-tags ucx") {
				t.Errorf("%v does not say how to build it", err)
			}
		case errors.Is(err, ErrNoDriver):
			if !strings.Contains(err.Error(), path) {
				t.Errorf("%v does not name %s", err, path)
			}
		default:
			t.Errorf("err = %v, want ErrNotBuilt or ErrNoDriver", err)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, o := range []Options{
		{MaxBatches: -1}, {MaxBatches: 4097}, {MaxSpans: -1}, {MaxSpans: 1<<20 + 1},
		{HostLimit: -1}, {HostChunk: 100}, {HostChunk: -4096}, {CloseTimeout: -time.Second},
		{Devices: []int{-1}}, {Devices: []int{0, 1, 0}},
	} {
		var oe *OptionError
		if _, err := Open(o); !errors.As(err, &oe) || oe.Fix == "" {
			t.Errorf("%+v: %v, want an OptionError", o, err)
		}
	}
}

func TestLibraryComesFromTheEnvironment(t *testing.T) {
	t.Setenv("KVCR_LIBCUDA", "/a/b.so")
	if got := (Options{}).withDefaults().Library; got != "/a/b.so" {
		t.Errorf("library %q", got)
	}
	if got := (Options{Library: "c.so"}).withDefaults().Library; got != "c.so" {
		t.Errorf("library %q, the option should win", got)
	}
	t.Setenv("KVCR_LIBCUDA", "")
	if got := (Options{}).withDefaults().Library; got != "libcuda.so.1" {
		t.Errorf("library %q", got)
	}
}

func TestDriverErrorsAreConditions(t *testing.T) {
	for code, want := range map[int]error{
		2: ErrOutOfMemory, 34: ErrNoDriver, 100: ErrNoDevice, 101: ErrNoDevice, 719: ErrDeviceLost, 700: ErrDeviceLost, 999: ErrDeviceLost,
	} {
		err := error(&DriverError{Call: "cuInit", Code: code})
		for _, cond := range []error{ErrOutOfMemory, ErrNoDriver, ErrNoDevice, ErrDeviceLost, ErrBusy} {
			if errors.Is(err, cond) != (cond == want) {
				t.Errorf("code %d is %v: %t", code, cond, errors.Is(err, cond))
			}
		}
	}
	if err := error(&DriverError{Code: 600}); errors.Is(err, ErrDeviceLost) {
		t.Error("a device that is not ready yet counts as lost")
	}
}
