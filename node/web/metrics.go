package web

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/kvcr-go/kvcr"
)

const (
	counter = prometheus.CounterValue
	gauge   = prometheus.GaugeValue
)

// scalar is one series read from a T, which is one of the snapshots.
type scalar[T any] struct {
	name, help string
	kind       prometheus.ValueType
	reason     string // value of the label reason; empty: the metric has none
	read       func(*T) float64
}

// node is what is known without the engine.
type node struct {
	plan   kvcr.MemoryPlan
	server ServerStats
	ready  bool
	up     bool // the engine gave its counters
	start  float64
	pages  *pageConns
}

var nodeMetrics = []scalar[node]{
	{"kvcr_ready", "1 while clients are served.", gauge, "", func(n *node) float64 { return boolean(n.ready) }},
	{"kvcr_engine_up", "1 while the engine gives its counters; the other metrics of the engine are absent while 0.", gauge, "", func(n *node) float64 { return boolean(n.up) }},
	{"kvcr_start_time_seconds", "Start of the node, in seconds since 1970.", gauge, "", func(n *node) float64 { return n.start }},

	{"kvcr_reserved_payload_bytes", "Memory reserved for payloads.", gauge, "", func(n *node) float64 { return float64(n.plan.PayloadBytes) }},
	{"kvcr_reserved_metadata_bytes", "Memory reserved for records and index.", gauge, "", func(n *node) float64 { return float64(n.plan.MetadataBytes) }},
	{"kvcr_memory_limit_bytes", "Memory of the container or host; +Inf when unknown.", gauge, "", func(n *node) float64 { return unbounded(n.plan.Limit) }},
	{"kvcr_go_memory_limit_bytes", "Soft memory limit of the Go runtime; +Inf for none.", gauge, "", func(n *node) float64 { return unbounded(n.plan.CurrentGoLimit) }},
	{"kvcr_suggested_go_memory_limit_bytes", "What the Go runtime's soft memory limit should be beside the reserved memory; +Inf when unknown.", gauge, "", func(n *node) float64 { return unbounded(n.plan.SuggestedGoLimit) }},

	{"kvcr_connections", "Open connections of clients.", gauge, "", func(n *node) float64 { return float64(n.server.Conns) }},
	{"kvcr_connections_limit", "Cap on open connections of clients.", gauge, "", func(n *node) float64 { return float64(n.server.MaxConns) }},
	{"kvcr_connections_accepted_total", "Connections accepted from clients.", counter, "", func(n *node) float64 { return float64(n.server.Accepted) }},
	{"kvcr_connections_refused_total", "Connections refused over the cap.", counter, "", func(n *node) float64 { return float64(n.server.Refused) }},
	{"kvcr_connections_slow_total", "Connections that left their event loop since they did not read as fast as they asked.", counter, "", func(n *node) float64 { return float64(n.server.SlowConns) }},
	{"kvcr_received_bytes_total", "Bytes received from clients.", counter, "", func(n *node) float64 { return float64(n.server.BytesIn) }},
	{"kvcr_sent_bytes_total", "Bytes sent to clients.", counter, "", func(n *node) float64 { return float64(n.server.BytesOut) }},
	{"kvcr_claims", "Views that connections hold.", gauge, "", func(n *node) float64 { return float64(n.server.Claims) }},
	{"kvcr_latency_max_seconds", "Longest command since the start.", gauge, "", func(n *node) float64 { return n.server.Latency.Max }},

	{"kvcr_shared_clients", "Processes that have shared memory.", gauge, "", func(n *node) float64 { return float64(n.server.Shared.Clients) }},
	{"kvcr_shared_connections", "Connections of clients with shared memory.", gauge, "", func(n *node) float64 { return float64(n.server.Shared.Conns) }},
	{"kvcr_shared_gets_total", "Keys that clients with shared memory asked for.", counter, "", func(n *node) float64 { return float64(n.server.Shared.Gets) }},
	{"kvcr_shared_hits_total", "Keys that clients with shared memory asked for and that were found.", counter, "", func(n *node) float64 { return float64(n.server.Shared.Hits) }},
	{"kvcr_shared_lent_bytes_total", "Bytes of values lent to be read in place.", counter, "", func(n *node) float64 { return float64(n.server.Shared.LentBytes) }},
	{"kvcr_shared_claims", "Claims that clients with shared memory hold.", gauge, "", func(n *node) float64 { return float64(n.server.Shared.Claims) }},
	{"kvcr_shared_claims_left", "Claims of connections that have ended, kept until their process has.", gauge, "", func(n *node) float64 { return float64(n.server.Shared.Left) }},
	{"kvcr_shared_staging_bytes", "Memory that clients may write values to.", gauge, "", func(n *node) float64 { return float64(n.server.Shared.StagingBytes) }},
	{"kvcr_shared_commits_total", "Values stored from staging memory.", counter, "", func(n *node) float64 { return float64(n.server.Shared.Commits) }},
	{"kvcr_shared_committed_bytes_total", "Bytes of values stored from staging memory.", counter, "", func(n *node) float64 { return float64(n.server.Shared.CommittedBytes) }},
	{"kvcr_shared_dropped_clients_total", "Processes that ended without having released all claims.", counter, "", func(n *node) float64 { return float64(n.server.Shared.Dropped) }},

	{"kvcr_http_connections", "Open connections of the HTTP listener.", gauge, "", func(n *node) float64 { return float64(n.pages.open.Load()) }},
	{"kvcr_http_connections_limit", "Cap on open connections of the HTTP listener.", gauge, "", func(n *node) float64 { return maxConns }},
	{"kvcr_http_connections_refused_total", "Connections of the HTTP listener refused over the cap.", counter, "", func(n *node) float64 { return float64(n.pages.refused.Load()) }},
}

