package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/wire"
	"github.com/kvcr-go/kvcr/wire/client"
)

// binaryClient speaks the protocol frame by frame.
type binaryClient struct {
	t *testing.T
	net.Conn
	in []byte
}

func startBinary(t *testing.T, edit func(*Options)) *Server {
	return start(t, func(o *Options) {
		o.Binary = []string{"127.0.0.1:0"}
		if edit != nil {
			edit(o)
		}
	})
}

func dialBinary(t *testing.T, s *Server) *binaryClient {
	t.Helper()
	_, addrs := s.Addrs()
	c, err := net.Dial(addrs[0].Network(), addrs[0].String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return &binaryClient{t: t, Conn: c}
}

// next reads one frame.
func (c *binaryClient) next() (wire.Header, []byte, error) {
	for {
		h, payload, rest, err := wire.Next(c.in)
		if err == nil {
			payload = append([]byte(nil), payload...)
			c.in = append([]byte(nil), rest...)
			return h, payload, nil
		}
		if !errors.Is(err, wire.ErrShort) {
			return h, nil, err
		}
		buf := make([]byte, 64<<10)
		n, err := c.Read(buf)
		if err != nil {
			return h, nil, err
		}
		c.in = append(c.in, buf[:n]...)
	}
}

// recv reads one frame that must be m's, with this id.
func (c *binaryClient) recv(id uint64, m wire.Message) wire.Header {
	c.t.Helper()
	h, payload, err := c.next()
	if err != nil {
		c.t.Fatalf("waiting for %v: %v", m.Type(), err)
	}
	if h.Type != m.Type() || h.ID != id {
		var e wire.ErrorReply
		if h.Type == wire.TypeError && e.Parse(payload) == nil {
			c.t.Fatalf("id %d: error %v %q, want %v", h.ID, e.Code, e.Text, m.Type())
		}
		c.t.Fatalf("got %v of request %d, want %v of %d", h.Type, h.ID, m.Type(), id)
	}
	if err := m.Parse(payload); err != nil {
		c.t.Fatal(err)
	}
	return h
}

func (c *binaryClient) write(b []byte) {
	c.t.Helper()
	if _, err := c.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

func (c *binaryClient) ask(id uint64, m, answer wire.Message) {
	c.t.Helper()
	c.write(m.Append(nil, id))
	c.recv(id, answer)
}

// greet does the handshake.
func (c *binaryClient) greet(secret []byte, edit func(*wire.Hello)) (h wire.Hello, ch wire.Challenge) {
	c.t.Helper()
	h = wire.Hello{MinVersion: 1, MaxVersion: 3, Nonce: [16]byte{1, 2, 3}, Incarnation: 9, Client: "test"}
	if edit != nil {
		edit(&h)
	}
	c.ask(0, &h, &ch)
	var auth wire.Auth
	if secret != nil {
		auth.MAC = wire.ClientMAC(secret, &h, &ch)
	}
	var w wire.Welcome
	c.ask(0, &auth, &w)
	if secret != nil && w.MAC != wire.ServerMAC(secret, &h, &ch) {
		c.t.Error("the server's proof is wrong")
	}
	return h, ch
}

// value reads a whole value.
func (c *binaryClient) value(id uint64) []byte {
	c.t.Helper()
	var v wire.Value
	h := c.recv(id, &v)
	out := append([]byte(nil), v.Value...)
	for h.More() {
		var d wire.Data
		h = c.recv(id, &d)
		if d.Offset != uint64(len(out)) {
			c.t.Fatalf("DATA at %d after %d bytes", d.Offset, len(out))
		}
		out = append(out, d.Bytes...)
	}
	if uint64(len(out)) != v.Total {
		c.t.Fatalf("%d bytes, total %d", len(out), v.Total)
	}
	return out
}

// set writes a value in as many frames as it needs.
func appendSet(dst []byte, id uint64, verb wire.Verb, ttl uint64, key string, value []byte) []byte {
	n := min(len(value), wire.MaxChunk)
	m := wire.Set{Verb: verb, TTLMillis: ttl, Key: []byte(key), Total: uint64(len(value)), Value: value[:n], More: n < len(value)}
	dst = m.Append(dst, id)
	for at := n; at < len(value); at += n {
		n = min(len(value)-at, wire.MaxChunk)
		d := wire.Data{Offset: uint64(at), Bytes: value[at : at+n], More: at+n < len(value)}
		dst = d.Append(dst, id)
	}
	return dst
}

func (c *binaryClient) set(id uint64, verb wire.Verb, key string, value []byte) wire.Status {
	c.t.Helper()
	c.write(appendSet(nil, id, verb, 0, key, value))
	var st wire.StatusReply
	c.recv(id, &st)
	return st.Status
}

func (c *binaryClient) get(id uint64, key string) ([]byte, wire.Status) {
	c.t.Helper()
	c.write((&wire.Get{Key: []byte(key)}).Append(nil, id))
	h, payload, err := c.next()
	if err != nil {
		c.t.Fatal(err)
	}
	if h.Type == wire.TypeStatus {
		var st wire.StatusReply
		st.Parse(payload)
		return nil, st.Status
	}
	// Put it back and read it as a value.
	c.in = append(append(wire.AppendHeader(nil, h), payload...), c.in...)
	return c.value(id), wire.StatusOK
}

func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*31 + i>>8*seed + seed)
	}
	return b
}

