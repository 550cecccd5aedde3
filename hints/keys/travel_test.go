package keys

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvcr-go/kvcr/hints"
)

// travel takes what one table says of a key to another.
func travel(t *testing.T, from, to *Table, limit int, key []byte) (n int) {
	t.Helper()
	k := hints.Key{Namespace: "a", Key: key}
	b := from.AppendDescription([]byte("before"), limit, k)
	if !bytes.HasPrefix(b, []byte("before")) {
		t.Fatalf("what was there has become %q", b)
	}
	if b = b[len("before"):]; len(b) == 0 {
		return 0
	}
	if len(b) > limit {
		t.Errorf("%d bytes, the limit is %d", len(b), limit)
	}
	if err := to.TakeDescription(k, b); err != nil {
		t.Errorf("%x: %v", b, err)
	}
	clear(b) // it is not kept
	return len(b)
}

// What a table says of a block is what another one takes: all of it, or as much as the
// limit holds.
func TestTravel(t *testing.T) {
	text := rapid.StringN(0, 20, maxNameText)
	rapid.Check(t, func(rt *rapid.T) {
		from, to := table(t, nil), table(t, nil)
		d := Description{
			Tokens:    rapid.SliceOfN(rapid.Uint32Max(1<<rapid.Uint32Range(0, 31).Draw(rt, "bits")), 0, 600).Draw(rt, "tokens"),
			HasParent: rapid.Bool().Draw(rt, "parent"),
			LoRA:      text.Draw(rt, "lora"), CacheNamespace: text.Draw(rt, "salt"),
		}
		if len(d.Tokens) > 1 && rapid.Bool().Draw(rt, "eagle") {
			d.BlockSize = len(d.Tokens) - 1
		}
		if len(d.Tokens) == 0 {
			d.BlockSize = rapid.IntRange(0, MaxBlockTokens).Draw(rt, "size")
			if d.HasLocal = rapid.Bool().Draw(rt, "local"); d.HasLocal {
				d.Local = rapid.Uint64().Draw(rt, "local hash")
			}
		}
		if d.HasParent {
			d.Parent = rapid.Uint64Range(10, 1<<64-1).Draw(rt, "parent hash")
		}
		if rapid.Bool().Draw(rt, "with media") {
			d.Media = rapid.SliceOfN(rapid.Uint64(), 1, maxMedia).Draw(rt, "media")
		}
		k := digestOf(1, 1)
		if err := from.Describe("a", k, d); err != nil {
			rt.Fatal(err)
		}
		want, _ := from.Description("a", k, nil)
		whole := len(from.AppendDescription(nil, 1<<20, hints.Key{Namespace: "a", Key: k}))
		limit := whole - rapid.SampledFrom([]int{-1, 0, 1, whole}).Draw(rt, "missing")
		n := travel(t, from, to, limit, k)
		got, told := to.Description("a", k, nil)
		if limit < whole {
			if want.Tokens, want.Media = nil, nil; n == 0 {
				bare := want.travelSize()
				if bare <= limit || told {
					rt.Fatalf("nothing in %d bytes, %d would do; told: %v", limit, bare, told)
				}
				return
			}
		}
		if want.Tokens == nil {
			got.Tokens = nil // or empty
		}
		if !told || !reflect.DeepEqual(got, want) {
			rt.Fatalf("%+v\nhas become\n%+v", want, got)
		}
	})
}

// The longest block that routers of today have, with all that belongs to it, fits what
// messages between nodes have room for (wire.MaxDescription).
func TestTravelLong(t *testing.T) {
	from, to := table(t, nil), table(t, nil)
	name := strings.Repeat("n", maxNameText)
	d := Description{Tokens: slices.Repeat([]uint32{1<<32 - 1}, 513), BlockSize: 512, LoRA: name, CacheNamespace: name, HasParent: true, Parent: 9, Media: make([]uint64, 8)}
	if err := from.Describe("a", digestOf(1, 1), d); err != nil {
		t.Fatal(err)
	}
	n := travel(t, from, to, 2816, digestOf(1, 1))
	if got, _ := to.Description("a", digestOf(1, 1), nil); !slices.Equal(got.Tokens, d.Tokens) {
		t.Errorf("%d bytes have %d tokens", n, len(got.Tokens))
	}
}

