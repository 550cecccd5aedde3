// Package procs knows the processes at the other ends of unix sockets: who they
// are, and when they have ended.
//
// A closed socket proves nothing about a process that has our memory mapped, or
// whose memory we were promised something about. Its pidfd does. One goroutine
// waits for all pidfds of a Set, in Go's poller: a process that is only known costs
// no thread.
package procs
