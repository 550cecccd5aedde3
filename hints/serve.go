package hints

import (
	"context"
	"fmt"
	"log/slog"
)

// session is what serving one envelope needs, used again by later ones.
type session struct {
	doc      document
	call     Call
	in       incoming
	sizes    []int  // of the payloads of a decoded envelope
	actionID string // the last one: most envelopes call their action alike
}

// done lets the session go, and with it what it knows of the envelope.
func (d *Dispatcher) done(s *session) {
	s.doc.data, s.call, s.in = nil, Call{}, incoming{}
	if len(s.actionID) > 64 {
		s.actionID = ""
	}
	if cap(s.sizes) > 1024 {
		s.sizes = nil
	}
	d.calls.Put(s)
}

// incoming is one action, in whichever form it came.
type incoming struct {
	index      int
	id, typ    string
	reg        *registered // nil: the type is not known
	oddVersion string      // for people; empty: the version is absent or known
	payload    Value
	size       int
}

// sameID returns the text of an action id, as the string of the last one if it is the
// same.
func (s *session) sameID(id item) string {
	if !s.doc.is(id, s.actionID) {
		s.actionID = s.doc.string(id)
	}
	return s.actionID
}

// act serves the action s.in. The order of its checks is the contract's.
func (d *Dispatcher) act(s *session) Result {
	c, in := &s.call, &s.in
	c.ActionID, c.Index, c.Type = in.id, in.index, in.typ
	r := Result{Index: in.index, ActionID: in.id, MessageID: c.MessageID, Type: in.typ, Status: Accepted}
	var err error
	switch {
	case in.index >= d.lim.Actions:
		err = &Rejection{LimitExceeded, fmt.Sprintf("action %d of the envelope, limit %d (raise Limits.Actions)", in.index+1, d.lim.Actions)}
	case in.reg == nil:
		err = &Rejection{UnsupportedActionType, unsupported(in)}
	default:
		if in.oddVersion != "" {
			d.warns.version("action_version", in.typ, in.oddVersion)
		}
		err = in.reg.serve(d.log, c, in, &d.lim)
	}
	counts := &d.other
	if in.reg != nil {
		counts = &in.reg.answers
	}
	if err == nil {
		counts.accepted.Inc()
	} else {
		rej := err.(*Rejection) // serve returns no other
		r.Status, r.Reason, r.Detail = Rejected, rej.Reason, rej.Detail
		counts.rejected[rej.Reason].Add(1)
		d.warns.rejected(counts, &r)
	}
	if ctx := context.Background(); d.log.Enabled(ctx, slog.LevelDebug) {
		d.log.LogAttrs(ctx, slog.LevelDebug, "hint served", slog.String("type", cut(r.Type)), slog.String("status", r.Status.String()),
			slog.String("reason", r.Reason.String()), slog.String("message_id", cut(r.MessageID)), slog.String("action_id", cut(r.ActionID)), slog.String("request_id", cut(c.RequestID)))
	}
	return r
}

func unsupported(in *incoming) string {
	if in.typ == "" {
		return "no action_type, or it is no text, or the action is no object"
	}
	return fmt.Sprintf("no handler for %q", cut(in.typ))
}
