package events

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// shared returns a file of the contract, which lies beside the repository.
func shared(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "shared", "contract", "vectors", name))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("no ../shared with contract/vectors/%s", name)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

type hexBytes []byte

func (h *hexBytes) UnmarshalText(s []byte) (err error) {
	*h, err = hex.DecodeString(string(s))
	return err
}

type vectorEvent struct {
	Form, Type  string
	BlockHashes []string `json:"block_hashes"`
	Parent      *string  `json:"parent_block_hash"`
	Tokens      []uint32 `json:"token_ids"`
	BlockSize   uint32   `json:"block_size"`
	Medium      *string
	LoraName    *string `json:"lora_name"`
	CacheSalt   string  `json:"cache_salt"`
	Group       *uint32 `json:"group_idx"`
	Kind        string  `json:"kv_cache_spec_kind"`
	Locality    string
	SourceKind  string `json:"source_kind"`
	Tier        *string
	Disposition string
	Indexed     int `json:"indexed_blocks"`
	Why         string
}

type vectors struct {
	Cases []struct {
		Name    string
		Payload hexBytes `json:"payload_hex"`
		Decoded struct {
			TS     float64
			Rank   *uint32 `json:"data_parallel_rank"`
			Events []vectorEvent
		}
	}
	Malformed []struct {
		Name    string
		Payload hexBytes `json:"payload_hex"`
	} `json:"malformed_batches"`
	Bad []struct {
		Name    string
		Payload hexBytes `json:"payload_hex"`
		Bad     int      `json:"bad_event_index"`
		Applied []int    `json:"applied_event_indexes"`
	} `json:"bad_events_in_good_batches"`
	Frames []struct {
		Name   string
		Frames []hexBytes `json:"frames_hex"`
	}
}

func loadVectors(t testing.TB) (v vectors) {
	t.Helper()
	if err := json.Unmarshal(shared(t, "kv_events.json"), &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Cases) < 30 || len(v.Malformed) < 8 || len(v.Bad) < 8 || len(v.Frames) < 7 {
		t.Fatalf("only %d cases, %d malformed, %d bad, %d frames", len(v.Cases), len(v.Malformed), len(v.Bad), len(v.Frames))
	}
	return v
}

