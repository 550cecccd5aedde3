package wire

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

type goldenFrame struct {
	name  string
	typ   Type
	frame []byte
}

func typeNamed(name string) (Type, bool) {
	for _, t := range every() {
		if t.String() == name {
			return t, true
		}
	}
	return 0, false
}

// golden returns the frames of testdata/v1.txt.
func golden(t testing.TB) (all []goldenFrame) {
	b, err := os.ReadFile("testdata/v1.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, digits, _ := strings.Cut(line, " ")
		all = append(all, frameOf(t, name, digits))
	}
	return all
}

// examples returns the fenced blocks of PROTOCOL.md.
func examples(t testing.TB) (all []goldenFrame) {
	fence := regexp.MustCompile("(?ms)^```hex ([A-Z_]+)\n(.*?)^```$")
	for _, m := range fence.FindAllStringSubmatch(protocol(t), -1) {
		digits := regexp.MustCompile(`#.*|\s`).ReplaceAllString(m[2], "")
		all = append(all, frameOf(t, m[1], digits))
	}
	return all
}

func protocol(t testing.TB) string {
	b, err := os.ReadFile("PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func frameOf(t testing.TB, name, digits string) goldenFrame {
	typ, ok := typeNamed(name)
	if !ok {
		t.Fatalf("no message is called %s", name)
	}
	frame, err := hex.DecodeString(digits)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return goldenFrame{name, typ, frame}
}

// again decodes a frame and encodes what came out.
func again(t testing.TB, g goldenFrame) (Message, []byte) {
	h, payload, rest, err := Next(g.frame)
	if err != nil || len(rest) != 0 || h.Type != g.typ {
		t.Errorf("%s: a frame of %v, %d bytes left, %v", g.name, h.Type, len(rest), err)
		return nil, nil
	}
	m := New(h.Type)
	if err := m.Parse(payload); err != nil {
		t.Errorf("%s: %v", g.name, err)
		return nil, nil
	}
	setMore(m, h.More())
	return m, m.Append(nil, h.ID)
}

// The frames of version 1 parse forever.
func TestGolden(t *testing.T) {
	seen := map[Type]bool{}
	for _, g := range golden(t) {
		seen[g.typ] = true
		if _, b := again(t, g); b != nil && !bytes.Equal(b, g.frame) {
			t.Errorf("%s: % x became % x", g.name, g.frame, b)
		}
	}
	for _, typ := range every() {
		if !seen[typ] {
			t.Errorf("%v has no frame in testdata/v1.txt", typ)
		}
	}
}

// Every message has an example in PROTOCOL.md that holds the fields which its
// notes name.
func TestExamples(t *testing.T) {
	h, c := handshake()
	client, server := ClientMAC([]byte(exampleSecret), h, c), ServerMAC([]byte(exampleSecret), h, c)
	keys := [][]byte{[]byte("page-1"), []byte("page-2")}
	s, d := c.Incarnation, h.Incarnation // the node dialled and the one that dials
	host := [16]byte{0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xcb, 0xcc, 0xcd, 0xce, 0xcf}
	want := map[Type]Message{}
	for _, m := range []Message{
		h, c, &Auth{MAC: client}, &Welcome{MAC: server},
		&Ping{Bytes: []byte("hello")}, &Pong{Bytes: []byte("hello")}, &Cancel{Target: 9},
		&StatusReply{Status: StatusTooLarge, Detail: 64 << 20},
		&ErrorReply{Code: CodeBadPayload, Text: "key: too short"},
		&Goodbye{Reason: CodeShutdown, Text: "restarting"},
		&Get{Key: keys[0]},
		&Value{Total: 11, Value: []byte("first "), More: true},
		&Data{Offset: 6, Bytes: []byte("chunk")},
		&Set{Verb: VerbSetIfAbsent, TTLMillis: 60000, Key: keys[0], Total: 11, Value: []byte("first "), More: true},
		&Delete{Keys: keys}, &Exists{Mode: ModePrefix, Keys: keys}, &Query{Keys: keys, RequestID: "chatcmpl-42"}, &Fetch{Keys: keys, RequestID: "chatcmpl-42"},
		&Statuses{Statuses: []Status{StatusOK, StatusMiss, 77}}, &Count{N: 2},
		&Results{Results: []Result{{StatusOK, 2, 65536}, {StatusMiss, 0, 0}}},
		&Claims{Claims: []Claim{{StatusOK, 0x501, 65536, 3, 0x40000}, {StatusMiss, 0, 0, NoPool, 0}}},
		&Deliver{Claim: 0x501}, &Release{Claims: []uint64{0x501, 0x502}},
		&ShmAttach{StagingBytes: 1 << 20}, &ShmPools{Pools: []Pool{{3, 1 << 30, 65536}}, StagingBytes: 1 << 19},
		&Reserve{Key: []byte("page-3"), Size: 65536, Verb: VerbDeposit},
		&Reservation{Status: StatusOK, Reservation: 0x601, Pool: StagingPool, Offset: 0x10000},
		&Commit{Reservation: 0x601, HasSum: true, Sum: 0xfeedface}, &Abort{Reservation: 0x602},
		&Hint{Format: FormatMsgpack, RequestID: "chatcmpl-42", Body: []byte{0x80}}, &HintResults{Body: []byte("[]")},
		&DiscardHint{RequestID: "chatcmpl-42"}, &Stats{}, &StatsReply{Body: []byte("{}")},
		&Subscribe{FromEpoch: 0xe1, FromSequence: 1000},
		&Events{Epoch: 0xe1, FirstSequence: 1001, Events: []Event{
			{Kind: EventStored, Tier: 2, Key: keys[1], Parent: keys[0], Size: 65536},
			{Kind: EventRemoved, Tier: 2, Key: keys[0], Size: 65536},
			{Kind: EventCleared, Tier: 3},
		}},
		&SubscribeOutcomes{FromEpoch: 0xe1, FromSequence: 41},
		&Outcomes{Epoch: 0xe1, Items: []OutcomeItem{
			{
				Sequence: 42, UnixNanos: 1_700_000_000_000_000_000, MessageID: "msg-1", ActionID: "act-1", Type: "kv.move", RequestID: "chatcmpl-42", Rank: 1,
				Stage: OutcomeKept, Hashes: []uint64{0x1111111111111111, 0x2222222222222222}, Reason: "redeposited",
			},
			{
				Sequence: 43, UnixNanos: 1_700_000_000_000_000_001, MessageID: "msg-1", ActionID: "act-1", Type: "kv.move", RequestID: "chatcmpl-42", Rank: 1,
				Stage: OutcomeEnd, Moved: 14, Kept: 2, Bytes: 1 << 20,
			},
		}},
		&Describe{BlockSize: 4, LoRA: "sql", Blocks: []Description{
			{Key: keys[0], Tokens: []uint32{1, 2, 3, 4}},
			{Key: keys[1], Flags: DescribeHash | DescribeParent, Hash: 0x2222222222222222, Parent: 0x1111111111111111, Tokens: []uint32{5, 6, 7, 8}},
		}},
		&ResolveHashes{Dest: d, Hashes: []uint64{0x1111111111111111, 0x2222222222222222, 0x3333333333333333}},
		&HashesResolved{Source: s, Dest: d, Items: []Resolved{
			{Namespace: "chat", Key: keys[0], Generation: 7, Size: 65536, Parts: 2, Part: 1, Pools: []byte{3, 1}, Description: []byte{0xd1, 0xd2, 0xd3}},
			{Status: StatusAmbiguous}, {Status: StatusMiss},
		}},
		&PeerHello{
			PeerInfo: PeerInfo{Node: "node-b", Endpoint: "b.example:7070", Host: host, UCX: []byte{1, 2, 3}},
			Routes:   Routes(0).With(RouteShm).With(RouteUCX).With(RouteStream), Link: 1,
		},
		&PeerWelcome{
			PeerInfo: PeerInfo{Node: "node-a", Endpoint: "a.example:7070", Host: host},
			Route:    RouteShm, Token: 0x0123456789abcdef, Local: "/run/kvcr.sock",
		},
		&PeerStream{Token: 0x0123456789abcdef, Index: 1},
		&PeerQuery{Namespace: "chat", Keys: keys},
		&Invalidate{Source: s, Namespace: "chat", Items: []Wanted{{keys[0], 7}, {keys[1], 0}}},
		&Start{
			Source: s, Dest: d, Mode: TransferMove, Timeout: 5000, Fingerprint: [32]byte(bytesFrom(0xa0, 32)), Namespace: "chat",
			Items: []Wanted{{keys[0], 7}, {keys[1], 0}, {[]byte("page-3"), 0}},
		},
		&Offer{Source: s, Dest: d, Items: []Offered{
			{Flags: OfferSum, Generation: 7, Size: 65536, Sum: 0xfeedface, Pools: []byte{3, 1}, Offsets: []uint64{0x40000, 0x80000}},
			{Flags: OfferFollows, Keep: StatusMarked, Generation: 9, Size: 4096, Position: 1, Pools: []byte{3}, Offsets: []uint64{0x50000}},
			{Status: StatusMiss},
		}},
		&Refused{Source: s, Status: StatusIncarnation, Text: "restarted"},
		&Accept{Source: s, Dest: d, Items: []Accepted{{0, []byte("rkey")}, {1, nil}}},
		&Block{Index: 0, Size: 65536},
		&Done{Source: s, Dest: d, Items: []ItemStatus{{0, StatusOK}, {1, StatusSource}}},
		&Probe{Source: s, Dest: d, Cancel: true, Indices: []uint32{1}}, &ProbeAck{Source: s, Dest: d, Terminal: true, Known: true},
		&Confirm{Source: s, Dest: d, Indices: []uint32{0, 1}},
		&Removed{Source: s, Dest: d, Items: []ItemStatus{{0, StatusOK}, {1, StatusRedeposited}}},
		&Ask{Source: s, Dest: d, Indices: []uint32{0, 1}},
		&Decline{Source: s, Dest: d, Items: []ItemStatus{{1, StatusCrossing}}},
		&Finish{Source: s, Dest: d}, &Finished{Source: s, Dest: d},
	} {
		want[m.Type()] = m
	}
	seen := map[Type]bool{}
	for _, g := range examples(t) {
		seen[g.typ] = true
		m, b := again(t, g)
		if m == nil {
			continue
		}
		if !bytes.Equal(b, g.frame) {
			t.Errorf("%s: % x became % x", g.name, g.frame, b)
		}
		if !reflect.DeepEqual(m, want[g.typ]) {
			t.Errorf("%s is %+v, want %+v", g.name, m, want[g.typ])
		}
	}
	for _, typ := range every() {
		if !seen[typ] {
			t.Errorf("%v has no example", typ)
		}
	}
}

// The numbers in PROTOCOL.md's tables are those of the package.
func TestTables(t *testing.T) {
	rows := func(heading string) map[string]string {
		_, s, ok := strings.Cut(protocol(t), "\n## "+heading+"\n")
		if !ok {
			t.Fatalf("no section %q", heading)
		}
		s, _, _ = strings.Cut(s, "\n#")
		all := map[string]string{}
		for _, m := range regexp.MustCompile(`(?m)^\| ([0-9a-f]+) \| (\w+) \| ([^|]*) \|$`).FindAllStringSubmatch(s, -1) {
			all[m[1]] = m[2] + " " + m[3]
		}
		return all
	}
	types := rows("Types")
	for _, typ := range every() {
		by := map[[2]bool]string{{true, false}: "client", {false, true}: "server", {true, true}: "both"}[[2]bool{typ.FromClient(), typ.FromServer()}]
		if got := types[fmt.Sprintf("%02x", uint8(typ))]; got != typ.String()+" "+by {
			t.Errorf("type %#x is %v by %s here, %q there", uint8(typ), typ, by, got)
		}
	}
	if len(types) != len(every()) {
		t.Errorf("%d types there, %d here", len(types), len(every()))
	}
	statuses, codes := rows("Statuses"), rows("Codes")
	for s := range statusEnd {
		if got, _, _ := strings.Cut(statuses[strconv.Itoa(int(s))], " "); got != s.String() {
			t.Errorf("status %d is %v here, %q there", s, s, got)
		}
	}
	for c := Code(1); c < codeEnd; c++ {
		if got, _, _ := strings.Cut(codes[strconv.Itoa(int(c))], " "); got != c.String() {
			t.Errorf("code %d is %v here, %q there", c, c, got)
		}
	}
	if len(statuses) != int(statusEnd) || len(codes) != int(codeEnd)-1 {
		t.Errorf("%d statuses and %d codes there", len(statuses), len(codes))
	}
}

// bytesFrom is n bytes that count up from first.
func bytesFrom(first byte, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = first + byte(i)
	}
	return b
}
