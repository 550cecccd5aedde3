//go:build linux

package blockcopy

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const arenaBytes = 1 << 30

// coldArena is mapped once and walked around: whatever is next has left every
// cache but a very large shared one.
var coldArena = sync.OnceValues(func() (*walk, error) {
	mem, err := unix.Mmap(-1, 0, arenaBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE) // advice: without it the numbers hold, with more noise
	for i := 0; i < len(mem); i += 4096 {
		mem[i] = 1
	}
	return &walk{mem: mem}, nil
})

type walk struct {
	mem []byte
	at  int
}

func (w *walk) next(n int) []byte {
	if w.at+n > len(w.mem) {
		w.at = 0
	}
	b := w.mem[w.at:][:n:n]
	w.at += n
	return b
}

// blocks are the caller's side: 16 different buffers of n bytes.
func blocks(n int) [][]byte {
	bs := make([][]byte, 16)
	for i := range bs {
		bs[i] = aligned(n)
		for j := range bs[i] {
			bs[i][j] = byte(i + j*7)
		}
	}
	return bs
}

var benchSink uint64

var (
	goCopy  = contender{"go-copy", func(d, s []byte) { copy(d, s) }}
	putters = []contender{
		goCopy,
		{"chunked", through},
		{"Copy", Copy},
		{"go-copy+Sum", func(d, s []byte) { copy(d, s); benchSink += Sum(s) }},
		{"CopySum", func(d, s []byte) { benchSink += CopySum(d, s) }},
	}
	getters = []contender{
		goCopy,
		{"chunked", through},
		{"stream", stream},
		{"CopyOut", CopyOut},
	}
	summers = []contender{
		{"xxh3-library", func(_, s []byte) { benchSink += refSum(s) }},
		{"Sum", func(_, s []byte) { benchSink += Sum(s) }},
		{"Summer-16KiB", func(_, s []byte) {
			var h Summer
			for len(s) > 16<<10 {
				h.Update(s[:16<<10])
				s = s[16<<10:]
			}
			h.Update(s)
			benchSink += h.Sum64()
		}},
	}
)

// race runs the contenders by turns, a turn of about 16 MiB, one b.Loop
// iteration a round, and reports for each the median GB/s and its ratio to the
// first. One pass: numbers of different passes are not comparable on a shared
// machine. The seconds are the process's processor time, which leaves out what
// neighbours on the same processors take, though not their share of memory.
func race(b *testing.B, size int, cs []contender, args func(c, i int) (dst, src []byte)) {
	turn := max(1, 16<<20/size)
	speed := make([][]float64, len(cs))
	for b.Loop() {
		for c := range cs {
			t0 := cpuTime()
			for i := range turn {
				cs[c].f(args(c, i))
			}
			speed[c] = append(speed[c], float64(turn*size)/float64(cpuTime()-t0))
		}
	}
	first := 0.0
	for c := range cs {
		slices.Sort(speed[c])
		m := speed[c][len(speed[c])/2]
		if c == 0 {
			first = m
		}
		b.ReportMetric(m, cs[c].impl+"-GB/s")
		b.ReportMetric(m/first, cs[c].impl+"-ratio")
	}
	b.ReportMetric(0, "ns/op")
}

func cpuTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

var benchSizes = []int{4 << 10, 16 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20}

// BenchmarkPut: a caller's block to a cold place in the arena.
func BenchmarkPut(b *testing.B) { benchMoves(b, putters, true) }

// BenchmarkGet: a cold block of the arena to a caller's buffer.
func BenchmarkGet(b *testing.B) { benchMoves(b, getters, false) }

// BenchmarkSum: a caller's block, read only.
func BenchmarkSum(b *testing.B) { benchMoves(b, summers, true) }

func benchMoves(b *testing.B, cs []contender, put bool) {
	arena, err := coldArena()
	if err != nil {
		b.Skip("no 1 GiB mapping:", err)
	}
	for _, size := range benchSizes {
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			if put {
				bs := blocks(size)
				race(b, size, cs, func(_, i int) (dst, src []byte) { return arena.next(size), bs[i%16] })
				return
			}
			// Buffers of its own for each contender: streaming stores to
			// lines that another one left in a cache would pay for them.
			bs := make([][][]byte, len(cs))
			for c := range bs {
				bs[c] = blocks(size)
			}
			race(b, size, cs, func(c, i int) (dst, src []byte) { return bs[c][i%16], arena.next(size) })
		})
	}
}

// BenchmarkPutGet: a block is put and read back at once, which is where
// streaming loses what it gained; streamMin is where it no longer does.
func BenchmarkPutGet(b *testing.B) {
	arena, err := coldArena()
	if err != nil {
		b.Skip("no 1 GiB mapping:", err)
	}
	for _, size := range []int{2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10} {
		bs, out := blocks(size), aligned(size)
		back := func(put func(d, s []byte)) func(d, s []byte) {
			return func(d, s []byte) { put(d, s); CopyOut(out, d) }
		}
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			race(b, size, []contender{
				{"go-copy", back(goCopy.f)},
				{"stream", back(stream)},
				{"go-copy-put-only", goCopy.f},
				{"stream-put-only", stream},
			}, func(_, i int) (dst, src []byte) { return arena.next(size), bs[i%16] })
		})
	}
}

// BenchmarkTimer: by how much a 1 ms timer is late on two processors, one
// copying 2 MiB blocks, one in a tight loop.
func BenchmarkTimer(b *testing.B) {
	for _, c := range []contender{goCopy, {"Copy", Copy}, {"CopyOut", CopyOut}, {"CopySum", func(d, s []byte) { CopySum(d, s) }}} {
		b.Run("impl="+c.impl, func(b *testing.B) {
			late := timerLateness(min(2, runtime.NumCPU()), max(100, b.N), c.f)
			b.ReportMetric(float64(late[len(late)/2])/1e3, "p50-us")
			b.ReportMetric(float64(late[len(late)*99/100])/1e3, "p99-us")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// timerLateness returns, sorted, by how much n waits of 1 ms were late.
func timerLateness(procs, n int, move func(dst, src []byte)) []time.Duration {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
	const size = 2 << 20
	src, dst := aligned(size), aligned(16*size)
	var stop atomic.Bool // own word: no ordering needed
	var wg sync.WaitGroup
	wg.Add(2)
	go func() {
		defer wg.Done()
		for i := 0; !stop.Load(); i++ {
			move(dst[i%16*size:][:size], src)
		}
	}()
	go func() {
		defer wg.Done()
		for !stop.Load() { // ends when the measuring goroutine, which wakes by timer, sets stop
		}
	}()
	late := make([]time.Duration, n)
	for i := range late {
		t0 := time.Now()
		time.Sleep(time.Millisecond)
		late[i] = time.Since(t0) - time.Millisecond
	}
	stop.Store(true)
	wg.Wait()
	slices.Sort(late)
	return late
}
