package web

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints"
)

// HintTypes lists the types of actions: a closed set, the last one for all others.
func HintTypes() []string {
	return []string{hints.TypeFetch, hints.TypePrefetch, hints.TypeMove, hints.TypeInvalidate, hints.TypeEvict, "other"}
}

// hintReasons lists why actions are rejected, and hintStages how far they come: closed
// sets, as long as the arrays that count them.
func hintReasons() (all []hints.Reason) {
	for r := hints.NoReason + 1; int(r) < len(hints.TypeCounts{}.Rejected); r++ {
		all = append(all, r)
	}
	return all
}

func hintStages() (all []hints.Stage) {
	for s := range hints.Stage(len(hints.OutcomeCounts{}.Stages)) {
		all = append(all, s)
	}
	return all
}

// byHintType folds counts into the closed set of types, in order.
func byHintType(given []hints.TypeCounts) []hints.TypeCounts {
	var out []hints.TypeCounts
	for _, t := range HintTypes() {
		out = append(out, hints.TypeCounts{Type: t})
	}
	for i := range given {
		t := &out[orLast(HintTypes(), given[i].Type)]
		t.Accepted += given[i].Accepted
		for r, n := range given[i].Rejected {
			t.Rejected[r] += n
		}
	}
	return out
}

// HintsStatus is what routers ask of the node, and what becomes of it: see
// kvcr.HintStats.
type HintsStatus struct {
	Accepted  uint64             `json:"accepted_total"` // the sums over Types
	Rejected  uint64             `json:"rejected_total"`
	Malformed uint64             `json:"malformed_total"` // envelopes
	Types     []HintTypeStatus   `json:"types"`           // one for each of HintTypes, in order
	Advice    AdviceStatus       `json:"advice"`
	Work      HintWorkStatus     `json:"work"`
	Stages    []HintStageStatus  `json:"stages"` // of outcomes, in order
	Lost      uint64             `json:"outcomes_lost_total"`
	Listeners int                `json:"outcome_subscriptions"`
	Blocks    HintedBlocksStatus `json:"blocks"`
	Faults    uint64             `json:"adapter_faults_total"`
}

// HintTypeStatus counts the actions of one type.
type HintTypeStatus struct {
	Type     string            `json:"type"`
	Accepted uint64            `json:"accepted_total"`
	Rejected uint64            `json:"rejected_total"`
	Reasons  map[string]uint64 `json:"rejected,omitempty"` // by reason, those that there were
}

// AdviceStatus is what is kept for requests.
type AdviceStatus struct {
	Requests  int    `json:"requests"`
	Hashes    int    `json:"hashes"`
	Submitted uint64 `json:"submitted_total"`
	Fallbacks uint64 `json:"fallbacks_total"` // of those submitted, a further source
	Conflicts uint64 `json:"conflicts_total"`
	Discarded uint64 `json:"discarded_total"` // requests forgotten: as told,
	Expired   uint64 `json:"expired_total"`   // by age,
	Pushed    uint64 `json:"pushed_total"`    // by newer ones
	Failures  uint64 `json:"failures_total"`
	Misses    uint64 `json:"misses_total"`
}

// HintWorkStatus is the independent work, kv.prefetch and kv.move, that has not ended.
type HintWorkStatus struct {
	Actions int   `json:"actions"`
	Blocks  int   `json:"blocks"`
	Bytes   int64 `json:"bytes"` // on their way
}

// HintStageStatus counts outcomes of one stage.
type HintStageStatus struct {
	Stage    string `json:"stage"`
	Outcomes uint64 `json:"outcomes_total"`
}

// HintedBlocksStatus counts blocks of requests that follow hints.
type HintedBlocksStatus struct {
	Fetching    int    `json:"fetching"`
	Joined      uint64 `json:"joined_total"`       // somebody was fetching them already
	NotRetained uint64 `json:"not_retained_total"` // left with their view
}

func hintsStatus(s *kvcr.HintStats) *HintsStatus {
	if s == nil {
		return nil
	}
	a := &s.Advice
	st := &HintsStatus{
		Malformed: s.Submitted.Malformed,
		Advice:    AdviceStatus{a.Requests, a.Hashes, a.Submitted, a.Fallbacks, a.Conflicts, a.Discarded, a.Expired, a.Pushed, a.Failures, a.Misses},
		Work:      HintWorkStatus{s.Actions, s.Blocks, s.Bytes},
		Lost:      s.Outcomes.Lost, Listeners: s.Outcomes.Subscriptions,
		Blocks: HintedBlocksStatus{s.RequestBlocks, s.Joined, s.NotRetained}, Faults: s.AdapterFaults,
	}
	for _, t := range byHintType(s.Submitted.Types) {
		row := HintTypeStatus{Type: t.Type, Accepted: t.Accepted}
		for _, r := range hintReasons() {
			n := t.Rejected[r]
			if n == 0 {
				continue
			}
			if row.Reasons == nil {
				row.Reasons = map[string]uint64{}
			}
			row.Reasons[r.String()] = n
			row.Rejected += n
		}
		st.Types = append(st.Types, row)
		st.Accepted += row.Accepted
		st.Rejected += row.Rejected
	}
	for _, stage := range hintStages() {
		st.Stages = append(st.Stages, HintStageStatus{stage.String(), s.Outcomes.Stages[stage]})
	}
	return st
}

