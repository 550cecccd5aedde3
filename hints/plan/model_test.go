package plan_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

// model is the index as doc.go words it: maps of edges, no sharing, no order of work.
type model struct {
	tiers   [4]map[edgeKey]*edgeVal
	to      [4]map[uint64]map[edgeKey]bool // by hash: edges to it, as far as there are any
	members []plan.Member
	by      map[plan.Owner]events.Worker
}

type edgeKey struct {
	root          bool
	parent, local uint64
}

type edgeVal struct {
	child  uint64
	owners map[plan.Owner]bool
}

func newModel() *model {
	m := &model{by: map[plan.Owner]events.Worker{}}
	for i := range m.tiers {
		m.tiers[i] = map[edgeKey]*edgeVal{}
		m.to[i] = map[uint64]map[edgeKey]bool{}
	}
	return m
}

func ownerOf(ev *events.RouterEvent) plan.Owner {
	if ev.Domain == events.DomainCacheOwner {
		return plan.Owner{Cache: true, Key: ev.Owner}
	}
	return plan.Owner{Worker: ev.Worker}
}

func (m *model) apply(ev *events.RouterEvent) {
	o := ownerOf(ev)
	tier := m.tiers[ev.Tier]
	if o.Cache && ev.Op != events.Cleared && (ev.Op == events.Stored || m.by[o] != (events.Worker{})) {
		m.by[o] = ev.Worker
	}
	switch ev.Op {
	case events.Stored:
		key := edgeKey{!ev.HasParent, ev.Parent, 0}
		if key.root {
			key.parent = 0
		}
		for _, b := range ev.Blocks {
			key.local = b.Local
			e := tier[key]
			if e != nil && e.child != b.Hash {
				return
			}
			to := m.to[ev.Tier]
			for k := range to[b.Hash] {
				if k != key && tier[k].owners[o] {
					return
				}
			}
			if e == nil {
				e = &edgeVal{b.Hash, map[plan.Owner]bool{}}
				tier[key] = e
				if to[b.Hash] == nil {
					to[b.Hash] = map[edgeKey]bool{}
				}
				to[b.Hash][key] = true
			}
			e.owners[o] = true
			key = edgeKey{false, b.Hash, 0}
		}
	case events.Removed:
		for _, h := range ev.Hashes {
			for k := range m.to[ev.Tier][h] {
				m.drop(int(ev.Tier), k, func(p plan.Owner) bool { return p == o })
			}
		}
	case events.Cleared:
		gone := func(p plan.Owner) bool { return p == o }
		if ev.Domain == events.DomainLegacy {
			gone = func(p plan.Owner) bool { return p == o || p.Cache && m.by[p] == ev.Worker }
		}
		for i := range m.tiers {
			for k := range m.tiers[i] {
				m.drop(i, k, gone)
			}
		}
	}
}

func (m *model) drop(tier int, k edgeKey, gone func(plan.Owner) bool) {
	e := m.tiers[tier][k]
	maps.DeleteFunc(e.owners, func(p plan.Owner, _ bool) bool { return gone(p) })
	if len(e.owners) == 0 {
		delete(m.tiers[tier], k)
		delete(m.to[tier][e.child], k)
	}
}

func (m *model) edge(tier, p int, locals, path []uint64) *edgeVal {
	key := edgeKey{p == 0, 0, locals[p]}
	if p > 0 {
		key.parent = path[p-1]
	}
	return m.tiers[tier][key]
}

// follow returns how far an owner gets in a tier from path on, and the hashes.
func (m *model) follow(tier int, o plan.Owner, locals, path []uint64) []uint64 {
	path = slices.Clone(path)
	for p := len(path); p < len(locals); p++ {
		e := m.edge(tier, p, locals, path)
		if e == nil || !e.owners[o] {
			break
		}
		path = append(path, e.child)
	}
	return path
}

func (m *model) owners() map[plan.Owner]bool {
	all := map[plan.Owner]bool{}
	for _, t := range m.tiers {
		for _, e := range t {
			maps.Copy(all, e.owners)
		}
	}
	for _, mem := range m.members {
		all[mem.Owner] = true
	}
	return all
}

