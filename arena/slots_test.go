package arena

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestSlots runs random operations against a model: the set of slots in use and
// the stack of freed ones.
func TestSlots(t *testing.T) {
	a := mustMap(t, Options{Size: 64 << 10})
	rapid.Check(t, func(t *rapid.T) {
		slotBytes := rapid.SampledFrom([]int{4, 7, 64, 96, 1000}).Draw(t, "slotBytes")
		n := rapid.Uint32Range(0, 40).Draw(t, "n")
		base := Off(rapid.IntRange(0, 500).Draw(t, "base"))
		clear(a.Bytes(0, 64<<10))
		s := NewSlots(a, base, slotBytes, n)
		if s.Len() != n || s.SlotBytes() != slotBytes || s.FreeCount() != n {
			t.Fatalf("Len %d, SlotBytes %d, FreeCount %d", s.Len(), s.SlotBytes(), s.FreeCount())
		}
		used := map[uint32]byte{} // slot to what its bytes hold
		var stack []uint32
		fresh := uint32(0)
		mark := byte(0)
		fill := func(slot uint32, b byte) {
			mem := a.Bytes(s.Off(slot), slotBytes)
			for i := range mem {
				mem[i] = b
			}
			used[slot] = b
		}
		for range rapid.IntRange(0, 200).Draw(t, "ops") {
			if rapid.Bool().Draw(t, "alloc") {
				slot, ok := s.Alloc()
				want, wantOK := uint32(0), true
				switch {
				case len(stack) > 0:
					want, stack = stack[len(stack)-1], stack[:len(stack)-1]
				case fresh < n:
					want = fresh
					fresh++
				default:
					wantOK = false
				}
				if slot != want || ok != wantOK {
					t.Fatalf("Alloc = %d, %t, want %d, %t", slot, ok, want, wantOK)
				}
				if ok {
					mark++
					fill(slot, mark)
				}
			} else if len(used) > 0 {
				slots := make([]uint32, 0, len(used))
				for i := range n {
					if _, ok := used[i]; ok {
						slots = append(slots, i)
					}
				}
				slot := rapid.SampledFrom(slots).Draw(t, "slot")
				s.Free(slot)
				stack = append(stack, slot)
				delete(used, slot)
			}
			if got := s.FreeCount(); got != n-uint32(len(used)) {
				t.Fatalf("FreeCount %d with %d of %d in use", got, len(used), n)
			}
			for slot, b := range used {
				if mem := a.Bytes(s.Off(slot), slotBytes); bytes.Count(mem, []byte{b}) != slotBytes {
					t.Fatalf("slot %d was written to: %x, want all %#x", slot, mem, b)
				}
			}
		}
		// Nothing outside, and no slot that was never handed out, was touched.
		if mem := a.Bytes(0, int(base)); bytes.Count(mem, []byte{0}) != len(mem) {
			t.Fatal("bytes before the pool were written to")
		}
		rest := base + Off(fresh)*Off(slotBytes)
		if mem := a.Bytes(rest, 64<<10-int(rest)); bytes.Count(mem, []byte{0}) != len(mem) {
			t.Fatal("untouched slots or bytes after the pool were written to")
		}
	})
}

func TestSlotsPanics(t *testing.T) {
	a := mustMap(t, Options{Size: 4096})
	for name, f := range map[string]func(){
		"slots too small":  func() { NewSlots(a, 0, 3, 1) },
		"too many":         func() { NewSlots(a, 0, 64, 65) },
		"beyond the end":   func() { NewSlots(a, 64, 64, 64) },
		"overflow":         func() { NewSlots(a, 0, 1<<40, 1<<30) },
		"the last number":  func() { NewSlots(a, 0, 4, ^uint32(0)) },
		"offset of no one": func() { NewSlots(a, 0, 64, 4).Off(4) },
		"never handed out": func() {
			s := NewSlots(a, 0, 64, 4)
			s.Alloc()
			s.Free(1)
		},
	} {
		if panics(f) == "" {
			t.Errorf("%s: no panic", name)
		}
	}
}

// TestSlotsBrokenLink: whoever writes to a free slot is found out, and the
// message shows what was written.
func TestSlotsBrokenLink(t *testing.T) {
	a := mustMap(t, Options{Size: 4096})
	for _, v := range []uint32{0xdeadbeef, 5, 0} {
		s := NewSlots(a, 0, 64, 8)
		for range 4 {
			s.Alloc()
		}
		s.Free(2)
		s.Free(1)
		Cast[uint32](a, s.Off(1), 1)[0] = v // 0 cuts the stack short
		msg := panics(func() { s.Alloc() })
		if !strings.Contains(msg, fmt.Sprintf("free slot 1 has link %#x", v)) {
			t.Errorf("link %#x: panic %q", v, msg)
		}
	}
}

func TestSlotsDoubleFree(t *testing.T) {
	if !Checking {
		t.Skip("needs a checking build (-tags kvcr_check)")
	}
	s := NewSlots(mustMap(t, Options{Size: 4096}), 0, 64, 8)
	s.Alloc()
	s.Alloc()
	s.Free(1)
	if msg := panics(func() { s.Free(1) }); !strings.Contains(msg, "slot 1, which is free") {
		t.Errorf("panic %q", msg)
	}
}

func TestSlotsAllocate(t *testing.T) {
	s := NewSlots(mustMap(t, Options{Size: 4096}), 0, 64, 8)
	if n := testing.AllocsPerRun(100, func() {
		x, _ := s.Alloc()
		y, _ := s.Alloc()
		s.Free(x)
		s.Free(y)
	}); n != 0 {
		t.Errorf("%v heap allocations", n)
	}
}

func BenchmarkSlots(b *testing.B) {
	s := NewSlots(mustMap(b, Options{Size: 1 << 20, Prefault: true}), 0, 64, 1<<14)
	var held [64]uint32
	for i := range held {
		held[i], _ = s.Alloc()
	}
	b.ResetTimer()
	for i := range b.N {
		s.Free(held[i%64])
		held[i%64], _ = s.Alloc()
	}
}
