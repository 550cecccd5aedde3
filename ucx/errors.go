package ucx

import (
	"errors"
	"fmt"
)

// Conditions a caller may branch on. Test with errors.Is.
var (
	// ErrNotBuilt: this binary has no UCX. Build with -tags ucx, cgo and libucx.
	ErrNotBuilt = errors.New("ucx: built without UCX (needs linux, cgo and -tags ucx)")
	// ErrClosed: the context, worker, endpoint, key or region was closed.
	ErrClosed = errors.New("ucx: closed")
	// ErrFull: a cap of Options was reached; the error is a *LimitError.
	ErrFull = errors.New("ucx: limit reached")
	// ErrBusy: what was to be closed is still in use; the error is a *BusyError.
	ErrBusy = errors.New("ucx: still in use")
	// ErrRange: an operation reaches beyond its region or its remote key.
	ErrRange = errors.New("ucx: outside the registered region")
	// ErrBlob: an address or key of a peer is damaged, cut short, or of another kind.
	ErrBlob = errors.New("ucx: not a valid address or key")
	// ErrInvalid: an argument that can never work.
	ErrInvalid = errors.New("ucx: invalid argument")

	errNoPuts = fmt.Errorf("%w: a put or a key without Options.Puts", ErrInvalid)
)

// LimitError says which cap was hit. It is an ErrFull.
type LimitError struct {
	What  string // "requests", "endpoints", ...
	Limit int64
	Fix   string // what to change
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("ucx: limit of %d %s reached: %s", e.Limit, e.What, e.Fix)
}

// Unwrap makes every LimitError an ErrFull.
func (e *LimitError) Unwrap() error { return ErrFull }

// BusyError says what keeps a Close or Deregister from being complete. It is an
// ErrBusy.
type BusyError struct {
	What string // "workers", "regions", "operations"
	N    int
}

func (e *BusyError) Error() string { return fmt.Sprintf("ucx: %d %s still in use", e.N, e.What) }

// Unwrap makes every BusyError an ErrBusy.
func (e *BusyError) Unwrap() error { return ErrBusy }

// OpError says which call of UCX failed. Unwrap gives the Status.
type OpError struct {
	Op  string // the function of UCX
	Err error
}

func (e *OpError) Error() string { return "ucx: " + e.Op + ": " + e.Err.Error() }

// Unwrap gives the Status.
func (e *OpError) Unwrap() error { return e.Err }

// Status is an error code of UCX (ucs_status_t). One byte, so that storing it in
// an error does not allocate.
type Status int8

// Codes that say something to a caller of this package.
const (
	StatusNoMemory        Status = -4
	StatusInvalid         Status = -5
	StatusUnreachable     Status = -6
	StatusTruncated       Status = -9 // the message was longer than the receive
	StatusCanceled        Status = -16
	StatusTimedOut        Status = -20
	StatusUnsupported     Status = -22
	StatusNotConnected    Status = -24
	StatusConnectionReset Status = -25
	StatusEndpointTimeout Status = -80
)

var statusText = map[Status]string{
	-1: "no message", -2: "no resource", -3: "input/output error", -4: "out of memory",
	-5: "invalid parameter", -6: "destination is unreachable", -7: "address not valid",
	-8: "not implemented", -9: "message truncated", -10: "no progress",
	-11: "buffer too small", -12: "no such element", -13: "failed to connect some of the endpoints",
	-14: "no such device", -15: "device is busy", -16: "canceled", -17: "shared memory error",
	-18: "element already exists", -19: "index out of range", -20: "timed out",
	-21: "user-defined limit was reached", -22: "unsupported", -23: "rejected", -24: "not connected",
	-25: "connection reset by peer", -80: "endpoint timeout",
}

func (s Status) Error() string {
	if text, ok := statusText[s]; ok {
		return text
	}
	switch {
	case s <= -60 && s > -90:
		return fmt.Sprintf("endpoint failure (status %d)", int8(s))
	case s <= -40 && s > -60:
		return fmt.Sprintf("link failure (status %d)", int8(s))
	}
	return fmt.Sprintf("UCX status %d", int8(s))
}

// AbortsWithPeers reports whether a UCX of this version may end the whole process
// when a peer is killed in the moment in which a connection to it is made. Only
// builds with assertions do, such as Debian's 1.13.1; which a library is cannot be
// asked.
func AbortsWithPeers(version string) bool {
	var major, minor int
	n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor)
	return n == 2 && (major < 1 || major == 1 && minor < 14)
}

// Canceled reports whether an operation ended because it was cancelled, by
// Cancel or by the closing of its endpoint or worker.
func Canceled(err error) bool {
	var s Status
	return errors.As(err, &s) && s == StatusCanceled
}
