package evict

import "fmt"

// Prev and Next hold a 30-bit block number each; the two bits above belong to
// the policy and survive every list operation.
const (
	idBits = 30
	idMask = 1<<idBits - 1
)

// list is a doubly linked list through nodes, from the block listed last (head)
// to the one listed first (tail).
type list struct {
	head, tail ID
	n          int
}

// links are the nodes seen as list cells. Numbers above N name cells in extra,
// which lru uses for marks.
type links struct {
	nodes []Node
	extra []Node
}

func (l *links) at(id ID) *Node {
	if int(id) < len(l.nodes) {
		return &l.nodes[id]
	}
	return &l.extra[int(id)-len(l.nodes)]
}

// older and newer are the neighbours toward the tail and the head.
func (l *links) older(id ID) ID { return ID(l.at(id).Next & idMask) }
func (l *links) newer(id ID) ID { return ID(l.at(id).Prev & idMask) }

func setLink(w *uint32, id ID) { *w = *w&^idMask | uint32(id) }

// push makes id the head.
func (l *links) push(q *list, id ID) { l.insertOlder(q, 0, id) }

// append makes id the tail.
func (l *links) append(q *list, id ID) { l.insertOlder(q, q.tail, id) }

// insertOlder puts id just behind at, toward the tail; at 0 means at the head.
func (l *links) insertOlder(q *list, at, id ID) {
	var next ID
	if at == 0 {
		next = q.head
		q.head = id
	} else {
		a := l.at(at)
		next = ID(a.Next & idMask)
		setLink(&a.Next, id)
	}
	n := l.at(id)
	setLink(&n.Prev, at)
	setLink(&n.Next, next)
	if next == 0 {
		q.tail = id
	} else {
		setLink(&l.at(next).Prev, id)
	}
	q.n++
}

// unlink takes id out of q, on which it must be.
func (l *links) unlink(q *list, id ID) {
	n := l.at(id)
	prev, next := ID(n.Prev&idMask), ID(n.Next&idMask)
	if prev == 0 {
		q.head = next
	} else {
		setLink(&l.at(prev).Next, next)
	}
	if next == 0 {
		q.tail = prev
	} else {
		setLink(&l.at(next).Prev, prev)
	}
	setLink(&n.Prev, 0)
	setLink(&n.Next, 0)
	q.n--
}

// walk verifies q and calls f for each cell from head to tail.
func (l *links) walk(q *list, f func(id ID) error) error {
	var prev ID
	count := 0
	for id := q.head; id != 0; id = l.older(id) {
		if got := l.newer(id); got != prev {
			return fmt.Errorf("block %d: newer link %d, want %d", id, got, prev)
		}
		if count++; count > q.n {
			return fmt.Errorf("list holds more than its count %d, or loops at block %d", q.n, id)
		}
		if err := f(id); err != nil {
			return err
		}
		prev = id
	}
	if prev != q.tail || count != q.n {
		return fmt.Errorf("list ends at %d with %d cells, want %d with %d", prev, count, q.tail, q.n)
	}
	return nil
}

// mustRange panics unless id names one of the shard's blocks.
func (l *links) mustRange(op string, id ID) {
	if id == 0 || int(id) >= len(l.nodes) {
		panic(fmt.Sprintf("evict: %s of block %d, valid are 1 to %d", op, id, len(l.nodes)-1))
	}
}
