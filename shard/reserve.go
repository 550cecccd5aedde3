package shard

import (
	"github.com/kvcr-go/kvcr/arena"
	"github.com/kvcr-go/kvcr/internal/own"
	"github.com/kvcr-go/kvcr/shard/evict"
)

// This file gives out memory: records in state FILLING, with their pieces, and
// takes it back. Token holder only.

const (
	// maxVictims bounds the evictions of one reservation. Single victims make
	// room for equal values at once; the rest is for windows (below).
	maxVictims = 256
	// singleVictims is how many victims leave one by one before a whole window
	// of memory is emptied, and between two tries at that: the policy's own
	// order is better as long as it frees what is needed.
	singleVictims = 8
)

// reserve returns a FILLING record with memory for the shape, and makes it known
// when there is none.
func (s *Shard) reserve(sh Shape, keyLen int) (uint32, Reason) {
	id, why := s.find(sh, keyLen)
	if why == Capacity {
		own.Add64(&s.stats.Refused, 1)
		if s.inMagazines.Load() > 0 {
			s.recalls.Add(1)
		}
	}
	if why != Layout {
		s.pressure(why == Capacity)
	}
	return id, why
}

// find is reserve without the noise: for magazines, which ask for more than
// anybody needs now.
func (s *Shard) find(sh Shape, keyLen int) (uint32, Reason) {
	pools, ok := s.layouts.get(sh.Layout)
	if !ok {
		return 0, Layout
	}
	s.looks = windowLooks
	for victims := 0; ; {
		id, lacks := s.tryReserve(pools, sh.Size, keyLen)
		if id != 0 {
			return id, OK
		}
		if s.takeReturned() {
			continue
		}
		if victims == maxVictims || !s.makeRoom(sh.Size, lacks, victims) {
			if lacks == lacksBytes && sh.Size <= smallValue {
				if id, _ = s.tryReserve(looseLayout, sh.Size, keyLen); id != 0 {
					return id, OK
				}
			}
			return 0, Capacity
		}
		victims++
	}
}

// looseLayout is the layout of a small value that takes a page of its own,
// since claims have cut free memory into parts too short for a slab. Size
// classes have no pools, so the number of one serves as the mark.
var looseLayout = []uint8{loosePool}

// What tryReserve may lack, beside a pool's number.
const (
	lacksNothing = -1
	lacksBytes   = -2 // size classes
	lacksRecord  = -3
	lacksSide    = -4
)

// tryReserve takes a record and all its memory, or nothing and says what lacks.
func (s *Shard) tryReserve(pools []uint8, size, keyLen int) (id uint32, lacks int) {
	if id = s.takeRecord(); id == 0 {
		return 0, lacksRecord
	}
	h, c := &s.hot[id], &s.cold[id]
	c.sum, c.side, c.group = 0, 0, 0
	if n := sideBytes(keyLen, len(pools)); n > 0 {
		off, ok := arena.Off(0), false
		if s.side != nil {
			off, ok = s.side.Alloc(n, id)
		}
		if !ok {
			s.putRecord(id)
			return 0, lacksSide
		}
		c.side = uint32(off / granule)
	}
	for i, pool := range pools {
		off, ok := s.store.alloc(int(pool), size, id)
		if !ok {
			h.desc = withPieces(h.desc, i)
			h.size = uint32(size)
			s.freePieces(id)
			s.freeSide(id, sideBytes(keyLen, len(pools)))
			s.putRecord(id)
			if s.store.classes != nil {
				return 0, lacksBytes
			}
			return 0, int(pool)
		}
		if i == 0 {
			h.desc = makeDesc(uint64(off), keyLen, len(pools), int(pool))
		} else {
			s.pieceDescs(arena.Off(c.side)*granule, len(pools)-1)[i-1] = makeDesc(uint64(off), 0, 1, int(pool))
		}
	}
	h.size = uint32(size)
	h.word.Store(withState(h.word.Load(), filling, 0))
	return id, lacksNothing
}

func withPieces(d desc, n int) desc { return d&^(fiveBitMask<<pieceShift) | desc(n)<<pieceShift }

