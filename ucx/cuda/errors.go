package cuda

import (
	"errors"
	"fmt"
)

// Conditions a caller may branch on. Test with errors.Is.
var (
	// ErrNotBuilt: this program was built without cgo or the tag ucx.
	ErrNotBuilt = errors.New("cuda: not in this build: build for linux with cgo and -tags ucx")
	// ErrNoDriver: there is no usable driver library.
	ErrNoDriver = errors.New("cuda: no driver library")
	// ErrNoDevice: the driver is there, the device is not.
	ErrNoDevice = errors.New("cuda: no such device")
	// ErrClosed: the Driver was closed, before or during the call.
	ErrClosed = errors.New("cuda: closed")
	// ErrBusy: copies in flight, or too many; try again when some have ended.
	ErrBusy = errors.New("cuda: busy")
	// ErrOutOfMemory: the device, or the host's memory to register, is used up.
	ErrOutOfMemory = errors.New("cuda: out of memory")
	// ErrDeviceLost: the device failed for the rest of the process.
	ErrDeviceLost = errors.New("cuda: device lost")
	// ErrMismatch: the two sides of a batch do not fit together.
	ErrMismatch = errors.New("cuda: the sides of a copy differ")
	// ErrNotKnown: memory that was neither allocated, adopted nor registered here.
	ErrNotKnown = errors.New("cuda: memory not known")
	// ErrWrongDevice: memory of another device than the batch names.
	ErrWrongDevice = errors.New("cuda: memory of another device")
	// ErrWrongType: host or managed memory where device memory is needed.
	ErrWrongType = errors.New("cuda: not device memory")
)

// OptionError reports an option that cannot be used.
type OptionError struct {
	Field string // the option or argument
	Value string // what it was
	Fix   string // what it may be
}

func (e *OptionError) Error() string {
	return fmt.Sprintf("cuda: %s %s: must be %s", e.Field, e.Value, e.Fix)
}

// LimitError reports a cap that was met. Unwrap gives ErrBusy where waiting
// helps and ErrOutOfMemory where it does not.
type LimitError struct {
	What  string // what is capped
	Value int64  // what it would have become
	Limit int64
	Fix   string
	Err   error
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("cuda: %s: %d is above the limit of %d: %s", e.What, e.Value, e.Limit, e.Fix)
}

func (e *LimitError) Unwrap() error { return e.Err }

// SpanError reports a span that cannot be copied, before anything was copied.
// Unwrap gives ErrMismatch, ErrNotKnown or ErrWrongDevice.
type SpanError struct {
	Index  int // of the span; -1 when the batch as a whole is wrong
	Detail string
	Err    error
}

func (e *SpanError) Error() string {
	if e.Index < 0 {
		return fmt.Sprintf("%v: %s", e.Err, e.Detail)
	}
	return fmt.Sprintf("%v: span %d: %s", e.Err, e.Index, e.Detail)
}

func (e *SpanError) Unwrap() error { return e.Err }

// BusyError reports what keeps memory or the Driver from being given back.
type BusyError struct {
	What      string // what was to be given back
	InFlight  int    // batches that use it
	Unsettled int    // those of them that a lost device may still serve
}

func (e *BusyError) Error() string {
	if e.Unsettled > 0 {
		return fmt.Sprintf("cuda: %s is in use by %d batches, %d of them on a lost device: "+
			"keep the memory mapped until the process ends", e.What, e.InFlight, e.Unsettled)
	}
	return fmt.Sprintf("cuda: %s is in use by %d batches: try again when they have ended", e.What, e.InFlight)
}

func (e *BusyError) Is(target error) bool {
	return target == ErrBusy || target == ErrDeviceLost && e.Unsettled > 0
}

// DriverError is an answer of the driver that is not success. It names the
// driver's function, so it needs no other prefix.
type DriverError struct {
	Call string // the driver's function
	Code int    // the driver's number
	Name string // the driver's name for it, empty when it has none
	Text string // the driver's explanation, likewise
}

func (e *DriverError) Error() string {
	if e.Name == "" {
		return fmt.Sprintf("%s: error %d", e.Call, e.Code)
	}
	return fmt.Sprintf("%s: %s (%d): %s", e.Call, e.Name, e.Code, e.Text)
}

// Is maps the driver's numbers to the conditions of this package.
func (e *DriverError) Is(target error) bool {
	switch target {
	case ErrOutOfMemory:
		return e.Code == codeOutOfMemory
	case ErrNoDevice:
		return e.Code == codeNoDevice || e.Code == codeInvalidDevice
	case ErrNoDriver:
		return e.Code == codeStubLibrary
	case ErrDeviceLost:
		return sticky(e.Code)
	}
	return false
}

// The driver's numbers this package acts on, from the driver API's reference.
const (
	codeOutOfMemory   = 2
	codeDeinitialized = 4
	codeStubLibrary   = 34
	codeNoDevice      = 100
	codeInvalidDevice = 101
)

// sticky reports whether a code means that the context is dead: every later
// call gives the same answer, and only a new process helps.
func sticky(code int) bool {
	switch code {
	case codeDeinitialized,
		214, // ECC_UNCORRECTABLE
		220, // NVLINK_UNCORRECTABLE
		226, // CONTAINED
		700, // ILLEGAL_ADDRESS
		702, // LAUNCH_TIMEOUT
		709, // CONTEXT_IS_DESTROYED
		710, // ASSERT
		714, // HARDWARE_STACK_ERROR
		715, // ILLEGAL_INSTRUCTION
		716, // MISALIGNED_ADDRESS
		717, // INVALID_ADDRESS_SPACE
		718, // INVALID_PC
		719, // LAUNCH_FAILED
		721, // TENSOR_MEMORY_LEAK
		810, // MPS_CLIENT_TERMINATED
		911, // EXTERNAL_DEVICE
		999: // UNKNOWN
		return true
	}
	return false
}
