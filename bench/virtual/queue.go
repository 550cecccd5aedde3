package virtual

import "github.com/kvcr-go/kvcr/peer"

// event is something that will happen.
type event struct {
	at  peer.Time
	seq uint64 // of those of one moment the first pushed comes first
	tag tag
	do  func()
}

// tag names an event in the run's hash.
type tag struct {
	kind kind
	node int32
	n    uint64
}

type kind uint8

const (
	evArrive  kind = iota // a request reaches the router
	evRequest             // and its node
	evReady               // its node has computed
	evOver                // the router hears of it
	evConnect             // a destination reaches a source
	evUp                  // and learns of it
	evFrame
	evTimer
	evWritten
	evLanded
	evShut
	evFlush // a feed sends what it has
	evApply // and the router reads it
	evAction
)

// queue is a heap of events, the next one first.
type queue []event

func (q queue) less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}

func (q *queue) push(e event) {
	*q = append(*q, e)
	h := *q
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h.less(i, up) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

func (q *queue) pop() event {
	h := *q
	first, last := h[0], len(h)-1
	h[0], h[last] = h[last], event{}
	h = h[:last]
	*q = h
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			break
		}
		if down+1 < last && h.less(down+1, down) {
			down++
		}
		if !h.less(down, i) {
			break
		}
		h[i], h[down] = h[down], h[i]
		i = down
	}
	return first
}
