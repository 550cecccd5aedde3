package events

import "fmt"

// Kind is what an Event says. It names the tag of the wire.
type Kind uint8

// The kinds.
const (
	BlockStored Kind = iota
	BlockRemoved
	AllBlocksCleared
	// Ignored is Dynamo's own tag for what routers pass over.
	Ignored
	// Unknown is an event with a tag that we do not know; Event.Tag has it.
	Unknown
	// Malformed is an event that makes no sense; Event.Why says why.
	Malformed
)

var kindNames = [...]string{"BlockStored", "BlockRemoved", "AllBlocksCleared", "Ignored", "unknown", "malformed"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Event is one event of an engine, as vLLM, SGLang and TensorRT-LLM write it. Hashes
// are the engine's own, reduced to 64 bits.
type Event struct {
	Kind Kind

	// Hashes of the blocks: of BlockStored a chain, after Parent.
	Hashes    []uint64
	HasParent bool
	Parent    uint64
	// Tokens of the blocks, one block after the other. Bigram: they were sent in
	// pairs, (t0 t1) (t1 t2) ..., and every block reaches one token further than
	// BlockSize (Eagle).
	Tokens    []uint32
	Bigram    bool
	BlockSize uint32

	// Medium is where the blocks are: see TierOf. Empty: the device.
	Medium string
	// Locality is "LOCAL", "REMOTE" or empty, which is local.
	Locality string

	HasLoraID bool
	LoraID    int64 // deprecated by engines
	LoraName  string
	// CacheSalt is the cache namespace of the first block, and of all after it.
	CacheSalt string
	// MM names the multimodal objects in the blocks, in the order of the blocks.
	MM []MM

	HasGroup   bool
	Group      uint32 // of an engine with several caches
	SpecKind   string // what kind of attention the group serves
	HasWindow  bool
	Window     uint32 // sliding window, in tokens
	SourceKind string

	Tag string // of Unknown
	Why string // of Malformed
}

// MM is a multimodal object that appears in one block of an event.
type MM struct {
	Block uint32 // index in Event.Hashes
	Hash  uint64
}

// Batch is one message of a publisher.
type Batch struct {
	TS float64 // seconds since 1970
	// Rank is the data-parallel rank that the batch names, if HasRank.
	HasRank bool
	Rank    uint32
	Events  []Event
}

// TierOf says which tier a medium means. False: an unknown one, which must not be
// taken for any tier.
func TierOf(medium string) (Tier, bool) {
	switch medium {
	case "", "GPU", "DEVICE":
		return Device, true
	case "CPU", "CPU_PINNED", "CPU_TIER1":
		return HostPinned, true
	case "CPU_TIER2", "DISK", "NVME", "STORAGE":
		return Disk, true
	case "EXTERNAL", "NETWORK", "REMOTE", "SHARED":
		return External, true
	}
	return 0, false
}

// Medium returns the name of the tier on the wire; of Device the empty one, as
// engines leave it out.
func (t Tier) Medium() string {
	switch t {
	case HostPinned:
		return "CPU_PINNED"
	case Disk:
		return "DISK"
	case External:
		return "EXTERNAL"
	}
	return ""
}

var tierNames = [...]string{"device", "host_pinned", "disk", "external"}

func (t Tier) String() string {
	if int(t) < len(tierNames) {
		return tierNames[t]
	}
	return fmt.Sprintf("tier(%d)", uint8(t))
}

var opNames = [...]string{"stored", "removed", "cleared"}

func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return fmt.Sprintf("op(%d)", uint8(o))
}
