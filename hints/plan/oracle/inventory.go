package oracle

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

const tiers = int(events.External) + 1

// Edge is a block's place: the external hash it follows, or the root, and the hash of
// its own tokens.
type Edge struct {
	HasParent     bool
	Parent, Local uint64
}

func after(chain []uint64, local uint64) Edge {
	if len(chain) == 0 {
		return Edge{Local: local}
	}
	return Edge{HasParent: true, Parent: chain[len(chain)-1], Local: local}
}

// spot is which block an edge leads to, and how many owners have it there.
type spot struct {
	child  uint64
	owners int
}

// tier is one tier's inventory (4.1).
type tier struct {
	held  map[plan.Owner]map[uint64]Edge // external hash to where this owner has it
	edges map[Edge]spot                  // the edges in held
}

// Inventory is who holds which edges, in every tier. Not for concurrent use.
type Inventory struct {
	tiers [tiers]tier
	// speaker is which worker's event was the last about a cache owner: a clear that
	// names no domain is about the cache owners of its worker too.
	speaker map[events.OwnerKey]events.Worker
}

// NewInventory returns an empty one.
func NewInventory() *Inventory {
	v := &Inventory{speaker: map[events.OwnerKey]events.Worker{}}
	for i := range v.tiers {
		v.tiers[i] = tier{map[plan.Owner]map[uint64]Edge{}, map[Edge]spot{}}
	}
	return v
}

func workerOwner(w events.Worker) plan.Owner { return plan.Owner{Worker: w} }

func cacheOwner(k events.OwnerKey) plan.Owner { return plan.Owner{Cache: true, Key: k} }

// Apply brings one event in (2.3, 4.1).
func (v *Inventory) Apply(e events.RouterEvent) {
	owner := workerOwner(e.Worker)
	if e.Domain == events.DomainCacheOwner {
		owner = cacheOwner(e.Owner)
	}
	if e.Op == events.Cleared {
		v.clear(e)
		return
	}
	if int(e.Tier) >= tiers || owner.Cache && e.Tier == events.Device {
		return // 2.3: a cache owner has no device tier
	}
	if owner.Cache {
		v.speaker[e.Owner] = e.Worker
	}
	t := v.tiers[e.Tier]
	switch e.Op {
	case events.Stored:
		at := Edge{HasParent: e.HasParent, Parent: e.Parent}
		if !at.HasParent {
			at.Parent = 0 // says nothing without HasParent
		}
		for _, b := range e.Blocks {
			at.Local = b.Local
			if !t.store(owner, at, b.Hash) {
				return // 4.1: the rest of the chain is not indexed
			}
			at = Edge{HasParent: true, Parent: b.Hash}
		}
	case events.Removed:
		for _, h := range e.Hashes {
			t.remove(owner, h)
		}
	}
}

// clear: a domain clears its own; none clears both; every tier of them (2.3).
//
// Chosen: the cache owners that a clear without a domain is about are those whose
// last event came from the same worker.
func (v *Inventory) clear(e events.RouterEvent) {
	if e.Domain == events.DomainCacheOwner {
		v.Remove(cacheOwner(e.Owner))
		return
	}
	v.Remove(workerOwner(e.Worker))
	if e.Domain == events.DomainLegacy {
		for k, w := range v.speaker {
			if w == e.Worker {
				v.Remove(cacheOwner(k))
			}
		}
	}
}

// Remove forgets all that an owner holds.
func (v *Inventory) Remove(o plan.Owner) {
	for _, t := range v.tiers {
		for h := range t.held[o] {
			t.remove(o, h)
		}
	}
}

// store reports whether o has block h at this edge now: not if the edge leads to
// another block, nor if o has the block at another edge (4.1: the first wins).
func (t tier) store(o plan.Owner, at Edge, h uint64) bool {
	if was, ok := t.held[o][h]; ok {
		return was == at
	}
	s, ok := t.edges[at]
	if ok && s.child != h {
		return false
	}
	if t.held[o] == nil {
		t.held[o] = map[uint64]Edge{}
	}
	t.held[o][h] = at
	t.edges[at] = spot{h, s.owners + 1}
	return true
}

func (t tier) remove(o plan.Owner, h uint64) {
	at, ok := t.held[o][h]
	if !ok {
		return
	}
	delete(t.held[o], h)
	if s := t.edges[at]; s.owners > 1 {
		t.edges[at] = spot{h, s.owners - 1}
	} else {
		delete(t.edges, at) // 4.1: an edge goes with its last owner
	}
}

// has reports whether o holds an edge, and the block that the edge leads to.
func (t tier) has(o plan.Owner, at Edge) (child uint64, ok bool) {
	s, ok := t.edges[at]
	if !ok {
		return 0, false
	}
	was, ok := t.held[o][s.child]
	return s.child, ok && was == at
}

// walk follows local from the chain so far on, over what o holds in this tier, and
// returns the chain with the blocks found.
func (t tier) walk(o plan.Owner, chain, local []uint64) []uint64 {
	if len(t.held[o]) == 0 {
		return chain
	}
	chain = slices.Clone(chain)
	for len(chain) < len(local) {
		child, ok := t.has(o, after(chain, local[len(chain)]))
		if !ok {
			break
		}
		chain = append(chain, child)
	}
	return chain
}

// Dump returns the inventory as stores of one block each, in no order that matters:
// every edge names its parent (4.1).
func (v *Inventory) Dump() []events.RouterEvent {
	var out []events.RouterEvent
	for i, t := range v.tiers {
		for o, blocks := range t.held {
			for h, at := range blocks {
				e := events.RouterEvent{Worker: o.Worker, Tier: events.Tier(i), Domain: events.DomainWorker,
					Op: events.Stored, HasParent: at.HasParent, Parent: at.Parent,
					Blocks: []events.Block{{Hash: h, Local: at.Local}}}
				if o.Cache {
					e.Domain, e.Owner, e.Worker = events.DomainCacheOwner, o.Key, v.speaker[o.Key]
				}
				out = append(out, e)
			}
		}
	}
	slices.SortFunc(out, compareStores)
	return out
}

// Count returns how many blocks the owners hold together, and how many different
// ones, in each tier.
func (v *Inventory) Count() (pairs, blocks [4]int) {
	for i, t := range v.tiers {
		blocks[i] = len(t.edges)
		for _, held := range t.held {
			pairs[i] += len(held)
		}
	}
	return pairs, blocks
}

func compareStores(a, b events.RouterEvent) int {
	return cmp.Or(cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Domain, b.Domain), compareWorkers(a.Worker, b.Worker),
		bytes.Compare(a.Owner[:], b.Owner[:]), cmp.Compare(a.Blocks[0].Hash, b.Blocks[0].Hash))
}

func compareWorkers(a, b events.Worker) int {
	return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Rank, b.Rank))
}

// compareOwners is the order that breaks ties: workers first (4.1).
func compareOwners(a, b plan.Owner) int {
	switch {
	case a.Cache != b.Cache && b.Cache:
		return -1
	case a.Cache != b.Cache:
		return 1
	case a.Cache:
		return bytes.Compare(a.Key[:], b.Key[:])
	}
	return compareWorkers(a.Worker, b.Worker)
}
