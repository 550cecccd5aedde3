package virtual

import (
	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/peer"
)

// check is what must hold when nothing happens any more.
func (f *fleet) check() {
	if f.live != 0 || f.arriving.left != 0 {
		f.fault("%d requests have not ended, %d have not come", f.live, f.arriving.left)
	}
	for i, l := range f.router.load {
		if l != 0 {
			f.fault("the router thinks that node %d has %d blocks to compute", i, l)
		}
	}
	for _, n := range f.nodes {
		n.check()
	}
	f.checkIndex()
}

func (n *node) check() {
	f, t := n.f, n.table
	zero := func(what string, v int) {
		if v != 0 {
			f.fault("%v has %d %s left", n, v, what)
		}
	}
	for _, l := range n.links {
		zero("operations as destination", l.dest.Ops())
		zero("operations that are not answered", len(l.ops))
		zero("posts", len(l.posts))
		zero("lists of hashes", len(l.resolves))
	}
	for l := range n.serves {
		zero("operations as source", l.source.Ops())
		zero("writes", len(l.writes))
	}
	zero("claims", len(t.claims))
	zero("reservations", len(t.slots))
	zero("holds", t.held)
	zero("changes that were not sent", len(n.feed.pending))
	for _, b := range t.blocks {
		if b.mark != (peer.MoveID{}) || b.hold != (peer.HoldID{}) || b.claims != 0 {
			f.fault("%v has block %x marked, held or claimed", n, b.hash)
		}
	}
	if t.used != len(t.blocks) {
		f.fault("%v has memory of %d blocks in use for %d", n, t.used, len(t.blocks))
	}
	zero("requests with advice", n.advice.Counts().Requests)
	zero("hashes of advice", n.advice.Counts().Hashes)
	zero("actions", n.tracker.Open())
	accepted, ended := 0, n.outcomes.Counts()
	for _, c := range n.dispatcher.Counts().Types[1:3] { // prefetch and move
		accepted += int(c.Accepted)
	}
	if ended := int(ended.Stages[hints.StageEnd]); ended != accepted {
		f.fault("%v has accepted %d actions, of which %d have ended", n, accepted, ended)
	}
}

// checkIndex compares the router's index with the tables.
func (f *fleet) checkIndex() {
	held := make([]int, f.Nodes) // blocks by node, as the index has them
	f.router.index.Dump(func(ev *events.RouterEvent) bool {
		n := f.nodes[ev.Worker.ID]
		held[n.id] += len(ev.Blocks)
		for _, x := range ev.Blocks {
			switch b := n.table.blocks[x.Hash]; {
			case b == nil:
				f.fault("the router thinks that %v has %x", n, x.Hash)
			case ev.HasParent != (b.parent != 0) || ev.HasParent && ev.Parent != b.parent || x.Local != localOf(b.hash) || ev.Tier != events.HostPinned:
				f.fault("the router has %x of %v in another place", x.Hash, n)
			}
		}
		return len(f.faults) < maxFaults
	})
	for i, n := range f.nodes {
		if held[i] != len(n.table.blocks) {
			f.fault("%v has %d blocks, and %d as far as the router knows", n, len(n.table.blocks), held[i])
		}
	}
	if s := f.router.index.Stats(); s.Conflicts+s.Refused > 0 {
		f.fault("the index has refused %d events or blocks, and %d were in conflict", s.Refused, s.Conflicts)
	}
}
