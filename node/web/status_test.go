package web

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"testing"
	"time"
)

func TestStatus(t *testing.T) {
	f := newFake()
	st := readStatus(f, true)
	if up := st.UptimeSeconds; up < 94_319 || up > 94_900 {
		t.Errorf("uptime %g s, want 26 h 12 min", up)
	}
	if !st.Started.Equal(f.started) || st.Version != "v1.2.3-test" || !st.Ready || !st.Debug {
		t.Errorf("head is %v %q %t %t", st.Started, st.Version, st.Ready, st.Debug)
	}
	if want := (MemoryStatus{
		Reserved: 16<<30 + 212<<20, Capacity: 16 << 30, Used: 12 << 30, Payload: 11 << 30, Metadata: 212 << 20,
		Limit: 32 << 30, LimitSource: "cgroup memory.max", GoLimit: 0,
	}); st.Memory != want {
		t.Errorf("memory\n%+v, want\n%+v", st.Memory, want)
	}
	if want := (CacheStatus{
		Blocks: 260_000, Handles: 7, Hits: 9_000_000, Misses: 1_000_000, Sets: 1_200_000, Deposits: 40_000, Deletes: 300,
		Evicted: 812_345, Refused: 3, SourceFaults: 1,
	}); st.Cache != want {
		t.Errorf("cache\n%+v, want\n%+v", st.Cache, want)
	}
	if want := (ConnectionStatus{Open: 42, Max: 10_000, Accepted: 1234, Refused: 2, Slow: 1, BytesIn: 5 << 30, BytesOut: 70 << 30, Claims: 3}); st.Connections != want {
		t.Errorf("connections\n%+v, want\n%+v", st.Connections, want)
	}
	if want := (SharedStatus{2, 4, 1500, 1400, 7 << 30, 9, 5, 48 << 20, 77, 77 << 20, 1}); st.Shared != want {
		t.Errorf("shared memory\n%+v, want\n%+v", st.Shared, want)
	}
	if st.Operations.Total != 11_200_317 || st.Operations.Errors != 5 {
		t.Errorf("%d operations, %d errors", st.Operations.Total, st.Operations.Errors)
	}
	if want := (CommandStatus{ProtocolRESP, CommandGet, 10_000_000, 0, LatencyStatus{10_000_000, 81e-6, 412e-6, 1.31e-3, 22e-3}, LatencyStatus{1000, 41e-6, 212e-6, 712e-6, 1e-3}}); st.Operations.Commands[0] != want {
		t.Errorf("first command\n%+v, want\n%+v", st.Operations.Commands[0], want)
	}
	if want := (LatencyStatus{11_200_317, 84e-6, 455e-6, 1.5e-3, 31e-3}); st.Operations.Latency != want {
		t.Errorf("latency\n%+v, want\n%+v", st.Operations.Latency, want)
	}
	if want := (LatencyStatus{2000, 44e-6, 255e-6, 1e-3, 2e-3}); st.Operations.Recent != want {
		t.Errorf("recent latency\n%+v, want\n%+v", st.Operations.Recent, want)
	}
	if want := (NamespaceStatus{
		Name: "default", Kind: "flat", Policy: "density", Pages: f.stats.Namespaces[0].Placement.Pages.String(), Shards: 8,
		Blocks: 200_000, MaxBlocks: 1 << 20, Payload: 7 << 30, Capacity: 12 << 30, Used: 8 << 30,
		Stored: 1_100_000, Evicted: 812_000, Refused: 3, IndexFull: 4, Dropped: 5,
	}); len(st.Namespaces) != 2 || st.Namespaces[0] != want {
		t.Errorf("namespaces\n%+v, want first\n%+v", st.Namespaces, want)
	}
}

