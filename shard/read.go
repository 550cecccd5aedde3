package shard

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/kvcr-go/kvcr/arena"
	"github.com/kvcr-go/kvcr/internal/blockcopy"
	"github.com/kvcr-go/kvcr/internal/own"
	"github.com/kvcr-go/kvcr/internal/prefetch"
)

// Claim is the right to read one block, until Release. It holds the record's
// own number and that of the record whose word carries the claim (another one
// for parts of a group).
type Claim struct {
	id, lead uint32
	serial   uint64 // in checking builds, the ledger's entry
}

// ErrReleased: this claim was given back before.
var ErrReleased = errors.New("already released")

// probes is how often a reader tries before it asks the token holder.
const probes = 8

// Find claims the block of a key. sure is false when the probes were too
// disturbed to tell; then ask through a lane. It takes no lock, allocates
// nothing and makes no system call.
//
// Order matters: claim first, since bytes of a record may be read only under a
// claim; compare the whole key; then load the entry again. If it still names
// the record, the key was indexed under that record at that moment, which is
// when the hit takes effect: a stale entry, a record reused meanwhile (even
// for the same key, but not published yet) all fail here.
func (s *Shard) Find(hash uint64, key []byte) (c Claim, ok, sure bool) {
	if c, ok, sure = s.Peek(hash, key); ok {
		s.touch(c.lead)
	}
	return c, ok, sure
}

// Peek is Find without a trace in the block's recency.
func (s *Shard) Peek(hash uint64, key []byte) (c Claim, ok, sure bool) {
	fp := fingerprint(hash)
	head := s.index.first(hash)
	for try := 0; try < probes; try++ {
		version := head.head.Load()
		if c, ok = s.probe(head, fp, key); ok {
			return c, true, true
		}
		// An odd version: the writer is between two stores of a removal, and the
		// entry that moves may have passed behind our back.
		if c.id == 0 && version&1 == 0 && head.head.Load() == version {
			return Claim{}, false, true
		}
		if try > 1 {
			runtime.Gosched() // the holder may be waiting for our processor
		}
	}
	return Claim{}, false, false
}

// probe goes through one chain once. A failure with an id in the claim says
// that an entry moved under it, so that the answer says nothing.
func (s *Shard) probe(b *bucket, fp uint64, key []byte) (c Claim, ok bool) {
	for steps := 0; b != nil; b = s.index.next(b) {
		for i := range b.entries {
			e := b.entries[i].Load()
			if e>>32 != fp || uint32(e) == 0 {
				continue
			}
			id := uint32(e)
			prefetch.LineToWrite(&s.hot[id].key[0]) // the claim will write it
			s.fetchAhead(id)
			lead, claimed := s.claim(id)
			if !claimed {
				return Claim{id: id}, false
			}
			same := s.keyIs(id, key)
			if b.entries[i].Load() != e {
				s.unclaim(lead)
				return Claim{id: id}, false
			}
			if same {
				return s.ledger.note(Claim{id: id, lead: lead}), true
			}
			s.unclaim(lead)
		}
		// A reader in an overflow bucket that was just freed may follow the
		// list of free buckets: the version will tell, but not for ever.
		if steps++; steps > 64 {
			return Claim{id: 1}, false
		}
	}
	return Claim{}, false
}

// fetchAhead begins to load a block's first line of payload beside its record,
// where the place can be guessed: with one pool and blocks of one piece, record
// and slot come and go in step, so record n has slot n-1. A wrong guess costs
// nothing.
func (s *Shard) fetchAhead(id uint32) {
	if s.stride != 0 {
		prefetch.Line(&s.slots[uint64(id-1)*s.stride])
	}
}

// WarmIndex, WarmRecord and WarmPayload begin to load what a lookup will touch,
// one step after the other: the index bucket, the record that it names (which
// WarmRecord returns, 0 if none), the first line of its bytes. Whoever has several
// lookups to make calls each for all of them, so that their cache misses overlap.
// All are hints and may be left out or wrong.
func (s *Shard) WarmIndex(hash uint64) { prefetch.Word(&s.index.first(hash).head) }

// WarmRecord: see WarmIndex.
func (s *Shard) WarmRecord(hash uint64) uint32 {
	fp, b := fingerprint(hash), s.index.first(hash)
	for i := range b.entries {
		if e := b.entries[i].Load(); e>>32 == fp && uint32(e) != 0 {
			prefetch.LineToWrite(&s.hot[uint32(e)].key[0])
			return uint32(e)
		}
	}
	return 0
}

// claim claims the word that decides for id and returns its record.
func (s *Shard) claim(id uint32) (lead uint32, ok bool) {
	w, ok := s.hot[id].word.claim()
	if ok {
		return id, true
	}
	if stateOf(w) != member {
		return 0, false
	}
	lead = pinsOf(w)
	if _, ok = s.hot[lead].word.claim(); !ok {
		return 0, false
	}
	// The leader may have begun another life before our claim; the member's
	// word changes before that can happen.
	if s.hot[id].word.Load() != w {
		s.unclaim(lead)
		return 0, false
	}
	return lead, true
}

