package wire

// Hello begins a connection: client to server.
type Hello struct {
	// MinVersion and MaxVersion are the versions of the messages that the client
	// understands.
	MinVersion, MaxVersion uint8
	Nonce                  [16]byte // random
	Incarnation            uint64   // of the client's process
	Fingerprint            [32]byte // of the layout; all zero: do not compare
	Namespace              string   // at most MaxName bytes; empty: the server's first
	Client                 string   // for logs; at most MaxName bytes
	// Layout describes the layout of Fingerprint, at most MaxLayout bytes, so that
	// a refusal can name what differs. Empty: not said, as by clients that do not
	// know of it.
	Layout string
}

func (m *Hello) fields(c *coder) {
	u8(c, &m.MinVersion, 1, 255, "minVersion")
	u8(c, &m.MaxVersion, max(1, m.MinVersion), 255, "maxVersion")
	c.array(m.Nonce[:], "clientNonce")
	c.u64(&m.Incarnation, "incarnation")
	c.array(m.Fingerprint[:], "fingerprint")
	c.text(&m.Namespace, 0, MaxName, "namespace")
	c.text(&m.Client, 0, MaxName, "client")
	c.lastText(&m.Layout, MaxLayout, "layout")
}

// Append appends the frame to dst.
func (m *Hello) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeHello, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Hello) Parse(payload []byte) error {
	c := reader(TypeHello, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeHello.
func (*Hello) Type() Type { return TypeHello }

// Challenge is the server's answer to Hello.
type Challenge struct {
	Version      uint8 // the one that is spoken from here on
	AuthRequired bool
	Nonce        [16]byte // random
	Incarnation  uint64   // of the server's process
	Fingerprint  [32]byte // of the namespace's layout; all zero: do not compare
	MaxValue     uint64   // bytes
	MaxKey       uint32   // bytes
	MaxInFlight  uint32   // requests of one connection
	MaxChunk     uint32   // bytes of a value in one frame, at most the constant
}

func (m *Challenge) fields(c *coder) {
	u8(c, &m.Version, 1, 255, "version")
	c.flag(&m.AuthRequired, "authRequired")
	c.array(m.Nonce[:], "serverNonce")
	c.u64(&m.Incarnation, "incarnation")
	c.array(m.Fingerprint[:], "fingerprint")
	c.u64(&m.MaxValue, "maxValue")
	c.u32(&m.MaxKey, "maxKey")
	c.u32(&m.MaxInFlight, "maxInFlight")
	c.u32(&m.MaxChunk, "maxChunk")
}

// Append appends the frame to dst.
func (m *Challenge) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeChallenge, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Challenge) Parse(payload []byte) error {
	c := reader(TypeChallenge, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeChallenge.
func (*Challenge) Type() Type { return TypeChallenge }

// Auth is the client's proof that it has the secret.
type Auth struct {
	MAC [32]byte // ClientMAC; all zero when no secret is asked for
}

func (m *Auth) fields(c *coder) {
	c.array(m.MAC[:], "mac")
}

// Append appends the frame to dst.
func (m *Auth) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeAuth, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Auth) Parse(payload []byte) error {
	c := reader(TypeAuth, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeAuth.
func (*Auth) Type() Type { return TypeAuth }

// Welcome is the server's proof, and opens the connection for requests.
type Welcome struct {
	MAC [32]byte // ServerMAC; all zero when no secret is asked for
}

func (m *Welcome) fields(c *coder) {
	c.array(m.MAC[:], "mac")
}

// Append appends the frame to dst.
func (m *Welcome) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeWelcome, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Welcome) Parse(payload []byte) error {
	c := reader(TypeWelcome, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeWelcome.
func (*Welcome) Type() Type { return TypeWelcome }
