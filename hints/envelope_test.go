package hints

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
	"pgregory.net/rapid"
)

// envelope makes the JSON of an envelope with these actions.
func envelope(actions ...string) string {
	return `{"protocol_version":"0.1","message_id":"m1","actions":[` + strings.Join(actions, ",") + `]}`
}

// action makes the JSON of an action.
func action(typ, payload string) string {
	return fmt.Sprintf(`{"action_id":"a1","action_type":%q,"action_version":"1.0","payload":%s}`, typ, payload)
}

const goodPayload = `{"source_control_endpoint":"tcp://10.0.0.1:17771","block_hashes":[11,12]}`

// brief is what results are compared by.
func brief(rs []Result, err error) string {
	if err != nil {
		if !errors.Is(err, ErrMalformed) {
			return err.Error()
		}
		return "malformed"
	}
	var b strings.Builder
	for _, r := range rs {
		fmt.Fprintf(&b, "%d %q %q %q %v %v; ", r.Index, r.MessageID, r.ActionID, r.Type, r.Status, r.Reason)
	}
	return b.String()
}

var envelopeSeeds = []string{
	envelope(), envelope(action(TypeFetch, goodPayload)), envelope(action(TypeMove, goodPayload), "17", "null", `{}`, action("x", "[]")),
	`{"actions":1}`, `{"actions":[],"actions":null}`, `{"actions":null,"actions":[{}]}`, `{"act\u0069ons":[{"\u0061ction_type":"kv.move","payload":{"block_h\u0061shes":[1]}}]}`,
	envelope(`{"action_type":"kv.move","payload":{"source_control_endpoint":"tcp://a:1","block_hashes":[1]},"payload":{"block_hashes":[2]}}`),
	envelope(`{"action_type":"kv.move","payload":{"source_control_endpoint":"tcp://a:1","block_hashes":[1]},"payload":null}`),
	envelope(`{"action_type":"kv.move","payload":null,"payload":{"source_control_endpoint":"tcp://a:1","block_hashes":[1],"block_hashes":[-1]}}`),
	envelope(`{"action_type":"kv.move","action_type":7,"payload":{}}`), `{"message_id":"\ud800","actions":[7]}`,
	envelope(action(TypePrefetch, `{"source_control_endpoint":"tcp:\/\/h:1","block_hashes":[ 1 , 2.0 ],"no_retain":null}`)),
	envelope(action(TypePrefetch, `{"source_control_endpoint":"tcp://h:1","block_hashes":[1,18446744073709551616]}`)),
}

// Text and the tree that encoding/json makes of it have the same results.
func checkEnvelope(t testing.TB, in []byte) {
	f := newFixture(t, false)
	got := brief(f.d.AppendJSON(nil, "r", in))
	if !json.Valid(in) || !utf8.Valid(in) {
		if got != "malformed" {
			t.Fatalf("%q: %s, but it is no JSON", in, got)
		}
		return
	}
	if bytes.Contains(bytes.ToLower(in), []byte(`\ud`)) {
		return // half surrogate pairs make equal names of different ones, in no defined order
	}
	dec := json.NewDecoder(bytes.NewReader(in))
	dec.UseNumber()
	var tree any
	if dec.Decode(&tree) != nil {
		return // deeper than encoding/json goes
	}
	g := newFixture(t, false)
	if want := brief(g.d.Submit("r", tree)); got != want {
		t.Fatalf("%q:\ntext: %s\ntree: %s", in, got, want)
	}
	if a, b := fmt.Sprint(f.seen), fmt.Sprint(g.seen); a != b {
		t.Fatalf("%q:\ntext: %s\ntree: %s", in, a, b)
	}
}

func TestEnvelopeForms(t *testing.T) {
	for _, s := range envelopeSeeds {
		checkEnvelope(t, []byte(s))
	}
}

// FuzzEnvelope: no text panics, and it means what its decoded tree means.
func FuzzEnvelope(f *testing.F) {
	for _, s := range envelopeSeeds {
		f.Add([]byte(s))
	}
	if _, err := os.Stat(vectorFile); err == nil { // loadVectors would skip the rest
		for _, c := range loadVectors(f) {
			if c.Input != nil {
				f.Add([]byte(*c.Input))
			}
		}
	}
	f.Fuzz(func(t *testing.T, in []byte) { checkEnvelope(t, in) })
}

