// Package points names the moments of a transfer between nodes at which a test
// wants to stop, or to kill, the process.
//
// For each message of a control connection there are
//
//	read X   it has arrived, and nothing has been done about it yet
//	send X   all that comes before it is done, and nothing of it has been sent
//	sent X   the kernel has it
//
// where X is the type of the message. On the way of the payload there are
//
//	part     some of a block's bytes, or all, lie in the destination's memory, and
//	         nobody has been told (stream)
//	copy     a block is about to be copied from the source's memory (shm)
//	copied   and has been
package points
