package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/bench/trace"
)

// DefaultBlockBytes is the block size of a replay: small, so that a whole
// trace runs in seconds. Hit ratios do not depend on it.
const DefaultBlockBytes = 4 << 10

// ReplayOptions describe one replay.
type ReplayOptions struct {
	// Trace is what to replay. Required.
	Trace *trace.Trace
	// Blocks is the capacity of the cache in blocks. Required.
	Blocks int
	// BlockBytes is the size of a block: a multiple of 64, of 4096 from 4 KiB
	// up. Default DefaultBlockBytes. The longest request's blocks are held on
	// the Go heap once more.
	BlockBytes int
	// Policy names the eviction policy; default the engine's.
	Policy string
	// Seed of the policy's sampling.
	Seed uint64
	// Memory says how payload memory is obtained.
	Memory kvcr.Memory
	// Progress hears of requests done, at most ten times a second and at the
	// end. Default: nobody does.
	Progress func(ReplayProgress)

	// damage, when set by a test, may spoil the n-th block before it is
	// deposited.
	damage func(n int, block []byte)
}

// ReplayProgress is how far a replay has come.
type ReplayProgress struct {
	Requests, Total int
	Blocks          int
	Hits            int // usable-prefix hits so far
	WrongBytes      int64
	Elapsed         time.Duration
}

// Latency sums up service times of one operation on one block. The replay is a
// closed loop: a time says how long the engine took, not what a caller with a
// schedule would have waited.
type Latency struct {
	Count int64         `json:"count"`
	P50   time.Duration `json:"p50_ns"`
	P99   time.Duration `json:"p99_ns"`
	P999  time.Duration `json:"p999_ns"`
	Max   time.Duration `json:"max_ns"`
}

// ReplayResult is what a replay found.
type ReplayResult struct {
	Trace      string `json:"trace"`
	Made       bool   `json:"generated"`    // no file was found
	Broken     int    `json:"broken_lines"` // of the file, passed over
	Policy     string `json:"policy"`
	Capacity   int    `json:"capacity_blocks"`
	BlockBytes int    `json:"block_bytes"`
	Unique     int    `json:"unique_blocks"` // of the trace

	// What was asked for, counted requests only, and what was there.
	Requests   int `json:"requests"`
	Blocks     int `json:"blocks"`
	PrefixHits int `json:"prefix_hits"` // leading blocks that were resident
	BlockHits  int `json:"block_hits"`  // resident blocks, usable or not

	Elapsed time.Duration `json:"elapsed_ns"`
	// Moved is the payload verified and deposited.
	Moved int64 `json:"moved_bytes"`
	// Get is one block of a lookup of a request's leading blocks, Deposit one
	// block of a deposit of the rest: the call's time over its blocks.
	Get     Latency `json:"get"`
	Deposit Latency `json:"deposit"`

	// VerifiedBytes are of hits, each compared with what its key implies.
	VerifiedBytes int64 `json:"verified_bytes"`
	WrongBytes    int64 `json:"wrong_bytes"`
	WrongBlocks   int   `json:"wrong_blocks"`

	Deposited int `json:"deposited_blocks"` // offered and not resident before
	Refused   int `json:"refused_blocks"`   // of those, for lack of memory
	// Unreachable blocks are resident at the end while their predecessor is not.
	Unreachable int `json:"unreachable_blocks"`

	MemoryUsed     int64 `json:"memory_used_bytes"`     // payload resident at the end
	MemoryReserved int64 `json:"memory_reserved_bytes"` // payload and metadata, at Open
}

// PrefixPercent is the usable-prefix hit ratio.
func (r *ReplayResult) PrefixPercent() float64 { return percent(r.PrefixHits, r.Blocks) }

// BlockPercent is the ratio of blocks that were resident.
func (r *ReplayResult) BlockPercent() float64 { return percent(r.BlockHits, r.Blocks) }

// BlocksPerSecond is how many blocks were looked up or deposited in a second.
func (r *ReplayResult) BlocksPerSecond() float64 { return float64(r.Blocks) / r.Elapsed.Seconds() }

