package hints

// Envelope is a decoded envelope.
//
// The empty strings of it and of its actions mean that the field is absent.
type Envelope struct {
	ProtocolVersion string // "0.1", or empty; any other is warned of and read alike
	MessageID       string
	Actions         []Action
}

// Action is one action of a decoded envelope.
type Action struct {
	ID      string
	Type    string
	Version string // "1.0", or empty; any other is warned of and read alike
	// Payload is the value of the type's own struct or a pointer to it (*Transfer,
	// *Removal), or a tree of maps, lists and scalars as decoders of JSON and msgpack
	// make: map[string]any, map[any]any, []any, []uint64, string, json.Number, bool,
	// nil and all integers. Floats are no integers. The dispatcher and its handlers
	// only read it, and keep nothing of it after the call.
	Payload any
}
