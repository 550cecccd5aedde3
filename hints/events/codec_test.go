package events

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
	"pgregory.net/rapid"
)

// drawEvent draws an event whose every field survives being written.
func drawEvent(t *rapid.T) Event {
	text := func(label string) string {
		return rapid.SampledFrom([]string{"", "", "CPU", "full_attention", "LOCAL", "tenant-a", string(make([]byte, 40)), string(make([]byte, 300))}).Draw(t, label)
	}
	hash := rapid.OneOf(rapid.Uint64(), rapid.Uint64Range(0, 300), rapid.Just(uint64(math.MaxUint64)))
	ev := Event{Kind: Kind(rapid.IntRange(0, 3).Draw(t, "kind"))}
	switch ev.Kind {
	case AllBlocksCleared:
		ev.SourceKind = text("source")
		return ev
	case Ignored:
		return ev
	}
	ev.Hashes = rapid.SliceOfN(hash, 0, 20).Draw(t, "hashes")
	ev.Medium, ev.Locality, ev.SpecKind, ev.SourceKind = text("medium"), text("locality"), text("spec"), text("source")
	if ev.HasGroup = rapid.Bool().Draw(t, "has group"); ev.HasGroup {
		ev.Group = rapid.Uint32().Draw(t, "group")
	}
	if ev.HasWindow = rapid.Bool().Draw(t, "has window"); ev.HasWindow {
		ev.Window = rapid.Uint32().Draw(t, "window")
	}
	if ev.Kind == BlockRemoved {
		return ev
	}
	if ev.HasParent = rapid.Bool().Draw(t, "has parent"); ev.HasParent {
		ev.Parent = hash.Draw(t, "parent")
	}
	ev.Tokens = rapid.SliceOfN(rapid.Uint32(), 0, 70).Draw(t, "tokens")
	ev.Bigram = len(ev.Tokens) > 1 && rapid.Bool().Draw(t, "bigram")
	ev.BlockSize = rapid.Uint32().Draw(t, "block size")
	if ev.HasLoraID = rapid.Bool().Draw(t, "has lora"); ev.HasLoraID {
		ev.LoraID = rapid.Int64().Draw(t, "lora id")
	}
	ev.LoraName, ev.CacheSalt = text("lora"), text("salt")
	for i := range ev.Hashes {
		for range rapid.IntRange(0, 2).Draw(t, "objects") {
			ev.MM = append(ev.MM, MM{uint32(i), hash.Draw(t, "object")})
		}
	}
	return ev
}

func same(a, b Event) bool {
	for _, ev := range []*Event{&a, &b} {
		if len(ev.Hashes) == 0 {
			ev.Hashes = nil
		}
		if len(ev.Tokens) == 0 {
			ev.Tokens = nil
		}
		if len(ev.MM) == 0 {
			ev.MM = nil
		}
	}
	return reflect.DeepEqual(a, b)
}

