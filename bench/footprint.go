package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/arena"
)

// countAllocs counts Go allocations for each hit, miss and set.
func countAllocs(ctx context.Context, o Options, rep *Report) error {
	const ops = 20_000
	s := Shape{Capacity: 16 << 20, ValueSize: 64, Keys: 10_000}
	hits := newWalk(NewZipf(s.Keys, 0.99, 1), ops, 100)
	absent := make([]uint32, ops)
	for i := range absent {
		absent[i] = uint32(s.Keys + i)
	}
	misses := &walk{NewKeys(absent), make([]bool, ops)}
	for _, p := range append([]Peer{peerKVCR}, Peers()...) {
		o.Progress("allocations: " + p.Name)
		b, err := openBay(ctx, p, s, 1)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		for _, c := range []struct {
			op   string
			walk *walk
			do   func(*lane, int) error
		}{{"hit", hits, (*lane).views}, {"miss", misses, (*lane).views}, {"set", hits, (*lane).sets}} {
			r := rep.result(Result{Suite: "engine", Name: "allocs", Params: []Param{{"op", c.op}}, Unit: "allocs/op", Better: Lower, Bar: Bar{HasLimit: true}})
			for range o.Runs {
				l := &lane{worker: b.lanes[0].worker, values: b.lanes[0].values, walk: c.walk}
				n, err := mallocs(func() error { return c.do(l, ops) })
				if err != nil {
					return errors.Join(fmt.Errorf("%s: %w", p.Name, err), b.close())
				}
				sr := r.series(p.Name)
				sr.Rival = p.Name != ours
				// Two digits: the process itself allocates a little meanwhile.
				sr.Runs = append(sr.Runs, math.Floor(100*float64(n)/ops)/100)
			}
		}
		if err := b.close(); err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	return nil
}

// mallocs counts the allocations of the process while f runs.
func mallocs(f func() error) (uint64, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := f()
	runtime.ReadMemStats(&after)
	return after.Mallocs - before.Mallocs, err
}

// measureRSS measures the memory that a cache really takes after a mix of
// reads and writes, against its capacity.
func measureRSS(ctx context.Context, o Options, rep *Report) error {
	const size = 64 << 10
	s := shapeOf(o, size)
	walks := walksFor(o, s.Keys, 50)
	r := rep.result(Result{Suite: "engine", Name: "rss", Params: []Param{{"size", size}}, Unit: "of capacity", Better: Lower, Bar: Bar{Limit: 1.06, HasLimit: true}})
	peers := []Peer{peerKVCR}
	for _, p := range Peers() {
		if p.Holds(s) && (!o.Quick || p.Name == "otter") {
			peers = append(peers, p)
		}
	}
	for _, p := range peers {
		o.Progress("resident memory: " + p.Name)
		debug.FreeOSMemory()
		before, err := residentBytes("/proc/self/status")
		if err != nil {
			return err
		}
		b, err := openBay(ctx, p, s, o.Workers)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		_, _, err = b.measure(ctx, walks, 3*o.span(), (*lane).mix)
		after, errAfter := residentBytes("/proc/self/status")
		if err := errors.Join(err, errAfter, b.close()); err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		sr := r.series(p.Name)
		sr.Rival = p.Bounded && p.Name != ours
		sr.Runs = append(sr.Runs, float64(after-before)/float64(s.Capacity))
		sr.Note = fmt.Sprintf("%d MiB", (after-before)>>20)
	}
	return nil
}

// residentBytes reads a process's resident memory, explicit huge pages
// included, which the kernel counts apart.
func residentBytes(status string) (int64, error) {
	return statusBytes(status, "VmRSS", "HugetlbPages")
}

// statusBytes sums fields of a process's status file. The first must be there.
func statusBytes(status string, fields ...string) (int64, error) {
	f, err := os.Open(status)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var sum int64
	found := false
	for sc := bufio.NewScanner(f); sc.Scan(); {
		name, value, _ := strings.Cut(sc.Text(), ":")
		if !slices.Contains(fields, name) {
			continue
		}
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %s: %w", status, name, err)
		}
		sum += kb << 10
		found = found || name == fields[0]
	}
	if !found {
		return 0, fmt.Errorf("%s: no %s", status, fields[0])
	}
	return sum, nil
}

