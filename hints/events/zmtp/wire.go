package zmtp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// Conditions callers may branch on.
var (
	// ErrProtocol: the peer does not speak ZMTP 3 with NULL security, or not to us.
	ErrProtocol = errors.New("ZMTP protocol error")
	// ErrTooLarge: a message exceeds Options.MaxMessage.
	ErrTooLarge = errors.New("ZMTP message too large")
	// ErrClosed: the socket was closed.
	ErrClosed = errors.New("socket closed")
)

// Kind is the type of a socket, as peers tell each other.
type Kind string

// The kinds that we are; peers may also be XSUB, XPUB, REQ or REP.
const (
	PUB    Kind = "PUB"
	SUB    Kind = "SUB"
	ROUTER Kind = "ROUTER"
	DEALER Kind = "DEALER"
)

// talksTo lists the kinds of peers that each kind accepts.
var talksTo = map[Kind]string{
	PUB:    "SUB XSUB",
	SUB:    "PUB XPUB",
	ROUTER: "REQ DEALER ROUTER",
	DEALER: "REP DEALER ROUTER",
}

func (k Kind) accepts(peer string) bool {
	for name := range strings.FieldsSeq(talksTo[k]) {
		if name == peer {
			return true
		}
	}
	return false
}

// Flags of a frame.
const (
	flagMore    = 1 << iota // another frame of the message follows
	flagLong                // the length has eight bytes
	flagCommand             // not part of a message
)

// AppendFrame appends one frame of a message; more says that another one follows.
func AppendFrame(dst, body []byte, more bool) []byte {
	flags := byte(0)
	if more {
		flags = flagMore
	}
	return append(appendHead(dst, flags, len(body)), body...)
}

// AppendMessage appends all frames of a message.
func AppendMessage(dst []byte, frames ...[]byte) []byte {
	for i, f := range frames {
		dst = AppendFrame(dst, f, i < len(frames)-1)
	}
	return dst
}

func appendHead(dst []byte, flags byte, n int) []byte {
	if n <= 255 {
		return append(dst, flags, byte(n))
	}
	return binary.BigEndian.AppendUint64(append(dst, flags|flagLong), uint64(n))
}

func appendCommand(dst []byte, name string, body []byte) []byte {
	dst = appendHead(dst, flagCommand, 1+len(name)+len(body))
	dst = append(append(dst, byte(len(name))), name...)
	return append(dst, body...)
}

// cutCommand splits the body of a command.
func cutCommand(b []byte) (name string, body []byte, err error) {
	if len(b) == 0 || len(b) < 1+int(b[0]) {
		return "", nil, fmt.Errorf("%w: command of %d bytes has no name", ErrProtocol, len(b))
	}
	n := 1 + int(b[0])
	return string(b[1:n]), b[n:], nil
}

const (
	greetingSize = 64
	ourMinor     = 1
)

// greeting is what both sides say first.
func greeting() []byte {
	g := make([]byte, greetingSize)
	g[0], g[9] = 0xff, 0x7f
	g[10], g[11] = 3, ourMinor
	copy(g[12:32], "NULL")
	return g
}

// checkGreeting returns the minor version of the peer.
func checkGreeting(g []byte) (minor byte, err error) {
	mechanism, _, _ := strings.Cut(string(g[12:32]), "\x00")
	switch {
	case g[0] != 0xff || g[9] != 0x7f:
		return 0, fmt.Errorf("%w: the first bytes are no ZMTP signature", ErrProtocol)
	case g[10] < 3:
		return 0, fmt.Errorf("%w: version %d.%d, at least 3.0 is needed", ErrProtocol, g[10], g[11])
	case mechanism != "NULL":
		return 0, fmt.Errorf("%w: security mechanism %q, only NULL is spoken", ErrProtocol, mechanism)
	case g[10] > 3:
		return ourMinor, nil
	}
	return g[11], nil
}

// ready is the body of the command that ends the handshake.
func ready(kind Kind, identity []byte) []byte {
	b := appendProperty(nil, "Socket-Type", []byte(kind))
	if kind == DEALER || kind == ROUTER {
		b = appendProperty(b, "Identity", identity)
	}
	return b
}

func appendProperty(dst []byte, name string, value []byte) []byte {
	dst = append(append(dst, byte(len(name))), name...)
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(value))), value...)
}

// peerKind finds the kind of the peer among the properties that it sent.
func peerKind(b []byte) (string, error) {
	kind := ""
	for len(b) > 0 {
		n := int(b[0])
		if len(b) < 1+n+4 {
			return "", fmt.Errorf("%w: property ends early", ErrProtocol)
		}
		name, rest := string(b[1:1+n]), b[1+n:]
		size := binary.BigEndian.Uint32(rest)
		if rest = rest[4:]; uint64(size) > uint64(len(rest)) {
			return "", fmt.Errorf("%w: value of property %q ends early", ErrProtocol, name)
		}
		if strings.EqualFold(name, "Socket-Type") {
			kind = string(rest[:size])
		}
		b = rest[size:]
	}
	if kind == "" {
		return "", fmt.Errorf("%w: the peer does not say what socket it is", ErrProtocol)
	}
	return kind, nil
}
