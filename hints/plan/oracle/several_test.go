package oracle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

// several says what several sources do for the targets of the last question.
func (b *table) several(want ...plan.Multi) *table {
	if b.multi == nil {
		b.multi = map[int][]plan.Multi{}
	}
	b.multi[len(b.want)-1] = want
	return b
}

func parts(target plan.Owner, frontier int, segments ...plan.Segment) plan.Multi {
	return plan.Multi{Target: target.Worker, Frontier: frontier, Segments: segments}
}

func part(source plan.Owner, from, to int) plan.Segment {
	return plan.Segment{Source: source, From: from, To: to}
}

// Several sources together: as far as any of them goes on, in the fewest parts, and
// of equal ones the smallest.
func TestSeveralSources(t *testing.T) {
	t.Run("one after another", func(t *testing.T) {
		b := newTable(20).targets(w(1)).sources(w(2), w(3), k(1))
		b.device(w(1), 0, 5).host(w(2), 5, 10).host(w(3), 10, 15).host(k(1), 15, 18)
		b.ask(b.hint(w(1), 5, cont, w(2), 10))
		b.several(parts(w(1), 5, part(w(2), 5, 10), part(w(3), 10, 15), part(k(1), 15, 18))).play(t)
	})
	t.Run("the fewest", func(t *testing.T) {
		b := newTable(20).targets(w(1)).sources(w(2), w(3), w(4), w(5))
		b.device(w(1), 0, 4).host(w(2), 4, 8).host(w(3), 4, 10).host(w(4), 8, 13).host(w(5), 9, 20)
		b.ask(b.hint(w(1), 4, cont, w(3), 10))
		b.several(parts(w(1), 4, part(w(3), 4, 10), part(w(5), 10, 20))).play(t)
	})
	t.Run("a hole that nobody has ends it", func(t *testing.T) {
		b := newTable(20).targets(w(1)).sources(w(2), w(3))
		b.device(w(1), 0, 4).host(w(2), 4, 8).host(w(3), 9, 20)
		b.ask(b.hint(w(1), 4, cont, w(2), 8))
		b.several(parts(w(1), 4, part(w(2), 4, 8))).play(t)
	})
	t.Run("equal ends: the smallest source", func(t *testing.T) {
		b := newTable(10).targets(w(1)).sources(w(2), w(3), k(1), k(2))
		b.device(w(1), 0, 4).host(w(3), 4, 8).host(w(2), 3, 8).host(k(2), 8, 10).host(k(1), 8, 10)
		b.ask(b.hint(w(1), 4, cont, w(2), 8))
		b.several(parts(w(1), 4, part(w(2), 4, 8), part(k(1), 8, 10))).play(t)
	})
	t.Run("a source twice, with another between", func(t *testing.T) {
		b := newTable(20).targets(w(1)).sources(w(2), w(3))
		b.device(w(1), 0, 4).host(w(2), 4, 8).host(w(3), 8, 12).host(w(2), 12, 20)
		b.ask(b.hint(w(1), 4, cont, w(2), 8))
		b.several(parts(w(1), 4, part(w(2), 4, 8), part(w(3), 8, 12), part(w(2), 12, 20))).play(t)
	})
	t.Run("from the root, when nothing is local", func(t *testing.T) {
		b := newTable(20).targets(w(1)).sources(w(2), w(3))
		b.host(w(2), 0, 8).host(w(3), 6, 20)
		b.ask(b.hint(w(1), 0, root, w(2), 8))
		b.several(parts(w(1), 0, part(w(2), 0, 8), part(w(3), 8, 20))).play(t)
	})
	t.Run("only who may serve the target", func(t *testing.T) {
		b := newTable(20).targets(w(1), w(2)).attached(k(1), w(1)).join(plan.Member{Owner: w(3), Endpoint: "tcp://s:1", Type: "decode"}).sources(w(4))
		b.device(w(1), 0, 4).device(w(2), 0, 4).host(w(4), 4, 8).host(k(1), 8, 12).host(w(3), 8, 20)
		b.ask(b.hint(w(1), 4, cont, w(4), 8), b.hint(w(2), 4, cont, w(4), 8))
		b.several(parts(w(1), 4, part(w(4), 4, 8)), parts(w(2), 4, part(w(4), 4, 8), part(k(1), 8, 12))).play(t)
	})
	t.Run("fully local, or nothing to have", func(t *testing.T) {
		b := newTable(8).targets(w(1), w(2)).sources(w(3))
		b.device(w(1), 0, 8).device(w(2), 0, 4).host(w(3), 5, 8)
		b.ask(b.none(w(1), 8), b.none(w(2), 4))
		b.several(parts(w(1), 8), parts(w(2), 4)).play(t)
	})
}

// The envelope of a hint is one kv.fetch, as section 1.1 has it.
func TestEnvelope(t *testing.T) {
	const id = "req-7\" \\ \n\u2028é"
	c := newChain(3, 6)
	c.ext[0], c.ext[1], c.ext[5] = 0, 18446744073709551615, 1<<53+1
	x := plan.New(plan.Config{})
	for _, e := range []events.RouterEvent{
		c.store(events.Device, w(1), w(1).Worker, 0, 4), c.store(events.HostPinned, w(2), w(2).Worker, 4, 6),
	} {
		if err := x.Apply(&e); err != nil {
			t.Fatal(err)
		}
	}
	const endpoint = `tcp://[::1]:17771/"x"`
	x.SetTopology([]plan.Member{
		{Owner: w(1), Type: "decode", Capable: true},
		{Owner: w(2), Type: "decode", Endpoint: endpoint},
		{Owner: w(3), Type: "decode", Capable: true},
	})
	s := x.NewScratch()
	choices := x.Choose(s, c.local, nil)
	if len(choices) != 2 || choices[0].Kind != plan.Continuation || choices[1].Kind != plan.None {
		t.Fatalf("choices %+v", choices)
	}
	if got := s.AppendEnvelope([]byte("before"), id, choices[1]); string(got) != "before" {
		t.Errorf("envelope of no hint: %q", got)
	}
	got := s.AppendEnvelope([]byte("before"), id, choices[0])
	rest, ok := bytes.CutPrefix(got, []byte("before"))
	if !ok {
		t.Fatalf("envelope %q wrote over what was there", got)
	}
	type action struct {
		ID      string `json:"action_id"`
		Type    string `json:"action_type"`
		Version string `json:"action_version"`
		Payload struct {
			Source string   `json:"source_control_endpoint"`
			Hashes []uint64 `json:"block_hashes"`
		}
	}
	var env struct {
		Version string `json:"protocol_version"`
		ID      string `json:"message_id"`
		Actions []action
	}
	d := json.NewDecoder(bytes.NewReader(rest))
	d.DisallowUnknownFields()
	if err := d.Decode(&env); err != nil || d.More() {
		t.Fatalf("envelope %s: %v, more: %t", rest, err, d.More())
	}
	if env.Version != "0.1" || env.ID != id || len(env.Actions) != 1 {
		t.Fatalf("envelope %s", rest)
	}
	a := env.Actions[0]
	if a.ID != "a1" || a.Type != "kv.fetch" || a.Version != "1.0" || a.Payload.Source != endpoint || !slices.Equal(a.Payload.Hashes, c.ext) {
		t.Errorf("action %+v, want all of %v from %q", a, c.ext, endpoint)
	}
	for _, h := range c.ext {
		if !strings.Contains(string(rest), fmt.Sprint(h)) {
			t.Errorf("envelope %s lacks %d", rest, h)
		}
	}
}
