package wire

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// every returns the known types in order.
func every() (types []Type) {
	for i := range 256 {
		if Type(i).Known() {
			types = append(types, Type(i))
		}
	}
	return types
}

// setMore gives a message the flag of its header, as a receiver does.
func setMore(m Message, more bool) {
	switch m := m.(type) {
	case *Set:
		m.More = more
	case *Value:
		m.More = more
	case *Data:
		m.More = more
	}
}

func bytesOf(n int) []byte { return bytes.Repeat([]byte{'k'}, n) }

func TestNew(t *testing.T) {
	if n := len(every()); n != 61 {
		t.Errorf("%d types", n)
	}
	for _, typ := range every() {
		if m := New(typ); m == nil || m.Type() != typ {
			t.Errorf("New(%v) is %T", typ, m)
		}
	}
}

// Messages at their limits pass. A full list of keys of 28 bytes still fits.
func TestLimits(t *testing.T) {
	keys := make([][]byte, MaxList)
	for i := range keys {
		keys[i] = bytesOf(28)
	}
	for _, m := range []Message{
		&Get{Key: bytesOf(1)},
		&Get{Key: bytesOf(MaxKey)},
		&Ping{},
		&Ping{Bytes: bytesOf(MaxPing)},
		&Set{Key: bytesOf(MaxKey), Total: MaxChunk, Value: bytesOf(MaxChunk), Verb: VerbSetIfAbsent},
		&Set{Key: bytesOf(1)},
		&Value{Total: MaxChunk, Value: bytesOf(MaxChunk)},
		&Value{Total: 1<<64 - 1, More: true},
		&Data{Bytes: bytesOf(MaxChunk), Offset: 1<<64 - 1 - MaxChunk},
		&Delete{},
		&Fetch{Keys: keys},
		&Claims{Claims: make([]Claim, MaxList)},
		&Results{Results: make([]Result, MaxList)},
		&Statuses{Statuses: make([]Status, MaxList)},
		&Release{Claims: make([]uint64, MaxList)},
		&ShmPools{Pools: make([]Pool, MaxList)},
		&Hello{MinVersion: 1, MaxVersion: 1, Namespace: strings.Repeat("n", MaxName), Client: strings.Repeat("ü", MaxName/2)},
		&Hello{MinVersion: 1, MaxVersion: 1, Layout: strings.Repeat("l", MaxLayout)},
		&Challenge{Version: 255, AuthRequired: true},
		&ErrorReply{Code: 65535, Text: strings.Repeat("e", MaxText)},
		&Hint{Format: FormatMsgpack, Body: bytesOf(MaxPayload - 1)},
		&Hint{RequestID: strings.Repeat("r", MaxText), Body: bytesOf(MaxPayload - 3 - MaxText)},
		&Query{Keys: keys[1:], RequestID: "r"},
		&HintResults{Body: bytesOf(MaxPayload)},
		&DiscardHint{RequestID: strings.Repeat("r", MaxText)},
		&Events{Events: []Event{{Kind: EventCleared}, {Kind: EventStored, Key: bytesOf(MaxKey), Parent: bytesOf(MaxKey)}}},
		&Outcomes{Gap: true},
		&Outcomes{Items: []OutcomeItem{longestOutcome()}},
		&Outcomes{Items: make([]OutcomeItem, MaxPayload/outcomeSize)},
		&Describe{BlockSize: 1<<32 - 1, LoRA: strings.Repeat("l", MaxName), Blocks: []Description{{Key: bytesOf(MaxKey), Flags: 255, Tokens: make([]uint32, MaxList)}}},
	} {
		b := m.Append(nil, 1)
		h, payload, rest, err := Next(b)
		if err != nil || len(rest) != 0 || h.Type != m.Type() {
			t.Fatalf("%v: %v, %d left", m.Type(), err, len(rest))
		}
		got := New(h.Type)
		if err := got.Parse(payload); err != nil {
			t.Errorf("%v of %d bytes: %v", m.Type(), len(payload), err)
		}
		setMore(got, h.More())
		if !bytes.Equal(got.Append(nil, 1), b) {
			t.Errorf("%v of %d bytes changes on the way", m.Type(), len(payload))
		}
	}
}

