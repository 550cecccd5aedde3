package resp

import (
	"bytes"
	"errors"
	"math"
	"slices"
)

// ErrShort: the bytes given end before the command or reply does. Call again
// with the same bytes and more behind them.
var ErrShort = errors.New("resp: more bytes are needed")

// ProtocolError: the stream is not RESP, or exceeds a limit. Where the next
// command begins is unknown, so the connection cannot go on: the client is told
// the text, behind "-ERR ", and the connection closed.
type ProtocolError string

// Error returns the text that clients know.
func (e ProtocolError) Error() string { return string(e) }

const (
	errCount      ProtocolError = "Protocol error: invalid multibulk length"
	errCountLine  ProtocolError = "Protocol error: too big mbulk count string"
	errBulk       ProtocolError = "Protocol error: invalid bulk length"
	errBulkLine   ProtocolError = "Protocol error: too big bulk count string"
	errInlineLine ProtocolError = "Protocol error: too big inline request"
	errQuotes     ProtocolError = "Protocol error: unbalanced quotes in request"
	errTotal      ProtocolError = "Protocol error: too big request"
)

// Limits bound what one command may be. Zero fields take defaults.
type Limits struct {
	// MaxArgs is the most arguments of a command, its name included. Default
	// 65536.
	MaxArgs int
	// MaxInline is the most bytes of a line: an inline command or the header of
	// an array or bulk. It bounds what is skipped before a command as well.
	// Default 64 KiB.
	MaxInline int
	// MaxBulk is the most bytes of one argument, values that are streamed
	// excepted. Default 64 MiB.
	MaxBulk int64
	// MaxCommand is how many bytes the arguments of a command may have together
	// beyond MaxBulk: payload, in one value or many, has room for MaxBulk, and
	// all else for MaxCommand. Values that are streamed do not count. Default
	// 1 MiB.
	MaxCommand int
}

const defaultMaxStream = 512 << 20 // as redis' proto-max-bulk-len

// Command is one command, filled by a Parser.
type Command struct {
	// Args are the name and the arguments. They alias the bytes given to the
	// Parser, or memory of the Parser where quotes had to be resolved, and are
	// valid until those bytes change or the Parser is called again. The slice
	// itself is used again by the next call.
	Args [][]byte
	// Streaming says that only the name and the key of a SET are in Args: the
	// value's ValueLen bytes come next in the stream, then what Rest parses.
	Streaming bool
	ValueLen  int64 // bytes; zero unless Streaming
}

// keptArgs is the largest capacity in arguments that is kept from one command to
// the next: else a single large command would cost its connection for life.
const keptArgs = 1024

// reset empties the command. Pointers go too: an idle connection must not keep
// an input buffer alive.
func (c *Command) reset() {
	clear(c.Args)
	c.Args = c.Args[:0]
	if cap(c.Args) > keptArgs {
		c.Args = nil
	}
	c.Streaming, c.ValueLen = false, 0
}

// Parser cuts commands out of a byte stream. The zero Parser is ready; the
// exported fields must not change after the first call. One user at a time. A
// Parser must not be copied after its first call.
//
// A call that finds no whole command returns 0 and ErrShort, and the Parser
// remembers how far it came. The caller must then pass a slice that begins with
// the same bytes, at the same or another address, and is longer; so a command
// costs time linear in its length however it arrives.
//
// After a ProtocolError every call returns that error.
type Parser struct {
	Limits Limits
	// StreamFrom is the size in bytes from which the value of a SET is left to
	// the caller, see Next. 0: never.
	StreamFrom int64
	// MaxStream is the most bytes of such a value, whatever MaxBulk is. Default
	// 512 MiB.
	MaxStream int64

	ready     bool
	limits    Limits // with defaults
	maxStream int64
	err       error

	// The command that is being parsed. Positions count from the start of the
	// caller's bytes.
	//
	// Invariant: pos <= seen <= pos+limits.MaxInline+1.
	pos   int    // everything before it is parsed
	seen  int    // the line at pos does not end before it
	left  int    // arguments to come; 0 between commands
	body  bool   // the header of the next argument is parsed
	size  int64  // then: its bytes
	room  int64  // bytes that the arguments to come may have
	spans []span // the arguments so far
	rest  bool   // a value is with the caller: Rest is next

	unquoted []byte // arguments of an inline command without their quotes

	// searched counts the bytes looked at for the end of a line. All other work
	// is a step for each call, header and argument. Tests bound it.
	searched int64
}

// span is an argument's place.
type span struct{ lo, hi int }

