package web

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/hints/keys"
	"github.com/kvcr-go/kvcr/hints/publish"
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

var update = flag.Bool("update", false, "rewrite the golden file")

// family is one metric as a scraper sees it: its series are maps from labels to
// the value, of a histogram the count.
type family struct {
	kind, help string
	labels     map[string]bool
	series     map[string]float64
	buckets    map[string]uint64
	samples    int
}

// scrape parses /metrics as Prometheus does.
func scrape(t *testing.T, s *Server) map[string]*family {
	t.Helper()
	p := expfmt.NewTextParser(model.LegacyValidation)
	parsed, err := p.TextToMetricFamilies(strings.NewReader(get(t, s, "/metrics")))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*family{}
	for name, mf := range parsed {
		f := &family{kind: strings.ToLower(mf.GetType().String()), help: mf.GetHelp(), labels: map[string]bool{},
			series: map[string]float64{}, buckets: map[string]uint64{}}
		for _, m := range mf.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
				f.labels[l.GetName()] = true
			}
			key := strings.Join(labels, ",")
			f.samples++
			switch f.kind {
			case "counter":
				f.series[key] = m.GetCounter().GetValue()
			case "gauge":
				f.series[key] = m.GetGauge().GetValue()
			case "histogram":
				f.series[key] = float64(m.GetHistogram().GetSampleCount())
				f.samples++ // the sum
				for _, b := range m.GetHistogram().GetBucket() {
					f.buckets[fmt.Sprintf("%s@%g", key, b.GetUpperBound())] = b.GetCumulativeCount()
					f.samples++
				}
			}
		}
		out[name] = f
	}
	return out
}

