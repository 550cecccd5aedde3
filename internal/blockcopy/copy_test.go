package blockcopy

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// The three verbs in one form; the sum of a verb without one is not looked at.
var verbs = []struct {
	name string
	sums bool
	f    func(dst, src []byte) uint64
}{
	{"Copy", false, func(d, s []byte) uint64 { Copy(d, s); return 0 }},
	{"CopyOut", false, func(d, s []byte) uint64 { CopyOut(d, s); return 0 }},
	{"CopySum", true, CopySum},
	// The large forms at any size their contracts allow.
	{"stream", false, func(d, s []byte) uint64 { stream(d[:len(s)], s); return 0 }},
	{"gather", false, func(d, s []byte) uint64 { gather(d[:len(s)], s); return 0 }},
	{"streamSum", true, func(d, s []byte) uint64 {
		if len(s) <= 240 {
			return CopySum(d, s)
		}
		return streamSum(d[:len(s)], s)
	}},
}

const guard = 192 // over a step; keeps dst+0 aligned to every vector

// rig is a source of random bytes and a destination between guards, both
// page-aligned so that offsets mean the alignment they say.
type rig struct {
	src, dst, want, blank []byte
}

func newRig(most int) *rig {
	r := &rig{src: aligned(most + 4096), dst: aligned(most + 4096), want: make([]byte, most+4096), blank: make([]byte, most)}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range r.src {
		r.src[i] = byte(rng.Uint32())
	}
	for i := range r.blank {
		r.blank[i] = 0xA5
	}
	for _, b := range [][]byte{r.dst, r.want} {
		for len(b) > 0 {
			b = b[copy(b, r.blank):]
		}
	}
	return r
}

func aligned(n int) []byte {
	b := make([]byte, n+4096)
	return b[toAlign(b, 4096):][:n:n]
}

// check runs verb on n bytes at the two offsets, compares every byte between
// the guards and in them, and cleans up.
func (r *rig) check(t *testing.T, verb int, n, srcOff, dstOff int) {
	t.Helper()
	v := verbs[verb]
	src := r.src[srcOff : srcOff+n]
	lo, hi := guard+dstOff, guard+dstOff+n
	copy(r.want[lo:hi], src)
	sum := v.f(r.dst[lo:hi+7], src) // a longer destination: only n bytes are written
	got, want := r.dst[lo-guard:hi+guard], r.want[lo-guard:hi+guard]
	if !bytes.Equal(got, want) {
		i := 0
		for got[i] == want[i] {
			i++
		}
		t.Fatalf("%s n=%d src+%d dst+%d: byte %d is %#x, want %#x (guards are %d bytes)",
			v.name, n, srcOff, dstOff, i-guard, got[i], want[i], guard)
	}
	if v.sums && sum != refSum(src) {
		t.Fatalf("%s n=%d src+%d dst+%d: sum %#x, want %#x", v.name, n, srcOff, dstOff, sum, refSum(src))
	}
	copy(r.dst[lo:hi], r.blank)
	copy(r.want[lo:hi], r.blank)
}

func TestCopySmall(t *testing.T) {
	withISAs(t, func(t *testing.T) {
		r := newRig(1 << 10)
		for verb := range verbs {
			for n := 0; n <= 300; n++ {
				// All pairs of offsets would be a million copies; the
				// diagonals meet every value of each and of their difference.
				for off := 0; off <= 64; off++ {
					r.check(t, verb, n, off, 0)
					r.check(t, verb, n, 0, off)
					r.check(t, verb, n, off, (off*37+n)%65)
				}
			}
		}
	})
}

// edges are the sizes where a path changes, and their neighbours.
func edges() []int {
	var s []int
	for _, n := range []int{512, 1024, 4096, streamMin, 2 * streamMin, Chunk, 2 * Chunk, gatherMax, gatherMax + Chunk, outStreamMin} {
		for _, d := range []int{-129, -128, -127, -65, -64, -63, -33, -32, -31, -1, 0, 1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 960, 1023, 1024, 1025} {
			if n+d > 0 {
				s = append(s, n+d)
			}
		}
	}
	return s
}