// Append panics rather than write what no Parse would take.
func TestRefusals(t *testing.T) {
	for _, tc := range []struct {
		m       Message
		field   string
		problem string
	}{
		{&Get{}, "key", "too short"},
		{&Get{Key: bytesOf(MaxKey + 1)}, "key", "too long"},
		{&Get{Key: bytesOf(1 << 16)}, "key", "too long"},
		{&Set{Key: bytesOf(1), Verb: 3}, "verb", "out of range"},
		{&Set{Key: bytesOf(1), Total: 1, Value: bytesOf(2)}, "value", "longer than total"},
		{&Set{Key: bytesOf(1), Total: 1 << 30, Value: bytesOf(MaxChunk + 1)}, "value", "too long"},
		{&Value{Total: 1, Value: bytesOf(2)}, "value", "longer than total"},
		{&Value{Total: 1 << 30, Value: bytesOf(MaxChunk + 1)}, "value", "too long"},
		{&Data{}, "bytes", "too short"},
		{&Data{Bytes: bytesOf(MaxChunk + 1)}, "bytes", "too long"},
		{&Data{Offset: 1<<64 - 1, Bytes: bytesOf(1)}, "offset", "out of range"},
		{&Ping{Bytes: bytesOf(MaxPing + 1)}, "bytes", "too long"},
		{&Exists{Mode: 2}, "mode", "out of range"},
		{&Query{Keys: [][]byte{bytesOf(1), nil}}, "key", "too short"},
		{&Statuses{Statuses: make([]Status, MaxList+1)}, "statuses", "too many"},
		{&Release{Claims: make([]uint64, MaxList+1)}, "claims", "too many"},
		{&Reserve{Key: bytesOf(1), Verb: 3}, "verb", "out of range"},
		{&Hint{Format: 2}, "format", "out of range"},
		{&Hint{Format: 2, RequestID: "r"}, "format", "out of range"},
		{&Hint{RequestID: strings.Repeat("r", MaxText+1)}, "requestID", "too long"},
		{&Fetch{RequestID: "\xff"}, "requestID", "not UTF-8"},
		{&DiscardHint{}, "requestID", "too short"},
		{&DiscardHint{RequestID: "\xff"}, "requestID", "not UTF-8"},
		{&Hello{MinVersion: 0, MaxVersion: 1}, "minVersion", "out of range"},
		{&Hello{MinVersion: 2, MaxVersion: 1}, "maxVersion", "out of range"},
		{&Hello{MinVersion: 1, MaxVersion: 1, Namespace: "a\xc3"}, "namespace", "not UTF-8"},
		{&Hello{MinVersion: 1, MaxVersion: 1, Client: strings.Repeat("c", MaxName+1)}, "client", "too long"},
		{&Hello{MinVersion: 1, MaxVersion: 1, Layout: strings.Repeat("l", MaxLayout+1)}, "layout", "too long"},
		{&Hello{MinVersion: 1, MaxVersion: 1, Layout: "a\xc3"}, "layout", "not UTF-8"},
		{&Challenge{}, "version", "out of range"},
		{&Events{Events: []Event{{Kind: 0, Key: bytesOf(1)}}}, "kind", "out of range"},
		{&Events{Events: []Event{{Kind: 4, Key: bytesOf(1)}}}, "kind", "out of range"},
		{&Events{Events: []Event{{Kind: EventCleared, Key: bytesOf(1)}}}, "key", "too long"},
		{&Events{Events: []Event{{Kind: EventRemoved}}}, "key", "too short"},
		{&Events{Events: []Event{{Kind: EventStored, Key: bytesOf(1), Parent: bytesOf(MaxKey + 1)}}}, "parent", "too long"},
		{&HintResults{Body: bytesOf(MaxPayload + 1)}, "body", "too long"},
		{&Hint{Body: bytesOf(MaxPayload)}, "", "too long"},
		{&Delete{Keys: slicesOf(300, bytesOf(MaxKey))}, "", "too long"},
		{&Outcomes{Items: []OutcomeItem{longestOutcome(), longestOutcome()}}, "", "too long"},
		{&Describe{Blocks: []Description{{Key: bytesOf(1), Tokens: make([]uint32, MaxList+1)}}}, "tokens", "too many"},
	} {
		name := fmt.Sprintf("%v %s %s", tc.m.Type(), tc.field, tc.problem)
		func() {
			defer func() {
				err, ok := recover().(*PayloadError)
				if !ok || err.Type != tc.m.Type() || err.Field != tc.field || err.Problem != tc.problem {
					t.Errorf("%s: Append: %v", name, err)
				}
			}()
			tc.m.Append(nil, 1)
		}()
	}
}

