package oracle

import (
	"math"
	"testing"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

// TestEligible is section 4.2 of the contract.
func TestEligible(t *testing.T) {
	t.Run("depth equal to F is not enough", func(t *testing.T) {
		b := newTable(10).targets(w(1)).sources(w(2))
		b.device(w(1), 0, 5).host(w(2), 0, 5)
		b.ask(b.none(w(1), 5))
		b.host(w(2), 5, 6)
		b.ask(b.hint(w(1), 5, root, w(2), 6)).play(t)
	})
	t.Run("ties: worker id, then rank, then cache owners by key", func(t *testing.T) {
		order := []plan.Owner{w(2), rank(2, 3), w(3), w(math.MaxUint64), cacheOwner(events.OwnerKey{15: 9}), k(1), k(200)}
		b := newTable(10).targets(w(1)).sources(order...)
		for i := len(order) - 1; i >= 0; i-- {
			b.host(order[i], 0, 10)
			b.ask(b.hint(w(1), 0, root, order[i], 10))
		}
		b.play(t)
	})
	t.Run("a source that is deeper wins over a smaller one", func(t *testing.T) {
		b := newTable(10).targets(w(1)).sources(w(2), w(3), k(1))
		b.host(w(2), 0, 7).host(w(3), 0, 8).host(k(1), 0, 9)
		b.ask(b.hint(w(1), 0, root, k(1), 9)).play(t)
	})
	t.Run("a device prefix counts for a source", func(t *testing.T) {
		b := newTable(10).targets(w(1)).sources(w(2))
		b.device(w(2), 0, 4).host(w(2), 4, 6)
		b.ask(b.hint(w(1), 0, root, w(2), 6)).play(t)
	})
	t.Run("disk and external do not", func(t *testing.T) {
		b := newTable(10).targets(w(1)).sources(w(2), w(3))
		b.device(w(1), 0, 2).stores(events.Disk, w(1), 2, 5)
		b.stores(events.Disk, w(2), 0, 10).stores(events.External, w(3), 0, 10)
		b.ask(b.none(w(1), 2)).play(t)
	})
	t.Run("who is not known is no source and no target", func(t *testing.T) {
		b := newTable(10).targets(w(1))
		b.host(w(2), 0, 10).host(k(1), 0, 10).device(w(3), 0, 5)
		b.ask(b.none(w(1), 0)).play(t)
	})
	t.Run("who is not capable is no target, but a source", func(t *testing.T) {
		b := newTable(10).targets(w(1)).join(plan.Member{Owner: w(2), Endpoint: "tcp://s:1"})
		b.host(w(2), 0, 10)
		b.ask(b.hint(w(1), 0, root, w(2), 10)).play(t)
	})
	t.Run("another rank of the target's worker is another worker", func(t *testing.T) {
		b := newTable(10).targets(w(1)).sources(rank(1, 1))
		b.host(rank(1, 1), 0, 10)
		b.ask(b.hint(w(1), 0, root, rank(1, 1), 10)).play(t)
	})
	t.Run("a cache owner attached to another rank is no own one", func(t *testing.T) {
		b := newTable(10).targets(w(1)).attached(k(1), rank(1, 1))
		b.host(k(1), 0, 10)
		b.ask(b.hint(w(1), 0, root, k(1), 10)).play(t)
	})
	t.Run("Attached says nothing without HasAttached", func(t *testing.T) {
		b := newTable(10).targets(w(1)).join(plan.Member{Owner: k(1), Endpoint: "tcp://c:1", Attached: w(1).Worker})
		b.host(k(1), 0, 10)
		b.ask(b.hint(w(1), 0, root, k(1), 10)).play(t)
	})
	t.Run("a cache owner is not reached through the worker it is attached to", func(t *testing.T) {
		// Its own endpoint, type and blocks count, not the worker's.
		b := newTable(10).targets(w(1)).sources(w(2)).join(plan.Member{Owner: k(1), HasAttached: true, Attached: w(2).Worker})
		b.host(k(1), 0, 10)
		b.ask(b.none(w(1), 0)).play(t)
	})
	t.Run("what an attached cache owner holds is not the target's own", func(t *testing.T) {
		b := newTable(10).targets(w(1)).attached(k(1), w(1)).sources(w(2))
		b.device(w(1), 0, 3).host(k(1), 3, 8).host(w(2), 3, 6)
		b.ask(b.hint(w(1), 3, cont, w(2), 6)).play(t)
	})
	t.Run("types: agg is aggregated, an unknown one is none", func(t *testing.T) {
		b := newTable(10)
		b.join(plan.Member{Owner: w(1), Capable: true, Type: "agg"}).join(plan.Member{Owner: w(3), Capable: true, Type: "odd"})
		b.join(plan.Member{Owner: w(2), Endpoint: "tcp://s:1"}).join(plan.Member{Owner: w(4), Endpoint: "tcp://s:1", Type: "odd"})
		b.host(w(2), 0, 7).host(w(4), 0, 10)
		b.ask(b.hint(w(1), 0, root, w(2), 7), b.none(w(3), 0)).play(t)
	})
	t.Run("every type has its own sources", func(t *testing.T) {
		b := newTable(12)
		for i, kind := range []string{"aggregated", "prefill", "decode"} {
			i := uint64(i)
			b.join(plan.Member{Owner: w(1 + i), Capable: true, Type: kind}).join(plan.Member{Owner: w(11 + i), Endpoint: "tcp://s:1", Type: kind})
			b.device(w(1+i), 0, 4).host(w(11+i), 4, 8+int(i))
		}
		b.ask(b.hint(w(1), 4, cont, w(11), 8), b.hint(w(2), 4, cont, w(12), 9), b.hint(w(3), 4, cont, w(13), 10)).play(t)
	})
	t.Run("the topology of the question counts", func(t *testing.T) {
		b := newTable(10).targets(w(1)).sources(w(2))
		b.device(w(1), 0, 5).host(w(2), 5, 10)
		b.ask(b.hint(w(1), 5, cont, w(2), 10))
		b.join(plan.Member{Owner: w(2)})
		b.ask(b.none(w(1), 5))
		b.join(plan.Member{Owner: w(2), Endpoint: "tcp://s:2"})
		b.ask(b.hint(w(1), 5, cont, w(2), 10))
		b.join(plan.Member{Owner: w(1)})
		b.ask().play(t)
	})
}

// TestRanking is rules 7 to 9 of section 4.3.
func TestRanking(t *testing.T) {
	t.Run("a deeper continuation wins over a root prefix", func(t *testing.T) {
		b := newTable(10).targets(w(1)).sources(w(2), w(3))
		b.device(w(1), 0, 5).host(w(2), 0, 8).host(w(3), 5, 9)
		b.ask(b.hint(w(1), 5, cont, w(3), 9)).play(t)
	})
	t.Run("a deeper root prefix wins over a continuation", func(t *testing.T) {
		b := newTable(10).targets(w(1)).sources(w(2), w(3))
		b.device(w(1), 0, 5).host(w(3), 0, 9).host(w(2), 5, 8)
		b.ask(b.hint(w(1), 5, root, w(3), 9)).play(t)
	})
	t.Run("equal ends: the root prefix, though its source is larger", func(t *testing.T) {
		b := newTable(10).targets(w(1)).sources(w(2), w(3), k(1))
		b.device(w(1), 0, 5).host(k(1), 0, 9).host(w(2), 5, 9).host(w(3), 5, 9)
		b.ask(b.hint(w(1), 5, root, k(1), 9)).play(t)
	})
	t.Run("equal continuations: the smallest source", func(t *testing.T) {
		b := newTable(10).targets(w(1)).sources(w(2), w(3), k(1))
		b.device(w(1), 0, 5).host(k(1), 5, 9).host(w(3), 4, 9).host(w(2), 3, 9)
		b.ask(b.hint(w(1), 5, cont, w(2), 9)).play(t)
	})
	t.Run("a source from a lower frontier on", func(t *testing.T) {
		b := newTable(20).targets(w(1), w(2), w(3)).sources(w(8), w(9))
		b.device(w(1), 0, 4).device(w(2), 0, 8).host(w(3), 0, 12).host(w(8), 4, 14).host(w(9), 8, 20)
		b.ask(b.hint(w(1), 4, cont, w(8), 14), b.hint(w(2), 8, cont, w(9), 20), b.hint(w(3), 12, cont, w(9), 20)).play(t)
	})
	t.Run("the best from below may have ended", func(t *testing.T) {
		b := newTable(20).targets(w(1), w(2)).sources(w(8), w(9))
		b.device(w(1), 0, 4).device(w(2), 0, 8).host(w(8), 4, 8).host(w(9), 8, 9)
		b.ask(b.hint(w(1), 4, cont, w(8), 8), b.hint(w(2), 8, cont, w(9), 9)).play(t)
	})
	t.Run("the two best are both excluded", func(t *testing.T) {
		// Both caches are attached to the target: they are one identity.
		b := newTable(20).targets(w(1), w(2)).attached(k(1), w(1)).attached(k(2), w(1)).attached(k(3), w(1)).sources(w(9))
		b.device(w(1), 0, 5).device(w(2), 0, 5).host(k(1), 5, 20).host(k(2), 5, 19).host(k(3), 5, 18).host(w(9), 5, 10)
		b.ask(b.hint(w(1), 5, cont, w(9), 10), b.hint(w(2), 5, cont, k(1), 20)).play(t)
	})
	t.Run("the two best are both excluded, root prefixes", func(t *testing.T) {
		b := newTable(20).targets(w(1), w(2)).attached(k(1), w(1)).attached(k(2), w(1)).sources(w(9))
		b.host(k(1), 0, 20).host(k(2), 0, 19).host(w(9), 0, 10)
		b.ask(b.hint(w(1), 0, root, w(9), 10), b.hint(w(2), 0, root, k(1), 20)).play(t)
	})
	t.Run("a worker and its cache owner are one identity", func(t *testing.T) {
		// w1 would be its own best source, and k1 the second; w1 holds the later
		// part of the chain behind a hole, where w2 stands.
		b := newTable(20)
		b.join(plan.Member{Owner: w(1), Capable: true, Endpoint: "tcp://s:1"}).targets(w(2)).attached(k(1), w(1)).sources(w(9))
		b.device(w(1), 0, 6).host(w(1), 8, 20).host(k(1), 6, 19).host(w(9), 6, 10).device(w(2), 0, 9)
		b.ask(b.hint(w(1), 6, cont, w(9), 10), b.hint(w(2), 9, cont, w(1), 20)).play(t)
	})
	t.Run("an unattached cache owner is nobody's", func(t *testing.T) {
		b := newTable(20).targets(w(0), w(1)).sources(k(1), k(2))
		b.device(w(0), 0, 5).device(w(1), 0, 5).host(k(1), 5, 20).host(k(2), 5, 20)
		b.ask(b.hint(w(0), 5, cont, k(1), 20), b.hint(w(1), 5, cont, k(1), 20)).play(t)
	})
	t.Run("the best of another type hides nobody", func(t *testing.T) {
		b := newTable(20).targets(w(1)).join(plan.Member{Owner: w(2), Capable: true, Type: "decode"})
		b.join(plan.Member{Owner: w(7), Endpoint: "tcp://s:1", Type: "decode"}).join(plan.Member{Owner: w(8), Endpoint: "tcp://s:1", Type: "decode"}).sources(w(9))
		b.device(w(1), 0, 5).device(w(2), 0, 5).host(w(7), 5, 20).host(w(8), 5, 20).host(w(9), 5, 7)
		b.ask(b.hint(w(1), 5, cont, w(9), 7), b.hint(w(2), 5, cont, w(7), 20)).play(t)
	})
	t.Run("targets of one type, frontier opened by another's", func(t *testing.T) {
		// w2 stands at 5 and cannot use w9; w1 stands at 8 and can.
		b := newTable(20).targets(w(1)).join(plan.Member{Owner: w(2), Capable: true, Type: "decode"}).sources(w(9))
		b.device(w(2), 0, 5).device(w(1), 0, 8).host(w(9), 5, 12)
		b.ask(b.hint(w(1), 8, cont, w(9), 12), b.none(w(2), 5)).play(t)
	})
	t.Run("all cold: root prefixes only", func(t *testing.T) {
		b := newTable(10).targets(w(1), w(2)).sources(w(8), w(9))
		b.host(w(8), 0, 3).host(w(9), 1, 10)
		b.ask(b.hint(w(1), 0, root, w(8), 3), b.hint(w(2), 0, root, w(8), 3)).play(t)
	})
	t.Run("a target is a source for others", func(t *testing.T) {
		b := newTable(10)
		b.join(plan.Member{Owner: w(1), Capable: true, Endpoint: "tcp://s:1"}).join(plan.Member{Owner: w(2), Capable: true, Endpoint: "tcp://s:2"})
		b.device(w(1), 0, 4).host(w(1), 4, 6).host(w(2), 0, 2).host(w(2), 6, 9)
		b.ask(b.hint(w(1), 6, cont, w(2), 9), b.hint(w(2), 2, root, w(1), 6)).play(t)
	})
}

// TestIndexing is sections 2.3 and 4.1: what events leave behind.
func TestIndexing(t *testing.T) {
	t.Run("the first mapping wins, the rest of the store is dropped, until it goes", func(t *testing.T) {
		b := newTable(6).targets(w(1)).sources(w(2), w(3))
		odd := b.c.store(events.HostPinned, w(3), w(3).Worker, 0, 6)
		odd.Blocks[2].Hash = 777
		b.host(w(2), 0, 3).event(odd)
		b.ask(b.hint(w(1), 0, root, w(2), 3))
		// Nobody has block 2 now: the other mapping may come. What follows it in the
		// event follows it.
		b.evict(events.HostPinned, w(2), 2, 3).event(odd)
		h := b.hint(w(1), 0, root, w(3), 6)
		h.Hashes = []uint64{b.c.ext[0], b.c.ext[1], 777, b.c.ext[3], b.c.ext[4], b.c.ext[5]}
		b.ask(h)
		b.host(w(2), 0, 6) // now this one stops at block 2
		b.ask(h)
		b.gone(w(3))
		b.ask(b.hint(w(1), 0, root, w(2), 2)).play(t)
	})
	t.Run("an owner has a hash in one place", func(t *testing.T) {
		b := newTable(6).targets(w(1)).sources(w(2), w(3))
		b.host(w(2), 0, 2)
		again := b.c.store(events.HostPinned, w(2), w(2).Worker, 1, 6)
		again.Parent = 4242 // block 1 is behind block 0 already
		b.event(again)
		b.ask(b.hint(w(1), 0, root, w(2), 2))
		b.host(w(2), 2, 4) // not lost by it
		b.ask(b.hint(w(1), 0, root, w(2), 4))
		// Another owner may have it elsewhere, another tier too.
		again.Worker = w(3).Worker
		b.event(again)
		again.Worker, again.Tier = w(2).Worker, events.Device
		b.event(again)
		b.ask(b.hint(w(1), 0, root, w(2), 4)).play(t)
	})
	t.Run("storing twice is storing once", func(t *testing.T) {
		b := newTable(6).targets(w(1)).sources(w(2))
		b.host(w(2), 0, 4).host(w(2), 0, 4).host(w(2), 2, 5)
		b.evict(events.HostPinned, w(2), 3, 4)
		b.ask(b.hint(w(1), 0, root, w(2), 3)).play(t)
	})
	t.Run("stores in any order", func(t *testing.T) {
		b := newTable(6).targets(w(1)).sources(w(2))
		for _, i := range []int{4, 1, 0, 5, 3} {
			b.host(w(2), i, i+1)
		}
		b.ask(b.hint(w(1), 0, root, w(2), 2)).host(w(2), 2, 3)
		b.ask(b.hint(w(1), 0, root, w(2), 6)).play(t)
	})
	t.Run("the device too takes blocks in any order", func(t *testing.T) {
		b := newTable(6).targets(w(1)).sources(w(2))
		b.device(w(1), 2, 4)
		b.ask(b.none(w(1), 0)).device(w(1), 0, 2)
		b.ask(b.none(w(1), 4)).evict(events.Device, w(1), 1, 2)
		b.ask(b.none(w(1), 1)).device(w(1), 1, 2)
		b.ask(b.none(w(1), 4)).play(t)
	})
	t.Run("a removal is of one tier", func(t *testing.T) {
		b := newTable(6).targets(w(1)).sources(w(2))
		b.device(w(1), 0, 3).host(w(1), 0, 6).stores(events.Disk, w(1), 0, 6)
		b.evict(events.Disk, w(1), 0, 6)
		b.ask(b.none(w(1), 6)).evict(events.Device, w(1), 0, 3)
		b.ask(b.none(w(1), 6)).evict(events.HostPinned, w(1), 3, 4)
		b.ask(b.none(w(1), 3)).play(t)
	})
	t.Run("removing what is not there", func(t *testing.T) {
		b := newTable(6).targets(w(1)).sources(w(2))
		b.evict(events.HostPinned, w(2), 0, 6).host(w(2), 0, 3).evict(events.HostPinned, w(3), 0, 6).evict(events.HostPinned, w(2), 3, 6)
		b.ask(b.hint(w(1), 0, root, w(2), 3)).play(t)
	})
	t.Run("clears: all tiers, and the domain's own", func(t *testing.T) {
		b := newTable(6).targets(w(1)).sources(w(2), k(1), k(2))
		all := func() {
			b.device(w(2), 0, 2).host(w(2), 2, 6).host(k(1), 0, 5)
			b.event(b.c.store(events.HostPinned, k(2), w(2).Worker, 0, 4))
		}
		all()
		b.clear(events.DomainWorker, w(2).Worker, events.OwnerKey{})
		b.ask(b.hint(w(1), 0, root, k(1), 5))
		all()
		b.clear(events.DomainCacheOwner, speaker, k(1).Key)
		b.ask(b.hint(w(1), 0, root, w(2), 6))
		b.clear(events.DomainWorker, w(2).Worker, events.OwnerKey{})
		b.ask(b.hint(w(1), 0, root, k(2), 4))
		all()
		b.clear(events.DomainLegacy, w(2).Worker, events.OwnerKey{}) // w2 speaks for k2
		b.ask(b.hint(w(1), 0, root, k(1), 5))
		all()
		b.clear(events.DomainLegacy, speaker, events.OwnerKey{})
		b.ask(b.hint(w(1), 0, root, w(2), 6))
		b.clear(events.DomainLegacy, w(2).Worker, events.OwnerKey{})
		b.ask(b.none(w(1), 0)).play(t)
	})
	t.Run("a clear of another rank", func(t *testing.T) {
		b := newTable(6).targets(w(1)).sources(w(2))
		b.host(w(2), 0, 6).clear(events.DomainLegacy, rank(2, 1).Worker, events.OwnerKey{})
		b.ask(b.hint(w(1), 0, root, w(2), 6)).play(t)
	})
	t.Run("cache owners have no device tier", func(t *testing.T) {
		b := newTable(6).targets(w(1)).sources(k(1))
		b.device(k(1), 0, 6)
		b.ask(b.none(w(1), 0))
		b.host(k(1), 0, 6).evict(events.Device, k(1), 0, 6)
		b.ask(b.hint(w(1), 0, root, k(1), 6)).play(t)
	})
	t.Run("hashes 0 and the largest are like others", func(t *testing.T) {
		b := newTable(4).targets(w(1)).sources(w(2))
		b.c.local = []uint64{0, math.MaxUint64, 0, 0}
		b.c.ext = []uint64{math.MaxUint64, 0, 1, 2}
		b.device(w(1), 0, 2).host(w(2), 2, 4)
		b.ask(b.hint(w(1), 2, cont, w(2), 4))
		b.host(w(2), 0, 1)
		b.ask(b.hint(w(1), 2, cont, w(2), 4)).evict(events.Device, w(1), 1, 2)
		b.ask(b.none(w(1), 1)).play(t)
	})
	t.Run("one prompt is longer, one shorter, one another's", func(t *testing.T) {
		b := newTable(8).targets(w(1)).sources(w(2))
		b.device(w(1), 0, 3).host(w(2), 3, 8)
		b.askFor(append(append([]uint64{}, b.c.local...), 1, 2, 3), b.hint(w(1), 3, cont, w(2), 8))
		b.askFor(b.c.local[:5], b.hint(w(1), 3, cont, w(2), 5))
		b.askFor(b.c.local[:3], b.none(w(1), 3))
		b.askFor(b.c.local[:2], b.none(w(1), 2))
		b.askFor(nil, b.none(w(1), 0))
		b.askFor([]uint64{1, 2, 3}, b.none(w(1), 0))
		b.askFor(append(append([]uint64{}, b.c.local[:4]...), 1, 2), b.hint(w(1), 3, cont, w(2), 4)).play(t)
	})
	t.Run("copies that are not whole, and return", func(t *testing.T) {
		b := newTable(12).targets(w(1)).sources(w(2), w(3))
		b.device(w(1), 0, 4).host(w(2), 4, 12).host(w(3), 4, 9)
		b.ask(b.hint(w(1), 4, cont, w(2), 12))
		b.evict(events.HostPinned, w(2), 6, 7)
		b.ask(b.hint(w(1), 4, cont, w(3), 9))
		b.evict(events.HostPinned, w(3), 4, 5)
		b.ask(b.hint(w(1), 4, cont, w(2), 6))
		b.clear(events.DomainWorker, w(2).Worker, events.OwnerKey{})
		b.ask(b.none(w(1), 4)).host(w(3), 4, 5)
		b.ask(b.hint(w(1), 4, cont, w(3), 9)).host(w(2), 4, 12)
		b.ask(b.hint(w(1), 4, cont, w(2), 12)).play(t)
	})
	t.Run("two prompts that share a prefix", func(t *testing.T) {
		b := newTable(10).targets(w(1)).sources(w(2), w(3))
		other := chain{append(append([]uint64{}, b.c.local[:5]...), 71, 72, 73), append(append([]uint64{}, b.c.ext[:5]...), 81, 82, 83)}
		b.device(w(1), 0, 5).host(w(2), 5, 10).event(other.store(events.HostPinned, w(3), w(3).Worker, 5, 8))
		b.ask(b.hint(w(1), 5, cont, w(2), 10))
		b.askFor(other.local, Hint{plan.Choice{Target: w(1).Worker, Frontier: 5, Kind: cont, Source: w(3), End: 8}, other.ext})
		b.play(t)
	})
	t.Run("the same local hash at many places", func(t *testing.T) {
		b := newTable(8).targets(w(1)).sources(w(2))
		for i := range b.c.local {
			b.c.local[i] = 5
		}
		b.device(w(1), 0, 3).host(w(2), 3, 6)
		b.ask(b.hint(w(1), 3, cont, w(2), 6)).play(t)
	})
}
