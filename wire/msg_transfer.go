package wire

// Messages of one transfer between two nodes, in the order in which they are
// sent. All of them but Block travel on the control connection.

// Transfer says what becomes of the source's copy.
type Transfer uint8

// The kinds of transfer.
const (
	TransferCopy Transfer = iota
	TransferMove          // the source removes its copy once the destination holds its own
)

func (t Transfer) String() string {
	switch t {
	case TransferCopy:
		return "copy"
	case TransferMove:
		return "move"
	}
	return nameOf("", "transfer", uint64(t))
}

// ItemStatus says how one item of an operation stands.
type ItemStatus struct {
	Index  uint32
	Status Status
}

func (c *coder) itemStatuses(v *[]ItemStatus) {
	for i := range list(c, v, 4+2, "items") {
		c.u32(&(*v)[i].Index, "index")
		u16(c, &(*v)[i].Status, "status")
	}
}

func (c *coder) indices(v *[]uint32) {
	for i := range list(c, v, 4, "indices") {
		c.u32(&(*v)[i], "index")
	}
}

// Start begins a transfer: destination to source. The frame's request id names the
// operation, for this and all messages below; it is the destination's and never
// used twice in one incarnation. Repeats are answered from present state. The
// answer is Offer or Refused.
type Start struct {
	Source      uint64 // incarnation of the process that holds the blocks
	Dest        uint64 // incarnation of the process that asks for them
	Mode        Transfer
	OwnedOnly   bool     // no memory of the framework's, only the source's own
	Timeout     uint32   // milliseconds that are left, a duration since clocks differ
	Fingerprint [32]byte // of the namespace's layout; all zero: do not compare
	Namespace   string
	Items       []Wanted
}

func (m *Start) fields(c *coder) {
	c.u64(&m.Source, "source")
	c.u64(&m.Dest, "dest")
	u8(c, &m.Mode, TransferCopy, TransferMove, "mode")
	c.flag(&m.OwnedOnly, "ownedOnly")
	c.u32(&m.Timeout, "timeout")
	c.array(m.Fingerprint[:], "fingerprint")
	c.text(&m.Namespace, 0, MaxName, "namespace")
	for i := range list(c, &m.Items, 2+1+4, "items") {
		m.Items[i].fields(c)
	}
}

// Wanted names one block. An item's index is its place in Start.
type Wanted struct {
	Key        []byte
	Generation uint32 // 0: any
}

func (w *Wanted) fields(c *coder) {
	c.key(&w.Key)
	c.u32(&w.Generation, "generation")
}

