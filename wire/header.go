package wire

import "encoding/binary"

// HeaderSize is the length of a header in bytes.
const HeaderSize = 24

// Version is the version of the frame format, and of the messages: see Hello.
const Version = 1

// FlagMore: further frames of this request or answer follow.
const FlagMore = 1

// magic is 'K', 'V' as the number that they are in a header.
const magic = 'K' | 'V'<<8

// le is the byte order of everything on the wire.
var le = binary.LittleEndian

// Header begins each frame.
//
//	0   2  magic
//	2   1  version of the frame format
//	3   1  type
//	4   2  flags
//	6   2  zero
//	8   8  request id
//	16  4  length of the payload
//	20  4  zero
type Header struct {
	Type  Type
	Flags uint16
	// ID is the requester's name for a request and all frames that belong to
	// it, 0 for frames that answer nothing.
	ID     uint64
	Length uint32 // of the payload in bytes
}

// More reports whether further frames of this request or answer follow.
func (h Header) More() bool { return h.Flags&FlagMore != 0 }

// AppendHeader appends h to dst. It panics with a *FrameError on a header that
// ParseHeader would refuse.
func AppendHeader(dst []byte, h Header) []byte {
	if err := h.check(); err != nil {
		panic(err)
	}
	dst = append(dst, 'K', 'V', Version, byte(h.Type))
	dst = le.AppendUint32(dst, uint32(h.Flags)) // and two reserved bytes
	dst = le.AppendUint64(dst, h.ID)
	return le.AppendUint64(dst, uint64(h.Length)) // and four reserved bytes
}

// ParseHeader reads the header at the start of b. With fewer than HeaderSize
// bytes the error is ErrShort; any other is a *FrameError and final: the stream
// cannot be read any further. Types that this version does not know are no
// error.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderSize {
		return Header{}, ErrShort
	}
	if got := le.Uint16(b); got != magic {
		return Header{}, &FrameError{CodeBadMagic, uint64(got), magic, ErrMagic}
	}
	if b[2] != Version {
		return Header{}, &FrameError{CodeBadVersion, uint64(b[2]), Version, ErrVersion}
	}
	// The codes have none of their own for reserved bytes: they are flags that
	// nobody has defined yet.
	if got := le.Uint16(b[6:]); got != 0 {
		return Header{}, &FrameError{CodeBadFlags, uint64(got), 0, ErrReserved}
	}
	if got := le.Uint32(b[20:]); got != 0 {
		return Header{}, &FrameError{CodeBadFlags, uint64(got), 0, ErrReserved}
	}
	h := Header{Type: Type(b[3]), Flags: le.Uint16(b[4:]), ID: le.Uint64(b[8:]), Length: le.Uint32(b[16:])}
	if err := h.check(); err != nil {
		return Header{}, err
	}
	return h, nil
}

// check holds flags and length against what the type allows.
func (h Header) check() error {
	k := h.Type.kind()
	if h.Flags&^k.may != 0 {
		return &FrameError{CodeBadFlags, uint64(h.Flags), uint64(k.may), ErrFlags}
	}
	if k.must&^h.Flags != 0 {
		return &FrameError{CodeBadFlags, uint64(h.Flags), uint64(k.must), ErrFlags}
	}
	if h.Length > k.max {
		return &FrameError{CodeBadLength, uint64(h.Length), uint64(k.max), ErrLength}
	}
	return nil
}

// Next cuts the first whole frame off b. The payload aliases b; rest is what
// follows it. The error is ErrShort when b ends before the frame, or that of
// ParseHeader; rest is b then.
func Next(b []byte) (h Header, payload, rest []byte, err error) {
	h, err = ParseHeader(b)
	if err != nil {
		return Header{}, nil, b, err
	}
	end := HeaderSize + int(h.Length)
	if len(b) < end {
		return Header{}, nil, b, ErrShort
	}
	return h, b[HeaderSize:end:end], b[end:], nil
}

// Need returns how many bytes, at least, are missing of the first frame in b: 0
// when Next has another answer for b than ErrShort.
func Need(b []byte) int {
	if len(b) < HeaderSize {
		return HeaderSize - len(b)
	}
	h, err := ParseHeader(b)
	if err != nil {
		return 0
	}
	return max(0, HeaderSize+int(h.Length)-len(b))
}