type modelLookup struct {
	device, front map[plan.Owner]int
	hits          map[plan.Owner][4]int
	stray         map[plan.Owner]bool
	root          map[plan.Owner]int // of the chain, from the root on
	chain         []uint64
	choices       []plan.Choice
	intervals     []plan.Interval
	covered       map[events.Worker]int
}

func (m *model) lookup(locals []uint64) *modelLookup {
	r := &modelLookup{map[plan.Owner]int{}, map[plan.Owner]int{}, map[plan.Owner][4]int{},
		map[plan.Owner]bool{}, map[plan.Owner]int{}, nil, nil, nil, map[events.Worker]int{}}
	all := m.owners()
	own := map[plan.Owner][]uint64{}
	var chain []uint64
	for o := range all {
		own[o] = m.follow(0, o, locals, nil)
		r.device[o] = len(own[o])
		if len(own[o]) > len(chain) {
			chain = own[o]
		}
	}
	for tier := 0; tier < 4; tier++ {
		for o := range all {
			before := len(own[o])
			if tier == 0 {
				before = 0
			} else {
				own[o] = m.follow(tier, o, locals, own[o])
			}
			h := r.hits[o]
			h[tier] = len(own[o]) - before
			r.hits[o] = h
			if tier <= 1 {
				r.front[o] = len(own[o])
			}
		}
		if tier == 0 {
			continue
		}
		if tier == 1 {
			known := chain
			for o := range all {
				n := 0
				for n < len(own[o]) && n < len(known) && own[o][n] == known[n] {
					n++
				}
				r.root[o] = n
				if n < len(own[o]) && n < len(known) {
					r.stray[o] = true
				} else {
					r.root[o] = len(own[o])
					if len(own[o]) > len(chain) {
						chain = own[o]
					}
				}
			}
			r.chain = chain
			for p := len(r.chain); p < len(locals); p++ { // where sources go on beyond owners
				e := m.edge(1, p, locals, r.chain)
				if e == nil {
					break
				}
				r.chain = append(slices.Clone(r.chain), e.child)
			}
			m.plan(r, locals)
		}
	}
	return r
}

func (m *model) source(o plan.Owner) *plan.Member {
	for i := range m.members {
		if mem := &m.members[i]; mem.Owner == o && mem.Endpoint != "" && classIn(mem.Type) != "" {
			return mem
		}
	}
	return nil
}

func classIn(typ string) string {
	switch typ {
	case "agg", "aggregated":
		return "aggregated"
	case "prefill", "decode":
		return typ
	}
	return ""
}

func serves(s *plan.Member, t *plan.Member) bool {
	return classIn(s.Type) == classIn(t.Type) && s.Owner != t.Owner &&
		!(s.HasAttached && s.Owner.Cache && s.Attached == t.Owner.Worker)
}

// holds reports whether an owner has the block at p of the chain in HostPinned.
func (m *model) holds(o plan.Owner, p int, locals, chain []uint64) bool {
	if p >= len(chain) {
		return false
	}
	e := m.edge(1, p, locals, chain)
	return e != nil && e.child == chain[p] && e.owners[o]
}

