package server

import (
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/internal/blockcopy"
	"github.com/kvcr-go/kvcr/wire"
)

const (
	// maxInFlight is how many requests of one connection may have values under
	// way, in either direction, or be subscriptions.
	maxInFlight = 64
	// maxClaims is how many blocks one connection may hold by FETCH.
	maxClaims = 16 << 10
)

// stage of a binary connection.
type stage uint8

const (
	wantHello stage = iota
	wantAuth
	open
)

// binaryConn is the protocol of one binary connection.
type binaryConn struct {
	srv       *Server
	stage     stage
	hello     wire.Hello
	challenge wire.Challenge
	namespace string       // the client's, by its full name
	unwanted  func() error // says why the client is refused, once it has proved itself

	// The frame whose value bytes are arriving: left of them are to come.
	left int
	more bool // FlagMore of that frame
	id   uint64
	fill *fill

	fills     map[uint64]*fill // writes under way, by request
	claims    map[uint64]kvcr.View
	nextClaim uint64
	subs      map[uint64]*subscription
	advised   advised
	shm       *attachment // nil: no shared memory

	msgs messages
}

// messages are parsed into again and again, so that requests do not allocate.
type messages struct {
	get     wire.Get
	del     wire.Delete
	exists  wire.Exists
	query   wire.Query
	fetch   wire.Fetch
	deliver wire.Deliver
	release wire.Release
	ping    wire.Ping

	statuses wire.Statuses
	results  wire.Results
	granted  wire.Claims
}

// fill is a write whose value is on its way.
type fill struct {
	verb  wire.Verb
	ttl   uint64
	key   []byte
	total uint64
	at    uint64            // bytes that have come
	res   *kvcr.Reservation // nil when it was refused: the value is skipped
	dst   []byte            // what of the block is not written
	why   error             // of the refusal
}

func newBinary(s *Server) *binaryConn {
	return &binaryConn{srv: s, fills: map[uint64]*fill{}, claims: map[uint64]kvcr.View{}, subs: map[uint64]*subscription{}}
}

func (c *binaryConn) want() []byte {
	if c.left == 0 || c.fill.res == nil {
		return nil
	}
	return c.fill.dst[:c.left]
}

func (c *binaryConn) took(s *session, n int) {
	if c.fill.res != nil {
		c.fill.dst = c.fill.dst[n:]
	}
	c.fill.at += uint64(n)
	if c.left -= n; c.left == 0 && !c.more {
		c.endFill(s)
	}
}

func (c *binaryConn) rebind(h *kvcr.Handle) error {
	for _, f := range c.fills {
		if f.res == nil {
			continue
		}
		if err := f.res.Attach(h); err != nil {
			return err
		}
	}
	return nil
}

func (c *binaryConn) abort() {
	for id, f := range c.fills {
		if f.res != nil {
			f.res.Abort()
		}
		delete(c.fills, id)
	}
	c.advised.close()
	c.collect() // what comes later ends by itself
	if c.shm != nil {
		c.shm.close(&c.srv.sharing, c.claims)
		c.shm = nil
	} else {
		for _, v := range c.claims {
			v.Release()
		}
	}
	clear(c.claims)
	for id, sub := range c.subs {
		sub.stop()
		delete(c.subs, id)
	}
	c.fill, c.left = nil, 0
}

func (c *binaryConn) feed(s *session, b []byte) (used int, err error) {
	for known := 0; used < len(b); known-- {
		if c.left > 0 {
			used += c.take(s, b[used:])
			continue
		}
		if known <= 0 && c.stage == open {
			known = c.lookAhead(s, b[used:])
		}
		n, err := c.frame(s, b[used:])
		used += n
		if errors.Is(err, wire.ErrShort) {
			return used, nil
		}
		if err != nil {
			return used, c.farewell(s, err)
		}
		if err := s.mayFlush(); err != nil {
			return used, err
		}
	}
	return used, nil
}

