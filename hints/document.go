package hints

// form is how a value came.
type form uint8

const (
	formTree    form = iota // as Go values
	formJSON                // as text
	formMsgpack             // as msgpack
)

func (f form) String() string { return [...]string{"value", "json", "msgpack"}[f] }

// item is where a value lies in an encoded envelope.
type item struct {
	lo, hi uint32 // of text: without quotes or header
	kind   Kind
	plain  bool // of JSON text: no escapes in it
}

// member is one field of a payload.
type member struct{ name, value item }

// maxMembers is how many fields of one payload are noted. Payloads have a few; one
// with more is walked instead, so that the notes stay smaller than the envelope.
const maxMembers = 256

// listed is one action as a scanner saw it.
type listed struct {
	id, typ, version, payload item
	first, end                int  // its payload's fields in document.members
	noted                     bool // they are all there
}

// document is an encoded envelope whose syntax was checked from end to end, and where
// the parts lie that the dispatcher looks at.
type document struct {
	data              []byte
	form              form
	protocol, message item
	list              Kind // of the field actions
	actions           []listed
	members           []member
}

func (d *document) reset(data []byte, f form) {
	// A burst of large envelopes must not keep their notes for ever.
	if cap(d.actions) > 1024 {
		d.actions = nil
	}
	if cap(d.members) > 8*maxMembers {
		d.members = nil
	}
	*d = document{data: data, form: f, actions: d.actions[:0], members: d.members[:0]}
}

// text returns the content of text, in place where it can.
func (d *document) text(it item, scratch []byte) []byte {
	raw := d.data[it.lo:it.hi]
	if it.plain || d.form != formJSON {
		return raw
	}
	return unescape(scratch[:0], raw)
}

// is reports whether text it is exactly name.
func (d *document) is(it item, name string) bool {
	if it.kind != Text {
		return false
	}
	if it.plain || d.form != formJSON {
		return string(d.data[it.lo:it.hi]) == name
	}
	var scratch [64]byte
	return string(d.text(it, scratch[:])) == name
}

// string returns text as a string of its own, empty for other kinds.
func (d *document) string(it item) string {
	if it.kind != Text {
		return ""
	}
	var scratch [64]byte
	return string(d.text(it, scratch[:]))
}

// parts are the fields of an envelope and its actions that a scanner notes. Each
// returns where the value goes, or nil.

func (d *document) envelopeField(name item) *item {
	switch {
	case d.is(name, "protocol_version"):
		return &d.protocol
	case d.is(name, "message_id"):
		return &d.message
	}
	return nil
}

func (d *document) actionField(a *listed, name item) *item {
	switch {
	case d.is(name, "action_id"):
		return &a.id
	case d.is(name, "action_type"):
		return &a.typ
	case d.is(name, "action_version"):
		return &a.version
	}
	return nil
}

// beginPayload makes the next payload the action's: the last one of several counts.
func (d *document) beginPayload(a *listed) {
	a.first, a.end, a.noted = len(d.members), len(d.members), true
}

// note adds a field of the payload.
func (d *document) note(a *listed, name, value item) {
	if a.end-a.first == maxMembers {
		a.noted = false
	}
	if a.noted {
		d.members = append(d.members, member{name, value})
		a.end++
	}
}
