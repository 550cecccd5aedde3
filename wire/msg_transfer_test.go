package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"
)

// ofEach is n elements, each made from its index.
func ofEach[T any](n int, one func(i uint32) T) []T {
	all := make([]T, n)
	for i := range all {
		all[i] = one(uint32(i))
	}
	return all
}

func offered(pieces int) func(uint32) Offered {
	return func(i uint32) Offered {
		o := Offered{
			Status: 1<<16 - 1, Flags: 255, Keep: 1<<16 - 1, Generation: 1<<32 - 1, Size: 1<<64 - 1, Sum: 1<<64 - 1,
			Position: i, Parent: bytesOf(MaxKey), Pools: bytesOf(pieces), Offsets: make([]uint64, pieces),
		}
		for j := range o.Offsets {
			o.Offsets[j] = 1<<64 - 1 - uint64(j)
		}
		return o
	}
}

func sameIndex(i uint32) uint32  { return i }
func stated(i uint32) ItemStatus { return ItemStatus{i, StatusGroup} }
func accepted(i uint32) Accepted { return Accepted{i, bytesOf(MaxDesc)} }
func wantedLong(i uint32) Wanted { return Wanted{bytesOf(MaxKey), i} }
func resolvedLong(i uint32) Resolved {
	return Resolved{0, longName(), bytesOf(MaxKey), i, 1<<64 - 1, 1<<16 - 1, 1<<16 - 1, bytesOf(MaxPieces), bytesOf(MaxDescription)}
}
func longName() string   { return strings.Repeat("n", MaxName) }
func longInfo() PeerInfo { return PeerInfo{longName(), longName(), [16]byte{15: 1}, bytesOf(MaxUCX)} }
func header(t Type, n uint32) []byte {
	return AppendHeader(nil, Header{Type: t, Flags: t.kind().must, ID: 1, Length: n})
}

// longest returns, for the types between nodes whose lists are bounded by MaxItems
// or that have none, the longest message there is.
func longest() []Message {
	return []Message{
		&PeerHello{longInfo(), 255, 1<<64 - 1},
		&PeerWelcome{longInfo(), 255, 1, longName()},
		&PeerStream{1<<64 - 1, 255},
		&Start{Source: 1, Dest: 2, Mode: TransferMove, OwnedOnly: true, Timeout: 1<<32 - 1, Fingerprint: [32]byte{31: 1}, Namespace: longName(), Items: ofEach(MaxItems, wantedLong)},
		&Offer{1, 2, ofEach(MaxItems, offered(MaxPieces))},
		&Refused{1, StatusIncarnation, strings.Repeat("r", MaxText)},
		&Accept{1, 2, ofEach(MaxItems, accepted)},
		&Done{1, 2, ofEach(MaxItems, stated)},
		&Confirm{1, 2, ofEach(MaxItems, sameIndex)},
		&Removed{1, 2, ofEach(MaxItems, stated)},
		&Ask{1, 2, ofEach(MaxItems, sameIndex)},
		&Decline{1, 2, ofEach(MaxItems, stated)},
		&Finish{1, 2},
		&Finished{1, 2},
		&Probe{1, 2, true, ofEach(MaxItems, sameIndex)},
		&ProbeAck{1, 2, true, true},
		&Block{MaxItems - 1, 1<<64 - 1},
		&ResolveHashes{1, ofEach(MaxHashes, func(i uint32) uint64 { return 1<<64 - 1 - uint64(i) })},
		&HashesResolved{1, 2, ofEach(MaxHashes, resolvedLong)},
	}
}

// The longest messages fill their type's limit exactly, and so fit a frame.
func TestLongestBetweenNodes(t *testing.T) {
	for _, m := range longest() {
		b := m.Append(nil, 1)
		_, payload, rest, err := Next(b)
		if err != nil || len(rest) != 0 {
			t.Fatalf("%v: %v, %d left", m.Type(), err, len(rest))
		}
		if len(payload) != m.Type().MaxLength() || len(payload) > MaxPayload {
			t.Errorf("%v takes %d bytes, its type %d, a frame %d", m.Type(), len(payload), m.Type().MaxLength(), MaxPayload)
		}
		got := New(m.Type())
		if err := got.Parse(payload); err != nil {
			t.Errorf("%v: %v", m.Type(), err)
		}
		if !reflect.DeepEqual(got, m) {
			t.Errorf("%v changes on the way", m.Type())
		}
	}
}

