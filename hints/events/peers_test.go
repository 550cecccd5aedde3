package events

import (
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/kvcr-go/kvcr/hints/events/zmtp"
)

var discard = slog.New(slog.DiscardHandler)

func be64(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

// lossyPublisher sends some batches only to those who ask.
type lossyPublisher struct {
	pub              *zmtp.Pub
	listener         *zmtp.Listener
	p                *Publisher
	endpoint, replay string
	seq              uint64
}

func newLossyPublisher(t testing.TB, steps int) *lossyPublisher {
	t.Helper()
	l := &lossyPublisher{pub: zmtp.NewPub(zmtp.PubOptions{Linger: -1})}
	l.p = &Publisher{pub: l.pub, ring: newRing(steps, 1<<20)}
	var err error
	if l.endpoint, err = l.pub.Bind("inproc://lossy"); err != nil {
		t.Fatal(err)
	}
	if l.listener, err = zmtp.Listen("inproc://lossy-replay", zmtp.ROUTER, zmtp.Options{}, l.p.serveReplay); err != nil {
		t.Fatal(err)
	}
	l.replay = l.listener.Endpoint()
	t.Cleanup(l.close)
	return l
}

func (l *lossyPublisher) publish(ev Event, arrives bool) {
	wire := zmtp.AppendMessage(nil, nil, be64(l.seq), AppendBatch(nil, &Batch{Events: []Event{ev}}, Arrays))
	l.seq++
	l.p.ring.add(wire)
	if arrives {
		l.pub.Send(nil, wire)
	}
}

func (l *lossyPublisher) close() {
	l.pub.Close()
	l.listener.Close()
}

// proxy is a wire that can be cut.
type proxy struct {
	endpoint string
	mu       sync.Mutex
	to       string
	conns    []net.Conn
}

func newProxy(t testing.TB, to string) *proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{endpoint: "tcp://" + ln.Addr().String(), to: to}
	var wg sync.WaitGroup
	spawn := func(f func()) {
		wg.Add(1)
		go func() { defer wg.Done(); f() }()
	}
	spawn(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			to := p.to
			p.mu.Unlock()
			out, err := net.Dial("tcp", strings.TrimPrefix(to, "tcp://"))
			if err != nil {
				in.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, in, out)
			p.mu.Unlock()
			pass := func(a, b net.Conn) {
				io.Copy(a, b)
				a.Close()
				b.Close()
			}
			spawn(func() { pass(in, out) })
			spawn(func() { pass(out, in) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		p.cut()
		wg.Wait()
	})
	return p
}

// aim has further connections go elsewhere.
func (p *proxy) aim(to string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to = to
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}
