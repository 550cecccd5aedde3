package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

func TestHandshakeRefused(t *testing.T) {
	frame := func(b []byte) func(*wire.Hello, net.Conn) bool {
		return func(_ *wire.Hello, nc net.Conn) bool {
			nc.Write(b)
			io.Copy(io.Discard, nc)
			return false
		}
	}
	refusal := func(code wire.Code) func(*wire.Hello, net.Conn) bool {
		return frame((&wire.ErrorReply{Code: code, Text: "because"}).Append(nil, 0))
	}
	other := []byte("fedcba9876543210")
	for _, tt := range []struct {
		name string
		fake func(*fake)
		opt  func(*Options)
		err  error
		code wire.Code
	}{
		{"the client's secret is wrong", func(f *fake) { f.secret = testSecret }, func(o *Options) { o.Secret = other }, ErrAuth, wire.CodeAuth},
		{"the node's proof is wrong", func(f *fake) { f.secret = testSecret; f.welcome = func(w *wire.Welcome) { w.MAC[31] ^= 1 } }, nil, ErrAuth, 0},
		{"the node's proof is none", func(f *fake) { f.secret = testSecret; f.welcome = func(w *wire.Welcome) { *w = wire.Welcome{} } }, nil, ErrAuth, 0},
		{"the node asks for no secret", nil, func(o *Options) { o.Secret = testSecret }, ErrAuth, 0},
		{"the node asks for a secret", func(f *fake) { f.secret = testSecret }, func(o *Options) { o.Secret = nil }, ErrAuth, 0},
		{"proof where none is asked for", func(f *fake) { f.welcome = func(w *wire.Welcome) { w.MAC[0] = 1 } }, nil, ErrAuth, 0},
		{"version", func(f *fake) { f.challenge.Version = 2 }, nil, ErrVersion, 0},
		{"version, says the node", func(f *fake) { f.hello = refusal(wire.CodeBadVersion) }, nil, ErrVersion, wire.CodeBadVersion},
		{"fingerprint", func(f *fake) { f.challenge.Fingerprint[3] = 1 }, func(o *Options) { o.Fingerprint[3] = 2 }, ErrFingerprint, 0},
		{"fingerprint, says the node", func(f *fake) { f.hello = refusal(wire.CodeFingerprint) }, nil, ErrFingerprint, wire.CodeFingerprint},
		{"layout", func(f *fake) { f.challenge.Fingerprint[3] = 1 }, func(o *Options) { o.Layout = "kind=flat" }, ErrFingerprint, 0},
		{"namespace", func(f *fake) { f.hello = refusal(wire.CodeNamespace) }, nil, ErrNamespace, wire.CodeNamespace},
		{"too many", func(f *fake) { f.hello = refusal(wire.CodeTooMany) }, nil, ErrBusy, wire.CodeTooMany},
		{"unknown code", func(f *fake) { f.hello = refusal(77) }, nil, ErrRefused, 77},
		{"goodbye", func(f *fake) {
			f.hello = frame((&wire.Goodbye{Reason: wire.CodeShutdown, Text: "because"}).Append(nil, 0))
		}, nil, ErrClosing, wire.CodeShutdown},
		{"no requests allowed", func(f *fake) { f.challenge.MaxInFlight = 0 }, nil, ErrProtocol, 0},
		{"no chunks allowed", func(f *fake) { f.challenge.MaxChunk = 0 }, nil, ErrProtocol, 0},
		{"no keys allowed", func(f *fake) { f.challenge.MaxKey = 0 }, nil, ErrProtocol, 0},
		{"garbage", func(f *fake) { f.hello = frame(bytes.Repeat([]byte("garbage "), 10)) }, nil, ErrProtocol, 0},
		{"a frame out of turn", func(f *fake) { f.hello = frame((&wire.Pong{}).Append(nil, 0)) }, nil, ErrProtocol, 0},
		{"an id", func(f *fake) { f.hello = frame((&wire.Challenge{Version: 1}).Append(nil, 1)) }, nil, ErrProtocol, 0},
		{"bad payload", func(f *fake) {
			b := (&wire.Challenge{Version: 1}).Append(nil, 0)
			b[wire.HeaderSize+1] = 2
			f.hello = frame(b)
		}, nil, ErrProtocol, 0},
		{"hangs up", func(f *fake) { f.hello = func(*wire.Hello, net.Conn) bool { return false } }, nil, ErrLost, 0},
		{"says nothing", func(f *fake) { f.hello = frame(nil) }, func(o *Options) { o.DialTimeout = 50 * time.Millisecond }, ErrTimeout, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake(t, tt.fake)
			opt := Options{Addr: f.addr(), Secret: f.secret}
			if tt.opt != nil {
				tt.opt(&opt)
			}
			cl, err := Dial(soon(t), opt)
			if err == nil {
				cl.Close()
			}
			e := want(t, err, tt.err, "dial")
			if e.Code != tt.code || (tt.code != 0) != (e.Text != "") {
				t.Errorf("code %v, text %q, want code %v", e.Code, e.Text, tt.code)
			}
		})
	}
}

