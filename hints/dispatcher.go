package hints

import "log/slog"

// Config shapes a Dispatcher. The zero Config is valid.
type Config struct {
	Limits Limits
	// Log gets a warning for the first rejection of each (type, reason) and for the
	// first unknown version of each kind. Default: discards.
	Log *slog.Logger
}

// Dispatcher parses envelopes and hands each action to the handler of its type. Its
// methods are for any goroutine; handlers run on the caller's.
type Dispatcher struct{}

// NewDispatcher returns a Dispatcher that knows no types yet. Failure: ErrConfig.
func NewDispatcher(cfg Config) (*Dispatcher, error) { panic("not yet") }

// Call is what a handler knows of the action that it serves, besides its payload.
type Call struct {
	RequestID string // of the carrier; empty: none
	MessageID string
	ActionID  string
	Index     int // in the envelope
	Type      string
}

// Type is everything about one action type.
type Type[T any] struct {
	// Name is the action_type, Version the one known action_version.
	Name, Version string
	// NeedsRequest: without a request id the action is NoRequestID.
	NeedsRequest bool
	// Parse fills t from a payload object; p and what it returns are valid until it
	// returns. t is zero, or what its method Reset() made of an earlier one.
	// It is not called for a payload that is a T or *T already.
	Parse func(t *T, p Value, lim *Limits) error
	// Check, if not nil, is called with every T, parsed or given.
	Check func(t *T, lim *Limits) error
	// Handle serves the action. t and all it points at are lent until it returns: the
	// handler changes nothing there and copies what it keeps.
	Handle func(c *Call, t *T) error
}

// Register makes d serve the actions of a type. Failures: ErrRegistered, ErrConfig
// (a name or function is missing).
func Register[T any](d *Dispatcher, t Type[T]) error { panic("not yet") }

// Submit serves an envelope in any form: *Envelope or Envelope; a tree of maps; text
// or bytes, which are msgpack if the first byte is that of a msgpack map, else JSON.
// requestID names the request that carried the envelope, empty if none.
//
// The results are those of the actions, in order. The only error is a
// *MalformedError; then no action was served.
func (d *Dispatcher) Submit(requestID string, in any) ([]Result, error) { panic("not yet") }

// AppendJSON is Submit of JSON text, appending the results to dst. It keeps nothing
// of data. On failure it returns dst as it was.
func (d *Dispatcher) AppendJSON(dst []Result, requestID string, data []byte) ([]Result, error) {
	panic("not yet")
}

// AppendMsgpack is AppendJSON of a msgpack map.
func (d *Dispatcher) AppendMsgpack(dst []Result, requestID string, data []byte) ([]Result, error) {
	panic("not yet")
}

// AppendEnvelope is AppendJSON of a decoded envelope.
func (d *Dispatcher) AppendEnvelope(dst []Result, requestID string, e *Envelope) ([]Result, error) {
	panic("not yet")
}

// TypeCounts counts the answers to actions of one type.
type TypeCounts struct {
	Type     string // registered, or "other" for all that are not
	Accepted uint64
	Rejected [numReasons]uint64 // by Reason
}

// Counts are a Dispatcher's counters since it was made.
type Counts struct {
	Malformed uint64 // envelopes
	Types     []TypeCounts
}

// Counts returns the counters; types in order of registration, "other" last.
func (d *Dispatcher) Counts() Counts { panic("not yet") }
