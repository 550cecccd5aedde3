package server

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/internal/blockcopy"
	"github.com/kvcr-go/kvcr/wire/resp"
)

const (
	// streamFrom is the value size from which a SET's bytes go straight into the
	// block: shorter values are mostly whole in the first read.
	streamFrom = 16 << 10
	// readAhead is how many pipelined GETs and SETs are prepared together.
	readAhead = 16
	// maxArgs of one command. Clients with longer lists split them.
	maxArgs = 64 << 10
)

// respConn is the protocol of one RESP connection.
type respConn struct {
	p      resp.Parser
	cmd    resp.Command
	proto  int // 2, or 3 after HELLO 3
	authed bool
	name   string
	id     int64
	wrong  int // wrong passwords

	ahead []ahead // plain GETs and SETs that were read and not run yet
	keys  [][]byte
	set   streamedSet
}

// ahead is a GET, a SET, or one key of an MGET.
type ahead struct {
	key, value []byte
	kind       int
}

// streamedSet is a SET whose value is on its way.
type streamedSet struct {
	under bool              // between the command's head and its end
	left  int64             // bytes of value to come
	key   []byte            // own copy
	res   *kvcr.Reservation // nil when it was refused: the value is skipped
	dst   []byte            // what of the block is not written
	why   error             // of the refusal
}

func newRESP(s *Server) *respConn {
	c := &respConn{proto: 2, authed: s.opt.Password == "", id: s.accepted.Load(), ahead: make([]ahead, 0, readAhead), keys: make([][]byte, 0, readAhead)}
	c.limit()
	return c
}

// limit makes a parser between two commands: it takes little from those who have
// not authenticated.
func (c *respConn) limit() {
	if c.authed {
		c.p = resp.Parser{Limits: resp.Limits{MaxArgs: maxArgs}, StreamFrom: streamFrom}
		return
	}
	c.p = resp.Parser{Limits: resp.Limits{MaxArgs: 8, MaxInline: 1 << 10, MaxBulk: 1 << 10, MaxCommand: 4 << 10}}
}

func (c *respConn) want() []byte {
	if !c.set.under || c.set.res == nil {
		return nil
	}
	return c.set.dst[:c.set.left]
}

func (c *respConn) took(_ *session, n int) {
	if c.set.res != nil {
		c.set.dst = c.set.dst[n:]
	}
	c.set.left -= int64(n)
}

func (c *respConn) rebind(h *kvcr.Handle) error {
	if c.set.res == nil {
		return nil
	}
	return c.set.res.Attach(h)
}

func (c *respConn) abort() {
	if c.set.res != nil {
		c.set.res.Abort()
	}
	c.set = streamedSet{}
}

func (c *respConn) feed(s *session, b []byte) (used int, err error) {
	if err := c.runAhead(s); err != nil { // what an earlier turn had no room for
		return 0, err
	}
	for used < len(b) {
		rest := b[used:]
		var n int
		switch {
		case c.set.under && c.set.left > 0:
			used += c.take(s, rest)
			continue
		case c.set.under:
			n, err = c.p.Rest(rest, &c.cmd)
		default:
			n, err = c.p.Next(rest, &c.cmd)
		}
		if errors.Is(err, resp.ErrShort) {
			return used, c.runAhead(s)
		}
		if err == nil && c.readOn() {
			used += n
			if len(c.ahead) == readAhead {
				err = c.runAhead(s)
			}
			if err != nil {
				return used, err
			}
			continue
		}
		if e := c.runAhead(s); e != nil {
			return used, e
		}
		if err != nil {
			s.out.text = resp.AppendError(s.out.text, "ERR "+err.Error())
			return used, errQuit
		}
		used += n
		switch {
		case c.set.under:
			err = c.endSet(s)
		case c.cmd.Streaming:
			c.beginSet(s)
			continue
		default:
			err = c.run(s)
		}
		if err == nil {
			err = s.mayFlush()
		}
		if err != nil {
			return used, err
		}
	}
	return used, c.runAhead(s)
}

// readOn notes the command just read if it is a plain GET or SET, to be run with
// those that follow.
func (c *respConn) readOn() bool {
	a := c.cmd.Args
	if c.set.under || c.cmd.Streaming || !c.authed || len(a) < 2 || len(a) > 3 || len(a[0]) != 3 || a[0][1]|0x20 != 'e' || a[0][2]|0x20 != 't' {
		return false
	}
	switch {
	case a[0][0]|0x20 == 'g' && len(a) == 2:
		c.ahead = append(c.ahead, ahead{key: a[1], kind: commandGet})
	case a[0][0]|0x20 == 's' && len(a) == 3:
		c.ahead = append(c.ahead, ahead{a[1], a[2], commandSet})
	default:
		return false
	}
	return true
}

