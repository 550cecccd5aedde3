// Package model simulates a prefix cache block by block, to compare eviction
// policies on a trace.
//
// The model: requests come in order. Hits are the leading ids of a request that
// are resident. Then all its ids become resident: the missing are inserted, the
// others touched, and none of them may leave meanwhile. A request longer than the
// capacity is cut to it. The figure that matters is hits over ids, usable-prefix
// hits: a resident block behind a missing one saves nothing.
package model