// tooMuchCase is a message beyond a limit, and a payload that says the same: a head
// up to the field in question, and as many zero bytes as it promises.
type tooMuchCase struct {
	m           Message
	head        string // hexadecimal
	count, each int    // elements after the head, bytes of each
	want        string
}

var tooMuch = []tooMuchCase{
	{&Start{Items: ofEach(MaxItems+1, wantedLong)}, both + zeros(1+1+4+32+2) + "81000000", MaxItems + 1, wantedSize, "START: items: too many: 129, limit 128"},
	{&Offer{Items: make([]Offered, MaxItems+1)}, both + "81000000", MaxItems + 1, offeredSize, "OFFER: items: too many: 129, limit 128"},
	{&Accept{Items: make([]Accepted, MaxItems+1)}, both + "81000000", MaxItems + 1, acceptedSize, "ACCEPT: items: too many: 129, limit 128"},
	{&Done{Items: make([]ItemStatus, MaxItems+1)}, both + "81000000", MaxItems + 1, statusSize, "DONE: items: too many: 129, limit 128"},
	{&Removed{Items: make([]ItemStatus, MaxItems+1)}, both + "81000000", MaxItems + 1, statusSize, "REMOVED: items: too many: 129, limit 128"},
	{&Decline{Items: make([]ItemStatus, MaxItems+1)}, both + "81000000", MaxItems + 1, statusSize, "DECLINE: items: too many: 129, limit 128"},
	{&Confirm{Indices: make([]uint32, MaxItems+1)}, both + "81000000", MaxItems + 1, 4, "CONFIRM: indices: too many: 129, limit 128"},
	{&Ask{Indices: make([]uint32, MaxItems+1)}, both + "81000000", MaxItems + 1, 4, "ASK: indices: too many: 129, limit 128"},
	{&Probe{Indices: make([]uint32, MaxItems+1)}, both + "00" + "81000000", MaxItems + 1, 4, "PROBE: indices: too many: 129, limit 128"},

	{&Offer{Items: ofEach(1, offered(MaxPieces+1))}, both + "01000000" + zeros(33) + "2000", MaxPieces + 1, 1, "OFFER: pools: too long: 32, limit 31"},
	{&Offer{Items: []Offered{{Offsets: make([]uint64, MaxPieces+1)}}}, both + "01000000" + zeros(35) + "20000000", MaxPieces + 1, 8, "OFFER: offsets: too many: 32, limit 31"},
	{&Offer{Items: []Offered{{Parent: bytesOf(MaxKey + 1)}}}, both + "01000000" + zeros(31) + "0104", MaxKey + 1, 1, "OFFER: parent: too long: 1025, limit 1024"},
	{&Accept{Items: []Accepted{{Desc: bytesOf(MaxDesc + 1)}}}, both + "01000000" + zeros(4) + "0104", MaxDesc + 1, 1, "ACCEPT: desc: too long: 1025, limit 1024"},
	{&Start{Mode: 2}, both + "02", 1 + 4 + 32 + 2 + 4, 1, "START: mode: out of range: 2, limit 1"},
	{&Start{Items: []Wanted{{}}}, both + zeros(1+1+4+32+2) + "01000000" + "0000", 1, 5, "START: key: too short: 0, limit 1"},

	{&Accept{Items: []Accepted{{Index: MaxItems}}}, both + "01000000" + "80000000", 2, 1, "ACCEPT: index: out of range: 128, limit 127"},
	{&Done{Items: []ItemStatus{{Index: MaxItems}}}, both + "01000000" + "80000000", 2, 1, "DONE: index: out of range: 128, limit 127"},
	{&Removed{Items: []ItemStatus{{Index: 1<<32 - 1}}}, both + "01000000" + "ffffffff", 2, 1, "REMOVED: index: out of range: 4294967295, limit 127"},
	{&Decline{Items: []ItemStatus{{Index: MaxItems}}}, both + "01000000" + "80000000", 2, 1, "DECLINE: index: out of range: 128, limit 127"},
	{&Confirm{Indices: []uint32{0, MaxItems}}, both + "02000000" + "00000000" + "80000000", 0, 0, "CONFIRM: index: out of range: 128, limit 127"},
	{&Ask{Indices: []uint32{MaxItems}}, both + "01000000" + "80000000", 0, 0, "ASK: index: out of range: 128, limit 127"},
	{&Probe{Indices: []uint32{MaxItems}}, both + "00" + "01000000" + "80000000", 0, 0, "PROBE: index: out of range: 128, limit 127"},
	{&Block{Index: MaxItems}, "80000000", 8, 1, "BLOCK: index: out of range: 128, limit 127"},

	{&PeerHello{PeerInfo: PeerInfo{UCX: bytesOf(MaxUCX + 1)}}, zeros(2+2+16) + "0120", MaxUCX + 1, 1, "PEER_HELLO: ucx: too long: 8193, limit 8192"},
	{&PeerWelcome{Local: longName() + "n"}, zeros(2+2+16+2+1+8) + "0001", MaxName + 1, 1, "PEER_WELCOME: local: too long: 256, limit 255"},
	{&PeerQuery{Keys: make([][]byte, MaxList+1)}, zeros(2) + "01200000", MaxList + 1, 3, "PEER_QUERY: keys: too many: 8193, limit 8192"},
	{&ResolveHashes{Hashes: make([]uint64, MaxHashes+1)}, zeros(8) + "41000000", MaxHashes + 1, 8, "RESOLVE_HASHES: hashes: too many: 65, limit 64"},
	{&HashesResolved{Items: ofEach(MaxHashes+1, resolvedLong)}, both + "41000000", MaxHashes + 1, resolvedSize, "HASHES_RESOLVED: items: too many: 65, limit 64"},
	{&HashesResolved{Items: []Resolved{{Namespace: longName() + "n", Key: bytesOf(1)}}}, both + "01000000" + "0000" + "0001", MaxName + 1, 1, "HASHES_RESOLVED: namespace: too long: 256, limit 255"},
	{&HashesResolved{Items: []Resolved{{}}}, both + "01000000" + zeros(2+2+2), 0, 0, "HASHES_RESOLVED: key: too short: 0, limit 1"},
	{&HashesResolved{Items: []Resolved{{Key: bytesOf(1), Pools: bytesOf(MaxPieces + 1)}}}, both + "01000000" + zeros(2+2) + "010000" + zeros(4+8+2+2) + "2000", MaxPieces + 1, 1, "HASHES_RESOLVED: pools: too long: 32, limit 31"},
	{&HashesResolved{Items: []Resolved{{Key: bytesOf(1), Description: bytesOf(MaxDescription + 1)}}}, both + "01000000" + zeros(2+2) + "010000" + zeros(4+8+2+2+2) + "010b", MaxDescription + 1, 1, "HASHES_RESOLVED: description: too long: 2817, limit 2816"},
	{&Outcomes{Items: []OutcomeItem{{Hashes: make([]uint64, MaxOutcomeHashes+1)}}}, zeros(8+1) + "01000000" + zeros(8+8+2+2+4+2+2+4+1) + "017d0000", MaxOutcomeHashes + 1, 8, "OUTCOMES: hashes: too many: 32001, limit 32000"},
	{&Describe{Blocks: []Description{{}}}, zeros(4+2) + "01000000" + "0000", descriptionSize, 1, "DESCRIBE: key: too short: 0, limit 1"},
	{&Describe{LoRA: longName() + "n"}, zeros(4) + "0001", MaxName + 1, 1, "DESCRIBE: lora: too long: 256, limit 255"},
	{&Invalidate{Items: make([]Wanted, MaxList+1)}, zeros(8+2) + "01200000", MaxList + 1, wantedSize, "INVALIDATE: items: too many: 8193, limit 8192"},
}