// runAhead runs what has been read ahead, in order. Pipelined commands come
// together, so that their cache misses overlap.
func (c *respConn) runAhead(s *session) error {
	if len(c.ahead) == 0 {
		return nil
	}
	for i := range c.ahead {
		a := &c.ahead[i]
		if i%readAhead == 0 {
			c.prefetch(s, c.ahead[i:min(i+readAhead, len(c.ahead))])
		}
		var err error
		switch a.kind {
		case commandSet:
			s.count(commandSet)
			err = c.put(s, a.key, a.value, setOptions{})
		case commandGet:
			s.count(commandGet)
			err = c.get(s, a.key)
		default: // counted already, whole
			s.command = a.kind
			err = c.get(s, a.key)
		}
		if err == nil {
			err = s.mayFlush()
		}
		if err != nil {
			c.keepAhead(i + 1)
			return err
		}
	}
	c.keepAhead(len(c.ahead))
	return nil
}

func (c *respConn) prefetch(s *session, lot []ahead) {
	for i := range lot {
		c.keys = append(c.keys, lot[i].key)
	}
	s.h.Prefetch(c.keys)
	clear(c.keys)
	c.keys = c.keys[:0]
}

// keepAhead forgets the first n commands read ahead. The others are for a later
// turn, and the input that they lie in is not ours until then.
func (c *respConn) keepAhead(n int) {
	left := copy(c.ahead, c.ahead[n:])
	clear(c.ahead[left:])
	c.ahead = c.ahead[:left]
	if left == 0 && cap(c.ahead) > readAhead { // of an MGET
		c.ahead = make([]ahead, 0, readAhead)
	}
	for i := range c.ahead {
		a := &c.ahead[i]
		a.key, a.value = bytes.Clone(a.key), bytes.Clone(a.value)
	}
}

// beginSet takes memory for a value that is on its way.
func (c *respConn) beginSet(s *session) {
	c.set = streamedSet{under: true, left: c.cmd.ValueLen, key: append(c.set.key[:0], c.cmd.Args[1]...)}
	if c.set.left > int64(maxInt) {
		c.set.why = kvcr.ErrTooLarge
		return
	}
	c.set.res, c.set.why = s.h.Reserve(c.target(s, c.set.key), int(c.set.left))
	if c.set.why == nil {
		c.set.dst = c.set.res.Bytes()
	}
}

const maxInt = int(^uint(0) >> 1)

// take moves bytes of the value to their place and returns how many.
func (c *respConn) take(s *session, b []byte) int {
	n := int(min(c.set.left, int64(len(b))))
	if c.set.res != nil {
		blockcopy.Copy(c.set.dst[:n], b[:n])
	}
	c.took(s, n)
	return n
}

// endSet commits a value that is complete.
func (c *respConn) endSet(s *session) error {
	set := c.set
	c.set = streamedSet{key: set.key}
	s.count(commandSet)
	if set.why != nil {
		return c.fail(s, set.why)
	}
	opt, err := parseSetOptions(c.cmd.Args)
	if err != nil {
		set.res.Abort()
		c.reply(s, err.Error())
		return nil
	}
	return c.store(s, set.key, opt, func() (bool, error) {
		if opt.absent {
			return set.res.CommitAbsent()
		}
		return true, set.res.Commit()
	}, func() { set.res.Abort() })
}

// fail answers a command that could not be done, and ends the session: clients
// that read answers of a fixed length would be out of step from here on.
func (c *respConn) fail(s *session, err error) error {
	s.failed()
	s.out.text = resp.AppendError(s.out.text, errorText(err))
	return errQuit
}

// errorText is what a client reads of an error of the engine.
func errorText(err error) string {
	var e *kvcr.OpError
	switch {
	case errors.As(err, &e) && errors.Is(e.Err, kvcr.ErrTooLarge):
		return fmt.Sprintf("ERR value of %d bytes is too large: at most %d", e.Value, e.Limit)
	case errors.As(err, &e) && errors.Is(e.Err, kvcr.ErrKey):
		return fmt.Sprintf("ERR key of %d bytes: must be 1 to %d", e.Value, e.Limit)
	case errors.Is(err, kvcr.ErrFull):
		return "OOM everything that could be evicted is in use; try again, or give the node more memory"
	}
	return "ERR " + err.Error()
}
