package keys

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/hints/events"
)

const dram = events.HostPinned

func table(t testing.TB, edit func(*TableConfig)) *Table {
	t.Helper()
	cfg := TableConfig{Styles: map[string]Style{"a": VLLM{}, "b": VLLM{}}}
	if edit != nil {
		edit(&cfg)
	}
	tab, err := NewTable(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

// digestOf returns a key with that hash, one of many.
func digestOf(hash uint64, which byte) []byte {
	return binary.BigEndian.AppendUint64([]byte{which, 0xff}, hash)
}

func wantFrom(t *testing.T, tab *Table, hash uint64, namespace string, key []byte) {
	t.Helper()
	k, err := tab.FromRouter(hash)
	if err != nil || k.Namespace != namespace || !bytes.Equal(k.Key, key) {
		t.Errorf("FromRouter(%d) = %s/%x, %v; want %s/%x", hash, k.Namespace, k.Key, err, namespace, key)
	}
}

func wantErr(t *testing.T, tab *Table, hash uint64, want error) {
	t.Helper()
	if k, err := tab.FromRouter(hash); !errors.Is(err, want) || k.Key != nil {
		t.Errorf("FromRouter(%d) = %s/%x, %v; want %v", hash, k.Namespace, k.Key, err, want)
	}
}

// Every colliding key is tracked, also across namespaces and groups; a hash means a
// key again when the others have left.
func TestCollisions(t *testing.T) {
	tab := table(t, func(cfg *TableConfig) { cfg.Styles["g"] = VLLM{WithGroup: true} })
	k1, k2 := digestOf(5, 1), digestOf(5, 2)
	long := append(bytes.Repeat([]byte{9}, 200), k1[2:]...) // does not fit an entry
	group := append(bytes.Clone(k1), 0, 0, 0, 1)
	wantErr(t, tab, 5, hints.ErrNotFound)
	tab.Stored("a", k1, dram)
	wantFrom(t, tab, 5, "a", k1)
	for _, other := range []struct {
		namespace string
		key       []byte
	}{{"a", k2}, {"b", k1}, {"a", long}, {"g", group}} {
		tab.Stored(other.namespace, other.key, dram)
		wantErr(t, tab, 5, hints.ErrAmbiguous)
		if held := tab.Held(5); len(held) != 2 {
			t.Errorf("held: %v", held)
		}
		if s := tab.Stats(); s.Ambiguous != 1 || s.Keys != 2 {
			t.Errorf("%+v", s)
		}
		tab.Removed(other.namespace, other.key, dram)
		wantFrom(t, tab, 5, "a", k1)
		// And the other way round: the first leaves.
		tab.Stored(other.namespace, other.key, dram)
		tab.Removed("a", k1, dram)
		wantFrom(t, tab, 5, other.namespace, other.key)
		tab.Stored("a", k1, dram)
		tab.Removed(other.namespace, other.key, dram)
	}
	// Five at once leave one by one, in another order than they came.
	all := [][]byte{k1, k2, digestOf(5, 3), digestOf(5, 4), long}
	for _, k := range all[1:] {
		tab.Stored("a", k, dram)
	}
	for i, at := range []int{2, 0, 4, 1} {
		wantErr(t, tab, 5, hints.ErrAmbiguous)
		if s := tab.Stats(); s.Keys != 5-i || s.Ambiguous != 1 {
			t.Errorf("%+v with %d keys held", s, 5-i)
		}
		tab.Removed("a", all[at], dram)
	}
	wantFrom(t, tab, 5, "a", all[3])
	tab.Removed("a", all[3], dram)
	wantErr(t, tab, 5, hints.ErrNotFound)
	if s := tab.Stats(); s.Keys != 0 || s.Ambiguous != 0 || len(tab.long) != 0 || len(tab.index) != 0 {
		t.Errorf("%+v, %d long keys, %d hashes are left", s, len(tab.long), len(tab.index))
	}
}

// A hash is bound to another key once the first has left.
func TestRebind(t *testing.T) {
	tab := table(t, nil)
	for i := range 10 {
		k := digestOf(7, byte(i))
		tab.Stored("a", k, dram)
		wantFrom(t, tab, 7, "a", k)
		tab.Removed("a", k, dram)
		wantErr(t, tab, 7, hints.ErrNotFound)
	}
}

func TestTiers(t *testing.T) {
	tab := table(t, nil)
	k, other := digestOf(1, 1), digestOf(1, 2)
	for _, step := range []struct {
		stored bool
		key    []byte
		tier   events.Tier
		want   Effect
	}{
		{true, k, events.HostPinned, Changed},
		{true, k, events.HostPinned, Unchanged}, // it is there
		{true, k, events.Disk, Changed},
		{false, k, events.HostPinned, Changed}, // it stays on disk
		{false, k, events.HostPinned, Unchanged},
		{true, other, events.Disk, Unchanged}, // routers know the hash there
		{false, k, events.Disk, Unchanged},    // and still do
		{false, other, events.Disk, Changed},
		{true, k, events.Tier(9), Foreign},
		{false, k, events.Tier(9), Foreign},
	} {
		var h uint64
		var got Effect
		if step.stored {
			h, got = tab.Stored("a", step.key, step.tier)
		} else {
			h, got = tab.Removed("a", step.key, step.tier)
		}
		if got != step.want || got != Foreign && h != 1 {
			t.Errorf("%+v: hash %d, effect %d", step, h, got)
		}
	}
	if s := tab.Stats(); s.Keys != 0 || s.Unknown != 1 || s.Foreign != 2 {
		t.Errorf("%+v", s)
	}
}

func TestForeignKeys(t *testing.T) {
	tab := table(t, nil)
	for _, c := range []struct {
		namespace string
		key       []byte
	}{{"c", digestOf(1, 1)}, {"a", []byte("short")}, {"a", nil}, {"a", make([]byte, 1025)}} {
		if _, e := tab.Stored(c.namespace, c.key, dram); e != Foreign {
			t.Errorf("Stored(%q, %d bytes): effect %d", c.namespace, len(c.key), e)
		}
		if _, e := tab.Removed(c.namespace, c.key, dram); e != Foreign {
			t.Errorf("Removed(%q, %d bytes): effect %d", c.namespace, len(c.key), e)
		}
		if err := tab.Describe(c.namespace, c.key, Description{}); !errors.Is(err, ErrInvalid) {
			t.Errorf("Describe: %v", err)
		}
	}
	if s := tab.Stats(); s.Keys != 0 || s.Foreign != 8 || s.Pending != 0 {
		t.Errorf("%+v", s)
	}
}

// What the documentation says of the memory that a key takes.
func TestSizes(t *testing.T) {
	if n := unsafe.Sizeof(entry{}); n != 64 {
		t.Errorf("an entry has %d bytes", n)
	}
	if n := unsafe.Sizeof(record{}); n != 48 {
		t.Errorf("a description has %d bytes", n)
	}
	const keys = 1 << 16
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	tab := table(t, nil)
	before := heap()
	for i := range uint64(keys) {
		tab.Stored("a", digestOf(i*0x9e3779b97f4a7c15, 1), dram)
	}
	if each := (heap() - before) / keys; each < 64 || each > 130 {
		t.Errorf("a key takes %d bytes", each)
	} else {
		t.Logf("a key takes %d bytes", each)
	}
	runtime.KeepAlive(tab)
}

func TestTableConfig(t *testing.T) {
	for _, tt := range []struct {
		cfg   TableConfig
		names string
	}{
		{TableConfig{}, "Styles"},
		{TableConfig{Styles: map[string]Style{"a": nil}}, "Styles[a]"},
		{TableConfig{Styles: map[string]Style{"a": VLLM{DigestBytes: 7}}}, "DigestBytes"},
		{TableConfig{Styles: map[string]Style{"a": VLLM{OnlyGroup: true}}}, "WithGroup"},
		{TableConfig{Styles: map[string]Style{"a": VLLM{}}, MaxKeys: -1}, "MaxKeys"},
		{TableConfig{Styles: map[string]Style{"a": VLLM{}}, MaxPending: -1}, "MaxPending"},
	} {
		if _, err := NewTable(tt.cfg); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tt.names) {
			t.Errorf("%+v: %v, want an Error that names %s", tt.cfg, err, tt.names)
		}
	}
}

// A table that had no room for a key does not guess: it refuses until it has been
// made anew.
func TestFullTable(t *testing.T) {
	tab := table(t, func(cfg *TableConfig) { cfg.MaxKeys = 2 })
	tab.Stored("a", digestOf(1, 1), dram)
	tab.Stored("a", digestOf(2, 1), dram)
	if _, e := tab.Stored("a", digestOf(1, 2), dram); e != Refused {
		t.Errorf("effect %d", e)
	}
	wantErr(t, tab, 1, ErrIncomplete)
	tab.Removed("a", digestOf(2, 1), dram)
	wantErr(t, tab, 1, ErrIncomplete) // the key that was refused may be there still
	sync := tab.Resync()
	wantErr(t, tab, 1, ErrIncomplete)
	sync.Stored("a", digestOf(3, 1), dram)
	sync.Stored("a", digestOf(3, 2), dram) // with key 1 three, for the time of the resync
	sync.Done(nil)
	wantErr(t, tab, 3, hints.ErrAmbiguous)
	wantErr(t, tab, 1, hints.ErrNotFound)
	if s := tab.Stats(); s.Keys != 2 || s.Refused != 1 {
		t.Errorf("%+v", s)
	}
	sync = tab.Resync()
	for i := range byte(8) {
		sync.Stored("a", digestOf(10+uint64(i), 1), dram)
	}
	sync.Done(nil)
	wantErr(t, tab, 10, ErrIncomplete)
}

func TestEncode(t *testing.T) {
	one := table(t, func(cfg *TableConfig) { cfg.Styles = map[string]Style{"a": Dynamo{}} })
	if k, ok := one.Encode(3); !ok || k.Namespace != "a" || !bytes.Equal(k.Key, binary.BigEndian.AppendUint64(nil, 3)) {
		t.Errorf("%+v, %v", k, ok)
	}
	two := table(t, func(cfg *TableConfig) { cfg.Styles = map[string]Style{"a": Dynamo{}, "b": Dynamo{}} })
	if k, ok := two.Encode(3); ok {
		t.Errorf("of two namespaces %+v", k)
	}
	if k, ok := table(t, nil).Encode(3); ok {
		t.Errorf("of a digest %+v", k)
	}
}

// naive is what a Table must be, in a map.
type naive struct {
	tiers map[string]uint8 // by namespace and key
}

func (n *naive) name(namespace string, key []byte) string { return namespace + "/" + string(key) }

func (n *naive) with(hash uint64) (keys []string) {
	for k := range n.tiers {
		if h, _ := Low64([]byte(k[2:])); h == hash {
			keys = append(keys, k)
		}
	}
	return keys
}

func (n *naive) inTier(hash uint64, tier events.Tier) bool {
	for _, k := range n.with(hash) {
		if n.tiers[k]&(1<<tier) != 0 {
			return true
		}
	}
	return false
}

// TestTableLikeMap: whatever happens to a table, it holds what a map holds, and its
// effects are what changes for routers.
func TestTableLikeMap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		tab := table(t, nil)
		model := naive{map[string]uint8{}}
		key := func(t *rapid.T) (string, []byte) {
			k := digestOf(rapid.Uint64Range(0, 3).Draw(t, "hash"), rapid.ByteRange(0, 3).Draw(t, "which"))
			if rapid.IntRange(0, 3).Draw(t, "long") == 0 {
				k = append(bytes.Repeat([]byte{1}, 60), k...)
			}
			return rapid.SampledFrom([]string{"a", "b"}).Draw(t, "namespace"), k
		}
		tiers := rapid.SampledFrom([]events.Tier{events.HostPinned, events.Disk})
		set := func(n string, tier events.Tier, on bool) {
			if on {
				model.tiers[n] |= 1 << tier
			} else if model.tiers[n] &^= 1 << tier; model.tiers[n] == 0 {
				delete(model.tiers, n)
			}
		}
		change := func(t *rapid.T, stored bool) {
			ns, k := key(t)
			tier := tiers.Draw(t, "tier")
			hash, _ := Low64(k)
			was := model.inTier(hash, tier)
			set(model.name(ns, k), tier, stored)
			want := Unchanged
			if was != model.inTier(hash, tier) {
				want = Changed
			}
			var got Effect
			if stored {
				_, got = tab.Stored(ns, k, tier)
			} else {
				_, got = tab.Removed(ns, k, tier)
			}
			if got != want {
				t.Fatalf("%s/%x in %v, stored %v: effect %d, want %d", ns, k, tier, stored, got, want)
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"stored":  func(t *rapid.T) { change(t, true) },
			"removed": func(t *rapid.T) { change(t, false) },
			"resync": func(t *rapid.T) {
				before := map[[2]uint64]bool{}
				said := map[[2]uint64]bool{} // what routers know, by the effects
				for h := range uint64(4) {
					for tier := range events.Tier(4) {
						if model.inTier(h, tier) {
							before[[2]uint64{h, uint64(tier)}] = true
						}
					}
				}
				maps.Copy(said, before)
				sync := tab.Resync()
				firsts := map[[2]uint64]int{}
				model.tiers = map[string]uint8{}
				for range rapid.IntRange(0, 12).Draw(t, "entries") {
					ns, k := key(t)
					tier := tiers.Draw(t, "tier")
					hash, effect, first := sync.Stored(ns, k, tier)
					at := [2]uint64{hash, uint64(tier)}
					if first {
						firsts[at]++
					}
					if effect == Changed {
						if said[at] {
							t.Fatalf("hash %d was in %v already", hash, tier)
						}
						said[at] = true
					}
					set(model.name(ns, k), tier, true)
				}
				if rapid.IntRange(0, 4).Draw(t, "give up") == 0 {
					// Another one begins before this one is done.
					sync = tab.Resync()
					clear(firsts)
					for n, bits := range model.tiers {
						for tier := range events.Tier(4) {
							if bits&(1<<tier) != 0 {
								if h, _, first := sync.Stored(n[:1], []byte(n[2:]), tier); first {
									firsts[[2]uint64{h, uint64(tier)}]++
								}
							}
						}
					}
				}
				sync.Done(func(hash uint64, tier events.Tier) {
					if at := [2]uint64{hash, uint64(tier)}; !said[at] {
						t.Fatalf("hash %d left %v, where it was not", hash, tier)
					} else {
						delete(said, at)
					}
				})
				want := map[[2]uint64]bool{}
				for h := range uint64(4) {
					for tier := range events.Tier(4) {
						if model.inTier(h, tier) {
							want[[2]uint64{h, uint64(tier)}] = true
						}
					}
				}
				if !maps.Equal(said, want) {
					t.Fatalf("effects of the resync give %v, want %v", said, want)
				}
				for at := range want {
					if firsts[at] != 1 {
						t.Fatalf("hash %d in tier %d is first %d times", at[0], at[1], firsts[at])
					}
				}
				if len(firsts) != len(want) {
					t.Fatalf("firsts %v, want %v", firsts, want)
				}
			},
			"": func(t *rapid.T) {
				shared := 0
				for h := range uint64(4) {
					with := model.with(h)
					got, err := tab.FromRouter(h)
					switch {
					case len(with) == 0 && !errors.Is(err, hints.ErrNotFound),
						len(with) > 1 && !errors.Is(err, hints.ErrAmbiguous),
						len(with) == 1 && (err != nil || model.name(got.Namespace, got.Key) != with[0]):
						t.Fatalf("hash %d: %s/%x, %v; the map has %q", h, got.Namespace, got.Key, err, with)
					}
					if len(with) > 1 {
						shared++
					}
					var held []string
					for _, k := range tab.Held(h) {
						held = append(held, model.name(k.Namespace, k.Key))
					}
					slices.Sort(held)
					slices.Sort(with)
					if !slices.Equal(held, with) {
						t.Fatalf("hash %d is held by %q, in the map by %q", h, held, with)
					}
				}
				if s := tab.Stats(); s.Keys != len(model.tiers) || s.Ambiguous != shared {
					t.Fatalf("%+v; the map has %d keys, %d hashes of several", s, len(model.tiers), shared)
				}
			},
		})
	})
}