// measureMetadata reports the index and record memory for each block.
func measureMetadata(_ context.Context, o Options, rep *Report) error {
	o.Progress("metadata for each block")
	const block = 4 << 10
	blocks := int(o.Capacity / block)
	e, err := kvcr.Open(kvcr.Config{Capacity: o.Capacity, Namespaces: []kvcr.Namespace{{Name: "m", Pools: []kvcr.Pool{{SlotBytes: block}}}}})
	if err != nil {
		return err
	}
	plan := e.MemoryPlan()
	r := rep.result(Result{Suite: "engine", Name: "metadata", Params: []Param{{"blocks", blocks}}, Unit: "bytes/block", Better: Lower, Bar: Bar{Limit: 112, HasLimit: true}})
	s := r.series(ours)
	s.Runs = []float64{plan.BlockBytes}
	s.Note = fmt.Sprintf("%.1f with long keys, rings and policy tables", float64(plan.MetadataBytes)/float64(blocks))
	return e.Close()
}

// measureGCPause measures stop-the-world pauses of the collector while ten
// million blocks are resident, and without them. It needs some 2.5 GiB.
func measureGCPause(ctx context.Context, o Options, rep *Report) error {
	const blocks = 10_000_000
	pause := func(stat string, bar Bar) Result {
		return Result{Suite: "engine", Name: "gc-pause", Params: []Param{{"blocks", blocks}, {"stat", stat}}, Unit: "us", Better: Lower, Bar: bar}
	}
	if !o.Big {
		rep.absent(pause("p99", Bar{Times: pauseNoise}), "--big measures it, in a full run")
		return nil
	}
	if free, from := arena.DefaultSize(); free < pauseMemory {
		rep.absent(pause("p99", Bar{Times: pauseNoise}), fmt.Sprintf("needs %d MiB of memory, there are %d (%s)", int64(pauseMemory)>>20, free>>20, from))
		return nil
	}
	for _, impl := range []string{"no-cache", ours, "no-cache-again"} {
		o.Progress("pauses of the collector: " + impl)
		stop := func() error { return nil }
		if impl == ours {
			b, err := openBay(ctx, peerKVCR, Shape{Capacity: blocks * 128, ValueSize: 64, Keys: blocks}, 1)
			if err != nil {
				return err
			}
			stop = b.close
		}
		for range o.Runs {
			p := collect(ctx, 2*time.Second)
			for _, stat := range []struct {
				name  string
				value float64
				bar   Bar
			}{{"p99", p.p99, Bar{Times: pauseNoise}}, {"max", p.max, Bar{}}} {
				r := rep.result(pause(stat.name, stat.bar))
				s := r.series(impl)
				s.Rival = impl != ours
				s.Runs = append(s.Runs, stat.value)
				s.Note = fmt.Sprintf("%d pauses", p.n)
			}
		}
		if err := stop(); err != nil {
			return err
		}
	}
	return nil
}

// pauseNoise is what two runs without a cache differ by: a p99 within it is no
// measurable difference.
const pauseNoise = 0.7

// pauseMemory is what ten million blocks take, and some.
const pauseMemory = 3 << 30

// pauses are in microseconds.
type pauses struct {
	p99, max float64
	n        uint64
}

// collect makes garbage for d, in a live heap of 64 MiB that keeps the
// collector running, and returns the pauses of that time.
func collect(ctx context.Context, d time.Duration) pauses {
	live := make([][]byte, 64<<10)
	before := pauseHistogram()
	for start, i := time.Now(), 0; time.Since(start) < d && ctx.Err() == nil; i++ {
		live[i%len(live)] = make([]byte, 1<<10)
	}
	return pausesBetween(before, pauseHistogram())
}

func pauseHistogram() *metrics.Float64Histogram {
	sample := []metrics.Sample{{Name: "/sched/pauses/total/gc:seconds"}}
	metrics.Read(sample)
	h := sample[0].Value.Float64Histogram()
	return &metrics.Float64Histogram{Counts: append([]uint64(nil), h.Counts...), Buckets: h.Buckets}
}

// pausesBetween reads the pauses that after has and before has not; a pause
// counts as the upper end of its bucket.
func pausesBetween(before, after *metrics.Float64Histogram) pauses {
	var p pauses
	for i := range after.Counts {
		p.n += after.Counts[i] - before.Counts[i]
	}
	var seen uint64
	for i := range after.Counts {
		n := after.Counts[i] - before.Counts[i]
		if n == 0 {
			continue
		}
		top := after.Buckets[i+1] * 1e6
		if math.IsInf(top, 1) {
			top = after.Buckets[i] * 1e6
		}
		if 100*seen < 99*p.n {
			p.p99 = top
		}
		p.max = top
		seen += n
	}
	return p
}
