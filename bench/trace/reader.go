package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Conditions of a broken line. Test with errors.Is.
var (
	// ErrTooLong: the line exceeds Options.MaxLine.
	ErrTooLong = errors.New("line too long")
	// ErrSyntax: the line is not one JSON object with the four fields and no others.
	ErrSyntax = errors.New("not a request")
	// ErrRange: a field has a value no request can have.
	ErrRange = errors.New("value out of range")
)

// LineError says which line is broken. Unwrap gives the condition.
type LineError struct {
	Line   int    // from 1
	Detail string // what was found, what is allowed
	Err    error
}

func (e *LineError) Error() string {
	return fmt.Sprintf("trace: line %d: %v: %s", e.Line, e.Err, e.Detail)
}

func (e *LineError) Unwrap() error { return e.Err }

// OnBroken says what a Reader does with a broken line.
type OnBroken uint8

const (
	Stop     OnBroken = iota // return its *LineError
	Continue                 // count it and read on
)

// DefaultMaxLine fits a prompt of about a million blocks.
const DefaultMaxLine = 8 << 20

// Options of a Reader. The zero value stops at the first broken line.
type Options struct {
	OnBroken OnBroken
	MaxLine  int // bytes without the newline; 0 means DefaultMaxLine
}

// Reader reads requests from JSONL. It holds one line at a time.
type Reader struct {
	r      *bufio.Reader
	opts   Options
	line   int
	broken int
	buf    []byte
}

// NewReader returns a Reader of r.
func NewReader(r io.Reader, opts Options) *Reader {
	if opts.MaxLine <= 0 {
		opts.MaxLine = DefaultMaxLine
	}
	return &Reader{r: bufio.NewReaderSize(r, 64<<10), opts: opts}
}

// Broken is the number of lines passed over so far.
func (r *Reader) Broken() int { return r.broken }

// Next returns the next request; the caller owns it. At the end it returns
// io.EOF. A broken line gives a *LineError under Stop, after which Next may be
// called again and goes on behind that line. Errors of the underlying reader are
// returned as they are. Empty lines are not requests and not broken.
func (r *Reader) Next() (Request, error) {
	for {
		line, err := r.readLine()
		if err == nil {
			if len(bytes.TrimSpace(line)) == 0 {
				continue
			}
			var req Request
			if req, err = parse(line); err == nil {
				return req, nil
			}
		}
		var broken *LineError
		if !errors.As(err, &broken) {
			return Request{}, err
		}
		broken.Line = r.line
		if r.opts.OnBroken == Stop {
			return Request{}, broken
		}
		r.broken++
	}
}

// readLine returns the next line without its newline, valid until the next call.
// A line that is too long is read to its end and not kept.
func (r *Reader) readLine() ([]byte, error) {
	r.buf = r.buf[:0]
	r.line++
	length := 0
	for {
		part, err := r.r.ReadSlice('\n')
		length += len(part)
		if err == nil {
			part = part[:len(part)-1]
			length--
		}
		if length <= r.opts.MaxLine {
			r.buf = append(r.buf, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && !(errors.Is(err, io.EOF) && length > 0):
			return nil, err
		case length > r.opts.MaxLine:
			return nil, &LineError{
				Err:    ErrTooLong,
				Detail: fmt.Sprintf("%d bytes, at most %d; raise Options.MaxLine", length, r.opts.MaxLine),
			}
		}
		return r.buf, nil
	}
}

// parse reads one line. Its errors are *LineError without a line number.
func parse(line []byte) (Request, error) {
	var v struct {
		Timestamp    *int64    `json:"timestamp"`
		InputLength  *int      `json:"input_length"`
		OutputLength *int      `json:"output_length"`
		HashIDs      *[]uint64 `json:"hash_ids"`
	}
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		return Request{}, &LineError{Err: ErrSyntax, Detail: err.Error()}
	}
	if len(bytes.TrimSpace(line[dec.InputOffset():])) != 0 {
		return Request{}, &LineError{Err: ErrSyntax, Detail: "more follows the object"}
	}
	for _, f := range []struct {
		name    string
		missing bool
	}{
		{"timestamp", v.Timestamp == nil},
		{"input_length", v.InputLength == nil},
		{"output_length", v.OutputLength == nil},
		{"hash_ids", v.HashIDs == nil},
	} {
		if f.missing {
			return Request{}, &LineError{Err: ErrSyntax, Detail: f.name + " is missing"}
		}
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"timestamp", *v.Timestamp},
		{"input_length", int64(*v.InputLength)},
		{"output_length", int64(*v.OutputLength)},
	} {
		if f.value < 0 {
			return Request{}, &LineError{Err: ErrRange, Detail: fmt.Sprintf("%s is %d, must not be negative", f.name, f.value)}
		}
	}
	return Request{
		Timestamp:    *v.Timestamp,
		InputLength:  *v.InputLength,
		OutputLength: *v.OutputLength,
		IDs:          *v.HashIDs,
	}, nil
}

// Read reads a whole trace. Under Continue, Trace.Broken counts what was passed
// over. On an error it returns what was read before.
func Read(r io.Reader, name string, opts Options) (*Trace, error) {
	t := &Trace{Name: name}
	in := NewReader(r, opts)
	for {
		req, err := in.Next()
		t.Broken = in.Broken()
		if errors.Is(err, io.EOF) {
			return t, nil
		}
		if err != nil {
			return t, err
		}
		t.Requests = append(t.Requests, req)
	}
}
