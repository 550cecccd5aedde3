package events

import (
	"encoding/binary"
	"math"
)

// fault says what is wrong with what was read; empty: nothing. short is a fault of
// the bytes, all others are faults of what they mean.
type fault string

const (
	short    fault = "msgpack ends early or is none"
	deep     fault = "msgpack is nested too deep"
	wantHash fault = "a hash is neither an integer nor bytes"
	wantLong fault = "a hash in bytes has fewer than 8"
	wantText fault = "a text is expected"
	wantInt  fault = "an unsigned integer of 32 bits is expected"
	wantList fault = "a list is expected"
	wantMap  fault = "a map is expected"
	wantNum  fault = "a number is expected"
)

// maxDepth bounds how deep unknown values nest; known ones nest four levels.
const maxDepth = 32

// reader reads msgpack. It never allocates; a method that finds a fault leaves pos
// anywhere.
//
// Format: https://github.com/msgpack/msgpack/blob/master/spec.md
type reader struct {
	b   []byte
	pos int
}

func (r *reader) left() int { return len(r.b) - r.pos }

// peek returns the byte that says what comes next, 0xc1 (never used) at the end.
func (r *reader) peek() byte {
	if r.pos < len(r.b) {
		return r.b[r.pos]
	}
	return 0xc1
}

// isNil skips a nil, if there is one.
func (r *reader) isNil() bool {
	if r.pos < len(r.b) && r.b[r.pos] == 0xc0 {
		r.pos++
		return true
	}
	return false
}

// fixed skips the lead byte and returns the n bytes after it.
func (r *reader) fixed(n int) ([]byte, fault) {
	if r.left() < 1+n {
		return nil, short
	}
	p := r.b[r.pos+1 : r.pos+1+n]
	r.pos += 1 + n
	return p, ""
}

// integer reads an integer. Negative ones come as their two's complement.
func (r *reader) integer() (v uint64, negative bool, f fault) {
	if r.pos >= len(r.b) {
		return 0, false, short
	}
	c := r.b[r.pos]
	switch {
	case c < 0x80:
		r.pos++
		return uint64(c), false, ""
	case c >= 0xe0:
		r.pos++
		return uint64(int64(int8(c))), true, ""
	case c == 0xcf || c == 0xd3:
		p, f := r.fixed(8)
		if f != "" {
			return 0, false, f
		}
		v = binary.BigEndian.Uint64(p)
		return v, c == 0xd3 && int64(v) < 0, ""
	case c == 0xce || c == 0xd2:
		p, f := r.fixed(4)
		if f != "" {
			return 0, false, f
		}
		v := binary.BigEndian.Uint32(p)
		if c == 0xd2 {
			return uint64(int64(int32(v))), int32(v) < 0, ""
		}
		return uint64(v), false, ""
	case c == 0xcd || c == 0xd1:
		p, f := r.fixed(2)
		if f != "" {
			return 0, false, f
		}
		v := binary.BigEndian.Uint16(p)
		if c == 0xd1 {
			return uint64(int64(int16(v))), int16(v) < 0, ""
		}
		return uint64(v), false, ""
	case c == 0xcc || c == 0xd0:
		p, f := r.fixed(1)
		if f != "" {
			return 0, false, f
		}
		if c == 0xd0 {
			return uint64(int64(int8(p[0]))), int8(p[0]) < 0, ""
		}
		return uint64(p[0]), false, ""
	}
	return 0, false, wantNum
}

// u32 reads an unsigned integer of 32 bits.
func (r *reader) u32() (uint32, fault) {
	v, negative, f := r.integer()
	if f == wantNum || f == "" && (negative || v > math.MaxUint32) {
		return 0, wantInt
	}
	return uint32(v), f
}

// u64 reads an unsigned integer.
func (r *reader) u64() (uint64, fault) {
	v, negative, f := r.integer()
	if f == "" && negative {
		return 0, wantNum
	}
	return v, f
}

// number reads an integer or a float.
func (r *reader) number() (float64, fault) {
	switch r.peek() {
	case 0xca:
		p, f := r.fixed(4)
		if f != "" {
			return 0, f
		}
		return float64(math.Float32frombits(binary.BigEndian.Uint32(p))), ""
	case 0xcb:
		p, f := r.fixed(8)
		if f != "" {
			return 0, f
		}
		return math.Float64frombits(binary.BigEndian.Uint64(p)), ""
	}
	v, negative, f := r.integer()
	if negative {
		return float64(int64(v)), f
	}
	return float64(v), f
}

