package sim

import (
	"fmt"

	"github.com/kvcr-go/kvcr/peer"
)

// hopeless reports whether an operation waits for a process that never comes back,
// and of whose death there is no proof.
func (d *destSide) hopeless() bool { return d.to.gone && !d.n.w.sameHost[d.n.id][d.to.id] }

// checkEnd is what must hold when nothing happens any more.
func (w *world) checkEnd() {
	if left := w.leftover(); left != "" {
		w.fail("left over at the end: %s", left)
	}
}

// leftover says what is not over, "" for nothing.
func (w *world) leftover() (left string) {
	add := func(format string, args ...any) { left += fmt.Sprintf(format, args...) + "; " }
	for _, n := range w.nodes {
		if !n.alive {
			continue
		}
		waits := map[*destSide]bool{}
		for _, d := range n.dests {
			switch {
			case d == nil || d.m.Ops() == 0:
			case d.hopeless():
				waits[d] = true
				for id, op := range d.ops {
					for i := range op.Items {
						if !op.settled[i] {
							add("%v item %d.%d is not settled", d, id, i)
						}
					}
				}
			default:
				add("%v has %d operations", d, d.m.Ops())
			}
			if d != nil && len(d.resolves) > 0 {
				add("%v waits for hashes", d)
			}
		}
		for _, s := range n.sources {
			if s.m.Ops() > 0 {
				add("%v has %d operations", s, s.m.Ops())
			}
		}
		t := n.tab
		if len(t.claims) > 0 {
			add("%v has %d claims", n, len(t.claims))
		}
		for _, b := range t.blocks {
			switch {
			case b == nil:
			case b.mark != (peer.MoveID{}):
				add("%v has %s marked", n, keys[b.key].name)
			case b.hold != (peer.HoldID{}) && !w.tables[b.hold.Source].n.gone:
				add("%v holds %s", n, keys[b.key].name)
			case b.hold != (peer.HoldID{}) && w.sameHost[n.id][w.tables[b.hold.Source].n.id]:
				add("%v holds %s though the death of its source is proven", n, keys[b.key].name)
			}
		}
		for _, s := range t.slots {
			if s.state == slotReserved && !waits[s.dest] || s.state == slotRetiring {
				add("%v has %v reserved or retiring", n, s)
			}
		}
	}
	for _, x := range w.writes {
		add("%v writes item %d.%d", x.s, x.op, x.index)
	}
	return left
}
