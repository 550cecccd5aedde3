package client

import (
	"errors"
	"fmt"
	"log/slog"
	"time"
	"unicode/utf8"

	"github.com/kvcr-go/kvcr/wire"
)

// Options say which node to speak to and how. All but Addr may be zero.
type Options struct {
	// Addr is host:port, or unix:path.
	Addr string
	// Namespace is the namespace of all keys; empty: the node's first.
	Namespace string
	// Name is what the node's log calls this client.
	Name string
	// Secret is shared with the node, at least wire.MinSecret bytes. Both sides
	// prove that they have it, and a node that asks for none is refused. Empty:
	// a node that asks for one is refused.
	Secret []byte
	// Layout describes the layout that the namespace must have, as
	// wire.Layout.Describe does; empty: any. A node with another one is refused,
	// and the error names what differs, with both values.
	Layout string
	// Fingerprint is that of Layout, and need not be set beside it. Alone it does
	// the same, but then the error cannot name the client's values.
	Fingerprint [32]byte

	// Conns is the most connections for requests, made when a call finds all
	// others busy; default 1, at most 256. Requests of many callers share one
	// connection well as long as they are small: they leave and arrive many in
	// one system call. More help where values are large, since each connection is
	// read by one goroutine and served by one event loop of the node: then as many
	// as processors may be spent on copying. Each subscription has one more.
	Conns int
	// DialTimeout bounds connecting, handshake included; default 5 s.
	DialTimeout time.Duration
	// RequestTimeout bounds calls whose context has no deadline, default 30 s,
	// negative: none. A connection that has answered nothing for as long, though
	// a call gave up on it, is closed.
	RequestTimeout time.Duration
	// MaxBackoff bounds the pause before the next attempt to connect after one
	// that failed; default 500 ms. The pause grows from 5 ms and is random.
	MaxBackoff time.Duration

	Log *slog.Logger // default: discards
}

const (
	maxConns     = 256
	firstBackoff = 5 * time.Millisecond
)

func (o *Options) withDefaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.DialTimeout, 5*time.Second)
	def(&o.RequestTimeout, 30*time.Second)
	def(&o.MaxBackoff, 500*time.Millisecond)
	if o.Conns == 0 {
		o.Conns = 1
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Secret = append([]byte(nil), o.Secret...)
	if o.Layout != "" && o.Fingerprint == [32]byte{} {
		o.Fingerprint = wire.Fingerprint(o.Layout)
	}
}

// validate reports every problem at once.
func (o *Options) validate() error {
	var errs []error
	bad := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(o.Addr == "", "Addr is empty")
	bad(o.Conns < 0 || o.Conns > maxConns, "Conns is %d, not 1 to %d", o.Conns, maxConns)
	bad(o.DialTimeout < 0, "DialTimeout is %v", o.DialTimeout)
	bad(o.MaxBackoff < 0, "MaxBackoff is %v", o.MaxBackoff)
	for _, f := range []struct {
		name, value string
		most        int
	}{{"Namespace", o.Namespace, wire.MaxName}, {"Name", o.Name, wire.MaxName}, {"Layout", o.Layout, wire.MaxLayout}} {
		bad(len(f.value) > f.most, "%s has %d bytes, at most %d", f.name, len(f.value), f.most)
		bad(!utf8.ValidString(f.value), "%s is not UTF-8", f.name)
	}
	if len(o.Secret) > 0 {
		if err := wire.CheckSecret(o.Secret); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