// run skips the lead byte and a length of n bytes, and returns as many bytes.
func (r *reader) run(n int) ([]byte, fault) {
	p, f := r.fixed(n)
	if f != "" {
		return nil, f
	}
	size := uint64(0)
	for _, c := range p {
		size = size<<8 | uint64(c)
	}
	if size > uint64(r.left()) {
		return nil, short
	}
	p = r.b[r.pos : r.pos+int(size)]
	r.pos += int(size)
	return p, ""
}

// text reads a string; the bytes are r's.
func (r *reader) text() ([]byte, fault) {
	if r.pos >= len(r.b) {
		return nil, short
	}
	switch c := r.b[r.pos]; {
	case c&0xe0 == 0xa0:
		return r.fixed(int(c & 0x1f))
	case c == 0xd9:
		return r.run(1)
	case c == 0xda:
		return r.run(2)
	case c == 0xdb:
		return r.run(4)
	}
	return nil, wantText
}

// bytes reads a binary value; the bytes are r's.
func (r *reader) bytes() ([]byte, fault) {
	switch r.peek() {
	case 0xc4:
		return r.run(1)
	case 0xc5:
		return r.run(2)
	case 0xc6:
		return r.run(4)
	}
	if r.left() == 0 {
		return nil, short
	}
	return nil, wantText
}

// counted reads the head of a list or map of up to 15, or with 16 or 32 bits.
func (r *reader) counted(fix, wide byte, each int, other fault) (int, fault) {
	if r.pos >= len(r.b) {
		return 0, short
	}
	var n uint64
	switch c := r.b[r.pos]; {
	case c&0xf0 == fix:
		r.pos++
		n = uint64(c & 0x0f)
	case c == wide:
		p, f := r.fixed(2)
		if f != "" {
			return 0, f
		}
		n = uint64(binary.BigEndian.Uint16(p))
	case c == wide+1:
		p, f := r.fixed(4)
		if f != "" {
			return 0, f
		}
		n = uint64(binary.BigEndian.Uint32(p))
	default:
		return 0, other
	}
	if n*uint64(each) > uint64(r.left()) { // every element takes a byte at least
		return 0, short
	}
	return int(n), ""
}

// list reads the head of a list.
func (r *reader) list() (int, fault) { return r.counted(0x90, 0xdc, 1, wantList) }

// mapping reads the head of a map; of n keys, each with its value.
func (r *reader) mapping() (int, fault) { return r.counted(0x80, 0xde, 2, wantMap) }

// fields reads a map whose keys are texts. field reads the value of each.
func (r *reader) fields(field func(key []byte) fault) fault {
	n, f := r.mapping()
	for ; f == "" && n > 0; n-- {
		var key []byte
		if key, f = r.text(); f == "" {
			f = field(key)
		}
	}
	return f
}

// hash reads a block hash: the bits of an integer of either sign, or the low 64 bits
// of a digest, which is big endian.
func (r *reader) hash() (uint64, fault) {
	if r.pos >= len(r.b) {
		return 0, short
	}
	if r.b[r.pos] == 0xcf && r.left() >= 9 { // nearly always
		v := binary.BigEndian.Uint64(r.b[r.pos+1:])
		r.pos += 9
		return v, ""
	}
	if c := r.b[r.pos]; c >= 0xc4 && c <= 0xc6 {
		p, f := r.bytes()
		if f != "" {
			return 0, f
		}
		if len(p) < 8 {
			return 0, wantLong
		}
		return binary.BigEndian.Uint64(p[len(p)-8:]), ""
	}
	v, _, f := r.integer()
	if f == wantNum {
		f = wantHash
	}
	return v, f
}

// skip passes over one value of any kind.
func (r *reader) skip() fault {
	// pending[d] is how many values are still to come at depth d.
	var pending [maxDepth]int
	pending[0] = 1
	for d := 0; d >= 0; {
		if pending[d] == 0 {
			d--
			continue
		}
		pending[d]--
		n, f := r.one()
		if f != "" {
			return f
		}
		if n > 0 {
			if d++; d == maxDepth {
				return deep
			}
			pending[d] = n
		}
	}
	return ""
}

