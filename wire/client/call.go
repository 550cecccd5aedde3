package client

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/kvcr-go/kvcr/wire"
)

// op is what a call asks for.
type op uint8

const (
	opGet op = iota
	opSet
	opDelete
	opExists
	opPrefix
	opQuery
	opFetch
	opDeliver
	opRelease
	opStats
	opPing
	opHint
	opDiscardHint
	opDescribe
	opSubscribe
	opSubscribeOutcomes
	opReserve
	opCommit
	opAbort
	opEnd
)

// ops is what is known of each op: the type of its answer, and whether it changes
// nothing, so that it may be sent again.
var ops = [opEnd]struct {
	name   string
	answer wire.Type
	again  bool
}{
	opGet:         {"get", wire.TypeValue, true},
	opSet:         {"set", wire.TypeStatus, false},
	opDelete:      {"delete", wire.TypeStatuses, false},
	opExists:      {"exists", wire.TypeStatuses, true},
	opPrefix:      {"prefix", wire.TypeCount, true},
	opQuery:       {"query", wire.TypeResults, true},
	opFetch:       {"fetch", wire.TypeClaims, false},
	opDeliver:     {"deliver", wire.TypeValue, false},
	opRelease:     {"release", wire.TypeStatuses, false},
	opStats:       {"stats", wire.TypeStatsReply, true},
	opPing:        {"ping", wire.TypePong, true},
	opHint:        {"hint", wire.TypeHintResults, false},
	opDiscardHint: {"discard hint", wire.TypeStatus, false},
	opDescribe:    {"describe", wire.TypeStatuses, true},
	opSubscribe:   {"subscribe", wire.TypeEvents, false},

	opSubscribeOutcomes: {"subscribe outcomes", wire.TypeOutcomes, false},

	opReserve: {"reserve", wire.TypeReservation, false},
	opCommit:  {"commit", wire.TypeStatus, false},
	opAbort:   {"abort", wire.TypeStatus, false},
}

func (o op) name() string { return ops[o].name }

// call is one request and its answer. Calls are used again: after done was
// received, or abandon has returned, nobody else knows of one.
type call struct {
	op op

	// The request. The memory is the caller's.
	key    []byte
	keys   [][]byte
	claims []uint64 // as the node numbers them; of a FETCH: those that end with it
	verb   wire.Verb
	ttl    uint64 // ms
	format wire.Format
	text   string
	epoch  uint64
	seq    uint64
	src    []byte // value of a SET, body of a HINT

	describe *wire.Describe
	shm      shmCall

	// Guarded by conn.mu.
	id     uint64
	round  uint64 // the round of writing that takes the frame
	bulk   bool   // src goes out in DATA frames, from where it is
	at     int    // bytes of src that were taken to be written
	handed bool   // after the end: all of the request was taken to be written

	// The answer, guarded by conn.rmu until the call has ended.
	dst    []byte // where the value goes, up to its capacity
	fixed  bool   // dst must do: it is not replaced by a longer one
	begun  bool   // VALUE has come
	short  bool   // the value is longer than dst, which is fixed
	have   uint64 // bytes of the value that have come
	total  uint64
	status wire.Status
	detail uint64
	count  int
	body   []byte

	statuses wire.Statuses
	results  wire.Results
	granted  wire.Claims
	feed     feed // of a stream
	err      *Error

	done  chan struct{} // holds one: the call has ended
	timer *time.Timer   // for Options.RequestTimeout
}

func newCall() *call { return &call{done: make(chan struct{}, 1)} }

// reset makes a call ready for its next use.
func (k *call) reset() { *k = call{done: k.done, timer: k.timer} }

// rewind makes a call ready to be sent once more.
func (k *call) rewind() { k.id, k.round, k.at, k.handed, k.err = 0, 0, 0, false, nil }

// Tombstones stand in the table for calls that were given up. The answer to what
// left claims is the one that must not be dropped unread.
var (
	tombstone       = new(call)
	claimsTombstone = new(call)
)

func isTombstone(k *call) bool {
	return k == tombstone || k == claimsTombstone || k == placeTombstone
}

// copyMax is the longest value that is copied behind its SET, so that it shares a
// system call with others. Longer ones are sent from where they are.
const copyMax = 16 << 10

