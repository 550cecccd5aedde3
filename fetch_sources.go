package kvcr

import (
	"slices"

	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// fetchSource is one source of a fetching, and what it is to be asked for.
type fetchSource struct {
	endpoint  string
	move      bool
	ownedOnly bool
	drop      bool    // what comes from it is not kept
	only      []bool  // by key; nil: all keys
	advice    *advice // nil: the caller has named it

	// Guarded by fetching.mu, for advice only.
	delivered, missed []int
	failed            bool
}

// advice is the plan that a source comes from.
type advice struct {
	request string
	plan    hints.SourcePlan
	keys    [][]byte    // that were planned for
	number  map[int]int // among those, by number in the fetching
}

// may reports whether the source is to be asked for key i.
func (s *fetchSource) may(i int) bool { return s.only == nil || s.only[i] }

// take moves to ask what the source is to be asked for.
func (s *fetchSource) take(from, ask []int) (left, more []int) {
	if s.only == nil && ask == nil {
		return nil, from
	}
	left = from[:0]
	for _, i := range from {
		if s.may(i) {
			ask = append(ask, i)
		} else {
			left = append(left, i)
		}
	}
	return left, ask
}

// note takes note of an answer. fetching.mu held.
func (s *fetchSource) note(at []int, why wire.Status) {
	if s.advice == nil {
		return
	}
	switch why {
	case wire.StatusOK:
		s.delivered = append(s.delivered, at...)
	case wire.StatusMiss:
		s.missed = append(s.missed, at...)
	case wire.StatusTimeout, wire.StatusSource, wire.StatusLost, wire.StatusUnauthorized, wire.StatusIncarnation,
		wire.StatusSelf, wire.StatusUnsupported, wire.StatusUnknownOp:
		s.failed = true
	}
}

// named makes sources of those that the caller has named.
func (f *fetching) named() {
	f.sources = make([]fetchSource, 0, len(f.opt.Sources))
	for _, e := range f.opt.Sources {
		f.sources = append(f.sources, fetchSource{endpoint: e, move: f.opt.Move, ownedOnly: f.opt.OwnedOnly})
	}
}

// plan sets out what is to be brought, and adds the sources that the request's hints
// name. It reports whether there is a source to ask.
func (f *fetching) plan(absent []int) bool {
	f.missing = slices.Clone(absent)
	f.advised(absent)
	moves := func(s fetchSource) bool { return s.move }
	if slices.ContainsFunc(f.sources, moves) {
		lacks := make([]bool, len(f.keys))
		for _, i := range absent {
			lacks[i] = true
		}
		for i, k := range f.keys {
			if !lacks[i] && validKey(k) {
				f.here = append(f.here, i)
			}
		}
	}
	return len(f.sources) > 0 && len(f.missing)+len(f.here) > 0
}

// advised adds the sources of the request's hints.
func (f *fetching) advised(absent []int) {
	h := f.e.hinted
	if h == nil || f.opt.RequestID == "" {
		return
	}
	a := advice{request: f.opt.RequestID}
	if mayMove := h.cfg.Advice.RequestMoves && f.targets == nil; mayMove {
		absent = make([]int, len(f.keys)) // and what is here: the sources' copies may go
		for i := range absent {
			absent[i] = i
		}
	}
	a.number = make(map[int]int, len(absent))
	for j, i := range absent {
		a.keys = append(a.keys, f.keys[i])
		a.number[i] = j
	}
	for _, p := range h.plan(a.request, f.ns, a.keys) {
		a := a
		a.plan = p
		s := fetchSource{endpoint: p.Source, ownedOnly: f.opt.OwnedOnly || p.NoFramework || h.cfg.OwnedOnly, drop: p.NoRetain && f.targets == nil, advice: &a}
		only := func(keys []int) []bool {
			set := make([]bool, len(f.keys))
			for _, j := range keys {
				set[absent[j]] = true
			}
			return set
		}
		s.only = only(p.Keys)
		if p.Move && f.targets == nil {
			m := s
			m.move, m.drop, m.only = true, false, only(p.Listed) // it would be the last copy
			f.sources = append(f.sources, m)
			for _, j := range p.Listed {
				s.only[absent[j]] = false
			}
		}
		if slices.Contains(s.only, true) {
			f.sources = append(f.sources, s)
		}
	}
}

// nextLocked goes on to the next source that is to be asked for something, and
// returns what.
func (f *fetching) nextLocked() (ask []int) {
	f.missing = slices.DeleteFunc(f.missing, f.op.answered) // in a move, what was here is asked for, too
	for len(f.missing)+len(f.here) > 0 && !f.over() && f.source+1 < len(f.sources) {
		f.source++
		s := &f.sources[f.source]
		f.missing, ask = s.take(f.missing, nil)
		if s.move {
			f.here, ask = s.take(f.here, ask)
		}
		if len(ask) > 0 {
			// An equal share of what is left for each source: one that does not
			// answer leaves time for the others.
			now := f.e.node.Now()
			f.share = now + (f.until-now)/peer.Time(len(f.sources)-f.source)
			return ask
		}
	}
	return nil
}

// furtherLocked reports whether somebody else is to be asked for key i after the
// present source.
func (f *fetching) furtherLocked(i int) bool {
	return f.remote() || slices.ContainsFunc(f.sources[f.source+1:], func(s fetchSource) bool { return s.may(i) })
}

// remote reports whether Config.Remote comes last.
func (f *fetching) remote() bool { return f.e.cfg.Remote != nil && f.work == nil }

// reportLocked tells the advice what has come of the present source.
func (f *fetching) reportLocked() {
	if f.source < 0 || f.sources[f.source].advice == nil {
		return
	}
	s := &f.sources[f.source]
	a := s.advice
	numbers := func(at []int) []int {
		var out []int
		for _, i := range at {
			if j, ok := a.number[i]; ok {
				out = append(out, j)
			}
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	delivered := numbers(s.delivered)
	asked := numbers(append(s.missed, s.delivered...))
	if len(asked) > 0 || s.failed {
		f.e.hinted.advice.Report(a.request, f.ns.cfg.Name, a.keys, &a.plan, asked, delivered, s.failed && len(asked) == 0)
	}
	s.delivered, s.missed, s.failed = nil, nil, false
}
