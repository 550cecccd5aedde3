package wire

// Messages between nodes that are not about one transfer; msg_transfer.go has
// the others. The node that dials is the client of the connection and the
// destination of all transfers on it; the node that listens is the server and their
// source. A node that is to be both dials as well.

// Route is a way for payload between two nodes.
type Route uint8

// The routes.
const (
	RouteNone   Route = iota // none in common: no transfers
	RouteShm                 // same host: the destination copies from the source's payload memory
	RouteUCX                 // UCX: a rendezvous into receives that the destination has posted
	RouteUCXPut              // UCX: the source writes into memory that the destination has registered
	RouteStream              // payload connections of our own, TCP or unix
	routeEnd
)

var routeNames = [routeEnd]string{"none", "shm", "ucx", "ucx-put", "stream"}

// String is the route's name, as in PROTOCOL.md, or route(77).
func (r Route) String() string {
	if r < routeEnd {
		return routeNames[r]
	}
	return nameOf("", "route", uint64(r))
}

// Routes is a set of routes: bit r for Route r. Bits of no route parse.
type Routes uint8

// Has reports whether r is in the set.
func (s Routes) Has(r Route) bool { return s&(1<<r) != 0 }

// With is the set with r added.
func (s Routes) With(r Route) Routes { return s | 1<<r }

// PeerInfo is what either side of a connection between nodes says of itself.
type PeerInfo struct {
	Node     string   // name, for people
	Endpoint string   // where other nodes dial it, host:port; empty: nowhere
	Host     [16]byte // same bytes: the same running kernel; zero: not told
	UCX      []byte   // address of its UCX worker; empty: no UCX
}

// MaxUCX is the longest worker address in bytes.
const MaxUCX = 8 << 10

const peerInfoSize = 2*(2+MaxName) + 16 + 2 + MaxUCX

func (p *PeerInfo) fields(c *coder) {
	c.text(&p.Node, 0, MaxName, "node")
	c.text(&p.Endpoint, 0, MaxName, "endpoint")
	c.array(p.Host[:], "host")
	c.bytes(&p.UCX, 0, MaxUCX, "ucx")
}

// PeerHello makes a connection, after Welcome, the control connection of two nodes.
// The dialler says what it is. The answer is PeerWelcome, or StatusUnsupported where
// no peers are served.
type PeerHello struct {
	PeerInfo
	Routes Routes // those that the destination can use
	// Link tells control connections of one destination apart: each takes the place of
	// the one before it that has the same number. A destination that knows the source
	// by several addresses has one for each.
	Link uint64
}

func (m *PeerHello) fields(c *coder) {
	m.PeerInfo.fields(c)
	u8(c, &m.Routes, 0, 255, "routes")
	c.lastU64(&m.Link, "link")
}

// Append appends the frame to dst.
func (m *PeerHello) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypePeerHello, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *PeerHello) Parse(payload []byte) error {
	c := reader(TypePeerHello, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypePeerHello.
func (*PeerHello) Type() Type { return TypePeerHello }

// PeerWelcome answers PeerHello: the source says what it is and chooses the route.
type PeerWelcome struct {
	PeerInfo
	Route Route  // of all payload of this control connection
	Token uint64 // names this control connection in PeerStream; random
	Local string // path of a unix socket of the same node, for RouteShm; empty: none
}

func (m *PeerWelcome) fields(c *coder) {
	m.PeerInfo.fields(c)
	u8(c, &m.Route, 0, 255, "route")
	c.u64(&m.Token, "token")
	c.text(&m.Local, 0, MaxName, "local")
}

// Append appends the frame to dst.
func (m *PeerWelcome) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypePeerWelcome, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *PeerWelcome) Parse(payload []byte) error {
	c := reader(TypePeerWelcome, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypePeerWelcome.
func (*PeerWelcome) Type() Type { return TypePeerWelcome }

// PeerStream makes a connection, after Welcome, a payload connection that belongs to a
// control connection. There is no answer, and its request id is 0. What follows
// depends on the route: see PROTOCOL.md.
type PeerStream struct {
	Token uint64 // of PeerWelcome
	Index uint8  // which of several payload connections, from 0
}

func (m *PeerStream) fields(c *coder) {
	c.u64(&m.Token, "token")
	u8(c, &m.Index, 0, 255, "index")
}

// Append appends the frame to dst.
func (m *PeerStream) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypePeerStream, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *PeerStream) Parse(payload []byte) error {
	c := reader(TypePeerStream, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypePeerStream.
func (*PeerStream) Type() Type { return TypePeerStream }

// PeerQuery asks which keys the source could offer. The answer is Results.
type PeerQuery struct {
	Namespace string
	Keys      [][]byte
}

func (m *PeerQuery) fields(c *coder) {
	c.text(&m.Namespace, 0, MaxName, "namespace")
	c.keys(&m.Keys)
}

// Append appends the frame to dst.
func (m *PeerQuery) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypePeerQuery, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *PeerQuery) Parse(payload []byte) error {
	c := reader(TypePeerQuery, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypePeerQuery.
func (*PeerQuery) Type() Type { return TypePeerQuery }

// Invalidate asks a node to remove blocks; Generation is compared unless it is 0. The
// answer is Statuses: StatusOK, StatusMiss, StatusGeneration, or why a block stays.
type Invalidate struct {
	Source    uint64 // incarnation of the node that is asked; 0: whoever answers
	Namespace string
	Items     []Wanted
}

func (m *Invalidate) fields(c *coder) {
	c.u64(&m.Source, "source")
	c.text(&m.Namespace, 0, MaxName, "namespace")
	for i := range list(c, &m.Items, wantedSize, "items") {
		m.Items[i].fields(c)
	}
}

// Append appends the frame to dst.
func (m *Invalidate) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeInvalidate, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Invalidate) Parse(payload []byte) error {
	c := reader(TypeInvalidate, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeInvalidate.
func (*Invalidate) Type() Type { return TypeInvalidate }
