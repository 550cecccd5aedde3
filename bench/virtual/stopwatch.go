package virtual

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Part is one of those whose cost is told apart.
type Part uint8

// The parts. Simulation is the block tables, the clock, the picking of targets and
// whatever else has no counterpart in a product; Collector is what Go's collector does
// beside the run.
const (
	Plan     Part = iota // the router's lookup, choices for all targets, and the envelope
	Apply                // inventory events into the router's index
	Hints                // a node's dispatcher, advice and outcomes
	Machines             // the peer machines of both sides, hashes resolved included
	Messages             // encoding and parsing what these send
	Simulation
	Collector
	parts
)

// Parts are those of the product.
var Parts = []Part{Plan, Apply, Hints, Machines, Messages}

var partNames = [parts]string{"planner", "events", "hints", "peers", "messages", "simulation", "collector"}

func (p Part) String() string { return partNames[p] }

// stopwatch tells the processor time of one goroutine apart by parts, on one thread from
// start to stop. At every change of the part it reads a clock that also goes on while
// the thread has no processor. So after a stretch that is long it asks how much
// processor time the thread has had since it last asked, and what is missing was
// missing in that stretch: shorter ones were not interrupted.
type stopwatch struct {
	now      Part
	base     time.Time
	last     time.Duration
	spent    [parts]time.Duration
	changes  [parts]int
	asked    time.Duration // when it did so last
	thread   time.Duration // processor time then
	process  time.Duration // at start
	own      time.Duration // of the thread, at start
	overhead time.Duration // of one change
}

// long is a stretch of which most are no interruption, and after which it costs little
// to ask.
const long = 20 * time.Microsecond

// to begins a part, and returns the one that it ends.
func (w *stopwatch) to(p Part) (before Part) {
	now := time.Since(w.base)
	d := now - w.last
	if d > long {
		d = max(0, d-w.missing(now))
	}
	w.spent[w.now] += d
	w.changes[w.now]++
	w.last = now
	before, w.now = w.now, p
	return before
}

// missing is how long the thread has had no processor since it was last asked.
func (w *stopwatch) missing(now time.Duration) time.Duration {
	thread := cpuTime(unix.CLOCK_THREAD_CPUTIME_ID)
	missing := (now - w.asked) - (thread - w.thread)
	w.asked, w.thread = now, thread
	return max(0, missing)
}

// start begins anew, with Simulation. The caller must have locked its thread.
func (w *stopwatch) start() {
	*w = stopwatch{now: Simulation, overhead: costOfChange()}
	w.process = cpuTime(unix.CLOCK_PROCESS_CPUTIME_ID)
	w.own = cpuTime(unix.CLOCK_THREAD_CPUTIME_ID)
	w.thread, w.base = w.own, time.Now()
}

// costOfChange is what a change of the part costs: the least of some tries.
func costOfChange() time.Duration {
	const n = 1000
	least := time.Hour
	for range 5 {
		w := stopwatch{base: time.Now()}
		for range n {
			w.to(Simulation)
		}
		least = min(least, time.Since(w.base)/n)
	}
	return least
}

// stop returns the processor time of each part, without that of the stopwatch.
func (w *stopwatch) stop() (spent [parts]time.Duration) {
	w.to(Simulation)
	for p := range w.spent {
		// Each stretch of a part has the end of the change that begins it and the
		// begin of that which ends it.
		spent[p] = max(0, w.spent[p]-time.Duration(w.changes[p])*w.overhead)
	}
	thread := cpuTime(unix.CLOCK_THREAD_CPUTIME_ID) - w.own
	spent[Collector] = max(0, cpuTime(unix.CLOCK_PROCESS_CPUTIME_ID)-w.process-thread)
	return spent
}

func cpuTime(clock int32) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(clock, &t); err != nil {
		return 0 // Linux has both clocks
	}
	return time.Duration(t.Nano())
}

// heapBytes is what is reachable now.
func heapBytes() int64 {
	runtime.GC()
	runtime.GC() // what was waiting to be finalised, or lay in a pool
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
