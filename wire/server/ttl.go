package server

import (
	"container/heap"
	"errors"
	"sync"
	"time"

	"github.com/kvcr-go/kvcr"
)

// expiries remembers which keys have a time to live. The engine knows none: a
// key ends because this deletes the block that was set with the deadline, by its
// generation, so a key written anew since lives on. A key may be read up to one
// tick after its time.
type expiries struct {
	max int

	mu   sync.Mutex
	heap deadlines
}

// maxDeadlines bounds what expiries holds: at about 100 bytes each, 100 MB.
const maxDeadlines = 1_000_000

// errDeadlines: there is no room for another key with a time to live.
var errDeadlines = errors.New("1000000 keys have a time to live already; set some without")

type deadline struct {
	at         time.Time
	namespace  string
	key        string
	generation uint32
}

type deadlines []deadline

func (d deadlines) Len() int           { return len(d) }
func (d deadlines) Less(i, j int) bool { return d[i].at.Before(d[j].at) }
func (d deadlines) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *deadlines) Push(x any)        { *d = append(*d, x.(deadline)) }
func (d *deadlines) Pop() any {
	last := len(*d) - 1
	x := (*d)[last]
	(*d)[last] = deadline{}
	*d = (*d)[:last]
	return x
}

// room reports whether another deadline fits.
func (e *expiries) room() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.heap) < e.max
}

// add gives the block that key has now a deadline.
func (e *expiries) add(h *kvcr.Handle, namespace string, key []byte, ttl time.Duration) {
	v, ok := h.Get(key)
	if !ok {
		return // evicted already
	}
	d := deadline{time.Now().Add(ttl), namespace, string(key), v.Generation()}
	v.Release()
	e.mu.Lock()
	defer e.mu.Unlock()
	heap.Push(&e.heap, d)
}

// due takes the next deadline that has passed.
func (e *expiries) due(now time.Time) (d deadline, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.heap) == 0 || e.heap[0].at.After(now) {
		return d, false
	}
	return heap.Pop(&e.heap).(deadline), true
}

// expire deletes what is due.
func (s *Server) expire(now time.Time) {
	for {
		d, ok := s.ttl.due(now)
		if !ok {
			return
		}
		h, err := s.lend(d.namespace)
		if err != nil {
			s.log.Warn("a key outlives its time", "err", err)
			return
		}
		if _, err := h.DeleteGeneration([]byte(d.key), d.generation); err != nil {
			s.log.Warn("a key outlives its time", "err", err)
		}
		s.giveBack(d.namespace, h)
	}
}
