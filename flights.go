package kvcr

import (
	"sync"
)

// flights are the keys whose blocks are on their way here, so that nobody brings one a
// second time meanwhile.
type flights struct {
	mu  sync.Mutex
	now map[flightKey]*flight
}

type flightKey struct {
	ns  *namespace
	key string
}

// flight is one key on its way.
type flight struct {
	owner  *Op      // who fetches it; of several, the last
	n      int      // how many times
	ending []func() // to be called at the end
}

// enter notes that op brings the keys numbered in at, and returns which; the others
// are brought by somebody else already. With all, those are brought all the same.
func (f *flights) enter(ns *namespace, op *Op, keys []string, at []int, all bool) (mine, others []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, i := range at {
		k := flightKey{ns, keys[i]}
		e := f.now[k]
		if e != nil && e.owner != op && !all {
			others = append(others, i)
			continue
		}
		if e == nil {
			e = &flight{}
			f.now[k] = e
		}
		e.owner = op
		e.n++
		mine = append(mine, i)
	}
	return mine, others
}

// split tells which keys nobody brings, and which somebody does.
func (f *flights) split(ns *namespace, keys []string, at []int) (none, some []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, i := range at {
		if f.now[flightKey{ns, keys[i]}] == nil {
			none = append(none, i)
		} else {
			some = append(some, i)
		}
	}
	return none, some
}

// leave ends what enter has noted of one key.
func (f *flights) leave(ns *namespace, key string) {
	k := flightKey{ns, key}
	f.mu.Lock()
	e := f.now[k]
	if e.n--; e.n > 0 {
		f.mu.Unlock()
		return
	}
	delete(f.now, k)
	f.mu.Unlock()
	for _, ended := range e.ending {
		ended()
	}
}

// under reports whether somebody brings the key.
func (f *flights) under(ns *namespace, key []byte) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now[flightKey{ns, string(key)}] != nil
}

// await calls ended once nobody brings the key, on the goroutine that sees it.
func (f *flights) await(ns *namespace, key string, ended func()) {
	f.mu.Lock()
	if e := f.now[flightKey{ns, key}]; e != nil {
		e.ending = append(e.ending, ended)
		f.mu.Unlock()
		return
	}
	f.mu.Unlock()
	ended()
}