// check holds a request against the limits of the connection, so that append
// cannot panic.
func (k *call) check(l *limits) *Error {
	switch k.op {
	case opGet, opSet:
		if len(k.key) == 0 || len(k.key) > l.key {
			return &Error{Err: ErrBadKey}
		}
		if k.op == opSet && uint64(len(k.src)) > l.value {
			return &Error{Err: ErrTooLarge, Size: l.value}
		}
	case opDescribe:
		return checkDescribe(k.describe, l)
	case opDelete, opExists, opPrefix, opQuery, opFetch:
		n := 1 + 4 // mode and count
		if k.text != "" {
			n += 2 + len(k.text)
		}
		for _, key := range k.keys {
			if len(key) == 0 || len(key) > l.key {
				return &Error{Err: ErrBadKey}
			}
			n += 2 + len(key)
		}
		if n > wire.MaxPayload || len(k.keys) > wire.MaxList {
			return &Error{Err: ErrTooLarge, Size: wire.MaxPayload}
		}
	}
	return nil
}

func checkDescribe(d *wire.Describe, l *limits) *Error {
	if len(d.LoRA) > wire.MaxName || !utf8.ValidString(d.LoRA) {
		return &Error{Err: ErrInvalid, Cause: fmt.Errorf("an adapter's name of %d bytes: at most %d, of UTF-8", len(d.LoRA), wire.MaxName)}
	}
	n := 4 + 2 + len(d.LoRA) + 4
	for i := range d.Blocks {
		b := &d.Blocks[i]
		if len(b.Key) == 0 || len(b.Key) > l.key {
			return &Error{Err: ErrBadKey}
		}
		if len(b.Tokens) > wire.MaxList {
			return &Error{Err: ErrTooLarge, Size: wire.MaxList}
		}
		n += 2 + len(b.Key) + 1 + 8 + 8 + 4 + 4*len(b.Tokens)
	}
	if n > wire.MaxPayload || len(d.Blocks) > wire.MaxList {
		return &Error{Err: ErrTooLarge, Size: wire.MaxPayload}
	}
	return nil
}

// append appends the request's first frame to dst.
func (k *call) append(dst []byte, l *limits) []byte {
	switch k.op {
	case opGet:
		m := wire.Get{Key: k.key}
		return m.Append(dst, k.id)
	case opSet:
		n := len(k.src)
		if k.bulk = n > min(copyMax, l.chunk); k.bulk {
			n = 0
		}
		dst = wire.AppendSetHeader(dst, k.id, k.verb, k.ttl, k.key, uint64(len(k.src)), n, k.bulk)
		return append(dst, k.src[:n]...)
	case opDelete:
		m := wire.Delete{Keys: k.keys}
		return m.Append(dst, k.id)
	case opExists:
		m := wire.Exists{Mode: wire.ModeEach, Keys: k.keys}
		return m.Append(dst, k.id)
	case opPrefix:
		m := wire.Exists{Mode: wire.ModePrefix, Keys: k.keys}
		return m.Append(dst, k.id)
	case opQuery:
		m := wire.Query{Keys: k.keys, RequestID: k.text}
		return m.Append(dst, k.id)
	case opFetch:
		m := wire.Fetch{Keys: k.keys, RequestID: k.text}
		return m.Append(dst, k.id)
	case opDeliver:
		m := wire.Deliver{Claim: k.claims[0]}
		return m.Append(dst, k.id)
	case opRelease:
		m := wire.Release{Claims: k.claims}
		return m.Append(dst, k.id)
	case opStats:
		return (&wire.Stats{}).Append(dst, k.id)
	case opPing:
		m := wire.Ping{Bytes: binary.LittleEndian.AppendUint64(nil, k.id)}
		return m.Append(dst, k.id)
	case opHint:
		m := wire.Hint{Format: k.format, RequestID: k.text, Body: k.src}
		return m.Append(dst, k.id)
	case opDiscardHint:
		m := wire.DiscardHint{RequestID: k.text}
		return m.Append(dst, k.id)
	case opSubscribe:
		m := wire.Subscribe{FromEpoch: k.epoch, FromSequence: k.seq}
		return m.Append(dst, k.id)
	case opSubscribeOutcomes:
		m := wire.SubscribeOutcomes{FromEpoch: k.epoch, FromSequence: k.seq}
		return m.Append(dst, k.id)
	case opDescribe:
		return k.describe.Append(dst, k.id)
	case opReserve, opCommit, opAbort:
		return k.appendShm(dst)
	}
	panic("client: no request of this kind")
}

