package zmtp

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// Options shape connections. The zero Options are valid.
type Options struct {
	// MaxMessage bounds the bytes of an inbound message. Default 64 MiB.
	MaxMessage int
	// Handshake bounds the time to connect, and that to shake hands. Default 5 s.
	Handshake time.Duration
	// MaxConns bounds the connections of a Listener; more are closed at once.
	// Default 1024.
	MaxConns int
}

func (o Options) withDefaults() Options {
	if o.MaxMessage <= 0 {
		o.MaxMessage = 64 << 20
	}
	if o.Handshake <= 0 {
		o.Handshake = 5 * time.Second
	}
	if o.MaxConns <= 0 {
		o.MaxConns = 1024
	}
	return o
}

// maxFrames bounds the frames of a message; events have five at most.
const maxFrames = 64

// keepAlive notices a peer that has vanished within 25 s.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}

// Message is what Read returns. Frames and what they hold are valid until the next
// Read into the same Message.
type Message struct {
	Frames [][]byte

	buf  []byte
	ends []int // in buf
}

// A Conn is one connection to a peer. One goroutine may read while others write.
type Conn struct {
	nc   net.Conn
	br   *bufio.Reader
	kind Kind
	opt  Options
	// commands says that subscriptions go as commands, which came with 3.1.
	commands bool

	wmu sync.Mutex // one message or command at a time
}

// Dial connects to an endpoint.
func Dial(ctx context.Context, endpoint string, kind Kind, opt Options) (*Conn, error) {
	opt = opt.withDefaults()
	network, address, err := split(endpoint)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, opt.Handshake)
	defer cancel()
	var nc net.Conn
	if network == "inproc" {
		nc, err = inproc.dial(ctx, address)
	} else {
		d := net.Dialer{KeepAliveConfig: keepAlive}
		nc, err = d.DialContext(ctx, network, address)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", endpoint, err)
	}
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	c, err := shake(nc, kind, opt)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("connect to %s: %w", endpoint, err)
	}
	return c, nil
}

func newConn(nc net.Conn, kind Kind, opt Options) *Conn {
	buffer := 64 << 10
	if kind == PUB || kind == ROUTER {
		buffer = 1 << 10 // who connects to these sends little, and may be many
	}
	return &Conn{nc: nc, br: bufio.NewReaderSize(nc, buffer), kind: kind, opt: opt}
}

// shake shakes hands over a new connection.
func shake(nc net.Conn, kind Kind, opt Options) (*Conn, error) {
	c := newConn(nc, kind, opt)
	nc.SetDeadline(time.Now().Add(opt.Handshake))
	// Both sides speak first, and a pipe holds nothing.
	sent := make(chan error, 1)
	go func() {
		_, err := nc.Write(appendCommand(greeting(), "READY", ready(kind, nil)))
		sent <- err
	}()
	err := c.hear()
	if err != nil && !errors.Is(err, ErrProtocol) {
		nc.Close() // ends the Write, which else tells the peer why we part
	}
	if werr := <-sent; err == nil && werr != nil {
		err = werr
	}
	if err != nil {
		return nil, fmt.Errorf("handshake: %w", err)
	}
	nc.SetDeadline(time.Time{})
	return c, nil
}

// hear reads the peer's side of the handshake.
func (c *Conn) hear() error {
	var g [greetingSize]byte
	if _, err := io.ReadFull(c.br, g[:]); err != nil {
		return err
	}
	minor, err := checkGreeting(g[:])
	if err != nil {
		return err
	}
	c.commands = minor >= 1
	var m Message
	flags, err := c.frame(&m, 64<<10)
	if err != nil {
		return err
	}
	if flags&flagCommand == 0 {
		return fmt.Errorf("%w: a message before READY", ErrProtocol)
	}
	name, body, err := cutCommand(m.buf)
	switch {
	case err != nil:
		return err
	case name == "ERROR":
		return fmt.Errorf("%w: the peer refuses: %q", ErrProtocol, body)
	case name != "READY":
		return fmt.Errorf("%w: command %q before READY", ErrProtocol, name)
	}
	peer, err := peerKind(body)
	if err != nil {
		return err
	}
	if !c.kind.accepts(peer) {
		return fmt.Errorf("%w: the peer is a %q, we are a %s", ErrProtocol, peer, c.kind)
	}
	return nil
}

