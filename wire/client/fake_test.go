package client

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// fake is a node for tests. It keeps its values in a map, and misbehaves as its
// fields say.
type fake struct {
	tb        testing.TB
	ln        net.Listener
	secret    []byte
	challenge wire.Challenge
	hello     func(h *wire.Hello, nc net.Conn) bool // false: the handshake is over
	welcome   func(*wire.Welcome)
	// serve takes the connections after the handshake; default (*peer).store.
	serve func(*peer)
	chunk int    // bytes of a value in one frame
	unix  string // path to listen on instead of TCP

	mu     sync.Mutex
	values map[string][]byte
	claims map[uint64][]byte
	last   uint64
	peers  map[*peer]struct{}
	count  int // connections so far
	wg     sync.WaitGroup
}

var testSecret = []byte("0123456789abcdef")

func newFake(tb testing.TB, change func(*fake)) *fake {
	f := &fake{
		tb: tb, chunk: wire.MaxChunk, values: map[string][]byte{}, claims: map[uint64][]byte{}, peers: map[*peer]struct{}{},
		challenge: wire.Challenge{Version: 1, Incarnation: 7, MaxValue: 64 << 20, MaxKey: 1024, MaxInFlight: 128, MaxChunk: wire.MaxChunk},
		serve:     (*peer).store,
	}
	if change != nil {
		change(f)
	}
	f.challenge.AuthRequired = f.challenge.AuthRequired || f.secret != nil
	f.listen("127.0.0.1:0")
	tb.Cleanup(f.close)
	return f
}

// listen begins to take connections, again after close.
func (f *fake) listen(addr string) {
	network := "tcp"
	if f.unix != "" {
		network, addr = "unix", f.unix
	}
	var err error
	if f.ln, err = net.Listen(network, addr); err != nil {
		f.tb.Fatal(err)
	}
	f.wg.Add(1)
	go f.accept()
}

func (f *fake) addr() string {
	if f.unix != "" {
		return "unix:" + f.unix
	}
	return f.ln.Addr().String()
}

func (f *fake) accept() {
	defer f.wg.Done()
	for {
		nc, err := f.ln.Accept()
		if err != nil {
			return
		}
		p := &peer{f: f, nc: nc, in: make([]byte, 0, 64<<10)}
		f.mu.Lock()
		f.peers[p] = struct{}{}
		f.count++
		f.mu.Unlock()
		f.wg.Add(1)
		go func() {
			defer f.wg.Done()
			defer func() {
				nc.Close()
				f.mu.Lock()
				delete(f.peers, p)
				f.mu.Unlock()
			}()
			if p.handshake() {
				f.serve(p)
			}
		}()
	}
}

// hangUp closes all connections.
func (f *fake) hangUp() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for p := range f.peers {
		p.nc.Close()
	}
}

func (f *fake) close() {
	f.ln.Close()
	f.hangUp()
	f.wg.Wait()
}

func (f *fake) connections() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

func (f *fake) get(key string) ([]byte, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v, ok := f.values[key]
	return v, ok
}

func (f *fake) set(key string, value []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.values[key] = bytes.Clone(value)
}

// peer is the node's end of one connection. send may be called by any goroutine.
type peer struct {
	f     *fake
	nc    net.Conn
	in    []byte
	r     int
	sends sync.Mutex
}

// next returns the next frame; the payload lives until the call after. ok is
// false at the end of the connection.
func (p *peer) next() (h wire.Header, payload []byte, ok bool) {
	for {
		h, payload, _, err := wire.Next(p.in[p.r:])
		if err == nil {
			p.r += wire.HeaderSize + len(payload)
			return h, payload, true
		}
		if err != wire.ErrShort {
			p.f.tb.Errorf("the client sent no frame: %v", err)
			return h, nil, false
		}
		n := copy(p.in, p.in[p.r:])
		p.in, p.r = p.in[:n], 0
		if cap(p.in)-n < 32<<10 {
			p.in = append(make([]byte, 0, 2*cap(p.in)), p.in...)
		}
		n, err = p.nc.Read(p.in[n:cap(p.in)])
		if n == 0 && err != nil {
			return h, nil, false
		}
		p.in = p.in[:len(p.in)+n]
	}
}

func (p *peer) send(b []byte) {
	p.sends.Lock()
	defer p.sends.Unlock()
	p.nc.Write(b) // the client may be gone: then next says so
}

// want returns the next frame, which must be of type t.
func (p *peer) want(t wire.Type, m wire.Message) (id uint64, ok bool) {
	h, payload, ok := p.next()
	if !ok {
		return 0, false
	}
	if h.Type != t {
		p.f.tb.Errorf("the client sent %v, want %v", h.Type, t)
		return 0, false
	}
	if m != nil {
		if err := m.Parse(bytes.Clone(payload)); err != nil {
			p.f.tb.Errorf("the client sent no %v: %v", t, err)
			return 0, false
		}
	}
	return h.ID, true
}

// drain reads until the client hangs up.
func (p *peer) drain() { io.Copy(io.Discard, p.nc) }