// parse takes an answer of one frame. An error means that the node broke the
// protocol.
func (k *call) parse(t wire.Type, payload []byte) error {
	switch t {
	case wire.TypeStatus:
		var m wire.StatusReply
		if err := m.Parse(payload); err != nil {
			return err
		}
		if m.Status == wire.StatusOK && ops[k.op].answer != wire.TypeStatus && k.feed == nil {
			return violation("status ok for %s", k.op.name())
		}
		k.status, k.detail = m.Status, m.Detail
		return nil
	case wire.TypeError:
		var m wire.ErrorReply
		if err := m.Parse(payload); err != nil {
			return err
		}
		k.err = codeError(&m)
		k.err.MayHaveRun = k.err.Err == ErrRefused || k.err.Err == ErrTimeout
		return nil
	case ops[k.op].answer:
	default:
		return violation("%v for %s", t, k.op.name())
	}
	n, want := 0, 0
	switch t {
	case wire.TypePong:
		var m wire.Pong
		if err := m.Parse(payload); err != nil {
			return err
		}
		if !bytes.Equal(m.Bytes, binary.LittleEndian.AppendUint64(nil, k.id)) {
			return violation("PONG with %x for id %d", m.Bytes, k.id)
		}
	case wire.TypeStatuses:
		if err := k.statuses.Parse(payload); err != nil {
			return err
		}
		n, want = len(k.statuses.Statuses), len(k.keys)+len(k.claims)
		if k.describe != nil {
			want = len(k.describe.Blocks)
		}
	case wire.TypeCount:
		var m wire.Count
		if err := m.Parse(payload); err != nil {
			return err
		}
		k.count = int(m.N)
		n, want = max(k.count, len(k.keys)), len(k.keys)
	case wire.TypeResults:
		if err := k.results.Parse(payload); err != nil {
			return err
		}
		n, want = len(k.results.Results), len(k.keys)
	case wire.TypeClaims:
		if err := k.granted.Parse(payload); err != nil {
			return err
		}
		n, want = len(k.granted.Claims), len(k.keys)
	case wire.TypeReservation:
		if err := k.shm.place.Parse(payload); err != nil {
			return err
		}
	case wire.TypeHintResults, wire.TypeStatsReply:
		k.body = bytes.Clone(payload) // both are all body
	}
	if n != want {
		return violation("%v with %d elements for %s of %d", t, n, k.op.name(), want)
	}
	return nil
}

// firstAlloc is the most memory in bytes that is taken for a value before any of
// it has come; after that, no more than twice what has come.
const firstAlloc = 1 << 20

// space returns memory for the next bytes of the value, at most n and at least
// one; the caller adds to have what it has put there. The value is not short.
func (k *call) space(n int) []byte {
	have := int(k.have)
	if have == cap(k.dst) {
		size := min(k.total, uint64(max(firstAlloc, 2*have)))
		grown := make([]byte, size)
		copy(grown, k.dst[:have])
		k.dst = grown
	}
	return k.dst[have:min(cap(k.dst), have+n)]
}

// put takes the next bytes of the value.
func (k *call) put(p []byte) {
	if k.short {
		k.have += uint64(len(p))
		return
	}
	for len(p) > 0 {
		n := copy(k.space(len(p)), p)
		k.have += uint64(n)
		p = p[n:]
	}
}

// value takes a VALUE or DATA frame's place in the value: size bytes, of which put
// and space take care.
func (k *call) value(h wire.Header, size int, at, total uint64, l *limits) error {
	first := h.Type == wire.TypeValue
	switch {
	case ops[k.op].answer != wire.TypeValue:
		return violation("%v for %s", h.Type, k.op.name())
	case first == k.begun:
		return violation("%v out of turn", h.Type)
	case first && total > l.value:
		return violation("value of %d bytes, limit %d", total, l.value)
	case first:
		k.begun, k.total = true, total
		if total > uint64(cap(k.dst)) { // leave it as it is
			k.short = k.fixed
			k.dst = nil
		}
	case at != k.have:
		return violation("chunk at %d instead of %d", at, k.have)
	}
	if left := k.total - k.have; uint64(size) > left || h.More() != (uint64(size) < left) {
		return violation("chunk of %d bytes where %d are missing, more=%t", size, left, h.More())
	}
	return nil
}

// outcome is the error of a call that got an answer.
func (k *call) outcome() *Error {
	switch {
	case k.err != nil:
		return k.err
	case k.status != wire.StatusOK:
		if k.op == opGet && k.status == wire.StatusMiss || k.op == opSet && k.status == wire.StatusExists {
			return nil
		}
		return statusError(k.status, k.detail)
	case k.short:
		return &Error{Err: ErrShortBuffer, Size: k.total}
	}
	return nil
}
