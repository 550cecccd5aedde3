package soak

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// respWorker sends pipelines of commands over RESP2.
type respWorker struct {
	worker
	c   net.Conn
	in  *bufio.Reader
	out bytes.Buffer
	// excused says whether the connection may have been lost since it was last used.
	excused func() bool
}

// respReply is one answer: text of a simple string, an error or a bulk; or an array.
type respReply struct {
	kind byte // + - : $ *, or 0 for null
	n    int64
	text []byte
	all  []respReply
}

// question is a command that was sent and what its answer must be. A nil answer: it
// was lost.
type question struct {
	kind string
	ask  [][]byte
	got  func(a *respReply)
}

func (w *respWorker) work(ctx context.Context) {
	defer w.hangUp()
	for w.rest(ctx) {
		if w.c == nil && !w.dial() {
			continue
		}
		n := 1 + w.rng.IntN(12)
		var qs []question
		busy := map[*cell]bool{} // a cell has one write at a time
		for range n {
			qs = append(qs, w.question(busy))
		}
		if len(w.run.pairs) > 0 && w.rng.IntN(4) == 0 {
			qs = append(qs, w.pair()...)
		}
		w.send(qs)
		if w.rng.IntN(100) == 0 {
			w.hangUp()
		}
	}
}

func (w *respWorker) dial() bool {
	addr := w.node.viaRESP.addr()
	if w.direct = w.rng.IntN(4) == 0; w.direct {
		addr = w.node.resp
	}
	w.excused = w.excuse()
	c, err := net.DialTimeout("tcp", addr, callBound)
	if err != nil {
		if !w.excused() {
			w.run.trouble.add(unexpected, w.where(), "dial: %v", err)
		}
		return false
	}
	w.c, w.in = c, bufio.NewReaderSize(c, 64<<10)
	return true
}

func (w *respWorker) hangUp() {
	if w.c != nil {
		if w.rng.IntN(2) == 0 {
			abort(w.c)
		} else {
			w.c.Close()
		}
		w.c = nil
	}
}

func args(parts ...any) (out [][]byte) {
	for _, p := range parts {
		switch p := p.(type) {
		case []byte:
			out = append(out, p)
		default:
			out = append(out, fmt.Append(nil, p))
		}
	}
	return out
}

// question chooses a command.
func (w *respWorker) question(busy map[*cell]bool) question {
	switch x := w.rng.IntN(100); {
	case x < 30:
		c := w.any()
		l := c.look()
		return question{"resp get", args("GET", c.key), func(a *respReply) {
			w.value("GET", a, func(v []byte) { w.sawCell("GET", c, l, v) })
		}}
	case x < 46:
		if q, ok := w.set(busy); ok {
			return q
		}
	case x < 50:
		return w.mset(busy)
	case x < 55:
		c := w.own()
		if !busy[c] {
			busy[c] = true
			return question{"resp del", args("DEL", c.key), func(a *respReply) {
				if w.number("DEL", a, 1) {
					c.deleted()
				}
			}}
		}
	case x < 70:
		b := w.blocks(1)[0]
		return question{"resp get block", args("GET", b.key), func(a *respReply) {
			w.value("GET", a, func(v []byte) { w.saw("GET", b, v) })
		}}
	case x < 78:
		bs := w.blocks(4)
		ask := args("MGET")
		return question{"resp mget", append(ask, keysOf(bs)...), func(a *respReply) {
			if !w.is("MGET", a, '*') {
				return
			}
			if len(a.all) != len(bs) {
				w.run.trouble.add(wrongAnswer, w.where(), "MGET of %d keys has %d answers", len(bs), len(a.all))
				return
			}
			for i := range a.all {
				w.value("MGET", &a.all[i], func(v []byte) { w.saw("MGET", bs[i], v) })
			}
		}}
	case x < 84:
		b := w.blocks(1)[0]
		whole := appendValue(nil, b.id, 0)
		from := w.rng.IntN(len(whole))
		to := min(len(whole)-1, from+w.rng.IntN(8<<10))
		return question{"resp getrange", args("GETRANGE", b.key, from, to), func(a *respReply) {
			w.value("GETRANGE", a, func(v []byte) {
				w.run.bytes.Add(int64(len(v)))
				if len(v) > 0 && !bytes.Equal(v, whole[from:to+1]) { // empty: a miss
					w.run.wrong(w.where(), "GETRANGE %d %d of block %x has wrong bytes", from, to, b.hash)
				}
			})
		}}
	case x < 90:
		bs := w.blocks(8)
		ask := args("EXISTS")
		return question{"resp exists", append(ask, keysOf(bs)...), func(a *respReply) { w.number("EXISTS", a, int64(len(bs))) }}
	case x < 94:
		b := w.blocks(1)[0]
		return question{"resp setnx", args("SETNX", b.key, appendValue(nil, b.id, 0)), func(a *respReply) { w.number("SETNX", a, 1) }}
	}
	word := strconv.FormatUint(w.rng.Uint64(), 36)
	return question{"resp echo", args("ECHO", word), func(a *respReply) {
		if w.is("ECHO", a, '$') && string(a.text) != word {
			w.run.trouble.add(wrongAnswer, w.where(), "ECHO of %s says %.100q", word, a.text)
		}
	}}
}

