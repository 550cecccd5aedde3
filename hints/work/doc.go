// Package work carries out what hints ask for independently of requests: blocks
// that are to be copied, or moved, to this engine.
//
//	hash --Resolve--> key --Look--> absent --Fetch--> here --(move)--> the source's is gone
//	                            \-> coming: wait for who fetches it
//	                             \> present: nothing to do, or (move) only the source's to go
//
// Rules:
//
//	W1  Each block of an accepted action ends exactly once, and then the action does:
//	    whatever the source does or does not answer, and at Close.
//	W2  One hash of one source is worked on once at a time: actions that name it
//	    while it is queued or under way share how it ends. A move is more than a copy:
//	    it does not share a copy that has begun.
//	W3  Work yields to requests: its blocks in flight stay within a budget of bytes,
//	    and nothing is begun while requests fetch many blocks, for a while at most.
//	W4  What is queued is bounded, by actions and by blocks. Without work there is no
//	    goroutine.
//	W5  A source without an answer costs the work that is queued for it, and holds up
//	    no other source's.
package work
