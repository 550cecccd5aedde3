package client

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kvcr-go/kvcr/wire"
)

// Conditions a caller may branch on. Test with errors.Is.
var (
	// ErrTimeout: the context's deadline or Options.RequestTimeout passed, or the
	// node took too long. It is a context.DeadlineExceeded too. A call whose
	// context was cancelled fails with context.Canceled instead.
	ErrTimeout error = timeoutError{}
	// ErrClosed: the client, or the subscription, was closed before or during the
	// call.
	ErrClosed = errors.New("closed")
	// ErrLost: there was no connection, or it ended before the answer.
	// Error.MayHaveRun says whether it is safe to try again.
	ErrLost = errors.New("connection lost")
	// ErrProtocol: what the node sent is not the protocol. The connection is
	// closed.
	ErrProtocol = errors.New("protocol violated by the node")

	// ErrAuth: one side lacks the secret of the other.
	ErrAuth = errors.New("not authenticated")
	// ErrFingerprint: the namespace has another layout.
	ErrFingerprint = errors.New("layouts differ")
	// ErrNamespace: the node has no such namespace.
	ErrNamespace = errors.New("no such namespace")
	// ErrVersion: no version of the protocol in common.
	ErrVersion = errors.New("no version in common")

	// ErrInvalid: an argument is outside its limits. Nothing was sent.
	ErrInvalid = errors.New("invalid argument")
	// ErrShortBuffer: the value is longer than the buffer; Error.Size has its
	// length.
	ErrShortBuffer = errors.New("buffer too short for the value")

	// ErrTooLarge: the value is longer than the node accepts, Error.Size is that
	// limit; or the keys of a call do not fit one request.
	ErrTooLarge = errors.New("too large")
	// ErrBadKey: the key is empty or too long.
	ErrBadKey = errors.New("bad key")
	// ErrCapacity: the node could free no memory. Try later, or shed load.
	ErrCapacity = errors.New("no capacity")
	// ErrBadLayout: the value does not fit the pools of the namespace.
	ErrBadLayout = errors.New("the value does not fit the layout")
	// ErrAborted: the node gave the request up.
	ErrAborted = errors.New("aborted")
	// ErrDropped: refused by the node's policy.
	ErrDropped = errors.New("dropped by the policy")
	// ErrClosing: the node is closing.
	ErrClosing = errors.New("the node is closing")
	// ErrUnsupported: not by this node, or not in this kind of namespace.
	ErrUnsupported = errors.New("not supported by the node")
	// ErrBusy: the node has too much in flight. Try again.
	ErrBusy = errors.New("the node is busy")
	// ErrUnauthorized: not allowed to this client.
	ErrUnauthorized = errors.New("not allowed")
	// ErrReleased: the claim was released, or its connection has ended.
	ErrReleased = errors.New("no such claim any more")
	// ErrRefused: any other refusal; Error.Status or Error.Code has its number.
	ErrRefused = errors.New("refused")
)

type timeoutError struct{}

func (timeoutError) Error() string        { return "timeout" }
func (timeoutError) Timeout() bool        { return true }
func (timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// Error is every error of this package but that of invalid Options.
type Error struct {
	Op   string // "get", "dial"
	Addr string // as in Options
	// Status and Code are the node's, zero when it gave none; Text is what it
	// said to people.
	Status wire.Status
	Code   wire.Code
	Text   string
	// Size is in bytes: the length of the value for ErrShortBuffer, the limit for
	// ErrTooLarge.
	Size uint64
	// MayHaveRun: the request was sent, and the node has not said that it refused
	// it, so it may have been executed.
	MayHaveRun bool
	// Err is one of the conditions above or context.Canceled, Cause what was found
	// below, or nil. Both are unwrapped.
	Err, Cause error
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "client: %s at %s: %v", e.Op, e.Addr, e.Err)
	switch {
	case e.Status != wire.StatusOK:
		fmt.Fprintf(&b, " (status %v)", e.Status)
	case e.Code != 0:
		fmt.Fprintf(&b, " (code %v)", e.Code)
	}
	if e.Size != 0 {
		fmt.Fprintf(&b, ": %d bytes", e.Size)
	}
	if e.Text != "" {
		fmt.Fprintf(&b, ": %#q", e.Text) // as it is, when nothing in it needs an escape
	}
	if e.Cause != nil {
		fmt.Fprintf(&b, ": %v", e.Cause)
	}
	if e.MayHaveRun {
		b.WriteString("; the request may have been executed")
	}
	return b.String()
}

// Unwrap returns the condition and its cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Err}
	}
	return []error{e.Err, e.Cause}
}

// of is e as the outcome of one call.
func (e *Error) of(op op, mayHaveRun bool) *Error {
	one := *e
	one.Op, one.MayHaveRun = op.name(), mayHaveRun
	return &one
}

// violation is the end of a connection to a node that does not keep to the
// protocol.
func violation(format string, args ...any) error {
	return &Error{Err: ErrProtocol, Cause: fmt.Errorf(format, args...)}
}

// ended is the end of a context as a condition.
func ended(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return context.Canceled
	}
	return ErrTimeout
}

var statusErrors = map[wire.Status]error{
	wire.StatusCapacity:     ErrCapacity,
	wire.StatusTooLarge:     ErrTooLarge,
	wire.StatusBadKey:       ErrBadKey,
	wire.StatusBadLayout:    ErrBadLayout,
	wire.StatusTimeout:      ErrTimeout,
	wire.StatusAborted:      ErrAborted,
	wire.StatusDropped:      ErrDropped,
	wire.StatusClosed:       ErrClosing,
	wire.StatusUnsupported:  ErrUnsupported,
	wire.StatusBusy:         ErrBusy,
	wire.StatusUnauthorized: ErrUnauthorized,
	wire.StatusReleased:     ErrReleased,
}

var codeErrors = map[wire.Code]error{
	wire.CodeBadVersion:  ErrVersion,
	wire.CodeAuth:        ErrAuth,
	wire.CodeFingerprint: ErrFingerprint,
	wire.CodeNamespace:   ErrNamespace,
	wire.CodeTooMany:     ErrBusy,
	wire.CodeTimeout:     ErrTimeout,
	wire.CodeShutdown:    ErrClosing,
}

func statusError(s wire.Status, detail uint64) *Error {
	e := &Error{Status: s, Err: statusErrors[s]}
	if e.Err == nil {
		e.Err = ErrRefused
	}
	// Timeout and aborted may have come too late; what is not known may mean
	// anything.
	e.MayHaveRun = e.Err == ErrRefused || e.Err == ErrTimeout || e.Err == ErrAborted
	if s == wire.StatusTooLarge {
		e.Size = detail
	}
	return e
}

func codeError(m *wire.ErrorReply) *Error {
	e := &Error{Code: m.Code, Text: m.Text, Err: codeErrors[m.Code]}
	if e.Err == nil {
		e.Err = ErrRefused
	}
	return e
}