func (p *peer) handshake() bool {
	var hello wire.Hello
	if _, ok := p.want(wire.TypeHello, &hello); !ok {
		return false
	}
	if p.f.hello != nil && !p.f.hello(&hello, p.nc) {
		return false
	}
	ch := p.f.challenge
	binary.LittleEndian.PutUint64(ch.Nonce[:], rand.Uint64())
	p.send(ch.Append(nil, 0))
	var auth wire.Auth
	if _, ok := p.want(wire.TypeAuth, &auth); !ok {
		return false
	}
	var w wire.Welcome
	if ch.AuthRequired {
		if !wire.SameMAC(auth.MAC, wire.ClientMAC(p.f.secret, &hello, &ch)) {
			p.send((&wire.ErrorReply{Code: wire.CodeAuth, Text: "wrong MAC"}).Append(nil, 0))
			return false
		}
		w.MAC = wire.ServerMAC(p.f.secret, &hello, &ch)
	}
	if p.f.welcome != nil {
		p.f.welcome(&w)
	}
	p.send(w.Append(nil, 0))
	return true
}

// half is a value of which a part has come.
type half struct {
	key   string
	verb  wire.Verb
	total int
	value []byte
}

// store answers all requests as PROTOCOL.md has it.
func (p *peer) store() {
	halves := map[uint64]*half{}
	var out []byte
	var get wire.Get
	for {
		if p.r == len(p.in) && len(out) > 0 { // answer when there is no more to read
			p.send(out)
			out = out[:0]
		}
		h, payload, ok := p.next()
		if !ok {
			return
		}
		if h.Type == wire.TypeGet { // the only one that must not allocate
			if err := get.Parse(payload); err != nil {
				p.f.tb.Error(err)
			}
			p.f.mu.Lock()
			v, ok := p.f.values[string(get.Key)]
			p.f.mu.Unlock()
			if ok {
				out = p.value(out, h.ID, v)
			} else {
				out = (&wire.StatusReply{Status: wire.StatusMiss}).Append(out, h.ID)
			}
			continue
		}
		m := wire.New(h.Type)
		if m == nil || m.Parse(bytes.Clone(payload)) != nil {
			p.f.tb.Errorf("the client sent a bad %v", h.Type)
			return
		}
		out = p.answer(out, h, m, halves)
	}
}

// shuffle answers as store does, but out of order and with the frames of different
// answers mixed. It checks that no more requests run than it allows and that no id
// is used twice.
func (p *peer) shuffle() {
	type request struct {
		h wire.Header
		m wire.Message
	}
	type answer struct {
		id     uint64
		frames []byte
	}
	in := make(chan request, 256)
	go func() {
		defer close(in)
		for {
			h, payload, ok := p.next()
			if !ok {
				return
			}
			m := wire.New(h.Type)
			if m == nil || m.Parse(bytes.Clone(payload)) != nil {
				p.f.tb.Errorf("the client sent a bad %v", h.Type)
				return
			}
			in <- request{h, m}
		}
	}()
	halves := map[uint64]*half{}
	running := map[uint64]bool{}
	var last uint64
	var open []answer
	for {
		var r request
		some, more := true, true
		if len(open) == 0 {
			r, more = <-in
		} else {
			select {
			case r, more = <-in:
			default:
				some = false
			}
		}
		if !more {
			return
		}
		if some {
			if c, ok := r.m.(*wire.Cancel); ok {
				for i := range open {
					if open[i].id == c.Target && rand.N(2) == 0 {
						open[i].frames = (&wire.StatusReply{Status: wire.StatusAborted}).Append(nil, c.Target)
					}
				}
			} else if r.h.Type != wire.TypeData {
				if r.h.ID <= last {
					p.f.tb.Errorf("id %d after %d", r.h.ID, last)
				}
				last = r.h.ID
				running[r.h.ID] = true
				if len(running) > int(p.f.challenge.MaxInFlight) {
					p.f.tb.Errorf("%d requests run, limit %d", len(running), p.f.challenge.MaxInFlight)
				}
			}
			id := r.h.ID
			if c, ok := r.m.(*wire.Cancel); ok {
				id = c.Target
			}
			if out := p.answer(nil, r.h, r.m, halves); len(out) > 0 {
				open = append(open, answer{id, out})
			}
			if len(open) < 8 {
				continue
			}
		}
		if len(open) == 0 {
			continue
		}
		i := rand.N(len(open))
		h, payload, rest, err := wire.Next(open[i].frames)
		if err != nil {
			p.f.tb.Errorf("the fake made no frame: %v", err)
			return
		}
		frame := open[i].frames[:wire.HeaderSize+len(payload)]
		open[i].frames = rest
		if !h.More() {
			delete(running, h.ID)
			open = append(open[:i], open[i+1:]...)
		}
		p.send(frame)
	}
}

// value appends an answer with a value.
func (p *peer) value(out []byte, id uint64, v []byte) []byte {
	n := min(len(v), p.f.chunk)
	out = (&wire.Value{Total: uint64(len(v)), Value: v[:n], More: n < len(v)}).Append(out, id)
	for at := n; at < len(v); at += n {
		n = min(len(v)-at, p.f.chunk)
		out = (&wire.Data{Offset: uint64(at), Bytes: v[at : at+n], More: at+n < len(v)}).Append(out, id)
	}
	return out
}

