package peer

import "github.com/kvcr-go/kvcr/wire"

// Incarnation is the random id of one process life, never 0.
type Incarnation uint64

// OpID names an operation of one destination incarnation. It is never used twice
// in it.
type OpID uint64

// MoveID names a move at the source: marks carry it (rule M1).
type MoveID struct {
	Dest Incarnation
	Op   OpID
}

// HoldID names a move at the destination: holds carry it (rule M2).
type HoldID struct {
	Source Incarnation
	Op     OpID
}

// Claim is the source's right to read one block, as the records number it. 0 is
// none.
type Claim uint64

// Slot is memory that the destination has reserved for one block, as the records
// number it. 0 is none.
type Slot uint64

// SourceRecords is the block table as a source sees it. Every call is one step of
// the table's owner and does not block. No call keeps a slice it is given.
type SourceRecords interface {
	// Claim claims the complete block of a key, of that generation unless it is
	// 0, and describes it: o's fields but Status, Keep and OfferFollows. Marked
	// blocks are served like any other. Failures: StatusMiss, StatusGeneration.
	Claim(namespace string, w *wire.Wanted, o *wire.Offered) (Claim, wire.Status)
	// Unclaim ends a claim. A mark of the block stays.
	Unclaim(c Claim)
	// Mark marks the claimed block for removal by the move: from here on it is
	// not evicted until Unmark or Remove, whatever becomes of the claim. A part of a
	// group marks the group. It fails with StatusMarked (another move has it),
	// StatusHeld, StatusNoEvict or StatusMiss (not resident any more). A fresh
	// deposit of the key, a no_evict claim, a delete and a replacement end the
	// mark.
	Mark(c Claim, m MoveID) wire.Status
	// Unmark lifts the mark if it is still the move's.
	Unmark(c Claim, m MoveID)
	// Remove removes those of the claimed blocks that the move has still marked,
	// and ends no claim: memory goes when the last one does. Of a group all parts
	// must be among them, or none is removed (StatusGroup) and the mark is
	// lifted. what[i] is StatusOK, or why block i stays: StatusMarked (another
	// move's now), StatusRedeposited (the mark was lifted by a fresh deposit or a
	// replacement), StatusNoEvict, StatusMiss (removed by hand since), StatusGroup.
	Remove(cs []Claim, m MoveID, what []wire.Status)
	// Invalidate removes a key's block, of that generation unless it is 0, and
	// with it its group, whatever marks it; a claim delays only the memory.
	// Failures: StatusMiss, StatusGeneration, StatusNoEvict, StatusHeld.
	Invalidate(namespace string, w *wire.Wanted) wire.Status
}

// DestRecords is the block table as a destination sees it, under the same rules.
type DestRecords interface {
	// Reserve takes memory for item i of the operation, as the offer describes
	// it, or names the caller's memory when the operation delivers. Failures:
	// StatusExists (resident here, with the same layout; nothing was reserved),
	// StatusCapacity, StatusBadLayout, StatusTooLarge.
	Reserve(op OpID, i int, namespace string, key []byte, o *wire.Offered) (Slot, wire.Status)
	// Commit makes slots resident, and unless hold is zero takes the hold in the
	// same step. More than one slot is a group, its leader last. When the key is
	// resident by now the slots are freed, and the resident block is held as
	// TakeHold would. Failures: those of TakeHold, StatusCapacity, StatusDropped,
	// StatusBadLayout. Whatever the answer, the slots are the records' again.
	// A slot of the caller's memory is handed over to the caller.
	Commit(slots []Slot, hold HoldID) wire.Status
	// Free gives a slot back unused: nobody will write it any more.
	Free(s Slot)
	// TakeHold holds the resident block of a key for a move: it is neither
	// evicted, marked nor removed by an invalidation until DropHold. Failures:
	// StatusMiss, StatusCrossing (the block is marked for a move of its own),
	// StatusHeld (by another move), StatusRedeposited (it is not, or not known to
	// be, the block that the source has offered), StatusCapacity (of holds).
	TakeHold(namespace string, key []byte, hold HoldID) wire.Status
	// Holds reports whether the hold is there.
	Holds(namespace string, key []byte, hold HoldID) bool
	// DropHold ends the hold if it is there.
	DropHold(namespace string, key []byte, hold HoldID)
	// HoldRoom reports whether n more holds may be taken. Over the cap a move is
	// carried out as a copy.
	HoldRoom(n int) bool
}
