package keys

import (
	"encoding/binary"
	"fmt"
	"time"
)

// Description is what events say about a block beside its hash.
type Description struct {
	// Tokens are the block's token ids: BlockSize of them, or one more for Eagle.
	Tokens []uint32
	// Media are the hashes of the images in the block, at most 64.
	Media []uint64
	// Local is the hash of the block's own tokens. Where there are Tokens it follows
	// from them, and need not be given.
	Local    uint64
	HasLocal bool
	// Parent is the hash, as routers know it, of the block before. Without HasParent
	// the block begins a chain, unless the engine names a parent of it (Table.Place).
	Parent    uint64
	HasParent bool
	// BlockSize in tokens. Default: the number of Tokens.
	BlockSize int
	// LoRA is the adapter and CacheNamespace the tenant (salt) that the block's local
	// hash belongs to. At most 256 bytes each.
	LoRA, CacheNamespace string
}

const (
	maxMedia    = 64
	maxNameText = 256
)

// teller is who says something of a block. A later one counts more.
type teller uint8

const (
	nobody teller = iota
	engine        // names parents, and says nothing else
	peer
	host
)

// record is a description in the table: without pointers.
type record struct {
	local, parent uint64
	at            time.Duration // when it was given, since the table's start
	tokens        tokenRef
	blockSize     uint32
	lora, salt    uint32
	by            teller // of engine there is a parent and nothing else
	parentBy      teller // nobody: the record has no parent
	hasLocal      bool
	hasMedia      bool
}

// descriptions is the part of a Table that keeps them. Its methods are called with
// the table's lock held.
//
// Invariants: each record is either the desc of exactly one entry, or in one of the
// pending lists once; never both. Those in pending are not by the engine.
type descriptions struct {
	records   slots[record]
	described int // records in use, but for those by the engine
	media     map[uint32][]uint64
	tokens    tokenStore
	texts     names

	// pending are of pendingRecord, oldest first: what the host has told, and what
	// peers have, so that these cannot push out those.
	pending    [2]pendingList
	waiting    slots[pendingRecord]
	pendingAt  map[string]uint32 // in waiting
	maxPending int
	maxAge     time.Duration
	now        func() time.Duration

	hasher             Hasher
	buf                []byte
	expired, tokenless uint64
}

func (d *descriptions) init(cfg TableConfig) error {
	if cfg.MaxPending == 0 {
		cfg.MaxPending = 64 << 10
	}
	if cfg.PendingAge == 0 {
		cfg.PendingAge = time.Minute
	}
	if cfg.MaxTokenBytes == 0 {
		cfg.MaxTokenBytes = 256 << 20
	}
	if cfg.MaxPending < 0 || cfg.PendingAge < 0 || cfg.MaxTokenBytes < 0 {
		return &Error{"TableConfig.MaxPending, PendingAge, MaxTokenBytes", fmt.Sprint(cfg.MaxPending, ", ", cfg.PendingAge, ", ", cfg.MaxTokenBytes), "not negative", "leave them 0 for the defaults"}
	}
	start := time.Now()
	d.now = func() time.Duration { return time.Since(start) }
	d.maxPending, d.maxAge, d.tokens.limit = cfg.MaxPending, cfg.PendingAge, cfg.MaxTokenBytes
	d.pendingAt = map[string]uint32{}
	d.media = map[uint32][]uint64{}
	return nil
}

// check reports what is wrong with a description, and fills in what follows.
func (d *Description) check() error {
	switch {
	case len(d.Tokens) > MaxBlockTokens:
		return &Error{"Description.Tokens", len(d.Tokens), fmt.Sprintf("at most %d", MaxBlockTokens), "describe blocks one by one"}
	case len(d.Media) > maxMedia:
		return &Error{"Description.Media", len(d.Media), fmt.Sprintf("at most %d", maxMedia), "give the local hash alone"}
	case len(d.LoRA) > maxNameText || len(d.CacheNamespace) > maxNameText:
		return &Error{"Description.LoRA, CacheNamespace", fmt.Sprintf("%d, %d bytes", len(d.LoRA), len(d.CacheNamespace)), fmt.Sprintf("at most %d bytes each", maxNameText), "use shorter names"}
	case d.BlockSize < 0 || d.BlockSize > MaxBlockTokens:
		return &Error{"Description.BlockSize", d.BlockSize, fmt.Sprintf("0 to %d tokens", MaxBlockTokens), "give the engine's block size"}
	}
	if d.BlockSize == 0 {
		d.BlockSize = len(d.Tokens)
	}
	if n := len(d.Tokens); n > 0 && n != d.BlockSize && n != d.BlockSize+1 {
		return &Error{"Description.Tokens", n, fmt.Sprintf("BlockSize of %d, or one more for Eagle", d.BlockSize), "give the tokens of this block and no others"}
	}
	return nil
}

