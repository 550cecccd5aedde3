package kvcr

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/kvcr-go/kvcr/arena"
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/shard"
	"github.com/kvcr-go/kvcr/shard/evict"
	"github.com/kvcr-go/kvcr/ucx/cuda"
)

// Kind says how the keys of a namespace relate to each other.
type Kind int

const (
	// Flat keys are independent of each other and are spread over shards.
	Flat Kind = iota
	// Chained keys may name a parent, a position and a group. A chained
	// namespace lives whole on one shard, which sees all leaves and groups.
	Chained
)

func (k Kind) String() string {
	switch k {
	case Flat:
		return "flat"
	case Chained:
		return "chained"
	}
	return fmt.Sprintf("kind(%d)", int(k))
}

// Checksums says whether payloads carry a checksum.
type Checksums int

const (
	// ChecksumDefault keeps checksums for namespaces with pools (blocks) and
	// none for namespaces with size classes (cache values).
	ChecksumDefault Checksums = iota
	ChecksumOn
	ChecksumOff
)

// Memory says how the reserved memory is obtained. The zero Memory asks for
// the largest pages there are and takes what it gets.
type Memory struct {
	// Pages is the page size to ask for; Strict refuses anything smaller.
	Pages  arena.Pages
	Strict bool
	// Backing is anonymous, memfd or a file below Path.
	Backing arena.Backing
	Path    string
	NUMA    arena.NUMA
	// Lock asks for locked memory, Prefault for every page at Open; Progress,
	// when set, hears of the bytes prefaulted.
	Lock     bool
	Prefault bool
	Progress func(done, total int64)
}

// Pool is a set of payload slots of one size.
type Pool struct {
	Name      string
	SlotBytes int     // a multiple of 64; of 4096 from 4 KiB up
	Share     float64 // of the namespace's payload bytes; 0: equal parts
}

// Namespace is one key space with its own memory: a key of one namespace is a
// miss in another.
type Namespace struct {
	Name string
	Kind Kind
	// Share of Config.Capacity; zero shares divide what is left equally.
	Share float64
	// Pools are the fixed-slot pools that blocks are made of. A namespace
	// without pools stores values of any size up to MaxValue in size classes.
	Pools    []Pool
	MaxValue int // bytes; default 64 MiB, or a quarter of a shard if less
	// MaxBlocks caps the entries. Default: every slot of the pools, or one for
	// each MeanValue bytes of a namespace with size classes.
	MaxBlocks int
	MeanValue int // bytes; default 4 KiB
	// LongKeyBytes is the memory for keys over 40 bytes. Default: 64 bytes for
	// each block.
	LongKeyBytes int64
	// Policy is "density" (default), "lru", "fifo" or "s3fifo"; NewPolicy, when
	// set, wins and builds the embedder's own. Shards with an embedder's policy
	// are never helped: the policy runs on the owner goroutine only.
	Policy    string
	NewPolicy NewPolicy
	Checksums Checksums
	// HashRecipe names how the host program makes keys of blocks (keys.Recipe.String).
	// It is part of the layout: two engines with different recipes would never find
	// each other's blocks, and refuse to talk instead.
	HashRecipe string
	// VerifyReads makes Deliver compare blocks over 4 KiB with their checksum.
	VerifyReads bool
	// Watermark is the percentage of each pool (or of the bytes of the size
	// classes) below which OnPressure is called. 0: never.
	Watermark int
}

// NewPolicy builds an embedder's eviction policy for one shard: nodes is 16
// bytes of state for each block, b answers what the policy may ask.
type NewPolicy = shard.NewPolicy

// Policy chooses what leaves; see the methods of evict.Policy.
type Policy = evict.Policy

// Pressure says that a pool has fallen under its watermark.
type Pressure struct {
	Namespace string
	Shard     int
	Pool      string // "" for size classes
	Free      int64  // bytes free or evictable
	Watermark int64  // bytes
}

