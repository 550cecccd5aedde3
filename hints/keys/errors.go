package keys

import (
	"errors"
	"fmt"
)

// Conditions of this package, beside those of hints.
var (
	// ErrInvalid: a value is outside what is allowed; the error is an *Error.
	ErrInvalid = errors.New("invalid")
	// ErrIncomplete: the Table had no room for some keys and cannot say which key a
	// hash means, until it has been made anew (Follow, Resync) with room for all.
	ErrIncomplete = errors.New("the table of keys is incomplete")
	// ErrGap, of a Feed: changes were lost; its Snapshot begins anew.
	ErrGap = errors.New("changes were lost")
)

// Error names a value that is not allowed, the limit, and what to do.
type Error struct {
	What  string
	Value any
	Limit string
	Fix   string
}

func (e *Error) Error() string {
	return fmt.Sprintf("keys: %s = %v: %s; %s", e.What, e.Value, e.Limit, e.Fix)
}

func (e *Error) Is(target error) bool { return target == ErrInvalid }
