package main

import (
	"strings"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/hints/events"
)

const someRecipe = "dynamo/xxh3-1337/bs64"

func TestRouterSettingsRefused(t *testing.T) {
	with := func(args ...string) []string { return append([]string{"--hash-recipe", someRecipe}, args...) }
	for _, tt := range []struct {
		name    string
		args    []string
		environ []string
		want    []string // all in the message
	}{
		{"unknown recipe", []string{"--hash-recipe", "md5"}, nil, []string{"flag: hash-recipe", `"md5"`, "dynamo/xxh3-1337/bs64"}},
		{"recipe without a seed", []string{"--hash-recipe", "dynamo/xxh3/bs64"}, nil, []string{"hash-recipe", "seed", "1337"}},
		{"recipe of another style", []string{"--hash-recipe", "dynamo/sha256/bs64"}, nil, []string{"hash-recipe", `"sha256"`, "xxh3"}},
		{"recipe without tokens", []string{"--hash-recipe", "dynamo/xxh3-1337/bs0"}, nil, []string{"hash-recipe", "block size", "1 to 1048576"}},
		{"by the environment", nil, []string{"KVCR_HASH_RECIPE=md5"}, []string{"env KVCR_HASH_RECIPE", `"md5"`}},

		{"events without a recipe", []string{"--events", "tcp://127.0.0.1:0"}, nil, []string{"flag: events", "without hash-recipe"}},
		{"rank without a recipe", []string{"--rank", "1"}, nil, []string{"flag: rank", "without hash-recipe"}},
		{"the environment without a recipe", nil, []string{"KVCR_EVENT_PLANE=tcp://127.0.0.1:0"}, []string{"env KVCR_EVENT_PLANE: event-plane", "without hash-recipe"}},
		{"replay without events", with("--events-replay", "tcp://127.0.0.1:0"), nil, []string{"flag: events-replay", "without events"}},

		{"events for all", with("--events", "tcp://*:5557"), nil, []string{"flag: events:", `"tcp://*:5557"`, "--public true"}},
		{"events for all, by number", with("--events", "tcp://0.0.0.0:5557"), nil, []string{"flag: events:", "--public true"}},
		{"events for all of IPv6", with("--events", "tcp://[::]:5557"), nil, []string{"flag: events:", "--public true"}},
		{"events at an address", with("--events", "tcp://10.1.2.3:5557"), nil, []string{"flag: events:", "--public true"}},
		{"events at a name like loopback", with("--events", "tcp://127.0.0.1.example.org:5557"), nil, []string{"flag: events:", "--public true"}},
		{"replay for all", with("--events", "tcp://127.0.0.1:0", "--events-replay", "tcp://*:5558"), nil, []string{"flag: events-replay:", "--public true"}},
		{"replay at an address", with("--events", "tcp://127.0.0.1:0", "--events-replay", "tcp://10.1.2.3:5558"), nil, []string{"flag: events-replay:", "--public true"}},
		{"plane for all", with("--event-plane", "tcp://0.0.0.0:0"), nil, []string{"flag: event-plane:", "--public true"}},
		{"plane at an address", with("--event-plane", "tcp://10.1.2.3:0"), nil, []string{"flag: event-plane:", "--public true"}},
		{"replay beside a router that listens", with("--events-connect", "true", "--events", "tcp://10.1.2.3:5557", "--events-replay", "tcp://10.1.2.3:5558"), nil, []string{"flag: events-replay:", "--public true"}},

		{"no endpoint", with("--events", "127.0.0.1:5557"), nil, []string{"flag: events", `"127.0.0.1:5557"`, "tcp://HOST:PORT"}},
		{"no port", with("--events", "tcp://127.0.0.1"), nil, []string{"flag: events", "tcp://HOST:PORT"}},
		{"out of reach", with("--events", "inproc://x"), nil, []string{"flag: events", "ipc://PATH"}},
		{"another transport", with("--event-plane", "udp://127.0.0.1:1"), nil, []string{"flag: event-plane", "tcp://HOST:PORT"}},
		{"connects to nobody", with("--events-connect", "true"), nil, []string{"flag: events-connect", "address of a router"}},
		{"connects to all", with("--events-connect", "true", "--events", "tcp://*:5557"), nil, []string{"flag: events-connect", `"tcp://*:5557"`}},
		{"connects perhaps", with("--events-connect", "maybe"), nil, []string{"events-connect", "true or false"}},
		{"no worker", with("--worker-id", "one"), nil, []string{"worker-id", `"one"`, "2^64-1"}},
		{"no rank", with("--rank", "x"), nil, []string{"rank", `"x"`}},
		{"a negative rank", with("--rank=-1"), nil, []string{"rank", `"-1"`}},
		{"too large a rank", with("--rank", "65536"), nil, []string{"rank", `"65536"`, "0 to 65535"}},
		{"no form", with("--events-form", "xml"), nil, []string{"events-form", `"xml"`, "map, array"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, _, msg := call(t, tt.environ, append([]string{"config"}, tt.args...)...)
			if code != 2 {
				t.Errorf("exit code %d, want 2", code)
			}
			for _, w := range tt.want {
				if !strings.Contains(msg, w) {
					t.Errorf("message %q lacks %q", msg, w)
				}
			}
		})
	}
}