// Config describes an engine. Every zero field means the default its comment
// names; the zero Config is valid.
type Config struct {
	// Capacity is the payload memory in bytes over all namespaces, reserved at
	// Open. Default: what the container (or host) leaves, see MemoryPlan.
	Capacity int64
	// Namespaces: default one flat namespace "default" with size classes.
	Namespaces []Namespace
	// Shards for each flat namespace: a power of two up to 256. Default: four
	// for each processor, fewer while a shard would be under 4 x MaxValue.
	Shards int
	// Pin locks the owners to threads and to the CPUs named (one for each
	// shard, in order of namespaces). Refused when it leaves fewer than two of
	// GOMAXPROCS unpinned.
	Pin []int
	// Memory says how payload memory is obtained.
	Memory Memory
	// MaxHandles caps the handles open at once, since each reserves rings.
	// Default 256.
	MaxHandles int
	// MaxTransferBlocks caps the blocks that transfers with other nodes claim, and
	// those that they have reserved memory for. Default 16384, at most 1<<20.
	MaxTransferBlocks int
	// MaxMarks caps the blocks marked for moves to other nodes, MaxHolds those
	// held for moves from them: a move beyond is carried out as a copy. Default
	// 16384 each, at most 1<<20.
	MaxMarks, MaxHolds int
	// OperationTimeout bounds Fetch and Deliver from remote sources. Default
	// one second.
	OperationTimeout time.Duration
	// Remote finds and brings blocks that are not resident. Default none.
	Remote RemoteSource
	// Peers makes the engine exchange blocks with others. Default nil: it does not.
	Peers *Peers
	// Hints makes the engine act on what a router says. Default nil: it does not.
	Hints *Hints
	// Regions is memory of the host program's, by name: for DeliverRefs and
	// DepositRefs. Default that of Peers.
	Regions *peer.Regions
	// CUDA copies between our memory and Regions on GPUs, which it must know
	// (Alloc, Adopt). It is the caller's, who closes it after the engine. Payload
	// memory is registered with it in the background. nil: no GPUs.
	CUDA *cuda.Driver
	// DeviceStaging is how many bytes of pinned memory blocks pass through between
	// other nodes and GPUs. Default 64 MiB, at least four blocks.
	DeviceStaging int
	// OnPressure hears of pools under their watermark, once for each crossing,
	// on an owner goroutine: it must not block or call the engine.
	OnPressure func(Pressure)
	// Hash replaces the key hash (XXH64); for tests of collisions.
	Hash func(key []byte) uint64
	// Seed makes sampling in policies repeatable. Default 0.
	Seed uint64
}

// Limits of a configuration.
const (
	MaxKeyBytes     = shard.MaxKey
	DefaultMaxValue = 64 << 20
	MaxShards       = 256
	MaxMoves        = 1 << 20 // of MaxTransferBlocks, MaxMarks and MaxHolds
)

// ConfigError names one bad field, its value, the limit and the fix.
type ConfigError struct {
	Field string
	Value any
	Limit string
	Fix   string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("kvcr: config: %s = %v: %s; %s", e.Field, e.Value, e.Limit, e.Fix)
}

func (e *ConfigError) Is(target error) bool { return target == ErrConfig }

const minShardBytes = 1 << 20

// defaultMoves is 128 operations of as many blocks as one may have.
const defaultMoves = 128 * 128

func (c Config) withDefaults() Config {
	if c.Capacity == 0 {
		c.Capacity, _ = arena.DefaultSize()
	}
	if len(c.Namespaces) == 0 {
		c.Namespaces = []Namespace{{Name: "default"}}
	} else {
		c.Namespaces = append([]Namespace(nil), c.Namespaces...)
	}
	c.Peers = c.Peers.clone()
	if c.MaxHandles == 0 {
		c.MaxHandles = 256
	}
	for _, n := range []*int{&c.MaxTransferBlocks, &c.MaxMarks, &c.MaxHolds} {
		if *n == 0 {
			*n = defaultMoves
		}
	}
	if c.OperationTimeout == 0 {
		c.OperationTimeout = time.Second
	}
	c.Hints = c.Hints.withDefaults(c.OperationTimeout)
	if c.DeviceStaging == 0 {
		c.DeviceStaging = defaultDeviceRing
	}
	if c.Regions == nil && c.Peers != nil {
		c.Regions = c.Peers.Regions
	}
	var given float64
	free := 0
	for _, ns := range c.Namespaces {
		given += ns.Share
		if ns.Share == 0 {
			free++
		}
	}
	for i := range c.Namespaces {
		ns := &c.Namespaces[i]
		if ns.Share == 0 && free > 0 && given < 1 {
			ns.Share = (1 - given) / float64(free)
		}
		if ns.Policy == "" {
			ns.Policy = "density"
		}
		if ns.MeanValue == 0 {
			ns.MeanValue = 4 << 10
		}
		if ns.MaxValue == 0 && len(ns.Pools) == 0 {
			per := int64(float64(c.Capacity) * ns.Share)
			if ns.Kind == Flat && c.Shards > 0 {
				per /= int64(c.Shards)
			}
			ns.MaxValue = int(min(DefaultMaxValue, max(per/4, 1)))
		}
		if len(ns.Pools) > 0 {
			ns.Pools = append([]Pool(nil), ns.Pools...)
			var sum float64
			unset := 0
			for _, p := range ns.Pools {
				sum += p.Share
				if p.Share == 0 {
					unset++
				}
			}
			for j := range ns.Pools {
				if ns.Pools[j].Share == 0 && sum < 1 {
					ns.Pools[j].Share = (1 - sum) / float64(unset)
				}
			}
		}
	}
	return c
}

