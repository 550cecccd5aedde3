package web

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvcr-go/kvcr/hints/publish"
)

// RouterStatus is what routers know of the node, and what they are told: see
// publish.Totals.
type RouterStatus struct {
	Table     TableStatus      `json:"table"`
	Published *PublishedStatus `json:"published,omitempty"` // absent: nothing is published
	Events    *EventsStatus    `json:"events,omitempty"`    // as vLLM publishes them
	Plane     *EventsStatus    `json:"plane,omitempty"`     // Dynamo's
}

// TableStatus is the table of keys by the hashes that routers know.
type TableStatus struct {
	Keys       int    `json:"keys"`
	Ambiguous  int    `json:"ambiguous_hashes"`
	Described  int    `json:"described"`
	Pending    int    `json:"pending_descriptions"`
	TokenBytes int64  `json:"token_bytes"`
	Foreign    uint64 `json:"foreign_total"`
	Refused    uint64 `json:"refused_total"`
	Expired    uint64 `json:"expired_descriptions_total"`
}

// PublishedStatus counts what was published, by all ways.
type PublishedStatus struct {
	Batches     uint64 `json:"batches_total"`
	Events      uint64 `json:"events_total"`
	Stored      uint64 `json:"stored_blocks_total"`
	Removed     uint64 `json:"removed_blocks_total"`
	Undescribed uint64 `json:"undescribed_blocks_total"` // of those stored: known by their hash alone
	Unpublished uint64 `json:"unpublished_blocks_total"` // the table or the chain has no place for them
	Gaps        uint64 `json:"gaps_total"`
	Snapshots   uint64 `json:"snapshots_total"`
	Failures    uint64 `json:"failures_total"`
}

// EventsStatus is one way to routers. Only KV events have replays.
type EventsStatus struct {
	Endpoint    string `json:"endpoint,omitempty"`
	Replay      string `json:"replay_endpoint,omitempty"`
	Subscribers int    `json:"subscribers"`
	Messages    uint64 `json:"messages_total"`
	Dropped     uint64 `json:"dropped_total"` // subscribers were too slow for them
	Replays     uint64 `json:"replays_total"`
	BadRequests uint64 `json:"bad_requests_total"`
}

func routerStatus(t *publish.Totals) *RouterStatus {
	if t == nil {
		return nil
	}
	k := &t.Table
	st := &RouterStatus{Table: TableStatus{k.Keys, k.Ambiguous, k.Described, k.Pending, k.TokenBytes, k.Foreign, k.Refused, k.Expired}}
	if p := t.Published; p != nil {
		st.Published = &PublishedStatus{p.Batches, p.Events, p.Stored, p.Removed, p.Undescribed, p.Looped + p.Refused, p.Gaps, p.Snapshots, p.Failures}
	}
	if e := t.Events; e != nil {
		st.Events = &EventsStatus{t.EventsAt, t.EventsReplayAt, e.Subscribers, e.Batches, e.Dropped, e.Replays, e.BadAsks}
	}
	if p := t.Plane; p != nil {
		st.Plane = &EventsStatus{Endpoint: t.PlaneAt, Subscribers: p.Subscribers, Messages: p.Messages, Dropped: p.Dropped}
	}
	return st
}

var tableMetrics = []scalar[publish.Totals]{
	{"kvcr_router_keys", "Keys held by the hashes that routers know.", gauge, "", func(t *publish.Totals) float64 { return float64(t.Table.Keys) }},
	{"kvcr_router_ambiguous_hashes", "Hashes that more than one key has, which routers cannot name.", gauge, "", func(t *publish.Totals) float64 { return float64(t.Table.Ambiguous) }},
	{"kvcr_router_described_keys", "Keys that clients have described.", gauge, "", func(t *publish.Totals) float64 { return float64(t.Table.Described) }},
	{"kvcr_router_pending_descriptions", "Descriptions of blocks that are not resident.", gauge, "", func(t *publish.Totals) float64 { return float64(t.Table.Pending) }},
	{"kvcr_router_token_bytes", "Memory for the tokens of descriptions.", gauge, "", func(t *publish.Totals) float64 { return float64(t.Table.TokenBytes) }},
	{"kvcr_router_foreign_changes_total", "Changes of keys that routers do not know.", counter, "", func(t *publish.Totals) float64 { return float64(t.Table.Foreign) }},
	{"kvcr_router_refused_keys_total", "Keys that the table had no room for.", counter, "", func(t *publish.Totals) float64 { return float64(t.Table.Refused) }},
	{"kvcr_router_expired_descriptions_total", "Descriptions whose block did not come in time.", counter, "", func(t *publish.Totals) float64 { return float64(t.Table.Expired) }},
}

