package virtual

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Time without a processor is nobody's, and what others use it for is not ours.
func TestStopwatch(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	work := func(d time.Duration) {
		for end := cpuTime(unix.CLOCK_THREAD_CPUTIME_ID) + d; cpuTime(unix.CLOCK_THREAD_CPUTIME_ID) < end; {
		}
	}
	var w stopwatch
	w.start()
	for range 5 {
		if was := w.to(Plan); was != Simulation {
			t.Fatalf("before it was %v", was)
		}
		time.Sleep(5 * time.Millisecond)
		w.to(Apply)
		work(4 * time.Millisecond)
		w.to(Hints)
		work(2 * time.Millisecond)
		time.Sleep(2 * time.Millisecond)
		w.to(Simulation)
	}
	for range 100_000 { // of many that do nothing not much is left
		w.to(Messages)
		w.to(Simulation)
	}
	spent := w.stop()
	if all := w.spent[Messages]; spent[Messages] > all/2 {
		t.Errorf("of %v that changes have cost %v are left", all, spent[Messages])
	}
	for p, want := range map[Part]time.Duration{Plan: 0, Apply: 20 * time.Millisecond, Hints: 10 * time.Millisecond} {
		if d := spent[p]; d < want || d > want+3*time.Millisecond {
			t.Errorf("%v has cost %v, want %v", p, d, want)
		}
	}
}
