package wire

// ShmAttach asks to share memory. The answer is ShmPools, or StatusUnsupported where
// the connection cannot carry descriptors.
type ShmAttach struct {
	StagingBytes uint64 // memory that the client wants to write to; 0: none
}

func (m *ShmAttach) fields(c *coder) {
	c.u64(&m.StagingBytes, "stagingBytes")
}

// Append appends the frame to dst.
func (m *ShmAttach) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeShmAttach, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *ShmAttach) Parse(payload []byte) error {
	c := reader(TypeShmAttach, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeShmAttach.
func (*ShmAttach) Type() Type { return TypeShmAttach }

// ShmPools answers ShmAttach. The descriptors travel beside it, in the order of
// Pools and then the one for staging, if any.
type ShmPools struct {
	Pools        []Pool
	StagingBytes uint64 // granted
}

func (m *ShmPools) fields(c *coder) {
	for i := range list(c, &m.Pools, 4+8+8, "pools") {
		p := &m.Pools[i]
		c.u32(&p.Pool, "pool")
		c.u64(&p.Bytes, "bytes")
		c.u64(&p.SlotBytes, "slotBytes")
	}
	c.u64(&m.StagingBytes, "stagingBytes")
}

// Pool is one region of shared memory.
type Pool struct {
	Pool      uint32 // its number in Claim and Reservation
	Bytes     uint64
	SlotBytes uint64
}

// Append appends the frame to dst.
func (m *ShmPools) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeShmPools, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *ShmPools) Parse(payload []byte) error {
	c := reader(TypeShmPools, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeShmPools.
func (*ShmPools) Type() Type { return TypeShmPools }

// StagingPool is the number of the staging memory in Reservation.
const StagingPool = NoPool - 1

// Reserve asks for shared memory to write a value into. The answer is Reservation.
type Reserve struct {
	Key  []byte
	Size uint64 // bytes
	Verb Verb   // what Commit will do
}

func (m *Reserve) fields(c *coder) {
	c.key(&m.Key)
	c.u64(&m.Size, "size")
	u8(c, &m.Verb, VerbSet, VerbSetIfAbsent, "verb")
}

// Append appends the frame to dst.
func (m *Reserve) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeReserve, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Reserve) Parse(payload []byte) error {
	c := reader(TypeReserve, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeReserve.
func (*Reserve) Type() Type { return TypeReserve }

// Reservation answers Reserve. The fields after Status mean something when it is
// StatusOK.
type Reservation struct {
	Status      Status
	Reservation uint64 // for Commit and Abort
	Pool        uint32
	Offset      uint64 // bytes from the pool's begin
}

func (m *Reservation) fields(c *coder) {
	u16(c, &m.Status, "status")
	c.u64(&m.Reservation, "reservation")
	c.u32(&m.Pool, "pool")
	c.u64(&m.Offset, "offset")
}

// Append appends the frame to dst.
func (m *Reservation) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeReservation, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Reservation) Parse(payload []byte) error {
	c := reader(TypeReservation, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeReservation.
func (*Reservation) Type() Type { return TypeReservation }

// Commit makes the value of a reservation resident. The answer is a StatusReply.
type Commit struct {
	Reservation uint64
	HasSum      bool
	Sum         uint64 // of the value; without meaning unless HasSum
}

func (m *Commit) fields(c *coder) {
	c.u64(&m.Reservation, "reservation")
	c.flag(&m.HasSum, "hasSum")
	c.u64(&m.Sum, "sum")
}

// Append appends the frame to dst.
func (m *Commit) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeCommit, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Commit) Parse(payload []byte) error {
	c := reader(TypeCommit, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeCommit.
func (*Commit) Type() Type { return TypeCommit }

// Abort gives a reservation back. The answer is a StatusReply.
type Abort struct {
	Reservation uint64
}

func (m *Abort) fields(c *coder) {
	c.u64(&m.Reservation, "reservation")
}

// Append appends the frame to dst.
func (m *Abort) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeAbort, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Abort) Parse(payload []byte) error {
	c := reader(TypeAbort, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeAbort.
func (*Abort) Type() Type { return TypeAbort }
