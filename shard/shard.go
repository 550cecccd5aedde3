package shard

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime/pprof"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"

	"github.com/kvcr-go/kvcr/arena"
	"github.com/kvcr-go/kvcr/internal/own"
	"github.com/kvcr-go/kvcr/internal/role"
	"github.com/kvcr-go/kvcr/ring"
	"github.com/kvcr-go/kvcr/shard/evict"
)

// Shard is one part of a namespace. See the package comment for its rules.
type Shard struct {
	// Read by every hit, written only by New.
	index   index
	hot     []hot
	cold    []cold
	payload *arena.Arena
	meta    *arena.Arena
	hash    func([]byte) uint64
	helped  bool
	slots   []byte // the only pool's memory, for fetchAhead
	stride  uint64 // bytes of its slots, 0 for none

	_   [64]byte
	now atomic.Uint32 // access tick: written by the token holder, read by every hit
	_   [60]byte

	layouts layouts // see there

	token token

	// Below: the token holder's.
	cfg      Config
	plan     Plan
	closed   bool
	policy   evict.Policy
	store    store
	side     *arena.Classes
	freeRec  uint32 // free records, linked
	freshRec uint32 // records never used are freshRec+1 .. Records
	firstGen uint32 // see firstFree
	// freeRecords is the length of the free list; lingering, after Drain, the
	// records in somebody's hands.
	freeRecords, lingering int
	keyBuf                 [MaxKey]byte
	parentBuf              []byte            // of announce
	held                   map[uint32]uint32 // hard holds by record: no_evict, and a move's
	moves                  moves             // marks and holds of transfers
	budget                 *MoveBudget
	grouped                bool   // a group was ever stored here
	open                   *run   // the run whose blocks the policy does not know yet
	wanted                 int    // pool that the victim search must free a slot of, -1: any
	scan                   uint32 // where anyVictim goes on
	looks                  int    // windows that the reservation under way may still look at
	one                    [1]evict.Insert

	inMagazines atomic.Int32  // records that lanes hold ahead
	recalls     atomic.Uint32 // counts the calls for magazines to come back
	pressed     []bool        // pools under their watermark, already reported
	heldBytes   []int64       // bytes under no_evict holds, by pool

	returned atomic.Uint32 // the return stack: records freed by their last reader
	sink     func(Change)
	stats    Counters

	lanesMu sync.Mutex // guards adding and removing lanes
	lanes   [MaxLanes]atomic.Pointer[Lane]

	parker  ring.Parker
	stop    atomic.Bool
	stopped chan struct{}
	pin     int
	pinned  atomic.Bool
	ledger  ledger
}

// Counters are the shard's running totals, each written by the token holder.
type Counters struct {
	Blocks       atomic.Uint64 // resident now
	Bytes        atomic.Uint64 // payload bytes of resident blocks
	Stored       atomic.Uint64 // commits that made a key resident
	Replaced     atomic.Uint64 // commits that replaced a value
	Existing     atomic.Uint64 // deposits of a resident key
	Evicted      atomic.Uint64 // blocks the policy removed
	Deleted      atomic.Uint64 // blocks removed by hand
	Moved        atomic.Uint64 // blocks handed to another node
	Refused      atomic.Uint64 // reservations refused for capacity
	Dropped      atomic.Uint64 // deposits the policy refused
	PolicyFaults atomic.Uint64 // panics and bad answers of an embedder's policy
	IndexFull    atomic.Uint64 // commits refused since the overflow pool was used up
}

// New builds a shard over memory that the caller has reserved (zeroed) and
// starts its owner goroutine.
func New(c Config) (*Shard, error) {
	if c.Records < 1 || c.Records > MaxRecords {
		return nil, fmt.Errorf("shard: %d records: must be 1 to %d", c.Records, MaxRecords)
	}
	for i, p := range c.Pools {
		if p.SlotBytes < granule || p.SlotBytes%granule != 0 {
			return nil, fmt.Errorf("shard: pool %d: slots of %d bytes: must be a multiple of %d", i, p.SlotBytes, granule)
		}
	}
	if c.Hash == nil {
		c.Hash = xxhash.Sum64
	}
	p := PlanFor(&c)
	s := &Shard{
		cfg: c, plan: p, payload: c.Payload, meta: c.Meta, hash: c.Hash, pin: c.Pin,
		helped:    !c.Foreign && c.Pin < 0,
		firstGen:  rand.Uint32(),
		held:      map[uint32]uint32{},
		wanted:    -1,
		pressed:   make([]bool, max(1, len(c.Pools))),
		heldBytes: make([]int64, max(1, len(c.Pools))),
		stopped:   make(chan struct{}),
		budget:    c.Moves,
	}
	if s.budget == nil {
		s.budget = &MoveBudget{MaxMarks: defaultMoves, MaxHolds: defaultMoves}
	}
	s.moves.init()
	s.hot = arena.Cast[hot](c.Meta, c.MetaOff+p.Hot, c.Records+1)
	s.cold = arena.Cast[cold](c.Meta, c.MetaOff+p.Cold, c.Records+1)
	s.index = newIndex(arena.Cast[bucket](c.Meta, c.MetaOff+p.Buckets, p.Dir+p.Overflow), p.Dir)
	sideTable := c.MetaOff + p.Table
	if len(c.Pools) == 0 {
		sideTable += arena.Off((arena.ClassesTableBytes(c.PayloadBytes) + page - 1) / page * page)
	}
	if p.SideBytes > 0 {
		s.side = arena.NewClasses(c.Meta, c.MetaOff+p.Side, p.SideBytes, c.Meta, sideTable, MaxKey+MaxPieces*pieceBytes)
	}
	s.store = newStore(&c, c.MetaOff+p.Table)
	if len(c.Pools) == 1 && int(c.Pools[0].Slots) >= c.Records {
		s.slots = c.Payload.Bytes(c.PayloadOff, c.Pools[0].SlotBytes*int(c.Pools[0].Slots))
		s.stride = uint64(c.Pools[0].SlotBytes)
	}
	s.layouts.add([]uint8{0}) // layout 0: one piece, of the first pool or of the size classes
	var err error
	if s.policy, err = c.NewPolicy(arena.Cast[evict.Node](c.Meta, c.MetaOff+p.Nodes, c.Records+1), blocks{s}, c.Seed); err != nil {
		return nil, err
	}
	s.ledger.init()
	labels := pprof.Labels(role.Label, "owner", "shard", c.Name+"/"+strconv.Itoa(c.Number))
	go pprof.Do(context.Background(), labels, func(context.Context) { s.own() })
	return s, nil
}

