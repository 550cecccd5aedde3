package ring

import (
	"reflect"
	"sync/atomic"
	"testing"
	"unsafe"
)

// TestLayout pins what the figures depend on: one line a slot, and no line
// written by both sides.
func TestLayout(t *testing.T) {
	var s slot
	if unsafe.Sizeof(s) != 64 || unsafe.Offsetof(s.seq) != 0 || unsafe.Offsetof(s.msg) != 8 || unsafe.Sizeof(s.msg) != 56 {
		t.Errorf("slot: size %d, seq at %d, msg at %d of %d bytes; want 64, 0, 8, 56",
			unsafe.Sizeof(s), unsafe.Offsetof(s.seq), unsafe.Offsetof(s.msg), unsafe.Sizeof(s.msg))
	}
	var q SPSC
	producer := [2]uintptr{unsafe.Offsetof(q.tail), unsafe.Offsetof(q.headSeen) + 8}
	consumer := [2]uintptr{unsafe.Offsetof(q.head), unsafe.Offsetof(q.head) + 8}
	shared := [2]uintptr{unsafe.Offsetof(q.mask), unsafe.Offsetof(q.slots) + unsafe.Sizeof(q.slots)}
	// Whatever the base address, groups whose ends are a line apart share none.
	if producer[0] < line {
		t.Errorf("producer's words at %d: the object before shares their line", producer[0])
	}
	if producer[1]-producer[0] > line-8 || consumer[0]-producer[1] < line-16 || consumer[0]-producer[0] < line {
		t.Errorf("producer's words %v, consumer's %v: want the starts %d apart", producer, consumer, line)
	}
	if shared[0]-consumer[0] < line {
		t.Errorf("consumer's words %v, shared %v: want the starts %d apart", consumer, shared, line)
	}
	if unsafe.Sizeof(q)-shared[1] < line {
		t.Errorf("%d bytes after the shared words: the object behind shares their line", unsafe.Sizeof(q)-shared[1])
	}
}

func TestSlotsAligned(t *testing.T) {
	for capacity := minCapacity; capacity <= maxCapacity; capacity *= 2 {
		for range 4 {
			q := New(capacity)
			if base := uintptr(unsafe.Pointer(&q.slots[0])); base%line != 0 {
				t.Errorf("capacity %d: slots at %#x, not a multiple of %d", capacity, base, line)
			}
			if len(q.slots) != capacity || cap(q.slots) != capacity {
				t.Errorf("capacity %d: %d slots, cap %d", capacity, len(q.slots), cap(q.slots))
			}
		}
	}
}

// TestSlotHasNoPointer: then the collector never scans a ring.
func TestSlotHasNoPointer(t *testing.T) {
	var check func(typ reflect.Type)
	check = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Struct:
			for i := range typ.NumField() {
				check(typ.Field(i).Type)
			}
		case reflect.Array:
			if typ.Len() > 0 {
				check(typ.Elem())
			}
		case reflect.Uint64:
		default:
			t.Errorf("slot holds a %v", typ)
		}
	}
	check(reflect.TypeFor[slot]())
}

// TestPublish holds the assembly and its portable twin to the same contract:
// each word gets its value, and nothing beside it changes.
func TestPublish(t *testing.T) {
	var w [5]atomic.Uint64
	for i := range w {
		w[i].Store(^uint64(0))
	}
	publish(&w[1], 1<<63|11, &w[3], 1<<63|33)
	for i, want := range [...]uint64{^uint64(0), 1<<63 | 11, ^uint64(0), 1<<63 | 33, ^uint64(0)} {
		if got := w[i].Load(); got != want {
			t.Errorf("after publish word %d = %#x, want %#x", i, got, want)
		}
	}
	release(&w[3], 1<<63|44)
	storePlain(&w[1], 1<<63|55)
	fence()
	pause()
	for i, want := range [...]uint64{^uint64(0), 1<<63 | 55, ^uint64(0), 1<<63 | 44, ^uint64(0)} {
		if got := w[i].Load(); got != want {
			t.Errorf("after release word %d = %#x, want %#x", i, got, want)
		}
	}
}
