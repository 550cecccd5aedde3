package oracle

import (
	"reflect"
	"slices"
	"testing"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

// subjects are what the tables of this file are played on. Their expectations are
// written by hand, from the contract; the oracle has to meet them too.
var subjects = map[string]func() Subject{"oracle": Self, "index": Index}

// table builds a scenario by hand. Block positions count from 0; worker w is
// {w, 0}, cache k has the key {k}; the chain has n blocks.
type table struct {
	c     chain
	steps []Step
	want  [][]Hint // for each Ask, in order
	multi map[int][]plan.Multi
	plan  map[plan.Owner]plan.Member
}

func newTable(n int) *table {
	return &table{c: newChain(7, n), plan: map[plan.Owner]plan.Member{}}
}

func w(id uint64) plan.Owner { return workerOwner(events.Worker{ID: id}) }

func rank(id uint64, r uint32) plan.Owner { return workerOwner(events.Worker{ID: id, Rank: r}) }

func k(id byte) plan.Owner { return cacheOwner(events.OwnerKey{id}) }

func (b *table) join(m plan.Member) *table {
	if m.Type == "" {
		m.Type = "aggregated"
	}
	b.plan[m.Owner] = m
	var all []plan.Member
	for _, m := range b.plan {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b plan.Member) int { return compareOwners(a.Owner, b.Owner) })
	b.steps = append(b.steps, Step{Kind: Join, Members: all})
	return b
}

// targets join, none of them a source.
func (b *table) targets(all ...plan.Owner) *table {
	for _, o := range all {
		b.join(plan.Member{Owner: o, Capable: true})
	}
	return b
}

// sources join, none of them a target.
func (b *table) sources(all ...plan.Owner) *table {
	for _, o := range all {
		b.join(plan.Member{Owner: o, Endpoint: "tcp://s:1"})
	}
	return b
}

func (b *table) attached(cache, worker plan.Owner) *table {
	return b.join(plan.Member{Owner: cache, Endpoint: "tcp://c:1", HasAttached: true, Attached: worker.Worker})
}

func (b *table) event(e events.RouterEvent) *table {
	b.steps = append(b.steps, Step{Kind: Event, Event: e})
	return b
}

// speaker reports the blocks of cache owners.
var speaker = events.Worker{ID: 99}

func (b *table) stores(t events.Tier, o plan.Owner, from, to int) *table {
	by := o.Worker
	if o.Cache {
		by = speaker
	}
	return b.event(b.c.store(t, o, by, from, to))
}

func (b *table) device(o plan.Owner, from, to int) *table {
	return b.stores(events.Device, o, from, to)
}

func (b *table) host(o plan.Owner, from, to int) *table {
	return b.stores(events.HostPinned, o, from, to)
}

func (b *table) evict(t events.Tier, o plan.Owner, from, to int) *table {
	e := events.RouterEvent{Worker: o.Worker, Tier: t, Domain: events.DomainWorker, Op: events.Removed, Hashes: b.c.ext[from:to]}
	if o.Cache {
		e.Worker, e.Domain, e.Owner = speaker, events.DomainCacheOwner, o.Key
	}
	return b.event(e)
}

func (b *table) clear(d events.Domain, worker events.Worker, owner events.OwnerKey) *table {
	return b.event(events.RouterEvent{Worker: worker, Domain: d, Owner: owner, Op: events.Cleared})
}

func (b *table) replay() *table {
	b.steps = append(b.steps, Step{Kind: Replay, Shuffle: 3})
	return b
}

func (b *table) gone(o plan.Owner) *table {
	b.steps = append(b.steps, Step{Kind: Gone, Owner: o})
	return b
}

// hint is an expectation.
func (b *table) hint(target plan.Owner, frontier int, kind plan.Kind, source plan.Owner, end int) Hint {
	return Hint{plan.Choice{Target: target.Worker, Frontier: frontier, Kind: kind, Source: source, End: end}, b.c.ext[:end]}
}

func (b *table) none(target plan.Owner, frontier int) Hint {
	return b.hint(target, frontier, plan.None, plan.Owner{}, 0)
}

// ask asks for the whole chain.
func (b *table) ask(want ...Hint) *table { return b.askFor(b.c.local, want...) }

func (b *table) askFor(local []uint64, want ...Hint) *table {
	b.steps = append(b.steps, Step{Kind: Ask, Prompt: local})
	b.want = append(b.want, want)
	return b
}

