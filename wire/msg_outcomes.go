package wire

// MaxOutcomeHashes is the most hashes of one outcome: so many that one always fits a
// frame, and more than a HINT carries of hashes of full length.
const MaxOutcomeHashes = 32_000

// outcomeSize is the shortest OutcomeItem in bytes, outcomeMost the longest.
const (
	outcomeSize = 8 + 8 + 3*2 + 4 + 2 + 4 + 1 + 4 + 2 + 6*4 + 8
	outcomeMost = outcomeSize + 4*MaxText + MaxName + 8*MaxOutcomeHashes
)

const _ = uint(MaxPayload - (8 + 1 + 4 + outcomeMost)) // it fits

// SubscribeOutcomes asks for the outcomes of hints, in Outcomes until it is cancelled:
// those after the one given, as far as the server still has them, or those from now on.
// A client that wants all outcomes of a hint subscribes before it sends that.
type SubscribeOutcomes struct {
	FromEpoch    uint64
	FromSequence uint64 // the last outcome that the client has; 0: begin with the next
}

func (m *SubscribeOutcomes) fields(c *coder) {
	c.u64(&m.FromEpoch, "fromEpoch")
	c.u64(&m.FromSequence, "fromSequence")
}

// Append appends the frame to dst.
func (m *SubscribeOutcomes) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeSubscribeOutcomes, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *SubscribeOutcomes) Parse(payload []byte) error {
	c := reader(TypeSubscribeOutcomes, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeSubscribeOutcomes.
func (*SubscribeOutcomes) Type() Type { return TypeSubscribeOutcomes }

// Outcomes are outcomes of hints in their order. All frames carry FlagMore: the answer
// ends with a StatusReply.
type Outcomes struct {
	Epoch uint64 // one life of the server's engine; sequences of two do not compare
	// Gap: outcomes that came before these, and after what the client has, are lost. A
	// frame may have nothing else to say.
	Gap   bool
	Items []OutcomeItem
}

func (m *Outcomes) fields(c *coder) {
	c.u64(&m.Epoch, "epoch")
	c.flag(&m.Gap, "gap")
	for i := range list(c, &m.Items, outcomeSize, "outcomes") {
		m.Items[i].fields(c)
	}
}

// OutcomeItem is one outcome: what became of blocks of one action of a hint, or of the
// action as a whole. Its texts are cut to fit by Append: MessageID, ActionID, RequestID
// and Reason to MaxText bytes, Type to MaxName.
type OutcomeItem struct {
	Sequence  uint64 // of the engine's outcomes, from 1, increasing
	UnixNanos uint64 // when, by the server's clock; 0: not told
	MessageID string // of the envelope
	ActionID  string
	Index     uint32 // of the action in its envelope
	Type      string // of the action, such as kv.move
	RequestID string // the inference engine's name for the request that carried it; empty: none
	Rank      uint32 // of this engine among those of its worker
	Stage     OutcomeStage
	Hashes    []uint64 // the blocks, at most MaxOutcomeHashes; none with OutcomeEnd
	Reason    string   // why blocks failed or were kept, or the action failed; empty: it has not
	// With OutcomeEnd: blocks by how they ended, and the bytes that came.
	Copied, Moved, Kept, Removed, Present, Failed uint32
	Bytes                                         uint64
}

func (o *OutcomeItem) fields(c *coder) {
	c.u64(&o.Sequence, "sequence")
	c.u64(&o.UnixNanos, "unixNanos")
	c.fitted(&o.MessageID, MaxText, "messageID")
	c.fitted(&o.ActionID, MaxText, "actionID")
	c.u32(&o.Index, "index")
	c.fitted(&o.Type, MaxName, "type")
	c.fitted(&o.RequestID, MaxText, "requestID")
	c.u32(&o.Rank, "rank")
	u8(c, &o.Stage, 0, 255, "stage")
	for i := range listUpTo(c, &o.Hashes, MaxOutcomeHashes, 8, "hashes") {
		c.u64(&o.Hashes[i], "hash")
	}
	c.fitted(&o.Reason, MaxText, "reason")
	for _, n := range [...]*uint32{&o.Copied, &o.Moved, &o.Kept, &o.Removed, &o.Present, &o.Failed} {
		c.u32(n, "count")
	}
	c.u64(&o.Bytes, "bytes")
}

// EncodedSize is how many bytes of a payload the outcome takes at most: as many, unless
// texts are cut. Outcomes takes 13 for itself.
func (o *OutcomeItem) EncodedSize() int {
	return outcomeSize + min(len(o.MessageID), MaxText) + min(len(o.ActionID), MaxText) + min(len(o.Type), MaxName) +
		min(len(o.RequestID), MaxText) + min(len(o.Reason), MaxText) + 8*len(o.Hashes)
}

// OutcomeStage says how far an action has come, or how it ended. Numbers outside the
// list parse.
type OutcomeStage uint8

// The stages. Of an accepted action there is exactly one OutcomeEnd, its last outcome.
const (
	OutcomeAccepted OutcomeStage = iota // the work is known
	OutcomeResolved                     // hashes have become keys
	OutcomeCopied                       // these blocks are here as well
	OutcomeMoved                        // these blocks are here, and the source's copies are gone
	OutcomeKept                         // these blocks are here, and the source has kept its own
	OutcomeRemoved                      // these blocks are gone from here
	OutcomePresent                      // these blocks were here before
	OutcomeFailed                       // these blocks failed
	OutcomeEnd                          // the action has ended
	outcomeStages
)

var outcomeStageNames = [outcomeStages]string{"accepted", "resolved", "copied", "moved", "kept", "removed", "present", "failed", "end"}

// String is the stage's name, as in PROTOCOL.md, or stage(77).
func (s OutcomeStage) String() string {
	if s < outcomeStages {
		return outcomeStageNames[s]
	}
	return nameOf("", "stage", uint64(s))
}

// Append appends the frame to dst.
func (m *Outcomes) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeOutcomes, id, true)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Outcomes) Parse(payload []byte) error {
	c := reader(TypeOutcomes, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeOutcomes.
func (*Outcomes) Type() Type { return TypeOutcomes }
