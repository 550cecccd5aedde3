package keys

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/kvcr-go/kvcr/hints/events"
)

// number is a 64-bit number that a vector has as a decimal string.
type number uint64

func (n *number) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	v, err := strconv.ParseUint(s, 10, 64)
	*n = number(v)
	return err
}

type hashVectors struct {
	Vectors []struct {
		Name           string
		Tokens         []uint32
		BlockSize      int         `json:"block_size"`
		LoRA           *string     `json:"lora_name"`
		CacheNamespace *string     `json:"cache_namespace"`
		Media          *[][]number `json:"mm_hashes"`
		Eagle          bool
		Seed           number
		Local, Seq     []number
	}
	Raw []struct {
		Name  string
		Input string `json:"input_hex"`
		Seed  number
		Want  number `json:"xxh3_64"`
	} `json:"raw_xxh3_64"`
	Chain []struct {
		Name   string
		Parent number `json:"parent_seq"`
		Local  number
		Seq    number
	} `json:"chain_step"`
	Media []struct {
		Name, Identifier string
		Hash             number
	} `json:"mm_identifier"`
	Pads []struct {
		Hash number `json:"mm_hash"`
		Pad  uint32 `json:"pad_token"`
	} `json:"mm_pad_tokens"`
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func TestVectors(t *testing.T) {
	const path = "../../../shared/contract/vectors/hashes.json"
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Skip("no ../shared/contract/vectors/hashes.json beside the repository")
	}
	var v hashVectors
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Vectors) < 20 || len(v.Raw) < 10 || len(v.Chain) < 3 || len(v.Media) < 3 || len(v.Pads) < 2 {
		t.Fatalf("%d, %d, %d, %d, %d vectors: the file is read wrongly", len(v.Vectors), len(v.Raw), len(v.Chain), len(v.Media), len(v.Pads))
	}
	for _, c := range v.Vectors {
		var media [][]uint64
		if c.Media != nil {
			for _, m := range *c.Media {
				var of []uint64
				for _, h := range m {
					of = append(of, uint64(h))
				}
				media = append(media, of)
			}
		}
		h := Hasher{BlockSize: c.BlockSize, Seed: BlockSeed(text(c.LoRA), text(c.CacheNamespace)), Eagle: c.Eagle}
		if h.Seed != uint64(c.Seed) {
			t.Errorf("%s: seed %d, want %d", c.Name, h.Seed, c.Seed)
		}
		blocks := h.AppendBlocks(nil, c.Tokens, media)
		locals := h.AppendLocals(nil, c.Tokens, media)
		if len(blocks) != len(c.Local) || len(locals) != len(c.Local) || h.Blocks(len(c.Tokens)) != len(c.Local) {
			t.Errorf("%s: %d blocks, %d local hashes, want %d", c.Name, len(blocks), len(locals), len(c.Local))
			continue
		}
		for i, b := range blocks {
			if b.Local != uint64(c.Local[i]) || b.Hash != uint64(c.Seq[i]) || locals[i] != b.Local {
				t.Errorf("%s, block %d: local %d (%d), seq %d; want %d, %d", c.Name, i, b.Local, locals[i], b.Hash, c.Local[i], c.Seq[i])
			}
		}
	}
	for _, c := range v.Raw {
		in, err := hex.DecodeString(c.Input)
		if got := xxh3.HashSeed(in, uint64(c.Seed)); err != nil || got != uint64(c.Want) {
			t.Errorf("%s: %d, want %d", c.Name, got, c.Want)
		}
	}
	for _, c := range v.Chain {
		if got := Extend(uint64(c.Parent), uint64(c.Local)); got != uint64(c.Seq) {
			t.Errorf("%s: %d, want %d", c.Name, got, c.Seq)
		}
	}
	for _, c := range v.Media {
		if got := MediaHash(c.Identifier); got != uint64(c.Hash) {
			t.Errorf("%s: %d, want %d", c.Name, got, c.Hash)
		}
	}
	for _, c := range v.Pads {
		if got := PadToken(uint64(c.Hash)); got != c.Pad {
			t.Errorf("pad token of %d: %d, want %d", c.Hash, got, c.Pad)
		}
	}
}

