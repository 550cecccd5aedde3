package virtual

import (
	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/peer"
)

// feed is what a node tells the router of its table: changes are gathered for a moment,
// then sent, and arrive in their order.
type feed struct {
	n       *node
	pending []events.RouterEvent
	due     bool
	arrives peer.Time // of the last batch
	id      uint64
}

// localOf is the hash of a block's own tokens, as far as anybody asks here: that of the
// prompt up to it makes as good a one.
func localOf(hash uint64) uint64 { return mix(hash ^ 0x6c6f63616c) }

func (d *feed) event(op events.Op) *events.RouterEvent {
	d.id++
	d.pending = append(d.pending, events.RouterEvent{
		Worker: events.Worker{ID: uint64(d.n.id)}, Tier: events.HostPinned, Domain: events.DomainWorker, ID: d.id, Op: op,
	})
	if !d.due {
		d.due = true
		d.n.f.after(feedDelay, tag{evFlush, int32(d.n.id), d.id}, d.flush)
	}
	return &d.pending[len(d.pending)-1]
}

// last is the event that was added last, if it is of that kind.
func (d *feed) last(op events.Op) *events.RouterEvent {
	if n := len(d.pending); n > 0 && d.pending[n-1].Op == op {
		return &d.pending[n-1]
	}
	return nil
}

// stored tells of a new block: in one event with the chain that it goes on, as engines
// do.
func (d *feed) stored(hash, parent uint64) {
	b := events.Block{Hash: hash, Local: localOf(hash)}
	if e := d.last(events.Stored); e != nil && e.Blocks[len(e.Blocks)-1].Hash == parent {
		e.Blocks = append(e.Blocks, b)
		return
	}
	e := d.event(events.Stored)
	e.HasParent, e.Parent, e.Blocks = parent != 0, parent, []events.Block{b}
}

func (d *feed) removed(hash uint64) {
	if d.n.f.broken.removed && hash%64 == 0 {
		return
	}
	e := d.last(events.Removed)
	if e == nil {
		e = d.event(events.Removed)
	}
	e.Hashes = append(e.Hashes, hash)
}

func (d *feed) flush() {
	f := d.n.f
	batch := d.pending
	d.pending, d.due = nil, false
	d.arrives = max(d.arrives, f.now+f.about(routerDelay))
	f.push(d.arrives, tag{evApply, int32(d.n.id), batch[0].ID}, func() { f.router.apply(batch) })
}