// play plays a table on every subject, and compares by the table and, since it is at
// hand, by the oracle.
func (b *table) play(t *testing.T) {
	t.Helper()
	s := Scenario{Steps: b.steps}
	for name, fresh := range subjects {
		asked := 0
		d, _ := Check(s, func() Subject {
			return &watched{fresh(), func(got Reply) {
				want := b.want[asked]
				if what := sameHints(got.Hints, want); what != "" {
					t.Errorf("%s, question %d: %s\n%v", name, asked, what, s)
				}
				if multi := b.multi[asked]; multi != nil && !reflect.DeepEqual(got.Multi, multi) {
					t.Errorf("%s, question %d: several sources\n%+v, want\n%+v\n%v", name, asked, got.Multi, multi, s)
				}
				asked++
			}}
		})
		if d != nil {
			t.Errorf("%s: %v", name, d)
		}
		if asked != len(b.want) && d == nil {
			t.Errorf("%s: %d questions asked, want %d", name, asked, len(b.want))
		}
	}
}

type watched struct {
	Subject
	saw func(Reply)
}

func (s *watched) Ask(local []uint64) Reply {
	r := s.Subject.Ask(local)
	s.saw(r)
	return r
}

const (
	cont = plan.Continuation
	root = plan.RootPrefix
)

