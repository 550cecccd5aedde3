package keys

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// clock is a table's time, set by the test.
type clock struct{ now time.Duration }

func (c *clock) of(tab *Table) *Table {
	tab.now = func() time.Duration { return c.now }
	return tab
}

func wantDescription(t *testing.T, tab *Table, key []byte, want *Description) {
	t.Helper()
	got, ok := tab.Description("a", key, nil)
	if ok != (want != nil) {
		t.Errorf("described: %v %+v, want %+v", ok, got, want)
	}
	if want != nil && (!slices.Equal(got.Tokens, want.Tokens) || got.Parent != want.Parent || got.HasParent != want.HasParent || got.LoRA != want.LoRA ||
		got.CacheNamespace != want.CacheNamespace || got.BlockSize != want.BlockSize || !slices.Equal(got.Media, want.Media)) {
		t.Errorf("description %+v, want %+v", got, want)
	}
}

func TestDescribe(t *testing.T) {
	var c clock
	tab := c.of(table(t, nil))
	k := digestOf(1, 1)
	wantDescription(t, tab, k, nil)
	d := Description{Tokens: []uint32{1, 2, 3, 4}, Media: []uint64{42}, Parent: 9, HasParent: true, BlockSize: 4, LoRA: "adapter-a", CacheNamespace: "tenant-a"}
	if err := tab.Describe("a", k, d); err != nil {
		t.Fatal(err)
	}
	wantDescription(t, tab, k, &d) // before it is deposited
	tab.Stored("a", k, dram)
	c.now += time.Hour
	wantDescription(t, tab, k, &d) // while it is resident
	got, _ := tab.Description("a", k, []uint32{7})
	h := Hasher{Seed: BlockSeed("adapter-a", "tenant-a")}
	if !got.HasLocal || got.Local != h.Local(d.Tokens, d.Media) {
		t.Errorf("local hash %d, %v", got.Local, got.HasLocal)
	}
	if !slices.Equal(got.Tokens, d.Tokens) {
		t.Errorf("tokens %v behind others", got.Tokens)
	}
	again := d
	again.Parent = 10
	if err := tab.Describe("a", k, again); err != nil {
		t.Fatal(err)
	}
	wantDescription(t, tab, k, &again) // the last one counts
	c.now += time.Hour
	tab.Removed("a", k, dram)
	wantDescription(t, tab, k, nil) // old, and gone with the block
	if s := tab.Stats(); s.Described != 0 || s.Pending != 0 || len(tab.media) != 0 || len(tab.texts.numbers) != 0 {
		t.Errorf("%+v, %d media, %d names are left", s, len(tab.media), len(tab.texts.numbers))
	}
}

// A block is described anew and deposited again while the table has yet to hear
// that its former life ended: the description is for the new life.
func TestDescribedWhileOnItsWayOut(t *testing.T) {
	tab := table(t, nil)
	k := digestOf(1, 1)
	tab.Stored("a", k, dram)
	d := Description{Tokens: []uint32{1, 2}, BlockSize: 2}
	if err := tab.Describe("a", k, d); err != nil {
		t.Fatal(err)
	}
	tab.Removed("a", k, dram)
	tab.Stored("a", k, dram)
	wantDescription(t, tab, k, &d)
	long := append(bytes.Repeat([]byte{3}, 100), k...)
	tab.Stored("a", long, dram)
	if err := tab.Describe("a", long, d); err != nil {
		t.Fatal(err)
	}
	sync := tab.Resync() // the same by a resync
	sync.Done(nil)
	wantDescription(t, tab, k, &d)
	wantDescription(t, tab, long, &d)
	tab.Stored("a", long, dram)
	wantDescription(t, tab, long, &d)
	if s := tab.Stats(); s.Pending != 1 || s.Described != 1 {
		t.Errorf("%+v", s)
	}
}

