package scene

import (
	"slices"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/keys"
	"github.com/kvcr-go/kvcr/hints/plan"
)

// ownerView is what one owner holds of a prompt.
type ownerView struct {
	owner plan.Owner
	has   [4][]span // by tier
}

// span is the blocks [from, to).
type span struct{ from, to int }

// look finds who holds which blocks of a prompt, of the members: a block counts where it
// follows the chain of blocks before it.
func (s *Scene) look(p *Prompt, chain []uint64) []ownerView {
	at := s.edgesOf(p)
	chain = s.extend(p, chain, at)
	views := map[plan.Owner]*[4][]span{}
	for i := range p.Locals {
		for _, h := range at[edgeAt(p, chain, i)] {
			if h.hash != chain[i] {
				continue // another block, to the router
			}
			v := views[h.owner]
			if v == nil {
				v = new([4][]span)
				views[h.owner] = v
			}
			list := v[h.tier]
			if n := len(list); n > 0 && list[n-1].to == i {
				list[n-1].to++
			} else if n == 0 || list[n-1].to < i {
				v[h.tier] = append(list, span{i, i + 1})
			}
		}
	}
	out := make([]ownerView, 0, len(s.members))
	for _, m := range s.members {
		v := ownerView{owner: m.Owner}
		if has := views[m.Owner]; has != nil {
			v.has = *has
		}
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b ownerView) int { return a.owner.Compare(b.owner) })
	return out
}

// edge is a block's place.
type edge struct {
	root          bool
	parent, local uint64
}

type holding struct {
	owner plan.Owner
	tier  events.Tier
	hash  uint64
}

func edgeAt(p *Prompt, chain []uint64, i int) edge {
	if i == 0 {
		return edge{root: true, local: p.Locals[0]}
	}
	return edge{parent: chain[i-1], local: p.Locals[i]}
}

// edgesOf collects who holds blocks with the prompt's local hashes, and where.
func (s *Scene) edgesOf(p *Prompt) map[edge][]holding {
	wanted := map[uint64]bool{}
	for _, l := range p.Locals {
		wanted[l] = true
	}
	at := map[edge][]holding{}
	s.index.Dump(func(ev *events.RouterEvent) bool {
		b := ev.Blocks[0] // a dump has one each
		if !wanted[b.Local] {
			return true
		}
		o := plan.Owner{Worker: ev.Worker}
		if ev.Domain == events.DomainCacheOwner {
			o = plan.Owner{Cache: true, Key: ev.Owner}
		}
		e := edge{!ev.HasParent, ev.Parent, b.Local}
		if e.root {
			e.parent = 0
		}
		at[e] = append(at[e], holding{o, ev.Tier, b.Hash})
		return true
	})
	return at
}

// extend carries the chain that the planner knows on to the prompt's end: with what
// anybody holds, else with the hashes that blocks have by their tokens.
func (s *Scene) extend(p *Prompt, chain []uint64, at map[edge][]holding) []uint64 {
	chain = chain[:min(len(chain), len(p.Locals))]
	for i := len(chain); i < len(p.Locals); i++ {
		held := at[edgeAt(p, chain, i)]
		switch {
		case len(held) > 0:
			first := slices.MinFunc(held, func(a, b holding) int { return int(a.tier) - int(b.tier) })
			chain = append(chain, first.hash)
		case i == 0:
			chain = append(chain, p.Locals[0])
		default:
			chain = append(chain, keys.Extend(chain[i-1], p.Locals[i]))
		}
	}
	return chain
}