func TestRouterSettings(t *testing.T) {
	text := func(s string) *string { return &s }
	resolve := func(f routerFlags, n nodeFlags) *engineConfig {
		t.Helper()
		_, cfg, err := (&engineFlags{}).resolve(&env{}, &f, &n)
		if err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	if r := resolve(routerFlags{}, nodeFlags{}).node.Router; r != nil {
		t.Errorf("without a recipe: %+v", r)
	}
	r := resolve(routerFlags{HashRecipe: text(someRecipe), WorkerId: text("0xffffffffffffffff"), Rank: text("3")}, nodeFlags{}).node.Router
	if r.Recipe.String() != someRecipe || r.Worker != 1<<64-1 || r.Rank != 3 || r.Events != nil || r.Plane != nil {
		t.Errorf("%+v", r)
	}
	r = resolve(routerFlags{
		HashRecipe: text(someRecipe), Events: text("tcp://127.0.0.1:5557"), EventsReplay: text("tcp://localhost:5558"), EventsTopic: text("kv"),
		EventsForm: text("array"), EventPlane: text("ipc:///run/plane"),
	}, nodeFlags{}).node.Router
	if e := r.Events; e.Endpoint != "tcp://127.0.0.1:5557" || !e.Bind || e.Replay != "tcp://localhost:5558" || e.Topic != "kv" || e.Form != events.Arrays || r.Plane.Endpoint != "ipc:///run/plane" {
		t.Errorf("%+v %+v", e, r.Plane)
	}
	// Others may be let in, and a router may be where one connects to.
	r = resolve(routerFlags{HashRecipe: text(someRecipe), Events: text("tcp://*:5557"), EventsReplay: text("tcp://0.0.0.0:5558"), EventPlane: text("tcp://10.1.2.3:0")}, nodeFlags{Public: text("true")}).node.Router
	if !r.Events.Bind || r.Plane == nil {
		t.Errorf("%+v", r)
	}
	r = resolve(routerFlags{HashRecipe: text(someRecipe), Events: text("tcp://10.1.2.3:5557"), EventsConnect: text("true")}, nodeFlags{}).node.Router
	if r.Events.Bind {
		t.Errorf("%+v", r.Events)
	}
}

// What a node announces is where it listens, also at a port that was named.
func TestServeAnnouncesEvents(t *testing.T) {
	n := hinting(t, "--events", "tcp://127.0.0.1:0", "--events-replay", "tcp://127.0.0.1:0", "--event-plane", "tcp://127.0.0.1:0")
	if n("hints") != "dynamo/xxh3-1337/bs16" {
		t.Errorf("hints %s", n("hints"))
	}
	for _, what := range []string{"events", "replay", "plane"} {
		if at := n(what); !strings.HasPrefix(at, "tcp://127.0.0.1:") || strings.HasSuffix(at, ":0") {
			t.Errorf("%s at %s", what, at)
		}
	}
	c, err := events.NewConsumer(events.ConsumerConfig{Endpoint: n("events"), Replay: n("replay"), Normalizer: events.NormalizerConfig{BlockSize: 16}, OnEvents: func([]events.RouterEvent) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for end := time.Now().Add(20 * time.Second); !strings.Contains(httpGet(t, n("status")+"metrics"), `kvcr_router_subscribers{form="kv-events"} 1`); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a consumer does not reach what was announced")
		}
	}
}
