package events

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// ErrMalformed: the bytes are no batch, or no event plane message. Nothing of them
// may be used.
var ErrMalformed = errors.New("malformed message")

// MaxEvents is how many events a batch may have. Engines send a few for each step;
// the bound is there because an event in memory is much larger than the byte that
// may stand for one on the wire.
const MaxEvents = 1 << 16

// maxNames bounds the texts that a Decoder remembers. An engine uses a handful.
const maxNames = 1024

// A Decoder reads batches. It allocates nothing once its memory has grown to the
// size of the batches. A Decoder is for one goroutine.
type Decoder struct {
	r reader

	hashes []uint64
	tokens []uint32
	mm     []MM
	names  map[string]string // texts seen before, so that they need no memory again
}

// Decode reads a batch, in any of the forms that engines have used: an array of two
// or more elements or a map; in it events as maps or arrays. What b holds afterwards
// is valid until the next Decode. Failure: ErrMalformed.
func (d *Decoder) Decode(payload []byte, b *Batch) error {
	d.r = reader{b: payload}
	d.hashes, d.tokens, d.mm = d.hashes[:0], d.tokens[:0], d.mm[:0]
	*b = Batch{Events: b.Events[:0]}
	f := d.batch(b)
	if f == "" && d.r.left() > 0 {
		f = "bytes follow the batch"
	}
	if f != "" {
		*b = Batch{Events: b.Events[:0]}
		return fmt.Errorf("%w: batch of %d bytes, at byte %d: %s", ErrMalformed, len(payload), min(d.r.pos, len(payload)), string(f))
	}
	return nil
}

func (d *Decoder) batch(b *Batch) (f fault) {
	r := &d.r
	if c := r.peek(); c&0xf0 == 0x80 || c == 0xde || c == 0xdf {
		return d.batchMap(b)
	}
	n, f := r.list()
	if f != "" {
		return f
	}
	if n < 2 {
		return "a batch has a time and events"
	}
	if b.TS, f = r.number(); f != "" {
		return f
	}
	if f = d.events(b); f != "" {
		return f
	}
	for i := 2; i < n; i++ {
		if i == 2 {
			f = d.rank(b)
		} else {
			f = r.skip()
		}
		if f != "" {
			return f
		}
	}
	return ""
}

func (d *Decoder) batchMap(b *Batch) fault {
	r := &d.r
	n, f := r.mapping()
	if f != "" {
		return f
	}
	seen := false
	for range n {
		key, f := r.text()
		if f != "" {
			return f
		}
		switch string(key) {
		case "ts":
			b.TS, f = r.number()
		case "events":
			if seen {
				return "a batch has events twice"
			}
			seen = true
			f = d.events(b)
		case "data_parallel_rank", "dp_rank":
			f = d.rank(b)
		default:
			f = r.skip()
		}
		if f != "" {
			return f
		}
	}
	if !seen {
		return "a batch has events"
	}
	return ""
}

// rank reads a rank or nil. A rank that is none (negative, a text) is like nil.
func (d *Decoder) rank(b *Batch) fault {
	if d.r.isNil() {
		return ""
	}
	at := d.r.pos
	v, f := d.r.u32()
	if f == "" {
		b.HasRank, b.Rank = true, v
		return ""
	}
	d.r.pos = at
	return d.r.skip()
}

func (d *Decoder) events(b *Batch) fault {
	n, f := d.r.list()
	if f != "" {
		return f
	}
	if n > MaxEvents {
		return "a batch has more than 65536 events"
	}
	for range n {
		if len(b.Events) < cap(b.Events) {
			b.Events = b.Events[:len(b.Events)+1]
		} else {
			b.Events = append(b.Events, Event{})
		}
		ev := &b.Events[len(b.Events)-1]
		*ev = Event{}
		at := d.r.pos
		if f := d.event(ev); f != "" {
			d.r.pos = at
			if f = d.spoiled(ev, f); f != "" {
				return f
			}
		}
	}
	return ""
}

// spoiled passes over an event that has a fault, and leaves in ev what it was. The
// fault returned is of the batch.
func (d *Decoder) spoiled(ev *Event, why fault) fault {
	at := d.r.pos
	if f := d.r.skip(); f != "" {
		return f
	}
	end := d.r.pos
	d.r.pos = at
	*ev = Event{Kind: Malformed, Why: string(why)}
	if tag, f := d.tagOf(); f == "" {
		switch kind := kindOf(tag); kind {
		case Unknown:
			ev.Kind, ev.Tag, ev.Why = Unknown, d.name(tag), ""
		case Ignored:
			ev.Kind, ev.Why = Ignored, ""
		}
	}
	d.r.pos = end
	return ""
}

