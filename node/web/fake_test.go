package web

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvcr-go/kvcr"
	"github.com/kvcr-go/kvcr/hints"
	"github.com/kvcr-go/kvcr/hints/events"
	"github.com/kvcr-go/kvcr/hints/keys"
	"github.com/kvcr-go/kvcr/hints/publish"
	"github.com/kvcr-go/kvcr/peer"
	"github.com/kvcr-go/kvcr/wire"
)

func TestMain(m *testing.M) {
	before := goleak.IgnoreCurrent()
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(before); err != nil {
			os.Stderr.WriteString("after all tests: " + err.Error() + "\n")
			code = 1
		}
	}
	os.Exit(code)
}

// fake is a node whose numbers the tests set.
type fake struct {
	mu       sync.Mutex
	stats    kvcr.Stats
	err      error
	server   ServerStats
	plan     kvcr.MemoryPlan
	config   []Setting
	peers    *PeerStats
	router   *publish.Totals
	reason   string // why not ready; empty: ready
	unready  bool
	started  time.Time
	asked    int // calls of Stats
	eachTime func(*fake)
}

func newFake() *fake {
	f := &fake{started: time.Now().Add(-26*time.Hour - 12*time.Minute)}
	f.plan = kvcr.MemoryPlan{
		PayloadBytes: 16 << 30, MetadataBytes: 212 << 20, Limit: 32 << 30, Source: "cgroup memory.max",
		SuggestedGoLimit: 14 << 30, CurrentGoLimit: 1<<63 - 1,
	}
	f.stats = kvcr.Stats{
		Counts: kvcr.Counts{Hits: 9_000_000, Misses: 1_000_000, Sets: 1_200_000, Deposits: 40_000, Deletes: 300, Evicted: 812_345, Refused: 3},
		Blocks: 260_000, PayloadBytes: 11 << 30, CapacityBytes: 16 << 30, MetadataBytes: 212 << 20, Handles: 7, SourceFaults: 1,
		Namespaces: []kvcr.NamespaceStats{
			{Name: "default", Kind: "flat", Policy: "density", Shards: 8, Blocks: 200_000, MaxBlocks: 1 << 20, PayloadBytes: 7 << 30,
				CapacityBytes: 12 << 30, FreeBytes: 4 << 30,
				Counts: kvcr.Counts{Stored: 1_100_000, Replaced: 20, Existing: 21, Evicted: 812_000, Deleted: 300, Refused: 3, IndexFull: 4, Dropped: 5, PolicyFaults: 6}},
			{Name: "blocks", Kind: "chained", Policy: "s3fifo", Shards: 1, PinnedOwners: 1, Blocks: 60_000, MaxBlocks: 65_536, PayloadBytes: 4 << 30,
				CapacityBytes: 4 << 30, Counts: kvcr.Counts{Stored: 40_000, Evicted: 345}},
		},
	}
	f.server = ServerStats{
		Conns: 42, MaxConns: 10_000, Accepted: 1234, Refused: 2, SlowConns: 1, BytesIn: 5 << 30, BytesOut: 70 << 30, Claims: 3,
		Shared: SharedStats{Clients: 2, Conns: 4, Gets: 1500, Hits: 1400, LentBytes: 7 << 30, Claims: 9, Left: 5, StagingBytes: 48 << 20, Commits: 77, CommittedBytes: 77 << 20, Dropped: 1},
		Commands: []CommandStats{
			{ProtocolRESP, CommandGet, 10_000_000, 0,
				LatencySnapshot{Count: 10_000_000, Sum: 830, P50: 81e-6, P99: 412e-6, P999: 1.31e-3, Max: 22e-3, Buckets: [len(latencyBounds)]uint64{17: 10_000_000, 4: 7}},
				LatencySnapshot{Count: 1000, Sum: 1, P50: 41e-6, P99: 212e-6, P999: 712e-6, Max: 1e-3}},
			{ProtocolBinary, CommandSet, 1_200_000, 5, LatencySnapshot{Count: 1_200_000, Sum: 144, P50: 118e-6, P99: 640e-6, P999: 2.2e-3, Max: 31e-3}, LatencySnapshot{}},
			{Proto: ProtocolRESP, Name: CommandDel, Calls: 300},
			{Proto: ProtocolRESP, Name: CommandOther, Calls: 17},
		},
		Latency: LatencySnapshot{Count: 11_200_317, Sum: 974, P50: 84e-6, P99: 455e-6, P999: 1.5e-3, Max: 31e-3},
		Recent:  LatencySnapshot{Count: 2000, Sum: 974, P50: 44e-6, P99: 255e-6, P999: 1e-3, Max: 2e-3},
	}
	f.peers = &PeerStats{
		Stats: peer.Stats{
			Fetched:    map[wire.Route]peer.Traffic{wire.RouteShm: {Blocks: 1200, Bytes: 1200 << 20}, wire.RouteStream: {Blocks: 34, Bytes: 34 << 20}},
			Served:     map[wire.Route]peer.Traffic{wire.RouteStream: {Blocks: 56, Bytes: 56 << 20}},
			Operations: 78, Refusals: 1, Refused: 2, Dials: 3, Reconnects: 4, Taken: peer.Moves{Moved: 11, Kept: 12}, Given: peer.Moves{Moved: 13, Kept: 14},
			Posted: 5 << 20, Quarantined: 6 << 20, Dests: 2, Sources: 1, Connections: 2,
		},
		Peers: []peer.PeerState{
			{Endpoint: "tcp://10.0.0.2:7390", Fetching: true, Name: "kvcr beta", Connected: true, Incarnation: 7, Route: wire.RouteShm, Operations: 9, Traffic: peer.Traffic{Blocks: 1200, Bytes: 1200 << 20}},
			{Endpoint: "tcp://10.0.0.3:7390", Fetching: true, LastError: errors.New("connection refused")},
			{Name: "kvcr gamma", Connected: true, Incarnation: 1 << 63, Route: wire.RouteStream, Traffic: peer.Traffic{Blocks: 56, Bytes: 56 << 20}},
		},
		Endpoints: []string{"tcp://10.0.0.1:7390"},
	}
	move, evict, other := hints.TypeCounts{Type: hints.TypeMove, Accepted: 21}, hints.TypeCounts{Type: hints.TypeEvict, Accepted: 4}, hints.TypeCounts{Type: "other"}
	move.Rejected[hints.MissingSource], move.Rejected[hints.InvalidHash], other.Rejected[hints.UnsupportedActionType] = 2, 1, 5
	f.stats.Hints = &kvcr.HintStats{
		Submitted: hints.Counts{Malformed: 6, Types: []hints.TypeCounts{move, evict, other}},
		Advice:    hints.AdviceCounts{Requests: 31, Hashes: 3100, Submitted: 40, Fallbacks: 2, Discarded: 7, Expired: 1, Pushed: 3, Failures: 8, Misses: 9},
		Actions:   2, Blocks: 300, Bytes: 12 << 20, RequestBlocks: 17, Joined: 18, NotRetained: 19, AdapterFaults: 1,
	}
	o := &f.stats.Hints.Outcomes
	o.Stages[hints.StageAccepted], o.Stages[hints.StageMoved], o.Stages[hints.StageEnd], o.Lost, o.Subscriptions = 25, 210, 23, 4, 3
	f.router = &publish.Totals{
		Table:     keys.TableStats{Keys: 60_000, Ambiguous: 1, Described: 59_000, Pending: 12, TokenBytes: 15 << 20, Foreign: 14, Refused: 15, Expired: 16},
		Published: &publish.Stats{Batches: 500, Events: 900, Stored: 70_000, Removed: 10_000, Undescribed: 11, Looped: 1, Refused: 2, Gaps: 1, Snapshots: 2, Failures: 3},
		Events:    &events.PublisherStats{Batches: 500, Dropped: 13, Replays: 5, BadAsks: 6, Subscribers: 2}, EventsAt: "tcp://127.0.0.1:5557", EventsReplayAt: "tcp://127.0.0.1:5558",
		Plane: &events.PlaneStats{Messages: 890, Dropped: 1, Subscribers: 1}, PlaneAt: "tcp://127.0.0.1:5600",
	}
	f.config = []Setting{
		{Name: "capacity", Value: "16GiB", Source: "flag"},
		{Name: "resp-password", Value: "hunter2", Source: "env KVCR_RESP_PASSWORD"},
		{Name: "peer-key", Value: "open sesame", Source: "file kvcr.yaml", Secret: true},
		{Name: "secret", Source: "default"},
	}
	return f
}

