package hints

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// AppendHashes appends a list of router hashes to dst: a field as block_hashes is. The
// error is a *Rejection: MissingHashes where v is absent, null or empty, InvalidPayload
// where it is no list, LimitExceeded beyond most elements, InvalidHash where one of
// them is no integer in 0..2^64-1; it names the first.
func (v Value) AppendHashes(dst []uint64, most int) ([]uint64, error) {
	switch v.kind {
	case Absent, Null:
		return dst, &Rejection{MissingHashes, "block_hashes is " + v.kind.String()}
	case List:
	default:
		return dst, &Rejection{InvalidPayload, "block_hashes is " + v.kind.String() + ", not a list"}
	}
	before := len(dst)
	ok := false
	switch {
	case v.doc == nil:
		dst, ok = appendTreeHashes(dst, v.tree, most)
	case v.doc.form == formJSON:
		dst, ok = appendJSONHashes(dst, v.doc.data[v.lo:v.hi], most)
	default:
		dst, ok = appendMsgpackHashes(dst, v.doc.data[v.lo:v.hi], most)
	}
	if !ok {
		return dst[:before], v.badHashes(most)
	}
	if len(dst) == before {
		return dst, &Rejection{MissingHashes, "block_hashes is empty"}
	}
	return dst, nil
}

// badHashes says what is wrong with a list of hashes: the length, then the first bad
// element.
func (v Value) badHashes(most int) error {
	n, bad := 0, -1
	var element Value
	v.Each(func(e Value) error {
		if _, ok := e.Uint64(); !ok && bad < 0 {
			bad, element = n, e
		}
		n++
		return nil
	})
	if n > most {
		return &Rejection{LimitExceeded, fmt.Sprintf("%d hashes, limit %d (raise Limits.Hashes)", n, most)}
	}
	return &Rejection{InvalidHash, fmt.Sprintf("block_hashes[%d] is %s, not an integer in 0..2^64-1", bad, element.quote())}
}

// appendTreeHashes appends the elements of a decoded list; false: it is longer than
// most, or an element is no hash.
func appendTreeHashes(dst []uint64, list any, most int) ([]uint64, bool) {
	switch l := list.(type) {
	case []uint64:
		return append(dst, l[:min(len(l), most)]...), len(l) <= most
	case []any:
		if len(l) > most {
			return dst, false
		}
		for _, e := range l {
			h, ok := treeUint(e)
			if !ok {
				return dst, false
			}
			dst = append(dst, h)
		}
		return dst, true
	case []int64:
		return appendInts(dst, l, most)
	case []int:
		return appendInts(dst, l, most)
	case []string:
		return dst, len(l) == 0
	case []map[string]any:
		return dst, len(l) == 0
	}
	return dst, false
}

func appendInts[I int | int64](dst []uint64, l []I, most int) ([]uint64, bool) {
	if len(l) > most {
		return dst, false
	}
	for _, n := range l {
		if n < 0 {
			return dst, false
		}
		dst = append(dst, uint64(n))
	}
	return dst, true
}

// appendMsgpackHashes is appendTreeHashes of a checked msgpack array.
func appendMsgpackHashes(dst []uint64, b []byte, most int) ([]uint64, bool) {
	s := msgpackScanner{data: b, depth: 1}
	n, _ := s.count(1, 0xdc)
	if n > most {
		return dst, false
	}
	for ; n > 0; n-- {
		at := s.pos
		it, ok := s.value(1) // a nested list is too deep here, and no hash
		if !ok || it.kind != Number {
			return dst, false
		}
		h, ok := msgpackUint(b[at:s.pos])
		if !ok {
			return dst, false
		}
		dst = append(dst, h)
	}
	return dst, true
}

// appendJSONHashes is appendTreeHashes of a checked JSON list.
func appendJSONHashes(dst []uint64, b []byte, most int) ([]uint64, bool) {
	most += len(dst)
	p := 1
	for {
		for isSpace(b[p]) || b[p] == ',' {
			p++
		}
		if b[p] == ']' {
			return dst, true
		}
		// What begins without digits, or with too many of them, is no hash. A number
		// that goes on after its digits, with one of ".eE", does so as if it were the
		// next element, without any.
		h, n := leadingUint(b[p:])
		if n == 0 || len(dst) == most {
			return dst, false
		}
		p += n
		dst = append(dst, h)
	}
}

// leadingUint returns the integer that the digits at the front of b make, and how many
// those are: 0 if there are none, or if they are beyond 2^64-1.
func leadingUint(b []byte) (uint64, int) {
	var u uint64
	n := 0
	for n <= 8 && len(b) >= n+8 {
		x := binary.LittleEndian.Uint64(b[n:])
		if x&0xf0f0f0f0f0f0f0f0|(x+6*ones)&0xf0f0f0f0f0f0f0f0>>4 != 0x3333333333333333 {
			break
		}
		u = u*1e8 + eightDigits(x)
		n += 8
	}
	for n < len(b) && n < 19 && b[n]-'0' <= 9 {
		u = u*10 + uint64(b[n]-'0')
		n++
	}
	if n < 19 || n == len(b) || b[n]-'0' > 9 {
		return u, n
	}
	// The twentieth digit may be too much, a further one always is.
	hi, lo := bits.Mul64(u, 10)
	lo, carry := bits.Add64(lo, uint64(b[n]-'0'), 0)
	n++
	if hi+carry != 0 || n < len(b) && b[n]-'0' <= 9 {
		return 0, 0
	}
	return lo, n
}

// eightDigits is the value of eight ASCII digits, the first one in the lowest byte.
// Neighbours are joined to pairs, these to fours, these to the whole: the method is
// that of D. Lemire, "Quickly parsing eight digits" (2018).
func eightDigits(x uint64) uint64 {
	x -= '0' * ones
	x = x*10 + x>>8
	return (x&0x000000ff000000ff*(100+1000000<<32) + x>>16&0x000000ff000000ff*(1+10000<<32)) >> 32
}

// Distinct appends to dst each of hashes once, in the order of first sight.
func Distinct(dst, hashes []uint64) []uint64 {
	seen := make(map[uint64]struct{}, len(hashes))
	for _, h := range hashes {
		if _, ok := seen[h]; !ok {
			seen[h] = struct{}{}
			dst = append(dst, h)
		}
	}
	return dst
}