// What is written reads back, in both forms; what another library reads is the same
// as what it reads of the other form; a cut batch is malformed, wherever it is cut.
func TestRoundTrip(t *testing.T) {
	var d Decoder
	var got Batch
	rapid.Check(t, func(t *rapid.T) {
		b := Batch{TS: rapid.Float64().Draw(t, "ts"), Events: rapid.SliceOfN(rapid.Custom(drawEvent), 0, 20).Draw(t, "events")}
		if b.HasRank = rapid.Bool().Draw(t, "has rank"); b.HasRank {
			b.Rank = rapid.Uint32().Draw(t, "rank")
		}
		for _, form := range []Form{Maps, Arrays} {
			wire := AppendBatch(nil, &b, form)
			if err := d.Decode(wire, &got); err != nil {
				t.Fatal(err)
			}
			if got.TS != b.TS || got.HasRank != b.HasRank || got.Rank != b.Rank || len(got.Events) != len(b.Events) {
				t.Fatalf("got %+v, want %+v", got, b)
			}
			for i, ev := range b.Events {
				if !same(ev, got.Events[i]) {
					t.Fatalf("form %d of event %d\n got %+v\nwant %+v", form, i, got.Events[i], ev)
				}
			}
			cut := rapid.IntRange(0, len(wire)-1).Draw(t, "cut")
			if err := d.Decode(wire[:cut], &got); err == nil {
				t.Fatalf("%x cut after %d bytes is taken", wire, cut)
			}
			var any []any
			if err := msgpack.Unmarshal(wire, &any); err != nil || len(any) != 3 {
				t.Fatalf("another library reads %d elements: %v", len(any), err)
			}
			// Its own way to write the same is read as the same.
			var buf bytes.Buffer
			enc := msgpack.NewEncoder(&buf) // no compact integers
			if err := enc.Encode(any); err != nil {
				t.Fatal(err)
			}
			if err := d.Decode(buf.Bytes(), &got); err != nil || len(got.Events) != len(b.Events) {
				t.Fatalf("as another library writes it: %v", err)
			}
			for i, ev := range b.Events {
				if !same(ev, got.Events[i]) {
					t.Fatalf("form %d of event %d as another library writes it\n got %+v\nwant %+v", form, i, got.Events[i], ev)
				}
			}
		}
	})
}

