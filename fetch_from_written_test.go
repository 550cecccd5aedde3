package kvcr

import (
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

// Memory of the caller's that one source may still write is not given to another.
func TestDeliverFromWritten(t *testing.T) {
	e := open(t, Config{Capacity: 2 << 20, Shards: 1, Peers: &Peers{}})
	for _, written := range []bool{false, true} {
		op := newOp(2)
		targets := []Target{{Key: []byte("k"), Dst: make([]byte, 8)}, {Key: []byte("k"), Dst: make([]byte, 8)}}
		f := newFetching(e, e.list[0], op, [][]byte{targets[0].Key, targets[1].Key}, targets, FetchOptions{Sources: []string{"nonsense", "more of it"}, Timeout: time.Minute})
		f.e.work.Add(1)
		f.plan([]int{0, 1})
		f.planLocked(f.nextLocked())
		a := f.waiting[0]
		f.waiting, f.driving = nil, true // as if it ran, and another goroutine saw to the rest
		a.settle(peer.Settle{Op: a.op, Status: wire.StatusTimeout, Written: written})
		if got := len(f.missing); got != map[bool]int{false: 2, true: 0}[written] {
			t.Errorf("written=%t: %d keys are left for the next source", written, got)
		}
		if written && (op.Results() == nil || op.Results()[0].Reason != ReasonTimeout || op.Results()[1].Reason != ReasonTimeout) {
			t.Errorf("the answers are %v", op.Results())
		}
		if written && !op.Results()[0].written {
			t.Error("who lent the memory is not told that it may still be written")
		}
		f.driving = false
		f.drive()
		<-op.Done()
	}
}