// touch records an access: one plain store in the line of the claim word.
func (s *Shard) touch(lead uint32) {
	if now, h := s.now.Load(), &s.hot[lead]; h.last.Load() != now {
		own.Store32(&h.last, now)
	}
}

func (s *Shard) unclaim(lead uint32) {
	if s.hot[lead].word.unclaim() {
		s.pushReturned(lead)
	}
}

// Again takes a second claim on a claimed block, to be released on its own. Any
// goroutine. It fails when a block has 2^29 claims.
func (s *Shard) Again(c Claim) (Claim, bool) {
	if c.lead == 0 || !s.hot[c.lead].word.again() {
		return Claim{}, false
	}
	return s.ledger.note(Claim{id: c.id, lead: c.lead}), true
}

// Release gives a claim back. Any goroutine.
func (s *Shard) Release(c Claim) error {
	if c.lead == 0 || !s.ledger.strike(c) {
		return ErrReleased
	}
	s.unclaim(c.lead)
	return nil
}

// Len is the payload length of a claimed block, all pieces together.
func (s *Shard) Len(c Claim) int {
	if s.hot[c.id].desc.pieces() == 1 {
		return int(s.hot[c.id].size)
	}
	return int(s.bytesOf(c.id))
}

// Pieces is how many pieces a claimed block has.
func (s *Shard) Pieces(c Claim) int { return s.hot[c.id].desc.pieces() }

// Bytes returns the first piece of a claimed block in place.
func (s *Shard) Bytes(c Claim) []byte {
	h := &s.hot[c.id]
	return s.payload.Bytes(arena.Off(h.desc.off()), int(h.size))
}

// Piece returns the i-th piece of a claimed block and the number of its pool.
func (s *Shard) Piece(c Claim, i int) (b []byte, pool int) {
	if i == 0 {
		return s.Bytes(c), s.hot[c.id].desc.pool()
	}
	p := s.further(c.id)[i-1]
	return s.payload.Bytes(arena.Off(p.off()), s.store.slotBytes(p.pool())), p.pool()
}

// Sum returns the checksum of a claimed block, if it carries one.
func (s *Shard) Sum(c Claim) (sum uint64, ok bool) {
	if !s.hot[c.id].desc.hasSum() {
		return 0, false
	}
	return s.cold[c.id].sum, true
}

// Verify compares a claimed block with its checksum; true when it has none.
func (s *Shard) Verify(c Claim) bool {
	want, ok := s.Sum(c)
	return !ok || s.sumOf(c) == want
}

// sumOf computes the checksum of a claimed block, or of one being filled.
func (s *Shard) sumOf(c Claim) uint64 {
	if s.Pieces(c) == 1 {
		return blockcopy.Sum(s.Bytes(c))
	}
	var sum blockcopy.Summer
	sum.Reset()
	for i := range s.Pieces(c) {
		b, _ := s.Piece(c, i)
		sum.Update(b)
	}
	return sum.Sum64()
}

// Generation identifies this life of the claimed block's slot.
func (s *Shard) Generation(c Claim) uint32 { return genOf(s.hot[c.lead].word.Load()) }

// Claims counts the claims held on all records. It visits every record; for
// Close and tests.
func (s *Shard) Claims() (n int) {
	for id := 1; id < len(s.hot); id++ {
		if w := s.hot[id].word.Load(); stateOf(w) == ready || stateOf(w) == retiring {
			n += int(pinsOf(w))
		}
	}
	return n
}

// Reserved counts the records in state FILLING: reservations and magazines.
func (s *Shard) Reserved() (n int) {
	for id := 1; id < len(s.hot); id++ {
		if stateOf(s.hot[id].word.Load()) == filling {
			n++
		}
	}
	return n
}

// InMagazines counts those of them that lanes hold ahead, for writes to come.
func (s *Shard) InMagazines() int { return int(s.inMagazines.Load()) }

// ledger finds a claim released twice through copies of a View. Only checking
// builds keep it: it costs a lock.
type ledger struct {
	mu     sync.Mutex
	serial atomic.Uint64
	live   map[uint64]struct{}
}

func (l *ledger) init() {
	if arena.Checking {
		l.live = map[uint64]struct{}{}
	}
}

func (l *ledger) note(c Claim) Claim {
	if arena.Checking {
		c.serial = l.serial.Add(1)
		l.mu.Lock()
		l.live[c.serial] = struct{}{}
		l.mu.Unlock()
	}
	return c
}

func (l *ledger) strike(c Claim) bool {
	if !arena.Checking {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.live[c.serial]
	delete(l.live, c.serial)
	return ok
}
