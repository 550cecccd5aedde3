package plan

import (
	"math/bits"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Owners of a chunk are those that were set, in words and records of any shape, and a
// record that was replaced still says what it said.
func TestOwned(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r records
		var o owned
		want := map[uint32]uint64{}
		slot := rapid.OneOf(rapid.Uint32Range(0, 5), rapid.Uint32Range(0, 700), rapid.SampledFrom([]uint32{63, 64, 4095, 65535}))
		mask := rapid.OneOf(rapid.SampledFrom([]uint64{0, 0, 1, ^uint64(0), 0xffff, 0xffff0000, 5}), rapid.Uint64())
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			before := slices.Clone(wordsOf(&r, o))
			slot, mask := slot.Draw(t, "slot"), mask.Draw(t, "mask")
			next := r.with(o, slot, mask)
			if !slices.Equal(before, wordsOf(&r, o)) {
				t.Fatal("the record before changed")
			}
			if o&ownedKind == ownedMany {
				r.giveBack(uint32(o))
			}
			o = next
			want[slot] = mask
			if mask == 0 {
				delete(want, slot)
			}

			var live uint64
			for s, m := range want {
				live |= m
				if got := r.of(o, s); got != m {
					t.Fatalf("slot %d owns %#x, want %#x", s, got, m)
				}
			}
			if got := r.live(o); got != live {
				t.Fatalf("live %#x, want %#x", got, live)
			}
			if (o == 0) != (len(want) == 0) {
				t.Fatalf("word %#x of %d owners", o, len(want))
			}
			var one [3]uint64
			n, words := r.groups(o, &one)
			slots := 0
			for range n {
				var m uint64
				var group []uint64
				m, _, group, words = groupAt(words)
				in := 0
				for _, w := range group {
					in += bits.OnesCount64(w)
				}
				if m == 0 || in == 0 || group[0] == 0 || group[len(group)-1] == 0 {
					t.Fatalf("a group of %#x with words %#x", m, group)
				}
				slots += in
			}
			if slots != len(want) {
				t.Fatalf("%d slots in groups, want %d", slots, len(want))
			}
		}
	})
}

func wordsOf(r *records, o owned) []uint64 {
	if o&ownedKind != ownedMany {
		return nil
	}
	w := r.words(uint32(o))
	return w[:recordLen(w)]
}

// Many owners that own the same cost a bit each.
func TestOwnersShareAGroup(t *testing.T) {
	var r records
	var o owned
	for slot := range uint32(256) {
		o = r.with(o, slot, ^uint64(0))
	}
	if n := recordLen(r.words(uint32(o))); n != 1+2+4 {
		t.Errorf("256 owners take %d words, want 7", n)
	}
	for slot := range uint32(255) {
		o = r.with(o, slot, 0)
	}
	if o != oneOwner(255, ^uint64(0)) {
		t.Errorf("the last owner is %#x", o)
	}
}

func TestRecordClasses(t *testing.T) {
	last, lastSize := -1, 0
	for cells := 1; cells < 1<<16; cells++ {
		class, size := recordClass(cells)
		if size < cells || size > cells*3/2+1 || class >= recordClasses {
			t.Fatalf("%d cells: class %d of %d", cells, class, size)
		}
		if size != lastSize && class != last+1 || size == lastSize && class != last {
			t.Fatalf("%d cells: class %d of %d after class %d of %d", cells, class, size, last, lastSize)
		}
		last, lastSize = class, size
	}
}