// lookAhead begins to load what the GETs at the start of b will touch, so that the
// cache misses of pipelined requests overlap. It returns how many frames it has
// looked at: other ones, and frames that are not as they should be, end it.
func (c *binaryConn) lookAhead(s *session, b []byte) (frames int) {
	var keys [readAhead][]byte
	for frames < readAhead {
		h, payload, rest, err := wire.Next(b)
		if err != nil || h.Type != wire.TypeGet || c.msgs.get.Parse(payload) != nil {
			break
		}
		keys[frames] = c.msgs.get.Key
		frames++
		b = rest
	}
	s.h.Prefetch(keys[:frames])
	return frames
}

// farewell tells the client why its connection ends.
func (c *binaryConn) farewell(s *session, err error) error {
	if errors.Is(err, errQuit) {
		return err
	}
	var e *refusal
	m := wire.ErrorReply{Code: wire.CodeOf(err), Text: err.Error()}
	if errors.As(err, &e) {
		m.Code = e.code
	}
	s.out.text = m.Append(s.out.text, 0)
	return errQuit
}

// refusal ends a connection with a code of the protocol.
type refusal struct {
	code wire.Code
	text string
}

func (e *refusal) Error() string { return e.text }

func refuse(code wire.Code, format string, a ...any) error {
	return &refusal{code, fmt.Sprintf(format, a...)}
}

// frame runs the frame at the start of b, or the head of one that carries a
// value, and returns the bytes used.
func (c *binaryConn) frame(s *session, b []byte) (n int, err error) {
	h, err := wire.ParseHeader(b)
	if err != nil {
		return 0, err
	}
	if c.stage != open {
		// Checked before anything is waited for: nobody unknown makes us buffer.
		if want := [...]wire.Type{wire.TypeHello, wire.TypeAuth}[c.stage]; h.Type != want {
			return 0, refuse(wire.CodeHandshake, "%s before the handshake is over: expected %s", h.Type, want)
		}
	}
	if !h.Type.FromClient() {
		return 0, refuse(wire.CodeBadType, "%s is no frame of a client", h.Type)
	}
	switch body := b[wire.HeaderSize:]; h.Type {
	case wire.TypeSet:
		n, err = c.beginSet(s, h, body)
		return afterHead(n, err)
	case wire.TypeData:
		n, err = c.beginData(h, body)
		return afterHead(n, err)
	}
	_, payload, _, err := wire.Next(b)
	if err != nil {
		return 0, err
	}
	n = wire.HeaderSize + len(payload)
	if c.stage != open {
		return n, c.handshake(s, h, payload)
	}
	return n, c.request(s, h, payload)
}

// afterHead is what a frame has used whose head took n bytes: nothing, while that
// is not complete.
func afterHead(n int, err error) (int, error) {
	if errors.Is(err, wire.ErrShort) {
		return 0, err
	}
	return wire.HeaderSize + n, err
}

// handshake runs HELLO and AUTH.
func (c *binaryConn) handshake(s *session, h wire.Header, payload []byte) error {
	if h.Type == wire.TypeHello {
		if err := c.hello.Parse(payload); err != nil {
			return err
		}
		return c.greet(s)
	}
	var m wire.Auth
	if err := m.Parse(payload); err != nil {
		return err
	}
	secret := c.srv.opt.Secret
	var w wire.Welcome
	if len(secret) > 0 {
		if !wire.SameMAC(m.MAC, wire.ClientMAC(secret, &c.hello, &c.challenge)) {
			return refuse(wire.CodeAuth, "the client's proof is wrong: its secret is another one")
		}
		w.MAC = wire.ServerMAC(secret, &c.hello, &c.challenge)
	}
	if c.unwanted != nil {
		return c.unwanted()
	}
	c.hello.Layout = "" // kilobytes, of no use any more
	c.stage = open
	s.ready.Store(true)
	s.out.text = w.Append(s.out.text, 0)
	return nil
}

