package keys

const slotsInChunk = 1 << 10

// slots are items of one type that never move, in memory without pointers if T has
// none. Ids begin at 1; 0 is none.
type slots[T any] struct {
	chunks []*[slotsInChunk]T
	free   []uint32
	fresh  uint32 // ids below or equal were in use at some time
}

func (s *slots[T]) at(id uint32) *T {
	id--
	return &s.chunks[id/slotsInChunk][id%slotsInChunk]
}

func (s *slots[T]) take() uint32 {
	if n := len(s.free); n > 0 {
		id := s.free[n-1]
		s.free = s.free[:n-1]
		return id
	}
	if int(s.fresh) == len(s.chunks)*slotsInChunk {
		s.chunks = append(s.chunks, new([slotsInChunk]T))
	}
	s.fresh++
	return s.fresh
}

// put gives an item back and clears it.
func (s *slots[T]) put(id uint32) {
	clear(s.chunks[(id-1)/slotsInChunk][(id-1)%slotsInChunk : (id-1)%slotsInChunk+1])
	s.free = append(s.free, id)
}