func upTo(n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	return tokens
}

// A few known answers that need no file beside the repository.
func TestKnownHashes(t *testing.T) {
	h := Hasher{BlockSize: 4, Seed: BlockSeed("", "")}
	want := []events.Block{
		{Hash: 9143094415614847814, Local: 9143094415614847814},
		{Hash: 9510318385840434533, Local: 12124091508212882195},
		{Hash: 16998148715716822651, Local: 1088361764653601668},
	}
	tokens := upTo(14)
	if got := h.AppendBlocks(nil, tokens, nil); !slices.Equal(got, want) {
		t.Errorf("blocks %v, want %v", got, want)
	}
	if got := BlockSeed("adapter-a", ""); got != 8842669519798868182 {
		t.Errorf("seed under an adapter %d", got)
	}
	if got := BlockSeed("", "tenant-a"); got != 1948188790972764086 {
		t.Errorf("seed of a tenant %d", got)
	}
	// The same in two steps, the second of which continues the first.
	got := h.AppendBlocks(nil, tokens[:5], nil)
	got = h.AppendBlocksAfter(got, got[0].Hash, tokens[4:], nil)
	if !slices.Equal(got, want) {
		t.Errorf("in two steps: %v, want %v", got, want)
	}
}

// The media of a block are a set: in what order they are given does not matter, and
// the caller's list stays as it is.
func TestMediaAreSorted(t *testing.T) {
	h := Hasher{BlockSize: 2, Seed: Seed}
	media := []uint64{9, 3, 7}
	a := h.Local([]uint32{1, 2}, media)
	if !slices.Equal(media, []uint64{9, 3, 7}) {
		t.Errorf("the list was sorted in place: %v", media)
	}
	if b := h.Local([]uint32{1, 2}, []uint64{3, 7, 9}); a != b {
		t.Errorf("%d and %d by order", a, b)
	}
	if b := h.Local([]uint32{1, 2}, nil); a == b {
		t.Error("media make no difference")
	}
}

func TestHashingAllocatesNothing(t *testing.T) {
	h := Hasher{BlockSize: 16, Seed: BlockSeed("adapter", "tenant")}
	tokens, media := upTo(1024), [][]uint64{{5, 1}}
	blocks := h.AppendBlocks(nil, tokens, media)
	locals := h.AppendLocals(nil, tokens, media)
	digest := make([]byte, 32)
	key := make([]byte, 0, 64)
	if n := testing.AllocsPerRun(100, func() {
		blocks = h.AppendBlocks(blocks[:0], tokens, media)
		locals = h.AppendLocals(locals[:0], tokens, media)
		BlockSeed("adapter", "tenant")
		key = Dynamo{WithLocal: true}.AppendBlockKey(key[:0], blocks[0].Hash, blocks[0].Local)
		Low64(digest)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestLow64(t *testing.T) {
	digest := make([]byte, 32)
	for i := range digest {
		digest[i] = byte(i)
	}
	if got, ok := Low64(digest); !ok || got != 0x18191a1b1c1d1e1f {
		t.Errorf("%#x, %v", got, ok)
	}
	if got, ok := Low64(digest[:8]); !ok || got != 0x0001020304050607 {
		t.Errorf("%#x, %v", got, ok)
	}
	if _, ok := Low64(digest[:7]); ok {
		t.Error("a digest of 7 bytes was taken")
	}
}

func BenchmarkHash(b *testing.B) {
	for _, size := range []int{16, 64, 128} {
		b.Run("tokens="+strconv.Itoa(size), func(b *testing.B) {
			h := Hasher{BlockSize: size, Seed: Seed}
			tokens := upTo(64 * size)
			var blocks []events.Block
			b.SetBytes(int64(4 * len(tokens)))
			b.ReportAllocs()
			for b.Loop() {
				blocks = h.AppendBlocks(blocks[:0], tokens, nil)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/block")
		})
	}
}
