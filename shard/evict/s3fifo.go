package evict

import "math/bits"

// s3fifo is S3-FIFO (Yang et al., SOSP 2023) with what a lazy policy can see:
// touched or not since a block was listed, in place of a two-bit counter. New
// blocks enter a small queue; those touched there move on to the main queue,
// the others leave and are remembered in a ghost table, whence they return to
// the main queue at once.
type s3fifo struct {
	queue
	small, main list
	smallMax    int // blocks in small above which it gives the victim
	ghost       ghost
}

const (
	queueSmall = 1
	queueMain  = 2

	defaultSmall = 0.1 // share of the blocks
)

func newS3FIFO(nodes []Node, b Blocks, small float64) *s3fifo {
	n := len(nodes) - 1
	return &s3fifo{
		queue:    queue{links: links{nodes: nodes}, b: b},
		smallMax: max(1, int(small*float64(n))),
		ghost:    newGhost(n),
	}
}

func (s *s3fifo) Name() string          { return "s3fifo" }
func (s *s3fifo) Admit([]Insert) bool   { return true }
func (s *s3fifo) Decide(ID) Decision    { return Drop }
func (s *s3fifo) Relink(ID, ID, uint32) {}
func (s *s3fifo) Check() error          { return s.checkQueues(&s.small, &s.main) }

func (s *s3fifo) Clear() {
	clear(s.nodes)
	clear(s.ghost.prints)
	s.small, s.main = list{}, list{}
}

func (s *s3fifo) queueOf(number uint32) *list {
	if number == queueSmall {
		return &s.small
	}
	return &s.main
}

func (s *s3fifo) insert(id ID, number, listed uint32) {
	s.mark(id, number, listed)
	s.push(s.queueOf(number), id)
}

func (s *s3fifo) remove(id ID) {
	s.unlink(s.queueOf(s.number(id)), id)
	s.mark(id, queueNone, 0)
}

func (s *s3fifo) Insert(run []Insert, now uint32) {
	for i := len(run) - 1; i >= 0; i-- {
		id := run[i].ID
		s.mustAbsent("insert", id)
		s.b.SetLast(id, now)
		if s.ghost.take(run[i].Hash) {
			s.insert(id, queueMain, now)
		} else {
			s.insert(id, queueSmall, now)
		}
	}
}

// Replace keeps the place of old and leaves new touched: listed one tick ago.
func (s *s3fifo) Replace(old, new ID, now uint32) {
	s.mustResident("replace", old)
	s.mustAbsent("replace", new)
	number := s.number(old)
	s.b.SetLast(new, now)
	s.mark(new, number, now-1)
	s.insertOlder(s.queueOf(number), old, new)
	s.remove(old)
}

func (s *s3fifo) Remove(id ID, why Reason, _ uint32) {
	s.mustResident("remove", id)
	if why == Evicted && s.number(id) == queueSmall {
		s.ghost.put(s.b.Hash(id))
	}
	s.remove(id)
}

func (s *s3fifo) Victim(now uint32) ID {
	var best ID // the first touched block met in main: it gives way if all are
	for range victimSteps {
		from := uint32(queueMain)
		if s.small.n > s.smallMax || s.main.n == 0 {
			from = queueSmall
		}
		id := s.queueOf(from).tail
		switch {
		case id == 0:
			return 0 // both empty
		case s.b.Busy(id):
			s.remove(id)
			s.insert(id, from, now)
		case s.touched(id):
			if best == 0 && from == queueMain {
				best = id
			}
			last := s.b.Last(id)
			s.remove(id)
			s.insert(id, queueMain, last)
		default:
			return id
		}
	}
	if best != 0 {
		return best
	}
	if id := s.firstFree(&s.small); id != 0 {
		return id
	}
	return s.firstFree(&s.main)
}

// ghost remembers hashes of blocks that left, 32 bits of each, in sets of eight
// with the newest first. It has room for as many as there are blocks, up to
// 1<<18 (1 MiB).
type ghost struct {
	prints []uint32 // 0 is empty
	shift  uint
}

const ghostWays = 8

func newGhost(blocks int) ghost {
	size := 1 << bits.Len(uint(max(min(blocks, 1<<18), 2*ghostWays)-1))
	return ghost{prints: make([]uint32, size), shift: uint(64 - bits.Len(uint(size/ghostWays-1)))}
}

func (g *ghost) set(hash uint64) (ways []uint32, print uint32) {
	h := mix(hash)
	i := int(h>>g.shift) * ghostWays
	return g.prints[i : i+ghostWays], uint32(h) | 1
}

func (g *ghost) put(hash uint64) {
	ways, print := g.set(hash)
	copy(ways[1:], ways)
	ways[0] = print
}

// take reports whether hash is remembered, and forgets it.
func (g *ghost) take(hash uint64) bool {
	ways, print := g.set(hash)
	for i, p := range ways {
		if p == print {
			copy(ways[i:], ways[i+1:])
			ways[ghostWays-1] = 0
			return true
		}
	}
	return false
}

// mix spreads a key hash whose bits may already have chosen shard, bucket and
// fingerprint (the finalizer of splitmix64).
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