func slicesOf(n int, b []byte) [][]byte {
	all := make([][]byte, n)
	for i := range all {
		all[i] = b
	}
	return all
}

func TestParseErrors(t *testing.T) {
	for _, tc := range []struct {
		m       Message
		payload string
		want    string
	}{
		{&Get{}, "", "GET: key: truncated: 0, limit 2"},
		{&Get{}, "\x00\x00", "GET: key: too short: 0, limit 1"},
		{&Get{}, "\x01\x04", "GET: key: too long: 1025, limit 1024"},
		{&Get{}, "\x03\x00ab", "GET: key: truncated: 2, limit 3"},
		{&Get{}, "\x01\x00ab", "GET: trailing bytes: 1, limit 0"},
		{&Stats{}, "x", "STATS: trailing bytes: 1, limit 0"},
		{&Delete{}, "\xff\xff\xff\xff", "DELETE: keys: too many: 4294967295, limit 8192"},
		{&Delete{}, "\x02\x00\x00\x00\x01\x00a", "DELETE: keys: truncated: 3, limit 6"},
		{&Delete{}, "\x01\x00\x00\x00\x05\x00a", "DELETE: key: truncated: 1, limit 5"},
		{&Claims{}, "\x00\x20\x00\x00", "CLAIMS: claims: truncated: 0, limit 245760"},
		{&Set{}, "\x03", "SET: verb: out of range: 3, limit 2"},
		{&Set{}, "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00k\x01\x00\x00\x00\x00\x00\x00\x00ab", "SET: value: longer than total: 2, limit 1"},
		{&Value{}, "\x00\x00\x00\x00\x00\x00\x00\x00a", "VALUE: value: longer than total: 1, limit 0"},
		{&Data{}, "\x00\x00\x00\x00\x00\x00\x00\x00", "DATA: bytes: too short: 0, limit 1"},
		{&Data{}, "\xff\xff\xff\xff\xff\xff\xff\xffa", "DATA: offset: out of range: 18446744073709551615, limit 18446744073709551614"},
		{&Commit{}, "\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00", "COMMIT: hasSum: out of range: 2, limit 1"},
		{&DiscardHint{}, "\x02\x00\xc3\x28", "DISCARD_HINT: requestID: not UTF-8: 2, limit 1024"},
		{&Goodbye{}, "\x01\x00\x01\x04", "GOODBYE: text: too long: 1025, limit 1024"},
	} {
		err := tc.m.Parse([]byte(tc.payload))
		if err == nil || err.Error() != "wire: "+tc.want {
			t.Errorf("%v %q: %v, want %q", tc.m.Type(), tc.payload, err, tc.want)
		}
		if !errors.Is(err, ErrPayload) || CodeOf(err) != CodeBadPayload {
			t.Errorf("%v is no ErrPayload", err)
		}
	}
	if CodeOf(errors.New("other")) != CodeInternal || CodeOf(CheckSecret(nil)) != CodeAuth {
		t.Error("CodeOf mixes up errors that are not of a frame")
	}
}

// A message that is parsed into again keeps nothing of the one before.
func TestParseAgain(t *testing.T) {
	for _, s := range golden(t) {
		_, payload, _, err := Next(s.frame)
		if err != nil {
			t.Fatal(err)
		}
		fresh, used := New(s.typ), dirty(s.typ)
		if err := fresh.Parse(payload); err != nil {
			t.Fatal(err)
		}
		if err := used.Parse(payload); err != nil {
			t.Fatal(err)
		}
		setMore(fresh, false)
		setMore(used, false)
		if a, b := fmt.Sprintf("%+v", fresh), fmt.Sprintf("%+v", used); a != b {
			t.Errorf("%v: %s over an old message, %s into a new one", s.typ, b, a)
		}
	}
}

