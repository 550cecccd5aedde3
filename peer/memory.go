package peer

import "os"

// Memory gives the routes the bytes behind the numbers of the records. Its
// methods may be called from any goroutine, while the claim or slot lives.
type Memory interface {
	// ClaimBytes is the payload of a claimed block: its pieces in order. To be
	// read only.
	ClaimBytes(c Claim) [][]byte
	// SlotBytes is the memory of a slot: its pieces in order. It belongs to the
	// route from Post to Landed or Shut.
	SlotBytes(s Slot) [][]byte
	// SlotSum is the checksum of what is in a slot, as in wire.Offered.Sum.
	SlotSum(s Slot) uint64
	// SlotSummed tells the checksum of what is in a slot, from a route that has
	// computed it on the way: it is not computed again. The caller answers for it.
	SlotSummed(s Slot, sum uint64)
	// Share is the shared memory in which a namespace's payload lies, and its
	// size; wire.Offered.Offsets count from its start. It fails where the
	// namespace has none. The file is the caller's to close.
	Share(namespace string) (*os.File, int64, error)
}

// SpanMemory is a Memory that has claims and slots on devices: ClaimBytes and
// SlotBytes have no bytes for those pieces.
type SpanMemory interface {
	// ClaimSpans is the payload of a claimed block: its pieces in order.
	ClaimSpans(c Claim) []Span
	// SlotSpans is the memory of a slot: its pieces in order. Slots on devices come
	// with operations that are told so (Submit.Devices).
	SlotSpans(s Slot) []Span
}

// Records is the whole block table.
type Records interface {
	SourceRecords
	DestRecords
	LookupRecords
	Memory
}
