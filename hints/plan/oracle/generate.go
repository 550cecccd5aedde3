package oracle

import (
	"math/rand/v2"
	"slices"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

// Make returns the scenario of a seed.
func Make(seed uint64) Scenario {
	g := &generator{r: rand.New(rand.NewPCG(seed, 0x6b766372)), ids: map[events.Worker]uint64{}, exts: map[Edge]uint64{}}
	s := Scenario{Seed: seed}
	for more := true; more; more = g.chance(75) {
		s.Inventories++
		g.world()
		g.people()
		g.join()
		g.story()
		g.ask()
		g.ask()
		if g.chance(40) {
			g.add(Step{Kind: Replay, Shuffle: g.r.Uint64()})
			g.ask()
		}
		g.leave()
	}
	s.Steps = g.steps
	return s
}

// generator makes one scenario: several inventories, one after another, so that what
// one leaves behind is there for the next.
type generator struct {
	r     *rand.Rand
	steps []Step

	style  style
	chains []chain
	exts   map[Edge]uint64 // the external hash of every block made so far
	made   []uint64        // all of them
	hashes uint8           // how external hashes look

	workers []events.Worker
	caches  []events.OwnerKey
	speaker []events.Worker // by cache: who reports its blocks
	members []plan.Member
	ids     map[events.Worker]uint64 // the last event id of each worker
}

// style is what a scenario is about.
type style uint8

const (
	soup     style = iota // anything
	shaped                // targets with prefixes, sources with runs, then some soup
	cold                  // no target holds anything
	local                 // every target holds all
	conflict              // many disagree about hashes
)

// styles are how often each is.
var styles = []style{soup, soup, shaped, shaped, shaped, shaped, conflict, conflict, cold, local}

// chance is true p times in 100.
func (g *generator) chance(p int) bool { return g.r.IntN(100) < p }

func (g *generator) between(lo, hi int) int { return lo + g.r.IntN(hi-lo+1) }

func pick[T any](g *generator, from []T) T { return from[g.r.IntN(len(from))] }

func (g *generator) add(s Step) { g.steps = append(g.steps, s) }

// world makes the chains: some share prefixes, some repeat the same few blocks.
func (g *generator) world() {
	g.chains = nil
	g.style = pick(g, styles)
	g.hashes = uint8(g.r.IntN(5))
	n := g.between(1, 24)
	switch g.r.IntN(40) {
	case 0, 1:
		n = g.between(60, 70) // words of bits have edges
	case 2, 3:
		n = g.between(100, 140)
	case 4:
		n = g.between(250, 600)
	}
	letters := 0 // any block differs from any other
	if g.chance(40) {
		letters = g.between(1, 4)
	}
	for range g.between(1, 4) {
		var c chain
		if len(g.chains) > 0 && g.chance(75) {
			c = pick(g, g.chains)
			cut := g.r.IntN(len(c.local) + 1)
			c = chain{slices.Clone(c.local[:cut]), slices.Clone(c.ext[:cut])}
		}
		for length := max(1, g.between(n/2, n)); len(c.local) < length; {
			l := g.r.Uint64()
			if letters > 0 {
				l = uint64(g.r.IntN(letters))
			} else if g.chance(1) {
				l = pick(g, []uint64{0, ^uint64(0)})
			}
			c.ext = append(c.ext, g.ext(after(c.ext, l)))
			c.local = append(c.local, l)
		}
		g.chains = append(g.chains, c)
	}
	if g.style == conflict {
		g.otherDomain()
	}
}

// otherDomain adds chains of the same blocks whose external hashes are others from
// some block on, as of an engine that hashes with another seed.
func (g *generator) otherDomain() {
	for _, c := range g.chains {
		if g.chance(50) {
			continue
		}
		cut := 0
		if g.chance(50) {
			cut = g.r.IntN(len(c.local))
		}
		other := chain{c.local, slices.Clone(c.ext[:cut])}
		for range c.local[cut:] {
			other.ext = append(other.ext, g.newExt())
		}
		g.chains = append(g.chains, other)
	}
}

// ext is the external hash of the block at an edge: the same whenever asked, and no
// other block's.
func (g *generator) ext(at Edge) uint64 {
	h, ok := g.exts[at]
	if !ok {
		h = g.newExt()
		g.exts[at] = h
	}
	return h
}

func (g *generator) newExt() (h uint64) {
	i := uint64(len(g.made))
	switch g.hashes {
	case 0:
		h = i // 0 is a hash like any other
	case 1:
		h = i << 32
	case 2:
		h = ^i
	default:
		h = g.r.Uint64()
	}
	g.made = append(g.made, h)
	return h
}

// people makes workers and cache owners, and what the router knows of them.
func (g *generator) people() {
	g.workers, g.caches, g.speaker, g.members = nil, nil, nil, nil
	count, ids := g.between(1, pick(g, []int{3, 6, 12})), 8
	if g.chance(2) {
		count, ids = g.between(60, 140), 1000 // sets of owners have edges as well
	}
	for range count {
		w := events.Worker{ID: uint64(g.r.IntN(ids)), Rank: uint32(g.r.IntN(3))}
		if g.chance(5) {
			w.ID = ^uint64(0) - uint64(g.r.IntN(3))
		}
		if !slices.Contains(g.workers, w) {
			g.workers = append(g.workers, w)
		}
	}
	for i := range g.r.IntN(5) {
		var k events.OwnerKey
		k[g.r.IntN(16)] = byte(i + 1)
		if slices.Contains(g.caches, k) {
			continue
		}
		g.caches = append(g.caches, k)
		g.speaker = append(g.speaker, pick(g, g.workers))
	}
	bare := g.chance(50) // targets are no sources
	mixed := g.chance(40)
	kind := func() string {
		switch {
		case mixed && g.chance(50):
			return pick(g, []string{"prefill", "decode"})
		case g.chance(4):
			return pick(g, []string{"agg", "", "other"})
		}
		return "aggregated"
	}
	endpoint := func() string {
		if g.chance(12) {
			return ""
		}
		return "tcp://10.0.0.1:17771"
	}
	for _, w := range g.workers {
		if g.chance(93) {
			m := plan.Member{Owner: workerOwner(w), Type: kind(), Endpoint: endpoint(), Capable: g.chance(60)}
			if bare && m.Capable {
				m.Endpoint = ""
			}
			g.members = append(g.members, m)
		}
	}
	for i, k := range g.caches {
		if g.chance(93) {
			m := plan.Member{Owner: cacheOwner(k), Type: kind(), Endpoint: endpoint()}
			if g.chance(70) {
				m.HasAttached, m.Attached = true, g.speaker[i]
			}
			g.members = append(g.members, m)
		}
	}
	g.r.Shuffle(len(g.members), func(i, j int) { g.members[i], g.members[j] = g.members[j], g.members[i] })
}

func (g *generator) join() { g.add(Step{Kind: Join, Members: slices.Clone(g.members)}) }

// rejoin changes what is known of one member.
func (g *generator) rejoin() {
	if len(g.members) == 0 {
		return
	}
	m := &g.members[g.r.IntN(len(g.members))]
	switch g.r.IntN(4) {
	case 0:
		m.Type = pick(g, []string{"aggregated", "prefill"})
	case 1:
		m.Endpoint = pick(g, []string{"", "tcp://10.0.0.2:1"})
	case 2:
		if m.Owner.Cache {
			m.HasAttached, m.Attached = g.chance(70), pick(g, g.workers)
			if !m.HasAttached {
				m.Attached = events.Worker{}
			}
		} else {
			m.Capable = !m.Capable
		}
	case 3:
		i := g.r.IntN(len(g.members))
		g.members = slices.Delete(slices.Clone(g.members), i, i+1)
	}
	g.join()
}

// who is an owner and who reports its blocks.
type who struct {
	owner   plan.Owner
	speaker events.Worker
}

func (g *generator) everyone() (out []who) {
	for _, w := range g.workers {
		out = append(out, who{workerOwner(w), w})
	}
	for i, k := range g.caches {
		out = append(out, who{cacheOwner(k), g.speaker[i]})
	}
	return out
}

func (g *generator) isTarget(o plan.Owner) bool {
	return slices.ContainsFunc(g.members, func(m plan.Member) bool { return m.Owner == o && m.Capable })
}

func (g *generator) story() {
	main := g.chains[0]
	switch g.style {
	case shaped:
		for _, w := range g.everyone() {
			g.shape(w, main)
		}
	case conflict:
		for _, w := range g.everyone() {
			g.shape(w, pick(g, []chain{main, pick(g, g.chains)}))
		}
	case local, cold:
		for _, w := range g.everyone() {
			switch {
			case !g.isTarget(w.owner):
				g.shape(w, main)
			case g.style == local:
				d := g.r.IntN(len(main.local) + 1)
				g.store(w, events.Device, main, 0, d)
				g.store(w, events.HostPinned, main, d, len(main.local))
			}
		}
	}
	every := g.between(1, 8)
	acts := g.between(1, 45)
	if g.style == shaped {
		acts /= 3
	}
	for i := range acts {
		w := pick(g, g.everyone())
		if g.style == cold && g.isTarget(w.owner) {
			continue
		}
		g.act(w)
		if i%every == 0 {
			g.ask()
		}
	}
}

// leave removes most owners, and mostly all.
func (g *generator) leave() {
	stays := 0
	if g.chance(20) {
		stays = 50
	}
	everyone := g.everyone()
	g.r.Shuffle(len(everyone), func(i, j int) { everyone[i], everyone[j] = everyone[j], everyone[i] })
	for _, w := range everyone {
		if !g.chance(stays) {
			g.add(Step{Kind: Gone, Owner: w.owner})
		}
	}
}

// shape gives an owner a prefix of the chain and some runs behind it. Who is no
// target seldom has the begin: then there is a continuation to find.
func (g *generator) shape(w who, c chain) {
	n := len(c.local)
	at := 0
	if !g.isTarget(w.owner) && g.chance(85) {
		at = min(1, n)
	} else if !w.owner.Cache && g.chance(60) {
		at = g.r.IntN(n + 1)
		g.store(w, events.Device, c, 0, at)
		if g.chance(30) {
			to := g.between(at, n)
			g.store(w, events.HostPinned, c, at, to)
			at = to
		}
	}
	for at < n && g.chance(70) {
		from := g.between(at, n)
		to := g.between(from, n)
		g.store(w, events.HostPinned, c, from, to)
		at = to + 1
	}
}

func (g *generator) send(w who, e events.RouterEvent) {
	g.ids[w.speaker]++
	e.ID, e.Worker = g.ids[w.speaker], w.speaker
	e.Domain = events.DomainWorker
	if w.owner.Cache {
		e.Domain, e.Owner = events.DomainCacheOwner, w.owner.Key
	} else if g.chance(30) {
		e.Domain = events.DomainLegacy
	}
	g.add(Step{Kind: Event, Event: e})
}

func (g *generator) store(w who, t events.Tier, c chain, from, to int) {
	if from < to {
		g.send(w, c.store(t, w.owner, w.speaker, from, to))
	}
}

// act lets something happen to one owner.
func (g *generator) act(w who) {
	switch p := g.r.IntN(100); {
	case p < 58:
		g.storeSomething(w)
	case p < 84:
		g.removeSomething(w)
	case p < 90:
		e := events.RouterEvent{Op: events.Cleared, Worker: w.speaker, Tier: g.tier(w)}
		g.ids[w.speaker]++
		e.ID = g.ids[w.speaker]
		e.Domain = pick(g, []events.Domain{events.DomainWorker, events.DomainLegacy})
		if w.owner.Cache && g.chance(60) {
			e.Domain, e.Owner = events.DomainCacheOwner, w.owner.Key
		}
		g.add(Step{Kind: Event, Event: e})
	case p < 93:
		g.add(Step{Kind: Gone, Owner: w.owner})
	case p < 96:
		g.rejoin()
	case p < 99:
		// Somebody else speaks for a cache owner from now on.
		if len(g.speaker) > 0 {
			g.speaker[g.r.IntN(len(g.speaker))] = pick(g, g.workers)
		}
	default:
		g.add(Step{Kind: Replay, Shuffle: g.r.Uint64()})
	}
}

func (g *generator) tier(w who) events.Tier {
	switch p := g.r.IntN(100); {
	case p < 62:
		return events.HostPinned
	case p < 88 && (!w.owner.Cache || g.chance(5)): // a cache owner's are to be ignored
		return events.Device
	case p < 94:
		return events.Disk
	}
	return events.External
}

func (g *generator) storeSomething(w who) {
	c, t := pick(g, g.chains), g.tier(w)
	n := len(c.local)
	from := 0
	if g.chance(map[bool]int{true: 25, false: 60}[t == events.Device]) {
		from = g.r.IntN(n)
	}
	to := g.between(from+1, n)
	e := c.store(t, w.owner, w.speaker, from, to)
	spoil := 5
	if g.style == conflict {
		spoil = 35
	}
	if g.chance(spoil) {
		g.spoilHash(&e)
	}
	if g.chance(spoil) {
		g.spoilParent(&e)
	}
	if !g.chance(12) {
		g.send(w, e)
		return
	}
	// One by one, and in any order: every block names its parent.
	var parts []events.RouterEvent
	for i, b := range e.Blocks {
		one := e
		one.Blocks = []events.Block{b}
		if i > 0 {
			one.HasParent, one.Parent = true, e.Blocks[i-1].Hash
		}
		parts = append(parts, one)
	}
	g.r.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
	for _, one := range parts {
		g.send(w, one)
	}
}

// spoilHash gives one block, or all from it on, a hash that is not its own.
func (g *generator) spoilHash(e *events.RouterEvent) {
	i := g.r.IntN(len(e.Blocks))
	to := i + 1
	if g.chance(40) {
		to = len(e.Blocks)
	}
	for ; i < to; i++ {
		h := g.newExt()
		if g.chance(40) {
			h = pick(g, g.made)
		}
		// A store that names a hash twice is nothing by the time it is a
		// RouterEvent (2.2).
		if !slices.ContainsFunc(e.Blocks, func(b events.Block) bool { return b.Hash == h }) && !(e.HasParent && e.Parent == h) {
			e.Blocks[i].Hash = h
		}
	}
}

// spoilParent puts the blocks behind another block than their own.
func (g *generator) spoilParent(e *events.RouterEvent) {
	h := pick(g, g.made)
	switch {
	case g.chance(25):
		e.HasParent = false // the parent's hash stays, and means nothing
	case !slices.ContainsFunc(e.Blocks, func(b events.Block) bool { return b.Hash == h }):
		e.HasParent, e.Parent = true, h
	}
}

func (g *generator) removeSomething(w who) {
	c := pick(g, g.chains)
	from := g.r.IntN(len(c.ext))
	to := g.between(from+1, len(c.ext))
	if g.chance(40) {
		to = from + 1
	}
	e := events.RouterEvent{Op: events.Removed, Tier: g.tier(w), Hashes: slices.Clone(c.ext[from:to])}
	if g.chance(20) {
		e.Hashes = append(e.Hashes, pick(g, g.made), g.r.Uint64())
	}
	g.r.Shuffle(len(e.Hashes), func(i, j int) { e.Hashes[i], e.Hashes[j] = e.Hashes[j], e.Hashes[i] })
	g.send(w, e)
}

// ask asks for a chain, a part of one, one that goes on, or one that nobody has.
func (g *generator) ask() {
	c := g.chains[0]
	if g.style == soup || g.style == conflict || g.chance(20) {
		c = pick(g, g.chains)
	}
	p := slices.Clone(c.local)
	switch g.r.IntN(6) {
	case 0:
		p = p[:g.r.IntN(len(p)+1)]
	case 1:
		for range g.between(1, 5) {
			p = append(p, g.r.Uint64())
		}
	case 2:
		other := pick(g, g.chains).local
		cut := g.r.IntN(min(len(p), len(other)) + 1)
		p = append(p[:cut], other[cut:]...)
	}
	g.add(Step{Kind: Ask, Prompt: p})
}
