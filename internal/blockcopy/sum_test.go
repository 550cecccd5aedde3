package blockcopy

import (
	"math/rand/v2"
	"testing"

	"github.com/zeebo/xxh3"
)

// refSum is the library's one-shot form: written independently of the
// assembly here.
func refSum(b []byte) uint64 { return xxh3.Hash(b) }

// sanityBuffer is the input of the reference implementation's self-test
// (xxHash, cli/xsum_sanity_check.c).
func sanityBuffer(n int) []byte {
	b := make([]byte, n)
	gen := uint64(2654435761)
	for i := range b {
		b[i] = byte(gen >> 56)
		gen *= 11400714785074694797
	}
	return b
}

// TestSumVectors: the format on the wire and on disk may not change. Values
// of the reference implementation's self-test, XXH3_64bits, seed 0.
func TestSumVectors(t *testing.T) {
	vectors := []struct {
		n    int
		want uint64
	}{
		{0, 0x2D06800538D394C2},
		{1, 0xC44BDFF4074EECDB},
		{6, 0x27B56A84CD2D7325},
		{12, 0xA713DAF0DFBB77E7},
		{24, 0xA3FE70BF9D3510EB},
		{48, 0x397DA259ECBA1F11},
		{80, 0xBCDEFBBB2C47C90A},
		{195, 0xCD94217EE362EC3A},
		{403, 0xCDEB804D65C6DEA4},
		{512, 0x617E49599013CB6B},
		{2048, 0xDD59E2C3A5F038E0},
		{2240, 0x6E73A90539CF2948},
		{2367, 0xCB37AEB9E5D361ED},
	}
	b := sanityBuffer(2367)
	withISAs(t, func(t *testing.T) {
		for _, v := range vectors {
			if got := Sum(b[:v.n]); got != v.want {
				t.Errorf("Sum of %d bytes = %#x, want %#x", v.n, got, v.want)
			}
			if got := CopySum(make([]byte, v.n), b[:v.n]); got != v.want {
				t.Errorf("CopySum of %d bytes = %#x, want %#x", v.n, got, v.want)
			}
			if v.n > 240 {
				if got := sumLong(b[:v.n]); got != v.want {
					t.Errorf("sumLong of %d bytes = %#x, want %#x", v.n, got, v.want)
				}
				if got := streamSum(make([]byte, v.n), b[:v.n]); got != v.want {
					t.Errorf("streamSum of %d bytes = %#x, want %#x", v.n, got, v.want)
				}
			}
			var s Summer
			for i := range v.n {
				s.Update(b[i : i+1])
			}
			if got := s.Sum64(); got != v.want {
				t.Errorf("Summer of %d bytes one by one = %#x, want %#x", v.n, got, v.want)
			}
		}
	})
}

func TestSumEverySize(t *testing.T) {
	r := newRig(2 * several)
	withISAs(t, func(t *testing.T) {
		for n := 0; n <= 5000; n++ {
			src := r.src[n%67:][:n]
			if got, want := Sum(src), refSum(src); got != want {
				t.Fatalf("Sum of %d bytes = %#x, want %#x", n, got, want)
			}
			if n > 240 {
				if got, want := sumLong(src), refSum(src); got != want {
					t.Fatalf("sumLong of %d bytes = %#x, want %#x", n, got, want)
				}
			}
		}
		for _, n := range edges() {
			src := r.src[n%67:][:n]
			if got, want := Sum(src), refSum(src); got != want {
				t.Fatalf("Sum of %d bytes = %#x, want %#x", n, got, want)
			}
		}
	})
}

// TestSumSeesEveryByte: no byte of a block is outside the sum, and no two
// stripes can be exchanged.
func TestSumSeesEveryByte(t *testing.T) {
	const n = Chunk + 2*blockLen + 130
	b := newRig(n).src[:n]
	withISAs(t, func(t *testing.T) {
		dst := aligned(n)
		want := Sum(b)
		for i := 0; i < n; i += 61 { // coprime to 64: meets every place in a stripe
			b[i] ^= 0x10
			if Sum(b) == want || CopySum(dst, b) == want {
				t.Fatalf("a changed byte %d of %d leaves the sum as it was", i, n)
			}
			b[i] ^= 0x10
		}
		for _, at := range []int{0, 64, blockLen, Chunk - 64, Chunk} {
			for i := range 64 {
				b[at+i], b[at+64+i] = b[at+64+i], b[at+i]
			}
			if CopySum(dst, b) == want {
				t.Fatalf("exchanged stripes at %d leave the sum as it was", at)
			}
			for i := range 64 {
				b[at+i], b[at+64+i] = b[at+64+i], b[at+i]
			}
		}
	})
}

const blockLen = 1024

func TestSummerAnyCuts(t *testing.T) {
	r := newRig(2 * several)
	rng := rand.New(rand.NewPCG(5, 6))
	var s Summer // reused: Reset must forget
	for range 300 {
		n := rng.IntN(1 + rng.IntN(2*several))
		src := r.src[:n]
		s.Reset()
		for at := 0; at < n; {
			k := min(n-at, rng.IntN(1+rng.IntN(3*Chunk)))
			s.Update(src[at : at+k])
			at += k
			if rng.IntN(4) == 0 {
				if got, want := s.Sum64(), refSum(src[:at]); got != want {
					t.Fatalf("Sum64 after %d bytes = %#x, want %#x", at, got, want)
				}
			}
		}
		if got, want := s.Sum64(), refSum(src); got != want {
			t.Fatalf("Sum64 of %d bytes = %#x, want %#x", n, got, want)
		}
	}
	var zero Summer
	if got, want := zero.Sum64(), refSum(nil); got != want {
		t.Fatalf("zero Summer: %#x, want %#x", got, want)
	}
}

// TestGrowing: a sum does not depend on where the bytes were cut when they arrived.
func TestGrowing(t *testing.T) {
	b := newRig(2 * several).src
	rng := rand.New(rand.NewPCG(1, 2))
	withISAs(t, func(t *testing.T) {
		var g Growing
		for _, n := range []int{0, 1, 63, 240, 241, 1023, 1024, 1025, 2048, 2049, 65535, 65536, 65537, several} {
			for _, part := range []int{1 << 20, 1024, 1000, 7777} {
				g.Reset()
				for have := 0; have < n; {
					have = min(n, have+1+rng.IntN(part))
					g.Extend(b[:have])
				}
				if got, want := g.Sum(b[:n]), refSum(b[:n]); got != want {
					t.Fatalf("%d bytes in parts of up to %d: %#x, want %#x", n, part, got, want)
				}
			}
		}
	})
}
