package blockcopy

import (
	"github.com/zeebo/xxh3"
)

// Sum returns the payload checksum of b: XXH3-64, seed 0, default secret (see
// the package comment). It does not allocate or keep b; now and then it
// yields the processor.
func Sum(b []byte) uint64 {
	raceRead(b)
	if len(b) <= Chunk {
		if len(b) >= paceMin {
			pace(len(b))
		}
		return xxh3.Hash(b)
	}
	return sumLong(b)
}

// Summer computes Sum of bytes that arrive in pieces. The zero Summer has
// seen no bytes. It is a value of about 1.2 KiB without pointers into the
// bytes it has seen; it never allocates, and is for one goroutine at a time.
type Summer struct{ h xxh3.Hasher }

// Reset forgets all bytes seen.
func (s *Summer) Reset() { s.h.Reset() }

// Update appends p to the bytes summed. The order of calls matters, where
// the bytes are cut does not. It does not keep p.
func (s *Summer) Update(p []byte) {
	raceRead(p)
	for len(p) > Chunk {
		s.h.Write(p[:Chunk])
		p = p[Chunk:]
		pace(Chunk)
	}
	s.h.Write(p)
	if len(p) >= paceMin {
		pace(len(p))
	}
}

// Sum64 returns the sum of the bytes seen so far; more may follow.
func (s *Summer) Sum64() uint64 { return s.h.Sum64() }

// Growing computes Sum of bytes that arrive one after the other in one place, from
// there, while they are in the nearest caches. The zero Growing has seen no bytes.
// Where there is no assembly of ours it leaves all to Sum.
type Growing struct {
	acc  [8]uint64
	done int // bytes that are in acc, whole XXH3 blocks
}

// Reset forgets all bytes seen.
func (g *Growing) Reset() { g.done = 0 }

// Extend takes in what has arrived: b is all of it, from the first byte. What was
// there in an earlier call must not have changed.
func (g *Growing) Extend(b []byte) {
	raceRead(b[min(g.done, len(b)):])
	g.extend(b)
}

// Sum returns the sum of b, which is all bytes.
func (g *Growing) Sum(b []byte) uint64 {
	g.Extend(b)
	if g.done == 0 {
		return Sum(b)
	}
	return g.finish(b)
}

// sumPortable is sumLong where there is no assembly of ours: the library's
// streaming form, in steps that can be interrupted.
func sumPortable(b []byte) uint64 {
	var s Summer
	s.Update(b)
	return s.Sum64()
}

// Fused reports whether CopySum to dst loads each byte of the source once, all but
// the last 64, so that the sum is that of dst even if the source changes meanwhile.
func Fused(dst []byte) bool { return len(dst) >= streamMin && fused(dst) }
