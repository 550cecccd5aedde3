package plan_test

import (
	"flag"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

var benchBlocks = flag.Int("plan.blocks", 30_000, "blocks of each of the 64 workers of BenchmarkBeside and BenchmarkMemory")

// chains deals out chains of blocks without end, each of other hashes.
type chains struct{ n uint64 }

func (c *chains) next(length int) []events.Block {
	b := make([]events.Block, length)
	for i := range b {
		c.n++
		b[i] = events.Block{Hash: scramble(c.n), Local: scramble(c.n ^ 1<<60)}
	}
	return b
}

// scramble is splitmix64's finish: one to one.
func scramble(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// cut is a stored chain as events of some blocks each, and its removal from its end.
func cut(w events.Worker, chain []events.Block, size int) (stores, removes []events.RouterEvent) {
	for from := 0; from < len(chain); from += size {
		to := min(from+size, len(chain))
		ev := events.RouterEvent{Worker: w, Tier: events.HostPinned, Op: events.Stored, Blocks: chain[from:to]}
		rm := events.RouterEvent{Worker: w, Tier: events.HostPinned, Op: events.Removed}
		for _, b := range chain[from:to] {
			rm.Hashes = append(rm.Hashes, b.Hash)
		}
		slices.Reverse(rm.Hashes)
		if from > 0 {
			ev.HasParent, ev.Parent = true, chain[from-1].Hash
		}
		stores, removes = append(stores, ev), append(removes, rm)
	}
	slices.Reverse(removes)
	return stores, removes
}

// BenchmarkApply stores and removes chains on an index that holds a million other
// blocks, for 64 workers: an operation is a block stored and removed again, two block
// events. alone: chains of their own; shared: each chain by all of them in turn.
func BenchmarkApply(b *testing.B) {
	const workers, length = 64, 512
	for _, bm := range []struct {
		name   string
		size   int // blocks of an event
		shared bool
	}{{"chains=alone/blocks=64", 64, false}, {"chains=alone/blocks=1", 1, false}, {"chains=shared/blocks=64", 64, true}, {"chains=shared/blocks=1", 1, true}} {
		b.Run(bm.name, func(b *testing.B) {
			x := plan.New(plan.Config{})
			var c chains
			fill(b, x, &c, workers, 1<<20/workers, length)
			// Twice as many chains as are held at a time.
			var stores, removes [][]events.RouterEvent
			for range 8 {
				chain := c.next(length)
				for w := range workers {
					if !bm.shared {
						chain = c.next(length)
					}
					s, r := cut(events.Worker{ID: uint64(w)}, chain, bm.size)
					stores, removes = append(stores, s), append(removes, r)
				}
			}
			n := len(stores)
			apply := func(evs []events.RouterEvent) {
				for i := range evs {
					if err := x.Apply(&evs[i]); err != nil {
						b.Fatal(err)
					}
				}
			}
			for i := range n / 2 {
				apply(stores[i])
			}
			b.ResetTimer()
			cpu := cpuTime()
			done := 0
			for i := 0; done < b.N; i++ {
				apply(stores[(i+n/2)%n])
				apply(removes[i%n])
				done += length
			}
			b.StopTimer()
			b.ReportMetric(float64(2*done)/b.Elapsed().Seconds()/1e6, "Mblockevents/s")
			// What it would be if nobody else had the machine.
			b.ReportMetric(float64(2*done)/(cpuTime()-cpu).Seconds()/1e6, "Mblockevents/cpu-s")
		})
	}
}

// cpuTime is what this process has used.
func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// fill stores chains of their own for every worker.
func fill(tb testing.TB, x *plan.Index, c *chains, workers, blocks, length int) {
	for done := 0; done < blocks; done += length {
		for w := range workers {
			s, _ := cut(events.Worker{ID: uint64(w)}, c.next(min(length, blocks-done)), length)
			for i := range s {
				if err := x.Apply(&s[i]); err != nil {
					tb.Fatal(err)
				}
			}
		}
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkMemory says what an index takes for each (worker, block): for 64 workers
// with chains of their own, and with chains that all of them have.
func BenchmarkMemory(b *testing.B) {
	for _, bm := range []struct {
		name   string
		length int
		shared bool
	}{{"length=1000", 1000, false}, {"length=100", 100, false}, {"length=20", 20, false}, {"length=1000/shared", 1000, true}} {
		b.Run(bm.name, func(b *testing.B) {
			const workers = 64
			blocks := *benchBlocks
			for b.Loop() {
				before := heap()
				x := plan.New(plan.Config{})
				var c chains
				if bm.shared {
					for done := 0; done < blocks; done += bm.length {
						chain := c.next(bm.length)
						for w := range workers {
							s, _ := cut(events.Worker{ID: uint64(w)}, chain, 64)
							for i := range s {
								x.Apply(&s[i])
							}
						}
					}
				} else {
					fill(b, x, &c, workers, blocks, bm.length)
				}
				st := x.Stats()
				pairs := float64(st.Pairs[events.HostPinned])
				b.ReportMetric(float64(st.Bytes)/pairs, "B/pair")
				b.ReportMetric(float64(heap()-before)/pairs, "heap-B/pair")
				runtime.KeepAlive(x)
			}
		})
	}
}
