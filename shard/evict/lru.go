package evict

import "fmt"

// lru evicts by last access, the tail of a chain before its head.
//
// Hits do not move a block: a touched block is moved when it is met at the cold
// end, to the place its last access deserves, which may be anywhere. Marks make
// that place cheap to find. A mark is a list cell that carries the tick at which
// it was put at the head, so that blocks behind it were listed at or before that
// tick; a binary search over the marks finds the place to within 1/128 of the
// blocks. Equal ticks keep their order, which is tail before head.
type lru struct {
	queue
	l list

	ring  [lruMarks]ID // marks on the list, oldest first, from ring[first]
	first int
	live  int
	ticks [lruMarks]uint32 // by mark
	spare [lruMarks]ID     // marks not on the list
	idle  int

	listings int // at the head since the last mark
	period   int // listings between two marks
}

const (
	queueLRU = 1

	// lruMarks is twice what the period needs, so that marks run out only when
	// touches make the list turn over slowly; then every other is given up.
	lruMarks = 256
)

func newLRU(nodes []Node, b Blocks) *lru {
	l := &lru{
		queue:  queue{links: links{nodes: nodes, extra: make([]Node, lruMarks)}, b: b},
		period: max(1, (len(nodes)-1)/(lruMarks/2)),
	}
	l.reset()
	return l
}

func (l *lru) reset() {
	l.l, l.first, l.live, l.listings, l.idle = list{}, 0, 0, 0, lruMarks
	clear(l.extra)
	for i := range l.spare {
		l.spare[i] = ID(len(l.nodes) + i)
	}
}

func (l *lru) Name() string          { return "lru" }
func (l *lru) Admit([]Insert) bool   { return true }
func (l *lru) Decide(ID) Decision    { return Drop }
func (l *lru) Relink(ID, ID, uint32) {}
func (l *lru) Clear()                { clear(l.nodes); l.reset() }

func (l *lru) isMark(id ID) bool    { return int(id) >= len(l.nodes) }
func (l *lru) tick(mark ID) *uint32 { return &l.ticks[int(mark)-len(l.nodes)] }
func (l *lru) nth(i int) ID         { return l.ring[(l.first+i)%lruMarks] }
func (l *lru) remove(id ID)         { l.mark(id, queueNone, 0); l.unlink(&l.l, id) }
func (l *lru) Remove(id ID, _ Reason, _ uint32) {
	l.mustResident("remove", id)
	l.remove(id)
	for l.l.tail != 0 && l.isMark(l.l.tail) {
		l.dropOldestMark()
	}
}

func (l *lru) dropOldestMark() {
	m := l.nth(0)
	l.unlink(&l.l, m)
	l.spare[l.idle] = m
	l.idle++
	l.first = (l.first + 1) % lruMarks
	l.live--
}

// pushMark puts a mark at the head.
func (l *lru) pushMark(now uint32) {
	l.listings = 0
	if l.idle == 0 { // give up every other mark
		kept := 0
		for i := range l.live {
			m := l.nth(i)
			if i%2 == 0 {
				l.unlink(&l.l, m)
				l.spare[l.idle] = m
				l.idle++
			} else {
				l.ring[(l.first+kept)%lruMarks] = m
				kept++
			}
		}
		l.live = kept
	}
	l.idle--
	m := l.spare[l.idle]
	*l.tick(m) = now
	l.push(&l.l, m)
	l.ring[(l.first+l.live)%lruMarks] = m
	l.live++
}

// pushHead lists id as the most recent block.
func (l *lru) pushHead(id ID, now uint32) {
	l.mark(id, queueLRU, now)
	l.push(&l.l, id)
	l.listings++
}

// place lists id where a block last accessed at last belongs: behind the oldest
// mark that was put down no earlier than that.
func (l *lru) place(id ID, last, now uint32) {
	age := now - last
	lo, hi := 0, l.live // marks [hi, live) are as young as the block or younger
	for lo < hi {
		mid := (lo + hi) / 2
		if now-*l.tick(l.nth(mid)) <= age {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	if lo == l.live {
		l.pushHead(id, last)
		return
	}
	l.mark(id, queueLRU, last)
	l.insertOlder(&l.l, l.nth(lo), id)
}

func (l *lru) Insert(run []Insert, now uint32) {
	if l.listings >= l.period {
		l.pushMark(now - 1) // what is listed now is younger
	}
	// A chain deposited in pieces is still listed tail first: behind its parent,
	// if that was itself listed just now.
	if len(run) > 0 && l.fresh(run[0].Parent, now) {
		at := run[0].Parent
		for i := range run {
			id := run[i].ID
			l.mustAbsent("insert", id)
			l.b.SetLast(id, now)
			l.mark(id, queueLRU, now)
			l.insertOlder(&l.l, at, id)
			at = id
		}
		l.listings += len(run)
		return
	}
	for i := len(run) - 1; i >= 0; i-- {
		id := run[i].ID
		l.mustAbsent("insert", id)
		l.b.SetLast(id, now)
		l.pushHead(id, now)
	}
}

// fresh reports that p is listed where a block listed now would be, as far as
// marks can tell.
func (l *lru) fresh(p ID, now uint32) bool {
	return p != 0 && int(p) < len(l.nodes) && l.number(p) != queueNone && !l.touched(p) &&
		now-l.b.Last(p) <= uint32(l.period)
}

func (l *lru) Replace(old, new ID, now uint32) {
	l.mustResident("replace", old)
	l.mustAbsent("replace", new)
	l.b.SetLast(new, now)
	l.remove(old)
	l.pushHead(new, now)
}

func (l *lru) Victim(now uint32) ID {
	var best ID // the longest unused of the touched blocks met
	var bestAge uint32
	for range victimSteps {
		id := l.l.tail
		switch {
		case id == 0:
			return 0
		case l.isMark(id):
			l.dropOldestMark()
		case l.b.Busy(id):
			l.unlink(&l.l, id)
			l.pushHead(id, now)
		case l.touched(id):
			last := l.b.Last(id)
			if age := now - last; best == 0 || age > bestAge {
				best, bestAge = id, age
			}
			l.unlink(&l.l, id)
			l.place(id, last, now)
		default:
			return id
		}
	}
	if best != 0 {
		return best
	}
	return l.firstFree(&l.l)
}

func (l *lru) Check() error {
	if err := l.checkQueues(&l.l); err != nil {
		return err
	}
	if l.live+l.idle != lruMarks {
		return fmt.Errorf("lru: %d marks listed and %d idle, want %d together", l.live, l.idle, lruMarks)
	}
	i := 0
	for id := l.l.tail; id != 0; id = l.newer(id) {
		if l.isMark(id) {
			if id != l.nth(i) {
				return fmt.Errorf("lru: mark %d on the list where the ring has %d", id, l.nth(i))
			}
			i++
		}
	}
	if i != l.live {
		return fmt.Errorf("lru: %d marks on the list, ring has %d", i, l.live)
	}
	return nil
}
