package peer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// InUseError is the answer of Close when memory was still in use at the end of
// its context: it was given up without proof.
type InUseError struct {
	Slots   int // that a peer may still write
	Sources int // operations of peers that may still read claimed blocks
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("peer: close: peers may still write %d slots, and read for %d operations; give Close more time, or keep the memory until the process ends", e.Slots, e.Sources)
}

const (
	destPatience   = 500 * time.Millisecond // for answers to aborts
	sourcePatience = 2 * time.Second        // for peers that read our memory
	// lastPatience is for goroutines that have nothing to wait for.
	lastPatience = 2 * time.Second
)

// Close ends the node: operations are aborted, peers told, and memory waited for
// until ctx ends. Later calls return what the first does. Each returns in bounded
// time, with ErrClosing where the node cannot be closed in that: it is closed later
// then.
func (n *Node) Close(ctx context.Context) error {
	n.closeOnce.Do(func() {
		go func() { // not ours to wait for: we may be within what it waits for
			n.closeErr = n.close(ctx)
			close(n.closed)
		}()
	})
	bound := time.NewTimer(destPatience + sourcePatience + n.downPatience() + lastPatience)
	defer bound.Stop()
	select {
	case <-n.closed:
		return n.closeErr
	case <-bound.C:
		return &Error{Op: "close", Endpoint: n.cfg.Advertise, Err: ErrClosing}
	}
}

// downPatience is for connections to end, and routes to let go of memory.
func (n *Node) downPatience() time.Duration { return n.cfg.Stall + time.Second }

func (n *Node) close(ctx context.Context) error {
	n.mu.Lock()
	n.closing.Store(true)
	for nc := range n.raw {
		nc.SetDeadline(time.Unix(1, 0))
	}
	n.mu.Unlock()
	for _, l := range n.listeners {
		l.Close()
	}
	n.accepting.Wait()
	dests, sources := n.links()
	for _, l := range dests {
		l.link.post(call(l.abortAll))
	}
	// A destination finishes what it has; a source is told to hurry by the end of
	// the connections, but those with claims on shared memory are waited for.
	err := n.quiesce(ctx, func() bool {
		for _, l := range dests {
			if conn, ops := l.link.state(); ops > 0 && conn != nil {
				return false
			}
		}
		return true
	}, destPatience)
	bye := (&wire.Goodbye{Reason: wire.CodeShutdown, Text: "the node is closing"}).Append(nil, 0)
	err2 := n.quiesce(ctx, func() bool {
		for _, l := range sources {
			if _, ops := l.link.state(); ops > 0 {
				return false
			}
		}
		return true
	}, sourcePatience)
	_, _ = err, err2 // counted below
	n.mu.Lock()
	all := make([]*control, 0, len(n.controls))
	for c := range n.controls {
		all = append(all, c)
	}
	n.mu.Unlock()
	for _, c := range all {
		if !c.fromServer {
			c.write(bye)
		}
		c.close()
	}
	n.cancel()
	// Routes let go by themselves once their sessions are down (R3).
	dests, sources = n.links()
	_ = n.quiesce(context.WithoutCancel(ctx), n.allDown, n.downPatience())
	left := &InUseError{}
	for _, l := range sources {
		_, ops := l.link.state()
		left.Sources += ops
	}
	// Holds of moves without an answer, and claims of readers of our memory: the
	// process is about to end, or the embedder has been told.
	for _, l := range dests {
		l.link.post(call(l.giveUp))
		l.link.close()
	}
	for _, l := range sources {
		l.link.post(Dead{Peer: l.who})
		l.link.close()
	}
	n.mu.Lock()
	n.ended = true
	n.mu.Unlock()
	n.work.Wait()
	left.Slots = int(n.count.posts.Load())
	var errs []error
	if e := n.loops.Stop(); e != nil {
		errs = append(errs, fmt.Errorf("peer: event loops: %w", e))
	}
	n.procs.Close()
	for _, r := range n.routes {
		if e := r.Close(); e != nil {
			errs = append(errs, e)
		}
	}
	if left.Slots+left.Sources > 0 {
		errs = append(errs, left)
	}
	return errors.Join(errs...)
}

// quiesce waits until done, for a while at most.
func (n *Node) quiesce(ctx context.Context, done func() bool, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	t := time.NewTicker(time.Millisecond)
	defer t.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
	return nil
}

// allDown reports that no connection is left, and that no route has memory.
func (n *Node) allDown() bool {
	n.mu.Lock()
	down := len(n.controls) == 0
	n.mu.Unlock()
	return down && n.count.posts.Load() == 0 && n.count.writing.Load() == 0
}

func (n *Node) links() (dests []*destLink, sources []*sourceLink) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.dests {
		dests = append(dests, l)
	}
	for _, l := range n.sources {
		sources = append(sources, l)
	}
	return dests, sources
}

// abortAll ends all operations and requests of a link.
func (l *destLink) abortAll() {
	for op := range l.ops {
		l.link.step(Abort{Op: op})
	}
	for id, k := range l.calls {
		l.endCall(id, k)
		k.done(nil)
	}
	l.eachResolve(func(k *resolveCall) { k.end(wire.StatusClosed, ErrClosed, nil) })
}

// giveUp ends what waits for an answer that will not come.
func (l *destLink) giveUp() {
	if l.peer != 0 {
		l.link.step(Dead{Peer: l.peer})
	}
}