func TestBinaryRequests(t *testing.T) {
	s := startBinary(t, nil)
	c := dialBinary(t, s)
	_, ch := c.greet(nil, nil)
	if ch.Version != 1 || ch.AuthRequired || ch.MaxValue != 8<<20 || ch.MaxKey != 1024 || ch.Incarnation == 0 {
		t.Errorf("challenge %+v", ch)
	}
	id := uint64(100)
	for i, size := range []int{0, 1, 63, 5000, lendFrom, 64 << 10, wire.MaxChunk, wire.MaxChunk + 1, 3<<20 + 17} {
		key, v := fmt.Sprintf("key-%d", i), pattern(size, i)
		id++
		if st := c.set(id, wire.VerbSet, key, v); st != wire.StatusOK {
			t.Fatalf("set of %d bytes: %v", size, st)
		}
		id++
		got, st := c.get(id, key)
		if st != wire.StatusOK || !bytes.Equal(got, v) {
			t.Fatalf("get of %d bytes: %d bytes, %v", size, len(got), st)
		}
	}
	if _, st := c.get(1, "absent"); st != wire.StatusMiss {
		t.Errorf("absent: %v", st)
	}
	if st := c.set(2, wire.VerbSetIfAbsent, "key-1", []byte("other")); st != wire.StatusExists {
		t.Errorf("set if absent: %v", st)
	}
	if st := c.set(3, wire.VerbDeposit, "key-1", []byte("x")); st != wire.StatusOK {
		t.Errorf("deposit: %v", st)
	}
	if got, _ := c.get(4, "key-1"); len(got) != 1 || got[0] == 'x' {
		t.Errorf("a deposit replaced: %q", got)
	}
	if st := c.set(5, wire.VerbSet, "huge", make([]byte, 9<<20)); st != wire.StatusTooLarge {
		t.Errorf("huge: %v", st)
	}
	var sts wire.Statuses
	keys := [][]byte{[]byte("key-2"), []byte("absent"), []byte("key-3")}
	c.ask(6, &wire.Exists{Keys: keys}, &sts)
	if fmt.Sprint(sts.Statuses) != "[ok miss ok]" {
		t.Errorf("exists: %v", sts.Statuses)
	}
	var n wire.Count
	c.ask(7, &wire.Exists{Mode: wire.ModePrefix, Keys: keys}, &n)
	if n.N != 1 {
		t.Errorf("prefix: %d", n.N)
	}
	var rs wire.Results
	c.ask(8, &wire.Query{Keys: keys}, &rs)
	if len(rs.Results) != 3 || rs.Results[2].Size != 5000 || rs.Results[1].Status != wire.StatusMiss {
		t.Errorf("query: %+v", rs.Results)
	}
	var cl wire.Claims
	c.ask(9, &wire.Fetch{Keys: keys}, &cl)
	if len(cl.Claims) != 3 || cl.Claims[2].Size != 5000 || cl.Claims[1].Status != wire.StatusMiss {
		t.Fatalf("fetch: %+v", cl.Claims)
	}
	// The claim outlives the key.
	c.ask(10, &wire.Delete{Keys: keys}, &sts)
	if fmt.Sprint(sts.Statuses) != "[ok miss ok]" {
		t.Errorf("delete: %v", sts.Statuses)
	}
	c.write((&wire.Deliver{Claim: cl.Claims[2].Claim}).Append(nil, 11))
	if got := c.value(11); !bytes.Equal(got, pattern(5000, 3)) {
		t.Error("the bytes under a claim changed")
	}
	c.ask(12, &wire.Release{Claims: []uint64{cl.Claims[2].Claim, cl.Claims[2].Claim, 999}}, &sts)
	if fmt.Sprint(sts.Statuses) != "[ok released released]" {
		t.Errorf("release: %v", sts.Statuses)
	}
	var st wire.StatusReply
	c.ask(13, &wire.Deliver{Claim: cl.Claims[2].Claim}, &st)
	if st.Status != wire.StatusReleased {
		t.Errorf("deliver after release: %v", st.Status)
	}
	var pong wire.Pong
	c.ask(14, &wire.Ping{Bytes: []byte("echo")}, &pong)
	if string(pong.Bytes) != "echo" {
		t.Errorf("pong %q", pong.Bytes)
	}
	var stats wire.StatsReply
	c.ask(15, &wire.Stats{}, &stats)
	var parsed struct{ Engine kvcr.Stats }
	if err := json.Unmarshal(stats.Body, &parsed); err != nil || parsed.Engine.Blocks == 0 {
		t.Errorf("stats: %v, %d blocks", err, parsed.Engine.Blocks)
	}
	c.ask(16, &wire.Hint{Body: []byte("{}")}, &st)
	if st.Status != wire.StatusUnsupported {
		t.Errorf("hint: %v", st.Status)
	}
	c.write(appendSet(nil, 17, wire.VerbSet, 200, "short-lived", []byte("x")))
	c.recv(17, &st)
	time.Sleep(time.Second)
	if _, got := c.get(18, "short-lived"); got != wire.StatusMiss {
		t.Errorf("a key outlived its time: %v", got)
	}
}

