package events

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestHashVectors(t *testing.T) {
	var v struct {
		Vectors []struct {
			Name      string
			Tokens    []uint32
			BlockSize uint32     `json:"block_size"`
			Lora      *string    `json:"lora_name"`
			Namespace *string    `json:"cache_namespace"`
			MM        [][]string `json:"mm_hashes"`
			Eagle     bool
			Local     []string
		}
	}
	if err := json.Unmarshal(shared(t, "hashes.json"), &v); err != nil {
		t.Fatal(err)
	}
	for _, c := range v.Vectors {
		ev := Event{Kind: BlockStored, Tokens: c.Tokens, BlockSize: c.BlockSize, Bigram: c.Eagle}
		if c.Lora != nil {
			ev.LoraName = *c.Lora
		}
		if c.Namespace != nil {
			ev.CacheSalt = *c.Namespace
		}
		for i, hashes := range c.MM {
			for _, h := range hashes {
				ev.MM = append(ev.MM, MM{uint32(i), decimal(t, h)})
			}
		}
		for i := range max(1, len(c.Local)) {
			ev.Hashes = append(ev.Hashes, uint64(i))
		}
		n := NewNormalizer(NormalizerConfig{BlockSize: c.BlockSize})
		var got []string
		for _, out := range n.Normalize(nil, Worker{}, 0, &Batch{Events: []Event{ev}}) {
			for _, b := range out.Blocks {
				got = append(got, fmt.Sprint(b.Local))
			}
		}
		if !slices.Equal(got, c.Local) {
			t.Errorf("%s: %v, want %v", c.Name, got, c.Local)
		}
	}
	if len(v.Vectors) < 20 {
		t.Errorf("only %d vectors", len(v.Vectors))
	}
}

func TestPadTokens(t *testing.T) {
	const img = 151655
	n := NewNormalizer(NormalizerConfig{BlockSize: 6, HasImageToken: true, ImageToken: img})
	local := func(tokens []uint32, mm ...MM) uint64 {
		ev := Event{Kind: BlockStored, Hashes: []uint64{1}, Tokens: tokens, BlockSize: 6, MM: mm}
		return n.Normalize(nil, Worker{}, 0, &Batch{Events: []Event{ev}})[0].Blocks[0].Local
	}
	a, b := PadToken(9_533_257_059_414_191_570), PadToken(5)
	if want := uint32(1_000_000 + 9_533_257_059_414_191_570&(1<<30-1)); a != want || b != 1_000_005 {
		t.Fatalf("pads %d and %d", a, b)
	}
	if local([]uint32{10, img, img, 11, img, 12}, MM{0, 9_533_257_059_414_191_570}, MM{0, 5}) != local([]uint32{10, a, a, 11, b, 12}) {
		t.Error("runs of image tokens are not hashed as their objects")
	}
	if local([]uint32{img, 1, img, 2, img, img}, MM{0, 5}) != local([]uint32{b, 1, b, 2, b, b}) {
		t.Error("more runs than objects are not those of the last")
	}
	if local([]uint32{img, 1, 2, 3, 4, 5}) == local([]uint32{b, 1, 2, 3, 4, 5}) {
		t.Error("a block without objects was changed")
	}
}

// norm has one worker's events normalised, one batch each.
type norm struct {
	t testing.TB
	*Normalizer
	id uint64
}

func newNorm(t testing.TB) *norm {
	return &norm{t: t, Normalizer: NewNormalizer(NormalizerConfig{BlockSize: 1})}
}

// take returns what one event of a rank becomes; dropped for why, nothing.
func (n *norm) take(rank uint32, ev Event, why ...Reason) *RouterEvent {
	n.t.Helper()
	before := n.Drops()
	n.id++
	out := n.Normalize(nil, Worker{ID: 1, Rank: rank}, n.id, &Batch{Events: []Event{ev}})
	for _, r := range why {
		before[r]++
	}
	if got := n.Drops(); got != before {
		n.t.Errorf("%+v: drops %v, want %v", ev, got, before)
	}
	if len(out) == 0 {
		return nil
	}
	return &out[0]
}

