package events

import (
	"log/slog"
	"math/bits"
	"math/rand/v2"
)

// Reason says why an event, or the rest of one, does not reach the index.
type Reason uint8

// The reasons.
const (
	ReasonUnknownMedium  Reason = iota
	ReasonNotLocal              // locality is not LOCAL: nobody here can fetch from there
	ReasonNotMain               // its group serves no main attention
	ReasonUnknownSpec           // a kind of attention that we do not know
	ReasonUnlearnedGroup        // a group of which no store has said what it is
	ReasonUnknownEvent          // a tag that we do not know
	ReasonIgnoredTag            // the tag Ignored
	ReasonMalformed             // an event that makes no sense
	ReasonDuplicate             // a hash twice among the blocks and the parent of one store
	ReasonNamespace             // after a block that has been seen with two cache namespaces
	ReasonBlockSize             // the blocks are not of the router's size
	ReasonTokens                // tokens are missing; the blocks before count
	reasons
)

var reasonNames = [reasons]string{"unknown_medium", "locality_not_local", "not_main_attention_group", "unknown_kv_cache_spec_kind",
	"unlearned_group", "unknown_event_type", "ignored_tag", "malformed_event", "duplicate_hash_in_store", "ambiguous_cache_namespace",
	"wrong_block_size", "too_few_tokens"}

func (r Reason) String() string {
	if r < reasons {
		return reasonNames[r]
	}
	return "unknown reason"
}

// Drops counts events by why they did not reach the index.
type Drops [reasons]uint64

// NormalizerConfig shapes a Normalizer.
type NormalizerConfig struct {
	// BlockSize is how many tokens a block of the index has. Required.
	BlockSize uint32
	// ImageToken, if HasImageToken, is the token that stands for an image in
	// prompts: blocks with objects are then hashed with their runs of it replaced
	// by PadToken, as the router's frontend does.
	HasImageToken bool
	ImageToken    uint32
	// MaxNamespaced bounds how many blocks with a cache namespace are remembered,
	// about 50 bytes each. Blocks beyond it do not hand theirs on. Default 1 Mi.
	MaxNamespaced int
	// Log hears of each reason up to three times. Default: nobody.
	Log *slog.Logger
}

// A Normalizer makes what a router indexes from what engines say. It learns as it goes
// (which groups serve main attention, which blocks have a cache namespace), so it must
// see the batches of a worker in order. It is for one goroutine.
//
// Source: the rules of Dynamo's zmq_wire, except that an unknown medium is never taken
// for the device.
type Normalizer struct {
	cfg    NormalizerConfig
	drops  Drops
	warned [reasons]uint8

	groups map[groupKey]string // what a group serves
	spaces namespaces
	hash   localHasher
	seen   hashSet

	blocks []Block // of the events returned last
}

type groupKey struct{ rank, group uint32 }

// maxGroups bounds what is learned of groups; engines have a handful for each rank.
const maxGroups = 1 << 16

