//go:build !kvcr_check && !race

package arena

// Checking is true in builds that pay for costly checks (-tags kvcr_check or
// -race). It is a constant, so that the compiler removes what it guards.
const Checking = false
