package publish

import (
	"slices"

	"github.com/kvcr-go/kvcr/hints/events"
)

// block is what is known of a block that was stored.
type block struct {
	hash, local, parent uint64
	hasParent           bool
	described           bool
	tokens              []uint32
	media               []uint64
	size                int
	lora, salt          string
}

// eagle reports whether the block's tokens reach into the next one.
func (b *block) eagle() bool { return len(b.tokens) == b.size+1 }

// batch collects events and merges neighbours: a stored block that follows the last
// one in its chain, a removed one that follows a removed one, each in the same tier.
// Its memory is used again after reset.
type batch struct {
	open   []opened
	n      int // blocks and hashes
	size   int // bytes on the wire, in the widest form of a sink, about
	blocks []events.Block
	hashes []uint64
	tokens []uint32
	media  []Media
	out    []Event
}

// opened is an event whose lists end where those of the batch do, until the next
// event begins.
type opened struct {
	ev                             Event
	blocks, hashes, tokens, medias int // where they begin
}

func (b *batch) empty() bool { return len(b.open) == 0 }

// maxBatchBytes is what a batch is sent at whatever its blocks are, so that no sink
// finds it too large: a quarter of what events.Publisher takes.
const maxBatchBytes = 8 << 20

// full reports whether the batch is to be sent: with so many blocks, or for its bytes.
func (b *batch) full(blocks int) bool {
	return b.n >= blocks || b.size >= maxBatchBytes || len(b.open) >= events.MaxEvents
}

func (b *batch) reset() {
	clear(b.open)
	clear(b.out)
	b.open, b.out, b.n, b.size = b.open[:0], b.out[:0], 0, 0
	b.blocks, b.hashes, b.tokens, b.media = b.blocks[:0], b.hashes[:0], b.tokens[:0], b.media[:0]
}

func (b *batch) begin(ev Event) *opened {
	b.size += 128 + len(ev.LoRA) + len(ev.CacheNamespace)
	b.open = append(b.open, opened{ev, len(b.blocks), len(b.hashes), len(b.tokens), len(b.media)})
	return &b.open[len(b.open)-1]
}

func (b *batch) last() *opened {
	if len(b.open) == 0 {
		return nil
	}
	return &b.open[len(b.open)-1]
}

func (b *batch) cleared() { b.begin(Event{RouterEvent: events.RouterEvent{Op: events.Cleared}}) }

// stored adds a block. False: it is its own parent, which is two keys with one hash,
// and routers would drop the event.
func (b *batch) stored(tier events.Tier, s *block) bool {
	if s.hasParent && s.parent == s.hash {
		return false
	}
	o := b.last()
	if o == nil || !b.continues(o, tier, s) {
		o = b.begin(Event{
			RouterEvent: events.RouterEvent{Op: events.Stored, Tier: tier, HasParent: s.hasParent, Parent: s.parent},
			Described:   s.described, BlockSize: s.size, Eagle: s.eagle(), LoRA: s.lora, CacheNamespace: s.salt,
		})
	} else if o.ev.Eagle {
		b.tokens = b.tokens[:len(b.tokens)-1] // the next block's first
	}
	for _, m := range s.media {
		b.media = append(b.media, Media{uint32(len(b.blocks) - o.blocks), m})
	}
	b.blocks = append(b.blocks, events.Block{Hash: s.hash, Local: s.local})
	b.tokens = append(b.tokens, s.tokens...)
	b.n++
	b.size += 64 + 5*len(s.tokens) + 80*len(s.media)
	return true
}

// continues reports whether a block may follow in the chain of the last event. A
// chain that came back to one of its own hashes would be none.
func (b *batch) continues(o *opened, tier events.Tier, s *block) bool {
	ev := &o.ev
	if ev.Op != events.Stored || ev.Tier != tier || !s.hasParent || b.blocks[len(b.blocks)-1].Hash != s.parent ||
		ev.Described != s.described || ev.BlockSize != s.size || ev.LoRA != s.lora || ev.CacheNamespace != s.salt ||
		(len(b.tokens) > o.tokens) != (len(s.tokens) > 0) || ev.Eagle != s.eagle() {
		return false
	}
	if ev.Eagle && b.tokens[len(b.tokens)-1] != s.tokens[0] {
		return false // not the token that the last block looked ahead to
	}
	return !(ev.HasParent && ev.Parent == s.hash) &&
		!slices.ContainsFunc(b.blocks[o.blocks:], func(x events.Block) bool { return x.Hash == s.hash })
}

func (b *batch) removed(tier events.Tier, hash uint64) {
	if o := b.last(); o == nil || o.ev.Op != events.Removed || o.ev.Tier != tier {
		b.begin(Event{RouterEvent: events.RouterEvent{Op: events.Removed, Tier: tier}})
	}
	b.hashes = append(b.hashes, hash)
	b.n++
	b.size += 9
}

// events returns the batch with its lists in place. edit completes each event, in
// order.
func (b *batch) events(edit func(*Event)) []Event {
	b.out = b.out[:0]
	for i := range b.open {
		o := &b.open[i]
		end := opened{blocks: len(b.blocks), hashes: len(b.hashes), tokens: len(b.tokens), medias: len(b.media)}
		if i+1 < len(b.open) {
			end = b.open[i+1]
		}
		b.out = append(b.out, o.ev)
		ev := &b.out[i]
		ev.Blocks = b.blocks[o.blocks:end.blocks:end.blocks]
		ev.Hashes = b.hashes[o.hashes:end.hashes:end.hashes]
		ev.Tokens = b.tokens[o.tokens:end.tokens:end.tokens]
		ev.Media = b.media[o.medias:end.medias:end.medias]
		edit(ev)
	}
	return b.out
}
