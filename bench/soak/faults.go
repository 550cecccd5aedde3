package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// The faults of nodes and of their links as a whole. What happens to single
// connections is up to the relays.
const (
	faultKill    = "kill"      // SIGKILL, and started again
	faultStop    = "stop"      // SIGTERM, and started again
	faultHalt    = "halt"      // SIGSTOP for a while
	faultCut     = "cut links" // all connections through the relays are reset
	faultSilence = "hold links"
)

// fault is one entry of the schedule.
type fault struct {
	at   time.Duration
	kind string
	node int
	last time.Duration
}

func (f fault) String() string {
	return fmt.Sprintf("%v: %s node %d for %v", f.at.Round(time.Millisecond), f.kind, f.node, f.last.Round(time.Millisecond))
}

// schedule draws the faults of a run of length d, about one in each period. The first
// node is never ended, so that there is one whose whole life is looked at; the first
// fault is a kill.
func schedule(rng *rand.Rand, nodes int, d, period time.Duration) (all []fault) {
	for at := period / 2; at < d-period/4; at += period/2 + time.Duration(rng.Int64N(int64(period))) {
		f := fault{at: at, node: rng.IntN(nodes)}
		long := time.Duration(rng.IntN(2500)) * time.Millisecond
		switch x := rng.IntN(100); {
		case len(all) == 0 || x < 30:
			f.kind, f.last = faultKill, long/4
		case x < 50:
			f.kind, f.last = faultStop, long/4
		case x < 70:
			f.kind, f.last = faultHalt, long
		case x < 85:
			f.kind = faultCut
		default:
			f.kind, f.last = faultSilence, long
		}
		if f.kind == faultKill || f.kind == faultStop {
			f.node = 1 + rng.IntN(nodes-1)
		}
		all = append(all, f)
	}
	return all
}

// spoil carries the schedule out. It returns with all nodes running, or the error of
// one that could not be started.
func (r *run) spoil(ctx context.Context, all []fault) error {
	begun := time.Now()
	for _, f := range all {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(begun.Add(f.at))):
		}
		n := r.nodes[f.node]
		r.o.Progress(fmt.Sprintf("%s: %v", r.kind, f))
		r.faults.add(f.kind, 1)
		switch f.kind {
		case faultKill, faultStop:
			if f.kind == faultKill {
				n.kill()
			} else {
				n.stop()
			}
			pause(ctx, f.last)
			if err := n.start(context.WithoutCancel(ctx)); err != nil {
				return err
			}
		case faultHalt:
			n.halt(ctx, f.last)
		case faultCut:
			n.cut()
		case faultSilence:
			for _, l := range n.relays() {
				l.hold()
			}
			pause(ctx, f.last)
			for _, l := range n.relays() {
				l.pass()
			}
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
