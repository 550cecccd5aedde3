// Package sim runs the state machines of package peer over a simulated network,
// clock and block table, and checks what they promise after every step.
//
// A schedule is a function of its Options: the same seed takes the same steps.
// World time is virtual. Every message is encoded and parsed as on a real
// connection; payload moves word by word, at moments of its own, by the rules of
// its route; processes stall, die at any step and come back as new incarnations. In
// some schedules each node has two names, and the others a connection by each.
//
// What is checked (world.fail names the broken one):
//
//   - for each key of an admitted move: the source's record exists, or the
//     destination's living incarnation has record and hold, or removed was
//     answered, or the holder's process died. A destination that dies between its
//     confirmation and the source's reading of it is the one exception; it is
//     counted in Report.Window;
//   - no reader sees other bytes than those of one version of its key, and
//     nothing else is ever committed;
//   - hashes are answered by what the source has said for that very hash since it was
//     asked, and what is fetched then is the block that was meant, or nothing;
//   - no memory is freed or reused while a peer may read or write it;
//   - D1 to D5 and S1 to S4 of package peer;
//   - when faults have stopped, everything ends: no operation, claim, mark, hold
//     or reservation is left, but for those that wait for a process that never
//     comes back and of whose death there is no proof.
//
// Explore drives the same machines through every order of few messages.
package sim