// ours leaves out what Go's collectors add, which differs from one release and
// system to the next.
func ours(families map[string]*family) (names []string) {
	for name := range families {
		if strings.HasPrefix(name, "kvcr_") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Dashboards and alerts name the metrics: they change only on purpose.
func TestMetricNames(t *testing.T) {
	families := scrape(t, serve(t, Options{Source: newFake()}))
	var got strings.Builder
	for _, name := range ours(families) {
		f := families[name]
		var labels []string
		for l := range f.labels {
			labels = append(labels, l)
		}
		slices.Sort(labels)
		fmt.Fprintf(&got, "%s %s {%s} %s\n", name, f.kind, strings.Join(labels, ","), f.help)
	}
	const golden = "testdata/metrics.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("metrics differ from %s; -update rewrites it. They are\n%s", golden, got.String())
	}
}

func TestMetricConventions(t *testing.T) {
	families := scrape(t, serve(t, Options{Source: newFake()}))
	allowed := map[string]bool{"namespace": true, "proto": true, "command": true, "reason": true, "route": true, "side": true, "outcome": true, "type": true, "stage": true, "form": true}
	for _, name := range ours(families) {
		f := families[name]
		if total := strings.HasSuffix(name, "_total"); total != (f.kind == "counter") {
			t.Errorf("%s is a %s", name, f.kind)
		}
		if !regexp.MustCompile(`^[A-Z1].*\.$`).MatchString(f.help) {
			t.Errorf("%s: help is no sentence: %q", name, f.help)
		}
		for l := range f.labels {
			if !allowed[l] && name != "kvcr_build_info" {
				t.Errorf("%s has the label %q, which is in no closed set", name, l)
			}
		}
	}
	for _, name := range []string{"go_goroutines", "go_memstats_heap_alloc_bytes", "process_resident_memory_bytes", "process_open_fds"} {
		if families[name] == nil {
			t.Errorf("%s is missing", name)
		}
	}
}

func TestMetricValues(t *testing.T) {
	f := newFake()
	s := serve(t, Options{Source: f})
	families := scrape(t, s)
	for _, tt := range []struct {
		name, labels string
		want         float64
	}{
		{"kvcr_build_info", "version=v1.2.3-test", 1},
		{"kvcr_ready", "", 1},
		{"kvcr_engine_up", "", 1},
		{"kvcr_start_time_seconds", "", float64(f.started.UnixNano()) / 1e9},
		{"kvcr_reserved_payload_bytes", "", 16 << 30},
		{"kvcr_reserved_metadata_bytes", "", 212 << 20},
		{"kvcr_memory_limit_bytes", "", 32 << 30},
		{"kvcr_go_memory_limit_bytes", "", math.Inf(1)},
		{"kvcr_suggested_go_memory_limit_bytes", "", 14 << 30},
		{"kvcr_connections", "", 42},
		{"kvcr_connections_limit", "", 10_000},
		{"kvcr_connections_accepted_total", "", 1234},
		{"kvcr_connections_refused_total", "", 2},
		{"kvcr_connections_slow_total", "", 1},
		{"kvcr_received_bytes_total", "", 5 << 30},
		{"kvcr_sent_bytes_total", "", 70 << 30},
		{"kvcr_claims", "", 3},
		{"kvcr_latency_max_seconds", "", 31e-3},
		{"kvcr_shared_clients", "", 2},
		{"kvcr_shared_connections", "", 4},
		{"kvcr_shared_gets_total", "", 1500},
		{"kvcr_shared_hits_total", "", 1400},
		{"kvcr_shared_lent_bytes_total", "", 7 << 30},
		{"kvcr_shared_claims", "", 9},
		{"kvcr_shared_claims_left", "", 5},
		{"kvcr_shared_staging_bytes", "", 48 << 20},
		{"kvcr_shared_commits_total", "", 77},
		{"kvcr_shared_committed_bytes_total", "", 77 << 20},
		{"kvcr_shared_dropped_clients_total", "", 1},
		{"kvcr_http_connections", "", 1},
		{"kvcr_http_connections_limit", "", maxConns},
		{"kvcr_http_connections_refused_total", "", 0},
		{"kvcr_hits_total", "", 9_000_000},
		{"kvcr_misses_total", "", 1_000_000},
		{"kvcr_set_calls_total", "", 1_200_000},
		{"kvcr_offered_blocks_total", "", 40_000},
		{"kvcr_delete_calls_total", "", 300},
		{"kvcr_handles", "", 7},
		{"kvcr_source_faults_total", "", 1},
		{"kvcr_shards", "namespace=default", 8},
		{"kvcr_shards", "namespace=blocks", 1},
		{"kvcr_blocks", "namespace=default", 200_000},
		{"kvcr_blocks_limit", "namespace=default", 1 << 20},
		{"kvcr_payload_bytes", "namespace=default", 7 << 30},
		{"kvcr_payload_capacity_bytes", "namespace=default", 12 << 30},
		{"kvcr_payload_free_bytes", "namespace=default", 4 << 30},
		{"kvcr_stored_blocks_total", "namespace=default", 1_100_000},
		{"kvcr_replaced_blocks_total", "namespace=default", 20},
		{"kvcr_existing_blocks_total", "namespace=default", 21},
		{"kvcr_removed_blocks_total", "namespace=default,reason=evicted", 812_000},
		{"kvcr_removed_blocks_total", "namespace=default,reason=deleted", 300},
		{"kvcr_refused_writes_total", "namespace=default,reason=memory", 3},
		{"kvcr_refused_writes_total", "namespace=default,reason=index", 4},
		{"kvcr_refused_writes_total", "namespace=default,reason=policy", 5},
		{"kvcr_policy_faults_total", "namespace=default", 6},
		{"kvcr_peer_operations_total", "", 78},
		{"kvcr_peer_refusals_total", "", 1},
		{"kvcr_peer_refused_connections_total", "", 2},
		{"kvcr_peer_dials_total", "", 3},
		{"kvcr_peer_reconnects_total", "", 4},
		{"kvcr_peer_connections", "", 2},
		{"kvcr_peer_sources", "", 2},
		{"kvcr_peer_destinations", "", 1},
		{"kvcr_peer_posted_bytes", "", 5 << 20},
		{"kvcr_peer_quarantined_bytes", "", 6 << 20},
		{"kvcr_peer_fetched_blocks_total", "route=shm", 1200},
		{"kvcr_peer_fetched_bytes_total", "route=stream", 34 << 20},
		{"kvcr_peer_fetched_blocks_total", "route=ucx", 0},
		{"kvcr_peer_served_blocks_total", "route=stream", 56},
		{"kvcr_peer_served_bytes_total", "route=stream", 56 << 20},
		{"kvcr_peer_moves_total", "outcome=moved,side=destination", 11},
		{"kvcr_peer_moves_total", "outcome=kept,side=destination", 12},
		{"kvcr_peer_moves_total", "outcome=moved,side=source", 13},
		{"kvcr_peer_moves_total", "outcome=kept,side=source", 14},
		{"kvcr_hint_accepted_actions_total", "type=kv.move", 21},
		{"kvcr_hint_accepted_actions_total", "type=kv.fetch", 0},
		{"kvcr_hint_rejected_actions_total", "reason=missing_source,type=kv.move", 2},
		{"kvcr_hint_rejected_actions_total", "reason=invalid_hash,type=kv.move", 1},
		{"kvcr_hint_rejected_actions_total", "reason=unsupported_action_type,type=other", 5},
		{"kvcr_hint_rejected_actions_total", "reason=limit_exceeded,type=kv.evict", 0},
		{"kvcr_hint_outcomes_total", "stage=moved", 210},
		{"kvcr_hint_outcomes_total", "stage=end", 23},
		{"kvcr_hint_outcomes_total", "stage=failed", 0},
		{"kvcr_hint_malformed_envelopes_total", "", 6},
		{"kvcr_hint_advice_requests", "", 31},
		{"kvcr_hint_advice_hashes", "", 3100},
		{"kvcr_hint_advice_submitted_total", "", 40},
		{"kvcr_hint_advice_fallbacks_total", "", 2},
		{"kvcr_hint_advice_failures_total", "", 8},
		{"kvcr_hint_advice_misses_total", "", 9},
		{"kvcr_hint_advice_forgotten_total", "reason=discarded", 7},
		{"kvcr_hint_advice_forgotten_total", "reason=expired", 1},
		{"kvcr_hint_advice_forgotten_total", "reason=pushed", 3},
		{"kvcr_hint_work_actions", "", 2},
		{"kvcr_hint_work_blocks", "", 300},
		{"kvcr_hint_work_bytes", "", 12 << 20},
		{"kvcr_hint_request_blocks", "", 17},
		{"kvcr_hint_joined_blocks_total", "", 18},
		{"kvcr_hint_unretained_blocks_total", "", 19},
		{"kvcr_hint_adapter_faults_total", "", 1},
		{"kvcr_hint_lost_outcomes_total", "", 4},
		{"kvcr_hint_outcome_subscriptions", "", 3},
		{"kvcr_router_keys", "", 60_000},
		{"kvcr_router_ambiguous_hashes", "", 1},
		{"kvcr_router_described_keys", "", 59_000},
		{"kvcr_router_pending_descriptions", "", 12},
		{"kvcr_router_token_bytes", "", 15 << 20},
		{"kvcr_router_foreign_changes_total", "", 14},
		{"kvcr_router_refused_keys_total", "", 15},
		{"kvcr_router_expired_descriptions_total", "", 16},
		{"kvcr_router_event_batches_total", "", 500},
		{"kvcr_router_events_total", "", 900},
		{"kvcr_router_stored_blocks_total", "", 70_000},
		{"kvcr_router_removed_blocks_total", "", 10_000},
		{"kvcr_router_undescribed_blocks_total", "", 11},
		{"kvcr_router_unpublished_blocks_total", "reason=looped", 1},
		{"kvcr_router_unpublished_blocks_total", "reason=refused", 2},
		{"kvcr_router_gaps_total", "", 1},
		{"kvcr_router_snapshots_total", "", 2},
		{"kvcr_router_refused_batches_total", "", 3},
		{"kvcr_router_subscribers", "form=kv-events", 2},
		{"kvcr_router_subscribers", "form=plane", 1},
		{"kvcr_router_messages_total", "form=kv-events", 500},
		{"kvcr_router_messages_total", "form=plane", 890},
		{"kvcr_router_dropped_messages_total", "form=kv-events", 13},
		{"kvcr_router_dropped_messages_total", "form=plane", 1},
		{"kvcr_router_replays_total", "form=kv-events", 5},
		{"kvcr_router_bad_replay_requests_total", "form=kv-events", 6},
		{"kvcr_commands_total", "command=get,proto=resp", 10_000_000},
		{"kvcr_commands_total", "command=exists,proto=resp", 0},
		{"kvcr_commands_total", "command=get,proto=binary", 0},
		{"kvcr_command_errors_total", "command=set,proto=binary", 5},
		{"kvcr_command_latency_seconds", "command=set,proto=binary", 1_200_000},
		{"kvcr_command_latency_seconds", "command=del,proto=resp", 0},
	} {
		m := families[tt.name]
		if m == nil {
			t.Errorf("%s is missing", tt.name)
			continue
		}
		if got, ok := m.series[tt.labels]; !ok || got != tt.want {
			t.Errorf("%s{%s} = %g (there: %t), want %g", tt.name, tt.labels, got, ok, tt.want)
		}
	}
	buckets := families["kvcr_command_latency_seconds"].buckets
	for key, want := range map[string]uint64{"command=get,proto=resp@2.5e-06": 0, "command=get,proto=resp@5e-05": 7, "command=get,proto=resp@10": 10_000_000, "command=del,proto=resp@0.001": 0} {
		if got, ok := buckets[key]; !ok || got != want {
			t.Errorf("latency %s = %d (there: %t), want %d", key, got, ok, want)
		}
	}

	// A scrape reads the source anew.
	f.set(func(f *fake) { f.stats.Counts.Hits = 9_000_001; f.unready = true })
	families = scrape(t, s)
	if hits, ready := families["kvcr_hits_total"].series[""], families["kvcr_ready"].series[""]; hits != 9_000_001 || ready != 0 {
		t.Errorf("the next scrape: hits %g, ready %g", hits, ready)
	}

	// Without the engine the rest is there.
	f.set(func(f *fake) { f.err = errors.New("closed") })
	families = scrape(t, s)
	if up := families["kvcr_engine_up"].series[""]; up != 0 || families["kvcr_hits_total"] != nil || families["kvcr_shards"] != nil {
		t.Errorf("engine_up is %g; metrics of the engine must be absent", up)
	}
	if families["kvcr_connections"].series[""] != 42 {
		t.Error("connections are gone with the engine")
	}

	// A node without peers has no metrics of them, and one without routers none of
	// those.
	f.set(func(f *fake) { f.peers, f.router, f.stats.Hints, f.err = nil, nil, nil, nil })
	for name := range scrape(t, s) {
		for _, part := range []string{"peer", "hint", "router"} {
			if strings.HasPrefix(name, "kvcr_"+part+"_") {
				t.Errorf("%s of a node that has no such thing", name)
			}
		}
	}

	// One that publishes nothing has a table, and no metrics of events.
	f.set(func(f *fake) { f.router = &publish.Totals{Table: keys.TableStats{Keys: 3}} })
	families = scrape(t, s)
	if n := families["kvcr_router_keys"]; n == nil || n.series[""] != 3 || families["kvcr_router_events_total"] != nil || families["kvcr_router_subscribers"] != nil {
		t.Error("a node that publishes nothing has metrics of that, or none of its table")
	}
}

// Case J2: what clients, keys and peers do must not make series.
func TestSeriesAreBounded(t *testing.T) {
	f := newFake()
	f.server = ServerStats{}
	s := serve(t, Options{Source: f})
	samples := func() (n int) {
		families := scrape(t, s)
		for _, name := range ours(families) {
			n += families[name].samples
		}
		return n
	}
	before := samples()
	f.set(func(f *fake) {
		f.server.Accepted, f.server.Conns, f.server.Claims = 1_000_000, 10_000, 1_000
		for i := range 10_000 {
			f.server.Commands = append(f.server.Commands, CommandStats{Name: fmt.Sprintf("client-%d", i), Calls: 1, Errors: 1,
				Latency: LatencySnapshot{Count: 1, Sum: 1, P50: 1, P99: 1, P999: 1, Max: 1}})
		}
		for i := range 1000 {
			f.peers.Peers = append(f.peers.Peers, peer.PeerState{Name: fmt.Sprintf("peer-%d", i), Incarnation: peer.Incarnation(i + 1), Route: wire.Route(i)})
			f.peers.Fetched[wire.Route(i)] = peer.Traffic{Blocks: 1}
		}
		h := *f.stats.Hints
		h.Submitted.Types = nil
		for i := range 10_000 {
			h.Submitted.Types = append(h.Submitted.Types, hints.TypeCounts{Type: fmt.Sprintf("type-%d", i), Accepted: 1})
		}
		f.stats.Hints = &h
		f.stats.Blocks, f.stats.Handles = 1_000_000, 10_000
		for i := range f.stats.Namespaces {
			f.stats.Namespaces[i].Blocks = 1_000_000
		}
	})
	if after := samples(); after != before {
		t.Errorf("%d series became %d", before, after)
	}
	if n := scrape(t, s)["kvcr_commands_total"].series["command=other,proto=binary"]; n != 10_000 {
		t.Errorf("commands of other names: %g, want 10000", n)
	}
	if n := scrape(t, s)["kvcr_hint_accepted_actions_total"].series["type=other"]; n != 10_000 {
		t.Errorf("actions of other types: %g, want 10000", n)
	}
}
