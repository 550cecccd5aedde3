package keys

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvcr-go/kvcr/wire"
)

func TestRecipeText(t *testing.T) {
	for _, tt := range []struct {
		text string
		want Recipe
	}{
		{"dynamo/xxh3-1337/bs64", Recipe{Style: "dynamo", Hash: "xxh3", Seed: "1337", BlockSize: 64}},
		{"dynamo/xxh3-1337/bs16/eagle/local", Recipe{Style: "dynamo", Hash: "xxh3", Seed: "1337", BlockSize: 16, Eagle: true, Local: true}},
		{"vllm/sha256/low64/bs16", Recipe{Style: "vllm", Hash: "sha256", BlockSize: 16}},
		{"vllm/sha256_cbor-42/low64/bs16/group", Recipe{Style: "vllm", Hash: "sha256_cbor", Seed: "42", BlockSize: 16, Group: true}},
		{"vllm/xxhash-0/low64/bs128", Recipe{Style: "vllm", Hash: "xxhash", Seed: "0", BlockSize: 128}},
	} {
		got, err := ParseRecipe(tt.text)
		if err != nil || got != tt.want || tt.want.String() != tt.text {
			t.Errorf("ParseRecipe(%q) = %+v, %v; String %q", tt.text, got, err, tt.want)
		}
	}
}

func TestRecipeRefused(t *testing.T) {
	for _, tt := range []struct{ text, names string }{
		{"", "recipe"},
		{"dynamo", "recipe"},
		{"sglang/sha256/bs64", "style"},
		{"dynamo/sha256/bs64", "hash"},
		{"dynamo/xxh3-1337/bs0", "block size"},
		{"dynamo/xxh3-1337/bs064", "recipe"},
		{"dynamo/xxh3-1337/bs64/", "recipe"},
		{"dynamo/xxh3-1337/bs64/low64", "recipe"},
		{"dynamo/xxh3-1337/bs64/local/eagle", "recipe"},
		{"dynamo/xxh3-1337/bs64/group", "vllm only"},
		{"vllm/sha256/bs16", "recipe"},
		{"vllm/sha256/low64", "recipe"},
		{"vllm/sha256/low64/bs16/local", "dynamo only"},
		// Random for each process without a seed: two processes would never meet.
		{"dynamo/xxh3/bs64", "seed"},
		{"vllm/xxhash/low64/bs16", "seed"},
		{"vllm/xxhash_cbor/low64/bs16", "PYTHONHASHSEED"},
		{"vllm/sha256-a b/low64/bs16", "seed"},
		{strings.Repeat("x", 300), "recipe"},
	} {
		_, err := ParseRecipe(tt.text)
		var bad *Error
		if !errors.As(err, &bad) || !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tt.names) {
			t.Errorf("ParseRecipe(%q): %v, want an Error that names %q", tt.text, err, tt.names)
		}
	}
}

func FuzzParseRecipe(f *testing.F) {
	f.Add("dynamo/xxh3-1337/bs64")
	f.Add("vllm/sha256_cbor-42/low64/bs16/eagle/group")
	f.Add("vllm/low64/bs1")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRecipe(text)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("%q: unclassified error %v", text, err)
			}
			return
		}
		if r.String() != text || r.Check() != nil {
			t.Fatalf("%q became %q, %v", text, r, r.Check())
		}
	})
}

// A recipe is a field of a layout like any other: a node that compares layouts
// names it, with both values.
func TestRecipeInLayout(t *testing.T) {
	layout := wire.Layout{Kind: "chained", Pools: []wire.LayoutPool{{Name: "kv", SlotBytes: 65536}}}.Describe()
	a := Recipe{Style: "dynamo", Hash: "xxh3", Seed: "1337", BlockSize: 64}
	b := a
	b.BlockSize = 16
	if wire.Fingerprint(a.Describe(layout)) == wire.Fingerprint(b.Describe(layout)) || a.Describe(layout) == layout {
		t.Error("the fingerprint does not cover the recipe")
	}
	got := wire.LayoutDifference(a.Describe(layout), b.Describe(layout))
	if want := "hash recipe: yours dynamo/xxh3-1337/bs64, node's dynamo/xxh3-1337/bs16"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := wire.LayoutDifference(layout, b.Describe(layout)); !strings.Contains(got, "hash recipe: yours none") {
		t.Errorf("%q", got)
	}
	if got, want := a.Difference(b), `block size: ours "64", theirs "16"`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := a.Difference(a); got != "" {
		t.Errorf("a recipe differs from itself: %q", got)
	}
}

