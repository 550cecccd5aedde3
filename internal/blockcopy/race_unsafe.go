//go:build race

package blockcopy

import (
	"runtime"
	"unsafe"
)

// raceRead tells the race detector that b was read: the checksum library
// reads by assembly, which the detector does not see.
//
// Unsafe: passes an address. Sound: the range is b's own, and is not kept.
func raceRead(b []byte) {
	if len(b) > 0 {
		runtime.RaceReadRange(unsafe.Pointer(unsafe.SliceData(b)), len(b))
	}
}
