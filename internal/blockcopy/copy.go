package blockcopy

import (
	"fmt"
	"math/rand/v2"
	"runtime"
)

const (
	// Chunk is the most bytes one uninterruptible step touches. A running
	// copy, whether the runtime's or ours, cannot be preempted: at a few
	// bytes a nanosecond 64 KiB keep a stop-the-world waiting for about
	// 10 us. A multiple of the checksum's block (blockBytes), so that a sum
	// can be carried from step to step.
	Chunk = 64 << 10

	// yieldBytes is how much is copied, on average, between two calls of
	// runtime.Gosched. Without any, and every processor in a loop of copies,
	// a 1 ms timer was 10 ms late at the median: a copy cannot be preempted
	// where a loop in Go can. Yields are not free either: one lone writer
	// that yields every 256 KiB wakes the other processor each time, which
	// costs it 30 % and makes timers late by 3 ms at p99; from 4 MiB up it
	// loses under a tenth, and timers are late by 1 ms, as beside nothing.
	yieldBytes = 64 * Chunk

	// paceMin: what is shorter is over before it can delay anybody, and a draw
	// would show.
	paceMin = 16 << 10

	// streamMin is the size from which Copy and CopySum use streaming
	// stores. Into a cold destination they win from 4 KiB on, but leave the
	// bytes in no cache. What is read back at once then costs more in all: a
	// third at 8 KiB, a fifth at 16 KiB, nothing from 32 KiB on
	// (BenchmarkPutGet).
	streamMin = 16 << 10

	// CopyOut's ranges. From gatherMin on it fetches the source ahead, worth
	// a third with a source in memory; a source in the second level cache
	// loses a sixth by it, of a much shorter time. From gatherMax on memory
	// bandwidth is the limit, and the builtin copy's own protocol for
	// whole lines better. From outStreamMin on the caller's cache could not
	// keep the bytes anyway: streaming is faster by a fifth to a half, and
	// reading the result as fast as after the builtin copy.
	gatherMin    = 16 << 10
	gatherMax    = 256 << 10
	outStreamMin = 512 << 10
)

// Copy copies src to the first len(src) bytes of dst, for bytes that go into
// the arena: large copies bypass the caches, since a block is rarely read
// right after it was written and its old lines need not be fetched. When Copy
// returns, an ordinary release store publishes the bytes.
//
// The caller must own dst and keep src unchanged until Copy returns; the two
// must not overlap. Copy panics if len(dst) < len(src). It does not allocate;
// now and then it yields the processor.
func Copy(dst, src []byte) {
	dst = fit("Copy", dst, src)
	if len(src) < streamMin {
		copy(dst, src)
		return
	}
	stream(dst, src)
}

// CopyOut copies src to the first len(src) bytes of dst, for bytes that leave
// the arena for a caller who will read them: they stay in the caller's cache
// if they are fewer than 512 KiB. Conditions are those of Copy; the caller
// must hold a claim on src.
func CopyOut(dst, src []byte) {
	dst = fit("CopyOut", dst, src)
	switch n := len(src); {
	case n < gatherMin:
		copy(dst, src)
	case n < gatherMax:
		gather(dst, src)
	case n < outStreamMin:
		through(dst, src)
	default:
		stream(dst, src)
	}
}

// CopySum is Copy and Sum(src) in one pass over src. Conditions are those of
// Copy.
func CopySum(dst, src []byte) uint64 {
	dst = fit("CopySum", dst, src)
	if len(src) < streamMin {
		copy(dst, src)
		return Sum(src)
	}
	return streamSum(dst, src)
}

// ISA names the instructions that copies use here: "avx512", "avx2", or
// "none" for ordinary copies only. For reports.
func ISA() string { return have.String() }

// fit clips dst to len(src), and in checking builds refuses overlap, which
// streaming stores would turn into garbage only sometimes.
func fit(op string, dst, src []byte) []byte {
	if len(dst) < len(src) {
		tooShort(op, dst, src)
	}
	dst = dst[:len(src)]
	if checking && overlap(dst, src) {
		overlaps(op, src)
	}
	return dst
}

// Apart from fit and not inlined, so that fit is.
//
//go:noinline
func tooShort(op string, dst, src []byte) {
	panic(fmt.Sprintf("blockcopy: %s: %d bytes do not fit into %d; pass a destination at least as long", op, len(src), len(dst)))
}

//go:noinline
func overlaps(op string, src []byte) {
	panic(fmt.Sprintf("blockcopy: %s: source and destination of %d bytes overlap; pass distinct memory", op, len(src)))
}

// through copies by ordinary stores, in chunks and with yields.
func through(dst, src []byte) {
	for len(src) > 0 {
		n := min(len(src), Chunk)
		copy(dst[:n], src[:n])
		dst, src = dst[n:], src[n:]
		pace(n)
	}
}

// pace is called after each n bytes, n <= Chunk, and yields once in yieldBytes.
// By chance and not by a count, so that many short copies yield as often as one
// long one and no caller has to carry a counter.
func pace(n int) {
	if rand.Uint32N(yieldBytes) < uint32(n) {
		runtime.Gosched()
	}
}
