package hints

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
)

const vectorFile = "../../shared/contract/vectors/hint_envelopes.json"

type vectorResult struct {
	Count          int
	Status, Reason string
}

type vectorCase struct {
	Name      string
	RequestID *string `json:"request_id"`
	Input     *string
	Base64    *string `json:"input_base64"`
	Parts     []struct {
		Text  string
		Count int
	} `json:"input_parts"`
	Expected json.RawMessage
	Fallback json.RawMessage `json:"expected_fallback"`
	Runs     []vectorResult  `json:"expected_runs"`
	Parsed   []*struct {
		Effect, Source string
		Hashes         []string
		HashCount      int  `json:"hash_count"`
		NoRetain       bool `json:"no_retain"`
	}
	Warnings []string
}

func (c *vectorCase) input(t *testing.T) []byte {
	switch {
	case c.Input != nil:
		return []byte(*c.Input)
	case c.Base64 != nil:
		b, err := base64.StdEncoding.DecodeString(*c.Base64)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	var b bytes.Buffer
	for _, p := range c.Parts {
		b.WriteString(strings.Repeat(p.Text, p.Count))
	}
	return b.Bytes()
}

// want returns the expected results; nil means malformed.
func (c *vectorCase) want(t *testing.T, poison bool) []vectorResult {
	raw := c.Expected
	if !poison && c.Fallback != nil {
		raw = c.Fallback
	}
	want := []vectorResult{}
	for _, r := range c.Runs {
		want = append(want, slices.Repeat([]vectorResult{{Status: r.Status, Reason: r.Reason}}, r.Count)...)
	}
	if raw == nil {
		return want
	}
	if string(raw) == `"malformed"` {
		return nil
	}
	if err := json.Unmarshal(raw, &want); err != nil {
		t.Fatal(err)
	}
	return want
}

func loadVectors(t testing.TB) []vectorCase {
	raw, err := os.ReadFile(vectorFile)
	if err != nil {
		t.Skipf("no %s beside the repository", strings.TrimPrefix(vectorFile, "../"))
	}
	var file struct{ Cases []vectorCase }
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) < 100 {
		t.Fatalf("only %d cases", len(file.Cases))
	}
	return file.Cases
}

// seenAction is what a handler got.
type seenAction struct {
	index   int
	effect  string
	source  string
	hashes  []uint64
	retain  bool
	request string
}

// fixture is a dispatcher with handlers that note what they got.
type fixture struct {
	d      *Dispatcher
	advice *Advice
	seen   []seenAction
	fail   func(typ string) error
	log    *logSink
}

func newFixture(t testing.TB, poison bool) *fixture {
	f := &fixture{log: &logSink{}}
	var err error
	if f.advice, err = NewAdvice(AdviceConfig{Requests: 64, PoisonOnConflict: poison}); err != nil {
		t.Fatal(err)
	}
	if f.d, err = NewDispatcher(Config{Log: slog.New(f.log)}); err != nil {
		t.Fatal(err)
	}
	note := func(effect string) func(*Call, *Transfer) error {
		return func(c *Call, p *Transfer) error {
			if f.fail != nil {
				if err := f.fail(c.Type); err != nil {
					return err
				}
			}
			f.seen = append(f.seen, seenAction{c.Index, effect, p.Source, slices.Clone(p.Hashes), !p.NoRetain, c.RequestID})
			return nil
		}
	}
	fetch := FetchType(f.advice)
	handle := fetch.Handle
	fetch.Handle = func(c *Call, p *Transfer) error {
		if err := handle(c, p); err != nil {
			return err
		}
		return note("copy")(c, p)
	}
	for _, err := range []error{
		Register(f.d, fetch), Register(f.d, PrefetchType(note("copy"))), Register(f.d, MoveType(note("move"))),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// logSink keeps what is logged at warning level and above.
type logSink struct{ records []slog.Record }

func (l *logSink) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }
func (l *logSink) Handle(_ context.Context, r slog.Record) error {
	l.records = append(l.records, r.Clone())
	return nil
}
func (l *logSink) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l *logSink) WithGroup(string) slog.Handler      { return l }

// attrs returns the value of an attribute in every record that has it.
func (l *logSink) attrs(key string) (values []string) {
	for _, r := range l.records {
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == key {
				values = append(values, a.Value.String())
			}
			return true
		})
	}
	return values
}

// forms are the ways in which a case can be put; nil where its JSON is not decodable.
var forms = map[string]func(f *fixture, id string, data []byte) ([]Result, error, bool){
	"json": func(f *fixture, id string, data []byte) ([]Result, error, bool) {
		r, err := f.d.AppendJSON(nil, id, data)
		return r, err, true
	},
	"any": func(f *fixture, id string, data []byte) ([]Result, error, bool) {
		r, err := f.d.Submit(id, data)
		return r, err, true
	},
	"tree": func(f *fixture, id string, data []byte) ([]Result, error, bool) {
		tree, ok := decodeTree(data)
		if !ok {
			return nil, nil, false
		}
		r, err := f.d.Submit(id, tree)
		return r, err, true
	},
	"msgpack": func(f *fixture, id string, data []byte) ([]Result, error, bool) {
		tree, ok := decodeTree(data)
		if !ok {
			return nil, nil, false
		}
		b, err := msgpack.Marshal(exactNumbers(tree))
		if err != nil {
			return nil, nil, false
		}
		r, err := f.d.AppendMsgpack(nil, id, b)
		return r, err, true
	},
	"envelope": func(f *fixture, id string, data []byte) ([]Result, error, bool) {
		tree, ok := decodeTree(data)
		if !ok {
			return nil, nil, false
		}
		e, ok := typedEnvelope(tree)
		if !ok {
			return nil, nil, false
		}
		r, err := f.d.AppendEnvelope(nil, id, e)
		return r, err, true
	},
}

