package evict

import (
	"errors"
	"fmt"
	"strings"
)

// ID is a dense block number of one shard, 1..N. 0 is no block.
type ID uint32

// Node is a policy's whole state for one block. The shard provides the memory,
// zeroed, and neither reads nor writes it afterwards; each policy gives the
// fields its own meaning.
type Node struct{ Word, Prev, Next, Parent uint32 }

// MaxBlocks is the largest N: node links are 30 bits, so that the other two
// hold flags, and lru needs a few numbers above N for its marks.
const MaxBlocks = 1<<idBits - 1 - lruMarks

// Blocks is what a policy may ask its shard about a resident block.
type Blocks interface {
	// Last is the tick of the last access, as readers stored it. It may change
	// at any moment. Policies store it themselves at Insert and Replace.
	Last(id ID) uint32
	// SetLast stores a tick as if a reader had.
	SetLast(id ID, tick uint32)
	// Busy reports a block that must not leave now: claimed, held, or part of
	// the deposit for which room is being made.
	Busy(id ID) bool
	// Hash is the hash of the block's key.
	Hash(id ID) uint64
}

// Insert describes one block that became resident.
type Insert struct {
	ID          ID
	Hash        uint64 // of the key
	Parent      ID     // resident parent, 0 if none
	ChainLen    uint32 // blocks of the whole chain up to the end of this deposit; 0 or 1 if unchained
	Tail        bool   // last block of a chain of two or more
	Unreachable bool   // names a parent that is not resident
}

// Reason says why a block left.
type Reason uint8

const (
	Evicted  Reason = iota // chosen by Victim
	Deleted                // removed by hand: deleted, invalidated
	Replaced               // a newer value took its place by a road other than Policy.Replace
	Moved                  // handed to another owner
	Expired                // its time ran out
)

func (r Reason) String() string {
	switch r {
	case Evicted:
		return "evicted"
	case Deleted:
		return "deleted"
	case Replaced:
		return "replaced"
	case Moved:
		return "moved"
	case Expired:
		return "expired"
	}
	return fmt.Sprintf("Reason(%d)", uint8(r))
}

// Decision is the last word on a victim.
type Decision uint8

const (
	Drop     Decision = iota // the block leaves
	Keep                     // pass over it; the shard stores SetLast(id, now) and asks for another
	MoveDown                 // a lower tier takes it, once there is one
)

func (d Decision) String() string {
	switch d {
	case Drop:
		return "drop"
	case Keep:
		return "keep"
	case MoveDown:
		return "move down"
	}
	return fmt.Sprintf("Decision(%d)", uint8(d))
}

// Policy chooses victims for one shard. Only the shard's owner may call it, and
// now must never run backwards. No method keeps a slice it is given. An ID that
// is out of range, not resident (Remove, Replace) or resident already (Insert)
// is a bug of the shard and panics.
type Policy interface {
	// Name is the name under which New knows the policy.
	Name() string

	// Admit reports whether the blocks of a deposit may enter at all. It changes
	// nothing; IDs in run may still be 0.
	Admit(run []Insert) bool

	// Insert lists blocks that just became resident, parent before child, and
	// stores now as their last access. Room was made before.
	Insert(run []Insert, now uint32)

	// Replace lets new take the place of old, whose key it shares, and counts
	// as an access. Children of old become children of new.
	Replace(old, new ID, now uint32)

	// Relink tells that the resident block id was named again under the resident
	// parent: a block that lost its parent by hand and whose parent came back is
	// reachable again. It does nothing for a block that is not unreachable.
	Relink(id, parent ID, now uint32)

	// Victim returns a block to evict, or 0 if every block it may evict is busy.
	// The block stays listed until Remove. Busy and touched blocks met on the
	// way are moved out of it, so work is bounded unless nearly all are busy.
	Victim(now uint32) ID

	// Decide has the last word on what Victim returned. Built-ins say Drop.
	Decide(id ID) Decision

	// Remove forgets a block that leaves. After any reason but Evicted its
	// descendants are unreachable and will be the next victims. The shard must
	// call it while Blocks still answers for id.
	Remove(id ID, why Reason, now uint32)

	// Clear forgets every block. It visits all N nodes.
	Clear()

	// Check verifies the policy's own invariants over all nodes, for tests.
	Check() error
}

// ErrUnknown: New was asked for a policy that does not exist. Use one of Names.
var ErrUnknown = errors.New("unknown eviction policy")

// ErrTooMany: a shard holds more blocks than a policy can number.
var ErrTooMany = errors.New("too many blocks for one shard")

// ConfigError says what was wrong with a call of New. Unwrap gives the condition.
type ConfigError struct {
	Err   error
	Value string // what was given
	Limit string // what is allowed
	Fix   string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("evict: %v: %s (%s); %s", e.Err, e.Value, e.Limit, e.Fix)
}

func (e *ConfigError) Unwrap() error { return e.Err }

// Default is the policy an empty name means.
const Default = "density"

// Names lists the policies New knows, the default first.
func Names() []string { return []string{Default, "lru", "fifo", "s3fifo"} }

// New returns the named policy for a shard of len(nodes)-1 blocks. nodes must be
// zeroed; nodes[0] is not used. The policy owns nodes from here on and the caller must not free them
// before it drops the policy. seed varies what density samples.
//
// Errors are *ConfigError: ErrUnknown, ErrTooMany.
func New(name string, nodes []Node, b Blocks, seed uint64) (Policy, error) {
	if n := len(nodes) - 1; n < 1 || n > MaxBlocks {
		return nil, &ConfigError{
			Err: ErrTooMany, Value: fmt.Sprintf("%d blocks", n),
			Limit: fmt.Sprintf("1 to %d", MaxBlocks),
			Fix:   "use more shards or larger blocks",
		}
	}
	switch name {
	case "", "density":
		return newDensity(nodes, b, seed), nil
	case "lru":
		return newLRU(nodes, b), nil
	case "fifo":
		return newFIFO(nodes, b), nil
	case "s3fifo":
		return newS3FIFO(nodes, b, defaultSmall), nil
	}
	return nil, &ConfigError{
		Err: ErrUnknown, Value: fmt.Sprintf("%q", name),
		Limit: "known: " + strings.Join(Names(), ", "),
		Fix:   "choose one of the known names, or leave it empty for " + Default,
	}
}
