package hints

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A new action type is one registration: parser and handler together.
func TestRegister(t *testing.T) {
	type pin struct {
		Name   string
		Level  uint64
		Groups []uint64
	}
	var got []pin
	typ := Type[pin]{
		Name: "kv.pin", Version: "2.0",
		Parse: func(p *pin, v Value, lim *Limits) (err error) {
			if p.Name != "" || p.Level != 0 || p.Groups != nil {
				return fmt.Errorf("%+v is not zero", *p)
			}
			opts := v.Field("options")
			p.Name, _ = opts.Field("name").Text()
			p.Level, _ = opts.Field("level").Uint64()
			err = v.Field("groups").Each(func(e Value) error {
				u, ok := e.Field("id").Uint64()
				if !ok {
					return errors.New("a group without id")
				}
				p.Groups = append(p.Groups, u)
				return nil
			})
			if v.Field("absent").Kind() != Absent || v.Field("options").Field("x").Field("y").Kind() != Absent {
				return errors.New("there is something that is not")
			}
			return err
		},
		Handle: func(c *Call, p *pin) error { got = append(got, *p); return nil },
	}
	d, err := NewDispatcher(Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := Register(d, typ); err != nil {
		t.Fatal(err)
	}
	if err := Register(d, typ); !errors.Is(err, ErrRegistered) {
		t.Errorf("registered twice: %v", err)
	}
	for _, bad := range []Type[pin]{{}, {Name: "x", Version: "1"}, {Name: "x", Version: "1", Parse: typ.Parse}, {Version: "1", Parse: typ.Parse, Handle: typ.Handle}} {
		if err := Register(d, bad); !errors.Is(err, ErrConfig) {
			t.Errorf("registered %+v: %v", bad, err)
		}
	}
	text := envelope(`{"action_id":"p","action_type":"kv.pin","payload":{"options":{"name":"n\n","level":18446744073709551615,"level":7},"groups":[{"id":1},{"id":2,"more":[[]]}]}}`)
	want := pin{"n\n", 7, []uint64{1, 2}}
	for form, submit := range forms {
		got = nil
		rs, err, can := submit(&fixture{d: d}, "", []byte(text))
		if !can || err != nil || len(rs) != 1 || rs[0].Status != Accepted {
			t.Fatalf("%s: %v %v", form, rs, err)
		}
		if len(got) != 1 || fmt.Sprint(got[0]) != fmt.Sprint(want) {
			t.Errorf("%s: %+v, want %+v", form, got, want)
		}
	}
	got = nil
	for _, payload := range []any{want, &want} {
		rs, err := d.Submit("", Envelope{Actions: []Action{{Type: "kv.pin", Payload: payload}}})
		if err != nil || rs[0].Status != Accepted || fmt.Sprint(got) != fmt.Sprint([]pin{want}) {
			t.Errorf("%T: %v %v %v", payload, rs, err, got)
		}
		got = nil
	}
	for _, payload := range []any{(*pin)(nil), &Transfer{}, 7, nil, []byte("{}")} {
		rs, err := d.Submit("", Envelope{Actions: []Action{{Type: "kv.pin", Payload: payload}}})
		if err != nil || rs[0].Reason != InvalidPayload {
			t.Errorf("%T: %v %v", payload, rs, err)
		}
	}
	rs, err := d.AppendJSON(nil, "", []byte(envelope(action("kv.pin", `{"groups":[{}]}`))))
	if err != nil || rs[0].Reason != InvalidPayload || rs[0].Detail != "a group without id" {
		t.Errorf("a parser's own error: %v %v", rs, err)
	}
}

// A type that needs a request is not served without one, after its payload was read.
func TestNeedsRequest(t *testing.T) {
	d, _ := NewDispatcher(Config{})
	Register(d, Type[int]{
		Name: "x", Version: "1", NeedsRequest: true, Handle: func(*Call, *int) error { return nil },
		Parse: func(_ *int, v Value, _ *Limits) error {
			if v.Field("bad").Kind() != Absent {
				return errors.New("bad")
			}
			return nil
		},
	})
	in := []byte(envelope(action("x", "{}"), action("x", `{"bad":1}`)))
	for id, want := range map[string]Reason{"": NoRequestID, "r": NoReason} {
		rs, err := d.AppendJSON(nil, id, in)
		if err != nil || rs[0].Reason != want || rs[1].Reason != InvalidPayload {
			t.Errorf("request %q: %v %v", id, rs, err)
		}
	}
}

// AppendHashes keeps its own bound and leaves dst as it was when it fails.
func TestAppendHashes(t *testing.T) {
	var got []uint64
	var err error
	d, _ := NewDispatcher(Config{})
	most := 3
	Register(d, Type[int]{
		Name: "x", Version: "1", Handle: func(*Call, *int) error { return nil },
		Parse: func(_ *int, v Value, _ *Limits) error {
			got, err = v.Field("h").AppendHashes([]uint64{99}, most)
			return nil
		},
	})
	for in, want := range map[string]string{
		`[1,2,3]`: "[99 1 2 3] <nil>", `[ 1 , 2 ]`: "[99 1 2] <nil>", `[1,2,3,4]`: "[99] limit_exceeded", `[1,2,3,"x"]`: "[99] limit_exceeded",
		`[1,"x"]`: "[99] invalid_hash", `[1,2.5]`: "[99] invalid_hash", `[1.0,2]`: "[99] invalid_hash", `[1e3]`: "[99] invalid_hash", `[1,184467440737095516150]`: "[99] invalid_hash", `[]`: "[99] missing_hashes", `null`: "[99] missing_hashes", `{}`: "[99] invalid_payload",
	} {
		for _, form := range []string{"json", "tree", "msgpack"} {
			got = nil
			if _, e, can := forms[form](&fixture{d: d}, "", []byte(envelope(action("x", `{"h":`+in+`}`)))); !can || e != nil {
				t.Fatal(form, in, e)
			}
			s := fmt.Sprint(got, " <nil>")
			if r, ok := err.(*Rejection); ok {
				s = fmt.Sprint(got, " ", r.Reason)
			}
			if s != want {
				t.Errorf("%s of %s: %s, want %s", in, form, s, want)
			}
		}
	}
}

// What a handler returns, or panics with, is the answer to its action alone.
func TestHandlerErrors(t *testing.T) {
	f := newFixture(t, false)
	for _, tt := range []struct {
		fail func() error
		want Reason
	}{
		{func() error { return errors.New("x") }, HandlerError},
		{func() error { return &Rejection{LimitExceeded, "full"} }, LimitExceeded},
		{func() error { return fmt.Errorf("wrapped: %w", &Rejection{SourceConflict, ""}) }, SourceConflict},
		{func() error { return &Rejection{Reason: NoReason} }, HandlerError},
		{func() error { return &Rejection{Reason: 200} }, HandlerError},
		{func() error { panic(strings.Repeat("long", 1000)) }, HandlerError},
		{func() error { panic(nil) }, HandlerError},
		{func() error { var m map[string]int; m["x"] = 1; return nil }, HandlerError},
		{func() error { var r *Rejection; return r }, HandlerError},
	} {
		f.fail = func(typ string) error {
			if typ == TypeMove {
				return tt.fail()
			}
			return nil
		}
		rs, err := f.d.AppendJSON(nil, "r", []byte(envelope(action(TypePrefetch, goodPayload), action(TypeMove, goodPayload), action(TypePrefetch, goodPayload))))
		if err != nil || len(rs) != 3 || rs[0].Status != Accepted || rs[2].Status != Accepted || rs[1].Reason != tt.want {
			t.Errorf("%v: %v %v", tt.want, rs, err)
		}
		if len(rs) == 3 && len(rs[1].Detail) > 100 {
			t.Errorf("a detail of %d bytes", len(rs[1].Detail))
		}
	}
	c := f.d.Counts()
	i := slices.IndexFunc(c.Types, func(t TypeCounts) bool { return t.Type == TypeMove })
	if m := c.Types[i]; m.Accepted != 0 || m.Rejected[HandlerError] != 7 || m.Rejected[LimitExceeded] != 1 || m.Rejected[SourceConflict] != 1 {
		t.Errorf("counts %+v", m)
	}
	// Each (type, reason) is warned of once, the first panic's stack too.
	if got := len(f.log.attrs("stack")); got != 1 {
		t.Errorf("%d stacks in the log", got)
	}
	if got := len(f.log.attrs("reason")); got != 3 {
		t.Errorf("%d warnings of rejections, want 3", got)
	}
}

// A parser that panics costs its action as well.
func TestParserPanics(t *testing.T) {
	d, _ := NewDispatcher(Config{})
	Register(d, Type[int]{Name: "x", Version: "1", Parse: func(*int, Value, *Limits) error { panic("no") }, Handle: func(*Call, *int) error { return nil }})
	rs, err := d.AppendJSON(nil, "", []byte(envelope(action("x", "{}"), action("y", "{}"))))
	if err != nil || rs[0].Reason != HandlerError || rs[1].Reason != UnsupportedActionType {
		t.Error(rs, err)
	}
}

// The first failing check names the reason: each case fails in all later ones, too.
func TestOrderOfChecks(t *testing.T) {
	d, _ := NewDispatcher(Config{Limits: Limits{Actions: 1, PayloadBytes: 200, Hashes: 2}})
	a, _ := NewAdvice(AdviceConfig{PoisonOnConflict: true})
	Register(d, FetchType(a))
	pad := `"pad":"` + strings.Repeat("x", 200) + `"`
	for _, tt := range []struct {
		typ, payload, id string
		want             Reason
	}{
		{"kv.unknown", "7", "", UnsupportedActionType},
		{TypeFetch, "7", "", InvalidPayload},
		{TypeFetch, `{"no_retain":7,` + pad + `}`, "", LimitExceeded},
		{TypeFetch, `{"no_retain":7}`, "", MissingSource},
		{TypeFetch, `{"no_retain":7,"source_control_endpoint":"x"}`, "", InvalidSource},
		{TypeFetch, `{"no_retain":7,"source_control_endpoint":"tcp://b:1"}`, "", MissingHashes},
		{TypeFetch, `{"no_retain":7,"source_control_endpoint":"tcp://b:1","block_hashes":{}}`, "", InvalidPayload},
		{TypeFetch, `{"no_retain":7,"source_control_endpoint":"tcp://b:1","block_hashes":["x",1,-1]}`, "", LimitExceeded},
		{TypeFetch, `{"no_retain":7,"source_control_endpoint":"tcp://b:1","block_hashes":[1,"x"]}`, "", InvalidHash},
		{TypeFetch, `{"no_retain":7,"source_control_endpoint":"tcp://b:1","block_hashes":[1]}`, "", InvalidPayload},
		{TypeFetch, `{"source_control_endpoint":"tcp://b:1","block_hashes":[1]}`, "", NoRequestID},
		{TypeFetch, `{"source_control_endpoint":"tcp://a:1","block_hashes":[1]}`, "r", NoReason},
		{TypeFetch, `{"source_control_endpoint":"tcp://b:1","block_hashes":[1,2]}`, "r", SourceConflict},
	} {
		in := envelope(action(tt.typ, tt.payload), action(tt.typ, tt.payload))
		for _, form := range []string{"json", "tree", "msgpack", "envelope"} {
			if form != "json" && tt.want == NoReason {
				continue
			}
			rs, err, _ := forms[form](&fixture{d: d}, tt.id, []byte(in))
			if err != nil || rs[0].Reason != tt.want || rs[1].Reason != LimitExceeded {
				t.Errorf("%s %s: %v %v, want %v", form, tt.payload, rs, err, tt.want)
			}
		}
	}
}

// Every limit holds at its edge, in every form.
func TestLimits(t *testing.T) {
	nested := func(n int) string { // n lists in a payload: depth 4+n
		return envelope(action("x", `{"x":`+strings.Repeat("[", n)+strings.Repeat("]", n)+`}`))
	}
	malformed := func(name string, lim Limits, in string, want bool, only ...string) {
		t.Helper()
		d, err := NewDispatcher(Config{Limits: lim})
		if err != nil {
			t.Fatal(err)
		}
		Register(d, MoveType(func(*Call, *Transfer) error { return nil }))
		for form, submit := range forms {
			if only != nil && !slices.Contains(only, form) {
				continue
			}
			if _, err, can := submit(&fixture{d: d}, "", []byte(in)); !can || errors.Is(err, ErrMalformed) != want {
				t.Errorf("%s, %s: %v", name, form, err)
			}
		}
	}
	malformed("depth 64", Limits{}, nested(60), false)
	malformed("depth 65", Limits{}, nested(61), true)
	malformed("depth 10", Limits{Depth: 10}, nested(6), false)
	malformed("depth 11", Limits{Depth: 10}, nested(7), true)
	in := envelope(action("x", `{"x":"`+strings.Repeat("y", 5000)+`"}`))
	malformed("bytes", Limits{EnvelopeBytes: len(in)}, in, false)
	malformed("one byte more", Limits{EnvelopeBytes: len(in) - 1}, in, true, "json", "any")
	malformed("many bytes more", Limits{EnvelopeBytes: 4000}, in, true)
	some := []string{"json", "msgpack", "tree", "envelope"}
	if testing.Short() {
		some = some[:1]
	}
	malformed("65536 actions", Limits{}, envelope(slices.Repeat([]string{"{}"}, MaxListedActions)...), false, some...)
	malformed("65537 actions", Limits{}, envelope(slices.Repeat([]string{"{}"}, MaxListedActions+1)...), true, some...)

	move := func(lim Limits, payload string, want Reason, only ...string) {
		t.Helper()
		d, _ := NewDispatcher(Config{Limits: lim})
		Register(d, MoveType(func(*Call, *Transfer) error { return nil }))
		for form, submit := range forms {
			if only != nil && !slices.Contains(only, form) {
				continue
			}
			rs, err, can := submit(&fixture{d: d}, "", []byte(envelope(action(TypeMove, payload))))
			if !can || err != nil || rs[0].Reason != want {
				t.Errorf("%+v, %s: %v %v, want %v", lim, form, rs, err, want)
			}
		}
	}
	move(Limits{Hashes: 2}, goodPayload, NoReason)
	move(Limits{Hashes: 1}, goodPayload, LimitExceeded)
	move(Limits{PayloadBytes: len(goodPayload)}, goodPayload, NoReason, "json", "any", "tree", "envelope")
	move(Limits{PayloadBytes: len(goodPayload) - 1}, goodPayload, LimitExceeded, "json", "any")
	move(Limits{PayloadBytes: 50}, goodPayload, LimitExceeded)

	d, _ := NewDispatcher(Config{Limits: Limits{Hashes: 2}})
	Register(d, MoveType(func(*Call, *Transfer) error { return nil }))
	for n, want := range map[int]Reason{0: MissingHashes, 2: NoReason, 3: LimitExceeded} {
		rs, err := d.Submit("", &Envelope{Actions: []Action{{Type: TypeMove, Payload: &Transfer{Source: "tcp://h:1", Hashes: make([]uint64, n)}}}})
		if err != nil || rs[0].Reason != want {
			t.Errorf("%d hashes given: %v %v, want %v", n, rs, err, want)
		}
	}
	for _, bad := range []Limits{{EnvelopeBytes: -1}, {EnvelopeBytes: 1<<30 + 1}, {Depth: 3}, {Depth: 1001}, {Actions: MaxListedActions + 1}, {PayloadBytes: -1}, {Hashes: -1}} {
		if _, err := NewDispatcher(Config{Limits: bad}); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// A tree that holds itself, or one part very often, is refused in bounded time.
func TestHostileTrees(t *testing.T) {
	d, _ := NewDispatcher(Config{Limits: Limits{EnvelopeBytes: 1 << 18}})
	loop := map[string]any{}
	loop["actions"] = []any{loop}
	if _, err := d.Submit("", loop); !errors.Is(err, ErrMalformed) {
		t.Errorf("a loop: %v", err)
	}
	var wide any = "x"
	for range 50 {
		wide = []any{wide, wide}
	}
	for _, in := range []any{
		map[string]any{"actions": []any{}, "x": wide},
		&Envelope{Actions: []Action{{Payload: map[string]any{"x": wide}}}},
	} {
		if _, err := d.Submit("", in); !errors.Is(err, ErrMalformed) {
			t.Errorf("2^50 leaves: %v", err)
		}
	}
	for _, in := range []any{
		map[string]any{"actions": []any{}, "x": "\xff"}, map[string]any{"actions": []any{}, "\xff": 1}, map[any]any{"actions": []any{}, "x": []string{"\xff"}},
		&Envelope{MessageID: "\xff"}, &Envelope{Actions: []Action{{ID: "\xff"}}}, &Envelope{Actions: []Action{{Type: "\xff"}}}, &Envelope{Actions: []Action{{Payload: "\xff"}}},
		nil, (*Envelope)(nil), 7, "{}", []any{}, map[int]any{}, struct{}{},
	} {
		if rs, err := d.Submit("", in); !errors.Is(err, ErrMalformed) || rs != nil {
			t.Errorf("%#v: %v %v", in, rs, err)
		}
	}
}

// Unknown types are named in the log once each, and not without end.
func TestWarnings(t *testing.T) {
	f := newFixture(t, false)
	for i := range 500 {
		for range 2 {
			f.d.AppendJSON(nil, "", []byte(envelope(action(fmt.Sprintf("kv.%d", i), "{}"))))
		}
	}
	if got := len(f.log.records); got != maxStrange {
		t.Errorf("%d warnings, want %d", got, maxStrange)
	}
	f = newFixture(t, false)
	for range 3 {
		f.d.AppendJSON(nil, "", []byte(`{"protocol_version":2,"actions":[{"action_type":"kv.move","action_version":[1],"payload":{}},{"action_type":"kv.prefetch","action_version":null,"payload":{}}]}`))
	}
	if got := f.log.attrs("kind"); fmt.Sprint(got) != "[protocol_version action_version]" {
		t.Errorf("version warnings: %v", got)
	}
	if got := f.log.attrs("value"); fmt.Sprint(got) != "[2 a list]" {
		t.Errorf("values in them: %v", got)
	}
	if got := f.d.Counts().Types; got[1].Rejected[MissingSource] != 3 || got[2].Rejected[MissingSource] != 3 || got[1].Type != TypePrefetch || got[3].Type != "other" {
		t.Errorf("counts %+v", got)
	}
}

// Results carry the ids, and nothing keeps the bytes of the envelope.
func TestResults(t *testing.T) {
	f := newFixture(t, false)
	in := []byte(envelope(action(TypeFetch, goodPayload), action("kv.x", goodPayload)))
	rs, err := f.d.AppendJSON([]Result{{Index: 99}}, "r", in)
	if err != nil {
		t.Fatal(err)
	}
	clear(in)
	want := []Result{
		{Index: 99},
		{Index: 0, ActionID: "a1", MessageID: "m1", Type: TypeFetch, Status: Accepted},
		{Index: 1, ActionID: "a1", MessageID: "m1", Type: "kv.x", Status: Rejected, Reason: UnsupportedActionType, Detail: `no handler for "kv.x"`},
	}
	if !slices.Equal(rs, want) {
		t.Errorf("%+v", rs)
	}
	if got := f.advice.Plan("r", "", [][]byte{key(11), key(13)}, testAdapter{}); len(got) != 1 || got[0].Source != "tcp://10.0.0.1:17771" || !slices.Equal(got[0].Keys, []int{0}) {
		t.Errorf("advice %+v", got)
	}
	out, err := json.Marshal(rs[1:])
	if err != nil || string(out) != `[{"index":0,"action_id":"a1","message_id":"m1","action_type":"kv.fetch","status":"ACCEPTED"},`+
		`{"index":1,"action_id":"a1","message_id":"m1","action_type":"kv.x","status":"REJECTED","reason":"unsupported_action_type","detail":"no handler for \"kv.x\""}]` {
		t.Errorf("%s %v", out, err)
	}
	var back []Result
	if err := json.Unmarshal(out, &back); err != nil || !slices.Equal(back, rs[1:]) {
		t.Errorf("%+v %v", back, err)
	}
	for r := range numReasons {
		var got Reason
		if text, _ := r.MarshalText(); got.UnmarshalText(text) != nil || got != r {
			t.Errorf("%v reads as %v", r, got)
		}
	}
	for s := range numStages {
		var got Stage
		if text, _ := s.MarshalText(); got.UnmarshalText(text) != nil || got != s {
			t.Errorf("%v reads as %v", s, got)
		}
	}
	for _, bad := range []interface{ UnmarshalText([]byte) error }{new(Status), new(Reason), new(Stage)} {
		if bad.UnmarshalText([]byte("nonsense")) == nil {
			t.Errorf("%T takes nonsense", bad)
		}
	}
	dst := []Result{{Index: 99}}
	if rs, err := f.d.AppendJSON(dst, "r", []byte("{")); len(rs) != 1 || !errors.Is(err, ErrMalformed) {
		t.Errorf("malformed: %v %v", rs, err)
	}
	if f.d.Counts().Malformed != 1 {
		t.Error("malformed envelopes are not counted")
	}
}

// A payload with more fields than are noted is understood all the same.
func TestManyFields(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"source_control_endpoint":"tcp://h:1","block_hashes":[1]`)
	for i := range 2 * maxMembers {
		fmt.Fprintf(&b, `,"x%d":%d`, i, i)
	}
	b.WriteString(`,"block_hashes":[7]}`)
	for _, form := range []string{"json", "msgpack"} {
		f := newFixture(t, false)
		rs, err, _ := forms[form](f, "", []byte(envelope(action(TypeMove, goodPayload), action(TypeMove, b.String()), action(TypeMove, goodPayload))))
		if err != nil || len(f.seen) != 3 || f.seen[1].hashes[0] != 7 || len(f.seen[2].hashes) != 2 {
			t.Errorf("%s: %v %v %+v", form, rs, err, f.seen)
		}
		if len(f.d.calls.Get().(*session).doc.members) > 2*maxMembers {
			t.Error("all fields were noted")
		}
	}
}

func TestPayloadOptions(t *testing.T) {
	var got Transfer
	d, _ := NewDispatcher(Config{})
	Register(d, MoveType(func(_ *Call, p *Transfer) error { got = *p; return nil }))
	var gone []Removal
	note := func(_ *Call, r *Removal) error {
		gone = append(gone, Removal{slices.Clone(r.Hashes), r.LowerTiers})
		return nil
	}
	Register(d, InvalidateType(note))
	Register(d, EvictType(note))
	for _, tt := range []struct {
		fields string
		want   Transfer
	}{
		{``, Transfer{}},
		{`,"no_retain":true,"allow_framework":false,"mode":"move"`, Transfer{NoRetain: true, NoFramework: true, Move: true}},
		{`,"no_retain":false,"allow_framework":true,"mode":"copy"`, Transfer{}},
		{`,"no_retain":true,"allow_framework":false,"mode":"move"`, Transfer{NoRetain: true, NoFramework: true, Move: true}},
		{`,"allow_framework":null,"mode":null`, Transfer{}},
		{`,"allow_framework":"false","mode":["move"]`, Transfer{}},
		{`,"Mode":"move","scope":"independent"`, Transfer{}},
	} {
		rs, err := d.AppendJSON(nil, "", []byte(envelope(action(TypeMove, `{"source_control_endpoint":"tcp://h:1","block_hashes":[1]`+tt.fields+`}`))))
		if err != nil || rs[0].Status != Accepted {
			t.Errorf("%s: %v %v", tt.fields, rs, err)
		}
		tt.want.Source, tt.want.Hashes, got.Hashes = "tcp://h:1", nil, nil
		if fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%s: %+v", tt.fields, got)
		}
	}
	for _, bad := range []string{"null", "1", `"true"`, "[]"} {
		rs, err := d.AppendJSON(nil, "", []byte(envelope(action(TypeMove, `{"source_control_endpoint":"tcp://h:1","block_hashes":[1],"no_retain":`+bad+`}`))))
		if err != nil || rs[0].Reason != InvalidPayload {
			t.Errorf("no_retain %s: %v %v", bad, rs, err)
		}
	}
	rs, err := d.AppendJSON(nil, "", []byte(envelope(
		action(TypeEvict, `{"block_hashes":[1,2]}`), action(TypeEvict, `{"block_hashes":[3],"lower_tiers":true,"source_control_endpoint":""}`), action(TypeInvalidate, `{"block_hashes":[4],"lower_tiers":false}`),
		action(TypeEvict, `{}`), action(TypeInvalidate, `{"block_hashes":[true]}`), action(TypeEvict, `{"block_hashes":[1],"lower_tiers":1}`))))
	if err != nil || fmt.Sprint(gone) != "[{[1 2] false} {[3] true} {[4] true}]" {
		t.Errorf("removals %v; %v %v", gone, rs, err)
	}
	for i, want := range []Reason{0, 0, 0, MissingHashes, InvalidHash, InvalidPayload} {
		if rs[i].Reason != want {
			t.Errorf("removal %d: %v, want %v", i, rs[i].Reason, want)
		}
	}
}

// Many goroutines submit in all forms while types are registered.
func TestConcurrentSubmit(t *testing.T) {
	a, _ := NewAdvice(AdviceConfig{Requests: 50})
	d, _ := NewDispatcher(Config{Log: slog.New(slog.DiscardHandler)})
	Register(d, FetchType(a))
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 200 {
				id := fmt.Sprintf("m%d-%d", g, i)
				in := []byte(fmt.Sprintf(`{"message_id":%q,"actions":[%s,%s]}`, id, action(TypeFetch, goodPayload), action(TypeMove, goodPayload)))
				form := []string{"json", "any", "tree", "msgpack", "envelope"}[(g+i)%5]
				rs, err, _ := forms[form](&fixture{d: d}, id, in)
				if err != nil || len(rs) != 2 || rs[0].MessageID != id || rs[0].Status != Accepted {
					t.Errorf("%s: %v %v", form, rs, err)
				}
				if i == 100 && g == 0 {
					Register(d, MoveType(func(c *Call, p *Transfer) error {
						if len(p.Hashes) != 2 {
							return errors.New("hashes of another action")
						}
						return nil
					}))
				}
				if i%3 == 0 {
					a.Discard(id)
				}
			}
		}()
	}
	wg.Wait()
	for _, c := range d.Counts().Types {
		if c.Rejected[HandlerError] != 0 || c.Type == TypeFetch && c.Accepted != 1200 {
			t.Errorf("counts %+v", c)
		}
	}
}

// In steady state a typed envelope allocates nothing, and text only the id of its
// message, whatever the number of hashes.
func TestSubmitAllocates(t *testing.T) {
	if racing {
		t.Skip("the race detector makes pools forget")
	}
	for _, n := range []int{1, 1024} {
		d, a := benchDispatcher(t)
		e, data := benchEnvelope(n), benchJSON(n)
		var dst []Result
		if got := testing.AllocsPerRun(200, func() {
			dst, _ = d.AppendEnvelope(dst[:0], "r", e)
			a.Discard("r")
		}); got > 0 {
			t.Errorf("%d hashes, value: %v allocations", n, got)
		}
		if got := testing.AllocsPerRun(200, func() {
			dst, _ = d.AppendJSON(dst[:0], "r", data)
			a.Discard("r")
		}); got > 1 {
			t.Errorf("%d hashes, json: %v allocations", n, got)
		}
	}
}