// dirty returns a message of type t with something in every field.
func dirty(t Type) Message {
	m := New(t)
	var fill func(v reflect.Value)
	fill = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				fill(v.Field(i))
			}
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 5, 5))
			for i := range 5 {
				fill(v.Index(i))
			}
		case reflect.Array:
			for i := range v.Len() {
				fill(v.Index(i))
			}
		case reflect.String:
			v.SetString("old")
		case reflect.Bool:
			v.SetBool(true)
		default:
			v.SetUint(1)
		}
	}
	fill(reflect.ValueOf(m).Elem())
	return m
}

func TestTextIsMadeToFit(t *testing.T) {
	long := strings.Repeat("ab", MaxText/2-1) + "aü" // ü lies across the limit
	for _, tc := range []struct{ text, want string }{
		{"", ""},
		{"plain", "plain"},
		{"a\xffb", "a?b"},
		{long, long[:MaxText-1]},
		{strings.Repeat("x", 1<<17), strings.Repeat("x", MaxText)},
	} {
		for _, m := range []Message{&ErrorReply{Code: CodeInternal, Text: tc.text}, &Goodbye{Reason: CodeInternal, Text: tc.text}, &Refused{Status: StatusBusy, Text: tc.text}} {
			_, payload, _, err := Next(m.Append(nil, 0))
			if err != nil {
				t.Fatal(err)
			}
			got := New(m.Type())
			if err := got.Parse(payload); err != nil {
				t.Fatal(err)
			}
			text := reflect.ValueOf(got).Elem().FieldByName("Text").String()
			if text != tc.want {
				t.Errorf("%v: text of %d bytes is %d long, want %d", m.Type(), len(tc.text), len(text), len(tc.want))
			}
		}
	}
}

// longestOutcome is the outcome that takes the most of a frame.
func longestOutcome() OutcomeItem {
	long := strings.Repeat("o", MaxText)
	return OutcomeItem{Type: long[:MaxName], MessageID: long, ActionID: long, RequestID: long, Reason: long, Hashes: make([]uint64, MaxOutcomeHashes)}
}

// Whatever is in the texts of an outcome, they are made to fit, and a server that
// counts bytes before it appends counts enough.
func TestOutcomesAreMadeToFit(t *testing.T) {
	long := strings.Repeat("ü", 1<<16)
	for _, o := range []OutcomeItem{
		{}, longestOutcome(), {MessageID: "a\xffb", Reason: "c\xffd"},
		{MessageID: long, ActionID: long, Type: long, RequestID: long, Reason: long, Hashes: []uint64{1, 2}},
	} {
		most := o.EncodedSize()
		_, payload, _, err := Next((&Outcomes{Items: []OutcomeItem{o}}).Append(nil, 1))
		if err != nil {
			t.Fatal(err)
		}
		if n := len(payload) - 13; n > most || n < most-5 { // a cut may be a byte short
			t.Errorf("%d bytes, EncodedSize says %d", n, most)
		}
		var got Outcomes
		if err := got.Parse(payload); err != nil {
			t.Fatal(err)
		}
		r := &got.Items[0]
		for _, f := range [][2]string{{o.MessageID, r.MessageID}, {o.ActionID, r.ActionID}, {o.RequestID, r.RequestID}, {o.Reason, r.Reason}} {
			if f[1] != clip(f[0], MaxText) {
				t.Errorf("%.10q became %.10q", f[0], f[1])
			}
		}
		if r.Type != clip(o.Type, MaxName) {
			t.Errorf("type of %d bytes is %d long", len(o.Type), len(r.Type))
		}
	}
}

