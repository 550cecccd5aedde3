package client

import (
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/kvcr-go/kvcr/wire"
)

var errQuiet = errors.New("the node answers nothing")

// read takes frames until the connection ends.
func (c *conn) read() {
	defer c.cl.forget(c)
	var broken *Error
	switch err := c.frames(); {
	case errors.As(err, &broken):
		broken.Op, broken.Addr = "connection", c.cl.opt.Addr
		c.fail(broken)
	default:
		c.lost(err)
	}
}

// frames returns an *Error for what the node said, any other for what the system
// did.
func (c *conn) frames() error {
	for {
		if err := c.fill(wire.HeaderSize); err != nil {
			if err == io.ErrUnexpectedEOF && c.w == c.r {
				err = io.EOF
			}
			return err
		}
		h, err := wire.ParseHeader(c.in[c.r:c.w])
		if err != nil {
			return &Error{Err: ErrProtocol, Cause: err}
		}
		if !h.Type.FromServer() || h.Type == wire.TypeChallenge || h.Type == wire.TypeWelcome {
			return violation("%v of id %d", h.Type, h.ID)
		}
		c.r += wire.HeaderSize
		kick := false
		switch {
		case h.Type == wire.TypeValue || h.Type == wire.TypeData:
			kick, err = c.chunk(h)
		default:
			if err := c.fill(int(h.Length)); err != nil {
				return err
			}
			payload := c.in[c.r : c.r+int(h.Length)]
			c.r += int(h.Length)
			switch {
			case h.ID == 0:
				err = c.word(h, payload)
			case h.Type == wire.TypeEvents || h.Type == wire.TypeOutcomes:
				err = c.stream(h, payload)
			default:
				kick, err = c.message(h, payload)
			}
		}
		if errors.Is(err, wire.ErrPayload) {
			err = &Error{Err: ErrProtocol, Cause: err}
		}
		if err != nil {
			return err
		}
		if kick {
			c.push()
		}
		if why := c.over(); why != nil {
			return why
		}
	}
}

// fill reads until n bytes are there, at most wire.MaxPayload.
func (c *conn) fill(n int) error {
	if c.w-c.r >= n {
		return nil
	}
	if c.r == c.w || c.r+n > len(c.in) {
		in := c.in
		if n > len(in) {
			in = make([]byte, n)
		}
		c.w = copy(in, c.in[c.r:c.w])
		c.in, c.r = in, 0
	}
	for c.w-c.r < n {
		k, err := c.nc.Read(c.in[c.w:])
		c.w += k
		if k > 0 {
			c.reads.Add(1)
		} else if err == io.EOF {
			return io.ErrUnexpectedEOF
		} else if err != nil {
			return err
		}
	}
	return nil
}

// over returns why the connection ends, once the node has said goodbye and has no
// more answers to give.
func (c *conn) over() *Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bye == nil || c.live > 0 {
		return nil
	}
	return c.bye
}

// word takes a frame that answers nothing.
func (c *conn) word(h wire.Header, payload []byte) error {
	switch h.Type {
	case wire.TypeError:
		var m wire.ErrorReply
		if err := m.Parse(payload); err != nil {
			return err
		}
		return codeError(&m)
	case wire.TypeGoodbye:
		var m wire.Goodbye
		if err := m.Parse(payload); err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ok.Store(false)
		c.bye = &Error{Op: "connection", Addr: c.cl.opt.Addr, Code: m.Reason, Text: m.Text, Err: ErrLost, Cause: ErrClosing}
		return nil
	}
	return violation("%v without an id", h.Type)
}

// lookup returns the call of an id, nil if there is none.
func (c *conn) lookup(id uint64) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[id]
}

// message takes a frame that is a whole answer, or its end. kick: the caller has
// to push.
func (c *conn) message(h wire.Header, payload []byte) (kick bool, err error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	k := c.lookup(h.ID)
	switch {
	case k == nil:
		return false, violation("%v for id %d, which was not asked for", h.Type, h.ID)
	case !isTombstone(k):
		if err := k.parse(h.Type, payload); err != nil {
			return false, err
		}
	}
	return c.finish(h, payload)
}

// finish ends what the id of an answer's last frame names, which is in the table.
// rmu held.
func (c *conn) finish(h wire.Header, payload []byte) (kick bool, err error) {
	c.mu.Lock()
	k := c.calls[h.ID]
	if k == nil {
		c.mu.Unlock()
		return false, nil // fail was first
	}
	delete(c.calls, h.ID)
	if isTombstone(k) {
		defer c.mu.Unlock()
		if k == claimsTombstone && h.Type == wire.TypeClaims {
			return c.giveBack(payload)
		}
		if k == placeTombstone && h.Type == wire.TypeReservation {
			return c.giveBackPlace(payload)
		}
		<-c.slots
		return false, nil
	}
	if unsent := c.ended(k); unsent {
		// Answered before its last chunk was sent: CANCEL takes that one's place.
		c.buf = (&wire.Cancel{Target: k.id}).Append(c.buf, 0)
		kick = c.takeRole()
	}
	for i := range k.granted.Claims {
		if g := &k.granted.Claims[i]; g.Status == wire.StatusOK {
			ours := c.cl.lastClaim.Add(1)
			c.claims[ours] = g.Claim
			g.Claim = ours
		}
	}
	c.mu.Unlock()
	if k.bulk {
		c.detach(k)
	}
	<-c.slots
	k.done <- struct{}{}
	return kick, nil
}

