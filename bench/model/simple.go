package model

// order is a doubly linked list of blocks, from the next victim (front) to the
// last (back). Block numbers are shifted by one, 0 is the anchor.
type order struct {
	prev, next []uint32
	n          int
}

func newOrder(unique int) order {
	return order{prev: make([]uint32, unique+1), next: make([]uint32, unique+1)}
}

func (o *order) insertBefore(at, cell uint32) {
	p := o.prev[at]
	o.prev[cell], o.next[cell] = p, at
	o.next[p], o.prev[at] = cell, cell
	o.n++
}

func (o *order) pushBack(id uint32)  { o.insertBefore(0, id+1) }
func (o *order) pushFront(id uint32) { o.insertBefore(o.next[0], id+1) }

func (o *order) remove(id uint32) {
	c := id + 1
	o.next[o.prev[c]], o.prev[o.next[c]] = o.next[c], o.prev[c]
	o.n--
}

// protection marks the blocks of the request in progress.
type protection struct {
	stamp []uint32
	now   uint32
}

func (p *protection) start(unique int) { p.stamp, p.now = make([]uint32, unique), 0 }
func (p *protection) protect(ids []uint32) {
	p.now++
	for _, id := range ids {
		p.stamp[id] = p.now
	}
}
func (p *protection) protected(id uint32) bool { return p.stamp[id] == p.now }

// first is the first block of o that is not protected.
func (p *protection) first(o *order) (uint32, bool) {
	for c := o.next[0]; c != 0; c = o.next[c] {
		if !p.protected(c - 1) {
			return c - 1, true
		}
	}
	return 0, false
}

// LRU evicts by last access. TailFirst lists the blocks of a request so that its
// last leaves first. NoTails makes the last block of a request the next victim.
type LRU struct {
	TailFirst, NoTails bool

	protection
	order
	resident []bool
	capacity int
}

func (l *LRU) Start(capacity, unique int) {
	l.protection.start(unique)
	l.order = newOrder(unique)
	l.resident = make([]bool, unique)
	l.capacity = capacity
}

func (l *LRU) Resident(id uint32) bool { return l.resident[id] }

func (l *LRU) Request(ids []uint32, _ int) {
	l.protect(ids)
	access := func(id uint32) {
		if l.resident[id] {
			l.remove(id)
		} else {
			l.resident[id] = true
			for l.n >= l.capacity {
				v, ok := l.first(&l.order)
				if !ok {
					break
				}
				l.remove(v)
				l.resident[v] = false
			}
		}
		l.pushBack(id)
	}
	for _, id := range ids {
		access(id)
	}
	if l.TailFirst {
		for i := len(ids) - 1; i >= 0; i-- {
			l.remove(ids[i])
			l.pushBack(ids[i])
		}
	}
	if l.NoTails && len(ids) > 1 {
		l.remove(ids[len(ids)-1])
		l.pushFront(ids[len(ids)-1])
	}
}

// S3FIFO is S3-FIFO with full knowledge of hits. Small is the small queue's share
// of the capacity; a block that leaves it moves to the main queue if it was hit
// at least Promote times.
type S3FIFO struct {
	Small   float64
	Promote int
	NoTails bool // the last block of a request is the next victim of the small queue

	protection
	small, main, ghost order
	in                 []uint8 // 0 nowhere, 1 small, 2 main, 3 ghost
	freq               []uint8
	capacity           int
}

func (s *S3FIFO) Start(capacity, unique int) {
	s.protection.start(unique)
	s.small, s.main, s.ghost = newOrder(unique), newOrder(unique), newOrder(unique)
	s.in, s.freq = make([]uint8, unique), make([]uint8, unique)
	s.capacity = capacity
}

func (s *S3FIFO) Resident(id uint32) bool { return s.in[id] == 1 || s.in[id] == 2 }

func (s *S3FIFO) Request(ids []uint32, _ int) {
	s.protect(ids)
	for i, id := range ids {
		switch s.in[id] {
		case 1, 2:
			s.freq[id] = min(s.freq[id]+1, 3)
			continue
		}
		for s.small.n+s.main.n >= s.capacity && s.evict() {
		}
		switch {
		case s.in[id] == 3: // still, after the evictions
			s.ghost.remove(id)
			s.main.pushBack(id)
			s.in[id] = 2
		case s.NoTails && i > 0 && i == len(ids)-1:
			s.small.pushFront(id)
			s.in[id] = 1
		default:
			s.small.pushBack(id)
			s.in[id] = 1
		}
		s.freq[id] = 0
	}
}

func (s *S3FIFO) evict() bool {
	for {
		v, ok := s.first(&s.small)
		if ok && (float64(s.small.n) >= s.Small*float64(s.capacity) || s.main.n == 0) {
			s.small.remove(v)
			if int(s.freq[v]) >= s.Promote {
				s.freq[v] = 0
				s.in[v] = 2
				s.main.pushBack(v)
				continue
			}
			s.in[v] = 3
			s.ghost.pushBack(v)
			for s.ghost.n > s.capacity {
				g := s.ghost.next[0] - 1
				s.ghost.remove(g)
				s.in[g] = 0
			}
			return true
		}
		m, okMain := s.first(&s.main)
		if !okMain {
			if !ok {
				return false
			}
			s.small.remove(v)
			s.in[v] = 0
			return true
		}
		s.main.remove(m)
		if s.freq[m] > 0 {
			s.freq[m]--
			s.main.pushBack(m)
			continue
		}
		s.in[m] = 0
		return true
	}
}

// Belady evicts the block whose next use is farthest away, of one request the
// last first. Its own request does not protect a block, and a block that is
// taken in may leave at once: so this is a bound for policies that must keep the
// request in progress, and for those that may refuse blocks.
type Belady struct {
	uses     [][]uint32 // by block: positions in the concatenated requests, to come
	next     []uint32   // by block: the first of them
	heap     []use      // farthest first; entries whose use has passed are stale
	resident []bool
	n        int
	capacity int
}

type use struct{ at, id uint32 }

const never = ^uint32(0)

func (b *Belady) Foresee(requests [][]uint32) {
	b.uses = nil
	at := uint32(0)
	for _, ids := range requests {
		for _, id := range ids {
			for int(id) >= len(b.uses) {
				b.uses = append(b.uses, nil)
			}
			b.uses[id] = append(b.uses[id], at)
			at++
		}
	}
}

func (b *Belady) Start(capacity, unique int) {
	b.next, b.resident = make([]uint32, unique), make([]bool, unique)
	b.heap, b.n, b.capacity = nil, 0, capacity
}

func (b *Belady) Resident(id uint32) bool { return b.resident[id] }

func (b *Belady) Request(ids []uint32, _ int) {
	for _, id := range ids {
		b.uses[id] = b.uses[id][1:]
		b.next[id] = never
		if len(b.uses[id]) > 0 {
			b.next[id] = b.uses[id][0]
		}
		if !b.resident[id] {
			b.resident[id] = true
			b.n++
		}
		b.push(use{b.next[id], id})
	}
	for b.n > b.capacity {
		u := b.pop()
		if b.resident[u.id] && b.next[u.id] == u.at {
			b.resident[u.id] = false
			b.n--
		}
	}
}

func (b *Belady) push(u use) {
	b.heap = append(b.heap, u)
	for i := len(b.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if b.heap[up].at >= b.heap[i].at {
			return
		}
		b.heap[up], b.heap[i] = b.heap[i], b.heap[up]
		i = up
	}
}

func (b *Belady) pop() use {
	top := b.heap[0]
	last := len(b.heap) - 1
	b.heap[0] = b.heap[last]
	b.heap = b.heap[:last]
	for i := 0; ; {
		c := 2*i + 1
		if c >= last {
			return top
		}
		if c+1 < last && b.heap[c+1].at > b.heap[c].at {
			c++
		}
		if b.heap[i].at >= b.heap[c].at {
			return top
		}
		b.heap[i], b.heap[c] = b.heap[c], b.heap[i]
		i = c
	}
}
