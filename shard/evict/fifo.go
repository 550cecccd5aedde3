package evict

import "fmt"

// The simple policies keep one word for a block: which queue it is on, and the
// low 28 bits of the tick under which it was listed there. A touch is seen as a
// difference; one in 1<<28 is missed, which costs that block one round.
const (
	queueNone  = 0 // not resident
	queueBits  = 4
	queueMask  = 1<<queueBits - 1
	listedMask = 1<<(32-queueBits) - 1
)

// victimSteps bounds the touched or busy blocks that one Victim moves away
// before it takes the best it has seen. 128 is arbitrary: every move is paid for
// by a touch, so the bound only matters after a burst of touches.
const victimSteps = 128

// queue is what fifo, lru and s3fifo share.
type queue struct {
	links
	b Blocks
}

func (q *queue) number(id ID) uint32 { return q.nodes[id].Word & queueMask }

func (q *queue) mark(id ID, number, listed uint32) {
	q.nodes[id].Word = listed<<queueBits | number
}

func (q *queue) touched(id ID) bool {
	return (q.b.Last(id)^q.nodes[id].Word>>queueBits)&listedMask != 0
}

func (q *queue) mustResident(op string, id ID) {
	q.mustRange(op, id)
	if q.number(id) == queueNone {
		panic(fmt.Sprintf("evict: %s of block %d, which is not resident", op, id))
	}
}

func (q *queue) mustAbsent(op string, id ID) {
	q.mustRange(op, id)
	if q.number(id) != queueNone {
		panic(fmt.Sprintf("evict: %s of block %d, which is resident already", op, id))
	}
}

// firstFree walks from the cold end to the first block that is not busy. It is
// the slow road, taken when all blocks met in a bounded search were busy.
func (q *queue) firstFree(l *list) ID {
	for id := l.tail; id != 0; id = q.newer(id) {
		if int(id) < len(q.nodes) && !q.b.Busy(id) {
			return id
		}
	}
	return 0
}

// checkQueues verifies that exactly the resident blocks are on their lists.
// lists[i] holds the blocks whose number is i+1.
func (q *queue) checkQueues(lists ...*list) error {
	counts := make([]int, len(lists)+1)
	for id := 1; id < len(q.nodes); id++ {
		n := q.number(ID(id))
		if int(n) > len(lists) {
			return fmt.Errorf("block %d is on queue %d of %d", id, n, len(lists))
		}
		counts[n]++
	}
	for i, l := range lists {
		blocks := 0
		err := q.walk(l, func(id ID) error {
			if int(id) >= len(q.nodes) {
				return nil // one of lru's marks
			}
			blocks++
			if n := q.number(id); n != uint32(i+1) {
				return fmt.Errorf("block %d on list %d says %d", id, i+1, n)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if blocks != counts[i+1] {
			return fmt.Errorf("list %d holds %d blocks, %d say they are on it", i+1, blocks, counts[i+1])
		}
	}
	return nil
}

// fifo evicts in order of insertion, the tail of a deposited run before its head.
type fifo struct {
	queue
	l list
}

const queueFIFO = 1

func newFIFO(nodes []Node, b Blocks) *fifo {
	return &fifo{queue: queue{links: links{nodes: nodes}, b: b}}
}

func (f *fifo) Name() string             { return "fifo" }
func (f *fifo) Admit([]Insert) bool      { return true }
func (f *fifo) Decide(ID) Decision       { return Drop }
func (f *fifo) Relink(ID, ID, uint32)    {}
func (f *fifo) Check() error             { return f.checkQueues(&f.l) }
func (f *fifo) Clear()                   { clear(f.nodes); f.l = list{} }
func (f *fifo) insert(id ID, now uint32) { f.mark(id, queueFIFO, now); f.push(&f.l, id) }
func (f *fifo) remove(id ID)             { f.mark(id, queueNone, 0); f.unlink(&f.l, id) }
func (f *fifo) Remove(id ID, _ Reason, _ uint32) {
	f.mustResident("remove", id)
	f.remove(id)
}

func (f *fifo) Insert(run []Insert, now uint32) {
	for i := len(run) - 1; i >= 0; i-- {
		f.mustAbsent("insert", run[i].ID)
		f.b.SetLast(run[i].ID, now)
		f.insert(run[i].ID, now)
	}
}

// Replace keeps the place of old: a new value is not a new arrival.
func (f *fifo) Replace(old, new ID, now uint32) {
	f.mustResident("replace", old)
	f.mustAbsent("replace", new)
	f.b.SetLast(new, now)
	f.mark(new, queueFIFO, now)
	f.insertOlder(&f.l, old, new)
	f.remove(old)
}

func (f *fifo) Victim(now uint32) ID {
	for range min(victimSteps, f.l.n) {
		id := f.l.tail
		if !f.b.Busy(id) {
			return id
		}
		f.remove(id)
		f.insert(id, now)
	}
	return f.firstFree(&f.l)
}
