package hints

import (
	"fmt"
	"slices"
)

// Status is the answer to one action.
type Status uint8

// The answers.
const (
	Accepted Status = iota + 1
	Rejected
)

// String returns the word of the contract, ACCEPTED or REJECTED.
func (s Status) String() string {
	switch s {
	case Accepted:
		return "ACCEPTED"
	case Rejected:
		return "REJECTED"
	}
	return fmt.Sprintf("Status(%d)", uint8(s))
}

// MarshalText returns String.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (s *Status) UnmarshalText(text []byte) error {
	return named(s, text, []string{"", Accepted.String(), Rejected.String()})
}

// named sets v to the place of a name among all names.
func named[V ~uint8](v *V, text []byte, names []string) error {
	i := slices.Index(names, string(text))
	if i < 0 {
		return fmt.Errorf("%q is none of %q", cut(string(text)), names)
	}
	*v = V(i)
	return nil
}

// Reason says why an action was rejected: a closed set, fit for metric labels.
type Reason uint8

// The reasons.
const (
	NoReason              Reason = iota
	UnsupportedActionType        // the type is unknown, missing or no text, or the action is no object
	InvalidPayload               // the payload is absent or no object, or a field of it has another type
	MissingSource                // no source_control_endpoint, or an empty one
	InvalidSource                // no tcp://host:port that can be dialled
	MissingHashes                // no block_hashes, or an empty list
	InvalidHash                  // an element is no integer in 0..2^64-1, written in digits
	NoRequestID                  // advice for a request came without one
	SourceConflict               // another source is held for the request, and AdviceConfig.PoisonOnConflict is set
	HandlerError                 // the handler failed or panicked
	LimitExceeded                // see Limits
	numReasons
)

var reasonNames = [numReasons]string{
	"", "unsupported_action_type", "invalid_payload", "missing_source", "invalid_source", "missing_hashes",
	"invalid_hash", "no_request_id", "source_conflict", "handler_error", "limit_exceeded",
}

// String returns the word of the contract; empty for NoReason.
func (r Reason) String() string {
	if r < numReasons {
		return reasonNames[r]
	}
	return fmt.Sprintf("Reason(%d)", uint8(r))
}

// MarshalText returns String.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (r *Reason) UnmarshalText(text []byte) error { return named(r, text, reasonNames[:]) }

// Rejection is the error by which a parser or a handler rejects its action for a
// reason of the contract. Any other error of a parser is InvalidPayload, any other of
// a handler is HandlerError.
type Rejection struct {
	Reason Reason
	Detail string // what was wrong, with the value and the limit; for people
}

func (r *Rejection) Error() string {
	if r.Detail == "" {
		return r.Reason.String()
	}
	return r.Reason.String() + ": " + r.Detail
}

// Result is the answer to one action of an envelope.
type Result struct {
	Index     int    `json:"index"` // of the action in its envelope
	ActionID  string `json:"action_id"`
	MessageID string `json:"message_id"`
	Type      string `json:"action_type"` // as it came; empty where there was none
	Status    Status `json:"status"`
	Reason    Reason `json:"reason,omitempty"`
	Detail    string `json:"detail,omitempty"` // of a rejection, for people
}