func (m *model) plan(r *modelLookup, locals []uint64) {
	openings := map[int]bool{}
	var targets []plan.Member
	for _, mem := range m.members {
		if !mem.Capable || mem.Owner.Cache {
			continue
		}
		targets = append(targets, mem)
		if f := r.front[mem.Owner]; f > 0 && f < len(locals) && !r.stray[mem.Owner] && classIn(mem.Type) != "" {
			openings[f] = true
		}
	}
	for _, mem := range m.members {
		if m.source(mem.Owner) == nil {
			continue
		}
		for p := 1; p < len(locals); p++ {
			if !openings[p] || !m.holds(mem.Owner, p, locals, r.chain) {
				continue
			}
			end := p
			for m.holds(mem.Owner, end, locals, r.chain) {
				end++
			}
			r.intervals = append(r.intervals, plan.Interval{Source: mem.Owner, Start: p, End: end})
			p = end
		}
	}
	slices.SortFunc(targets, func(a, b plan.Member) int { return a.Owner.Compare(b.Owner) })
	for _, t := range targets {
		f := r.front[t.Owner]
		c := plan.Choice{Target: t.Owner.Worker, Frontier: f}
		if classIn(t.Type) != "" && f < len(locals) {
			var best *plan.Choice
			consider := func(o plan.Owner, kind plan.Kind, end int) {
				n := plan.Choice{Target: c.Target, Frontier: f, Kind: kind, Source: o, End: end}
				if end > f && (best == nil || cmp.Or(cmp.Compare(best.End, end), cmp.Compare(kind, best.Kind), o.Compare(best.Source)) < 0) {
					best = &n
				}
			}
			for i := range m.members {
				s := &m.members[i]
				if m.source(s.Owner) == nil || !serves(s, &t) {
					continue
				}
				consider(s.Owner, plan.RootPrefix, r.root[s.Owner])
				if f > 0 && !r.stray[t.Owner] {
					end := f
					for m.holds(s.Owner, end, locals, r.chain) {
						end++
					}
					consider(s.Owner, plan.Continuation, end)
				}
			}
			if best != nil {
				c = *best
			}
		}
		r.choices = append(r.choices, c)

		at := f
		for classIn(t.Type) != "" {
			held := false
			for i := range m.members {
				s := &m.members[i]
				if m.source(s.Owner) != nil && serves(s, &t) &&
					(r.root[s.Owner] > at || !r.stray[t.Owner] && m.holds(s.Owner, at, locals, r.chain)) {
					held = true
				}
			}
			if !held {
				break
			}
			at++
		}
		r.covered[t.Owner.Worker] = at
	}
}

// world is what a random test draws from: a few prompts that share prefixes.
type world struct {
	locals, hashes [][]uint64 // by prompt
	owners         []plan.Owner
	wild           bool // hashes and parents from a small set, without rules
}

func drawWorld(t *rapid.T) *world {
	w := &world{wild: rapid.Bool().Draw(t, "wild")}
	long := rapid.SampledFrom([]int{4, 12, 70, 200}).Draw(t, "longest")
	for range rapid.IntRange(1, 4).Draw(t, "prompts") {
		w.grow(t, long)
	}
	for i := range rapid.IntRange(1, 6).Draw(t, "workers") {
		w.owners = append(w.owners, plan.Owner{Worker: events.Worker{ID: uint64(9 - i), Rank: uint32(i % 2)}})
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "caches") {
		w.owners = append(w.owners, plan.Owner{Cache: true, Key: events.OwnerKey{byte(7 - i)}})
	}
	return w
}

// grow adds a prompt.
func (w *world) grow(t *rapid.T, long int) {
	n := rapid.IntRange(1, long).Draw(t, "blocks")
	var locals, hashes []uint64
	i := len(w.locals)
	if i > 0 {
		of := rapid.IntRange(0, i-1).Draw(t, "fork")
		at := rapid.IntRange(0, len(w.locals[of])).Draw(t, "at")
		locals, hashes = slices.Clone(w.locals[of][:at]), slices.Clone(w.hashes[of][:at])
	}
	for len(locals) < n {
		locals = append(locals, uint64(i+1)*1000+uint64(len(locals)))
		hashes = append(hashes, uint64(i+1)<<40+uint64(len(hashes)))
	}
	w.locals, w.hashes = append(w.locals, locals), append(w.hashes, hashes)
}