// frame reads one frame to the end of m.buf, of at most room bytes.
func (c *Conn) frame(m *Message, room int) (flags byte, err error) {
	var head [9]byte
	if _, err := io.ReadFull(c.br, head[:2]); err != nil {
		return 0, err
	}
	flags = head[0]
	n := uint64(head[1])
	if flags&^(flagMore|flagLong|flagCommand) != 0 || flags&flagMore != 0 && flags&flagCommand != 0 {
		return 0, fmt.Errorf("%w: frame with flags %#x", ErrProtocol, flags)
	}
	if flags&flagLong != 0 {
		if _, err := io.ReadFull(c.br, head[2:]); err != nil {
			return 0, unexpected(err)
		}
		n = binary.BigEndian.Uint64(head[1:])
	}
	if n > uint64(room) {
		return 0, fmt.Errorf("%w: frame of %d bytes where %d are left of Options.MaxMessage", ErrTooLarge, n, room)
	}
	// Memory grows with what has arrived, not with what was announced.
	for left := int(n); left > 0; {
		step := min(left, max(64<<10, len(m.buf)))
		at := len(m.buf)
		m.buf = slices.Grow(m.buf, step)[:at+step]
		if _, err := io.ReadFull(c.br, m.buf[at:]); err != nil {
			return 0, unexpected(err)
		}
		left -= step
	}
	return flags, nil
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Read waits for the next message. At the end of the connection it returns io.EOF.
//
// To a PUB a subscription arrives as a message of one frame: 1 and the topic to begin,
// 0 and the topic to end.
func (c *Conn) Read(m *Message) error {
	m.buf, m.ends, m.Frames = m.buf[:0], m.ends[:0], m.Frames[:0]
	for {
		flags, err := c.frame(m, c.opt.MaxMessage-len(m.buf))
		if err != nil {
			if len(m.ends) > 0 {
				err = unexpected(err)
			}
			return err
		}
		if flags&flagCommand != 0 {
			if len(m.ends) > 0 {
				return fmt.Errorf("%w: a command inside a message", ErrProtocol)
			}
			if ok, err := c.command(m); err != nil || ok {
				return err
			}
			m.buf = m.buf[:0]
			continue
		}
		if m.ends = append(m.ends, len(m.buf)); flags&flagMore == 0 {
			break
		}
		if len(m.ends) == maxFrames {
			return fmt.Errorf("%w: more than %d frames", ErrTooLarge, maxFrames)
		}
	}
	at := 0
	for _, end := range m.ends {
		m.Frames = append(m.Frames, m.buf[at:end:end])
		at = end
	}
	return nil
}

// command answers or takes a command. True: m is now what it says.
func (c *Conn) command(m *Message) (bool, error) {
	name, body, err := cutCommand(m.buf)
	if err != nil {
		return false, err
	}
	switch name {
	case "PING": // two bytes of a time to live, then what PONG must repeat
		if len(body) < 2 || len(body) > 2+16 {
			return false, fmt.Errorf("%w: PING of %d bytes", ErrProtocol, len(body))
		}
		return false, c.Write(appendCommand(nil, "PONG", body[2:]))
	case "SUBSCRIBE", "CANCEL":
		// As the message that older peers send: its first byte takes the place of
		// the last one of the name.
		at := len(m.buf) - len(body) - 1
		m.buf[at] = 0
		if name == "SUBSCRIBE" {
			m.buf[at] = 1
		}
		m.Frames = append(m.Frames, m.buf[at:])
		return true, nil
	case "ERROR":
		return false, fmt.Errorf("%w: the peer reports %q", ErrProtocol, body)
	}
	return false, nil // unknown ones are for later versions
}

// Write sends wire, which is one or more whole messages as AppendMessage makes them.
// It waits until the system has taken them.
func (c *Conn) Write(wire []byte) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	_, err := c.nc.Write(wire)
	return err
}

// writeAll sends several wires.
func (c *Conn) writeAll(wires net.Buffers) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	_, err := wires.WriteTo(c.nc)
	return err
}

// Subscribe asks a PUB for all messages whose first frame begins with topic.
func (c *Conn) Subscribe(topic string) error {
	if c.commands {
		return c.Write(appendCommand(nil, "SUBSCRIBE", []byte(topic)))
	}
	return c.Write(AppendFrame(nil, append([]byte{1}, topic...), false))
}

// SetReadDeadline bounds the Reads after it; the zero Time does not. After a Read that
// it has ended, the Conn can only be closed.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.nc.SetReadDeadline(t) }

// SetWriteDeadline bounds the Writes after it.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.nc.SetWriteDeadline(t) }

// Close ends the connection, and Reads and Writes that wait. What was written may be
// lost.
func (c *Conn) Close() error {
	if err := c.nc.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// RemoteAddr names the peer for logs.
func (c *Conn) RemoteAddr() string { return c.nc.RemoteAddr().String() }