// What was not resolved says so, and nothing else, whatever is left in the message.
func TestUnresolvedIsBare(t *testing.T) {
	left := resolvedLong(1)
	left.Status = StatusMiss
	b := (&HashesResolved{Source: 1, Dest: 2, Items: []Resolved{left}}).Append(nil, 1)
	if n := len(b) - HeaderSize; n != bothSize+4+resolvedSize {
		t.Errorf("%d bytes", n)
	}
}

// The headers for writev, with the bytes behind them, are the whole message.
func TestSplitHeaders(t *testing.T) {
	value := bytesOf(1000)
	for _, n := range []int{1, 999, 1000} {
		more := n < 1000
		got := append(AppendValueHeader([]byte("x"), 7, 1000, n, more), value[:n]...)
		if want := (&Value{Total: 1000, Value: value[:n], More: more}).Append([]byte("x"), 7); !bytes.Equal(got, want) {
			t.Errorf("VALUE of %d: % x, want % x", n, got[:40], want[:40])
		}
		got = append(AppendDataHeader([]byte("x"), 7, 12, n, more), value[:n]...)
		if want := (&Data{Offset: 12, Bytes: value[:n], More: more}).Append([]byte("x"), 7); !bytes.Equal(got, want) {
			t.Errorf("DATA of %d: % x, want % x", n, got[:40], want[:40])
		}
		got = append(AppendSetHeader([]byte("x"), 7, VerbDeposit, 5, []byte("key"), 1000, n, more), value[:n]...)
		if want := (&Set{Verb: VerbDeposit, TTLMillis: 5, Key: []byte("key"), Total: 1000, Value: value[:n], More: more}).Append([]byte("x"), 7); !bytes.Equal(got, want) {
			t.Errorf("SET of %d: % x, want % x", n, got[:40], want[:40])
		}
	}
	for name, f := range map[string]func(){
		"VALUE beyond the total": func() { AppendValueHeader(nil, 1, 5, 6, false) },
		"VALUE beyond a chunk":   func() { AppendValueHeader(nil, 1, 1<<30, MaxChunk+1, true) },
		"VALUE of less than 0":   func() { AppendValueHeader(nil, 1, 5, -1, true) },
		"DATA of nothing":        func() { AppendDataHeader(nil, 1, 5, 0, true) },
		"DATA beyond a chunk":    func() { AppendDataHeader(nil, 1, 5, MaxChunk+1, true) },
		"DATA beyond the end":    func() { AppendDataHeader(nil, 1, 1<<64-1, 1, true) },
		"SET beyond the total":   func() { AppendSetHeader(nil, 1, 0, 0, []byte("k"), 5, 6, false) },
		"SET without a key":      func() { AppendSetHeader(nil, 1, 0, 0, nil, 5, 5, false) },
	} {
		func() {
			defer func() {
				if _, ok := recover().(*PayloadError); !ok {
					t.Errorf("%s was written", name)
				}
			}()
			f()
		}()
	}
}

func TestEncodedSize(t *testing.T) {
	var m Events
	size := len(m.Append(nil, 1))
	if size != HeaderSize+21 {
		t.Errorf("no events take %d bytes", size-HeaderSize)
	}
	for _, e := range []Event{{Kind: EventCleared}, {Kind: EventStored, Key: bytesOf(3), Parent: bytesOf(5)}} {
		m.Events = append(m.Events, e)
		next := len(m.Append(nil, 1))
		if got := e.EncodedSize(); got != next-size {
			t.Errorf("%+v takes %d bytes, EncodedSize says %d", e, next-size, got)
		}
		size = next
	}
}