var hintMetrics = []scalar[kvcr.HintStats]{
	{"kvcr_hint_malformed_envelopes_total", "Envelopes of routers that were none.", counter, "", func(h *kvcr.HintStats) float64 { return float64(h.Submitted.Malformed) }},
	{"kvcr_hint_advice_requests", "Requests that advice is kept for.", gauge, "", func(h *kvcr.HintStats) float64 { return float64(h.Advice.Requests) }},
	{"kvcr_hint_advice_hashes", "Hashes of blocks in the advice that is kept.", gauge, "", func(h *kvcr.HintStats) float64 { return float64(h.Advice.Hashes) }},
	{"kvcr_hint_advice_submitted_total", "Advice taken.", counter, "", func(h *kvcr.HintStats) float64 { return float64(h.Advice.Submitted) }},
	{"kvcr_hint_advice_fallbacks_total", "Advice taken that named a further source of a request.", counter, "", func(h *kvcr.HintStats) float64 { return float64(h.Advice.Fallbacks) }},
	{"kvcr_hint_advice_failures_total", "Sources of advice that failed.", counter, "", func(h *kvcr.HintStats) float64 { return float64(h.Advice.Failures) }},
	{"kvcr_hint_advice_misses_total", "Blocks that sources of advice did not have.", counter, "", func(h *kvcr.HintStats) float64 { return float64(h.Advice.Misses) }},
	{"kvcr_hint_advice_forgotten_total", "Requests whose advice was dropped: they ended (discarded), it was old (expired), or there was too much (pushed).", counter, "discarded", func(h *kvcr.HintStats) float64 { return float64(h.Advice.Discarded) }},
	{"kvcr_hint_advice_forgotten_total", "Requests whose advice was dropped: they ended (discarded), it was old (expired), or there was too much (pushed).", counter, "expired", func(h *kvcr.HintStats) float64 { return float64(h.Advice.Expired) }},
	{"kvcr_hint_advice_forgotten_total", "Requests whose advice was dropped: they ended (discarded), it was old (expired), or there was too much (pushed).", counter, "pushed", func(h *kvcr.HintStats) float64 { return float64(h.Advice.Pushed) }},
	{"kvcr_hint_work_actions", "Prefetches and moves that have not ended.", gauge, "", func(h *kvcr.HintStats) float64 { return float64(h.Actions) }},
	{"kvcr_hint_work_blocks", "Blocks of prefetches and moves that have not ended.", gauge, "", func(h *kvcr.HintStats) float64 { return float64(h.Blocks) }},
	{"kvcr_hint_work_bytes", "Bytes on their way for prefetches and moves.", gauge, "", func(h *kvcr.HintStats) float64 { return float64(h.Bytes) }},
	{"kvcr_hint_request_blocks", "Blocks that requests are fetching from peers.", gauge, "", func(h *kvcr.HintStats) float64 { return float64(h.RequestBlocks) }},
	{"kvcr_hint_joined_blocks_total", "Blocks of requests that were on their way already.", counter, "", func(h *kvcr.HintStats) float64 { return float64(h.Joined) }},
	{"kvcr_hint_unretained_blocks_total", "Blocks that left with their view, as advice asked.", counter, "", func(h *kvcr.HintStats) float64 { return float64(h.NotRetained) }},
	{"kvcr_hint_adapter_faults_total", "Panics of the adapter that translates hashes.", counter, "", func(h *kvcr.HintStats) float64 { return float64(h.AdapterFaults) }},
	{"kvcr_hint_lost_outcomes_total", "Outcomes that their subscribers were too slow for.", counter, "", func(h *kvcr.HintStats) float64 { return float64(h.Outcomes.Lost) }},
	{"kvcr_hint_outcome_subscriptions", "Subscriptions of outcomes.", gauge, "", func(h *kvcr.HintStats) float64 { return float64(h.Outcomes.Subscriptions) }},
}

// hintSeries have labels of closed sets.
type hintSeries struct{ accepted, rejected, outcomes *prometheus.Desc }

func newHintSeries() hintSeries {
	return hintSeries{
		accepted: prometheus.NewDesc("kvcr_hint_accepted_actions_total", "Actions of routers that were accepted.", []string{"type"}, nil),
		rejected: prometheus.NewDesc("kvcr_hint_rejected_actions_total", "Actions of routers that were rejected.", []string{"type", "reason"}, nil),
		outcomes: prometheus.NewDesc("kvcr_hint_outcomes_total", "Outcomes of accepted actions that were published; each action has one of stage end.", []string{"stage"}, nil),
	}
}

func (d *hintSeries) all() []*prometheus.Desc {
	return []*prometheus.Desc{d.accepted, d.rejected, d.outcomes}
}

func (d *hintSeries) emit(ch chan<- prometheus.Metric, h *kvcr.HintStats) {
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, counter, float64(v), labels...)
	}
	for _, t := range byHintType(h.Submitted.Types) {
		count(d.accepted, t.Accepted, t.Type)
		for _, r := range hintReasons() {
			count(d.rejected, t.Rejected[r], t.Type, r.String())
		}
	}
	for _, s := range hintStages() {
		count(d.outcomes, h.Outcomes.Stages[s], s.String())
	}
}
