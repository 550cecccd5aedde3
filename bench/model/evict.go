package model

import (
	"fmt"

	"github.com/kvcr-go/kvcr/shard/evict"
)

// Evict drives a policy of shard/evict as a shard does: room is made before a
// run is inserted, hits are ticks only, and the blocks of a request are busy.
type Evict struct {
	Policy string // a name of evict.Names
	Seed   uint64 // of the sampling hash

	// Late puts deposits a request's length after its hits in time, as in an
	// engine that computes what it missed; otherwise both have the same tick.
	Late bool
	// Check verifies the policy after every Check-th request; 0 never.
	Check int

	policy   evict.Policy
	capacity int
	slot     []evict.ID // by block, 0 if not resident
	block    []uint32   // by slot
	last     []uint32   // by slot
	busy     []uint32   // by slot: request in progress when equal to stamp
	free     []evict.ID
	stamp    uint32
	now      uint32
	requests int
	run      []evict.Insert
}

func (e *Evict) Last(id evict.ID) uint32       { return e.last[id] }
func (e *Evict) SetLast(id evict.ID, t uint32) { e.last[id] = t }
func (e *Evict) Busy(id evict.ID) bool         { return e.busy[id] == e.stamp }
func (e *Evict) Hash(id evict.ID) uint64       { return hash(e.block[id]) }

func hash(block uint32) uint64 {
	x := uint64(block) + 0x9e3779b97f4a7c15
	x = (x ^ x>>32) * 0xd6e8feb86659fd93
	x = (x ^ x>>32) * 0xd6e8feb86659fd93
	return x ^ x>>32
}

func (e *Evict) Start(capacity, unique int) {
	*e = Evict{
		Policy: e.Policy, Seed: e.Seed, Late: e.Late, Check: e.Check,
		capacity: capacity,
		slot:     make([]evict.ID, unique),
		block:    make([]uint32, capacity+1),
		last:     make([]uint32, capacity+1),
		busy:     make([]uint32, capacity+1),
	}
	p, err := evict.New(e.Policy, make([]evict.Node, capacity+1), e, e.Seed)
	if err != nil {
		panic(err) // the caller names a policy of evict.Names
	}
	e.policy = p
	for id := capacity; id > 0; id-- {
		e.free = append(e.free, evict.ID(id))
	}
}

func (e *Evict) Resident(id uint32) bool { return e.slot[id] != 0 }

// Request takes ids[hits:] as one deposit. Of those, only unchained policies can
// hold some; they count as touched.
func (e *Evict) Request(ids []uint32, hits int) {
	e.stamp++
	missing := 0
	for _, id := range ids {
		if s := e.slot[id]; s != 0 {
			e.busy[s] = e.stamp
			e.last[s] = e.now
		} else {
			missing++
		}
	}
	if e.Late {
		e.now += uint32(len(ids))
	}
	for len(e.free) < missing {
		v := e.policy.Victim(e.now)
		if v == 0 || e.Busy(v) {
			panic(fmt.Sprintf("model: %s gives victim %d with %d of %d free", e.Policy, v, len(e.free), missing))
		}
		if e.policy.Decide(v) != evict.Drop {
			continue
		}
		e.policy.Remove(v, evict.Evicted, e.now)
		e.slot[e.block[v]] = 0
		e.free = append(e.free, v)
	}
	e.run = e.run[:0]
	var parent evict.ID
	for i, id := range ids {
		if e.slot[id] != 0 {
			e.flush()
			parent = e.slot[id]
			continue
		}
		s := e.free[len(e.free)-1]
		e.free = e.free[:len(e.free)-1]
		e.slot[id], e.block[s] = s, id
		e.busy[s] = e.stamp
		in := evict.Insert{ID: s, Hash: hash(id), Parent: parent, ChainLen: uint32(len(ids))}
		in.Tail = i > 0 && i == len(ids)-1
		e.run = append(e.run, in)
		parent = s
	}
	e.flush()
	if !e.Late {
		e.now += uint32(len(ids))
	}
	e.now += uint32(missing)
	if e.requests++; e.Check > 0 && e.requests%e.Check == 0 {
		if err := e.policy.Check(); err != nil {
			panic(fmt.Sprintf("model: after request %d: %v", e.requests, err))
		}
	}
}

func (e *Evict) flush() {
	if len(e.run) > 0 {
		e.policy.Insert(e.run, e.now)
		e.run = e.run[:0]
	}
}
