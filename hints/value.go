package hints

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

// Value is one value of a payload, in whichever form it came. It is valid until the
// parser returns that it was given to.
type Value struct{}

// Kind says what v is.
func (v Value) Kind() Kind { panic("not yet") }

// Field returns the field of an object, the last one where a name repeats. Names match
// exactly. The result is Absent where v is no object or has no such field.
func (v Value) Field(name string) Value { panic("not yet") }

// Each calls f for every element of a list, in order, until it fails. Of other kinds
// there are none.
func (v Value) Each(f func(Value) error) error { panic("not yet") }

// Text returns text as a string of its own.
func (v Value) Text() (string, bool) { panic("not yet") }

// Bool returns a truth value.
func (v Value) Bool() (value, ok bool) { panic("not yet") }

// Uint64 returns an integer that is written in digits only and fits.
func (v Value) Uint64() (uint64, bool) { panic("not yet") }
