package wire

import "strconv"

// Type says which message a frame carries. Bit 7 is set in types that only the
// server sends, bit 6 in those that both sides send. Between nodes the client is the
// one that has dialled.
type Type uint8

// The types.
const (
	TypeHello       Type = 0x01
	TypeAuth        Type = 0x02
	TypePing        Type = 0x10
	TypeGet         Type = 0x11
	TypeSet         Type = 0x12
	TypeDelete      Type = 0x13
	TypeExists      Type = 0x14
	TypeQuery       Type = 0x15
	TypeFetch       Type = 0x16
	TypeDeliver     Type = 0x17
	TypeRelease     Type = 0x18
	TypeReserve     Type = 0x19
	TypeCommit      Type = 0x1a
	TypeAbort       Type = 0x1b
	TypeHint        Type = 0x1c
	TypeDiscardHint Type = 0x1d
	TypeStats       Type = 0x1e
	TypeSubscribe   Type = 0x1f
	TypeShmAttach   Type = 0x20
	TypeCancel      Type = 0x21

	TypeSubscribeOutcomes Type = 0x22
	TypeDescribe          Type = 0x23

	TypePeerHello  Type = 0x28
	TypePeerStream Type = 0x29
	TypePeerQuery  Type = 0x2a
	TypeInvalidate Type = 0x2b
	TypeStart      Type = 0x2c
	TypeAccept     Type = 0x2d
	TypeConfirm    Type = 0x2e
	TypeDecline    Type = 0x2f
	TypeFinish     Type = 0x30
	TypeProbe      Type = 0x31

	TypeResolveHashes Type = 0x32

	TypeData Type = 0x40

	TypeChallenge   Type = 0x81
	TypeWelcome     Type = 0x82
	TypePong        Type = 0x90
	TypeStatus      Type = 0x91
	TypeStatuses    Type = 0x92
	TypeCount       Type = 0x93
	TypeValue       Type = 0x94
	TypeResults     Type = 0x95
	TypeClaims      Type = 0x96
	TypeReservation Type = 0x97
	TypeHintResults Type = 0x98
	TypeStatsReply  Type = 0x99
	TypeEvents      Type = 0x9a
	TypeShmPools    Type = 0x9b
	TypeOutcomes    Type = 0x9c

	TypePeerWelcome Type = 0xa8
	TypeOffer       Type = 0xa9
	TypeDone        Type = 0xaa
	TypeRefused     Type = 0xab
	TypeRemoved     Type = 0xac
	TypeAsk         Type = 0xad
	TypeFinished    Type = 0xae
	TypeProbeAck    Type = 0xaf
	TypeBlock       Type = 0xb0

	TypeHashesResolved Type = 0xb1

	TypeError   Type = 0xa0
	TypeGoodbye Type = 0xa1
)

// kind is what a header alone can tell about its type.
type kind struct {
	name string
	max  uint32 // longest payload; a longer one is refused before it arrives
	may  uint16 // flags allowed
	must uint16 // flags demanded
}