var engineMetrics = []scalar[kvcr.Stats]{
	{"kvcr_hits_total", "Lookups that found their key.", counter, "", func(s *kvcr.Stats) float64 { return float64(s.Counts.Hits) }},
	{"kvcr_misses_total", "Lookups that did not find their key.", counter, "", func(s *kvcr.Stats) float64 { return float64(s.Counts.Misses) }},
	{"kvcr_set_calls_total", "Calls that set a value.", counter, "", func(s *kvcr.Stats) float64 { return float64(s.Counts.Sets) }},
	{"kvcr_offered_blocks_total", "Blocks offered by deposits.", counter, "", func(s *kvcr.Stats) float64 { return float64(s.Counts.Deposits) }},
	{"kvcr_delete_calls_total", "Calls that delete.", counter, "", func(s *kvcr.Stats) float64 { return float64(s.Counts.Deletes) }},
	{"kvcr_handles", "Open handles of the engine.", gauge, "", func(s *kvcr.Stats) float64 { return float64(s.Handles) }},
	{"kvcr_source_faults_total", "Panics of the remote source.", counter, "", func(s *kvcr.Stats) float64 { return float64(s.SourceFaults) }},
}

var namespaceMetrics = []scalar[kvcr.NamespaceStats]{
	{"kvcr_shards", "Shards.", gauge, "", func(n *kvcr.NamespaceStats) float64 { return float64(n.Shards) }},
	{"kvcr_blocks", "Resident blocks.", gauge, "", func(n *kvcr.NamespaceStats) float64 { return float64(n.Blocks) }},
	{"kvcr_blocks_limit", "Cap on resident blocks.", gauge, "", func(n *kvcr.NamespaceStats) float64 { return float64(n.MaxBlocks) }},
	{"kvcr_payload_bytes", "Bytes of resident blocks.", gauge, "", func(n *kvcr.NamespaceStats) float64 { return float64(n.PayloadBytes) }},
	{"kvcr_payload_capacity_bytes", "Payload memory.", gauge, "", func(n *kvcr.NamespaceStats) float64 { return float64(n.CapacityBytes) }},
	{"kvcr_payload_free_bytes", "Payload memory that no block has taken.", gauge, "", func(n *kvcr.NamespaceStats) float64 { return float64(n.FreeBytes) }},
	{"kvcr_stored_blocks_total", "Blocks that became resident.", counter, "", func(n *kvcr.NamespaceStats) float64 { return float64(n.Counts.Stored) }},
	{"kvcr_replaced_blocks_total", "Values replaced by newer ones.", counter, "", func(n *kvcr.NamespaceStats) float64 { return float64(n.Counts.Replaced) }},
	{"kvcr_existing_blocks_total", "Deposits of blocks that were resident.", counter, "", func(n *kvcr.NamespaceStats) float64 { return float64(n.Counts.Existing) }},
	{"kvcr_removed_blocks_total", "Blocks removed, by the policy (evicted) or by hand (deleted).", counter, "evicted", func(n *kvcr.NamespaceStats) float64 { return float64(n.Counts.Evicted) }},
	{"kvcr_removed_blocks_total", "Blocks removed, by the policy (evicted) or by hand (deleted).", counter, "deleted", func(n *kvcr.NamespaceStats) float64 { return float64(n.Counts.Deleted) }},
	{"kvcr_refused_writes_total", "Writes refused, for lack of memory or index, or by the policy.", counter, "memory", func(n *kvcr.NamespaceStats) float64 { return float64(n.Counts.Refused) }},
	{"kvcr_refused_writes_total", "Writes refused, for lack of memory or index, or by the policy.", counter, "index", func(n *kvcr.NamespaceStats) float64 { return float64(n.Counts.IndexFull) }},
	{"kvcr_refused_writes_total", "Writes refused, for lack of memory or index, or by the policy.", counter, "policy", func(n *kvcr.NamespaceStats) float64 { return float64(n.Counts.Dropped) }},
	{"kvcr_policy_faults_total", "Panics and bad answers of an embedder's policy.", counter, "", func(n *kvcr.NamespaceStats) float64 { return float64(n.Counts.PolicyFaults) }},
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func unbounded(v int64) float64 {
	if v == math.MaxInt64 {
		return math.Inf(1)
	}
	return float64(v)
}

// collector reads its source when it is scraped.
type collector struct {
	src   Source
	pages *pageConns

	ofNode, ofEngine, ofNamespace, ofPeers, ofHints, ofTable, ofPublished []*prometheus.Desc // beside the tables

	peers  peerSeries
	hints  hintSeries
	router routerSeries

	build, calls, errors, latency *prometheus.Desc
}

// ofCommand are the labels of what is counted for each kind of command.
var ofCommand = []string{"proto", "command"}

func newCollector(src Source, pages *pageConns) *collector {
	return &collector{
		src: src, pages: pages,
		ofNode:      describe(nodeMetrics),
		ofEngine:    describe(engineMetrics),
		ofNamespace: describe(namespaceMetrics, "namespace"),
		ofPeers:     describe(peerMetrics),
		ofHints:     describe(hintMetrics),
		ofTable:     describe(tableMetrics),
		ofPublished: describe(publishedMetrics),
		peers:       newPeerSeries(),
		hints:       newHintSeries(),
		router:      newRouterSeries(),

		build:   prometheus.NewDesc("kvcr_build_info", "1, with the version of the node.", nil, prometheus.Labels{"version": src.Version()}),
		calls:   prometheus.NewDesc("kvcr_commands_total", "Commands of clients.", ofCommand, nil),
		errors:  prometheus.NewDesc("kvcr_command_errors_total", "Commands answered with an error; a miss is none.", ofCommand, nil),
		latency: prometheus.NewDesc("kvcr_command_latency_seconds", "Time from reading a command to giving its answer to the kernel.", ofCommand, nil),
	}
}

func describe[T any](metrics []scalar[T], labels ...string) []*prometheus.Desc {
	var out []*prometheus.Desc
	for _, m := range metrics {
		names := labels
		if m.reason != "" {
			names = append(names[:len(names):len(names)], "reason")
		}
		out = append(out, prometheus.NewDesc(m.name, m.help, names, nil))
	}
	return out
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, descs := range [][]*prometheus.Desc{c.ofNode, c.ofEngine, c.ofNamespace, c.ofPeers, c.ofHints, c.ofTable, c.ofPublished,
		c.peers.all(), c.hints.all(), c.router.all(), {c.build, c.calls, c.errors, c.latency}} {
		for _, d := range descs {
			ch <- d
		}
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	n := node{plan: c.src.Plan(), server: c.src.Server(), start: float64(c.src.Started().UnixNano()) / 1e9, pages: c.pages}
	n.ready, _ = c.src.Ready()
	engine, err := c.src.Stats()
	n.up = err == nil

	emit(ch, nodeMetrics, c.ofNode, &n)
	if n.up {
		emit(ch, engineMetrics, c.ofEngine, &engine)
		for i := range engine.Namespaces {
			emit(ch, namespaceMetrics, c.ofNamespace, &engine.Namespaces[i], engine.Namespaces[i].Name)
		}
		if h := engine.Hints; h != nil {
			emit(ch, hintMetrics, c.ofHints, h)
			c.hints.emit(ch, h)
		}
	}
	if t := c.src.Router(); t != nil {
		emit(ch, tableMetrics, c.ofTable, t)
		if t.Published != nil {
			emit(ch, publishedMetrics, c.ofPublished, t.Published)
		}
		c.router.emit(ch, t)
	}
	if p := c.src.Peers(); p != nil {
		emit(ch, peerMetrics, c.ofPeers, p)
		c.peers.emit(ch, p)
	}
	ch <- prometheus.MustNewConstMetric(c.build, gauge, 1)
	for _, s := range byCommand(n.server.Commands) {
		ch <- prometheus.MustNewConstMetric(c.calls, counter, float64(s.Calls), s.Proto, s.Name)
		ch <- prometheus.MustNewConstMetric(c.errors, counter, float64(s.Errors), s.Proto, s.Name)
		ch <- histogram(c.latency, s.Latency, s.Proto, s.Name)
	}
}

func emit[T any](ch chan<- prometheus.Metric, metrics []scalar[T], descs []*prometheus.Desc, from *T, labels ...string) {
	for i, m := range metrics {
		values := labels
		if m.reason != "" {
			values = append(values[:len(values):len(values)], m.reason)
		}
		ch <- prometheus.MustNewConstMetric(descs[i], m.kind, m.read(from), values...)
	}
}

func histogram(d *prometheus.Desc, l LatencySnapshot, labels ...string) prometheus.Metric {
	buckets := map[float64]uint64{}
	for i, bound := range latencyBounds {
		buckets[bound.Seconds()] = l.Buckets[i]
	}
	return prometheus.MustNewConstHistogram(d, l.Count, l.Sum, buckets, labels...)
}

// newRegistry has our metrics and those of the process and the Go runtime.
func newRegistry(src Source, pages *pageConns) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(newCollector(src, pages), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}
