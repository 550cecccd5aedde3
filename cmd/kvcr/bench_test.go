package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvcr-go/kvcr/bench"
)

func TestBenchCommand(t *testing.T) {
	js := filepath.Join(t.TempDir(), "r.json")
	code, out, msg := call(t, nil, "bench", "engine", "--quick", "--runs", "1", "--only", "metadata", "--capacity", "64MiB", "--json", js)
	if code != 0 || !strings.Contains(out, "engine metadata") {
		t.Fatalf("exit code %d: %s\n%s", code, msg, out)
	}
	text, err := os.ReadFile(js)
	if err != nil {
		t.Fatal(err)
	}
	var rows []bench.Row
	if err := json.Unmarshal(text, &rows); err != nil || len(rows) != 2 || rows[0].Name != "metadata" || rows[0].Impl != "kvcr" || rows[1].Name != bench.RunName {
		t.Errorf("rows %+v, %v; want one, and how it was run", rows, err)
	}
	if want := "kvcr bench engine --quick --runs 1 --only metadata --capacity 64MiB"; rows[1].Params["command"] != want {
		t.Errorf("the command is %q, want %q", rows[1].Params["command"], want)
	}
	code, out, _ = call(t, nil, "bench", "engine", "--quick", "--only", "metadata", "--capacity", "64MiB", "--json", "-")
	if err := json.Unmarshal([]byte(out), &rows); code != 0 || err != nil {
		t.Errorf("--json -: exit code %d, standard output is not the JSON alone: %v", code, err)
	}
	code, out, msg = call(t, nil, "bench", "replay", "--quick", "--runs", "1", "--only", "unreachable", "--trace", traceFile(t, ""))
	if code != 0 || !strings.Contains(out, "replay usable-prefix-hit trace=turns") {
		t.Errorf("exit code %d: %s\n%s", code, msg, out)
	}
}

func TestBenchScale(t *testing.T) {
	svg := filepath.Join(t.TempDir(), "s.svg")
	code, out, msg := call(t, nil, "bench", "scale", "--smoke", "--quiet", "--sweep", "nodes", "--trace", "generated", "--svg", svg)
	if code != 0 || !strings.Contains(out, "scale, sweep of nodes") || strings.Contains(out, "sweep of blocks") {
		t.Fatalf("exit code %d: %s\n%s", code, msg, out)
	}
	if text, err := os.ReadFile(svg); err != nil || !strings.Contains(string(text), "Cost of a request against nodes") {
		t.Errorf("the drawing: %v\n%.200s", err, text)
	}
}