var kinds = [256]kind{
	TypeHello:       {"HELLO", 1 + 1 + 16 + 8 + 32 + 2*(2+MaxName) + 2 + MaxLayout, 0, 0},
	TypeAuth:        {"AUTH", 32, 0, 0},
	TypePing:        {"PING", MaxPing, 0, 0},
	TypeGet:         {"GET", 2 + MaxKey, 0, 0},
	TypeSet:         {"SET", 1 + 8 + 2 + MaxKey + 8 + MaxChunk, FlagMore, 0},
	TypeDelete:      {"DELETE", MaxPayload, 0, 0},
	TypeExists:      {"EXISTS", MaxPayload, 0, 0},
	TypeQuery:       {"QUERY", MaxPayload, 0, 0},
	TypeFetch:       {"FETCH", MaxPayload, 0, 0},
	TypeDeliver:     {"DELIVER", 8, 0, 0},
	TypeRelease:     {"RELEASE", 4 + 8*MaxList, 0, 0},
	TypeReserve:     {"RESERVE", 2 + MaxKey + 8 + 1, 0, 0},
	TypeCommit:      {"COMMIT", 8 + 1 + 8, 0, 0},
	TypeAbort:       {"ABORT", 8, 0, 0},
	TypeHint:        {"HINT", MaxPayload, 0, 0},
	TypeDiscardHint: {"DISCARD_HINT", 2 + MaxText, 0, 0},
	TypeStats:       {"STATS", 0, 0, 0},
	TypeSubscribe:   {"SUBSCRIBE", 8 + 8, 0, 0},
	TypeShmAttach:   {"SHM_ATTACH", 8, 0, 0},
	TypeCancel:      {"CANCEL", 8, 0, 0},

	TypeSubscribeOutcomes: {"SUBSCRIBE_OUTCOMES", 8 + 8, 0, 0},
	TypeDescribe:          {"DESCRIBE", MaxPayload, 0, 0},

	TypePeerHello:  {"PEER_HELLO", peerInfoSize + 1 + 8, 0, 0},
	TypePeerStream: {"PEER_STREAM", 8 + 1, 0, 0},
	TypePeerQuery:  {"PEER_QUERY", MaxPayload, 0, 0},
	TypeInvalidate: {"INVALIDATE", MaxPayload, 0, 0},
	TypeStart:      {"START", startMax, 0, 0},
	TypeAccept:     {"ACCEPT", acceptMax, 0, 0},
	TypeConfirm:    {"CONFIRM", indicesMax, 0, 0},
	TypeDecline:    {"DECLINE", statusesMax, 0, 0},
	TypeFinish:     {"FINISH", bothSize, 0, 0},
	TypeProbe:      {"PROBE", 1 + indicesMax, 0, 0},

	TypeResolveHashes: {"RESOLVE_HASHES", resolveMax, 0, 0},

	TypeData: {"DATA", 8 + MaxChunk, FlagMore, 0},

	TypeChallenge:   {"CHALLENGE", 1 + 1 + 16 + 8 + 32 + 8 + 4 + 4 + 4, 0, 0},
	TypeWelcome:     {"WELCOME", 32, 0, 0},
	TypePong:        {"PONG", MaxPing, 0, 0},
	TypeStatus:      {"STATUS", 2 + 8, 0, 0},
	TypeStatuses:    {"STATUSES", 4 + 2*MaxList, 0, 0},
	TypeCount:       {"COUNT", 4, 0, 0},
	TypeValue:       {"VALUE", 8 + MaxChunk, FlagMore, 0},
	TypeResults:     {"RESULTS", 4 + 11*MaxList, 0, 0},
	TypeClaims:      {"CLAIMS", 4 + 30*MaxList, 0, 0},
	TypeReservation: {"RESERVATION", 2 + 8 + 4 + 8, 0, 0},
	TypeHintResults: {"HINT_RESULTS", MaxPayload, 0, 0},
	TypeStatsReply:  {"STATS_REPLY", MaxPayload, 0, 0},
	TypeEvents:      {"EVENTS", MaxPayload, FlagMore, FlagMore},
	TypeShmPools:    {"SHM_POOLS", 4 + 20*MaxList + 8, 0, 0},
	TypeOutcomes:    {"OUTCOMES", MaxPayload, FlagMore, FlagMore},

	TypePeerWelcome: {"PEER_WELCOME", peerInfoSize + 1 + 8 + 2 + MaxName, 0, 0},
	TypeOffer:       {"OFFER", offerMax, 0, 0},
	TypeDone:        {"DONE", statusesMax, 0, 0},
	TypeRefused:     {"REFUSED", 8 + 2 + 2 + MaxText, 0, 0},
	TypeRemoved:     {"REMOVED", statusesMax, 0, 0},
	TypeAsk:         {"ASK", indicesMax, 0, 0},
	TypeFinished:    {"FINISHED", bothSize, 0, 0},
	TypeProbeAck:    {"PROBE_ACK", bothSize + 1 + 1, 0, 0},
	TypeBlock:       {"BLOCK", 4 + 8, 0, 0},

	TypeHashesResolved: {"HASHES_RESOLVED", resolvedMax, 0, 0},

	TypeError:   {"ERROR", 2 + 2 + MaxText, 0, 0},
	TypeGoodbye: {"GOODBYE", 2 + 2 + MaxText, 0, 0},
}

// kind returns what is known of t. A frame of a type that this version does not
// know is well-formed: its reader can skip it, or answer CodeBadType.
func (t Type) kind() kind {
	k := kinds[t]
	if k.name == "" {
		k.max, k.may = MaxPayload, FlagMore
	}
	return k
}

// Known reports whether this version has a message of type t.
func (t Type) Known() bool { return kinds[t].name != "" }

// FromClient reports whether clients send frames of type t.
func (t Type) FromClient() bool { return t.Known() && t&0x80 == 0 }

// FromServer reports whether servers send frames of type t.
func (t Type) FromServer() bool { return t.Known() && t&0xc0 != 0 }

// MaxLength is the longest payload of a frame of type t in bytes.
func (t Type) MaxLength() int { return int(t.kind().max) }

func (t Type) String() string { return nameOf(kinds[t].name, "type", uint64(t)) }