// greet answers HELLO.
func (c *binaryConn) greet(s *session) error {
	if c.hello.MinVersion > wire.Version || c.hello.MaxVersion < wire.Version {
		return refuse(wire.CodeBadVersion, "the client speaks versions %d to %d, this node %d", c.hello.MinVersion, c.hello.MaxVersion, wire.Version)
	}
	c.challenge = wire.Challenge{
		Version: wire.Version, AuthRequired: len(c.srv.opt.Secret) > 0, Incarnation: c.srv.incarnation,
		MaxKey: kvcr.MaxKeyBytes, MaxInFlight: maxInFlight, MaxChunk: wire.MaxChunk,
	}
	if err := c.choose(s); err != nil {
		return err
	}
	if c.challenge.AuthRequired { // nothing that tells one namespace from another, or from none
		c.challenge.Fingerprint, c.challenge.MaxValue = [32]byte{}, 0
		for _, n := range c.srv.maxValue {
			c.challenge.MaxValue = max(c.challenge.MaxValue, n)
		}
	}
	if _, err := rand.Read(c.challenge.Nonce[:]); err != nil {
		return refuse(wire.CodeInternal, "no random numbers: %v", err)
	}
	c.stage = wantAuth
	s.out.text = c.challenge.Append(s.out.text, 0)
	return nil
}

// choose finds the client's namespace. A client that is to be refused for that
// hears it after its proof, and with it what the layout here is.
func (c *binaryConn) choose(s *session) error {
	ns, ok := c.srv.namespaceOf(c.hello.Namespace)
	if !ok {
		c.unwanted = func() error { return refuse(wire.CodeNamespace, "no namespace %q here", c.hello.Namespace) }
		return nil
	}
	c.namespace = ns
	if err := s.setNamespace(ns); err != nil {
		return refuse(wire.CodeTooMany, "no handle for the connection: %v", err)
	}
	c.challenge.MaxValue = c.srv.maxValue[ns]
	if layout := c.srv.opt.Layouts[ns]; layout != "" {
		c.challenge.Fingerprint = wire.Fingerprint(layout)
		if c.hello.Fingerprint != [32]byte{} && c.hello.Fingerprint != c.challenge.Fingerprint {
			c.unwanted = func() error {
				return refuse(wire.CodeFingerprint, "the layouts differ: %s", wire.LayoutDifference(c.hello.Layout, layout))
			}
		}
	}
	return nil
}

// beginSet takes memory for a value that is on its way.
func (c *binaryConn) beginSet(s *session, h wire.Header, body []byte) (n int, err error) {
	m, n, err := wire.ParseSetHead(body, h.Length)
	if err != nil {
		return 0, err
	}
	if c.inFlight(s) >= maxInFlight {
		return n, refuse(wire.CodeTooMany, "more than %d requests in flight", maxInFlight)
	}
	if c.fills[h.ID] != nil {
		return n, refuse(wire.CodeBadPayload, "request id %d is in use", h.ID)
	}
	f := &fill{verb: m.Verb, ttl: m.TTLMillis, key: append([]byte(nil), m.Key...), total: m.Total}
	switch {
	case m.Total > uint64(maxInt):
		f.why = kvcr.ErrTooLarge
	case f.ttl != 0 && !c.srv.ttl.room(c.namespace, f.key):
		f.why = errDeadlines
	default:
		f.res, f.why = s.h.Reserve(f.key, int(m.Total))
	}
	if f.why == nil {
		f.dst = f.res.Bytes()
	}
	c.fills[h.ID] = f
	c.expect(h, f, int(h.Length)-n)
	if c.left == 0 && !c.more {
		c.endFill(s)
	}
	return n, nil
}

// beginData goes on with the value of a SET.
func (c *binaryConn) beginData(h wire.Header, body []byte) (n int, err error) {
	offset, n, err := wire.ParseDataHead(body, h.Length)
	if err != nil {
		return 0, err
	}
	f := c.fills[h.ID]
	if f == nil {
		return n, refuse(wire.CodeBadPayload, "DATA for request id %d, which expects none", h.ID)
	}
	size := uint64(int(h.Length) - n)
	if offset != f.at || f.total-f.at < size || (size == f.total-f.at) == h.More() {
		return n, refuse(wire.CodeBadPayload, "DATA of %d bytes at %d, more %t, for a value of %d bytes of which %d have come", size, offset, h.More(), f.total, f.at)
	}
	c.expect(h, f, int(size))
	return n, nil
}