// Two recipes that differ are told apart by text, and every difference has a name.
func TestRecipeDifference(t *testing.T) {
	draw := rapid.Custom(func(t *rapid.T) Recipe {
		r := Recipe{Style: rapid.SampledFrom([]string{"dynamo", "vllm"}).Draw(t, "style"), BlockSize: rapid.IntRange(1, 3).Draw(t, "size"), Eagle: rapid.Bool().Draw(t, "eagle")}
		r.Hash = rapid.SampledFrom(recipeHashes[r.Style]).Draw(t, "hash")
		r.Seed = rapid.SampledFrom([]string{"0", "1337", "a-b"}).Draw(t, "seed")
		if r.Style == "vllm" {
			r.Group = rapid.Bool().Draw(t, "group")
		} else {
			r.Local = rapid.Bool().Draw(t, "local")
		}
		return r
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw.Draw(t, "a"), draw.Draw(t, "b")
		if (a == b) != (a.String() == b.String()) || (a == b) != (a.Difference(b) == "") {
			t.Fatalf("%v and %v: difference %q", a, b, a.Difference(b))
		}
		if back, err := ParseRecipe(a.String()); err != nil || back != a {
			t.Fatalf("%v became %v, %v", a, back, err)
		}
	})
}

const childEnv = "KVCR_TEST_PRINT_KEYS"

// printKeysOfChild is the second process of TestTwoProcesses: it prints the keys of
// the tokens 0 to 999 by the recipe in the environment.
func printKeysOfChild() bool {
	text := os.Getenv(childEnv)
	if text == "" {
		return false
	}
	keys, err := keysOf(text)
	if err != nil {
		fmt.Println(err)
	}
	for _, k := range keys {
		fmt.Println(hex.EncodeToString(k))
	}
	return true
}

func keysOf(text string) (out [][]byte, err error) {
	r, err := ParseRecipe(text)
	if err != nil {
		return nil, err
	}
	h, err := r.Hasher("adapter", "tenant")
	if err != nil {
		return nil, err
	}
	style, err := r.Keys()
	if err != nil {
		return nil, err
	}
	for _, b := range h.AppendBlocks(nil, upTo(1000), nil) {
		out = append(out, style.(Dynamo).AppendBlockKey(nil, b.Hash, b.Local))
	}
	return out, nil
}

// Two processes that name the same recipe make the same keys of the same tokens,
// whatever is random in each of them; and with another recipe they make others.
func TestTwoProcesses(t *testing.T) {
	const text = "dynamo/xxh3-1337/bs16/eagle/local"
	ours, err := keysOf(text)
	if err != nil {
		t.Fatal(err)
	}
	child := func(recipe, seed string) (keys [][]byte) {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+recipe, "PYTHONHASHSEED="+seed)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for sc := bufio.NewScanner(bytes.NewReader(out)); sc.Scan(); {
			k, err := hex.DecodeString(sc.Text())
			if err != nil {
				t.Fatalf("the child says %q", sc.Text())
			}
			keys = append(keys, k)
		}
		return keys
	}
	for _, seed := range []string{"0", "random"} {
		theirs := child(text, seed)
		if len(theirs) != 62 || len(ours) != 62 {
			t.Fatalf("%d keys here, %d there, want 62", len(ours), len(theirs))
		}
		for i := range ours {
			if !bytes.Equal(ours[i], theirs[i]) {
				t.Errorf("block %d: key %x here, %x there", i, ours[i], theirs[i])
			}
		}
	}
	const other = "dynamo/xxh3-1337/bs32/local"
	theirs := child(other, "0")
	for _, a := range ours {
		for _, b := range theirs {
			if bytes.Equal(a, b) {
				t.Errorf("key %x by both recipes", a)
			}
		}
	}
	a, _ := ParseRecipe(text)
	b, _ := ParseRecipe(other)
	if got, want := a.Difference(b), `block size: ours "16", theirs "32"; options: ours "eagle/local", theirs "local"`; got != want {
		t.Errorf("the difference is told as %q, want %q", got, want)
	}
}

func TestHasherOfForeignRecipe(t *testing.T) {
	for _, text := range []string{"vllm/sha256/low64/bs16", "dynamo/xxh3-7/bs16"} {
		r, err := ParseRecipe(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Hasher("", ""); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", text, err)
		}
	}
	r, _ := ParseRecipe("vllm/sha256/low64/bs16/group")
	if s, err := r.Keys(); err != nil || s != (VLLM{DigestBytes: 32, WithGroup: true}) {
		t.Errorf("%+v, %v", s, err)
	}
}