// script is a Feed that plays steps: a change, or an error.
type script struct {
	snapshots [][]Change
	steps     []any
}

func (s *script) Snapshot(each func(Change)) error {
	if len(s.snapshots) == 0 {
		return errors.New("no more snapshots")
	}
	for _, c := range s.snapshots[0] {
		each(c)
	}
	s.snapshots = s.snapshots[1:]
	return nil
}

func (s *script) Next(ctx context.Context) (Change, error) {
	step := s.steps[0]
	s.steps = s.steps[1:]
	if err, ok := step.(error); ok {
		return Change{}, err
	}
	return step.(Change), nil
}

// After a gap the table is as the snapshot says: what left in the gap is gone, what
// came is there.
func TestFollow(t *testing.T) {
	tab := table(t, nil)
	change := func(hash uint64, stored bool) Change {
		return Change{Namespace: "a", Key: digestOf(hash, 1), Tier: dram, Stored: stored}
	}
	after := func(parent uint64, c Change) Change {
		c.Parent = digestOf(parent, 1)
		return c
	}
	end := errors.New("the end")
	feed := &script{
		snapshots: [][]Change{{change(1, true), change(2, true)}, {after(9, change(3, true)), change(2, true)}},
		steps:     []any{change(1, false), change(4, true), fmt.Errorf("lost: %w", ErrGap), after(3, change(5, true)), end},
	}
	if err := tab.Follow(context.Background(), feed); !errors.Is(err, end) {
		t.Errorf("Follow: %v", err)
	}
	for h, want := range []bool{1: false, 2: true, 3: true, 4: false, 5: true} {
		if _, err := tab.FromRouter(uint64(h)); (err == nil) != want {
			t.Errorf("hash %d: %v, want it held: %v", h, err, want)
		}
	}
	for h, want := range map[uint64]uint64{2: 0, 3: 9, 5: 3} {
		if d, _ := tab.Description("a", digestOf(h, 1), nil); d.Parent != want || d.HasParent != (want != 0) {
			t.Errorf("hash %d: %+v, want the parent %d", h, d, want)
		}
	}
	if s := tab.Stats(); s.Gaps != 1 || s.Snapshots != 2 || s.Keys != 3 {
		t.Errorf("%+v", s)
	}
}