func TestHandshake(t *testing.T) {
	var got wire.Hello
	f := newFake(t, func(f *fake) {
		f.hello = func(h *wire.Hello, _ net.Conn) bool { got = *h; return true }
		f.challenge.Fingerprint[0] = 5
	})
	f.dial(func(o *Options) {
		o.Namespace, o.Name, o.Fingerprint, o.Layout = "chat", "me", [32]byte{5}, "kind=flat"
	})
	first := got
	f.dial(nil) // zero: any fingerprint will do
	if first.Namespace != "chat" || first.Client != "me" || first.Fingerprint != [32]byte{5} || first.Layout != "kind=flat" || first.MinVersion != 1 {
		t.Errorf("HELLO %+v", first)
	}
	if got.Fingerprint != [32]byte{} || got.Layout != "" {
		t.Errorf("HELLO without a layout: %+v", got)
	}
	if first.Nonce == got.Nonce || first.Nonce == [16]byte{} {
		t.Errorf("nonces %x and %x", first.Nonce, got.Nonce)
	}
	if first.Incarnation != got.Incarnation || got.Incarnation == 0 {
		t.Errorf("incarnations %x and %x of one process", first.Incarnation, got.Incarnation)
	}
}

func TestDialGivenUp(t *testing.T) {
	hello := make(chan struct{})
	f := newFake(t, func(f *fake) {
		f.hello = func(_ *wire.Hello, nc net.Conn) bool {
			close(hello)
			io.Copy(io.Discard, nc)
			return false
		}
	})
	ctx, cancel := context.WithCancel(background)
	go func() { <-hello; cancel() }()
	_, err := Dial(ctx, Options{Addr: f.addr()})
	if want(t, err, context.Canceled, "dial"); errors.Is(err, ErrTimeout) {
		t.Errorf("a timeout too: %v", err)
	}
}

func TestDialNobody(t *testing.T) {
	f := newFake(t, nil)
	f.close()
	_, err := Dial(soon(t), Options{Addr: f.addr()})
	e := want(t, err, ErrLost, "dial")
	var op *net.OpError
	if !errors.As(err, &op) || e.MayHaveRun {
		t.Errorf("no cause in %v", err)
	}
}

func TestBackoff(t *testing.T) {
	const limit = 500 * time.Millisecond
	seen := map[time.Duration]bool{}
	for failures := range 100 {
		most := min(firstBackoff<<min(failures, 30), limit)
		for range 20 {
			d := backoff(failures, limit)
			if d < most/2 || d > most {
				t.Fatalf("after %d failures: %v, want %v to %v", failures, d, most/2, most)
			}
			seen[d] = true
		}
	}
	if len(seen) < 100 {
		t.Errorf("only %d different pauses: no jitter", len(seen))
	}
}

// FuzzHandshake: whatever a node without the secret says, it is refused, without a
// panic; and none is accepted that has not sent a CHALLENGE and a WELCOME.
func FuzzHandshake(f *testing.F) {
	ch := wire.Challenge{Version: 1, MaxValue: 1, MaxKey: 1, MaxInFlight: 1, MaxChunk: 1}
	f.Add(append(ch.Append(nil, 0), (&wire.Welcome{}).Append(nil, 0)...))
	f.Add((&wire.ErrorReply{Code: 7, Text: "x"}).Append(nil, 0))
	ch.AuthRequired = true
	f.Add(append(ch.Append(nil, 0), (&wire.Welcome{}).Append(nil, 0)...))
	f.Fuzz(func(t *testing.T, in []byte) {
		_, err := handshake(&script{bytes.NewReader(in)}, &Options{Secret: testSecret})
		if err == nil {
			t.Fatalf("accepted with a secret: %x", in)
		}
		lim, err := handshake(&script{bytes.NewReader(in)}, &Options{})
		if err != nil {
			var e *Error
			if !errors.As(err, &e) && err != io.EOF && err != io.ErrUnexpectedEOF {
				t.Fatalf("unclassified: %v", err)
			}
			return
		}
		var c wire.Challenge
		_, p, rest, err := wire.Next(in)
		if err != nil || c.Parse(p) != nil || c.AuthRequired || !bytes.HasPrefix(rest, (&wire.Welcome{}).Append(nil, 0)) {
			t.Fatalf("accepted: %x", in)
		}
		if lim.chunk < 1 || lim.chunk > wire.MaxChunk || lim.key < 1 || lim.key > wire.MaxKey || lim.inFlight < 1 || lim.inFlight > maxInFlight {
			t.Fatalf("limits %+v", lim)
		}
	})
}

// script is a node that says what it has to say, whatever it hears.
type script struct{ io.Reader }

func (*script) Write(p []byte) (int, error) { return len(p), nil }
