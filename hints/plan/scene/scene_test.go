package scene

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
	"github.com/kvcr-go/kvcr/hints/plan/fixture"
)

func read(t testing.TB, text string) *Scene {
	t.Helper()
	s, err := Read(strings.NewReader(text), "file.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestExample(t *testing.T) {
	s := read(t, string(Example))
	var b strings.Builder
	for _, multi := range []bool{false, true} {
		fmt.Fprintf(&b, "several sources: %t\n\n", multi)
		if err := s.WriteTable(&b, s.Ask(multi)); err != nil {
			t.Fatal(err)
		}
		b.WriteByte('\n')
	}
	golden := filepath.Join("testdata", "example.txt")
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("%s:\n%s\nwant\n%s", golden, b.String(), want)
	}
	if sum := s.Summary(); sum != "7 members, 4 of them targets; blocks held: 120 on device, 66 on host, 8 on disk" {
		t.Error(sum)
	}
}

// What is wrong with a file is said with its place, its value, and what to do.
func TestBadFiles(t *testing.T) {
	with := func(members, prompts, holdings string) string {
		return fmt.Sprintf("{\n\"members\": [%s],\n\"prompts\": [%s],\n\"holdings\": [%s]\n}", members, prompts, holdings)
	}
	const member, prompt = `{"worker": 1}`, `{"local_hashes": [1, 2]}`
	tests := []struct {
		name, text string
		line       int
		want       []string
	}{
		{"nothing", "", 1, []string{"ends in the middle"}},
		{"no JSON", "members: []", 1, []string{"no JSON", "--example"}},
		{"no object", "[1]", 1, []string{"not an object", "{"}},
		{"broken", "{\n\"members\": [\n}", 3, []string{"no JSON"}},
		{"cut off", "{\n\"members\": [\n", 3, []string{"ends in the middle"}},
		{"more", "{}\n{}", 2, []string{"no JSON", "after top-level value"}},
		{"unknown", "{\n\n\"mebmers\": []}", 3, []string{"mebmers", "no such field", "members"}},
		{"twice", "{\"prompts\": [],\n\"prompts\": []}", 2, []string{"prompts", "twice"}},
		{"no list", "{\"members\": 5}", 1, []string{"members = 5", "a list"}},
		{"block size", with(member, prompt, "") + "", 0, nil}, // this one is good
		{"no members", with("", prompt, ""), 0, []string{"members", "none"}},
		{"no prompts", with(member, "", ""), 0, []string{"prompts", "none"}},
		{"unknown field", with("{\"worker\": 1,\n\n\"tipe\": \"x\"}", prompt, ""), 4, []string{"members[0].tipe", "no such field", "type"}},
		{"wrong type", with("{\"worker\":\n\"one\"}", prompt, ""), 3, []string{"members[0].worker = string", "whole number"}},
		{"fraction", with("{\"worker\": 1.5}", prompt, ""), 2, []string{"members[0].worker = 1.5", "whole number"}},
		{"negative", with("{\"worker\": -1}", prompt, ""), 2, []string{"members[0].worker = -1", "0 to 2^64-1"}},
		{"nobody", with("{\"name\": \"x\"}", prompt, ""), 2, []string{"members[0]", "worker or cache_owner"}},
		{"both", with("{\"worker\": 1, \"cache_owner\": \"1\"}", prompt, ""), 2, []string{"members[0]", "one of them"}},
		{"owner", with("{\"cache_owner\": \"xyz\"}", prompt, ""), 2, []string{`cache_owner = "xyz"`, "hexadecimal"}},
		{"long owner", with("{\"cache_owner\": \""+strings.Repeat("1", 33)+"\"}", prompt, ""), 2, []string{"32 hexadecimal"}},
		{"capable owner", with("{\"cache_owner\": \"1\", \"capable\": true}", prompt, ""), 2, []string{"neither capable"}},
		{"type", with("{\"worker\": 1, \"type\": \"prefil\"}", prompt, ""), 2, []string{`members[0].type = "prefil"`, "prefill"}},
		{"name", with(member+",\n{\"worker\": 2, \"name\": \"worker 1\"}", prompt, ""), 3, []string{`members[1].name = "worker 1"`, "taken"}},
		{"same", with(member+",\n{\"worker\": 1, \"name\": \"x\"}", prompt, ""), 3, []string{"members[1]", "already", `"worker 1"`}},
		{"attached", with("{\"cache_owner\": \"1\", \"attached\": \"gpu\"}", prompt, ""), 2, []string{`attached = "gpu"`, "no member", `"cache 01"`}},
		{"attached worker", with(member+",{\"worker\": 2, \"attached\": \"worker 1\"}", prompt, ""), 2, []string{"only cache owners"}},
		{"no blocks", with(member, "{\"name\": \"p\"}", ""), 3, []string{"prompts[0]", "local_hashes, tokens or hash_ids"}},
		{"two kinds", with(member, `{"tokens": [1], "hash_ids": [1]}`, ""), 3, []string{"prompts[0]", "one of them"}},
		{"few tokens", with(member, `{"tokens": [1, 2]}`, ""), 3, []string{"prompts[0].tokens = 2 tokens", "16"}},
		{"large id", with(member, `{"hash_ids": [1, 4294967296]}`, ""), 3, []string{"hash_ids[1] = 4294967296", "2^32-1"}},
		{"large token", with(member, `{"tokens": [4294967296]}`, ""), 3, []string{"prompts[0].tokens", "2^32-1"}},
		{"hash", with(member, `{"local_hashes": [18446744073709551616]}`, ""), 3, []string{"prompts[0].local_hashes = 18446744073709551616", "2^64-1"}},
		{"hashes of an adapter", with(member, `{"local_hashes": [1], "lora": "a"}`, ""), 3, []string{"lora"}},
		{"same prompt", with(member, `{"local_hashes": [1], "name": "p"},`+"\n"+`{"local_hashes": [1], "name": "p"}`, ""), 4, []string{`prompts[1].name = "p"`, "taken"}},
		{"stranger", with(member, prompt, "\n{\"member\": \"worker 2\"}"), 5, []string{`holdings[0].member = "worker 2"`, `"worker 1"`}},
		{"tier", with(member, prompt, `{"member": "worker 1", "tier": "gpu"}`), 4, []string{`holdings[0].tier = "gpu"`, "host_pinned"}},
		{"prompt", with(member, prompt, `{"member": "worker 1", "prompt": "x"}`), 4, []string{`holdings[0].prompt = "x"`, `"prompt 1"`}},
		{"range", with(member, prompt, `{"member": "worker 1", "ranges": [[0, 1], [1, 3]]}`), 4, []string{"holdings[0].ranges[1] = [1 3]", "to <= 2"}},
		{"empty range", with(member, prompt, `{"member": "worker 1", "ranges": [[1, 1]]}`), 4, []string{"ranges[0] = [1 1]"}},
		{"short range", with(member, prompt, `{"member": "worker 1", "ranges": [[1]]}`), 4, []string{"ranges[0] = [1]"}},
		{"range of one number", with(member, prompt, `{"member": "worker 1", "ranges": [0, 2]}`), 4, []string{"holdings[0].ranges", "a list"}},
		{"device of a cache", with(`{"cache_owner": "1"}`, prompt, `{"member": "cache 01", "tier": "device"}`), 4, []string{"holdings[0]", "device"}},
		{"event", strings.Replace(with(member, prompt, ""), "{\n", "{\"events\": [{\"worker_id\": 1}],\n", 1), 1, []string{"events[0]", "data"}},
		{"dump", `{"worker_id":1,"event":{"event_id":1,"data":"cleared"}}` + "\n\n" + `{"worker_id":1,"event":{"data":"gone"}}`, 3, []string{"event", "malformed", "worker_id"}},
		{"dump of nothing", `{"worker_id":1,"event":{"event_id":1,"data":"cleared"}}`, 0, []string{"no chain", "--events"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Read(strings.NewReader(tt.text), "bad.json")
			if len(tt.want) == 0 {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var e *Error
			if !errors.As(err, &e) || e.File != "bad.json" || e.Line != tt.line {
				t.Fatalf("error %v, want one of line %d", err, tt.line)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q lacks %q", err, w)
				}
			}
		})
	}
	for field, text := range map[string]string{"block_size": `{"block_size": 0, `, "id_tokens": "{\"id_tokens\": -1, "} {
		_, err := Read(strings.NewReader(text+`"members": [{"worker": 1}], "prompts": [{"local_hashes": [1]}]}`), "bad.json")
		if err == nil || !strings.Contains(err.Error(), field+" = ") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// Prompts by their tokens, by ids that stand for them and by their hashes are the same.
func TestPrompts(t *testing.T) {
	tokens := strings.TrimSuffix(strings.Repeat("7,", 8)+strings.Repeat("9,", 8), ",")
	s := read(t, fmt.Sprintf(`{"block_size": 4, "id_tokens": 8, "members": [{"worker": 1}], "prompts": [
		{"name": "tokens", "tokens": [%s]}, {"name": "ids", "hash_ids": [7, 9]}, {"name": "tenant", "hash_ids": [7, 9], "cache_namespace": "a"}]}`, tokens))
	p := s.Prompts
	if !slices.Equal(p[0].Locals, p[1].Locals) || len(p[0].Locals) != 4 || p[0].Locals[0] != p[0].Locals[1] || p[0].Hashes[0] == p[0].Hashes[1] {
		t.Errorf("%v and %v", p[0], p[1])
	}
	if slices.Equal(p[1].Locals, p[2].Locals) {
		t.Error("a cache namespace makes no other hashes")
	}
	across := read(t, `{"block_size": 4, "id_tokens": 6, "members": [{"worker": 1}], "prompts": [{"hash_ids": [7, 9]}, {"tokens": [7,7,7,7,7,7,9,9,9,9,9,9]}]}`)
	if !slices.Equal(across.Prompts[0].Locals, across.Prompts[1].Locals) || len(across.Prompts[0].Locals) != 3 {
		t.Errorf("blocks across ids: %v", across.Prompts)
	}
	text, err := json.Marshal(p[0].Locals)
	if err != nil {
		t.Fatal(err)
	}
	again := read(t, fmt.Sprintf(`{"members": [{"worker": 1}], "prompts": [{"local_hashes": %s}]}`, text))
	if !slices.Equal(again.Prompts[0].Hashes, p[0].Hashes) || again.Prompts[0].Name != "prompt 1" {
		t.Errorf("%v, want %v", again.Prompts[0], p[0])
	}
}

// eventsOf is a fixture's events as lines.
func eventsOf(t testing.TB, v *fixture.Inventory) string {
	t.Helper()
	var b strings.Builder
	enc := json.NewEncoder(&b)
	for i := range v.Events {
		if err := enc.Encode(v.Events[i]); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// dumpOf is a fixture's inventory as an index dumps it.
func dumpOf(t testing.TB, v *fixture.Inventory) string {
	t.Helper()
	x := plan.New(plan.Config{})
	if err := v.Load(x); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	x.Dump(func(ev *events.RouterEvent) bool {
		if err := enc.Encode(ev); err != nil {
			t.Fatal(err)
		}
		return true
	})
	return b.String()
}

// fileOf is a fixture's members and prompt as a file.
func fileOf(t testing.TB, v *fixture.Inventory) string {
	t.Helper()
	var members []jsonMember
	for _, m := range v.Members {
		jm := jsonMember{Type: m.Type, Endpoint: m.Endpoint, Capable: m.Capable}
		if m.Owner.Cache {
			jm.CacheOwner = fmt.Sprintf("%x", m.Owner.Key)
			jm.Attached = defaultName(plan.Owner{Worker: m.Attached})
		} else {
			jm.Worker = &m.Owner.Worker.ID
		}
		members = append(members, jm)
	}
	text, err := json.Marshal(map[string]any{"members": members, "prompts": []any{map[string]any{"local_hashes": v.Locals}}})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The fixtures, as a file and a dump, come to what they should; envelopes are hints that
// a dispatcher accepts, and name the hashes.
func TestFixtures(t *testing.T) {
	for _, id := range []string{"f01", "f13", "f14", "f15"} {
		if testing.Short() && id != "f01" {
			continue
		}
		v, err := fixture.Build(id)
		if err != nil {
			t.Fatal(err)
		}
		s := read(t, fileOf(t, v))
		if err := s.AddEvents(strings.NewReader(eventsOf(t, v)), "dump"); err != nil {
			t.Fatal(err)
		}
		want, _ := v.Expect()
		a := s.Ask(false)[0]
		if len(a.Targets) != len(want) {
			t.Fatalf("%s: %d targets, want %d", id, len(a.Targets), len(want))
		}
		for i, w := range want {
			got := a.Targets[i]
			if w.Kind == plan.None {
				if len(got.Fetches) > 0 || got.Envelope != nil {
					t.Errorf("%s: target %d: %+v", id, i, got)
				}
				continue
			}
			kind := map[plan.Kind]string{plan.RootPrefix: KindRootPrefix, plan.Continuation: KindContinuation}[w.Kind]
			f := got.Fetches[0]
			if got.Frontier != w.Frontier || f.Source != w.Source || f.Kind != kind || f.From != w.Frontier || f.To != w.End || !slices.Equal(f.Hashes, v.Hashes[:w.End]) {
				t.Errorf("%s: target %d: %v %d to %d, want %+v", id, i, f.Source, f.From, f.To, w)
			}
			if hashes, source := accepted(t, got.Envelope); !slices.Equal(hashes, v.Hashes[:w.End]) || source[0] != f.Endpoint {
				t.Errorf("%s: target %d: an envelope of %d hashes from %v", id, i, len(hashes), source)
			}
		}
		for i, target := range s.Ask(true)[0].Targets {
			// Several sources reach as far as one, and join.
			at := target.Frontier
			var all []uint64
			for _, f := range target.Fetches {
				if f.From != at || f.Kind != KindPart {
					t.Errorf("%s: target %d: a part from %d, want %d", id, i, f.From, at)
				}
				at = f.To
				all = append(all, f.Hashes...)
			}
			if at < want[i].End || !slices.Equal(all, v.Hashes[target.Frontier:at]) {
				t.Errorf("%s: target %d: %d blocks, one source reaches %d", id, i, at, want[i].End)
			}
			if len(target.Fetches) > 0 {
				if hashes, sources := accepted(t, target.Envelope); !slices.Equal(hashes, all) || len(sources) != len(target.Fetches) {
					t.Errorf("%s: target %d: an envelope of %d hashes from %v", id, i, len(hashes), sources)
				}
			}
		}
	}
}

// accepted has a dispatcher take an envelope, and returns what it has understood.
func accepted(t *testing.T, envelope []byte) (hashes []uint64, sources []string) {
	t.Helper()
	d, err := hints.NewDispatcher(hints.Config{})
	if err != nil {
		t.Fatal(err)
	}
	a, err := hints.NewAdvice(hints.AdviceConfig{})
	if err != nil {
		t.Fatal(err)
	}
	typ := hints.FetchType(a)
	typ.Handle = func(_ *hints.Call, tr *hints.Transfer) error {
		hashes, sources = append(hashes, tr.Hashes...), append(sources, tr.Source)
		return nil
	}
	if err := hints.Register(d, typ); err != nil {
		t.Fatal(err)
	}
	results, err := d.Submit("r", envelope)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.Status != hints.Accepted {
			t.Errorf("%+v", r)
		}
	}
	return hashes, sources
}

// Of a dump alone the members and the prompt are assumed.
func TestDump(t *testing.T) {
	v, err := fixture.Build("f01")
	if err != nil {
		t.Fatal(err)
	}
	s, err := Read(strings.NewReader(dumpOf(t, v)), "dump")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(s.Prompts[0].Locals, v.Locals[:len(v.Locals)]) || len(s.Assumed) != 2 {
		t.Errorf("a prompt of %d blocks, want %d; assumed %q", len(s.Prompts[0].Locals), len(v.Locals), s.Assumed)
	}
	a := s.Ask(false)[0]
	if n := len(v.Targets) + len(v.Sources); len(a.Targets) != n {
		t.Errorf("%d targets, want %d", len(a.Targets), n)
	}
	if f := a.Targets[0].Fetches; len(f) != 1 || f[0].Kind != KindContinuation || f[0].To != len(v.Locals) || f[0].Source != v.Sources[0] {
		t.Errorf("%+v", f)
	}
}

// A chain of which the beginning is not there is no prompt, however long.
func TestDumpWithoutRoot(t *testing.T) {
	line := func(parent string, blocks ...int) string {
		var list []string
		for _, b := range blocks {
			list = append(list, fmt.Sprintf(`{"block_hash":%d,"tokens_hash":%d}`, b, b+100))
		}
		return fmt.Sprintf(`{"worker_id":1,"event":{"event_id":1,"data":{"stored":{"parent_hash":%s,"blocks":[%s]}}}}`+"\n", parent, strings.Join(list, ","))
	}
	s, err := Read(strings.NewReader(line("50", 51, 52, 53, 54)+line("null", 1, 2)+line("61", 60)+line("60", 61)), "dump")
	if err != nil {
		t.Fatal(err)
	}
	if p := s.Prompts[0]; !slices.Equal(p.Hashes, []uint64{1, 2}) || !slices.Equal(p.Locals, []uint64{101, 102}) {
		t.Errorf("%+v", p)
	}
}

// What the picture says an owner holds is what it holds: behind holes too, in each tier,
// and not what only has the same tokens.
func TestLook(t *testing.T) {
	s := read(t, `{"block_size": 1, "id_tokens": 1, "members": [{"worker": 1}, {"worker": 2}, {"cache_owner": "1"}],
		"prompts": [{"name": "a", "hash_ids": [5, 5, 6, 7, 8, 9]}, {"name": "b", "hash_ids": [1, 5, 6]}],
		"holdings": [
			{"member": "worker 1", "prompt": "a", "tier": "device", "ranges": [[0, 2]]},
			{"member": "worker 1", "prompt": "a", "ranges": [[1, 3], [5, 6]]},
			{"member": "worker 2", "prompt": "b"},
			{"member": "cache 01", "prompt": "a", "tier": "disk", "ranges": [[3, 4]]}]}`)
	a := s.Ask(false)
	for _, tt := range []struct {
		prompt, owner int
		want          [4][]span
	}{
		{0, 0, [4][]span{{{0, 2}}, {{1, 3}, {5, 6}}}},
		{0, 1, [4][]span{}},
		{0, 2, [4][]span{2: {{3, 4}}}},
		{1, 0, [4][]span{}},
		{1, 1, [4][]span{1: {{0, 3}}}},
	} {
		if got := a[tt.prompt].owners[tt.owner].has; fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("prompt %d, owner %d: %v, want %v", tt.prompt, tt.owner, got, tt.want)
		}
	}
}

// The picture is XML whatever names there are, and has all fetches.
func TestPicture(t *testing.T) {
	text := strings.ReplaceAll(string(Example), `gpu-2`, `<b>&\"2\" ü`)
	s := read(t, text)
	for _, multi := range []bool{false, true} {
		answers := s.Ask(multi)
		fetches := 0
		for _, a := range answers {
			for _, target := range a.Targets {
				fetches += len(target.Fetches)
			}
		}
		var b bytes.Buffer
		if err := s.WriteSVG(&b, answers); err != nil {
			t.Fatal(err)
		}
		counts := map[string]int{}
		names := false
		for dec := xml.NewDecoder(bytes.NewReader(b.Bytes())); ; {
			tok, err := dec.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("no XML: %v\n%s", err, b.String())
			}
			switch el := tok.(type) {
			case xml.StartElement:
				for _, at := range el.Attr {
					if at.Name.Local == "class" {
						for _, c := range strings.Fields(at.Value) {
							counts[c]++
						}
					}
					if strings.Contains(at.Value, "NaN") || strings.Contains(at.Value, "ZgotmplZ") {
						t.Errorf("<%s %s=%q>", el.Name.Local, at.Name.Local, at.Value)
					}
				}
			case xml.CharData:
				names = names || string(el) == `<b>&"2" ü`
			}
		}
		if counts["fetch"] != fetches || counts["arrow"] != fetches || counts["frontier"] != 2*4+1 || !names {
			t.Errorf("several sources %t: %v for %d fetches; the name stands there: %t", multi, counts, fetches, names)
		}
	}
}

// Owners that are alike share a row; a picture has an end.
func TestPictureRows(t *testing.T) {
	var members, holdings []string
	for i := range 2 * mostRows {
		members = append(members, fmt.Sprintf(`{"worker": %d, "endpoint": "tcp://h:1", "capable": %t}`, i, i < 8))
		if i >= 8 {
			holdings = append(holdings, fmt.Sprintf(`{"member": "worker %d", "ranges": [[0, %d]]}`, i, 1+i/2))
		}
	}
	s := read(t, fmt.Sprintf(`{"block_size": 1, "id_tokens": 512, "members": [%s], "prompts": [{"hash_ids": [1]}], "holdings": [%s]}`, strings.Join(members, ","), strings.Join(holdings, ",")))
	d := &drawing{s: s, a: &s.Ask(false)[0], used: map[string]bool{}}
	d.draw(0)
	if n := len(d.rows); n != 1+(2*mostRows-8)/2 {
		t.Errorf("%d rows", n)
	}
	if r := d.rows[0]; len(r.owners) != 8 || r.target == nil || d.panel.Rows[0].Name != "worker 0 and 7 like it" {
		t.Errorf("the first row is of %d, called %q", len(r.owners), d.panel.Rows[0].Name)
	}
	for i := range holdings {
		holdings[i] = strings.Replace(holdings[i], "[[0, ", fmt.Sprintf("[[%d, ", i%2), 1)
	}
	s = read(t, fmt.Sprintf(`{"block_size": 1, "id_tokens": 512, "members": [%s], "prompts": [{"hash_ids": [1]}], "holdings": [%s]}`, strings.Join(members, ","), strings.Join(holdings, ",")))
	d = &drawing{s: s, a: &s.Ask(false)[0], used: map[string]bool{}}
	if p := d.draw(0); len(d.rows) != mostRows || !strings.Contains(p.Title, "193 more owners not drawn") {
		t.Errorf("%d rows, %q", len(d.rows), p.Title)
	}
}

// FuzzRead: no file panics, and what is wrong is an *Error.
func FuzzRead(f *testing.F) {
	f.Add(string(Example))
	f.Add(`{"worker_id":1,"storage_tier":"host_pinned","event":{"event_id":1,"data":{"stored":{"parent_hash":null,"blocks":[{"block_hash":5,"tokens_hash":6}]}}}}`)
	f.Add(`{"members":[{"worker":1}],"prompts":[{"local_hashes":[1]}],"holdings":[{"member":"worker 1"}],"events":[]}`)
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Read(strings.NewReader(text), "f")
		if err != nil {
			if !errors.As(err, new(*Error)) {
				t.Fatalf("%v (%T)", err, err)
			}
			return
		}
		if err := s.WriteSVG(io.Discard, s.Ask(true)); err != nil {
			t.Fatal(err)
		}
	})
}
