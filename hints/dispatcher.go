package hints

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
)

// protocolVersion is the one version of the envelope that there is.
const protocolVersion = "0.1"

// Config shapes a Dispatcher. The zero Config is valid.
type Config struct {
	Limits Limits
	// Log gets a warning for the first rejection of each (type, reason) and for the
	// first unknown version of each kind, and every result at debug level. Default:
	// discards.
	Log *slog.Logger
}

// Dispatcher parses envelopes and hands each action to the handler of its type. Its
// methods are for any goroutine; handlers run on the caller's, without a lock.
type Dispatcher struct {
	lim   Limits
	log   *slog.Logger
	warns warnings

	malformed atomic.Uint64
	other     answers // to actions of no registered type

	registerMu sync.Mutex
	types      atomic.Pointer[registry] // replaced as a whole by Register

	calls sync.Pool // of *session
}

// NewDispatcher returns a Dispatcher that knows no types yet. Failure: ErrConfig.
func NewDispatcher(cfg Config) (*Dispatcher, error) {
	lim, err := cfg.Limits.withDefaults()
	if err != nil {
		return nil, err
	}
	d := &Dispatcher{lim: lim, log: cfg.Log}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	d.warns.log = d.log
	d.types.Store(&registry{})
	d.calls.New = func() any { return new(session) }
	return d, nil
}

// Limits returns the limits in force.
func (d *Dispatcher) Limits() Limits { return d.lim }

// Submit serves an envelope in any form: *Envelope or Envelope; a decoded tree, a map
// as Action.Payload describes; bytes, which are msgpack if the first one is that of a
// msgpack map, and JSON if not. requestID names the request that carried the envelope,
// empty if none.
//
// The results are those of the actions, in order. The only error is a
// *MalformedError; then no action was served.
func (d *Dispatcher) Submit(requestID string, in any) ([]Result, error) {
	switch e := in.(type) {
	case *Envelope:
		return d.AppendEnvelope(nil, requestID, e)
	case Envelope:
		return d.AppendEnvelope(nil, requestID, &e)
	case []byte:
		return d.appendBytes(requestID, e)
	case json.RawMessage:
		return d.appendBytes(requestID, e)
	}
	return d.appendTree(requestID, in)
}

func (d *Dispatcher) appendBytes(requestID string, data []byte) ([]Result, error) {
	if len(data) > 0 && isMap(data[0]) {
		return d.AppendMsgpack(nil, requestID, data)
	}
	return d.AppendJSON(nil, requestID, data)
}

// AppendJSON is Submit of JSON text, appending the results to dst. It keeps nothing
// of data. On failure it returns dst as it was.
func (d *Dispatcher) AppendJSON(dst []Result, requestID string, data []byte) ([]Result, error) {
	return d.appendEncoded(dst, requestID, data, formJSON, scanJSON)
}

// AppendMsgpack is AppendJSON of a msgpack map.
func (d *Dispatcher) AppendMsgpack(dst []Result, requestID string, data []byte) ([]Result, error) {
	return d.appendEncoded(dst, requestID, data, formMsgpack, scanMsgpack)
}

func (d *Dispatcher) appendEncoded(dst []Result, requestID string, data []byte, f form, scan func(*document, *Limits) error) ([]Result, error) {
	if len(data) > d.lim.EnvelopeBytes {
		return dst, d.refuse(f, tooLarge(d.lim.EnvelopeBytes))
	}
	s := d.calls.Get().(*session)
	doc := &s.doc
	doc.reset(data, f)
	if err := scan(doc, &d.lim); err != nil {
		d.malformed.Add(1)
		d.done(s)
		return dst, err
	}
	if doc.protocol.kind != Absent && !doc.is(doc.protocol, protocolVersion) {
		d.warns.version("protocol_version", "", Value{item: doc.protocol, doc: doc}.quote())
	}
	s.call = Call{RequestID: requestID, MessageID: doc.string(doc.message)}
	types := d.types.Load()
	for i := range doc.actions {
		a := &doc.actions[i]
		s.in = incoming{index: i, id: s.sameID(a.id)}
		in := &s.in
		if a.typ.kind == Text {
			var scratch [64]byte
			if in.reg = types.byName[string(doc.text(a.typ, scratch[:]))]; in.reg != nil {
				in.typ = in.reg.name
			} else {
				in.typ = doc.string(a.typ)
			}
		}
		if in.reg != nil && a.version.kind != Absent && !doc.is(a.version, in.reg.version) {
			in.oddVersion = Value{item: a.version, doc: doc}.quote()
		}
		in.payload = Value{item: a.payload, doc: doc, noted: a.noted}
		if a.noted {
			in.payload.members = doc.members[a.first:a.end]
		}
		in.size = int(a.payload.hi - a.payload.lo)
		dst = append(dst, d.act(s))
	}
	d.done(s)
	return dst, nil
}

