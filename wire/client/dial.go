package client

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// slot is the place of one connection, which comes and goes.
type slot struct {
	conn atomic.Pointer[conn]

	mu        sync.Mutex
	attempt   *attempt // the one that runs, nil: none does
	failures  int      // in a row
	notBefore time.Time
}

// attempt is one try to connect, for all who wait for it. c and err are final when
// done is closed.
type attempt struct {
	done chan struct{}
	c    *conn
	err  *Error
}

// connect returns the attempt that runs, or begins one.
func (cl *Client) connect(s *slot) *attempt {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.attempt != nil {
		return s.attempt
	}
	a := &attempt{done: make(chan struct{})}
	if c := s.conn.Load(); c != nil && c.ok.Load() { // another was quicker
		a.c = c
		close(a.done)
		return a
	}
	if !cl.spawn(func() { cl.try(s, a) }) {
		a.err = &Error{Err: ErrClosed}
		close(a.done)
		return a
	}
	s.attempt = a
	return a
}

// try waits for its time and makes one attempt.
func (cl *Client) try(s *slot, a *attempt) {
	s.mu.Lock()
	pause := time.Until(s.notBefore)
	s.mu.Unlock()
	if pause > 0 {
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-cl.ctx.Done():
			t.Stop()
		}
	}
	a.c, a.err = cl.open(cl.ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempt = nil
	if a.err != nil {
		s.notBefore = time.Now().Add(backoff(s.failures, cl.opt.MaxBackoff))
		s.failures++
		cl.opt.Log.Debug("no connection", "addr", cl.opt.Addr, "failures", s.failures, "err", a.err)
	} else {
		s.failures, s.notBefore = 0, time.Time{}
		s.conn.Store(a.c)
	}
	close(a.done)
}

// backoff is the pause after so many failures before the last one: random, so
// that the clients of a node that comes back do not all come at once.
func backoff(failures int, limit time.Duration) time.Duration {
	d := min(firstBackoff<<min(failures, 20), limit)
	return d/2 + mathrand.N(d/2+1)
}

// open connects, shakes hands, does what else there is to do before the connection
// is read from, and starts it.
func (cl *Client) open(ctx context.Context, prepare ...func(net.Conn) error) (*conn, *Error) {
	fail := func(err error) (*conn, *Error) {
		e := new(Error)
		if !errors.As(err, &e) {
			e = &Error{Err: ErrLost, Cause: err}
		}
		switch {
		case cl.ctx.Err() != nil || errors.Is(err, ErrClosed):
			e = &Error{Err: ErrClosed}
		case ctx.Err() != nil:
			e = &Error{Err: ended(ctx), Cause: err}
		case errors.Is(err, context.DeadlineExceeded) || isTimeout(err):
			e = &Error{Err: ErrTimeout, Cause: err}
		}
		e.Op, e.Addr = "dial", cl.opt.Addr
		return nil, e
	}
	late, cancel := context.WithTimeout(ctx, cl.opt.DialTimeout)
	defer cancel()
	defer context.AfterFunc(cl.ctx, cancel)()
	network, addr := "tcp", cl.opt.Addr
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		network, addr = "unix", path
	}
	nc, err := new(net.Dialer).DialContext(late, network, addr)
	if err != nil {
		return fail(err)
	}
	stop := context.AfterFunc(late, func() { nc.SetDeadline(time.Unix(1, 0)) })
	lim, err := handshake(nc, &cl.opt)
	for i := 0; err == nil && i < len(prepare); i++ {
		err = prepare[i](nc)
	}
	if err == nil && !stop() {
		err = late.Err()
	}
	stop()
	var raw syscall.RawConn
	if err == nil {
		raw, err = nc.(syscall.Conn).SyscallConn()
	}
	if err != nil {
		nc.Close()
		return fail(err)
	}
	c := newConn(cl, nc, raw, lim)
	if !cl.adopt(c) {
		nc.Close()
		return fail(ErrClosed)
	}
	return c, nil
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// incarnation is this process's, for the node's eyes.
var incarnation = sync.OnceValue(func() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
})

// maxInFlight is the most requests that one connection runs, whatever the node
// allows.
const maxInFlight = 1 << 16

