package hints

import (
	"fmt"
	"unicode/utf8"
)

// Kind is the kind of a Value.
type Kind uint8

// The kinds.
const (
	Absent Kind = iota // there is no such field
	Null
	Bool
	Number
	Text
	List
	Object
	Other // what JSON has no word for: msgpack's binary and extensions, foreign Go types
)

func (k Kind) String() string {
	if k <= Other {
		return [...]string{"absent", "null", "a truth value", "a number", "text", "a list", "an object", "of another kind"}[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Value is one value of a payload, in whichever form it came. It is valid until the
// parser returns that it was given to.
type Value struct {
	item
	doc  *document // of encoded forms
	tree any       // of decoded ones
	// of a payload of which all fields are noted: those
	members []member
	noted   bool
}

// Kind says what v is.
func (v Value) Kind() Kind { return v.kind }

// Field returns the field of an object, the last one where a name repeats. Names match
// exactly. The result is Absent where v is no object or has no such field.
func (v Value) Field(name string) Value {
	switch {
	case v.kind != Object:
		return Value{}
	case v.doc == nil:
		return treeField(v.tree, name)
	case v.noted:
		for i := len(v.members) - 1; i >= 0; i-- {
			if v.doc.is(v.members[i].name, name) {
				return Value{item: v.members[i].value, doc: v.doc}
			}
		}
		return Value{}
	}
	var found item
	if v.doc.form == formJSON {
		s := v.jsonScanner()
		s.object(0, func(key item) bool {
			it, ok := s.value(0)
			if v.doc.is(key, name) {
				found = it
			}
			return ok
		})
	} else {
		s := v.msgpackScanner()
		s.object(0, func(key item) bool {
			it, ok := s.value(0)
			if v.doc.is(key, name) {
				found = it
			}
			return ok
		})
	}
	return Value{item: found, doc: v.doc}
}

// Each calls f for every element of a list, in order, until it fails, and returns
// that failure. Of other kinds there are none.
func (v Value) Each(f func(Value) error) (err error) {
	switch {
	case v.kind != List:
	case v.doc == nil:
		return treeEach(v.tree, f)
	case v.doc.form == formJSON:
		s := v.jsonScanner()
		s.list(0, func() bool {
			it, _ := s.value(0)
			err = f(Value{item: it, doc: v.doc})
			return err == nil
		})
	default:
		s := v.msgpackScanner()
		s.list(0, func() bool {
			it, _ := s.value(0)
			err = f(Value{item: it, doc: v.doc})
			return err == nil
		})
	}
	return err
}

// The envelope was checked as a whole, so walking a part of it neither fails nor goes
// deeper than allowed.

func (v Value) jsonScanner() *jsonScanner {
	return &jsonScanner{data: v.doc.data[:v.hi], pos: int(v.lo), depth: int(^uint(0) >> 1)}
}

func (v Value) msgpackScanner() *msgpackScanner {
	return &msgpackScanner{data: v.doc.data[:v.hi], pos: int(v.lo), depth: int(^uint(0) >> 1)}
}

// Text returns text as a string of its own.
func (v Value) Text() (string, bool) {
	switch {
	case v.kind != Text:
		return "", false
	case v.doc == nil:
		return v.tree.(string), true
	}
	return v.doc.string(v.item), true
}

// is reports whether v is exactly the text.
func (v Value) is(text string) bool {
	if v.doc == nil {
		return v.kind == Text && v.tree.(string) == text
	}
	return v.doc.is(v.item, text)
}

// Bool returns a truth value.
func (v Value) Bool() (value, ok bool) {
	switch {
	case v.kind != Bool:
		return false, false
	case v.doc == nil:
		return v.tree.(bool), true
	case v.doc.form == formJSON:
		return v.doc.data[v.lo] == 't', true
	}
	return v.doc.data[v.lo] == 0xc3, true
}

// Uint64 returns an integer in 0..2^64-1; in text it must be written in digits only.
func (v Value) Uint64() (uint64, bool) {
	switch {
	case v.kind != Number:
		return 0, false
	case v.doc == nil:
		return treeUint(v.tree)
	case v.doc.form == formJSON:
		raw := v.doc.data[v.lo:v.hi]
		u, n := leadingUint(raw)
		return u, n == len(raw)
	}
	return msgpackUint(v.doc.data[v.lo:v.hi])
}

// quote shows v to people, cut to a length that fits into a log.
func (v Value) quote() string {
	switch {
	case v.kind == Absent:
		return "absent"
	case v.kind == List || v.kind == Object || v.kind == Other:
		return v.kind.String()
	case v.doc == nil && v.kind == Text:
		return fmt.Sprintf("%q", cut(v.tree.(string)))
	case v.doc == nil:
		return cut(fmt.Sprint(v.tree))
	case v.doc.form == formJSON && v.kind == Text:
		return fmt.Sprintf("%q", cut(string(v.doc.data[v.lo:min(v.hi, v.lo+80)])))
	case v.doc.form == formJSON:
		return cut(string(v.doc.data[v.lo:min(v.hi, v.lo+80)]))
	case v.kind == Text:
		return fmt.Sprintf("%q", cut(string(v.doc.data[v.lo:min(v.hi, v.lo+80)])))
	}
	return fmt.Sprintf("%x", v.doc.data[v.lo:min(v.hi, v.lo+32)])
}

// cut shortens what comes from outside for a message.
func cut(s string) string {
	if len(s) > 64 {
		return clip(s, 64) + "..."
	}
	return s
}

// clip shortens s to at most n bytes, at the edge of a character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for end := n; end > n-utf8.UTFMax; end-- {
		if utf8.RuneStart(s[end]) {
			return s[:end]
		}
	}
	return s[:n] // no UTF-8
}
