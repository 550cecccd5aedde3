package virtual

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvcr-go/kvcr/bench/trace"
)

// stream is requests without end, alike at all times and in all sizes of the fleet:
// copies of parts of a trace, begun one after the other at even distances, with ids of
// their own but for the first of each prompt, so that all share what all prompts of
// the trace begin with.
//
// A part is conversations, whole: requests whose second ids are the same, which is
// where prompts of the Mooncake traces part. Its time is compressed, so that turns
// come some request times apart, as they do in the trace.
type stream struct {
	left  int
	n     uint64 // requests so far
	rng   *rand.Rand
	trace *trace.Trace
	talks [][]int // requests of each conversation

	begins  time.Duration // of the next copy
	every   time.Duration
	lasts   time.Duration
	copies  uint64
	waiting []arrival // of copies that have begun, in order
}

// arrival is a request of the stream.
type arrival struct {
	n    uint64
	at   time.Duration
	ids  []uint64
	salt uint64 // of its copy
}

const (
	nodeRate     = 4   // requests a second and node: about a third of what it can compute
	copyRequests = 160 // of one copy
	copyNodes    = 10  // whose requests are those of one copy
)

func newStream(o *Options) stream {
	s := stream{left: o.Warm + o.Requests + 1, rng: rand.New(rand.NewPCG(o.Seed, 2)), trace: o.Trace}
	index := map[[2]uint64]int{}
	for i := range o.Trace.Requests {
		ids := o.Trace.Requests[i].IDs
		if len(ids) == 0 {
			continue
		}
		name := [2]uint64{ids[0], ids[min(1, len(ids)-1)]}
		at, ok := index[name]
		if !ok {
			at = len(s.talks)
			index[name] = at
			s.talks = append(s.talks, nil)
		}
		s.talks[at] = append(s.talks[at], i)
	}
	// A copy's requests come as fast as copyNodes nodes get theirs.
	s.lasts = copyRequests * time.Second / (nodeRate * copyNodes)
	s.every = time.Duration(float64(s.lasts) * copyNodes / float64(o.Nodes))
	s.begins = -s.lasts
	return s
}

// next is the next request.
func (s *stream) next() arrival {
	for len(s.waiting) == 0 || s.begins <= s.waiting[0].at {
		s.begin()
	}
	a := s.waiting[0]
	s.waiting[0] = arrival{}
	s.waiting = s.waiting[1:]
	a.n = s.n
	s.n++
	s.left--
	return a
}

// begin begins one more copy.
func (s *stream) begin() {
	var of []int
	for _, t := range s.rng.Perm(len(s.talks)) {
		if of = append(of, s.talks[t]...); len(of) >= copyRequests {
			break
		}
	}
	slices.Sort(of)
	first, last := s.trace.Requests[of[0]].Timestamp, s.trace.Requests[of[len(of)-1]].Timestamp
	s.copies++
	for _, i := range of {
		r := &s.trace.Requests[i]
		at := s.begins + time.Duration(float64(r.Timestamp-first)/float64(max(1, last-first))*float64(s.lasts))
		if at >= 0 { // the first copies are under way when the run begins
			s.waiting = append(s.waiting, arrival{at: at, ids: r.IDs, salt: s.copies})
		}
	}
	slices.SortStableFunc(s.waiting, func(a, b arrival) int { return int(a.at - b.at) })
	s.begins += s.every
}

// hashes are those of the blocks of a request: each of the prompt up to its end, length
// of them for each id.
func (a *arrival) hashes(length int) []uint64 {
	out := make([]uint64, 0, len(a.ids)*length)
	before := uint64(0)
	for i, id := range a.ids {
		if i > 0 {
			id ^= a.salt << 40
		}
		for part := range length {
			before = max(1, mix(before^mix(id<<8^uint64(part))))
			out = append(out, before)
		}
	}
	return out
}

// WarmUp is how many requests a node gets until the first copies are over, which begin
// with turns of conversations that nobody has had.
const WarmUp = copyRequests / copyNodes