// A large value under way does not hold up a ping by more than a frame, in either
// direction, and can be cancelled.
func TestBinaryInterleaving(t *testing.T) {
	s := startBinary(t, nil)
	c := dialBinary(t, s)
	c.greet(nil, nil)
	v := pattern(8<<20, 5)
	if st := c.set(1, wire.VerbSet, "big", v); st != wire.StatusOK {
		t.Fatal(st)
	}
	// Writes: a ping between two frames of a value.
	b := appendSet(nil, 2, wire.VerbSet, 0, "big2", v)
	cut := wire.HeaderSize
	for _, _, rest, _ := wire.Next(b); cut < len(b)/2; _, _, rest, _ = wire.Next(rest) {
		cut = len(b) - len(rest)
	}
	c.write(b[:cut])
	var pong wire.Pong
	c.ask(3, &wire.Ping{}, &pong)
	c.write(b[cut:])
	var st wire.StatusReply
	c.recv(2, &st)
	if got, _ := c.get(4, "big2"); !bytes.Equal(got, v) {
		t.Fatal("wrong bytes")
	}
	// Reads: many megabytes asked for, then a ping.
	for id := uint64(10); id < 18; id++ {
		c.write((&wire.Get{Key: []byte("big")}).Append(nil, id))
	}
	time.Sleep(50 * time.Millisecond)
	c.write((&wire.Ping{}).Append(nil, 99))
	before := 0
	got := map[uint64][]byte{}
	ponged := -1
	for len(got) < 8 || ponged < 0 || !whole(got, len(v)) {
		h, payload, err := c.next()
		if err != nil {
			t.Fatal(err)
		}
		switch h.Type {
		case wire.TypePong:
			ponged = before
		case wire.TypeValue:
			var m wire.Value
			m.Parse(payload)
			got[h.ID] = append(got[h.ID], m.Value...)
		case wire.TypeData:
			var m wire.Data
			m.Parse(payload)
			got[h.ID] = append(got[h.ID], m.Bytes...)
		default:
			t.Fatalf("%v", h.Type)
		}
		before += len(payload)
	}
	for id, b := range got {
		if !bytes.Equal(b, v) {
			t.Errorf("request %d has wrong bytes", id)
		}
	}
	// What the kernel's buffers hold was sent before the ping came.
	if ponged > 16<<20 {
		t.Errorf("the ping waited for %d of 64 MiB", ponged)
	}
	c.write((&wire.Get{Key: []byte("big")}).Append(nil, 20))
	c.write((&wire.Cancel{Target: 20}).Append(nil, 0))
	for {
		h, payload, err := c.next()
		if err != nil {
			t.Fatal(err)
		}
		if h.Type == wire.TypeStatus {
			st.Parse(payload)
			break
		}
		if !h.More() {
			return // it was quicker than the cancel
		}
	}
	if st.Status != wire.StatusAborted {
		t.Errorf("cancelled: %v", st.Status)
	}
}

