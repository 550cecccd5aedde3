package peer

import (
	"context"
	"errors"

	"github.com/kvcr-go/kvcr/wire"
)

// NextOp takes a number for an operation, for callers that must know it before
// Submit.
func (n *Node) NextOp() OpID { return OpID(n.nextOp.Add(1)) }

// Submit begins an operation with a peer and returns its number: s.Op, or a new
// one when that is 0. settle is called exactly once for each item, perhaps before
// Submit returns. There is always an end: no later than s.Deadline, on the clock
// of Now, but for items of the caller's memory (Deliver), which end when nobody
// writes to it any more.
func (n *Node) Submit(endpoint string, s Submit, settle func(Settle)) OpID {
	if s.Op == 0 {
		s.Op = n.NextOp()
	}
	fail := func(why wire.Status) OpID {
		n.count.refusals.Add(1)
		for i := range s.Items {
			settle(Settle{Op: s.Op, Index: i, Status: why})
		}
		return s.Op
	}
	if len(s.Items) == 0 || len(s.Items) > wire.MaxItems || len(s.Namespace) > wire.MaxName {
		return fail(wire.StatusTooLarge)
	}
	for i := range s.Items {
		if k := len(s.Items[i].Key); k == 0 || k > wire.MaxKey {
			return fail(wire.StatusBadKey)
		}
	}
	if repeated(s.Items) {
		return fail(wire.StatusBadKey)
	}
	if n.cfg.Fingerprint != nil && s.Fingerprint == [32]byte{} {
		s.Fingerprint = n.cfg.Fingerprint(s.Namespace)
	}
	l, err := n.dest(endpoint)
	if err != nil {
		var e *Error
		errors.As(err, &e)
		return fail(e.Status)
	}
	defer n.free(l)
	l.submit(s, settle)
	return s.Op
}

// Abort ends items of an operation, all when none is named. The endpoint must be the
// one of its Submit, and not another of the same process. What has been committed
// stays.
func (n *Node) Abort(endpoint string, op OpID, items ...int) {
	n.mu.Lock()
	l := n.dests[endpoint]
	n.mu.Unlock()
	if l != nil {
		l.link.post(Abort{op, items})
	}
}

// Query asks what a peer could offer of keys; one result for each. It waits for a
// connection if need be.
func (n *Node) Query(ctx context.Context, endpoint, namespace string, keys [][]byte) ([]wire.Result, error) {
	size := 0
	for _, k := range keys {
		if size += 2 + len(k); len(k) == 0 || len(k) > wire.MaxKey {
			return nil, &Error{Op: "query", Endpoint: endpoint, Status: wire.StatusBadKey, Err: ErrRefused}
		}
	}
	if len(keys) > wire.MaxList || len(namespace) > wire.MaxName || size > wire.MaxPayload-1<<10 {
		return nil, &Error{Op: "query", Endpoint: endpoint, Status: wire.StatusTooLarge, Err: ErrRefused}
	}
	m, err := n.ask(ctx, "query", endpoint, namespace, &wire.PeerQuery{Namespace: namespace, Keys: keys})
	if err != nil {
		return nil, err
	}
	r, ok := m.(*wire.Results)
	if !ok || len(r.Results) != len(keys) {
		return nil, &Error{Op: "query", Endpoint: endpoint, Err: ErrLost, Cause: errors.New("an answer that makes no sense")}
	}
	return r.Results, nil
}

// Invalidate has a peer remove blocks, each of its generation unless that is 0. A
// request whose answer was lost is repeated, so that StatusMiss may mean that the
// first one has removed the block.
func (n *Node) Invalidate(ctx context.Context, endpoint, namespace string, items []wire.Wanted) ([]wire.Status, error) {
	for i := range items {
		if k := len(items[i].Key); k == 0 || k > wire.MaxKey {
			return nil, &Error{Op: "invalidate", Endpoint: endpoint, Status: wire.StatusBadKey, Err: ErrRefused}
		}
	}
	if len(items) > wire.MaxItems || len(namespace) > wire.MaxName {
		return nil, &Error{Op: "invalidate", Endpoint: endpoint, Status: wire.StatusTooLarge, Err: ErrRefused}
	}
	m, err := n.ask(ctx, "invalidate", endpoint, namespace, &wire.Invalidate{Namespace: namespace, Items: items})
	if err != nil {
		return nil, err
	}
	r, ok := m.(*wire.Statuses)
	if !ok || len(r.Statuses) != len(items) {
		return nil, &Error{Op: "invalidate", Endpoint: endpoint, Err: ErrLost, Cause: errors.New("an answer that makes no sense")}
	}
	return r.Statuses, nil
}

// ask sends a request and waits for the answer, over as many connections as it
// takes.
func (n *Node) ask(ctx context.Context, what, endpoint, namespace string, m wire.Message) (wire.Message, error) {
	l, err := n.dest(endpoint)
	if err != nil {
		return nil, err
	}
	defer n.free(l)
	for {
		if n.closing.Load() {
			return nil, &Error{Op: what, Endpoint: endpoint, Err: ErrClosed}
		}
		got := make(chan wire.Message, 1)
		cancel := l.request(uint64(n.NextOp()), namespace, m, func(m wire.Message) { got <- m })
		select {
		case m := <-got:
			switch m := m.(type) {
			case nil:
				continue
			case *wire.StatusReply:
				return nil, &Error{Op: what, Endpoint: endpoint, Status: m.Status, Err: ErrRefused}
			case *wire.ErrorReply:
				return nil, &Error{Op: what, Endpoint: endpoint, Err: ErrRefused, Cause: errors.New(m.Text)}
			case *garbled:
				return nil, &Error{Op: what, Endpoint: endpoint, Err: ErrLost, Cause: m.err}
			}
			return m, nil
		case <-ctx.Done():
			cancel()
			return nil, &Error{Op: what, Endpoint: endpoint, Err: ErrLost, Cause: ctx.Err()}
		}
	}
}