func store(salt string, parent uint64, hashes ...uint64) Event {
	ev := Event{Kind: BlockStored, BlockSize: 1, CacheSalt: salt, HasParent: parent != 0, Parent: parent, Hashes: hashes}
	for _, h := range hashes {
		ev.Tokens = append(ev.Tokens, uint32(h))
	}
	return ev
}

func remove(hashes ...uint64) Event { return Event{Kind: BlockRemoved, Hashes: hashes} }

func in(medium string, ev Event) Event {
	ev.Medium = medium
	return ev
}

func group(g uint32, kind string, ev Event) Event {
	ev.HasGroup, ev.Group, ev.SpecKind = true, g, kind
	return ev
}

// A block in two tiers: each event names its own, and losing one says nothing of the
// other.
func TestTiers(t *testing.T) {
	n := newNorm(t)
	for _, c := range []struct {
		medium string
		tier   Tier
	}{{"", Device}, {"GPU", Device}, {"DEVICE", Device}, {"CPU", HostPinned}, {"CPU_PINNED", HostPinned}, {"CPU_TIER1", HostPinned},
		{"CPU_TIER2", Disk}, {"DISK", Disk}, {"NVME", Disk}, {"STORAGE", Disk}, {"EXTERNAL", External}, {"NETWORK", External}, {"REMOTE", External}, {"SHARED", External}} {
		if got := n.take(0, in(c.medium, store("", 0, 5))); got == nil || got.Tier != c.tier || got.Op != Stored {
			t.Errorf("store in %q: %+v", c.medium, got)
		}
		if got := n.take(0, in(c.medium, remove(5))); got == nil || got.Tier != c.tier || got.Op != Removed {
			t.Errorf("removal from %q: %+v", c.medium, got)
		}
		if tier, ok := TierOf(c.tier.Medium()); !ok || tier != c.tier {
			t.Errorf("medium of %v is %q", c.tier, c.tier.Medium())
		}
	}
	for _, medium := range []string{"TAPE", "gpu", " GPU", "cpu", "UNKNOWN"} {
		if got := n.take(0, in(medium, store("", 0, 5)), ReasonUnknownMedium); got != nil {
			t.Errorf("store in %q: %+v", medium, got)
		}
		if got := n.take(0, in(medium, remove(5)), ReasonUnknownMedium); got != nil {
			t.Errorf("removal from %q: %+v", medium, got)
		}
	}
}

func TestGroups(t *testing.T) {
	n := newNorm(t)
	for _, c := range []struct {
		rank uint32
		ev   Event
		why  []Reason
	}{
		{0, group(0, "", remove(1)), nil},
		{0, group(3, "", remove(1)), []Reason{ReasonUnlearnedGroup}},
		{0, group(3, "full_attention", store("", 0, 1)), nil},
		{0, group(3, "", remove(1)), nil},
		{0, group(3, "", store("", 0, 1)), nil},
		{1, group(3, "", remove(1)), []Reason{ReasonUnlearnedGroup}}, // learned for rank 0
		{1, group(3, "mamba", store("", 0, 1)), []Reason{ReasonNotMain}},
		{0, group(3, "", remove(1)), nil}, // learned for rank 1
		{0, group(0, "sliding_window", store("", 0, 1)), []Reason{ReasonNotMain}},
		{0, group(0, "", remove(1)), []Reason{ReasonNotMain}},
		{0, group(0, "mla_attention", remove(1)), nil}, // what it says itself counts
		{0, group(0, "", remove(1)), []Reason{ReasonNotMain}},
		{0, group(0, "sink_full_attention", store("", 0, 1)), nil},
		{0, group(0, "", remove(1)), nil},
		{0, group(4, "quantum_attention", store("", 0, 1)), []Reason{ReasonUnknownSpec}},
		{0, group(4, "", remove(1)), []Reason{ReasonUnknownSpec}},
		{0, group(5, "mamba", in("TAPE", store("", 0, 1))), []Reason{ReasonNotMain}},
		{0, group(6, "full_attention", in("TAPE", store("", 0, 1))), []Reason{ReasonUnknownMedium}},
		{0, group(6, "", remove(1)), nil}, // learned all the same
		{0, remove(1), nil},
	} {
		if got := n.take(c.rank, c.ev, c.why...); (got == nil) != (len(c.why) > 0) {
			t.Errorf("%+v gave %+v", c.ev, got)
		}
	}
}

