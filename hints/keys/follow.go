package keys

import (
	"context"
	"errors"

	"github.com/kvcr-go/kvcr/hints/events"
)

// Change is one change of what an engine holds, or (Stored) a part of a snapshot.
type Change struct {
	Namespace string
	Key       []byte
	Parent    []byte // of a stored block, where the engine knows it
	Tier      events.Tier
	Stored    bool // false: removed
}

// Feed is an engine's inventory: package publish makes one of a kvcr.Subscription.
// Its methods are for one goroutine. Keys are valid during the call, or until the
// next.
type Feed interface {
	// Snapshot calls each for everything that is resident; Next continues after it.
	Snapshot(each func(Change)) error
	// Next returns the next change. ErrGap: changes were lost, call Snapshot. Any
	// other error ends the feed.
	Next(ctx context.Context) (Change, error)
}

// Follow keeps the table as the engine is: a snapshot first, and again whenever
// changes were lost. It returns the feed's error, which is ctx's when that ends. A
// table is followed once, and then fed by nobody else.
func (t *Table) Follow(ctx context.Context, feed Feed) error {
	for {
		sync := t.Resync()
		if err := feed.Snapshot(func(c Change) {
			sync.Stored(c.Namespace, c.Key, c.Tier)
			t.placed(&c)
		}); err != nil {
			return err
		}
		sync.Done(nil)
		err := t.follow(ctx, feed)
		if !errors.Is(err, ErrGap) {
			return err
		}
		t.Lost()
	}
}

func (t *Table) follow(ctx context.Context, feed Feed) error {
	for {
		c, err := feed.Next(ctx)
		if err != nil {
			return err
		}
		if c.Stored {
			t.Stored(c.Namespace, c.Key, c.Tier)
			t.placed(&c)
		} else {
			t.Removed(c.Namespace, c.Key, c.Tier)
		}
	}
}

// placed notes the parent that a change names.
func (t *Table) placed(c *Change) {
	if c.Parent != nil {
		t.Place(c.Namespace, c.Key, c.Parent)
	}
}

// Lost counts a gap of the feed, for who follows it by other means than Follow.
func (t *Table) Lost() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.gaps++
}
