package wire

// Messages with which a destination learns the keys that a source knows by 64-bit
// hashes of routers. Nothing is claimed by them: what was resolved is asked for by
// Start, with its generation.

// Limits of one request and its answer, so that the longest answer fits a frame: with 64
// hashes there is room for 2823 bytes of each description. What one is to hold are the
// ids of 512 tokens, 4 bytes each, and names of 512 bytes.
const (
	MaxHashes      = 64
	MaxDescription = 2816
)

const (
	resolvedSize = 2 // the shortest element: all else is there for StatusOK only

	resolveMax  = 8 + 4 + 8*MaxHashes
	resolvedMax = bothSize + 4 + MaxHashes*(resolvedSize+2+MaxName+2+MaxKey+4+8+2+2+2+MaxPieces+2+MaxDescription)
)

const _ = uint(MaxPayload - resolvedMax) // it fits

// ResolveHashes asks a source for the keys that have these hashes. The answer is
// HashesResolved, or a StatusReply or an ErrorReply from a source that resolves none.
type ResolveHashes struct {
	Dest   uint64   // incarnation of the process that asks
	Hashes []uint64 // at most MaxHashes
}

func (m *ResolveHashes) fields(c *coder) {
	c.u64(&m.Dest, "dest")
	for i := range listUpTo(c, &m.Hashes, MaxHashes, 8, "hashes") {
		c.u64(&m.Hashes[i], "hash")
	}
}

// Append appends the frame to dst.
func (m *ResolveHashes) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeResolveHashes, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *ResolveHashes) Parse(payload []byte) error {
	c := reader(TypeResolveHashes, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeResolveHashes.
func (*ResolveHashes) Type() Type { return TypeResolveHashes }

// HashesResolved answers ResolveHashes, in the order of its hashes. A generation
// means something in this incarnation of the source only.
type HashesResolved struct {
	Source uint64 // incarnation of the process that answers
	Dest   uint64 // incarnation of the process that has asked
	Items  []Resolved
}

func (m *HashesResolved) fields(c *coder) {
	c.u64(&m.Source, "source")
	c.u64(&m.Dest, "dest")
	for i := range listUpTo(c, &m.Items, MaxHashes, resolvedSize, "items") {
		m.Items[i].fields(c)
	}
}

// Resolved is one hash of HashesResolved. StatusMiss: no key has it, or the source
// has no complete block of its own under that key. StatusAmbiguous: several have it.
// StatusAdapter: who should know has failed. StatusSelf: source and destination are
// the same process. All else is told, and written, with StatusOK alone.
type Resolved struct {
	Status     Status
	Namespace  string
	Key        []byte
	Generation uint32 // of the block at that moment
	Size       uint64 // bytes, all pieces together
	Parts      uint16 // of the group that it belongs to; 0: none
	Part       uint16 // its place in the group, from 0; the leader is the last
	Pools      []byte // of each piece, in order; empty: size classes, one piece
	// Description says what the block means to routers, in the words of the key
	// adapters of both sides: to others it is opaque. Empty: nothing is told.
	Description []byte
}

func (r *Resolved) fields(c *coder) {
	u16(c, &r.Status, "status")
	if r.Status != StatusOK {
		if !c.writing {
			*r = Resolved{Status: r.Status}
		}
		return
	}
	c.text(&r.Namespace, 0, MaxName, "namespace")
	c.key(&r.Key)
	c.u32(&r.Generation, "generation")
	c.u64(&r.Size, "size")
	u16(c, &r.Parts, "parts")
	u16(c, &r.Part, "part")
	c.bytes(&r.Pools, 0, MaxPieces, "pools")
	c.bytes(&r.Description, 0, MaxDescription, "description")
}

// Append appends the frame to dst.
func (m *HashesResolved) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeHashesResolved, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *HashesResolved) Parse(payload []byte) error {
	c := reader(TypeHashesResolved, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeHashesResolved.
func (*HashesResolved) Type() Type { return TypeHashesResolved }
