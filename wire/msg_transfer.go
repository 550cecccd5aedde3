package wire

// Messages of one transfer between two nodes. PROTOCOL.md says who sends which
// when. All of them but Block travel on the control connection, which the
// destination has dialled.
//
// The request id of their frames is the operation's, chosen by the destination and
// never used twice in one of its incarnations. An item is one block of an
// operation; its index is its place in Start.

// Limits of an operation.
const (
	// MaxItems is the most items of one operation: so few that every message about
	// them fits MaxPayload. Of the longest, Offer, 198 would.
	MaxItems = 128
	// MaxPieces is the most pieces of one block; a block of the engine has no more.
	MaxPieces = 31
	// MaxDesc is the longest description of memory in bytes.
	MaxDesc = 1024
)

// Shortest elements and longest payloads in bytes.
const (
	bothSize     = 8 + 8 // the two incarnations
	statusSize   = 4 + 2
	wantedSize   = 2 + 1 + 4
	acceptedSize = 4 + 2
	offeredSize  = 2 + 1 + 2 + 4 + 8 + 8 + 4 + 2 + 2 + 2 + 4

	startMax    = bothSize + 1 + 1 + 4 + 32 + 2 + MaxName + 4 + MaxItems*(2+MaxKey+4)
	offerMax    = bothSize + 4 + MaxItems*(offeredSize+MaxKey+MaxPieces+8*MaxPieces)
	acceptMax   = bothSize + 4 + MaxItems*(acceptedSize+MaxDesc)
	statusesMax = bothSize + 4 + MaxItems*statusSize
	indicesMax  = bothSize + 4 + MaxItems*4
)

// The long ones fit.
const _ = uint(MaxPayload-startMax) + uint(MaxPayload-offerMax) + uint(MaxPayload-acceptMax)

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
	for i := range listUpTo(c, v, MaxItems, statusSize, "items") {
		c.index(&(*v)[i].Index)
		u16(c, &(*v)[i].Status, "status")
	}
}

func (c *coder) indices(v *[]uint32) {
	for i := range listUpTo(c, v, MaxItems, 4, "indices") {
		c.index(&(*v)[i])
	}
}

// index is an item's. Whether the operation has so many items, and whether one is
// named twice, only the operation can tell.
func (c *coder) index(v *uint32) {
	c.u32(v, "index")
	c.check(*v < MaxItems, "index", "out of range", uint64(*v), MaxItems-1)
}

// Start begins a transfer: destination to source. It is repeated until Offer or
// Refused answers; repeats are answered from present state.
type Start struct {
	Source      uint64 // incarnation of the process that holds the blocks
	Dest        uint64 // incarnation of the process that asks for them
	Mode        Transfer
	OwnedOnly   bool     // offer no memory of the inference framework, only the source's own
	Timeout     uint32   // milliseconds left to the operation; a duration, since clocks differ
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
	for i := range listUpTo(c, &m.Items, MaxItems, wantedSize, "items") {
		m.Items[i].fields(c)
	}
}

// Wanted names one block.
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

// Offer answers Start: what the source has, one element for each item and in their
// order. The source keeps what it offers in place until the operation ends.
type Offer struct {
	Source uint64 // incarnation of the process that holds the blocks
	Dest   uint64 // incarnation of the process that asks for them
	Items  []Offered
}

func (m *Offer) fields(c *coder) {
	c.u64(&m.Source, "source")
	c.u64(&m.Dest, "dest")
	for i := range listUpTo(c, &m.Items, MaxItems, offeredSize, "items") {
		m.Items[i].fields(c)
	}
}

// Offered is one block of an Offer. The fields after Status mean something when it
// is StatusOK.
type Offered struct {
	Status Status
	Flags  OfferFlags
	// Keep is, in a move, why the source will keep its copy; StatusOK when it has
	// marked it for removal.
	Keep       Status
	Generation uint32
	Size       uint64 // bytes, all pieces together
	Sum        uint64 // XXH3-64, seed 0, of all pieces one after another; see OfferSum
	Position   uint32 // in its chain
	Parts      uint16 // of the group it is part of; 0: none
	Parent     []byte // key; empty: none, or see OfferFollows
	Pools      []byte // of each piece, in order; empty: size classes, one piece
	// Offsets is where each piece lies, in bytes from the begin of the namespace's
	// payload memory, for RouteShm; empty on other routes and with OfferNoPool.
	Offsets []uint64
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
	for i := range listUpTo(c, &o.Offsets, MaxPieces, 8, "offsets") {
		c.u64(&o.Offsets[i], "offset")
	}
}

// OfferFlags say which fields of an offered block count, and how blocks hang
// together. Bits outside the list parse.
type OfferFlags uint8

// The flags.
const (
	OfferSum     OfferFlags = 1 << iota // Sum is set
	OfferFollows                        // the parent is the item before it
	OfferMember                         // part of the group whose leader is the next item without this flag
	OfferNoPool                         // RouteShm: the bytes are not in shared memory, another route must be used
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

// Refused answers Start in place of Offer: the operation has not begun, nothing was
// claimed or marked.
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

// Accept names offered items for which the destination has memory: the source may
// send them. Those that the destination has already, or has no room for, are left
// out. There may be several for one operation, with different items; one that is
// repeated names the same memory, and the source begins no item twice.
type Accept struct {
	Source uint64 // incarnation of the process that holds the blocks
	Dest   uint64 // incarnation of the process that asks for them
	Items  []Accepted
}

func (m *Accept) fields(c *coder) {
	c.u64(&m.Source, "source")
	c.u64(&m.Dest, "dest")
	for i := range listUpTo(c, &m.Items, MaxItems, acceptedSize, "items") {
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
	c.index(&a.Index)
	c.bytes(&a.Desc, 0, MaxDesc, "desc")
}

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

// Block precedes the bytes of one accepted item on a payload connection of
// RouteStream: Size bytes follow the frame, outside of any frame.
type Block struct {
	Index uint32 // of an item of the operation
	Size  uint64 // bytes: Offered.Size
}

func (m *Block) fields(c *coder) {
	c.index(&m.Index)
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

// Done says of accepted items that the source will not write to the destination's
// memory any more, and with what result. StatusOK: on a route where the source
// writes into that memory (RouteUCXPut) every byte has arrived; on the others every
// byte has been sent, and the destination sees itself when it has them. Anything
// else: why bytes are missing, or all of them.
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

// Probe asks whether the source may still write to the destination's memory for these
// items. It is repeated until ProbeAck answers.
type Probe struct {
	Source  uint64   // incarnation of the process that holds the blocks
	Dest    uint64   // incarnation of the process that asks for them
	Cancel  bool     // the source shall not begin those that it has not begun
	Indices []uint32 // of items of the operation; empty: all that were accepted
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
	Terminal bool   // the source will not write any more; else Done names the items as they end
	Known    bool   // the source knows the operation
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

// Finish ends an operation: the destination wants nothing more of it. It is repeated
// until Finished answers, also for an operation that is not known.
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

// Finished answers Finish: the source has no claim and no mark for the operation any
// more.
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
