package keys

import (
	"fmt"
	"sync"
	"time"

	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/hints/events"
)

// TableConfig describes a Table. Styles is required; every other zero field means
// the default its comment names.
type TableConfig struct {
	// Styles says for each namespace how its keys hold hashes. Keys of other
	// namespaces are none that routers know.
	Styles map[string]Style
	// MaxKeys caps the keys held; see ErrIncomplete. Default 1<<25, at most 1<<30.
	MaxKeys int
	// MaxPending caps the descriptions of blocks that are not resident, those that the
	// host has told and those of peers each, and PendingAge how long one is kept:
	// beyond either the oldest are dropped. Default 65,536, which is how many events of
	// an engine may wait for who reads them: what is described in time keeps its
	// description also when its event is heard late. PendingAge: one minute.
	MaxPending int
	PendingAge time.Duration
	// MaxTokenBytes caps the memory for the token ids of described blocks. Beyond
	// it descriptions are kept without them. Default 256 MiB.
	MaxTokenBytes int64
}

// Table holds every key that is resident in an engine, by the hash that routers
// know it by, and what the host program and peers have told about blocks. It is a
// hints.KeyAdapter, and a hints.Describer; any goroutine may call any method.
//
// It is fed with the engine's inventory: by Follow, by a publisher (package
// publish), or by Stored, Place and Removed. One of them, since the changes of a key
// have an order.
//
// For each key it holds 64 bytes and its place in a map, about 100 bytes in all
// (longer keys than 41 bytes beside that); a description, or a parent that the engine
// names, takes 48 more, and 4 for each token. None of it has pointers for the garbage
// collector to follow.
//
// Invariants: index[h] begins the chain of all keys with hash h, in no order, and of
// maxSame at most; a key is in the table at most once, with the tiers it lies in; a key
// without a tier is not in the table.
type Table struct {
	spaces  map[string]*space // immutable
	byOrder []*space          // immutable

	mu      sync.RWMutex
	index   map[uint64]uint32 // first of the keys with the hash
	entries slots[entry]
	long    map[uint32]string // keys of more than inlineKey bytes, by entry
	keys    int
	shared  int // hashes with more than one key
	// crowded are the hashes, of keys that are held, of which there were more than
	// maxSame since the last resync: the rest are not, so that these stay ambiguous.
	crowded map[uint64]struct{}
	maxKeys int
	refused int // keys there was no room for: the table is incomplete
	missing int // refused of the present resync
	turn    uint8
	syncing bool
	descriptions
	counts tableCounts
}

type tableCounts struct {
	foreign, unknown, refused, gaps, snapshots uint64
}

type space struct {
	name  string
	style Style
	n     uint16
}

const (
	inlineKey = 41 // makes an entry 64 bytes; a digest of 32 with a group id has 36
	maxKey    = 1024
	maxTiers  = 8
	maxSpaces = 1 << 16
	// maxSame bounds the keys of one hash. Cache groups and namespaces share hashes, a
	// few each; without a bound a client that makes up keys with one hash would make
	// each change walk past all of them.
	maxSame = 64
)

type entry struct {
	hash   uint64
	next   uint32 // of the keys with the same hash
	desc   uint32 // its description
	space  uint16
	keyLen uint16
	tiers  uint8 // a bit for each
	turn   uint8 // of the resync that saw it last
	seen   uint8 // tiers that it saw
	key    [inlineKey]byte
}

// NewTable returns an empty table.
func NewTable(cfg TableConfig) (*Table, error) {
	if len(cfg.Styles) == 0 || len(cfg.Styles) > maxSpaces {
		return nil, &Error{"TableConfig.Styles", len(cfg.Styles), fmt.Sprintf("1 to %d namespaces", maxSpaces), "name the namespaces whose blocks routers know, with the style of their keys"}
	}
	if cfg.MaxKeys == 0 {
		cfg.MaxKeys = 1 << 25
	}
	if cfg.MaxKeys < 0 || cfg.MaxKeys > 1<<30 {
		return nil, &Error{"TableConfig.MaxKeys", cfg.MaxKeys, "0 to 1<<30", "give at least as many as the engine has blocks"}
	}
	t := &Table{spaces: map[string]*space{}, index: map[uint64]uint32{}, long: map[uint32]string{}, crowded: map[uint64]struct{}{}, maxKeys: cfg.MaxKeys}
	for name, style := range cfg.Styles {
		if v, ok := style.(VLLM); style == nil || ok && v.DigestBytes != 0 && v.DigestBytes < 8 || ok && v.OnlyGroup && !v.WithGroup {
			return nil, &Error{"TableConfig.Styles[" + name + "]", fmt.Sprintf("%+v", style), "a style whose digests have 8 bytes or more, with group ids where only one group counts", "set DigestBytes and WithGroup as the engine makes keys"}
		}
		s := &space{name, style, uint16(len(t.byOrder))}
		t.spaces[name] = s
		t.byOrder = append(t.byOrder, s)
	}
	if err := t.descriptions.init(cfg); err != nil {
		return nil, err
	}
	return t, nil
}

