package server

import (
	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints"
)

// HintStats are what STATS says of hints: kvcr.HintStats, where types, reasons and
// stages go by name. What is 0 is left out of the maps.
type HintStats struct {
	Malformed uint64                       // envelopes
	Accepted  map[string]uint64            // actions by type
	Rejected  map[string]map[string]uint64 // by type and reason
	Advice    hints.AdviceCounts
	Outcomes  map[string]uint64 // by stage
	Lost      uint64            // outcomes that subscribers were too slow for
	Listeners int               // subscribers of outcomes

	// Of kv.prefetch and kv.move, now.
	Actions, Blocks int
	Bytes           int64

	RequestBlocks                      int // that requests are fetching now
	Joined, NotRetained, AdapterFaults uint64
}

// hintStats is nil for an engine without hints.
func hintStats(st *kvcr.HintStats) *HintStats {
	if st == nil {
		return nil
	}
	out := &HintStats{
		Malformed: st.Submitted.Malformed, Accepted: map[string]uint64{}, Rejected: map[string]map[string]uint64{},
		Advice: st.Advice, Outcomes: map[string]uint64{}, Lost: st.Outcomes.Lost, Listeners: st.Outcomes.Subscriptions,
		Actions: st.Actions, Blocks: st.Blocks, Bytes: st.Bytes, RequestBlocks: st.RequestBlocks,
		Joined: st.Joined, NotRetained: st.NotRetained, AdapterFaults: st.AdapterFaults,
	}
	for i := range st.Submitted.Types {
		t := &st.Submitted.Types[i]
		if t.Accepted > 0 {
			out.Accepted[t.Type] = t.Accepted
		}
		for reason, n := range t.Rejected {
			if n == 0 {
				continue
			}
			if out.Rejected[t.Type] == nil {
				out.Rejected[t.Type] = map[string]uint64{}
			}
			out.Rejected[t.Type][hints.Reason(reason).String()] = n
		}
	}
	for stage, n := range st.Outcomes.Stages {
		if n > 0 {
			out.Outcomes[hints.Stage(stage).String()] = n
		}
	}
	return out
}