func whole(got map[uint64][]byte, n int) bool {
	for _, b := range got {
		if len(b) < n {
			return false
		}
	}
	return true
}

// A handshake that fails says why and ends the connection; nothing else is heard
// before it is over.
func TestBinaryHandshake(t *testing.T) {
	secret := []byte("sixteen bytes or more")
	s := startBinary(t, func(o *Options) {
		o.Secret = secret
		o.Layouts = map[string]string{"default": "kind=flat"}
	})
	hello := func(edit func(*wire.Hello)) []byte {
		h := wire.Hello{MinVersion: 1, MaxVersion: 1, Nonce: [16]byte{1}, Client: "test"}
		edit(&h)
		return h.Append(nil, 0)
	}
	for _, tt := range []struct {
		name string
		send []byte
		code wire.Code
		text string
	}{
		{"version", hello(func(h *wire.Hello) { h.MinVersion, h.MaxVersion = 2, 3 }), wire.CodeBadVersion, "versions 2 to 3"},
		{"a request first", (&wire.Get{Key: []byte("k")}).Append(nil, 1), wire.CodeHandshake, "GET"},
		{"a huge request first", wire.AppendHeader(nil, wire.Header{Type: wire.TypeExists, ID: 1, Length: wire.MaxPayload}), wire.CodeHandshake, "EXISTS"},
		{"auth first", (&wire.Auth{}).Append(nil, 0), wire.CodeHandshake, "AUTH"},
		{"no protocol of ours", []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), wire.CodeBadMagic, "magic"},
		{"wrong proof", append(hello(func(*wire.Hello) {}), (&wire.Auth{MAC: [32]byte{7}}).Append(nil, 0)...), wire.CodeAuth, "secret"},
	} {
		c := dialBinary(t, s)
		c.write(tt.send)
		h, payload, err := c.next()
		if err == nil && h.Type == wire.TypeChallenge {
			h, payload, err = c.next()
		}
		var e wire.ErrorReply
		if err != nil || h.Type != wire.TypeError || e.Parse(payload) != nil || e.Code != tt.code || !strings.Contains(e.Text, tt.text) {
			t.Errorf("%s: %v %v %q %v, want %v with %q", tt.name, h.Type, e.Code, e.Text, err, tt.code, tt.text)
		}
		if _, _, err := c.next(); err != io.EOF && !errors.Is(err, io.ErrUnexpectedEOF) && !strings.Contains(fmt.Sprint(err), "reset") {
			t.Errorf("%s: afterwards %v, want the end", tt.name, err)
		}
	}
	c := dialBinary(t, s)
	c.greet(secret, func(h *wire.Hello) { h.Fingerprint = wire.Fingerprint("kind=flat") })
	if st := c.set(1, wire.VerbSet, "k", []byte("v")); st != wire.StatusOK {
		t.Error(st)
	}
}

