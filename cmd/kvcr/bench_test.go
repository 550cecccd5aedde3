package main

import (
	"encoding/json"
	"os"
	"path/filepath"
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
	if err := json.Unmarshal(text, &rows); err != nil || len(rows) != 1 || rows[0].Name != "metadata" || rows[0].Impl != "kvcr" {
		t.Errorf("rows %+v, %v", rows, err)
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
		{"environment", []string{"ring"}, []string{"KVCR_SHRADS=1"}, []string{"KVCR_SHRADS", `"shards"`}},
		{"suite", []string{"rings"}, nil, []string{"ring"}},
		{"no suite", nil, nil, []string{"engine", "ring", "replay", "peer"}},
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
