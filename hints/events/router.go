package events

// Tier is where a worker holds a block, as routers name it.
type Tier uint8

// The tiers.
const (
	Device Tier = iota
	HostPinned
	Disk
	External
)

// Worker is one rank of an engine.
type Worker struct {
	ID   uint64
	Rank uint32
}

// Op is what a RouterEvent says.
type Op uint8

// The operations.
const (
	Stored Op = iota
	Removed
	Cleared
)

// Domain is whose residency an event is about.
type Domain uint8

// The domains.
const (
	DomainLegacy     Domain = iota // not said: Cleared is about both others, the rest about DomainWorker
	DomainWorker                   // the worker's own
	DomainCacheOwner               // that of a cache owner, named by RouterEvent.Owner
)

// OwnerKey is the compact key of a cache owner.
type OwnerKey [16]byte

// Block is one block of a Stored event: the engine's hash of the sequence that ends
// with it (external hash), and the hash of its own tokens (local hash).
type Block struct {
	Hash, Local uint64
}

// RouterEvent is one normalised change of what a worker or a cache owner holds.
type RouterEvent struct {
	Worker Worker
	Tier   Tier
	Domain Domain
	Owner  OwnerKey // of DomainCacheOwner
	ID     uint64   // increases for each worker
	Op     Op

	// Of Stored: the blocks form a chain that begins after Parent, at the root
	// without HasParent.
	HasParent bool
	Parent    uint64
	Blocks    []Block
	// Of Removed: external hashes.
	Hashes []uint64
}