// Case B4: a client with another layout, or that names another namespace, is
// refused with both values, once it has proved itself and not before; the node
// and its other clients go on.
func TestLayoutRefused(t *testing.T) {
	layout := func(kind string, slot uint64) string {
		return wire.Layout{Kind: kind, Pools: []wire.LayoutPool{{Name: "kv", SlotBytes: slot}}}.Describe()
	}
	secret := []byte("sixteen bytes or more")
	for _, secret := range [][]byte{nil, secret} {
		s := startBinary(t, func(o *Options) {
			o.Secret, o.Layouts = secret, map[string]string{"default": layout("flat", 131072)}
		})
		other := dialBinary(t, s)
		other.greet(secret, func(h *wire.Hello) { h.Layout = layout("flat", 131072); h.Fingerprint = wire.Fingerprint(h.Layout) })
		var known wire.Challenge // of a client with nothing to be refused for
		for _, tt := range []struct {
			name string
			edit func(*wire.Hello)
			code wire.Code
			text string
		}{
			{"nothing", func(*wire.Hello) {}, 0, ""},
			{"namespace", func(h *wire.Hello) { h.Namespace = "other" }, wire.CodeNamespace, `no namespace "other" here`},
			{"slot bytes", func(h *wire.Hello) { h.Layout = layout("flat", 65536) }, wire.CodeFingerprint, `the layouts differ: pool "kv" slot bytes: yours 65536, node's 131072`},
			{"kind", func(h *wire.Hello) { h.Layout = layout("chained", 131072) }, wire.CodeFingerprint, `the layouts differ: kind: yours chained, node's flat`},
			{"no description", func(h *wire.Hello) { h.Fingerprint[0] = 1 }, wire.CodeFingerprint, `the layouts differ: no description was sent; the node's is kind=flat; pool "kv" slot bytes=131072`},
		} {
			h := wire.Hello{MinVersion: 1, MaxVersion: 1, Nonce: [16]byte{1}}
			tt.edit(&h)
			if h.Layout != "" {
				h.Fingerprint = wire.Fingerprint(h.Layout)
			}
			c := dialBinary(t, s)
			var ch wire.Challenge
			c.ask(0, &h, &ch)
			if tt.code == 0 {
				known = ch
				continue
			}
			if secret != nil && (ch.Fingerprint != known.Fingerprint || ch.MaxValue != known.MaxValue) {
				t.Errorf("%s: CHALLENGE tells a client without a proof: %x and %d, not %x and %d", tt.name, ch.Fingerprint, ch.MaxValue, known.Fingerprint, known.MaxValue)
			}
			var auth wire.Auth
			if secret != nil {
				auth.MAC = wire.ClientMAC(secret, &h, &ch)
			}
			var e wire.ErrorReply
			if c.ask(0, &auth, &e); e.Code != tt.code || e.Text != tt.text {
				t.Errorf("%s: %v, %q, want %v, %q", tt.name, e.Code, e.Text, tt.code, tt.text)
			}
			if _, _, err := c.next(); err == nil {
				t.Errorf("%s: the connection stays", tt.name)
			}
			if secret == nil {
				continue
			}
			c = dialBinary(t, s)
			c.ask(0, &h, &ch)
			auth.MAC[0]++
			if c.ask(0, &auth, &e); e.Code != wire.CodeAuth {
				t.Errorf("%s: a wrong proof is answered with %v, %q", tt.name, e.Code, e.Text)
			}
		}
		if st := other.set(1, wire.VerbSet, "k", []byte("v")); st != wire.StatusOK {
			t.Errorf("another client: %v", st)
		}
	}
}

