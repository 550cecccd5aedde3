package publish

import "github.com/kvcr-go/kvcr/hints/events"

// Event is one change of what the engine holds, as routers see it, and what engines
// say about it besides.
type Event struct {
	// Worker, Tier, Domain, Owner and ID are always set. Stored has a chain of
	// Blocks. Cleared has no tier: it is about all.
	events.RouterEvent

	// Described: the local hash of every block is known, and its place: after Parent,
	// or with HasParent false at the root. Without it Local is 0, there are no Tokens
	// and no Media, and HasParent false means nothing.
	Described bool
	// Tokens of the blocks, BlockSize for each, one after the other; none if those of
	// any block are not known. Eagle: one more at the end, since the window of each
	// block reaches one token into the next.
	Tokens    []uint32
	BlockSize int
	Eagle     bool
	// Media are the hashes of images (or other media), in the order of the blocks.
	Media []Media
	// LoRA is the adapter, CacheNamespace the tenant (salt) of all blocks.
	LoRA, CacheNamespace string
}

// Media is an image in one block of an event.
type Media struct {
	Block uint32 // index in Event.Blocks
	Hash  uint64
}

// Sink takes events on their way to routers. A Publisher calls it from one goroutine
// at a time.
type Sink interface {
	// Publish takes a batch, in order, whole or not at all: after an error the same
	// batch is offered again. The batch and what it refers to are the publisher's,
	// and change after Publish returns. It should not block: the publisher, and
	// its keys.Table, stand still that long.
	Publish(batch []Event) error
}
