package peer

import (
	"context"
	"errors"
	"time"

	"github.com/kvcr-go/kvcr/wire"
)

// destResolves bounds the calls of Resolve to one endpoint that have requests under
// way: further ones wait for them.
const destResolves = 8

// Resolve asks a peer for the keys of hashes: one answer for each, in their order, also
// where there is an error: that is why the source has not answered some, of which the
// first counts; their Status says as much. It waits for a connection if need be, until
// ctx or Config.ResolveTimeout ends. Self: the endpoint is this very process, by
// whatever address.
//
// Nothing is claimed: ask for the blocks with the generation that they had
// (wire.Wanted), so that one that was replaced in between is noticed.
func (n *Node) Resolve(ctx context.Context, endpoint string, hashes []uint64) ([]Resolution, error) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.ResolveTimeout)
	defer cancel()
	m := NewResolving(n.cfg.Self, hashes, n.cfg.Timing, ResolveLimits{}, n.NextOp)
	l, err := n.dest(endpoint)
	if err != nil {
		var e *Error
		errors.As(err, &e)
		m.End(e.Status, e.Err, e.Cause)
		return answersOf(m, endpoint)
	}
	defer n.free(l)
	k := &resolveCall{l: l, m: m, done: make(chan struct{})}
	select {
	case l.resolving <- struct{}{}:
		defer func() { <-l.resolving }()
		l.link.post(call(k.begin))
		select {
		case <-k.done:
		case <-ctx.Done():
			l.link.post(call(func() { k.end(statusOf(ctx), ErrLost, ctx.Err()) }))
			select {
			case <-k.done:
			case <-time.After(endPatience): // the link has to do; what it knows is not ours
				m = NewResolving(n.cfg.Self, hashes, n.cfg.Timing, ResolveLimits{}, n.NextOp)
				m.End(statusOf(ctx), ErrLost, ctx.Err())
			}
		}
	case <-ctx.Done():
		m.End(statusOf(ctx), ErrLost, ctx.Err())
	case <-n.ctx.Done():
		m.End(wire.StatusClosed, ErrClosed, nil)
	}
	return answersOf(m, endpoint)
}

// endPatience is how long a call that is over waits for the answers that it has had: a
// link is through with what it does in microseconds.
const endPatience = 100 * time.Millisecond

func answersOf(m *Resolving, endpoint string) ([]Resolution, error) {
	all, err := m.Results()
	if e, ok := err.(*Error); ok {
		e.Endpoint = endpoint
	}
	return all, err
}

// statusOf says what a context has ended for.
func statusOf(ctx context.Context) wire.Status {
	if ctx.Err() == context.DeadlineExceeded {
		return wire.StatusTimeout
	}
	return wire.StatusAborted
}

// resolveCall is one call of Resolve, on the link. All of it belongs to who runs that.
type resolveCall struct {
	l     *destLink
	m     *Resolving
	timer *time.Timer
	over  bool
	done  chan struct{} // closed when the answers are complete, and the caller's
}

// begin takes up the call.
func (k *resolveCall) begin() {
	l := k.l
	l.resolves[k] = struct{}{}
	l.link.mu.Lock()
	l.waiting++
	l.link.mu.Unlock()
	switch why := l.lastRefusal(); {
	case l.node.closing.Load():
		k.end(wire.StatusClosed, ErrClosed, nil)
	case why != wire.StatusOK:
		k.step(Unreachable{why})
	case l.link.conn != nil:
		k.step(Up{Peer: l.peer, Route: l.route})
	default:
		k.settle() // there may be nothing to ask
	}
}

func (k *resolveCall) end(status wire.Status, err, cause error) {
	k.m.End(status, err, cause)
	k.settle()
}

func (k *resolveCall) step(ev Event) {
	for _, a := range k.m.Step(k.l.node.Now(), ev) {
		k.l.link.send(a.(Send))
	}
	k.settle()
}

// settle ends the call when it is complete, and sets its timer otherwise.
func (k *resolveCall) settle() {
	if k.over {
		return
	}
	if k.timer != nil {
		k.timer.Stop()
		k.timer = nil
	}
	if at := k.m.Next(); at != 0 && k.m.Ops() > 0 {
		k.timer = time.AfterFunc(max(0, at-k.l.node.Now()), func() {
			k.l.link.post(call(func() {
				if !k.over {
					k.step(Tick{})
				}
			}))
		})
	}
	if k.m.Ops() > 0 {
		return
	}
	k.over = true
	delete(k.l.resolves, k)
	k.l.link.mu.Lock()
	k.l.waiting--
	k.l.link.mu.Unlock()
	close(k.done)
}

// eachResolve steps all calls of Resolve that are under way.
func (l *destLink) eachResolve(f func(*resolveCall)) {
	for k := range l.resolves {
		f(k)
	}
}
