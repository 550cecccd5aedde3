package plan_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/plan"
)

func stored(w events.Worker, tier events.Tier, parent uint64, hashes ...uint64) *events.RouterEvent {
	ev := &events.RouterEvent{Worker: w, Tier: tier, Op: events.Stored, HasParent: parent != 0, Parent: parent}
	for _, h := range hashes {
		ev.Blocks = append(ev.Blocks, events.Block{Hash: h, Local: h + 100})
	}
	return ev
}

func apply(t testing.TB, x *plan.Index, evs ...*events.RouterEvent) {
	t.Helper()
	for _, ev := range evs {
		if err := x.Apply(ev); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEnvelope(t *testing.T) {
	target, source := events.Worker{ID: 1}, events.Worker{ID: 2}
	for _, id := range []string{"req-7f3a", "", `a "quoted" \ <b> ü` + "\n", "\xff"} {
		for _, endpoint := range []string{"tcp://10.0.4.21:17771", `tcp://"`} {
			x := plan.New(plan.Config{})
			x.SetTopology([]plan.Member{
				{Owner: plan.Owner{Worker: target}, Type: "decode", Capable: true},
				{Owner: plan.Owner{Worker: source}, Type: "decode", Endpoint: endpoint},
			})
			apply(t, x, stored(target, events.Device, 0, 1, 2), stored(source, events.HostPinned, 2, 3, 1<<64-1))
			s := x.NewScratch()
			choices := x.Choose(s, []uint64{101, 102, 103, 99}, nil)
			out := s.AppendEnvelope([]byte("before"), id, choices[0])
			type payload struct {
				Endpoint string   `json:"source_control_endpoint"`
				Hashes   []uint64 `json:"block_hashes"`
			}
			type action struct {
				ID      string  `json:"action_id"`
				Type    string  `json:"action_type"`
				Version string  `json:"action_version"`
				Payload payload `json:"payload"`
			}
			type envelope struct {
				Version   string   `json:"protocol_version"`
				MessageID string   `json:"message_id"`
				Actions   []action `json:"actions"`
			}
			want, err := json.Marshal(envelope{"0.1", id, []action{{"a1", "kv.fetch", "1.0",
				payload{endpoint, []uint64{1, 2, 3, 1<<64 - 1}}}}})
			if err != nil {
				t.Fatal(err)
			}
			var got, as envelope
			if err := json.Unmarshal(out[len("before"):], &got); err != nil {
				t.Fatalf("%s: %v", out, err)
			}
			if err := json.Unmarshal(want, &as); err != nil {
				t.Fatal(err)
			}
			if got.MessageID != as.MessageID || got.Version != "0.1" || len(got.Actions) != 1 ||
				!slices.Equal(got.Actions[0].Payload.Hashes, as.Actions[0].Payload.Hashes) {
				t.Errorf("envelope %s, want %s", out, want)
			}
			if id == "req-7f3a" && endpoint[6] != '"' && string(out) != "before"+string(want) {
				t.Errorf("envelope\n%s, want\nbefore%s", out, want)
			}
			if _, h, ok := s.SegmentHint(plan.Segment{Source: plan.Owner{Worker: source}, From: 2, To: 4}); !ok || !slices.Equal(h, []uint64{3, 1<<64 - 1}) {
				t.Errorf("hint of a segment: %v %t", h, ok)
			}
			none := choices[0]
			none.Kind = plan.None
			stranger := choices[0]
			stranger.Source.Worker.ID = 9
			mute := choices[0]
			mute.Source.Worker = target // no endpoint
			long := choices[0]
			long.End = 5
			for _, c := range []plan.Choice{none, stranger, mute, long} {
				if out := s.AppendEnvelope(nil, id, c); len(out) != 0 {
					t.Errorf("%+v: an envelope %s", c, out)
				}
			}
		}
	}
}