// What is described and never deposited is dropped by age and by number.
func TestPendingIsBounded(t *testing.T) {
	c := clock{}
	tab := c.of(table(t, func(cfg *TableConfig) { cfg.MaxPending, cfg.PendingAge = 10, time.Second }))
	d := Description{Tokens: []uint32{1, 2, 3}, BlockSize: 3, LoRA: "l"}
	for i := range uint64(25) {
		if err := tab.Describe("a", digestOf(i, 1), d); err != nil {
			t.Fatal(err)
		}
	}
	if s := tab.Stats(); s.Pending != 10 || s.Expired != 15 {
		t.Errorf("%+v", s)
	}
	wantDescription(t, tab, digestOf(14, 1), nil)
	wantDescription(t, tab, digestOf(15, 1), &d)
	c.now += time.Second - 1
	if err := tab.Describe("a", digestOf(100, 1), d); err != nil {
		t.Fatal(err)
	}
	wantDescription(t, tab, digestOf(24, 1), &d)
	c.now++
	tab.Stored("a", digestOf(24, 1), dram) // too late
	wantDescription(t, tab, digestOf(24, 1), nil)
	tab.Stored("a", digestOf(100, 1), dram)
	wantDescription(t, tab, digestOf(100, 1), &d)
	if s := tab.Stats(); s.Pending != 0 || s.Described != 1 || len(tab.pendingAt) != 0 {
		t.Errorf("%+v, %d by name", s, len(tab.pendingAt))
	}
}

// An engine may be ahead of who reads its events by as many as a subscription holds.
func TestDescriptionsOutlastLateEvents(t *testing.T) {
	const ahead = 1 << 16
	tab := table(t, nil)
	d := Description{Tokens: []uint32{1, 2, 3}, BlockSize: 3}
	for i := range uint64(ahead) {
		if err := tab.Describe("a", digestOf(i, 1), d); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(ahead) {
		tab.Stored("a", digestOf(i, 1), dram)
	}
	if s := tab.Stats(); s.Described != ahead || s.Expired != 0 {
		t.Errorf("%+v", s)
	}
}

// Beyond MaxTokenBytes a description keeps its local hash and loses its tokens.
func TestTokensAreBounded(t *testing.T) {
	tab := table(t, func(cfg *TableConfig) { cfg.MaxTokenBytes = 128 << 10 })
	tokens := upTo(16)
	n := 128 << 10 / (4 * 16)
	for i := range uint64(n + 10) {
		tab.Stored("a", digestOf(i, 1), dram)
		if err := tab.Describe("a", digestOf(i, 1), Description{Tokens: tokens}); err != nil {
			t.Fatal(err)
		}
	}
	if s := tab.Stats(); s.TokenBytes != 128<<10 || s.Tokenless != 10 || s.Described != n+10 {
		t.Errorf("%+v", s)
	}
	h := Hasher{Seed: Seed}
	got, ok := tab.Description("a", digestOf(uint64(n+3), 1), nil)
	if !ok || len(got.Tokens) != 0 || !got.HasLocal || got.Local != h.Local(tokens, nil) || got.BlockSize != 16 {
		t.Errorf("%+v, %v", got, ok)
	}
	// Room comes back.
	tab.now = func() time.Duration { return time.Hour }
	tab.Removed("a", digestOf(0, 1), dram)
	if err := tab.Describe("a", digestOf(uint64(n+3), 1), Description{Tokens: tokens}); err != nil {
		t.Fatal(err)
	}
	if got, _ := tab.Description("a", digestOf(uint64(n+3), 1), nil); !slices.Equal(got.Tokens, tokens) {
		t.Errorf("%+v", got)
	}
}

// Memory that went to blocks of one size is there for others once they are forgotten:
// one client's descriptions do not spoil those of all others.
func TestTokenMemoryChangesSize(t *testing.T) {
	tab := table(t, func(cfg *TableConfig) { cfg.MaxTokenBytes = 1 << 20 })
	for i := range uint64(20) {
		if err := tab.Describe("a", digestOf(i, 1), Description{Tokens: upTo(MaxBlockTokens)}); err != nil {
			t.Fatal(err)
		}
	}
	if s := tab.Stats(); s.TokenBytes != 1<<20 || s.Tokenless != 4 {
		t.Errorf("%+v", s)
	}
	tab.now = func() time.Duration { return time.Hour }
	if err := tab.Describe("a", digestOf(50, 1), Description{Tokens: upTo(16)}); err != nil {
		t.Fatal(err)
	}
	if got, _ := tab.Description("a", digestOf(50, 1), nil); len(got.Tokens) != 16 {
		t.Errorf("%d tokens are kept; %+v", len(got.Tokens), tab.Stats())
	}
}

func TestDescriptionRefused(t *testing.T) {
	tab := table(t, nil)
	for _, tt := range []struct {
		d     Description
		names string
	}{
		{Description{Tokens: make([]uint32, MaxBlockTokens+1)}, "Tokens"},
		{Description{Tokens: make([]uint32, 6), BlockSize: 4}, "BlockSize"},
		{Description{Tokens: make([]uint32, 3), BlockSize: 4}, "BlockSize"},
		{Description{BlockSize: -1}, "BlockSize"},
		{Description{Media: make([]uint64, 65)}, "Media"},
		{Description{LoRA: strings.Repeat("l", 257)}, "LoRA"},
		// The host hashes by another recipe.
		{Description{Tokens: []uint32{1}, Local: 5, HasLocal: true}, "recipes"},
	} {
		if err := tab.Describe("a", digestOf(1, 1), tt.d); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tt.names) {
			t.Errorf("%.80v: %v, want an Error that names %s", fmt.Sprint(tt.d), err, tt.names)
		}
	}
	for _, d := range []Description{{}, {Local: 5, HasLocal: true}, {Tokens: make([]uint32, 5), BlockSize: 4}} {
		if err := tab.Describe("a", digestOf(1, 1), d); err != nil {
			t.Error(err)
		}
	}
}