// expect notes that bytes of a value follow.
func (c *binaryConn) expect(h wire.Header, f *fill, n int) {
	c.id, c.fill, c.left, c.more = h.ID, f, n, h.More()
}

// take moves bytes of a value to their place and returns how many.
func (c *binaryConn) take(s *session, b []byte) int {
	n := min(c.left, len(b))
	if c.fill.res != nil {
		blockcopy.Copy(c.fill.dst[:n], b[:n])
	}
	c.took(s, n)
	return n
}

// endFill commits a value that is complete, and answers.
func (c *binaryConn) endFill(s *session) {
	f := c.fill
	delete(c.fills, c.id)
	c.fill = nil
	s.count(commandSet)
	if f.why != nil {
		c.status(s, c.id, f.why)
		return
	}
	if f.at != f.total { // a SET without FlagMore that is not whole
		f.res.Abort()
		c.failRequest(s, c.id, wire.CodeBadPayload, fmt.Sprintf("the value ends after %d of %d bytes", f.at, f.total))
		return
	}
	stored, err := store(f.res, f.verb)
	if err == nil && stored && f.ttl != 0 {
		c.srv.ttl.add(s.h, c.namespace, f.key, millis(f.ttl))
	}
	c.stored(s, c.id, f.verb, stored, err)
}

// store commits a value by its verb; it is not stored when another one stays.
func store(res *kvcr.Reservation, verb wire.Verb) (stored bool, err error) {
	if verb == wire.VerbSet {
		return true, res.Commit()
	}
	return res.CommitAbsent()
}

// stored answers with how a write ended.
func (c *binaryConn) stored(s *session, id uint64, verb wire.Verb, stored bool, err error) {
	if err != nil {
		s.failed()
	}
	m := storedReply(verb, stored, err)
	s.out.text = m.Append(s.out.text, id)
}

func storedReply(verb wire.Verb, stored bool, err error) wire.StatusReply {
	if err == nil && !stored && verb == wire.VerbSetIfAbsent {
		return wire.StatusReply{Status: wire.StatusExists}
	}
	return statusReply(err)
}

// status answers with how a request ended.
func (c *binaryConn) status(s *session, id uint64, err error) {
	if err != nil {
		s.failed()
	}
	m := statusReply(err)
	s.out.text = m.Append(s.out.text, id)
}

func statusReply(err error) wire.StatusReply {
	st, detail := statusOf(err)
	return wire.StatusReply{Status: st, Detail: detail}
}

// statusOf translates an error of the engine.
func statusOf(err error) (st wire.Status, detail uint64) {
	var e *kvcr.OpError
	errors.As(err, &e)
	switch {
	case err == nil:
		return wire.StatusOK, 0
	case errors.Is(err, kvcr.ErrTooLarge):
		if e != nil {
			detail = uint64(e.Limit)
		}
		return wire.StatusTooLarge, detail
	case errors.Is(err, kvcr.ErrKey):
		return wire.StatusBadKey, 0
	case errors.Is(err, kvcr.ErrLayout):
		return wire.StatusBadLayout, 0
	case errors.Is(err, kvcr.ErrFull), errors.Is(err, errDeadlines):
		return wire.StatusCapacity, 0
	case errors.Is(err, kvcr.ErrDropped):
		return wire.StatusDropped, 0
	case errors.Is(err, kvcr.ErrClosed):
		return wire.StatusClosed, 0
	}
	return wire.StatusAborted, 0
}

// inFlight is how many requests have values under way or are subscriptions.
func (c *binaryConn) inFlight(s *session) int {
	return len(c.fills) + len(c.subs) + c.advised.requests() + s.streaming()
}