// handshake proves both sides to each other and returns the node's limits. Errors
// are *Error but for those of the system.
func handshake(nc io.ReadWriter, opt *Options) (limits, error) {
	hello := wire.Hello{
		MinVersion: wire.Version, MaxVersion: wire.Version, Incarnation: incarnation(),
		Fingerprint: opt.Fingerprint, Namespace: opt.Namespace, Client: opt.Name, Layout: opt.Layout,
	}
	rand.Read(hello.Nonce[:])
	if _, err := nc.Write(hello.Append(nil, 0)); err != nil {
		return limits{}, err
	}
	var ch wire.Challenge
	if err := expect(nc, &ch); err != nil {
		return limits{}, err
	}
	if err := judge(&ch, len(opt.Secret) > 0); err != nil {
		return limits{}, err
	}
	var auth wire.Auth
	var proof [32]byte // zero without a secret, on both sides
	if ch.AuthRequired {
		auth.MAC = wire.ClientMAC(opt.Secret, &hello, &ch)
		proof = wire.ServerMAC(opt.Secret, &hello, &ch)
	}
	if _, err := nc.Write(auth.Append(nil, 0)); err != nil {
		return limits{}, err
	}
	var welcome wire.Welcome
	if err := expect(nc, &welcome); err != nil {
		return limits{}, err
	}
	if !wire.SameMAC(welcome.MAC, proof) {
		return limits{}, &Error{Err: ErrAuth, Cause: errors.New("the node has not proved that it has the secret")}
	}
	// Only now: a node that compares refuses by itself, and says what differs.
	if none := [32]byte{}; hello.Fingerprint != none && ch.Fingerprint != none && hello.Fingerprint != ch.Fingerprint {
		return limits{}, &Error{Err: ErrFingerprint, Cause: fmt.Errorf("yours is %x, the node's %x", hello.Fingerprint, ch.Fingerprint)}
	}
	return limits{
		value:    ch.MaxValue,
		key:      int(min(ch.MaxKey, wire.MaxKey)),
		chunk:    int(min(ch.MaxChunk, wire.MaxChunk)),
		inFlight: int(min(ch.MaxInFlight, maxInFlight)),
	}, nil
}

// judge decides whether to go on after CHALLENGE.
func judge(ch *wire.Challenge, secret bool) error {
	switch {
	case ch.Version != wire.Version:
		return &Error{Err: ErrVersion, Cause: fmt.Errorf("the node chose version %d, not %d", ch.Version, wire.Version)}
	case secret && !ch.AuthRequired:
		return &Error{Err: ErrAuth, Cause: errors.New("the node asks for no secret: it may be another one")}
	case !secret && ch.AuthRequired:
		return &Error{Err: ErrAuth, Cause: errors.New("the node asks for a secret")}
	case ch.MaxKey == 0 || ch.MaxInFlight == 0 || ch.MaxChunk == 0:
		return violation("CHALLENGE allows keys of %d, %d requests, chunks of %d", ch.MaxKey, ch.MaxInFlight, ch.MaxChunk)
	}
	return nil
}

// expect reads one frame of the handshake, and nothing beyond it.
func expect(nc io.Reader, m wire.Message) error {
	var head [wire.HeaderSize]byte
	if _, err := io.ReadFull(nc, head[:]); err != nil {
		return err
	}
	h, err := wire.ParseHeader(head[:])
	if err != nil {
		return &Error{Err: ErrProtocol, Cause: err}
	}
	t := h.Type
	if h.ID != 0 || t != m.Type() && t != wire.TypeError && t != wire.TypeGoodbye {
		return violation("%v of id %d in the handshake", t, h.ID)
	}
	payload := make([]byte, h.Length) // at most that of an ERROR
	if _, err := io.ReadFull(nc, payload); err != nil {
		return err
	}
	var refusal wire.ErrorReply
	switch t {
	case m.Type():
		err = m.Parse(payload)
	default: // a GOODBYE has the fields of an ERROR
		err = refusal.Parse(payload)
	}
	if err != nil {
		return &Error{Err: ErrProtocol, Cause: err}
	}
	if t != m.Type() {
		return codeError(&refusal)
	}
	return nil
}
