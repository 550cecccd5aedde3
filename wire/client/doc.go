// Package client speaks the binary protocol to one node, over TCP or a unix
// socket, for any number of goroutines.
//
// A Client keeps a few connections. The requests of all callers are pipelined on
// them and answered in any order. Each connection has one goroutine, which reads;
// another comes and goes while the kernel does not take what there is to write.
//
// The rules of a connection:
//
//	C1  a request has an id that was never used before on its connection. Who
//	    removes the id's call from the table, under conn.mu, decides how the call
//	    ends: the reader with an answer, the caller when it gives up, or fail
//	C2  a caller that gives up leaves a tombstone under the id. What still comes
//	    for the id is dropped, and nothing of it can reach another call
//	C3  memory of a caller is read or written only under conn.wmu (by the one who
//	    writes) or conn.rmu (by the reader), for no longer than one system call
//	    that does not wait, and only for a call that is in the table or is being
//	    ended. Who ends a call passes through the lock before the caller returns
//	C4  one goroutine at a time writes to the socket: whoever has set writing. A
//	    caller that finds it set leaves its frame in buf and waits for the answer
//
// So no caller ever waits in a system call, however long the node takes: it waits
// for its answer, its context or the end of the connection.
//
// Locks are taken in the order wmu, rmu, mu. No lock is held while a goroutine
// waits for the network.
package client
