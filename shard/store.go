package shard

import (
	"slices"
	"sync/atomic"

	"github.com/kvcr-go/kvcr/arena"
)

// Shape says what memory a block needs: the pools of a layout, or Size bytes
// of size classes. With a one-piece layout Size is the length within the slot.
type Shape struct {
	Size   int
	Layout uint16
}

// store is the payload memory of a shard. Token holder only.
type store struct {
	pools   []*arena.Slots
	bases   []arena.Off
	classes *arena.Classes
	size    int64
}

func newStore(c *Config, table arena.Off) store {
	st := store{size: c.PayloadBytes}
	if len(c.Pools) == 0 {
		st.classes = arena.NewClasses(c.Payload, c.PayloadOff, c.PayloadBytes, c.Meta, table, c.MaxValue)
		return st
	}
	at := c.PayloadOff
	for _, p := range c.Pools {
		st.pools = append(st.pools, arena.NewSlots(c.Payload, at, p.SlotBytes, p.Slots))
		st.bases = append(st.bases, at)
		at += arena.Off(int64(p.SlotBytes) * int64(p.Slots))
	}
	return st
}

// smallValue is the largest value that shares a slab with others in
// arena.Classes; larger ones take pages of their own.
const smallValue = 2 << 10

// loosePool marks a small value that takes a page of its own.
const loosePool = 1

// room is what a value of n bytes asks of the size classes.
func room(pool, n int) int {
	if pool == loosePool {
		return max(n, smallValue+1)
	}
	return max(n, 1)
}

// alloc takes a slot of a pool, or n bytes of the size classes.
func (st *store) alloc(pool, n int, owner uint32) (arena.Off, bool) {
	if st.classes != nil {
		return st.classes.Alloc(room(pool, n), owner)
	}
	slot, ok := st.pools[pool].Alloc()
	if !ok {
		return 0, false
	}
	return st.pools[pool].Off(slot), true
}

func (st *store) release(pool int, off arena.Off, n int) {
	if st.classes != nil {
		st.classes.Free(off, room(pool, n))
		return
	}
	p := st.pools[pool]
	p.Free(uint32(uint64(off-st.bases[pool]) / uint64(p.SlotBytes())))
}

func (st *store) free() []int64 {
	if st.classes != nil {
		return []int64{st.classes.FreeBytes()}
	}
	out := make([]int64, len(st.pools))
	for i, p := range st.pools {
		out[i] = int64(p.FreeCount()) * int64(p.SlotBytes())
	}
	return out
}

// pieceLen is the length of the i-th piece of a block of several: whole slots.
func (st *store) slotBytes(pool int) int { return st.pools[pool].SlotBytes() }

// layouts are the piece lists that deposits have named, numbered: what a
// command carries instead of a list. They are few and never removed.
//
// The token holder adds lists; anybody reads, also outside the token. A list and
// the table that names it never change: a longer table takes its place.
type layouts struct{ table atomic.Pointer[[][]uint8] }

// maxLayouts bounds the table; an engine uses a handful.
const maxLayouts = 1024

func (l *layouts) lists() [][]uint8 {
	if t := l.table.Load(); t != nil {
		return *t
	}
	return nil
}

func (l *layouts) get(n uint16) ([]uint8, bool) {
	lists := l.lists()
	if int(n) >= len(lists) {
		return nil, false
	}
	return lists[n], true
}

// find returns the number of a list that has been added.
func (l *layouts) find(pools []uint8) (uint16, bool) {
	for i, have := range l.lists() {
		if string(have) == string(pools) {
			return uint16(i), true
		}
	}
	return 0, false
}

func (l *layouts) add(pools []uint8) (uint16, bool) {
	if n, ok := l.find(pools); ok {
		return n, true
	}
	old := l.lists()
	if len(old) == maxLayouts {
		return 0, false
	}
	longer := append(slices.Clip(old), slices.Clone(pools))
	l.table.Store(&longer)
	return uint16(len(old)), true
}

// Layout returns the number of a piece list, for Shape. It fails when a pool
// does not exist or the table is full.
func (s *Shard) Layout(pools []uint8) (n uint16, ok bool) {
	if len(pools) == 0 || len(pools) > MaxPieces {
		return 0, false
	}
	for _, p := range pools {
		if int(p) >= len(s.store.pools) {
			return 0, false
		}
	}
	s.Do(func() { n, ok = s.layouts.add(pools) })
	return n, ok
}