// Frames that make no sense end the connection with a reason and leave nothing.
func TestBinaryNonsense(t *testing.T) {
	s := startBinary(t, nil)
	set := (&wire.Set{Key: []byte("k"), Total: 100, Value: []byte("abc"), More: true}).Append(nil, 5)
	for name, send := range map[string][]byte{
		"data for nothing":    (&wire.Data{Bytes: []byte("x")}).Append(nil, 9),
		"data at a hole":      append(append([]byte(nil), set...), (&wire.Data{Offset: 50, Bytes: []byte("x"), More: true}).Append(nil, 5)...),
		"data beyond the end": append(append([]byte(nil), set...), (&wire.Data{Offset: 3, Bytes: make([]byte, 98)}).Append(nil, 5)...),
		"data that ends soon": append(append([]byte(nil), set...), (&wire.Data{Offset: 3, Bytes: []byte("x")}).Append(nil, 5)...),
		"an id twice":         append(append([]byte(nil), set...), set...),
		"a server's frame":    (&wire.Pong{}).Append(nil, 1),
		"hello again":         (&wire.Hello{MinVersion: 1, MaxVersion: 1}).Append(nil, 0),
		"a bad payload":       append(wire.AppendHeader(nil, wire.Header{Type: wire.TypeGet, ID: 1, Length: 2}), 0, 0),
	} {
		c := dialBinary(t, s)
		c.greet(nil, nil)
		c.write(send)
		h, payload, err := c.next()
		var e wire.ErrorReply
		if err != nil || h.Type != wire.TypeError || h.ID != 0 || e.Parse(payload) != nil || e.Text == "" {
			t.Errorf("%s: %v, id %d, %q, %v", name, h.Type, h.ID, e.Text, err)
		}
	}
	// More requests at once than allowed.
	c := dialBinary(t, s)
	c.greet(nil, nil)
	var b []byte
	for id := range uint64(maxInFlight + 1) {
		b = (&wire.Set{Key: []byte("k"), Total: 10, More: true}).Append(b, id+1)
	}
	c.write(b)
	var e wire.ErrorReply
	c.recv(0, &e)
	if e.Code != wire.CodeTooMany {
		t.Errorf("%v", e.Code)
	}
}

// A subscriber sees a snapshot, then each change once, until it cancels.
func TestBinarySubscription(t *testing.T) {
	s := startBinary(t, nil)
	c, w := dialBinary(t, s), dialBinary(t, s)
	c.greet(nil, nil)
	w.greet(nil, nil)
	w.set(1, wire.VerbSet, "before", []byte("x"))
	c.write((&wire.Subscribe{}).Append(nil, 7))
	present := map[string]bool{}
	take := func() *wire.Events {
		var m wire.Events
		h := c.recv(7, &m)
		if !h.More() {
			t.Fatal("EVENTS without FlagMore")
		}
		for _, e := range m.Events {
			present[string(e.Key)] = e.Kind == wire.EventStored
		}
		return &m
	}
	first := take()
	if !first.Snapshot || !present["before"] || first.Epoch == 0 {
		t.Errorf("snapshot %+v", first)
	}
	if end := take(); end.Snapshot || len(end.Events) != 0 {
		t.Errorf("end of the snapshot %+v", end)
	}
	w.set(2, wire.VerbSet, "after", []byte("yz"))
	e := take()
	if len(e.Events) != 1 || string(e.Events[0].Key) != "after" || e.Events[0].Size != 2 || e.FirstSequence <= first.FirstSequence {
		t.Errorf("event %+v after %d", e, first.FirstSequence)
	}
	var sts wire.Statuses
	w.ask(3, &wire.Delete{Keys: [][]byte{[]byte("before")}}, &sts)
	if take(); present["before"] || !present["after"] {
		t.Errorf("present: %v", present)
	}
	c.write((&wire.Cancel{Target: 7}).Append(nil, 0))
	var st wire.StatusReply
	c.recv(7, &st)
	if st.Status != wire.StatusAborted {
		t.Errorf("%v", st.Status)
	}
	var pong wire.Pong
	c.ask(8, &wire.Ping{}, &pong)
	// One that does not read is not the end of anybody: the writer goes on.
	c.write((&wire.Subscribe{}).Append(nil, 9))
	for i := range 3000 {
		w.set(uint64(10+i), wire.VerbSet, fmt.Sprintf("%0900d", i), []byte("v"))
	}
}

// Every prefix of a conversation, then the end: nothing is left behind.
func TestBinaryPrefixes(t *testing.T) {
	s := startBinary(t, nil)
	h := wire.Hello{MinVersion: 1, MaxVersion: 1}
	b := h.Append(nil, 0)
	b = (&wire.Auth{}).Append(b, 0)
	b = appendSet(b, 1, wire.VerbSet, 0, "key", pattern(300, 1))
	b = (&wire.Get{Key: []byte("key")}).Append(b, 2)
	b = (&wire.Fetch{Keys: [][]byte{[]byte("key")}}).Append(b, 3)
	b = (&wire.Subscribe{}).Append(b, 4)
	for n := range len(b) {
		c := dialBinary(t, s)
		c.write(b[:n])
		c.Close()
	}
}