// tick counts accesses; readers copy the sum into the blocks they hit.
func (s *Shard) tick(n uint32) {
	if n != 0 {
		own.Store32(&s.now, s.now.Load()+n)
	}
}

// Stats returns the counters; they may be read at any time.
func (s *Shard) Stats() *Counters { return &s.stats }

// Plan returns the layout of the shard's metadata.
func (s *Shard) Plan() Plan { return s.plan }

// Records returns the capacity in blocks.
func (s *Shard) Records() int { return s.cfg.Records }

// Pinned reports whether the owner runs locked to its CPU.
func (s *Shard) Pinned() bool { return s.pinned.Load() }

// PolicyName names the policy.
func (s *Shard) PolicyName() string { return s.policy.Name() }

// Free returns the payload bytes not in use, by pool; one entry for size
// classes. What the last readers have freed counts. Call under Do.
func (s *Shard) Free() []int64 {
	s.takeReturned()
	return s.store.free()
}

// blocks is what the policy may ask.
type blocks struct{ s *Shard }

func (b blocks) Last(id evict.ID) uint32          { return b.s.hot[id].last.Load() }
func (b blocks) SetLast(id evict.ID, tick uint32) { own.Store32(&b.s.hot[id].last, tick) }
func (b blocks) Hash(id evict.ID) uint64          { return b.s.hash(b.s.keyOf(uint32(id))) }

// Busy: claimed, on its way, bound by a move, or of no use for the pool that
// lacks a slot.
func (b blocks) Busy(id evict.ID) bool {
	w := b.s.hot[id].word.Load()
	if stateOf(w) != ready || pinsOf(w) != 0 {
		return true
	}
	if b.s.moves.n != 0 && b.s.bound(uint32(id)) {
		return true
	}
	return b.s.wanted >= 0 && !b.s.uses(uint32(id), b.s.wanted)
}

// keyOf returns the key of a record whose key is stable: claimed, or under the
// token. Long keys are put together in the token holder's buffer, so such a
// result is good until the next call.
func (s *Shard) keyOf(id uint32) []byte {
	h := &s.hot[id]
	n := h.desc.keyLen()
	if n <= inlineKey {
		return h.key[:n:n]
	}
	k := append(s.keyBuf[:0], h.key[:]...)
	return append(k, s.longTail(id, h.desc)...)
}

// longTail is the part of a long key that lies in the side region.
func (s *Shard) longTail(id uint32, d desc) []byte {
	off := arena.Off(s.cold[id].side) * granule
	return s.meta.Bytes(off+arena.Off((d.pieces()-1)*pieceBytes), d.keyLen()-inlineKey)
}

// lookup returns the record indexed for a key, 0 for none. Token holder only.
func (s *Shard) lookup(hash uint64, key []byte) uint32 {
	id, _ := s.index.lookup(hash, func(at uint32) bool { return s.keyIs(at, key) })
	return id
}

// lookupLike returns the record indexed for the key of another one, and its
// entry. Token holder only.
func (s *Shard) lookupLike(hash uint64, id uint32) (uint32, *atomic.Uint64) {
	return s.index.lookup(hash, func(at uint32) bool { return s.keyIs(at, s.keyOf(id)) })
}

// further is the list of a record's second and later pieces. The record must be
// claimed, or the token held.
func (s *Shard) further(id uint32) []desc {
	n := s.hot[id].desc.pieces() - 1
	if n <= 0 {
		return nil
	}
	return s.pieceDescs(arena.Off(s.cold[id].side)*granule, n)
}

// keyIs compares the whole key. The record must be claimed, or the token held.
func (s *Shard) keyIs(id uint32, key []byte) bool {
	h := &s.hot[id]
	n := h.desc.keyLen()
	if n != len(key) {
		return false
	}
	if n <= inlineKey {
		return string(h.key[:n]) == string(key)
	}
	return string(h.key[:]) == string(key[:inlineKey]) && string(s.longTail(id, h.desc)) == string(key[inlineKey:])
}
