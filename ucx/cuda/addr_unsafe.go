package cuda

import "unsafe"

// addrOf is where mem begins, as a number for the driver.
//
// Unsafe: an address outlives the slice it was made from. Sound: it is passed
// to the driver only, and the memory is outside the Go heap and mapped until it
// is given back, as doc.go asks.
func addrOf(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }
