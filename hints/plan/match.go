package plan

import "github.com/kvcr-go/kvcr/hints/events"

// Scratch is the memory of lookups of one goroutine. Results in it are valid until
// the next lookup with it.
type Scratch struct {
	index  *Index
	reader *reader
	match  Match
	walk   walk
	cover  cover

	// Of Scores.
	slots []uint32
	bases []int32
	stops []stop
	sets  []uint64
}

// NewScratch returns a Scratch for lookups in x. It may be dropped without a call.
func (x *Index) NewScratch() *Scratch {
	s := &Scratch{index: x}
	s.reader = x.epochs.register(s)
	return s
}

// Match is the device side of a lookup.
type Match struct {
	locals   []uint64
	topology *topology
	names    []Owner // by slot
	turn     uint64  // of owners
	words    int     // of a set of slots
	path     []uint64
	stops    []stop
	sets     []uint64 // of stops
}

// stop is a set of owners that have the same device depth.
type stop struct {
	depth int
	at    int // in sets, the first of its words
}

func (m *Match) set(i int) []uint64 { return m.sets[m.stops[i].at:][:m.words:m.words] }

// Match finds the device depth of every worker for a prompt's local hashes. The caller
// must not change locals until it is done with the results, and with those of what it
// calls with them. The routing snapshot of all of them is the one of now.
func (x *Index) Match(s *Scratch, locals []uint64) *Match {
	x.epochs.enter(s.reader)
	defer x.epochs.leave(s.reader)
	m := &s.match
	m.locals = locals
	for range 4 {
		x.match(m, &s.walk)
		if x.owners.turn.Load() == m.turn {
			break // otherwise what is called with m does it again
		}
	}
	return m
}

// match fills m anew for m.locals, with the sets of w.
func (x *Index) match(m *Match, w *walk) {
	m.turn = x.owners.turn.Load() // (T): before names
	m.topology = x.topology.Load()
	m.names = *x.owners.names.Load()
	m.words = (len(m.names) + 63) / 64
	m.path, m.stops, m.sets = m.path[:0], m.stops[:0], m.sets[:0]

	// All slots start; those that hold nothing stop at once.
	w.size(m)
	alive, next := w.alive, w.next
	m.everyone(alive)
	t := x.tiers[events.Device]
	var v view
	parent := uint64(0)
	for p := 0; p < len(m.locals); {
		end := v.step(t, m.locals, parent, p, alive, nil, next, nil)
		if end == p {
			break
		}
		if p > 0 {
			m.stop(alive, next, p)
		}
		alive, next = next, alive
		if empty(alive) {
			return
		}
		m.path = append(m.path, v.hashesFrom(p, end)...)
		p, parent = end, m.path[end-1]
	}
	if n := len(m.path); n > 0 {
		clear(next)
		m.stop(alive, next, n)
	}
}

// everyone fills a set with the slots that had an owner when the lookup began. Others
// may have blocks by now, but m has no names for them.
func (m *Match) everyone(set []uint64) {
	for i := range set {
		set[i] = ^uint64(0)
	}
	if n := len(m.names) % 64; n > 0 {
		set[len(set)-1] = 1<<n - 1
	}
}

// stop notes the owners in from that are not in on.
func (m *Match) stop(from, on []uint64, depth int) {
	some := uint64(0)
	for i := range from {
		some |= from[i] &^ on[i]
	}
	if some == 0 {
		return
	}
	m.stops = append(m.stops, stop{depth, len(m.sets)})
	for i := range from {
		m.sets = append(m.sets, from[i]&^on[i])
	}
}

func empty(set []uint64) bool {
	some := uint64(0)
	for _, w := range set {
		some |= w
	}
	return some == 0
}

// Depth returns the device depth of a worker.
func (m *Match) Depth(w events.Worker) int {
	for slot, name := range m.names {
		if name != ofWorker(w) {
			continue // a slot that was given back keeps its name: there may be two
		}
		for i, st := range m.stops {
			if has(m.set(i), uint32(slot)) {
				return st.depth
			}
		}
	}
	return 0
}

// Len returns how many of the prompt's blocks some worker holds from the root on.
func (m *Match) Len() int { return len(m.path) }
