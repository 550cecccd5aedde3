package wire

import (
	"strings"
	"unicode/utf8"
)

// Message is what all messages have in common. Code on a hot path uses the
// messages themselves: through the interface each one costs an allocation.
type Message interface {
	// Type is the type of the message's frames.
	Type() Type
	// Append appends the frame, header and payload, to dst. It does not allocate
	// when dst has room. It panics on a message that Parse would refuse.
	Append(dst []byte, id uint64) []byte
	// Parse reads exactly one whole payload. The error is a *PayloadError. What
	// the header says beyond the type, id and FlagMore, is the caller's to note.
	Parse(payload []byte) error
}

// New returns an empty message of type t, nil when t is not known.
func New(t Type) Message {
	switch t {
	case TypeHello:
		return new(Hello)
	case TypeAuth:
		return new(Auth)
	case TypePing:
		return new(Ping)
	case TypeGet:
		return new(Get)
	case TypeSet:
		return new(Set)
	case TypeDelete:
		return new(Delete)
	case TypeExists:
		return new(Exists)
	case TypeQuery:
		return new(Query)
	case TypeFetch:
		return new(Fetch)
	case TypeDeliver:
		return new(Deliver)
	case TypeRelease:
		return new(Release)
	case TypeReserve:
		return new(Reserve)
	case TypeCommit:
		return new(Commit)
	case TypeAbort:
		return new(Abort)
	case TypeHint:
		return new(Hint)
	case TypeDiscardHint:
		return new(DiscardHint)
	case TypeStats:
		return new(Stats)
	case TypeSubscribe:
		return new(Subscribe)
	case TypeShmAttach:
		return new(ShmAttach)
	case TypeCancel:
		return new(Cancel)
	case TypeSubscribeOutcomes:
		return new(SubscribeOutcomes)
	case TypeDescribe:
		return new(Describe)
	case TypePeerHello:
		return new(PeerHello)
	case TypePeerStream:
		return new(PeerStream)
	case TypePeerQuery:
		return new(PeerQuery)
	case TypeInvalidate:
		return new(Invalidate)
	case TypeStart:
		return new(Start)
	case TypeAccept:
		return new(Accept)
	case TypeConfirm:
		return new(Confirm)
	case TypeDecline:
		return new(Decline)
	case TypeFinish:
		return new(Finish)
	case TypeProbe:
		return new(Probe)
	case TypeResolveHashes:
		return new(ResolveHashes)
	case TypeData:
		return new(Data)
	case TypeChallenge:
		return new(Challenge)
	case TypeWelcome:
		return new(Welcome)
	case TypePong:
		return new(Pong)
	case TypeStatus:
		return new(StatusReply)
	case TypeStatuses:
		return new(Statuses)
	case TypeCount:
		return new(Count)
	case TypeValue:
		return new(Value)
	case TypeResults:
		return new(Results)
	case TypeClaims:
		return new(Claims)
	case TypeReservation:
		return new(Reservation)
	case TypeHintResults:
		return new(HintResults)
	case TypeStatsReply:
		return new(StatsReply)
	case TypeEvents:
		return new(Events)
	case TypeShmPools:
		return new(ShmPools)
	case TypeOutcomes:
		return new(Outcomes)
	case TypePeerWelcome:
		return new(PeerWelcome)
	case TypeOffer:
		return new(Offer)
	case TypeDone:
		return new(Done)
	case TypeRefused:
		return new(Refused)
	case TypeRemoved:
		return new(Removed)
	case TypeAsk:
		return new(Ask)
	case TypeFinished:
		return new(Finished)
	case TypeProbeAck:
		return new(ProbeAck)
	case TypeBlock:
		return new(Block)
	case TypeHashesResolved:
		return new(HashesResolved)
	case TypeError:
		return new(ErrorReply)
	case TypeGoodbye:
		return new(Goodbye)
	}
	return nil
}

// Ping asks for a Pong with the same bytes, at most MaxPing.
type Ping struct {
	Bytes []byte
}

func (m *Ping) fields(c *coder) {
	c.rest(&m.Bytes, 0, MaxPing, "bytes")
}