// decodeTree decodes JSON as a careful Go program would.
func decodeTree(data []byte) (any, bool) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var tree any
	if dec.Decode(&tree) != nil || !json.Valid(data) || bytes.ContainsRune(data, '\uFFFD') || strings.ContainsRune(flat(tree), '\uFFFD') {
		return nil, false
	}
	return tree, true
}

func flat(tree any) string {
	b, _ := json.Marshal(tree)
	return string(b)
}

// exactNumbers makes of json.Number what msgpack has for it.
func exactNumbers(v any) any {
	switch x := v.(type) {
	case json.Number:
		if u, err := strconv.ParseUint(string(x), 10, 64); err == nil {
			return u
		}
		if i, err := strconv.ParseInt(string(x), 10, 64); err == nil && string(x) != "-0" {
			return i
		}
		f, _ := x.Float64()
		return f
	case []any:
		out := make([]any, len(x))
		for i := range x {
			out[i] = exactNumbers(x[i])
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for k := range x {
			out[k] = exactNumbers(x[k])
		}
		return out
	}
	return v
}

// typedEnvelope makes an Envelope of a tree, if its fields have the types for that.
func typedEnvelope(tree any) (*Envelope, bool) {
	top, ok := tree.(map[string]any)
	if !ok {
		return nil, false
	}
	text := func(m map[string]any, key string) (s string) {
		if v, there := m[key]; there {
			var is bool
			s, is = v.(string)
			ok = ok && is
		}
		return s
	}
	e := &Envelope{ProtocolVersion: text(top, "protocol_version"), MessageID: text(top, "message_id")}
	list, is := top["actions"].([]any)
	ok = ok && is
	for _, a := range list {
		m, is := a.(map[string]any)
		ok = ok && is
		e.Actions = append(e.Actions, Action{
			ID: text(m, "action_id"), Type: text(m, "action_type"), Version: text(m, "action_version"), Payload: m["payload"],
		})
	}
	return e, ok
}

// Every case of the contract's vectors, in every form in which it can be put, under
// both rules for a second source.
func TestVectors(t *testing.T) {
	for _, c := range loadVectors(t) {
		data := c.input(t)
		if testing.Short() && len(data) > 1<<19 {
			continue
		}
		for name, submit := range forms {
			if len(data) > 1<<20 && name != "json" {
				continue // large ones cost time, and their fillers do not fit into an Envelope
			}
			for _, poison := range []bool{true, false} {
				if !poison && c.Fallback == nil && (len(data) > 1<<16 || testing.Short()) {
					continue
				}
				f := newFixture(t, poison)
				fails := []func(string) error{nil}
				if c.Name == "handler_fails_for_one_type" {
					fails = []func(string) error{
						func(typ string) error {
							if typ == TypePrefetch {
								return errors.New("no")
							}
							return nil
						},
						func(typ string) error {
							if typ == TypePrefetch {
								panic("no")
							}
							return nil
						},
					}
				}
				for _, fail := range fails {
					f.fail, f.seen = fail, nil
					id := ""
					if c.RequestID != nil {
						id = *c.RequestID
					}
					got, err, can := submit(f, id, data)
					if !can {
						continue
					}
					checkVector(t, &c, c.Name+"/"+name, f, got, err, c.want(t, poison))
				}
			}
		}
	}
}

func checkVector(t *testing.T, c *vectorCase, name string, f *fixture, got []Result, err error, want []vectorResult) {
	if want == nil {
		var m *MalformedError
		if !errors.Is(err, ErrMalformed) || !errors.As(err, &m) || m.What == "" || len(got) > 0 || len(f.seen) > 0 {
			t.Errorf("%s: got %v, %v; want malformed", name, got, err)
		}
		if n := f.advice.Counts().Requests; n != 0 {
			t.Errorf("%s: malformed, but advice is kept", name)
		}
		return
	}
	if err != nil || len(got) != len(want) {
		t.Errorf("%s: got %d results, %v; want %d", name, len(got), err, len(want))
		return
	}
	for i, r := range got {
		if r.Status.String() != want[i].Status || r.Reason.String() != want[i].Reason || r.Index != i {
			t.Errorf("%s: action %d: %+v, want %+v", name, i, r, want[i])
		}
		if (r.Status == Rejected) != (r.Detail != "") {
			t.Errorf("%s: action %d: detail %q of %v", name, i, r.Detail, r.Status)
		}
	}
	kinds := f.log.attrs("kind")
	if c.Warnings == nil && len(kinds) > 0 || c.Warnings != nil && !slices.Equal(kinds, c.Warnings) {
		t.Errorf("%s: version warnings %v, want %v", name, kinds, c.Warnings)
	}
	by := map[int]seenAction{}
	for _, s := range f.seen {
		by[s.index] = s
	}
	for i, p := range c.Parsed {
		if p == nil {
			continue
		}
		if _, ok := by[i]; !ok {
			t.Errorf("%s: action %d was not handled", name, i)
			continue
		}
		s := by[i]
		hashes := Distinct(nil, s.hashes)
		if s.effect != p.Effect || s.source != p.Source || len(hashes) != p.HashCount || s.retain == p.NoRetain {
			t.Errorf("%s: action %d: handled as %+v, want %+v", name, i, s, *p)
		}
		if p.Hashes == nil {
			continue
		}
		var texts []string
		for _, h := range hashes {
			texts = append(texts, strconv.FormatUint(h, 10))
		}
		if !reflect.DeepEqual(texts, p.Hashes) {
			t.Errorf("%s: action %d: hashes %v, want %v", name, i, texts, p.Hashes)
		}
	}
}