// one passes over a scalar, or the head of a list or map, and says how many values
// that holds.
func (r *reader) one() (int, fault) {
	if r.pos >= len(r.b) {
		return 0, short
	}
	c := r.b[r.pos]
	var f fault
	switch {
	case c < 0x80 || c >= 0xe0 || c == 0xc0 || c == 0xc2 || c == 0xc3:
		r.pos++
	case c < 0x90 || c == 0xde || c == 0xdf:
		n, f := r.mapping()
		return 2 * n, f
	case c < 0xa0 || c == 0xdc || c == 0xdd:
		return r.list()
	case c < 0xc0 || c >= 0xd9 && c <= 0xdb:
		_, f = r.text()
	case c >= 0xc4 && c <= 0xc6:
		_, f = r.bytes()
	case c == 0xc7 || c == 0xc8 || c == 0xc9: // extension: length, type, bytes
		var p []byte
		if p, f = r.fixed(1 << (c - 0xc7)); f == "" {
			n := uint64(0)
			for _, b := range p {
				n = n<<8 | uint64(b)
			}
			if n++; n > uint64(r.left()) { // and the type
				return 0, short
			}
			r.pos += int(n)
		}
	case c >= 0xd4 && c <= 0xd8:
		_, f = r.fixed(1 + 1<<(c-0xd4))
	case c == 0xca:
		_, f = r.fixed(4)
	case c == 0xcb:
		_, f = r.fixed(8)
	case c >= 0xcc && c <= 0xd3:
		_, _, f = r.integer()
	default:
		f = short // 0xc1 is no msgpack
	}
	return 0, f
}

func appendUint(b []byte, v uint64) []byte {
	switch {
	case v < 0x80:
		return append(b, byte(v))
	case v <= math.MaxUint8:
		return append(b, 0xcc, byte(v))
	case v <= math.MaxUint16:
		return append(b, 0xcd, byte(v>>8), byte(v))
	case v <= math.MaxUint32:
		return append(b, 0xce, byte(v>>24), byte(v>>16), byte(v>>8), byte(v))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xcf), v)
}

func appendInt(b []byte, v int64) []byte {
	switch {
	case v >= 0:
		return appendUint(b, uint64(v))
	case v >= -32:
		return append(b, byte(v))
	case v >= math.MinInt8:
		return append(b, 0xd0, byte(v))
	case v >= math.MinInt16:
		return append(b, 0xd1, byte(v>>8), byte(v))
	case v >= math.MinInt32:
		return append(b, 0xd2, byte(v>>24), byte(v>>16), byte(v>>8), byte(v))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(v))
}

func appendFloat(b []byte, v float64) []byte {
	return binary.BigEndian.AppendUint64(append(b, 0xcb), math.Float64bits(v))
}

func appendText(b []byte, s string) []byte {
	switch n := len(s); {
	case n < 32:
		b = append(b, 0xa0|byte(n))
	case n <= math.MaxUint8:
		b = append(b, 0xd9, byte(n))
	case n <= math.MaxUint16:
		b = append(b, 0xda, byte(n>>8), byte(n))
	default:
		b = append(b, 0xdb, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	return append(b, s...)
}

func appendBinHead(b []byte, n int) []byte {
	switch {
	case n <= math.MaxUint8:
		return append(b, 0xc4, byte(n))
	case n <= math.MaxUint16:
		return append(b, 0xc5, byte(n>>8), byte(n))
	}
	return append(b, 0xc6, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
}

func appendList(b []byte, n int) []byte {
	switch {
	case n < 16:
		return append(b, 0x90|byte(n))
	case n <= math.MaxUint16:
		return append(b, 0xdc, byte(n>>8), byte(n))
	}
	return append(b, 0xdd, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
}

func appendMap(b []byte, n int) []byte { // of fewer than 16 keys
	return append(b, 0x80|byte(n))
}

// appendTextOrNil writes an empty text as nil.
func appendTextOrNil(b []byte, s string) []byte {
	if s == "" {
		return append(b, 0xc0)
	}
	return appendText(b, s)
}
