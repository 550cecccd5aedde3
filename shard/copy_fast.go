//go:build amd64 && !race

package shard

import (
	"github.com/kvcr-go/kvcr/arena"
	"github.com/kvcr-go/kvcr/internal/own"
	"github.com/kvcr-go/kvcr/internal/prefetch"
)

// optimisticMax is the largest value that is copied without a claim: beyond
// it the two locked instructions of a claim are noise beside the copy, and the
// chance that an owner interferes grows.
const optimisticMax = 4 << 10

// TryCopy copies the value of a key into dst without a claim: word, record and
// bytes are read, then the word and the index entry again. An unchanged word
// (but for other readers' claims) means that all between was one READY life.
// It gives up (false) on a miss, on anything but a small block of one piece
// under a short key, and when anything moved: the caller then claims.
//
// Sound on amd64 only, where loads are not reordered with loads, and invisible
// to the race detector, so other builds always claim.
func (s *Shard) TryCopy(hash uint64, key, dst []byte) (n int, ok bool) {
	fp := fingerprint(hash)
	b := s.index.first(hash)
	for i := range b.entries {
		e := b.entries[i].Load()
		if e>>32 != fp || uint32(e) == 0 {
			continue
		}
		s.fetchAhead(uint32(e))
		h := &s.hot[uint32(e)]
		w := h.word.Load()
		d, size := h.desc, int(h.size)
		if stateOf(w) != ready || size > optimisticMax || size > len(dst) ||
			d.keyLen() != len(key) || len(key) > inlineKey || d.pieces() != 1 ||
			string(h.key[:len(key)]) != string(key) {
			return 0, false
		}
		if h.word.Load()>>pinBits != w>>pinBits {
			return 0, false
		}
		copy(dst, s.payload.Bytes(arena.Off(d.off()), size))
		if h.word.Load()>>pinBits != w>>pinBits || b.entries[i].Load() != e {
			return 0, false
		}
		if now := s.now.Load(); h.last.Load() != now {
			own.Store32(&h.last, now)
		}
		return size, true
	}
	return 0, false
}

// WarmPayload: see WarmIndex. The record is read without a claim, like in TryCopy:
// a place that is wrong by now is still a place in the payload.
func (s *Shard) WarmPayload(id uint32) {
	h := &s.hot[id]
	if w := h.word.Load(); stateOf(w) != ready {
		return
	}
	if b := s.payload.Bytes(arena.Off(h.desc.off()), min(int(h.size), 1)); len(b) > 0 {
		prefetch.Line(&b[0])
	}
}
