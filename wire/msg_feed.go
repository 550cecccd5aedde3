package wire

// Hint carries an envelope of hints. The answer is HintResults.
type Hint struct {
	Format Format
	// RequestID is the inference engine's name for the request that carries the
	// envelope, at most MaxText bytes; empty: none does.
	RequestID string
	Body      []byte
}

// hintOfRequest in the byte of the format says that a request id follows it.
const hintOfRequest = 0x80

func (m *Hint) fields(c *coder) {
	format := m.Format
	c.check(!c.writing || format <= FormatMsgpack, "format", "out of range", uint64(format), uint64(FormatMsgpack))
	if m.RequestID != "" {
		format |= hintOfRequest
	}
	u8(c, &format, 0, hintOfRequest|FormatMsgpack, "format")
	if m.Format = format &^ hintOfRequest; !c.writing {
		c.check(m.Format <= FormatMsgpack, "format", "out of range", uint64(format), uint64(FormatMsgpack))
		m.RequestID = ""
	}
	if format >= hintOfRequest {
		c.text(&m.RequestID, 1, MaxText, "requestID")
	}
	c.rest(&m.Body, 0, MaxPayload, "body")
}

// Append appends the frame to dst.
func (m *Hint) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeHint, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Hint) Parse(payload []byte) error {
	c := reader(TypeHint, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeHint.
func (*Hint) Type() Type { return TypeHint }

// HintResults answers Hint.
type HintResults struct {
	Body []byte // JSON
}

func (m *HintResults) fields(c *coder) {
	c.rest(&m.Body, 0, MaxPayload, "body")
}

// Append appends the frame to dst.
func (m *HintResults) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeHintResults, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *HintResults) Parse(payload []byte) error {
	c := reader(TypeHintResults, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeHintResults.
func (*HintResults) Type() Type { return TypeHintResults }

// DiscardHint drops what is known for a request. The answer is a StatusReply.
type DiscardHint struct {
	RequestID string // 1 to MaxText bytes; the engine's name, not an id of this protocol
}

func (m *DiscardHint) fields(c *coder) {
	c.text(&m.RequestID, 1, MaxText, "requestID")
}

// Append appends the frame to dst.
func (m *DiscardHint) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeDiscardHint, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *DiscardHint) Parse(payload []byte) error {
	c := reader(TypeDiscardHint, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeDiscardHint.
func (*DiscardHint) Type() Type { return TypeDiscardHint }

// Stats asks for the node's counters. The answer is StatsReply.
type Stats struct{}

// Append appends the frame to dst.
func (*Stats) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeStats, id, false)
	return c.frame(0)
}

// Parse reads a payload.
func (*Stats) Parse(payload []byte) error {
	c := reader(TypeStats, payload)
	return c.done()
}

// Type is TypeStats.
func (*Stats) Type() Type { return TypeStats }

// StatsReply answers Stats.
type StatsReply struct {
	Body []byte // JSON
}

func (m *StatsReply) fields(c *coder) {
	c.rest(&m.Body, 0, MaxPayload, "body")
}

// Append appends the frame to dst.
func (m *StatsReply) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeStatsReply, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *StatsReply) Parse(payload []byte) error {
	c := reader(TypeStatsReply, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeStatsReply.
func (*StatsReply) Type() Type { return TypeStatsReply }

// Subscribe asks for changes of the inventory, in Events until it is cancelled. It
// goes on after the event given where the server still can, and begins with a
// snapshot otherwise.
type Subscribe struct {
	FromEpoch    uint64
	FromSequence uint64 // the last event that the client has; 0: none
}

func (m *Subscribe) fields(c *coder) {
	c.u64(&m.FromEpoch, "fromEpoch")
	c.u64(&m.FromSequence, "fromSequence")
}

// Append appends the frame to dst.
func (m *Subscribe) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeSubscribe, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Subscribe) Parse(payload []byte) error {
	c := reader(TypeSubscribe, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeSubscribe.
func (*Subscribe) Type() Type { return TypeSubscribe }

// Events are changes of presence in their order, or a part of a snapshot. All frames
// carry FlagMore: the answer ends with a StatusReply.
type Events struct {
	Epoch uint64 // one life of the server's engine; sequences of two do not compare
	// FirstSequence is the number of the first event; the others count on. In
	// a snapshot it is the same in all frames: that of the last event covered.
	FirstSequence uint64
	Snapshot      bool
	Events        []Event
}

func (m *Events) fields(c *coder) {
	c.u64(&m.Epoch, "epoch")
	c.u64(&m.FirstSequence, "firstSequence")
	c.flag(&m.Snapshot, "snapshot")
	for i := range list(c, &m.Events, 1+1+2+2+8, "events") {
		m.Events[i].fields(c)
	}
}

// Event is one change.
type Event struct {
	Kind   EventKind
	Tier   uint8
	Key    []byte // empty for EventCleared
	Parent []byte // nil: none, or not known
	Size   uint64 // bytes
}

func (e *Event) fields(c *coder) {
	u8(c, &e.Kind, EventStored, EventCleared, "kind")
	u8(c, &e.Tier, 0, 255, "tier")
	if e.Kind == EventCleared {
		c.bytes(&e.Key, 0, 0, "key")
	} else {
		c.key(&e.Key)
	}
	c.bytes(&e.Parent, 0, MaxKey, "parent")
	c.u64(&e.Size, "size")
}

// EncodedSize is how many bytes of a payload the event takes. Events takes 21
// for itself.
func (e *Event) EncodedSize() int { return 1 + 1 + 2 + len(e.Key) + 2 + len(e.Parent) + 8 }

// Append appends the frame to dst.
func (m *Events) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeEvents, id, true)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Events) Parse(payload []byte) error {
	c := reader(TypeEvents, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeEvents.
func (*Events) Type() Type { return TypeEvents }
