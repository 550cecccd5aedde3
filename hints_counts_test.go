package kvcr_test

import (
	"testing"
	"time"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/peer"
)

// Everything that hints do is counted.
func TestHintCounts(t *testing.T) {
	a, b := openHinted(t, nil), openHinted(t, nil)
	a.deposit(t, keysOf(0, 10))
	b.deposit(t, keysOf(20, 24))
	id, _ := b.submit("r", action(hints.TypeFetch, a.endpoint, hashesOf(0, 4)...), action(hints.TypePrefetch, a.endpoint, 4, 5, 99),
		action(hints.TypeMove, a.endpoint, 6), action(hints.TypeInvalidate, "", 20, 21), action(hints.TypeEvict, "", 22, 98),
		action(hints.TypeFetch, a.endpoint), hints.Action{Type: "x"})
	for i := 1; i <= 4; i++ {
		b.end(id, i)
	}
	b.reasons(keysOf(0, 4), kvcr.FetchOptions{RequestID: "r"})
	if _, err := b.SubmitHint("", []byte("nonsense"), kvcr.HintJSON); err == nil {
		t.Error("nonsense is accepted")
	}
	s := b.stats()
	byType := map[string]hints.TypeCounts{}
	for _, c := range s.Submitted.Types {
		byType[c.Type] = c
	}
	for kind, want := range map[string]uint64{hints.TypeFetch: 1, hints.TypePrefetch: 1, hints.TypeMove: 1, hints.TypeInvalidate: 1, hints.TypeEvict: 1, "other": 0} {
		if byType[kind].Accepted != want {
			t.Errorf("%s: %d accepted", kind, byType[kind].Accepted)
		}
	}
	if byType[hints.TypeFetch].Rejected[hints.MissingHashes] != 1 || byType["other"].Rejected[hints.UnsupportedActionType] != 1 || s.Submitted.Malformed != 1 {
		t.Errorf("%+v", s.Submitted)
	}
	if s.Advice.Requests != 1 || s.Advice.Submitted != 1 || s.Advice.Hashes != 4 {
		t.Errorf("%+v", s.Advice)
	}
	for stage, want := range map[hints.Stage]uint64{hints.StageAccepted: 4, hints.StageMoved: 1, hints.StageRemoved: 2, hints.StageFailed: 2, hints.StageEnd: 4} {
		if got := s.Outcomes.Stages[stage]; got != want {
			t.Errorf("%d outcomes %v, want %d", got, stage, want)
		}
	}
	if st := b.Peers().Stats(); st.Taken.Moved != 1 {
		t.Errorf("%+v", st.Taken)
	}
	if n := a.Peers().Stats().Hashes; n != 4 {
		t.Errorf("the source has resolved %d hashes", n)
	}
}

// The ranks of one logical action are joined: by this engine's own outcomes, and those
// that others are said to have.
func TestFanOutOfEngine(t *testing.T) {
	a, b := openHinted(t, nil), openHinted(t, nil)
	a.deposit(t, keysOf(0, 4))
	f, err := b.FanOut()
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := b.FanOut(); again != f {
		t.Error("there are two")
	}
	j, err := f.Expect("m1", "a0", []int{0, 1}, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	id := b.order(hints.TypeMove, a.endpoint, hashesOf(0, 4)...)
	if id != "m1" {
		t.Fatal(id)
	}
	b.end(id, 0)
	other := hints.Outcome{MessageID: "m1", ActionID: "a0", Type: hints.TypeMove, Rank: 1}
	for _, o := range []hints.Outcome{
		{Stage: hints.StageAccepted, Hashes: hashesOf(0, 4)}, {Stage: hints.StageMoved, Hashes: []uint64{0, 1, 2}}, {Stage: hints.StageKept, Hashes: []uint64{3}, Reason: "no_evict"}, {Stage: hints.StageEnd},
	} {
		o.MessageID, o.ActionID, o.Type, o.Rank = other.MessageID, other.ActionID, other.Type, other.Rank
		f.Observe(o)
	}
	select {
	case <-j.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the ranks are not joined")
	}
	if r := j.Result(); !r.Complete || r.Blocks[0] != hints.StageMoved || r.Blocks[3] != hints.StageKept || len(r.Ranks) != 2 {
		t.Errorf("%+v", r)
	}
}

// Deliveries to regions follow the request's advice, too.
func TestDeliverRefsWithAdvice(t *testing.T) {
	a := openHinted(t, nil)
	keys := keysOf(0, 4)
	a.deposit(t, keys)
	var regions peer.Regions
	mem := make([]byte, 4*64<<10)
	if err := regions.Register(peer.Region{Label: "r", Mem: mem, Size: 64 << 10, Count: 4}); err != nil {
		t.Fatal(err)
	}
	b := openHinted(t, func(c *kvcr.Config) { c.Regions = &regions })
	b.advise("r", hints.Transfer{Source: a.endpoint, Hashes: []uint64{0, 1, 2}})
	var blocks []kvcr.RegionBlock
	for i, k := range keys {
		blocks = append(blocks, kvcr.RegionBlock{Key: k, Ref: peer.MemoryRef{Label: "r", Element: i}})
	}
	for i, r := range wait(t, b.h.DeliverRefs(blocks, kvcr.FetchOptions{RequestID: "r"})) {
		if (i < 3) != r.OK() {
			t.Errorf("%s: %v", keys[i], r.Reason)
		}
	}
	if string(mem[:64<<10]) != string(payload("block-0", 64<<10)) {
		t.Error("wrong bytes")
	}
}