func pack(t testing.TB, v any) []byte {
	t.Helper()
	var buf bytes.Buffer
	enc := msgpack.NewEncoder(&buf)
	enc.UseCompactInts(true)
	if err := enc.Encode(v); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

type list = []any
type dict = map[string]any

// decodeOne reads an event as it would come in a batch.
func decodeOne(t testing.TB, event any) Event {
	t.Helper()
	var d Decoder
	var b Batch
	if err := d.Decode(pack(t, list{1.5, list{event}, nil}), &b); err != nil {
		t.Fatal(err)
	}
	return b.Events[0]
}

// stored is a BlockStored of one block as an array, with a tail.
func stored(tail ...any) list {
	return append(list{"BlockStored", list{7}, nil, list{1, 2, 3, 4}, 4, nil, "GPU", nil, nil}, tail...)
}

// The tails of arrays, by their number and types.
func TestTails(t *testing.T) {
	objects := list{nil, dict{"mm_objects": list{dict{"mm_hash": uint64(9), "offsets": list{list{0, 1}}}}}}
	base := Event{Kind: BlockStored, Hashes: []uint64{7}, Tokens: []uint32{1, 2, 3, 4}, BlockSize: 4, Medium: "GPU"}
	for _, c := range []struct {
		name string
		tail list
		want func(*Event)
	}{
		{"none", nil, func(*Event) {}},
		{"group", list{2}, func(ev *Event) { ev.HasGroup, ev.Group = true, 2 }},
		{"nil and kind", list{nil, "mamba"}, func(ev *Event) { ev.SpecKind = "mamba" }},
		{"three are not by place", list{nil, nil, 5}, func(ev *Event) { ev.HasGroup, ev.Group = true, 5 }},
		{"kind first", list{"mamba", 2, 128}, func(ev *Event) {
			ev.SpecKind, ev.HasGroup, ev.Group, ev.HasWindow, ev.Window = "mamba", true, 2, true, 128
		}},
		{"all five", list{0, "full_attention", 5, "REMOTE", "engine"}, func(ev *Event) {
			ev.HasGroup, ev.SpecKind, ev.HasWindow, ev.Window, ev.Locality, ev.SourceKind = true, "full_attention", true, 5, "REMOTE", "engine"
		}},
		{"four", list{nil, nil, 5, "LOCAL"}, func(ev *Event) { ev.HasWindow, ev.Window, ev.Locality = true, 5, "LOCAL" }},
		{"six", list{1, nil, nil, nil, nil, dict{"new": 1}}, func(ev *Event) { ev.HasGroup, ev.Group = true, 1 }},
		{"three texts are kinds", list{"a", "b", "c"}, func(ev *Event) { ev.SpecKind = "c" }},
		{"four that do not fit", list{"mamba", nil, 3, "full_attention"}, func(ev *Event) {
			ev.SpecKind, ev.HasGroup, ev.Group = "full_attention", true, 3
		}},
		{"objects", list{objects}, func(ev *Event) { ev.MM = []MM{{1, 9}} }},
		{"group and objects", list{1, "mla_attention", objects}, func(ev *Event) {
			ev.HasGroup, ev.Group, ev.SpecKind, ev.MM = true, 1, "mla_attention", []MM{{1, 9}}
		}},
		{"strange ones", list{true, 1.5, dict{}}, func(*Event) {}},
		{"negative", list{-1}, func(*Event) {}},
	} {
		want := base
		c.want(&want)
		if got := decodeOne(t, stored(c.tail...)); !same(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", c.name, got, want)
		}
	}
	removed := decodeOne(t, list{"BlockRemoved", list{7}, "DISK", 3, "mamba", nil, "LOCAL"})
	if want := (Event{Kind: BlockRemoved, Hashes: []uint64{7}, Medium: "DISK", HasGroup: true, Group: 3, SpecKind: "mamba", Locality: "LOCAL"}); !same(removed, want) {
		t.Errorf("removed: %+v, want %+v", removed, want)
	}
}

func TestExtraKeys(t *testing.T) {
	digest := "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF"
	with := func(lora string, keys any) Event {
		ev := dict{"type": "BlockStored", "extra_keys": keys, "block_hashes": list{1, 2}, "parent_block_hash": nil, "token_ids": list{}, "block_size": 4, "lora_name": nil}
		if lora != "" {
			ev["lora_name"] = lora
		}
		return decodeOne(t, ev)
	}
	for _, c := range []struct {
		name, lora string
		keys       any
		salt       string
		mm         []MM
	}{
		{"nil", "", nil, "", nil},
		{"nils", "", list{nil, nil}, "", nil},
		{"digest", "", list{nil, list{digest}}, "", []MM{{1, 0x0011223344556677}}},
		{"digest that is the adapter", digest, list{list{digest}}, "", nil},
		{"with offset", "", list{list{list{"image-0", -3}}, list{list{digest, 1}}}, "", []MM{{0, objectHash([]byte("image-0"))}, {1, 0x0011223344556677}}},
		{"text alone", "", list{list{"tenant-a"}}, "", nil},
		{"salt", "", list{list{"dynamo-cache-salt:tenant-a"}, nil}, "tenant-a", nil},
		{"salt in the second block", "", list{nil, list{"dynamo-cache-salt:tenant-a"}}, "", nil},
		{"salt without a name", "", list{list{"dynamo-cache-salt:"}}, "", nil},
		{"adapter and salt", "dynamo-cache-salt:x", list{list{"dynamo-cache-salt:x", "dynamo-cache-salt:x"}}, "x", nil},
		{"other things", "", list{list{[]byte("embedding"), 5, 1.5, true, nil, list{1, 2, 3}, dict{"a": 1}}}, "", nil},
	} {
		got := with(c.lora, c.keys)
		if got.Kind != BlockStored || got.CacheSalt != c.salt || fmt.Sprint(got.MM) != fmt.Sprint(c.mm) {
			t.Errorf("%s: %v (%s) salt %q objects %v, want %q %v", c.name, got.Kind, got.Why, got.CacheSalt, got.MM, c.salt, c.mm)
		}
	}
	// Objects that are named outright count instead; the salt still does.
	ev := decodeOne(t, dict{"type": "BlockStored", "extra_keys": list{list{digest, "dynamo-cache-salt:s"}}, "block_hashes": list{1}, "token_ids": list{}, "block_size": 4,
		"block_mm_infos": list{dict{"mm_objects": list{dict{"mm_hash": 5}}}}})
	if fmt.Sprint(ev.MM) != "[{0 5}]" || ev.CacheSalt != "s" {
		t.Errorf("objects %v salt %q", ev.MM, ev.CacheSalt)
	}
}

func TestBadEvents(t *testing.T) {
	for name, ev := range map[string]any{
		"medium is a number":   dict{"type": "BlockRemoved", "block_hashes": list{1}, "medium": 1},
		"no tokens":            dict{"type": "BlockStored", "block_hashes": list{1}, "block_size": 4},
		"no block size":        dict{"type": "BlockStored", "block_hashes": list{1}, "token_ids": list{}},
		"negative block size":  dict{"type": "BlockStored", "block_hashes": list{1}, "token_ids": list{}, "block_size": -1},
		"negative token":       dict{"type": "BlockStored", "block_hashes": list{1}, "token_ids": list{-1}, "block_size": 1},
		"tokens of two kinds":  dict{"type": "BlockStored", "block_hashes": list{1}, "token_ids": list{list{1, 2}, 3}, "block_size": 1},
		"three in a pair":      dict{"type": "BlockStored", "block_hashes": list{1}, "token_ids": list{list{1, 2, 3}}, "block_size": 1},
		"short array":          list{"BlockStored", list{1}, nil, list{}},
		"hashes are a map":     list{"BlockRemoved", dict{}},
		"text for a group":     dict{"type": "BlockRemoved", "block_hashes": list{}, "group_idx": "0"},
		"objects are a number": dict{"type": "BlockStored", "block_hashes": list{1}, "token_ids": list{}, "block_size": 4, "block_mm_infos": 3},
		"tag is a number":      list{5},
		"nothing":              nil,
	} {
		if got := decodeOne(t, ev); got.Kind != Malformed || got.Why == "" {
			t.Errorf("%s: %v %q", name, got.Kind, got.Why)
		}
	}
	// What we do not know need make no sense to us.
	for _, ev := range []any{dict{"type": "BlockMoved", "block_hashes": "x"}, list{"BlockMoved"}, dict{"medium": 1, "type": "BlockMoved"}} {
		if got := decodeOne(t, ev); got.Kind != Unknown || got.Tag != "BlockMoved" {
			t.Errorf("%v is %v with tag %q", ev, got.Kind, got.Tag)
		}
	}
	if got := decodeOne(t, dict{"type": "Ignored", "block_size": "x"}); got.Kind != Ignored {
		t.Errorf("Ignored is %v", got.Kind)
	}
}

func TestDecodeBounds(t *testing.T) {
	var d Decoder
	var b Batch
	many := append([]byte{0x92, 0x01, 0xdd, 0, 1, 0, 1}, make([]byte, MaxEvents+1)...)
	if err := d.Decode(many, &b); err == nil || cap(b.Events) > 0 {
		t.Errorf("%d events: %v", MaxEvents+1, err)
	}
	nested := append([]byte{0x92, 0x01, 0x91}, bytes.Repeat([]byte{0x91}, 100)...)
	if err := d.Decode(append(nested, 0xc0), &b); err == nil {
		t.Error("100 lists inside each other are taken")
	}
	for i := range 3 * maxNames {
		ev := dict{"type": fmt.Sprint(i)}
		if err := d.Decode(pack(t, list{1, list{ev}}), &b); err != nil || b.Events[0].Tag != fmt.Sprint(i) {
			t.Fatal(err)
		}
	}
	if len(d.names) > maxNames {
		t.Errorf("%d texts are remembered, at most %d should", len(d.names), maxNames)
	}
}

// hotBatch is like what an engine sends: events of a few blocks of 16 tokens.
func hotBatch(events, blocks int) *Batch {
	b := &Batch{TS: 1.7e9, HasRank: true}
	token := uint32(1)
	for e := range events {
		ev := Event{Kind: BlockStored, BlockSize: 16, Medium: "GPU", HasParent: e > 0, Parent: uint64(e) * 0x9e3779b97f4a7c15}
		for i := range blocks {
			ev.Hashes = append(ev.Hashes, uint64(e*blocks+i+1)*0xbf58476d1ce4e5b9)
			for range 16 {
				token = token*1664525 + 1013904223
				ev.Tokens = append(ev.Tokens, token%128_000)
			}
		}
		b.Events = append(b.Events, ev)
	}
	return b
}

// Reading, normalising and writing need no memory once theirs has grown.
func TestHotPathAllocates(t *testing.T) {
	b := hotBatch(4, 8)
	b.Events = append(b.Events, Event{Kind: BlockRemoved, Hashes: b.Events[0].Hashes, Medium: "CPU"})
	for _, form := range []Form{Maps, Arrays} {
		wire := AppendBatch(nil, b, form)
		var d Decoder
		var got Batch
		var out []RouterEvent
		n := NewNormalizer(NormalizerConfig{BlockSize: 16})
		allocs := 1.0
		for try := 0; allocs > 0 && try < 5; try++ { // the runtime and goroutines that end allocate as well
			allocs = testing.AllocsPerRun(100, func() {
				wire = AppendBatch(wire[:0], b, form)
				if err := d.Decode(wire, &got); err != nil {
					t.Fatal(err)
				}
				out = n.Normalize(out[:0], Worker{}, 1, &got)
			})
		}
		if allocs != 0 {
			t.Errorf("form %d: %v allocations", form, allocs)
		}
		if len(out) != 5 || len(out[3].Blocks) != 8 || len(out[4].Hashes) != 8 {
			t.Errorf("%d events came out", len(out))
		}
	}
}

// FuzzDecode: no bytes panic; what is read is no larger than they allow; what was read
// is read the same after it was written.
func FuzzDecode(f *testing.F) {
	b := hotBatch(2, 2)
	b.Events[1].Bigram = true
	f.Add(AppendBatch(nil, b, Maps))
	f.Add(AppendBatch(nil, b, Arrays))
	f.Add(pack(f, list{1.5, list{stored(0, "full_attention", nil, "LOCAL", "x"), list{"BlockRemoved", list{-1, []byte("12345678")}, nil}}, 3}))
	f.Add(pack(f, dict{"ts": 1, "events": list{dict{"type": "BlockStored", "block_hashes": list{1}, "token_ids": list{1}, "block_size": 1, "extra_keys": list{list{list{"a", 1}}}}}}))
	f.Add([]byte{0x92, 0x01, 0xdd, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x92, 0x81, 0xa4, 't', 'y', 'p', 'e', 0xa7, 'I', 'g', 'n', 'o', 'r', 'e', 'd', 0xc7, 1, 2, 3, 0xc0})
	f.Fuzz(func(t *testing.T, in []byte) {
		var d, again Decoder
		var b, b2 Batch
		if d.Decode(in, &b) != nil {
			return
		}
		values := 0
		for _, ev := range b.Events {
			values += len(ev.Hashes) + len(ev.Tokens) + len(ev.MM)
		}
		if values+len(b.Events) > 2*len(in) {
			t.Fatalf("%d values from %d bytes", values, len(in))
		}
		NewNormalizer(NormalizerConfig{BlockSize: 4}).Normalize(nil, Worker{}, 1, &b)
		for _, form := range []Form{Maps, Arrays} {
			if err := again.Decode(AppendBatch(nil, &b, form), &b2); err != nil {
				t.Fatalf("what was read and written is malformed: %v", err)
			}
			i := 0
			for _, ev := range b.Events {
				if ev.Kind > Ignored {
					continue
				}
				if got := b2.Events[i]; !kept(ev, got) {
					t.Fatalf("form %d\n got %+v\nwant %+v", form, got, ev)
				}
				i++
			}
		}
	})
}

// kept reports whether two events are the same as far as writing keeps them:
// objects only of blocks that there are, and in their order.
func kept(a, b Event) bool {
	a.MM, b.MM = nil, nil
	if a.Bigram && len(a.Tokens) < 2 {
		return true
	}
	if a.Kind != BlockStored {
		a.HasParent, a.Parent, a.Tokens, a.Bigram, a.BlockSize, a.HasLoraID, a.LoraID, a.LoraName, a.CacheSalt = false, 0, nil, false, 0, false, 0, "", ""
	}
	if a.Kind == AllBlocksCleared {
		a = Event{Kind: a.Kind, SourceKind: a.SourceKind}
	}
	return same(a, b)
}
