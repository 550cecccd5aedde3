package main

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kvcr-go/kvcr/bench/trace"
)

// Processes that commands start are the test binary, run again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{"peerdemo-node", "bench", "serve"}, os.Args[1]) {
		main()
	}
	os.Exit(m.Run())
}

// Two processes exchange blocks by each route, B is killed, and nothing is lost.
func TestPeerdemo(t *testing.T) {
	blocks, block, pinned := 96, 1024, 1
	if testing.Short() {
		blocks, pinned = 48, 0
	}
	if raceBuild { // looking at a byte takes long there
		block = 256
	}
	var stdout, stderr output // several processes write
	code := run(&env{t.Context(), &stdout, &stderr, nil}, []string{"peerdemo", "--quiet", "--trace", "generated",
		"--bytes", fmt.Sprintf("%dKiB", blocks*block), "--block", fmt.Sprintf("%dKiB", block)})
	out, msg := stdout.String(), stderr.String()
	if code != 0 || !strings.Contains(out, "every byte was right, no block was lost") {
		t.Fatalf("exit code %d: %s\n%s", code, msg, out)
	}
	n := strconv.Itoa(blocks)
	shown := 0
	for _, route := range peerRoutes {
		if left := regexp.MustCompile(`(?m)^` + route + ` .*left out: (.+)$`).FindStringSubmatch(out); left != nil {
			if route == "stream" {
				t.Errorf("stream is everywhere, and left out: %s", left[1])
			}
			t.Logf("route %s is left out: %s", route, left[1])
			continue
		}
		shown++
		if kill := regexp.MustCompile(`(?m)^` + route + ` +` + n + ` +\d+ +` + n + ` +` + n + ` +` + n + ` of ` + n + `$`); !kill.MatchString(out) {
			t.Errorf("no line of the kill over %s:\n%s", route, out)
		}
	}
	if got := strings.Count(out, "all arrived"); got != 3*shown {
		t.Errorf("%d times all arrived, want 3 for each of %d routes:\n%s", got, shown, out)
	}
	if got := strings.Count(out, "A kept 1 (no_evict)"); got != pinned*shown {
		t.Errorf("%d moves kept a block that may not leave, want %d:\n%s", got, pinned*shown, out)
	}
}

func TestPeerdemoMistakes(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"--block=128KiB", "256KiB to 2MiB"},
		{"--block=x", "no size"},
		{"--bytes=4MiB", "at least 16 blocks"},
		{"--per=129", "1 to 128"},
		{"--routes=shm,strem", `"stream"`},
		{"--trace=conversaton", `"conversation"`},
	} {
		if code, _, msg := call(t, nil, "peerdemo", tt.args); code != 2 || !strings.Contains(msg, tt.want) {
			t.Errorf("%s: exit code %d, %q lacks %q", tt.args, code, msg, tt.want)
		}
	}
}

// Blocks keep their places in their chains.
func TestChainsOf(t *testing.T) {
	tr := &trace.Trace{Requests: []trace.Request{{IDs: []uint64{1, 2, 3}}, {IDs: []uint64{1, 2, 4, 3, 5}}, {IDs: []uint64{1}}, {IDs: []uint64{6, 7, 8}}}}
	want := []demoChain{{IDs: []uint64{1, 2, 3}}, {IDs: []uint64{4}, Parent: 2, Position: 2}, {IDs: []uint64{6, 7}}}
	if got := chainsOf(tr, 6); !reflect.DeepEqual(got, want) {
		t.Errorf("chains %+v, want %+v", got, want)
	}
}

// What goes wrong is counted and shown, and fails the command.
func TestPeerdemoCounts(t *testing.T) {
	d := &demo{setup: demoSetup{Block: 1 << 20, Chains: []demoChain{{IDs: []uint64{1, 2, 3}}}, Page: []uint64{9}}, align: "llrrrrrl"}
	d.row("shm", "move", demoAnswer{Blocks: 3, Times: []float64{0.001}, Moved: 2, Kept: map[string]int{"held": 1}})
	if d.wrong != 0 || d.lost != 0 || d.table[0][7] != "2 moved, A kept 1 (held)" || d.table[0][4] != "3.15" {
		t.Errorf("a good move: %+v, %d wrong, %d lost", d.table, d.wrong, d.lost)
	}
	d.row("", "fetch", demoAnswer{Blocks: 1, Wrong: 5, Failed: map[string]int{"timeout": 2}})
	if d.wrong != 5 || d.lost != 2 || d.table[1][7] != "2 of 3 did NOT arrive: 2 (timeout); 5 WRONG bytes" {
		t.Errorf("a bad fetch: %+v, %d wrong, %d lost", d.table[1], d.wrong, d.lost)
	}
	d.kills = [][]string{{"shm", "1", "1", "1", "1", "1 of 1"}}
	var out strings.Builder
	if err := d.print(&out, tinyTrace, 0); err != nil || !strings.Contains(out.String(), "5 WRONG bytes, 2 blocks LOST") {
		t.Errorf("%v\n%s", err, out.String())
	}
	if d.verdict() == nil {
		t.Error("wrong bytes and lost blocks do not fail the command")
	}
}

var tinyTrace = &trace.Trace{Name: "tiny"}

// A node says what is wrong with what it is told, and goes on.
func TestDemoNodeRefuses(t *testing.T) {
	e := &env{ctx: t.Context(), stdout: new(output), stderr: new(output)}
	o, err := startOther(t.Context(), e, demoSetup{Name: "A", Route: "stream", Block: 256 << 10, Slots: 8, Chains: []demoChain{{IDs: []uint64{1}}}})
	if err != nil {
		t.Fatal(err)
	}
	defer o.stop()
	if _, err := o.say(demoAsk{Do: "dance"}); err == nil || !strings.Contains(err.Error(), `"dance"`) {
		t.Errorf("an unknown thing to do: %v", err)
	}
	if a, err := o.say(demoAsk{Do: "deposit"}); err != nil || a.Blocks != 1 {
		t.Errorf("deposit after that: %+v, %v", a, err)
	}
}
