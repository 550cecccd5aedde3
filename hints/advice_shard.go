package hints

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// adviceShard holds some of the requests, findable by id and in the order of their
// ages.
type adviceShard struct {
	mu     sync.Mutex
	places []*request // by the hash of the id; requests of one place are chained
	// The list by age. oldest is first's age, 0 without one: written with mu, read by
	// whoever looks for the oldest of all shards.
	first, last *request
	oldest      atomic.Uint64
	counts      AdviceCounts

	_ [64]byte // shards are locked by different cores
}

// request is the advice for one request.
type request struct {
	hash uint64
	id   []byte // a copy, in memory that the next request uses again
	next *request

	older, newer *request
	age          uint64 // version of the newest advice in it: grows over all shards
	born         time.Duration

	sources []source
}

// source is one source of a request.
type source struct {
	endpoint                    string
	set                         *hashSet
	version                     uint64
	noRetain, noFramework, move bool
	failed                      bool
	misses                      map[uint64]struct{} // keys that it did not deliver, by keyID
}

// weight is what the source counts for in AdviceConfig.Hashes.
func (s *source) weight() int64 { return int64(len(s.set.list) + len(s.misses)) }

var requestPool = sync.Pool{New: func() any { return new(request) }}

func (s *adviceShard) place(h uint64) **request { return &s.places[h&uint64(len(s.places)-1)] }

func (s *adviceShard) findLocked(h uint64, id string) *request {
	for r := *s.place(h); r != nil; r = r.next {
		if r.hash == h && string(r.id) == id {
			return r
		}
	}
	return nil
}

// submitLocked keeps a source for a request. It owns fresh.set when it succeeds.
func (s *adviceShard) submitLocked(a *Advice, h uint64, id string, fresh source, now time.Duration) error {
	r := s.findLocked(h, id)
	if r == nil {
		r = requestPool.Get().(*request)
		r.hash, r.id = h, append(r.id[:0], id...)
		place := s.place(h)
		r.next, *place = *place, r
		a.requests.Add(1)
	} else {
		old := r.source(fresh.endpoint)
		switch {
		case old != nil:
			a.hashes.Add(-old.weight())
			old.set.release()
			fresh.misses = old.misses
			clear(fresh.misses)
			*old = fresh
			s.counts.Replaced++
		case a.cfg.PoisonOnConflict:
			r.sources[0].failed = true
			s.counts.Conflicts++
			return &Rejection{SourceConflict, fmt.Sprintf("the request has advice from %s already, which is no longer used", r.sources[0].endpoint)}
		case len(r.sources) == a.cfg.Sources:
			return &Rejection{LimitExceeded, fmt.Sprintf("the request has %d sources already (raise AdviceConfig.Sources)", a.cfg.Sources)}
		default:
			r.sources = append(r.sources, fresh)
			s.counts.Fallbacks++
		}
		s.unlinkLocked(r)
	}
	if len(r.sources) == 0 {
		r.sources = append(r.sources, fresh)
	}
	s.counts.Submitted++
	a.hashes.Add(fresh.weight())
	r.age, r.born = fresh.version, now
	s.appendLocked(r)
	return nil
}

func (r *request) source(endpoint string) *source {
	for i := range r.sources {
		if r.sources[i].endpoint == endpoint {
			return &r.sources[i]
		}
	}
	return nil
}

// appendLocked makes r the newest.
func (s *adviceShard) appendLocked(r *request) {
	r.older, r.newer = s.last, nil
	if s.last != nil {
		s.last.newer = r
	} else {
		s.first = r
		s.oldest.Store(r.age)
	}
	s.last = r
}

func (s *adviceShard) unlinkLocked(r *request) {
	if r.older != nil {
		r.older.newer = r.newer
	} else {
		s.first = r.newer
		if s.first != nil {
			s.oldest.Store(s.first.age)
		} else {
			s.oldest.Store(0)
		}
	}
	if r.newer != nil {
		r.newer.older = r.older
	} else {
		s.last = r.older
	}
}

// dropLocked forgets r.
func (s *adviceShard) dropLocked(a *Advice, r *request) {
	s.unlinkLocked(r)
	at := s.place(r.hash)
	for *at != r {
		at = &(*at).next
	}
	*at = r.next
	for i := range r.sources {
		a.hashes.Add(-r.sources[i].weight())
		r.sources[i].set.release()
	}
	clear(r.sources)
	a.requests.Add(-1)
	*r = request{id: r.id[:0], sources: r.sources[:0]}
	requestPool.Put(r)
}

// expireLocked forgets what is too old.
func (s *adviceShard) expireLocked(a *Advice, now time.Duration) {
	for s.first != nil && now-s.first.born >= a.cfg.MaxAge {
		s.dropLocked(a, s.first)
		s.counts.Expired++
	}
}
