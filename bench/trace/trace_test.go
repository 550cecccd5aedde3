package trace

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sort"
	"testing"
)

func tiny(name string, base uint64) *Trace {
	return &Trace{Name: name, Requests: []Request{
		{Timestamp: 0, IDs: []uint64{base, base + 1}},
		{Timestamp: 10, IDs: []uint64{base, base + 2}},
		{Timestamp: 30, IDs: []uint64{base + 3}},
	}}
}

func TestCounts(t *testing.T) {
	tr := tiny("a", 5)
	if tr.Blocks() != 5 || tr.Unique() != 4 {
		t.Errorf("%d blocks, %d unique, want 5 and 4", tr.Blocks(), tr.Unique())
	}
}

func TestDerived(t *testing.T) {
	a, b := tiny("a", 0), tiny("b", 7)
	s := Steady(a)
	if s.Name != "a3" || s.Unique() != 12 || len(s.Requests) != 9 {
		t.Errorf("steady %q: %d unique in %d requests", s.Name, s.Unique(), len(s.Requests))
	}
	for i, r := range s.Requests {
		if r.Uncounted != (i < 6) {
			t.Errorf("request %d of the steady trace: uncounted %t", i, r.Uncounted)
		}
	}
	if r := s.Requests[7]; r.Timestamp != 70 || r.IDs[1]-r.IDs[0] != 2 {
		t.Errorf("request 7 is %+v", r)
	}
	alt := Alternate(a, b)
	if alt.Unique() != 16 || alt.Blocks() != 20 {
		t.Errorf("alt: %d unique, %d blocks, want 16 and 20", alt.Unique(), alt.Blocks())
	}
	mix := Mix(a, b)
	if mix.Unique() != 8 || !sort.SliceIsSorted(mix.Requests, func(i, j int) bool {
		return mix.Requests[i].Timestamp < mix.Requests[j].Timestamp
	}) {
		t.Errorf("mix: %d unique, requests %+v", mix.Unique(), mix.Requests)
	}
	scan := Scan(a, 2, 4)
	if len(scan.Requests) != 4 || !scan.Requests[2].Uncounted || len(scan.Requests[2].IDs) != 4 || scan.Unique() != 8 {
		t.Errorf("scan: %+v", scan.Requests)
	}
	first, second := Halves(a)
	if first.Name != "a1" || second.Name != "a2" || len(first.Requests) != 2 || len(second.Requests) != 1 {
		t.Errorf("halves: %d and %d requests", len(first.Requests), len(second.Requests))
	}
	if !reflect.DeepEqual(a, tiny("a", 0)) {
		t.Error("deriving changed the trace")
	}
}

// TestGenerate: the generator makes what it says: the shares it is asked for,
// chains that are prefixes but for their last block, one shared first block.
func TestGenerate(t *testing.T) {
	p := DefaultParams(3)
	p.Conversations = 3000
	tr := Generate("g", p)
	if !reflect.DeepEqual(tr, Generate("g", p)) {
		t.Error("equal parameters gave different traces")
	}
	p.Seed++
	if reflect.DeepEqual(tr.Requests, Generate("g", p).Requests) {
		t.Error("another seed gave the same trace")
	}
	parent := make(map[uint64]uint64)
	shared, long := 0, 0
	for i, r := range tr.Requests {
		if i > 0 && r.Timestamp < tr.Requests[i-1].Timestamp {
			t.Fatalf("request %d is earlier than the one before", i)
		}
		if got := (r.InputLength + p.BlockTokens - 1) / p.BlockTokens; got != len(r.IDs) {
			t.Fatalf("request %d: %d tokens in %d blocks", i, r.InputLength, len(r.IDs))
		}
		if r.IDs[0] == 0 {
			shared++
		}
		if len(r.IDs) > 100 {
			long++
		}
		for j := 1; j < len(r.IDs); j++ {
			if up, ok := parent[r.IDs[j]]; ok && up != r.IDs[j-1] {
				t.Fatalf("block %d follows both %d and %d", r.IDs[j], up, r.IDs[j-1])
			}
			parent[r.IDs[j]] = r.IDs[j-1]
		}
	}
	if shared != len(tr.Requests) || long == 0 {
		t.Errorf("%d of %d requests begin with the shared block, %d are long", shared, len(tr.Requests), long)
	}
	ratio := float64(len(tr.Requests)) / float64(p.Conversations)
	if ratio < 1.4 || ratio > 1.9 { // .95*(1 + .31 + .31*.42 + ...) + .05
		t.Errorf("%.2f turns a conversation, want about 1.6", ratio)
	}
	if reused := 1 - float64(tr.Unique())/float64(tr.Blocks()); reused < 0.2 || reused > 0.7 {
		t.Errorf("%.2f of the blocks are used again", reused)
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "repo")
	shared := filepath.Join(dir, "shared", "traces")
	if err := errors.Join(os.MkdirAll(shared, 0o755), os.Mkdir(root, 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(shared, "chat_trace.jsonl"), []byte(good), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"chat", "chat_trace", filepath.Join(shared, "chat_trace.jsonl")} {
		tr, err := Open(name, root, Options{})
		if err != nil || tr.Name != "chat" || tr.Made || len(tr.Requests) != 1 {
			t.Errorf("Open(%q) = %+v, %v", name, tr, err)
		}
	}
	if tr, err := Open("nosuch", root, Options{}); err != nil || !tr.Made || tr.Name != "nosuch" || len(tr.Requests) < 5000 {
		t.Errorf("a bare name gave %v, want a generated trace", err)
	}
	if _, err := Open(filepath.Join(dir, "no.jsonl"), root, Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing path gave %v, want fs.ErrNotExist", err)
	}
	if _, err := Open(dir, root, Options{}); err == nil {
		t.Error("a directory was opened")
	}
}

// TestRecorded: the recorded traces are the ones policy figures were made from.
func TestRecorded(t *testing.T) {
	for _, tt := range []struct {
		name                     string
		requests, blocks, unique int
	}{
		{"conversation", 12031, 288500, 182790},
		{"synthetic", 3993, 121877, 43924},
	} {
		tr, err := Open(tt.name, "../..", Options{})
		if err != nil {
			t.Fatal(err)
		}
		if tr.Made {
			t.Skipf("no ../shared/traces/%s_trace.jsonl beside the repository", tt.name)
		}
		if got := []int{len(tr.Requests), tr.Blocks(), tr.Unique()}; !slices.Equal(got, []int{tt.requests, tt.blocks, tt.unique}) {
			t.Errorf("%s: %v requests, blocks, unique; want %d %d %d", tt.name, got, tt.requests, tt.blocks, tt.unique)
		}
	}
}
