package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/keys"
	"github.com/kvcr-go/kvcr/hints/publish"
)

// What an engine publishes in the suite of hints.
const (
	publishChain = 64 // blocks deposited at a time
	publishBlock = 16 // tokens
	publishValue = 64 // bytes of a block: payload is not what is measured
	publishRate  = 200_000
	// publishAhead is how many blocks the engine may be ahead of the subscriber: half of
	// what its subscription holds before it loses any.
	publishAhead = 32 << 10
	publishWait  = 20 * time.Second
)

// publishing is an engine that publishes what it holds as vLLM does.
type publishing struct {
	e     *kvcr.Engine
	h     *kvcr.Handle
	table *keys.Table
	pub   *events.Publisher
	p     *publish.Publisher
	ended chan error
	stop  context.CancelFunc

	chains []tokenChain
	items  [][]kvcr.Item // by chain
	keys   [][][]byte
}

func newPublishing(ctx context.Context, blocks int) (_ *publishing, err error) {
	p := &publishing{ended: make(chan error, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	style := keys.Dynamo{WithLocal: true}
	value := make([]byte, publishValue)
	for n := range blocks / publishChain {
		c := makeTokenChain(uint64(n), publishChain, publishBlock)
		items, names := make([]kvcr.Item, publishChain), make([][]byte, publishChain)
		for i, b := range c.blocks {
			names[i] = style.AppendBlockKey(nil, b.Hash, b.Local)
			items[i] = kvcr.Item{Key: names[i], Value: value}
		}
		p.chains, p.items, p.keys = append(p.chains, c), append(p.items, items), append(p.keys, names)
	}
	const name = "kv"
	if p.e, err = kvcr.Open(kvcr.Config{
		Capacity:   max(int64(blocks)*publishValue, 4<<20),
		Namespaces: []kvcr.Namespace{{Name: name, Kind: kvcr.Chained, Pools: []kvcr.Pool{{Name: "kv", SlotBytes: publishValue}}, Checksums: kvcr.ChecksumOff}},
	}); err != nil {
		return nil, err
	}
	if p.h, err = p.e.HandleIn(name); err != nil {
		return nil, err
	}
	if p.table, err = keys.NewTable(keys.TableConfig{Styles: map[string]keys.Style{name: style}}); err != nil {
		return nil, err
	}
	if p.pub, err = events.NewPublisher(events.PublisherConfig{Endpoint: "tcp://127.0.0.1:0", Bind: true, Replay: "tcp://127.0.0.1:0", Linger: -1}); err != nil {
		return nil, err
	}
	if p.p, err = publish.New(publish.Config{Table: p.table, Worker: events.Worker{ID: 1}}, publish.EngineEvents(p.pub)); err != nil {
		return nil, err
	}
	run, cancel := context.WithCancel(ctx)
	p.stop = cancel
	go func() {
		as(run, rolePublisher)
		p.ended <- p.p.Run(run, p.e)
	}()
	return p, nil
}

func (p *publishing) close() error {
	var errs []error
	if p.stop != nil {
		p.stop()
		if err := <-p.ended; !errors.Is(err, context.Canceled) {
			errs = append(errs, err)
		}
	}
	if p.pub != nil {
		errs = append(errs, p.pub.Close())
	}
	if p.h != nil {
		errs = append(errs, p.h.Close())
	}
	if p.e != nil {
		errs = append(errs, p.e.Close())
	}
	return errors.Join(errs...)
}

// deposit describes and deposits a chain.
func (p *publishing) deposit(n int) error {
	c := &p.chains[n]
	for i, key := range p.keys[n] {
		if err := p.table.Describe("kv", key, keys.Description{Tokens: c.tokens[i*publishBlock : (i+1)*publishBlock]}); err != nil {
			return err
		}
	}
	for i, r := range p.h.DepositBatch(p.items[n], kvcr.DepositOptions{}) {
		if !r.OK() || r.Existing {
			return fmt.Errorf("block %d of chain %d: existing %t: %w", i, n, r.Existing, r.Err())
		}
		r.View.Release()
	}
	return nil
}

func (p *publishing) remove(n int) error {
	for i, r := range p.h.DeleteBatch(p.keys[n]) {
		if !r.OK() {
			return fmt.Errorf("block %d of chain %d cannot be removed: %w", i, n, r.Err())
		}
	}
	return nil
}

// heard is what a subscriber has counted.
type heard struct {
	stored, removed int
	missed          int // batches
}

// subscriber counts the blocks that a publisher tells of.
type subscriber interface {
	counted() heard
	// changed hears, now and then, that there is more.
	changed() <-chan struct{}
	// check reports what is wrong once all has been heard, with so many blocks there.
	check(resident int) error
	close() error
}

// wait waits until a subscriber has heard enough.
func wait(ctx context.Context, s subscriber, enough func(heard) bool) error {
	limit := time.NewTimer(publishWait)
	defer limit.Stop()
	for !enough(s.counted()) {
		select {
		case <-s.changed():
		case <-limit.C:
			return fmt.Errorf("a subscriber has heard %+v, and no more for %v", s.counted(), publishWait)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// subscribers are those that can be had here; why is what of them cannot.
var subscribers = []struct {
	name string
	open func(p *events.Publisher) (subscriber, error)
}{{"kvcr", openIndexSubscriber}, {"libzmq", openZMQSubscriber}}

func measurePublish(ctx context.Context, o Options, rep *Report) (err error) {
	blocks := 400_000
	switch {
	case o.Smoke:
		blocks = 20 * publishChain
	case o.Quick:
		blocks = 100_000
	}
	o.Progress("publication: making blocks")
	p, err := newPublishing(ctx, blocks)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	for i, s := range subscribers {
		sub, err := s.open(p.pub)
		if errors.Is(err, errNoZMQ) {
			rep.leftOut(fmt.Sprintf("publish, subscriber %s: %v", s.name, err))
			for _, r := range []Result{publishResult(s.name, "stored"), publishResult(s.name, "removed"), lostResult(s.name)} {
				rep.absent(r, err.Error())
			}
			continue
		}
		if err == nil {
			err = p.measure(ctx, o.slice(i, len(subscribers)), rep, s.name, sub)
			err = errors.Join(err, sub.close(), p.subscribed(ctx, 0))
		}
		if err != nil {
			return fmt.Errorf("subscriber %s: %w", s.name, err)
		}
	}
	return nil
}

// subscribed waits until there are n subscribers.
func (p *publishing) subscribed(ctx context.Context, n int) error {
	return eventually(ctx, func() bool { return p.pub.Stats().Subscribers == n })
}

// eventually waits for what nobody announces.
func eventually(ctx context.Context, ok func() bool) error {
	for begin := time.Now(); !ok(); time.Sleep(200 * time.Microsecond) {
		if time.Since(begin) > publishWait {
			return fmt.Errorf("not within %v", publishWait)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

func publishResult(subscriber, change string) Result {
	return Result{Suite: "hints", Name: "publish", Params: []Param{{"subscriber", subscriber}, {"change", change}}, Unit: "blocks/s", Better: Higher, Bar: Bar{Limit: publishRate, HasLimit: true}}
}

func lostResult(subscriber string) Result {
	return Result{Suite: "hints", Name: "publish-lost", Params: []Param{{"subscriber", subscriber}}, Unit: "batches and gaps", Better: Lower, Bar: Bar{HasLimit: true}}
}

// measure has the engine fill itself and empty itself, with one subscriber.
func (p *publishing) measure(ctx context.Context, o Options, rep *Report, name string, sub subscriber) error {
	defer asClient(ctx)()
	if err := p.subscribed(ctx, 1); err != nil {
		return err
	}
	all := len(p.chains) * publishChain
	begun := sub.counted()
	before := p.p.Stats()
	err := o.rounds(ctx, func(round int) error {
		o.Progress(fmt.Sprintf("publication to %s, round %d of %d", name, round+1, o.Runs))
		for _, change := range []struct {
			name  string
			do    func(chain int) error
			count func(heard) int
			held  int
		}{
			{"stored", p.deposit, func(h heard) int { return h.stored - begun.stored }, all},
			{"removed", p.remove, func(h heard) int { return h.removed - begun.removed }, 0},
		} {
			done := round * all
			start := time.Now()
			for n := range p.chains {
				if err := wait(ctx, sub, func(h heard) bool { return done-change.count(h) < publishAhead }); err != nil {
					return err
				}
				if err := change.do(n); err != nil {
					return err
				}
				done += publishChain
			}
			if err := wait(ctx, sub, func(h heard) bool { return change.count(h) >= done }); err != nil {
				return err
			}
			took := time.Since(start)
			if got := change.count(sub.counted()); got != done {
				return fmt.Errorf("%d blocks %s were heard of, not %d", got, change.name, done)
			}
			if err := sub.check(change.held); err != nil {
				return err
			}
			s := rep.result(publishResult(name, change.name)).series(ours)
			s.Runs = append(s.Runs, float64(all)/took.Seconds())
			s.Note = "described, deposited or removed, published, heard"
		}
		return nil
	})
	if err != nil {
		return err
	}
	st := p.p.Stats()
	lost := rep.result(lostResult(name)).series(ours)
	lost.Runs = []float64{float64(sub.counted().missed) + float64(st.Gaps-before.Gaps) + float64(p.pub.Stats().Dropped)}
	lost.Note = fmt.Sprintf("of %s batches of up to 512 blocks", Number(float64(st.Batches-before.Batches)))
	return nil
}
