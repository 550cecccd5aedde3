package kvcr

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/arena"
)

// configErrors returns every ConfigError of a joined error.
func configErrors(err error) (out []*ConfigError) {
	var walk func(error)
	walk = func(err error) {
		if c, ok := err.(*ConfigError); ok {
			out = append(out, c)
		}
		switch u := err.(type) {
		case interface{ Unwrap() []error }:
			for _, e := range u.Unwrap() {
				walk(e)
			}
		case interface{ Unwrap() error }:
			walk(u.Unwrap())
		}
	}
	walk(err)
	return out
}

// Each field refuses what it cannot take, and says value, limit and fix.
func TestConfigErrors(t *testing.T) {
	pools := func(ps ...Pool) []Namespace { return one(Namespace{Pools: ps}) }
	good := Pool{Name: "a", SlotBytes: 4096}
	cases := []struct {
		name  string
		field string // of the first problem
		cfg   Config
	}{
		{"capacity small", "Capacity", Config{Capacity: 1000}},
		{"capacity negative", "Capacity", Config{Capacity: -1}},
		{"capacity over the machine", "Capacity", Config{Capacity: 1 << 50}},
		{"shards not a power of two", "Shards", Config{Shards: 3}},
		{"shards negative", "Shards", Config{Shards: -1}},
		{"too many shards", "Shards", Config{Shards: 512}},
		{"handles negative", "MaxHandles", Config{MaxHandles: -1}},
		{"too many handles", "MaxHandles", Config{MaxHandles: 1 << 20}},
		{"timeout negative", "OperationTimeout", Config{OperationTimeout: -time.Second}},
		{"pin more than there are", "Pin", Config{Shards: 256, Pin: make([]int, 256)}},
		{"pin to a CPU below 0", "Pin", Config{Shards: 1, Pin: []int{-1}}},
		{"pin fewer than shards", "Pin", Config{Shards: 2, Pin: []int{0}}},
		{"namespace without a name", "Namespaces[0].Name", Config{Namespaces: []Namespace{{}}}},
		{"namespace name too long", "Namespaces[0].Name", Config{Namespaces: one(Namespace{Name: strings.Repeat("n", 256)})}},
		{"namespace name twice", "Namespaces[1].Name", Config{Namespaces: []Namespace{{Name: "a"}, {Name: "a"}}}},
		{"kind", "Namespaces[0].Kind", Config{Namespaces: one(Namespace{Kind: 7})}},
		{"share negative", "Namespaces[0].Share", Config{Namespaces: one(Namespace{Share: -0.5})}},
		{"share over one", "Namespaces[0].Share", Config{Namespaces: one(Namespace{Share: 1.5})}},
		{"share not a number", "Namespaces[0].Share", Config{Namespaces: one(Namespace{Share: math.NaN()})}},
		{"nothing left", "Namespaces[1].Share", Config{Namespaces: []Namespace{{Name: "a", Share: 1}, {Name: "b"}}}},
		{"shares over one", "Namespaces", Config{Namespaces: []Namespace{{Name: "a", Share: 0.7}, {Name: "b", Share: 0.7}}}},
		{"shard too small", "Namespaces[0]", Config{Capacity: 2 << 20, Shards: 16, Namespaces: one(Namespace{MaxValue: 1})}},
		{"policy", "Namespaces[0].Policy", Config{Namespaces: one(Namespace{Policy: "mru"})}},
		{"watermark negative", "Namespaces[0].Watermark", Config{Namespaces: one(Namespace{Watermark: -1})}},
		{"watermark over 100", "Namespaces[0].Watermark", Config{Namespaces: one(Namespace{Watermark: 101})}},
		{"blocks negative", "Namespaces[0].MaxBlocks", Config{Namespaces: one(Namespace{MaxBlocks: -1})}},
		{"too many blocks", "Namespaces[0].MaxBlocks", Config{Namespaces: one(Namespace{MaxBlocks: 1 << 40})}},
		{"mean value negative", "Namespaces[0].MeanValue", Config{Namespaces: one(Namespace{MeanValue: -1})}},
		{"long keys negative", "Namespaces[0].LongKeyBytes", Config{Namespaces: one(Namespace{LongKeyBytes: -1})}},
		{"checksums", "Namespaces[0].Checksums", Config{Namespaces: one(Namespace{Checksums: 9})}},
		{"value negative", "Namespaces[0].MaxValue", Config{Namespaces: one(Namespace{MaxValue: -1})}},
		{"value over a shard", "Namespaces[0].MaxValue", Config{Shards: 4, Namespaces: one(Namespace{MaxValue: 5 << 20})}},
		{"slot zero", "Namespaces[0].Pools[0].SlotBytes", Config{Namespaces: pools(Pool{Name: "a"})}},
		{"slot odd", "Namespaces[0].Pools[0].SlotBytes", Config{Namespaces: pools(Pool{Name: "a", SlotBytes: 100})}},
		{"slot not in pages", "Namespaces[0].Pools[0].SlotBytes", Config{Namespaces: pools(Pool{Name: "a", SlotBytes: 4096 + 64})}},
		{"slot over the shard", "Namespaces[0].Pools[0]", Config{Namespaces: pools(Pool{Name: "a", SlotBytes: 1 << 30})}},
		{"pool name twice", "Namespaces[0].Pools[1].Name", Config{Namespaces: pools(good, good)}},
		{"pool without a name", "Namespaces[0].Pools[1].Name", Config{Namespaces: pools(good, Pool{SlotBytes: 4096})}},
		{"pool shares over one", "Namespaces[0].Pools", Config{Namespaces: pools(Pool{Name: "a", SlotBytes: 64, Share: 0.9}, Pool{Name: "b", SlotBytes: 64, Share: 0.9})}},
		{"pool share negative", "Namespaces[0].Pools[0].Share", Config{Namespaces: pools(Pool{Name: "a", SlotBytes: 64, Share: -1})}},
		{"pool share not a number", "Namespaces[0].Pools[0].Share", Config{Namespaces: pools(Pool{Name: "a", SlotBytes: 64, Share: math.NaN()})}},
		{"too many pools", "Namespaces[0].Pools", Config{Namespaces: pools(make([]Pool, 40)...)}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			before := takeStock()
			if c.cfg.Capacity == 0 {
				c.cfg.Capacity = 16 << 20
			}
			e, err := Open(c.cfg)
			if err == nil {
				t.Errorf("accepted; effective: %+v", e.Config())
				e.Close()
				return
			}
			isErr(t, "Open", err, ErrConfig)
			var found *ConfigError
			all := configErrors(err)
			for _, ce := range all {
				if ce.Field == c.field {
					found = ce
					break
				}
			}
			if found == nil {
				t.Fatalf("no problem with %s in: %v", c.field, err)
			}
			if found.Limit == "" || found.Fix == "" || found.Value == nil {
				t.Errorf("incomplete: %+v", found)
			}
			for _, part := range []string{found.Field, found.Limit, found.Fix} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("message lacks %q: %v", part, err)
				}
			}
			if err := before.check(time.Second); err != nil {
				t.Errorf("after a refused Open: %v", err)
			}
		})
	}
}