// msgpackTree decodes with the library; false: it cannot, or there is text that is not
// UTF-8.
func msgpackTree(in []byte) (tree any, ok bool) {
	defer func() {
		if recover() != nil { // a list as the key of a map
			tree, ok = nil, false
		}
	}()
	// The library believes lengths: 14 bytes make it ask for 64 GiB. So it sees only
	// what our scanner has passed.
	sc := msgpackScanner{data: in, depth: 64}
	if _, ok := sc.value(0); !ok || sc.pos != len(in) {
		return nil, false
	}
	r := bytes.NewReader(in)
	dec := msgpack.NewDecoder(r)
	dec.SetMapDecoder(func(d *msgpack.Decoder) (any, error) { return d.DecodeUntypedMap() })
	tree, err := dec.DecodeInterface()
	if err != nil || r.Len() > 0 {
		return nil, false
	}
	m := treeMeasure{sizeLimit: 1 << 30, depthLimit: 64}
	return tree, m.value(tree, 0)
}

// Msgpack and the tree that the library makes of it have the same results.
func checkMsgpack(t testing.TB, in []byte) {
	if len(in) > 4096 {
		return
	}
	f := newFixture(t, false)
	got := brief(f.d.AppendMsgpack(nil, "r", in))
	tree, ok := msgpackTree(in)
	if !ok {
		return
	}
	g := newFixture(t, false)
	want := brief(g.d.appendTree("r", tree))
	if got != want {
		t.Fatalf("%x:\nmsgpack: %s\ntree:    %s", in, got, want)
	}
	if a, b := fmt.Sprint(f.seen), fmt.Sprint(g.seen); a != b {
		t.Fatalf("%x:\nmsgpack: %s\ntree:    %s", in, a, b)
	}
}

func msgpackSeeds(t testing.TB) (seeds [][]byte) {
	for _, s := range envelopeSeeds {
		tree, ok := decodeTree([]byte(s))
		if !ok {
			continue
		}
		b, err := msgpack.Marshal(exactNumbers(tree))
		if err != nil {
			t.Fatal(err)
		}
		seeds = append(seeds, b)
	}
	transfer := map[string]any{
		"source_control_endpoint": "tcp://h:1",
		"block_hashes":            []any{uint8(200), uint16(60000), uint32(1 << 31), uint64(1 << 63), int8(1), int16(300), int32(70000), int64(1 << 40), 5},
		"no_retain":               true,
		"bin":                     []byte{1}, "f32": float32(1), "long": strings.Repeat("x", 40), "longer": strings.Repeat("y", 300), "longest": strings.Repeat("z", 70000),
	}
	many := make([]any, 20)
	for i := range many {
		many[i] = map[string]any{"action_type": TypeMove, "payload": transfer}
		if i > 0 {
			delete(transfer, "longest")
		}
	}
	b, err := msgpack.Marshal(map[string]any{"actions": many})
	if err != nil {
		t.Fatal(err)
	}
	seeds = append(seeds, b)
	for _, bad := range [][]any{{int8(-1)}, {int16(-300)}, {int32(-70000)}, {int64(-1 << 40)}, {-1}, {float32(1)}, {1.0}, {true}, {nil}, {"1"}, {[]byte{1}}, {[]any{1}}} {
		b, _ := msgpack.Marshal(map[string]any{"actions": []any{map[string]any{"action_type": TypeMove, "payload": map[string]any{"source_control_endpoint": "tcp://h:1", "block_hashes": bad}}}})
		seeds = append(seeds, b)
	}
	return append(seeds, []byte{0x81, 0xa7, 'a', 'c', 't', 'i', 'o', 'n', 's', 0xdd, 0xff, 0xff, 0xff, 0xff}, []byte{0xc1}, []byte{0x80, 0x80}, []byte{0xdf}, nil)
}

