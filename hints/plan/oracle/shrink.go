package oracle

import (
	"maps"
	"slices"
)

// Shrink leaves out of a scenario what it can while the subject still differs from
// the oracle somewhere: steps first, then members, blocks and prompt.
func Shrink(d *Difference, fresh func() Subject) *Difference {
	best := d
	fails := func(steps []Step) bool {
		got, _ := Check(Scenario{Seed: d.Scenario.Seed, Steps: steps}, fresh)
		if got == nil {
			return false
		}
		best = got
		best.Scenario.Steps = steps[:got.Step+1] // nothing later matters
		return true
	}
	if !fails(d.Scenario.Steps) {
		return d // it does not repeat: leave it as it was seen
	}
	for before := -1; size(best.Scenario.Steps) != before; {
		before = size(best.Scenario.Steps)
		steps := best.Scenario.Steps
		without(len(steps), func(drop func(int) bool) bool {
			return fails(keep(steps, drop))
		})
		for i := 0; i < len(best.Scenario.Steps); i++ {
			shrinkStep(func() []Step { return best.Scenario.Steps }, i, fails)
		}
		all := places(best.Scenario.Steps)
		for _, h := range slices.Sorted(maps.Keys(all)) {
			fails(cutOut(best.Scenario.Steps, h, all[h]))
		}
	}
	return best
}

func size(steps []Step) (n int) {
	for _, s := range steps {
		n += 1 + len(s.Members) + len(s.Prompt) + len(s.Event.Blocks) + len(s.Event.Hashes)
	}
	return n
}

func keep[T any](all []T, drop func(int) bool) (out []T) {
	for i, x := range all {
		if !drop(i) {
			out = append(out, x)
		}
	}
	return out
}

// without tries to leave out of n things ever smaller stretches; try reports
// whether it works without those that drop names.
func without(n int, try func(drop func(int) bool) bool) {
	gone := make([]bool, n)
	for width := n; width > 0; width /= 2 {
		for from := 0; from < n; from += width {
			to, fresh := min(from+width, n), false
			for i := from; i < to; i++ {
				fresh = fresh || !gone[i]
			}
			if fresh && try(func(i int) bool { return gone[i] || from <= i && i < to }) {
				for i := from; i < to; i++ {
					gone[i] = true
				}
			}
		}
	}
}

// shrinkStep makes one step's lists shorter.
func shrinkStep(steps func() []Step, i int, fails func([]Step) bool) {
	with := func(s Step) bool {
		all := slices.Clone(steps())
		if i >= len(all) {
			return false // what failed before failed earlier: this step is gone
		}
		all[i] = s
		return fails(all)
	}
	s := steps()[i]
	without(len(s.Members), func(drop func(int) bool) bool {
		t := s
		t.Members = keep(s.Members, drop)
		return with(t)
	})
	s = at(steps(), i, s)
	without(len(s.Event.Hashes), func(drop func(int) bool) bool {
		t := s
		t.Event.Hashes = keep(s.Event.Hashes, drop)
		return with(t)
	})
	s = at(steps(), i, s)
	for len(s.Event.Blocks) > 1 {
		t := s
		t.Event.Blocks = s.Event.Blocks[:len(s.Event.Blocks)-1]
		if !with(t) {
			break
		}
		s = t
	}
	for len(s.Event.Blocks) > 1 {
		t := s
		t.Event.HasParent, t.Event.Parent = true, s.Event.Blocks[0].Hash
		t.Event.Blocks = s.Event.Blocks[1:]
		if !with(t) {
			break
		}
		s = t
	}
	for len(s.Prompt) > 0 {
		t := s
		t.Prompt = s.Prompt[:len(s.Prompt)-1]
		if !with(t) {
			break
		}
		s = t
	}
}

func at(steps []Step, i int, or Step) Step {
	if i < len(steps) {
		return steps[i]
	}
	return or
}

// places are the blocks that some event stores, each with an edge that leads to it.
func places(steps []Step) map[uint64]Edge {
	out := map[uint64]Edge{}
	for _, s := range steps {
		at := Edge{HasParent: s.Event.HasParent, Parent: s.Event.Parent}
		for _, b := range s.Event.Blocks {
			at.Local = b.Local
			out[b.Hash] = at
			at = Edge{HasParent: true, Parent: b.Hash}
		}
	}
	return out
}

// cutOut takes one block out of everything: what followed it follows its parent.
func cutOut(steps []Step, h uint64, at Edge) (out []Step) {
	for _, s := range steps {
		e := &s.Event
		if e.HasParent && e.Parent == h {
			e.HasParent, e.Parent = at.HasParent, at.Parent
		}
		blocks, hashes := e.Blocks, e.Hashes
		e.Blocks = keep(blocks, func(i int) bool { return blocks[i].Hash == h })
		e.Hashes = keep(hashes, func(i int) bool { return hashes[i] == h })
		if i := slices.Index(s.Prompt, at.Local); i >= 0 {
			s.Prompt = slices.Delete(slices.Clone(s.Prompt), i, i+1)
		}
		out = append(out, s)
	}
	return out
}
