package plan

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// epochs says when memory that was taken out of the index may be used again: when no
// lookup is left that began before it was taken out. Lookups take no lock; they
// announce the epoch in which they began.
//
//	(E) announce: reader.at.Store, then loads of the index
//	    pairs with  unlink, then reader.at.Load in oldest
//
// Both are sequentially consistent: a lookup whose announcement oldest did not see
// began after the unlink, and cannot reach what was unlinked. An announced epoch may
// be older than the lookup; it then only keeps memory longer.
type epochs struct {
	now     atomic.Uint64 // never 0
	readers atomic.Pointer[[]*reader]
	mu      sync.Mutex // guards replacing readers
	idle    []*reader  // registered, of no Scratch
}

// reader is one Scratch's announcement, alone in its pair of cache lines.
type reader struct {
	at atomic.Uint64 // the epoch of the lookup in progress, 0 for none
	_  [120]byte
}

func (e *epochs) init() {
	e.now.Store(1)
	e.readers.Store(new([]*reader))
}

// register returns the announcement for a Scratch; it goes to another one when s is
// collected.
func (e *epochs) register(s *Scratch) *reader {
	e.mu.Lock()
	defer e.mu.Unlock()
	var r *reader
	if n := len(e.idle); n > 0 {
		r, e.idle = e.idle[n-1], e.idle[:n-1]
	} else {
		r = new(reader)
		all := append(append([]*reader(nil), *e.readers.Load()...), r)
		e.readers.Store(&all)
	}
	runtime.AddCleanup(s, e.giveBack, r)
	return r
}

func (e *epochs) giveBack(r *reader) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.idle = append(e.idle, r)
}

func (e *epochs) enter(r *reader) { r.at.Store(e.now.Load()) } // (E)

func (e *epochs) leave(r *reader) { r.at.Store(0) }

// oldest returns the least epoch of a lookup in progress, or the greatest number.
// What was retired in an earlier epoch may be used again.
func (e *epochs) oldest() uint64 {
	least := ^uint64(0)
	for _, r := range *e.readers.Load() {
		if at := r.at.Load(); at != 0 && at < least { // (E)
			least = at
		}
	}
	return least
}

// limbo holds what was taken out, in the order in which it was, until no lookup can
// see it. One goroutine at a time uses it.
type limbo[T any] struct {
	queue []retiree[T]
	first int // of queue: what is before it has been given back
	again int // length of queue at which to look for what may be given back
}

type retiree[T any] struct {
	epoch uint64
	what  T
}

// limboBatch is how much is retired between looks at the readers: a look costs a cache
// miss for each of them. 64 is arbitrary.
const limboBatch = 64

// retire takes in what lookups that begin now cannot reach any more. It calls reuse
// for what can be used again.
func (l *limbo[T]) retire(e *epochs, what T, reuse func(T)) {
	l.queue = append(l.queue, retiree[T]{e.now.Load(), what})
	if len(l.queue)-l.first >= l.again {
		l.collect(e, reuse)
	}
}

// collect calls reuse for what can be used again.
func (l *limbo[T]) collect(e *epochs, reuse func(T)) {
	e.now.Add(1)
	oldest := e.oldest()
	for l.first < len(l.queue) && l.queue[l.first].epoch < oldest {
		reuse(l.queue[l.first].what)
		l.first++
	}
	if l.first > len(l.queue)/2 {
		n := copy(l.queue, l.queue[l.first:])
		l.queue, l.first = l.queue[:n], 0
	}
	l.again = len(l.queue) - l.first + limboBatch
}