// The encoding, which nodes of several versions have to share.
func TestTravelBytes(t *testing.T) {
	for _, tt := range []struct {
		name  string
		d     Description
		limit int
		want  string
	}{
		{"first of a chain", Description{Tokens: []uint32{1, 2, 255}}, 100,
			"01 00 03000000 0000 0000 0300 01 01 02 ff 00"},
		{"all there is", Description{Tokens: []uint32{256, 7, 8}, BlockSize: 2, HasParent: true, Parent: 9, LoRA: "l", CacheNamespace: "ns", Media: []uint64{5, 4}}, 100,
			"01 01 02000000 0900000000000000 0100 6c 0200 6e73 0300 02 0001 0700 0800 02 0500000000000000 0400000000000000"},
		{"no room", Description{Tokens: []uint32{1 << 24, 7}, HasParent: true, Parent: 9, Media: []uint64{5}}, 37,
			"01 03 02000000 0900000000000000 4cf3b3f9ed3badd7 0000 0000 0000 00"},
		{"no tokens", Description{Local: 77, HasLocal: true, BlockSize: 16}, 100,
			"01 02 10000000 4d00000000000000 0000 0000 0000 00"},
	} {
		tab := table(t, nil)
		if err := tab.Describe("a", digestOf(1, 1), tt.d); err != nil {
			t.Fatal(err)
		}
		want, _ := hex.DecodeString(strings.ReplaceAll(tt.want, " ", ""))
		if got := tab.AppendDescription(nil, tt.limit, hints.Key{Namespace: "a", Key: digestOf(1, 1)}); !bytes.Equal(got, want) {
			t.Errorf("%s: % x, want %s", tt.name, got, tt.want)
		}
	}
}

