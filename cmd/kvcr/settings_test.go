package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// call runs one command line and returns what it printed.
func call(t *testing.T, environ []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = run(&env{context.Background(), &out, &err, environ}, args)
	return code, out.String(), err.String()
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kvcr.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPrecedence(t *testing.T) {
	path := file(t, "policy: lru\nshards: 2\ncapacity: 1GiB\n")
	tests := []struct {
		name          string
		flags         map[string]string
		environ       []string
		file          string
		policy, shard string
		source        string // of policy
	}{
		{"defaults", nil, nil, "", "density", "0", "default"},
		{"file over default", nil, nil, path, "lru", "2", "file " + path},
		{"environment over file", nil, []string{"KVCR_POLICY=fifo", "HOME=/"}, path, "fifo", "2", "env KVCR_POLICY"},
		{"flag over all", map[string]string{"policy": "s3fifo"}, []string{"KVCR_POLICY=fifo"}, path, "s3fifo", "2", "flag"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			vs, cfg, err := resolve(tt.flags, tt.environ, tt.file)
			if err != nil {
				t.Fatal(err)
			}
			if v := vs.get("policy"); v.Value != tt.policy || v.Source != tt.source {
				t.Errorf("policy = %+v, want %s from %s", v, tt.policy, tt.source)
			}
			if cfg.ns.Policy != tt.policy {
				t.Errorf("configuration has policy %q", cfg.ns.Policy)
			}
			if v := vs.get("shards"); v.Value != tt.shard {
				t.Errorf("shards = %+v, want %s", v, tt.shard)
			}
		})
	}
}

func TestUnknownAndBadSettings(t *testing.T) {
	tests := []struct {
		name    string
		args    []string
		environ []string
		file    string
		want    []string // all in the message
	}{
		{"flag", []string{"config", "--capcity", "1g"}, nil, "", []string{"--capacity"}},
		{"environment", []string{"config"}, []string{"KVCR_POLCY=lru"}, "", []string{"KVCR_POLCY", `"policy"`}},
		{"file", []string{"config"}, nil, "shrads: 3\n", []string{`"shrads"`, `"shards"`}},
		{"nested file", []string{"config"}, nil, "engine:\n  shards: 3\n", []string{"line 2", "single value"}},
		{"no YAML", []string{"config"}, nil, "]", []string{"kvcr.yaml"}},
		{"value", []string{"config", "--policy", "lur"}, nil, "", []string{"policy", `"lur"`, `"lru"`}},
		{"size", []string{"config", "--capacity", "12x"}, nil, "", []string{"12x", "MiB"}},
		{"several at once", []string{"config", "--shards", "x", "--lock", "maybe"}, nil, "", []string{"shards", "lock"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			args := tt.args
			if tt.file != "" {
				args = append(args, "--config", file(t, tt.file))
			}
			code, _, msg := call(t, tt.environ, args...)
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

// Every flag is a setting and every setting a flag.
func TestFlagsAreSettings(t *testing.T) {
	for _, s := range settings {
		code, _, msg := call(t, nil, "config", "--"+s.name, s.def)
		if code != 0 {
			t.Errorf("--%s %s: exit code %d: %s", s.name, s.def, code, msg)
		}
	}
}

func TestConfigShowsSources(t *testing.T) {
	code, out, _ := call(t, []string{"KVCR_SHARDS=4"}, "config", "--policy", "lru")
	if code != 0 || !strings.Contains(out, "env KVCR_SHARDS") || !strings.Contains(out, "flag") {
		t.Errorf("exit code %d, output:\n%s", code, out)
	}
}

func TestParseSize(t *testing.T) {
	tests := []struct {
		in   string
		want int64
		ok   bool
	}{
		{"0", 0, true}, {"4096", 4096, true}, {"64KiB", 64 << 10, true}, {"1.5g", 3 << 29, true}, {"512 MB", 512e6, true}, {"2T", 2 << 40, true},
		{"", 0, false}, {"-1", 0, false}, {"12x", 0, false}, {"NaN", 0, false}, {"1e300", 0, false}, {"KiB", 0, false},
	}
	for _, tt := range tests {
		got, err := parseSize(tt.in)
		if (err == nil) != tt.ok || got != tt.want {
			t.Errorf("parseSize(%q) = %d, %v", tt.in, got, err)
		}
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"--help"}, {"config", "--help"}} {
		if code, out, _ := call(t, nil, args...); code != 0 || !strings.Contains(out, "Usage") {
			t.Errorf("%v: exit code %d, output %q", args, code, out)
		}
	}
	if code, _, msg := call(t, nil, "relpay"); code != 2 || !strings.Contains(msg, "replay") {
		t.Errorf("misspelt command: exit code %d, message %q", code, msg)
	}
	if code, out, _ := call(t, nil, "version"); code != 0 || !strings.HasPrefix(out, "kvcr ") {
		t.Errorf("version: exit code %d, output %q", code, out)
	}
}
