package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/events/zmtp"
)

// relay passes on what a publisher sends, except batches that it is told to drop: a
// network that loses messages.
type relay struct {
	conn     *zmtp.Conn
	pub      *zmtp.Pub
	endpoint string

	drop    atomic.Int64 // batches from now on
	dropped atomic.Int64
	ended   sync.WaitGroup
}

func newRelay(ctx context.Context, publisher string) (*relay, error) {
	r := &relay{pub: zmtp.NewPub(zmtp.PubOptions{Linger: -1})}
	var err error
	if r.endpoint, err = r.pub.Bind("tcp://127.0.0.1:0"); err != nil {
		return nil, err
	}
	if r.conn, err = zmtp.Dial(ctx, publisher, zmtp.SUB, zmtp.Options{}); err == nil {
		err = r.conn.Subscribe("")
	}
	if err != nil {
		return nil, errors.Join(err, r.pub.Close())
	}
	r.ended.Add(1)
	go r.run()
	return r, nil
}

func (r *relay) run() {
	defer r.ended.Done()
	var m zmtp.Message
	for r.conn.Read(&m) == nil {
		if r.drop.Load() > 0 {
			r.drop.Add(-1)
			r.dropped.Add(1)
			continue
		}
		r.pub.Send(bytes.Clone(m.Frames[0]), zmtp.AppendMessage(nil, m.Frames...))
	}
}

func (r *relay) close() error {
	r.conn.Close()
	r.ended.Wait()
	return r.pub.Close()
}

const (
	recoverBlocks = 64 // of a batch
	implLive      = "live"
)

// measureRecovery drops batches on their way to a router and measures how long its
// index lacks them: from the first batch after the hole until all are there, by replay.
// Beside it the same number of batches that are not lost.
func measureRecovery(ctx context.Context, o Options, rep *Report) error {
	sizes := []int{16, 256}
	if o.Smoke {
		sizes = []int{4}
	}
	for i, batches := range sizes {
		if err := recovery(ctx, o.slice(i, len(sizes)), rep, batches); err != nil {
			return fmt.Errorf("%d batches: %w", batches, err)
		}
	}
	return nil
}

func recovery(ctx context.Context, o Options, rep *Report, batches int) (err error) {
	r := rep.result(Result{Suite: "hints", Name: "recovery", Params: []Param{{"batches", batches}}, Unit: "ms until the index is whole", Better: Lower})
	r.series(ours).Note = fmt.Sprintf("replay of %d blocks", batches*recoverBlocks)
	r.series(implLive).Note = "as many that were not lost"
	p, err := events.NewPublisher(events.PublisherConfig{Endpoint: "tcp://127.0.0.1:0", Bind: true, Replay: "tcp://127.0.0.1:0", Linger: -1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	relay, err := newRelay(ctx, p.Endpoint())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, relay.close()) }()
	sub, err := newIndexSubscriber(relay.endpoint, p.ReplayEndpoint())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sub.close()) }()
	// What is sent before all have subscribed is lost too, and found a second later.
	if err := eventually(ctx, func() bool { return p.Stats().Subscribers == 1 && relay.pub.Subscribers() == 1 }); err != nil {
		return err
	}

	next, sent := uint64(0), 0 // chains, blocks
	batch := func(n int) (made []*events.Batch) {
		for range n {
			c := makeTokenChain(next, recoverBlocks, publishBlock)
			next++
			made = append(made, c.stored(0, recoverBlocks))
		}
		return made
	}
	publish := func(batches []*events.Batch) error {
		for _, b := range batches {
			sent += recoverBlocks
			if _, err := p.Publish(b); err != nil {
				return err
			}
		}
		return nil
	}
	arrived := func() error { return wait(ctx, sub, func(h heard) bool { return h.stored >= sent }) }
	// Batches come live once one has.
	if err := publish(batch(1)); err != nil {
		return err
	}
	if err := arrived(); err != nil {
		return err
	}
	return o.rounds(ctx, func(round int) error {
		o.Progress(fmt.Sprintf("recovery of %d batches, round %d of %d", batches, round+1, o.Runs))
		live, lost, last := batch(batches), batch(batches), batch(1)
		start := time.Now()
		if err := publish(live); err != nil {
			return err
		}
		if err := arrived(); err != nil {
			return err
		}
		r.series(implLive).Runs = append(r.series(implLive).Runs, time.Since(start).Seconds()*1e3)

		replayed, dropped := sub.c.Stats().Replayed, relay.dropped.Load()
		relay.drop.Store(int64(batches))
		if err := publish(lost); err != nil {
			return err
		}
		if err := eventually(ctx, func() bool { return relay.dropped.Load() == dropped+int64(batches) }); err != nil {
			return err
		}
		start = time.Now()
		if err := publish(last); err != nil {
			return err
		}
		if err := arrived(); err != nil {
			return err
		}
		r.series(ours).Runs = append(r.series(ours).Runs, time.Since(start).Seconds()*1e3)
		// The consumer counts a moment after the index has the blocks.
		if err := eventually(ctx, func() bool { return sub.c.Stats().Replayed-replayed >= uint64(batches) }); err != nil {
			return fmt.Errorf("replays of %d batches: %w", batches, err)
		}
		if n := sub.c.Stats().Replayed - replayed; n != uint64(batches) || sub.counted().missed > 0 {
			return fmt.Errorf("%d batches were replayed, not %d; %d gaps", n, batches, sub.counted().missed)
		}
		return sub.check(sent)
	})
}