func TestCopyEdges(t *testing.T) {
	sizes := edges()
	withISAs(t, func(t *testing.T) {
		r := newRig(slices.Max(sizes))
		rng := rand.New(rand.NewPCG(3, 4))
		for verb := range verbs {
			for _, n := range sizes {
				r.check(t, verb, n, 0, 0)
				r.check(t, verb, n, 1+rng.IntN(63), 0) // dst aligned: the fused form
				r.check(t, verb, n, 0, 32)
				r.check(t, verb, n, rng.IntN(65), rng.IntN(65))
			}
		}
	})
}

func TestCopyAllOffsetsStreamed(t *testing.T) {
	withISAs(t, func(t *testing.T) {
		r := newRig(streamMin + 300)
		for verb := range verbs {
			for off := 0; off <= 64; off++ {
				r.check(t, verb, streamMin+off, off, 0)
				r.check(t, verb, streamMin+3*off, 0, off)
				r.check(t, verb, streamMin+4*off+1, off, off)
			}
		}
	})
}

func TestCopyShortDestination(t *testing.T) {
	for _, v := range verbs[:3] {
		for _, n := range []int{1, 300, streamMin, Chunk + 1} {
			dst := make([]byte, n)
			msg := panicOf(func() { v.f(dst[:n-1:n], make([]byte, n)) })
			if want := fmt.Sprintf("%s: %d bytes do not fit into %d", v.name, n, n-1); !strings.Contains(msg, want) {
				t.Errorf("%s of %d bytes into %d: panic %q, want %q", v.name, n, n-1, msg, want)
			}
		}
	}
}

func TestCopyOverlapChecked(t *testing.T) {
	if !checking {
		t.Skip("the check of overlap needs -tags kvcr_check or -race")
	}
	b := make([]byte, 4*Chunk)
	for _, v := range verbs[:3] {
		for _, n := range []int{2, 300, Chunk} {
			if msg := panicOf(func() { v.f(b[n-1:2*n-1], b[:n]) }); !strings.Contains(msg, "overlap") {
				t.Errorf("%s n=%d: overlap by one byte gave panic %q", v.name, n, msg)
			}
			if msg := panicOf(func() { v.f(b[n:2*n], b[:n]) }); msg != "" {
				t.Errorf("%s n=%d: neighbours gave panic %q", v.name, n, msg)
			}
		}
	}
}

func panicOf(f func()) (msg string) {
	defer func() {
		if p := recover(); p != nil {
			msg = fmt.Sprint(p)
		}
	}()
	f()
	return ""
}

func TestNoAllocation(t *testing.T) {
	src, dst := aligned(512<<10), aligned(512<<10)
	var sink uint64
	withISAs(t, func(t *testing.T) {
		for _, n := range []int{64, 4096, streamMin, Chunk, 512 << 10} {
			for _, v := range verbs[:3] {
				if a := testing.AllocsPerRun(20, func() { sink += v.f(dst, src[:n]) }); a != 0 {
					t.Errorf("%s of %d bytes: %v allocations", v.name, n, a)
				}
			}
			if a := testing.AllocsPerRun(20, func() { sink += Sum(src[:n]) }); a != 0 {
				t.Errorf("Sum of %d bytes: %v allocations", n, a)
			}
			if a := testing.AllocsPerRun(20, func() {
				var s Summer
				s.Update(src[:n/2])
				s.Update(src[n/2 : n])
				sink += s.Sum64()
				s.Reset()
				s.Update(src[:n])
				sink += s.Sum64()
			}); a != 0 {
				t.Errorf("Summer of %d bytes: %v allocations", n, a)
			}
		}
	})
}