// Effect is what a change of a key means to routers.
type Effect uint8

// The effects.
const (
	Foreign   Effect = iota // they do not know such keys
	Unchanged               // it was so already, or another key has the hash in that tier
	Changed                 // the hash came to the tier, or left it
	Refused                 // there is no room: the table is incomplete
)

// Encode implements hints.KeyAdapter: where there is one namespace, and the hash
// determines its keys.
func (t *Table) Encode(hash uint64) (hints.Key, bool) {
	if len(t.byOrder) != 1 {
		return hints.Key{}, false
	}
	return Direct{t.byOrder[0].name, t.byOrder[0].style}.Encode(hash)
}

// ToRouter implements hints.KeyAdapter. It takes no lock.
func (t *Table) ToRouter(namespace string, key []byte) (uint64, bool) {
	s := t.spaces[namespace]
	if s == nil {
		return 0, false
	}
	return s.style.Hash(key)
}

// HashOfPart returns the hash of the block that a key is a part of. See Style.
func (t *Table) HashOfPart(namespace string, key []byte) (uint64, bool) {
	s := t.spaces[namespace]
	if s == nil {
		return 0, false
	}
	return s.style.HashOfPart(key)
}

// FromRouter implements hints.KeyAdapter. The key is the caller's. Failures beside
// those of hints: ErrIncomplete.
func (t *Table) FromRouter(hash uint64) (hints.Key, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.refused > 0 {
		return hints.Key{}, fmt.Errorf("%w: %d keys are beyond TableConfig.MaxKeys of %d; raise it", ErrIncomplete, t.refused, t.maxKeys)
	}
	id := t.index[hash]
	if id == 0 {
		return hints.Key{}, hints.ErrNotFound
	}
	e := t.entries.at(id)
	if _, more := t.crowded[hash]; more || e.next != 0 {
		return hints.Key{}, hints.ErrAmbiguous
	}
	return hints.Key{Namespace: t.byOrder[e.space].name, Key: t.appendKey(nil, id, e)}, nil
}

// Held returns every key that has the hash, in no order.
func (t *Table) Held(hash uint64) (held []hints.Key) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for id := t.index[hash]; id != 0; id = t.entries.at(id).next {
		e := t.entries.at(id)
		held = append(held, hints.Key{Namespace: t.byOrder[e.space].name, Key: t.appendKey(nil, id, e)})
	}
	return held
}

func (t *Table) appendKey(dst []byte, id uint32, e *entry) []byte {
	if e.keyLen <= inlineKey {
		return append(dst, e.key[:e.keyLen]...)
	}
	return append(dst, t.long[id]...)
}

func (t *Table) keyIs(id uint32, e *entry, s *space, key []byte) bool {
	if e.space != s.n || int(e.keyLen) != len(key) {
		return false
	}
	if len(key) <= inlineKey {
		return string(e.key[:len(key)]) == string(key)
	}
	return t.long[id] == string(key)
}

// find returns the entry of a key. mu held, for reading at least.
func (t *Table) find(s *space, hash uint64, key []byte) uint32 {
	return t.among(t.index[hash], s, key)
}

// among is find in a chain that begins with an entry.
func (t *Table) among(id uint32, s *space, key []byte) uint32 {
	for id != 0 {
		e := t.entries.at(id)
		if t.keyIs(id, e, s, key) {
			return id
		}
		id = e.next
	}
	return 0
}

// lookup returns the namespace and the hash of a key that routers know.
func (t *Table) lookup(namespace string, key []byte) (*space, uint64, bool) {
	s := t.spaces[namespace]
	if s == nil || len(key) > maxKey {
		return nil, 0, false
	}
	hash, ok := s.style.Hash(key)
	return s, hash, ok
}

