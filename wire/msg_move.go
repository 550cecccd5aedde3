package wire

// The messages that a transfer has besides when it is a move: with them the two
// sides agree on who keeps a copy. They carry indices of the operation's items, and
// both incarnations, since an answer meant for another life must end nothing.

// Confirm says that the destination has these items of a move resident and holds
// them at this moment. It is repeated until Removed answers.
type Confirm struct {
	Source  uint64   // incarnation of the process that holds the blocks
	Dest    uint64   // incarnation of the process that asks for them
	Indices []uint32 // of items of the operation
}

func (m *Confirm) fields(c *coder) {
	c.u64(&m.Source, "source")
	c.u64(&m.Dest, "dest")
	c.indices(&m.Indices)
}

// Append appends the frame to dst.
func (m *Confirm) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeConfirm, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Confirm) Parse(payload []byte) error {
	c := reader(TypeConfirm, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeConfirm.
func (*Confirm) Type() Type { return TypeConfirm }

// Removed answers Confirm. StatusOK: the source has removed its copy; anything else:
// it has not and will not, and why. StatusUnknownOp and StatusIncarnation are among
// the reasons. Either way the destination's hold ends.
type Removed struct {
	Source uint64 // incarnation of the process that holds the blocks
	Dest   uint64 // incarnation of the process that asks for them
	Items  []ItemStatus
}

func (m *Removed) fields(c *coder) {
	c.u64(&m.Source, "source")
	c.u64(&m.Dest, "dest")
	c.itemStatuses(&m.Items)
}

// Append appends the frame to dst.
func (m *Removed) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeRemoved, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Removed) Parse(payload []byte) error {
	c := reader(TypeRemoved, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeRemoved.
func (*Removed) Type() Type { return TypeRemoved }

// Ask asks the destination what became of items of a move. The answer is Confirm for
// those that it holds at this moment, Decline for the rest: two messages if need be.
type Ask struct {
	Source  uint64   // incarnation of the process that holds the blocks
	Dest    uint64   // incarnation of the process that asks for them
	Indices []uint32 // of items of the operation
}

func (m *Ask) fields(c *coder) {
	c.u64(&m.Source, "source")
	c.u64(&m.Dest, "dest")
	c.indices(&m.Indices)
}

// Append appends the frame to dst.
func (m *Ask) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeAsk, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Ask) Parse(payload []byte) error {
	c := reader(TypeAsk, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeAsk.
func (*Ask) Type() Type { return TypeAsk }

// Decline says that the destination does not hold these items, will not confirm them
// any more, and why. The source keeps its copies.
type Decline struct {
	Source uint64 // incarnation of the process that holds the blocks
	Dest   uint64 // incarnation of the process that asks for them
	Items  []ItemStatus
}

func (m *Decline) fields(c *coder) {
	c.u64(&m.Source, "source")
	c.u64(&m.Dest, "dest")
	c.itemStatuses(&m.Items)
}

// Append appends the frame to dst.
func (m *Decline) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeDecline, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Decline) Parse(payload []byte) error {
	c := reader(TypeDecline, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeDecline.
func (*Decline) Type() Type { return TypeDecline }
