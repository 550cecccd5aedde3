package shard

import (
	"github.com/kvcr-go/kvcr/internal/blockcopy"
	"github.com/kvcr-go/kvcr/internal/own"
)

// overwrite replaces a resident value in its own memory, when nobody reads it
// and the new one fits in the same room: READY -> FILLING -> READY with the
// next generation. It touches three lines besides the payload; the long way
// (reserve, publish, retire) touches about a dozen. Readers find the record
// FILLING meanwhile, probe again and at last ask the token holder, which is
// the one that writes; so it is for values that are copied in under a
// microsecond. Token holder only.
func (s *Shard) overwrite(p *Put) bool {
	id := s.lookup(p.Hash, p.Key)
	if id == 0 {
		return false
	}
	h := &s.hot[id]
	if h.desc.pieces() != 1 || !s.store.fits(h.desc.pool(), int(h.size), p.Shape) ||
		s.grouped && s.cold[id].group != 0 || len(s.held) > 0 && s.held[id] != 0 {
		return false
	}
	w := h.word.Load()
	if stateOf(w) != ready || pinsOf(w) != 0 || !h.word.CompareAndSwap(w, withState(w, filling, 0)) {
		return false
	}
	if s.moves.n != 0 {
		s.lift(id, MoveRedeposited)
	}
	own.Add64(&s.stats.Replaced, 1)
	own.Add64(&s.stats.Bytes, uint64(len(p.Value))-uint64(h.size))
	h.size = uint32(len(p.Value))
	dst := s.Bytes(Claim{id: id})
	if p.Sum {
		s.setSum(id, blockcopy.CopySum(dst, p.Value))
	} else {
		h.desc &^= sumFlag // the old value's
		blockcopy.Copy(dst, p.Value)
	}
	own.Store32(&h.last, s.now.Load())
	h.word.Store(withState(nextFree(w), ready, 0)) // release
	return true
}

// fits reports whether a value of the shape takes the same room as one of size
// bytes in pool.
func (st *store) fits(pool, size int, sh Shape) bool {
	if sh.Layout != 0 || pool != 0 {
		return false
	}
	return st.classes == nil || st.classes.Round(max(size, 1)) == st.classes.Round(max(sh.Size, 1))
}