// both is two incarnations in hexadecimal, zeros n bytes.
var both = zeros(bothSize)

func zeros(n int) string { return strings.Repeat("00", n) }

func (tc *tooMuchCase) payload() []byte {
	head, err := hex.DecodeString(tc.head)
	if err != nil {
		panic(err)
	}
	return append(head, make([]byte, tc.count*tc.each)...)
}

// frame is a frame of the payload, cut to what its header may announce.
func (tc *tooMuchCase) frame() []byte {
	p := tc.payload()
	p = p[:min(len(p), tc.m.Type().MaxLength())]
	return append(header(tc.m.Type(), uint32(len(p))), p...)
}

// What is beyond a limit of an operation is neither read nor written, and the
// refusal names field, value and limit.
func TestTooMuchBetweenNodes(t *testing.T) {
	for _, tc := range tooMuch {
		want := "wire: " + tc.want
		if err := New(tc.m.Type()).Parse(tc.payload()); err == nil || err.Error() != want || !errors.Is(err, ErrPayload) {
			t.Errorf("Parse: %v, want %s", err, want)
		}
		func() {
			defer func() {
				if err, ok := recover().(*PayloadError); !ok || err.Error() != want {
					t.Errorf("Append: %v, want %s", err, want)
				}
			}()
			tc.m.Append(nil, 1)
		}()
	}
}