// BytesPerSecond is the payload verified and deposited in a second.
func (r *ReplayResult) BytesPerSecond() float64 { return float64(r.Moved) / r.Elapsed.Seconds() }

func percent(part, whole int) float64 { return 100 * float64(part) / float64(max(1, whole)) }

// Replay plays every request of a trace through an engine: it claims the
// leading blocks that are resident, compares each of their bytes with what
// their keys imply, deposits the rest as a chain under the last hit, and
// releases the claims. Requests longer than the cache are cut to it.
//
// Wrong bytes are counted, not an error: see ReplayResult.WrongBytes.
func Replay(ctx context.Context, o ReplayOptions) (*ReplayResult, error) {
	if o.BlockBytes == 0 {
		o.BlockBytes = DefaultBlockBytes
	}
	if o.Trace == nil || len(o.Trace.Requests) == 0 {
		return nil, &OptionError{"Trace", nil, "at least one request"}
	}
	if o.Blocks < 1 {
		return nil, &OptionError{"Blocks", o.Blocks, "at least 1"}
	}
	e, err := kvcr.Open(kvcr.Config{
		// Slots beyond MaxBlocks stay unused: a pool has at least a mebibyte.
		Capacity: max(int64(o.Blocks)*int64(o.BlockBytes), 1<<20),
		Seed:     o.Seed,
		Memory:   o.Memory,
		Namespaces: []kvcr.Namespace{{
			Name:      "replay",
			Kind:      kvcr.Chained,
			Pools:     []kvcr.Pool{{Name: "kv", SlotBytes: o.BlockBytes}},
			MaxBlocks: o.Blocks,
			Policy:    o.Policy,
		}},
	})
	if err != nil {
		return nil, err
	}
	res, err := replay(ctx, o, e)
	return res, errors.Join(err, e.Close())
}

// player is the state of one replay.
type player struct {
	ReplayOptions
	h   *kvcr.Handle
	res *ReplayResult

	get, deposit *hdrhistogram.Histogram
	scratch      []byte
	blocks       []byte // content of a request's missing blocks
	keys         [][]byte
	views        []kvcr.View
	items        []kvcr.Item
	deposited    int
}

func replay(ctx context.Context, o ReplayOptions, e *kvcr.Engine) (res *ReplayResult, err error) {
	h, err := e.Handle()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	p := &player{ReplayOptions: o, h: h, get: newHistogram(), deposit: newHistogram(), scratch: make([]byte, o.BlockBytes)}
	p.res = &ReplayResult{
		Trace: o.Trace.Name, Made: o.Trace.Made, Broken: o.Trace.Broken, Unique: o.Trace.Unique(),
		Policy: e.Config().Namespaces[0].Policy, Capacity: o.Blocks, BlockBytes: o.BlockBytes,
	}
	start := time.Now()
	told := start
	for i := range o.Trace.Requests {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := p.request(&o.Trace.Requests[i]); err != nil {
			return nil, fmt.Errorf("request %d of %s: %w", i+1, o.Trace.Name, err)
		}
		if last := i+1 == len(o.Trace.Requests); o.Progress != nil && (last || time.Since(told) > 100*time.Millisecond) {
			told = time.Now()
			o.Progress(ReplayProgress{i + 1, len(o.Trace.Requests), p.res.Blocks, p.res.PrefixHits, p.res.WrongBytes, told.Sub(start)})
		}
	}
	p.res.Elapsed = time.Since(start)
	p.res.Get, p.res.Deposit = latency(p.get), latency(p.deposit)
	return p.res, p.finish(e)
}

