package wire

import "unicode/utf8"

// coder runs over the fields of a message in order, to write or to read them.
// One list of fields serves both directions, so they cannot drift apart.
//
// When it writes, a field outside its limits panics; when it reads, the first
// problem is kept and all later fields stay as they are.
type coder struct {
	// b is the whole destination when writing, what is left of the payload when
	// reading.
	b       []byte
	start   int // writing: where the frame begins in b
	writing bool
	t       Type
	err     *PayloadError
}

// writer begins a frame at the end of dst.
func writer(dst []byte, t Type, id uint64, more bool) coder {
	h := Header{Type: t, ID: id}
	if more {
		h.Flags = FlagMore
	}
	return coder{b: AppendHeader(dst, h), start: len(dst), writing: true, t: t}
}

// frame ends the frame and returns the destination; extra bytes of the payload
// will follow from elsewhere.
func (c *coder) frame(extra int) []byte {
	n := uint64(len(c.b) - c.start - HeaderSize + extra)
	c.check(n <= uint64(c.t.kind().max), "", "too long", n, uint64(c.t.kind().max))
	le.PutUint32(c.b[c.start+16:], uint32(n))
	return c.b
}

func reader(t Type, payload []byte) coder { return coder{b: payload, t: t} }

// done ends the reading of a payload: nothing may be left of it.
func (c *coder) done() error {
	c.check(len(c.b) == 0, "", "trailing bytes", uint64(len(c.b)), 0)
	if c.err != nil {
		return c.err
	}
	return nil
}

// check notes a problem unless ok.
func (c *coder) check(ok bool, field, problem string, got, limit uint64) {
	if ok || c.err != nil {
		return
	}
	err := &PayloadError{c.t, field, problem, got, limit}
	if c.writing {
		panic(err)
	}
	c.err = err
}

// take returns the next n bytes of the payload, nil when there was a problem.
func (c *coder) take(n int, field string) []byte {
	c.check(n <= len(c.b), field, "truncated", uint64(len(c.b)), uint64(n))
	if c.err != nil {
		return nil
	}
	p := c.b[:n:n]
	c.b = c.b[n:]
	return p
}

func u8[T ~uint8](c *coder, v *T, lo, hi T, field string) {
	if c.writing {
		c.b = append(c.b, byte(*v))
	} else if p := c.take(1, field); p != nil {
		*v = T(p[0])
	}
	c.check(lo <= *v && *v <= hi, field, "out of range", uint64(*v), uint64(hi))
}

func u16[T ~uint16](c *coder, v *T, field string) {
	if c.writing {
		c.b = le.AppendUint16(c.b, uint16(*v))
	} else if p := c.take(2, field); p != nil {
		*v = T(le.Uint16(p))
	}
}

func (c *coder) u32(v *uint32, field string) {
	if c.writing {
		c.b = le.AppendUint32(c.b, *v)
	} else if p := c.take(4, field); p != nil {
		*v = le.Uint32(p)
	}
}

func (c *coder) u64(v *uint64, field string) {
	if c.writing {
		c.b = le.AppendUint64(c.b, *v)
	} else if p := c.take(8, field); p != nil {
		*v = le.Uint64(p)
	}
}

// flag is a byte that is 0 or 1.
func (c *coder) flag(v *bool, field string) {
	var b uint8
	if *v {
		b = 1
	}
	u8(c, &b, 0, 1, field)
	*v = b == 1
}

// array is a field of fixed length.
func (c *coder) array(v []byte, field string) {
	if c.writing {
		c.b = append(c.b, v...)
	} else {
		copy(v, c.take(len(v), field))
	}
}

// bytes is a field of lo to hi bytes after its length.
func (c *coder) bytes(v *[]byte, lo, hi int, field string) {
	n := c.length(len(*v), lo, hi, field)
	if c.writing {
		c.b = append(c.b, *v...)
	} else {
		*v = orNil(c.take(n, field))
	}
}

func (c *coder) key(v *[]byte) { c.bytes(v, 1, MaxKey, "key") }

// text is a string of lo to hi bytes of UTF-8 after its length.
func (c *coder) text(v *string, lo, hi int, field string) {
	n := c.length(len(*v), lo, hi, field)
	if c.writing {
		c.check(utf8.ValidString(*v), field, "not UTF-8", uint64(n), uint64(hi))
		c.b = append(c.b, *v...)
		return
	}
	p := c.take(n, field)
	c.check(utf8.Valid(p), field, "not UTF-8", uint64(n), uint64(hi))
	if c.err == nil {
		*v = string(p)
	}
}

// lastText is a text that ends the payload, or is absent: which is how an empty one
// travels, so that no message has two encodings. Writers that do not know of the field
// leave it out.
func (c *coder) lastText(v *string, hi int, field string) {
	if c.writing && *v != "" || !c.writing && len(c.b) > 0 {
		c.text(v, 1, hi, field)
	} else {
		*v = ""
	}
}

// lastU64 is a number that ends the payload, or is absent, which is how 0 travels: as
// with lastText.
func (c *coder) lastU64(v *uint64, field string) {
	if c.writing && *v != 0 || !c.writing && len(c.b) > 0 {
		c.u64(v, field)
		c.check(*v != 0, field, "too small", *v, 1)
	} else {
		*v = 0
	}
}

// length is the length of a field as u16, from lo to hi.
func (c *coder) length(n, lo, hi int, field string) int {
	if c.writing {
		c.checkSize(n, lo, hi, field)
		c.b = le.AppendUint16(c.b, uint16(n))
	} else if p := c.take(2, field); p != nil {
		n = int(le.Uint16(p))
		c.checkSize(n, lo, hi, field)
	}
	return n
}

func (c *coder) checkSize(n, lo, hi int, field string) {
	c.check(n >= lo, field, "too short", uint64(n), uint64(lo))
	c.check(n <= hi, field, "too long", uint64(n), uint64(hi))
}

// rest is the last field, without a length: all that is left, lo to hi bytes.
func (c *coder) rest(v *[]byte, lo, hi int, field string) {
	if !c.writing {
		*v = orNil(c.take(len(c.b), field))
	}
	c.checkSize(len(*v), lo, hi, field)
	if c.writing {
		c.b = append(c.b, *v...)
	}
}

// list is a list of at most MaxList elements: see listUpTo.
func list[T any](c *coder, v *[]T, size int, field string) []T {
	return listUpTo(c, v, MaxList, size, field)
}

// listUpTo is the count of a list as u32, at most most, and, when reading, its
// memory, which the bytes that are there have paid for: each element takes at least
// size of them.
func listUpTo[T any](c *coder, v *[]T, most, size int, field string) []T {
	n := len(*v)
	if c.writing {
		c.check(n <= most, field, "too many", uint64(n), uint64(most))
		c.b = le.AppendUint32(c.b, uint32(n))
		return *v
	}
	n = 0
	if p := c.take(4, field); p != nil {
		got := uint64(le.Uint32(p))
		c.check(got <= uint64(most), field, "too many", got, uint64(most))
		c.check(got*uint64(size) <= uint64(len(c.b)), field, "truncated", uint64(len(c.b)), got*uint64(size))
		if c.err == nil {
			n = int(got)
		}
	}
	if cap(*v) < n {
		*v = make([]T, n)
	}
	*v = (*v)[:n]
	return *v
}

func (c *coder) keys(v *[][]byte) {
	for i := range list(c, v, 2+1, "keys") {
		c.key(&(*v)[i])
	}
}

func orNil(p []byte) []byte {
	if len(p) == 0 {
		return nil
	}
	return p
}
