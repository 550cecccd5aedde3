package wire

import (
	"errors"
	"fmt"
)

// Conditions a caller may branch on. Test with errors.Is.
var (
	// ErrShort: the bytes end before the frame does. Wait for more; see Need.
	ErrShort = errors.New("wire: frame not complete")
	// ErrMagic: the bytes are no frame of this protocol.
	ErrMagic = errors.New("bad magic")
	// ErrVersion: the frame format is of another version.
	ErrVersion = errors.New("bad frame version")
	// ErrFlags: a flag is unknown, not for this type, or missing.
	ErrFlags = errors.New("bad flags")
	// ErrReserved: bytes that must be zero are not.
	ErrReserved = errors.New("reserved bytes are not zero")
	// ErrLength: the payload is longer than the type allows.
	ErrLength = errors.New("payload too long")
	// ErrPayload: the payload is not one message of its type.
	ErrPayload = errors.New("bad payload")
	// ErrSecret: the secret is too short.
	ErrSecret = errors.New("secret too short")
)

// FrameError says what is wrong with a header. After one the stream has no
// frames any more. Unwrap gives the condition.
type FrameError struct {
	Code Code
	// Got is the field's value; Limit is the largest one allowed, or the flags
	// allowed or demanded, or the only value there is.
	Got, Limit uint64
	Err        error
}

func (e *FrameError) Error() string {
	return fmt.Sprintf("wire: %v: %#x, limit %#x", e.Err, e.Got, e.Limit)
}

func (e *FrameError) Unwrap() error { return e.Err }

// PayloadError says which field of a message is wrong. It is an ErrPayload. The
// frame's length was right: the frames after it can be read.
type PayloadError struct {
	Type       Type
	Field      string // as in PROTOCOL.md; empty for the payload as a whole
	Problem    string
	Got, Limit uint64
}

func (e *PayloadError) Error() string {
	where := e.Type.String()
	if e.Field != "" {
		where += ": " + e.Field
	}
	return fmt.Sprintf("wire: %s: %s: %d, limit %d", where, e.Problem, e.Got, e.Limit)
}

// Is makes a PayloadError an ErrPayload.
func (e *PayloadError) Is(target error) bool { return target == ErrPayload }

// SecretError is CheckSecret's refusal. It is an ErrSecret.
type SecretError struct {
	Got, Min int // bytes
}

func (e *SecretError) Error() string {
	return fmt.Sprintf("wire: %v: %d bytes, at least %d", ErrSecret, e.Got, e.Min)
}

// Is makes a SecretError an ErrSecret.
func (e *SecretError) Is(target error) bool { return target == ErrSecret }

// CodeOf returns the code with which a peer is told of an error of this package,
// and CodeInternal for any other.
func CodeOf(err error) Code {
	var f *FrameError
	switch {
	case errors.As(err, &f):
		return f.Code
	case errors.Is(err, ErrPayload):
		return CodeBadPayload
	case errors.Is(err, ErrSecret):
		return CodeAuth
	}
	return CodeInternal
}
