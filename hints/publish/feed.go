package publish

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/keys"
)

// tierOf names an engine's tier as routers do. False: they have no name for it.
func tierOf(t kvcr.Tier) (events.Tier, bool) {
	if t == kvcr.TierDRAM {
		return events.HostPinned, true
	}
	return 0, false
}

// Feed is a subscription as a keys.Table follows it, for engines that publish
// nothing: table.Follow(ctx, publish.Feed(sub)). Changes in tiers that routers have
// no name for are left out.
func Feed(sub *kvcr.Subscription) keys.Feed { return feed{sub} }

type feed struct{ sub *kvcr.Subscription }

func (f feed) Snapshot(each func(keys.Change)) error {
	entries, err := f.sub.Snapshot()
	for _, en := range entries {
		if tier, ok := tierOf(en.Tier); ok {
			each(keys.Change{Namespace: en.Namespace, Key: en.Key, Parent: en.Parent, Tier: tier, Stored: true})
		}
	}
	return err
}

func (f feed) Next(ctx context.Context) (keys.Change, error) {
	for {
		ev, err := f.sub.Next(ctx)
		if errors.Is(err, kvcr.ErrGap) {
			return keys.Change{}, fmt.Errorf("%w: %w", keys.ErrGap, err)
		}
		if err != nil {
			return keys.Change{}, err
		}
		if tier, ok := tierOf(ev.Tier); ok {
			return keys.Change{Namespace: ev.Namespace, Key: ev.Key, Parent: ev.Parent, Tier: tier, Stored: ev.Stored}, nil
		}
	}
}
