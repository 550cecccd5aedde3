package scene

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// jsonFile is a file of JSON that knows in which line its values are.
type jsonFile struct {
	name string
	data []byte
	dec  *json.Decoder
}

// openJSON looks first whether data is JSON at all: what is read of it later has no
// errors but of meaning.
func openJSON(name string, data []byte) (*jsonFile, error) {
	f := &jsonFile{name, data, json.NewDecoder(bytes.NewReader(data))}
	var all json.RawMessage
	return f, f.broken(json.Unmarshal(data, &all))
}

// place is where a value stands, and what it is called.
type place struct {
	f     *jsonFile
	line  int
	field string
}

func (p place) sub(format string, args ...any) place {
	p.field += fmt.Sprintf(format, args...)
	return p
}

func (p place) bad(value any, limit, fix string) error {
	return &Error{p.f.name, p.line, p.field, fmt.Sprint(value), limit, fix}
}

// here is the line of the next value.
func (f *jsonFile) here() int {
	at := int(f.dec.InputOffset())
	for at < len(f.data) && strings.IndexByte(" \t\r\n,:", f.data[at]) >= 0 {
		at++
	}
	return f.lineAt(at)
}

func (f *jsonFile) lineAt(offset int) int {
	return 1 + bytes.Count(f.data[:min(offset, len(f.data))], []byte("\n"))
}

// broken says where an error of JSON's grammar is.
func (f *jsonFile) broken(err error) error {
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return err
	}
	if int(syntax.Offset) >= len(f.data) && strings.HasPrefix(syntax.Error(), "unexpected end") {
		return &Error{File: f.name, Line: f.lineAt(len(f.data)), Limit: "the file ends in the middle of a value", Fix: "close what is open"}
	}
	return &Error{File: f.name, Line: f.lineAt(int(syntax.Offset) - 1), Limit: "no JSON: " + syntax.Error(), Fix: "kvcr plan --example prints a file to start from"}
}

// object calls each for every field of the object that begins here; each must take the
// value (value or list).
func (f *jsonFile) object(each func(p place) error) error {
	if err := f.open('{', "an object of members, prompts and holdings"); err != nil {
		return err
	}
	seen := map[string]bool{}
	for f.dec.More() {
		line := f.here()
		t, err := f.dec.Token()
		if err != nil {
			return f.broken(err)
		}
		p := place{f, line, t.(string)}
		if seen[p.field] {
			return &Error{f.name, line, p.field, "", "stands twice in the file", "join the two"}
		}
		seen[p.field] = true
		if err := each(p); err != nil {
			return err
		}
	}
	_, err := f.dec.Token()
	return f.broken(err)
}

// open takes the bracket that begins a list or an object.
func (f *jsonFile) open(bracket json.Delim, what string) error {
	line := f.here()
	t, err := f.dec.Token()
	if err != nil {
		return f.broken(err)
	}
	if t != bracket {
		return &Error{File: f.name, Line: line, Limit: fmt.Sprintf("%v is not %s", t, what), Fix: fmt.Sprintf("begin with %v", bracket)}
	}
	return nil
}

// list calls each for every element of the list that is the value of p.
func (f *jsonFile) list(p place, each func(p place, raw json.RawMessage) error) error {
	line := f.here()
	t, err := f.dec.Token()
	if err != nil {
		return f.broken(err)
	}
	if t != json.Delim('[') {
		return &Error{f.name, line, p.field, fmt.Sprint(t), "must be a list", "begin with ["}
	}
	for i := 0; f.dec.More(); i++ {
		at := place{f, f.here(), fmt.Sprintf("%s[%d]", p.field, i)}
		var raw json.RawMessage
		if err := f.dec.Decode(&raw); err != nil {
			return f.broken(err)
		}
		if err := each(at, raw); err != nil {
			return err
		}
	}
	if _, err := f.dec.Token(); err != nil {
		return f.broken(err)
	}
	return nil
}

// value reads the value of p into v.
func (f *jsonFile) value(p place, v any) error {
	p.line = f.here()
	var raw json.RawMessage
	if err := f.dec.Decode(&raw); err != nil {
		return f.broken(err)
	}
	return p.decode(raw, v)
}

// decode reads raw, which stands at p, into v. Fields that v has not are errors.
func (p place) decode(raw json.RawMessage, v any) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	err := dec.Decode(v)
	if err == nil {
		return nil
	}
	var typ *json.UnmarshalTypeError
	if errors.As(err, &typ) {
		p.line += bytes.Count(raw[:min(int(typ.Offset), len(raw))], []byte("\n"))
		if typ.Field != "" {
			p.field += "." + typ.Field
		}
		return p.bad(strings.TrimPrefix(typ.Value, "number "), "must be "+typeName(typ.Type), "")
	}
	if _, quoted, ok := strings.Cut(err.Error(), "unknown field "); ok {
		if at := bytes.Index(raw, []byte(quoted)); at >= 0 {
			p.line += bytes.Count(raw[:at], []byte("\n"))
		}
		return &Error{p.f.name, p.line, p.field + "." + strings.Trim(quoted, `"`), "", "there is no such field", "there are " + strings.Join(fieldNames(v), ", ")}
	}
	return &Error{p.f.name, p.line, p.field, "", err.Error(), ""}
}

// typeName says what a value of a type is, for people.
func typeName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Uint64:
		return "a whole number, 0 to 2^64-1"
	case reflect.Uint32:
		return "a whole number, 0 to 2^32-1"
	case reflect.Int:
		return "a whole number"
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "a list"
	}
	return "an object"
}

// fieldNames are those of the struct that v points to.
func fieldNames(v any) (names []string) {
	t := reflect.TypeOf(v).Elem()
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}
