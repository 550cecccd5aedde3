package hints

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// text checks the text whose opening quote is at pos.
func (s *jsonScanner) text() (item, bool) {
	d, p := s.data, s.pos+1
	it := item{lo: uint32(p), kind: Text, plain: true}
	for {
		// Eight bytes at a time to the first that is a quote, a backslash, below a
		// space or beyond ASCII. A borrow may mark bytes after that one wrongly, never
		// before.
		for p+8 <= len(d) {
			x := binary.LittleEndian.Uint64(d[p:])
			quote, slash := x^'"'*ones, x^'\\'*ones
			m := (x | (x-0x20*ones)&^x | (quote-ones)&^quote | (slash-ones)&^slash) & highs
			if m != 0 {
				p += bits.TrailingZeros64(m) >> 3
				break
			}
			p += 8
		}
		if p >= len(d) {
			s.pos = p
			return it, s.fail("text without its closing quote")
		}
		switch c := d[p]; {
		case c == '"':
			it.hi = uint32(p)
			s.pos = p + 1
			return it, true
		case c == '\\':
			it.plain = false
			n := escapeLen(d[p:])
			if n == 0 {
				s.pos = p
				return it, s.fail("a bad escape")
			}
			p += n
		case c < 0x20:
			s.pos = p
			return it, s.fail("a control character in text")
		case c >= utf8.RuneSelf:
			r, n := utf8.DecodeRune(d[p:])
			if r == utf8.RuneError && n == 1 {
				s.pos = p
				return it, s.fail("text that is not UTF-8")
			}
			p += n
		default:
			p++
		}
	}
}

// escapeLen returns the length of the escape that b begins with, 0 if it is none.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(b) >= 6 && hex4(b[2:]) >= 0 {
			return 6
		}
	}
	return 0
}

// hex4 returns the value of four hex digits, -1 if they are not.
func hex4(b []byte) rune {
	var r rune
	for _, c := range b[:4] {
		switch {
		case c-'0' <= 9:
			c -= '0'
		case c|0x20-'a' <= 5:
			c = c | 0x20 - 'a' + 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

// unescape appends the text that checked JSON text stands for.
func unescape(dst, raw []byte) []byte {
	for i := 0; i < len(raw); {
		c := raw[i]
		if c != '\\' {
			dst = append(dst, c)
			i++
			continue
		}
		i += 2
		switch c := raw[i-1]; c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r := hex4(raw[i:])
			i += 4
			if utf16.IsSurrogate(r) {
				second := rune(-1)
				if len(raw)-i >= 6 && raw[i] == '\\' && raw[i+1] == 'u' {
					second = hex4(raw[i+2:])
				}
				if r = utf16.DecodeRune(r, second); r != utf8.RuneError {
					i += 6
				}
			}
			dst = utf8.AppendRune(dst, r)
		default:
			dst = append(dst, c)
		}
	}
	return dst
}