// Bytes that are no description are refused, by name, and so is what the key speaks
// against; nothing of it stays.
func TestTravelRefused(t *testing.T) {
	dynamo, local := Dynamo{}, Dynamo{WithLocal: true}
	tab := table(t, func(cfg *TableConfig) { cfg.Styles["d"], cfg.Styles["l"] = dynamo, local })
	one := Hasher{Seed: Seed}
	first := one.Local([]uint32{1, 2}, nil) // of a chain, whose second block is
	second := Extend(first, first)
	le64 := func(n uint64) string {
		return hex.EncodeToString([]byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24), byte(n >> 32), byte(n >> 40), byte(n >> 48), byte(n >> 56)})
	}
	const tokens = "0200 01 01 02 00"
	any := hints.Key{Namespace: "a", Key: digestOf(1, 1)}
	keyD := func(seq uint64) hints.Key { return hints.Key{Namespace: "d", Key: dynamo.AppendBlockKey(nil, seq, 0)} }
	keyL := func(seq, of uint64) hints.Key {
		return hints.Key{Namespace: "l", Key: local.AppendBlockKey(nil, seq, of)}
	}
	for _, tt := range []struct {
		name  string
		key   hints.Key
		bytes string
		names string // empty: it is taken
	}{
		{"none", any, "", "version"},
		{"a later version", any, "02 00 02000000 0000 0000 " + tokens, "version = 2"},
		{"an unknown flag", any, "01 04 02000000 0000 0000 " + tokens, "flags"},
		{"only a version", any, "01", "flags"},
		{"cut in the parent", any, "01 01 02000000 010203", "parent"},
		{"a long name", any, "01 00 02000000 0101" + strings.Repeat("61", 257) + "0000 " + tokens, "LoRA"},
		{"a name that is cut", any, "01 00 02000000 0200 61", "LoRA"},
		{"a name in no language", any, "01 00 02000000 0000 0100 ff " + tokens, "UTF-8"},
		{"too few tokens", any, "01 00 02000000 0000 0000 0300 01 01 02", "tokens"},
		{"tokens without an end", any, "01 00 02000000 0000 0000 ffff 04 01 02", "tokens"},
		{"no width", any, "01 00 02000000 0000 0000 0200 00 01 02 00", "token width"},
		{"five wide", any, "01 00 02000000 0000 0000 0200 05 " + strings.Repeat("01", 10) + "00", "token width"},
		{"wider than need be", any, "01 00 02000000 0000 0000 0200 02 0100 0200 00", "token width"},
		{"tokens and a local hash", any, "01 02 02000000" + le64(first) + "0000 0000 " + tokens, "local hash"},
		{"tokens of two blocks", any, "01 00 01000000 0000 0000 0300 01 01 02 03 00", "BlockSize"},
		{"tokens of no size", any, "01 00 00000000 0000 0000 " + tokens, "block size"},
		{"a large block", any, "01 00 01400000 0000 0000 0000 00", "BlockSize"},
		{"65 images", any, "01 00 02000000 0000 0000 0200 01 01 02 41" + strings.Repeat("00", 8*65), "media"},
		{"half an image", any, "01 00 02000000 0000 0000 0200 01 01 02 01 0000", "media"},
		{"more behind it", any, "01 00 02000000 0000 0000 " + tokens + " 00", "end"},
		{"its own parent", any, "01 01 02000000" + le64(1) + "0000 0000 " + tokens, "parent"},
		{"good", any, "01 01 02000000" + le64(2) + "0000 0000 " + tokens, ""},

		{"no such namespace", hints.Key{Namespace: "z", Key: digestOf(1, 1)}, "01 00 02000000 0000 0000 " + tokens, "namespace \"z\""},
		{"no such key", hints.Key{Namespace: "d", Key: []byte("k")}, "01 00 02000000 0000 0000 " + tokens, "routers know"},

		{"the first of a chain", keyD(first), "01 00 02000000 0000 0000 " + tokens, ""},
		{"the first, and a parent", keyD(first), "01 01 02000000" + le64(7) + "0000 0000 " + tokens, "place"},
		{"other tokens", keyD(first), "01 00 02000000 0000 0000 0200 01 01 03 00", "place"},
		{"another adapter", keyD(first), "01 00 02000000 0100 61 0000 " + tokens, "place"},
		{"the second", keyD(second), "01 01 02000000" + le64(first) + "0000 0000 " + tokens, ""},
		{"the second by its hash", keyD(second), "01 03 02000000" + le64(first) + le64(first) + "0000 0000 0000 00", ""},
		{"the second as the first", keyD(second), "01 00 02000000 0000 0000 " + tokens, "place"},
		{"the second after another", keyD(second), "01 01 02000000" + le64(8) + "0000 0000 " + tokens, "place"},
		{"the second, by another hash", keyD(second), "01 03 02000000" + le64(first) + le64(8) + "0000 0000 0000 00", "place"},

		{"by a key that has it all", keyL(second, first), "01 01 02000000" + le64(first) + "0000 0000 0000 00", ""},
		{"in another place", keyL(second, first), "01 01 02000000" + le64(8) + "0000 0000 0000 00", "place"},
		{"not what the key says", keyL(second, 5), "01 03 02000000" + le64(first) + le64(first) + "0000 0000 0000 00", "local hash"},
	} {
		b, err := hex.DecodeString(strings.ReplaceAll(tt.bytes, " ", ""))
		if err != nil {
			t.Fatal(tt.name, err)
		}
		before := tab.Stats()
		err = tab.TakeDescription(tt.key, b)
		if tt.names == "" {
			if _, told := tab.Description(tt.key.Namespace, tt.key.Key, nil); err != nil || !told {
				t.Errorf("%s: %v, told: %v", tt.name, err, told)
			}
			continue
		}
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tt.names) {
			t.Errorf("%s: %v, want an Error that names %q", tt.name, err, tt.names)
		}
		if after := tab.Stats(); after != before {
			t.Errorf("%s: %+v has become %+v", tt.name, before, after)
		}
	}
}

// taken is a description by a peer of the block of hash 1, with that parent.
func taken(t *testing.T, tab *Table, key []byte, parent uint64) {
	t.Helper()
	d := Description{Tokens: []uint32{7, 8}, BlockSize: 2, HasParent: parent != 0, Parent: parent, LoRA: "peers"}
	if err := tab.TakeDescription(hints.Key{Namespace: "a", Key: key}, d.appendTravel(nil)); err != nil {
		t.Fatal(err)
	}
}

