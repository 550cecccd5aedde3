package events

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/zeebo/xxh3"
)

// ErrDomain: an event names a residency domain that we do not know, or one that it
// cannot be of. To guess would be to clear, or keep, what is another's.
var ErrDomain = errors.New("unsupported residency domain")

// Scope is what a subject of Dynamo's event plane is about: a namespace, a component of
// it or an endpoint of that.
type Scope struct{ Namespace, Component, Endpoint string }

// Subject returns the subject of a topic. Scopes are exact: that of a component is not
// heard by who listens to its namespace.
func (s Scope) Subject(topic string) string {
	b := appendSegment([]byte("namespace."), s.Namespace)
	if s.Component != "" {
		b = appendSegment(append(b, ".component."...), s.Component)
		if s.Endpoint != "" {
			b = appendSegment(append(b, ".endpoint."...), s.Endpoint)
		}
	}
	return string(append(append(b, '.'), topic...))
}

// appendSegment writes all but letters, digits, - and _ as % and two digits.
func appendSegment(b []byte, s string) []byte {
	const digits = "0123456789ABCDEF"
	for _, c := range []byte(s) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' {
			b = append(b, c)
		} else {
			b = append(b, '%', digits[c>>4], digits[c&15])
		}
	}
	return b
}

// Envelope is what Dynamo's event plane wraps around every payload.
type Envelope struct {
	Topic       string
	PublisherID uint64 // at most 53 bits, so that JSON keeps it
	Sequence    uint64 // from 0
	PublishedAt time.Time
	Payload     []byte
}

// AppendEnvelope appends the envelope, as Dynamo writes it.
func AppendEnvelope(dst []byte, e *Envelope) []byte {
	dst = appendMap(dst, 6)
	dst = appendText(appendText(dst, "topic"), e.Topic)
	dst = appendUint(appendText(dst, "publisher_id"), e.PublisherID)
	dst = appendUint(appendText(dst, "sequence"), e.Sequence)
	dst = appendUint(appendText(dst, "published_at"), uint64(max(0, e.PublishedAt.UnixMilli())))
	dst = append(appendBinHead(appendText(dst, "payload"), len(e.Payload)), e.Payload...)
	return appendUint(appendText(dst, "published_at_ns"), uint64(max(0, e.PublishedAt.UnixNano())))
}

// ParseEnvelope reads an envelope; the payload lies in b. Failure: ErrMalformed.
func ParseEnvelope(b []byte) (e Envelope, err error) {
	r := reader{b: b}
	f := parseEnvelope(&r, &e)
	if f == "" && r.left() > 0 {
		f = "bytes follow the envelope"
	}
	if f != "" {
		return Envelope{}, fmt.Errorf("%w: envelope of %d bytes: %s", ErrMalformed, len(b), string(f))
	}
	return e, nil
}

func parseEnvelope(r *reader, e *Envelope) fault {
	n, f := r.mapping()
	if f != "" {
		return f
	}
	const topic, id, seq, payload = 1, 2, 4, 8
	has, ms, ns := 0, uint64(0), uint64(0)
	for range n {
		key, f := r.text()
		if f != "" {
			return f
		}
		switch string(key) {
		case "topic":
			var p []byte
			p, f = r.text()
			e.Topic = string(p)
			has |= topic
		case "publisher_id":
			e.PublisherID, f = r.u64()
			has |= id
		case "sequence":
			e.Sequence, f = r.u64()
			has |= seq
		case "published_at":
			ms, f = r.u64()
		case "published_at_ns":
			if !r.isNil() {
				ns, f = r.u64()
			}
		case "payload":
			e.Payload, f = r.bytes()
			has |= payload
		default:
			f = r.skip()
		}
		if f != "" {
			return f
		}
	}
	if has != topic|id|seq|payload {
		return "an envelope has topic, publisher_id, sequence and payload"
	}
	switch {
	case ns > 0:
		e.PublishedAt = time.Unix(0, int64(ns))
	default:
		e.PublishedAt = time.UnixMilli(int64(ms))
	}
	return ""
}

// planeVersion begins the last frame of a message; four bytes of length follow it.
const planeVersion = 1