func TestBenchMistakes(t *testing.T) {
	tests := []struct {
		name    string
		args    []string
		environ []string
		want    []string
	}{
		{"name", []string{"engine", "--only", "get-veiw"}, nil, []string{"get-veiw", "get-view"}},
		{"runs", []string{"ring", "--runs=-1"}, nil, []string{"Runs", "at least 1"}},
		{"workers", []string{"engine", "--workers=-1"}, nil, []string{"Workers"}},
		{"capacity", []string{"engine", "--capacity", "1k"}, nil, []string{"at least 16 MiB"}},
		{"size", []string{"engine", "--capacity", "many"}, nil, []string{"many"}},
		{"trace", []string{"replay", "--trace", "sinthetic"}, nil, []string{`"synthetic"`}},
		{"route", []string{"peer", "--route", "pigeon"}, nil, []string{"pigeon", "shm", "ucx-tcp", "stream"}},
		{"peer result", []string{"peer", "--only", "fetch-speed"}, nil, []string{"fetch-speed", "fetch-rate"}},
		{"sweep", []string{"scale", "--sweep", "moons"}, nil, []string{"moons", "nodes", "requests"}},
		{"trace of scale", []string{"scale", "--trace", "sinthetic"}, nil, []string{`"synthetic"`}},
		{"environment", []string{"ring"}, []string{"KVCR_SHRADS=1"}, []string{"KVCR_SHRADS", `"shards"`}},
		{"suite", []string{"rings"}, nil, []string{"ring"}},
		{"all but some", []string{"all", "--only", "get-view"}, nil, []string{"one suite"}},
		{"node result", []string{"node", "--only", "gets"}, nil, []string{"gets", "idle-conn"}},
		{"speed", []string{"trace", "--speed=-1"}, nil, []string{"speed = -1", "above 0"}},
		{"plan result", []string{"plan", "--only", "plans"}, nil, []string{"plans", "plan-beside-events"}},
		{"hints result", []string{"hints", "--only", "submit"}, nil, []string{"submit", "submit-discard"}},
		{"inventories", []string{"plan", "--check=-1"}, nil, []string{"Check = -1", "0 or more"}},
		{"soak for no time", []string{"soak", "--for", "1ms"}, nil, []string{"for = 1ms", "1s to 24h"}},
		{"soak of one node", []string{"soak", "--nodes", "1"}, nil, []string{"nodes = 1", "2 to 8"}},
		{"soak of another kind", []string{"soak", "--kind", "round"}, nil, []string{"round", "flat", "chained"}},
		{"profile", []string{"ring", "--profile", "heap"}, nil, []string{"heap", "mem"}},
		{"compare", []string{"ring", "--compare", "/nowhere.json"}, nil, []string{"/nowhere.json"}},
		{"report of nothing", []string{"report"}, nil, []string{"file"}},
		{"report of what is not there", []string{"report", "/nowhere.json"}, nil, []string{"/nowhere.json"}},
		{"report of no file", []string{"report", "/nowhere.json", "--report", "x"}, nil, []string{"/nowhere.json"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, _, msg := call(t, tt.environ, append([]string{"bench"}, tt.args...)...)
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

func TestBenchLists(t *testing.T) {
	code, out, msg := call(t, nil, "bench")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, msg)
	}
	for _, s := range []string{"engine ", "ring ", "replay ", "node ", "trace ", "peer ", "hints ", "plan ", "scale ", "soak ", "all "} {
		if !strings.Contains(out, "\n"+s) && !strings.HasPrefix(out, s) {
			t.Errorf("no line of %q in\n%s", s, out)
		}
	}
	if strings.Contains(out, "peer-source") {
		t.Errorf("what is no suite is listed:\n%s", out)
	}
}

// The planner agrees with its oracle, and --check says over how much.
func TestBenchPlanCheck(t *testing.T) {
	js := filepath.Join(t.TempDir(), "r.json")
	code, out, msg := call(t, nil, "bench", "plan", "--check", "60", "--seed", "1000", "--json", js)
	if code != 0 || !strings.Contains(out, "plan check inventories=60 seed=1000") || !strings.Contains(out, "pass") {
		t.Errorf("exit code %d: %s\n%s", code, msg, out)
	}
	rows, err := readRows(js)
	if err != nil || len(rows) != 2 || rows[0].Value != 0 {
		t.Errorf("rows %+v, %v", rows, err)
	}
}

// TestBenchSmoke runs every case of every suite, each suite in a process of its own
// with profiles, and makes of the results whatever can be made.
func TestBenchSmoke(t *testing.T) {
	if raceBuild || testing.Short() {
		t.Skip("benchmarks are left out of race builds and short tests")
	}
	dir := t.TempDir()
	js, site, prof := filepath.Join(dir, "r.json"), filepath.Join(dir, "site"), filepath.Join(dir, "prof")
	code, out, msg := call(t, nil, "bench", "all", "--smoke", "--quiet", "--json", js, "--report", site, "--profile", "cpu", "--profile-dir", prof)
	if code != 0 {
		t.Fatalf("exit code %d: %s\n%s", code, msg, out)
	}
	if strings.Contains(out, "MISS") {
		t.Error("a smoke run judges figures")
	}
	rows, err := readRows(js)
	if err != nil {
		t.Fatal(err)
	}
	suites := map[string]int{}
	keys := map[string]bool{}
	for _, r := range rows {
		suites[r.Suite]++
		if keys[r.Key()] {
			t.Errorf("two rows %s", r.Key())
		}
		keys[r.Key()] = true
		for _, v := range append(slices.Clone(r.Runs), r.Value) {
			if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 && r.Name != "idle-conn" && r.Name != "scale-exponent" { // memory can shrink meanwhile, cost can fall
				t.Errorf("%s: %v", r.Key(), v)
			}
		}
		if r.Unit == "" {
			t.Errorf("%s has no unit", r.Key())
		}
		if r.Name == bench.RunName {
			c, err := bench.ConditionsOf(r)
			if want := fmt.Sprintf("kvcr bench %s --smoke --profile cpu", r.Suite); err != nil || c.Command != want || !c.Smoke || c.CPUs < 1 || c.Took <= 0 || c.Error != "" {
				t.Errorf("%s was run by %+v, %v; want %q", r.Suite, c, err, want)
			}
		}
	}
	// Every bar is known of, and none judged.
	bars := bench.Judge(rows)
	perSuite := map[string]int{}
	for _, j := range bars {
		perSuite[j.Suite]++
		if j.Outcome != bench.NotMeasured || j.What == "" || j.Bar == "" {
			t.Errorf("a bar %+v", j)
		}
	}
	for _, s := range []string{"engine", "ring", "replay", "node", "trace", "peer", "hints", "plan", "scale", "soak"} {
		if perSuite[s] == 0 {
			t.Errorf("no bars of suite %s: %v", s, perSuite)
		}
	}
	if want := bench.CountBars(bars); !strings.Contains(out, want+"\n") || len(bars) < 140 {
		t.Errorf("the output does not say %q", want)
	}
	if !strings.Contains(out, "\nscale   ") || !strings.Contains(out, "\nall ") {
		t.Errorf("the output does not say how long suites took:\n%s", out[max(0, len(out)-2000):])
	}
	html, err := os.ReadFile(filepath.Join(site, "index.html"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"engine", "ring", "replay", "node", "trace", "peer", "hints", "plan", "scale", "soak"} {
		if suites[s] < 5 || !strings.Contains(string(html), `<h2 id="`+s+`">`) {
			t.Errorf("%d rows of suite %s, or no part of the page", suites[s], s)
		}
		if !strings.Contains(out, "== "+s+"\n") {
			t.Errorf("the output has no part for %s", s)
		}
	}
	code, out, msg = call(t, nil, "bench", "report", js, "--compare", js, "--report", site)
	if again, err := os.ReadFile(filepath.Join(site, "index.html")); code != 0 || err != nil || string(again) != string(html) {
		t.Errorf("exit code %d: %s; the page of the stored results is another one: %t, %v", code, msg, string(again) != string(html), err)
	}
	if !strings.Contains(out, "0 better, 0 worse") || strings.Contains(out, "not the same conditions") {
		t.Errorf("a run compared with itself:\n%s", out)
	}
	files, err := os.ReadDir(prof)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	if want := []string{"engine.cpu.pprof", "hints.cpu.pprof", "node-load.cpu.pprof", "node-plain.cpu.pprof", "node-server.cpu.pprof", "node.cpu.pprof", "peer-source.cpu.pprof", "peer.cpu.pprof", "plan-sample.cpu.pprof", "plan.cpu.pprof", "replay.cpu.pprof", "ring.cpu.pprof", "scale.cpu.pprof", "soak.cpu.pprof", "trace-server.cpu.pprof", "trace.cpu.pprof"}; !slices.Equal(names, want) {
		t.Errorf("profiles %v, want %v", names, want)
	}
	p, err := bench.ReadProfile(filepath.Join(prof, "node-server.cpu.pprof"))
	if err != nil {
		t.Fatal(err)
	}
	loops := 0
	for _, s := range p.Sample {
		if !slices.Equal(s.Label["suite"], []string{"node"}) {
			t.Errorf("a sample of the server has the labels %v", s.Label)
		}
		if slices.Equal(s.Label["role"], []string{"event-loop"}) {
			loops++
		}
	}
	if loops == 0 {
		t.Errorf("none of %d samples of the server is of its event loops", len(p.Sample))
	}
	// Nearly all time has a role, and nearly all that is not the runtime's own has it
	// from its goroutine.
	var all, known, stack, ofRuntime int64
	for _, name := range names {
		p, err := bench.ReadProfile(filepath.Join(prof, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range p.Sample {
			ns := s.Value[1]
			all += ns
			role := s.Label["role"]
			if len(role) > 0 {
				known += ns
			}
			if len(s.Label["role_from"]) > 0 {
				stack += ns
				if slices.Contains([]string{"collector", "scheduler", "runtime"}, role[0]) {
					ofRuntime += ns
				}
			}
		}
	}
	if known*100 < all*95 || (stack-ofRuntime)*100 > all*10 {
		t.Errorf("of %d ms %d have a role, %d by their stack, of which %d are the runtime's", all/1e6, known/1e6, stack/1e6, ofRuntime/1e6)
	}
	t.Logf("of %d ms %d have a role, %d by their stack, of which %d are the runtime's", all/1e6, known/1e6, stack/1e6, ofRuntime/1e6)
	if code, out, msg := call(t, nil, "bench", "profile", prof); code != 0 || strings.Count(out, "go tool pprof") != len(names) {
		t.Errorf("exit code %d: %s\n%s", code, msg, out)
	}
}

// A suite that fails does not keep the others from running, and says so.
func TestBenchAllGoesOn(t *testing.T) {
	if raceBuild || testing.Short() {
		t.Skip("benchmarks are left out of race builds and short tests")
	}
	js := filepath.Join(t.TempDir(), "r.json")
	code, out, msg := call(t, []string{"KVCR_SHRADS=1"}, "bench", "all", "--smoke", "--json", js)
	if code != 1 || strings.Count(msg, "KVCR_SHRADS") < 5 || !strings.Contains(msg, "ring: exit status 2") {
		t.Errorf("exit code %d: %s\n%s", code, msg, out)
	}
	if text, err := os.ReadFile(js); err != nil || strings.TrimSpace(string(text)) != "[]" {
		t.Errorf("results %s, %v", text, err)
	}
}