func TestMsgpackForms(t *testing.T) {
	for _, in := range msgpackSeeds(t) {
		checkMsgpack(t, in)
		for n := range min(len(in), 300) { // cut short it is malformed
			f := newFixture(t, false)
			if _, err := f.d.AppendMsgpack(nil, "r", in[:n]); !errors.Is(err, ErrMalformed) {
				t.Fatalf("%x: %v", in[:n], err)
			}
		}
	}
	for _, in := range [][]byte{
		append([]byte("\x82\xa7actions\x90\xa1x"), 0xa2, 0xc3, 0x28), append([]byte("\x82\xa7actions\x90"), 0xa1, 0xff, 0xc0), // text that is not UTF-8
		append([]byte("\x82\xa7actions\x90\xa1x"), 0xdd, 0xff, 0xff, 0xff, 0xff), append([]byte("\x82\xa7actions\x90\xa1x"), 0xdf, 0xff, 0xff, 0xff, 0xff), // announced, not there
		append([]byte("\x82\xa7actions\x90\xa1x"), 0xc6, 0xff, 0xff, 0xff, 0xff), append([]byte("\x82\xa7actions\x90\xa1x"), 0xdb, 0xff, 0xff, 0xff, 0xff),
		append([]byte("\x82\xa7actions\x90\xa1x"), 0xc1), []byte("\x81\xa7actions\x90\x00"), []byte("\x81\xa7actions\xc0"), []byte("\x81\xa7Actions\x90"),
	} {
		if _, err := newFixture(t, false).d.AppendMsgpack(nil, "r", in); !errors.Is(err, ErrMalformed) {
			t.Errorf("%x: %v", in, err)
		}
	}
	// Integers of all widths arrive.
	f := newFixture(t, false)
	ints := []any{uint8(200), uint16(60000), uint32(1 << 31), uint64(1 << 63), int8(1), int16(300), int32(70000), int64(1 << 40)}
	b, _ := msgpack.Marshal(map[string]any{"actions": []any{map[string]any{"action_type": TypeMove, "payload": map[string]any{"source_control_endpoint": "tcp://h:1", "block_hashes": ints}}}})
	if rs, err := f.d.Submit("", b); err != nil || rs[0].Status != Accepted {
		t.Fatal(rs, err)
	}
	if got, want := fmt.Sprint(f.seen[0].hashes), fmt.Sprint(ints); got != want {
		t.Errorf("hashes %s, want %s", got, want)
	}
}

// FuzzMsgpack: no bytes panic, and what the library can decode means what it decodes to.
func FuzzMsgpack(f *testing.F) {
	for _, s := range msgpackSeeds(f) {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in []byte) { checkMsgpack(t, in) })
}

// One envelope, put in every form, has one meaning.
func TestOneMeaning(t *testing.T) {
	text := rapid.SampledFrom([]string{"", "x", "é", "tcp://10.0.0.1:1", "kv.fetch", "0.1", "1.0", "\U0001F600\n"})
	scalar := rapid.Custom(func(t *rapid.T) any {
		switch rapid.IntRange(0, 4).Draw(t, "kind") {
		case 0:
			return nil
		case 1:
			return rapid.Bool().Draw(t, "bool")
		case 2:
			return json.Number(rapid.SampledFrom([]string{"0", "-1", "1.5", "18446744073709551615", "18446744073709551616", "7"}).Draw(t, "number"))
		case 3:
			return []any{}
		}
		return text.Draw(t, "text")
	})
	hashes := rapid.Custom(func(t *rapid.T) any {
		list := []any{}
		for _, h := range rapid.SliceOfN(rapid.Uint64(), 0, 40).Draw(t, "hashes") {
			list = append(list, json.Number(fmt.Sprint(h)))
		}
		if rapid.IntRange(0, 9).Draw(t, "spoil") == 0 {
			list = append(list, scalar.Draw(t, "element"))
		}
		return list
	})
	rapid.Check(t, func(rt *rapid.T) {
		field := func(m map[string]any, name string, good any) {
			switch n := rapid.IntRange(0, 11).Draw(rt, name); {
			case n == 0:
			case n == 1:
				m[name] = scalar.Draw(rt, name)
			default:
				m[name] = good
			}
		}
		var actions []any
		for range rapid.IntRange(0, 4).Draw(rt, "actions") {
			p := map[string]any{}
			field(p, "source_control_endpoint", rapid.SampledFrom([]string{"tcp://h:1", "tcp://[::1]:80", "tcp://i:2"}).Draw(rt, "source"))
			field(p, "block_hashes", hashes.Draw(rt, "hashes"))
			field(p, "no_retain", rapid.Bool().Draw(rt, "no_retain"))
			field(p, "allow_framework", rapid.Bool().Draw(rt, "allow_framework"))
			a := map[string]any{}
			field(a, "action_id", "a1")
			field(a, "action_type", rapid.SampledFrom([]string{TypeFetch, TypePrefetch, TypeMove, "kv.other"}).Draw(rt, "type"))
			field(a, "action_version", "1.0")
			field(a, "payload", p)
			actions = append(actions, a)
		}
		e := map[string]any{"actions": actions}
		field(e, "message_id", "m1")
		field(e, "protocol_version", "0.1")
		data, _ := json.Marshal(e)
		want, seen := "", ""
		for _, form := range []string{"json", "any", "tree", "msgpack", "envelope"} {
			f := newFixture(t, false)
			rs, err, can := forms[form](f, "r", data)
			if !can {
				continue
			}
			got := brief(rs, err)
			if form == "json" {
				want, seen = got, fmt.Sprint(f.seen)
			}
			if got != want || fmt.Sprint(f.seen) != seen {
				rt.Fatalf("%s\nas json: %s %s\nas %s: %s %v", data, want, seen, form, got, f.seen)
			}
		}
	})
}