// tagOf finds the tag of the event at pos.
func (d *Decoder) tagOf() ([]byte, fault) {
	r := &d.r
	if n, f := r.list(); f == "" && n > 0 {
		return r.text()
	} else if f == "" {
		return nil, wantText
	}
	n, f := r.mapping()
	if f != "" {
		return nil, f
	}
	for range n {
		key, f := r.text()
		if f != "" {
			return nil, f
		}
		if string(key) == "type" {
			return r.text()
		}
		if f := r.skip(); f != "" {
			return nil, f
		}
	}
	return nil, wantText
}

func kindOf(tag []byte) Kind {
	switch string(tag) {
	case "BlockStored":
		return BlockStored
	case "BlockRemoved":
		return BlockRemoved
	case "AllBlocksCleared":
		return AllBlocksCleared
	case "Ignored":
		return Ignored
	}
	return Unknown
}

// event reads one event. After a fault ev holds anything.
func (d *Decoder) event(ev *Event) (f fault) {
	switch c := d.r.peek(); {
	case c&0xf0 == 0x80 || c == 0xde || c == 0xdf:
		f = d.eventMap(ev)
	case c&0xf0 == 0x90 || c == 0xdc || c == 0xdd:
		f = d.eventArray(ev)
	default:
		return "an event is neither a map nor an array"
	}
	if ev.Kind >= Ignored {
		*ev = Event{Kind: ev.Kind, Tag: ev.Tag} // whatever else it has, nobody knows what it means
	}
	return f
}

// What an event must have, as bits of what a map has had.
const (
	hasTag = 1 << iota
	hasHashes
	hasTokens
	hasBlockSize
	hasInfos
)

func (d *Decoder) eventMap(ev *Event) (f fault) {
	r := &d.r
	n, f := r.mapping()
	if f != "" {
		return f
	}
	has := 0
	extra := -1 // where extra keys begin; they need the name of the adapter
	for range n {
		key, f := r.text()
		if f != "" {
			return f
		}
		switch string(key) {
		case "type":
			tag, f := r.text()
			if f != "" {
				return f
			}
			if ev.Kind = kindOf(tag); ev.Kind == Unknown {
				ev.Tag = d.name(tag)
			}
			has |= hasTag
		case "block_hashes":
			if f = d.blockHashes(ev); f != "" {
				return f
			}
			has |= hasHashes
		case "parent_block_hash":
			f = d.parent(ev)
		case "token_ids":
			if f = d.tokenIDs(ev); f != "" {
				return f
			}
			has |= hasTokens
		case "block_size":
			if ev.BlockSize, f = r.u32(); f != "" {
				return f
			}
			has |= hasBlockSize
		case "lora_id":
			f = d.loraID(ev)
		case "medium":
			ev.Medium, f = d.textOrNil()
		case "lora_name":
			ev.LoraName, f = d.textOrNil()
		case "cache_salt":
			ev.CacheSalt, f = d.textOrNil()
		case "extra_keys":
			extra = r.pos
			f = r.skip()
		case "block_mm_infos":
			if r.isNil() {
				break
			}
			if f = d.mmInfos(ev); f != "" {
				return f
			}
			has |= hasInfos
		case "group_idx":
			ev.Group, ev.HasGroup, f = d.u32OrNil()
		case "kv_cache_spec_kind":
			ev.SpecKind, f = d.textOrNil()
		case "kv_cache_spec_sliding_window":
			ev.Window, ev.HasWindow, f = d.u32OrNil()
		case "locality":
			ev.Locality, f = d.textOrNil()
		case "source_kind":
			ev.SourceKind, f = d.textOrNil()
		default:
			f = r.skip()
		}
		if f != "" {
			return f
		}
	}
	if has&hasTag == 0 {
		return "an event has a type"
	}
	if f := ev.lacks(has); f != "" {
		return f
	}
	if extra >= 0 && ev.Kind == BlockStored {
		end := r.pos
		r.pos = extra
		f = d.extraKeys(ev, has&hasInfos == 0)
		r.pos = end
	}
	return f
}

// lacks says what ev must have and has not had.
func (ev *Event) lacks(has int) fault {
	switch {
	case (ev.Kind == BlockStored || ev.Kind == BlockRemoved) && has&hasHashes == 0:
		return "an event about blocks has block_hashes"
	case ev.Kind == BlockStored && has&hasTokens == 0:
		return "BlockStored has token_ids"
	case ev.Kind == BlockStored && has&hasBlockSize == 0:
		return "BlockStored has a block_size"
	}
	return ""
}

