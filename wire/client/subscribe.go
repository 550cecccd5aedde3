package client

import (
	"context"

	"github.com/kvcr-go/kvcr/wire"
)

// eventsAhead is how many frames of events, at most wire.MaxPayload bytes each, are
// read ahead of Next. Beyond, the node waits, and in the end sends a snapshot
// instead of what it could not keep.
const eventsAhead = 8

// Subscription is a stream of changes of the inventory. It has a connection of its
// own, so that a slow reader of events holds up no other call.
type Subscription struct {
	c   *conn
	k   *call
	err error // of the end, once Next has seen it
}

// Subscribe asks for the changes after the given event, as numbered by the node:
// the last that the caller has, sequence 0: none. If the node cannot go on there
// it begins with a snapshot, which replaces all that the caller knew. A refusal
// shows at the first Next. The caller must Close the subscription.
func (cl *Client) Subscribe(ctx context.Context, fromEpoch, fromSequence uint64) (*Subscription, error) {
	k := newCall()
	k.op, k.epoch, k.seq = opSubscribe, fromEpoch, fromSequence
	k.events = make(chan wire.Events, eventsAhead)
	if ctx.Err() != nil {
		return nil, cl.where(&Error{Err: ended(ctx)}, k)
	}
	c, err := cl.open(ctx)
	if err != nil {
		return nil, cl.where(err, k)
	}
	c.slots <- struct{}{} // the first of at least one
	if !c.start(k) {
		return nil, cl.where(&Error{Err: ErrLost}, k)
	}
	return &Subscription{c: c, k: k}, nil
}

// Next returns the next events, which are the caller's to keep. It waits for them
// until the context ends, which ends nothing else. Any other error is the end of
// the subscription and comes again: ErrLost with its connection, or what the node
// said. To go on, Subscribe again from the last event. One goroutine at a time may
// call Next.
func (s *Subscription) Next(ctx context.Context) (wire.Events, error) {
	select {
	case e := <-s.k.events:
		return e, nil
	default:
	}
	if s.err != nil {
		return wire.Events{}, s.err
	}
	select {
	case e := <-s.k.events:
		return e, nil
	case <-ctx.Done():
		return wire.Events{}, s.c.cl.where(&Error{Err: ended(ctx)}, s.k)
	case <-s.k.done:
	}
	err := s.k.outcome()
	if err == nil {
		err = &Error{Err: ErrLost}
	}
	s.err = s.c.cl.where(err, s.k)
	s.c.fail(err)
	return s.Next(ctx) // what came before the end
}

// Close ends the subscription. It may be called at any time, from any goroutine
// and any number of times. Next then fails with ErrClosed after what has come.
func (s *Subscription) Close() error {
	s.c.fail(&Error{Op: "connection", Addr: s.c.cl.opt.Addr, Err: ErrClosed})
	return nil
}