var publishedMetrics = []scalar[publish.Stats]{
	{"kvcr_router_event_batches_total", "Batches of events published to routers.", counter, "", func(p *publish.Stats) float64 { return float64(p.Batches) }},
	{"kvcr_router_events_total", "Events in published batches.", counter, "", func(p *publish.Stats) float64 { return float64(p.Events) }},
	{"kvcr_router_stored_blocks_total", "Blocks published as stored.", counter, "", func(p *publish.Stats) float64 { return float64(p.Stored) }},
	{"kvcr_router_removed_blocks_total", "Blocks published as removed.", counter, "", func(p *publish.Stats) float64 { return float64(p.Removed) }},
	{"kvcr_router_undescribed_blocks_total", "Blocks published by their hash alone: no prefix can be matched with them.", counter, "", func(p *publish.Stats) float64 { return float64(p.Undescribed) }},
	{"kvcr_router_unpublished_blocks_total", "Blocks that were not published, since their parent has their own hash (looped) or the table is full (refused).", counter, "looped", func(p *publish.Stats) float64 { return float64(p.Looped) }},
	{"kvcr_router_unpublished_blocks_total", "Blocks that were not published, since their parent has their own hash (looped) or the table is full (refused).", counter, "refused", func(p *publish.Stats) float64 { return float64(p.Refused) }},
	{"kvcr_router_gaps_total", "Losses of changes before they were published; a snapshot followed.", counter, "", func(p *publish.Stats) float64 { return float64(p.Gaps) }},
	{"kvcr_router_snapshots_total", "Snapshots published.", counter, "", func(p *publish.Stats) float64 { return float64(p.Snapshots) }},
	{"kvcr_router_refused_batches_total", "Batches that were not taken at once, and offered again.", counter, "", func(p *publish.Stats) float64 { return float64(p.Failures) }},
}

// routerSeries have the label form: kv-events as vLLM publishes them, plane as Dynamo.
type routerSeries struct {
	subscribers, messages, dropped, replays, badRequests *prometheus.Desc
}

func newRouterSeries() routerSeries {
	form := []string{"form"}
	return routerSeries{
		subscribers: prometheus.NewDesc("kvcr_router_subscribers", "Connected subscribers of events.", form, nil),
		messages:    prometheus.NewDesc("kvcr_router_messages_total", "Messages published to subscribers of events.", form, nil),
		dropped:     prometheus.NewDesc("kvcr_router_dropped_messages_total", "Messages that a subscriber did not get since it was too slow, summed over subscribers.", form, nil),
		replays:     prometheus.NewDesc("kvcr_router_replays_total", "Requests for messages that were missed.", form, nil),
		badRequests: prometheus.NewDesc("kvcr_router_bad_replay_requests_total", "Requests for messages that made no sense.", form, nil),
	}
}

func (d *routerSeries) all() []*prometheus.Desc {
	return []*prometheus.Desc{d.subscribers, d.messages, d.dropped, d.replays, d.badRequests}
}

func (d *routerSeries) emit(ch chan<- prometheus.Metric, t *publish.Totals) {
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, form string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, form)
	}
	if e := t.Events; e != nil {
		send(d.subscribers, gauge, float64(e.Subscribers), "kv-events")
		send(d.messages, counter, float64(e.Batches), "kv-events")
		send(d.dropped, counter, float64(e.Dropped), "kv-events")
		send(d.replays, counter, float64(e.Replays), "kv-events")
		send(d.badRequests, counter, float64(e.BadAsks), "kv-events")
	}
	if p := t.Plane; p != nil {
		send(d.subscribers, gauge, float64(p.Subscribers), "plane")
		send(d.messages, counter, float64(p.Messages), "plane")
		send(d.dropped, counter, float64(p.Dropped), "plane")
	}
}