// Append appends the frame to dst.
func (m *Start) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeStart, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Start) Parse(payload []byte) error {
	c := reader(TypeStart, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeStart.
func (*Start) Type() Type { return TypeStart }

// Offer answers Start: what the source has, item by item, in the order of Start. It
// keeps what it offers until the operation ends.
type Offer struct {
	Source uint64 // incarnation of the process that holds the blocks
	Dest   uint64 // incarnation of the process that asks for them
	Items  []Offered
}

func (m *Offer) fields(c *coder) {
	c.u64(&m.Source, "source")
	c.u64(&m.Dest, "dest")
	for i := range list(c, &m.Items, offeredSize, "items") {
		m.Items[i].fields(c)
	}
}

// Offered is one block of an Offer. Beyond Status nothing means anything unless
// Status is StatusOK.
type Offered struct {
	Status Status
	Flags  OfferFlags
	// Keep is why the source will keep its copy in a move, StatusOK when it is
	// ready to remove it.
	Keep       Status
	Generation uint32
	Size       uint64 // bytes, all pieces together
	Sum        uint64 // XXH3-64 of the payload; see OfferSum
	Position   uint32 // in its chain
	Parts      uint16 // of the group it is part of; 0: none
	Parent     []byte // key; empty: none, or see OfferFollows
	Pools      []byte // of each piece, in order; empty: size classes
	Offsets    []uint64
}

func (o *Offered) fields(c *coder) {
	u16(c, &o.Status, "status")
	u8(c, &o.Flags, 0, 255, "flags")
	u16(c, &o.Keep, "keep")
	c.u32(&o.Generation, "generation")
	c.u64(&o.Size, "size")
	c.u64(&o.Sum, "sum")
	c.u32(&o.Position, "position")
	u16(c, &o.Parts, "parts")
	c.bytes(&o.Parent, 0, MaxKey, "parent")
	c.bytes(&o.Pools, 0, MaxPieces, "pools")
	for i := range list(c, &o.Offsets, 8, "offsets") {
		c.u64(&o.Offsets[i], "offset")
	}
}

const offeredSize = 2 + 1 + 2 + 4 + 8 + 8 + 4 + 2 + 2 + 2 + 4

// MaxPieces is the most pieces of one block.
const MaxPieces = 31

// OfferFlags say how offered blocks hang together.
type OfferFlags uint8

// The flags.
const (
	OfferSum     OfferFlags = 1 << iota // Sum is set
	OfferFollows                        // the parent is the item before it
	OfferMember                         // part of the group whose leader is the next item that is not one
	OfferNoPool                         // shm: the bytes are not in shared memory; another route must be used
)

// Append appends the frame to dst.
func (m *Offer) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeOffer, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Offer) Parse(payload []byte) error {
	c := reader(TypeOffer, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeOffer.
func (*Offer) Type() Type { return TypeOffer }

// Accept names the offered items for which the destination has memory; the source
// writes them. Items that it has already, or has no room for, are left out. May be
// sent several times for one operation, each item in one of them.
type Accept struct {
	Source uint64 // incarnation of the process that holds the blocks
	Dest   uint64 // incarnation of the process that asks for them
	Items  []Accepted
}

func (m *Accept) fields(c *coder) {
	c.u64(&m.Source, "source")
	c.u64(&m.Dest, "dest")
	for i := range list(c, &m.Items, 4+2, "items") {
		m.Items[i].fields(c)
	}
}

// Accepted is one item of Accept. Desc is the route's description of the memory,
// empty where the route needs none.
type Accepted struct {
	Index uint32
	Desc  []byte
}

func (a *Accepted) fields(c *coder) {
	c.u32(&a.Index, "index")
	c.bytes(&a.Desc, 0, MaxDesc, "desc")
}

// MaxItems is the most items of one operation: so many that every message about
// them fits MaxPayload.
const MaxItems = 128

const _ = uint(MaxPayload - (8 + 8 + 4 + MaxItems*(offeredSize+MaxKey+MaxPieces+8*MaxPieces)))

// MaxDesc is the longest description of memory in bytes.
const MaxDesc = 1024

// Append appends the frame to dst.
func (m *Accept) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeAccept, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Accept) Parse(payload []byte) error {
	c := reader(TypeAccept, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeAccept.
func (*Accept) Type() Type { return TypeAccept }

// Done says for accepted items that the source will not touch the destination's memory
// any more, and with what result: StatusOK means that every byte has been sent.
// On a route where the source writes, the bytes have arrived.
type Done struct {
	Source uint64 // incarnation of the process that holds the blocks
	Dest   uint64 // incarnation of the process that asks for them
	Items  []ItemStatus
}

func (m *Done) fields(c *coder) {
	c.u64(&m.Source, "source")
	c.u64(&m.Dest, "dest")
	c.itemStatuses(&m.Items)
}

// Append appends the frame to dst.
func (m *Done) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeDone, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Done) Parse(payload []byte) error {
	c := reader(TypeDone, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeDone.
func (*Done) Type() Type { return TypeDone }

// Refused ends an operation before it began. Nothing was marked or claimed.
type Refused struct {
	Source uint64 // incarnation of the process that answers
	Status Status
	Text   string // for people; cut to MaxText bytes of UTF-8 by Append
}

func (m *Refused) fields(c *coder) {
	c.u64(&m.Source, "source")
	u16(c, &m.Status, "status")
	c.sentence(&m.Text)
}

// Append appends the frame to dst.
func (m *Refused) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeRefused, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Refused) Parse(payload []byte) error {
	c := reader(TypeRefused, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeRefused.
func (*Refused) Type() Type { return TypeRefused }

// Confirm says that the destination has committed and holds these items of a move. It
// is repeated until Removed answers.
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

// Removed answers Confirm: StatusOK, the source has removed its copy; anything else, it
// keeps it, and why. Either way the destination's hold ends.
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

// Ask asks what became of items of a move. The answer is Confirm for those held at this
// moment, Decline for the rest.
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

// Decline says that the destination does not hold these items and will not confirm them.
// The source keeps its copies.
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

// Finish ends an operation: the destination wants nothing more of it. The answer is
// Finished, also for an operation that is not known.
type Finish struct {
	Source uint64 // incarnation of the process that holds the blocks
	Dest   uint64 // incarnation of the process that asks for them
}

func (m *Finish) fields(c *coder) {
	c.u64(&m.Source, "source")
	c.u64(&m.Dest, "dest")
}

// Append appends the frame to dst.
func (m *Finish) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeFinish, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Finish) Parse(payload []byte) error {
	c := reader(TypeFinish, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeFinish.
func (*Finish) Type() Type { return TypeFinish }

// Finished answers Finish: the source holds nothing for the operation any more.
type Finished struct {
	Source uint64 // incarnation of the process that holds the blocks
	Dest   uint64 // incarnation of the process that asks for them
}

func (m *Finished) fields(c *coder) {
	c.u64(&m.Source, "source")
	c.u64(&m.Dest, "dest")
}

// Append appends the frame to dst.
func (m *Finished) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeFinished, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Finished) Parse(payload []byte) error {
	c := reader(TypeFinished, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeFinished.
func (*Finished) Type() Type { return TypeFinished }

// Probe asks whether the source may still touch the destination's memory for these items,
// all of them when there is none named. With Cancel it shall not begin what it has not.
type Probe struct {
	Source  uint64 // incarnation of the process that holds the blocks
	Dest    uint64 // incarnation of the process that asks for them
	Cancel  bool
	Indices []uint32 // of items of the operation
}

func (m *Probe) fields(c *coder) {
	c.u64(&m.Source, "source")
	c.u64(&m.Dest, "dest")
	c.flag(&m.Cancel, "cancel")
	c.indices(&m.Indices)
}

// Append appends the frame to dst.
func (m *Probe) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeProbe, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Probe) Parse(payload []byte) error {
	c := reader(TypeProbe, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeProbe.
func (*Probe) Type() Type { return TypeProbe }

// ProbeAck answers Probe. Terminal: the source will not touch the memory of the items
// probed any more. Which these are is said by Done, before it for those that are over
// and later for the rest: with several probes under way, ProbeAck alone does not tell.
// An operation that is not known touches no memory.
type ProbeAck struct {
	Source   uint64 // incarnation of the process that holds the blocks
	Dest     uint64 // incarnation of the process that asks for them
	Terminal bool
	Known    bool // the operation is known
}

func (m *ProbeAck) fields(c *coder) {
	c.u64(&m.Source, "source")
	c.u64(&m.Dest, "dest")
	c.flag(&m.Terminal, "terminal")
	c.flag(&m.Known, "known")
}

// Append appends the frame to dst.
func (m *ProbeAck) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeProbeAck, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *ProbeAck) Parse(payload []byte) error {
	c := reader(TypeProbeAck, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeProbeAck.
func (*ProbeAck) Type() Type { return TypeProbeAck }

// Block precedes the bytes of one accepted item on a payload stream: Size bytes follow the
// frame, outside of any frame. Its request id names the operation.
type Block struct {
	Index uint32
	Size  uint64
}

func (m *Block) fields(c *coder) {
	c.u32(&m.Index, "index")
	c.u64(&m.Size, "size")
}

// Append appends the frame to dst.
func (m *Block) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeBlock, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Block) Parse(payload []byte) error {
	c := reader(TypeBlock, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeBlock.
func (*Block) Type() Type { return TypeBlock }