func (f *fake) set(change func(*fake)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *fake) Stats() (kvcr.Stats, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	if f.eachTime != nil {
		f.eachTime(f)
	}
	st := f.stats
	if st.Hints != nil {
		h := *st.Hints
		st.Hints = &h
	}
	st.Namespaces = append([]kvcr.NamespaceStats(nil), st.Namespaces...)
	return st, f.err
}

func (f *fake) Server() ServerStats {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := f.server
	st.Commands = append([]CommandStats(nil), st.Commands...)
	return st
}

func (f *fake) Ready() (bool, string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.unready, f.reason
}

func (f *fake) Peers() *PeerStats {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.peers == nil {
		return nil
	}
	p := *f.peers
	p.Peers = append([]peer.PeerState(nil), p.Peers...)
	return &p
}

func (f *fake) Router() *publish.Totals {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.router == nil {
		return nil
	}
	t := *f.router
	return &t
}

func (f *fake) Plan() kvcr.MemoryPlan { return f.plan }
func (f *fake) Config() []Setting     { return f.config }
func (f *fake) Version() string       { return "v1.2.3-test" }
func (f *fake) Started() time.Time    { return f.started }
func (f *fake) Claims() (int, int)    { return 17, 4 }

// serve runs a server until the test ends. A zero Addr is a free loopback port.
func serve(t *testing.T, opt Options) *Server {
	t.Helper()
	if opt.Addr == "" {
		opt.Addr = "127.0.0.1:0"
	}
	s, err := New(opt)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	t.Cleanup(func() {
		client.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return s
}

var client = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{}}

// request sends one and reads the whole answer. change may be nil.
func request(t *testing.T, s *Server, method, path string, change func(*http.Request)) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(method, "http://"+s.Addr().String()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(r)
	}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

func get(t *testing.T, s *Server, path string) string {
	t.Helper()
	resp, body := request(t, s, http.MethodGet, path, nil)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s: %s", path, resp.Status, body)
	}
	return body
}
