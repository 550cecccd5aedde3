package web

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/hints/publish"
)

func TestHintsStatus(t *testing.T) {
	f := newFake()
	st := readStatus(f, false)
	want := &HintsStatus{
		Accepted: 25, Rejected: 8, Malformed: 6,
		Types: []HintTypeStatus{
			{Type: "kv.fetch"}, {Type: "kv.prefetch"},
			{Type: "kv.move", Accepted: 21, Rejected: 3, Reasons: map[string]uint64{"missing_source": 2, "invalid_hash": 1}},
			{Type: "kv.invalidate"}, {Type: "kv.evict", Accepted: 4},
			{Type: "other", Rejected: 5, Reasons: map[string]uint64{"unsupported_action_type": 5}},
		},
		Advice: AdviceStatus{31, 3100, 40, 2, 0, 7, 1, 3, 8, 9}, Work: HintWorkStatus{2, 300, 12 << 20},
		Stages: []HintStageStatus{{"accepted", 25}, {"resolved", 0}, {"copied", 0}, {"moved", 210}, {"kept", 0}, {"removed", 0}, {"present", 0}, {"failed", 0}, {"end", 23}},
		Lost:   4, Listeners: 3, Blocks: HintedBlocksStatus{17, 18, 19}, Faults: 1,
	}
	if !reflect.DeepEqual(st.Hints, want) {
		t.Errorf("hints\n%+v, want\n%+v", st.Hints, want)
	}
	routers := &RouterStatus{
		Table:     TableStatus{60_000, 1, 59_000, 12, 15 << 20, 14, 15, 16},
		Published: &PublishedStatus{500, 900, 70_000, 10_000, 11, 3, 1, 2, 3},
		Events:    &EventsStatus{"tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558", 2, 500, 13, 5, 6},
		Plane:     &EventsStatus{Endpoint: "tcp://127.0.0.1:5600", Subscribers: 1, Messages: 890, Dropped: 1},
	}
	if !reflect.DeepEqual(st.Router, routers) {
		t.Errorf("router\n%+v, want\n%+v", st.Router, routers)
	}

	// What routers are told does not need the engine.
	f.set(func(f *fake) { f.err = errors.New("closed") })
	if st := readStatus(f, false); st.Hints != nil || st.Router == nil {
		t.Errorf("without the engine: hints %+v, router %+v", st.Hints, st.Router)
	}
	f.set(func(f *fake) { f.err, f.router = nil, &publish.Totals{} })
	if st := readStatus(f, false).Router; st == nil || st.Published != nil || st.Events != nil || st.Plane != nil {
		t.Errorf("a node that publishes nothing says %+v", st)
	}

	// Without routers there is nothing to say of them.
	f.set(func(f *fake) { f.router, f.stats.Hints = nil, nil })
	if b, err := json.Marshal(readStatus(f, false)); err != nil || strings.Contains(string(b), `"hints"`) || strings.Contains(string(b), `"router"`) {
		t.Errorf("the status of a node without routers has them: %s, %v", b, err)
	}
}

// Every type that an engine acts on, and every reason and stage that there is, is one
// of those shown.
func TestHintNamesAreAll(t *testing.T) {
	e, err := kvcr.Open(kvcr.Config{Capacity: 1 << 20, Hints: &kvcr.Hints{}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	st, err := e.Stats()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, typ := range st.Hints.Submitted.Types {
		names = append(names, typ.Type)
	}
	if !reflect.DeepEqual(names, HintTypes()) {
		t.Errorf("the engine knows %q, shown are %q", names, HintTypes())
	}
	for _, r := range hintReasons() {
		if r.String() == "" || strings.HasPrefix(r.String(), "Reason(") {
			t.Errorf("a reason shown is %q", r)
		}
	}
	if n := len(hintReasons()); !strings.HasPrefix(hints.Reason(n+1).String(), "Reason(") {
		t.Errorf("%v is not shown", hints.Reason(n+1))
	}
	if all := hintStages(); all[0] != hints.StageAccepted || all[len(all)-1] != hints.StageEnd {
		t.Errorf("stages shown are %v", all)
	}
}