// Describe tells about a block, before it is deposited or while it is resident. The
// description stays as long as the block does; of a block that is not resident it
// is kept for TableConfig.PendingAge, and dropped before that when there are more
// than MaxPending. Told again, the last one counts. Everything is copied. Failures:
// ErrInvalid.
func (t *Table) Describe(namespace string, key []byte, d Description) error {
	if err := d.check(); err != nil {
		return err
	}
	s, hash, ok := t.lookup(namespace, key)
	if !ok {
		return unknownKey(namespace, key)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.follows(&d); err != nil {
		return err
	}
	t.note(s, hash, key, &d, host)
	return nil
}

func unknownKey(namespace string, key []byte) error {
	return &Error{"key", fmt.Sprintf("%x of namespace %q", key[:min(len(key), 64)], namespace), "one that routers know", "see TableConfig.Styles"}
}

// follows fills in the local hash that follows from the tokens.
func (t *descriptions) follows(d *Description) error {
	if len(d.Tokens) == 0 {
		return nil
	}
	t.hasher.Seed = BlockSeed(d.LoRA, d.CacheNamespace)
	local := t.hasher.Local(d.Tokens, d.Media)
	if d.HasLocal && d.Local != local {
		return &Error{"Description.Local", d.Local, fmt.Sprintf("%d by its Tokens, Media, LoRA and CacheNamespace", local), "compare the recipes: hash, seed and block size"}
	}
	d.Local, d.HasLocal = local, true
	return nil
}

// note keeps what somebody tells of a block, unless somebody who counts more has told.
func (t *Table) note(s *space, hash uint64, key []byte, d *Description, by teller) {
	now := t.now()
	t.expire(now)
	at := t.find(s, hash, key)
	if at == 0 {
		name := t.pendingKey(s, key)
		if was := t.pendingAt[string(name)]; was != 0 {
			if t.records.at(t.waiting.at(was).id).by > by {
				return
			}
			t.unpark(was)
		}
		t.park(name, t.record(d, by, now))
		return
	}
	e := t.entries.at(at)
	if e.desc != 0 && t.records.at(e.desc).by > by {
		return
	}
	id := t.record(d, by, now)
	if was := e.desc; was != 0 {
		if old := t.records.at(was); old.parentBy == engine {
			t.records.at(id).place(old.parent)
		}
		t.forget(was)
	}
	e.desc = id
}

// place notes the parent that the engine names, unless one was told.
func (r *record) place(parent uint64) {
	if r.parentBy <= engine {
		r.parent, r.parentBy = parent, engine
	}
}

// Place notes that the engine names a block's parent, for blocks of which nobody else
// does. The table keeps it as long as the block is held. It is called after Stored, by
// who calls that.
func (t *Table) Place(namespace string, key, parent []byte) {
	s, hash, ok := t.lookup(namespace, key)
	if !ok {
		return
	}
	before, ok := s.style.HashOfPart(parent)
	if !ok || before == hash {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.find(s, hash, key)
	if at == 0 {
		return
	}
	e := t.entries.at(at)
	if e.desc == 0 {
		e.desc = t.records.take()
		t.records.at(e.desc).by = engine
	}
	t.records.at(e.desc).place(before)
}

// record makes a record of a description.
func (t *descriptions) record(d *Description, by teller, now time.Duration) uint32 {
	id := t.records.take()
	r := t.records.at(id)
	r.local, r.hasLocal, r.by = d.Local, d.HasLocal, by
	if d.HasParent {
		r.parent, r.parentBy = d.Parent, by
	}
	r.at, r.blockSize = now, uint32(d.BlockSize)
	r.lora, r.salt = t.texts.use(d.LoRA), t.texts.use(d.CacheNamespace)
	var ok bool
	if r.tokens, ok = t.tokens.put(d.Tokens); !ok {
		t.tokenless++
	}
	if len(d.Media) > 0 {
		r.hasMedia = true
		t.media[id] = append([]uint64(nil), d.Media...)
	}
	t.described++
	return id
}

// forget drops a record; 0 is none.
func (t *descriptions) forget(id uint32) {
	if id == 0 {
		return
	}
	r := t.records.at(id)
	t.tokens.drop(r.tokens)
	t.texts.drop(r.lora)
	t.texts.drop(r.salt)
	if r.hasMedia {
		delete(t.media, id)
	}
	if r.by > engine {
		t.described--
	}
	t.records.put(id)
}

func (t *descriptions) scratch() []byte { return t.buf[:0] }

func (t *descriptions) pendingKey(s *space, key []byte) []byte {
	return t.pendingName(s.n, key)
}

// pendingName may be given a key that lies in buf.
func (t *descriptions) pendingName(space uint16, key []byte) []byte {
	n := 2 + len(key)
	if cap(t.buf) < n {
		t.buf = append(make([]byte, 0, n+64), t.buf[:cap(t.buf)]...)
	}
	b := t.buf[:n]
	copy(b[2:], key)
	binary.BigEndian.PutUint16(b, space)
	return b
}

// pendingOf is where the records of a teller wait.
func (t *descriptions) pendingOf(id uint32) *pendingList {
	if t.records.at(id).by == host {
		return &t.pending[0]
	}
	return &t.pending[1]
}

// park keeps a record for a key that is not resident, and has none there.
func (t *descriptions) park(name []byte, id uint32) {
	pending := t.pendingOf(id)
	if pending.Len() >= t.maxPending {
		t.expired++
		t.unpark(pending.oldest)
	}
	at := t.waiting.take()
	p := t.waiting.at(at)
	p.key, p.id = string(name), id
	pending.add(&t.waiting, at)
	t.pendingAt[p.key] = at
}

// unpark forgets a record that waits.
func (t *descriptions) unpark(at uint32) { t.forget(t.take(at)) }

// take takes a record from where it waits.
func (t *descriptions) take(at uint32) uint32 {
	p := t.waiting.at(at)
	id := p.id
	t.pendingOf(id).remove(&t.waiting, at)
	delete(t.pendingAt, p.key)
	t.waiting.put(at)
	return id
}

// expire drops pending records by age. One that was given long ago and pushed back
// by a block that left may be behind younger ones; it goes with them.
func (t *descriptions) expire(now time.Duration) {
	for i := range t.pending {
		pending := &t.pending[i]
		for pending.Len() > 0 {
			if now-t.records.at(t.waiting.at(pending.oldest).id).at < t.maxAge {
				break
			}
			t.expired++
			t.unpark(pending.oldest)
		}
	}
}

// adopt takes what is pending for a key that has become resident.
func (t *descriptions) adopt(s *space, key []byte) uint32 {
	if len(t.pendingAt) == 0 {
		return 0
	}
	t.expire(t.now())
	at := t.pendingAt[string(t.pendingKey(s, key))]
	if at == 0 {
		return 0
	}
	return t.take(at)
}

// keepPending keeps the record of a block that left, if it is young: it may have been
// given for the block's next life while this one was on its way out.
func (t *descriptions) keepPending(s *space, key []byte, id uint32) {
	now := t.now()
	t.expire(now)
	if r := t.records.at(id); r.by == engine || now-r.at >= t.maxAge {
		t.forget(id)
		return
	}
	t.park(t.pendingName(s.n, key), id)
}

// Description returns what is known about a block, resident or not, with the
// tokens appended to tokens. Media is shared and must not be changed. told: the host
// has described it, or a peer; without that there are at most a local hash, of a key
// that has it, and a parent that the engine names.
func (t *Table) Description(namespace string, key []byte, tokens []uint32) (d Description, told bool) {
	s, hash, ok := t.lookup(namespace, key)
	if !ok {
		return d, false
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	d, told = t.describing(s, hash, key)
	d.Tokens = append(tokens, d.Tokens...)[len(tokens):]
	return d, told
}

// describing is Description with the tokens in place. mu held, for reading at least.
func (t *Table) describing(s *space, hash uint64, key []byte) (d Description, told bool) {
	var id uint32
	if at := t.find(s, hash, key); at != 0 {
		id = t.entries.at(at).desc
	} else if len(t.pendingAt) > 0 {
		var b [2 + maxKey]byte
		if at := t.pendingAt[string(appendPendingName(b[:0], s.n, key))]; at != 0 {
			id = t.waiting.at(at).id
		}
	}
	if id != 0 {
		r := t.records.at(id)
		told = r.by > engine
		d = Description{
			Tokens: t.tokens.get(r.tokens), Media: t.media[id],
			Local: r.local, HasLocal: r.hasLocal, Parent: r.parent, HasParent: r.parentBy != nobody,
			BlockSize: int(r.blockSize), LoRA: t.texts.text(r.lora), CacheNamespace: t.texts.text(r.salt),
		}
	}
	if !d.HasLocal {
		d.Local, d.HasLocal = s.style.Local(key)
	}
	return d, told
}

func appendPendingName(dst []byte, space uint16, key []byte) []byte {
	return append(binary.BigEndian.AppendUint16(dst, space), key...)
}