// One Open reports every problem, not the first.
func TestConfigReportsAllAtOnce(t *testing.T) {
	_, err := Open(Config{
		Capacity: 16 << 20, Shards: 5, MaxHandles: -3, OperationTimeout: -1,
		Namespaces: []Namespace{
			{Name: "", Policy: "mru", Watermark: 300},
			{Name: "b", Pools: []Pool{{Name: "x", SlotBytes: 7}, {Name: "x", SlotBytes: 64}}},
		},
	})
	isErr(t, "Open", err, ErrConfig)
	have := map[string]bool{}
	for _, ce := range configErrors(err) {
		have[ce.Field] = true
	}
	for _, want := range []string{
		"Shards", "MaxHandles", "OperationTimeout", "Namespaces[0].Name", "Namespaces[0].Policy", "Namespaces[0].Watermark",
		"Namespaces[1].Pools[0].SlotBytes", "Namespaces[1].Pools[1].Name",
	} {
		if !have[want] {
			t.Errorf("%s is not reported in: %v", want, err)
		}
	}
}

// Memory that cannot be had is one error, and nothing is left behind.
func TestConfigMemory(t *testing.T) {
	for _, c := range []struct {
		name string
		m    Memory
	}{
		{"file without path", Memory{Backing: arena.File}},
		{"path without file", Memory{Path: "/dev/shm"}},
		{"no such directory", Memory{Backing: arena.File, Path: "/dev/shm/no/such/directory/at/all"}},
		{"pages", Memory{Pages: 99}},
		{"backing", Memory{Backing: 99}},
		{"nodes without mode", Memory{NUMA: arena.NUMA{Nodes: []int{0}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := takeStock()
			e, err := Open(Config{Capacity: 4 << 20, Memory: c.m})
			if err == nil {
				e.Close()
				t.Fatal("accepted")
			}
			if err := before.check(time.Second); err != nil {
				t.Errorf("after a refused Open: %v", err)
			}
		})
	}
}

// Metadata counts, too: half the machine for tiny values needs more than the
// other half for their records.
func TestConfigMetadataCounts(t *testing.T) {
	limit, _ := arena.MemoryLimit()
	if limit == math.MaxInt64 {
		t.Skip("this process has no memory limit and the machine does not say how much it has")
	}
	if raceOn {
		t.Skip("race builds take the memory from Go's heap, which has a cap of its own")
	}
	before := takeStock()
	_, err := Open(Config{Capacity: limit / 2, Shards: 64, Namespaces: one(Namespace{MaxValue: 1 << 10, MeanValue: 16})})
	isErr(t, "Open", err, ErrConfig)
	if err != nil && !strings.Contains(err.Error(), "metadata") {
		t.Errorf("metadata is not named: %v", err)
	}
	if err := before.check(time.Second); err != nil {
		t.Errorf("after a refused Open: %v", err)
	}
}

// What is left out gets a value that works.
func TestConfigDefaults(t *testing.T) {
	e := open(t, Config{Capacity: 64 << 20})
	c := e.Config()
	if len(c.Namespaces) != 1 || c.Namespaces[0].Name != "default" || c.Namespaces[0].Policy != "density" ||
		c.Namespaces[0].Share != 1 || c.MaxHandles != 256 || c.OperationTimeout != time.Second {
		t.Errorf("%+v", c)
	}
	limit, _ := arena.MemoryLimit()
	plan := e.MemoryPlan()
	if plan.Limit != limit || plan.PayloadBytes < 60<<20 || plan.PayloadBytes > 64<<20 || plan.MetadataBytes <= 0 || plan.BlockBytes <= 0 {
		t.Errorf("plan %+v", plan)
	}
	if plan.SuggestedGoLimit+plan.PayloadBytes+plan.MetadataBytes > plan.Limit {
		t.Errorf("Go's suggested limit %d and our %d together are over %d", plan.SuggestedGoLimit, plan.PayloadBytes+plan.MetadataBytes, plan.Limit)
	}
	if len(plan.Placements) != 2 {
		t.Errorf("placements: %v", plan.Placements)
	}
}

// MaxValue's default follows the shards that were asked for.
func TestConfigDefaultMaxValueFitsShards(t *testing.T) {
	e := open(t, Config{Capacity: 16 << 20, Shards: 16})
	if mv := e.Config().Namespaces[0].MaxValue; mv < 1 || mv > 1<<20 {
		t.Errorf("MaxValue = %d with shards of 1 MiB", mv)
	}
	h := handle(t, e)
	if err := h.Set([]byte("k"), stamped(1, e.Config().Namespaces[0].MaxValue)); err != nil {
		t.Error(err)
	}
}

// What Config returns is a copy of what the engine goes by, and so is what
// Open was given.
func TestConfigIsImmutable(t *testing.T) {
	cfg := Config{Capacity: 4 << 20, Namespaces: one(Namespace{Kind: Chained, Pools: []Pool{{Name: "a", SlotBytes: 64}, {Name: "b", SlotBytes: 128}}})}
	e := open(t, cfg)
	h := handle(t, e)
	cfg.Namespaces[0].Pools[0].Name = "x"
	cfg.Namespaces[0].Pools[0].SlotBytes = 1
	got := e.Config()
	got.Namespaces[0].Name = "other"
	got.Namespaces[0].Pools[1].Name = "y"
	r := h.DepositBatch([]Item{{Key: []byte("k"), Pieces: [][]byte{stamped(1, 64), stamped(2, 128)}, Pools: []string{"a", "b"}}}, DepositOptions{})
	if !r[0].OK() {
		t.Errorf("pools of the running engine were renamed from outside: %v", r[0].Err())
	}
}

// The metadata promise: at most 112 bytes for each block of a pool.
func TestMetadataPerBlock(t *testing.T) {
	e := open(t, Config{Capacity: 64 << 20, Shards: 1, Namespaces: one(Namespace{Pools: []Pool{{SlotBytes: 64}}})})
	if b := e.MemoryPlan().BlockBytes; b > 112 {
		t.Errorf("%.2f bytes of metadata for each block, promised are 112", b)
	}
}

// Nothing larger than the machine or its container may be asked for, since the
// kernel would kill the process later.
func TestCapacityOverLimitNamesBoth(t *testing.T) {
	limit, source := arena.MemoryLimit()
	if limit == math.MaxInt64 {
		t.Skip("the machine does not say how much memory it has")
	}
	_, err := Open(Config{Capacity: limit + 1<<20})
	var ce *ConfigError
	if !errors.As(err, &ce) {
		t.Fatalf("error %v", err)
	}
	if ce.Field != "Capacity" || ce.Value != limit+1<<20 || !strings.Contains(ce.Limit, source) {
		t.Errorf("%+v does not name the limit of %s", ce, source)
	}
}