// What the host tells counts more than what peers tell, whoever comes first, and
// whether the block is here or not.
func TestHostCountsMore(t *testing.T) {
	own := Description{Tokens: []uint32{1, 2, 3}, BlockSize: 3, HasParent: true, Parent: 5, LoRA: "own"}
	theirs := func(parent uint64) *Description {
		return &Description{Tokens: []uint32{7, 8}, BlockSize: 2, HasParent: true, Parent: parent, LoRA: "peers"}
	}
	for _, resident := range []bool{false, true} {
		tab := table(t, nil)
		k := digestOf(1, 1)
		if resident {
			tab.Stored("a", k, dram)
		}
		describe := func() {
			if err := tab.Describe("a", k, own); err != nil {
				t.Fatal(err)
			}
		}
		taken(t, tab, k, 20)
		wantDescription(t, tab, k, theirs(20))
		taken(t, tab, k, 21) // of peers the last one
		wantDescription(t, tab, k, theirs(21))
		describe()
		wantDescription(t, tab, k, &own)
		taken(t, tab, k, 22)
		wantDescription(t, tab, k, &own)
		tab.Stored("a", k, dram)
		wantDescription(t, tab, k, &own)
		taken(t, tab, k, 23)
		wantDescription(t, tab, k, &own)
		tab.Removed("a", k, dram) // and into the block's next life
		taken(t, tab, k, 24)
		wantDescription(t, tab, k, &own)
		tab.Stored("a", k, dram)
		wantDescription(t, tab, k, &own)
		if s := tab.Stats(); s.Described != 1 || s.Pending != 0 {
			t.Errorf("%+v", s)
		}
	}
}

