// Package ucx moves bytes between registered memory of two processes through
// UCX, the library below MPI and NIXL that drives RDMA devices, GPUs and plain
// TCP. It knows contexts, workers, endpoints, memory and requests; blocks, keys
// and peers are the business of the packages above.
//
// UCX is C. Without the build tag ucx (and cgo, and Linux) this package still
// compiles and every constructor returns ErrNotBuilt; Built says which it is.
//
// # Who runs where
//
// A Worker has one progress goroutine, and only that goroutine enters UCX's
// worker. Every other goroutine hands it commands under a short lock. A whole
// batch of commands, the progress they cause and all completions they produce
// take one crossing into C; C never calls Go. The goroutine waits in Go's poller
// on the worker's descriptor, so an idle worker holds no thread and burns no
// processor. UCX itself keeps one thread of its own, asleep, for connections.
//
//	W1  Submit, Start, Cancel, Connect, Import and Abort never block and may be called
//	    from anywhere, completion functions included.
//	W2  Completion and failure functions run on the progress goroutine, one at a
//	    time, with no lock held. They must not block: nothing moves meanwhile.
//	W3  The two Close methods and Register wait; they must not be called from
//	    such a function.
//
// # Who owns what
//
//	M1  Memory named by an Op belongs to UCX from a successful Submit until its
//	    completion function is called, whatever the status says. No timeout, no
//	    Cancel and no failure of an endpoint shortens this.
//	M2  Every accepted Op completes exactly once: at the latest when its worker
//	    is closed, and then only after UCX's worker is gone, so that nothing can
//	    touch the memory any more.
//	M3  Memory is off the Go heap, mapped before Register and until Deregister
//	    has returned nil. Deregister refuses while an Op of this process uses
//	    the region; where a device checks keys it revokes what peers may do.
//	M4  C keeps no Go pointer: a command names memory by number, a request by
//	    its slot.
//
// # Order
//
// Completion of a Put says that the source may be reused, nothing about arrival.
// A flush submitted after it on the same endpoint that completes without error
// says that the bytes are at the peer. Completion of a receive is arrival.
//
// Commands of one worker enter UCX in the order of their Submits.
//
// # Trust
//
// Addresses and keys of peers are bytes that UCX parses without checking them.
// They travel in an envelope with length and checksum, which catches damage and
// truncation, not malice: accept them only from authenticated peers. Who holds a
// key of a region may write to all of it until it is deregistered; where UCX
// emulates puts (tcp) no key is checked at all, and Options.Puts opens the whole
// process to every connected peer. Sends reach posted receives only.
//
// UCX 1.13 as Debian builds it, with assertions, can abort the process when a
// peer is killed in the milliseconds in which a connection is made (hello.c).
// Orderly closings wait for that moment to pass; a kill cannot. 1.14 and later,
// and builds without assertions, are said to be free of it.
package ucx
