package resp

import (
	"bytes"
	"strconv"
)

// Kind is what a reply is; its value is the byte that begins it.
type Kind byte

// The kinds of replies.
const (
	Simple   Kind = '+'
	Error    Kind = '-'
	Int      Kind = ':'
	Bulk     Kind = '$'
	Array    Kind = '*'
	Null     Kind = '_' // also the null bulk and the null array of RESP2
	Map      Kind = '%'
	Bool     Kind = '#'
	Double   Kind = ','
	Push     Kind = '>'
	Verbatim Kind = '='
)

// Reply is one reply, of any kind.
type Reply struct {
	Kind Kind
	// Text is the text of a simple string or error, or the bytes of a bulk or
	// verbatim string, the latter without its format. It aliases the bytes that
	// were parsed.
	Text []byte
	Int  int64 // of Int; 0 or 1 for Bool
	// Double may be infinite or not a number.
	Double float64
	// Items are the replies in an array or push. In a map each key is followed by
	// its value.
	Items []Reply
}

// What a reply may be.
const (
	maxDepth = 8         // aggregates in each other
	maxLine  = 64 << 10  // bytes
	maxBulk  = 512 << 20 // bytes; redis' own limit
	maxItems = 1 << 20   // of one aggregate; maps have twice as many
)

const (
	errReplyKind   ProtocolError = "invalid reply: unknown type"
	errReplyLine   ProtocolError = "invalid reply: bad line"
	errReplyNumber ProtocolError = "invalid reply: bad number"
	errReplyLength ProtocolError = "invalid reply: bad length"
	errReplyDepth  ProtocolError = "invalid reply: nested too deep"
)

// ReadReply parses the reply at the start of b and returns how many bytes it
// used. The error is ErrShort or a ProtocolError, and n is 0 then. Unlike a
// Parser it begins anew at each call, so a client should call it when much has
// arrived, not for each byte.
//
// Memory is bounded by len(b), whatever lengths it states; aggregates may be
// nested eight deep.
func ReadReply(b []byte) (r Reply, n int, err error) {
	rd := reader{b: b}
	if err := rd.reply(&r, 0); err != nil {
		return Reply{}, 0, err
	}
	return r, rd.pos, nil
}

// reader is a position in a reply.
type reader struct {
	b   []byte
	pos int
}

func (rd *reader) reply(r *Reply, depth int) error {
	if rd.pos == len(rd.b) {
		return ErrShort
	}
	r.Kind = Kind(rd.b[rd.pos])
	rd.pos++
	switch r.Kind {
	case Simple, Error, Int, Bulk, Array, Null, Map, Bool, Double, Push, Verbatim:
	default:
		return errReplyKind
	}
	line, err := rd.line()
	if err != nil {
		return err
	}
	switch r.Kind {
	case Simple, Error:
		r.Text = line
		return nil
	case Int:
		v, ok := parseInt(line)
		if !ok {
			return errReplyNumber
		}
		r.Int = v
		return nil
	case Double:
		r.Double, err = parseDouble(line)
		return err
	case Null:
		if len(line) > 0 {
			return errReplyLine
		}
		return nil
	case Bool:
		if len(line) != 1 || line[0] != 't' && line[0] != 'f' {
			return errReplyLine
		}
		if line[0] == 't' {
			r.Int = 1
		}
		return nil
	}
	size, ok := parseInt(line)
	if ok && size == -1 && (r.Kind == Bulk || r.Kind == Array) {
		r.Kind = Null
		return nil
	}
	if !ok || size < 0 {
		return errReplyLength
	}
	if r.Kind == Bulk || r.Kind == Verbatim {
		return rd.bulk(r, size)
	}
	return rd.items(r, size, depth)
}

// line returns the rest of the line, without its end.
func (rd *reader) line() ([]byte, error) {
	b := rd.b[rd.pos:]
	if len(b) > maxLine {
		b = b[:maxLine+1]
	}
	end := bytes.IndexByte(b, '\n')
	if end < 0 {
		if len(b) > maxLine {
			return nil, errReplyLine
		}
		return nil, ErrShort
	}
	line, ok := bytes.CutSuffix(b[:end], []byte{'\r'})
	if !ok || bytes.IndexByte(line, '\r') >= 0 {
		return nil, errReplyLine
	}
	rd.pos += end + 1
	return line[:len(line):len(line)], nil
}

func (rd *reader) bulk(r *Reply, size int64) error {
	if size > maxBulk {
		return errReplyLength
	}
	b := rd.b[rd.pos:]
	if int64(len(b)) < size+2 {
		return ErrShort
	}
	if b[size] != '\r' || b[size+1] != '\n' {
		return errReplyLength
	}
	r.Text = b[:size:size]
	rd.pos += int(size) + 2
	if r.Kind == Verbatim {
		if size < 4 || r.Text[3] != ':' {
			return errReplyLength
		}
		r.Text = r.Text[4:]
	}
	return nil
}

func (rd *reader) items(r *Reply, size int64, depth int) error {
	if size > maxItems {
		return errReplyLength
	}
	if depth == maxDepth {
		return errReplyDepth
	}
	if r.Kind == Map {
		size *= 2
	}
	r.Items = []Reply{}
	for range size {
		var item Reply
		if err := rd.reply(&item, depth+1); err != nil {
			return err
		}
		r.Items = append(r.Items, item)
	}
	return nil
}

// parseDouble parses a decimal number, inf, -inf or nan.
func parseDouble(s []byte) (float64, error) {
	switch string(s) {
	case "inf", "-inf", "nan":
	default:
		for _, c := range s { // strconv takes hexadecimals and underscores, too
			if (c < '0' || c > '9') && bytes.IndexByte([]byte("+-.eE"), c) < 0 {
				return 0, errReplyNumber
			}
		}
	}
	v, err := strconv.ParseFloat(string(s), 64)
	if err != nil {
		return 0, errReplyNumber
	}
	return v, nil
}
