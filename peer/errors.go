package peer

import (
	"errors"
	"fmt"

	"github.com/kvcr-go/kvcr/wire"
)

// Conditions a caller may branch on. Test with errors.Is.
var (
	// ErrClosed: the node was closed, before or during the call.
	ErrClosed = errors.New("closed")
	// ErrClosing: Close was called from within a callback of the node, or a callback
	// does not return. The node closes once it does.
	ErrClosing = errors.New("closing, once its callbacks have returned")
	// ErrRefused: the peer, or this side, has refused the connection, or the peer an
	// operation; Status says why. It is tried again when there is new work.
	ErrRefused = errors.New("refused")
	// ErrLost: the connection ended, or never came about, before there was an
	// answer.
	ErrLost = errors.New("connection lost")
	// ErrBusy: too many peers, or too much in flight.
	ErrBusy = errors.New("too many peers")
)

// Error says what failed with which peer. Unwrap gives the condition and, where
// there is one, the cause.
type Error struct {
	Op       string // "dial", "query", "invalidate", "resolve", "fetch from", "close"
	Endpoint string
	Status   wire.Status // for ErrRefused
	Err      error
	Cause    error // nil: Err says it all
}

func (e *Error) Error() string {
	s := fmt.Sprintf("peer: %s %s: %v", e.Op, e.Endpoint, e.Err)
	if e.Status != wire.StatusOK {
		s += " (" + e.Status.String() + ")"
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Err}
	}
	return []error{e.Err, e.Cause}
}

// refused is why a handshake will not succeed if tried again at once.
type refused struct {
	status wire.Status
	why    string
}

func (e *refused) Error() string { return e.why }

func refusef(s wire.Status, format string, a ...any) error {
	return &refused{s, fmt.Sprintf(format, a...)}
}

// refusalOf turns the code with which a peer ended a handshake into an error: a
// refusal, unless it may be gone the next moment.
func refusalOf(code wire.Code, text string) error {
	why := fmt.Sprintf("the peer says %v: %s", code, text)
	switch code {
	case wire.CodeAuth:
		return &refused{wire.StatusUnauthorized, why}
	case wire.CodeFingerprint:
		return &refused{wire.StatusBadLayout, why}
	case wire.CodeTooMany, wire.CodeTimeout, wire.CodeShutdown, wire.CodeInternal:
		return errors.New(why)
	}
	r := &refused{wire.StatusUnsupported, why}
	if code == wire.CodeHandshake {
		return outOfTurn{r}
	}
	return r
}

// outOfTurn refuses a connection for what came before it: of a payload connection, its
// control connection is not there any more.
type outOfTurn struct{ *refused }

func (e outOfTurn) Unwrap() error { return e.refused }