func TestNamespaces(t *testing.T) {
	n := newNorm(t)
	seed := func(salt string) uint64 {
		fresh := newNorm(t)
		return fresh.take(0, store(salt, 0, 7)).Blocks[0].Local
	}
	plain, a, b := seed(""), seed("a"), seed("b")
	local := func(rank uint32, ev Event) uint64 {
		t.Helper()
		ev.Tokens = ev.Tokens[:0]
		for range ev.Hashes {
			ev.Tokens = append(ev.Tokens, 7)
		}
		got := n.take(rank, ev)
		if got == nil {
			t.Fatalf("%+v was dropped", ev)
		}
		return got.Blocks[len(got.Blocks)-1].Local
	}
	want := func(what string, got, want uint64) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %d, want %d (plain %d, a %d, b %d)", what, got, want, plain, a, b)
		}
	}
	want("root", local(0, store("a", 0, 1, 2)), a)
	want("child", local(0, store("", 2, 3)), a)
	want("grandchild", local(0, store("", 3, 4)), a)
	want("child of one unknown", local(0, store("", 99, 100)), plain)
	want("other rank", local(1, store("", 3, 4)), plain)
	// In two tiers, out of one: still a's.
	want("in the other tier", local(0, in("CPU", store("", 2, 3))), a)
	n.take(0, remove(3))
	want("child of one in the other tier", local(0, store("", 3, 5)), a)
	n.take(0, in("CPU", remove(3)))
	want("child of one that is gone", local(0, store("", 3, 6)), plain)
	// Seen with two: nobody knows, until the worker is cleared.
	want("own namespace", local(0, store("b", 0, 1)), b)
	if got := n.take(0, store("", 1, 8), ReasonNamespace); got != nil {
		t.Errorf("after a block of two namespaces: %+v", got)
	}
	n.take(0, remove(1))
	n.take(0, store("", 1, 8), ReasonNamespace)
	want("says it itself", local(0, store("a", 1, 8)), a)
	want("unsalted over salted", local(0, store("", 0, 8)), plain)
	n.take(0, store("", 8, 9), ReasonNamespace)
	local(1, store("a", 0, 50))
	n.take(0, Event{Kind: AllBlocksCleared})
	want("after a clear", local(0, store("", 1, 8)), plain)
	want("the other rank keeps its own", local(1, store("", 50, 51)), a)
	if got, _ := n.Namespaced(); got != 2 {
		t.Errorf("%d blocks are remembered, want 2", got)
	}
	n.take(1, remove(50, 51))
	if got, _ := n.Namespaced(); got != 0 || len(n.spaces.workers) != 0 {
		t.Errorf("%d blocks of %d workers are remembered after all are gone", got, len(n.spaces.workers))
	}
	// A bound.
	n.spaces.limit = 3
	local(0, store("a", 0, 1, 2, 3, 4, 5))
	if got, forgotten := n.Namespaced(); got != 3 || forgotten != 2 {
		t.Errorf("%d remembered and %d not, want 3 and 2", got, forgotten)
	}
}

