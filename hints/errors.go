package hints

import (
	"errors"
	"fmt"
)

var (
	// ErrMalformed: the input is no envelope. No action of it was served. The error is
	// a *MalformedError.
	ErrMalformed = errors.New("malformed hint envelope")
	// ErrRegistered: the action type has a handler already.
	ErrRegistered = errors.New("action type is registered already")
	// ErrConfig: a configuration is out of its bounds.
	ErrConfig = errors.New("bad configuration")
	// ErrClosed: the stream, reader, tracker or fan-out was closed.
	ErrClosed = errors.New("closed")
	// ErrLimit: there is no room for one more. Retry when some have ended, or raise the
	// limit.
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
	Offset int // of encoded forms: the byte where it was seen; -1: not at one place
}

func (e *MalformedError) Error() string {
	if e.Offset < 0 {
		return fmt.Sprintf("%v (%s): %s", ErrMalformed, e.Form, e.What)
	}
	return fmt.Sprintf("%v (%s): %s, at byte %d", ErrMalformed, e.Form, e.What, e.Offset)
}

func (e *MalformedError) Unwrap() error { return ErrMalformed }

// GapError says how many outcomes a reader missed. Unwrap gives ErrGap.
type GapError struct{ Lost uint64 }

func (e *GapError) Error() string { return fmt.Sprintf("%v: %d", ErrGap, e.Lost) }

func (e *GapError) Unwrap() error { return ErrGap }

// outOfRange is the ErrConfig for a field that must lie in least..most.
func outOfRange(field string, value, least, most int) error {
	return fmt.Errorf("%w: %s is %d; it must be in %d..%d", ErrConfig, field, value, least, most)
}

// orDefault replaces zero by the default and reports whether the field is in
// least..most.
func orDefault(field *int, name string, def, least, most int) error {
	if *field == 0 {
		*field = def
	}
	if *field < least || *field > most {
		return outOfRange(name, *field, least, most)
	}
	return nil
}

// limitError is the ErrLimit for things of which there are as many as may be.
func limitError(what string, limit int, field string) error {
	return fmt.Errorf("%w: %d %s (raise %s)", ErrLimit, limit, what, field)
}
