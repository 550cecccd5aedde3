package arena

import (
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Word64 returns the 64-bit word at off for atomic access. It panics when the
// word is unaligned or not inside the arena. The word dies with the arena.
//
// Unsafe: reinterprets bytes as an atomic. Sound: Bytes checks that the whole
// word is in range; off%8 == 0 and the base is page-aligned, so the word is
// aligned; callers see *atomic.Uint64, never unsafe.Pointer.
func (a *Arena) Word64(off Off) *atomic.Uint64 {
	if off%8 != 0 {
		panic(unaligned("Word64", off, 8))
	}
	return (*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(a.Bytes(off, 8))))
}

// Word32 is Word64 for 32 bits.
//
// Unsafe: as Word64, with 4 for 8.
func (a *Arena) Word32(off Off) *atomic.Uint32 {
	if off%4 != 0 {
		panic(unaligned("Word32", off, 4))
	}
	return (*atomic.Uint32)(unsafe.Pointer(unsafe.SliceData(a.Bytes(off, 4))))
}

// Cast views the n values of type T at off as a slice, its capacity clipped.
// It panics when T may hold a pointer, when off is not aligned for T, and when
// the values are not inside the arena. Fresh memory reads as zero values. The
// slice dies with the arena.
//
// Unsafe: reinterprets bytes as T. Sound: T holds no pointer, so the collector
// has nothing to miss; Bytes checks the range and the product is checked for
// overflow; off is a multiple of T's alignment and the base is page-aligned.
// Any bytes are a valid T because pointer-free types have no invalid values
// but bool, for which the caller must store only 0 and 1.
func Cast[T any](a *Arena, off Off, n int) []T {
	t := reflect.TypeFor[T]()
	if !pointerFree(t) {
		panic(fmt.Sprintf("arena: Cast to %v, which holds pointers", t))
	}
	size, align := int(t.Size()), Off(t.Align())
	if off%align != 0 {
		panic(unaligned("Cast to "+t.String(), off, int(align)))
	}
	if n < 0 || (size > 0 && n > len(a.mem)/size) {
		panic(outOfRange(off, n, len(a.mem)))
	}
	b := a.Bytes(off, n*size)
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)[:n:n]
}

// pointerFreeTypes remembers the answer of pointerFree for each type.
var pointerFreeTypes sync.Map // reflect.Type -> bool

func pointerFree(t reflect.Type) bool {
	if v, ok := pointerFreeTypes.Load(t); ok {
		return v.(bool)
	}
	ok := pointerFreeWalk(t)
	pointerFreeTypes.Store(t, ok)
	return ok
}

func pointerFreeWalk(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Bool,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64,
		reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128:
		return true
	case reflect.Uintptr:
		return false // an address in disguise: it would mean nothing in another process
	case reflect.Array:
		return t.Len() == 0 || pointerFreeWalk(t.Elem())
	case reflect.Struct:
		for i := 0; i < t.NumField(); i++ {
			if !pointerFreeWalk(t.Field(i).Type) {
				return false
			}
		}
		return true
	}
	return false
}

func unaligned(what string, off Off, align int) string {
	return fmt.Sprintf("arena: %s at %#x, which is not a multiple of %d", what, uint64(off), align)
}
