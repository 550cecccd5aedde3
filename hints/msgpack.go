package hints

import (
	"encoding/binary"
	"unicode/utf8"
)

// msgpackScanner checks msgpack (github.com/msgpack/msgpack, spec.md) and says where
// its values lie. Text must be UTF-8. Nothing is reserved for lengths that are
// announced. (That is why this is not a library: DecodeInterface of vmihailenco/msgpack
// v5.4.1 asks for 64 GiB when 14 bytes announce a list of 2^32-1.)
type msgpackScanner struct {
	data  []byte
	pos   int
	depth int // limit
	what  string
}

func (s *msgpackScanner) fail(what string) bool {
	if s.what == "" {
		s.what = what
	}
	return false
}

// length passes the first byte of a value and reads the length field of n bytes after
// it.
func (s *msgpackScanner) length(n int) (int, bool) {
	if len(s.data)-s.pos < 1+n {
		return 0, s.fail("cut short")
	}
	p := s.data[s.pos+1:]
	s.pos += 1 + n
	switch n {
	case 1:
		return int(p[0]), true
	case 2:
		return int(binary.BigEndian.Uint16(p)), true
	}
	return int(binary.BigEndian.Uint32(p)), true
}

// skip passes the first byte and n more.
func (s *msgpackScanner) skip(n int) bool {
	if len(s.data)-s.pos < 1+n {
		return s.fail("cut short")
	}
	s.pos += 1 + n
	return true
}

// value checks the value that begins at pos; depth is that of its container.
func (s *msgpackScanner) value(depth int) (item, bool) {
	if s.pos >= len(s.data) {
		return item{}, s.fail("cut short")
	}
	it := item{lo: uint32(s.pos), plain: true}
	ok := false
	switch b := s.data[s.pos]; {
	case b <= 0x7f || b >= 0xe0: // fixint
		it.kind, ok = Number, s.skip(0)
	case isMap(b):
		it.kind = Object
		ok = s.object(depth+1, func(item) bool {
			_, ok := s.value(depth + 1)
			return ok
		})
	case isArray(b):
		it.kind = List
		ok = s.list(depth+1, func() bool {
			_, ok := s.value(depth + 1)
			return ok
		})
	case b&0xe0 == 0xa0 || b >= 0xd9 && b <= 0xdb:
		return s.text()
	case b == 0xc0:
		it.kind, ok = Null, s.skip(0)
	case b == 0xc2 || b == 0xc3:
		it.kind, ok = Bool, s.skip(0)
	case b >= 0xc4 && b <= 0xc6: // bin
		it.kind, ok = Other, s.sized(1<<(b-0xc4), 0)
	case b >= 0xc7 && b <= 0xc9: // ext: a type byte after the length
		it.kind, ok = Other, s.sized(1<<(b-0xc7), 1)
	case b == 0xca || b == 0xcb: // floats
		it.kind, ok = Number, s.skip(4<<(b-0xca))
	case b >= 0xcc && b <= 0xcf: // unsigned
		it.kind, ok = Number, s.skip(1<<(b-0xcc))
	case b >= 0xd0 && b <= 0xd3: // signed
		it.kind, ok = Number, s.skip(1<<(b-0xd0))
	case b >= 0xd4 && b <= 0xd8: // fixext
		it.kind, ok = Other, s.skip(1+1<<(b-0xd4))
	default:
		s.fail("a byte that begins no value")
	}
	it.hi = uint32(s.pos)
	return it, ok
}

func isMap(b byte) bool   { return b&0xf0 == 0x80 || b == 0xde || b == 0xdf }
func isArray(b byte) bool { return b&0xf0 == 0x90 || b == 0xdc || b == 0xdd }

// sized passes a value whose length field has n bytes and does not count more bytes.
func (s *msgpackScanner) sized(n, more int) bool {
	l, ok := s.length(n)
	if !ok {
		return false
	}
	if len(s.data)-s.pos < l+more {
		return s.fail("cut short")
	}
	s.pos += l + more
	return true
}

func (s *msgpackScanner) text() (item, bool) {
	n, ok := 0, true
	switch b := s.data[s.pos]; b {
	case 0xd9, 0xda, 0xdb:
		n, ok = s.length(1 << (b - 0xd9))
	default:
		n = int(b & 0x1f)
		s.pos++
	}
	it := item{lo: uint32(s.pos), hi: uint32(s.pos), kind: Text, plain: true}
	if !ok {
		return it, false
	}
	if len(s.data)-s.pos < n {
		return it, s.fail("cut short")
	}
	if !utf8.Valid(s.data[s.pos : s.pos+n]) {
		return it, s.fail("text that is not UTF-8")
	}
	s.pos += n
	it.hi = uint32(s.pos)
	return it, true
}

// count reads the header of a map or array; wide is its first byte with a length field.
func (s *msgpackScanner) count(depth int, wide byte) (int, bool) {
	if depth > s.depth {
		return 0, s.fail(tooDeep(s.depth))
	}
	n, ok := 0, true
	switch b := s.data[s.pos]; b {
	case wide, wide + 1:
		n, ok = s.length(2 << (b - wide))
	default:
		n = int(b & 0x0f)
		s.pos++
	}
	return n, ok
}

// object checks the map that begins at pos; f checks the value of each field. Names may
// be values of any kind.
func (s *msgpackScanner) object(depth int, f func(name item) bool) bool {
	n, ok := s.count(depth, 0xde)
	for ; ok && n > 0; n-- {
		var name item
		if name, ok = s.value(depth); ok {
			ok = f(name)
		}
	}
	return ok
}

// list checks the array that begins at pos; f checks each element.
func (s *msgpackScanner) list(depth int, f func() bool) bool {
	n, ok := s.count(depth, 0xdc)
	for ; ok && n > 0; n-- {
		ok = f()
	}
	return ok
}

// msgpackUint returns the integer at the front of checked msgpack.
func msgpackUint(b []byte) (uint64, bool) {
	switch c := b[0]; c {
	case 0xcc:
		return uint64(b[1]), true
	case 0xcd:
		return uint64(binary.BigEndian.Uint16(b[1:])), true
	case 0xce:
		return uint64(binary.BigEndian.Uint32(b[1:])), true
	case 0xcf:
		return binary.BigEndian.Uint64(b[1:]), true
	case 0xd0:
		return uint64(b[1]), int8(b[1]) >= 0
	case 0xd1:
		u := binary.BigEndian.Uint16(b[1:])
		return uint64(u), int16(u) >= 0
	case 0xd2:
		u := binary.BigEndian.Uint32(b[1:])
		return uint64(u), int32(u) >= 0
	case 0xd3:
		u := binary.BigEndian.Uint64(b[1:])
		return u, int64(u) >= 0
	default:
		return uint64(c), c <= 0x7f
	}
}