// AppendPlaneFrames appends to frames those of a message of the event plane over ZMQ.
// topic is the bare topic where subscribers connect to us, the whole subject where a
// broker is between; envelope is as AppendEnvelope writes it.
func AppendPlaneFrames(frames [][]byte, topic string, publisherID, sequence uint64, envelope []byte) [][]byte {
	numbers := make([]byte, 0, 16)
	numbers = binary.BigEndian.AppendUint64(numbers, publisherID)
	numbers = binary.BigEndian.AppendUint64(numbers, sequence)
	last := make([]byte, 0, 5+len(envelope))
	last = binary.BigEndian.AppendUint32(append(last, planeVersion), uint32(len(envelope)))
	return append(frames, []byte(topic), numbers[:8:8], numbers[8:], append(last, envelope...))
}

// ParsePlaneFrames reads a message of the event plane; the payload lies in the frames.
// Failures: ErrFrames, ErrMalformed.
func ParsePlaneFrames(frames [][]byte) (Envelope, error) {
	if len(frames) != 4 || len(frames[1]) != 8 || len(frames[2]) != 8 {
		return Envelope{}, fmt.Errorf("%w: %s, want topic, publisher and sequence of 8 bytes each, envelope", ErrFrames, lengths(frames))
	}
	last := frames[3]
	switch {
	case len(last) < 5:
		return Envelope{}, fmt.Errorf("%w: a last frame of %d bytes has no head", ErrFrames, len(last))
	case last[0] != planeVersion:
		return Envelope{}, fmt.Errorf("%w: version %d, only %d is known", ErrFrames, last[0], planeVersion)
	case uint64(binary.BigEndian.Uint32(last[1:])) != uint64(len(last)-5):
		return Envelope{}, fmt.Errorf("%w: an envelope of %d bytes says that it has %d", ErrFrames, len(last)-5, binary.BigEndian.Uint32(last[1:]))
	}
	e, err := ParseEnvelope(last[5:])
	if err != nil {
		return Envelope{}, err
	}
	if id, seq := binary.BigEndian.Uint64(frames[1]), binary.BigEndian.Uint64(frames[2]); id != e.PublisherID || seq != e.Sequence {
		return Envelope{}, fmt.Errorf("%w: frames of publisher %d and sequence %d around an envelope of %d and %d", ErrFrames, id, seq, e.PublisherID, e.Sequence)
	}
	return e, nil
}

// AppendRouterEvent appends the event as Dynamo writes it: a map with keys. stateSource
// is the msgpack of the owner's full id, for an event of DomainCacheOwner; without it
// the 16 bytes of Owner take its place, which only we understand.
func AppendRouterEvent(dst []byte, ev *RouterEvent, stateSource []byte) []byte {
	head := len(dst)
	dst = appendMap(dst, 3)
	dst = appendUint(appendText(dst, "worker_id"), ev.Worker.ID)
	dst = appendText(appendText(dst, "storage_tier"), ev.Tier.String())
	if ev.Domain != DomainLegacy {
		dst[head]++
		dst = appendText(appendText(dst, "residency_domain"), ev.Domain.name())
	}
	dst = appendMap(appendText(dst, "event"), 3)
	dst = appendUint(appendText(dst, "event_id"), ev.ID)
	dst = appendText(dst, "data")
	switch ev.Op {
	case Stored:
		dst = appendMap(appendText(appendMap(dst, 1), "stored"), 3)
		dst = appendText(dst, "parent_hash")
		if ev.HasParent {
			dst = appendUint(dst, ev.Parent)
		} else {
			dst = append(dst, 0xc0)
		}
		dst = append(appendText(dst, "start_position"), 0xc0)
		dst = appendList(appendText(dst, "blocks"), len(ev.Blocks))
		for _, b := range ev.Blocks {
			dst = appendUint(appendText(appendMap(dst, 3), "block_hash"), b.Hash)
			dst = appendUint(appendText(dst, "tokens_hash"), b.Local)
			dst = append(appendText(dst, "mm_extra_info"), 0xc0)
		}
	case Removed:
		dst = appendText(appendMap(appendText(appendMap(dst, 1), "removed"), 1), "block_hashes")
		dst = appendHashes(dst, ev.Hashes)
	default:
		dst = appendText(dst, "cleared")
	}
	dst = appendUint(appendText(dst, "dp_rank"), uint64(ev.Worker.Rank))
	if ev.Domain == DomainCacheOwner { // last, as Dynamo asks
		dst[head]++
		dst = appendText(dst, "state_source")
		if len(stateSource) > 0 {
			dst = append(dst, stateSource...)
		} else {
			dst = append(appendBinHead(dst, len(ev.Owner)), ev.Owner[:]...)
		}
	}
	return dst
}