func TestNoAllocations(t *testing.T) {
	if raceBuild {
		t.Skip("race builds allocate on their own account")
	}
	dst := make([]byte, 0, 4096)
	key, value := bytesOf(32), bytesOf(100)
	keys := slicesOf(64, key)
	payload := func(m Message) []byte {
		_, p, _, err := Next(m.Append(nil, 1))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	get, set := payload(&Get{Key: key}), payload(&Set{Key: key, Total: 100, Value: value})
	val, status := payload(&Value{Total: 100, Value: value}), payload(&StatusReply{Status: StatusMiss})
	fetch := payload(&Fetch{Keys: keys})
	var again Fetch
	whole := (&Get{Key: key}).Append(nil, 1)
	var err error
	for name, f := range map[string]func(){
		"append GET":    func() { m := Get{Key: key}; dst = m.Append(dst[:0], 1) },
		"append SET":    func() { m := Set{Key: key, Total: 100, Value: value}; dst = m.Append(dst[:0], 1) },
		"append VALUE":  func() { m := Value{Total: 100, Value: value}; dst = m.Append(dst[:0], 1) },
		"append STATUS": func() { m := StatusReply{Status: StatusMiss}; dst = m.Append(dst[:0], 1) },
		"append DATA":   func() { m := Data{Bytes: value}; dst = m.Append(dst[:0], 1) },
		"append FETCH":  func() { m := Fetch{Keys: keys}; dst = m.Append(dst[:0], 1) },
		"header VALUE":  func() { dst = AppendValueHeader(dst[:0], 1, 100, 50, true) },
		"header DATA":   func() { dst = AppendDataHeader(dst[:0], 1, 50, 50, false) },
		"header SET":    func() { dst = AppendSetHeader(dst[:0], 1, VerbSet, 0, key, 100, 50, true) },
		"parse GET":     func() { var m Get; err = m.Parse(get) },
		"parse SET":     func() { var m Set; err = m.Parse(set) },
		"parse VALUE":   func() { var m Value; err = m.Parse(val) },
		"parse STATUS":  func() { var m StatusReply; err = m.Parse(status) },
		"parse FETCH":   func() { err = again.Parse(fetch) },
		"next":          func() { _, _, _, err = Next(whole) },
		"short":         func() { Next(whole[:len(whole)-1]) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 || err != nil {
			t.Errorf("%s: %v allocations, %v", name, n, err)
		}
	}
}

// TestHeads: a SET or DATA read from what has arrived of it agrees with the whole
// payload, at every length, and asks for more only while the head is short.
func TestHeads(t *testing.T) {
	set := Set{Verb: VerbDeposit, TTLMillis: 7, Key: []byte("key"), Total: 9, Value: []byte("value"), More: true}
	frame := set.Append(nil, 5)
	h, payload, _, err := Next(frame)
	if err != nil {
		t.Fatal(err)
	}
	head := len(payload) - len(set.Value)
	for n := 0; n <= len(payload); n++ {
		got, used, err := ParseSetHead(payload[:n], h.Length)
		if n < head {
			if err != ErrShort {
				t.Errorf("SET, %d of %d bytes: %v, want ErrShort", n, head, err)
			}
			continue
		}
		if err != nil || used != head || got.Verb != set.Verb || got.TTLMillis != 7 || string(got.Key) != "key" || got.Total != 9 {
			t.Errorf("SET, %d bytes: %+v, %d, %v", n, got, used, err)
		}
	}
	// Every wrong head is refused, as Parse refuses the whole.
	for i := range head {
		for _, x := range []byte{0x01, 0x80, 0xff} {
			bad := append([]byte(nil), payload...)
			bad[i] ^= x
			var m Set
			whole := m.Parse(bad)
			if _, _, err := ParseSetHead(bad, h.Length); (err == nil) != (whole == nil) {
				t.Errorf("SET, byte %d ^ %#x: head %v, whole %v", i, x, err, whole)
			}
		}
	}
	for length := range uint32(head) {
		if _, _, err := ParseSetHead(payload[:length], length); err == nil || err == ErrShort {
			t.Errorf("SET with a payload of %d bytes: %v", length, err)
		}
	}
	data := Data{Offset: 12, Bytes: []byte("xyz")}
	h, payload, _, _ = Next(data.Append(nil, 5))
	for n := 0; n <= len(payload); n++ {
		off, used, err := ParseDataHead(payload[:n], h.Length)
		if n < 8 && err != ErrShort || n >= 8 && (err != nil || off != 12 || used != 8) {
			t.Errorf("DATA, %d bytes: %d, %d, %v", n, off, used, err)
		}
	}
	for length := range uint32(9) {
		if _, _, err := ParseDataHead(payload[:length], length); err == nil || err == ErrShort {
			t.Errorf("DATA with a payload of %d bytes: %v", length, err)
		}
	}
}
