// Package zmtp speaks ZeroMQ's wire protocol, ZMTP 3.1 with the NULL mechanism, as far
// as events need it: PUB, SUB, ROUTER and DEALER over tcp, ipc and inproc.
//
// A Conn is one connection after its handshake; Listen and Dial make them. A Pub sends
// to many. Queues, routing and repetition beyond that belong to who uses a Conn, because
// only they know what may be lost.
//
// It exists because github.com/go-zeromq/zmq4 (v0.17.0) cannot serve strangers:
//
//   - 73 bytes from any TCP peer end the process: a frame's length goes to make unchecked;
//   - it shakes hands in the loop that accepts, without a deadline, so that a silent
//     connection keeps all later ones out;
//   - its PUB writes to one subscriber after the other: beside one that does not read, a
//     healthy one got 41 of 1000 messages, and the queue behind grows without bound, or
//     drops for all;
//   - every closed PUB leaves a goroutine behind.
//
// The tests have it as a peer, beside libzmq.
//
// Rules:
//
//	Z1  No bytes of a peer panic, and none cost more memory than they are, plus a constant.
//	Z2  Nobody waits for a peer except for a bounded time, or the goroutines of its own
//	    connection.
//	Z3  Close ends all goroutines.
//
// Source: https://rfc.zeromq.org/spec/37/
package zmtp
