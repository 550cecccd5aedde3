// Package shard keeps the blocks of one part of a namespace: their index,
// records, memory and eviction.
//
// Rules:
//
//   - One writer. Whoever holds the shard's token is its writer: the owner
//     goroutine, or a caller who found the token free and helps (token.go).
//     Index, records of linked blocks, allocators and policy change only under
//     the token.
//   - Reads take no token. A reader probes the index, claims the record by one
//     compare-and-swap on its word, compares the whole key, and looks once more
//     at the index entry (read.go). The entry's second load is the moment a hit
//     takes effect; an unchanged bucket version is the moment of a miss.
//   - Writers copy before they commit. A reserved record (FILLING) belongs to
//     whoever reserved it until the commit or the abort.
//   - Memory is freed by the word alone: FREE -> FILLING -> READY -> RETIRING
//     -> FREE (word.go).
//   - A move to or from another node binds a block with a mark or a hold, in a
//     side table of the token holder's (move.go); each call of lend.go, adopt.go
//     and move.go is one command.
//
// Memory for each block: a 64-byte hot record (what a hit reads), 32 bytes in
// cold tables (what eviction and transfers read) and its share of the index, at
// most 112 bytes together for keys of up to 40 bytes; longer keys and the
// second and later pieces lie in a side region.
//
// Invariants:
//
//	I1  An indexed record is READY, or MEMBER of a READY record, or on its way
//	    between these and RETIRING while the token is held.
//	I2  Every record is in exactly one of: the free list, a reservation, the
//	    index, the set of retiring records with claims, the return stack.
//	I3  A payload slot belongs to exactly one record that is not FREE.
//	I4  Key, size and pieces of a record change only while it is FREE or
//	    FILLING, hence never under a claim.
package shard
