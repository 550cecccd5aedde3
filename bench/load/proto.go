package load

import (
	"fmt"
	"net"

	"github.com/kvcr-go/kvcr/wire"
)

// KeyBytes is the length of every key, rendered as redis-benchmark does.
const KeyBytes = 16

func appendKey(dst []byte, n int) []byte { return fmt.Appendf(dst, "key:%012d", n) }

func stampOf(key int) uint64 { return uint64(key)*0x9e3779b97f4a7c15 + 1 }

// dialect renders requests of one protocol, and knows what answers look like.
type dialect struct {
	// get and set append the request for key n; set leaves out the value, which is
	// sent in parts: before each, what head appends; after the last, tail.
	get  func(dst []byte, key int, id uint64) []byte
	head func(dst []byte, key int, id uint64, part int) []byte
	tail []byte
	// parts of a value of the size asked for, in bytes each.
	parts []int
	// getReply and setReply are the bytes of one answer; valueAt is where the value
	// begins in that of a get, begins what an answer begins with.
	getReply, setReply, valueAt int
	getBegins, setBegins        []byte
	// greet opens a connection.
	greet func(c net.Conn) error
}

func dialectOf(proto string, size int) (*dialect, error) {
	switch proto {
	case "resp":
		return respDialect(size), nil
	case "memcached":
		return memcachedDialect(size), nil
	case "binary":
		return binaryDialect(size), nil
	}
	return nil, fmt.Errorf("load: protocol %q: must be resp, memcached or binary", proto)
}

func respDialect(size int) *dialect {
	value := fmt.Sprintf("$%d\r\n", size)
	return &dialect{
		get: func(dst []byte, key int, _ uint64) []byte {
			dst = append(dst, "*2\r\n$3\r\nGET\r\n$16\r\n"...)
			return append(appendKey(dst, key), "\r\n"...)
		},
		head: func(dst []byte, key int, _ uint64, _ int) []byte {
			dst = append(dst, "*3\r\n$3\r\nSET\r\n$16\r\n"...)
			dst = append(appendKey(dst, key), "\r\n"...)
			return append(dst, value...)
		},
		tail: []byte("\r\n"), parts: []int{size},
		getReply: len(value) + size + 2, setReply: len("+OK\r\n"), valueAt: len(value),
		getBegins: []byte(value), setBegins: []byte("+OK\r\n"),
		greet: func(net.Conn) error { return nil },
	}
}

func memcachedDialect(size int) *dialect {
	begin := len("VALUE ") + KeyBytes + len(fmt.Sprintf(" 0 %d\r\n", size))
	return &dialect{
		get: func(dst []byte, key int, _ uint64) []byte {
			return append(appendKey(append(dst, "get "...), key), "\r\n"...)
		},
		head: func(dst []byte, key int, _ uint64, _ int) []byte {
			return fmt.Appendf(appendKey(append(dst, "set "...), key), " 0 0 %d\r\n", size)
		},
		tail: []byte("\r\n"), parts: []int{size},
		getReply: begin + size + len("\r\nEND\r\n"), setReply: len("STORED\r\n"), valueAt: begin,
		getBegins: []byte("VALUE key:"), setBegins: []byte("STORED\r\n"),
		greet: func(net.Conn) error { return nil },
	}
}

func binaryDialect(size int) *dialect {
	d := &dialect{tail: nil}
	for left := size; left > 0; left -= wire.MaxChunk {
		d.parts = append(d.parts, min(left, wire.MaxChunk))
	}
	d.get = func(dst []byte, key int, id uint64) []byte {
		m := wire.Get{Key: appendKey(nil, key)}
		return m.Append(dst, id)
	}
	var keyBuf [KeyBytes]byte
	d.head = func(dst []byte, key int, id uint64, part int) []byte {
		more := part < len(d.parts)-1
		if part == 0 {
			return wire.AppendSetHeader(dst, id, wire.VerbSet, 0, appendKey(keyBuf[:0], key), uint64(size), d.parts[0], more)
		}
		return wire.AppendDataHeader(dst, id, uint64(part*wire.MaxChunk), d.parts[part], more)
	}
	first := wire.AppendValueHeader(nil, 0, uint64(size), d.parts[0], len(d.parts) > 1)
	d.valueAt = len(first)
	d.getReply = len(first) + size
	for i, n := range d.parts[1:] {
		d.getReply += len(wire.AppendDataHeader(nil, 0, uint64((i+1)*wire.MaxChunk), n, i+2 < len(d.parts)))
	}
	ok := (&wire.StatusReply{}).Append(nil, 0)
	d.setReply = len(ok)
	d.getBegins, d.setBegins = first[:4], ok[:4]
	d.greet = func(c net.Conn) error {
		hello := wire.Hello{MinVersion: wire.Version, MaxVersion: wire.Version, Client: "bench"}
		if _, err := c.Write(hello.Append(nil, 0)); err != nil {
			return err
		}
		if err := await(c, wire.TypeChallenge); err != nil {
			return err
		}
		if _, err := c.Write((&wire.Auth{}).Append(nil, 0)); err != nil {
			return err
		}
		return await(c, wire.TypeWelcome)
	}
	return d
}

// await reads one frame and checks its type.
func await(c net.Conn, want wire.Type) error {
	var b []byte
	for {
		h, _, _, err := wire.Next(b)
		if err == nil {
			if h.Type != want {
				return fmt.Errorf("load: handshake: %v, want %v", h.Type, want)
			}
			return nil
		}
		if err != wire.ErrShort {
			return err
		}
		part := make([]byte, wire.Need(b))
		n, err := c.Read(part)
		if err != nil {
			return err
		}
		b = append(b, part[:n]...)
	}
}