// Keys that carry a local hash describe themselves.
func TestSelfDescribingKeys(t *testing.T) {
	d := Dynamo{WithLocal: true}
	tab := table(t, func(cfg *TableConfig) { cfg.Styles["a"] = d })
	got, told := tab.Description("a", d.AppendBlockKey(nil, 1, 77), nil)
	if told || !got.HasLocal || got.Local != 77 || got.HasParent {
		t.Errorf("%+v, %v", got, told)
	}
}

// Slots of tokens never overlap, whatever their sizes.
func TestTokenStore(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := tokenStore{limit: 1 << 20}
		held := map[tokenRef]uint32{}
		var order []tokenRef
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		for i := range uint32(300) {
			if len(order) > 0 && rng.IntN(3) == 0 {
				at := rng.IntN(len(order))
				r := order[at]
				for _, v := range s.get(r) {
					if v != held[r] {
						rt.Fatalf("%+v has %d, want %d", r, v, held[r])
					}
				}
				s.drop(r)
				delete(held, r)
				order = slices.Delete(order, at, at+1)
				continue
			}
			n := 1 + rng.IntN(1<<(1+rng.IntN(14)))
			r, ok := s.put(slices.Repeat([]uint32{i + 1}, n))
			if !ok {
				if s.bytes+4*tokenChunk <= s.limit || s.idle > 0 {
					rt.Fatalf("%d tokens refused at %d bytes", n, s.bytes)
				}
				continue
			}
			if _, had := held[r]; had || len(s.get(r)) != n {
				rt.Fatalf("%+v is in use or has %d tokens, want %d", r, len(s.get(r)), n)
			}
			held[r] = i + 1
			order = append(order, r)
		}
		for r, v := range held {
			for _, got := range s.get(r) {
				if got != v {
					rt.Fatalf("%+v has %d, want %d", r, got, v)
				}
			}
			s.drop(r)
		}
		if s.reclaim(); s.bytes != 0 || s.idle != 0 {
			rt.Fatalf("%d bytes and %d idle chunks are left of nothing", s.bytes, s.idle)
		}
	})
}
