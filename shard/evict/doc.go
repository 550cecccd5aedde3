// Package evict decides which block of a shard leaves when room is needed.
//
// A Policy belongs to one shard and is called by its owner alone: nothing here
// locks or blocks, nor allocates after New, except where density's Replace notes
// the heir of a block with children (at most 1024 at a time). Readers never call
// a policy. A hit is one store of the current tick into the block (Blocks.Last),
// and a policy learns of it when it meets the block: the tick differs from the
// one under which the block was listed.
//
// All state for a block is its Node, 16 bytes in memory the shard provides.
// What a policy keeps beside that is bounded by a constant: density holds at
// most 8192 sampled records, s3fifo at most 1<<18 ghost fingerprints.
//
// Time is the count of block accesses (lookups and deposits), a uint32 that
// wraps. Only differences of ticks mean anything.
//
// Invariants of every built-in policy. Check verifies the first; random tests
// beside a naive model hold the others.
//
//	I1  a block is on exactly one list, or (density) has children and is on none
//	I2  Victim never returns a busy block, nor one that is not resident
//	I3  Victim returns 0 only if no block it may evict is free of claims. (One
//	    exception is density's, where a slot was reused four times in one sweep.)
//	I4  density: a block with resident children is never a victim, so no block
//	    becomes unreachable by eviction
package evict
