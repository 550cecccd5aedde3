// Package arena provides reserved memory outside the Go heap, cut up without
// pointers. It knows bytes, slots and owners' numbers; keys, blocks and peers
// are the business of the packages above.
//
// # Regions
//
// Map reserves one region of fixed size, the Arena, on the best pages it can
// get: explicit huge pages, then transparent ones, then base pages. What it got
// and why not more is the Placement, a value for logs and metrics; only what was
// demanded strictly is an error instead. Whatever the system cannot provide
// shows while Map runs, never as a signal later:
//
//	M1  After Map, every block of a file or memfd and every explicit huge page
//	    is there. Only base and transparent pages of anonymous memory are given
//	    at first touch. No arena is larger than the limit of the control group
//	    and of the machine; one that is taken at once is not larger than the
//	    memory available when Map ran.
//	M2  When Map fails, nothing stays mapped, open, or on disk.
//	M3  No child of this process sees a region: mappings are MADV_DONTFORK,
//	    descriptors close-on-exec. Shared memory travels by descriptor only.
//	M4  A memfd never changes its length (sealed), a file only by the hand of
//	    somebody who may write to it.
//	M5  A file belongs to the process that holds its flock. A file of ours that
//	    nobody holds is removed by the next Map into the same directory; any
//	    other file is never touched.
//
// Positions are Off, bytes from the arena's base, so that they mean the same in
// every process that maps the region. No Go pointer is ever stored in one: Cast
// refuses types that could hold one.
//
// Between regions, and on both sides of each, lies a page that faults, explicit
// huge pages aside.
//
// # Allocators
//
// Slots cuts a part of an arena into slots of one size. Classes allocates values
// of any size in one, with a page table beside it. Both have a single owner at a
// time, allocate nothing on the Go heap after they are made, and check what they
// read back from memory: a link or descriptor that cannot be right panics with
// its value. Their invariants are with their types (I, R, C).
//
// # Builds
//
// In race builds anonymous arenas come from the Go heap (Placement.GoHeap),
// because the race detector does not see mapped memory. With -tags kvcr_check,
// and in race builds, Checking is true and the costly checks are on.
package arena