// Readers beside a feed and hosts that describe: what FromRouter returns has the
// hash, always, and a hash that one key alone ever had is never ambiguous.
func TestTableConcurrently(t *testing.T) {
	tab := table(t, func(cfg *TableConfig) { cfg.MaxPending = 50 })
	var wg sync.WaitGroup
	stop := make(chan struct{})
	running := func() bool {
		select {
		case <-stop:
			return false
		default:
			return true
		}
	}
	for g := range 2 {
		rng := rand.New(rand.NewPCG(uint64(g), 1))
		wg.Add(2)
		go func() {
			defer wg.Done()
			for running() {
				h := rng.Uint64N(200)
				k, err := tab.FromRouter(h)
				if got, ok := tab.ToRouter(k.Namespace, k.Key); err == nil && (!ok || got != h) {
					t.Errorf("FromRouter(%d) = %s/%x", h, k.Namespace, k.Key)
				}
				if errors.Is(err, hints.ErrAmbiguous) && h >= 100 {
					t.Errorf("hash %d is ambiguous", h)
				}
				tab.Held(h)
				tab.Stats()
			}
		}()
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(uint64(g), 2))
			for running() {
				h := rng.Uint64N(200)
				d := Description{Tokens: []uint32{uint32(h), 1, 2}, Parent: h + 1000, HasParent: true, LoRA: fmt.Sprint("l", h%7)}
				if err := tab.Describe("a", digestOf(h, 0), d); err != nil {
					t.Error(err)
				}
				got, ok := tab.Description("a", digestOf(h, 0), nil)
				if ok && (got.Parent != h+1000 || got.Tokens[0] != uint32(h) || got.LoRA != d.LoRA) {
					t.Errorf("described %+v, read %+v", d, got)
				}
				d.BlockSize = 3
				k := hints.Key{Namespace: "a", Key: digestOf(h, 0)}
				said := d.appendTravel(nil) // by a peer it may come once more, and is the same
				if b := tab.AppendDescription(nil, 100, k); len(b) > 0 && !bytes.Equal(b, said) {
					t.Errorf("%+v travels as %x", d, b)
				}
				if err := tab.TakeDescription(k, said); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	rng := rand.New(rand.NewPCG(1, 3))
	for i := range pick(1000, 3000) {
		h := rng.Uint64N(200)
		which := byte(0)
		if h < 100 {
			which = byte(rng.IntN(3))
		}
		switch {
		case i%200 == 199:
			sync := tab.Resync()
			for h := range uint64(100) {
				sync.Stored("a", digestOf(h+50, 0), dram)
			}
			sync.Done(nil)
		case rng.IntN(2) == 0:
			tab.Stored("a", digestOf(h, which), dram)
		default:
			tab.Removed("a", digestOf(h, which), dram)
		}
	}
	close(stop)
	wg.Wait()
}

func pick(short, long int) int {
	if testing.Short() {
		return short
	}
	return long
}

func BenchmarkTable(b *testing.B) {
	const n = 1 << 20
	key := func(i int) []byte {
		k := make([]byte, 36)
		binary.BigEndian.PutUint64(k, uint64(i))
		binary.BigEndian.PutUint64(k[24:], uint64(i)*0x9e3779b97f4a7c15)
		return k
	}
	keys := make([][]byte, n)
	for i := range keys {
		keys[i] = key(i)
	}
	tab := table(b, func(cfg *TableConfig) { cfg.Styles = map[string]Style{"a": VLLM{WithGroup: true}} })
	for _, k := range keys {
		tab.Stored("a", k, dram)
	}
	b.Run("op=stored-removed", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			k := keys[i*7919%n]
			tab.Removed("a", k, dram)
			tab.Stored("a", k, dram)
		}
	})
	b.Run("op=from-router", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if _, err := tab.FromRouter(uint64(i*7919%n) * 0x9e3779b97f4a7c15); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("op=describe/tokens=16", func(b *testing.B) {
		d := Description{Tokens: upTo(16), Parent: 1, HasParent: true}
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if err := tab.Describe("a", keys[i*7919%n], d); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("op=resync", func(b *testing.B) {
		for b.Loop() {
			start := time.Now()
			sync := tab.Resync()
			for _, k := range keys {
				sync.Stored("a", k, dram)
			}
			sync.Done(nil)
			b.ReportMetric(float64(time.Since(start).Nanoseconds())/n, "ns/key")
		}
	})
}

// Any number of keys with one hash, which a client can make up, cost no more than a
// few: what is beyond that is not held, and the hash is ambiguous from then on.
func TestCrowdedHash(t *testing.T) {
	tb, err := NewTable(TableConfig{Styles: map[string]Style{"kv": VLLM{DigestBytes: 32}}})
	if err != nil {
		t.Fatal(err)
	}
	key := func(i int) []byte {
		k := make([]byte, 32)
		binary.BigEndian.PutUint32(k, uint32(i))
		return k
	}
	const n = 20_000
	changed := 0
	for i := range n {
		if _, effect := tb.Stored("kv", key(i), events.HostPinned); effect == Changed {
			changed++
		}
	}
	if s := tb.Stats(); changed != 1 || s.Keys > 100 || s.Refused != 0 || s.Ambiguous != 1 {
		t.Errorf("%d changes, %+v", changed, s)
	}
	other := bytes.Repeat([]byte{7}, 32)
	hash, _ := tb.Stored("kv", other, events.HostPinned)
	if _, err := tb.FromRouter(hash); err != nil {
		t.Errorf("another hash: %v", err)
	}
	for i := 1; i < n; i++ {
		if _, effect := tb.Removed("kv", key(i), events.HostPinned); effect == Changed {
			t.Fatalf("the hash has left with key %d", i)
		}
	}
	if _, err := tb.FromRouter(0); !errors.Is(err, hints.ErrAmbiguous) {
		t.Errorf("a hash of which not all keys were held: %v", err)
	}
	sync := tb.Resync()
	sync.Stored("kv", key(0), events.HostPinned)
	sync.Done(nil)
	if k, err := tb.FromRouter(0); err != nil || !bytes.Equal(k.Key, key(0)) {
		t.Errorf("after a snapshot: %x, %v", k.Key, err)
	}
	sync = tb.Resync()
	firsts := 0
	for i := range 3 * maxSame {
		if _, _, first := sync.Stored("kv", key(i), events.HostPinned); first {
			firsts++
		}
	}
	sync.Done(nil)
	if firsts != 1 || len(tb.crowded) != 1 {
		t.Errorf("the hash comes %d times in one snapshot, %d are crowded", firsts, len(tb.crowded))
	}
	tb.Resync().Done(nil)
	if s := tb.Stats(); s.Keys != 0 || len(tb.crowded) != 0 {
		t.Errorf("%+v, %d crowded", s, len(tb.crowded))
	}
}
