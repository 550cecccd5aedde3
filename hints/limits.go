package hints

import (
	"errors"
	"fmt"
)

// Limits bound what one call may carry. A zero field means the default.
type Limits struct {
	// EnvelopeBytes is the size of an encoded envelope; a larger one is malformed.
	// Of a decoded one it bounds the size that its text would have at least. Default
	// 16 MiB, at most 1 GiB.
	EnvelopeBytes int
	// Depth is how deep lists and maps may nest, the envelope being 1; deeper is
	// malformed. Default 64, at most 1000.
	Depth int
	// Actions is how many actions of an envelope are served; each further one is
	// rejected. Default 256. An envelope of more than MaxListedActions is malformed.
	Actions int
	// PayloadBytes is the encoded size of one payload; a larger one is rejected.
	// Default 8 MiB.
	PayloadBytes int
	// Hashes is the length of block_hashes of one action, repetitions counted.
	// Default 262,144.
	Hashes int
}

// MaxListedActions is how many actions an envelope may list, served or not: each has
// its own result, which is larger than the smallest action.
const MaxListedActions = 1 << 16

var tooMany = fmt.Sprintf("more than %d actions", MaxListedActions)

// withDefaults returns l with its zeros replaced, and everything that is wrong with it.
func (l Limits) withDefaults() (Limits, error) {
	err := errors.Join(
		orDefault(&l.EnvelopeBytes, "Limits.EnvelopeBytes", 16<<20, 1, 1<<30),
		orDefault(&l.Depth, "Limits.Depth", 64, 4, 1000),
		orDefault(&l.Actions, "Limits.Actions", 256, 1, MaxListedActions),
		orDefault(&l.PayloadBytes, "Limits.PayloadBytes", 8<<20, 1, 1<<30),
		orDefault(&l.Hashes, "Limits.Hashes", 1<<18, 1, 1<<27),
	)
	return l, err
}
