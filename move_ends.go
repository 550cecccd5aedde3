package kvcr

import (
	"sync"

	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// moveEnds passes on how moves end to the work that has asked for them. A node tells
// the end of each move that it has begun, after its answer.
type moveEnds struct {
	mu  sync.Mutex
	ops map[peer.OpID]*moveEnding
}

// moveEnding is an operation whose moves have not all ended.
type moveEnding struct {
	a    *asking
	left int
	// here are the items that have their answer, and whose moves have no end; over
	// those of which nothing is to be told any more.
	here, over []bool
}

// add begins to listen, before the operation is submitted.
func (m *moveEnds) add(a *asking) {
	n := len(a.at)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ops == nil {
		m.ops = map[peer.OpID]*moveEnding{}
	}
	m.ops[a.op] = &moveEnding{a: a, left: n, here: make([]bool, n), over: make([]bool, n)}
}

// answered takes the answer for an item. One that did not come has no move to tell of:
// an operation that the node refused has no outcomes at all.
func (m *moveEnds) answered(op peer.OpID, i int, s wire.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.ops[op]
	switch {
	case e == nil:
	case s == wire.StatusOK:
		e.here[i] = true
	default:
		m.overLocked(op, e, i)
	}
}

func (m *moveEnds) overLocked(op peer.OpID, e *moveEnding, i int) {
	if e.over[i] {
		return
	}
	e.over[i] = true
	if e.left--; e.left == 0 {
		delete(m.ops, op)
	}
}

// ended takes what the node says.
func (m *moveEnds) ended(o peer.Outcome) {
	m.mu.Lock()
	e := m.ops[o.Op]
	if e == nil || o.Index < 0 || o.Index >= len(e.here) { // another node's move, or a request's
		m.mu.Unlock()
		return
	}
	tell := e.here[o.Index] && !e.over[o.Index]
	m.overLocked(o.Op, e, o.Index)
	m.mu.Unlock()
	if tell {
		for _, i := range e.a.at[o.Index] {
			e.a.f.work.moved(i, o.Status)
		}
	}
}
