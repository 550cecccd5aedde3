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
	max     int
	handles map[string]*kvcr.Handle // by namespace; for expire only

	mu    sync.Mutex
	heap  deadlines
	byKey map[expiring]*deadline
}

// maxDeadlines bounds what expiries holds: at some 250 bytes each, 250 MB.
const maxDeadlines = 1_000_000

// errDeadlines: there is no room for another key with a time to live.
var errDeadlines = errors.New("1000000 keys have a time to live already; set some without")

// expiring names a key of a namespace.
type expiring struct{ namespace, key string }

type deadline struct {
	expiring
	at         time.Time
	generation uint32
	i          int // place in the heap
}

type deadlines []*deadline

func (d deadlines) Len() int           { return len(d) }
func (d deadlines) Less(i, j int) bool { return d[i].at.Before(d[j].at) }
func (d deadlines) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].i, d[j].i = i, j
}
func (d *deadlines) Push(x any) {
	x.(*deadline).i = len(*d)
	*d = append(*d, x.(*deadline))
}
func (d *deadlines) Pop() any {
	last := len(*d) - 1
	x := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	return x
}

func newExpiries() expiries {
	return expiries{max: maxDeadlines, handles: map[string]*kvcr.Handle{}, byKey: map[expiring]*deadline{}}
}

// room reports whether key may have a deadline.
func (e *expiries) room(namespace string, key []byte) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.heap) < e.max || e.byKey[expiring{namespace, string(key)}] != nil
}

// add gives the block that key has now a deadline, in place of an earlier one.
func (e *expiries) add(h *kvcr.Handle, namespace string, key []byte, ttl time.Duration) {
	v, ok := h.Get(key)
	if !ok {
		return // evicted already
	}
	generation := v.Generation()
	v.Release()
	name, at := expiring{namespace, string(key)}, time.Now().Add(ttl)
	e.mu.Lock()
	defer e.mu.Unlock()
	if d := e.byKey[name]; d != nil {
		d.at, d.generation = at, generation
		heap.Fix(&e.heap, d.i)
		return
	}
	d := &deadline{expiring: name, at: at, generation: generation}
	e.byKey[name] = d
	heap.Push(&e.heap, d)
}

// due takes the next deadline that has passed.
func (e *expiries) due(now time.Time) *deadline {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.heap) == 0 || e.heap[0].at.After(now) {
		return nil
	}
	d := heap.Pop(&e.heap).(*deadline)
	delete(e.byKey, d.expiring)
	return d
}

// expire deletes what is due.
func (s *Server) expire(now time.Time) {
	for d := s.ttl.due(now); d != nil; d = s.ttl.due(now) {
		if _, err := s.ttl.handles[d.namespace].DeleteGeneration([]byte(d.key), d.generation); err != nil {
			s.log.Warn("a key outlives its time", "err", err)
		}
	}
}

func (e *expiries) close() {
	for _, h := range e.handles {
		h.Close()
	}
}
