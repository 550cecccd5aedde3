// Package wire is the binary protocol of a node: its frames and messages as
// bytes. There is no I/O, no goroutine and no clock in it. PROTOCOL.md is the
// same for people who write a client in another language.
//
// A frame is a Header and a payload. Next cuts a frame off what has arrived,
// Header.Type names the message in it, and the message's Parse takes the
// payload. Each message has one Append, which writes the whole frame, and one
// Parse. Both run the same list of fields, so that
//
//	W1  what Append writes, Parse accepts, and gives the same fields
//	W2  what Parse accepts, Append writes again byte for byte: no message has
//	    two encodings
//	W3  Parse refuses whatever is not exactly one payload: short, long, or with
//	    a field outside its limits
//	W4  Parse reserves no memory from a number on the wire before it has seen
//	    that the bytes for it are there
//
// Byte slices in a parsed message alias the payload and live as long as it
// does; strings are copies. An empty byte field is nil. Lists reuse the memory
// of the message that is parsed into, so a message used again and again does
// not allocate. After an error the fields are undefined.
//
// Append panics with a *PayloadError on a message that Parse would refuse: that
// is a bug of the sender, and a frame of wrong length would make nonsense of all
// that follow. What comes from outside, such as keys, is checked first, against
// the limits below. The texts of Error, Goodbye, Refused and Outcomes are the
// exception: they are cut to fit.
package wire

// Limits. All are bytes, but MaxList. Those of an operation between nodes are with
// its messages.
const (
	// MaxChunk is the most bytes of a value in one frame, so that a large value
	// delays other answers of its connection by no more than that.
	MaxChunk = 256 << 10
	// MaxPayload is the most bytes after a header: a chunk and what goes before
	// it in a SET.
	MaxPayload = MaxChunk + 4<<10
	// MaxKey is the longest key; the shortest has one byte.
	MaxKey = 1024
	// MaxList is the most elements of a list. The largest answer to a list of
	// keys, CLAIMS, takes 30 bytes for each and so still fits one frame.
	MaxList = 8192
	// MaxName is the longest name: of a namespace, client or node, and also of an
	// address or socket. MaxText is the longest text of an ERROR, a GOODBYE, a
	// REFUSED or a request id of a hint.
	MaxName = 255
	MaxText = 1024
	// MaxLayout is the longest description of a layout. HELLO with one of these is
	// all that a server reads of somebody it does not know.
	MaxLayout = 8 << 10
	// MaxPing is the most bytes that a PING carries.
	MaxPing = 64
	// MinSecret is the shortest secret that CheckSecret accepts.
	MinSecret = 16
)

const _ = uint(MaxPayload - (4 + 30*MaxList)) // CLAIMS fits, see MaxList
