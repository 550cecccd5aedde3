package shard

import (
	"github.com/kvcr-go/kvcr/arena"
	"github.com/kvcr-go/kvcr/shard/evict"
)

// NewPolicy builds a shard's policy over its nodes; see evict.Policy.
type NewPolicy func(nodes []evict.Node, b evict.Blocks, seed uint64) (evict.Policy, error)

// Config describes one shard. The root package fills and checks it.
type Config struct {
	Name    string // namespace, for labels
	Number  int
	Records int // blocks, at most MaxRecords

	// Payload memory: fixed-slot pools in order, or size classes over all of it
	// when there are none.
	Payload      *arena.Arena
	PayloadOff   arena.Off
	PayloadBytes int64
	Pools        []Pool
	MaxValue     int // bytes; size classes only

	// Meta is where records, index and side region lie; Plan says how much.
	Meta      *arena.Arena
	MetaOff   arena.Off
	SideBytes int64 // keys over 40 bytes and second pieces

	// Moves bounds the marks and holds of transfers, nil for a budget of the
	// shard's own.
	Moves *MoveBudget

	NewPolicy NewPolicy
	// Foreign policies and callbacks run on the owner goroutine only, so such a
	// shard is not helped.
	Foreign bool
	Seed    uint64
	Hash    func(key []byte) uint64

	// Pin is the CPU the owner is locked to, -1 for none. A pinned shard is not
	// helped.
	Pin int

	// OnPressure hears that a pool (-1: size classes) fell under Watermark
	// percent of free or evictable bytes.
	Watermark  int
	OnPressure func(pool int, free, watermark int64)
}

// Pool is a fixed-slot pool.
type Pool struct {
	SlotBytes int
	Slots     uint32
}

// Plan says how much metadata memory a shard takes and where its parts lie.
type Plan struct {
	Hot, Cold, Nodes, Buckets, Table, Side arena.Off // offsets from MetaOff
	Dir, Overflow                          int
	SideBytes                              int64
	// Bytes is the sum, BlockBytes the part that each block needs: records,
	// index and page table, without the side region.
	Bytes      int64
	BlockBytes int64
}

const page = 4096

// PlanFor computes the layout of a shard's metadata.
func PlanFor(c *Config) Plan {
	var p Plan
	at := arena.Off(0)
	take := func(n int64) arena.Off {
		o := at
		at += arena.Off((n + page - 1) / page * page)
		return o
	}
	n := int64(c.Records) + 1 // id 0 is none
	p.Hot = take(n * 64)
	p.Cold = take(n * 16)
	p.Nodes = take(n * 16)
	p.Dir, p.Overflow = indexBuckets(c.Records)
	p.Buckets = take(int64(p.Dir+p.Overflow) * 64)
	tables := int64(0)
	if len(c.Pools) == 0 {
		tables = arena.ClassesTableBytes(c.PayloadBytes)
	}
	const slab = 64 << 10
	p.SideBytes = (c.SideBytes + slab - 1) / slab * slab
	p.Table = take(tables)
	p.BlockBytes = int64(at)
	take(arena.ClassesTableBytes(p.SideBytes))
	p.Side = take(p.SideBytes)
	p.Bytes = int64(at)
	return p
}
