package hints

import (
	"errors"
	"fmt"
	"hash/maphash"
	"sync/atomic"
	"time"
)

// AdviceConfig shapes the table of advice. A zero field means the default.
type AdviceConfig struct {
	// Requests is how many requests may have advice; the oldest goes first. Default
	// 65,536, at most 16 Mi.
	Requests int
	// Hashes is how many hashes all advice may hold together, repetitions and
	// remembered misses counted; the oldest request goes first. Each takes 8 to 16
	// bytes until it is asked for, and up to 48 then. Default 4 Mi.
	Hashes int
	// Sources is how many sources one request may have; a fetch that names one more is
	// LimitExceeded. Default 8, at most 1024.
	Sources int
	// Misses is how many keys are remembered for each source as not there; further ones
	// are asked for again. Default 16,384.
	Misses int
	// MaxAge is how long advice lasts. Default 10 minutes. A fetch for the same
	// request begins it anew.
	MaxAge time.Duration
	// PoisonOnConflict is the rule of the reference: a second source is
	// SourceConflict, and the first is marked as failed. Default: the second is kept
	// as a fallback.
	PoisonOnConflict bool
	// RequestMoves lets kv.fetch with mode "move" ask the source to free its copies.
	// Default: the mode is ignored, and fetches copy.
	RequestMoves bool
	// Opportunistic asks sources for keys that the advice does not name, too.
	Opportunistic bool
	// Now replaces the clock, for tests: the time since any fixed moment.
	Now func() time.Duration
}

// maxRequestID is the longest request id that is kept, in bytes. Ids are UUIDs and the
// like; 1024 is arbitrary.
const maxRequestID = 1024

// Advice is what is known for requests: which sources hold which blocks. It may be
// wrong, never unsafe: whether a block can be read is decided when its source is asked.
// Its methods are for any goroutine.
//
// It is split into shards by request, each with its lock, under which nothing of the
// embedder's is called. Over all shards the oldest request is the first to go.
type Advice struct {
	cfg    AdviceConfig
	seed   maphash.Seed
	start  time.Time
	shards [adviceShards]adviceShard

	requests atomic.Int64
	hashes   atomic.Int64
	versions atomic.Uint64 // of advice given out; grows with age
}

const (
	adviceShards = 64
	shardBits    = 6
)

// NewAdvice returns an empty table. Failure: ErrConfig.
func NewAdvice(cfg AdviceConfig) (*Advice, error) {
	if cfg.MaxAge == 0 {
		cfg.MaxAge = 10 * time.Minute
	}
	err := errors.Join(
		orDefault(&cfg.Requests, "AdviceConfig.Requests", 1<<16, 1, 1<<24),
		orDefault(&cfg.Hashes, "AdviceConfig.Hashes", 1<<22, 1, 1<<32),
		orDefault(&cfg.Sources, "AdviceConfig.Sources", 8, 1, 1024),
		orDefault(&cfg.Misses, "AdviceConfig.Misses", 1<<14, 1, 1<<27),
	)
	if cfg.MaxAge < 0 {
		err = errors.Join(err, fmt.Errorf("%w: AdviceConfig.MaxAge is %v; it must be positive", ErrConfig, cfg.MaxAge))
	}
	if err != nil {
		return nil, err
	}
	a := &Advice{cfg: cfg, seed: maphash.MakeSeed(), start: time.Now()}
	if a.cfg.Now == nil {
		a.cfg.Now = func() time.Duration { return time.Since(a.start) }
	}
	// About one request for each place: a chain longer than a few is rare.
	places := 1
	for places < cfg.Requests/adviceShards {
		places *= 2
	}
	for i := range a.shards {
		a.shards[i].places = make([]*request, places)
	}
	return a, nil
}

// shard returns the shard of a request and the hash of its id.
func (a *Advice) shard(requestID string) (*adviceShard, uint64) {
	h := maphash.String(a.seed, requestID)
	return &a.shards[h>>(64-shardBits)], h
}