// Link 0 is an absent link, and nothing else is: also not one of which bytes are
// missing.
func TestLinkHasOneEncoding(t *testing.T) {
	without := (&PeerHello{}).Append(nil, 1)[HeaderSize:]
	for _, tc := range []struct {
		tail []byte
		want string
	}{
		{make([]byte, 8), "wire: PEER_HELLO: link: too small: 0, limit 1"},
		{[]byte{1, 0, 0}, "wire: PEER_HELLO: link: truncated: 3, limit 8"},
		{append(make([]byte, 8), 1), "wire: PEER_HELLO: link: too small: 0, limit 1"},
	} {
		m := PeerHello{Link: 7}
		if err := m.Parse(append(without[:len(without):len(without)], tc.tail...)); err == nil || err.Error() != tc.want {
			t.Errorf("% x: %v, want %s", tc.tail, err, tc.want)
		}
	}
	m := PeerHello{Link: 7}
	if err := m.Parse(without); err != nil || m.Link != 0 {
		t.Errorf("without a link: %d, %v", m.Link, err)
	}
}

// The count of a list inside a list reserves nothing before its bytes are there.
func TestNestedListIsPaidFor(t *testing.T) {
	payload := append(make([]byte, bothSize), 1, 0, 0, 0)
	payload = append(payload, make([]byte, offeredSize-4)...)
	payload = append(payload, MaxPieces, 0, 0, 0)
	payload = append(payload, make([]byte, 8*MaxPieces-1)...)
	var m Offer
	err := m.Parse(payload)
	if err == nil || err.Error() != "wire: OFFER: offsets: truncated: 247, limit 248" {
		t.Fatalf("%v", err)
	}
	if cap(m.Items[0].Offsets) != 0 {
		t.Errorf("room for %d offsets", cap(m.Items[0].Offsets))
	}
}

// Appending allocates nothing for any message, nor does parsing into a message
// that has been used before, but for its strings.
func TestNoAllocationsOfAnyType(t *testing.T) {
	if raceBuild {
		t.Skip("race builds allocate on their own account")
	}
	dst := make([]byte, 0, HeaderSize+MaxPayload)
	check := func(m Message, payload []byte, more bool) {
		again := New(m.Type())
		if err := errors.Join(m.Parse(payload), again.Parse(payload)); err != nil {
			t.Fatalf("%v: %v", m.Type(), err)
		}
		setMore(m, more)
		if n := testing.AllocsPerRun(20, func() { dst = m.Append(dst[:0], 1) }); n != 0 {
			t.Errorf("append %v of %d bytes: %v allocations", m.Type(), len(payload), n)
		}
		strings := float64(stringsIn(reflect.ValueOf(m).Elem()))
		var err error
		if n := testing.AllocsPerRun(20, func() { err = again.Parse(payload) }); n != strings || err != nil {
			t.Errorf("parse %v of %d bytes: %v allocations for %v strings, %v", m.Type(), len(payload), n, strings, err)
		}
	}
	for _, g := range golden(t) {
		h, payload, _, err := Next(g.frame)
		if err != nil {
			t.Fatal(err)
		}
		check(New(g.typ), payload, h.More())
	}
	for _, m := range longest() {
		_, payload, _, err := Next(m.Append(nil, 1))
		if err != nil {
			t.Fatal(err)
		}
		check(m, payload, false)
	}
}

// stringsIn counts the strings of a message that are not empty.
func stringsIn(v reflect.Value) (n int) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			n += stringsIn(v.Field(i))
		}
	case reflect.Slice:
		for i := range v.Len() {
			n += stringsIn(v.Index(i))
		}
	case reflect.String:
		n = min(v.Len(), 1)
	}
	return n
}

func TestRoutes(t *testing.T) {
	var s Routes
	if s.Has(RouteShm) {
		t.Error("the empty set has a route")
	}
	s = s.With(RouteShm).With(RouteStream)
	for r := range routeEnd + 10 {
		if want := r == RouteShm || r == RouteStream; s.Has(r) != want {
			t.Errorf("%v: %t", r, !want)
		}
	}
	b := (&PeerHello{Routes: s}).Append(nil, 1)
	if !bytes.HasSuffix(b, []byte{0x12}) {
		t.Errorf("shm and stream are % x", b[len(b)-1:])
	}
}
