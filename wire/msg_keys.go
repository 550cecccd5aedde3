package wire

// Delete removes keys. The answer is Statuses: ok, or miss for a key that was not
// there.
// The keys' bytes and two more for each must fit the payload; see MaxPayload and
// MaxList. So in all messages with keys.
type Delete struct {
	Keys [][]byte
}

func (m *Delete) fields(c *coder) {
	c.keys(&m.Keys)
}

// Append appends the frame to dst.
func (m *Delete) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeDelete, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Delete) Parse(payload []byte) error {
	c := reader(TypeDelete, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeDelete.
func (*Delete) Type() Type { return TypeDelete }

// Exists asks which keys are resident. The answer is Statuses or Count, by Mode.
type Exists struct {
	Mode Mode
	Keys [][]byte
}

func (m *Exists) fields(c *coder) {
	u8(c, &m.Mode, ModeEach, ModePrefix, "mode")
	c.keys(&m.Keys)
}

// Append appends the frame to dst.
func (m *Exists) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeExists, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Exists) Parse(payload []byte) error {
	c := reader(TypeExists, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeExists.
func (*Exists) Type() Type { return TypeExists }

// Query asks what is known of keys. The answer is Results.
type Query struct {
	Keys [][]byte
	// RequestID is the inference engine's name for the request that the keys are for:
	// what hints say of it counts. At most MaxText bytes; empty: none.
	RequestID string
}

func (m *Query) fields(c *coder) {
	c.keys(&m.Keys)
	c.lastText(&m.RequestID, MaxText, "requestID")
}

// Append appends the frame to dst.
func (m *Query) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeQuery, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Query) Parse(payload []byte) error {
	c := reader(TypeQuery, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeQuery.
func (*Query) Type() Type { return TypeQuery }

// Results answers Query, in the order of its keys.
type Results struct {
	Results []Result
}

func (m *Results) fields(c *coder) {
	for i := range list(c, &m.Results, 2+1+8, "results") {
		r := &m.Results[i]
		u16(c, &r.Status, "status")
		u8(c, &r.Tier, 0, 255, "tier")
		c.u64(&r.Size, "size")
	}
}

// Result is one key of Results. Tier and Size mean something when Status is
// StatusOK.
type Result struct {
	Status Status
	Tier   uint8
	Size   uint64 // bytes
}

// Append appends the frame to dst.
func (m *Results) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeResults, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Results) Parse(payload []byte) error {
	c := reader(TypeResults, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeResults.
func (*Results) Type() Type { return TypeResults }

// Fetch claims the values of keys, so that they stay until they are released. The
// answer is Claims.
type Fetch struct {
	Keys [][]byte
	// RequestID is as in Query: what is absent is fetched from where hints say that it
	// is.
	RequestID string
}

func (m *Fetch) fields(c *coder) {
	c.keys(&m.Keys)
	c.lastText(&m.RequestID, MaxText, "requestID")
}

// Append appends the frame to dst.
func (m *Fetch) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeFetch, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Fetch) Parse(payload []byte) error {
	c := reader(TypeFetch, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeFetch.
func (*Fetch) Type() Type { return TypeFetch }

// Claims answers Fetch, in the order of its keys.
type Claims struct {
	Claims []Claim
}

func (m *Claims) fields(c *coder) {
	for i := range list(c, &m.Claims, 2+8+8+4+8, "claims") {
		k := &m.Claims[i]
		u16(c, &k.Status, "status")
		c.u64(&k.Claim, "claim")
		c.u64(&k.Size, "size")
		c.u32(&k.Pool, "pool")
		c.u64(&k.Offset, "offset")
	}
}

// Claim is one key of Claims. The fields after Status mean something when it is
// StatusOK; Pool and Offset say where the value lies to a client that shares
// memory with the server, and Pool is NoPool for others.
type Claim struct {
	Status Status
	Claim  uint64 // for Deliver and Release
	Size   uint64 // bytes
	Pool   uint32
	Offset uint64 // bytes from the pool's begin
}

// Append appends the frame to dst.
func (m *Claims) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeClaims, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Claims) Parse(payload []byte) error {
	c := reader(TypeClaims, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeClaims.
func (*Claims) Type() Type { return TypeClaims }

// Deliver asks for the value of a claim: Value and Data, or StatusReleased. The
// claim stays.
type Deliver struct {
	Claim uint64
}

func (m *Deliver) fields(c *coder) {
	c.u64(&m.Claim, "claim")
}

// Append appends the frame to dst.
func (m *Deliver) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeDeliver, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Deliver) Parse(payload []byte) error {
	c := reader(TypeDeliver, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeDeliver.
func (*Deliver) Type() Type { return TypeDeliver }

// Release ends claims. The answer is Statuses: ok, or released for what is no claim
// of this connection, or not any more.
type Release struct {
	Claims []uint64
}

func (m *Release) fields(c *coder) {
	for i := range list(c, &m.Claims, 8, "claims") {
		c.u64(&m.Claims[i], "claim")
	}
}

// Append appends the frame to dst.
func (m *Release) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeRelease, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Release) Parse(payload []byte) error {
	c := reader(TypeRelease, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeRelease.
func (*Release) Type() Type { return TypeRelease }