// AppendEnvelope is AppendJSON of a decoded envelope.
func (d *Dispatcher) AppendEnvelope(dst []Result, requestID string, e *Envelope) ([]Result, error) {
	if e == nil {
		return dst, d.refuse(formTree, "no envelope")
	}
	s := d.calls.Get().(*session)
	if what := s.measure(e, &d.lim); what != "" {
		d.done(s)
		return dst, d.refuse(formTree, what)
	}
	if e.ProtocolVersion != "" && e.ProtocolVersion != protocolVersion {
		d.warns.version("protocol_version", "", cut(e.ProtocolVersion))
	}
	s.call = Call{RequestID: requestID, MessageID: e.MessageID}
	types := d.types.Load()
	for i := range e.Actions {
		a := &e.Actions[i]
		s.in = incoming{index: i, id: a.ID, typ: a.Type, reg: types.byName[a.Type], payload: treeValue(a.Payload), size: s.sizes[i]}
		in := &s.in
		if in.reg != nil && a.Version != "" && a.Version != in.reg.version {
			in.oddVersion = cut(a.Version)
		}
		dst = append(dst, d.act(s))
	}
	d.done(s)
	return dst, nil
}

// appendTree serves a decoded tree: as AppendEnvelope, but its fields may have any type.
func (d *Dispatcher) appendTree(requestID string, tree any) ([]Result, error) {
	top := treeValue(tree)
	if top.kind != Object {
		return nil, d.refuse(formTree, "the envelope is "+top.kind.String()+", not an object")
	}
	m := treeMeasure{sizeLimit: d.lim.EnvelopeBytes, depthLimit: d.lim.Depth}
	if !m.value(tree, 0) {
		return nil, d.refuse(formTree, m.what)
	}
	list := top.Field("actions")
	if list.kind != List {
		return nil, d.refuse(formTree, noActions(list.kind))
	}
	count := 0
	list.Each(func(Value) error { count++; return nil })
	if count > MaxListedActions {
		return nil, d.refuse(formTree, tooMany)
	}
	if v := top.Field("protocol_version"); v.kind != Absent && !v.is(protocolVersion) {
		d.warns.version("protocol_version", "", v.quote())
	}
	s := d.calls.Get().(*session)
	message, _ := top.Field("message_id").Text()
	s.call = Call{RequestID: requestID, MessageID: message}
	types := d.types.Load()
	dst := make([]Result, 0, count)
	list.Each(func(a Value) error {
		s.in = incoming{index: len(dst), payload: a.Field("payload")}
		in := &s.in
		in.id, _ = a.Field("action_id").Text()
		in.typ, _ = a.Field("action_type").Text()
		in.reg = types.byName[in.typ]
		if in.reg != nil {
			if v := a.Field("action_version"); v.kind != Absent && !v.is(in.reg.version) {
				in.oddVersion = v.quote()
			}
			m := treeMeasure{sizeLimit: d.lim.PayloadBytes + 1, depthLimit: d.lim.Depth}
			m.value(in.payload.tree, 3)
			in.size = m.size
		}
		dst = append(dst, d.act(s))
		return nil
	})
	d.done(s)
	return dst, nil
}

// measure checks what a scanner would of an envelope's text, and notes the sizes of
// its payloads.
func (s *session) measure(e *Envelope, lim *Limits) (what string) {
	if len(e.Actions) > MaxListedActions {
		return tooMany
	}
	m := treeMeasure{sizeLimit: lim.EnvelopeBytes, depthLimit: lim.Depth}
	s.sizes = s.sizes[:0]
	ok := m.text(e.MessageID)
	for i := range e.Actions {
		a := &e.Actions[i]
		ok = ok && m.text(a.ID) && m.text(a.Type)
		before := m.size
		if treeKind(a.Payload) != Other { // a struct of a type's own has its own checks
			ok = ok && m.value(a.Payload, 3)
		}
		s.sizes = append(s.sizes, m.size-before)
	}
	if !ok {
		return m.what
	}
	return ""
}

func tooLarge(limit int) string {
	return fmt.Sprintf("larger than %d bytes (raise Limits.EnvelopeBytes)", limit)
}

func (d *Dispatcher) refuse(f form, what string) error {
	d.malformed.Add(1)
	return &MalformedError{Form: f.String(), What: what, Offset: -1}
}
