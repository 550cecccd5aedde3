package publish

import "github.com/kvcr-go/kvcr/hints/events"

// engineEvents is a Sink that speaks as an inference engine does.
type engineEvents struct {
	p     *events.Publisher
	batch events.Batch
}

// EngineEvents is a Sink that publishes vLLM's KV events. Routers index a block by its
// tokens, which its description must have told (keys.Table.Describe): others are
// published by their hash alone, as engines do with blocks outside their device, and
// cannot be matched.
func EngineEvents(p *events.Publisher) Sink { return &engineEvents{p: p} }

func (s *engineEvents) Publish(batch []Event) error {
	s.batch.Events = s.batch.Events[:0]
	for i := range batch {
		s.batch.Events = append(s.batch.Events, engineEvent(&batch[i]))
	}
	_, err := s.p.Publish(&s.batch)
	return err
}

func engineEvent(ev *Event) events.Event {
	e := events.Event{Medium: ev.Tier.Medium()}
	switch ev.Op {
	case events.Cleared:
		return events.Event{Kind: events.AllBlocksCleared}
	case events.Removed:
		e.Kind, e.Hashes = events.BlockRemoved, ev.Hashes
		return e
	}
	e.Hashes = make([]uint64, len(ev.Blocks))
	for i, b := range ev.Blocks {
		e.Hashes[i] = b.Hash
	}
	e.HasParent, e.Parent = ev.HasParent, ev.Parent
	e.LoraName, e.CacheSalt = ev.LoRA, ev.CacheNamespace
	if len(ev.Tokens) == 0 {
		return e
	}
	e.BlockSize, e.Tokens, e.Bigram = uint32(ev.BlockSize), ev.Tokens, ev.Eagle
	for _, m := range ev.Media {
		e.MM = append(e.MM, events.MM{Block: m.Block, Hash: m.Hash})
	}
	return e
}

// planeEvents is a Sink for Dynamo's event plane.
type planeEvents struct {
	p    *events.PlanePublisher
	done int // of the batch that was refused
}

// PlaneEvents is a Sink that publishes router events over Dynamo's event plane, which
// need no tokens. Blocks without a description are left out: nothing could be matched
// with them.
func PlaneEvents(p *events.PlanePublisher) Sink { return &planeEvents{p: p} }

func (s *planeEvents) Publish(batch []Event) error {
	for ; s.done < len(batch); s.done++ {
		ev := &batch[s.done]
		if ev.Op == events.Stored && !ev.Described {
			continue
		}
		if _, err := s.p.Publish(&ev.RouterEvent); err != nil {
			return err
		}
	}
	s.done = 0
	return nil
}

// sinks is several, of which each takes a batch once.
type sinks struct {
	all  []Sink
	done int
}

// Sinks is a Sink that hands each batch to all of several, in order.
func Sinks(all ...Sink) Sink { return &sinks{all: all} }

func (s *sinks) Publish(batch []Event) error {
	for ; s.done < len(s.all); s.done++ {
		if err := s.all[s.done].Publish(batch); err != nil {
			return err
		}
	}
	s.done = 0
	return nil
}
