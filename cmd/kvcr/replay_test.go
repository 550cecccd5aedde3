package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvcr-go/kvcr/bench"
)

// traceFile writes a trace of two conversations of three turns.
func traceFile(t *testing.T, extra string) string {
	t.Helper()
	var b strings.Builder
	for turn := 1; turn <= 3; turn++ {
		for conversation := range 2 {
			ids := []string{"0"}
			for i := range 4 * turn {
				ids = append(ids, fmt.Sprint(1000*(conversation+1)+i))
			}
			fmt.Fprintf(&b, `{"timestamp": %d, "input_length": 100, "output_length": 5, "hash_ids": [%s]}`+"\n", 1000*turn, strings.Join(ids, ", "))
		}
	}
	path := filepath.Join(t.TempDir(), "turns.jsonl")
	if err := os.WriteFile(path, []byte(b.String()+extra), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReplayCommand(t *testing.T) {
	path, dir := traceFile(t, ""), t.TempDir()
	svg, js := filepath.Join(dir, "c.svg"), filepath.Join(dir, "r.json")
	code, out, msg := call(t, nil, "replay", "--trace", path, "--capacity", "100%", "--block", "512", "--svg", svg, "--json", js)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, msg)
	}
	for _, want := range []string{"turns: 6 requests, 54 blocks, 25 different", "25 blocks of 512 B", "policy density", "Belady", "every byte of every hit was right", "p99.9", svg} {
		if !strings.Contains(out, want) {
			t.Errorf("output lacks %q:\n%s", want, out)
		}
	}
	if text, err := os.ReadFile(svg); err != nil || !strings.Contains(string(text), "turns: usable-prefix hits") {
		t.Errorf("chart: %v", err)
	}
	text, err := os.ReadFile(js)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Prefix  int   `json:"prefix_hits"`
		Wrong   int64 `json:"wrong_bytes"`
		Models  []bench.Curve
		Deposit bench.Latency
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	// All fits: every block but the 25 first ones is there.
	if got.Prefix != 54-25 || got.Wrong != 0 || len(got.Models) != len(bench.Models()) || got.Deposit.Count != 25 {
		t.Errorf("JSON says %+v", got)
	}
}

func TestReplayTakesSettings(t *testing.T) {
	path := traceFile(t, "")
	conf := file(t, "policy: fifo\nblock: 1KiB\ncapacity: 8KiB\n")
	tests := []struct {
		name    string
		args    []string
		environ []string
		want    []string
	}{
		{"defaults", nil, nil, []string{"3 blocks of 4 KiB", "policy density"}}, // 10 % of 25
		{"file", []string{"--config", conf}, nil, []string{"8 blocks of 1 KiB", "policy fifo"}},
		{"file by environment", nil, []string{"KVCR_CONFIG=" + conf}, []string{"8 blocks of 1 KiB", "policy fifo"}},
		{"variables of other commands are no settings", nil, []string{"KVCR_NODE=127.0.0.1:1", "KVCR_LIBCUDA=/none"}, []string{"3 blocks of 4 KiB"}},
		{"environment over file", []string{"--config", conf}, []string{"KVCR_POLICY=lru"}, []string{"8 blocks of 1 KiB", "policy lru"}},
		{"flags over all", []string{"--config", conf, "--policy", "s3fifo", "--capacity", "20%", "--block", "64"}, []string{"KVCR_POLICY=lru"}, []string{"5 blocks of 64 B", "policy s3fifo"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, out, msg := call(t, tt.environ, append([]string{"replay", "--trace", path}, tt.args...)...)
			if code != 0 {
				t.Fatalf("exit code %d: %s", code, msg)
			}
			for _, w := range tt.want {
				if !strings.Contains(out, w) {
					t.Errorf("output lacks %q:\n%s", w, out)
				}
			}
		})
	}
}

func TestReplayMistakes(t *testing.T) {
	path := traceFile(t, "")
	tests := []struct {
		name    string
		args    []string
		environ []string
		code    int
		want    []string
	}{
		{"trace name", []string{"--trace", "conversaton"}, nil, 2, []string{`"conversation"`}},
		{"trace file", []string{"--trace", "./none.jsonl"}, nil, 1, []string{"./none.jsonl"}},
		{"percentage", []string{"--capacity", "101%"}, nil, 2, []string{"101%", "up to 100"}},
		{"negative percentage", []string{"--capacity=-5%"}, nil, 2, []string{"-5%", "over 0"}},
		{"zero percent", []string{"--capacity", "0%"}, nil, 2, []string{"0%"}},
		{"size", []string{"--capacity", "10q"}, nil, 2, []string{"10q", "MiB"}},
		{"block", []string{"--trace", path, "--block", "100"}, nil, 2, []string{"100", "multiple of 64"}},
		{"policy", []string{"--policy", "lur"}, nil, 2, []string{`"lru"`}},
		{"on broken", []string{"--on-broken", "ignore"}, nil, 2, []string{"stop", "continue"}},
		{"flag", []string{"--capasity", "1"}, nil, 2, []string{"--capacity"}},
		{"environment", []string{"--trace", path}, []string{"KVCR_POLCY=lru"}, 2, []string{"KVCR_POLCY", `"policy"`}},
		{"output", []string{"--trace", path, "--json", "/nowhere/x.json"}, nil, 1, []string{"/nowhere/x.json"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, _, msg := call(t, tt.environ, append([]string{"replay"}, tt.args...)...)
			if code != tt.code {
				t.Errorf("exit code %d, want %d: %s", code, tt.code, msg)
			}
			for _, w := range tt.want {
				if !strings.Contains(msg, w) {
					t.Errorf("message %q lacks %q", msg, w)
				}
			}
		})
	}
}

func TestReplayBrokenLines(t *testing.T) {
	path := traceFile(t, "{\"timestamp\": 1}\nnonsense\n")
	if code, _, msg := call(t, nil, "replay", "--trace", path); code != 1 || !strings.Contains(msg, "line 7") {
		t.Errorf("exit code %d, message %q: does not name line 7", code, msg)
	}
	code, out, msg := call(t, nil, "replay", "--trace", path, "--on-broken", "continue")
	if code != 0 || !strings.Contains(out, "2 broken lines passed over") || !strings.Contains(out, "6 requests") {
		t.Errorf("exit code %d, %s\n%s", code, msg, out)
	}
}

func TestWrongBytesAreShown(t *testing.T) {
	var b strings.Builder
	r := &bench.ReplayResult{Trace: "x", Unique: 10, Capacity: 5, BlockBytes: 4096, WrongBytes: 1234, WrongBlocks: 2, Refused: 3, Elapsed: time.Second}
	if err := printReplay(&b, r, nil, ""); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1,234 WRONG bytes in 2 blocks", "3 blocks, for lack of memory"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, b.String())
		}
	}
}

func TestNumbersForPeople(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := count(n); got != want {
			t.Errorf("count(%d) = %q, want %q", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{0: "0s", 80: "80ns", 1234: "1.23µs", 27_247: "27.2µs", 2_469_887: "2.47ms", 1_234_567_890: "1.23s"} {
		if got := short(d); got != want {
			t.Errorf("short(%d ns) = %q, want %q", int64(d), got, want)
		}
	}
}
