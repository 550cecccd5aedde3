package plan

import (
	"slices"

	"github.com/kvcr-go/kvcr/hints/events"
)

// topology is what SetTopology said, made ready for lookups. It never changes.
type topology struct {
	members []Member // in the order of owners
	slots   []uint32 // of members
	targets []target

	// By slot. Slots that are no members, and those behind the ends, have none of these.
	rank  []int32 // place in members, -1 for none
	class []int8  // place in types, -1 for none
	ident []uint32

	sources []uint64 // slots that may serve
	serves  []uint64 // slots of targets that may be served
}

type target struct {
	worker events.Worker
	slot   uint32
	class  int8
}

// types are the worker types between which hints go; others get none.
var types = [...]string{"aggregated", "prefill", "decode"}

func classOf(typ string) int8 {
	if typ == "agg" {
		typ = types[0]
	}
	return int8(slices.Index(types[:], typ))
}

func (p *topology) knows(slot uint32) bool {
	return int(slot) < len(p.rank) && p.rank[slot] >= 0
}

func has(set []uint64, slot uint32) bool {
	return int(slot/64) < len(set) && set[slot/64]>>(slot%64)&1 != 0
}

// SetTopology replaces the routing snapshot: who may serve, and whom. Lookups that
// have begun keep the one they began with. Of several members with one owner the
// last counts. Members above Config.MaxOwners are left out, and counted.
func (x *Index) SetTopology(members []Member) {
	p := &topology{members: slices.Clone(members)}
	for i := range p.members {
		p.members[i].Owner = p.members[i].Owner.canon()
	}
	slices.Reverse(p.members)
	slices.SortStableFunc(p.members, func(a, b Member) int { return a.Owner.Compare(b.Owner) })
	p.members = slices.CompactFunc(p.members, func(a, b Member) bool { return a.Owner == b.Owner })

	o := &x.owners
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wanted = make(map[uint32]bool, len(p.members))
	defer func() { o.wanted = nil }()
	kept := p.members[:0]
	for _, m := range p.members {
		slot, ok := o.addLocked(x, m.Owner)
		if !ok {
			x.refused.Add(1)
			continue
		}
		o.wanted[slot] = true
		kept = append(kept, m)
		p.slots = append(p.slots, slot)
	}
	p.members = kept
	n := len(*o.names.Load())
	p.rank, p.class, p.ident = make([]int32, n), make([]int8, n), make([]uint32, n)
	p.sources, p.serves = make([]uint64, (n+63)/64), make([]uint64, (n+63)/64)
	for slot := range p.rank {
		p.rank[slot], p.class[slot], p.ident[slot] = -1, -1, uint32(slot)
	}
	for i, m := range p.members {
		slot := p.slots[i]
		class := classOf(m.Type)
		p.rank[slot], p.class[slot] = int32(i), class
		if class >= 0 && m.Endpoint != "" {
			p.sources[slot/64] |= 1 << (slot % 64)
		}
		if m.Owner.Cache && m.HasAttached {
			if at, ok := o.slots[ofWorker(m.Attached)]; ok {
				p.ident[slot] = at
			}
		}
		if !m.Owner.Cache && m.Capable {
			p.targets = append(p.targets, target{m.Owner.Worker, slot, class})
			if class >= 0 {
				p.serves[slot/64] |= 1 << (slot % 64)
			}
		}
	}
	x.topology.Store(p)
}

// member returns the member that is an owner, or nil.
func (p *topology) member(o Owner) *Member {
	o = o.canon()
	i, ok := slices.BinarySearchFunc(p.members, o, func(m Member, o Owner) int { return m.Owner.Compare(o) })
	if !ok {
		return nil
	}
	return &p.members[i]
}
