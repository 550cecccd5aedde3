package oracle

import (
	"testing"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

// twisted is the oracle with one mistake.
type twisted struct {
	self
	apply   func(v *Inventory, e events.RouterEvent)
	remove  func(v *Inventory, o plan.Owner)
	members func(m *plan.Member)
	hints   func(s *twisted, local []uint64) Reply
}

func (s *twisted) Apply(e events.RouterEvent) {
	if s.apply != nil {
		s.apply(s.Inventory, e)
		return
	}
	s.Inventory.Apply(e)
}

func (s *twisted) Remove(o plan.Owner) {
	if s.remove != nil {
		s.remove(s.Inventory, o)
		return
	}
	s.Inventory.Remove(o)
}

func (s *twisted) SetMembers(all []plan.Member) {
	s.self.members = nil
	for _, m := range all {
		if s.members != nil {
			s.members(&m)
		}
		s.self.members = append(s.self.members, m)
	}
}

func (s *twisted) Ask(local []uint64) Reply {
	if s.hints != nil {
		return s.hints(s, local)
	}
	return s.self.Ask(local)
}

// The scenarios find each of these mistakes within some hundred inventories, and what is left
// of the scenario is short.
func TestRunFindsMistakes(t *testing.T) {
	mistakes := map[string]twisted{
		"a clear without a domain leaves cache owners": {apply: func(v *Inventory, e events.RouterEvent) {
			if e.Op == events.Cleared && e.Domain == events.DomainLegacy {
				e.Domain = events.DomainWorker
			}
			v.Apply(e)
		}},
		"a clear of one domain is about both": {apply: func(v *Inventory, e events.RouterEvent) {
			if e.Op == events.Cleared && e.Domain == events.DomainWorker {
				e.Domain = events.DomainLegacy
			}
			v.Apply(e)
		}},
		"a clear is about one tier": {apply: func(v *Inventory, e events.RouterEvent) {
			if e.Op == events.Cleared {
				for h := range v.tiers[e.Tier].held[workerOwner(e.Worker)] {
					v.tiers[e.Tier].remove(workerOwner(e.Worker), h)
				}
				return
			}
			v.Apply(e)
		}},
		"parent 0 is the root": {apply: func(v *Inventory, e events.RouterEvent) {
			e.HasParent = e.HasParent && e.Parent != 0
			v.Apply(e)
		}},
		"the parent of a root block counts": {apply: func(v *Inventory, e events.RouterEvent) {
			e.HasParent = e.HasParent || e.Parent != 0
			v.Apply(e)
		}},
		"a conflict does not stop a store": {apply: func(v *Inventory, e events.RouterEvent) {
			for i, b := range e.Blocks {
				one := e
				one.Blocks = []events.Block{b}
				if i > 0 {
					one.HasParent, one.Parent = true, e.Blocks[i-1].Hash
				}
				v.Apply(one)
			}
			if e.Op != events.Stored {
				v.Apply(e)
			}
		}},
		"the last mapping wins": {apply: func(v *Inventory, e events.RouterEvent) {
			if e.Op == events.Stored && e.Domain != events.DomainCacheOwner {
				var hashes []uint64
				for _, b := range e.Blocks {
					hashes = append(hashes, b.Hash)
				}
				drop := e
				drop.Op, drop.Hashes = events.Removed, hashes
				v.Apply(drop)
			}
			v.Apply(e)
		}},
		"cache owners have a device tier": {apply: func(v *Inventory, e events.RouterEvent) {
			if e.Domain == events.DomainCacheOwner && e.Tier == events.Device {
				e.Tier = events.HostPinned
			}
			v.Apply(e)
		}},
		"the disk is as good as memory": {apply: func(v *Inventory, e events.RouterEvent) {
			if e.Tier == events.Disk {
				e.Tier = events.HostPinned
			}
			v.Apply(e)
		}},
		"only the first hash is removed": {apply: func(v *Inventory, e events.RouterEvent) {
			if len(e.Hashes) > 1 {
				e.Hashes = e.Hashes[:1]
			}
			v.Apply(e)
		}},
		"removed owners stay":             {remove: func(*Inventory, plan.Owner) {}},
		"types do not matter":             {members: func(m *plan.Member) { m.Type = "aggregated" }},
		"endpoints do not matter":         {members: func(m *plan.Member) { m.Endpoint = "tcp://x:1" }},
		"all workers are targets":         {members: func(m *plan.Member) { m.Capable = !m.Owner.Cache }},
		"attached caches are like others": {members: func(m *plan.Member) { m.HasAttached = false }},
		"caches are attached to someone":  {members: func(m *plan.Member) { m.HasAttached = m.Owner.Cache }},
		"a source must be capable":        {members: func(m *plan.Member) { m.Endpoint = map[bool]string{true: m.Endpoint}[m.Capable || m.Owner.Cache] }},
		"the hint names the fetched part": {hints: func(s *twisted, local []uint64) Reply {
			return twistHints(s, local, func(h *Hint) { h.Hashes = h.Hashes[min(h.Choice.Frontier, h.Choice.End):] })
		}},
		"ties go to the largest":             {hints: largestHints},
		"no continuation from other's start": {hints: func(s *twisted, local []uint64) Reply { return rootOnly(s, local) }},
	}
	const n = 3000
	for name, m := range mistakes {
		t.Run(name, func(t *testing.T) {
			_, err := Run(n, 1, func() Subject {
				s := m
				s.Inventory = NewInventory()
				return &s
			}, nil)
			d, ok := err.(*Difference)
			if !ok {
				t.Fatalf("%d inventories did not find it", n)
			}
			if size := size(d.Scenario.Steps); size > 30 {
				t.Errorf("the shortest scenario found is long:\n%v", d)
			}
			if testing.Verbose() {
				t.Logf("%v", d)
			}
		})
	}
}

func twistHints(s *twisted, local []uint64, twist func(*Hint)) Reply {
	out := s.self.Ask(local)
	for i := range out.Hints {
		twist(&out.Hints[i])
	}
	return out
}

// largestHints answers with the largest of equally good sources.
func largestHints(s *twisted, local []uint64) Reply {
	q := s.ask(s.self.members, local)
	return twistHints(s, local, func(h *Hint) {
		target := q.member(workerOwner(h.Choice.Target))
		for i := range q.all {
			o := &q.all[i]
			if !eligible(o, target) {
				continue
			}
			if h.Choice.Kind == plan.RootPrefix && o.root == h.Choice.End || h.Choice.Kind == plan.Continuation && q.continues(o, target) == h.Choice.End {
				h.Choice.Source = o.Owner
			}
		}
	})
}

// rootOnly answers by root prefixes alone.
func rootOnly(s *twisted, local []uint64) Reply {
	q := s.ask(s.self.members, local)
	for i := range q.all {
		q.all[i].has = nil
	}
	r := s.self.Ask(local)
	r.Hints = q.answer().Hints()
	return r
}