func (w *world) event(t *rapid.T) *events.RouterEvent {
	o := rapid.SampledFrom(w.owners).Draw(t, "owner")
	ev := &events.RouterEvent{Worker: o.Worker, Tier: events.Tier(rapid.SampledFrom([]int{0, 0, 1, 1, 1, 2, 3}).Draw(t, "tier"))}
	if o.Cache {
		ev.Domain, ev.Owner = events.DomainCacheOwner, o.Key
		ev.Worker = w.owners[0].Worker
		if rapid.Bool().Draw(t, "other") {
			ev.Worker = events.Worker{ID: 77}
		}
		ev.Tier = max(ev.Tier, events.HostPinned)
	} else if rapid.Bool().Draw(t, "named") {
		ev.Domain = events.DomainWorker
	}
	i := rapid.IntRange(0, len(w.locals)-1).Draw(t, "prompt")
	locals, hashes := w.locals[i], w.hashes[i]
	from := 0
	if rapid.Bool().Draw(t, "inside") {
		from = rapid.IntRange(0, len(locals)-1).Draw(t, "from")
	}
	to := rapid.IntRange(from+1, len(locals)).Draw(t, "to")
	switch rapid.SampledFrom([]int{0, 0, 0, 0, 1, 1, 2, 3}).Draw(t, "op") {
	case 0, 3:
		ev.Op = events.Stored
		if from > 0 {
			ev.HasParent, ev.Parent = true, hashes[from-1]
		}
		for p := from; p < to; p++ {
			ev.Blocks = append(ev.Blocks, events.Block{Hash: hashes[p], Local: locals[p]})
		}
		if w.wild {
			few := rapid.Uint64Range(0, 6)
			if rapid.Bool().Draw(t, "bend") {
				at := rapid.IntRange(0, len(ev.Blocks)-1).Draw(t, "bent")
				ev.Blocks[at].Hash = few.Draw(t, "hash")
			}
			if rapid.Bool().Draw(t, "bend parent") {
				ev.HasParent, ev.Parent = true, few.Draw(t, "parent")
			}
		}
	case 1:
		ev.Op = events.Removed
		ev.Hashes = slices.Clone(hashes[from:to])
		if rapid.Bool().Draw(t, "backwards") {
			slices.Reverse(ev.Hashes)
		}
		if w.wild {
			ev.Hashes = append(ev.Hashes, rapid.Uint64Range(0, 6).Draw(t, "hash"))
		}
		if step := rapid.IntRange(1, 3).Draw(t, "step"); step > 1 {
			var some []uint64
			for i := 0; i < len(ev.Hashes); i += step {
				some = append(some, ev.Hashes[i])
			}
			ev.Hashes = some
		}
	case 2:
		if rapid.IntRange(0, 3).Draw(t, "really") == 0 {
			ev.Op = events.Cleared
		} else {
			ev.Op = events.Removed
		}
	}
	return ev
}

func (w *world) members(t *rapid.T) (members []plan.Member) {
	for _, o := range w.owners {
		if rapid.IntRange(0, 5).Draw(t, "left out") == 0 {
			continue
		}
		m := plan.Member{Owner: o, Type: rapid.SampledFrom([]string{"agg", "aggregated", "aggregated", "decode", "odd"}).Draw(t, "type")}
		if rapid.IntRange(0, 3).Draw(t, "reached") > 0 {
			m.Endpoint = fmt.Sprint("tcp://host:", len(members)+1)
		}
		m.Capable = rapid.IntRange(0, 3).Draw(t, "capable") > 0
		if o.Cache && rapid.Bool().Draw(t, "attached") {
			m.HasAttached = true
			m.Attached = rapid.SampledFrom(w.owners).Draw(t, "to").Worker
		}
		members = append(members, m)
	}
	return members
}

// The index says what the model says, after every kind of event.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		x, m := plan.New(plan.Config{}), newModel()
		s := x.NewScratch()
		for range rapid.IntRange(1, 30).Draw(t, "events") {
			if rapid.IntRange(0, 9).Draw(t, "topology") == 0 || m.members == nil {
				m.members = w.members(t)
				x.SetTopology(m.members)
			}
			ev := w.event(t)
			if err := x.Apply(ev); err != nil {
				t.Fatal(err)
			}
			m.apply(ev)
			if err := x.Check(); err != nil {
				t.Fatal(err)
			}
			locals := rapid.SampledFrom(w.locals).Draw(t, "looked up")
			sameLookup(t, x, s, m, locals)
		}
		y := plan.New(plan.Config{})
		y.SetTopology(m.members)
		var dump []events.RouterEvent
		x.Dump(func(ev *events.RouterEvent) bool {
			c := *ev
			c.Blocks = slices.Clone(ev.Blocks)
			dump = append(dump, c)
			return true
		})
		for _, i := range rapid.Permutation(seq(len(dump))).Draw(t, "order") {
			if err := y.Apply(&dump[i]); err != nil {
				t.Fatal(err)
			}
		}
		if a, b := x.Stats(), y.Stats(); a.Pairs != b.Pairs || a.Blocks != b.Blocks {
			t.Fatalf("dumped and loaded: %v %v, were %v %v", b.Pairs, b.Blocks, a.Pairs, a.Blocks)
		}
		z := y.NewScratch()
		for _, locals := range w.locals {
			sameLookup(t, y, z, m, locals)
		}
		for o := range m.owners() {
			x.RemoveOwner(o)
		}
		if err := x.Check(); err != nil {
			t.Fatal(err)
		}
		if st := x.Stats(); st.Pairs != [4]int{} || st.Blocks != [4]int{} {
			t.Fatalf("without owners: %+v", st)
		}
	})
}

