package keys

import (
	"container/list"
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
	// the block begins a chain, unless the engine names a parent of it.
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

// record is a description in the table: without pointers.
type record struct {
	local, parent uint64
	at            time.Duration // when it was given, since the table's start
	tokens        tokenRef
	blockSize     uint32
	lora, salt    uint32
	hasLocal      bool
	hasParent     bool
	hasMedia      bool
}

// descriptions is the part of a Table that keeps them. Its methods are called with
// the table's lock held.
//
// Invariant: each record is either the desc of exactly one entry, or in pending
// once; never both.
type descriptions struct {
	records   slots[record]
	described int // records in use
	media     map[uint32][]uint64
	tokens    tokenStore
	texts     names

	pending    list.List // of pendingRecord, oldest first
	pendingAt  map[string]*list.Element
	maxPending int
	maxAge     time.Duration
	now        func() time.Duration

	hasher             Hasher
	buf                []byte
	expired, tokenless uint64
}

type pendingRecord struct {
	key string // number of the namespace, two bytes, and the key
	id  uint32
}

func (d *descriptions) init(cfg TableConfig) error {
	if cfg.MaxPending == 0 {
		cfg.MaxPending = 16 << 10
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
	d.pendingAt = map[string]*list.Element{}
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
		return &Error{"key", fmt.Sprintf("%x of namespace %q", key[:min(len(key), 64)], namespace), "one that routers know", "see TableConfig.Styles"}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(d.Tokens) > 0 {
		t.hasher.Seed = BlockSeed(d.LoRA, d.CacheNamespace)
		local := t.hasher.Local(d.Tokens, d.Media)
		if d.HasLocal && d.Local != local {
			return &Error{"Description.Local", d.Local, fmt.Sprintf("%d by its Tokens, Media, LoRA and CacheNamespace", local), "compare the recipes: hash, seed and block size"}
		}
		d.Local, d.HasLocal = local, true
	}
	now := t.now()
	t.expire(now)
	id := t.record(d, now)
	if at := t.find(s, hash, key); at != 0 {
		e := t.entries.at(at)
		t.forget(e.desc)
		e.desc = id
		return nil
	}
	t.park(t.pendingKey(s, key), id)
	return nil
}

// record makes a record of a description.
func (t *descriptions) record(d Description, now time.Duration) uint32 {
	id := t.records.take()
	r := t.records.at(id)
	r.local, r.hasLocal, r.parent, r.hasParent = d.Local, d.HasLocal, d.Parent, d.HasParent
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
	t.records.put(id)
	t.described--
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

// park keeps a record for a key that is not resident.
func (t *descriptions) park(name []byte, id uint32) {
	if el := t.pendingAt[string(name)]; el != nil {
		p := el.Value.(*pendingRecord)
		t.forget(p.id)
		p.id = id
		t.pending.MoveToBack(el)
		return
	}
	if t.pending.Len() >= t.maxPending {
		t.expired++
		t.unpark(t.pending.Front())
	}
	p := &pendingRecord{string(name), id}
	t.pendingAt[p.key] = t.pending.PushBack(p)
}

func (t *descriptions) unpark(el *list.Element) {
	p := t.pending.Remove(el).(*pendingRecord)
	delete(t.pendingAt, p.key)
	t.forget(p.id)
}

// expire drops pending records by age. One that was given long ago and pushed back
// by a block that left may be behind younger ones; it goes with them.
func (t *descriptions) expire(now time.Duration) {
	for el := t.pending.Front(); el != nil; el = t.pending.Front() {
		if now-t.records.at(el.Value.(*pendingRecord).id).at < t.maxAge {
			return
		}
		t.expired++
		t.unpark(el)
	}
}

// adopt takes what is pending for a key that has become resident.
func (t *descriptions) adopt(s *space, key []byte) uint32 {
	if t.pending.Len() == 0 {
		return 0
	}
	t.expire(t.now())
	el := t.pendingAt[string(t.pendingKey(s, key))]
	if el == nil {
		return 0
	}
	p := t.pending.Remove(el).(*pendingRecord)
	delete(t.pendingAt, p.key)
	return p.id
}

// keepPending keeps the record of a block that left, if it is young: the host may
// have given it for the block's next life while this one was on its way out.
func (t *descriptions) keepPending(s *space, key []byte, id uint32) {
	now := t.now()
	t.expire(now)
	if now-t.records.at(id).at >= t.maxAge {
		t.forget(id)
		return
	}
	t.park(t.pendingName(s.n, key), id)
}

// Description returns what is known about a block, resident or not, with the
// tokens appended to tokens. Media is shared and must not be changed. told: the host
// has described it; without that there is a local hash at most, of a key that has it.
func (t *Table) Description(namespace string, key []byte, tokens []uint32) (d Description, told bool) {
	s, hash, ok := t.lookup(namespace, key)
	if !ok {
		return d, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var id uint32
	if at := t.find(s, hash, key); at != 0 {
		id = t.entries.at(at).desc
	} else if el := t.pendingAt[string(t.pendingKey(s, key))]; el != nil {
		id = el.Value.(*pendingRecord).id
	}
	if id != 0 {
		r := t.records.at(id)
		d = Description{
			Tokens: append(tokens, t.tokens.get(r.tokens)...)[len(tokens):], Media: t.media[id],
			Local: r.local, HasLocal: r.hasLocal, Parent: r.parent, HasParent: r.hasParent,
			BlockSize: int(r.blockSize), LoRA: t.texts.text(r.lora), CacheNamespace: t.texts.text(r.salt),
		}
	}
	if !d.HasLocal {
		d.Local, d.HasLocal = s.style.Local(key)
	}
	return d, id != 0
}