// NewNormalizer returns a Normalizer that has learned nothing.
func NewNormalizer(cfg NormalizerConfig) *Normalizer {
	if cfg.MaxNamespaced <= 0 {
		cfg.MaxNamespaced = 1 << 20
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	n := &Normalizer{cfg: cfg, groups: map[groupKey]string{}}
	n.hash.imageToken, n.hash.hasImage = cfg.ImageToken, cfg.HasImageToken
	n.spaces.limit = cfg.MaxNamespaced
	n.seen.seed = rand.Uint64() | 1
	return n
}

// Drops returns how many events were dropped, by reason.
func (n *Normalizer) Drops() Drops { return n.drops }

// Namespaced returns how many blocks with a cache namespace are remembered, and how
// many there was no room for.
func (n *Normalizer) Namespaced() (remembered int, forgotten uint64) {
	return n.spaces.count, n.spaces.forgotten
}

// Normalize appends to dst what b says of the worker, in order; a rank in b takes the
// place of the worker's own. id becomes the ID of all. What is appended is valid until
// the next Normalize, and as long as b is.
func (n *Normalizer) Normalize(dst []RouterEvent, w Worker, id uint64, b *Batch) []RouterEvent {
	if b.HasRank {
		w.Rank = b.Rank
	}
	n.blocks = n.blocks[:0]
	for i := range b.Events {
		ev := &b.Events[i]
		out := RouterEvent{Worker: w, Domain: DomainWorker, ID: id}
		switch ev.Kind {
		case AllBlocksCleared:
			n.spaces.clear(w)
			out.Op = Cleared
		case BlockStored, BlockRemoved:
			if reason, ok := n.change(&out, ev); !ok {
				n.drop(reason, w, id, ev)
				continue
			}
			if len(out.Blocks) == 0 && len(out.Hashes) == 0 {
				continue
			}
		case Ignored:
			n.drop(ReasonIgnoredTag, w, id, ev)
			continue
		case Unknown:
			n.drop(ReasonUnknownEvent, w, id, ev)
			continue
		default:
			n.drop(ReasonMalformed, w, id, ev)
			continue
		}
		dst = append(dst, out)
	}
	return dst
}

// change fills in what a store or a removal changes. The order of the checks decides
// what is learned from events that are dropped.
func (n *Normalizer) change(out *RouterEvent, ev *Event) (Reason, bool) {
	if ev.Kind == BlockStored && ev.HasGroup && ev.SpecKind != "" {
		if key := (groupKey{out.Worker.Rank, ev.Group}); len(n.groups) < maxGroups || n.groups[key] != "" {
			n.groups[key] = ev.SpecKind
		}
	}
	if reason, ok := n.main(out.Worker.Rank, ev); !ok {
		return reason, false
	}
	tier, known := TierOf(ev.Medium)
	local := ev.Locality == "" || ev.Locality == "LOCAL"
	place := uint8(elsewhere)
	if known && local {
		place = uint8(1) << tier
	}
	salt, ok := ev.CacheSalt, true
	if ev.Kind == BlockRemoved {
		n.spaces.remove(out.Worker, ev.Hashes, place)
	} else if salt, ok = n.spaces.store(out.Worker, ev, place); !ok {
		return ReasonNamespace, false
	}
	switch {
	case !local:
		return ReasonNotLocal, false
	case !known:
		return ReasonUnknownMedium, false
	}
	out.Tier = tier
	if ev.Kind == BlockRemoved {
		out.Op, out.Hashes = Removed, ev.Hashes
		return 0, true
	}
	if n.seen.repeats(ev) {
		return ReasonDuplicate, false
	}
	out.Op, out.HasParent, out.Parent = Stored, ev.HasParent, ev.Parent
	out.Blocks = n.stored(out, ev, salt)
	return 0, true
}

// main reports whether an event is about a cache of main attention, which is the one
// that prefixes are found in.
func (n *Normalizer) main(rank uint32, ev *Event) (Reason, bool) {
	kind := ev.SpecKind
	if kind == "" {
		if !ev.HasGroup {
			return 0, true
		}
		if kind = n.groups[groupKey{rank, ev.Group}]; kind == "" {
			return ReasonUnlearnedGroup, ev.Group == 0
		}
	}
	switch kind {
	case "full_attention", "mla_attention", "sink_full_attention":
		return 0, true
	case "sliding_window", "sliding_window_mla", "mamba", "chunked_local_attention", "encoder_only_attention", "cross_attention":
		return ReasonNotMain, false
	}
	return ReasonUnknownSpec, false
}

// stored returns the blocks of a store, up to the first that is not whole.
func (n *Normalizer) stored(out *RouterEvent, ev *Event, salt string) []Block {
	if len(ev.Hashes) == 0 {
		return nil
	}
	if ev.BlockSize != n.cfg.BlockSize || ev.BlockSize == 0 {
		n.drop(ReasonBlockSize, out.Worker, out.ID, ev)
		return nil
	}
	n.hash.reset(ev.LoraName, salt)
	size, window := int(ev.BlockSize), int(ev.BlockSize)
	if ev.Bigram {
		window++
	}
	from := len(n.blocks)
	mm := ev.MM
	for i, h := range ev.Hashes {
		if len(ev.Tokens)-i*size < window {
			n.drop(ReasonTokens, out.Worker, out.ID, ev)
			break
		}
		k := 0
		for k < len(mm) && mm[k].Block == uint32(i) {
			k++
		}
		n.blocks = append(n.blocks, Block{Hash: h, Local: n.hash.block(ev.Tokens[i*size:i*size+window], mm[:k])})
		mm = mm[k:]
	}
	return n.blocks[from:len(n.blocks):len(n.blocks)]
}

func (n *Normalizer) drop(reason Reason, w Worker, id uint64, ev *Event) {
	n.drops[reason]++
	if n.warned[reason] >= 3 || reason == ReasonIgnoredTag || reason == ReasonNotMain || reason == ReasonNotLocal {
		return // these three are as they should be
	}
	n.warned[reason]++
	n.cfg.Log.Warn("inventory event dropped", "reason", reason.String(), "worker", w.ID, "rank", w.Rank, "seq", id,
		"kind", ev.Kind.String(), "tag", ev.Tag, "why", ev.Why, "medium", ev.Medium, "spec", ev.SpecKind,
		"block_size", ev.BlockSize, "want_block_size", n.cfg.BlockSize, "blocks", len(ev.Hashes), "tokens", len(ev.Tokens))
}

// hashSet finds repeated hashes. Its slots are of the current event only if they have
// its number, so that it need not be emptied.
type hashSet struct {
	seed  uint64 // odd; hashes come from outside
	slots []hashSlot
	shift uint8
	event uint64
}

type hashSlot struct{ hash, event uint64 }

// repeats reports whether a hash comes twice among the blocks and the parent of ev.
func (s *hashSet) repeats(ev *Event) bool {
	if n := 2 * (len(ev.Hashes) + 1); n > len(s.slots) {
		log := bits.Len(uint(max(n, 16) - 1))
		s.slots, s.shift = make([]hashSlot, 1<<log), uint8(64-log)
	}
	s.event++
	if ev.HasParent {
		s.add(ev.Parent)
	}
	for _, h := range ev.Hashes {
		if !s.add(h) {
			return true
		}
	}
	return false
}

func (s *hashSet) add(h uint64) bool {
	for i := (h ^ h>>32) * s.seed >> s.shift; ; i = (i + 1) & uint64(len(s.slots)-1) {
		switch slot := &s.slots[i]; {
		case slot.event != s.event:
			*slot = hashSlot{h, s.event}
			return true
		case slot.hash == h:
			return false
		}
	}
}
