// Package bench measures KVCR beside its alternatives and replays recorded
// request traces through it.
//
// It uses the public API only, but for suite scale. There are nine suites, each a function that
// returns rows of one schema (report.go):
//
//	Engine    the cache beside other in-process caches, puts and delivers beside
//	          Go's copy, allocations, memory, pauses
//	Ring      the command ring beside a channel and the queues of xsync
//	Policy    hit ratios of the eviction policies beside Belady's bound
//	Node      a node beside other servers, with the load from another process
//	Trace     traces against a node, each request at its time
//	Fetches   fetches between two processes beside plain copies, sockets, UCX
//	Hints     envelopes served, events published and ingested, memory of an index
//	Planning  the planner's fixtures, a process for each sample; lookups beside
//	          events; the planner beside its oracle
//	Scale     a router and up to a thousand nodes in virtual time: what grows how
//
// and one job, Replay: every request of a trace goes through an engine, every
// byte of every hit is compared with what was deposited.
//
// A tenth suite, package bench/soak, measures nothing: it checks nodes under faults.
//
// Another suite is a function like these and one command (cmd/kvcr/bench.go, the
// struct benchCmd); listing, running all, profiles, stored results, comparison and
// the page (bench/page) follow from that. Its rows have names that stay as they are,
// since scripts and stored results know them. Latencies add a curve beside their one
// figure (addCurve): rows NAME-curve with the parameter percentile, last. Every suite
// heeds Options.Smoke.
//
// # Rules
//
//   - What cannot be measured here is named at the end of the report, never left
//     out in silence. So is every bar that was not judged, with the reason
//     (Report.absent, Result.without): all bars of a suite are in every run of it.
//   - Rows of ours keep their bars, and rows of rivals that they are rivals, so that
//     Judge says of stored results what the run said.
//   - Results say how they were made: a row of the name run has the command, the
//     machine, the revision and the time as parameters (Conditions).
//   - In Fetches each contender has memory of its own, since one that reads what
//     another has just read measures the caches, and they take turns of one
//     operation each, of which a run's value is the median.
//   - Of the reference of hints and of its planner there are only figures, of
//     another machine: they stand beside ours as rows of the name reference, for
//     orientation.
//   - Peers run interleaved in one process, at least five rounds (three when
//     quick); a row keeps the value of each round and reports the median. A
//     claim is a ratio inside one run, never an absolute time.
//   - Service times in Engine and Ring come from closed loops and say what one
//     operation costs. What a caller with a schedule sees is measured by open
//     loops with intended send times only (openloop.go).
//   - Every get checks bytes that only the right key can have. A wrong byte is
//     an error of the whole suite, not a data point.
//   - Generators run before the clock does: a loop reads its keys from memory
//     in order.
//   - Times are nanoseconds for each operation as one worker sees it: elapsed
//     time of the worker divided by its operations.
package bench
