package keys

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvcr-go/kvcr/hints"
)

func TestStyles(t *testing.T) {
	digest := bytes.Repeat([]byte{7}, 24)
	digest = append(digest, 1, 2, 3, 4, 5, 6, 7, 8)
	const hash = 0x0102030405060708
	eight := digest[24:]
	tests := []struct {
		name  string
		style Style
		key   []byte
		ok    bool
	}{
		{"dynamo", Dynamo{}, eight, true},
		{"dynamo, too short", Dynamo{}, eight[:7], false},
		{"dynamo, too long", Dynamo{}, append(bytes.Clone(eight), 0), false},
		{"dynamo, local", Dynamo{WithLocal: true}, append(bytes.Clone(eight), 0, 0, 0, 0, 0, 0, 0, 9), true},
		{"dynamo, local missing", Dynamo{WithLocal: true}, eight, false},
		{"dynamo, suffix", Dynamo{Suffix: ":kv"}, append(bytes.Clone(eight), ":kv"...), true},
		{"dynamo, another suffix", Dynamo{Suffix: ":kv"}, append(bytes.Clone(eight), ":ix"...), false},
		{"dynamo, empty key", Dynamo{}, nil, false},
		{"vllm", VLLM{}, digest, true},
		{"vllm, 8 bytes", VLLM{}, eight, true},
		{"vllm, 7 bytes", VLLM{}, eight[1:], false},
		{"vllm, length", VLLM{DigestBytes: 32}, digest, true},
		{"vllm, another length", VLLM{DigestBytes: 32}, digest[1:], false},
		{"vllm, group", VLLM{WithGroup: true}, append(bytes.Clone(digest), 0, 0, 0, 2), true},
		{"vllm, no digest before the group", VLLM{WithGroup: true}, []byte{0, 0, 0, 2}, false},
		{"vllm, shorter than a group", VLLM{WithGroup: true}, []byte{0, 0}, false},
		{"vllm, the group", VLLM{WithGroup: true, OnlyGroup: true, Group: 2}, append(bytes.Clone(digest), 0, 0, 0, 2), true},
		{"vllm, another group", VLLM{WithGroup: true, OnlyGroup: true, Group: 2}, append(bytes.Clone(digest), 0, 0, 2, 0), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := tt.style.Hash(tt.key)
			if ok != tt.ok || ok && got != hash {
				t.Errorf("Hash = %#x, %v", got, ok)
			}
		})
	}
	for _, tt := range []struct {
		style Style
		key   []byte
		ok    bool
	}{
		{Dynamo{}, eight, true},
		{Dynamo{}, append(bytes.Clone(eight), "x"...), false},
		{Dynamo{Suffix: "/kv"}, append(bytes.Clone(eight), "/index"...), true},
		{Dynamo{Suffix: "/kv", WithLocal: true}, append(bytes.Clone(eight), "/index"...), false}, // too short
		{VLLM{WithGroup: true, OnlyGroup: true}, append(bytes.Clone(digest), 0, 0, 0, 5), true},
		{VLLM{}, eight[1:], false},
	} {
		if got, ok := tt.style.HashOfPart(tt.key); ok != tt.ok || ok && got != hash {
			t.Errorf("%+v: HashOfPart(%x) = %#x, %v", tt.style, tt.key, got, ok)
		}
	}
	if l, ok := (Dynamo{WithLocal: true}).Local(append(bytes.Clone(eight), 0, 0, 0, 0, 0, 0, 0, 9)); !ok || l != 9 {
		t.Errorf("local hash %d, %v", l, ok)
	}
	if _, ok := (Dynamo{}).Local(eight); ok {
		t.Error("a key without a local hash has one")
	}
	if _, ok := (VLLM{}).AppendKey(nil, hash); ok {
		t.Error("a digest was made of its low bits")
	}
}

// What a style appends it reads back.
func TestStylesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seq, local := rapid.Uint64().Draw(t, "seq"), rapid.Uint64().Draw(t, "local")
		d := Dynamo{WithLocal: rapid.Bool().Draw(t, "with local"), Suffix: rapid.StringN(0, 8, 16).Draw(t, "suffix")}
		key := d.AppendBlockKey(nil, seq, local)
		if got, ok := d.Hash(key); !ok || got != seq {
			t.Fatalf("%+v: hash %d, %v of key %x, want %d", d, got, ok, key, seq)
		}
		if got, ok := d.Local(key); ok != d.WithLocal || ok && got != local {
			t.Fatalf("%+v: local %d, %v, want %d", d, got, ok, local)
		}
		if made, ok := d.AppendKey(nil, seq); ok == d.WithLocal || ok && !bytes.Equal(made, key) {
			t.Fatalf("%+v: key %x, %v from the hash, want %x", d, made, ok, key)
		}
		digest := rapid.SliceOfN(rapid.Byte(), 8, 40).Draw(t, "digest")
		v := VLLM{WithGroup: rapid.Bool().Draw(t, "with group")}
		got, ok := v.Hash(v.AppendBlockKey(nil, digest, rapid.Uint32().Draw(t, "group")))
		if want, _ := Low64(digest); !ok || got != want {
			t.Fatalf("%+v: %d, %v, want %d", v, got, ok, want)
		}
	})
}

func TestDirect(t *testing.T) {
	var a hints.KeyAdapter = Direct{"kv", Dynamo{Suffix: "r0"}}
	k, err := a.FromRouter(5)
	if want := "\x00\x00\x00\x00\x00\x00\x00\x05r0"; err != nil || k.Namespace != "kv" || string(k.Key) != want {
		t.Errorf("%+v, %v", k, err)
	}
	if enc, ok := a.Encode(5); !ok || !bytes.Equal(enc.Key, k.Key) {
		t.Errorf("Encode: %+v, %v", enc, ok)
	}
	if h, ok := a.ToRouter("kv", k.Key); !ok || h != 5 {
		t.Errorf("ToRouter: %d, %v", h, ok)
	}
	if _, ok := a.ToRouter("other", k.Key); ok {
		t.Error("a key of another namespace has a hash")
	}
	if _, err := (Direct{"kv", VLLM{}}).FromRouter(5); !errors.Is(err, hints.ErrNotFound) {
		t.Errorf("%v, want ErrNotFound", err)
	}
}
