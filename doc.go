// Package kvcr keeps key/value cache blocks in reserved memory that Go's
// garbage collector never sees, and lends them to readers without copying.
//
// Open reserves all memory. A Handle, one for each long-lived goroutine, reads
// and writes one namespace. Get returns a View: the bytes in place, which stay
// as they are until the View is released, whatever happens to the key.
//
// Two verbs write. Set replaces: the last commit wins. Deposit is for content
// that follows from its key, as KV blocks do: the first commit wins and later
// ones succeed without a change.
//
// Engines exchange blocks (Config.Peers, FetchFrom), and act on what a router says
// (Config.Hints): SubmitHint takes its advice for requests and its orders to copy, move
// and remove blocks, and SubscribeOutcomes tells what becomes of those.
//
// What always holds:
//
//   - A reader sees only bytes that were written under the whole key it asked
//     for.
//   - A View protects its block until Release; no timer takes it away.
//   - A hit takes no lock, allocates nothing and makes no system call.
//   - Memory is reserved at Open and never grows. A full cache evicts, or
//     refuses with ErrFull.
//   - Every key of a batch gets its own answer with a reason.
//   - A move between engines removes the source's copy only while the destination
//     is known to hold its own; a lost peer costs the keys it was asked for.
//   - A hint may be wrong: it decides whom to ask, and costs a miss at most. Every
//     accepted order ends in exactly one outcome.
//   - Close returns in bounded time; memory under a View stays mapped until
//     the View is released.
package kvcr
