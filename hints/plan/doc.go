// Package plan is a router's side of hints: an index of what every worker holds, fed
// by inventory events, and the choice of a source for every target.
//
// # What is indexed
//
// Each tier is a set of edges of its own: (parent external hash or the root, local
// hash) to (child external hash, owners). An edge exists while it has an owner. A
// Stored event walks down its blocks and stops, for good, at the first block whose
// edge has another child, or which its owner already holds in this tier under
// another edge. A parent that nobody holds is no obstacle, in any tier: an edge is
// reached as soon as something leads to its parent. A Removed event takes the owner
// off each edge that leads to one of the hashes. Storing what is stored and removing
// what is not there change nothing.
//
// Cleared empties every tier, whichever tier the event names: of the worker
// (DomainWorker), of the cache owner that the event names (DomainCacheOwner), or of
// the worker and of each cache owner whose latest event came from that worker
// (DomainLegacy).
//
// # What a lookup sees
//
// The device path is the path of Device edges from the root along the prompt's local
// hashes, as far as one worker owns all of it; a worker's device depth is how many
// edges from the root on it owns. In HostPinned a worker goes on from its device
// depth and the hash there, a cache owner (and a worker that has nothing on the
// device) from the root. The frontier F is where it stops.
//
// The chain is the device path, then the HostPinned edges that lead on from it. An
// edge of HostPinned that leads to another hash than the device path has at that
// position is a conflict. Owners that go over it are strays: their frontier is where
// they stop on a path of their own, but of the chain they have only what is before the
// conflict, and as targets they get no continuation. A continuation ends before a
// conflict.
//
// # What is chosen
//
// Only members of the topology are sources or targets. Targets are the Capable
// workers; a source has an Endpoint. Both must be of the same type, one of
// "aggregated" ("agg" is the same), "prefill", "decode". A target is no source for
// itself, nor is a cache owner that is attached to it.
//
// A source covers target t as RootPrefix up to its own frontier (a stray: up to its
// conflict). It covers t as Continuation, if 0 < F(t) < len(prompt), up to the end of the unbroken run of
// HostPinned edges that it owns from F(t) on. An end counts if it is above F(t). The
// greatest end wins; on equal ends RootPrefix wins, then the smallest source.
//
// # Intervals
//
// A source becomes active at a frontier (0 < F < len) of a target, of whatever type,
// and stays active while it owns every further edge. The interval begins at the first
// frontier at which it became active and ends where it was lost; it may begin again
// only at a frontier of another target. Targets that are strays, or of no known type,
// have no such frontier.
//
// # Conflicts in general
//
// Within a hash domain (one model, block size and way of hashing) local and external
// chains are one to one, and none of this matters. Where they are not, the index is as
// said above up to a limit: of edges to one hash, and of dead ones with one parent and
// local hash, it keeps 64; a Stored event stops before it makes another.
//
// # Several things at once
//
// Lookups take no lock and wait for nobody. What a lookup sees of a block, and of who
// has it, is as of some moment between its start and its end, for each block maybe
// another one: a source that is named held every block of its range at some moment,
// and every hash is the chain's. What is held all the time is seen.
package plan