// A peer cannot push out what the host has told of blocks that are to come, and there
// is a bound for what peers tell.
func TestPeersPushOutPeers(t *testing.T) {
	var c clock
	tab := c.of(table(t, func(cfg *TableConfig) { cfg.MaxPending, cfg.PendingAge = 10, time.Second }))
	own := Description{Tokens: []uint32{1, 2, 3}, BlockSize: 3}
	for i := range uint64(10) {
		if err := tab.Describe("a", digestOf(i, 1), own); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(25) {
		taken(t, tab, digestOf(100+i, 1), 0)
	}
	for i := range uint64(10) {
		wantDescription(t, tab, digestOf(i, 1), &own)
	}
	wantDescription(t, tab, digestOf(114, 1), nil)
	wantDescription(t, tab, digestOf(115, 1), &Description{Tokens: []uint32{7, 8}, BlockSize: 2, LoRA: "peers"})
	if s := tab.Stats(); s.Pending != 20 || s.Expired != 15 {
		t.Errorf("%+v", s)
	}
	// What the host tells of a block that a peer has described is the host's.
	for i := range uint64(2) {
		if err := tab.Describe("a", digestOf(115+i, 1), own); err != nil {
			t.Fatal(err)
		}
	}
	if a, b := tab.pending[0].Len(), tab.pending[1].Len(); a != 10 || b != 8 {
		t.Errorf("%d of the host, %d of peers", a, b)
	}
	c.now += time.Second
	tab.Stored("a", digestOf(1, 1), dram)
	if s := tab.Stats(); s.Pending != 0 || s.Described != 0 || len(tab.texts.numbers) != 0 {
		t.Errorf("%+v, %d names", s, len(tab.texts.numbers))
	}
}

// The parent that an engine names of a block is told to others where the key or the
// host tells the rest; and not where there is nothing to go with it.
func TestPlaceTravels(t *testing.T) {
	d := Dynamo{WithLocal: true}
	style := func(cfg *TableConfig) { cfg.Styles = map[string]Style{"a": d} }
	first, second := uint64(70), Extend(70, 71)
	root, child := d.AppendBlockKey(nil, first, 70), d.AppendBlockKey(nil, second, 71)
	from, to := table(t, style), table(t, style)
	from.Place("a", child, root) // of a block that is not held: no
	from.Stored("a", root, dram)
	from.Stored("a", child, dram)
	if n := travel(t, from, to, 100, child) + travel(t, from, to, 100, root); n != 0 {
		t.Errorf("%d bytes about keys that tell it themselves, in a place that is not known", n)
	}
	from.Place("a", child, root)
	from.Place("a", root, root) // which makes no sense
	from.Place("a", child, []byte("no key"))
	if s := from.Stats(); s.Described != 0 || s.Pending != 0 {
		t.Errorf("%+v", s)
	}
	if got, told := from.Description("a", child, nil); told || !got.HasParent || got.Parent != first {
		t.Errorf("%+v, told: %v", got, told)
	}
	if got, _ := from.Description("a", root, nil); got.HasParent {
		t.Errorf("the root: %+v", got)
	}
	if n := travel(t, from, to, 100, child); n == 0 {
		t.Error("nothing about the place")
	}
	if got, told := to.Description("a", child, nil); !told || !got.HasParent || got.Parent != first || got.Local != 71 {
		t.Errorf("%+v, told: %v", got, told)
	}
	from.Removed("a", child, dram) // the place goes with the block
	if got, _ := from.Description("a", child, nil); got.HasParent || from.Stats().Pending != 0 {
		t.Errorf("%+v, %+v", got, from.Stats())
	}

	// A host that leaves the place to the engine.
	v, w := table(t, nil), table(t, nil)
	k := digestOf(1, 1)
	v.Stored("a", k, dram)
	v.Place("a", k, digestOf(6, 1))
	if n := travel(t, v, w, 100, k); n != 0 {
		t.Errorf("%d bytes about a place and nothing in it", n)
	}
	own := Description{Tokens: []uint32{1, 2}, BlockSize: 2}
	if err := v.Describe("a", k, own); err != nil {
		t.Fatal(err)
	}
	placed := own
	placed.HasParent, placed.Parent = true, 6
	wantDescription(t, v, k, &placed)
	travel(t, v, w, 100, k)
	wantDescription(t, w, k, &placed)
	v.Place("a", k, digestOf(8, 1)) // the engine knows better
	placed.Parent = 8
	wantDescription(t, v, k, &placed)
	placed.Parent = 9 // but not better than the host
	if err := v.Describe("a", k, placed); err != nil {
		t.Fatal(err)
	}
	v.Place("a", k, digestOf(8, 1))
	wantDescription(t, v, k, &placed)
	w.Stored("a", k, dram)
	w.Place("a", k, digestOf(8, 1)) // nor than the peer, who has said 6
	placed.Parent = 6
	wantDescription(t, w, k, &placed)
}

// While the table has yet to hear that a block is here, what is to be told of it can
// travel on.
func TestPendingTravels(t *testing.T) {
	a, b, c := table(t, nil), table(t, nil), table(t, nil)
	d := Description{Tokens: []uint32{1, 2}, BlockSize: 2, HasParent: true, Parent: 6}
	for _, k := range [][]byte{digestOf(1, 1), append(bytes.Repeat([]byte{3}, maxKey-10), digestOf(1, 1)...)} {
		if err := a.Describe("a", k, d); err != nil {
			t.Fatal(err)
		}
		travel(t, a, b, 100, k)
		travel(t, b, c, 100, k)
		wantDescription(t, c, k, &d)
	}
}

// TestDescriptionsLikeMap: whoever tells what, in whatever order, of each block the one
// counts who counts most, and nothing is left over.
func TestDescriptionsLikeMap(t *testing.T) {
	type told struct {
		by, parentBy teller
		parent       uint64
		token        uint32
	}
	rapid.Check(t, func(rt *rapid.T) {
		var c clock
		tab := c.of(table(t, nil))
		model, held := map[uint64]told{}, map[uint64]bool{}
		hash := rapid.Uint64Range(0, 3)
		describe := func(t *rapid.T, by teller) {
			h := hash.Draw(t, "hash")
			d := Description{Tokens: []uint32{rapid.Uint32().Draw(t, "token")}, HasParent: rapid.Bool().Draw(t, "has"), LoRA: fmt.Sprint(by)}
			var err error
			if d.HasParent {
				d.Parent = rapid.Uint64Range(10, 20).Draw(t, "parent")
			}
			if by == host {
				err = tab.Describe("a", digestOf(h, 1), d)
			} else {
				d.BlockSize = 1
				err = tab.TakeDescription(hints.Key{Namespace: "a", Key: digestOf(h, 1)}, d.appendTravel(nil))
			}
			if err != nil {
				t.Fatal(err)
			}
			was := model[h]
			if was.by > by {
				return
			}
			now := told{by: by, token: d.Tokens[0]}
			if d.HasParent {
				now.parent, now.parentBy = d.Parent, by
			} else if was.parentBy == engine && held[h] {
				now.parent, now.parentBy = was.parent, engine
			}
			model[h] = now
		}
		rt.Repeat(map[string]func(*rapid.T){
			"host": func(t *rapid.T) { describe(t, host) },
			"peer": func(t *rapid.T) { describe(t, peer) },
			"place": func(t *rapid.T) {
				h, parent := hash.Draw(t, "hash"), rapid.Uint64Range(10, 20).Draw(t, "parent")
				tab.Place("a", digestOf(h, 1), digestOf(parent, 1))
				if was := model[h]; held[h] && was.parentBy <= engine {
					was.parent, was.parentBy, was.by = parent, engine, max(was.by, engine)
					model[h] = was
				}
			},
			"stored": func(t *rapid.T) {
				h := hash.Draw(t, "hash")
				tab.Stored("a", digestOf(h, 1), dram)
				held[h] = true
			},
			"removed": func(t *rapid.T) {
				h := hash.Draw(t, "hash")
				tab.Removed("a", digestOf(h, 1), dram)
				delete(held, h)
				if model[h].by == engine {
					delete(model, h)
				}
			},
			"": func(t *rapid.T) {
				described, pending, names := 0, 0, map[teller]bool{}
				for h := range uint64(4) {
					got, ok := tab.Description("a", digestOf(h, 1), nil)
					want := model[h]
					if ok != (want.by > engine) || got.HasParent != (want.parentBy != nobody) || got.Parent != want.parent {
						t.Fatalf("block %d: %+v, told %v; want %+v", h, got, ok, want)
					}
					if ok && (got.Tokens[0] != want.token || got.LoRA != fmt.Sprint(want.by)) {
						t.Fatalf("block %d: %+v, want %+v", h, got, want)
					}
					if ok {
						names[want.by] = true
					}
					switch {
					case ok && held[h]:
						described++
					case ok:
						pending++
					}
				}
				if s := tab.Stats(); s.Described != described || s.Pending != pending || tab.pending[0].Len()+tab.pending[1].Len() != pending || len(tab.texts.numbers) != len(names) {
					t.Fatalf("%+v, %d names; want %d described, %d pending, %d names", s, len(tab.texts.numbers), described, pending, len(names))
				}
			},
		})
	})
}

// FuzzTravel: no input panics, every failure is an Error, and what is accepted is the
// one encoding of what it says.
func FuzzTravel(f *testing.F) {
	for _, d := range []Description{
		{}, {Local: 1, HasLocal: true}, {Tokens: []uint32{1, 2, 1 << 20}, BlockSize: 2, LoRA: "l", CacheNamespace: "c"},
		{Tokens: []uint32{9}, BlockSize: 1, HasParent: true, Parent: 3, Media: []uint64{1, 2}},
	} {
		f.Add(d.appendTravel(nil))
	}
	f.Add([]byte{2})
	f.Fuzz(func(t *testing.T, in []byte) {
		d, err := parseTravel(in)
		if err == nil {
			if got := d.appendTravel(nil); !bytes.Equal(got, in) || len(got) != d.travelSize() {
				t.Fatalf("%x says %+v, which is %x", in, d, got)
			}
		} else if !errors.Is(err, ErrInvalid) || d.Tokens != nil {
			t.Fatalf("%x: %v, %+v", in, err, d)
		}
		tab := table(t, nil)
		if err := tab.TakeDescription(hints.Key{Namespace: "a", Key: digestOf(1, 1)}, in); err != nil && !errors.Is(err, ErrInvalid) {
			t.Fatalf("%x: %v", in, err)
		}
	})
}
