package wire

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestLayoutDifference(t *testing.T) {
	pool := func(name string, n uint64) LayoutPool { return LayoutPool{name, n} }
	node := Layout{Kind: "flat", Pools: []LayoutPool{pool("kv", 131072), pool("state", 4096)}}
	if got, want := node.Describe(), "kind=flat\npool \"kv\" slot bytes=131072\npool \"state\" slot bytes=4096"; got != want {
		t.Fatalf("described as %q, want %q", got, want)
	}
	for _, tt := range []struct{ name, yours, want string }{
		{"slot bytes", Layout{Kind: "flat", Pools: []LayoutPool{pool("kv", 65536), pool("state", 4096)}}.Describe(), `pool "kv" slot bytes: yours 65536, node's 131072`},
		{"kind", Layout{Kind: "chained", Pools: node.Pools}.Describe(), `kind: yours chained, node's flat`},
		{"a pool less", Layout{Kind: "flat", Pools: node.Pools[:1]}.Describe(), `pool "state" slot bytes: yours none, node's 4096`},
		{"a pool more", Layout{Kind: "flat", Pools: append(node.Pools[:2:2], pool("x=\n", 64))}.Describe(), `pool "x=\n" slot bytes: yours 64, node's none`},
		{"another order", Layout{Kind: "flat", Pools: []LayoutPool{node.Pools[1], node.Pools[0]}}.Describe(), `field 2: yours pool "state" slot bytes, node's pool "kv" slot bytes`},
		{"recipe", Layout{Kind: "flat", Pools: node.Pools, Recipe: "dynamo/xxh3-1337/bs64"}.Describe(), `hash recipe: yours dynamo/xxh3-1337/bs64, node's none`},
		{"two fields", Layout{Kind: "chained", Pools: []LayoutPool{pool("kv", 1), node.Pools[1]}}.Describe(), `kind: yours chained, node's flat; pool "kv" slot bytes: yours 1, node's 131072`},
		{"a later version's", node.Describe() + "\nbyte order=little", `byte order: yours little, node's none`},
		{"no description", "", `no description was sent; the node's is kind=flat; pool "kv" slot bytes=131072; pool "state" slot bytes=4096`},
		{"the same", node.Describe(), `the descriptions are alike: your fingerprint is not that of your description`},
		{"no fields", "\n\x1b[2J", "kind: yours none, node's flat; pool \"kv\" slot bytes: yours none, node's 131072; pool \"state\" slot bytes: yours none, node's 4096; : yours , node's none; and 1 more"},
	} {
		if got := LayoutDifference(tt.yours, node.Describe()); got != tt.want {
			t.Errorf("%s:\n%s, want\n%s", tt.name, got, tt.want)
		}
	}
	if Fingerprint("a") == Fingerprint("b") || Fingerprint("a") != Fingerprint("a") {
		t.Error("fingerprints are not those of their descriptions")
	}
}

// FuzzLayoutDifference: whatever a client says of its layout, the answer fits an
// ERROR and can be shown, and it names a difference where there is one.
func FuzzLayoutDifference(f *testing.F) {
	node := Layout{Kind: "flat", Pools: []LayoutPool{{"kv", 65536}}}.Describe()
	f.Add("kind=flat")
	f.Add(strings.Repeat("=\n", MaxLayout/2))
	f.Add(strings.Repeat("ü", MaxLayout/2))
	f.Add(node)
	f.Fuzz(func(t *testing.T, yours string) {
		got := LayoutDifference(yours, node)
		if len(got) > MaxText || strings.ContainsFunc(got, func(r rune) bool { return r < ' ' || r == 0x7f }) || utf8.ValidString(yours) && !utf8.ValidString(got) {
			t.Fatalf("%d bytes: %q", len(got), got)
		}
		if alike := strings.HasPrefix(got, "the descriptions are alike"); alike && yours != node && len(fieldsOf(yours)) == len(fieldsOf(node)) {
			t.Fatalf("%q is alike", yours)
		}
	})
}