// TestPublish: bytes copied are seen by whoever acquires the flag released
// after the copy, in all builds; in race builds the detector watches too.
func TestPublish(t *testing.T) {
	const rounds, n = 400, 4 * Chunk
	src, dst := aligned(n), aligned(n)
	var turn atomic.Uint32 // odd: the reader's; even: the writer's
	var wg sync.WaitGroup
	wg.Add(1)
	bad := -1
	go func() {
		defer wg.Done()
		for i := uint32(1); i <= rounds; i++ {
			for turn.Load() != 2*i-1 {
				runtime.Gosched() // the writer must store
			}
			// Newest first: the last lines are those still in a buffer.
			for at := n - 64; at >= 0; at -= 64 {
				if dst[at] != byte(i) && bad < 0 {
					bad = at
				}
			}
			turn.Store(2 * i)
		}
	}()
	for i := uint32(1); i <= rounds; i++ {
		for at := 0; at < n; at += 64 {
			src[at] = byte(i)
		}
		if i%2 == 0 {
			Copy(dst, src)
		} else {
			CopySum(dst, src)
		}
		turn.Store(2*i - 1)
		for turn.Load() != 2*i {
			runtime.Gosched() // the reader must store
		}
	}
	wg.Wait()
	if bad >= 0 {
		t.Fatalf("byte %d was stale after the flag was seen", bad)
	}
}

// FuzzCopy: every verb leaves the destination as the builtin copy does,
// guards included, and every sum is the library's.
func FuzzCopy(f *testing.F) {
	f.Add([]byte("x"), uint32(1), uint8(0), uint8(0), uint8(0))
	f.Add([]byte("block"), uint32(streamMin), uint8(1), uint8(0), uint8(2))
	f.Add([]byte{1, 2, 3}, uint32(3*Chunk+1000), uint8(63), uint8(0), uint8(4))
	f.Add([]byte{7}, uint32(several+65), uint8(9), uint8(5), uint8(3))
	r := newRig(512 << 10)
	f.Fuzz(func(t *testing.T, seed []byte, n uint32, srcOff, dstOff, verb uint8) {
		n %= 512<<10 - 512
		src := r.src[srcOff : int(srcOff)+int(n)]
		for i := 0; len(seed) > 0 && i < len(src); i += 1 + len(src)/64 {
			src[i] ^= seed[i%len(seed)] // stays changed: more variety, still exact
		}
		r.check(t, int(verb)%len(verbs), int(n), int(srcOff), int(dstOff))
	})
}

// several chunks, and then some.
const several = 4 * Chunk

// TestYields: on one processor, another goroutine runs about once for every
// 4 MiB moved or summed, also by copies shorter than that. Timers depend on it
// (BenchmarkTimer shows by how much); counted and not timed, so that a busy
// machine cannot fail it.
func TestYields(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const n, rounds = outStreamMin, 512
	src, dst := aligned(n), aligned(n)
	var stop, ran atomic.Int64 // own words: one processor, no ordering needed
	done := make(chan struct{})
	go func() {
		defer close(done)
		for stop.Load() == 0 { // ends when the test sets stop; yields to it
			ran.Add(1)
			runtime.Gosched()
		}
	}()
	moves := []contender{{"Copy", Copy}, {"CopyOut", CopyOut},
		{"CopySum", func(d, s []byte) { CopySum(d, s) }},
		{"CopySum unaligned", func(d, s []byte) { CopySum(d[1:], s[:n-1]) }},
		{"through", through},
		{"Sum", func(_, s []byte) { Sum(s) }},
		{"Summer", func(_, s []byte) { new(Summer).Update(s) }},
	}
	withISAs(t, func(t *testing.T) {
		for _, m := range moves {
			before := ran.Load()
			for range rounds {
				m.f(dst, src)
			}
			// A quarter of the mean of 64: yields are drawn by chance, and fewer
			// than 16 come once in a thousand million runs.
			if got, want := ran.Load()-before, int64(rounds*n/yieldBytes/4); got < want {
				t.Errorf("%s: the other goroutine ran %d times in %d moves of 512 KiB, want at least %d", m.impl, got, rounds, want)
			}
		}
	})
	stop.Store(1)
	<-done
}

type contender struct {
	impl string
	f    func(dst, src []byte)
}