// configure fills in defaults.
func (p *Parser) configure() {
	or := func(v, def int64) int64 {
		if v <= 0 {
			return def
		}
		return v
	}
	l := p.Limits
	p.limits = Limits{
		MaxArgs:    int(or(int64(l.MaxArgs), 65536)),
		MaxInline:  int(or(int64(l.MaxInline), 64<<10)),
		MaxBulk:    or(l.MaxBulk, 64<<20),
		MaxCommand: int(or(int64(l.MaxCommand), 1<<20)),
	}
	p.maxStream = or(p.MaxStream, defaultMaxStream)
	p.ready = true
}

// Next parses the command at the start of b into cmd and returns how many bytes
// it used. Commands are arrays of bulk strings, or lines of words and quoted
// words. Empty lines, empty arrays and null arrays before it are skipped and
// count as used; a command has at least one argument.
//
// The error is ErrShort or a ProtocolError, and n is 0 then.
//
// If StreamFrom is set and the command is an array that begins with SET, a key
// and a value of StreamFrom bytes or more, Next returns as soon as it knows the
// value's length: n ends before the first byte of the value, and cmd.Streaming
// is true. The caller must then take cmd.ValueLen bytes from the stream and call
// Rest until that succeeds; Next panics before.
func (p *Parser) Next(b []byte, cmd *Command) (n int, err error) {
	if p.rest && p.err == nil {
		panic("resp: Next called where Rest is due")
	}
	if !p.ready {
		p.configure()
	}
	cmd.reset()
	if p.err == nil {
		n, err = p.next(b, cmd)
	}
	return p.settle(n, err, cmd)
}

// Rest parses what follows a streamed value: the end of its line, and the
// arguments behind it, which cmd.Args then holds without those that Next
// returned. Results are as Next's; n is never 0 without an error. Rest panics
// unless a value was streamed.
func (p *Parser) Rest(b []byte, cmd *Command) (n int, err error) {
	if !p.rest && p.err == nil {
		panic("resp: Rest called without a streamed value")
	}
	cmd.reset()
	if p.err == nil {
		n, err = p.after(b, cmd)
	}
	return p.settle(n, err, cmd)
}

// settle ends a call: a ProtocolError stays, and no half command is returned.
func (p *Parser) settle(n int, err error, cmd *Command) (int, error) {
	if p.err == nil && err != nil && err != ErrShort {
		p.err = err
		p.spans, p.unquoted = nil, nil
	}
	if p.err != nil {
		cmd.reset()
		return 0, p.err
	}
	return n, err
}

func (p *Parser) next(b []byte, cmd *Command) (int, error) {
	for p.left == 0 {
		if p.pos > p.limits.MaxInline {
			return 0, errInlineLine // the caller keeps what was skipped
		}
		if p.pos == len(b) {
			return 0, ErrShort
		}
		if b[p.pos] != '*' {
			if err := p.inline(b, cmd); err != nil {
				return 0, err
			}
			if len(cmd.Args) > 0 {
				return p.used(), nil
			}
			continue
		}
		count, err := p.header(b, errCountLine, errCount)
		if err != nil {
			return 0, err
		}
		if count > int64(p.limits.MaxArgs) {
			return 0, errCount
		}
		p.left = int(max(count, 0))
		p.room = p.limits.MaxBulk + int64(p.limits.MaxCommand)
		if p.room < 0 {
			p.room = math.MaxInt64
		}
	}
	return p.arguments(b, cmd)
}

// after parses what follows a streamed value.
func (p *Parser) after(b []byte, cmd *Command) (int, error) {
	if p.pos == 0 {
		if len(b) < 2 {
			return 0, ErrShort
		}
		if b[0] != '\r' || b[1] != '\n' {
			return 0, errBulk
		}
		p.pos, p.seen = 2, 2
	}
	n, err := p.arguments(b, cmd)
	if err == nil {
		p.rest = false
	}
	return n, err
}

// arguments parses the left arguments that remain and hands the command over.
func (p *Parser) arguments(b []byte, cmd *Command) (int, error) {
	for p.left > 0 {
		if !p.body {
			if p.pos == len(b) {
				return 0, ErrShort
			}
			if c := b[p.pos]; c != '$' {
				return 0, ProtocolError("Protocol error: expected '$', got '" + string([]byte{c}) + "'")
			}
			size, err := p.header(b, errBulkLine, errBulk)
			if err != nil {
				return 0, err
			}
			streams := p.streams(b, size)
			most := p.limits.MaxBulk
			if streams {
				most = p.maxStream
			}
			if size < 0 || size > most {
				return 0, errBulk
			}
			if streams {
				return p.stream(b, cmd, size)
			}
			if size > p.room {
				return 0, errTotal
			}
			p.room -= size
			p.size, p.body = size, true
		}
		if int64(len(b)-p.pos)-2 < p.size {
			return 0, ErrShort
		}
		end := p.pos + int(p.size)
		if b[end] != '\r' || b[end+1] != '\n' {
			return 0, errBulk
		}
		p.spans = append(p.spans, span{p.pos, end})
		p.pos, p.seen = end+2, end+2
		p.body = false
		p.left--
	}
	p.fill(b, cmd)
	return p.used(), nil
}

