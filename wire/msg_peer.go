package wire

// Messages between nodes that are not about one transfer; msg_transfer.go has
// the others. On a connection between nodes the dialler is the destination of all
// transfers, and sends what a client sends; whoever wants to fetch from it dials
// back.

// Route is a way for payload between two nodes.
type Route uint8

// The routes.
const (
	RouteNone   Route = iota
	RouteShm          // same host: the destination copies from the source's pools
	RouteUCX          // rendezvous into memory that the destination has posted
	RouteUCXPut       // the source writes into registered memory
	RouteStream       // streams of our own, TCP or unix
	routeEnd
)

var routeNames = [routeEnd]string{"none", "shm", "ucx", "ucx-put", "stream"}

func (r Route) String() string {
	if r < routeEnd {
		return routeNames[r]
	}
	return nameOf("", "route", uint64(r))
}

// Routes is a set of routes: bit r for Route r.
type Routes uint8

// Has reports whether r is in the set.
func (s Routes) Has(r Route) bool { return s&(1<<r) != 0 }

// With is the set with r added.
func (s Routes) With(r Route) Routes { return s | 1<<r }

// PeerInfo is what either side of a connection between nodes says of itself.
type PeerInfo struct {
	Node     string   // name, for people
	Endpoint string   // where others dial it, host:port; may be empty
	Host     [16]byte // identifies the running kernel: same host, same bytes; zero: not told
	UCX      []byte   // worker address; empty: no UCX
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

// PeerHello follows Welcome on a control connection between nodes: the dialler, which
// will be the destination of transfers, says what it is.
type PeerHello struct {
	PeerInfo
	Routes Routes // that it can use
}

func (m *PeerHello) fields(c *coder) {
	m.PeerInfo.fields(c)
	u8(c, &m.Routes, 0, 255, "routes")
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

// PeerWelcome answers PeerHello: the source says what it is and chooses the route. Its id
// is that of PeerHello.
type PeerWelcome struct {
	PeerInfo
	Route Route  // of this connection's payload
	Token uint64 // names this connection in PeerStream
	Local string // unix socket of the same listener, for the shm route; may be empty
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

// PeerStream makes a connection, after Welcome, one that carries payload for the control
// connection named by Token. What follows on it is route-specific; see PROTOCOL.md.
type PeerStream struct {
	Token uint64
	Index uint8 // which of several streams
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

// PeerQuery asks which keys the peer could send. The answer is Results.
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

// Invalidate asks a node to remove blocks. The answer is Statuses: ok, miss,
// StatusGeneration, or why a block stays.
type Invalidate struct {
	Source    uint64 // incarnation of the node that is asked; 0: whoever answers
	Namespace string
	Items     []Wanted
}

func (m *Invalidate) fields(c *coder) {
	c.u64(&m.Source, "source")
	c.text(&m.Namespace, 0, MaxName, "namespace")
	for i := range list(c, &m.Items, 2+1+4, "items") {
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