func (d Domain) name() string {
	if d == DomainCacheOwner {
		return "cache_owner"
	}
	return "worker"
}

// OwnerKeyOf returns the key of a cache owner whose id is given in msgpack: 16 bytes as
// they are, anything else hashed. Dynamo derives other keys; they never leave a router,
// so that all that counts is that different owners have different ones.
func OwnerKeyOf(stateSource []byte) (k OwnerKey) {
	r := reader{b: stateSource}
	if p, f := r.bytes(); f == "" && len(p) == len(k) && r.left() == 0 {
		return OwnerKey(p)
	}
	h := xxh3.Hash128(stateSource)
	binary.BigEndian.PutUint64(k[:], h.Hi)
	binary.BigEndian.PutUint64(k[8:], h.Lo)
	return k
}

// A RouterEventDecoder reads events of Dynamo's plane. It allocates nothing once its
// memory has grown to the size of the events. It is for one goroutine.
type RouterEventDecoder struct {
	r      reader
	blocks []Block
	hashes []uint64
}

// Decode reads a RouterEvent, valid until the next Decode. Failures: ErrMalformed, and
// ErrDomain for an event of a domain that we must not guess.
func (d *RouterEventDecoder) Decode(payload []byte, ev *RouterEvent) error {
	d.r, d.blocks, d.hashes = reader{b: payload}, d.blocks[:0], d.hashes[:0]
	*ev = RouterEvent{}
	w := wireEvent{ev: ev}
	f := d.event(&w)
	if f == "" && d.r.left() > 0 {
		f = "bytes follow the event"
	}
	if f != "" {
		*ev = RouterEvent{}
		return fmt.Errorf("%w: router event of %d bytes, at byte %d: %s", ErrMalformed, len(payload), min(d.r.pos, len(payload)), string(f))
	}
	if err := w.check(); err != nil {
		*ev = RouterEvent{}
		return err
	}
	return nil
}

// wireEvent is an event with what has been read of it and is not in it.
type wireEvent struct {
	ev                                *RouterEvent
	hasWorker, hasEvent, hasID, hasOp bool
	hasSource, strangeDomain          bool
}

// check applies the rules of domains.
func (w *wireEvent) check() error {
	switch ev := w.ev; {
	case w.strangeDomain:
		return fmt.Errorf("%w: residency_domain is neither worker nor cache_owner", ErrDomain)
	case ev.Domain != DomainCacheOwner || ev.Op == Cleared:
	case ev.Tier == Device:
		return fmt.Errorf("%w: a cache owner has nothing on a device", ErrDomain)
	case !w.hasSource:
		return fmt.Errorf("%w: an event of a cache owner has no state_source", ErrDomain)
	}
	return nil
}

func (d *RouterEventDecoder) event(w *wireEvent) fault {
	r, ev := &d.r, w.ev
	f := r.fields(func(key []byte) (f fault) {
		switch string(key) {
		case "worker_id":
			ev.Worker.ID, f = r.u64()
			w.hasWorker = true
		case "storage_tier":
			ev.Tier, f = d.tier()
		case "residency_domain":
			f = d.domain(w)
		case "event":
			f = d.inner(w)
			w.hasEvent = true
		case "state_source":
			if r.isNil() {
				break
			}
			at := r.pos
			if f = r.skip(); f == "" {
				ev.Owner, w.hasSource = OwnerKeyOf(r.b[at:r.pos]), true
			}
		default:
			f = r.skip()
		}
		return f
	})
	if f != "" {
		return f
	}
	if !w.hasWorker || !w.hasEvent {
		return "a router event has worker_id and event"
	}
	if ev.Domain != DomainCacheOwner {
		ev.Owner = OwnerKey{} // says who publishes, not whose blocks they are
	}
	return ""
}