// takeRecord returns a FREE record, 0 when there is none.
func (s *Shard) takeRecord() uint32 {
	if id := s.freeRec; id != 0 {
		s.freeRec = uint32(s.cold[id].sum)
		s.freeRecords--
		return id
	}
	if int(s.freshRec) == s.cfg.Records {
		return 0
	}
	s.freshRec++
	s.hot[s.freshRec].word.Store(firstFree(s.firstGen, s.freshRec))
	return s.freshRec
}

func (s *Shard) putRecord(id uint32) {
	s.cold[id].sum = uint64(s.freeRec)
	s.freeRec = id
	s.freeRecords++
}

// freePieces gives the pieces back that a record's desc counts.
func (s *Shard) freePieces(id uint32) {
	h := &s.hot[id]
	if h.desc.pieces() > 0 {
		s.store.release(h.desc.pool(), arena.Off(h.desc.off()), int(h.size))
	}
	for _, d := range s.further(id) {
		s.store.release(d.pool(), arena.Off(d.off()), int(h.size))
	}
}

func (s *Shard) freeSide(id uint32, n int) {
	if n > 0 {
		s.side.Free(arena.Off(s.cold[id].side)*granule, n)
	}
}

// freeRecord puts a record whose word is FREE already, and its members, on the
// free list.
func (s *Shard) freeRecord(id uint32) {
	for m := s.cold[id].group; m != 0; {
		next := s.cold[m].group
		w := &s.hot[m].word
		w.Store(nextFree(w.Load()))
		s.freeMemory(m)
		m = next
	}
	s.freeMemory(id)
}

func (s *Shard) freeMemory(id uint32) {
	d := s.hot[id].desc
	s.freePieces(id)
	s.freeSide(id, sideBytes(d.keyLen(), d.pieces()))
	s.putRecord(id)
}

// abort gives a FILLING record back.
func (s *Shard) abort(id uint32) {
	w := &s.hot[id].word
	if stateOf(w.Load()) != filling {
		panic("shard: abort of a record that is not being filled")
	}
	if s.closed {
		s.Abandon(Reserved{id: id}) // Lingering waits for it
		return
	}
	w.Store(nextFree(w.Load()))
	s.cold[id].group = 0
	s.freeMemory(id)
}

// refill reserves a record for a lane's magazine, within the sixteenth of the
// records that magazines may hold, 0 otherwise.
func (s *Shard) refill(sh Shape, keyLen int) uint32 {
	if int(s.inMagazines.Load()) >= s.cfg.Records/16 || s.closed {
		return 0
	}
	id, why := s.find(sh, keyLen)
	if why != OK {
		return 0
	}
	s.inMagazines.Add(1)
	return id
}

// pushReturned puts a record that its last reader has freed on the return
// stack. Any goroutine: the swap of the whole stack by the one consumer rules
// ABA out.
func (s *Shard) pushReturned(id uint32) {
	for {
		top := s.returned.Load()
		s.cold[id].sum = uint64(top)
		if s.returned.CompareAndSwap(top, id) { // release: the link, and our reads
			return
		}
	}
}

// takeReturned empties the return stack and reports whether there was anything.
func (s *Shard) takeReturned() bool {
	id := s.returned.Swap(0) // acquire
	if id == 0 {
		return false
	}
	for id != 0 {
		next := uint32(s.cold[id].sum)
		s.freeRecord(id)
		id = next
	}
	return true
}

// makeRoom evicts something that helps. It fails when nothing can leave.
func (s *Shard) makeRoom(size, lacks, victims int) bool {
	s.wanted = -1
	if lacks >= 0 && len(s.store.pools) > 1 {
		s.wanted = lacks
	}
	v := s.victim()
	s.wanted = -1
	if v == 0 {
		return false
	}
	if lacks == lacksBytes && victims > 0 && victims%singleVictims == 0 && s.evictWindow(v, size) {
		return true
	}
	// A claim may have come in between: then the next try finds another one.
	s.retire(v, evict.Evicted, false)
	return true
}

// victim asks the policy, and passes over blocks that its Decide keeps.
func (s *Shard) victim() uint32 {
	const passes = 16
	for i := 0; i < passes; i++ {
		v := s.askVictim()
		if v == 0 {
			return 0
		}
		if s.decide(v) != evict.Keep {
			return uint32(v)
		}
		own.Store32(&s.hot[v].last, s.now.Load())
	}
	return 0
}