// streams reports whether the argument of size bytes, whose header was parsed,
// is a value for the caller to take.
func (p *Parser) streams(b []byte, size int64) bool {
	if p.StreamFrom <= 0 || size < p.StreamFrom || len(p.spans) != 2 || p.rest {
		return false
	}
	name := p.spans[0]
	return name.hi-name.lo == 3 && b[name.lo]|0x20 == 's' && b[name.lo+1]|0x20 == 'e' && b[name.lo+2]|0x20 == 't'
}

// stream hands the head of a SET over.
func (p *Parser) stream(b []byte, cmd *Command, size int64) (int, error) {
	p.fill(b, cmd)
	cmd.Streaming, cmd.ValueLen = true, size
	p.left--
	p.rest = true
	return p.used(), nil
}

// fill moves the arguments to cmd.
func (p *Parser) fill(b []byte, cmd *Command) {
	cmd.Args = slices.Grow(cmd.Args, len(p.spans))
	for _, s := range p.spans {
		cmd.Args = append(cmd.Args, b[s.lo:s.hi:s.hi])
	}
	p.spans = p.spans[:0]
	if cap(p.spans) > keptArgs {
		p.spans = nil
	}
}

// used returns the number of bytes parsed; the next position is 0.
func (p *Parser) used() int {
	n := p.pos
	p.pos, p.seen = 0, 0
	return n
}

// header parses the line at p.pos: one byte, which the caller has checked, and a
// number.
func (p *Parser) header(b []byte, tooLong, invalid ProtocolError) (int64, error) {
	if n, size := shortHeader(b[p.pos:]); size > 0 {
		p.searched += int64(size)
		p.pos += size
		p.seen = p.pos
		return n, nil
	}
	end, err := p.find(b, '\r', tooLong)
	if err != nil {
		return 0, err
	}
	if end+1 == len(b) {
		p.seen = end
		return 0, ErrShort
	}
	n, ok := parseInt(b[p.pos+1 : end])
	if !ok || b[end+1] != '\n' {
		return 0, invalid
	}
	p.pos, p.seen = end+2, end+2
	return n, nil
}

// shortHeader parses a header of one digit, or two, which most are: its number, and
// its size with the line end; 0 for any other. MaxInline is never so small that it would
// say no.
func shortHeader(b []byte) (n int64, size int) {
	if len(b) < 5 {
		return 0, 0
	}
	tens, ones := b[1]-'0', b[2]-'0'
	switch {
	case tens > 9:
	case b[2] == '\r' && b[3] == '\n':
		return int64(tens), 4
	case tens > 0 && ones <= 9 && b[3] == '\r' && b[4] == '\n':
		return int64(tens)*10 + int64(ones), 5
	}
	return 0, 0
}

// find returns the position of the first c at or behind p.pos. There must be one
// among the first MaxInline+1 bytes: where the stream was cut makes no
// difference to what is too long.
func (p *Parser) find(b []byte, c byte, tooLong ProtocolError) (int, error) {
	line := b[p.pos:]
	if len(line) > p.limits.MaxInline {
		line = line[:p.limits.MaxInline+1]
	}
	line = line[p.seen-p.pos:]
	i := bytes.IndexByte(line, c)
	if i >= 0 {
		p.searched += int64(i + 1)
		return p.seen + i, nil
	}
	p.searched += int64(len(line))
	p.seen += len(line)
	if p.seen-p.pos > p.limits.MaxInline {
		return 0, tooLong
	}
	return 0, ErrShort
}

// parseInt parses a number as redis writes it: digits without a leading zero,
// and a minus sign at most.
func parseInt(s []byte) (int64, bool) {
	digits := s
	if len(s) > 0 && s[0] == '-' {
		digits = s[1:]
	}
	if len(digits) == 0 || len(digits) > 19 || digits[0] == '0' && len(s) > 1 {
		return 0, false
	}
	var v uint64 // 19 digits fit
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
		v = 10*v + uint64(c-'0')
	}
	if len(digits) < len(s) {
		return -int64(v), v <= 1<<63
	}
	return int64(v), v <= math.MaxInt64
}
