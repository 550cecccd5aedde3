// Package faults has no code but tests: of whole engines as peers, in processes
// that are killed, stopped, restarted and cut off at named steps of a transfer.
//
// The test's own process is one of the peers, the witness: whatever happens to the
// others, it goes on fetching from those that live. The other processes are the
// test binary, run again (child_test.go), and driven over their standard streams
// (proc_test.go).
//
// cases_test.go says which test covers which case that these tests, and those of
// the packages below, are for.
package faults
