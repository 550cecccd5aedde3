// Package own updates words that one goroutine at a time writes and others
// only watch: counters, recency stamps, flags.
//
// Such a store needs no ordering and no read-modify-write, only to be whole.
// sync/atomic has no such store: on amd64 its Store is an XCHG, which costs as
// much as a locked add (about 20 cycles). An aligned MOV is whole there, so
// amd64 builds use it; every other build, and every race build, uses
// sync/atomic.
//
// What does need an edge (claim words, tokens, doorbells) must not use this
// package.
package own
