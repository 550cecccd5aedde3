package oracle

import (
	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

// chain is a sequence of blocks by both of its hashes.
type chain struct{ local, ext []uint64 }

// newChain makes n blocks whose hashes depend on seed and on what comes before.
func newChain(seed uint64, n int) chain {
	c := chain{make([]uint64, n), make([]uint64, n)}
	var parent uint64
	for i := range n {
		c.local[i] = mix(seed + uint64(i)*0x9e3779b97f4a7c15)
		c.ext[i] = mix(parent ^ mix(c.local[i]^1))
		parent = c.ext[i]
	}
	return c
}

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// store is the event with which speaker says that o has blocks from..to.
func (c chain) store(tier events.Tier, o plan.Owner, speaker events.Worker, from, to int) events.RouterEvent {
	e := events.RouterEvent{Worker: speaker, Tier: tier, Domain: events.DomainWorker, Op: events.Stored}
	if o.Cache {
		e.Domain, e.Owner = events.DomainCacheOwner, o.Key
	}
	if from > 0 {
		e.HasParent, e.Parent = true, c.ext[from-1]
	}
	for i := from; i < to; i++ {
		e.Blocks = append(e.Blocks, events.Block{Hash: c.ext[i], Local: c.local[i]})
	}
	return e
}
