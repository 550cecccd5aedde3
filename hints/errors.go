package hints

import "errors"

var (
	// ErrMalformed: the input is no envelope. No action of it was served. The error is
	// a *MalformedError.
	ErrMalformed = errors.New("malformed hint envelope")
	// ErrRegistered: the action type has a handler already.
	ErrRegistered = errors.New("action type is registered already")
	// ErrConfig: a configuration is out of its bounds.
	ErrConfig = errors.New("bad configuration")
	// ErrClosed: the stream, tracker or fan-out was closed.
	ErrClosed = errors.New("closed")
	// ErrLimit: there is no room for one more. Retry when some have ended, or raise the limit.
	ErrLimit = errors.New("limit reached")
	// ErrGap: outcomes were lost between the last call and this. The error is a
	// *GapError.
	ErrGap = errors.New("outcomes were lost")
	// ErrExpected: the action is expected already.
	ErrExpected = errors.New("action is expected already")
)

// MalformedError says what makes an input no envelope. Unwrap gives ErrMalformed.
type MalformedError struct {
	Form   string // "json", "msgpack" or "value"
	What   string
	Offset int // of encoded forms: the byte where it was seen; -1 for the whole
}

// GapError says how many outcomes a reader missed. Unwrap gives ErrGap.
type GapError struct{ Lost uint64 }
