package kvcr

import (
	"bytes"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Pinned owners run on their CPUs, do all the work themselves, and give the
// right answers; idle, they use no processor time.
func TestPinnedOwners(t *testing.T) {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil || !allowed.IsSet(0) {
		t.Skipf("CPU 0 is not ours to pin to: %v", err)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	e := open(t, Config{Capacity: 8 << 20, Shards: 2, Pin: []int{0, 0}})
	var wg sync.WaitGroup
	for g := range 3 {
		h := handle(t, e)
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 300 {
				k, v := keyOf(1000*g+i), stamped(uint64(i), 100+20*i)
				if err := h.Set(k, v); err != nil {
					t.Errorf("Set: %v", err)
				}
				if got, ok := h.AppendTo(nil, k); !ok || !bytes.Equal(got, v) {
					t.Errorf("key %d of %d: found %v, right %v", i, g, ok, bytes.Equal(got, v))
				}
			}
		}()
	}
	wg.Wait()
	if n := stats(t, e).Namespaces[0].PinnedOwners; n != 2 {
		t.Errorf("%d owners are pinned, want 2", n)
	}
	cpu := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	runtime.GC()
	before := cpu()
	time.Sleep(200 * time.Millisecond)
	if used := cpu() - before; used > 50*time.Millisecond {
		t.Errorf("idle for 200 ms, the process used %v of processor time", used)
	}
}