// set writes a version of one of the worker's cells.
func (w *respWorker) set(busy map[*cell]bool) (question, bool) {
	c := w.own()
	if busy[c] {
		return question{}, false
	}
	busy[c] = true
	version := c.begin()
	value := appendValue(nil, c.id, version)
	ask, ttl := args("SET", c.key, value), time.Duration(0)
	absent := false
	switch w.rng.IntN(6) {
	case 0:
		ttl = time.Duration(1+w.rng.IntN(3000)) * time.Millisecond
		ask = append(ask, args("PX", ttl.Milliseconds())...)
	case 1:
		absent = true
		ask = append(ask, args("NX")...)
	}
	return question{"resp set", ask, func(a *respReply) {
		switch {
		case a == nil: // lost
		case a.kind == '+' && string(a.text) == "OK":
			c.stored(version, ttl)
		case a.kind == 0 && absent, w.refusal("SET", a):
			c.refused(version)
		default:
			w.odd("SET", a)
		}
	}}, true
}

// mset writes several cells. An error says nothing about any of them.
func (w *respWorker) mset(busy map[*cell]bool) question {
	ask := args("MSET")
	var cells []*cell
	var versions []uint32
	for range 4 {
		if c := w.own(); !busy[c] {
			busy[c] = true
			cells, versions = append(cells, c), append(versions, c.begin())
			ask = append(ask, c.key, appendValue(nil, c.id, versions[len(versions)-1]))
		}
	}
	if len(cells) == 0 {
		return question{"resp ping", args("PING"), func(a *respReply) { w.is("PING", a, '+') }}
	}
	return question{"resp mset", ask, func(a *respReply) {
		if w.is("MSET", a, '+') {
			for i, c := range cells {
				c.stored(versions[i], 0)
			}
		}
	}}
}

// pair does something with one of the pairs: its parts are written in two SETs, mostly
// both, and read.
func (w *respWorker) pair() (qs []question) {
	p := w.run.pairs[w.rng.IntN(len(w.run.pairs))]
	x := w.rng.IntN(100)
	for i, b := range p {
		switch {
		case x < 30, x < 40 && i == 0:
			qs = append(qs, question{"resp set of a pair", args("SET", b.key, appendValue(nil, b.id, 0)), func(a *respReply) { w.is("SET", a, '+') }})
		case x < 45 && i == 1:
			qs = append(qs, question{"resp del of a pair", args("DEL", b.key), func(a *respReply) { w.number("DEL", a, 1) }})
		default:
			qs = append(qs, question{"resp get of a pair", args("GET", b.key), func(a *respReply) {
				w.value("GET", a, func(v []byte) { w.saw("GET", b, v) })
			}})
		}
	}
	return qs
}

// refusal reports whether an answer is one of a full cache, and an error that is none.
func (w *respWorker) refusal(cmd string, a *respReply) bool {
	if a.kind != '-' {
		return false
	}
	closing := w.excused() && strings.Contains(string(a.text), "clos")
	if !strings.HasPrefix(string(a.text), "OOM ") && !closing {
		w.run.trouble.add(unexpected, w.where(), "%s: %s", cmd, a.text)
	}
	w.run.ops.add("refused: "+cutText(a.text, 30), 1)
	return true
}

func cutText(b []byte, n int) string { return string(b[:min(len(b), n)]) }