// Stored notes that a key is resident in a tier, and returns the key's hash. The
// key is copied.
func (t *Table) Stored(namespace string, key []byte, tier events.Tier) (uint64, Effect) {
	s, hash, ok := t.lookup(namespace, key)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !ok || tier >= maxTiers {
		t.counts.foreign++
		return 0, Foreign
	}
	chain := t.index[hash] // looked up once: it is mostly in no cache
	_, added := t.others(chain, s, key, tier)
	id, why := t.add(chain, s, hash, key)
	if id == 0 {
		return hash, why
	}
	e := t.entries.at(id)
	bit := uint8(1) << tier
	if e.tiers&bit != 0 {
		added = false
	}
	t.mark(e, bit)
	if !added {
		return hash, Unchanged
	}
	return hash, Changed
}

// others reports whether no other key of a hash's chain was seen in the tier by the
// present resync, and whether none is known to be there at all.
func (t *Table) others(chain uint32, s *space, key []byte, tier events.Tier) (first, alone bool) {
	bit := uint8(1) << tier
	first, alone = true, true
	for id := chain; id != 0; {
		e := t.entries.at(id)
		if e.tiers&bit != 0 && !t.keyIs(id, e, s, key) {
			alone = false
			if e.turn == t.turn && e.seen&bit != 0 {
				first = false
			}
		}
		id = e.next
	}
	return first, alone
}

// mark notes that an entry is in a tier now.
func (t *Table) mark(e *entry, bit uint8) {
	if e.turn != t.turn {
		e.turn, e.seen = t.turn, 0
	}
	e.tiers |= bit
	e.seen |= bit
}

// add returns the entry of a key of a hash's chain, a new one where there is none. 0:
// there is no room for one, or there are enough keys of the hash.
func (t *Table) add(chain uint32, s *space, hash uint64, key []byte) (uint32, Effect) {
	if id := t.among(chain, s, key); id != 0 {
		return id, Unchanged
	}
	same := 0
	for id := chain; id != 0; id = t.entries.at(id).next {
		same++
	}
	if same >= maxSame {
		t.crowded[hash] = struct{}{}
		return 0, Unchanged
	}
	room := t.maxKeys
	if t.syncing {
		room *= 2 // keys that are gone leave at the end of it
	}
	if t.keys >= room {
		t.refused++
		t.missing++
		t.counts.refused++
		return 0, Refused
	}
	id := t.entries.take()
	e := t.entries.at(id)
	e.hash, e.space, e.keyLen = hash, s.n, uint16(len(key))
	if len(key) <= inlineKey {
		copy(e.key[:], key)
	} else {
		t.long[id] = string(key)
	}
	e.turn = t.turn
	e.next = chain
	if e.next != 0 && t.entries.at(e.next).next == 0 {
		t.shared++
	}
	t.index[hash] = id
	t.keys++
	e.desc = t.adopt(s, key)
	return id, Changed
}

// Removed notes that a key left a tier.
func (t *Table) Removed(namespace string, key []byte, tier events.Tier) (uint64, Effect) {
	s, hash, ok := t.lookup(namespace, key)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !ok || tier >= maxTiers {
		t.counts.foreign++
		return 0, Foreign
	}
	chain := t.index[hash]
	id := t.among(chain, s, key)
	if id == 0 || t.entries.at(id).tiers&(1<<tier) == 0 {
		t.counts.unknown++
		return hash, Unchanged
	}
	if t.leave(chain, id, 1<<tier) == 0 {
		return hash, Unchanged
	}
	return hash, Changed
}

// leave takes an entry of a chain out of tiers, and out of the table with the last. It
// returns those of them in which no other key has the hash.
func (t *Table) leave(chain, id uint32, tiers uint8) uint8 {
	e := t.entries.at(id)
	e.tiers &^= tiers
	for other := chain; other != 0; other = t.entries.at(other).next {
		if other != id {
			tiers &^= t.entries.at(other).tiers
		}
	}
	if e.tiers == 0 {
		t.drop(chain, id, e)
	}
	return tiers
}

func (t *Table) drop(first, id uint32, e *entry) {
	if e.desc != 0 {
		t.keepPending(t.byOrder[e.space], t.appendKey(t.scratch(), id, e), e.desc)
	}
	if first == id {
		if e.next == 0 {
			delete(t.index, e.hash)
			delete(t.crowded, e.hash)
		} else {
			t.index[e.hash] = e.next
			if t.entries.at(e.next).next == 0 {
				t.shared--
			}
		}
	} else {
		before := t.entries.at(first)
		for before.next != id {
			before = t.entries.at(before.next)
		}
		before.next = e.next
		if t.entries.at(first).next == 0 {
			t.shared--
		}
	}
	if e.keyLen > inlineKey {
		delete(t.long, id)
	}
	t.keys--
	t.entries.put(id)
}

