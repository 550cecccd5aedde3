// Package soak runs real nodes under everything that may happen to them at once, and
// checks that nothing goes wrong and nothing is left behind.
//
// The nodes are processes of kvcr serve, peers of each other. This process is all of
// their clients: of the binary protocol, of RESP and of shared memory, routers that
// send hints and follow events, readers that stand still, and clients that are killed.
// It goes to the nodes through relays (relay.go), which delay, hold, swallow and cut
// what passes; nodes are killed, told to stop, and halted by a schedule (faults.go).
//
// What is checked:
//
//	S1  No wrong byte. A value follows from its key and version (content.go). A key
//	    of a block has one content for ever; a SET key may be read as any version
//	    from the last one that was acknowledged before the read began, or one whose
//	    end nobody knows (history.go). A miss is always allowed: it is a cache.
//	S2  No answer belongs to another request: contents, echoes, counts and names of
//	    actions say whose they are.
//	S3  Every call returns within its bound, however the nodes are.
//	S4  Each accepted action of a hint has exactly one end, unless its node was
//	    ended meanwhile (ends.go).
//	S5  A node ends when it is told to and at no other time, and logs no error.
//	S6  What subscribers of the inventory know is what the node has, once nothing
//	    changes; and a router's index knows nothing that is gone.
//	S7  When the load has ended, claims, connections, goroutines, descriptors and
//	    memory of each node, and of this process, are back at what they were after
//	    a warm-up (levels.go), within the allowances given there.
//
// The schedule and every choice of the clients follow from the seed; when things
// happen is up to the machine, so that a seed makes the same kind of run, not the
// same run.
package soak
