package hints

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"sync"
)

// Call is what a handler knows of the action that it serves, besides its payload. It
// is lent to the handler until that returns; its strings may be kept.
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
	// Parse fills t from a payload object; p is valid until it returns. t is zero, or
	// what its method Reset, if *T has one, has made of an earlier t. A payload that
	// is a T or *T already is not parsed.
	Parse func(t *T, p Value, lim *Limits) error
	// Check, if not nil, is called with every T, parsed or given.
	Check func(t *T, lim *Limits) error
	// Handle serves the action. t and all it points at are lent until it returns: the
	// handler changes nothing there, and copies what it keeps.
	Handle func(c *Call, t *T) error
}

// registry is the registered types; it never changes.
type registry struct {
	byName map[string]*registered
	order  []*registered
}

type registered struct {
	name, version string
	answers       answers
	// run parses and handles one action. Its error is a *Rejection.
	run func(c *Call, in *incoming, lim *Limits) error
}

// Register makes d serve the actions of a type: parser and handler together. Failures:
// ErrRegistered, ErrConfig (a name or function is missing).
func Register[T any](d *Dispatcher, t Type[T]) error {
	if t.Name == "" || t.Version == "" || t.Parse == nil || t.Handle == nil {
		return fmt.Errorf("%w: action type %q needs Name, Version, Parse and Handle", ErrConfig, t.Name)
	}
	scratch := sync.Pool{New: func() any { return new(T) }}
	r := &registered{name: t.Name, version: t.Version}
	r.answers.init()
	r.run = func(c *Call, in *incoming, lim *Limits) error {
		given, ok := givenAs[T](in.payload.tree)
		if ok {
			return t.serve(c, given, lim)
		}
		if in.payload.kind != Object {
			return &Rejection{InvalidPayload, "payload is " + in.payload.kind.String() + ", not an object"}
		}
		if in.size > lim.PayloadBytes {
			return &Rejection{LimitExceeded, fmt.Sprintf("payload larger than %d bytes (raise Limits.PayloadBytes)", lim.PayloadBytes)}
		}
		own := scratch.Get().(*T)
		if r, ok := any(own).(interface{ Reset() }); ok {
			r.Reset()
		} else {
			*own = *new(T)
		}
		// A panic leaves own to the garbage collector: nobody knows what is in it.
		err := t.Parse(own, in.payload, lim)
		if err != nil {
			err = asRejection(err, InvalidPayload)
		} else {
			err = t.serve(c, own, lim)
		}
		scratch.Put(own)
		return err
	}
	d.registerMu.Lock()
	defer d.registerMu.Unlock()
	old := d.types.Load()
	if old.byName[t.Name] != nil {
		return fmt.Errorf("%w: %q", ErrRegistered, t.Name)
	}
	next := &registry{byName: maps.Clone(old.byName), order: append(old.order[:len(old.order):len(old.order)], r)}
	if next.byName == nil {
		next.byName = map[string]*registered{}
	}
	next.byName[t.Name] = r
	d.types.Store(next)
	return nil
}

// givenAs returns the T that a decoded envelope carries, if it does.
func givenAs[T any](payload any) (*T, bool) {
	switch p := payload.(type) {
	case *T:
		return p, p != nil
	case T:
		return &p, true
	}
	return nil, false
}

// serve handles a T after the checks that follow parsing.
func (t *Type[T]) serve(c *Call, v *T, lim *Limits) error {
	if t.Check != nil {
		if err := t.Check(v, lim); err != nil {
			return asRejection(err, InvalidPayload)
		}
	}
	if t.NeedsRequest && c.RequestID == "" {
		return &Rejection{NoRequestID, t.Name + " is advice for a request, and came without one"}
	}
	if err := t.Handle(c, v); err != nil {
		return asRejection(err, HandlerError)
	}
	return nil
}

// asRejection returns err as a *Rejection, for the reason if it names none itself.
func asRejection(err error, reason Reason) error {
	var r *Rejection
	if errors.As(err, &r) && r.Reason > NoReason && r.Reason < numReasons {
		return r
	}
	return &Rejection{reason, err.Error()}
}

// serve is run, and a panic of the type's functions rejects this action alone. Where
// it came from goes into the log, the first time.
func (r *registered) serve(log *slog.Logger, c *Call, in *incoming, lim *Limits) (err error) {
	defer func() {
		if p := recover(); p != nil {
			if !r.answers.panicked.Swap(true) {
				log.Error("the handler of a hint panicked", "type", r.name, "panic", p, "stack", string(debug.Stack()))
			}
			err = &Rejection{HandlerError, cut(fmt.Sprintf("panic: %v", p))}
		}
	}()
	return r.run(c, in, lim)
}
