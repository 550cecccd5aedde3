package kvcr

import (
	"errors"
	"fmt"

	"github.com/kvcr-go/kvcr/shard"
)

// Conditions a caller may branch on. Test with errors.Is.
var (
	// ErrConfig: Open refused the configuration; the error lists every problem.
	ErrConfig = errors.New("bad configuration")
	// ErrKey: the key is empty or longer than MaxKeyBytes.
	ErrKey = errors.New("key must be 1 to 1024 bytes")
	// ErrTooLarge: the value exceeds the namespace's maximum. Never worth a retry.
	ErrTooLarge = errors.New("value larger than the namespace allows")
	// ErrFull: no memory could be freed: everything is claimed, held or being
	// written. Retry later, or shed load.
	ErrFull = errors.New("no memory can be freed")
	// ErrLayout: the pieces do not fit the pools named, or the key is resident
	// with other pieces.
	ErrLayout = errors.New("layout does not match")
	// ErrDropped: the policy refused the block.
	ErrDropped = errors.New("refused by the policy")
	// ErrKind: the call needs a namespace of another kind.
	ErrKind = errors.New("wrong kind of namespace")
	// ErrClosed: the engine or handle was closed, before or during the call.
	ErrClosed = errors.New("closed")
	// ErrBusy: Close left memory mapped since Views or reservations are out.
	ErrBusy = errors.New("memory in use")
	// ErrReleased: the View was released before, or the reservation ended.
	ErrReleased = shard.ErrReleased
	// ErrHandles: Config.MaxHandles are open.
	ErrHandles = errors.New("too many handles")
	// ErrNamespace: no such namespace.
	ErrNamespace = errors.New("no such namespace")
	// ErrConcurrent: a Handle is in use by another goroutine. Found in checking
	// builds (-tags kvcr_check, or -race) only.
	ErrConcurrent = errors.New("handle used from two goroutines")
	// ErrNoHints: the engine does not act on hints.
	ErrNoHints = errors.New("no hints")
	// ErrGap: a subscription lost events since its reader was too slow; take a
	// new snapshot.
	ErrGap = errors.New("inventory events lost")
)

// Reason says how an operation on one key ended. The set is closed.
type Reason = shard.Reason

// The reasons.
const (
	ReasonOK       = shard.OK
	ReasonMiss     = shard.Miss
	ReasonCapacity = shard.Capacity
	ReasonDropped  = shard.Dropped
	ReasonTooLarge = shard.TooLarge
	ReasonLayout   = shard.Layout
	ReasonKey      = shard.Key
	ReasonClosed   = shard.Closed
	ReasonTimeout  = shard.Timeout
	ReasonAborted  = shard.Aborted
	ReasonSource   = shard.Source
	ReasonChecksum = shard.Checksum
)

var conditions = map[Reason]error{
	ReasonMiss: errors.New("miss"), ReasonCapacity: ErrFull, ReasonDropped: ErrDropped, ReasonTooLarge: ErrTooLarge,
	ReasonLayout: ErrLayout, ReasonKey: ErrKey, ReasonClosed: ErrClosed,
	ReasonTimeout: errors.New("timeout"), ReasonAborted: errors.New("aborted"),
	ReasonSource: errors.New("source failed"), ReasonChecksum: errors.New("checksum mismatch"),
}

// OpError says which operation failed, with the value and limit concerned.
// Unwrap gives the condition.
type OpError struct {
	Op     string
	Value  int // bytes given, where a size is the matter
	Limit  int // bytes allowed
	Detail string
	Err    error
}

func (e *OpError) Error() string {
	msg := "kvcr: " + e.Op + ": " + e.Err.Error()
	if e.Limit > 0 {
		msg += fmt.Sprintf(": %d bytes, at most %d", e.Value, e.Limit)
	}
	if e.Detail != "" {
		msg += ": " + e.Detail
	}
	return msg
}

func (e *OpError) Unwrap() error { return e.Err }

// BusyError is Close's answer while memory is in use. It is an ErrBusy.
type BusyError struct {
	Views        int // claims not released
	Reservations int // reservations neither committed nor aborted
	// Devices: a GPU that was lost may still write to memory of ours; it stays
	// mapped until the process ends.
	Devices bool
}

func (e *BusyError) Error() string {
	if e.Devices {
		return fmt.Sprintf("kvcr: close: %v: a GPU that was lost may still write to it: end the process", ErrBusy)
	}
	return fmt.Sprintf("kvcr: close: %v: %d views and %d reservations are out; their memory is unmapped when the last one ends", ErrBusy, e.Views, e.Reservations)
}

func (e *BusyError) Is(target error) bool { return target == ErrBusy }

func opError(op string, why Reason) error {
	if why == ReasonOK {
		return nil
	}
	return &OpError{Op: op, Err: conditions[why]}
}
