package hints

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// jsonTree is what the scanner understands of a document, as encoding/json would put
// it; false: it is none.
func jsonTree(data []byte, depth int) (any, bool) {
	doc := &document{data: data, form: formJSON}
	s := jsonScanner{data: data, depth: depth}
	s.space()
	it, ok := s.value(0)
	s.space()
	if !ok || s.pos != len(data) {
		return nil, false
	}
	return toTree(Value{item: it, doc: doc}), true
}

func toTree(v Value) any {
	switch v.Kind() {
	case Text:
		s, _ := v.Text()
		return s
	case Bool:
		b, _ := v.Bool()
		return b
	case Number:
		return json.Number(v.doc.data[v.lo:v.hi])
	case List:
		out := []any{}
		v.Each(func(e Value) error { out = append(out, toTree(e)); return nil })
		return out
	case Object:
		out := map[string]any{}
		s := v.jsonScanner()
		s.object(0, func(name item) bool {
			it, ok := s.value(0)
			out[v.doc.string(name)] = toTree(Value{item: it, doc: v.doc})
			return ok
		})
		for k := range out {
			if got := toTree(v.Field(k)); !reflect.DeepEqual(got, out[k]) {
				panic(fmt.Sprintf("Field(%q) is %v, not %v", k, got, out[k]))
			}
		}
		return out
	}
	return nil
}

// nesting is how deep lists and objects of valid JSON nest.
func nesting(data []byte) int {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	now, most := 0, 0
	for {
		tok, err := dec.Token()
		if err != nil {
			return most
		}
		switch tok {
		case json.Delim('['), json.Delim('{'):
			now++
			most = max(most, now)
		case json.Delim(']'), json.Delim('}'):
			now--
		}
	}
}

