// Package ring provides the bounded queue that carries messages between two
// goroutines, with the one place that decides how to wait for it.
//
// Push and Pop never block, allocate or yield; waiting is in wait.go. A ring
// knows slots, not requests: what the words of a Msg mean is the caller's.
//
// A slot is one 64-byte line with a sequence and the message. The consumer
// looks at the sequence of the slot it wants next and not at an index of the
// producer's, so one line travels for a message, not two; the producer looks
// at the consumer's index only when the ring seems full.
//
// A slot belongs to the producer until the Push that fills it returns true,
// then to the consumer until the Pop that empties it returns true. Hence
//
//	I1  head <= tail <= head+Cap
//	I2  slot i is touched only by the side that owns it, save for its
//	    sequence, which the consumer reads at position head at any time
//	I3  the slot of position p has sequence p+1 once p is published, and
//	    p+1-Cap (0 on the first lap) until then
//	I4  a slot published without a release of its own (PushBatch) lies behind
//	    one with: the consumer reaches it only through that one
//
// Each role, producer and consumer, has one holder at a time. The caller may
// hand a role to another goroutine if the hand-over is itself a release by the
// old holder and an acquire by the new one: a mutex, a channel, or an atomic
// token taken by compare-and-swap and freed by a store. The role's plain words
// travel with it. The sleeper of a Parker is such a role as well.
//
// Push and Pop publish with a release, which on amd64 is a plain MOV in
// assembly: sync/atomic's store is an XCHG and waits for the line. The price
// is that a load behind a Push may be served before it; Fence says who has to
// care. Race builds, and processors other than amd64, use atomic stores.
//
// Built with -tags kvcr_check, two holders of a role at the same time panic,
// as does filling a slot that was not emptied. Race builds leave this out: it
// would hide from the detector a hand-over without an edge.
package ring
