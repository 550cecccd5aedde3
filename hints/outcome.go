package hints

import (
	"fmt"
	"time"
)

// Stage says how far an action has come, or how it ended.
type Stage uint8

// The stages. Of an accepted action exactly one StageEnd is published, the last one
// of the action.
const (
	StageAccepted Stage = iota // the work is known
	StageResolved              // hashes have become keys
	StageCopied                // these blocks are here as well
	StageMoved                 // these blocks are here, and the source's copies are gone
	StageKept                  // these blocks are here, and the source has kept its own; of a removal: they stay
	StageRemoved               // these blocks are gone from here
	StagePresent               // these blocks were here before
	StageFailed                // these blocks failed
	StageEnd                   // the action has ended: the terminal outcome
	numStages
)

// String returns the stage's name, as logs and JSON have it.
func (s Stage) String() string {
	if s < numStages {
		return stageNames[s]
	}
	return fmt.Sprintf("Stage(%d)", uint8(s))
}

// MarshalText returns String.
func (s Stage) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (s *Stage) UnmarshalText(text []byte) error { return named(s, text, stageNames[:]) }

var stageNames = [numStages]string{"accepted", "resolved", "copied", "moved", "kept", "removed", "present", "failed", "end"}

// Outcome reports on the blocks of one action of an envelope.
type Outcome struct {
	Seq       uint64    `json:"seq"` // of the engine's outcomes, from 1
	Time      time.Time `json:"time"`
	MessageID string    `json:"message_id"`
	ActionID  string    `json:"action_id"`
	Index     int       `json:"index"` // of the action in its envelope
	Type      string    `json:"action_type"`
	RequestID string    `json:"request_id,omitempty"` // of the carrier, if any
	Rank      int       `json:"rank"`                 // of this engine among those of its worker
	Stage     Stage     `json:"stage"`
	// Hashes are the blocks that this is about. Not of StageEnd.
	Hashes []uint64 `json:"hashes,omitempty"`
	// Reason says why blocks failed or were kept; of StageEnd: why the action as a
	// whole failed, or empty.
	Reason string `json:"reason,omitempty"`
	// Of StageEnd only: blocks by how they ended, and the bytes that came for them.
	Copied  int   `json:"copied,omitempty"`
	Moved   int   `json:"moved,omitempty"`
	Kept    int   `json:"kept,omitempty"`
	Removed int   `json:"removed,omitempty"`
	Present int   `json:"present,omitempty"`
	Failed  int   `json:"failed,omitempty"`
	Bytes   int64 `json:"bytes,omitempty"`
}