// request plays one request.
func (p *player) request(r *trace.Request) error {
	ids := r.IDs[:min(len(r.IDs), p.Blocks)]
	keys := NewKeys(ids)
	p.keys = p.keys[:0]
	for i := range ids {
		p.keys = append(p.keys, keys.At(i).Bytes)
	}
	for len(p.views) < len(ids) {
		p.views = append(p.views, kvcr.View{})
	}

	start := time.Now()
	hits := p.h.Prefix(p.keys, p.views[:len(ids)])
	record(p.get, time.Since(start), min(hits+1, len(ids))) // the first miss was looked up too
	for i := range hits {
		wrong := wrongBytes(p.views[i].Bytes(), p.scratch, keys.At(i))
		p.res.VerifiedBytes += int64(p.BlockBytes)
		p.res.Moved += int64(p.BlockBytes)
		if wrong > 0 {
			p.res.WrongBytes += int64(wrong)
			p.res.WrongBlocks++
		}
	}
	existing, err := p.depositRest(keys, hits)
	p.h.Release(p.views[:hits])
	if !r.Uncounted {
		p.res.Requests++
		p.res.Blocks += len(r.IDs)
		p.res.PrefixHits += hits
		p.res.BlockHits += hits + existing
	}
	return err
}

// depositRest deposits the blocks after the first hits as a chain under the
// last hit, and returns how many were resident all the same.
func (p *player) depositRest(keys *Keys, hits int) (existing int, err error) {
	n := keys.Len() - hits
	if n == 0 {
		return 0, nil
	}
	if need := n * p.BlockBytes; len(p.blocks) < need {
		p.blocks = make([]byte, need)
	}
	p.items = p.items[:0]
	for i := range n {
		block := p.blocks[i*p.BlockBytes : (i+1)*p.BlockBytes]
		fillBlock(block, keys.At(hits+i))
		if p.damage != nil {
			p.damage(p.deposited+i, block)
		}
		p.items = append(p.items, kvcr.Item{Key: p.keys[hits+i], Value: block})
	}
	p.deposited += n
	opt := kvcr.DepositOptions{Position: hits}
	if hits > 0 {
		opt.Parent = p.keys[hits-1]
	}
	start := time.Now()
	results := p.h.DepositBatch(p.items, opt)
	record(p.deposit, time.Since(start), n)
	for i := range results {
		switch r := &results[i]; {
		case r.Existing:
			existing++
		case r.OK():
			p.res.Deposited++
			p.res.Moved += int64(p.BlockBytes)
		case errors.Is(r.Err(), kvcr.ErrFull), errors.Is(r.Err(), kvcr.ErrDropped):
			p.res.Deposited++
			p.res.Refused++
		default:
			return existing, r.Err()
		}
	}
	return existing, nil
}

// finish takes stock of what is resident at the end.
func (p *player) finish(e *kvcr.Engine) error {
	st, err := e.Stats()
	if err != nil {
		return err
	}
	p.res.MemoryUsed = int64(st.PayloadBytes)
	p.res.MemoryReserved = st.CapacityBytes + st.MetadataBytes
	p.res.Unreachable, err = unreachable(e, p.Trace)
	return err
}

// unreachable counts the residents whose predecessor in the trace is absent.
func unreachable(e *kvcr.Engine, tr *trace.Trace) (int, error) {
	sub, err := e.Subscribe(kvcr.SubscribeOptions{})
	if err != nil {
		return 0, err
	}
	entries, err := sub.Snapshot()
	if err := errors.Join(err, sub.Close()); err != nil {
		return 0, err
	}
	resident := make(map[uint64]bool, len(entries))
	for _, en := range entries {
		resident[Key{Bytes: en.Key}.number()] = true
	}
	count := 0
	seen := make(map[uint64]bool, len(entries))
	for i := range tr.Requests {
		ids := tr.Requests[i].IDs
		for j := 1; j < len(ids); j++ {
			if id := ids[j]; resident[id] && !seen[id] {
				seen[id] = true
				if !resident[ids[j-1]] {
					count++
				}
			}
		}
	}
	return count, nil
}

// record enters the time of a call on n blocks as n equal times.
func record(h *hdrhistogram.Histogram, d time.Duration, n int) {
	h.RecordValues(max(1, d.Nanoseconds()/int64(n)), int64(n))
}

func latency(h *hdrhistogram.Histogram) Latency {
	at := func(q float64) time.Duration { return time.Duration(h.ValueAtQuantile(q)) }
	return Latency{h.TotalCount(), at(50), at(99), at(99.9), time.Duration(h.Max())}
}
