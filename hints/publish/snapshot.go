package publish

import (
	"context"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/keys"
)

// snapshot brings the table and the routers to what is resident now.
func (p *Publisher) snapshot(ctx context.Context, sub *kvcr.Subscription) error {
	if err := p.flush(ctx); err != nil { // what came before it
		return err
	}
	if err := p.takeBack(ctx); err != nil {
		return err
	}
	entries, err := sub.Snapshot()
	if err != nil {
		return err
	}
	p.counts.snapshots.Add(1)
	clear := p.cfg.Recovery == ByClear
	all := clear || !p.synced
	if clear {
		p.batch.cleared()
	}
	sync := p.cfg.Table.Resync()
	for _, i := range p.inOrder(entries) {
		en := &entries[i]
		tier, ok := tierOf(en.Tier)
		if !ok {
			p.counts.tiers.Add(1)
			continue
		}
		hash, effect, first := sync.Stored(en.Namespace, en.Key, tier)
		if en.Parent != nil {
			p.cfg.Table.Place(en.Namespace, en.Key, en.Parent)
		}
		switch {
		case effect == keys.Foreign || effect == keys.Refused:
			p.count(effect)
		case !first:
			p.counts.duplicates.Add(1)
		case all || effect == keys.Changed:
			p.stored(en.Namespace, en.Key, en.Parent, tier, hash)
		}
		if p.batch.full(p.cfg.MaxBlocks) {
			if err := p.flush(ctx); err != nil {
				return err
			}
		}
	}
	sync.Done(func(hash uint64, tier events.Tier) {
		if !clear {
			p.gone = append(p.gone, departed{hash, tier})
		}
	})
	p.synced = true
	if err := p.takeBack(ctx); err != nil {
		return err
	}
	return p.flush(ctx)
}

// departed is a hash that a snapshot does not have any more.
type departed struct {
	hash uint64
	tier events.Tier
}

// takeBack publishes that hashes have departed. What it does not get to, since a batch
// is refused and the Run ends, is for the next one: the table has forgotten it.
func (p *Publisher) takeBack(ctx context.Context) error {
	for len(p.gone) > 0 {
		p.batch.removed(p.gone[0].tier, p.gone[0].hash)
		p.gone = p.gone[1:]
		if p.batch.full(p.cfg.MaxBlocks) {
			if err := p.flush(ctx); err != nil {
				return err
			}
		}
	}
	p.gone = nil
	return nil
}

// inOrder returns the indices of entries so that parents come before children.
func (p *Publisher) inOrder(entries []kvcr.Entry) []int32 {
	type place struct {
		hash, parent     uint64
		known, hasParent bool
	}
	places := make([]place, len(entries))
	at := make(map[uint64]int32, len(entries))
	for i, en := range entries {
		hash, ok := p.cfg.Table.ToRouter(en.Namespace, en.Key)
		if !ok {
			continue
		}
		b := p.about(en.Namespace, en.Key, en.Parent, hash)
		places[i] = place{hash, b.parent, true, b.hasParent}
		if _, had := at[hash]; !had {
			at[hash] = int32(i)
		}
	}
	parents := make([]int32, len(entries))
	for i, pl := range places {
		parents[i] = -1
		if pl.hasParent {
			if j, ok := at[pl.parent]; ok {
				parents[i] = j
			}
		}
	}
	return order(parents)
}
