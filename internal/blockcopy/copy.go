package blockcopy

import (
	"fmt"
	"runtime"
)

const (
	// Chunk is the most bytes one uninterruptible step touches. A running
	// copy, whether the runtime's or ours, cannot be preempted: at a few
	// bytes a nanosecond 64 KiB keep a stop-the-world waiting for about
	// 10 us. A multiple of the checksum's block (blockBytes), so that a sum
	// can be carried from step to step.
	Chunk = 64 << 10

	// yieldBytes is how much is copied between two calls of
	// runtime.Gosched. Chunks alone let the collector in but not timers:
	// with every processor in a loop of copies a 1 ms timer was 19 ms late.
	yieldBytes = 4 * Chunk

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
// after every 256 KiB it yields the processor.
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
	var p pacer
	for len(src) > 0 {
		n := min(len(src), Chunk)
		copy(dst[:n], src[:n])
		dst, src = dst[n:], src[n:]
		p.did(n)
	}
}

// pacer counts bytes towards the next yield. The zero pacer is ready.
type pacer struct{ n int }

func (p *pacer) did(n int) {
	p.n += n
	if p.n >= yieldBytes {
		p.n = 0
		runtime.Gosched()
	}
}