func (d *RouterEventDecoder) tier() (Tier, fault) {
	p, f := d.r.text()
	if f != "" {
		return 0, f
	}
	for t, name := range tierNames {
		if string(p) == name {
			return Tier(t), ""
		}
	}
	return 0, "unknown storage_tier"
}

// domain reads the domain. One that is no text, nil above all, is not the same as none:
// a malformed clear must not become one of everything.
func (d *RouterEventDecoder) domain(w *wireEvent) fault {
	at := d.r.pos
	p, f := d.r.text()
	switch {
	case f == "" && string(p) == "worker":
		w.ev.Domain = DomainWorker
	case f == "" && string(p) == "cache_owner":
		w.ev.Domain = DomainCacheOwner
	default:
		w.strangeDomain = true
		d.r.pos = at
		return d.r.skip()
	}
	return ""
}

func (d *RouterEventDecoder) inner(w *wireEvent) fault {
	r := &d.r
	f := r.fields(func(key []byte) (f fault) {
		switch string(key) {
		case "event_id":
			w.ev.ID, f = r.u64()
			w.hasID = true
		case "dp_rank":
			w.ev.Worker.Rank, f = r.u32()
		case "data":
			f = d.data(w.ev)
			w.hasOp = true
		default:
			f = r.skip()
		}
		return f
	})
	if f != "" {
		return f
	}
	if !w.hasID || !w.hasOp {
		return "an event has event_id and data"
	}
	return ""
}

func (d *RouterEventDecoder) data(ev *RouterEvent) fault {
	r := &d.r
	if p, f := r.text(); f == "" {
		if string(p) != "cleared" {
			return "unknown data of an event"
		}
		ev.Op = Cleared
		return ""
	}
	n, f := r.mapping()
	if f != "" {
		return f
	}
	if n != 1 {
		return "data of an event is one thing"
	}
	op, f := r.text()
	if f != "" {
		return f
	}
	switch string(op) {
	case "stored":
		ev.Op = Stored
	case "removed":
		ev.Op = Removed
	case "cleared":
		ev.Op = Cleared
		return r.skip()
	default:
		return "unknown data of an event"
	}
	had := false // blocks or hashes
	f = r.fields(func(key []byte) (f fault) {
		switch {
		case ev.Op == Stored && string(key) == "parent_hash":
			if !r.isNil() {
				ev.Parent, f = r.u64()
				ev.HasParent = true
			}
		case ev.Op == Stored && string(key) == "blocks":
			ev.Blocks, f = d.readBlocks()
			had = true
		case ev.Op == Removed && string(key) == "block_hashes":
			ev.Hashes, f = d.readHashes()
			had = true
		default:
			f = r.skip()
		}
		return f
	})
	if f != "" {
		return f
	}
	if !had {
		return "a store has blocks, a removal block_hashes"
	}
	return ""
}

func (d *RouterEventDecoder) readHashes() ([]uint64, fault) {
	n, f := d.r.list()
	if f != "" {
		return nil, f
	}
	for range n {
		h, f := d.r.u64()
		if f != "" {
			return nil, f
		}
		d.hashes = append(d.hashes, h)
	}
	return d.hashes, ""
}

func (d *RouterEventDecoder) readBlocks() ([]Block, fault) {
	r := &d.r
	n, f := r.list()
	if f != "" {
		return nil, f
	}
	for range n {
		var b Block
		const hash, local = 1, 2
		has := 0
		f := r.fields(func(key []byte) (f fault) {
			switch string(key) {
			case "block_hash":
				b.Hash, f = r.u64()
				has |= hash
			case "tokens_hash":
				b.Local, f = r.u64()
				has |= local
			default:
				f = r.skip()
			}
			return f
		})
		if f != "" {
			return nil, f
		}
		if has != hash|local {
			return nil, "a block has block_hash and tokens_hash"
		}
		d.blocks = append(d.blocks, b)
	}
	return d.blocks, ""
}