// giveBack releases claims that came for a call that was given up. The RELEASE
// takes over the call's slot. mu held.
func (c *conn) giveBack(payload []byte) (kick bool, err error) {
	var m wire.Claims
	if err := m.Parse(payload); err != nil {
		return false, err
	}
	var r wire.Release
	for _, g := range m.Claims {
		if g.Status == wire.StatusOK {
			r.Claims = append(r.Claims, g.Claim)
		}
	}
	if len(r.Claims) == 0 {
		<-c.slots
		return false, nil
	}
	c.lastID++
	c.calls[c.lastID] = tombstone
	c.buf = r.Append(c.buf, c.lastID)
	return c.takeRole(), nil
}

// stream takes a frame of a stream, which has the connection to itself.
func (c *conn) stream(h wire.Header, payload []byte) error {
	k := c.lookup(h.ID)
	if k == nil || k.feed == nil || ops[k.op].answer != h.Type {
		return violation("%v for id %d", h.Type, h.ID)
	}
	return k.feed.take(payload, c.gone)
}

// chunk takes a part of a value: what is there of it from the buffer, the rest
// straight to where it goes.
func (c *conn) chunk(h wire.Header) (kick bool, err error) {
	// The fields before the bytes, and for DATA one byte, which it must have:
	// what has come of such a payload is itself one.
	head := 8
	if h.Type == wire.TypeData {
		head = 9
	}
	if err := c.fill(min(head, int(h.Length))); err != nil {
		return false, err
	}
	n := min(int(h.Length), c.w-c.r)
	p := c.in[c.r : c.r+n]
	var at, total uint64
	var v wire.Value
	var d wire.Data
	if h.Type == wire.TypeValue {
		err = v.Parse(p)
		p, total = v.Value, v.Total
	} else {
		err = d.Parse(p)
		p, at = d.Bytes, d.Offset
	}
	if err != nil {
		return false, err
	}
	c.r += n
	kick, err = c.place(h, p, at, total)
	if left := int(h.Length) - n; err == nil && left > 0 {
		return c.placeRest(h, left)
	}
	return kick, err
}

// place takes the bytes of a chunk that are in the buffer, and ends the call if
// they are the last of the value.
func (c *conn) place(h wire.Header, p []byte, at, total uint64) (kick bool, err error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	k := c.lookup(h.ID)
	if k == nil {
		return false, violation("%v for id %d, which was not asked for", h.Type, h.ID)
	}
	size := int(h.Length) - 8
	if !isTombstone(k) {
		if err := k.value(h, size, at, total, &c.lim); err != nil {
			return false, err
		}
		k.put(p)
	}
	if len(p) == size && !h.More() {
		return c.finish(h, nil)
	}
	return false, nil
}

// placeRest reads the last bytes of a chunk, none of which are in the buffer.
func (c *conn) placeRest(h wire.Header, left int) (kick bool, err error) {
	c.direct.id, c.direct.left, c.direct.err = h.ID, left, nil
	if err := c.raw.Read(c.readFn); err != nil {
		return false, err
	}
	if c.direct.err != nil || h.More() {
		return false, c.direct.err
	}
	c.rmu.Lock()
	defer c.rmu.Unlock()
	return c.finish(h, nil)
}

// readReady reads to where a chunk goes until it is whole, or nothing is there. It
// reports whether the attempt is over.
func (c *conn) readReady(fd uintptr) bool {
	for c.direct.left > 0 {
		n, err := c.readPart(fd)
		switch {
		case err == syscall.EINTR:
		case err == syscall.EAGAIN:
			return false
		case err != nil:
			c.direct.err = fmt.Errorf("read: %w", err)
			return true
		case n <= 0:
			c.direct.err = io.ErrUnexpectedEOF
			return true
		default:
			c.reads.Add(1)
			c.direct.left -= n
		}
	}
	return true
}

// readPart makes one system call. What nobody waits for any more goes into the
// buffer, which is empty, and no further.
func (c *conn) readPart(fd uintptr) (int, error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	k := c.lookup(c.direct.id)
	if k == nil || isTombstone(k) || k.short {
		n, err := syscall.Read(int(fd), c.in[:min(len(c.in), c.direct.left)])
		if k != nil && k.short && n > 0 {
			k.have += uint64(n)
		}
		return n, err
	}
	n, err := syscall.Read(int(fd), k.space(c.direct.left))
	if n > 0 {
		k.have += uint64(n)
	}
	return n, err
}
