package plan

import (
	"bytes"
	"cmp"
	"sync"
	"sync/atomic"

	"github.com/kvcr-go/kvcr/hints/events"
)

// Compare orders owners: workers before cache owners, then by id and rank, or by key.
func (o Owner) Compare(p Owner) int {
	if o.Cache != p.Cache {
		if p.Cache {
			return -1
		}
		return 1
	}
	if o.Cache {
		return bytes.Compare(o.Key[:], p.Key[:])
	}
	return cmp.Or(cmp.Compare(o.Worker.ID, p.Worker.ID), cmp.Compare(o.Worker.Rank, p.Worker.Rank))
}

// canon returns o without what does not count.
func (o Owner) canon() Owner {
	if o.Cache {
		o.Worker = events.Worker{}
	} else {
		o.Key = events.OwnerKey{}
	}
	return o
}

func ofWorker(w events.Worker) Owner { return Owner{Worker: w} }

// owners gives each owner a slot, a small number. An owner keeps its slot while it is
// in the topology or holds a block; after that another may get it, but not before
// the lookups are over that may know it as the old one's.
type owners struct {
	// mu is held for reading while a slot is in use that was looked up, so that it
	// cannot go to another owner meanwhile.
	mu    sync.RWMutex
	slots map[Owner]uint32
	by    []events.Worker // by slot: whose event was the latest about a cache owner
	free  []uint32
	gone  limbo[uint32]
	most  int // owners
	sweep int // number of slots at which to look for owners that are gone
	// wanted holds the slots that a topology in the making has got so far.
	wanted map[uint32]bool

	names atomic.Pointer[[]Owner] // by slot, for lookups
	// turn counts the slots that were given to another owner. A lookup whose blocks
	// were seen at one turn, with names of that turn or a later one, knows whose they are.
	//
	//	(T) names.Store, then turn.Add  pairs with  turn.Load, then names.Load in match
	turn atomic.Uint64
}

func (o *owners) init(most int) {
	o.slots = map[Owner]uint32{}
	o.most = most
	o.sweep = 64
	o.names.Store(new([]Owner))
	// Slots are few, and given back seldom: each time, look whether one can be reused.
	o.gone.again = 1
}

// addLocked returns the slot of an owner, a new one if it has none. False: there is
// no slot left.
func (o *owners) addLocked(x *Index, owner Owner) (uint32, bool) {
	if slot, ok := o.slots[owner]; ok {
		return slot, true
	}
	names := *o.names.Load()
	if len(o.free) == 0 && (len(names) >= o.sweep || len(names) >= o.most) {
		x.sweepLocked()
		o.sweep = 2 * max(64, len(o.slots))
	}
	if len(o.free) == 0 {
		o.gone.collect(&x.epochs, o.reuse)
	}
	var slot uint32
	again := len(o.free) > 0
	if n := len(o.free); again {
		slot, o.free = o.free[n-1], o.free[:n-1]
		// Lookups may be reading the list: it is replaced.
		names = append([]Owner(nil), names...)
		names[slot] = owner
	} else {
		if len(names) >= o.most {
			return 0, false
		}
		slot = uint32(len(names))
		names = append(names, owner) // behind what lookups see of it
		o.by = append(o.by, events.Worker{})
	}
	o.by[slot] = events.Worker{}
	o.slots[owner] = slot
	o.names.Store(&names)
	if again {
		o.turn.Add(1) // (T)
	}
	return slot, true
}

func (o *owners) dropLocked(x *Index, owner Owner) {
	slot := o.slots[owner]
	delete(o.slots, owner)
	o.gone.retire(&x.epochs, slot, o.reuse)
}

func (o *owners) reuse(slot uint32) { o.free = append(o.free, slot) }

// sweepLocked gives back the slots of owners that hold nothing and are in no topology.
func (x *Index) sweepLocked() {
	for owner, slot := range x.owners.slots {
		x.dropIfGoneLocked(owner, slot)
	}
}

func (x *Index) dropIfGoneLocked(owner Owner, slot uint32) {
	if x.topology.Load().knows(slot) || x.owners.wanted[slot] {
		return
	}
	for _, t := range x.tiers {
		if t.holds(slot) {
			return
		}
	}
	x.owners.dropLocked(x, owner)
}

func (t *tier) holds(slot uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return int(slot) < len(t.pairs) && t.pairs[slot] > 0
}