// Resync makes the table anew from a snapshot of the engine: Stored for all that is
// resident, then Done, after which the table holds that and no more. In between it
// holds both, and hashes are ambiguous at most where they were or will be, or where
// their key has changed. A Resync without Done removes nothing. One at a time.
type Resync struct{ t *Table }

// Resync begins one.
func (t *Table) Resync() Resync {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.snapshots++
	t.missing = 0
	clear(t.crowded)
	if t.syncing { // the last one was given up: forget what it has seen
		for id := uint32(1); id <= t.entries.fresh; id++ {
			t.entries.at(id).turn, t.entries.at(id).seen = t.turn-1, 0
		}
		return Resync{t}
	}
	t.turn++
	t.syncing = true
	return Resync{t}
}

// Stored is Table.Stored for what the snapshot has. first: the snapshot had no key
// with the hash in that tier before.
func (r Resync) Stored(namespace string, key []byte, tier events.Tier) (hash uint64, effect Effect, first bool) {
	t := r.t
	s, hash, ok := t.lookup(namespace, key)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !ok || tier >= maxTiers {
		t.counts.foreign++
		return 0, Foreign, false
	}
	chain := t.index[hash]
	first, alone := t.others(chain, s, key, tier)
	id, why := t.add(chain, s, hash, key)
	if id == 0 {
		return hash, why, first && why == Refused
	}
	e := t.entries.at(id)
	bit := uint8(1) << tier
	if e.turn == t.turn && e.seen&bit != 0 {
		first = false
	}
	effect = Unchanged
	if alone && e.tiers&bit == 0 {
		effect = Changed
	}
	t.mark(e, bit)
	return hash, effect, first
}

// sweepStep is how many keys are looked at under one lock: some tens of
// microseconds.
const sweepStep = 1024

// Done drops what the snapshot did not have. removed, if not nil, hears of each
// hash that left a tier; it may call the table.
func (r Resync) Done(removed func(hash uint64, tier events.Tier)) {
	t := r.t
	type gone struct {
		hash  uint64
		tiers uint8
	}
	var left []gone
	for id := uint32(1); ; {
		left = left[:0]
		t.mu.Lock()
		end := min(t.entries.fresh, id+sweepStep-1)
		for ; id <= end; id++ {
			e := t.entries.at(id)
			stay := e.seen
			if e.turn != t.turn {
				stay = 0
			}
			if away := e.tiers &^ stay; away != 0 {
				hash := e.hash
				if tiers := t.leave(t.index[hash], id, away); tiers != 0 {
					left = append(left, gone{hash, tiers})
				}
			}
		}
		last := id > t.entries.fresh
		if last {
			t.syncing = false
			t.refused = t.missing
		}
		t.mu.Unlock()
		for _, g := range left {
			for tier := range events.Tier(maxTiers) {
				if removed != nil && g.tiers&(1<<tier) != 0 {
					removed(g.hash, tier)
				}
			}
		}
		if last {
			return
		}
	}
}

// TableStats is a snapshot of a table's counts.
type TableStats struct {
	Keys      int // held
	Ambiguous int // hashes that more than one of them has
	Described int // descriptions of resident blocks
	Pending   int // descriptions of blocks that are not resident
	// TokenBytes is the memory for token ids.
	TokenBytes int64
	Foreign    uint64 // changes of keys that routers do not know
	Unknown    uint64 // removals of keys that were not held
	Refused    uint64 // keys beyond MaxKeys
	Expired    uint64 // pending descriptions dropped by age or number
	Tokenless  uint64 // descriptions whose tokens were beyond MaxTokenBytes
	Snapshots  uint64 // resyncs begun
	Gaps       uint64 // of the feed
}

// Stats returns the table's counts.
func (t *Table) Stats() TableStats {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return TableStats{
		Keys: t.keys, Ambiguous: t.shared, Described: t.described - len(t.pendingAt), Pending: len(t.pendingAt), TokenBytes: t.tokens.bytes,
		Foreign: t.counts.foreign, Unknown: t.counts.unknown, Refused: t.counts.refused, Snapshots: t.counts.snapshots, Gaps: t.counts.gaps,
		Expired: t.expired, Tokenless: t.tokenless,
	}
}