// FuzzHandshake: whatever comes before the handshake is over, the server says
// at most CHALLENGE, ERROR or WELCOME, never lets anybody in without the secret,
// and ends the connection.
func FuzzHandshake(f *testing.F) {
	_, addr := fuzzServer(f, func(o *Options) { o.Secret = []byte("sixteen bytes or more") })
	h := wire.Hello{MinVersion: 1, MaxVersion: 1}
	f.Add([]byte{})
	f.Add(h.Append(nil, 0))
	f.Add((&wire.Auth{}).Append(h.Append(nil, 0), 0))
	f.Add((&wire.Get{Key: []byte("k")}).Append((&wire.Auth{}).Append(h.Append(nil, 0), 0), 1))
	f.Fuzz(func(t *testing.T, data []byte) {
		answer := converse(t, addr, data, len(data)/2)
		for len(answer) > 0 {
			h, _, rest, err := wire.Next(answer)
			if err != nil {
				t.Fatalf("the server's answer is no frame: %v", err)
			}
			if h.Type != wire.TypeChallenge && h.Type != wire.TypeError {
				t.Fatalf("the server said %v to somebody without the secret", h.Type)
			}
			answer = rest
		}
	})
}

// fuzzServer serves a small engine for the whole of a fuzz target.
func fuzzServer(f *testing.F, edit func(*Options)) (*kvcr.Engine, string) {
	e, err := kvcr.Open(kvcr.Config{Capacity: 8 << 20, Namespaces: []kvcr.Namespace{{Name: "default", MaxValue: 1 << 20}}})
	if err != nil {
		f.Fatal(err)
	}
	opt := Options{Engine: e, Binary: []string{"127.0.0.1:0"}, IdleTimeout: time.Second}
	if edit != nil {
		edit(&opt)
	}
	s, err := Start(opt)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		s.Shutdown(ctx)
		e.Close()
	})
	_, addrs := s.Addrs()
	return e, addrs[0].String()
}

// converse sends data in two parts, ends its side, and returns all that the
// server says until it closes.
func converse(t *testing.T, addr string, data []byte, cut int) []byte {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	c.Write(data[:cut])
	c.Write(data[cut:])
	c.(*net.TCPConn).CloseWrite()
	answer, err := io.ReadAll(c)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the server does not close")
	}
	return answer
}

func FuzzBinary(f *testing.F) {
	e, addr := fuzzServer(f, nil)
	f.Add([]byte{}, uint8(0))
	f.Add(appendSet(nil, 1, wire.VerbSet, 0, "key", pattern(300, 1)), uint8(1))
	f.Add((&wire.Fetch{Keys: [][]byte{[]byte("key")}}).Append((&wire.Get{Key: []byte("key")}).Append(nil, 2), 3), uint8(7))
	f.Add((&wire.Cancel{Target: 4}).Append((&wire.Subscribe{}).Append(nil, 4), 0), uint8(3))
	f.Fuzz(func(t *testing.T, data []byte, cut uint8) {
		h := wire.Hello{MinVersion: 1, MaxVersion: 1}
		b := append((&wire.Auth{}).Append(h.Append(nil, 0), 0), data...)
		converse(t, addr, b, len(b)*int(cut)/256)
		deadline := time.Now().Add(5 * time.Second)
		for e.Claims() != 0 {
			if time.Now().After(deadline) {
				t.Fatalf("%d claims left", e.Claims())
			}
			time.Sleep(time.Millisecond)
		}
	})
}

