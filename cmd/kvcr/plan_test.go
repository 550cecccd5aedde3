package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPlan(t *testing.T) {
	dir := t.TempDir()
	file, svg := filepath.Join(dir, "example.json"), filepath.Join(dir, "plan.svg")
	code, example, msg := call(t, nil, "plan", "--example")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, msg)
	}
	if err := os.WriteFile(file, []byte(example), 0o644); err != nil {
		t.Fatal(err)
	}
	code, out, msg := call(t, nil, "plan", file, "--svg", svg)
	if code != 0 || !strings.Contains(out, "gpu-1   16        continuation  gpu-3       24: 16 to 39     tcp://10.0.4.3:17771\n") || !strings.Contains(out, "the picture is "+svg) {
		t.Errorf("exit code %d: %s\n%s", code, msg, out)
	}
	if text, err := os.ReadFile(svg); err != nil || !strings.HasPrefix(string(text), "<svg ") || !strings.Contains(string(text), "24 blocks from gpu-3") {
		t.Errorf("the picture is %.80s, %v", text, err)
	}
	if code, out, _ := call(t, nil, "plan", file, "--svg", "-"); code != 0 || !strings.HasPrefix(out, "<svg ") || !strings.HasSuffix(out, "</svg>\n") {
		t.Errorf("--svg -: exit code %d, %.80s", code, out)
	}
	if code, out, _ = call(t, nil, "plan", file, "--multi"); code != 0 || !strings.Contains(out, "part 2 of 2  gpu-3") {
		t.Errorf("--multi: exit code %d\n%s", code, out)
	}
	var answers []struct {
		Prompt  string
		Targets []struct {
			Frontier int
			Fetches  []struct{ From, To int }
		}
	}
	code, out, _ = call(t, nil, "plan", file, "--json")
	if err := json.Unmarshal([]byte(out), &answers); code != 0 || err != nil || len(answers) != 2 || answers[0].Targets[1].Frontier != 12 || answers[0].Targets[1].Fetches[0].To != 24 {
		t.Errorf("--json: exit code %d, %v: %+v", code, err, answers)
	}
	code, out, _ = call(t, nil, "plan", file, "--envelope")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != 0 || len(lines) != 7 {
		t.Errorf("--envelope: exit code %d, %d lines", code, len(lines))
	}
	for _, line := range lines {
		if !json.Valid([]byte(line)) || !strings.Contains(line, `"action_type":"kv.fetch"`) {
			t.Errorf("envelope %.80s", line)
		}
	}

	// A dump, alone and beside a file.
	dump := filepath.Join(dir, "dump.jsonl")
	event := `{"worker_id":7,"storage_tier":"host_pinned","event":{"event_id":1,"data":{"stored":{"parent_hash":null,"start_position":null,"blocks":[{"block_hash":5,"tokens_hash":6},{"block_hash":7,"tokens_hash":8}]}}}}`
	if err := os.WriteFile(dump, []byte(event+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, out, msg = call(t, nil, "plan", dump); code != 0 || !strings.Contains(out, "assumed: ") || !strings.Contains(out, "worker 7  2         has all") {
		t.Errorf("a dump: exit code %d: %s\n%s", code, msg, out)
	}
	if code, out, msg = call(t, nil, "plan", file, "--events", dump); code != 0 || !strings.Contains(out, "68 on host") {
		t.Errorf("--events: exit code %d: %s\n%s", code, msg, out)
	}
}

func TestPlanMistakes(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.json")
	if err := os.WriteFile(bad, []byte("{\"members\": [{\"worker\": 1}],\n\"prompts\": [{\"tokens\": []}]}"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args string
		want []string
	}{
		{"", []string{"--example"}},
		{"x.json --example", []string{"--example reads no file"}},
		{"/nowhere.json", []string{"/nowhere.json", "--example"}},
		{"- --events -", []string{"both"}},
		{bad, []string{"bad.json: line 2: prompts[0]", "tokens or hash_ids"}},
		{bad + " --json --envelope", []string{"which"}},
	} {
		code, _, msg := call(t, nil, append([]string{"plan"}, strings.Fields(tt.args)...)...)
		if code != 2 {
			t.Errorf("kvcr plan %s: exit code %d", tt.args, code)
		}
		for _, w := range tt.want {
			if !strings.Contains(msg, w) {
				t.Errorf("kvcr plan %s: %q lacks %q", tt.args, msg, w)
			}
		}
	}
}