// Long runs of events: memory is used again, chunks are rewritten, tables renewed.
func TestChurn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		for range 8 {
			w.grow(t, 250)
		}
		x, m := plan.New(plan.Config{}), newModel()
		m.members = w.members(t)
		x.SetTopology(m.members)
		s := x.NewScratch()
		for i := range 200 {
			ev := w.event(t)
			if err := x.Apply(ev); err != nil {
				t.Fatal(err)
			}
			m.apply(ev)
			if i%30 == 29 {
				if err := x.Check(); err != nil {
					t.Fatal(err)
				}
				sameLookup(t, x, s, m, rapid.SampledFrom(w.locals).Draw(t, "looked up"))
			}
		}
	})
}

func seq(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}

func sameLookup(t *rapid.T, x *plan.Index, s *plan.Scratch, m *model, locals []uint64) {
	want := m.lookup(locals)
	match := x.Match(s, locals)
	for o, d := range want.device {
		if got := match.Depth(o.Worker); !o.Cache && got != d {
			t.Fatalf("device depth of %+v is %d, want %d", o, got, d)
		}
	}
	choices := x.Plan(s, match, nil)
	if !slices.Equal(choices, want.choices) {
		t.Fatalf("choices\n%+v, want\n%+v", choices, want.choices)
	}
	deepest := 0
	for _, c := range choices {
		if _, hashes, ok := s.Hint(c); ok != (c.Kind != plan.None) || !slices.Equal(hashes, want.chain[:c.End]) {
			t.Fatalf("hint of %+v: %v, want %v", c, hashes, want.chain[:c.End])
		}
		deepest = max(deepest, c.End)
	}
	if got := s.Chain(); len(got) < deepest || !slices.Equal(got, want.chain[:len(got)]) {
		t.Fatalf("chain %v, want %v", got, want.chain)
	}
	got := s.Intervals(nil)
	order := func(a, b plan.Interval) int { return cmp.Or(a.Source.Compare(b.Source), a.Start-b.Start) }
	slices.SortFunc(got, order)
	slices.SortFunc(want.intervals, order)
	if !slices.Equal(got, want.intervals) {
		t.Fatalf("intervals\n%+v, want\n%+v", got, want.intervals)
	}
	for _, a := range x.PlanMulti(s, match, nil) {
		at := a.Frontier
		for _, seg := range a.Segments {
			if seg.From != at || seg.To <= at {
				t.Fatalf("segments %+v do not join", a)
			}
			for p := seg.From; p < seg.To; p++ {
				if want.root[seg.Source] <= p && !m.holds(seg.Source, p, locals, want.chain) {
					t.Fatalf("segment %+v: the source does not hold block %d", seg, p)
				}
			}
			if _, hashes, ok := s.SegmentHint(seg); !ok || !slices.Equal(hashes, want.chain[seg.From:seg.To]) {
				t.Fatalf("segment %+v: hint %v", seg, hashes)
			}
			at = seg.To
		}
		if at != want.covered[a.Target] {
			t.Fatalf("segments %+v cover up to %d, want %d", a, at, want.covered[a.Target])
		}
	}
	scores := x.Scores(s, match, nil)
	n := 0
	for o, h := range want.hits {
		if h != [4]int{} {
			n++
			if !slices.Contains(scores, plan.Score{Owner: o, Hits: h}) {
				t.Fatalf("scores %+v; %+v should have %v", scores, o, h)
			}
		}
	}
	if n != len(scores) || !slices.IsSortedFunc(scores, func(a, b plan.Score) int { return a.Owner.Compare(b.Owner) }) {
		t.Fatalf("scores %+v, want %d in order", scores, n)
	}
}
