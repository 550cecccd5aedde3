//go:build !race

package blockcopy

import "golang.org/x/sys/cpu"

// isa names the vector instructions in use. x/sys/cpu reports a set only if
// the operating system saves its registers.
type isa int

const (
	isaNone   isa = iota // ordinary copies
	isaAVX2              // 32-byte streaming stores
	isaAVX512            // 64-byte streaming stores
)

func (i isa) String() string {
	switch i {
	case isaAVX512:
		return "avx512"
	case isaAVX2:
		return "avx2"
	}
	return "none"
}

// have is set once, before main. Tests change it while nothing else runs.
var have = detect()

func detect() isa {
	switch {
	case cpu.X86.HasAVX512F:
		return isaAVX512
	case cpu.X86.HasAVX2:
		return isaAVX2
	}
	return isaNone
}

const (
	// storeAlign is what the wider store needs; one constant for both.
	storeAlign = 64
	// streamStep is the bytes of one turn of the streaming loops.
	streamStep = 128
	// gatherStep is four pages, one turn of gatherAVX2.
	gatherStep = 4 * 4096
)

// stream copies by streaming stores: the head up to the alignment and a tail
// shorter than a step by ordinary ones. len(dst) == len(src), of any size.
func stream(dst, src []byte) {
	if have == isaNone {
		through(dst, src)
		return
	}
	head := min(toAlign(dst, storeAlign), len(src))
	copy(dst[:head], src[:head])
	dst, src = dst[head:], src[head:]
	for len(src) >= streamStep {
		n := min(len(src)&^(streamStep-1), Chunk)
		if have == isaAVX512 {
			streamAVX512(&dst[0], &src[0], n)
		} else {
			streamAVX2(&dst[0], &src[0], n)
		}
		dst, src = dst[n:], src[n:]
		pace(n)
	}
	copy(dst, src)
}

// gather copies by ordinary stores with the source fetched ahead: what is no
// multiple of the step, by the builtin copy. len(dst) == len(src) <= a few
// hundred KiB: it does not yield, which would show.
func gather(dst, src []byte) {
	if have == isaNone {
		through(dst, src)
		return
	}
	// Loads across lines are cheaper than stores across lines.
	head := min(toAlign(dst, storeAlign), len(src))
	copy(dst[:head], src[:head])
	dst, src = dst[head:], src[head:]
	for len(src) >= gatherStep {
		n := min(len(src)&^(gatherStep-1), Chunk)
		gatherAVX2(&dst[0], &src[0], n)
		dst, src = dst[n:], src[n:]
	}
	copy(dst, src)
}

// streamSum is stream and the sum of src, each stripe loaded once. len(dst) ==
// len(src) > 240.
func streamSum(dst, src []byte) uint64 {
	if !fused(dst) {
		// Stripes are cut at the source, stores at the destination; blocks
		// of the arena are aligned, so a fused shifted form is not worth it.
		stream(dst, src)
		return Sum(src)
	}
	acc := xxh3Start()
	stripes := longStripes(len(src))
	d, s := dst, src
	for stripes > 0 {
		n := min(stripes, chunkStripes)
		if have == isaAVX512 {
			copySumAVX512(&acc, &d[0], &s[0], n, &xxh3Secret)
		} else {
			copySumAVX2(&acc, &d[0], &s[0], n, &xxh3Secret)
		}
		d, s = d[n*stripeBytes:], s[n*stripeBytes:]
		stripes -= n
		pace(n * stripeBytes)
	}
	copy(d, s) // 1 to 64 bytes
	return xxh3Finish(&acc, src[len(src)-stripeBytes:], len(src))
}

func fused(dst []byte) bool { return have != isaNone && toAlign(dst, storeAlign) == 0 }

// sumLong is Sum for more than 240 bytes.
func sumLong(b []byte) uint64 {
	if have == isaNone {
		return sumPortable(b)
	}
	acc := xxh3Start()
	stripes := longStripes(len(b))
	s := b
	for stripes > 0 {
		n := min(stripes, chunkStripes)
		if have == isaAVX512 {
			sumAVX512(&acc, &s[0], n, &xxh3Secret)
		} else {
			sumAVX2(&acc, &s[0], n, &xxh3Secret)
		}
		s = s[n*stripeBytes:]
		stripes -= n
		pace(n * stripeBytes)
	}
	return xxh3Finish(&acc, b[len(b)-stripeBytes:], len(b))
}

// extend takes in whole blocks, but never the last stripe of b, which may be the
// last of all: that one is finish's own.
func (g *Growing) extend(b []byte) {
	if have == isaNone || len(b) <= blockBytes {
		return
	}
	if g.done == 0 {
		g.acc = xxh3Start()
	}
	end := (len(b) - 1) / blockBytes * blockBytes
	for g.done < end {
		n := min(end-g.done, Chunk)
		g.stripes(b, n/stripeBytes)
		g.done += n
		pace(n)
	}
}

// stripes takes in n stripes, which begin at a block's boundary.
func (g *Growing) stripes(b []byte, n int) {
	if have == isaAVX512 {
		sumAVX512(&g.acc, &b[g.done], n, &xxh3Secret)
	} else {
		sumAVX2(&g.acc, &b[g.done], n, &xxh3Secret)
	}
}

// finish is the sum of b, all but the last block of which extend has taken in.
func (g *Growing) finish(b []byte) uint64 {
	if n := longStripes(len(b)) - g.done/stripeBytes; n > 0 {
		g.stripes(b, n)
	}
	return xxh3Finish(&g.acc, b[len(b)-stripeBytes:], len(b))
}

// The assembly, stream_amd64.s. Memory is named by pointer and length and is
// not kept. The conditions there are the callers' duty:
//
//	stream*   n > 0, n%128 == 0, dst aligned to the vector
//	*sum*     stripes >= 0, secret is xxh3Secret, src at a block boundary
//	copySum*  dst aligned to the vector
//	gather*   n > 0, n%gatherStep == 0

//go:noescape
func streamAVX2(dst, src *byte, n int)

//go:noescape
func streamAVX512(dst, src *byte, n int)

//go:noescape
func sumAVX2(acc *[8]uint64, src *byte, stripes int, secret *[192]byte)

//go:noescape
func sumAVX512(acc *[8]uint64, src *byte, stripes int, secret *[192]byte)

//go:noescape
func copySumAVX2(acc *[8]uint64, dst, src *byte, stripes int, secret *[192]byte)

//go:noescape
func copySumAVX512(acc *[8]uint64, dst, src *byte, stripes int, secret *[192]byte)

//go:noescape
func gatherAVX2(dst, src *byte, n int)
