// Package server is the network side of a node: it serves one engine to RESP
// clients and to clients of the binary protocol, on TCP and unix sockets.
//
// Connections are accepted by ordinary listeners and handed to gnet's event
// loops. Each loop owns one engine handle for each namespace and runs every
// command of its connections to the end: a hit is answered straight from the
// arena, by a gathering write that names the block's own memory.
//
// A session is one connection. What it has to say lies in its outbox, as text
// of its own and as blocks under claims, until the loop has run all commands
// that arrived, and leaves in one write. The rules when the kernel does not
// take it all:
//
//   - gnet's outbound buffer is never used. What is left is queued in the
//     session, blocks still under their claims, and a goroutine of the session
//     writes it through a duplicate of the descriptor, waiting in Go's poller.
//     Claims end when the kernel has the last byte, or the connection is dead.
//   - While it writes, the loop goes on reading and queueing, up to
//     Options.OutboundCap bytes. Beyond, the session leaves its loop for good
//     and lives on as a goroutine that reads only after it has written: a client
//     that does not read is not read from.
//   - The same goroutine copies the large values of COMMITs, which would keep the
//     loop's other connections waiting.
//   - A client that takes nothing for Options.WriteTimeout is cut off.
//
// A session that is closed by its client's end of input still delivers what it
// owes: the duplicate outlives gnet's descriptor.
package server