func (p *peer) answer(out []byte, h wire.Header, m wire.Message, halves map[uint64]*half) []byte {
	f := p.f
	f.mu.Lock()
	defer f.mu.Unlock()
	status := func(s wire.Status) []byte { return (&wire.StatusReply{Status: s}).Append(out, h.ID) }
	each := func(keys [][]byte, one func(key string) wire.Status) []byte {
		var s wire.Statuses
		for _, k := range keys {
			s.Statuses = append(s.Statuses, one(string(k)))
		}
		return s.Append(out, h.ID)
	}
	there := func(key string) wire.Status {
		if _, ok := f.values[key]; ok {
			return wire.StatusOK
		}
		return wire.StatusMiss
	}
	switch m := m.(type) {
	case *wire.Ping:
		return (&wire.Pong{Bytes: m.Bytes}).Append(out, h.ID)
	case *wire.Set:
		halves[h.ID] = &half{string(m.Key), m.Verb, int(m.Total), m.Value}
	case *wire.Data:
		w := halves[h.ID]
		if w == nil || int(m.Offset) != len(w.value) {
			f.tb.Errorf("DATA at %d for id %d out of turn", m.Offset, h.ID)
			return out
		}
		w.value = append(w.value, m.Bytes...)
	case *wire.Cancel:
		if halves[m.Target] != nil {
			delete(halves, m.Target)
			return (&wire.StatusReply{Status: wire.StatusAborted}).Append(out, m.Target)
		}
		return out
	case *wire.Delete:
		return each(m.Keys, func(key string) wire.Status {
			defer delete(f.values, key)
			return there(key)
		})
	case *wire.Exists:
		if m.Mode == wire.ModeEach {
			return each(m.Keys, there)
		}
		n := 0
		for n < len(m.Keys) && there(string(m.Keys[n])) == wire.StatusOK {
			n++
		}
		return (&wire.Count{N: uint32(n)}).Append(out, h.ID)
	case *wire.Query:
		var r wire.Results
		for _, key := range m.Keys {
			r.Results = append(r.Results, wire.Result{Status: there(string(key)), Tier: 2, Size: uint64(len(f.values[string(key)]))})
		}
		return r.Append(out, h.ID)
	case *wire.Fetch:
		var c wire.Claims
		for _, key := range m.Keys {
			s := there(string(key))
			one := wire.Claim{Status: s, Pool: wire.NoPool}
			if s == wire.StatusOK {
				f.last++
				one.Claim, one.Size = f.last, uint64(len(f.values[string(key)]))
				f.claims[f.last] = f.values[string(key)]
			}
			c.Claims = append(c.Claims, one)
		}
		return c.Append(out, h.ID)
	case *wire.Deliver:
		v, ok := f.claims[m.Claim]
		if !ok {
			return status(wire.StatusReleased)
		}
		return p.value(out, h.ID, v)
	case *wire.Release:
		var s wire.Statuses
		for _, c := range m.Claims {
			one := wire.StatusReleased
			if _, ok := f.claims[c]; ok {
				one = wire.StatusOK
			}
			delete(f.claims, c)
			s.Statuses = append(s.Statuses, one)
		}
		return s.Append(out, h.ID)
	case *wire.Get:
		v, ok := f.values[string(m.Key)]
		if !ok {
			return status(wire.StatusMiss)
		}
		return p.value(out, h.ID, v)
	case *wire.Stats:
		return (&wire.StatsReply{Body: []byte(`{"hits":1}`)}).Append(out, h.ID)
	case *wire.Hint:
		return (&wire.HintResults{Body: append([]byte("echo "), m.Body...)}).Append(out, h.ID)
	case *wire.DiscardHint:
		return status(wire.StatusOK)
	default:
		f.tb.Errorf("no answer to %v", h.Type)
		return out
	}
	w := halves[h.ID] // of SET and its DATA
	if h.More() != (len(w.value) < w.total) {
		f.tb.Errorf("%v: more=%t at %d of %d bytes", h.Type, h.More(), len(w.value), w.total)
	}
	if h.More() {
		return out
	}
	delete(halves, h.ID)
	if w.verb != wire.VerbSet && there(w.key) == wire.StatusOK {
		if w.verb == wire.VerbSetIfAbsent {
			return status(wire.StatusExists)
		}
		return status(wire.StatusOK)
	}
	f.values[w.key] = w.value
	return status(wire.StatusOK)
}

// dial connects a client that the test closes.
func (f *fake) dial(change func(*Options)) *Client {
	f.tb.Helper()
	opt := Options{Addr: f.addr(), Name: "test", Secret: f.secret, MaxBackoff: 20 * time.Millisecond}
	if change != nil {
		change(&opt)
	}
	cl, err := Dial(context.Background(), opt)
	if err != nil {
		f.tb.Fatal(err)
	}
	f.tb.Cleanup(func() { cl.Close() })
	return cl
}
