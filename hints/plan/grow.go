package plan

import "sync/atomic"

// slabs is a growing array in pieces that never move. One goroutine at a time grows
// it; any may read an element that it learned of from the writer.
type slabs[T any] struct {
	all atomic.Pointer[[]*T]
}

// get returns piece i.
func (s *slabs[T]) get(i uint32) *T { return (*s.all.Load())[i] }

func (s *slabs[T]) len() int {
	if p := s.all.Load(); p != nil {
		return len(*p)
	}
	return 0
}

// add appends a piece. Readers of the list before it do not look behind its end, so
// the list's room may be shared.
func (s *slabs[T]) add(piece *T) {
	var list []*T
	if p := s.all.Load(); p != nil {
		list = *p
	}
	list = append(list, piece)
	s.all.Store(&list)
}
