//go:build amd64 && !race

package ring

import "sync/atomic"

// publish stores own into *ownp, the producer's own word, then seq into
// *seqp, both as releases: all earlier reads and writes of this goroutine come
// before them for whoever sees them.
//
// In assembly because sync/atomic has only the sequentially consistent store,
// an XCHG on amd64, which waits until the slot's line has arrived from the
// other core; a MOV is a release there and goes through the store buffer.
//
//go:noescape
func publish(ownp *atomic.Uint64, own uint64, seqp *atomic.Uint64, seq uint64)

// release stores v into *p as a release; see publish.
//
//go:noescape
func release(p *atomic.Uint64, v uint64)

// fence makes this goroutine's earlier stores visible before its later loads.
func fence()
