//go:build linux && cgo && ucx

package cuda

import (
	"errors"
	"runtime"
	"testing"
	"time"
)

// With nothing in flight nobody asks the driver anything; with something in
// flight somebody does.
func TestIdleDriverIsQuiet(t *testing.T) {
	d := openDouble(t, Options{Devices: []int{0}})
	f := newFixture(t, d, 0, 4, 4096)
	control[wHold].Store(1)
	out := f.start(ToHost, seq(4), seq(4))
	eventually(t, "a look at the streams", func() bool { return control[wQueries].Load() >= maxStreams })
	control[wHold].Store(0)
	f.wait(out)
	state := func() (uint64, int) {
		d.mu.Lock()
		defer d.mu.Unlock()
		return control[wQueries].Load(), d.turns
	}
	time.Sleep(5 * time.Millisecond) // the watcher has been told
	queries, turns := state()
	time.Sleep(3 * watchPeriod)
	if q, n := state(); q != queries || n > turns+1 {
		t.Errorf("idle: %d questions, %d turns of the watcher", q-queries, n-turns)
	}
	if n := control[wSyncs].Load(); n != 0 {
		t.Errorf("%d blocking waits", n)
	}
}

// Close is bounded, ends what the driver does not have yet, and waits for the
// rest; goroutines and descriptors are then back where they were.
func TestCloseWithCopiesInFlight(t *testing.T) {
	path := double(t)
	before, fds := runtime.NumGoroutine(), descriptors(t)
	d, err := Open(Options{Library: path, CloseTimeout: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, d, 0, 256, 4096)
	f.fill(1)
	control[wHold].Store(1)
	calls := control[wHostCalls].Load()
	flying := f.start(ToDevice, seq(256), seq(256))
	eventually(t, "4 parts in flight", func() bool { return control[wHostCalls].Load() == calls+4 })
	var be *BusyError
	for range 2 {
		start := time.Now()
		if err := d.Close(); !errors.As(err, &be) || be.InFlight != 1 || time.Since(start) > 2*time.Second {
			t.Errorf("Close: %v after %v", err, time.Since(start))
		}
	}
	if control[wRegistrations].Load() != 1 || control[wAllocs].Load() != 1 {
		t.Error("memory in flight was given back")
	}
	control[wHold].Store(0)
	if r := f.wait(flying); r.Err != nil {
		t.Errorf("in flight at Close: %+v", r)
	}
	eventually(t, "Close", func() bool { return d.Close() == nil })
	checkDouble(t)
	eventually(t, "goroutines", func() bool { return runtime.NumGoroutine() <= before })
	if got := descriptors(t); got != fds {
		t.Errorf("%d descriptors, before %d", got, fds)
	}
}

// A notice that was seen may come from a call still under way, which Close waits
// for: it uses what Close gives back.
func TestCloseWaitsForNoticesToReturn(t *testing.T) {
	d := openDouble(t, Options{Devices: []int{0}})
	f := newFixture(t, d, 0, 4, 4096)
	control[wLinger].Store(20000)
	f.copy(ToHost, seq(4), seq(4))
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	checkDouble(t)
}

// Batches that wait behind one whose issue blocks end with ErrClosed.
func TestCloseEndsQueuedBatches(t *testing.T) {
	d := openDouble(t, Options{Devices: []int{0}})
	f := newFixture(t, d, 0, 4, 4096)
	control[wHold].Store(1)
	control[wFailHost].Store(2) // so that the first batch is waited for by its issuer
	syncs := control[wSyncs].Load()
	first := f.start(ToDevice, seq(4), seq(4))
	eventually(t, "a blocked issuer", func() bool { return control[wSyncs].Load() > syncs })
	queued := []<-chan Result{f.start(ToHost, seq(4), seq(4)), f.start(ToHost, seq(1), seq(1))}
	closed := make(chan error, 1)
	go func() { closed <- d.Close() }()
	eventually(t, "closing", func() bool { _, err := d.PointerInfo(0); return errors.Is(err, ErrClosed) })
	control[wHold].Store(0)
	if r := f.wait(first); r.Err != nil {
		t.Errorf("in flight: %+v", r)
	}
	for _, out := range queued {
		if r := f.wait(out); !errors.Is(r.Err, ErrClosed) || r.Unsettled {
			t.Errorf("queued: %+v", r)
		}
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// Done may submit the next batch, also at the cap.
func TestDoneSubmits(t *testing.T) {
	d := openDouble(t, Options{MaxBatches: 1})
	f := newFixture(t, d, 0, 4, 4096)
	out := make(chan error, 1)
	left := 20
	var next func(Result)
	next = func(r Result) {
		if left--; left == 0 || r.Err != nil {
			out <- r.Err
			return
		}
		if err := d.Submit(f.copyOf(ToHost, seq(4), seq(4), next)); err != nil {
			out <- err
		}
	}
	if err := d.Submit(f.copyOf(ToHost, seq(4), seq(4), next)); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-out:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the chain of batches broke")
	}
}

// A batch is on its way while Submit's caller goes on.
func TestSubmitDoesNotWait(t *testing.T) {
	d := openDouble(t, Options{Devices: []int{0}})
	f := newFixture(t, d, 0, 64, 4096)
	control[wHold].Store(1)
	done := make(chan (<-chan Result))
	go func() { done <- f.start(ToDevice, seq(64), seq(64)) }()
	select {
	case out := <-done:
		control[wHold].Store(0)
		f.wait(out)
	case <-time.After(10 * time.Second):
		t.Fatal("Submit waits for the device")
	}
}