func (d *Decoder) eventArray(ev *Event) fault {
	r := &d.r
	n, f := r.list()
	if f != "" {
		return f
	}
	if n == 0 {
		return "an event has a tag"
	}
	tag, f := r.text()
	if f != "" {
		return f
	}
	done := 1
	switch ev.Kind = kindOf(tag); ev.Kind {
	case BlockStored:
		done, f = d.storedArray(ev, n)
	case BlockRemoved:
		done, f = d.removedArray(ev, n)
	case AllBlocksCleared:
		if n > 1 {
			ev.SourceKind, f = d.textOrNil()
			done = 2
		}
	case Unknown:
		ev.Tag = d.name(tag)
	}
	for ; f == "" && done < n; done++ {
		f = r.skip()
	}
	return f
}

// storedArray reads the elements of a BlockStored after its tag, and returns how
// many of all it has read.
func (d *Decoder) storedArray(ev *Event, n int) (done int, f fault) {
	r := &d.r
	if n < 5 {
		return 0, "BlockStored has hashes, a parent, tokens and a block size"
	}
	if f = d.blockHashes(ev); f != "" {
		return 0, f
	}
	if f = d.parent(ev); f != "" {
		return 0, f
	}
	if f = d.tokenIDs(ev); f != "" {
		return 0, f
	}
	if ev.BlockSize, f = r.u32(); f != "" {
		return 0, f
	}
	extra := -1
	for done = 5; done < n && done < 9; done++ {
		switch done {
		case 5:
			f = d.loraID(ev)
		case 6:
			ev.Medium, f = d.textOrNil()
		case 7:
			if c := r.peek(); c&0xf0 == 0x80 || c == 0xde || c == 0xdf {
				f = d.metadata(ev) // as SGLang has it
			} else {
				ev.LoraName, f = d.textOrNil()
			}
		case 8:
			extra = r.pos
			f = r.skip()
		}
		if f != "" {
			return 0, f
		}
	}
	infos := false
	done, infos, f = d.tail(ev, done, n, true)
	if f == "" && extra >= 0 {
		end := r.pos
		r.pos = extra
		f = d.extraKeys(ev, !infos)
		r.pos = end
	}
	return done, f
}

func (d *Decoder) removedArray(ev *Event, n int) (done int, f fault) {
	if n < 2 {
		return 0, "an event about blocks has block_hashes"
	}
	if f = d.blockHashes(ev); f != "" {
		return 0, f
	}
	if done = 2; n > 2 {
		if ev.Medium, f = d.textOrNil(); f != "" {
			return 0, f
		}
		done = 3
	}
	done, _, f = d.tail(ev, done, n, false)
	return done, f
}

// slot is an element of an array's tail, whose place does not say what it is.
type slot struct {
	kind byte // 0 nil, 'i', 't', 'l' a list, '?'
	num  uint32
	text []byte
	at   int
}

// tail reads up to five elements after those with a fixed place: group, kind of
// attention, sliding window, locality, kind of source. Older engines left out what
// they had not: then a text is the kind, the first integer is the group, the second
// the window, and a list has multimodal objects.
func (d *Decoder) tail(ev *Event, done, n int, stored bool) (int, bool, fault) {
	var slots [5]slot
	used := 0
	for ; done < n && used < len(slots); done, used = done+1, used+1 {
		if f := d.slot(&slots[used]); f != "" {
			return 0, false, f
		}
	}
	is := func(i int, kind byte) bool { return slots[i].kind == 0 || slots[i].kind == kind }
	if used >= 4 && is(0, 'i') && is(1, 't') && is(2, 'i') && is(3, 't') && is(4, 't') {
		ev.Group, ev.HasGroup = slots[0].num, slots[0].kind != 0
		ev.SpecKind = d.name(slots[1].text)
		ev.Window, ev.HasWindow = slots[2].num, slots[2].kind != 0
		ev.Locality = d.name(slots[3].text)
		ev.SourceKind = d.name(slots[4].text)
		return done, false, ""
	}
	infos := false
	for _, s := range slots[:used] {
		switch {
		case s.kind == 't':
			ev.SpecKind = d.name(s.text)
		case s.kind == 'i' && !ev.HasGroup:
			ev.Group, ev.HasGroup = s.num, true
		case s.kind == 'i' && !ev.HasWindow:
			ev.Window, ev.HasWindow = s.num, true
		case s.kind == 'l' && stored:
			end := d.r.pos
			d.r.pos = s.at
			f := d.mmInfos(ev)
			d.r.pos = end
			if f != "" {
				return 0, false, f
			}
			infos = true
		}
	}
	return done, infos, ""
}

