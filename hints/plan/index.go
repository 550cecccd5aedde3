package plan

import (
	"fmt"
	"sync/atomic"

	"github.com/kvcr-go/kvcr/hints/events"
)

// Config bounds an Index. The zero Config is valid.
type Config struct {
	// MaxBlocks is how many different blocks one tier indexes. Default, and most:
	// 1<<30. Stored blocks above it are refused and counted in Stats.
	MaxBlocks int
	// MaxOwners is how many workers and cache owners are known at a time. Default,
	// and most: 1<<16. Events of owners above it are refused and counted.
	MaxOwners int
}

// Index holds what every owner holds. Call New; its methods may be called from any
// goroutine, with the exceptions that they name. Lookups wait for nobody; what one
// sees of each block is as of some moment of the lookup.
type Index struct {
	tiers    [numTiers]*tier
	owners   owners
	topology atomic.Pointer[topology]
	epochs   epochs

	conflicts, refused atomic.Uint64
}

const numTiers = int(events.External) + 1

// New returns an empty index. Limits out of range become the default.
func New(c Config) *Index {
	const mostBlocks, mostOwners = 1 << 30, 1 << 16
	if c.MaxBlocks <= 0 || c.MaxBlocks > mostBlocks {
		c.MaxBlocks = mostBlocks
	}
	if c.MaxOwners <= 0 || c.MaxOwners > mostOwners {
		c.MaxOwners = mostOwners
	}
	x := &Index{}
	x.epochs.init()
	x.owners.init(c.MaxOwners)
	x.topology.Store(&topology{})
	for i := range x.tiers {
		x.tiers[i] = newTier(&x.epochs, c.MaxBlocks)
	}
	return x
}

// Apply applies one event. Events of one worker must be applied in their order, one
// at a time; different workers may apply at once. It keeps nothing of ev. The error
// is of events that mean nothing (ErrEvent); whatever an event's content does,
// lookups stay sound.
func (x *Index) Apply(ev *events.RouterEvent) error {
	if err := check(ev); err != nil {
		return err
	}
	if ev.Op == events.Cleared {
		x.cleared(ev)
		return nil
	}
	owner := ofWorker(ev.Worker)
	if ev.Domain == events.DomainCacheOwner {
		owner = Owner{Cache: true, Key: ev.Owner}
	}
	o := &x.owners
	o.mu.RLock()
	slot, known := o.slots[owner]
	for !known || owner.Cache && o.by[slot] != ev.Worker {
		if !known && ev.Op == events.Removed {
			o.mu.RUnlock()
			return nil
		}
		o.mu.RUnlock()
		o.mu.Lock()
		slot, known = o.addLocked(x, owner)
		if known && owner.Cache {
			o.by[slot] = ev.Worker
		}
		o.mu.Unlock()
		if !known {
			x.refused.Add(1)
			return nil
		}
		o.mu.RLock()
		slot, known = o.slots[owner] // it may have been swept, or another worker's meanwhile
	}
	defer o.mu.RUnlock()
	t := x.tiers[ev.Tier]
	if ev.Op == events.Removed {
		t.remove(slot, ev.Hashes)
		return nil
	}
	switch end, left := t.store(slot, ev); end {
	case conflicted:
		x.conflicts.Add(1)
	case refused:
		x.refused.Add(uint64(left))
	}
	return nil
}

func check(ev *events.RouterEvent) error {
	switch {
	case ev.Op > events.Cleared:
		return fmt.Errorf("%w: operation %d, not Stored, Removed or Cleared", ErrEvent, ev.Op)
	case ev.Domain > events.DomainCacheOwner:
		return fmt.Errorf("%w: domain %d, not legacy, worker or cache owner", ErrEvent, ev.Domain)
	case ev.Op == events.Cleared:
		return nil
	case int(ev.Tier) >= numTiers:
		return fmt.Errorf("%w: tier %d, not Device, HostPinned, Disk or External", ErrEvent, ev.Tier)
	case ev.Domain == events.DomainCacheOwner && ev.Tier == events.Device:
		return fmt.Errorf("%w: a cache owner holds nothing on the device; it must name another tier", ErrEvent)
	}
	return nil
}

func (x *Index) cleared(ev *events.RouterEvent) {
	o := &x.owners
	o.mu.RLock()
	defer o.mu.RUnlock()
	if ev.Domain == events.DomainCacheOwner {
		x.clearLocked(Owner{Cache: true, Key: ev.Owner})
		return
	}
	x.clearLocked(ofWorker(ev.Worker))
	if ev.Domain == events.DomainWorker {
		return
	}
	for owner, slot := range o.slots {
		if owner.Cache && o.by[slot] == ev.Worker {
			x.clearLocked(owner)
		}
	}
}

func (x *Index) clearLocked(o Owner) {
	slot, ok := x.owners.slots[o]
	if !ok {
		return
	}
	for _, t := range x.tiers {
		t.clear(slot)
	}
}

// RemoveOwner forgets all that an owner holds, in every tier.
func (x *Index) RemoveOwner(o Owner) {
	o = o.canon()
	x.owners.mu.RLock()
	x.clearLocked(o)
	x.owners.mu.RUnlock()

	x.owners.mu.Lock()
	defer x.owners.mu.Unlock()
	if slot, ok := x.owners.slots[o]; ok {
		x.dropIfGoneLocked(o, slot)
	}
}

// Stats is a snapshot of an index.
type Stats struct {
	Owners    int    // known owners
	Targets   int    // of the topology; without any there are no hints
	Pairs     [4]int // (owner, block) pairs, by events.Tier
	Blocks    [4]int // different blocks that have an owner, by events.Tier
	Bytes     int64  // memory of the index, without Go's headroom
	Conflicts uint64 // Stored events that stopped at a conflict
	Refused   uint64 // blocks and events refused for a limit of Config
}

// Stats returns the present counts.
func (x *Index) Stats() Stats {
	s := Stats{Conflicts: x.conflicts.Load(), Refused: x.refused.Load()}
	s.Targets = len(x.topology.Load().targets)
	x.owners.mu.RLock()
	s.Owners = len(x.owners.slots)
	x.owners.mu.RUnlock()
	for i, t := range x.tiers {
		t.mu.Lock()
		s.Pairs[i], s.Blocks[i] = t.allPairs, t.live
		s.Bytes += t.bytes()
		t.mu.Unlock()
	}
	return s
}