// Frames that arrive a byte at a time are understood as well as in one piece (I3).
func TestBinaryByteByByte(t *testing.T) {
	s := startBinary(t, nil)
	for _, step := range []int{1, 7, 23, 24, 25, 35} {
		c := dialBinary(t, s)
		c.greet(nil, nil)
		v := pattern(3000, 9)
		b := appendSet(nil, 1, wire.VerbSet, 0, "key", v)
		head := (&wire.Set{Key: []byte("parts"), Total: 8, Value: []byte("abc"), More: true}).Append(nil, 2)
		b = append(append(b, head...), (&wire.Data{Offset: 3, Bytes: []byte("defgh")}).Append(nil, 2)...)
		b = (&wire.Get{Key: []byte("key")}).Append(b, 3)
		b = (&wire.Get{Key: []byte("parts")}).Append(b, 4)
		c.Conn.(*net.TCPConn).SetNoDelay(true)
		for at := 0; at < len(b); at += step {
			c.write(b[at:min(len(b), at+step)])
			if at < 200 || at > len(b)-300 {
				time.Sleep(200 * time.Microsecond) // so that they arrive apart
			}
		}
		var st wire.StatusReply
		c.recv(1, &st)
		c.recv(2, &st)
		if got := c.value(3); !bytes.Equal(got, v) {
			t.Errorf("step %d: wrong bytes", step)
		}
		if got := c.value(4); string(got) != "abcdefgh" {
			t.Errorf("step %d: %q", step, got)
		}
	}
}

// A subscriber who has nothing to say is not idle.
func TestSubscriberIsNotIdle(t *testing.T) {
	s := startBinary(t, func(o *Options) { o.IdleTimeout = 500 * time.Millisecond })
	c := dialBinary(t, s)
	c.greet(nil, nil)
	c.write((&wire.Subscribe{}).Append(nil, 7))
	time.Sleep(1500 * time.Millisecond)
	w := dialBinary(t, s)
	w.greet(nil, nil)
	w.set(1, wire.VerbSet, "late", []byte("x"))
	for {
		var m wire.Events
		c.recv(7, &m)
		if len(m.Events) == 1 && string(m.Events[0].Key) == "late" {
			return
		}
	}
}

// A connection that fails at the first write of a turn leaves nothing of the
// values that were to follow.
func TestBinaryResetBeforeStreams(t *testing.T) {
	s := startBinary(t, nil)
	c := dialBinary(t, s)
	c.greet(nil, nil)
	if st := c.set(1, wire.VerbSet, "big", pattern(3<<20, 5)); st != wire.StatusOK {
		t.Fatal(st)
	}
	// Values of several frames and small answers, so that both wait to be sent
	// when the kernel says that the other end is gone.
	var b []byte
	for id := uint64(1); id <= 40; id++ {
		b = (&wire.Get{Key: []byte("big")}).Append(b, id)
		b = (&wire.Ping{Bytes: []byte("small")}).Append(b, 100+id)
	}
	for range 200 {
		c := dialBinary(t, s)
		c.greet(nil, nil)
		c.write(b)
		c.Conn.(*net.TCPConn).SetLinger(0) // a reset
		c.Close()
	}
	if !comesTrue(5*time.Second, func() bool { return s.opt.Engine.Claims() == 0 }) {
		t.Errorf("%d claims left", s.opt.Engine.Claims())
	}
}

// What the client makes of a refusal for its layout can be read as it is.
func TestLayoutRefusedToClient(t *testing.T) {
	node := wire.Layout{Kind: "flat", Pools: []wire.LayoutPool{{Name: "kv", SlotBytes: 131072}}}
	s := startBinary(t, func(o *Options) { o.Layouts = map[string]string{"default": node.Describe()} })
	_, binary := s.Addrs()
	opt := client.Options{Addr: binary[0].String(), Layout: node.Describe()}
	cl, err := client.Dial(soon(t), opt)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	node.Pools[0].SlotBytes = 65536
	opt.Layout = node.Describe()
	_, err = client.Dial(soon(t), opt)
	if want := `pool "kv" slot bytes: yours 65536, node's 131072`; !errors.Is(err, client.ErrFingerprint) || !strings.Contains(fmt.Sprint(err), want) {
		t.Errorf("%v, want ErrFingerprint with %s", err, want)
	}
	if _, err := cl.Ping(soon(t)); err != nil {
		t.Errorf("the client with the right layout: %v", err)
	}
}
