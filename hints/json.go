package hints

import (
	"encoding/binary"
	"fmt"
)

// jsonScanner checks JSON text by RFC 8259 and says where its values lie. It is
// stricter than encoding/json in that text must be UTF-8 and nesting is limited; like
// that it takes the last of several equal names, and reads \u escapes of half a
// surrogate pair as U+FFFD. Names are compared as they are, case and all.
//
// Depth counts lists and objects from 1, the outermost.
type jsonScanner struct {
	data  []byte
	pos   int
	depth int // limit
	what  string
}

// fail notes the first thing that is wrong, seen at pos.
func (s *jsonScanner) fail(what string) bool {
	if s.what == "" {
		s.what = what
	}
	return false
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// digitsEnd returns where the digits that begin at p end.
func digitsEnd(d []byte, p int) int {
	for p+8 <= len(d) {
		// A digit is 0x30..0x39: its high half is 3, and stays so with 6 added.
		x := binary.LittleEndian.Uint64(d[p:])
		if x&0xf0f0f0f0f0f0f0f0|(x+6*ones)&0xf0f0f0f0f0f0f0f0>>4 != 0x3333333333333333 {
			break
		}
		p += 8
	}
	for p < len(d) && d[p]-'0' <= 9 {
		p++
	}
	return p
}

func (s *jsonScanner) space() {
	for s.pos < len(s.data) && isSpace(s.data[s.pos]) {
		s.pos++
	}
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

// peek returns the next byte, 0 at the end: no value begins with it.
func (s *jsonScanner) peek() byte {
	if s.pos < len(s.data) {
		return s.data[s.pos]
	}
	return 0
}

// value checks the value that begins at pos; depth is that of its container.
func (s *jsonScanner) value(depth int) (item, bool) {
	it := item{lo: uint32(s.pos)}
	ok := false
	switch c := s.peek(); {
	case c == '"':
		return s.text()
	case c == '{':
		it.kind = Object
		ok = s.object(depth+1, func(name item) bool {
			_, ok := s.value(depth + 1)
			return ok
		})
	case c == '[':
		it.kind = List
		ok = s.skipList(depth + 1)
	case c == '-' || c-'0' <= 9:
		it.kind = Number
		ok = s.number()
	case c == 't':
		it.kind = Bool
		ok = s.word("true")
	case c == 'f':
		it.kind = Bool
		ok = s.word("false")
	case c == 'n':
		it.kind = Null
		ok = s.word("null")
	default:
		s.fail("no value here")
	}
	it.hi = uint32(s.pos)
	return it, ok
}

func (s *jsonScanner) word(w string) bool {
	if len(s.data)-s.pos < len(w) || string(s.data[s.pos:s.pos+len(w)]) != w {
		return s.fail("no value here")
	}
	s.pos += len(w)
	return true
}

func (s *jsonScanner) number() bool {
	d, p := s.data, s.pos
	if d[p] == '-' {
		p++
	}
	switch {
	case p < len(d) && d[p] == '0':
		p++
	case p < len(d) && d[p]-'1' <= 8:
		p = digitsEnd(d, p+1)
	default:
		return s.fail("a number without digits")
	}
	if p < len(d) && d[p] == '.' {
		q := digitsEnd(d, p+1)
		if q == p+1 {
			return s.fail("a fraction without digits")
		}
		p = q
	}
	if p < len(d) && d[p]|0x20 == 'e' {
		p++
		if p < len(d) && (d[p] == '+' || d[p] == '-') {
			p++
		}
		q := digitsEnd(d, p)
		if q == p {
			return s.fail("an exponent without digits")
		}
		p = q
	}
	s.pos = p
	return true
}

// object checks the object that begins at pos; f checks the value of each field.
func (s *jsonScanner) object(depth int, f func(name item) bool) bool {
	if depth > s.depth {
		return s.fail(tooDeep(s.depth))
	}
	s.pos++
	s.space()
	if s.peek() == '}' {
		s.pos++
		return true
	}
	for {
		if s.peek() != '"' {
			return s.fail("no name of a field here")
		}
		name, ok := s.text()
		if !ok {
			return false
		}
		s.space()
		if s.peek() != ':' {
			return s.fail("no colon after the name of a field")
		}
		s.pos++
		s.space()
		if !f(name) {
			return false
		}
		s.space()
		switch s.peek() {
		case ',':
			s.pos++
			s.space()
		case '}':
			s.pos++
			return true
		default:
			return s.fail("neither comma nor brace after a field")
		}
	}
}

// list checks the list that begins at pos; f checks each element.
func (s *jsonScanner) list(depth int, f func() bool) bool {
	if depth > s.depth {
		return s.fail(tooDeep(s.depth))
	}
	s.pos++
	s.space()
	if s.peek() == ']' {
		s.pos++
		return true
	}
	for {
		if !f() {
			return false
		}
		s.space()
		switch s.peek() {
		case ',':
			s.pos++
			s.space()
		case ']':
			s.pos++
			return true
		default:
			return s.fail("neither comma nor bracket after an element")
		}
	}
}

// skipList is list with value for every element. Lists of hashes are most of what
// comes, so elements that are integers right before a comma get a shorter way.
func (s *jsonScanner) skipList(depth int) bool {
	return s.list(depth, func() bool {
		d, p := s.data, s.pos
		for p < len(d) && d[p]-'1' <= 8 {
			q := digitsEnd(d, p+1)
			if q >= len(d) || d[q] != ',' {
				break
			}
			p = q + 1
		}
		if p > s.pos {
			s.pos = p
			s.space()
		}
		_, ok := s.value(depth)
		return ok
	})
}

func tooDeep(limit int) string {
	return fmt.Sprintf("nested deeper than %d (raise Limits.Depth)", limit)
}
