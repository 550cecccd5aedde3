package wire

// Describe says what blocks mean to an inference engine, so that the events that the
// node publishes to routers describe themselves; the blocks need not be there yet. The
// answer is Statuses: StatusOK; StatusBadKey for a key that routers do not know, or of
// another hash; StatusBadLayout for tokens that do not fit BlockSize.
type Describe struct {
	BlockSize uint32 // tokens of one block
	LoRA      string // the adapter's name; empty: none
	Blocks    []Description
}

func (m *Describe) fields(c *coder) {
	c.u32(&m.BlockSize, "blockSize")
	c.text(&m.LoRA, 0, MaxName, "lora")
	for i := range list(c, &m.Blocks, descriptionSize, "blocks") {
		m.Blocks[i].fields(c)
	}
}

const descriptionSize = 2 + 1 + 1 + 8 + 8 + 4

// Description is one block of Describe.
type Description struct {
	Key    []byte
	Flags  DescribeFlags
	Hash   uint64   // by which routers know the block
	Parent uint64   // the hash of the block before it
	Tokens []uint32 // ids; at most MaxList
}

func (d *Description) fields(c *coder) {
	c.key(&d.Key)
	u8(c, &d.Flags, 0, 255, "flags")
	c.u64(&d.Hash, "hash")
	c.u64(&d.Parent, "parent")
	for i := range list(c, &d.Tokens, 4, "tokens") {
		c.u32(&d.Tokens[i], "token")
	}
}

// DescribeFlags say which fields of a description count. Bits outside the list parse.
type DescribeFlags uint8

// The flags.
const (
	DescribeHash   DescribeFlags = 1 << iota // Hash is set; else the node's key adapter tells it
	DescribeParent                           // Parent is set; else the block begins a chain
)

// Append appends the frame to dst.
func (m *Describe) Append(dst []byte, id uint64) []byte {
	c := writer(dst, TypeDescribe, id, false)
	m.fields(&c)
	return c.frame(0)
}

// Parse reads a payload.
func (m *Describe) Parse(payload []byte) error {
	c := reader(TypeDescribe, payload)
	m.fields(&c)
	return c.done()
}

// Type is TypeDescribe.
func (*Describe) Type() Type { return TypeDescribe }