// windowLooks is how many windows one reservation looks at: each look passes
// over the owners up to the first claim and costs no block, but for the largest
// values it visits 16 Ki pages, and the token is held meanwhile.
const windowLooks = 16

// evictWindow empties the window of memory around a victim that is large
// enough for size bytes: so one large value costs about its own size of small
// ones, wherever the policy's victims lie. A window with a busy block is left
// as it is, and the next one tried.
func (s *Shard) evictWindow(victim uint32, size int) bool {
	step := int64(64 << 10)
	for step < int64(size) {
		step *= 2
	}
	at := int64(arena.Off(s.hot[victim].desc.off()) - s.cfg.PayloadOff)
	for i := int64(0); s.looks > 0 && i*step < s.store.size; i++ {
		s.looks--
		owners, ok := s.window(s.cfg.PayloadOff+arena.Off(at), size)
		if ok {
			for _, id := range owners {
				// A claim may have come in between: then the rest of the window
				// still helps the next try.
				s.retire(id, evict.Evicted, false)
			}
			return true
		}
		at = (at + step) % s.store.size
	}
	return false
}

// window lists the blocks in the window around off; false when it is empty, or
// not all of it can leave.
func (s *Shard) window(off arena.Off, size int) (owners []uint32, ok bool) {
	ok = s.store.classes.Window(off, max(size, 1), func(owner uint32) bool {
		if stateOf(s.hot[owner].word.Load()) == member {
			owner = s.leaderOf(owner)
		}
		if (blocks{s}).Busy(evict.ID(owner)) {
			owners = nil
			return false
		}
		owners = append(owners, owner)
		return true
	})
	return owners, ok && len(owners) > 0
}

func (s *Shard) leaderOf(id uint32) uint32 { return pinsOf(s.hot[id].word.Load()) }

// uses reports whether a block, or a member of its group, has a piece in pool.
func (s *Shard) uses(id uint32, pool int) bool {
	for id != 0 {
		if s.hot[id].desc.pool() == pool {
			return true
		}
		for _, p := range s.further(id) {
			if p.pool() == pool {
				return true
			}
		}
		id = s.cold[id].group
	}
	return false
}

// pressure tells the embedder once when a pool falls under its watermark, or
// when a reservation was refused. What counts is free or evictable: blocks
// under a no_evict hold are neither. Readers' claims are not counted, they are
// short; where they pile up, refusals show it.
func (s *Shard) pressure(refused bool) {
	if s.cfg.OnPressure == nil || s.cfg.Watermark == 0 {
		return
	}
	for i := range s.pressed {
		pool, total := i, s.store.size
		if s.store.pools == nil {
			pool = -1
		} else {
			total = int64(s.store.pools[i].Len()) * int64(s.store.slotBytes(i))
		}
		avail := total - s.heldBytes[i]
		mark := (total*int64(s.cfg.Watermark) + 99) / 100
		if under := refused || avail < mark; under != s.pressed[i] {
			s.pressed[i] = under
			if under {
				s.callPressure(pool, avail, mark)
			}
		}
	}
}

func (s *Shard) callPressure(pool int, avail, mark int64) {
	defer s.policyFault()
	s.cfg.OnPressure(pool, avail, mark)
}

// hold counts a no_evict hold on a claimed record, unhold ends it.
func (s *Shard) hold(id uint32) {
	s.held[id]++
	if s.held[id] == 1 {
		s.addHeld(id, 1)
	}
}

func (s *Shard) unhold(id uint32) {
	if s.held[id] == 0 {
		panic("shard: unhold of a record without a hold")
	}
	s.held[id]--
	if s.held[id] == 0 {
		delete(s.held, id)
		s.addHeld(id, -1)
	}
}

// addHeld counts the memory of a block and its group.
func (s *Shard) addHeld(id uint32, sign int64) {
	for ; id != 0; id = s.cold[id].group {
		d := s.hot[id].desc
		if s.store.classes != nil {
			s.heldBytes[0] += sign * int64(s.store.classes.Round(max(int(s.hot[id].size), 1)))
			continue
		}
		s.heldBytes[d.pool()] += sign * int64(s.store.slotBytes(d.pool()))
		for _, p := range s.further(id) {
			s.heldBytes[p.pool()] += sign * int64(s.store.slotBytes(p.pool()))
		}
	}
}