// nameOf is name, or the number in words where there is none.
func nameOf(name, what string, n uint64) string {
	if name != "" {
		return name
	}
	return what + "(" + strconv.FormatUint(n, 10) + ")"
}

// Status is how a request, or its part for one key, ended. Numbers outside the
// list parse: a later server may know more.
type Status uint16

// The statuses.
const (
	StatusOK Status = iota
	StatusMiss
	StatusExists       // resident already; nothing was written
	StatusCapacity     // no memory could be freed
	StatusTooLarge     // Detail is the limit in bytes
	StatusBadKey       // empty or longer than MaxKey
	StatusBadLayout    // the value does not fit the namespace's pools
	StatusTimeout      //
	StatusAborted      // cancelled, or its reservation was given up
	StatusDropped      // refused by the policy
	StatusClosed       // the node is closing
	StatusUnsupported  // not by this node, or not in this kind of namespace
	StatusBusy         // too much in flight; try again
	StatusUnauthorized //
	StatusReleased     // no such claim or reservation, or not any more
	StatusChecksum     // the bytes are not those that were stored
	StatusSource       // the source failed, or its process died
	StatusLost         // the connection was lost
	StatusUnknownOp    // no such operation, or not any more
	StatusIncarnation  // meant for an earlier life of the process
	StatusSelf         // source and destination are the same process
	StatusQuarantine   // too much memory that peers may still write
	StatusGeneration   // the block has been replaced since
	StatusMarked       // another move has the block
	StatusCrossing     // the destination's copy is itself being moved away
	StatusHeld         // held for another move
	StatusNoEvict      // the block must not leave
	StatusRedeposited  // deposited anew during the move
	StatusGroup        // another part of its group does not come along
	StatusAmbiguous    // several keys have the hash
	StatusAdapter      // whoever turns hashes into keys has failed
	statusEnd
)

var statusNames = [statusEnd]string{
	"ok", "miss", "exists", "capacity", "too_large", "bad_key", "bad_layout", "timeout",
	"aborted", "dropped", "closed", "unsupported", "busy", "unauthorized", "released",
	"checksum", "source", "lost", "unknown_op", "incarnation", "self_source", "quarantine", "generation",
	"marked", "crossing", "held", "no_evict", "redeposited", "group", "ambiguous_hash", "adapter",
}

// String is the status's name, as in PROTOCOL.md, or status(77).
func (s Status) String() string {
	if s < statusEnd {
		return statusNames[s]
	}
	return nameOf("", "status", uint64(s))
}

// Code says why a request got no plain status, or why a connection ends. Numbers
// outside the list parse.
type Code uint16

// The codes. There is no code 0.
const (
	CodeBadMagic Code = 1 + iota
	CodeBadVersion
	CodeBadType
	CodeBadFlags
	CodeBadLength
	CodeBadPayload
	CodeAuth        // the MAC is wrong, or a secret is missing
	CodeFingerprint // the layouts differ; the text names the field
	CodeNamespace   // no such namespace
	CodeHandshake   // a frame out of turn
	CodeTooMany     // connections, subscriptions or requests in flight
	CodeTimeout
	CodeInternal
	CodeShutdown
	codeEnd
)

var codeNames = [codeEnd]string{
	"", "bad_magic", "bad_version", "bad_type", "bad_flags", "bad_length", "bad_payload", "auth",
	"fingerprint", "namespace", "handshake", "too_many", "timeout", "internal", "shutdown",
}

// String is the code's name, as in PROTOCOL.md, or code(77).
func (c Code) String() string {
	if c < codeEnd {
		return nameOf(codeNames[c], "code", uint64(c))
	}
	return nameOf("", "code", uint64(c))
}

// Verb says what a write does to a key that is resident.
type Verb uint8

// The verbs.
const (
	VerbSet         Verb = iota // replaces
	VerbDeposit                 // keeps the old: the content is a function of the key; ok
	VerbSetIfAbsent             // keeps the old; exists
)

// Mode says what EXISTS answers.
type Mode uint8

// The modes.
const (
	ModeEach   Mode = iota // STATUSES, one for each key
	ModePrefix             // COUNT of the leading keys that are resident
)

// Format says how the body of a HINT is written.
type Format uint8

// The formats.
const (
	FormatJSON Format = iota
	FormatMsgpack
)

// EventKind says what happened to a block.
type EventKind uint8

// The kinds of events.
const (
	EventStored EventKind = 1 + iota
	EventRemoved
	EventCleared // all blocks of the tier left it; no key
)

// NoPool stands for the pool of a value that is not in shared memory.
const NoPool = 0xffffffff
