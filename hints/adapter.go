package hints

import "errors"

// Conditions of KeyAdapter.FromRouter.
var (
	// ErrNotFound: no key is known that has the hash.
	ErrNotFound = errors.New("no key has this hash")
	// ErrAmbiguous: several keys are known that have the hash.
	ErrAmbiguous = errors.New("several keys have this hash")
)

// Key is the full identity of a block in an engine.
type Key struct {
	Namespace string
	Key       []byte
}

// KeyAdapter translates between an engine's keys and the 64-bit hashes that routers
// know. Its methods are called from any goroutine; they must not block, and must not
// call into the engine.
type KeyAdapter interface {
	// Encode returns the key of the block with the hash where the hash alone
	// determines it. False: it does not.
	Encode(hash uint64) (Key, bool)
	// ToRouter returns the hash of a key. False: it is no block that routers know.
	ToRouter(namespace string, key []byte) (uint64, bool)
	// FromRouter returns the one key that has the hash, among those that this
	// engine holds. Failures: ErrNotFound, ErrAmbiguous; any other error is one of
	// the adapter.
	FromRouter(hash uint64) (Key, error)
}

// Describer is a KeyAdapter that knows what blocks mean to routers, their tokens or
// their place in a chain, so that a block that is copied or moved to another engine is
// as good to routers there as it was here. The rules of KeyAdapter hold for its methods.
type Describer interface {
	// AppendDescription appends what is to be told of a block of this engine to the
	// one that will fetch it, in words of the adapter's own and at most limit bytes of
	// them. Nothing: there is nothing to tell.
	AppendDescription(dst []byte, limit int, k Key) []byte
	// TakeDescription takes what the adapter of a peer has appended for a block,
	// before the block comes here; it may not come, and it may be here already. The
	// bytes are the peer's: they must be checked, are not to be kept, and count less
	// than what this engine's own host has told. An error refuses them and harms
	// nothing else.
	TakeDescription(k Key, description []byte) error
}
