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