// What is wrong with one part hides only that part, and JSON can hold it.
func TestStatusOfTrouble(t *testing.T) {
	f := newFake()
	f.err, f.unready, f.reason = errors.New("kvcr: stats: closed"), true, "closing"
	f.stats.Namespaces = nil
	f.plan.Limit = math.MaxInt64
	f.server.Latency.P999 = math.NaN()
	f.server.Commands[0].Latency.Max = math.Inf(1)
	f.started = time.Time{}
	b, err := json.Marshal(readStatus(f, false))
	if err != nil {
		t.Fatal(err)
	}
	var st Status
	if err := json.Unmarshal(b, &st); err != nil {
		t.Fatal(err)
	}
	if st.Ready || st.Reason != "closing" || st.EngineError != "kvcr: stats: closed" {
		t.Errorf("ready %t, reason %q, engine %q", st.Ready, st.Reason, st.EngineError)
	}
	if st.Cache != (CacheStatus{}) || st.Namespaces == nil || len(st.Namespaces) != 0 {
		t.Errorf("counters of an engine that gave none: %+v, %+v", st.Cache, st.Namespaces)
	}
	if st.Memory.Limit != 0 || st.Memory.Reserved == 0 || st.Connections.Open != 42 || st.Operations.Total == 0 {
		t.Errorf("what needs no engine: %+v %+v %+v", st.Memory, st.Connections, st.Operations)
	}
	if st.Operations.Latency.P999 != 0 || st.Operations.Commands[0].Latency.Max != 0 {
		t.Errorf("numbers that are none: %+v", st.Operations)
	}
}

func TestByCommand(t *testing.T) {
	one := LatencySnapshot{Count: 1, Sum: 2, P50: 3, P99: 4, P999: 5, Max: 6, Buckets: [len(latencyBounds)]uint64{2: 1}}
	for _, tt := range []struct {
		name  string
		given []CommandStats
		want  []CommandStats // those that are not zero
	}{
		{"nothing", nil, nil},
		{"another order", []CommandStats{{Proto: "binary", Name: "get", Calls: 1}, {Proto: "resp", Name: "other", Calls: 1}, {Proto: "resp", Name: "get", Calls: 2, Errors: 3, Latency: one, Recent: one}},
			[]CommandStats{{"resp", "get", 2, 3, one, one}, {Proto: "resp", Name: "other", Calls: 1}, {Proto: "binary", Name: "get", Calls: 1}}},
		{"unknown names", []CommandStats{{Name: "client-17", Calls: 1}, {Name: "", Calls: 2, Errors: 1}, {Proto: "resp", Name: "GET", Calls: 4}, {Proto: "RESP", Name: "get", Calls: 8}},
			[]CommandStats{{Proto: "resp", Name: "other", Calls: 4}, {Proto: "binary", Name: "get", Calls: 8}, {Proto: "binary", Name: "other", Calls: 3, Errors: 1}}},
		{"a pair twice", []CommandStats{{"resp", "set", 1, 0, one, one}, {"resp", "set", 2, 1, LatencySnapshot{Count: 10, Sum: 1, P50: 1, P99: 7, P999: 1, Max: 7, Buckets: [len(latencyBounds)]uint64{2: 3, 3: 4}}, LatencySnapshot{}}},
			[]CommandStats{{"resp", "set", 3, 1, LatencySnapshot{Count: 11, Sum: 3, P50: 3, P99: 7, P999: 5, Max: 7, Buckets: [len(latencyBounds)]uint64{2: 4, 3: 4}}, one}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			all := byCommand(tt.given)
			var got []CommandStats
			for i, c := range all {
				if c.Proto != Protocols()[i/len(Commands())] || c.Name != Commands()[i%len(Commands())] {
					t.Errorf("number %d is %s %s", i, c.Proto, c.Name)
				}
				if c.Calls > 0 {
					got = append(got, c)
				}
			}
			if len(all) != len(Protocols())*len(Commands()) || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%d elements, got\n%+v, want\n%+v", len(all), got, tt.want)
			}
		})
	}
}

func TestSettingShown(t *testing.T) {
	for _, tt := range []struct {
		s    Setting
		want string
	}{
		{Setting{Name: "capacity", Value: "1GiB"}, "1GiB"},
		{Setting{Name: "capacity"}, ""},
		{Setting{Name: "secret-file", Value: "/run/secret"}, "/run/secret"},
		{Setting{Name: "peer-secret", Value: "x"}, "set"},
		{Setting{Name: "Peer-SECRET", Value: "x"}, "set"},
		{Setting{Name: "password", Value: ""}, "unset"},
		{Setting{Name: "nats-credentials", Value: "x"}, "set"},
		{Setting{Name: "nats-token", Value: "x"}, "set"},
		{Setting{Name: "key", Value: "x", Secret: true}, "set"},
		{Setting{Name: "key", Secret: true}, "unset"},
	} {
		if got := tt.s.Shown(); got != tt.want {
			t.Errorf("%+v is shown as %q, want %q", tt.s, got, tt.want)
		}
	}
}