func (d *Decoder) slot(s *slot) fault {
	r := &d.r
	if r.isNil() {
		return ""
	}
	s.at = r.pos
	if v, f := r.u32(); f == "" {
		s.kind, s.num = 'i', v
		return ""
	}
	r.pos = s.at
	if p, f := r.text(); f == "" {
		s.kind, s.text = 't', p
		return ""
	}
	r.pos = s.at
	s.kind = '?'
	if c := r.peek(); c&0xf0 == 0x90 || c == 0xdc || c == 0xdd {
		s.kind = 'l'
	}
	return r.skip()
}

func (d *Decoder) blockHashes(ev *Event) fault {
	n, f := d.r.list()
	if f != "" {
		return f
	}
	from := len(d.hashes)
	for range n {
		h, f := d.r.hash()
		if f != "" {
			return f
		}
		d.hashes = append(d.hashes, h)
	}
	ev.Hashes = d.hashes[from:len(d.hashes):len(d.hashes)]
	return ""
}

func (d *Decoder) parent(ev *Event) (f fault) {
	if d.r.isNil() {
		return ""
	}
	ev.Parent, f = d.r.hash()
	ev.HasParent = f == ""
	return f
}

// tokenIDs reads tokens, or pairs of tokens of which each repeats the second of the
// one before.
func (d *Decoder) tokenIDs(ev *Event) fault {
	r := &d.r
	if r.isNil() {
		return ""
	}
	n, f := r.list()
	if f != "" {
		return f
	}
	from := len(d.tokens)
	if c := r.peek(); n > 0 && (c&0xf0 == 0x90 || c == 0xdc) {
		if f = d.pairs(n); f != "" {
			return f
		}
		ev.Bigram = true
	} else if f = d.singles(n); f != "" {
		return f
	}
	ev.Tokens = d.tokens[from:len(d.tokens):len(d.tokens)]
	return ""
}

// singles reads n tokens. Most of the bytes of a batch are tokens, so the usual forms
// are read here and not by calls.
func (d *Decoder) singles(n int) fault {
	r := &d.r
	from := len(d.tokens)
	d.tokens = slices.Grow(d.tokens, n) // of n there are as many bytes, at least
	tokens := d.tokens[from : from+n]
	b, pos := r.b, r.pos
	for i := range tokens {
		left := len(b) - pos
		if left <= 0 {
			return short
		}
		switch c := b[pos]; {
		case c == 0xce && left >= 5:
			tokens[i] = binary.BigEndian.Uint32(b[pos+1:])
			pos += 5
		case c == 0xcd && left >= 3:
			tokens[i] = uint32(binary.BigEndian.Uint16(b[pos+1:]))
			pos += 3
		case c < 0x80:
			tokens[i] = uint32(c)
			pos++
		default:
			r.pos = pos
			v, f := r.u32()
			if f != "" {
				return f
			}
			tokens[i] = v
			pos = r.pos
		}
	}
	r.pos, d.tokens = pos, d.tokens[:from+n]
	return ""
}

func (d *Decoder) pairs(n int) fault {
	r := &d.r
	var last uint32
	for range n {
		k, f := r.list()
		if f != "" {
			return f
		}
		if k != 2 {
			return "tokens in pairs come in pairs"
		}
		first, f := r.u32()
		if f != "" {
			return f
		}
		if last, f = r.u32(); f != "" {
			return f
		}
		d.tokens = append(d.tokens, first)
	}
	d.tokens = append(d.tokens, last)
	return ""
}

func (d *Decoder) loraID(ev *Event) fault {
	if d.r.isNil() {
		return ""
	}
	v, negative, f := d.r.integer()
	if f == "" && !negative && v > math.MaxInt64 {
		f = wantNum
	}
	if f == "" {
		ev.HasLoraID, ev.LoraID = true, int64(v)
	}
	return f
}

// metadata reads the map that SGLang has in place of an adapter's name.
func (d *Decoder) metadata(ev *Event) fault {
	return d.r.fields(func(key []byte) (f fault) {
		if string(key) != "cache_salt" {
			return d.r.skip()
		}
		ev.CacheSalt, f = d.textOrNil()
		return f
	})
}

func (d *Decoder) u32OrNil() (uint32, bool, fault) {
	if d.r.isNil() {
		return 0, false, ""
	}
	v, f := d.r.u32()
	return v, f == "", f
}

func (d *Decoder) textOrNil() (string, fault) {
	if d.r.isNil() {
		return "", ""
	}
	p, f := d.r.text()
	if f != "" {
		return "", f
	}
	return d.name(p), ""
}

// name makes a string of p, the same one for the same bytes.
func (d *Decoder) name(p []byte) string {
	if len(p) == 0 {
		return ""
	}
	if s, ok := d.names[string(p)]; ok {
		return s
	}
	s := string(p)
	if len(p) > 256 {
		return s
	}
	if d.names == nil || len(d.names) >= maxNames {
		d.names = map[string]string{}
	}
	d.names[s] = s
	return s
}