// Submit keeps t for the request, copying what it keeps. The same source again replaces
// its hashes and flags and clears its misses and failure; another source comes after
// those there are. Failures: *Rejection with NoRequestID, SourceConflict or
// LimitExceeded, or that of CheckEndpoint.
func (a *Advice) Submit(requestID string, t *Transfer) error {
	if requestID == "" {
		return &Rejection{NoRequestID, "advice came without a request"}
	}
	if len(requestID) > maxRequestID {
		return &Rejection{LimitExceeded, fmt.Sprintf("a request id of %d bytes, limit %d", len(requestID), maxRequestID)}
	}
	endpoint, err := endpoints.good(t.Source)
	if err != nil {
		return err
	}
	if len(t.Hashes) == 0 {
		return &Rejection{MissingHashes, "block_hashes is empty"}
	}
	fresh := source{
		endpoint: endpoint, set: newHashSet(t.Hashes), version: a.versions.Add(1),
		noRetain: t.NoRetain, noFramework: t.NoFramework, move: t.Move && a.cfg.RequestMoves,
	}
	now := a.cfg.Now()
	s, h := a.shard(requestID)
	s.mu.Lock()
	s.expireLocked(a, now)
	err = s.submitLocked(a, h, requestID, fresh, now)
	s.mu.Unlock()
	if err != nil {
		fresh.set.release()
		return err
	}
	a.dropExcess()
	return nil
}

// dropExcess forgets the oldest requests until the table is within its bounds.
func (a *Advice) dropExcess() {
	for a.requests.Load() > int64(a.cfg.Requests) || a.hashes.Load() > int64(a.cfg.Hashes) {
		if !a.dropOldest() {
			return // others are dropping them already
		}
	}
}

// dropOldest forgets the request that was submitted first, and reports whether there
// was one.
func (a *Advice) dropOldest() bool {
	var oldest *adviceShard
	least := uint64(0)
	for i := range a.shards {
		if v := a.shards[i].oldest.Load(); v != 0 && (oldest == nil || v < least) {
			oldest, least = &a.shards[i], v
		}
	}
	if oldest == nil {
		return false
	}
	oldest.mu.Lock()
	defer oldest.mu.Unlock()
	if r := oldest.first; r != nil && r.age == least {
		oldest.dropLocked(a, r)
		oldest.counts.Pushed++
	}
	return true
}

// Discard forgets the request. What is under way with a SourcePlan goes on.
func (a *Advice) Discard(requestID string) {
	s, h := a.shard(requestID)
	s.mu.Lock()
	if r := s.findLocked(h, requestID); r != nil {
		s.dropLocked(a, r)
		s.counts.Discarded++
	}
	s.mu.Unlock()
}

// AdviceCounts are a table's present size, and counters since it was made.
type AdviceCounts struct {
	Requests, Hashes           int    // now
	Submitted, Replaced        uint64 // fetches kept; of those, that replaced a source's
	Fallbacks                  uint64 // fetches kept as a further source
	Conflicts                  uint64 // fetches refused as such
	Discarded, Expired, Pushed uint64 // requests forgotten: by Discard, by age, by newer ones
	Failures, Misses           uint64 // reports of failure; keys remembered as misses
}

// Counts returns the counters. It forgets what is too old first.
func (a *Advice) Counts() AdviceCounts {
	now := a.cfg.Now()
	var c AdviceCounts
	for i := range a.shards {
		s := &a.shards[i]
		s.mu.Lock()
		s.expireLocked(a, now)
		c.Submitted += s.counts.Submitted
		c.Replaced += s.counts.Replaced
		c.Fallbacks += s.counts.Fallbacks
		c.Conflicts += s.counts.Conflicts
		c.Discarded += s.counts.Discarded
		c.Expired += s.counts.Expired
		c.Pushed += s.counts.Pushed
		c.Failures += s.counts.Failures
		c.Misses += s.counts.Misses
		s.mu.Unlock()
	}
	c.Requests, c.Hashes = int(a.requests.Load()), int(a.hashes.Load())
	return c
}
