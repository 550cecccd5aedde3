package client

import (
	"bytes"
	"context"

	"github.com/kvcr-go/kvcr/wire"
)

// framesAhead is how many frames of a stream, at most wire.MaxPayload bytes each, are
// read ahead of Next. Beyond, the node waits, and in the end leaves out what it could
// not keep, and says so.
const framesAhead = 8

// Stream is what a node tells without being asked again. It has a connection of its
// own, so that a slow reader of it holds up no other call.
type Stream[T any] struct {
	c      *conn
	k      *call
	frames chan T
	first  []T   // before those in frames
	err    error // of the end, once Next has seen it
}

type (
	// Subscription is a stream of changes of the inventory.
	Subscription = Stream[wire.Events]
	// OutcomeStream is a stream of outcomes of hints.
	OutcomeStream = Stream[wire.Outcomes]
)

// feed takes the frames of a stream on behalf of its call.
type feed interface {
	take(payload []byte, gone <-chan struct{}) error
}

// Subscribe asks for the changes after the given event, as numbered by the node:
// the last that the caller has, sequence 0: none. If the node cannot go on there
// it begins with a snapshot, which replaces all that the caller knew. A refusal
// shows at the first Next. The caller must Close the subscription.
func (cl *Client) Subscribe(ctx context.Context, fromEpoch, fromSequence uint64) (*Subscription, error) {
	return subscribe[wire.Events](ctx, cl, opSubscribe, fromEpoch, fromSequence)
}

// SubscribeOutcomes asks for the outcomes of hints after the given one: the last that
// the caller has, sequence 0: those from now on. Outcomes.Gap says that some are lost.
// Otherwise it is like Subscribe. When it has returned, outcomes of hints that are sent
// afterwards come.
func (cl *Client) SubscribeOutcomes(ctx context.Context, fromEpoch, fromSequence uint64) (*OutcomeStream, error) {
	s, err := subscribe[wire.Outcomes](ctx, cl, opSubscribeOutcomes, fromEpoch, fromSequence)
	if err != nil {
		return nil, err
	}
	// A node begins with a frame that says where.
	select {
	case first := <-s.frames:
		if first.Gap {
			s.first = append(s.first, first)
		}
		return s, nil
	case <-s.k.done:
		err := s.k.outcome()
		s.k.done <- struct{}{}
		if err == nil {
			err = &Error{Err: ErrLost}
		}
		s.c.fail(err)
		return nil, cl.where(err, s.k)
	case <-ctx.Done():
		s.Close()
		return nil, cl.where(&Error{Err: ended(ctx)}, s.k)
	}
}

func subscribe[T any](ctx context.Context, cl *Client, op op, fromEpoch, fromSequence uint64) (*Stream[T], error) {
	k := newCall()
	k.op, k.epoch, k.seq = op, fromEpoch, fromSequence
	s := &Stream[T]{k: k, frames: make(chan T, framesAhead)}
	k.feed = s
	if ctx.Err() != nil {
		return nil, cl.where(&Error{Err: ended(ctx)}, k)
	}
	c, err := cl.open(ctx)
	if err != nil {
		return nil, cl.where(err, k)
	}
	s.c = c
	c.slots <- struct{}{} // the first of at least one
	if !c.start(k) {
		return nil, cl.where(&Error{Err: ErrLost}, k)
	}
	return s, nil
}

// take hands a frame to Next. The connection's reader waits while its user is busy,
// and then the node does.
func (s *Stream[T]) take(payload []byte, gone <-chan struct{}) error {
	var frame T
	if err := any(&frame).(wire.Message).Parse(bytes.Clone(payload)); err != nil {
		return err
	}
	select {
	case s.frames <- frame:
	case <-gone:
	}
	return nil
}

// Next returns the next frame, which is the caller's to keep. It waits for it until
// the context ends, which ends nothing else. Any other error is the end of the stream
// and comes again: ErrLost with its connection, or what the node said. To go on,
// subscribe again from the last one. One goroutine at a time may call Next.
func (s *Stream[T]) Next(ctx context.Context) (T, error) {
	var none T
	if len(s.first) > 0 {
		none, s.first = s.first[0], s.first[1:]
		return none, nil
	}
	select {
	case e := <-s.frames:
		return e, nil
	default:
	}
	if s.err != nil {
		return none, s.err
	}
	select {
	case e := <-s.frames:
		return e, nil
	case <-ctx.Done():
		return none, s.c.cl.where(&Error{Err: ended(ctx)}, s.k)
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

// Close ends the stream. It may be called at any time, from any goroutine and any
// number of times. Next then fails with ErrClosed after what has come.
func (s *Stream[T]) Close() error {
	s.c.fail(&Error{Op: "connection", Addr: s.c.cl.opt.Addr, Err: ErrClosed})
	return nil
}
