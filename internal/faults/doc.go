// Package faults has no code but tests: of whole engines as peers, in processes
// that are killed, stopped, restarted and cut off at named steps of a transfer.
//
// The test's own process is one of the peers, the witness: whatever happens to the
// others, it goes on fetching from those that live. The other processes are the
// test binary, run again (child_test.go), and driven over their standard streams
// (proc_test.go).
//
// go test ./internal/faults -faults 240 kills about once at each step there is, by
// each route; without the flag 20 of them are chosen anew each time, and -seed
// repeats a choice.
//
// cases_test.go says which test covers which case that these tests, and those of
// the packages below, are for.
package faults