func (w *respWorker) odd(cmd string, a *respReply) {
	w.run.trouble.add(wrongAnswer, w.where(), "%s is answered with %c%d %.60q", cmd, max(a.kind, ' '), a.n, a.text)
}

// is reports whether there is an answer of that kind.
func (w *respWorker) is(cmd string, a *respReply, kind byte) bool {
	if a == nil || a.kind == kind {
		return a != nil
	}
	if !w.refusal(cmd, a) {
		w.odd(cmd, a)
	}
	return false
}

// value passes the bulk of an answer on; null is a miss.
func (w *respWorker) value(cmd string, a *respReply, f func(v []byte)) {
	if a != nil && a.kind != 0 && w.is(cmd, a, '$') {
		f(a.text)
	}
}

// number reports whether there is an answer of 0 to most.
func (w *respWorker) number(cmd string, a *respReply, most int64) bool {
	if !w.is(cmd, a, ':') {
		return false
	}
	if a.n < 0 || a.n > most {
		w.odd(cmd, a)
	}
	return true
}

// send sends a pipeline and takes its answers, all within the bound of one call.
func (w *respWorker) send(qs []question) {
	began := time.Now()
	ticket := w.run.watch.enter(w.where() + ": a pipeline of RESP")
	defer w.run.watch.leave(ticket)
	_ = w.c.SetDeadline(began.Add(callBound)) // fails as the next write does
	w.out.Reset()
	for _, q := range qs {
		fmt.Fprintf(&w.out, "*%d\r\n", len(q.ask))
		for _, a := range q.ask {
			fmt.Fprintf(&w.out, "$%d\r\n", len(a))
			w.out.Write(a)
			w.out.WriteString("\r\n")
		}
		w.run.ops.add(q.kind, 1)
	}
	// Answers are read meanwhile: a pipeline may be longer than all buffers.
	sent := make(chan error, 1)
	c := w.c
	go func() {
		_, err := c.Write(w.out.Bytes())
		sent <- err
	}()
	var err error
	for i := range qs {
		var a respReply
		if a, err = w.read(); err != nil {
			for _, q := range qs[i:] {
				q.got(nil)
			}
			break
		}
		qs[i].got(&a)
	}
	if err != nil {
		abort(c)
	}
	if e := <-sent; err == nil {
		err = e
	}
	if err != nil {
		w.lost(err)
	}
}

// lost ends a connection that failed.
func (w *respWorker) lost(err error) {
	w.c.Close()
	w.c = nil
	switch {
	case errors.As(err, new(*respError)):
		w.run.trouble.add(wrongAnswer, w.where(), "%v", err)
	case errors.Is(err, os.ErrDeadlineExceeded) && !w.excused():
		w.run.trouble.add(noAnswer, w.where(), "%v", err)
	case !w.excused():
		w.run.trouble.add(unexpected, w.where(), "a connection is lost: %v", err)
	default:
		w.run.ops.add("failed: RESP connection lost", 1)
	}
}

// respError is an answer that is no RESP.
type respError struct{ line string }

func (e *respError) Error() string { return fmt.Sprintf("an answer is no RESP: %.100q", e.line) }

// read reads one answer.
func (w *respWorker) read() (a respReply, err error) {
	line, err := w.in.ReadSlice('\n')
	if err != nil {
		return a, err
	}
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return a, &respError{string(line)}
	}
	kind, rest := line[0], line[1:len(line)-2]
	a.kind = kind
	switch kind {
	case '+', '-':
		a.text = bytes.Clone(rest)
		return a, nil
	case ':', '$', '*':
	default:
		return a, &respError{string(line)}
	}
	if a.n, err = strconv.ParseInt(string(rest), 10, 64); err != nil || a.n < -1 || kind != ':' && a.n > 64<<20 {
		return a, &respError{string(line)}
	}
	switch {
	case kind == ':':
	case a.n < 0:
		a.kind = 0
	case kind == '$':
		a.text = make([]byte, a.n+2)
		if _, err := io.ReadFull(w.in, a.text); err != nil {
			return a, err
		}
		if string(a.text[a.n:]) != "\r\n" {
			return a, &respError{string(a.text[max(0, len(a.text)-20):])}
		}
		a.text = a.text[:a.n]
	default:
		for range a.n {
			one, err := w.read()
			if err != nil {
				return a, err
			}
			a.all = append(a.all, one)
		}
	}
	return a, nil
}
