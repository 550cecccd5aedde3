//go:build !amd64 || race

package ring

import "sync/atomic"

// publish stores own into *ownp, the producer's own word, then seq into
// *seqp: the portable twin of the assembly in publish_amd64.s, an STLR each on
// arm64. Race builds use it everywhere, as the detector sees these stores.
func publish(ownp *atomic.Uint64, own uint64, seqp *atomic.Uint64, seq uint64) {
	ownp.Store(own)
	seqp.Store(seq)
}

// release stores v into *p; see publish.
func release(p *atomic.Uint64, v uint64) { p.Store(v) }

// fence is empty: the stores above are sequentially consistent already.
func fence() {}