func TestPartialStores(t *testing.T) {
	n := NewNormalizer(NormalizerConfig{BlockSize: 4})
	ev := Event{Kind: BlockStored, BlockSize: 4, Hashes: []uint64{1, 2, 3}, Tokens: make([]uint32, 11)}
	out := n.Normalize(nil, Worker{}, 1, &Batch{Events: []Event{ev}})
	if len(out) != 1 || len(out[0].Blocks) != 2 || n.Drops()[ReasonTokens] != 1 {
		t.Errorf("two and three quarters: %+v, drops %v", out, n.Drops())
	}
	ev.BlockSize = 16
	if out := n.Normalize(nil, Worker{}, 1, &Batch{Events: []Event{ev}}); len(out) != 0 || n.Drops()[ReasonBlockSize] != 1 {
		t.Errorf("another block size: %+v, drops %v", out, n.Drops())
	}
	ev = Event{Kind: BlockStored, BlockSize: 4, Hashes: []uint64{1, 2}, Tokens: make([]uint32, 8), Bigram: true}
	if out := n.Normalize(nil, Worker{}, 1, &Batch{Events: []Event{ev}}); len(out) != 1 || len(out[0].Blocks) != 1 {
		t.Errorf("pairs for one block and three quarters: %+v", out)
	}
}

// Each reason is told three times at most, and those that are no trouble never.
func TestWarnings(t *testing.T) {
	var log strings.Builder
	n := NewNormalizer(NormalizerConfig{BlockSize: 4, Log: slog.New(slog.NewTextHandler(&log, nil))})
	for range 10 {
		n.Normalize(nil, Worker{}, 1, &Batch{Events: []Event{in("TAPE", remove(1)), {Kind: Unknown, Tag: "BlockMoved"}, {Kind: Ignored}, group(0, "mamba", remove(1))}})
	}
	if got := strings.Count(log.String(), "\n"); got != 6 || strings.Count(log.String(), "reason=unknown_medium") != 3 || strings.Count(log.String(), "tag=BlockMoved") != 3 {
		t.Errorf("%d warnings:\n%s", got, log.String())
	}
	if d := n.Drops(); d[ReasonUnknownMedium] != 10 || d[ReasonIgnoredTag] != 10 {
		t.Errorf("drops %v", d)
	}
}

// repeats agrees with a map, whatever the hashes.
func TestRepeats(t *testing.T) {
	s := hashSet{seed: 0x9e3779b97f4a7c15}
	rapid.Check(t, func(t *rapid.T) {
		ev := Event{Hashes: rapid.SliceOfN(rapid.OneOf(rapid.Uint64Range(0, 100), rapid.Uint64(), rapid.Just(uint64(1)<<63)), 0, 60).Draw(t, "hashes")}
		if ev.HasParent = rapid.Bool().Draw(t, "has parent"); ev.HasParent {
			ev.Parent = rapid.Uint64Range(0, 200).Draw(t, "parent")
		}
		seen := map[uint64]bool{}
		want := false
		if ev.HasParent {
			seen[ev.Parent] = true
		}
		for _, h := range ev.Hashes {
			want = want || seen[h]
			seen[h] = true
		}
		if got := s.repeats(&ev); got != want {
			t.Fatalf("repeats = %t, want %t", got, want)
		}
	})
}

// A batch as a whole is the same as its events one by one.
func TestWholeBatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Batch{Events: rapid.SliceOfN(rapid.Custom(drawEvent), 0, 10).Draw(t, "events")}
		for i := range b.Events {
			b.Events[i].BlockSize = 4
		}
		whole := NewNormalizer(NormalizerConfig{BlockSize: 4})
		single := NewNormalizer(NormalizerConfig{BlockSize: 4})
		got := whole.Normalize(nil, Worker{ID: 3}, 9, &b)
		var want []RouterEvent
		for i := range b.Events {
			for _, out := range single.Normalize(nil, Worker{ID: 3}, 9, &Batch{Events: b.Events[i : i+1]}) {
				out.Blocks = slices.Clone(out.Blocks)
				want = append(want, out)
			}
		}
		if len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v\nwant %+v", got, want)
		}
		if whole.Drops() != single.Drops() {
			t.Fatalf("drops %v and %v", whole.Drops(), single.Drops())
		}
	})
}