// checkJSON compares the scanner with encoding/json: it accepts what that does, if it
// is UTF-8 and not too deep, and understands the same.
func checkJSON(t interface{ Fatalf(string, ...any) }, data []byte) {
	const depth = 8
	want := json.Valid(data) && utf8.Valid(data) && nesting(data) <= depth
	got, ok := jsonTree(data, depth)
	if ok != want {
		t.Fatalf("%q: accepted %t, want %t", data, ok, want)
	}
	if !ok {
		return
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var tree any
	if err := dec.Decode(&tree); err != nil {
		t.Fatalf("%q: %v", data, err)
	}
	if !reflect.DeepEqual(got, tree) {
		t.Fatalf("%q: understood as %v, want %v", data, got, tree)
	}
}

var jsonSeeds = []string{
	`{}`, `[]`, `null`, `true`, `false`, `0`, `-0`, `1.5e+3`, `"a"`, ` [1, 2 ,3] `, `{"a":1,"a":2}`, `{"a":{"b":[{}]}}`,
	`01`, `+1`, `.5`, `1.`, `1e`, `1e+`, `-`, `--1`, `tru`, `nulll`, `[1,]`, `[,1]`, `{"a":1,}`, `{a:1}`, `{"a"}`, `[1 2]`, `{"a":1 "b":2}`,
	`"\u0041\ud83d\ude00\ud83d\udd"`, `"\ud83d"`, `"\ude00\ud83dx"`, `"\ud83d\ud83d\ude00"`, `"\x"`, `"\u12"`, `"\`, `"`, "\"\x1f\"", "\"\x7f\"", "\"\xff\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"",
	"\"\xe2\x82\xac0123456789\"", `"01234567\"01234567\\"`, `{"\u0061":1}`, `[[[[[[[[]]]]]]]]`, `[[[[[[[[[]]]]]]]]]`,
	`[18446744073709551615,18446744073709551616,1234567,12345678,123456789]`, `[12345678901234567,1]`, "\ufeff{}", "{}\x00", `{} {}`, `1e400`, `[1,2,"x"]`, `[12.5,1]`,
}

func TestJSONScanner(t *testing.T) {
	for _, s := range jsonSeeds {
		checkJSON(t, []byte(s))
	}
	// Everything that text can end with or be spoiled by, at every place of a word.
	for _, c := range []string{`"`, `\"`, `\\`, `\`, "\x00", "\x1f", "\x7f", "\x80", "é", "\xc3", "\U0001F600"} {
		for before := range 20 {
			for _, after := range []string{"", "x", strings.Repeat("y", 9)} {
				checkJSON(t, []byte(`"`+strings.Repeat("a", before)+c+after+`"`))
				checkJSON(t, []byte(`["`+strings.Repeat("a", before)+c+after+`","z"]`))
			}
		}
	}
}

// Texts made of the pieces of JSON, which are valid more often than random bytes.
func TestJSONScannerRandom(t *testing.T) {
	piece := rapid.SampledFrom([]string{
		"{", "}", "[", "]", ",", ":", `"a"`, `"b\n"`, `"\u00e9"`, "1", "20", "-3", "4.5", "6e7", "12345678", "18446744073709551615",
		"true", "false", "null", " ", "\n", `"é"`, `"0123456789abcdef"`, "\xff", `"`, `\`,
	})
	var value func(depth int) *rapid.Generator[string]
	value = func(depth int) *rapid.Generator[string] {
		return rapid.Custom(func(t *rapid.T) string {
			switch n := rapid.IntRange(0, 5).Draw(t, "kind"); {
			case n == 0 && depth > 0:
				return "[" + strings.Join(rapid.SliceOfN(value(depth-1), 0, 4).Draw(t, "list"), ",") + "]"
			case n == 1 && depth > 0:
				var fields []string
				for _, v := range rapid.SliceOfN(value(depth-1), 0, 4).Draw(t, "fields") {
					fields = append(fields, strconv.Quote(rapid.StringMatching("[a-c]{1,2}").Draw(t, "name"))+": "+v)
				}
				return "{" + strings.Join(fields, " ,") + "}"
			case n == 2:
				return rapid.StringMatching("-?[0-9]{1,21}").Draw(t, "number")
			}
			b, _ := json.Marshal(rapid.String().Draw(t, "text"))
			return string(b)
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		if rapid.Bool().Draw(t, "valid") {
			checkJSON(t, []byte(value(9).Draw(t, "value")))
			return
		}
		checkJSON(t, []byte(strings.Join(rapid.SliceOfN(piece, 0, 12).Draw(t, "pieces"), "")))
	})
}

// FuzzJSON: the scanner and encoding/json agree on every input.
func FuzzJSON(f *testing.F) {
	for _, s := range jsonSeeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) { checkJSON(t, in) })
}

func TestLeadingUint(t *testing.T) {
	for in, want := range map[string]uint64{
		"0": 0, "9": 9, "12345678": 12345678, "123456789": 123456789, "1234567812345678": 1234567812345678, "9999999999999999999": 9999999999999999999,
		"10000000000000000000": 10000000000000000000, "18446744073709551615": 18446744073709551615,
	} {
		if got, n := leadingUint([]byte(in + ",99999999")); got != want || n != len(in) {
			t.Errorf("%s: %d of %d digits", in, got, n)
		}
	}
	for _, in := range []string{"", "-1", "x", "18446744073709551616", "18446744073709551620", "20000000000000000000", "99999999999999999999", "100000000000000000000", "184467440737095516150"} {
		if got, n := leadingUint([]byte(in)); n != 0 {
			t.Errorf("%s: %d of %d digits, want none", in, got, n)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		digits := rapid.StringMatching("(0|[1-9][0-9]{0,24})").Draw(t, "digits")
		if rapid.Bool().Draw(t, "near the edge") {
			digits = "184467440737095516" + rapid.StringMatching("[0-9]{2}").Draw(t, "end")
		}
		tail := rapid.SampledFrom([]string{"", ",1", "]", ".5", " 12345678"}).Draw(t, "tail")
		got, n := leadingUint([]byte(digits + tail))
		want, err := strconv.ParseUint(digits, 10, 64)
		if err != nil {
			if n != 0 {
				t.Fatalf("%s: %d of %d digits, want none", digits, got, n)
			}
			return
		}
		if got != want || n != len(digits) {
			t.Fatalf("%s: %d of %d digits", digits, got, n)
		}
	})
}
