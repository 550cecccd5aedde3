// Package virtual runs a router and up to thousands of nodes in one process and virtual
// time, to see what each part of them costs as their number grows.
//
// What is real: the router's index and planner (hints/plan), its envelopes, the
// dispatcher, advice and tracker of every node (hints), the state machines of both
// sides of every pair of nodes (peer), and every message between them, encoded and
// parsed (wire). What is not: blocks have keys and no bytes, the block table is
// table.go, and delays of networks, links and inference are drawn or reckoned.
//
// # What happens
//
// Requests come in a stationary stream (workload.go). For each the router plans for
// all targets, picks one (router.go), and sends it the request with the hint that the
// plan has for it. The node looks its blocks up, fetches those that its advice names
// from where the advice says (link.go), computes the others, keeps all of them, and
// evicts old ones. What its table gains and loses reaches the index as events, later
// (feed.go). Now and then the router has another node prefetch or move what the
// request has asked for (action.go).
//
// # Rules
//
//   - A run is a function of its Options: the same seed makes the same events in the
//     same order with the same messages. Result.Hash is over all of them.
//   - Nothing fails in here: networks keep what they are given, in order. Faults are
//     what internal/sim is for.
//   - At the end nothing is left (check.go): the index has what the tables have, every
//     operation, claim, mark, hold, reservation, advice and action has ended.
//   - One goroutine does everything, so that its processor time is the cost. Whoever
//     calls a real part says so to the stopwatch, before and after.
package virtual