func decimal(t testing.TB, s string) uint64 {
	t.Helper()
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// want turns what the file says of an event into an Event.
func (e vectorEvent) want(t testing.TB) Event {
	ev := Event{BlockSize: e.BlockSize, CacheSalt: e.CacheSalt, SpecKind: e.Kind, Locality: e.Locality, SourceKind: e.SourceKind}
	if ev.Kind = kindOf([]byte(e.Type)); ev.Kind == Unknown {
		return Event{Kind: Unknown, Tag: e.Type}
	}
	for _, h := range e.BlockHashes {
		ev.Hashes = append(ev.Hashes, decimal(t, h))
	}
	if e.Parent != nil {
		ev.HasParent, ev.Parent = true, decimal(t, *e.Parent)
	}
	if e.Medium != nil {
		ev.Medium = *e.Medium
	}
	if e.LoraName != nil {
		ev.LoraName = *e.LoraName
	}
	if e.Group != nil {
		ev.HasGroup, ev.Group = true, *e.Group
	}
	if len(e.Tokens) > 0 {
		ev.Tokens = e.Tokens
	}
	return ev
}

// plain makes two equal events deeply equal: empty lists are nil.
func plain(ev Event) Event {
	if len(ev.Hashes) == 0 {
		ev.Hashes = nil
	}
	if len(ev.Tokens) == 0 {
		ev.Tokens = nil
	}
	if len(ev.MM) == 0 {
		ev.MM = nil
	}
	ev.HasWindow, ev.Window = false, 0 // the file does not say it
	return ev
}

func TestVectors(t *testing.T) {
	v := loadVectors(t)
	var d Decoder
	var b Batch
	for _, c := range v.Cases {
		t.Run(c.Name, func(t *testing.T) {
			if err := d.Decode(c.Payload, &b); err != nil {
				t.Fatal(err)
			}
			if b.TS != c.Decoded.TS || b.HasRank != (c.Decoded.Rank != nil) || b.HasRank && b.Rank != *c.Decoded.Rank {
				t.Errorf("time %v rank %t %d, want %v %v", b.TS, b.HasRank, b.Rank, c.Decoded.TS, c.Decoded.Rank)
			}
			if len(b.Events) != len(c.Decoded.Events) {
				t.Fatalf("%d events, want %d", len(b.Events), len(c.Decoded.Events))
			}
			for i, e := range c.Decoded.Events {
				if got, want := plain(b.Events[i]), e.want(t); !reflect.DeepEqual(got, want) {
					t.Errorf("event %d\n got %+v\nwant %+v", i, got, want)
				}
			}
			checkNormalized(t, b, c.Decoded.Events)
		})
	}
}

// checkNormalized has a fresh Normalizer look at each event alone, after those
// before it.
func checkNormalized(t *testing.T, b Batch, want []vectorEvent) {
	n := NewNormalizer(NormalizerConfig{BlockSize: 4})
	for i, e := range want {
		before := n.Drops()
		one := Batch{HasRank: b.HasRank, Rank: b.Rank, Events: b.Events[i : i+1]}
		out := n.Normalize(nil, Worker{ID: 7, Rank: 9}, 33, &one)
		dropped := ""
		for r, count := range n.Drops() {
			if r := Reason(r); count != before[r] && r != ReasonBlockSize && r != ReasonTokens {
				dropped += r.String()
			}
		}
		if (e.Disposition == "drop") != (dropped != "") || dropped != e.Why {
			t.Errorf("event %d is dropped for %q, want %q for %q", i, dropped, e.Disposition, e.Why)
		}
		if e.Disposition == "drop" || e.Type == "BlockStored" && e.Indexed == 0 {
			if len(out) > 0 {
				t.Errorf("event %d gave %+v, want nothing", i, out)
			}
			continue
		}
		if len(out) != 1 {
			t.Fatalf("event %d gave %+v, want one event", i, out)
		}
		got := out[0]
		rank := uint32(9)
		if b.HasRank {
			rank = b.Rank
		}
		if got.Worker != (Worker{7, rank}) || got.ID != 33 || got.Domain != DomainWorker {
			t.Errorf("event %d is %+v, want worker 7 rank %d id 33", i, got, rank)
		}
		if e.Tier != nil && got.Tier.String() != *e.Tier {
			t.Errorf("event %d is in tier %v, want %s", i, got.Tier, *e.Tier)
		}
		switch e.Type {
		case "BlockStored":
			if got.Op != Stored || len(got.Blocks) != e.Indexed || got.HasParent != (e.Parent != nil) || got.HasParent && got.Parent != decimal(t, *e.Parent) {
				t.Errorf("event %d gave %+v, want %d blocks after %v", i, got, e.Indexed, e.Parent)
			}
			for j, blk := range got.Blocks {
				if blk.Hash != decimal(t, e.BlockHashes[j]) {
					t.Errorf("block %d is %d, want %s", j, blk.Hash, e.BlockHashes[j])
				}
			}
		case "BlockRemoved":
			if got.Op != Removed || !slices.Equal(got.Hashes, b.Events[i].Hashes) {
				t.Errorf("event %d gave %+v", i, got)
			}
		case "AllBlocksCleared":
			if got.Op != Cleared {
				t.Errorf("event %d gave %+v", i, got)
			}
		}
	}
}

func TestVectorsMalformed(t *testing.T) {
	v := loadVectors(t)
	var d Decoder
	b := Batch{Events: make([]Event, 3)}
	for _, c := range v.Malformed {
		if err := d.Decode(c.Payload, &b); !errors.Is(err, ErrMalformed) || len(b.Events) > 0 {
			t.Errorf("%s: error %v and %d events, want ErrMalformed", c.Name, err, len(b.Events))
		}
	}
	for _, c := range v.Bad {
		if err := d.Decode(c.Payload, &b); err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		for i, ev := range b.Events {
			if (ev.Kind == Malformed) != (i == c.Bad) || (ev.Kind == Malformed) != (ev.Why != "") {
				t.Errorf("%s: event %d is %v (%s)", c.Name, i, ev.Kind, ev.Why)
			}
		}
		n := NewNormalizer(NormalizerConfig{BlockSize: 4})
		if out := n.Normalize(nil, Worker{}, 0, &b); len(out) != len(c.Applied) || n.Drops()[ReasonMalformed] != 1 {
			t.Errorf("%s: %d events applied, drops %v", c.Name, len(out), n.Drops())
		}
	}
}

// The byte examples of the contract come out again, in both forms.
func TestVectorsEncode(t *testing.T) {
	v := loadVectors(t)
	var d Decoder
	var b Batch
	same := 0
	for _, c := range v.Cases {
		if err := d.Decode(c.Payload, &b); err != nil {
			t.Fatal(err)
		}
		maps, arrays := AppendBatch(nil, &b, Maps), AppendBatch(nil, &b, Arrays)
		if bytes.Equal(maps, c.Payload) || bytes.Equal(arrays, c.Payload) {
			same++
		} else if strings.HasPrefix(c.Name, "map_cpu") || strings.HasPrefix(c.Name, "array_gpu") || strings.HasPrefix(c.Name, "map_remove") {
			t.Errorf("%s: %x encodes to %x or %x", c.Name, []byte(c.Payload), maps, arrays)
		}
	}
	if same < 15 {
		t.Errorf("only %d of the cases encode to their own bytes", same)
	}
}