// TestBehaviour is the behaviour table of the contract, 4.5: one sub-test a row. The
// table counts blocks from 1 with both ends; here 1-10 is [0,10).
func TestBehaviour(t *testing.T) {
	t.Run("GPU 1-10, B only 11-15", func(t *testing.T) {
		b := newTable(15).targets(w(1)).sources(w(2))
		b.device(w(1), 0, 10).host(w(2), 10, 15)
		b.ask(b.hint(w(1), 10, cont, w(2), 15)).play(t)
	})
	t.Run("host only 1-10, B only 11-15", func(t *testing.T) {
		b := newTable(15).targets(w(1)).sources(w(2))
		b.host(w(1), 0, 10).host(w(2), 10, 15)
		b.ask(b.hint(w(1), 10, cont, w(2), 15)).play(t)
	})
	t.Run("GPU and host together 1-10, B only 11-15", func(t *testing.T) {
		b := newTable(15).targets(w(1)).sources(w(2))
		b.device(w(1), 0, 4).host(w(1), 4, 10).host(w(2), 10, 15)
		b.ask(b.hint(w(1), 10, cont, w(2), 15)).play(t)
	})
	t.Run("nothing local, source holds a root prefix", func(t *testing.T) {
		b := newTable(15).targets(w(1)).sources(w(2))
		b.host(w(2), 0, 12)
		b.ask(b.hint(w(1), 0, root, w(2), 12)).play(t)
	})
	t.Run("nothing local, source holds no root prefix", func(t *testing.T) {
		b := newTable(15).targets(w(1)).sources(w(2))
		b.host(w(2), 1, 15)
		b.ask(b.none(w(1), 0)).play(t)
	})
	t.Run("source vanishes and reappears deeper", func(t *testing.T) {
		b := newTable(20).targets(w(1), w(3)).sources(w(2))
		b.device(w(1), 0, 5).host(w(2), 5, 8).host(w(2), 12, 20)
		b.ask(b.hint(w(1), 5, cont, w(2), 8), b.none(w(3), 0))
		// With another destination that stands in the later part, that one may use
		// it, and still nobody else.
		b.device(w(3), 0, 14)
		b.ask(b.hint(w(1), 5, cont, w(2), 8), b.hint(w(3), 14, cont, w(2), 20)).play(t)
	})
	t.Run("gap: B holds 12-15, F=10", func(t *testing.T) {
		b := newTable(15).targets(w(1)).sources(w(2))
		b.device(w(1), 0, 10).host(w(2), 11, 15)
		b.ask(b.none(w(1), 10)).play(t)
	})
	t.Run("F inside B's interval, if the end is above F", func(t *testing.T) {
		b := newTable(8).targets(w(1), w(2), w(3), w(4)).sources(w(9))
		b.device(w(1), 0, 1).device(w(2), 0, 2).device(w(3), 0, 3).device(w(4), 0, 4)
		b.host(w(9), 2, 4)
		b.ask(b.none(w(1), 1), b.hint(w(2), 2, cont, w(9), 4), b.hint(w(3), 3, cont, w(9), 4), b.none(w(4), 4)).play(t)
	})
	t.Run("two intervals of B with a hole are never bridged", func(t *testing.T) {
		b := newTable(20).targets(w(1), w(3)).sources(w(2))
		b.device(w(1), 0, 5).device(w(3), 0, 11).host(w(2), 5, 10).host(w(2), 11, 20)
		b.ask(b.hint(w(1), 5, cont, w(2), 10), b.hint(w(3), 11, cont, w(2), 20)).play(t)
	})
	t.Run("two sources side by side are not joined", func(t *testing.T) {
		b := newTable(20).targets(w(1)).sources(w(2), w(3))
		b.device(w(1), 0, 5).host(w(2), 5, 10).host(w(3), 10, 20)
		b.ask(b.hint(w(1), 5, cont, w(2), 10)).play(t)
	})
	t.Run("fully local target", func(t *testing.T) {
		b := newTable(10).targets(w(1), w(3), w(4)).sources(w(2))
		b.device(w(1), 0, 10).host(w(3), 0, 10).device(w(4), 0, 5).host(w(4), 5, 10).host(w(2), 0, 10)
		b.ask(b.none(w(1), 10), b.none(w(3), 10), b.none(w(4), 10)).play(t)
	})
	t.Run("source is the target", func(t *testing.T) {
		// It holds more of the chain, but behind a hole.
		b := newTable(10).join(plan.Member{Owner: w(1), Capable: true, Endpoint: "tcp://s:1"})
		b.device(w(1), 0, 5).host(w(1), 6, 10)
		b.ask(b.none(w(1), 5)).play(t)
	})
	t.Run("source is a cache owner attached to the target", func(t *testing.T) {
		b := newTable(10).targets(w(1), w(2)).attached(k(1), w(1))
		b.device(w(1), 0, 5).device(w(2), 0, 5).host(k(1), 5, 10)
		b.ask(b.none(w(1), 5), b.hint(w(2), 5, cont, k(1), 10)).play(t)
	})
	t.Run("source is a cache owner attached to the target, root prefix", func(t *testing.T) {
		b := newTable(10).targets(w(1), w(2)).attached(k(1), w(1))
		b.host(k(1), 0, 10)
		b.ask(b.none(w(1), 0), b.hint(w(2), 0, root, k(1), 10)).play(t)
	})
	t.Run("other worker type", func(t *testing.T) {
		b := newTable(10).targets(w(1)).join(plan.Member{Owner: w(2), Type: "prefill", Endpoint: "tcp://s:1"})
		b.device(w(1), 0, 5).host(w(2), 0, 10)
		b.ask(b.none(w(1), 5))
		b.join(plan.Member{Owner: w(2), Endpoint: "tcp://s:1"})
		b.ask(b.hint(w(1), 5, root, w(2), 10)).play(t)
	})
	t.Run("empty endpoint", func(t *testing.T) {
		b := newTable(10).targets(w(1)).join(plan.Member{Owner: w(2)})
		b.device(w(1), 0, 5).host(w(2), 0, 10)
		b.ask(b.none(w(1), 5)).play(t)
	})
	t.Run("wrong parent", func(t *testing.T) {
		// The blocks are the right ones, but behind another block than the target's.
		b := newTable(10).targets(w(1)).sources(w(2), w(3))
		b.device(w(1), 0, 5).host(w(3), 0, 7)
		e := b.c.store(events.HostPinned, w(2), w(2).Worker, 5, 10)
		e.Parent = 12345
		b.event(e)
		b.ask(b.hint(w(1), 5, root, w(3), 7)).play(t)
	})
	t.Run("conflicting external hash", func(t *testing.T) {
		// w2 has another hash for block 5 than w3, whose mapping was first.
		b := newTable(10).targets(w(1)).sources(w(2), w(3))
		b.device(w(1), 0, 5).host(w(3), 0, 7)
		e := b.c.store(events.HostPinned, w(2), w(2).Worker, 4, 10)
		e.Blocks[1].Hash = 777
		b.event(e)
		b.ask(b.hint(w(1), 5, root, w(3), 7)).play(t)
	})
	t.Run("conflicting external hash on the device", func(t *testing.T) {
		// The chain is the device's; what the host has under another hash is not of
		// it. What was before the conflict is.
		b := newTable(10).targets(w(1), w(4)).sources(w(2), w(3))
		b.device(w(1), 0, 5).device(w(5), 0, 8)
		e := b.c.store(events.HostPinned, w(2), w(2).Worker, 0, 10)
		e.Blocks[6].Hash = 777
		b.event(e).host(w(3), 0, 6)
		b.ask(b.hint(w(1), 5, root, w(2), 6), b.hint(w(4), 0, root, w(2), 6)).play(t)
	})
	t.Run("conflicting external hash of the target", func(t *testing.T) {
		// w1 has blocks 0 to 4 under hashes of its own, which the device's chain, that
		// of w4 and w5, does not go on from.
		b := newTable(10).targets(w(1), w(4)).sources(w(2))
		b.device(w(4), 0, 5).device(w(5), 0, 8)
		e := b.c.store(events.HostPinned, w(1), w(1).Worker, 0, 5)
		for i := range e.Blocks {
			e.Blocks[i].Hash = 700 + uint64(i)
		}
		b.event(e).host(w(2), 5, 8)
		b.ask(b.none(w(1), 5), b.hint(w(4), 5, cont, w(2), 8))
		// The whole chain from the root on it may have.
		b.join(plan.Member{Owner: w(5), Endpoint: "tcp://s:1"})
		b.ask(b.hint(w(1), 5, root, w(5), 8), b.hint(w(4), 5, root, w(5), 8)).play(t)
	})
	t.Run("local detached L2 beyond a hole", func(t *testing.T) {
		b := newTable(40).targets(w(1)).sources(w(2))
		b.host(w(1), 0, 10).host(w(1), 19, 30).host(w(2), 10, 19)
		b.ask(b.hint(w(1), 10, cont, w(2), 19)).play(t)
	})
	t.Run("stale local prefix at fetch time", func(t *testing.T) {
		// The hint names what is local too, so that a receiver that has lost some of
		// it meanwhile asks for it and recomputes what the source lacks.
		b := newTable(15).targets(w(1)).sources(w(2))
		b.device(w(1), 0, 10).host(w(2), 8, 15)
		b.ask(b.hint(w(1), 10, cont, w(2), 15))
		b.evict(events.Device, w(1), 9, 10)
		b.ask(b.hint(w(1), 9, cont, w(2), 15))
		b.evict(events.Device, w(1), 5, 9)
		b.ask(b.none(w(1), 5)).play(t)
	})
	t.Run("eviction", func(t *testing.T) {
		b := newTable(15).targets(w(1)).sources(w(2))
		b.device(w(1), 0, 10).host(w(2), 10, 15)
		b.evict(events.HostPinned, w(2), 12, 13)
		b.ask(b.hint(w(1), 10, cont, w(2), 12))
		b.evict(events.HostPinned, w(2), 10, 11)
		b.ask(b.none(w(1), 10))
		b.host(w(2), 10, 13)
		b.ask(b.hint(w(1), 10, cont, w(2), 15)).play(t)
	})
	t.Run("dump and replay", func(t *testing.T) {
		b := newTable(15).targets(w(1)).sources(w(2), k(1))
		b.device(w(1), 0, 10).host(w(2), 10, 14).host(k(1), 10, 15).stores(events.Disk, w(2), 3, 9).stores(events.External, k(1), 0, 15)
		b.ask(b.hint(w(1), 10, cont, k(1), 15))
		b.replay()
		b.ask(b.hint(w(1), 10, cont, k(1), 15))
		b.clear(events.DomainLegacy, speaker, events.OwnerKey{})
		b.ask(b.hint(w(1), 10, cont, w(2), 14)).play(t)
	})
	t.Run("owner removal", func(t *testing.T) {
		b := newTable(15).targets(w(1)).sources(w(2), k(1))
		b.device(w(1), 0, 10).host(w(2), 10, 14).host(k(1), 10, 15)
		b.gone(k(1))
		b.ask(b.hint(w(1), 10, cont, w(2), 14))
		b.gone(w(2))
		b.ask(b.none(w(1), 10))
		b.gone(w(1)).host(w(2), 0, 3)
		b.ask(b.hint(w(1), 0, root, w(2), 3)).play(t)
	})
	t.Run("an edge's owners grow and shrink", func(t *testing.T) {
		owners := []plan.Owner{w(2), k(3), w(3), k(1), rank(2, 1), k(2), w(4)}
		b := newTable(15).targets(w(1)).sources(owners...)
		b.device(w(1), 0, 10)
		smallest := func(of []plan.Owner) plan.Owner { return slices.MinFunc(of, compareOwners) }
		for i, o := range owners {
			b.host(o, 10, 15)
			b.ask(b.hint(w(1), 10, cont, smallest(owners[:i+1]), 15)).replay()
		}
		for i, o := range owners[:len(owners)-1] {
			b.evict(events.HostPinned, o, 10, 15)
			b.ask(b.hint(w(1), 10, cont, smallest(owners[i+1:]), 15)).replay()
		}
		b.evict(events.HostPinned, w(4), 10, 15)
		b.ask(b.none(w(1), 10)).play(t)
	})
}
