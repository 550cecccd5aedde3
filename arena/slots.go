package arena

import (
	"encoding/binary"
	"fmt"
)

// Slots is a pool of slots of one size in a part of an arena. It has one owner
// at a time, who is the only one to call it; it never allocates after
// NewSlots.
//
// Free slots form a stack linked through their own first 4 bytes, so that the
// slot freed last, whose lines are in the cache, is handed out first. Slots
// that were never handed out are not on it: they lie at and above fresh, and
// their memory stays untouched.
//
//	slot 0          1          2          3        fresh=4 ...
//	+-----------+----------+----------+----------+----------
//	| link ---> |  in use  | link = 0 |  in use  | untouched
//	+-----------+----------+----------+----------+----------
//	 top = 0+1     links hold slot+1; 0 ends the stack
//
// Invariants:
//
//	I1  free == (n - fresh) + length of the stack
//	I2  every slot on the stack is below fresh, and is there once
type Slots struct {
	mem       []byte // the pool
	base      Off
	slotBytes int
	n         uint32
	fresh     uint32 // slots at and above were never handed out
	top       uint32 // slot+1 of the first free slot below fresh; 0 is none
	free      uint32
	used      []uint64 // one bit for each slot; nil unless Checking
}

// NewSlots makes a pool of n slots of slotBytes bytes at base. All slots are
// free. The caller must give the whole part to this pool. slotBytes is at least
// 4; it panics on parameters that cannot be right.
func NewSlots(a *Arena, base Off, slotBytes int, n uint32) *Slots {
	if slotBytes < 4 || int64(slotBytes) > a.Size() || int64(n) > a.Size()/int64(slotBytes) || n == ^uint32(0) {
		panic(fmt.Sprintf("arena: %d slots of %d bytes in an arena of %d", n, slotBytes, a.Size()))
	}
	s := &Slots{mem: a.Bytes(base, slotBytes*int(n)), base: base, slotBytes: slotBytes, n: n, free: n}
	if Checking {
		s.used = make([]uint64, (uint64(n)+63)/64)
	}
	return s
}

// Alloc hands out a slot and reports whether there was one. The bytes of the
// slot are undefined.
func (s *Slots) Alloc() (slot uint32, ok bool) {
	switch {
	case s.top != 0:
		slot = s.top - 1
		link := binary.NativeEndian.Uint32(s.mem[int(slot)*s.slotBytes:])
		if link > s.fresh || (link == 0) != (s.free-1 == s.n-s.fresh) {
			panic(fmt.Sprintf("arena: free slot %d has link %#x: it was written to after it was freed (%d slots, %d ever used, %d free)",
				slot, link, s.n, s.fresh, s.free))
		}
		s.top = link
	case s.fresh < s.n:
		slot = s.fresh
		s.fresh++
	default:
		return 0, false
	}
	s.free--
	if Checking {
		if s.used[slot/64]&(1<<(slot%64)) != 0 {
			panic(fmt.Sprintf("arena: slot %d is on the free stack and in use", slot))
		}
		s.used[slot/64] |= 1 << (slot % 64)
	}
	return slot, true
}

// Free takes a slot back. The caller must have got it from Alloc, and nobody
// may use its bytes any more. A number that was never handed out panics; a
// second Free of the same slot panics in Checking builds.
func (s *Slots) Free(slot uint32) {
	if slot >= s.fresh {
		panic(fmt.Sprintf("arena: Free of slot %d; %d were ever handed out", slot, s.fresh))
	}
	if Checking {
		if s.used[slot/64]&(1<<(slot%64)) == 0 {
			panic(fmt.Sprintf("arena: Free of slot %d, which is free", slot))
		}
		s.used[slot/64] &^= 1 << (slot % 64)
	}
	binary.NativeEndian.PutUint32(s.mem[int(slot)*s.slotBytes:], s.top)
	s.top = slot + 1
	s.free++
}

// FreeCount returns how many slots Alloc can still hand out.
func (s *Slots) FreeCount() uint32 { return s.free }

// Len returns the number of slots, free or not.
func (s *Slots) Len() uint32 { return s.n }

// SlotBytes returns the size of a slot in bytes.
func (s *Slots) SlotBytes() int { return s.slotBytes }

// Off returns where a slot begins in the arena. It panics when there is no such
// slot.
func (s *Slots) Off(slot uint32) Off {
	if slot >= s.n {
		panic(fmt.Sprintf("arena: slot %d of %d", slot, s.n))
	}
	return s.base + Off(slot)*Off(s.slotBytes)
}
