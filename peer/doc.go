// Package peer moves blocks between nodes.
//
// The destination asks. A transfer is one operation of up to wire.MaxItems
// blocks, named by the destination; its messages travel on a control connection
// that the destination has dialled, its bytes by a route that the two chose when
// they met.
//
//	destination                          source
//	Start(keys, generations)   ------->  claims, marks (move)
//	           <-------  Offer(generation, size, chain, checksum)
//	reserves
//	Accept(items)              ------->
//	           <=======  bytes, by the route
//	verifies, commits (and takes a hold, in a move)
//	Confirm(items)             ------->  removes what it has still marked
//	           <-------  Removed(items: ok, or kept and why)
//	Finish                     ------->  drops its claims
//	           <-------  Finished
//
// A Node runs the machines: it dials and is dialled, one control connection for each
// endpoint that it fetches from, all of them on a few event loops (control.go); each
// machine in a link, which has a timer only while the machine waits for something
// and no goroutine (link.go, L1 and L2); payload goes by a Route, of which shm and
// stream are here and others can be given (route.go, R1 to R3).
//
// Rules:
//
//   - The two sides are state machines: Dest for all operations of one
//     destination with one source, Source for its twin. They know no clock, no
//     goroutine and no socket: Step takes an event and the time, and answers with
//     actions. Node runs them over connections and routes, internal/sim over a
//     simulated network.
//   - What the machines ask of the block table (Records) happens whole or not at
//     all, before Step returns.
//   - A deadline ends a wait, never a claim: memory that a peer may still write
//     is freed on proof that it cannot.
//   - An endpoint is a name, and not a process: which process is there is known after
//     the handshake, and may be the same for several. Each has a link of its own, at both
//     ends: one Dest talks to one Source of an incarnation, and none of what is done by
//     one endpoint depends on another.
//   - Requests are repeated with backoff until they are answered, and answered
//     from present state: an operation starts at most once.
//   - An idle peer costs a connection and some memory: no goroutine, no timer.
//   - What peers send is checked before it is used, and costs them their own
//     connection at most. What never proves anything is bounded in number and time.
//   - Liveness comes from the control connection and from pidfds, never from UCX
//     alone: an endpoint that fails ends its session, which is then made anew.
//   - What a peer can make a node keep has a limit: its frames wait in the kernel,
//     answers that it does not read end its connection, and so do bytes that nobody
//     asked for.
//   - Hashes of routers become keys at the source (Resolver), which claims nothing by
//     that; each hash has its own answer, and what was resolved is asked for with the
//     generation that it had. Resolving is the asking side, a machine like the others.
//     Descriptions of blocks that come along (Describer) are passed on as they are.
//   - A move removes the source's copy only while the destination is known to
//     hold its own: the rules M1 to M7 (see Source and Dest).
package peer
