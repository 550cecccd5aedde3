package wire

import "math"

// Get asks for the value of a key: Value and Data, or StatusMiss.
type Get struct {
	Key []byte
}

func (m *Get) fields(c *coder) {
	c.key(&m.Key)
}

// Append appends the frame to dst.
func (m *Get) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeGet, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Get) Parse(payload []byte) error {
	c := reader(TypeGet, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeGet.
func (*Get) Type() Type { return TypeGet }

// Set writes a value. Its first bytes are inline, the others follow in Data of the
// same request id while the frame's FlagMore is set. The answer is a StatusReply.
type Set struct {
	Verb      Verb
	TTLMillis uint64 // 0: until evicted
	Key       []byte
	Total     uint64 // bytes of the whole value
	Value     []byte // its first bytes, at most MaxChunk
	More      bool   // the header's flag: Append sets it, Parse leaves it alone
}

func (m *Set) fields(c *coder) {
	m.head(c)
	c.chunk(&m.Value, m.Total)
}

// head is the fields that go before the value.
func (m *Set) head(c *coder) {
	u8(c, &m.Verb, VerbSet, VerbSetIfAbsent, "verb")
	c.u64(&m.TTLMillis, "ttlMillis")
	c.key(&m.Key)
	c.u64(&m.Total, "total")
}

// AppendSetHeader appends what goes before the first n bytes of the value of
// a SET, so that these can be sent from where they are.
func AppendSetHeader(dst []byte, id uint64, verb Verb, ttlMillis uint64, key []byte, total uint64, n int, more bool) []byte {
	m := Set{Verb: verb, TTLMillis: ttlMillis, Key: key, Total: total}
	c := writer(dst, TypeSet, id, more)
	m.head(&c)
	c.checkChunk(n, total)
	return c.frame(n)
}

// ParseSetHead reads what goes before the value in a SET with a payload of length
// bytes, of which b is what has arrived: so the value can be moved to its place
// as it comes. n is the bytes read; length-n bytes of value follow. The error is
// ErrShort while the head is not complete.
func ParseSetHead(b []byte, length uint32) (m Set, n int, err error) {
	const keyAt = 1 + 8 // verb, ttlMillis
	b = b[:min(len(b), int(length))]
	n = keyAt + 2
	if len(b) >= n {
		n += int(le.Uint16(b[keyAt:])) + 8
	}
	if len(b) < n && len(b) < int(length) {
		return m, 0, ErrShort
	}
	c := reader(TypeSet, b[:min(len(b), n)])
	m.head(&c)
	c.checkChunk(int(length)-n, m.Total)
	return m, n, c.done()
}

// Append appends the frame to dst.
func (m *Set) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeSet, id, m.More)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Set) Parse(payload []byte) error {
	c := reader(TypeSet, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeSet.
func (*Set) Type() Type { return TypeSet }

// Value begins the answer to Get and Deliver. The bytes that are not inline follow in
// Data of the same request id while the frame's FlagMore is set.
type Value struct {
	Total uint64 // bytes of the whole value
	Value []byte // its first bytes, at most MaxChunk
	More  bool   // the header's flag: Append sets it, Parse leaves it alone
}

func (m *Value) fields(c *coder) {
	c.u64(&m.Total, "total")
	c.chunk(&m.Value, m.Total)
}

// AppendValueHeader appends what goes before the first n bytes of a VALUE, so
// that these can be sent from where they are.
func AppendValueHeader(dst []byte, id, total uint64, n int, more bool) []byte {
	c := writer(dst, TypeValue, id, more)
	c.u64(&total, "total")
	c.checkChunk(n, total)
	return c.frame(n)
}

// Append appends the frame to dst.
func (m *Value) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeValue, id, m.More)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Value) Parse(payload []byte) error {
	c := reader(TypeValue, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeValue.
func (*Value) Type() Type { return TypeValue }

// Data carries a further part of a value, in either direction. Parts come in order.
type Data struct {
	Offset uint64 // of the first byte in the value
	Bytes  []byte // 1 to MaxChunk
	More   bool   // the header's flag: Append sets it, Parse leaves it alone
}

func (m *Data) fields(c *coder) {
	c.u64(&m.Offset, "offset")
	c.rest(&m.Bytes, 1, MaxChunk, "bytes")
	c.checkEnd(m.Offset, len(m.Bytes))
}

// AppendDataHeader appends what goes before the n bytes of a DATA, so that these
// can be sent from where they are.
func AppendDataHeader(dst []byte, id, offset uint64, n int, more bool) []byte {
	c := writer(dst, TypeData, id, more)
	c.u64(&offset, "offset")
	c.checkSize(n, 1, MaxChunk, "bytes")
	c.checkEnd(offset, n)
	return c.frame(n)
}

// ParseDataHead is ParseSetHead for a DATA: the bytes belong at offset.
func ParseDataHead(b []byte, length uint32) (offset uint64, n int, err error) {
	b = b[:min(len(b), int(length))]
	if n = 8; len(b) < n && len(b) < int(length) {
		return 0, 0, ErrShort
	}
	c := reader(TypeData, b[:min(len(b), n)])
	c.u64(&offset, "offset")
	c.checkSize(int(length)-n, 1, MaxChunk, "bytes")
	c.checkEnd(offset, int(length)-n)
	return offset, n, c.done()
}

// checkEnd refuses a part that would end beyond the last offset there is.
func (c *coder) checkEnd(offset uint64, n int) {
	c.check(offset <= math.MaxUint64-uint64(n), "offset", "out of range", offset, math.MaxUint64-uint64(n))
}

// chunk is the first bytes of a value of total bytes: the rest of the payload.
func (c *coder) chunk(v *[]byte, total uint64) {
	c.rest(v, 0, MaxChunk, "value")
	c.checkChunk(len(*v), total)
}

func (c *coder) checkChunk(n int, total uint64) {
	c.checkSize(n, 0, MaxChunk, "value")
	c.check(uint64(n) <= total, "value", "longer than total", uint64(n), total)
}

// Append appends the frame to dst.
func (m *Data) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeData, id, m.More)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Data) Parse(payload []byte) error {
	c := reader(TypeData, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeData.
func (*Data) Type() Type { return TypeData }