// Append appends the frame to dst.
func (m *Ping) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypePing, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Ping) Parse(payload []byte) error {
	c := reader(TypePing, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypePing.
func (*Ping) Type() Type { return TypePing }

// Pong answers Ping.
type Pong struct {
	Bytes []byte
}

func (m *Pong) fields(c *coder) {
	c.rest(&m.Bytes, 0, MaxPing, "bytes")
}

// Append appends the frame to dst.
func (m *Pong) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypePong, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Pong) Parse(payload []byte) error {
	c := reader(TypePong, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypePong.
func (*Pong) Type() Type { return TypePong }

// Cancel ends the request Target. It has no answer of its own and id 0: the target,
// if it was still running, answers StatusAborted.
type Cancel struct {
	Target uint64 // request id
}

func (m *Cancel) fields(c *coder) {
	c.u64(&m.Target, "target")
}

// Append appends the frame to dst.
func (m *Cancel) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeCancel, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Cancel) Parse(payload []byte) error {
	c := reader(TypeCancel, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeCancel.
func (*Cancel) Type() Type { return TypeCancel }

// StatusReply (STATUS) answers a request.
type StatusReply struct {
	Status Status
	Detail uint64 // the limit for StatusTooLarge, else 0
}

func (m *StatusReply) fields(c *coder) {
	u16(c, &m.Status, "status")
	c.u64(&m.Detail, "detail")
}

// Append appends the frame to dst.
func (m *StatusReply) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeStatus, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *StatusReply) Parse(payload []byte) error {
	c := reader(TypeStatus, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeStatus.
func (*StatusReply) Type() Type { return TypeStatus }

// Statuses answers a request about several keys or claims, in their order.
type Statuses struct {
	Statuses []Status
}

func (m *Statuses) fields(c *coder) {
	for i := range list(c, &m.Statuses, 2, "statuses") {
		u16(c, &m.Statuses[i], "status")
	}
}

// Append appends the frame to dst.
func (m *Statuses) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeStatuses, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Statuses) Parse(payload []byte) error {
	c := reader(TypeStatuses, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeStatuses.
func (*Statuses) Type() Type { return TypeStatuses }

// Count answers Exists in ModePrefix.
type Count struct {
	N uint32
}

func (m *Count) fields(c *coder) {
	c.u32(&m.N, "count")
}

// Append appends the frame to dst.
func (m *Count) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeCount, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Count) Parse(payload []byte) error {
	c := reader(TypeCount, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeCount.
func (*Count) Type() Type { return TypeCount }

// ErrorReply (ERROR) says that a request failed for a reason that is no plain status
// or, with request id 0, that the connection is about to close.
type ErrorReply struct {
	Code Code
	Text string // for people; cut to MaxText bytes of UTF-8 by Append
}

func (m *ErrorReply) fields(c *coder) {
	u16(c, &m.Code, "code")
	c.sentence(&m.Text)
}

// Append appends the frame to dst.
func (m *ErrorReply) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeError, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *ErrorReply) Parse(payload []byte) error {
	c := reader(TypeError, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeError.
func (*ErrorReply) Type() Type { return TypeError }

// Goodbye is the last frame of a server that closes on purpose. Its request id is 0.
type Goodbye struct {
	Reason Code
	Text   string // for people; cut to MaxText bytes of UTF-8 by Append
}

func (m *Goodbye) fields(c *coder) {
	u16(c, &m.Reason, "reason")
	c.sentence(&m.Text)
}

// Append appends the frame to dst.
func (m *Goodbye) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeGoodbye, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Goodbye) Parse(payload []byte) error {
	c := reader(TypeGoodbye, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeGoodbye.
func (*Goodbye) Type() Type { return TypeGoodbye }

// sentence is a text for people.
func (c *coder) sentence(v *string) { c.fitted(v, MaxText, "text") }

// fitted is a text that is made to fit when written.
func (c *coder) fitted(v *string, hi int, field string) {
	text := *v
	if c.writing {
		text = clip(text, hi)
	}
	c.text(&text, 0, hi, field)
	*v = text
}

// clip returns s as valid UTF-8 of at most n bytes.
func clip(s string, n int) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= n {
		return s
	}
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