// shardsFor is how many shards a namespace gets.
func (c *Config) shardsFor(ns *Namespace) int {
	if ns.Kind == Chained {
		return 1
	}
	if c.Shards > 0 {
		return c.Shards
	}
	n := 1
	for n < 4*runtime.GOMAXPROCS(0) && n < MaxShards {
		n *= 2
	}
	bytes := int64(float64(c.Capacity) * ns.Share)
	least := int64(4 * ns.MaxValue)
	if least < minShardBytes {
		least = minShardBytes
	}
	for n > 1 && bytes/int64(n) < least {
		n /= 2
	}
	return n
}

// validate reports every problem at once. Call it on a Config with defaults.
func (c *Config) validate() error {
	var errs []error
	bad := func(field string, value any, limit, fix string) {
		errs = append(errs, &ConfigError{field, value, limit, fix})
	}
	if c.Capacity < minShardBytes {
		bad("Capacity", c.Capacity, "at least 1 MiB", "raise it, or leave it 0 for the machine's default")
	}
	if limit, source := arena.MemoryLimit(); c.Capacity > limit {
		bad("Capacity", c.Capacity, fmt.Sprintf("at most the %d bytes of %s", limit, source), "lower it, or raise that limit")
	}
	if c.Shards < 0 || c.Shards > MaxShards || c.Shards&(c.Shards-1) != 0 {
		bad("Shards", c.Shards, "a power of two up to 256", "leave it 0 for the default")
	}
	if c.MaxHandles < 1 || c.MaxHandles > shard.MaxLanes {
		bad("MaxHandles", c.MaxHandles, fmt.Sprintf("1 to %d", shard.MaxLanes), "leave it 0 for 256")
	}
	for _, f := range []struct {
		name string
		n    int
	}{{"MaxTransferBlocks", c.MaxTransferBlocks}, {"MaxMarks", c.MaxMarks}, {"MaxHolds", c.MaxHolds}} {
		if f.n < 1 || f.n > MaxMoves {
			bad(f.name, f.n, fmt.Sprintf("1 to %d", MaxMoves), fmt.Sprintf("leave it 0 for %d", defaultMoves))
		}
	}
	if c.DeviceStaging < 0 {
		bad("DeviceStaging", c.DeviceStaging, "positive", "leave it 0 for 64 MiB")
	}
	if c.OperationTimeout < 0 {
		bad("OperationTimeout", c.OperationTimeout, "positive", "leave it 0 for one second")
	}
	names := map[string]bool{}
	var shares float64
	owners := 0
	for i := range c.Namespaces {
		ns := &c.Namespaces[i]
		at := fmt.Sprintf("Namespaces[%d]", i)
		shares += ns.Share
		owners += c.shardsFor(ns)
		if ns.Name == "" || len(ns.Name) > 255 {
			bad(at+".Name", ns.Name, "1 to 255 bytes", "name the namespace")
		}
		if names[ns.Name] {
			bad(at+".Name", ns.Name, "unique", "rename one of the two")
		}
		names[ns.Name] = true
		if ns.Kind != Flat && ns.Kind != Chained {
			bad(at+".Kind", ns.Kind, "Flat or Chained", "choose one")
		}
		if !(ns.Share > 0 && ns.Share <= 1) {
			bad(at+".Share", ns.Share, "over 0, up to 1, sum of all at most 1", "leave it 0 for an equal part of the rest")
		}
		per := int64(float64(c.Capacity)*ns.Share) / int64(c.shardsFor(ns))
		if per < minShardBytes {
			bad(at, per, "at least 1 MiB for each shard", "raise Capacity or lower Shards")
		}
		if ns.NewPolicy == nil && !slices.Contains(evict.Names(), ns.Policy) {
			bad(at+".Policy", ns.Policy, fmt.Sprintf("one of %v", evict.Names()), "or set NewPolicy")
		}
		if ns.Watermark < 0 || ns.Watermark > 100 {
			bad(at+".Watermark", ns.Watermark, "0 to 100 percent", "0 turns it off")
		}
		if ns.MaxBlocks < 0 || int64(ns.MaxBlocks) > int64(shard.MaxRecords) {
			bad(at+".MaxBlocks", ns.MaxBlocks, fmt.Sprintf("0 to %d", shard.MaxRecords), "leave it 0 for the default")
		}
		if ns.MeanValue < 1 {
			bad(at+".MeanValue", ns.MeanValue, "at least 1 byte", "leave it 0 for 4 KiB")
		}
		if ns.LongKeyBytes < 0 {
			bad(at+".LongKeyBytes", ns.LongKeyBytes, "not negative", "leave it 0 for 64 bytes for each block")
		}
		if ns.Checksums < ChecksumDefault || ns.Checksums > ChecksumOff {
			bad(at+".Checksums", ns.Checksums, "ChecksumDefault, ChecksumOn or ChecksumOff", "choose one")
		}
		if len(ns.Pools) == 0 {
			if ns.MaxValue < 1 || int64(ns.MaxValue) > per {
				bad(at+".MaxValue", ns.MaxValue, fmt.Sprintf("1 to the %d bytes of one shard", per), "lower it, raise Capacity, or lower Shards")
			}
			continue
		}
		if len(ns.Pools) > shard.MaxPools {
			bad(at+".Pools", len(ns.Pools), fmt.Sprintf("at most %d pools", shard.MaxPools), "merge some")
		}
		pools := map[string]bool{}
		var ps float64
		for j, p := range ns.Pools {
			pat := fmt.Sprintf("%s.Pools[%d]", at, j)
			ps += p.Share
			if p.Name == "" && len(ns.Pools) > 1 || len(p.Name) > 255 {
				bad(pat+".Name", p.Name, "1 to 255 bytes", "name the pool")
			}
			if pools[p.Name] {
				bad(pat+".Name", p.Name, "unique", "rename one of the two")
			}
			pools[p.Name] = true
			if !(p.Share > 0 && p.Share <= 1) {
				bad(pat+".Share", p.Share, "over 0, up to 1, sum of all at most 1", "leave it 0 for an equal part of the rest")
			}
			if p.SlotBytes < 64 || p.SlotBytes%64 != 0 || p.SlotBytes >= 4096 && p.SlotBytes%4096 != 0 {
				bad(pat+".SlotBytes", p.SlotBytes, "a multiple of 64, of 4096 from 4 KiB up", "round it up")
			} else if int64(float64(per)*p.Share) < int64(p.SlotBytes) {
				bad(pat, p.SlotBytes, "at least one slot in each shard", "raise Capacity or the pool's Share")
			}
		}
		if ps > 1.000001 {
			bad(at+".Pools", ps, "shares sum to at most 1", "lower some")
		}
	}
	if c.Peers != nil {
		if err := c.Peers.validate(c.Regions, bad); err != nil {
			errs = append(errs, err)
		}
	}
	if c.Hints != nil {
		if err := c.Hints.validate(bad); err != nil {
			errs = append(errs, err)
		}
	}
	if shares > 1.000001 {
		bad("Namespaces", shares, "shares sum to at most 1", "lower some")
	}
	if len(c.Pin) > 0 {
		if len(c.Pin) < owners {
			bad("Pin", c.Pin, fmt.Sprintf("one CPU for each of the %d shards", owners), "lower Shards or name more CPUs")
		}
		for _, cpu := range c.Pin {
			if cpu < 0 {
				bad("Pin", cpu, "a CPU number, 0 or more", "name the CPUs that doctor lists")
			}
		}
		if owners > runtime.GOMAXPROCS(0)-2 {
			bad("Pin", owners, fmt.Sprintf("at most GOMAXPROCS minus two = %d pinned owners, or timers and the network starve", runtime.GOMAXPROCS(0)-2), "lower Shards, raise GOMAXPROCS, or do not pin")
		}
	}
	return errors.Join(errs...)
}
