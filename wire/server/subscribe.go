package server

import (
	"context"
	"errors"

	"github.com/cespare/xxhash/v2"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/wire"
)

const (
	// eventsAhead is how many bytes may wait for a connection before its
	// subscription stands still, and eventsBuffer how many events the engine then
	// keeps for it. When they are more, the subscription begins anew, with a
	// snapshot.
	eventsAhead  = 256 << 10
	eventsBuffer = 1 << 14
	// eventsBytes bounds one frame.
	eventsBytes = 64 << 10
)

// subscription sends the changes of the inventory of one namespace.
type subscription struct {
	s      *session
	id     uint64
	cancel context.CancelFunc
	ctx    context.Context
}

// subscribe begins to send events. What the client has seen before does not
// help: this node keeps no events, so each subscription begins with a snapshot.
func (c *binaryConn) subscribe(s *session, id uint64, payload []byte) error {
	var m wire.Subscribe
	if err := m.Parse(payload); err != nil {
		return err
	}
	if c.subs[id] != nil || c.inFlight(s) >= maxInFlight {
		c.reply(s, id, wire.StatusBusy)
		return nil
	}
	source, err := s.srv.opt.Engine.Subscribe(kvcr.SubscribeOptions{Buffer: eventsBuffer})
	if err != nil {
		c.status(s, id, err)
		return nil
	}
	namespace := c.namespace
	c.begin(s, id, func(sub *subscription) wire.Status { return sub.run(source, namespace) })
	return nil
}

// begin has a goroutine run a subscription, which ends with the status that run returns.
func (c *binaryConn) begin(s *session, id uint64, run func(*subscription) wire.Status) {
	sub := &subscription{s: s, id: id}
	sub.ctx, sub.cancel = context.WithCancel(context.Background())
	c.subs[id] = sub
	s.srv.work.Add(1)
	s.listens.Add(1)
	go func() {
		defer s.srv.work.Done()
		defer s.listens.Add(-1)
		roleSubscription.Take()
		last := wire.StatusReply{Status: run(sub)}
		// Nobody can cancel this: the last word is owed.
		never := func() bool { return false }
		_ = s.post(last.Append(nil, id), 1<<62, never)
	}()
}

// stop ends the subscription; it says so to the client.
func (sub *subscription) stop() {
	sub.cancel()
	sub.s.mu.Lock()
	sub.s.room.Broadcast()
	sub.s.mu.Unlock()
}

func (sub *subscription) stopped() bool { return sub.ctx.Err() != nil }

func (sub *subscription) run(source *kvcr.Subscription, namespace string) wire.Status {
	defer source.Close()
	epoch := xxhash.Sum64String(sub.s.srv.opt.Engine.Epoch())
	for {
		err := sub.snapshot(source, namespace, epoch)
		if err == nil {
			err = sub.events(source, namespace, epoch)
		}
		if errors.Is(err, kvcr.ErrGap) {
			continue
		}
		if errors.Is(err, kvcr.ErrClosed) {
			return wire.StatusClosed
		}
		return wire.StatusAborted
	}
}

// frame sends one frame.
func (sub *subscription) frame(m *wire.Events) error {
	return sub.s.post(m.Append(nil, sub.id), eventsAhead, sub.stopped)
}

// snapshot sends all that is resident.
func (sub *subscription) snapshot(source *kvcr.Subscription, namespace string, epoch uint64) error {
	all, err := source.Snapshot()
	if err != nil {
		return err
	}
	m := wire.Events{Epoch: epoch, FirstSequence: source.Covered(), Snapshot: true}
	size := 0
	for _, e := range all {
		if e.Namespace != namespace {
			continue
		}
		ev := wire.Event{Kind: wire.EventStored, Tier: uint8(e.Tier), Key: e.Key, Size: uint64(e.Bytes)}
		if size += ev.EncodedSize(); size > eventsBytes || len(m.Events) == wire.MaxList {
			if err := sub.frame(&m); err != nil {
				return err
			}
			m.Events, size = m.Events[:0], ev.EncodedSize()
		}
		m.Events = append(m.Events, ev)
	}
	if err := sub.frame(&m); err != nil {
		return err
	}
	// The first frame that is no snapshot ends it.
	return sub.frame(&wire.Events{Epoch: epoch, FirstSequence: m.FirstSequence + 1})
}

// events sends changes as they come. Sequence numbers are the engine's, which
// counts all namespaces: a change of another one shows as a number left out, so
// each frame holds neighbours only.
func (sub *subscription) events(source *kvcr.Subscription, namespace string, epoch uint64) error {
	for {
		e, err := source.Next(sub.ctx)
		if err != nil {
			return err
		}
		if e.Namespace != namespace {
			continue
		}
		kind := wire.EventRemoved
		if e.Stored {
			kind = wire.EventStored
		}
		m := wire.Events{Epoch: epoch, FirstSequence: e.Seq, Events: []wire.Event{{Kind: kind, Tier: uint8(e.Tier), Key: e.Key, Parent: e.Parent, Size: uint64(e.Bytes)}}}
		if err := sub.frame(&m); err != nil {
			return err
		}
	}
}
